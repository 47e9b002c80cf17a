"""What a run writes below its working directory, item by item, at the moment when it takes most."""

from dataclasses import dataclass

from dflash_core.config import Config
from dflash_core.drafter.spec import DrafterSpec
from dflash_core.plan_estimate.sizes import BFLOAT16, FLOAT32, DrafterSizes
from dflash_core.plan_estimate.sizing import Sizing
from dflash_core.plan_estimate.workload import Workload
from dflash_core.stages import layout

# Weights and two moments in float32.
BYTES_PER_SAVED_PARAMETER = 3 * FLOAT32
# Of a log record, as measured: its fixed fields, and accuracy and count of one slot.
LOG_BYTES, LOG_BYTES_PER_SLOT = 700, 30
# report.html and report.json of a run of 700 steps with 32 prompts, evaluation.json (measured).
REPORT_BYTES, EVALUATION_BYTES = 0.5e6, 0.1e6
DVC_CACHE = ".dvc/cache"


@dataclass(frozen=True)
class DiskItem:
    """So many bytes at a path, and why."""

    name: str
    path: str
    bytes: float
    formula: str


def disk_items(sizing: Sizing) -> tuple[DiskItem, ...]:
    """Every item, at most: while a checkpoint is written, the one that it will push out is still there."""
    config, spec, drafter, workload = sizing.config, sizing.spec, sizing.drafter, sizing.workload
    exported = FLOAT32 * drafter.total
    return (
        _checkpoints(config, drafter, workload),
        _features(config, spec, workload),
        _prepared(workload),
        DiskItem("exported drafter", str(layout.DRAFTER), exported, f"{drafter.total / 1e6:,.1f} M x {FLOAT32} B"),
        _log(config, spec, workload),
        DiskItem("evaluation", str(layout.EVALUATION), EVALUATION_BYTES, "measured"),
        DiskItem("report", str(layout.REPORT), REPORT_BYTES, "measured"),
        # DVC keeps outputs once more: the drafter is the only large one, since features are declared cache: false.
        DiskItem("exported drafter, DVC's copy", DVC_CACHE, exported + (workload.prepared_bytes or 0), "of flow and dvc repro only"),
    )


def num_checkpoints(config: Config, steps: int | None) -> int:
    """Checkpoints on disk at most: those that retention keeps, and one that is being written."""
    settings = config.checkpoint
    if steps is None:
        return settings.keep_last + 1
    saved = -(-steps // settings.every)
    kept_for_good = steps // settings.keep_every if settings.keep_every else 0
    return min(saved, settings.keep_last + 1 + kept_for_good)


def _checkpoints(config: Config, drafter: DrafterSizes, workload: Workload) -> DiskItem:
    count, size = num_checkpoints(config, workload.steps), BYTES_PER_SAVED_PARAMETER * drafter.total
    every = "" if config.checkpoint.keep_every is None or workload.steps else ", and those of keep_every"
    formula = f"{count} x {drafter.total / 1e6:,.1f} M x {BYTES_PER_SAVED_PARAMETER} B{every}"
    return DiskItem("checkpoints", str(config.run_dir / "checkpoints"), float(count * size), formula)


def _features(config: Config, spec: DrafterSpec, workload: Workload) -> DiskItem:
    if config.training.feature_source == "online":
        size, formula = 0.0, "none: the target runs in the loop"
    elif workload.train_tokens is None:
        size, formula = 0.0, f"{spec.features_size * BFLOAT16:,} B a token; not known before prepare"
    else:
        size = float(workload.train_tokens * spec.features_size * BFLOAT16)
        formula = f"{workload.train_tokens:,} tokens x {spec.features_size:,} x {BFLOAT16} B"
    return DiskItem("features", str(layout.FEATURES), size, formula)


def _prepared(workload: Workload) -> DiskItem:
    known = workload.prepared_bytes is not None
    formula = "as its manifest says" if known else "not known before prepare"
    return DiskItem("prepared data", str(layout.PREPARED), float(workload.prepared_bytes or 0), formula)


def _log(config: Config, spec: DrafterSpec, workload: Workload) -> DiskItem:
    size = LOG_BYTES + LOG_BYTES_PER_SLOT * (spec.block_size - 1)
    formula = f"{size:,} B a step" + ("" if workload.steps else "; steps not known before bucket")
    return DiskItem("log", str(config.run_dir / "train_log.jsonl"), float(size * (workload.steps or 0)), formula)
