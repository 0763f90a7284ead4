import pytest

from proxy.tokens.textclass import KINDS, kind_of


def kind(text: str, tokens: int | None = None) -> str:
    data = text.encode()
    return KINDS[kind_of(data, len(data) // 4 if tokens is None else tokens).ruling]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", "ascii"),
        ("The quick brown fox", "ascii"),
        ("def f(x):\n    return x\n", "ascii"),
        ("It’s “quoted” here and there, " + "but mostly plain English all the way down " * 8, "ascii"),
        ("敏捷的棕色狐狸跳过了懒狗", "han"),
        ("すばやい茶色の狐はのろまな犬を飛び越える", "kana"),
        ("다람쥐 헌 쳇바퀴에 타고파", "hangul"),
        ("Съешь же ещё этих мягких французских булок", "cyrillic"),
        ("Ξεσκεπάζω την ψυχοφθόρα βδελυγμία", "greek"),
        ("नमस्ते दुनिया कैसे हो", "brahmic"),
        ("เป็นมนุษย์สุดประเสริฐ", "brahmic"),
        ("نص حكيم له سر قاطع", "semitic"),
        ("Falsches Üben von Xylophonmusik quält jeden größeren Zwerg", "umlauts"),
        ("Voix ambiguë d'un cœur qui préfère les jattes de kiwis à la crème brûlée", "accents"),
        ("Příliš žluťoučký kůň úpěl ďábelské ódy", "carons"),
        ("Tiếng Việt có nhiều dấu thanh khác nhau ở trên", "vietnamese"),
        ("😀😃😄", "symbols"),
    ],
)
def test_the_script_of_a_text_is_seen(text: str, expected: str) -> None:
    assert kind(text) == expected


def test_ascii_with_many_tokens_a_byte_is_dense() -> None:
    assert kind("QmFzZTY0" * 20, tokens=100) == "dense"
    assert kind("QmFzZTY0" * 20, tokens=40) == "ascii"


def test_foreign_text_inside_english_counts_by_its_share() -> None:
    found = kind_of(("All of this is English text. " * 10 + "敏捷的棕色狐狸跳过了懒狗" * 4).encode(), 100)

    assert KINDS[found.ruling] == "han"
    assert 0.2 < found.share < 0.5


def test_a_sample_from_the_middle_tells_the_script_of_a_long_text() -> None:
    assert kind("x" * 5_000 + "敏捷的棕色狐狸" * 500 + "x" * 5_000) == "han"


def test_digits_are_counted_over_the_whole_text() -> None:
    assert kind_of(b"12 apples, 345 pears" * 1_000, 1).digits == 5_000


def test_no_bytes_are_too_odd() -> None:
    assert kind_of(bytes(range(256)), 256).share <= 1
