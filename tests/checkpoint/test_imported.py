"""Training from a released drafter: shape taken and checked, weights taken bit by bit, and a loss that goes down from there."""

import dataclasses
import json
from collections.abc import Mapping
from pathlib import Path
from typing import NoReturn

import pytest
import torch
from kill_campaign import make_workspace
from safetensors.torch import load_file, save_file

from dflash_core.checkpoint.export import export_zlab
from dflash_core.checkpoint.imported import imported_spec, with_imported_layers
from dflash_core.checkpoint.resume import RunDirectory
from dflash_core.config import Config, DrafterConfig, load_config
from dflash_core.drafter.model import Drafter
from dflash_core.errors import CheckpointError, ConfigError, IdentityError
from dflash_core.plan_estimate.sizes import planned_spec
from dflash_core.stages import export
from dflash_core.stages.checkpoint_export import export_checkpoint, export_drafter
from dflash_core.stages.train import train
from dflash_core.stages.train_inputs import open_inputs
from dflash_core.training.log_reader import read_log
from dflash_core.training.records import StepRecord

BFLOAT16 = torch.bfloat16
MEASURED = {"tau": 2.5, "tau_low": 2.25, "tau_high": 2.75, "num_rounds": 40}


@pytest.fixture(scope="module")
def workspace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Prepared data, a plan of twelve steps, and `released`: a drafter in bfloat16 as another trainer would have left it."""
    workspace = make_workspace(tmp_path_factory.mktemp("import") / "workspace", 12)
    made = open_inputs(configure(workspace, "made"), workspace)
    unlike = {"target_layer_ids": (1, 2), "intermediate_size": 80, "rope_theta": 7e4}
    drafter = Drafter(dataclasses.replace(made.spec, **unlike))
    torch.manual_seed(5)
    with torch.no_grad():
        for parameter in drafter.parameters():
            parameter.normal_(std=0.05).add_(float(parameter.dim() == 1))
    export_zlab(drafter.state_dict(), drafter.spec, "target", workspace / "released", {}, dtype=BFLOAT16)
    (workspace / "released/lineage.json").unlink()
    return workspace


def configure(workspace: Path, run: str, **sections: Mapping[str, object]) -> Config:
    tree = load_config(workspace / "params.yaml").model_dump() | {"run": run}
    return Config.model_validate({key: value | dict(sections.get(key, {})) if key in sections else value for key, value in tree.items()})


class Measured:
    """An evaluation with a known answer."""

    def take(self, target: object, spec: object) -> None:
        return None

    def measure(self, taken: None, ends: object, drafter: object, step: int) -> dict[str, float]:
        return MEASURED


def tensors(directory: Path) -> dict[str, torch.Tensor]:
    return load_file(directory / "model.safetensors")


def assert_same_bits(found: Mapping[str, torch.Tensor], expected: Mapping[str, torch.Tensor]) -> None:
    assert found.keys() == expected.keys()
    for name, tensor in expected.items():
        assert found[name].dtype == tensor.dtype and torch.equal(found[name].view(torch.uint8), tensor.view(torch.uint8)), name


def test_import_then_export_is_bit_identical(workspace: Path, tmp_path: Path) -> None:
    config, released = configure(workspace, "x"), workspace / "released"
    export_drafter(config.target.path, "zlab", tmp_path / "again", released)
    assert_same_bits(tensors(tmp_path / "again"), tensors(released))
    assert json.loads((tmp_path / "again/config.json").read_text()) == json.loads((released / "config.json").read_text())
    lineage = json.loads((tmp_path / "again/lineage.json").read_text())
    assert lineage["exported_from"] == str(released) and len(lineage["exported_from_digest"]) == 64
    mixed = tmp_path / "mixed"  # norms in float32 beside bfloat16 matrices
    export_drafter(config.target.path, "zlab", mixed, released)
    save_file({name: t.float() if t.dim() == 1 else t for name, t in tensors(released).items()}, mixed / "model.safetensors")
    export_drafter(config.target.path, "zlab", tmp_path / "again", mixed)
    assert_same_bits(tensors(tmp_path / "again"), tensors(mixed))


def test_training_starts_where_the_release_stood_and_improves_on_it(workspace: Path, tmp_path: Path) -> None:
    config = configure(workspace, "imported", drafter={"init_from": "released"}, checkpoint={"every": 20, "evaluate": True})
    inputs = open_inputs(config, workspace)
    released = tensors(workspace / "released")
    assert inputs.spec.intermediate_size == 80 and inputs.spec.target_layer_ids == (1, 2) and inputs.spec.rope_theta == 7e4
    assert_same_bits({name: t.detach().to(BFLOAT16) for name, t in inputs.trainee.drafter.state_dict().items()}, released)
    assert inputs.identity["init"].startswith("import ") and inputs.identity["init"] != open_inputs(configure(workspace, "x"), workspace).identity["init"]
    train(config, workspace, resume="auto", evaluation=Measured())
    losses = [r.loss for r in read_log(workspace / config.run_dir / "train_log.jsonl") if isinstance(r, StepRecord)]
    assert len(losses) == 12 and sum(losses[-3:]) / 3 < 0.95 * losses[0]
    store = RunDirectory(workspace / config.run_dir).store
    checkpoint = store.root / store.names()[-1]
    store.mark(checkpoint.name, "proven", {})
    export_checkpoint(config, "transformers", tmp_path / "out", checkpoint)
    lineage = json.loads((tmp_path / "out/lineage.json").read_text())
    assert lineage["init"] == inputs.identity["init"] and lineage["dataset"] == inputs.identity["dataset"] and lineage["status"] == "proven"
    assert lineage["acceptance_length"] == MEASURED | {"measured_by": "chain walk along held-out answers"}
    weights = tensors(workspace / "released")
    weights["norm.weight"] += 1
    save_file(weights, workspace / "released/model.safetensors")
    with pytest.raises(IdentityError, match="init = .import .* now has .import"):
        train(config, workspace, resume="auto")
    save_file(released, workspace / "released/model.safetensors")


@pytest.mark.parametrize(
    ("key", "value", "own"),
    [
        ("num_layers", 3, 2),
        ("block_size", 8, 4),
        ("num_features", 3, 2),
        ("target_layer_ids", [0, 2], r"\(1, 2\)"),
        ("mask_token_id", 7, 500),
    ],
)
def test_a_shape_that_the_configuration_denies_is_refused_with_both_values(workspace: Path, key: str, value: object, own: object) -> None:
    asked = {"num_layers": 2, "block_size": 4, "num_features": 2} | {key: value, "init_from": str(workspace / "released")}
    with pytest.raises(ConfigError, match=rf"drafter.{key} is .*{own}.*Set drafter.{key}: ") as caught:
        imported_spec(DrafterConfig(**asked))
    assert caught.value.exit_code == 2 and "\n" not in str(caught.value)


@pytest.mark.parametrize(("key", "value", "what"), [("hidden_size", 96, "hidden size 96, .* has 64"), ("num_target_layers", 9, "number of layers 9"), ("vocab_size", 600, "vocabulary 600")])
def test_a_drafter_of_another_target_is_refused_with_both_values(workspace: Path, tmp_path: Path, key: str, value: int, what: str) -> None:
    tree = json.loads((workspace / "released/config.json").read_text())
    tmp_path.joinpath("config.json").write_text(json.dumps(tree | {key: value}))
    tmp_path.joinpath("model.safetensors").write_bytes((workspace / "released/model.safetensors").read_bytes())
    with pytest.raises(IdentityError, match=f"made for a target with {what}"):
        open_inputs(configure(workspace, "other", drafter={"init_from": str(tmp_path)}), workspace)


def test_stages_that_only_need_the_layers_and_the_plan_follow_the_import(workspace: Path) -> None:
    config = configure(workspace, "x", drafter={"init_from": str(workspace / "released")}, target={"path": str(workspace / "target")})
    assert with_imported_layers(config).drafter.target_layer_ids == (1, 2)
    assert planned_spec(config).intermediate_size == 80


def test_the_command_takes_one_source_and_says_what_it_made(workspace: Path, tmp_path: Path) -> None:
    config, released = configure(workspace, "x"), workspace / "released"
    said = export.run(lambda: config, "transformers", tmp_path / "out", None, released, None, "float32")
    assert str(released) in said and json.loads((tmp_path / "out/config.json").read_text())["dtype"] == "float32"
    with pytest.raises(ConfigError, match="two sources, expected one"):
        export.run(lambda: config, "zlab", tmp_path / "out", tmp_path, released, None, None)
    with pytest.raises(ConfigError, match="no --drafter beside it"):
        export.run(lambda: config, "zlab", tmp_path / "out", None, None, tmp_path, None)


def test_a_drafter_that_was_pulled_somewhere_needs_no_configuration(workspace: Path, tmp_path: Path) -> None:
    def configuration() -> NoReturn:
        raise AssertionError("there is none")

    export.run(configuration, "zlab", tmp_path / "out", None, workspace / "released", workspace / "target", None)
    assert json.loads((tmp_path / "out/lineage.json").read_text())["target_path"] == str(workspace / "target")


def test_what_is_no_drafter_or_contradicts_itself_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="can't be read as JSON"):
        imported_spec(DrafterConfig(init_from=str(tmp_path)))
    with pytest.raises(ValueError, match="init random has no effect where init_from is set"):
        DrafterConfig(init="random", init_from="somewhere")
