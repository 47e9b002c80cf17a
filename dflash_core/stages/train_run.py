"""Stage `train` as a command: trains to the end, then leaves a pointer to the run in build/."""

from collections.abc import Collection, Mapping
from pathlib import Path

from dflash_core.checkpoint.manifest import read_manifest, replace_json
from dflash_core.checkpoint.resume import Resume, RunDirectory
from dflash_core.config import Config
from dflash_core.data.dataset import Dataset
from dflash_core.drafter.model import Drafter
from dflash_core.drafter.spec import DrafterSpec
from dflash_core.evaluation.chain_walk import WalkRow
from dflash_core.evaluation.walk_set import heldout_walk_rows, make_walk_evaluator
from dflash_core.stages import layout
from dflash_core.stages.train import TrainOutcome, train
from dflash_core.target.ends import TargetEnds
from dflash_core.target.model import Target


def run(config: Config, resume: Resume = "auto", forced: Collection[str] = ()) -> str:
    """Train, point; gives the line that a person sees, from the rank that writes. Arguments and errors as `train`."""
    outcome = train(config, Path(), resume=resume, evaluation=HeldoutWalk(config), forced=forced)
    if outcome is None:
        return ""
    _write_pointer(config, outcome, read_manifest(outcome.checkpoint)["digest"])
    return f"trained to step {outcome.final_step}; last checkpoint {outcome.checkpoint}, log in {RunDirectory(config.run_dir).log_path}"


class HeldoutWalk:
    """The acceptance length of every checkpoint, by chain walk over held-out answers."""

    def __init__(self, config: Config) -> None:
        self._config = config.evaluation

    def take(self, target: Target, spec: DrafterSpec) -> tuple[WalkRow, ...]:
        """The rows, with the target's features."""
        return heldout_walk_rows(self._config, target, Dataset.open(layout.PREPARED, "heldout"), spec.target_layer_ids)

    def measure(self, taken: tuple[WalkRow, ...], ends: TargetEnds, drafter: Drafter, step: int) -> Mapping[str, float | None]:
        """Walk them."""
        return make_walk_evaluator(self._config, ends, taken)(drafter, step)


def _write_pointer(config: Config, outcome: TrainOutcome, digest: str) -> None:
    """build/train.json: what later stages and DVC know of a run, whose directory is no output of DVC."""
    pointer = {
        "run": config.run,
        "run_id": outcome.run_id,
        "final_step": outcome.final_step,
        "checkpoint": str(outcome.checkpoint),
        "checkpoint_digest": digest,
        "log": str(RunDirectory(config.run_dir).log_path),
    }
    replace_json(layout.TRAIN_POINTER, pointer)
