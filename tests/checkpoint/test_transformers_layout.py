"""Exports that transformers' own DFlash decoding loads."""

import dataclasses
from pathlib import Path

import pytest
import torch
import transformers

from dflash_core.checkpoint.export import export_transformers, native
from dflash_core.checkpoint.exported import zlab_shapes
from dflash_core.drafter.model import Drafter
from dflash_core.errors import CheckpointError, ConfigError

from .small_exports import LINEAGE, make_drafter


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_transformers_layout_is_loaded_whole_without_remote_code(tmp_path: Path, dtype: torch.dtype) -> None:
    drafter, out = make_drafter(2), tmp_path / "out"
    export_transformers(drafter.state_dict(), drafter.spec, "models/toy", out, LINEAGE, dtype=dtype)
    assert {path.name for path in out.iterdir()} == {"config.json", "model.safetensors", "lineage.json", "README.md"}
    model = transformers.AutoModel.from_pretrained(out, dtype="auto")
    assert type(model).__name__ == "MuseGlimmerAssistantModel" and model.dtype == dtype
    config = model.config
    assert (config.block_size, config.mask_token_id, config.target_layer_ids) == (6, 62, [0, 1, 3])
    assert config.rope_parameters["rope_theta"] == 5e4 and config.layer_types == ["full_attention"] * 2
    loaded = model.state_dict()
    assert len(loaded) == len(zlab_shapes(drafter.spec))
    assert torch.equal(loaded["encoder.fc.weight"], drafter.fc.weight.to(dtype))
    assert torch.equal(loaded["layers.1.mlp.up_proj.weight"], drafter.layers[1].mlp.up_proj.weight.to(dtype))


def test_transformers_layout_has_the_target_s_rope_scaling(tmp_path: Path) -> None:
    scaling = {"type": "linear", "factor": 4.0}
    spec = dataclasses.replace(make_drafter(1).spec, rope_scaling=scaling)
    export_transformers(make_drafter(1).state_dict(), spec, "toy", tmp_path / "out", {})
    angles = transformers.AutoModel.from_pretrained(tmp_path / "out").rotary_emb(torch.zeros(1), torch.tensor([[40]]))
    expected = Drafter(dataclasses.replace(spec, rope_scaling={"rope_type": "linear", "factor": 4.0})).rope(torch.tensor([[40]]))
    assert torch.equal(angles[0][..., :4], expected[0])


def test_transformers_layout_refuses_layers_that_would_see_more_there(tmp_path: Path) -> None:
    drafter = make_drafter(2, sliding=True)
    with pytest.raises(ConfigError, match="sliding layers were trained causal.*expected full_attention"):
        export_transformers(drafter.state_dict(), drafter.spec, "toy", tmp_path / "out", {})
    assert list(tmp_path.iterdir()) == []


def test_transformers_layout_is_checked_by_loading_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    drafter = make_drafter(1)
    monkeypatch.setitem(native._RENAMED, "fc.weight", "encoder.projection.weight")
    with pytest.raises(CheckpointError, match="encoder.projection.weight.*expected weights .* and nothing else"):
        export_transformers(drafter.state_dict(), drafter.spec, "toy", tmp_path / "out", {})
    assert list(tmp_path.iterdir()) == []
