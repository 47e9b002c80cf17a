"""The mask row is one that nothing else uses, and a configured one is held to the same rules."""

from pathlib import Path

import numpy as np
import pytest
from tokenizers import AddedToken
from transformers import PreTrainedConfig, PreTrainedTokenizerBase, Qwen3Config

from dflash_core.config import TargetConfig
from dflash_core.errors import ConfigError
from dflash_core.target.mask_token import choose_mask_token
from dflash_core.target.model import Target
from dflash_core.target.tiny import make_tiny_tokenizer


@pytest.fixture
def config() -> PreTrainedConfig:
    return Qwen3Config(vocab_size=512, eos_token_id=[2, 499], pad_token_id=0, bos_token_id=None)


@pytest.fixture
def tokenizer() -> PreTrainedTokenizerBase:
    return make_tiny_tokenizer()


def full(tokenizer: PreTrainedTokenizerBase, *names: str) -> int:
    """Add control tokens; the embedding has exactly as many rows as the tokenizer has tokens."""
    tokenizer.add_tokens([AddedToken(name, special=True, normalized=False) for name in names])
    return len(tokenizer)


def test_takes_the_first_spare_row(tokenizer: PreTrainedTokenizerBase, config: PreTrainedConfig) -> None:
    assert len(tokenizer) == 500
    assert choose_mask_token(tokenizer, config, 512) == 500


def test_spare_rows_begin_after_added_tokens(tokenizer: PreTrainedTokenizerBase, config: PreTrainedConfig) -> None:
    tokenizer.add_tokens([AddedToken("</think>", special=False)])
    assert choose_mask_token(tokenizer, config, 512) == 501


def test_skips_a_spare_row_that_the_data_use(tokenizer: PreTrainedTokenizerBase, config: PreTrainedConfig) -> None:
    counts = np.zeros(512, dtype=np.int64)
    counts[500] = 3
    assert choose_mask_token(tokenizer, config, 512, counts) == 501


def test_without_spare_rows_takes_an_unused_control_token(tokenizer: PreTrainedTokenizerBase, config: PreTrainedConfig) -> None:
    rows = full(tokenizer, "<repo_name>", "<gh_stars>")
    counts = np.zeros(rows, dtype=np.int64)
    assert choose_mask_token(tokenizer, config, rows, counts) == 500
    counts[500] = 1
    assert choose_mask_token(tokenizer, config, rows, counts) == 501


def test_prefers_a_token_named_reserved(tokenizer: PreTrainedTokenizerBase, config: PreTrainedConfig) -> None:
    rows = full(tokenizer, "<repo_name>", "<|reserved_special_token_0|>")
    assert choose_mask_token(tokenizer, config, rows) == 501


def test_never_takes_a_token_with_a_role_or_of_the_template(tokenizer: PreTrainedTokenizerBase, config: PreTrainedConfig) -> None:
    with pytest.raises(ConfigError, match="no row of the target's 500 embeddings is free for the mask"):
        choose_mask_token(tokenizer, config, 500)  # pad and eos have roles, <|im_start|> is in the template


def test_a_fit_configured_row_is_kept(tokenizer: PreTrainedTokenizerBase, config: PreTrainedConfig) -> None:
    assert choose_mask_token(tokenizer, config, 512, None, 507) == 507


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        (512, "is not a row of the target's embedding, which has 512"),
        (-1, "is not a row"),
        (0, "is the target's pad token"),
        (2, "is the target's eos token"),
        (499, "is the target's eos token"),
        (1, r"is <\|im_start\|>, which the chat template uses"),
        (300, "belongs to an ordinary token"),
        (505, "occurs 7 times in the data"),
    ],
)
def test_an_unfit_configured_row_is_refused(
    row: int, reason: str, tokenizer: PreTrainedTokenizerBase, config: PreTrainedConfig
) -> None:
    counts = np.zeros(512, dtype=np.int64)
    counts[505] = 7
    with pytest.raises(ConfigError, match=f"drafter.mask_token_id {row} {reason}"):
        choose_mask_token(tokenizer, config, 512, counts, row)


def test_the_tiny_target_has_a_spare_row(tiny_dir: Path) -> None:
    target = Target.load(TargetConfig(path=str(tiny_dir)))
    assert choose_mask_token(target.tokenizer, target.config, target.vocab_size) == 500
