"""Chat templates, rendered as transformers renders them: sandboxed Jinja with its few extras."""

import json
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import Any

import jinja2
from jinja2 import ext, nodes
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from proxy.tokens.breath import breathe
from proxy.tokens.exact.tokenizer import content_of, read_json

_SPECIALS = (
    "bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token",
)  # fmt: skip
_MEDIA_WORDS = ("image", "audio", "video", "vision")
_MESSAGE_NAMES = ("message", "msg", "m")


class TemplateFailed(Exception):
    """The template refused these messages, or cannot be used at all."""


class _Generation(ext.Extension):
    """`{% generation %}` marks what an assistant wrote, for training; its content is printed as it is."""

    tags = {"generation"}  # noqa: RUF012 the base class declares it so

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.CallBlock(self.call_method("_printed"), [], [], body).set_lineno(line)

    def _printed(self, caller: Callable[[], str]) -> str:
        return caller()


def _raise(message: str) -> None:
    raise jinja2.TemplateError(message)


def _tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    return json.dumps(
        value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )


def _strftime_now(layout: str) -> str:
    return datetime.now().strftime(layout)  # noqa: DTZ005 local time, as transformers


def _environment() -> ImmutableSandboxedEnvironment:
    made = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, ext.loopcontrols]
    )
    made.filters["tojson"] = _tojson
    made.globals["raise_exception"] = _raise
    made.globals["strftime_now"] = _strftime_now
    return made


class ChatTemplate:
    """One template with the special tokens of its tokenizer.

    `parts`: it takes contents as lists of parts; otherwise they are joined to strings before.
    `reorders`: it reads `tool_call_id`, so that tool results are put into the order of their calls.
    `inline_system`: it prints system messages in the middle of a conversation.
    """

    def __init__(self, source: str, config: dict[str, Any]) -> None:
        """`config` is tokenizer_config.json. Raises TemplateFailed when `source` is no template."""
        environment = _environment()
        try:
            self._template = environment.from_string(source)
            tree = environment.parse(source)
        except jinja2.TemplateError as error:
            raise TemplateFailed(f"{type(error).__name__}: {error}") from None
        specials = {name: content_of(config.get(name)) for name in _SPECIALS}
        self._specials = {name: token for name, token in specials.items() if token is not None}
        self.parts = any(word in source for word in _MEDIA_WORDS) or _loops_over_content(tree)
        self.reorders = _reads(tree, "tool_call_id")
        self.inline_system = self._prints_inline_system()

    def render(self, messages: list[dict[str, Any]], tools: list[Any] | None, options: dict[str, Any]) -> str:
        """The prompt with the opening of the reply. Raises TemplateFailed."""
        variables = self._specials | {"documents": None, "add_generation_prompt": True} | options
        try:
            chunks = []
            for chunk in self._template.generate(messages=messages, tools=tools, **variables):
                chunks.append(chunk)
                breathe()
            return "".join(chunks)
        except Exception as error:  # noqa: BLE001 a template can raise whatever Python can
            raise TemplateFailed(f"{type(error).__name__}: {error}") from None

    def _prints_inline_system(self) -> bool:
        roles = ("system", "user", "system", "user")
        messages = [{"role": role, "content": f"<probe {index}>"} for index, role in enumerate(roles)]
        try:
            return "<probe 2>" in self.render(messages, None, {"add_generation_prompt": False})
        except TemplateFailed:
            return False


def _loops_over_content(tree: nodes.Template) -> bool:
    """Whether it loops over a message's content, which is then a list of parts."""
    return any(_is_content(loop.iter) for loop in tree.find_all(nodes.For))


def _is_content(node: nodes.Node | None) -> bool:
    while isinstance(node, nodes.Filter | nodes.Test) or (
        isinstance(node, nodes.Getitem) and isinstance(node.arg, nodes.Slice)
    ):
        node = node.node
    if isinstance(node, nodes.Getitem):
        named = isinstance(node.arg, nodes.Const) and node.arg.value == "content"
    elif isinstance(node, nodes.Getattr):
        named = node.attr == "content"
    else:
        return False
    return named and isinstance(node.node, nodes.Name) and node.node.name in _MESSAGE_NAMES


def _reads(tree: nodes.Template, name: str) -> bool:
    """Whether the template reads the attribute or key `name` of anything."""
    if any(node.attr == name for node in tree.find_all(nodes.Getattr)):
        return True
    keys = [node.arg for node in tree.find_all(nodes.Getitem)]
    keys.extend(
        call.args[0]
        for call in tree.find_all(nodes.Call)
        if isinstance(call.node, nodes.Getattr) and call.node.attr == "get" and call.args
    )
    for chosen in tree.find_all(nodes.Filter):
        if chosen.name in ("map", "rejectattr", "selectattr"):
            keys.extend(chosen.args[:1])
            keys.extend(option.value for option in chosen.kwargs if option.key == "attribute")
    return any(isinstance(key, nodes.Const) and key.value == name for key in keys)


def load_template(directory: Path, config: dict[str, Any], override: Path | None) -> ChatTemplate | None:
    """The template of a tokenizer directory, or the file `override` as SGLang's `--chat-template`.

    None when there is none. Raises OSError, ValueError or TemplateFailed.
    """
    if override is not None:
        source = override.read_text(encoding="utf-8").strip("\n").replace("\\n", "\n")
        return ChatTemplate(source, config)
    file = directory / "chat_template.jinja"
    if file.is_file():
        return ChatTemplate(file.read_text(encoding="utf-8"), config)
    found = read_json(directory / "chat_template.json").get("chat_template") or config.get("chat_template")
    if isinstance(found, list):  # several by name: SGLang takes the first
        found = found[0].get("template") if found else None
    return ChatTemplate(found, config) if isinstance(found, str) else None
