"""Presets for real nodes: they parse, they plan on config.json alone, and they fit the GPUs that they name."""

import re
from pathlib import Path

import pytest
import yaml

from dflash_core import cli
from dflash_core.config import Config, load_config
from dflash_core.plan_estimate import table
from dflash_core.plan_estimate.items import peak
from dflash_core.plan_estimate.memory import memory_items
from dflash_core.plan_estimate.probe import Rates
from dflash_core.plan_estimate.sizing import sizings_of

from .published_configs import write_published

PROFILES = Path(__file__).resolve().parents[1] / "profiles"
PRESETS = sorted(path.stem for path in PROFILES.glob("*.yaml") if path.stem != "smoke")


def test_all_presets_are_there() -> None:
    assert PRESETS == [
        "llama3.1-8b-2gpu",
        "one-24gb-gpu",
        "qwen3-4b-8gpu-colocated",
        "qwen3-4b-8gpu-split",
        "qwen3-8b-8gpu-colocated",
        "qwen3-8b-8gpu-split",
    ]


@pytest.fixture
def config(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Config:
    monkeypatch.chdir(tmp_path)
    found = load_config(PROFILES / f"{request.param}.yaml")
    write_published(tmp_path / "models", Path(found.target.path).name)
    return found


@pytest.mark.parametrize("config", PRESETS, indirect=True)
def test_preset_follows_the_papers_recipe(config: Config) -> None:
    assert config.run in PRESETS  # a run is named like its preset
    assert config.drafter.num_layers == 5 and config.drafter.block_size == (10 if "llama" in config.run else 16)
    assert (config.training.epochs, config.training.learning_rate, config.training.warmup_ratio) == (6, 6e-4, 0.04)
    assert len(config.drafter.target_layer_ids or sizings_of(config)[0].spec.target_layer_ids) == 5


@pytest.mark.parametrize("config", PRESETS, indirect=True)
def test_preset_fits_the_gpu_that_it_names(config: Config) -> None:
    text = (PROFILES / f"{config.run}.yaml").read_text(encoding="utf-8")
    size = float(re.search(r"GPUs? of (\d+) GB", text)[1])
    for sizing in sizings_of(config):
        needed = peak(memory_items(sizing, "cuda"))[1] / 1e9
        assert needed <= size, f"{sizing.role.name} needs {needed:.1f} GB"
        told = re.search(rf"{sizing.role.name}[^;]*?needs about (\d+) GB", text)
        assert told, f"the comment says what a {sizing.role.name} needs"
        assert abs(float(told[1]) - needed) <= 1.0, f"{sizing.role.name}: {needed:.1f} GB, the comment says {told[1]}"


@pytest.mark.parametrize("config", ["one-24gb-gpu", "qwen3-8b-8gpu-split"], indirect=True)
def test_preset_plans_by_command(config: Config, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(table, "measure_rates", lambda *_: Rates((1e12, 2e12), (1e12, 2e12), (1e9, 1e9)))
    assert cli.main(["train", "--plan", "--params", str(PROFILES / f"{config.run}.yaml")]) == 0
    assert "Nothing was started" in capsys.readouterr().out


@pytest.mark.parametrize("name", PRESETS)
def test_preset_writes_out_no_unknown_default(name: str) -> None:
    """Every key that a preset sets is one that somebody may want to change there: none repeats the default of seed, eps or betas."""
    tree = yaml.safe_load((PROFILES / f"{name}.yaml").read_text(encoding="utf-8"))
    assert not {"seed", "eps", "betas", "weight_decay"} & set(tree["training"])
