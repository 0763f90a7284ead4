"""Python imports this by itself in every process of the server that server.py starts.

It changes what SGLang computes with, not what it does: HTTP layer, tokenizer manager, scheduler,
radix cache and KV pool are the published ones. No file of SGLang is edited; two imports are watched:
torchvision (declares two operators first) and the PyTorch attention backend (replaces its arithmetic).
"""

import importlib.abc
import importlib.machinery
import sys
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any

ATTENTION_BACKEND = "sglang.srt.layers.attention.torch_native_backend"
# torchvision's wheel is built for CUDA; beside a CPU torch its library does not load, and importing
# it fails on operators that nothing here calls.
TORCHVISION_OPERATORS = (
    "nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
    "qnms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
)
_kept: list[Any] = []  # a torch.library.Library withdraws its operators when it is collected


def declare_torchvision_operators() -> None:
    import torch  # type: ignore[import-not-found]

    if torch.version.cuda is not None:
        return
    library = torch.library.Library("torchvision", "DEF")
    for operator in TORCHVISION_OPERATORS:
        library.define(operator)
    _kept.append(library)


def replace_arithmetic(module: ModuleType) -> None:
    import local_attention  # type: ignore[import-not-found]
    import pacing  # type: ignore[import-not-found]

    backend = module.TorchNativeAttnBackend
    backend._run_sdpa_forward_extend = local_attention.extend
    backend._run_sdpa_forward_decode = local_attention.decode
    pace = pacing.configured()
    if pace is not None:
        pacing.slow_down(backend, pace)


class BeforeImport(importlib.abc.MetaPathFinder):
    """Does something once, just before a module is first looked for."""

    def __init__(self, name: str, action: Callable[[], None]) -> None:
        self._name = name
        self._action = action

    def find_spec(self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None) -> None:
        if fullname == self._name:
            sys.meta_path.remove(self)
            self._action()


class AfterImport(importlib.abc.MetaPathFinder):
    """Does something with a module just after it was executed."""

    def __init__(self, name: str, action: Callable[[ModuleType], None]) -> None:
        self._name = name
        self._action = action

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname != self._name:
            return None
        spec = importlib.machinery.PathFinder.find_spec(fullname, path)
        if spec is None or spec.loader is None:
            return spec
        execute = spec.loader.exec_module

        def execute_and_act(module: ModuleType) -> None:
            execute(module)
            self._action(module)

        spec.loader.exec_module = execute_and_act  # type: ignore[method-assign]
        return spec


sys.meta_path.insert(0, BeforeImport("torchvision", declare_torchvision_operators))
sys.meta_path.insert(0, AfterImport(ATTENTION_BACKEND, replace_arithmetic))
