"""Label values that come from outside, kept to a bounded set: every new value is a series for ever."""

OTHER = "other"


class BoundedNames:
    """The first `limit` names seen keep their own value; all later ones share `other`."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._known: dict[str, str] = {}

    def bounded(self, name: str) -> str:
        """`name`, cut to 100 characters, or "other" once the set is full."""
        known = self._known.get(name)
        if known is not None:
            return known
        if len(self._known) >= self._limit or len(name) > 100:
            return OTHER
        # Lone surrogates cannot be written as UTF-8 and would break every scrape.
        self._known[name] = name.encode(errors="replace").decode()
        return self._known[name]
