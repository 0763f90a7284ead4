"""Twenty-five kinds of text, made here: languages, code, data, and what tokenizers trip over."""

import base64
import json
import random
import sysconfig
from collections.abc import Sequence
from functools import cache
from pathlib import Path

SENTENCES = {
    "German": "Der schnelle braune Fuchs springt über den faulen Hund; Größe, Straße, Übermut – schön",
    "French": "L'été dernier j'ai mangé des pêches où l'on croît que ça n'était guère possible : « voilà » !",
    "Spanish": "¿Dónde está el niño? ¡Mañana corrió más rápido que el año pasado! Además la cigüeña voló",
    "Russian": "Съешь же ещё этих мягких французских булок, да выпей чаю. Широкая электрификация губерний",
    "Vietnamese": "Tiếng Việt có nhiều dấu thanh khác nhau và người ta thường viết chúng ở trên nguyên âm",
    "Arabic": "نص حكيم له سر قاطع وذو شأن عظيم مكتوب على ثوب أخضر ومغلف بجلد أزرق ١٢٣",
    "Hebrew": "דג סקרן שט בים מאוכזב ולפתע מצא חברה שלום עולם",
    "Hindi": "ऋषियों को सताने वाले दुष्ट राक्षसों के राजा रावण का सर्वनाश करने वाले भगवान श्रीराम",
    "Thai": "เป็นมนุษย์สุดประเสริฐเลิศคุณค่า กว่าบรรดาฝูงสัตว์เดรัจฉาน จงฝ่าฟันพัฒนาวิชาการ",
    "Persian": "بر لبش قند مکرر است و در چشمش افسون سحر می‌خواند ۱۲۳۴",
    "Greek": "Ξεσκεπάζω την ψυχοφθόρα βδελυγμία των ανθρώπων καλημέρα κόσμε",
    "Korean": "키스의 고유조건은 입술끼리 만나야 하고 특별한 기술은 필요치 않다. 다람쥐 헌 쳇바퀴에",
}
CHINESE = "敏捷的棕色狐狸跳过了懒狗，今天天气很好。我们去公园吧！人工智能模型需要大量的数据和计算资源123"
JAPANESE = "すばやい茶色の狐はのろまな犬を飛び越える。カタカナテスト、漢字かな交じり文を書いてみましょう12"
EMOJI = ["😀", "👩‍👩‍👧‍👦", "🏳️‍🌈", "🇩🇪", "👍🏽", "❤️", " ", "🎉🎉"]
BLANKS = [" ", "  ", "\t", "\n", "\r\n", "\u00a0", "\u3000", "x", "   y"]
MARKDOWN = (
    "## Heading {0}\n\n* item **bold** _it_ `code`\n> [link](http://x.y/{0})\n\n"
    "| a | b |\n|---|---|\n| {0} | 2 |\n"
)


@cache
def source_code() -> str:
    """A few megabytes of Python: the standard library."""
    folder = Path(sysconfig.get_paths()["stdlib"])
    return "".join(path.read_text(errors="replace") for path in sorted(folder.glob("*.py")))


@cache
def english() -> str:
    """English prose: the comments and docstring lines of the standard library."""
    lines = (line.strip(" #") for line in source_code().splitlines())
    return "\n".join(line for line in lines if line.count(" ") > 5 and line.isascii() and "=" not in line)


def joined(rnd: random.Random, words: Sequence[str], chars: int, gaps: Sequence[str]) -> str:
    """At least `chars` characters of random words with random gaps between them."""
    found: list[str] = []
    size = 0
    while size < chars:
        found += (rnd.choice(words), rnd.choice(gaps))
        size += len(found[-2]) + 1
    return "".join(found)


def texts(chars: int = 20_000, seed: int = 7) -> dict[str, str]:
    """About `chars` characters of each kind, by its name; the same for the same seed."""
    rnd = random.Random(seed)
    gaps = (" ", " ", " ", "\n", ". ")
    found = {name: joined(rnd, text.split(), chars, gaps) for name, text in SENTENCES.items()}
    start = rnd.randrange(100_000)
    return found | {
        "Chinese": "".join(rnd.choices(CHINESE, k=chars)),
        "Japanese": "".join(rnd.choices(JAPANESE, k=chars)),
        "English": english()[start : start + chars],
        "Python": source_code()[start : start + chars],
        "JSON": json.dumps(records(rnd, chars // 60), indent=2),
        "numbers": numbers(rnd, chars),
        "base64": base64.b64encode(rnd.randbytes(chars * 3 // 4)).decode(),
        "hex": rnd.randbytes(chars // 2).hex(),
        "digits": "".join(rnd.choices("0123456789", k=chars)),
        "emoji": joined(rnd, EMOJI, chars, ("",)),
        "blanks": joined(rnd, BLANKS, chars, ("",)),
        "random Unicode": "".join(chr(_any_letter(rnd)) for _ in range(chars // 2)),
        "Markdown": "".join(MARKDOWN.format(i) for i in range(chars // 90)),
    }


def records(rnd: random.Random, count: int) -> list[dict[str, object]]:
    """Rows as a tool or a database returns them."""
    return [
        {"id": i, "name": f"item {i}", "price": rnd.random() * 100, "ok": bool(i % 2)} for i in range(count)
    ]


def numbers(rnd: random.Random, chars: int) -> str:
    """About `chars` characters of vectors as JSON."""
    return json.dumps([[rnd.random() for _ in range(8)] for _ in range(chars // 160)])


def _any_letter(rnd: random.Random) -> int:
    low, high = rnd.choice(((0x20, 0x3000), (0x3000, 0xD800), (0x10000, 0x1FFFF)))
    return rnd.randrange(low, high)
