"""Stage `train` as a command: trains to the end, then leaves the newest drafter and a pointer to the run in build/."""

import json
import os
from collections.abc import Callable
from pathlib import Path

from dflash_core.checkpoint.resume import Resume, RunDirectory
from dflash_core.config import Config
from dflash_core.data.dataset import Dataset
from dflash_core.evaluation.walk_set import make_walk_evaluator
from dflash_core.stages import layout
from dflash_core.stages.checkpoint_export import export_checkpoint
from dflash_core.stages.train import Evaluate, TrainOutcome, train
from dflash_core.stages.train_inputs import Inputs


def run(config: Config, resume: Resume = "auto") -> str:
    """Train, export, point; gives the line that a person sees. Arguments and errors as `train`."""
    outcome = train(config, Path(), resume=resume, make_evaluate=_walk_evaluator(config))
    committed = export_checkpoint(config, "zlab", layout.DRAFTER)
    _write_pointer(config, outcome, committed.digest)
    return f"trained to step {outcome.final_step}; drafter in {layout.DRAFTER}, log in {RunDirectory(config.run_dir).log_path}"


def _walk_evaluator(config: Config) -> Callable[[Inputs], Evaluate]:
    """The acceptance length of every checkpoint, by chain walk over held-out answers."""

    def make(inputs: Inputs) -> Evaluate:
        heldout = Dataset.open(layout.PREPARED, "heldout")
        spec = inputs.trainee.drafter.spec
        return make_walk_evaluator(config.evaluation, inputs.trainee.target, heldout, spec.target_layer_ids)

    return make


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
    temporary = layout.TRAIN_POINTER.with_suffix(".tmp")
    temporary.write_text(json.dumps(pointer, indent=1) + "\n", encoding="utf-8")
    os.replace(temporary, layout.TRAIN_POINTER)
