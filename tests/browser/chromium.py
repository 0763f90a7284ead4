"""Headless Chromium, driven over its DevTools pipe: no port, no driver, no package for it."""

import asyncio
import base64
import contextlib
import fcntl
import json
import os
import shutil
import signal
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

BINARY = shutil.which("chromium") or shutil.which("chromium-browser")
ANSWER_SECONDS = 30.0
LONGEST_MESSAGE_BYTES = 64 * 2**20  # a screenshot comes as one
FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-dev-shm-usage",
    # whatever is not this host cannot even be looked up
    "--host-resolver-rules=MAP * ~NOTFOUND , EXCLUDE 127.0.0.1",
    "--remote-debugging-pipe",
)


class Browser:
    """Commands out, answers and events in; both end with a zero byte."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.WriteTransport) -> None:
        self._reader = reader
        self._writer = writer
        self._answers: dict[int, asyncio.Future[dict[str, Any]]] = {}
        self._last_id = 0
        self.pages: dict[str, Page] = {}

    async def listen(self) -> None:
        """Hands on what comes, until the pipe closes."""
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            while True:
                message = json.loads((await self._reader.readuntil(b"\0"))[:-1])
                if "id" in message:
                    self._answers.pop(message["id"]).set_result(message)
                elif (page := self.pages.get(message.get("sessionId", ""))) is not None:
                    page.heard(message["method"], message["params"])

    async def call(self, method: str, session: str = "", **params: Any) -> dict[str, Any]:
        """One command and its result."""
        self._last_id += 1
        command = {"id": self._last_id, "method": method, "params": params}
        if session:
            command["sessionId"] = session
        answer = self._answers[self._last_id] = asyncio.get_running_loop().create_future()
        self._writer.write(json.dumps(command).encode() + b"\0")
        async with asyncio.timeout(ANSWER_SECONDS):
            message = await answer
        assert "error" not in message, f"{method}: {message['error']}"
        result: dict[str, Any] = message["result"]
        return result

    async def open(self, url: str, *, width: int, height: int, **features: str) -> "Page":
        """A new page of that size at `url`. `features`: media features, as `prefers_color_scheme="dark"`."""
        target = await self.call("Target.createTarget", url="about:blank")
        attached = await self.call("Target.attachToTarget", targetId=target["targetId"], flatten=True)
        page = Page(self, attached["sessionId"])
        self.pages[page.session] = page
        for domain in ("Page", "Runtime", "Network", "Log"):
            await page.call(f"{domain}.enable")
        await page.call(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=False,
        )
        wanted = [{"name": name.replace("_", "-"), "value": value} for name, value in features.items()]
        await page.call("Emulation.setEmulatedMedia", features=wanted)
        await page.call("Page.navigate", url=url)
        await page.until("location.protocol === 'http:' && document.readyState === 'complete'")
        return page


@dataclass
class Page:
    """One tab: what it asked for, what it complained about."""

    browser: Browser
    session: str
    requests: list[str] = field(default_factory=list)  # URLs
    complaints: list[str] = field(default_factory=list)

    def heard(self, method: str, params: dict[str, Any]) -> None:
        match method:
            case "Network.requestWillBeSent":
                self.requests.append(params["request"]["url"])
            case "Runtime.exceptionThrown":
                self.complaints.append(str(params["exceptionDetails"]))
            case "Log.entryAdded" if params["entry"]["level"] == "error":
                self.complaints.append(params["entry"]["text"])

    async def call(self, method: str, **params: Any) -> dict[str, Any]:
        return await self.browser.call(method, self.session, **params)

    async def value(self, expression: str) -> Any:
        """What a JavaScript expression is; fails where it throws."""
        result = await self.call("Runtime.evaluate", expression=expression, returnByValue=True)
        assert "exceptionDetails" not in result, result["exceptionDetails"]
        return result["result"].get("value")

    async def until(self, expression: str, seconds: float = 10.0) -> None:
        """Waits until a JavaScript expression is true."""
        async with asyncio.timeout(seconds):
            while not await self.value(f"Boolean({expression})"):
                await asyncio.sleep(0.05)

    async def press(self, key: str, code: int, text: str = "") -> None:
        """One key of the keyboard."""
        named = {"key": key, "code": key, "windowsVirtualKeyCode": code}
        await self.call("Input.dispatchKeyEvent", type="keyDown", text=text, **named)
        await self.call("Input.dispatchKeyEvent", type="keyUp", **named)

    async def picture(self, path: Path) -> None:
        """What it looks like, as a PNG file."""
        shot = await self.call("Page.captureScreenshot", format="png")
        path.write_bytes(base64.b64decode(shot["data"]))

    async def memory(self) -> tuple[int, int]:
        """Bytes in use on its heap and nodes of its document, once what nobody needs is gone."""
        for _ in range(2):
            await self.call("HeapProfiler.collectGarbage")
        heap = await self.call("Runtime.getHeapUsage")
        counters = await self.call("Memory.getDOMCounters")
        return int(heap["usedSize"]), int(counters["nodes"])


def _pipe() -> tuple[int, int]:
    """Both ends numbered out of the way of 3 and 4, which are the browser's own names for them."""
    low = os.pipe()
    high = [fcntl.fcntl(end, fcntl.F_DUPFD_CLOEXEC, 10) for end in low]
    for end in low:
        os.close(end)
    return high[0], high[1]


@asynccontextmanager
async def chromium() -> AsyncIterator[Browser]:
    """A browser with a profile of its own, both gone afterwards."""
    loop = asyncio.get_running_loop()
    down_read, down_write = _pipe()
    up_read, up_write = _pipe()
    with tempfile.TemporaryDirectory(prefix="chromium-", ignore_cleanup_errors=True) as profile:
        process = await asyncio.create_subprocess_exec(
            "/bin/sh",
            "-c",
            f'exec "$@" 3</dev/fd/{down_read} 4>/dev/fd/{up_write}',
            "sh",
            str(BINARY),
            *FLAGS,
            f"--user-data-dir={profile}",
            pass_fds=(down_read, up_write),
            start_new_session=True,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.DEVNULL,
        )
        os.close(down_read)
        os.close(up_write)
        reader = asyncio.StreamReader(limit=LONGEST_MESSAGE_BYTES)
        incoming, _ = await loop.connect_read_pipe(
            lambda: asyncio.StreamReaderProtocol(reader), os.fdopen(up_read, "rb", 0)
        )
        outgoing, _ = await loop.connect_write_pipe(asyncio.Protocol, os.fdopen(down_write, "wb", 0))
        browser = Browser(reader, outgoing)
        listening = asyncio.create_task(browser.listen())
        try:
            yield browser
        finally:
            outgoing.close()  # it ends when its pipe closes
            try:
                async with asyncio.timeout(5):
                    await process.wait()
            except TimeoutError:
                pass
            with contextlib.suppress(ProcessLookupError):  # what is left of its own group
                os.killpg(process.pid, signal.SIGKILL)
            await process.wait()
            listening.cancel()
            await asyncio.wait({listening})
            incoming.close()
            await asyncio.sleep(0)
