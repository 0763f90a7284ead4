import asyncio, logging
from tests.proxies import proxy_before
from tests.fakes import *
from tests.raw_http import *
from tests.waiting import eventually
import pytest
from proxy.api.gate import Ticket

async def answer_raw(p, fake, data, hang=True, body=None):
    async def answer(q, w):
        await w.raw(data)
        if hang: w.hang_up()
    fake.answer = answer
    try:
        async with asyncio.timeout(4):
            r = await p.ask(body or chat())
    except Exception as e:
        r = repr(e)
    print("   ->", str(r)[:400])

async def test_a(fake):
    async with proxy_before(fake) as p:
        for name, data in {
            "both": b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 5\r\ntransfer-encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n",
            "both2": b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 2\r\ntransfer-encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n",
            "999": b"HTTP/1.1 999 OK\r\ncontent-length: 5\r\n\r\nhello",
            "101": b"HTTP/1.1 101 Switching\r\nupgrade: x\r\nconnection: upgrade\r\n\r\nhello",
            "ctrl": b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\nx-a: b\x01c\r\n\r\nhello",
            "204": b"HTTP/1.1 204 No\r\n\r\n",
            "304": b"HTTP/1.1 304 No\r\ncontent-length: 10\r\n\r\n",
            "301": b"HTTP/1.1 301 No\r\nlocation: http://evil/\r\ncontent-length: 0\r\n\r\n",
            "garbage": b"\x00\x01\x02\x03\xff\xfe\r\n\r\n",
            "short": b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 50\r\n\r\nhello",
            "shortchunked": b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ntransfer-encoding: chunked\r\n\r\n5\r\nhello\r\n",
            "badchunk": b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ntransfer-encoding: chunked\r\n\r\nzz\r\nhello\r\n",
            "untilclose": b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n\r\nhello",
            "hugehead": b"HTTP/1.1 200 OK\r\nx-a: " + b"a"*300000 + b"\r\ncontent-length: 5\r\n\r\nhello",
            "nothing": b"",
            "halfhead": b"HTTP/1.1 200 OK\r\nx-a",
            "twolen": b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\ncontent-length: 6\r\n\r\nhello",
            "samelen": b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\ncontent-length: 5\r\n\r\nhello",
            "interim": b"HTTP/1.1 102 Processing\r\n\r\nHTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nhello",
        }.items():
            print(name)
            await answer_raw(p, fake, data)
        for name, data in {
            "sse-cl": b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ncontent-length: 500\r\n\r\n" + chat_stream()[0],
            "sse-half": b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n" + b"%x\r\n%b\r\n" % (len(chat_stream()[0])+10, chat_stream()[0]+b'data: {"id'),
            "json-on-stream": b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ntransfer-encoding: chunked\r\n\r\n5\r\nhello\r\n",
            "sse-until-close": b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\r\n"+b"".join(chat_stream()),
        }.items():
            print(name)
            await answer_raw(p, fake, data, body=chat(stream=True))
        await p.settled(15)
