"""Stage `diagnose`: a log's diagnosis as text, and on request as JSON and as an HTML report."""

import json
from pathlib import Path
from typing import Any

from dflash_core.diagnosis.diagnose import Diagnosis, diagnose_file
from dflash_core.diagnosis.outcome import as_text, as_tree, exit_code
from dflash_core.diagnosis.page import render
from dflash_core.errors import DataError

MOST_VERIFIED = 3
# What a replay can show: a fault of the numbers, not of the machine's speed.
REPLAYABLE = frozenset(
    (
        *("loss_spike", "level_shift", "drop_then_return", "slow_climb", "divergence", "grad_spike", "accuracy_drop"),
        *("instability_episode", "single_outlier", "lr_break"),
    )
)


def run(
    log: Path, events: list[str], json_file: Path | None, html_file: Path | None, pattern: str | None, verify: bool = False
) -> tuple[str, int]:
    """Diagnose `log`; give the text for the terminal and the exit code. `verify` replays a run's directory through
    what was seen in it.

    Raises:
        DataError: the log or an event can't be read, or an output can't be written.
    """
    diagnosis = diagnose_file(log, events, pattern)
    verified = verify_events(log, diagnosis) if verify else []
    if json_file is not None:
        tree = as_tree(diagnosis) | ({"verified": verified} if verify else {})
        _write(json_file, json.dumps(tree, indent=1, ensure_ascii=False) + "\n")
    if html_file is not None:
        _write(html_file, render(diagnosis))
    lines = [as_text(diagnosis), *[f"Replayed: {v['answer'].replace('_', ' ')} at step {v['step']}: {v['reason']}" for v in verified]]
    return "\n".join(lines), exit_code(diagnosis)


def verify_events(log: Path, diagnosis: Diagnosis) -> list[dict[str, Any]]:
    """A replay through each of the gravest findings, those of one step once. `log` is a run's directory or the log in it.

    Raises:
        DataError: `log` is neither.
        GateError: the run's inputs are gone.
    """
    # Everything else of this command works without torch.
    from dflash_core.checkpoint.resume import RunDirectory
    from dflash_core.proof.recorded import RecordedRun
    from dflash_core.proof.verify_event import verify_event
    from dflash_core.stages.proof_setting import open_setting

    run_dir = log.parent if log == RunDirectory(log.parent).log_path else log
    if not run_dir.is_dir():
        raise DataError(f"{log} is no directory, expected that of a run (runs/NAME) or its train_log.jsonl: only such a run can be replayed.")
    grave = {"fault": 0, "warning": 1, "note": 2}
    events = sorted((f for f in diagnosis.findings if f.kind in REPLAYABLE), key=lambda f: (grave[f.severity], -f.size))
    steps = list(dict.fromkeys(int(f.step) for f in events))[:MOST_VERIFIED]
    if not steps:
        return []
    run = RecordedRun(run_dir)
    setting = open_setting(run)
    return [verify_event(setting, run, step).tree() for step in sorted(steps)]


def _write(path: Path, text: str) -> None:
    try:
        path.write_text(text, encoding="utf-8", errors="replace")
    except OSError as error:
        raise DataError(f"{path} can't be written: {error.strerror}. Choose another place.") from None
