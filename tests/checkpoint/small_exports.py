"""A small drafter and its target, to be exported."""

from pathlib import Path

import torch
import transformers

from dflash_core.drafter.model import Drafter
from dflash_core.drafter.spec import DrafterSpec

LINEAGE = {"target_identity": "ab" * 32, "run": "demo", "step": 7}


def make_drafter(num_layers: int = 5, sliding: bool = False) -> Drafter:
    """A random drafter whose shape differs in every dimension."""
    kinds = ("sliding_attention",) * (num_layers - 1) + ("full_attention",)
    torch.manual_seed(0)
    spec = DrafterSpec(
        hidden_size=24, intermediate_size=40, num_heads=4, num_kv_heads=2, head_dim=8, num_layers=num_layers, block_size=6,
        mask_token_id=62, target_layer_ids=(0, 1, 3), num_target_layers=5, vocab_size=64, rope_theta=5e4,
        layer_types=kinds if sliding else (), sliding_window=9 if sliding else None, max_position_embeddings=512,
    )  # fmt: skip
    drafter = Drafter(spec)
    with torch.no_grad():
        for parameter in drafter.parameters():
            parameter.normal_()
    return drafter


def save_target(directory: Path, tied: bool = False, vocab_size: int = 64) -> Path:
    """A tiny target of the drafter's width."""
    torch.manual_seed(1)
    config = transformers.Qwen3Config(
        vocab_size=vocab_size, hidden_size=24, intermediate_size=40, num_hidden_layers=5, num_attention_heads=4,
        num_key_value_heads=2, head_dim=8, tie_word_embeddings=tied,
    )  # fmt: skip
    transformers.Qwen3ForCausalLM(config).save_pretrained(directory)
    return directory
