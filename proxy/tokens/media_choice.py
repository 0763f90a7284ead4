"""Which media rules count for a request: those of the model it names."""

import logging
from collections.abc import Sequence
from pathlib import Path

from proxy.tokens.image_directory import rule_of_directory
from proxy.tokens.image_families import FAMILIES, Family, family_of_name
from proxy.tokens.media import MediaRules

logger = logging.getLogger(__name__)

UNKNOWN: Family = "patches"


class MediaChoice:
    """A family that was set counts for all models; else the model's directory decides; else what the
    servers say they run; else the cautious rule. Safe to use from two threads at once."""

    def __init__(self, family: Family | None = None) -> None:
        self._rules = {name: MediaRules(image_rule=rule) for name, rule in FAMILIES.items()}
        self._chosen = None if family is None else self._rules[family]
        self._chosen_family = family
        self._by_model: dict[str, Family] = {}
        self._usual = self._rules[UNKNOWN]

    @property
    def families(self) -> dict[str, str]:
        """The family of each model that a server runs; "*" where one counts for all."""
        if self._chosen_family is not None:
            return {"*": self._chosen_family}
        return dict(self._by_model)

    def read_directory(self, directory: Path) -> None:
        """Takes the rule and its numbers from a model's directory, where that tells a family."""
        if self._chosen is not None:
            return
        try:
            found = rule_of_directory(directory)
        except (OSError, ValueError) as error:
            logger.warning("%s: how it counts images cannot be read (%s)", directory, error)
            return
        if found is not None:
            self._chosen_family, rule = found
            self._chosen = MediaRules(image_rule=rule)

    def serves(self, models: Sequence[str], path: str | None) -> None:
        """A server runs these models, served from `path`: a name on a hub, or a directory there."""
        of_path = family_of_name(path) if path else None
        families = {name: family_of_name(name) or of_path or UNKNOWN for name in models}
        self._by_model = self._by_model | families
        told = set(self._by_model.values())
        self._usual = self._rules[told.pop() if len(told) == 1 else UNKNOWN]

    def of(self, model: object) -> MediaRules:
        """The rules for a request to this model. One that no server names may be an adapter of the only
        model there is."""
        if self._chosen is not None:
            return self._chosen
        family = self._by_model.get(model) if isinstance(model, str) else None
        return self._usual if family is None else self._rules[family]
