"""What a micro-batch, a step and the whole run hold: from build/'s manifests where they are, else from the settings alone.

Without manifests a micro-batch may be of any bucket, and every token of a row may be an anchor: for memory the worst of
them counts, for time rows of half the longest length are taken. K block slots, the anchor included.
"""

from dataclasses import dataclass

from dflash_core.config import Config
from dflash_core.data.dataset import DatasetManifest, read_manifest
from dflash_core.data.plan_manifest import PlanManifest, read_plan_manifest
from dflash_core.errors import DataError
from dflash_core.stages import layout


@dataclass(frozen=True)
class MicroShape:
    """One micro-batch: `rows` of `length` padded tokens, each with `anchors` blocks of `slots` slots."""

    rows: int
    length: int
    anchors: int
    slots: int

    @property
    def tokens(self) -> int:
        """Padded tokens."""
        return self.rows * self.length

    @property
    def block_rows(self) -> int:
        """Rows that go through the drafter's layers: every slot of every block."""
        return self.rows * self.anchors * self.slots


@dataclass(frozen=True)
class Workload:
    """The run's data in numbers; those of an optimizer step are means over all ranks together.

    `shapes` are the micro-batches that can occur. `steps` and `train_tokens` (without padding) are None before `prepare`
    and `bucket` have run.
    """

    shapes: tuple[MicroShape, ...]
    step_tokens: float
    step_anchors: float
    micro_batches: float
    mean_length: float
    steps: int | None
    train_tokens: int | None
    prepared_bytes: int | None
    walk_rows: int
    walk_length: int  # tokens of one such row, at most


def read_workload(config: Config) -> Workload:
    """The workload of the run in the working directory; manifests of other settings than the run's are not used."""
    try:
        dataset, plan = read_manifest(layout.PREPARED), read_plan_manifest(layout.PLAN)
    except DataError:
        return assumed_workload(config)
    if plan.bucket != config.bucket.model_dump(mode="json") or "train" not in dataset.splits:
        return assumed_workload(config)
    return planned_workload(config, dataset, plan)


def assumed_workload(config: Config) -> Workload:
    """Before any data: every bucket up to the longest row is possible."""
    multiple, longest = config.bucket.multiple, config.data.max_length
    lengths = [min(length, longest) for length in range(multiple, longest + multiple, multiple)]
    mean_length = longest / 2
    return Workload(
        shapes=tuple(_shape(config, length, _most_rows(config, length), 1.0) for length in lengths),
        step_tokens=config.bucket.tokens_per_step,
        step_anchors=config.bucket.tokens_per_step / mean_length * min(config.training.num_anchors, mean_length),
        micro_batches=max(2.0, config.bucket.tokens_per_step / config.bucket.tokens_per_microbatch),
        mean_length=mean_length,
        steps=None,
        train_tokens=None,
        prepared_bytes=None,
        walk_rows=config.evaluation.num_walk_prompts,
        walk_length=config.data.max_length,
    )


def planned_workload(config: Config, dataset: DatasetManifest, plan: PlanManifest) -> Workload:
    """From the manifests: only buckets that have rows; supervised tokens are spread evenly over all rows."""
    train = dataset.splits["train"]
    share = train.supervised_tokens / train.tokens
    buckets = {int(length): count for length, count in plan.histogram.items()}
    cached = config.training.feature_source == "cached"
    shapes, in_a_step = [], 0
    for length, count in sorted(buckets.items()):
        rows = -(-count // plan.steps_per_epoch)  # rows of a bucket are dealt evenly over the steps
        in_a_step = in_a_step + rows if cached else rows  # for cached features, shorter buckets are joined on
        shapes.append(_shape(config, length, min(_most_rows(config, length), in_a_step), share))
    anchors = sum(count * _anchors(config, length, share) for length, count in buckets.items())
    full = plan.steps_per_epoch * config.training.epochs
    heldout = dataset.splits.get("heldout")
    return Workload(
        shapes=tuple(shapes),
        step_tokens=plan.padded_tokens / plan.steps_per_epoch,
        step_anchors=anchors / plan.steps_per_epoch,
        micro_batches=_joined(config, plan) if cached else plan.micro_batches_per_step,
        mean_length=plan.padded_tokens / plan.num_samples,
        steps=min(full, config.training.max_steps or full),
        train_tokens=train.tokens,
        prepared_bytes=sum(split.bytes for split in dataset.splits.values()),
        walk_rows=min(config.evaluation.num_walk_prompts, heldout.rows) if heldout else 0,
        walk_length=round(heldout.tokens / heldout.rows) if heldout and heldout.rows else 0,
    )


def _joined(config: Config, plan: PlanManifest) -> float:
    """Micro-batches of a step where neighbouring buckets share one."""
    filled = plan.padded_tokens / plan.steps_per_epoch / config.bucket.tokens_per_microbatch
    return min(plan.micro_batches_per_step, max(1.0, filled))


def _shape(config: Config, length: int, rows: int, share: float) -> MicroShape:
    return MicroShape(rows, length, _anchors(config, length, share), config.drafter.block_size)


def _most_rows(config: Config, length: int) -> int:
    """A row longer than a micro-batch is one by itself."""
    return max(1, config.bucket.tokens_per_microbatch // length)


def _anchors(config: Config, length: int, share: float) -> int:
    return max(1, min(config.training.num_anchors, int(share * length)))
