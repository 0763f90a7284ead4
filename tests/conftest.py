"""What all tests share."""

from collections.abc import Iterator
from functools import cache

import pytest

from proxy.tokens import sizer
from proxy.tokens.o200k import load_encoding


@pytest.fixture(scope="session")
def one_vocabulary() -> Iterator[None]:
    """Building the vocabulary takes a second: every proxy of the session uses the same."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sizer, "load_encoding", cache(load_encoding))
        yield
