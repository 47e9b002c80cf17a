"""Tiny tokenizers and targets for the data tests: trained in a moment, no network."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from transformers import PreTrainedTokenizerFast

from dflash_core.config import Config, parse_config

CHATML = (
    "{% for m in messages %}{{ '<|im_start|>' + m['role'] + '\n' + m['content'] + '<|im_end|>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
TEXTS = [
    "system user assistant: hello there, how are you? I am fine, thank you.",
    "The quick brown fox jumps over the lazy dog. Hello Hello hello hello answer answer answer",
    "def f(x):\n    return x + 1\n\n\n  the the the  a  b  c",
    "Grüße aus Köln, 你好世界, émigré naïve",
] * 4


SPECIALS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")


def build_tokenizer(
    template: str | None = CHATML, byte_level: bool = True, trim_offsets: bool = False
) -> PreTrainedTokenizerFast:
    """A byte-level BPE tokenizer (or a sentencepiece-like one with byte fallback) with ChatML's special tokens."""
    core = _byte_level(trim_offsets) if byte_level else _sentencepiece_like()
    core.add_special_tokens([AddedToken(text, normalized=False) for text in SPECIALS])
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=core, eos_token="<|im_end|>", pad_token="<|endoftext|>", clean_up_tokenization_spaces=False
    )
    tokenizer.add_tokens([AddedToken("</think>", special=False)])
    tokenizer.chat_template = template
    return tokenizer


def _byte_level(trim_offsets: bool) -> Tokenizer:
    core = Tokenizer(models.BPE())
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    core.decoder = decoders.ByteLevel()
    core.post_processor = processors.ByteLevel(trim_offsets=trim_offsets)
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=556, special_tokens=list(SPECIALS), initial_alphabet=alphabet, show_progress=False)
    core.train_from_iterator(TEXTS, trainer)
    return core


def _sentencepiece_like() -> Tokenizer:
    """Llama 2's kind: words start with a metaspace, unknown characters fall back to bytes."""
    core = Tokenizer(models.BPE())
    core.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first")
    core.train_from_iterator(TEXTS[:3], trainers.BpeTrainer(vocab_size=300, show_progress=False))
    trained = json.loads(core.to_str())["model"]
    tokens = ["<unk>", *(f"<0x{byte:02X}>" for byte in range(256)), *trained["vocab"]]
    vocab = {token: number for number, token in enumerate(tokens)}
    merges = [tuple(merge) for merge in trained["merges"]]
    core.model = models.BPE(vocab=vocab, merges=merges, byte_fallback=True, unk_token="<unk>", fuse_unk=True)
    core.decoder = decoders.Sequence([decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse()])
    return core


@pytest.fixture(scope="session")
def make_tokenizer() -> Callable[..., PreTrainedTokenizerFast]:
    return build_tokenizer


@pytest.fixture(scope="session")
def target_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory that has what `prepare` looks at: tokenizer files, a config and a weight file."""
    directory = tmp_path_factory.mktemp("target")
    build_tokenizer().save_pretrained(directory)
    (directory / "config.json").write_text(json.dumps({"model_type": "llama", "max_position_embeddings": 2048}), encoding="utf-8")
    (directory / "model.safetensors").write_bytes(b"weights" * 100)
    return directory


@pytest.fixture
def make_config(target_dir: Path) -> Callable[..., Config]:
    def make(*paths: Path, drafter: dict | None = None, bucket: dict | None = None, **data: object) -> Config:
        section = {"conversations": [str(path) for path in paths], "heldout_fraction": 0.0, "max_length": 64} | data
        tree = {"target": {"path": str(target_dir)}, "data": section, "drafter": drafter or {}, "bucket": bucket or {}}
        return parse_config(tree, "test")

    return make


@pytest.fixture
def write_rows(tmp_path: Path) -> Callable[..., Path]:
    """Write rows as JSONL and return the path."""

    def write(rows: list, name: str = "rows.jsonl") -> Path:
        path = tmp_path / name
        path.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), encoding="utf-8")
        return path

    return write
