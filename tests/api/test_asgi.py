"""Reading bodies within their bounds, and answering."""

from typing import Any

import pytest

from proxy.api import asgi
from proxy.api.answers import Answer
from proxy.api.asgi import BodyTooLarge, ClientGone, Message, answer, read_body
from proxy.api.room import NoRoom, Room
from tests.api.clients import Client, piece


async def read(client: Client, room: Room | None = None) -> bytes:
    """A body of at most six bytes."""
    return await read_body({"headers": []}, client.receive, 6, (room or Room(100)).share())


async def test_a_body_in_one_piece_and_one_in_many_are_the_same() -> None:
    whole = Client(piece(b"abcdef"))
    many = Client(piece(b"ab", more=True), piece(b"", more=True), piece(b"cd", more=True), piece(b"ef"))
    assert await read(whole) == b"abcdef"
    assert await read(many) == b"abcdef"


async def test_an_announced_length_over_the_limit_is_refused_before_a_byte_is_read() -> None:
    scope = {"headers": [(b"content-length", b"7")]}
    with pytest.raises(BodyTooLarge):
        await read_body(scope, Client().receive, 6, Room(100).share())


async def test_a_body_that_grows_over_the_limit_is_refused_when_it_does() -> None:
    with pytest.raises(BodyTooLarge):
        await read(Client(piece(b"abcdefg")))
    with pytest.raises(BodyTooLarge):
        await read(Client(piece(b"abcdefg", more=True)))
    with pytest.raises(BodyTooLarge):
        await read(Client(piece(b"abcdef", more=True), piece(b"g", more=True)))


async def test_all_bodies_together_hold_no_more_than_there_is_room_for() -> None:
    room = Room(10)
    first, second = room.share(), room.share()
    scope: dict[str, Any] = {"headers": []}
    assert await read_body(scope, Client(piece(b"abc", more=True), piece(b"def")).receive, 6, first)
    with pytest.raises(NoRoom):
        await read_body(scope, Client(piece(b"abcd", more=True), piece(b"e")).receive, 6, second)
    assert room.held_bytes == 10
    second.drop()
    first.drop()
    first.drop()
    assert room.held_bytes == 0
    assert await read(Client(piece(b"abcdef")), room)


async def test_a_client_that_leaves_while_it_sends_is_gone() -> None:
    for client in (Client(), Client(piece(b"ab", more=True))):
        client.leave()
        with pytest.raises(ClientGone):
            await read(client)


async def test_silence_while_a_body_is_due_ends_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(asgi, "BODY_SECONDS", 0.01)
    for client in (Client(), Client(piece(b"ab", more=True))):
        with pytest.raises(TimeoutError):
            await read(client)


async def test_an_answer_is_json_of_known_length_with_its_own_headers() -> None:
    sent: list[Message] = []

    async def send(message: Message) -> None:
        sent.append(message)

    await answer(send, Answer(429, b"{}", ((b"retry-after", b"3"),)), "id-1")
    assert sent == [
        {
            "type": "http.response.start",
            "status": 429,
            "headers": [
                (b"content-type", b"application/json"),
                (b"content-length", b"2"),
                (b"retry-after", b"3"),
                (b"x-request-id", b"id-1"),
            ],
        },
        {"type": "http.response.body", "body": b"{}"},
    ]
