"""Decides whether a run begins or continues, from what its directory holds."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from dflash_core.checkpoint.store import CheckpointStore, Loaded
from dflash_core.errors import ConfigError
from dflash_core.training.log_reader import read_log
from dflash_core.training.records import CheckpointRecord, EvalRecord, Record, StartRecord, StopRecord

Resume = bool | Literal["auto"]

# As many records of the log are kept as what watches the run remembers, and some between them.
RECENT = 1200


@dataclass(frozen=True)
class RunDirectory:
    """runs/NAME: one log and its checkpoints."""

    path: Path

    @property
    def log_path(self) -> Path:
        """The run's log."""
        return self.path / "train_log.jsonl"

    @property
    def store(self) -> CheckpointStore:
        """The run's checkpoints."""
        return CheckpointStore(self.path / "checkpoints")


@dataclass(frozen=True)
class PriorRun:
    """What earlier sessions left; `loaded` is None where they were killed before their first checkpoint."""

    run_id: str
    identity: Mapping[str, Any]
    loaded: Loaded | None
    finished: bool
    evaluated_steps: frozenset[int]
    recent: tuple[Record, ...] = ()  # the last ones that count, none past the loaded checkpoint
    taus: Mapping[int, float] = field(default_factory=dict)  # acceptance length by step


def holds_run(directory: RunDirectory, resume: Resume) -> bool:
    """Whether there is a run to continue, without reading a checkpoint, of which there may be gigabytes.

    Raises:
        ConfigError: there is a run and `resume` is False, or none and it is True.
    """
    names = directory.store.names()
    if not names and not _logged(directory):
        if resume is True:
            raise ConfigError(f"{directory.path} holds no run to resume. Start it with `train`.")
        return False
    if resume is False:
        raise ConfigError(
            f"{directory.path} already holds a run with {len(names)} checkpoints. Resume it, give this one another name (run: NAME), "
            "or remove the directory."
        )
    return True


def find_prior_run(directory: RunDirectory, resume: Resume) -> PriorRun | None:
    """The run to continue, or None to begin one. Call it while holding the log's lock.

    Raises:
        ConfigError: as `holds_run`.
        CheckpointError: there are checkpoints and not one is good.
    """
    if not holds_run(directory, resume):
        return None
    logged = _logged(directory)
    loaded = directory.store.load_newest(logged_digests(logged))
    evaluated = frozenset(r.step for r in logged if isinstance(r, EvalRecord))
    if loaded is not None:
        state = loaded.contents.state
        recent = tuple(r for r in logged if r.step <= loaded.committed.step)[-RECENT:]
        return PriorRun(state["run_id"], state["identity"], loaded, _finished(logged, loaded), evaluated, recent, logged_taus(logged))
    identity = next((r.identity for r in logged if isinstance(r, StartRecord)), {})
    return PriorRun(logged[0].run_id, identity, None, False, evaluated)


def _logged(directory: RunDirectory) -> tuple[Record, ...]:
    return read_log(directory.log_path) if directory.log_path.exists() else ()


def logged_digests(logged: tuple[Record, ...]) -> dict[str, str]:
    """Digest of each checkpoint as the log has it; one that was committed right before a kill isn't in the log."""
    return {r.name: r.digest for r in logged if isinstance(r, CheckpointRecord)}


def logged_taus(logged: tuple[Record, ...]) -> dict[int, float]:
    """The best so far is kept, also by a session that didn't measure it."""
    return {r.step: r.metrics["tau"] for r in logged if isinstance(r, EvalRecord) and r.metrics.get("tau") is not None}


def _finished(logged: tuple[Record, ...], loaded: Loaded) -> bool:
    last = logged[-1] if logged else None
    return isinstance(last, StopRecord) and last.reason == "finished" and loaded.committed.step == last.step
