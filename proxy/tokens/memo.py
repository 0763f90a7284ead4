"""Bounded memories that forget what was not used lately."""

from typing import Generic, TypeVar

Value = TypeVar("Value")


class Memo(Generic[Value]):
    """A map of 16-byte digests that keeps between half of `capacity` and all of it.

    Two generations instead of a linked list: what is found in the old one moves to the young one,
    and when that is full the old one is dropped as a whole. No lock: each step is one dictionary
    operation, so that the event loop and the counting thread can share it.
    """

    def __init__(self, capacity: int) -> None:
        self._half = max(1, capacity // 2)
        self._young: dict[bytes, Value] = {}
        self._old: dict[bytes, Value] = {}

    def __len__(self) -> int:
        return len(self._young) + len(self._old)

    def get(self, key: bytes) -> Value | None:
        """What was stored under `key`, None when it is not known (any more)."""
        found = self._young.get(key)
        if found is None:
            found = self._old.get(key)
            if found is not None:
                self.put(key, found)
        return found

    def put(self, key: bytes, value: Value) -> None:
        """Remembers `value`, and forgets the older half when there is no room."""
        young = self._young
        if len(young) >= self._half:
            self._old, self._young = young, {}
            young = self._young
        young[key] = value
