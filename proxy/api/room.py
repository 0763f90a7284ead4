"""How many bytes of request bodies are held at once, all requests together.

Each body may be as large as PROXY_MAX_BODY_BYTES, and nothing limits how many clients send one.
A body counts from its first byte until its answer begins.
"""

LARGEST_BODIES = 16  # so many of the largest; of prompts of 180,000 tokens more than a thousand


class NoRoom(Exception):
    """There is no room for more of this body now."""


class Room:
    """All bodies that are held now."""

    def __init__(self, most_bytes: int) -> None:
        self.most_bytes = most_bytes
        self.held_bytes = 0

    def share(self) -> "Share":
        """One request's part, empty so far."""
        return Share(self)


class Share:
    """One request's body, as far as it has come."""

    __slots__ = ("_held_bytes", "_room")

    def __init__(self, room: Room) -> None:
        self._room = room
        self._held_bytes = 0

    def take(self, size_bytes: int) -> None:
        """So much more has come. Raises NoRoom when all requests together hold too much."""
        if self._room.held_bytes + size_bytes > self._room.most_bytes:
            raise NoRoom
        self._room.held_bytes += size_bytes
        self._held_bytes += size_bytes

    def drop(self) -> None:
        """The body is not held any more."""
        self._room.held_bytes -= self._held_bytes
        self._held_bytes = 0
