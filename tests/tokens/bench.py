"""The figures of counting, measured: `python -m tests.tokens.bench [accuracy|speed|gaps|hostile|images ...]`.

Exact counting and the calibration's truth need real tokenizers (tests/tokens/real.py); without them
these rows are left out.
"""

import argparse
import asyncio
import gc
import random
import resource
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import orjson
import uvloop

from proxy.tokens.image_families import FAMILIES as IMAGE_FAMILIES
from proxy.tokens.shape import Api, BadRequest
from proxy.tokens.sizer import Sizer
from tests.tokens import real, traffic
from tests.tokens.hostile import BODIES
from tests.tokens.test_images import OFFICIAL
from tests.tokens.texts import source_code

FAMILIES = ("Qwen 3", "Qwen 3.5", "GLM 4.7", "GLM 5", "MiniMax M2", "MiniMax M3", "DeepSeek V3")
STREAMS, CHUNK_SECONDS = 64, 0.025


def row(figure: str, value: str, wanted: str) -> None:
    print(f"{figure:<72} {value:>34}   (wanted: {wanted})", flush=True)


def conversation(chars: int, seed: int) -> list[dict[str, Any]]:
    """Messages of an agent's session over Python files."""
    rnd, text, size = random.Random(seed), source_code(), 0
    messages: list[dict[str, Any]] = []
    while size < chars:
        length = rnd.choice((200, 800, 2_000, 5_000))
        start = rnd.randrange(len(text) - length)
        messages.append(
            {"role": ("user", "assistant")[len(messages) % 2], "content": text[start : start + length]}
        )
        size += length
    return messages


def chat(messages: list[dict[str, Any]]) -> bytes:
    return orjson.dumps({"model": "m", "messages": messages})


async def loaded(directory: Path | None = None) -> Sizer:
    sizer = Sizer(tokenizer_path=directory)
    await sizer.load()
    return sizer


