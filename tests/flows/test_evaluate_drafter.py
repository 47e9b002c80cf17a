"""The flow of measurements: the command that it runs, where the result lies, and what MLflow is told."""

import json
from pathlib import Path
from typing import ClassVar

import pytest

import flows.evaluate_drafter as module
from dflash_core.errors import ConfigError
from tasks import evaluation, mlflow_store, run_outputs
from tasks.launch import CommandFailed
from tasks.workspace import Workspace, make_workspace

from .promotable import log

EVALUATION = {
    "acceptance": {"tau": 1.75},
    "speed": {"speedup": 1.2, "predicted": {"1.5": 1.1}},
    "by_set": {"x/q": {"tau": 1.5, "num_prompts": 2, "histogram": [1]}, "y/q": {"tau": None, "num_prompts": 0, "histogram": []}},
}


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Workspace:
    source = tmp_path / "mine.yaml"
    source.write_text("target: {path: target}\ndata: {conversations: [a.jsonl]}\nevaluation: {prompt_sets: [sets/q.jsonl]}\nrun: mine\n")
    made = make_workspace(str(source), directory=tmp_path / "workspaces", cache=tmp_path / "cache")
    monkeypatch.setattr(module, "open_workspace", lambda name: made)
    made.log_file.parent.mkdir(parents=True)
    made.log_file.write_text("".join(json.dumps(record) + "\n" for record in log(1)))
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path / 'mlflow.db'}")
    monkeypatch.chdir(tmp_path)
    return made


class FakeCommand:
    """Stands for the supervised command: notes its arguments and leaves its file."""

    ran: ClassVar[list[list[str]]] = []
    fails = False

    def __init__(self, name: str, command: list[str], **_: object) -> None:
        self.arguments = command[3:]

    def run(self) -> None:
        FakeCommand.ran.append(self.arguments)
        if self.arguments[0] == "compare":
            Path(self.arguments[-1]).write_text(json.dumps({"overall": {"difference": 0.25, "verdict": "better"}}))
            return
        out = Path(self.arguments[self.arguments.index("--out") + 1])
        out.mkdir(parents=True, exist_ok=True)
        (out / "evaluation.json").write_text(json.dumps(EVALUATION))
        if FakeCommand.fails:
            raise CommandFailed("evaluate", 3, out, ["an output differs"])


def test_a_measurement_is_run_recorded_and_compared(prefect_server: None, place: Workspace, monkeypatch: pytest.MonkeyPatch) -> None:
    from mlflow import MlflowClient

    monkeypatch.setattr(evaluation, "Supervised", FakeCommand)
    monkeypatch.setattr(FakeCommand, "ran", [])
    module.evaluate_drafter("mine", ["a.jsonl"], name="champion")
    measured = module.evaluate_drafter("mine", ["a.jsonl"], "other/drafter", "weekly", against="champion")
    results, here = place.root / "evaluations", Path.cwd()
    assert measured == {"evaluation": str(results / "weekly/evaluation.json"), "tau": 1.75, "speedup": 1.2}
    assert FakeCommand.ran[1] == [
        "evaluate", "--out", str(results / "weekly"), "--prompts", str(here / "a.jsonl"), "--drafter", str(here / "other/drafter"),
    ]  # fmt: skip
    assert FakeCommand.ran[2] == ["compare", str(results / "champion"), str(results / "weekly"), "--json", str(results / "weekly/comparison.json")]
    client = MlflowClient(f"sqlite:///{here / 'mlflow.db'}")
    experiment = client.get_experiment_by_name(mlflow_store.EXPERIMENT).experiment_id
    nested = {run.data.tags["dflash.kind"]: run for run in mlflow_store.find_runs(client, experiment, {}) if "mlflow.parentRunId" in run.data.tags}
    assert nested["evaluation"].data.metrics["evaluation.acceptance.tau"] == 1.75
    assert nested["comparison"].data.metrics["comparison.overall.difference"] == 0.25
    assert {f.path for f in client.list_artifacts(nested["evaluation"].info.run_id)} == {"evaluation.json", "evaluation_table.json"}

    monkeypatch.setitem(EVALUATION, "acceptance", {"tau": 2.0})
    monkeypatch.setattr(FakeCommand, "fails", True)  # a gate that says no is recorded all the same
    with pytest.raises(CommandFailed):
        module.evaluate_drafter("mine")
    found = mlflow_store.find_runs(client, experiment, {"dflash.kind": "evaluation"})
    assert {run.data.metrics["evaluation.acceptance.tau"] for run in found} == {1.75, 2.0}


def test_a_checkpoint_is_measured_by_its_export_which_does_not_stay(prefect_server: None, place: Workspace, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(evaluation, "Supervised", FakeCommand)
    monkeypatch.setattr(FakeCommand, "ran", [])
    module.evaluate_drafter("mine", checkpoint="step-00000007", name="seventh")
    drafter = str(place.root / "evaluations/seventh/drafter")
    export, evaluate = FakeCommand.ran
    assert export == ["export", "--checkpoint", str(place.log_file.parent / "checkpoints/step-00000007"), "--out", drafter]
    assert evaluate[-2:] == ["--drafter", drafter] and not Path(drafter).exists()
    with pytest.raises(ConfigError, match="two to measure"):
        module.evaluate_drafter("mine", drafter="other", checkpoint="step-00000007")


def test_results_have_a_directory_s_name(place: Workspace) -> None:
    for name in ("../x", "", "a/b"):
        with pytest.raises(ConfigError, match="choose another"):
            evaluation.result_dir(place, name)


def test_prompt_sets_of_the_configuration_are_found_from_the_workspace(place: Workspace) -> None:
    import yaml

    (path,) = place.config.evaluation.prompt_sets
    assert path == str(Path.cwd() / "sets/q.jsonl")
    assert path in yaml.safe_load((place.root / "dvc.yaml").read_text())["stages"]["evaluate"]["deps"]


def test_rows_of_the_table_have_every_part_s_numbers() -> None:
    assert run_outputs.table_of_parts(EVALUATION) == {"by": ["set", "set"], "name": ["x/q", "y/q"], "tau": [1.5, None], "num_prompts": [2, 0]}
    assert run_outputs.table_of_parts({"overall": {}}) == {}
