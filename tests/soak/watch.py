"""Looks at the proxy's process all the time."""

import asyncio
import statistics
import time
from dataclasses import dataclass, field

from tests.load.process import Say
from tests.load.proxy import ProxyServer
from tests.load.vitals import open_sockets, resident_bytes
from tests.soak.tally import Tally

SAMPLE_SECONDS = 2.0
SAY_SECONDS = 20.0
WARM_UP_SHARE, WINDOW_SHARE = 1 / 3, 1 / 6  # of the time: the first is not judged, two windows are compared


@dataclass
class Watch:
    """`memory` holds (time, resident bytes) since the beginning."""

    proxy: ProxyServer
    began: float = field(default_factory=time.monotonic)
    memory: list[tuple[float, int]] = field(default_factory=list)

    async def look(self, tally: Tally, seconds: float, say: Say) -> None:
        """Until cancelled."""
        said = 0.0
        while True:
            passed = time.monotonic() - self.began
            self.memory.append((passed, resident_bytes(self.proxy.pid)))
            if passed - said >= SAY_SECONDS:
                said = passed
                megabytes = self.memory[-1][1] / 2**20
                sockets = open_sockets(self.proxy.pid)
                say(f"  {passed:5.0f} of {seconds:.0f} s: {tally}; {megabytes:.0f} MB, {sockets} sockets")
            await asyncio.sleep(SAMPLE_SECONDS)

    def growth(self, seconds: float) -> float:
        """Of memory, as a share: the end against the time after the warm-up, medians of both windows."""
        window = WINDOW_SHARE * seconds
        first = self._median(WARM_UP_SHARE * seconds, WARM_UP_SHARE * seconds + window)
        return self._median(seconds - window, seconds) / first - 1

    def _median(self, begin: float, end: float) -> float:
        return statistics.median(size for at, size in self.memory if begin <= at <= end)
