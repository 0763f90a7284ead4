"""Tokens of what no text counter may touch: images, video, audio, files.

A data URL is never counted as text (a megabyte of base64 would read as 680,000 tokens): an image is
charged by its pixels, which its first bytes tell, and by the rule of its model's family.
"""

import base64
import binascii
import math
import struct
from dataclasses import dataclass
from functools import lru_cache
from hashlib import blake2b
from typing import Any

from proxy.tokens.images import ImageRule, Patches
from proxy.tokens.shape import Media

_HEADER_CHARS = 8192  # 6 KB of bytes: enough for all but a JPEG with much EXIF data
_LONG_HEADER_CHARS = 262_144
_PCM_HEADER_BYTES = 44
_PCM_FORMS = (1, 3, 0xFFFE)  # whole numbers, floats, either with a longer header
_MOST_SEGMENTS = 512  # of a JPEG before its frame header; a camera writes ten
_COMPRESSED_AUDIO_BYTES_PER_SECOND = 16_000  # 128 kbit/s

UNKNOWN_MODEL = Patches()


@dataclass(frozen=True, slots=True)
class MediaRules:
    """How much a medium is charged. A property of the model.

    An image that cannot be read (an http URL, an unknown format) is charged as one of a usual size.
    """

    image_rule: ImageRule = UNKNOWN_MODEL
    unread_image_pixels: tuple[int, int] = (1_344, 896)
    video_default_tokens: int = 8_192
    audio_tokens_per_second: float = 25.0
    audio_default_tokens: int = 750
    file_default_tokens: int = 1_500

    def image(self, source: object) -> Media:
        """An image given as data URL, bare base64, http URL, or path."""
        text = source if isinstance(source, str) else ""
        width, height = image_size(text) or self.unread_image_pixels
        return Media("image", _image_tokens(self.image_rule, width, height), digest(text))

    def video(self, source: object) -> Media:
        """A video; its length is not read, so it is charged the default."""
        return Media("video", self.video_default_tokens, digest(source))

    def audio(self, source: object) -> Media:
        """An audio clip given as data URL or bare base64; by its seconds where they are known."""
        seconds = audio_seconds(source) if isinstance(source, str) else None
        if seconds is None:
            return Media("audio", self.audio_default_tokens, digest(source))
        return Media("audio", max(1, math.ceil(seconds * self.audio_tokens_per_second)), digest(source))

    def file(self, source: object) -> Media:
        """A document (PDF and the like) that the server turns into tokens by rules of its own."""
        return Media("file", self.file_default_tokens, digest(source))


@lru_cache(maxsize=4_096)
def _image_tokens(rule: ImageRule, width: int, height: int) -> int:
    """Remembered: up to 50 us, and a body may name a hundred thousand images."""
    return rule.tokens(width, height)


def digest(source: object) -> bytes:
    """16 bytes that tell one medium from another: its length, start, middle and end."""
    if not isinstance(source, str):
        return bytes(16)
    middle = len(source) // 2
    sample = f"{len(source)} {source[:1024]}{source[middle : middle + 1024]}{source[-1024:]}"
    return blake2b(sample.encode("utf-8", "replace"), digest_size=16).digest()


def image_size(source: str) -> tuple[int, int] | None:
    """(width, height) in pixels from the first bytes of a data URL or bare base64, or None."""
    for chars in (_HEADER_CHARS, _LONG_HEADER_CHARS):
        head = _decoded(source, chars)
        if head is None:
            return None
        size = _dimensions(head)
        if size is not None or head[:2] != b"\xff\xd8" or len(source) <= chars:
            return size if size is not None and min(size) > 0 else None
    return None


def audio_seconds(source: str) -> float | None:
    """Length of a clip: exact for WAV, by a usual bit rate for compressed formats, or None."""
    head = _decoded(source, _HEADER_CHARS)
    if head is None or len(head) < _PCM_HEADER_BYTES:
        return None
    payload_bytes = len(source) * 3 // 4
    if head[:4] == b"RIFF" and head[8:16] == b"WAVEfmt ":
        # what it says of its bytes a second, no decoder goes by
        form, _, samples_per_second, _, bytes_per_sample = struct.unpack_from("<HHIIH", head, 20)
        bytes_per_second: int = samples_per_second * bytes_per_sample
        if form in _PCM_FORMS:
            return (payload_bytes - _PCM_HEADER_BYTES) / bytes_per_second if bytes_per_second else None
    return payload_bytes / _COMPRESSED_AUDIO_BYTES_PER_SECOND


def _decoded(source: str, chars: int) -> bytes | None:
    """The first bytes of a data URL or bare base64; None when it is neither."""
    start = 0
    if source[:5].lower() == "data:":
        comma = source.find(",", 0, 1024)
        if comma < 0 or ";base64" not in source[:comma].lower():
            return None
        start = comma + 1
    elif "://" in source[:16] or len(source) < 64:
        return None
    piece = source[start : start + chars]
    piece = piece[: len(piece) // 4 * 4]
    try:
        return base64.b64decode(piece)
    except (binascii.Error, ValueError):
        return None


def _dimensions(head: bytes) -> tuple[int, int] | None:
    if len(head) < 30:
        return None
    if head[:8] == b"\x89PNG\r\n\x1a\n":
        return _pair(">II", head, 16)
    if head[:6] in (b"GIF87a", b"GIF89a"):
        return _pair("<HH", head, 6)
    if head[:4] == b"RIFF" and head[8:12] == b"WEBP":
        return _webp(head)
    if head[:2] == b"\xff\xd8":
        return _jpeg(head)
    return _pair("<ii", head, 18) if head[:2] == b"BM" else None


def _pair(layout: str, data: bytes, offset: int) -> tuple[int, int]:
    first, second = struct.unpack_from(layout, data, offset)
    return abs(first), abs(second)


def _webp(head: bytes) -> tuple[int, int] | None:
    kind = head[12:16]
    if kind == b"VP8X":
        return 1 + int.from_bytes(head[24:27], "little"), 1 + int.from_bytes(head[27:30], "little")
    if kind == b"VP8 ":
        width, height = _pair("<HH", head, 26)
        return width & 0x3FFF, height & 0x3FFF
    if kind == b"VP8L":
        bits = int.from_bytes(head[21:25], "little")
        return 1 + (bits & 0x3FFF), 1 + ((bits >> 14) & 0x3FFF)
    return None


def _jpeg(head: bytes) -> tuple[int, int] | None:
    """Walks the segments to the frame header (SOF0..SOF15 but for DHT, JPG and DAC)."""
    position = 2
    for _ in range(_MOST_SEGMENTS):
        if position + 9 >= len(head):
            break
        if head[position] != 0xFF:
            return None
        marker = head[position + 1]
        if marker == 0xFF:
            position += 1
        elif marker == 0x01 or 0xD0 <= marker <= 0xD8:
            position += 2
        elif 0xC0 <= marker <= 0xCF and marker not in (0xC4, 0xC8, 0xCC):
            height, width = _pair(">HH", head, position + 5)
            return width, height
        else:
            position += 2 + int.from_bytes(head[position + 2 : position + 4], "big")
    return None


def url_of(part: dict[str, Any], name: str) -> object:
    """The URL in `{name: {"url": ...}}` or `{name: "..."}`."""
    value = part.get(name)
    return value.get("url") if isinstance(value, dict) else value
