"""Exports: exact keys and values, each layout's configuration, refusal of what isn't a drafter, whole or not at all."""

import json
import resource
import shlex
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file

from dflash_core.checkpoint.export import export_speculators, export_transformers, export_zlab, publish
from dflash_core.checkpoint.exported import load_drafter, read_lineage, zlab_shapes
from dflash_core.errors import CheckpointError, ConfigError, DataError, DflashError, IdentityError

from .small_exports import LINEAGE, make_drafter, save_target


def test_spec7_11_checkpoint_round_trip(tmp_path: Path) -> None:
    drafter = make_drafter()
    out = tmp_path / "drafter"
    export_zlab(drafter.state_dict(), drafter.spec, "models/toy", out, LINEAGE)
    weights = load_file(out / "model.safetensors")
    assert len(weights) == 58  # 5 layers: dflash_spec.md 1.3
    assert {name: tuple(tensor.shape) for name, tensor in weights.items()} == zlab_shapes(drafter.spec)
    config = json.loads((out / "config.json").read_text())
    assert config["block_size"] == config["dflash_config"]["block_size"] == 6
    assert config["dflash_config"]["mask_token_id"] == 62
    assert config["dflash_config"]["target_layer_ids"] == [0, 1, 3] and config["num_target_layers"] == 5
    loaded = load_drafter(out)
    assert loaded.spec == drafter.spec
    assert all(torch.equal(value, loaded.state_dict()[name]) for name, value in drafter.state_dict().items())
    assert read_lineage(out) == {"status": "unproven", "layout": "z-lab", "target_path": "models/toy"} | LINEAGE
    assert "unproven" in (out / "README.md").read_text()


def test_key_set_written_out_for_one_layer() -> None:
    assert sorted(zlab_shapes(make_drafter(num_layers=1).spec)) == sorted(
        [
            "fc.weight",
            "hidden_norm.weight",
            "norm.weight",
            "layers.0.input_layernorm.weight",
            "layers.0.post_attention_layernorm.weight",
            "layers.0.self_attn.q_proj.weight",
            "layers.0.self_attn.k_proj.weight",
            "layers.0.self_attn.v_proj.weight",
            "layers.0.self_attn.o_proj.weight",
            "layers.0.self_attn.q_norm.weight",
            "layers.0.self_attn.k_norm.weight",
            "layers.0.mlp.gate_proj.weight",
            "layers.0.mlp.up_proj.weight",
            "layers.0.mlp.down_proj.weight",
        ]
    )


def test_files_can_be_read_by_a_server(tmp_path: Path) -> None:
    drafter = make_drafter(1)
    export_zlab(drafter.state_dict(), drafter.spec, "toy", tmp_path / "out", {})
    assert {stat.S_IMODE(path.stat().st_mode) for path in (tmp_path / "out").iterdir()} == {0o644}
    assert stat.S_IMODE((tmp_path / "out").stat().st_mode) == 0o755


@pytest.mark.parametrize("tied", [True, False])
def test_speculators_form_shifts_layer_ids_and_carries_embedding_and_head(tmp_path: Path, tied: bool) -> None:
    target, drafter, out = save_target(tmp_path / "target", tied), make_drafter(2), tmp_path / "out"
    export_speculators(drafter.state_dict(), drafter.spec, str(target), out, LINEAGE)
    config, weights = json.loads((out / "config.json").read_text()), load_file(out / "model.safetensors")
    assert config["aux_hidden_state_layer_ids"] == [1, 2, 4]
    assert config["speculators_config"]["proposal_methods"][0]["speculative_tokens"] == 5
    assert "sliding_window_non_causal" not in config
    assert set(weights) == set(zlab_shapes(drafter.spec)) | {"embed_tokens.weight", "lm_head.weight"}
    model = transformers.AutoModelForCausalLM.from_pretrained(target)
    assert torch.equal(weights["embed_tokens.weight"], model.get_input_embeddings().weight)
    assert torch.equal(weights["lm_head.weight"], model.get_output_embeddings().weight)


