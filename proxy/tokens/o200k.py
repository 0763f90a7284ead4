"""The default vocabulary, o200k_base, from the file that is shipped in this package.

No cache directory and no network: `tiktoken.Encoding` is built from the ranks directly.
"""

import lzma
import struct
from importlib import resources
from itertools import accumulate, pairwise

import tiktoken

_FILE = "o200k_base.xz"
SPECIAL_TOKENS = {"<|endoftext|>": 199_999, "<|endofprompt|>": 200_018}
# The pieces that merges never cross, as OpenAI published them with the ranks (tiktoken, MIT).
PATTERN = "|".join(
    [
        r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
        r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
        r"\p{N}{1,3}",
        r" ?[^\s\p{L}\p{N}]+[\r\n/]*",
        r"\s*[\r\n]+",
        r"\s+(?!\S)",
        r"\s+",
    ]
)


def load_ranks() -> dict[bytes, int]:
    """Token bytes -> rank, 199,998 of them.

    The file is xz of: their number (4 bytes, little endian), the length of each (1 byte), all their
    bytes in the order of their ranks.
    """
    packed = lzma.decompress((resources.files("proxy.tokens") / "data" / _FILE).read_bytes())
    (count,) = struct.unpack_from("<I", packed)
    lengths = packed[4 : 4 + count]
    ends = accumulate(lengths, initial=4 + count)
    return {packed[start:end]: rank for rank, (start, end) in enumerate(pairwise(ends))}


def load_encoding() -> tiktoken.Encoding:
    """The o200k_base encoding. Takes 0.5 s of CPU and 75 MB: call it off the event loop, once."""
    return tiktoken.Encoding(
        "o200k_base", pat_str=PATTERN, mergeable_ranks=load_ranks(), special_tokens=SPECIAL_TOKENS
    )
