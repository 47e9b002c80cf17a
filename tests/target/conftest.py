"""Tiny random models of each family that the target supports, with the masks, scales and caps that could go wrong."""

from collections.abc import Callable
from pathlib import Path

import forked_ranks
import pytest
import torch
from transformers import (
    AutoModelForCausalLM,
    Gemma2Config,
    Gemma3Config,
    Gemma3ForConditionalGeneration,
    Gemma3TextConfig,
    GemmaConfig,
    LlamaConfig,
    MistralConfig,
    Phi3Config,
    PhiConfig,
    PreTrainedConfig,
    PreTrainedModel,
    Qwen2Config,
    Qwen3Config,
    SiglipVisionConfig,
)

from dflash_core.target.model import Target
from dflash_core.target.tiny import make_tiny_target

SHAPE = {
    "vocab_size": 96, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 5, "num_attention_heads": 4,
    "max_position_embeddings": 128, "initializer_range": 0.15, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2,
}  # fmt: skip
GROUPED = SHAPE | {"num_key_value_heads": 2, "head_dim": 8}
SLIDING = ["sliding_attention", "full_attention", "sliding_attention", "sliding_attention", "full_attention"]

FAMILIES: dict[str, PreTrainedConfig] = {
    "llama": LlamaConfig(**GROUPED),
    "qwen2": Qwen2Config(**SHAPE, num_key_value_heads=2),
    "qwen2-sliding": Qwen2Config(**SHAPE, num_key_value_heads=2, use_sliding_window=True, sliding_window=4, max_window_layers=2),
    "qwen3": Qwen3Config(**GROUPED),
    "qwen3-sliding": Qwen3Config(**GROUPED, use_sliding_window=True, sliding_window=4, layer_types=SLIDING),
    "mistral": MistralConfig(**GROUPED, sliding_window=4),
    "gemma": GemmaConfig(**GROUPED),
    "gemma2": Gemma2Config(**GROUPED, sliding_window=4, final_logit_softcapping=3.0, attn_logit_softcapping=5.0),
    "gemma3": Gemma3TextConfig(**GROUPED, sliding_window=4, layer_types=SLIDING),
    "phi": PhiConfig(**SHAPE),
    "phi3": Phi3Config(**SHAPE, num_key_value_heads=2, sliding_window=4),
}


@pytest.fixture(params=FAMILIES)
def family(request: pytest.FixtureRequest) -> str:
    """Each family in turn."""
    return request.param


@pytest.fixture(scope="session")
def make_model() -> Callable[..., PreTrainedModel]:
    """make_model(family): a random model in float32."""

    def make(family: str) -> PreTrainedModel:
        torch.manual_seed(0)
        model = AutoModelForCausalLM.from_config(FAMILIES[family]).eval()
        for name, parameter in model.named_parameters():
            if "norm" in name and name.endswith("weight"):
                parameter.data += 0.3 * torch.rand_like(parameter)  # all ones would hide a missing norm
        return model

    return make


@pytest.fixture
def llama(make_model: Callable[..., PreTrainedModel]) -> Target:
    """A tiny Llama as target, in float32."""
    return Target(make_model("llama"), Path("llama"))


@pytest.fixture
def ids_BT() -> torch.Tensor:
    """Random tokens, int64 [2, 17]: longer than the sliding windows."""
    return torch.randint(3, 96, (2, 17), generator=torch.Generator().manual_seed(0))


@pytest.fixture(scope="session")
def llama_config() -> PreTrainedConfig:
    """Configuration of the tiny Llama."""
    return FAMILIES["llama"]


@pytest.fixture(scope="session")
def tiny_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tiny target of `make_tiny_target`, with tokenizer and template."""
    directory = tmp_path_factory.mktemp("tiny") / "target"
    make_tiny_target(directory, seed=0)
    return directory


@pytest.fixture(scope="session")
def vision_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny Gemma 3 with a vision tower, whose files name the text model otherwise than its class does."""
    torch.manual_seed(0)
    text = Gemma3TextConfig(**GROUPED, sliding_window=4, layer_types=SLIDING)
    vision = SiglipVisionConfig(
        hidden_size=16, intermediate_size=16, num_hidden_layers=1, num_attention_heads=2, image_size=28, patch_size=14
    )
    directory = tmp_path_factory.mktemp("vision")
    Gemma3ForConditionalGeneration(Gemma3Config(text_config=text, vision_config=vision, mm_tokens_per_image=4)).save_pretrained(directory)
    return directory


@pytest.fixture
def on_ranks() -> Callable[..., list]:
    """on_ranks(world_size, function, *arguments): function(rank, *arguments) of each rank of a gloo world, as numpy or plain objects."""

    def run(world_size: int, function: Callable[..., object], *arguments: object) -> list:
        return forked_ranks.on_ranks(world_size, _as_rank, function, arguments, timeout_s=60.0)

    return run


def _as_rank(function: Callable[..., object], arguments: tuple) -> object:
    """What each process does."""
    torch.distributed.init_process_group("gloo")
    answer = function(torch.distributed.get_rank(), *arguments)
    torch.distributed.barrier()
    torch.distributed.destroy_process_group()
    return answer
