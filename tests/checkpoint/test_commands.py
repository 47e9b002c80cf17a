"""`dflash-core checkpoint ...` on a run's directory: what a person sees, and the exit codes."""

import json
from pathlib import Path

import pytest
import torch

from dflash_core import cli
from dflash_core.checkpoint.contents import Contents
from dflash_core.checkpoint.resume import RunDirectory
from dflash_core.checkpoint.share_files import WEIGHTS
from dflash_core.training.records import CheckpointRecord, EvalRecord, LogWriter, StartRecord


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """Three checkpoints, of which two are in the log and the first is the best."""
    directory = RunDirectory(tmp_path / "runs" / "tiny")
    with LogWriter(directory.log_path) as log:
        config = {"checkpoint": {"keep_last": 2, "keep_every": None}}
        log.append(StartRecord(**log.stamp(0), total_steps=3, samples_per_epoch=4, config=config, identity={}, versions={}))
        store, parent = directory.store, None
        for step in (1, 2, 3):
            weights = {"norm.weight": torch.full((4,), float(step)), "fc.weight": torch.ones(2, 2)}
            state = {"step": step, "next_sample": step, "generators": {"numpy": ["long"]}}
            saved = store.save(Contents(step, weights, {}, state), {"session_id": log.session_id, "parent": parent})
            parent = saved.digest
            log.append(EvalRecord(**log.stamp(step), metrics={"tau": 4.0 - step}, seconds=0.1))
            if step < 3:
                log.append(
                    CheckpointRecord(
                        **log.stamp(step), name=saved.name, digest=saved.digest, weights_digest=saved.weights_digest, next_sample=0,
                        num_bytes=saved.num_bytes, seconds=0.1,
                    )
                )  # fmt: skip
    return directory.path


def asked(capsys: pytest.CaptureFixture[str], *arguments: str, code: int = 0) -> str:
    assert cli.main(["checkpoint", *arguments]) == code
    shown = capsys.readouterr()
    return shown.out if code in (0, 3) else shown.err


def test_list_has_a_line_for_each_and_for_what_was_put_aside(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    store = RunDirectory(run).store
    digest = store.load("step-00000001")[0].digest
    store.mark("step-00000002", "proven", {})
    store.put_aside("step-00000003")
    header, first, second, aside = asked(capsys, "list", str(run)).splitlines()
    assert header.split()[:2] == ["checkpoint", "state"]
    assert first.split()[:2] == ["step-00000001", "committed"] and " - " in first
    assert second.split()[:2] == ["step-00000002", "proven"] and digest[:12] in second, "its parent"
    assert aside.startswith("put aside: ") and "quarantine/step-00000003-" in aside


def test_show_is_json_without_the_generators(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    RunDirectory(run).store.mark("step-00000002", "rejected", {"first": "loss"})
    tree = json.loads(asked(capsys, "show", str(run), "2"))
    assert (tree["status"], tree["verdict"], tree["manifest"]["step"]) == ("rejected", {"first": "loss"}, 2)
    assert tree["state"] == {"step": 2, "next_sample": 2}


def test_verify_names_the_bad_ones_and_exits_3(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    first, _, third = asked(capsys, "verify", str(run)).splitlines()
    assert "step-00000001 is sound" in first and ", in the log" in first and ", not in the log" in third
    (run / "checkpoints" / "step-00000002" / WEIGHTS).write_bytes(b"")
    assert "step-00000002/model.safetensors: 0 bytes" in asked(capsys, "verify", str(run), "2", code=3)


def test_prune_keeps_what_the_run_keeps_and_refuses_while_it_goes_on(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    store = RunDirectory(run).store
    store.mark("step-00000003", "rejected", {})
    with LogWriter(RunDirectory(run).log_path):
        assert "another process" in asked(capsys, "prune", str(run), code=2)
    assert "gone: step-00000003; kept: step-00000001, step-00000002; deleted from quarantine: 0" in asked(capsys, "prune", str(run))
    assert "deleted from quarantine: 1" in asked(capsys, "prune", str(run), "--quarantined")


def test_diff_says_what_moved(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = asked(capsys, "diff", str(run), "1", "3")
    assert "state.step: 1 -> 3" in text and "origin.parent: None -> " in text
    assert "weights: 1 of 2 tensors differ" in text and "weights: norm.weight moved by 2 of its length" in text


@pytest.mark.parametrize("arguments", [("list", "nowhere"), ("show", "nowhere", "1")])
def test_a_directory_without_checkpoints_is_one_sentence(arguments: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    text = asked(capsys, *arguments, code=2)
    assert "nowhere/checkpoints does not exist" in text and text.count("\n") == 1


@pytest.mark.parametrize("command", ["list", "show", "verify", "prune", "diff"])
def test_help_has_an_example(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert f"dflash-core checkpoint {command} runs/demo" in " ".join(asked(capsys, command, "--help").split())
