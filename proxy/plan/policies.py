"""The limits to try: those of the environment, and those asked for beside them."""

import difflib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from proxy.admission.limits import Limits, Mode
from proxy.app import limits_of
from proxy.settings import Settings, SettingsError, load_settings
from proxy.settings_text import variable


@dataclass(frozen=True, slots=True)
class Policy:
    """One set of limits. `changes` are the variables that the command line set, with their values."""

    name: str
    settings: Settings
    limits: Limits
    changes: Mapping[str, str]


def policies(sets: Sequence[str], compares: Sequence[str], environ: Mapping[str, str]) -> tuple[Policy, ...]:
    """The policy of `environ` with `sets`, then one for each of `compares` with its changes on top.

    Each text is `NAME=VALUE`, several separated by `;`; the prefix `PROXY_` may be left out, and no
    value means unset. Raises SettingsError.
    """
    first = _changes(sets)
    made = [_policy("proxy", first, environ)]
    for text in compares:
        changes = _changes([text])
        short = "; ".join(f"{name.removeprefix('PROXY_')}={value}" for name, value in changes.items())
        made.append(_policy(short, first | changes, environ))
    return tuple(made)


def _policy(name: str, changes: Mapping[str, str], environ: Mapping[str, str]) -> Policy:
    settings = load_settings({**environ, **changes})
    # whatever the mode there, the question is what enforcing does
    return Policy(name, settings, replace(limits_of(settings), mode=Mode.ENFORCE), changes)


def _changes(texts: Sequence[str]) -> dict[str, str]:
    changes = {}
    for text in texts:
        for part in filter(None, (piece.strip() for piece in text.split(";"))):
            name, equals, value = part.partition("=")
            if not equals:
                raise SettingsError(f"{part!r}: expected NAME=VALUE")
            changes[_known(name.strip())] = value.strip()
    return changes


def _known(name: str) -> str:
    known = [variable(field) for field in Settings.model_fields]
    full = name.upper() if name.upper().startswith("PROXY_") else f"PROXY_{name.upper()}"
    if full not in known:
        near = difflib.get_close_matches(full, known, n=1, cutoff=0.0)[0]
        raise SettingsError(f"{name!r} is no setting; the nearest is {near}")
    return full
