"""Message contents: a string, or a list of typed parts, in the dialects of the three chat APIs."""

import json
from collections.abc import Callable
from typing import Any

from proxy.tokens.fields import wrong_type
from proxy.tokens.media import MediaRules, url_of
from proxy.tokens.shape import BadRequest, Unit

TOOL_CALL_TOKENS = 20  # measured around a call and its result: 5-46 by family
MESSAGE_TOKENS = 4  # measured around a message: 2-10 by family


def add_content(unit: Unit, content: object, rules: MediaRules, param: str) -> None:
    """Adds a message's `content` to `unit`: text as text, media by their own rules.

    Parts of a type nobody knows pass through; their `text`, where there is one, is counted.
    Raises BadRequest when it is neither string nor list, or a part is neither object nor string.
    """
    if isinstance(content, str):
        unit.texts.append(content)
        return
    if content is None:
        return
    if not isinstance(content, list):
        raise wrong_type(content, "a string or an array of parts", param)
    for index, part in enumerate(content):
        if isinstance(part, str):
            unit.texts.append(part)
        elif isinstance(part, dict):
            _add_part(unit, part, rules, f"{param}[{index}]")
        else:
            raise wrong_type(part, "an object", f"{param}[{index}]")


def _add_part(unit: Unit, part: dict[str, Any], rules: MediaRules, param: str) -> None:
    kind = part.get("type")
    known = _PARTS.get(kind) if isinstance(kind, str) else None
    if known is not None:
        known(unit, part, rules)
        return
    text = part.get("text")
    if isinstance(text, str):
        unit.texts.append(text)
    elif kind in _TEXT_TYPES:
        raise BadRequest(f"{param}.text must be a string", f"{param}.text")
    elif isinstance(part.get("content"), str | list):  # Anthropic's search_result and its like
        add_content(unit, part["content"], rules, f"{param}.content")


_TEXT_TYPES = ("text", "input_text", "output_text")


def _image(unit: Unit, part: dict[str, Any], rules: MediaRules) -> None:
    source = part.get("source")
    if isinstance(source, dict):  # Anthropic: {"source": {"type": "base64", "data": ...}}
        url = source.get("data") or source.get("url")
    else:
        url = url_of(part, "image_url") if "image_url" in part else part.get("image", source)
    _medium(unit).append(rules.image(url))


def _video(unit: Unit, part: dict[str, Any], rules: MediaRules) -> None:
    _medium(unit).append(rules.video(url_of(part, "video_url")))


def _audio(unit: Unit, part: dict[str, Any], rules: MediaRules) -> None:
    inline = part.get("input_audio")
    source = inline.get("data") if isinstance(inline, dict) else url_of(part, "audio_url")
    _medium(unit).append(rules.audio(source))


def _file(unit: Unit, part: dict[str, Any], rules: MediaRules) -> None:
    source = part.get("source")
    if isinstance(source, dict) and source.get("type") == "text" and isinstance(source.get("data"), str):
        unit.texts.append(source["data"])
        return
    inner = part.get("file")
    for holder in (source, inner, part):
        if isinstance(holder, dict) and isinstance(
            data := holder.get("data") or holder.get("file_data"), str
        ):
            _medium(unit).append(rules.file(data))
            return
    _medium(unit).append(rules.file(None))


def _nothing(unit: Unit, part: dict[str, Any], rules: MediaRules) -> None:
    """Parts that no template renders: earlier reasoning, refusals."""


def _tool_use(unit: Unit, part: dict[str, Any], rules: MediaRules) -> None:
    add_tool_call(unit, part.get("name"), part.get("input"))


def _tool_result(unit: Unit, part: dict[str, Any], rules: MediaRules) -> None:
    unit.overhead_tokens += MESSAGE_TOKENS
    add_content(unit, part.get("content"), rules, "tool_result.content")


def _medium(unit: Unit) -> list[Any]:
    if unit.media is None:
        unit.media = []
    return unit.media


_PARTS: dict[str, Callable[[Unit, dict[str, Any], MediaRules], None]] = {
    "image_url": _image,
    "input_image": _image,
    "image": _image,
    "video_url": _video,
    "video": _video,
    "audio_url": _audio,
    "input_audio": _audio,
    "input_file": _file,
    "file": _file,
    "document": _file,
    "tool_use": _tool_use,
    "tool_result": _tool_result,
    "thinking": _nothing,
    "redacted_thinking": _nothing,
    "reasoning": _nothing,
    "refusal": _nothing,
}


def add_tool_call(unit: Unit, name: object, arguments: object) -> None:
    """Adds one call of a tool to an assistant's message: its name, its arguments, the frame."""
    unit.overhead_tokens += TOOL_CALL_TOKENS
    if isinstance(name, str):
        unit.texts.append(name)
    if isinstance(arguments, str):
        unit.texts.append(arguments)
    elif arguments is not None:
        unit.texts.append(dumped(arguments, "arguments"))


def dumped(value: object, param: str) -> str:
    """`value` as templates print it (`json.dumps` with default separators: the compact form counts
    15 % low). Raises BadRequest when it is nested too deeply."""
    try:
        return json.dumps(value, ensure_ascii=False)
    except RecursionError:
        raise BadRequest(f"{param} is nested too deeply", param) from None
