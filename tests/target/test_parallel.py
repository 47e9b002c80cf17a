"""A target over several ranks has the features of the plain one, and gives a drafter the same start."""

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM, PreTrainedModel, Qwen3MoeConfig

from dflash_core.config import DrafterConfig, TargetConfig
from dflash_core.drafter.initialise import Probe, initialise
from dflash_core.drafter.model import Drafter
from dflash_core.drafter.spec import from_target
from dflash_core.errors import ConfigError
from dflash_core.target.ends import TargetEnds, load_ends
from dflash_core.target.model import Target
from dflash_core.target.parallel import ParallelTarget, check_divisible, load_parallel_target
from dflash_core.target.self_check import self_check
from dflash_core.target.stored import StoredModel

LAYER_IDS = (0, 1, 3)
FAMILIES = ("llama", "qwen2", "qwen3-sliding", "gemma2", "phi", "phi3")


def configured(path: Path) -> TargetConfig:
    return TargetConfig(path=str(path), dtype="float32")


def joined(rank: int, ranks: Sequence[int], path: Path) -> ParallelTarget | None:
    """The target of this rank, where it is one of `ranks`; the others only take part in making the group."""
    group = torch.distributed.new_group(list(ranks))
    return load_parallel_target(configured(path), group) if rank in ranks else None


def rank_features(rank: int, ranks: Sequence[int], path: Path, ids_BT: torch.Tensor) -> dict[str, np.ndarray | int] | None:
    """Features, ends, and how many numbers of the layers this rank holds."""
    target = joined(rank, ranks, path)
    if target is None:
        return None
    self_check(target, LAYER_IDS, ids_BT)
    layer = target.model.get_decoder().layers[0]
    return {
        "features": target.features(ids_BT, LAYER_IDS).numpy(),
        "embeds": target.embed(ids_BT).numpy(),
        "head": target.head_weight_VD.numpy(),
        "held": sum(p._local_tensor.numel() if hasattr(p, "_local_tensor") else p.numel() for p in layer.parameters()),
    }


def assert_equal_on_ranks(found: Sequence[dict[str, np.ndarray | int]], target: Target, ids_BT: torch.Tensor) -> None:
    expected_BTF = target.features(ids_BT, LAYER_IDS)
    for answer in found:
        assert np.array_equal(answer["features"], found[0]["features"]), "the ranks of a group must agree to the bit"
        torch.testing.assert_close(torch.from_numpy(answer["features"]), expected_BTF, atol=1e-5, rtol=1e-5)
        assert np.array_equal(answer["embeds"], target.embed(ids_BT).numpy())
        assert np.array_equal(answer["head"], target.head_weight_VD.numpy())
        whole = sum(p.numel() for p in target.model.get_decoder().layers[0].parameters())
        assert whole / 2 <= answer["held"] < 0.55 * whole


@pytest.mark.distributed
@pytest.mark.parametrize("family", FAMILIES)
def test_features_equal_the_plain_targets(
    family: str, make_model: Callable[..., PreTrainedModel], tmp_path: Path, ids_BT: torch.Tensor, on_ranks: Callable[..., list]
) -> None:
    make_model(family).save_pretrained(tmp_path)
    found = on_ranks(2, rank_features, (0, 1), tmp_path, ids_BT)
    assert_equal_on_ranks(found, Target.load(configured(tmp_path)), ids_BT)


@pytest.mark.distributed
def test_features_equal_where_the_group_is_part_of_the_world(
    make_model: Callable[..., PreTrainedModel], tmp_path: Path, ids_BT: torch.Tensor, on_ranks: Callable[..., list]
) -> None:
    make_model("qwen3").save_pretrained(tmp_path)
    other, *found = on_ranks(3, rank_features, (1, 2), tmp_path, ids_BT)
    assert other is None
    assert_equal_on_ranks(found, Target.load(configured(tmp_path)), ids_BT)


@pytest.mark.distributed
def test_experts_stored_apart_are_split_as_well(tmp_path: Path, ids_BT: torch.Tensor, on_ranks: Callable[..., list]) -> None:
    """Files keep each expert's matrices, the class keeps them joined: the family's conversion must be found."""
    config = Qwen3MoeConfig(
        vocab_size=96, hidden_size=32, intermediate_size=48, moe_intermediate_size=16, num_hidden_layers=5, num_attention_heads=4,
        num_key_value_heads=2, head_dim=8, num_experts=4, num_experts_per_tok=2, initializer_range=0.15,
    )  # fmt: skip
    torch.manual_seed(0)
    AutoModelForCausalLM.from_config(config).save_pretrained(tmp_path)
    found = on_ranks(2, rank_features, (0, 1), tmp_path, ids_BT)
    assert_equal_on_ranks(found, Target.load(configured(tmp_path)), ids_BT)
    layer = next(load_ends(configured(tmp_path)).decoder_layers((4,)))
    assert layer.mlp.experts.gate_up_proj.is_meta and not layer.self_attn.q_proj.weight.is_meta


