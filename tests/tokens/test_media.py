import base64
import io
import struct
from typing import Any

import orjson
import pytest
from PIL import Image

from proxy.tokens.images import Fixed, Patches
from proxy.tokens.media import MediaRules, audio_seconds, image_size
from proxy.tokens.reading import read
from proxy.tokens.shape import Api

RULES = MediaRules()


def encoded(width: int, height: int, kind: str, **options: Any) -> str:
    buffer = io.BytesIO()
    Image.effect_noise((width, height), 50).convert("RGB").save(buffer, kind, **options)
    return f"data:image/{kind.lower()};base64,{base64.b64encode(buffer.getvalue()).decode()}"


@pytest.mark.parametrize("kind", ["PNG", "JPEG", "GIF", "WEBP", "BMP"])
def test_pixels_are_read_from_the_header(kind: str) -> None:
    assert image_size(encoded(641, 363, kind)) == (641, 363)


def test_both_kinds_of_webp_are_read() -> None:
    assert image_size(encoded(641, 363, "WEBP", lossless=True)) == (641, 363)
    assert image_size(encoded(641, 363, "WEBP", exif=b"Exif\0\0" + bytes(64))) == (641, 363)


def test_a_jpeg_with_much_exif_data_is_read() -> None:
    assert image_size(encoded(641, 363, "JPEG", exif=b"Exif\0\0" + bytes(60_000))) == (641, 363)


def test_bare_base64_is_an_image_too() -> None:
    assert image_size(encoded(64, 48, "PNG").split(",")[1]) == (64, 48)


@pytest.mark.parametrize(
    "source",
    [
        "",
        "x",
        "/a/b" * 40,
        "ü" * 100,
        "https://example.com/a.png",
        "data:,hello",
        "data:image/png;base64,",
        "data:image/png;base64,@@@@",
        "data:image/png;base64," + "A" * 20_000,
        "data:image/jpeg;base64,/9j/" + "A" * 20_000,
    ],
)
def test_what_is_no_readable_image_is_charged_as_one_of_a_usual_size(source: str) -> None:
    assert image_size(source) is None
    assert RULES.image(source).tokens == 48 * 32
    assert MediaRules(image_rule=Fixed(256)).image(source).tokens == 256


@pytest.mark.parametrize(
    ("size", "tokens"), [((512, 512), 361), ((1024, 1024), 1369), ((1920, 1080), 2691), ((3840, 2160), 10764)]
)
def test_an_image_for_an_unknown_model_costs_its_patches_of_28_pixels(
    size: tuple[int, int], tokens: int
) -> None:
    assert Patches().tokens(*size) == tokens


def test_patches_have_a_floor_and_a_ceiling() -> None:
    assert Patches().tokens(1, 1) == 64
    assert Patches().tokens(60_000, 60_000) == 16_384


def wav(seconds: float, told_bytes_per_second: int = 32_000, first: bytes = b"fmt ", form: int = 1) -> str:
    payload, told = bytes(int(seconds * 32_000)), told_bytes_per_second
    head = struct.pack(
        "<4sI4s4sIHHIIHH4sI", b"RIFF", 0, b"WAVE", first, 16, form, 1, 16_000, told, 2, 16, b"data", 0
    )
    return base64.b64encode(head + payload).decode()


def test_a_wav_clip_is_charged_by_its_seconds() -> None:
    assert audio_seconds(wav(10)) == pytest.approx(10, rel=0.01)
    assert RULES.audio(wav(10)).tokens == pytest.approx(250, abs=3)
    assert RULES.audio("https://example.com/a.mp3").tokens == RULES.audio_default_tokens


@pytest.mark.parametrize("told", [0, 1, 2**32 - 1])
def test_a_wav_clip_is_as_long_as_its_samples_whatever_it_says_of_its_pace(told: int) -> None:
    assert audio_seconds(wav(10, told)) == pytest.approx(10, rel=0.01)


@pytest.mark.parametrize("differs", [{"first": b"LIST"}, {"form": 2}])
def test_any_other_wav_clip_is_charged_like_a_compressed_one(differs: dict[str, Any]) -> None:
    assert audio_seconds(wav(10, 2**32 - 1, **differs)) == pytest.approx(20, rel=0.01)


def test_a_data_url_is_never_counted_as_text() -> None:
    image = encoded(640, 480, "PNG")
    parts = [{"type": "image_url", "image_url": {"url": image}}, {"type": "text", "text": "What is this?"}]
    body = orjson.dumps({"model": "m", "messages": [{"role": "user", "content": parts}]})
    reading = read(Api.CHAT, body)

    assert reading.prompt.items[0][0].texts == ["What is this?"]
    assert (reading.shape.media, reading.shape.media_tokens) == (1, 23 * 18)


def test_different_images_have_different_digests() -> None:
    first, second = RULES.image(encoded(64, 64, "PNG")), RULES.image(encoded(64, 65, "PNG"))

    assert first.digest != second.digest
    assert first.digest == RULES.image(encoded(64, 64, "PNG")).digest or first.tokens == second.tokens


@pytest.mark.parametrize(
    "part",
    [
        {"type": "image_url"},
        {"type": "image_url", "image_url": None},
        {"type": "image_url", "image_url": {"url": 3}},
        {"type": "input_audio", "input_audio": {"data": "AAAA", "format": "wav"}},
        {"type": "input_audio"},
        {"type": "video_url", "video_url": {"url": "https://x/v.mp4"}},
        {"type": "image", "source": {"type": "url", "url": "https://x/y.png"}},
        {"type": "file", "file": {"file_data": "AAAA"}},
        {"type": "document", "source": {"type": "base64", "data": "AAAA"}},
        {"type": "input_file"},
    ],
)
def test_every_medium_costs_something_and_none_is_text(part: dict[str, Any]) -> None:
    body = orjson.dumps({"messages": [{"role": "user", "content": [part]}]})
    reading = read(Api.CHAT, body)

    assert reading.shape.media == 1
    assert reading.shape.media_tokens > 0
    assert reading.prompt.items[0][0].texts == []


@pytest.mark.parametrize(("segments", "size"), [(500, (641, 363)), (600, None)])
def test_a_jpeg_is_given_up_on_when_it_begins_with_hundreds_of_segments(
    segments: int, size: tuple[int, int] | None
) -> None:
    comment = b"\xff\xfe\x00\x02"
    jpeg = base64.b64decode(encoded(641, 363, "JPEG").split(",")[1])
    source = base64.b64encode(jpeg[:2] + comment * segments + jpeg[2:]).decode()
    assert image_size(source) == size
