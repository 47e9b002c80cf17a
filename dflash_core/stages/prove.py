"""Stage `prove`: proves the run's checkpoints; only a drafter whose checkpoint is proven leaves the run."""

import json
import shutil
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from dflash_core.checkpoint.links import link_or_copy
from dflash_core.checkpoint.manifest import read_status, read_verdict, replace_json
from dflash_core.config import Config
from dflash_core.errors import DataError, GateError
from dflash_core.proof.conduct import prove_and_mark
from dflash_core.proof.prove import DEFAULT_STEPS
from dflash_core.proof.recorded import RecordedRun
from dflash_core.stages import layout
from dflash_core.stages.checkpoint_export import export_checkpoint
from dflash_core.stages.proof_setting import open_setting


def run(config: Config) -> str:
    """Write build/proof.json, build/drafter and build/checkpoint; gives the lines that a person sees.

    Raises:
        GateError: the last checkpoint isn't proven, one was rejected, or a session went on from one otherwise than it says.
    """
    layout.PROOF.unlink(missing_ok=True)  # what follows may end before there is a new one, and the old one is of an older run
    recorded = RecordedRun(config.run_dir)
    last = _last_checkpoint(layout.TRAIN_POINTER)
    verdicts = proofs_of_run(recorded, max(DEFAULT_STEPS, config.checkpoint.proof_steps))
    replace_json(layout.PROOF, {"run": config.run, "run_id": recorded.start.run_id, "last": last.name, "checkpoints": verdicts})
    if bad := _unsound(verdicts, last.name):
        raise GateError(
            f"{bad['name']} is {bad['outcome']}: {bad['reason']} No drafter leaves this run; "
            "see docs/proof.md for what each class of fault asks for."
        )
    export_checkpoint(config, "zlab", layout.DRAFTER, last)
    _keep(last)
    return f"{len(verdicts)} checkpoints proven by replay; drafter of {last.name} in {layout.DRAFTER}"


def proofs_of_run(recorded: RecordedRun, num_steps: int = DEFAULT_STEPS) -> list[Mapping[str, Any]]:
    """The verdict on each checkpoint, oldest first; those that were proven or rejected before are not replayed again."""
    store, setting, verdicts = recorded.directory.store, None, []
    for name in store.names():
        stored = read_verdict(store.root / name)
        if read_status(store.root / name) != "committed" and stored:
            verdicts.append(stored)
            continue
        setting = setting or open_setting(recorded)
        verdicts.append(prove_and_mark(setting, recorded, name, num_steps).tree())
    return verdicts


def _keep(checkpoint: Path) -> None:
    """Put it where DVC versions it: the run's own directory loses its older checkpoints, and DVC deletes outputs before a stage."""
    shutil.rmtree(layout.CHECKPOINT, ignore_errors=True)
    shutil.copytree(checkpoint, layout.CHECKPOINT / checkpoint.name, copy_function=link_or_copy)


def _unsound(verdicts: Iterable[Mapping[str, Any]], last: str) -> Mapping[str, Any] | None:
    """The first verdict that stops the chain; an earlier checkpoint that lacks later steps does not."""
    for verdict in verdicts:
        if not verdict["sound"] and (verdict["outcome"] != "unproven" or verdict["name"] == last):
            return verdict
    return None


def _last_checkpoint(pointer: Path) -> Path:
    try:
        return Path(json.loads(pointer.read_text(encoding="utf-8"))["checkpoint"])
    except (OSError, ValueError, KeyError) as error:
        raise DataError(f"{pointer} can't be read ({error}), expected the output of stage train. Run train first.") from None