@pytest.mark.distributed
def test_a_target_with_a_vision_tower(vision_dir: Path, ids_BT: torch.Tensor, on_ranks: Callable[..., list]) -> None:
    """The text model is a part of the model, under other names than in the files."""
    found = on_ranks(2, rank_features, (0, 1), vision_dir, ids_BT)
    assert_equal_on_ranks(found, Target.load(configured(vision_dir)), ids_BT)


@pytest.mark.parametrize("size", [3, 4])
def test_ranks_that_would_cut_a_head_are_refused(size: int, make_model: Callable[..., PreTrainedModel], tmp_path: Path) -> None:
    make_model("llama").save_pretrained(tmp_path)
    skeleton = StoredModel(configured(tmp_path)).skeleton
    check_divisible(skeleton, 2)
    with pytest.raises(ConfigError, match=f"4 heads and 2 key/value heads, and tensor_parallel is {size}; expected a divisor"):
        check_divisible(skeleton, size)


def test_a_family_without_a_plan_is_refused(make_model: Callable[..., PreTrainedModel]) -> None:
    model = make_model("llama")
    model.tp_plan = None
    with pytest.raises(ConfigError, match="has no tensor-parallel plan"):
        check_divisible(model, 2)


def started(target: TargetEnds, features: Callable | None = None) -> dict[str, torch.Tensor]:
    """Weights of a drafter that starts from the target."""
    spec = from_target(target.config, DrafterConfig(num_layers=3, block_size=4, num_features=2), 95, target.embedding_scale)
    drafter = Drafter(spec)
    generator = torch.Generator().manual_seed(9)
    rows = tuple(torch.randint(3, 96, (length,), generator=generator) for length in (40, 64))
    initialise(drafter, target, "target", 0, Probe(rows, rows[0]), features)
    return drafter.state_dict()


@pytest.fixture
def wide_dir(tmp_path: Path) -> Path:
    """A tied target whose rows are so large that the final norm has to be scaled."""
    torch.manual_seed(0)
    config = LlamaConfig(
        hidden_size=32, intermediate_size=64, num_hidden_layers=6, num_attention_heads=4, num_key_value_heads=2, vocab_size=96,
        tie_word_embeddings=True, initializer_range=0.2, pad_token_id=0,
    )  # fmt: skip
    model = LlamaForCausalLM(config)
    torch.nn.init.normal_(model.get_input_embeddings().weight, std=1.0)
    model.save_pretrained(tmp_path)
    return tmp_path


def rank_start(rank: int, path: Path) -> dict[str, np.ndarray]:
    """The start from the parallel target, with its own features."""
    return {name: weight.numpy() for name, weight in started(joined(rank, (0, 1), path)).items()}


@pytest.mark.distributed
def test_a_drafter_starts_the_same_from_a_parallel_target(wide_dir: Path, on_ranks: Callable[..., list]) -> None:
    """Copied weights are equal to the bit; those scaled by features differ by the rounding of sums over ranks."""
    expected = started(Target.load(configured(wide_dir)))
    first, second = on_ranks(2, rank_start, wide_dir)
    by_features = {"fc.weight", "norm.weight"}
    for name, weight in expected.items():
        assert np.array_equal(first[name], second[name]), name
        tolerance = 1e-6 if name in by_features else 0.0
        torch.testing.assert_close(torch.from_numpy(first[name]), weight, atol=tolerance, rtol=tolerance)
    assert expected["norm.weight"].mean() < 0.8, "the scale must have had something to do"


@pytest.mark.parametrize("family", ["llama", "qwen2", "qwen3", "mistral", "gemma", "gemma2", "gemma3", "phi3"])
def test_a_drafter_starts_the_same_from_ends_with_features_from_elsewhere(
    family: str, make_model: Callable[..., PreTrainedModel], tmp_path: Path
) -> None:
    make_model(family).save_pretrained(tmp_path)
    target = Target.load(configured(tmp_path))
    expected, found = started(target), started(load_ends(configured(tmp_path)), target.features)
    assert all(torch.equal(found[name], weight) for name, weight in expected.items())
