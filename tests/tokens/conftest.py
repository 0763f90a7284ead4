"""One counter for the whole folder: building the vocabulary takes a second."""

from collections.abc import Iterator

import pytest
import tiktoken

from proxy.tokens.counter import Counter
from proxy.tokens.o200k import load_encoding
from proxy.tokens.sizer import Sizer


@pytest.fixture(scope="session")
def encoding() -> tiktoken.Encoding:
    return load_encoding()


@pytest.fixture(scope="session")
def counter(encoding: tiktoken.Encoding) -> Counter:
    return Counter(encoding, memo_entries=10_000)


@pytest.fixture
def sizer(counter: Counter) -> Iterator[Sizer]:
    made = Sizer(counter=counter)
    yield made
    made.close()
