"""Sends one bad request and says what came of it."""

import asyncio
import contextlib
from dataclasses import dataclass

from tests.fuzz.mutate import Case
from tests.raw_http import Connection

ANSWER_SECONDS = 20.0
NO_ANSWER_SECONDS = 0.15  # after which a request without end is left alone


@dataclass(frozen=True)
class Came:
    """`status` is 0 where nothing came; `problem` says what must not be."""

    status: int
    problem: str | None = None


async def send(port: int, case: Case) -> Came:
    """What came of it. Where its framing says where it ends an answer must come; a 500 never."""
    connection = await Connection.open(port)
    try:
        async with asyncio.timeout(ANSWER_SECONDS if case.whole else NO_ANSWER_SECONDS):
            return await _exchange(connection, case)
    except TimeoutError:
        return Came(0, f"no answer within {ANSWER_SECONDS:g} s" if case.whole else None)
    except (ConnectionError, asyncio.IncompleteReadError):
        return Came(0, "closed without an answer" if case.whole else None)
    except (ValueError, IndexError, asyncio.LimitOverrunError) as error:
        return Came(0, f"an answer that is not HTTP: {error}")
    finally:
        with contextlib.suppress(OSError, AttributeError):  # it is closed already
            connection.leave(reset=not case.whole)


async def _exchange(connection: Connection, case: Case) -> Came:
    step = len(case.data) // case.pieces + 1
    for start in range(0, len(case.data), step):
        await connection.send(case.data[start : start + step])
        if case.pieces > 1:
            await asyncio.sleep(0)
    reply = await connection.head()
    if reply.status == 500:
        return Came(500, f"status 500: {(await connection.reader.read(300))!r}")
    if not case.whole:
        return Came(reply.status)
    if reply.header("transfer-encoding") == "chunked":
        while await connection.chunk():
            pass
    else:
        await connection.reader.readexactly(int(reply.header("content-length") or 0))
    return Came(reply.status, f"status {reply.status}" if reply.status in (501, 502, 504) else None)
