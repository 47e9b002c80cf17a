"""Tiny random targets of several families, without a tokenizer, and a random drafter for any target."""

from pathlib import Path

import torch
import transformers

from dflash_core.config import DrafterConfig
from dflash_core.drafter.model import Drafter
from dflash_core.drafter.spec import from_target
from dflash_core.target.model import Target

HIDDEN, VOCAB, LAYERS, BLOCK = 32, 96, 4, 6
MASK_ID = VOCAB - 1
SHAPE = {
    "vocab_size": VOCAB, "hidden_size": HIDDEN, "intermediate_size": 48, "num_hidden_layers": LAYERS, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 8, "max_position_embeddings": 512, "initializer_range": 0.3, "bos_token_id": None,
    "eos_token_id": None, "pad_token_id": None,
}  # fmt: skip
FAMILIES = {
    "llama": lambda: transformers.LlamaConfig(**SHAPE, tie_word_embeddings=True),
    "qwen3": lambda: transformers.Qwen3Config(**SHAPE, tie_word_embeddings=False),
    "mistral": lambda: transformers.MistralConfig(**SHAPE, sliding_window=16),
    "gemma3": lambda: transformers.Gemma3TextConfig(
        **SHAPE, sliding_window=16, sliding_window_pattern=2, query_pre_attn_scalar=8
    ),
}


def save_target(directory: Path, family: str) -> Path:
    """A random target of a family in transformers' format."""
    torch.manual_seed(11)
    model = transformers.AutoModelForCausalLM.from_config(FAMILIES[family]()).float().eval()
    model.save_pretrained(directory)
    return directory


def random_drafter_for(target: Target, block_size: int, seed: int) -> Drafter:
    """Two layers of random weights, large enough that drafts depend on the features."""
    settings = DrafterConfig(num_layers=2, block_size=block_size, target_layer_ids=(0, 1))
    spec = from_target(target.config, settings, target.vocab_size - 1)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return randomised(Drafter(spec)).to(target.device).eval()


@torch.no_grad()
def randomised(drafter: Drafter) -> Drafter:
    """The drafter with weights that PyTorch's generator gives: matrices of 0.3, norms near 1."""
    for parameter in drafter.parameters():
        parameter.copy_(torch.randn_like(parameter) * (0.3 if parameter.dim() > 1 else 0.1) + (parameter.dim() == 1))
    return drafter
