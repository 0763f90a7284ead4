"""Settings in words: the error line, `--help`, and the tables of docs/settings.md."""

import textwrap
import types
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, Union, get_args, get_origin

from annotated_types import Ge, Gt, Le, Lt
from pydantic import BaseModel, SecretStr
from pydantic.fields import FieldInfo

from proxy.backend_spec import BackendSpec


class SettingsError(ValueError):
    """The configuration is wrong; the text is one line for the operator."""


def variable(field_name: str) -> str:
    """`max_queue_seconds` -> `PROXY_MAX_QUEUE_SECONDS`."""
    return "PROXY_" + field_name.upper()


def error_line(
    model: type[BaseModel], errors: Sequence[Mapping[str, Any]], raw: Mapping[str, str | None]
) -> str:
    """One line for what is wrong: variable, value, what is allowed. Keys are not shown.

    `raw` maps lower-case variable names to the text the operator wrote.
    """
    first = errors[0]
    if not first["loc"]:  # a rule between several variables: its text says it all
        return str(first["ctx"]["error"])
    name = str(first["loc"][0])
    field = model.model_fields[name]
    text = f"{variable(name)}={_shown(field, raw.get(variable(name).lower()))}: "
    if first["type"] == "value_error":
        text += f"{first['ctx']['error']}; "
    text += f"allowed is {allowed(field)}"
    others = sorted({variable(str(e["loc"][0])) for e in errors[1:] if e["loc"]} - {variable(name)})
    return text + (f" (also wrong: {', '.join(others)})" if others else "")


def _shown(field: FieldInfo, value: str | None) -> str:
    if _core(field) is SecretStr:
        return "(hidden)"
    text = value or ""
    if _core(field) is BackendSpec and (text.lstrip().startswith(("[", "{")) or "@" in text):
        return "(not shown: it may hold keys)"
    return repr(text if len(text) <= 80 else text[:77] + "...")


def _core(field: FieldInfo) -> Any:
    """The annotation without `None`, `Annotated` and the tuple around it."""
    kind: Any = field.annotation
    if get_origin(kind) in (Union, types.UnionType):
        kind = next(part for part in get_args(kind) if part is not type(None))
    if hasattr(kind, "__metadata__"):
        kind = get_args(kind)[0]
    return get_args(kind)[0] if get_origin(kind) is tuple else kind


def _notes(field: FieldInfo) -> Mapping[str, Any]:
    return field.json_schema_extra if isinstance(field.json_schema_extra, dict) else {"change": ""}


def allowed(field: FieldInfo) -> str:
    """What values a variable takes: "a whole number of at least 1", "text or json", ..."""
    kind = _core(field)
    if text := _notes(field).get("allowed"):
        return str(text)
    if get_origin(kind) is Literal:
        *most, last = get_args(kind)
        return f"{', '.join(most)} or {last}"
    if kind is bool:
        return "true or false"
    if kind in (int, float):
        return ("a whole number" if kind is int else "a number") + _bounds(field.metadata)
    return "a path" if kind is Path else "a text"


def _bounds(metadata: Iterable[Any]) -> str:
    low = high = ""
    for bound in metadata:
        match bound:
            case Ge(ge=value):
                low = f"at least {value}"
            case Gt(gt=value):
                low = f"above {value}"
            case Le(le=value):
                high = f"at most {value}"
            case Lt(lt=value):
                high = f"below {value}"
    both = " and ".join(part for part in (low, high) if part)
    return f", {both}" if both else ""


def default_text(field: FieldInfo) -> str:
    """The default as the operator would write it, or what being unset stands for."""
    value = field.default
    if value is None:
        return str(_notes(field).get("unset", "unset"))
    if isinstance(value, tuple):
        return ",".join(spec.url for spec in value)
    if isinstance(value, bool):
        return str(value).lower()
    return f"{value:g}" if isinstance(value, float) else str(value)


def help_text(sections: Sequence[type[BaseModel]], pending: Collection[str] = ()) -> str:
    """Every variable with its default, meaning and when to change it, for a terminal.

    `pending` names fields that have no effect yet.
    """
    lines: list[str] = []
    for section in sections:
        lines += ["", f"{section.__doc__}:"]
        for name, field in section.model_fields.items():
            lines.append(f"  {variable(name)}  (default: {default_text(field)})")
            for text in (_meaning(name, field, pending), f"Change it when: {_notes(field)['change']}"):
                lines += textwrap.wrap(text, width=96, initial_indent=" " * 6, subsequent_indent=" " * 6)
    return "\n".join(lines).lstrip("\n") + "\n"


def markdown(sections: Sequence[type[BaseModel]], pending: Collection[str] = ()) -> str:
    """The tables of docs/settings.md, one for each section; `pending` as in `help_text`."""
    head = "| variable | default | meaning | allowed | change it when |\n| --- | --- | --- | --- | --- |"
    lines: list[str] = []
    for section in sections:
        lines += ["", f"## {section.__doc__}", "", head]
        lines += [_row(name, field, pending) for name, field in section.model_fields.items()]
    return "\n".join(lines).strip() + "\n"


def _row(name: str, field: FieldInfo, pending: Collection[str]) -> str:
    cells = (
        f"`{variable(name)}`",
        default_text(field),
        _meaning(name, field, pending),
        allowed(field),
        str(_notes(field)["change"]),
    )
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def _meaning(name: str, field: FieldInfo, pending: Collection[str]) -> str:
    return ("(No effect yet.) " if name in pending else "") + (field.description or "")
