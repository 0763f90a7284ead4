import pytest

from proxy.tokens.textclass import text_class


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("", "ascii"),
        ("The quick brown fox", "ascii"),
        ("def f(x):\n    return x\n", "ascii"),
        ("敏捷的棕色狐狸跳过了懒狗", "han"),
        ("すばやい茶色の狐はのろまな犬を飛び越える", "kana"),
        ("다람쥐 헌 쳇바퀴에 타고파", "hangul"),
        ("Съешь же ещё этих мягких французских булок", "cyrillic"),
        ("Ξεσκεπάζω την ψυχοφθόρα βδελυγμία", "greek"),
        ("नमस्ते दुनिया कैसे हो", "brahmic"),
        ("เป็นมนุษย์สุดประเสริฐ", "brahmic"),
        ("نص حكيم له سر قاطع", "semitic"),
        ("Falsches Üben von Xylophonmusik quält jeden größeren Zwerg", "mixed-accents"),
        ("Tiếng Việt có nhiều dấu thanh khác nhau ở trên", "vietnamese"),
        ("😀😃😄", "astral"),
        ("12345 67890", "ascii+digits"),
    ],
)
def test_the_script_of_a_text_is_seen(text: str, kind: str) -> None:
    assert text_class(text.encode()) == kind


def test_tools_and_media_have_classes_of_their_own() -> None:
    assert text_class(b"x", tools=True, media=True) == "ascii+tools+media"


def test_no_bytes_are_too_odd() -> None:
    assert text_class(bytes(range(256)))
