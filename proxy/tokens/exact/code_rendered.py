"""Models whose chats SGLang renders in Python instead of by the template in their directory.

Follows 0.5.23, entrypoints/openai/chat_encoding.py. Their prompts cannot be known from a tokenizer
directory, so they are counted by the default rules with their own vocabulary, and calibrated.
"""

from pathlib import Path

from proxy.tokens.exact.tokenizer import read_json

_BY_ARCHITECTURE = {
    "DeepseekV41": "DeepSeek V4.1",
    "DeepseekV4": "DeepSeek V4",
    "KimiK3": "Kimi K3",
    "InklingForConditionalGeneration": "Inkling",
}


def rendered_in_code(directory: Path) -> str | None:
    """Why the chats of this model are not counted exactly, None when a template renders them.

    Judged by config.json, where the directory holds it. Raises OSError or ValueError.
    """
    config = read_json(directory / "config.json")
    architectures = config.get("architectures") or [""]
    architecture = str(architectures[0])
    for part, name in _BY_ARCHITECTURE.items():
        if part in architecture:
            return _note(name)
    if config.get("model_type") == "deepseek_v41":
        return _note("DeepSeek V4.1")
    if "DeepseekV3" in architecture and not _has_template(directory):
        return _note("DeepSeek V3.2")
    return None


def _note(name: str) -> str:
    return f"SGLang renders {name} chats in code: counted by the default rules with its vocabulary"


def _has_template(directory: Path) -> bool:
    return (directory / "chat_template.jinja").is_file() or bool(
        read_json(directory / "tokenizer_config.json").get("chat_template")
    )
