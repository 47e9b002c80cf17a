"""What a run writes below its working directory, item by item, at the moment when it takes most."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

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

Moment = Literal["training", "afterwards"]
MOMENTS: tuple[Moment, ...] = ("training", "afterwards")


@dataclass(frozen=True)
class DiskItem:
    """So many bytes at a path, why, and when they are there."""

    name: str
    path: str
    bytes: float
    formula: str
    moments: tuple[Moment, ...] = MOMENTS


def disk_peak(items: Iterable[DiskItem]) -> tuple[Moment, float]:
    """The moment at which most is there, and how many bytes that is."""
    items = tuple(items)
    totals = {moment: sum(item.bytes for item in items if moment in item.moments) for moment in MOMENTS}
    moment = max(totals, key=lambda m: totals[m])
    return moment, totals[moment]


def disk_items(sizing: Sizing) -> tuple[DiskItem, ...]:
    """Every item of a first run: while a checkpoint is written, the one that it will push out is still there."""
    config, spec, drafter, workload = sizing.config, sizing.spec, sizing.drafter, sizing.workload
    exported = FLOAT32 * drafter.total
    return (
        *_checkpoints(config, drafter, workload),
        _features(config, spec, workload),
        _prepared(workload),
        _log(config, spec, workload),
        DiskItem("exported drafter", str(layout.DRAFTER), exported, f"{drafter.total / 1e6:,.1f} M x {FLOAT32} B", ("afterwards",)),
        DiskItem("evaluation", str(layout.EVALUATION), EVALUATION_BYTES, "measured", ("afterwards",)),
        DiskItem("report", str(layout.REPORT), REPORT_BYTES, "measured", ("afterwards",)),
        # DVC keeps outputs once more: the drafter is the only large one, since features are declared cache: false.
        DiskItem("DVC's copies", DVC_CACHE, exported + (workload.prepared_bytes or 0), "drafter and data, of flow and dvc repro only", ("afterwards",)),
    )


def num_kept(config: Config, steps: int | None) -> int:
    """Checkpoints that retention keeps; those of keep_every only where the steps are known."""
    settings = config.checkpoint
    if steps is None:
        return settings.keep_last
    for_good = steps // settings.keep_every if settings.keep_every else 0
    return min(-(-steps // settings.every), settings.keep_last + for_good)


def _checkpoints(config: Config, drafter: DrafterSizes, workload: Workload) -> tuple[DiskItem, DiskItem]:
    kept, path = num_kept(config, workload.steps), str(config.run_dir / "checkpoints")
    size = float(BYTES_PER_SAVED_PARAMETER * drafter.total)
    saved = None if workload.steps is None else -(-workload.steps // config.checkpoint.every)
    one_more = 0.0 if saved == kept else size
    left_out = ", and those of keep_every" if config.checkpoint.keep_every and workload.steps is None else ""
    formula = f"{kept} x {drafter.total / 1e6:,.1f} M x {BYTES_PER_SAVED_PARAMETER} B{left_out}"
    return (
        DiskItem("checkpoints", path, kept * size, formula),
        DiskItem("the checkpoint being written", path, one_more, "before the oldest is deleted", ("training",)),
    )


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