async def accuracy(root: Path) -> None:
    """Estimates against exact counts, after 200 answers: all of them seen, or one in twenty."""
    data = real.package()
    for family in FAMILIES if data else ():
        assert data is not None
        truth = await loaded(real.unpacked(data, family, root))
        for share in (1.0, 0.05):
            sizer, rnd, errors = await loaded(), random.Random(1), []
            for index, body in enumerate(traffic.requests(1_200, seed=1)):
                true = (await truth.size(Api.CHAT, body)).prompt_tokens
                sized = await sizer.size(Api.CHAT, body)
                if index >= 200:
                    errors.append(abs(sized.prompt_tokens / true - 1))
                if sizer.wants_usage(sized) or rnd.random() < share:
                    sizer.observe(sized, true)
            errors.sort()
            mean, p95 = sum(errors) / len(errors), errors[len(errors) * 95 // 100]
            sizer.close()
            row(
                f"estimate for {family}, {share:.0%} of usage seen",
                f"mean {mean:.2%}, p95 {p95:.2%}",
                "2.5 %, 10 %",
            )
        truth.close()


async def speed(root: Path) -> None:
    """A long conversation cold, its next turns, and a usual chat."""
    data = real.package()
    counters: dict[str, Path | None] = {"default": None}
    if data is not None:
        counters |= {
            f"exact, {name}": real.unpacked(data, name, root) for name in ("Qwen 3", "GLM 4.7", "DeepSeek V3")
        }
    for name, directory in counters.items():
        sizer, messages = await loaded(directory), conversation(720_000, seed=1)
        took = await timed(sizer, chat(messages))
        sized = await sizer.size(Api.CHAT, chat(messages))
        row(f"{name}: {sized.prompt_tokens:,} tokens cold", f"{took * 1e3:.1f} ms", "150 ms, exact 60 ms")
        bodies = [chat(messages + conversation(6_000, seed=100 + index)[:2]) for index in range(20)]
        turns = [await timed(sizer, body) for body in bodies]
        row(f"{name}: its next turn", f"{sorted(turns)[10] * 1e3:.2f} ms", "3 ms, exact 30 ms")
        small = chat([{"role": "user", "content": source_code()[:900]}])
        calls = [await timed(sizer, small) for _ in range(500)]
        row(f"{name}: a chat of 1 KB, seen before", f"{sorted(calls)[250] * 1e6:.0f} us", "150 us")
        sizer.close()


async def timed(sizer: Sizer, body: bytes) -> float:
    start = time.perf_counter()
    await sizer.size(Api.CHAT, body)
    return time.perf_counter() - start


async def longest_gaps(work: Callable[[], Awaitable[object]]) -> tuple[float, float]:
    """p99.9 and longest delay in ms of 64 streams that send every 25 ms while `work` is done."""
    delays: list[float] = []
    done = asyncio.Event()

    async def stream() -> None:
        last = time.perf_counter()
        while not done.is_set():
            await asyncio.sleep(CHUNK_SECONDS)
            now = time.perf_counter()
            delays.append(1e3 * (now - last - CHUNK_SECONDS))
            last = now

    streams = [asyncio.create_task(stream()) for _ in range(STREAMS)]
    await asyncio.sleep(0.2)
    delays.clear()
    await work()
    await asyncio.sleep(0.2)
    done.set()
    await asyncio.gather(*streams)
    delays.sort()
    return delays[len(delays) * 999 // 1000], delays[-1]


async def compared(name: str, wanted: str, work: Callable[[], Awaitable[object]], rounds: int = 3) -> None:
    """The delays with `work` and without it, in turns."""
    idle, busy = [], []
    for _ in range(rounds):
        idle.append(await longest_gaps(lambda: asyncio.sleep(1)))
        busy.append(await longest_gaps(work))
    before, after = (sorted(figures)[rounds // 2] for figures in (idle, busy))
    row(name, f"p99.9 {before[0]:.1f} -> {after[0]:.1f}, max {after[1]:.1f} ms", wanted)


async def gaps(root: Path) -> None:
    """40 bodies of 180,000 tokens at once, each new, while streams run."""
    data = real.package()
    counters = {"default": None, "exact, GLM 4.7": real.unpacked(data, "GLM 4.7", root) if data else None}
    for name, directory in counters.items():
        if name != "default" and directory is None:
            continue
        sizer = await loaded(directory)
        freeze()
        seeds = iter(range(10_000))
        bodies = [[chat(conversation(740_000, next(seeds))) for _ in range(40)] for _ in range(3)]

        async def sized(sizer: Sizer = sizer, bodies: Any = bodies) -> None:
            await asyncio.gather(*(sizer.size(Api.CHAT, body) for body in bodies.pop()))

        await compared(f"{name}: 40 bodies of 180K tokens at once, 64 streams", "+20 ms", sized)
        sizer.close()


def freeze() -> None:
    """What lives as long as the process is no longer looked through by the collector."""
    gc.collect()
    gc.freeze()


async def hostile(_: Path) -> None:
    """Eight hostile bodies of 10 MB at once, while streams run; memory before and after."""
    sizer = await loaded()
    freeze()
    before = resident_megabytes()
    for kind, make in BODIES.items():
        body = make()

        async def work(body: bytes = body) -> None:
            results = await asyncio.gather(
                *(sizer.size(Api.CHAT, body) for _ in range(8)), return_exceptions=True
            )
            unexpected = [result for result in results if isinstance(result, BaseException)]
            assert all(isinstance(result, BadRequest) for result in unexpected), unexpected

        await compared(f"8 x 10 MB of {kind}", "+50 ms", work)
    gc.collect()
    row("memory after all of them", f"{resident_megabytes() - before:+.0f} MB", "+100 MB")
    row("largest memory", f"{resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024:.0f} MB", "-")
    sizer.close()


def resident_megabytes() -> float:
    """This process's memory now (Linux)."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize() / 2**20


async def images(_: Path) -> None:
    """What an image of 3840 x 2160 is charged, beside what the family's own code makes of it."""
    for family, official in OFFICIAL.items():
        tokens = IMAGE_FAMILIES[family].tokens(3840, 2160)
        row(f"an image of 3840 x 2160, {family}", f"{tokens:,}", f"{official[0]:,}, 15 %")


SECTIONS = {"accuracy": accuracy, "speed": speed, "gaps": gaps, "hostile": hostile, "images": images}


async def main(names: list[str]) -> None:
    with tempfile.TemporaryDirectory() as root:
        for name in names or SECTIONS:
            await SECTIONS[name](Path(root))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("sections", nargs="*", choices=[*SECTIONS, []])
    parser.add_argument("--switch-interval", type=float, default=sys.getswitchinterval(), metavar="SECONDS")
    arguments = parser.parse_args()
    sys.setswitchinterval(arguments.switch_interval)
    uvloop.run(main(arguments.sections))
