"""The whole chain through the flow, on a tiny random target: what comes out, and that nothing is done twice."""

import functools
import json
from pathlib import Path

import pytest
import yaml

import flows.train_drafter as module
from tasks import lineage, mlflow_store
from tasks.launch import CommandFailed
from tasks.pull import pull_checkpoint
from tasks.registration import DVC_TAG
from tasks.registry import Version
from tasks.workspace import PROJECT, make_workspace

from .watched_network import WatchedNetwork

SETTINGS = {
    "run": "tiny",
    "target": {"path": "target", "dtype": "float32"},
    "data": {"conversations": ["conversations.jsonl"], "max_length": 96},
    "bucket": {"multiple": 32, "tokens_per_step": 512, "tokens_per_microbatch": 512},
    "data_gate": {"min_rows": 40, "max_truncated": 0.5},
    "drafter": {"num_layers": 1, "block_size": 4, "num_features": 2},
    "training": {"epochs": 1, "max_steps": 4, "num_anchors": 4, "precision": "float32", "feature_source": "cached"},
    "checkpoint": {"every": 2, "keep_last": 2},
    "evaluation": {"num_prompts": 2, "max_new_tokens": 8, "num_walk_prompts": 2, "bootstrap_samples": 50},
}


@pytest.fixture
def params(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A configuration with a tiny target and 40 of the shipped smoke conversations; workspaces and MLflow below tmp_path."""
    from dflash_core.target.tiny import make_tiny_target

    make_tiny_target(tmp_path / "target", seed=0)
    lines = (PROJECT / "data/smoke.jsonl").read_text().splitlines()[:40]
    (tmp_path / "conversations.jsonl").write_text("\n".join(lines) + "\n")
    (tmp_path / "tiny.yaml").write_text(yaml.safe_dump(SETTINGS))
    monkeypatch.setattr(
        module, "make_workspace", functools.partial(make_workspace, directory=tmp_path / "workspaces", cache=tmp_path / "cache")
    )
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path / 'mlflow.db'}")
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    return tmp_path / "tiny.yaml"


def test_the_chain_ends_with_a_report_and_is_not_done_twice(
    prefect_server: None, network: WatchedNetwork, params: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    from mlflow import MlflowClient

    result = module.train_drafter(str(params))
    root = params.parent / "workspaces/tiny"
    assert result["report"] == str(root / "build/report/report.html")
    report = json.loads((root / "build/report/report.json").read_text())
    assert report["curves"]["steps"] == [1, 2, 3, 4] and report["curves"]["eval_steps"] == [2, 4]
    assert report["raw_evaluation"]["outputs"]["num_different"] == 0
    assert [(row["status"], row["sound"]) for row in report["proofs"]] == [("proven", True)] * 2, "the last one by its probes"
    assert json.loads((root / "build/drafter/lineage.json").read_text())["status"] == "proven"
    assert "://" not in (root / "build/report/report.html").read_text()
    assert "acceptance length" in capfd.readouterr().out
    client = MlflowClient(f"sqlite:///{params.parent / 'mlflow.db'}")
    runs = client.search_runs([client.get_experiment_by_name(mlflow_store.EXPERIMENT).experiment_id])
    (run,) = [run for run in runs if run.data.tags["dflash.kind"] == "train"]
    nested = {other.data.tags["dflash.kind"] for other in runs if other.data.tags.get("mlflow.parentRunId") == run.info.run_id}
    assert run.info.status == "FINISHED" and nested == {"proof", "evaluation"}
    lock = yaml.safe_load((root / "dvc.lock").read_text())["stages"]["prepare"]["outs"][0]["md5"]
    assert lock in {dataset.dataset.digest for dataset in run.inputs.dataset_inputs}
    assert [m.step for m in client.get_metric_history(run.info.run_id, "loss")] == [1, 2, 3, 4]
    assert run.data.tags["dflash.proof"] == run.data.tags["dflash.proof.step-00000004"] == "proven"
    assert run.data.metrics["evaluation.acceptance.tau"] == report["overall"]["tau"]

    version = Version("toy", "1", {DVC_TAG: json.dumps(lineage.dvc_digests(root / "dvc.lock"))}, "", "")
    pulled = pull_checkpoint(version, params.parent / "pulled", params.parent / "cache")
    assert lineage.file_digests(pulled) == lineage.file_digests(root / "runs/tiny/checkpoints/step-00000004")

    output = {path.name: path.stat().st_mtime_ns for path in (root / "logs").iterdir()}
    assert set(output) == {f"{name}.log" for name in ("prepare", "bucket", "check-data", "features", "train", "prove", "evaluate", "report")}
    assert module.train_drafter(str(params)) == result
    assert len(client.search_runs([run.info.experiment_id])) == len(runs), "a training that is up to date is no new run"
    assert len(client.search_logged_models([run.info.experiment_id])) == 1
    assert {path.name: path.stat().st_mtime_ns for path in (root / "logs").iterdir()} == output, "a stage that is up to date ran again"

    _refuses_bad_input(params)
    _trains_on_new_data(params)
    assert network.outside() == []


def _trains_on_new_data(params: Path) -> None:
    """As on a night with new prompts: DVC finds only the first stages changed, before they have run."""
    more = (PROJECT / "data/smoke.jsonl").read_text().splitlines()[40:44]
    with (params.parent / "conversations.jsonl").open("a") as file:
        file.write("\n".join(more) + "\n")
    first = params.parent / "workspaces/tiny/runs/tiny"
    before = {path: path.stat().st_mtime_ns for path in first.rglob("*")}
    module.train_drafter(str(params), "second")
    second = params.parent / "workspaces/second/runs/tiny"
    assert second.resolve() == second and (second / "checkpoints/step-00000004").is_dir()
    assert {path: path.stat().st_mtime_ns for path in first.rglob("*")} == before, "the published run is another one's"


def _refuses_bad_input(params: Path) -> None:
    """In the same test, since a server and a target of its own would double its time."""
    with pytest.raises(CommandFailed) as caught:
        module.train_drafter(str(params), "bad", {"data.min_response_tokens": 10_000})
    assert caught.value.exit_code == 2 and '"prepare"' in str(caught.value)
    assert module.main(["--profile", str(params), "--set", "nonsense"]) == 2
    with pytest.raises(CommandFailed) as caught:
        module.train_drafter(str(params), "few", {"data_gate.min_rows": 41})
    assert caught.value.exit_code == 3 and "enough-rows (40, limit data_gate.min_rows)" in str(caught.value)
    assert {path.stem for path in (params.parent / "workspaces/few/logs").iterdir()} == {"check-data"}, "it trained, or did again what was published"
