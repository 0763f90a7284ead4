from pathlib import Path

import pytest
from tokenizers import processors

from tests.tokens.exact.families import FAMILIES, Model, llama, trained, written


@pytest.fixture(scope="session")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Model]:
    root = tmp_path_factory.mktemp("tokenizers")
    return {name: written(root / name, trained(prepare)) for name, prepare in FAMILIES.items()}


@pytest.fixture
def model(models: dict[str, Model]) -> Model:
    return models["qwen"]


@pytest.fixture
def with_bos(tmp_path: Path) -> Model:
    tokenizer = trained(llama)
    bos = tokenizer.token_to_id("<|bos|>")
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<|bos|> $A", special_tokens=[("<|bos|>", bos)]
    )
    return written(tmp_path / "with_bos", tokenizer)
