"""A counter that counts with a model's own directory, loaded."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from proxy.tokens.sizer import Sizer


@asynccontextmanager
async def exact_sizer(directory: Path) -> AsyncIterator[Sizer]:
    """For as long as the block runs."""
    sizer = Sizer(tokenizer_path=directory)
    await sizer.load()
    yield sizer
    sizer.close()
