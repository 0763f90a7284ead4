"""A request as it goes onto the wire, and what is refused because it would say two things."""

import re

import httpx

# Names are tokens; values hold no control character, so that none can begin a line of its own.
_HEAD = re.compile(
    rb"[A-Z]+ [\x21-\x7e\x80-\xff]+ HTTP/1\.1\r\n"
    rb"(?:[!#$%&'*+.^_`|~0-9A-Za-z-]+: [\t\x20-\x7e\x80-\xff]*\r\n)*\r\n"
)


def head_of(request: httpx.Request) -> bytes:
    """Request line and headers. Raises httpx.LocalProtocolError for what cannot be sent safely."""
    headers = request.headers.raw
    lines = [b"%b: %b\r\n" % item for item in headers]
    head = b"%b %b HTTP/1.1\r\n%b\r\n" % (request.method.encode(), request.url.raw_path, b"".join(lines))
    if not _HEAD.fullmatch(head) or head.count(b"\n") != len(lines) + 2:
        raise httpx.LocalProtocolError("a header holds characters that are not allowed there")
    return head


async def content_of(request: httpx.Request) -> bytes:
    """The body, of just the announced length. Raises httpx.LocalProtocolError."""
    stream = request.stream
    if isinstance(stream, httpx.ByteStream):
        content = b"".join(stream)
    else:
        assert isinstance(stream, httpx.AsyncByteStream)
        content = b"".join([part async for part in stream])
    lengths = []
    for name, value in request.headers.raw:
        lower = name.lower()
        if lower == b"content-length":
            lengths.append(value)
        elif lower in (b"transfer-encoding", b"expect", b"upgrade"):
            raise httpx.LocalProtocolError(f"{lower.decode()} cannot be sent")
    if lengths != [b"%d" % len(content)] and (content or lengths):
        raise httpx.LocalProtocolError("the body is not as long as its header says")
    return content
