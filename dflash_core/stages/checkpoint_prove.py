"""Command `checkpoint prove`: proves checkpoints of any run directory by hand, also while the run goes on."""

from pathlib import Path

from dflash_core.checkpoint.manifest import full_name
from dflash_core.errors import CheckpointError, GateError
from dflash_core.proof.conduct import prove_and_mark
from dflash_core.proof.recorded import RecordedRun
from dflash_core.stages.proof_setting import open_setting

PROVEN_EXIT, REJECTED_EXIT = 0, GateError.exit_code


def run(run_dir: Path, name: str | None, num_steps: int, every: bool) -> tuple[str, int]:
    """Prove one checkpoint, the newest that can be where none is named, or all; gives the text and the exit code.

    Raises:
        CheckpointError: there is no such checkpoint.
        GateError: the run's inputs are gone.
    """
    recorded = RecordedRun(run_dir)
    names = recorded.directory.store.names()
    name = None if name is None else full_name(name)
    if not names or (name is not None and name not in names):
        raise CheckpointError(f"{run_dir} holds {', '.join(names[-5:]) or 'no checkpoint'}, expected {name or 'one'}. Name one of its checkpoints.")
    setting = open_setting(recorded)
    chosen = names if every else (name or _newest_provable(recorded, names, num_steps),)
    verdicts = [prove_and_mark(setting, recorded, chosen_name, num_steps) for chosen_name in chosen]
    code = PROVEN_EXIT if all(verdict.sound for verdict in verdicts) else REJECTED_EXIT
    return "\n".join(verdict.text() for verdict in verdicts), code


def _newest_provable(recorded: RecordedRun, names: tuple[str, ...], num_steps: int) -> str:
    """The newest with enough later steps, which in a run that goes on is seldom the last; the last where none has."""
    last_step = recorded.counted[-1].step if recorded.counted else 0
    return next((name for name in reversed(names) if last_step - int(name.removeprefix("step-")) >= num_steps), names[-1])
