"""The flow of measurements: the command that it runs, where the result lies, and what MLflow is told."""

import json
from pathlib import Path
from typing import ClassVar

import pytest
from promotable import log

import flows.evaluate_drafter as module
from dflash_core.errors import ConfigError
from tasks import evaluation, mlflow_store, run_outputs
from tasks.launch import CommandFailed
from tasks.workspace import Workspace, make_workspace

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
    of_checkpoint = module.evaluate_drafter("mine", checkpoint="step-00000040")
    assert of_checkpoint["evaluation"] == str(results / "step-00000040/evaluation.json")
    assert FakeCommand.ran[3] == ["evaluate", "--out", str(results / "step-00000040"), "--checkpoint", "step-00000040"]
    client = MlflowClient(f"sqlite:///{here / 'mlflow.db'}")
    experiment = client.get_experiment_by_name(mlflow_store.EXPERIMENT).experiment_id
    nested = {run.data.tags["dflash.kind"]: run for run in mlflow_store.find_runs(client, experiment, {}) if "mlflow.parentRunId" in run.data.tags}
    assert nested["evaluation"].data.metrics["evaluation.acceptance.tau"] == 1.75
    assert nested["comparison"].data.metrics["comparison.overall.difference"] == 0.25
    assert {f.path for f in client.list_artifacts(nested["evaluation"].info.run_id)} == {"evaluation.json", "evaluation_table.json"}

    monkeypatch.setitem(EVALUATION, "acceptance", {"tau": 2.0})
    monkeypatch.setattr(FakeCommand, "fails", True)  # a gate that says no is recorded all the same
    compared = results / "latest/comparison.json"
    compared.parent.mkdir()
    compared.touch()
    with pytest.raises(CommandFailed):
        module.evaluate_drafter("mine")
    assert not compared.exists()  # it was of an earlier result
    found = mlflow_store.find_runs(client, experiment, {"dflash.kind": "evaluation"})
    assert {run.data.metrics["evaluation.acceptance.tau"] for run in found} == {1.75, 2.0}


def test_what_can_t_be_compared_is_refused_before_anything_is_measured(place: Workspace, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "evaluate_on", lambda *_: pytest.fail("it was measured"))
    latest = evaluation.result_dir(place, "latest") / "evaluation.json"
    latest.parent.mkdir(parents=True)
    latest.write_text("{}")
    for against, text in (("latest", "with itself"), (str(latest), "with itself"), ("champoin", "champoin is no earlier result")):
        with pytest.raises(ConfigError, match=text):
            module.evaluate_drafter.fn("mine", ["a.jsonl"], against=against)


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