def test_speculators_form_says_causal_only_where_every_layer_slides(tmp_path: Path) -> None:
    target, drafter = save_target(tmp_path / "target"), make_drafter(2, sliding=True)
    export_speculators(drafter.state_dict(), drafter.spec, str(target), tmp_path / "out", {})
    assert "sliding_window_non_causal" not in json.loads((tmp_path / "out" / "config.json").read_text())


def test_speculators_form_refuses_another_target(tmp_path: Path) -> None:
    target, drafter = save_target(tmp_path / "target", vocab_size=70), make_drafter(1)
    with pytest.raises(IdentityError, match=r"\(70, 24\).*\(64, 24\)"):
        export_speculators(drafter.state_dict(), drafter.spec, str(target), tmp_path / "out", {})
    assert not (tmp_path / "out").exists()


def test_bad_weights_are_refused_and_the_old_export_stays(tmp_path: Path) -> None:
    drafter, out = make_drafter(1), tmp_path / "out"
    export_zlab(drafter.state_dict(), drafter.spec, "toy", out, {})
    before = {path.name: path.read_bytes() for path in out.iterdir()}
    missing, nan = dict(drafter.state_dict()), dict(drafter.state_dict())
    del missing["fc.weight"]
    nan["norm.weight"] = torch.full_like(nan["norm.weight"], float("nan"))
    for state, fact in (
        (missing, "fc.weight"),
        (nan, "NaN"),
        (drafter.state_dict() | {"fc.weight": torch.zeros(2, 2)}, r"\(2, 2\)"),
    ):
        with pytest.raises(CheckpointError, match=fact):
            export_zlab(state, drafter.spec, "toy", out, {})
    assert {path.name: path.read_bytes() for path in out.iterdir()} == before
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


