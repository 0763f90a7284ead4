"""The model families whose image rules are known, and which of them a model's name tells."""

import re
from typing import Literal

from proxy.tokens.images import (
    BoundedRows,
    ClosestTiles,
    FilledPatches,
    FittingTiles,
    Fixed,
    ImageRule,
    Patches,
    ResizedPatches,
    ShrunkPatches,
    Slices,
)

Family = Literal[
    "patches",
    "qwen2_vl",
    "qwen3_vl",
    "glm4v",
    "kimi_vl",
    "kimi_k25",
    "internvl",
    "gemma3",
    "gemma4",
    "llama4",
    "pixtral",
    "mistral3",
    "minicpmv",
]

QWEN2_VL = ResizedPatches()
QWEN3_VL = ResizedPatches(32, 65_536, 16_777_216)
GLM4V = ResizedPatches(28, 112 * 112 // 2, 6_144 * 28 * 28)
FAMILIES: dict[Family, ImageRule] = {
    "patches": Patches(),
    "qwen2_vl": QWEN2_VL,
    "qwen3_vl": QWEN3_VL,
    "glm4v": GLM4V,
    "kimi_vl": ShrunkPatches(most_patches=4_096),
    "kimi_k25": ShrunkPatches(),
    "internvl": ClosestTiles(),
    "gemma3": Fixed(256),
    "gemma4": FilledPatches(),
    "llama4": FittingTiles(),
    "pixtral": BoundedRows(16, 1_024),
    "mistral3": BoundedRows(),
    "minicpmv": Slices(),
}
"""Each family's rule with the numbers that its models are published with."""

_NAMES: tuple[tuple[str, Family], ...] = (
    (r"qwen-?2(\.5)?-?(vl|omni)|qvq", "qwen2_vl"),
    (r"qwen-?3-?(vl|omni)|qwen-?3\.[5-9]", "qwen3_vl"),
    (r"glm-?4(\.\d)?v|glm-?ocr", "glm4v"),
    (r"kimi-?vl", "kimi_vl"),
    (r"kimi-?k(2\.[5-9]|3)", "kimi_k25"),
    (r"internvl|intern-?s1", "internvl"),
    (r"gemma-?3", "gemma3"),
    (r"gemma-?4", "gemma4"),
    (r"llama-?4", "llama4"),
    (r"pixtral", "pixtral"),
    (r"mistral-(small|medium|large)-3|ministral-3", "mistral3"),
    (r"minicpm-?[vo]", "minicpmv"),
)


def family_of_name(name: str) -> Family | None:
    """The family that a model's name or path tells, None where it tells none."""
    text = re.sub(r"[_\s]", "-", name.lower())
    return next((family for pattern, family in _NAMES if re.search(pattern, text)), None)
