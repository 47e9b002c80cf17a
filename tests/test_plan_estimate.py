"""Estimates of `train --plan`: exact where a count is exact, monotone where it must be, and near a real run."""

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import plan_estimate
import pytest
import torch

from dflash_core.config import Config, parse_config
from dflash_core.drafter.model import Drafter
from dflash_core.errors import ConfigError
from dflash_core.plan_estimate import print_plan, table
from dflash_core.plan_estimate.disk import disk_items, disk_peak, num_kept
from dflash_core.plan_estimate.duration import step_seconds
from dflash_core.plan_estimate.items import held, peak, since
from dflash_core.plan_estimate.memory import Place, memory_items
from dflash_core.plan_estimate.probe import Rates, measure_rates
from dflash_core.plan_estimate.sizes import drafter_sizes, planned_spec, target_sizes
from dflash_core.plan_estimate.sizing import Sizing, sizings_of
from dflash_core.plan_estimate.verdict import gpu_verdict
from dflash_core.plan_estimate.workload import MicroShape, read_workload
from dflash_core.target.tiny import make_tiny_target

from .published_configs import NUM_PARAMETERS, write_published

PROJECT = Path(__file__).resolve().parents[1]
PLACES: tuple[Place, ...] = ("cpu", "cuda", "host")


@pytest.fixture(scope="module")
def published(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("published")
    for name in NUM_PARAMETERS:
        write_published(directory, name)
    return directory


@pytest.fixture
def config_of(published: Path) -> Callable[..., Config]:
    def make(name: str = "qwen3-8b", **sections: dict[str, Any]) -> Config:
        tree = {"target": {"path": str(published / name)}, "data": {"conversations": ["c.jsonl"]}} | sections
        return parse_config(tree, "test")

    return make


def bytes_of(sizing: Sizing, place: Place) -> dict[str, float]:
    return {item.name: item.bytes for item in memory_items(sizing, place)}


def total(sizing: Sizing, place: Place) -> float:
    return peak(memory_items(sizing, place))[1]


@pytest.mark.parametrize("name", NUM_PARAMETERS)
def test_targets_parameters_are_those_that_its_maker_counts(name: str, config_of: Callable[..., Config]) -> None:
    config = config_of(name)
    sizes = target_sizes(config, planned_spec(config))
    assert sizes.total == NUM_PARAMETERS[name]
    assert (sizes.head == 0) == (name == "qwen3-4b")
    assert sizes.stored_width == 2


@pytest.mark.parametrize(("text", "said"), [('{"model_type": "t5"}', "an encoder-decoder model"), ("[]", "can't be used")])
def test_a_target_that_training_would_refuse_is_refused(text: str, said: str, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(text)
    config = parse_config({"target": {"path": str(tmp_path)}, "data": {"conversations": ["c.jsonl"]}}, "test")
    with pytest.raises(ConfigError, match=said):
        planned_spec(config)


@pytest.mark.parametrize("name", NUM_PARAMETERS)
@pytest.mark.parametrize("layers, features", [(1, 1), (5, 5), (8, 3)])
def test_drafters_parameters_are_its_own_numel(name: str, layers: int, features: int, config_of: Callable[..., Config]) -> None:
    spec = planned_spec(config_of(name, drafter={"num_layers": layers, "num_features": features}))
    with torch.device("meta"):
        drafter = Drafter(spec)
    sizes = drafter_sizes(spec)
    assert sizes.total == sum(p.numel() for p in drafter.parameters())
    assert sizes.layer == sum(p.numel() for p in drafter.layers[0].parameters())


def test_published_drafter_sizes(config_of: Callable[..., Config]) -> None:
    assert drafter_sizes(planned_spec(config_of("qwen3-4b"))).total == 537_427_200
    assert drafter_sizes(planned_spec(config_of("qwen3-8b"))).total == 1_048_626_432


def test_bytes_by_hand(config_of: Callable[..., Config]) -> None:
    (sizing,) = sizings_of(config_of("qwen3-4b", distributed={"queue_depth": 1}), 1)
    found = bytes_of(sizing, "cuda")
    assert found["target weights"] == 4_022_468_096 * 2
    assert found["drafter weights"] == found["gradients"] == 537_427_200 * 4
    assert found["AdamW moments"] == 537_427_200 * 8
    assert found["weights in bfloat16"] == 537_427_200 * 2
    # One step in work, one in the queue, one in the making; 8,192 tokens of 5 x 2,560 bfloat16.
    assert found["features"] == 3 * 8192 * 5 * 2560 * 2
    for place in ("host", "cpu"):  # weights and moments
        assert bytes_of(sizing, place)["checkpoint's staging copy"] == 537_427_200 * 12
    disk = {item.name: item.bytes for item in disk_items(sizing)}
    assert disk["checkpoints"] == 3 * 12 * 537_427_200
    assert disk["the checkpoint being written"] == 12 * 537_427_200
    assert disk["exported drafter"] == 4 * 537_427_200
    small = sum(disk[name] for name in ("prepared data", "log"))
    assert disk_peak(disk_items(sizing)) == ("training", 4 * 12 * 537_427_200 + small)


def test_a_side_of_split_holds_its_own_model_only(config_of: Callable[..., Config]) -> None:
    settings = {"placement": "split", "target_ranks": 4, "tensor_parallel": 2}
    drafter, target = sizings_of(config_of(distributed=settings), 8)
    assert (drafter.role.count, target.role.count) == (4, 4)
    ends = 2 * 151936 * 4096
    assert bytes_of(drafter, "cuda")["target's embedding and head"] == ends * 2
    assert "target weights" not in bytes_of(drafter, "cuda")
    assert bytes_of(target, "cuda")["target weights"] == (ends + (8_190_735_360 - ends) / 2) * 2
    assert not {"drafter weights", "AdamW moments", "gradients"} & set(bytes_of(target, "cuda"))


def test_fsdp2_divides_the_state_by_the_drafter_ranks(config_of: Callable[..., Config]) -> None:
    ddp, sharded = (sizings_of(config_of(distributed={"parallel": way}), 8)[0] for way in ("ddp", "fsdp2"))
    for name in ("drafter weights", "AdamW moments", "gradients"):
        assert bytes_of(sharded, "cuda")[name] == bytes_of(ddp, "cuda")[name] / 8


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize(
    "section, key, low, high",
    [
        ("drafter", "num_layers", 2, 5),
        ("drafter", "num_features", 3, 5),
        ("drafter", "block_size", 8, 16),
        ("training", "num_anchors", 64, 512),
        ("bucket", "tokens_per_microbatch", 1024, 4096),
        ("distributed", "queue_depth", 1, 4),
        ("evaluation", "num_walk_prompts", 16, 256),
        ("target", "dtype", "bfloat16", "float32"),
    ],
)
def test_more_takes_more(place: Place, section: str, key: str, low: Any, high: Any, published: Path, config_of: Callable[..., Config]) -> None:
    def needed(value: Any) -> float:
        base = {"path": str(published / "qwen3-4b")} if section == "target" else {}
        return total(sizings_of(config_of("qwen3-4b", **{section: base | {key: value}}), 1)[0], place)

    assert needed(low) <= needed(high)
    # What is on the GPU isn't in the host's memory: only state and held-out rows are.
    assert place == "host" or key in ("num_walk_prompts", "queue_depth") or needed(low) < needed(high)


def test_more_ranks_leave_each_less(config_of: Callable[..., Config]) -> None:
    few, many = (bytes_of(sizings_of(config_of(), n)[0], "cuda") for n in (2, 8))
    assert many["features"] == few["features"] / 4
    one = bytes_of(sizings_of(config_of(), 1)[0], "cuda")
    assert "gradients' buckets" in few and "gradients' buckets" not in one


def test_open_target_ranks_follow_the_products(config_of: Callable[..., Config]) -> None:
    def ranks(anchors: int) -> int:
        config = config_of(distributed={"placement": "split"}, training={"num_anchors": anchors})
        return sizings_of(config, 8)[1].role.count

    assert ranks(512) < ranks(16)
    assert {ranks(1), ranks(512)} <= set(range(1, 8))


def test_without_a_number_of_ranks_the_fewest_are_planned(config_of: Callable[..., Config]) -> None:
    split = {"placement": "split", "target_ranks": 2}
    assert [s.role.count for s in sizings_of(config_of(distributed=split))] == [1, 2]
    assert [s.role.count for s in sizings_of(config_of(distributed=split | {"nproc": 8}))] == [6, 2]
    with pytest.raises(ConfigError, match="world of 2 processes"):
        sizings_of(config_of(distributed=split), 2)


def test_bfloat16_products_are_compiled_once_a_shape(config_of: Callable[..., Config]) -> None:
    def compiled(precision: str, place: Place, **changes: Any) -> float:
        (sizing,) = sizings_of(config_of(training={"precision": precision}), 1)
        sizing = replace(sizing, workload=replace(sizing.workload, **changes))
        return bytes_of(sizing, place).get("compiled products", 0.0)

    assert compiled("float32", "cpu") == compiled("bfloat16", "cuda") == 0
    few = compiled("bfloat16", "cpu", steps=1, micro_batches=2.0, shapes=(MicroShape(1, 64, 8, 8), MicroShape(1, 128, 8, 8)))
    assert few == (2 * 34 + 2 * 2) * 0.67e6
    assert compiled("bfloat16", "cpu") == compiled("bfloat16", "cpu", steps=10_000) == 1024 * 0.67e6


def test_the_peak_is_the_phase_that_holds_most() -> None:
    items = (held("always", 10, ""), held("load", 5, "", ["load"]), held("late", 7, "", since("update")))
    assert peak(items) == ("update", 17)


@pytest.mark.parametrize("steps, every, keep_every, expected", [(None, 1, None, 3), (2, 1, None, 2), (100, 1, None, 3), (100, 60, None, 2), (100, 1, 25, 7)])
def test_kept_checkpoints(steps: int | None, every: int, keep_every: int | None, expected: int, config_of: Callable[..., Config]) -> None:
    assert num_kept(config_of(checkpoint={"every": every, "keep_every": keep_every}), steps) == expected


def test_slower_side_of_split_sets_the_pace(config_of: Callable[..., Config]) -> None:
    rates = Rates(target=(1e12, 2e12), drafter=(1e12, 2e12), update=(1e9, 1e9))
    split = sizings_of(config_of(distributed={"placement": "split", "target_ranks": 1}), 8)
    low, high = step_seconds(split, rates)
    assert low < high
    assert high == pytest.approx(max(split[1].products.target, split[0].products.drafter / 7 + split[0].drafter.total * 1e3) / 1e12)


@pytest.mark.parametrize("num_bytes, words", [(20e9, "a GPU of 24 GB"), (24.1e9, "a GPU of 40 GB"), (79e9, "a GPU of 80 GB"), (150e9, "no GPU")])
def test_the_verdict_names_a_card(num_bytes: float, words: str) -> None:
    assert words in gpu_verdict(num_bytes)


def test_rates_are_measured_on_real_shapes(tmp_path: Path) -> None:
    make_tiny_target(tmp_path / "target", seed=0)
    config = parse_config({"target": {"path": str(tmp_path / "target")}, "data": {"conversations": ["c.jsonl"]}, "drafter": {"num_features": 2}}, "test")
    rates = measure_rates(config, planned_spec(config), read_workload(config))
    assert all(0 < low <= high for low, high in vars(rates).values())


def test_plan_prints_items_and_verdicts(config_of: Callable[..., Config], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(table, "measure_rates", lambda *_: Rates((1e12, 2e12), (1e12, 2e12), (1e9, 1e9)))
    print_plan(config_of(distributed={"placement": "split", "target_ranks": 2}), 8)
    shown = capsys.readouterr().out
    for words in ("AdamW moments", "6 drafter ranks, 2 target ranks", "checkpoint's staging copy", "fits a GPU of", "s a step", "Nothing was started"):
        assert words in shown
    assert re.search(r"drafter rank beside a GPU: .*GB if all 6 share a node, which", shown), "a node's memory holds all of its ranks"


def test_plan_says_what_it_does_not_know_yet(config_of: Callable[..., Config], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(table, "measure_rates", lambda *_: Rates((1e12, 2e12), (1e12, 2e12), (1e9, 1e9)))
    print_plan(config_of(training={"feature_source": "cached", "max_steps": 780}))
    shown = " ".join(capsys.readouterr().out.split())
    assert "optimizer steps at most 780" in shown.replace("│", "").replace("  ", " ")
    assert "free disk" in shown and "without the cached features, whose size is known after prepare." in shown


def test_a_small_run_takes_about_what_was_estimated(tmp_path: Path) -> None:
    """A fifth of the benchmark's smallest: what doesn't scale (kernels, heap) weighs more, so the bound is looser than its 15 %."""
    preset = replace(plan_estimate.PRESETS["target"], hidden=512, intermediate=2048, layers=16, heads=8, vocab=2048, conversations=12)
    result = plan_estimate.compare(preset, tmp_path, num_steps=2, seed=0)
    assert 0.75 < result["memory"]["ratio"] < 1.35, result["memory"]
    assert 0.95 < result["disk"]["ratio"] < 1.05, result["disk"]