@contextmanager
def no_file_above(num_bytes: int) -> Iterator[None]:
    """The kernel refuses writes past `num_bytes`, which libraries report the same way as a full disk."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (num_bytes, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_a_full_disk_is_one_sentence_and_the_old_export_stays(tmp_path: Path) -> None:
    drafter, out = make_drafter(1), tmp_path / "out"
    export_zlab(drafter.state_dict(), drafter.spec, "toy", out, {})
    before = {path.name: path.read_bytes() for path in out.iterdir()}
    with no_file_above(4096), pytest.raises(DataError, match="out can't be written: .*Free space") as caught:
        export_zlab(drafter.state_dict(), drafter.spec, "toy", out, {})
    assert "\n" not in str(caught.value)
    assert {path.name: path.read_bytes() for path in out.iterdir()} == before
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_a_place_that_is_no_directory_and_a_damaged_target_are_one_sentence(tmp_path: Path) -> None:
    drafter = make_drafter(1)
    (tmp_path / "file").write_text("")
    with pytest.raises(DataError, match="can't be written: File exists"):
        export_zlab(drafter.state_dict(), drafter.spec, "toy", tmp_path / "file/out", {})
    target = save_target(tmp_path / "target")
    weights = target / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-10])
    with pytest.raises(DataError, match="model.safetensors can't be read"):
        export_speculators(drafter.state_dict(), drafter.spec, str(target), tmp_path / "out", {})


@pytest.mark.parametrize(
    "damage", ["no config", "no weights", "cut weights", "extra key", "wrong block size", "speculators", "not JSON"]
)
def test_broken_exports_are_refused_in_one_sentence(tmp_path: Path, damage: str) -> None:
    drafter, out = make_drafter(1), tmp_path / "out"
    export_zlab(drafter.state_dict(), drafter.spec, "toy", out, {})
    config, weights = out / "config.json", out / "model.safetensors"
    tree = json.loads(config.read_text())
    match damage:
        case "no config":
            config.unlink()
        case "no weights":
            weights.unlink()
        case "cut weights":
            weights.write_bytes(weights.read_bytes()[:-10])
        case "extra key":
            save_file(load_file(weights) | {"lm_head.weight": torch.zeros(2)}, weights)
        case "wrong block size":
            config.write_text(json.dumps(tree | {"block_size": 16}))
        case "speculators":
            config.write_text(json.dumps({"speculators_model_type": "dflash"}))
        case "not JSON":
            config.write_text("{")
    with pytest.raises(DflashError) as error:
        load_drafter(out)
    assert isinstance(error.value, CheckpointError | ConfigError) and "\n" not in str(error.value)


def test_bfloat16_export_holds_the_rounded_weights(tmp_path: Path) -> None:
    drafter = make_drafter(1)
    export_zlab(drafter.state_dict(), drafter.spec, "toy", tmp_path / "out", {}, dtype=torch.bfloat16)
    assert json.loads((tmp_path / "out" / "config.json").read_text())["dtype"] == "bfloat16"
    weight = load_drafter(tmp_path / "out").fc.weight
    assert torch.equal(weight, drafter.fc.weight.bfloat16().float())


@pytest.mark.parametrize("damage", ["bit", "dtype", "mode", "file", "config"])
def test_an_export_that_reads_back_differently_is_not_published(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, damage: str) -> None:
    drafter, write = make_drafter(1), publish._write

    def damaged(directory: Path, exported: publish.Exported) -> None:
        write(directory, exported)
        weights = load_file(directory / "model.safetensors")
        match damage:
            case "bit":
                weights["norm.weight"].view(torch.uint8)[3] ^= 1
                save_file(weights, directory / "model.safetensors")
            case "dtype":
                save_file(weights | {"norm.weight": weights["norm.weight"].double()}, directory / "model.safetensors")
            case "mode":
                monkeypatch.setattr(Path, "chmod", lambda path, mode: None)
            case "file":
                (directory / "extra.bin").write_bytes(b"")
            case "config":
                (directory / "config.json").write_text("{}")

    monkeypatch.setattr(publish, "_write", damaged)
    with pytest.raises(CheckpointError, match="expected"):
        export_zlab(drafter.state_dict(), drafter.spec, "toy", tmp_path / "out", {})
    assert list(tmp_path.iterdir()) == []


def test_the_card_names_target_data_proof_and_acceptance(tmp_path: Path) -> None:
    drafter = make_drafter(1)
    measured = {"tau": 2.345, "tau_low": 2.2, "tau_high": 2.5, "num_rounds": 80, "measured_by": "chain walk"}
    known = LINEAGE | {"status": "proven", "dataset": "d1" * 32, "acceptance_length": measured, "init": "target"}
    for name, lineage in (("known", known), ("unknown", {})):
        export_transformers(drafter.state_dict(), drafter.spec, "models/toy", tmp_path / name, lineage)
    known, unknown = ((tmp_path / name / "README.md").read_text() for name in ("known", "unknown"))
    assert "**Status: proven.**" in known and f"| data version | `{'d1' * 32}` |" in known and "| target | `models/toy` |" in known
    assert "2.35 (95 %: 2.20 to 2.50), by chain walk over 80 rounds" in known
    assert "**Status: unproven.**" in unknown and "| acceptance length τ | `not measured` |" in unknown
    assert "| data version | `not recorded` |" in unknown and 'speculation_type="dflash"' in unknown


def test_the_card_ends_with_the_commands_that_serve_it(tmp_path: Path) -> None:
    drafter, target = make_drafter(1), save_target(tmp_path / "a target")
    export_zlab(drafter.state_dict(), drafter.spec, str(target), tmp_path / "zlab", {})
    export_speculators(drafter.state_dict(), drafter.spec, str(target), tmp_path / "speculators", {})
    zlab, speculators = ((tmp_path / name / "README.md").read_text() for name in ("zlab", "speculators"))
    vllm, sglang = [part.removeprefix("bash\n") for part in zlab.split("```")[1::2]]
    command, flag, tree = shlex.split(vllm)[2:]
    assert (command, flag) == (str(target), "--speculative-config")
    assert json.loads(tree) == {"method": "dflash", "model": "DIRECTORY", "num_speculative_tokens": 5}, "B - 1: the anchor is no draft"
    options = shlex.split(sglang.replace("\\\n", " "))[3:]  # a shell joins the lines
    assert dict(zip(options[::2], options[1::2], strict=True)) == {
        "--model-path": str(target), "--speculative-algorithm": "DFLASH",
        "--speculative-draft-model-path": "DIRECTORY", "--speculative-num-draft-tokens": "6",
    }  # fmt: skip
    assert "not run for this one" in zlab and zlab.rstrip().endswith("```")
    assert "vllm serve" in speculators and "sglang" not in speculators, "SGLang doesn't read that layout"
