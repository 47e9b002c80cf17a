"""Stage train on a tiny workspace: what it refuses and how, and which checkpoints it leaves."""

from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
import pytest
from kill_campaign import make_workspace

from dflash_core.checkpoint.resume import RunDirectory
from dflash_core.checkpoint.share_files import WEIGHTS
from dflash_core.checkpoint.store import CheckpointStore
from dflash_core.config import Config, load_config
from dflash_core.diagnosis.finding import Finding
from dflash_core.diagnosis.live import Watch
from dflash_core.errors import ConfigError, DataError, IdentityError, Stopped
from dflash_core.evaluation.record_file import read_record
from dflash_core.stages import evaluate, features, layout, train_inputs
from dflash_core.stages.train import train
from dflash_core.training.log_reader import read_log
from dflash_core.training.records import StepRecord


@pytest.fixture(scope="module")
def workspace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Prepared data and plan of nine steps; every test trains under a run name of its own."""
    return make_workspace(tmp_path_factory.mktemp("train") / "workspace", 9)


class Measured:
    """An evaluation that only notes that it was asked."""

    def __init__(self, on_take: Callable[[], object], on_measure: Callable[[], object] = lambda: None) -> None:
        self._on_take, self._on_measure = on_take, on_measure

    def take(self, target: object, spec: object) -> object:
        return self._on_take()

    def measure(self, taken: object, ends: object, drafter: object, step: int) -> dict[str, float]:
        self._on_measure()
        return {}


def configure(workspace: Path, run: str, **sections: Mapping[str, object]) -> Config:
    tree = load_config(workspace / "params.yaml").model_dump() | {"run": run}
    return Config.model_validate({key: value | dict(sections.get(key, {})) if key in sections else value for key, value in tree.items()})


def test_changed_settings_say_what_to_do_before_anything_long_begins(workspace: Path) -> None:
    train(configure(workspace, "changed", training={"max_steps": 2}), workspace, resume="auto")
    changed = configure(workspace, "changed", training={"max_steps": 3}, checkpoint={"evaluate": True})
    with pytest.raises(IdentityError, match=r"training.max_steps = 2; .* now has 3.*`run` to another name, or remove .*runs/changed\."):
        train(changed, workspace, resume="auto", evaluation=Measured(lambda: pytest.fail("built")))


def test_a_checkpoint_is_measured_like_a_drafter(workspace: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    short = {"num_prompts": 2, "max_new_tokens": 6, "bootstrap_samples": 50, "num_generate_prompts": 0}
    config = configure(workspace, "measured", training={"max_steps": 2}, checkpoint={"every": 1, "wait": True}, evaluation=short)
    train(config, workspace, resume="auto")
    monkeypatch.chdir(workspace)
    assert "on 2 prompts" in evaluate.run(config, out=tmp_path, checkpoint="1")
    subjects = read_record(tmp_path).subjects
    assert subjects.drafter_path == "runs/measured/checkpoints/step-00000001" and subjects.drafter_lineage["step"] == 1
    for wrong in ({"checkpoint": "1"}, {"checkpoint": "1", "drafter": tmp_path, "out": tmp_path}):
        with pytest.raises(ConfigError, match=r"^--checkpoint (1 has no --out|step-00000001 and --drafter)"):
            evaluate.run(config, **wrong)
    with pytest.raises(DataError, match=r"step-00000007 does not exist, expected .* \(step-00000001, step-00000002\)"):
        evaluate.run(config, out=tmp_path, checkpoint="7")


def test_a_resume_past_damaged_checkpoints_keeps_the_good_ones(workspace: Path) -> None:
    store = RunDirectory(workspace / "runs" / "damaged").store
    train(configure(workspace, "damaged", checkpoint={"every": 3, "keep_last": 3, "wait": True}), workspace, resume="auto")
    assert store.names() == ("step-00000003", "step-00000006", "step-00000009")
    for name in store.names()[1:]:
        (store.root / name / WEIGHTS).write_bytes(b"")
    seen = []
    config = configure(workspace, "damaged", checkpoint={"every": 1, "keep_last": 2, "evaluate": True, "wait": True})
    train(config, workspace, resume="auto", evaluation=Measured(lambda: None, lambda: seen.append(store.names())))
    # step 3 is measured before anything is saved; with the save of step 4 the damaged ones go, and 3 stays
    assert [len(names) for names in seen[:2]] == [3, 2] and seen[1] == ("step-00000003", "step-00000004")
    assert store.names() == ("step-00000008", "step-00000009") and store.load_newest().skipped == ()


def test_a_session_is_watched_and_a_resumed_one_knows_what_came_before(workspace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[tuple[int, int, dict[str, list[float]]]] = []

    def feed(watch: Watch, record: StepRecord) -> list[Finding]:
        seen.append((record.step, len(watch._rows), dict(watch._events)))
        return [Finding(kind="divergence", step=1, severity="fault", text="it climbs")] if record.step == 1 else []

    monkeypatch.setattr(Watch, "feed", feed)
    config = configure(workspace, "watched", training={"max_steps": 3}, watch={"stop_on": ("divergence",)})
    with pytest.raises(Stopped, match="the finding divergence at step 1, named in watch.stop_on, came; step 2 of 3 is saved"):
        train(config, workspace, resume="auto")
    kinds = [r.kind for r in read_log(RunDirectory(workspace / "runs" / "watched").log_path)]
    assert kinds == ["start", "step", "finding", "step", "checkpoint", "stop"]
    loads, load = [], CheckpointStore.load
    monkeypatch.setattr(CheckpointStore, "load", lambda store, name, digest: (loads.append(name), load(store, name, digest))[1])
    train(config, workspace, resume="auto")
    assert seen[2] == (3, 2, {"checkpoint": [2.0], "resume": [2.0]})
    assert loads == ["step-00000002"], "once, under the log's lock"


def test_the_self_check_reads_the_longest_row(workspace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []
    monkeypatch.setattr(train_inputs, "self_check", lambda _target, _layers, ids: seen.append(ids))
    inputs = train_inputs.open_inputs(configure(workspace, "checked"), workspace)
    longest = int(np.argmax(inputs.dataset.lengths))
    assert longest > 0 and seen[0].tolist() == inputs.dataset.sample(longest).input_ids[:64].tolist()


def test_features_must_be_there_whole_and_for_this_run(workspace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(workspace)
    cached = configure(workspace, "cached", training={"feature_source": "cached"})
    with pytest.raises(DataError, match="manifest.json is missing.*stage features"):
        train_inputs.open_inputs(cached, workspace)
    features.run(cached)
    train_inputs.open_inputs(cached, workspace)
    with pytest.raises(IdentityError, match="wants layer ids.*Re-run stage features"):
        train_inputs.open_inputs(configure(workspace, "cached", training={"feature_source": "cached"}, drafter={"num_features": 1}), workspace)
    features.run(configure(workspace, "online"))
    assert [path.name for path in layout.FEATURES.iterdir()] == ["manifest.json"], "the shards of no use are gone"
    with pytest.raises(DataError, match="expected dflash-features.*Re-run stage features"):
        train_inputs.open_inputs(cached, workspace)
