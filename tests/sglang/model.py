"""Makes a model folder that SGLang can serve without weights: a one-layer Llama and a real tokenizer.

    python model.py FOLDER

Runs inside SGLang's environment (it needs `tokenizers`). The weights are random at start
(`--load-format dummy`); what matters here is everything around them. `texts.json` lists words that
are one token each after a space, and what the chat template adds around one user message, so that a
load client can write prompts of an exact length.
"""

import json
import re
import sys
import sysconfig
from pathlib import Path

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

VOCABULARY = 4096
CONTEXT_TOKENS = 1_048_576
END_OF_TEXT, TURN_START, TURN_END, PADDING = range(4)
SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|pad|>")
CORPUS_FILES = 150
CHAT_TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n"
    "{% if m['content'] is string %}{{ m['content'] }}"
    "{% elif m['content'] %}{% for part in m['content'] %}{{ part['text'] }}{% endfor %}{% endif %}"
    "<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def train() -> Tokenizer:
    """A byte-level BPE trained on the text every Python has at hand: its standard library."""
    tokenizer = Tokenizer(models.BPE(byte_fallback=False))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=list(SPECIAL),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    corpus = sorted(Path(sysconfig.get_path("stdlib")).glob("*.py"))[:CORPUS_FILES]
    tokenizer.train([str(path) for path in corpus], trainer)
    return tokenizer


def single_token_words(tokenizer: Tokenizer) -> list[str]:
    """Lower-case words that stay one token wherever they follow a space."""
    spaced = (token[1:] for token in tokenizer.get_vocab() if token.startswith("Ġ"))
    words = sorted(word for word in spaced if re.fullmatch(r"[a-z]{2,}", word))
    return [word for word in words if len(tokenizer.encode(f" {word}").ids) == 1]


def chat_overhead_tokens(tokenizer: Tokenizer) -> int:
    """What CHAT_TEMPLATE adds to the text of one user message that starts with a space."""
    around = f"{SPECIAL[TURN_START]}user\n a{SPECIAL[TURN_END]}\n{SPECIAL[TURN_START]}assistant\n"
    return len(tokenizer.encode(around).ids) - len(tokenizer.encode(" a").ids)


def tokenizer_config() -> dict[str, object]:
    added = {
        str(number): {
            "content": text,
            "lstrip": False,
            "rstrip": False,
            "normalized": False,
            "single_word": False,
            "special": True,
        }
        for number, text in enumerate(SPECIAL)
    }
    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": CONTEXT_TOKENS,
        "bos_token": None,
        "eos_token": SPECIAL[TURN_END],
        "pad_token": SPECIAL[PADDING],
        "unk_token": None,
        "add_prefix_space": False,
        "clean_up_tokenization_spaces": False,
        "chat_template": CHAT_TEMPLATE,
        "added_tokens_decoder": added,
    }


def model_config(vocabulary: int) -> dict[str, object]:
    hidden = 64
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": hidden,
        "intermediate_size": 2 * hidden,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "head_dim": hidden // 2,
        "vocab_size": vocabulary,
        "max_position_embeddings": CONTEXT_TOKENS,
        "rms_norm_eps": 1e-5,
        "rope_theta": 1e6,
        "hidden_act": "silu",
        "tie_word_embeddings": False,
        "attention_bias": False,
        "bos_token_id": END_OF_TEXT,
        "eos_token_id": TURN_END,
        "pad_token_id": PADDING,
        "torch_dtype": "bfloat16",
        "initializer_range": 0.02,
        "use_cache": True,
    }


def make(folder: Path) -> None:
    """Writes the whole model folder."""
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer = train()
    tokenizer.save(str(folder / "tokenizer.json"))
    generation = {"eos_token_id": TURN_END, "pad_token_id": PADDING, "do_sample": False, "temperature": 1.0}
    files = {
        "tokenizer_config.json": tokenizer_config(),
        "config.json": model_config(tokenizer.get_vocab_size()),
        "generation_config.json": generation,
    }
    for name, content in files.items():
        (folder / name).write_text(json.dumps(content, indent=1))
    words = single_token_words(tokenizer)
    texts = {"words": words, "chat_overhead_tokens": chat_overhead_tokens(tokenizer)}
    (folder / "texts.json").write_text(json.dumps(texts, indent=1))
    print(f"{folder}: vocabulary {tokenizer.get_vocab_size()}, {len(words)} words of one token")


if __name__ == "__main__":
    make(Path(sys.argv[1]))
