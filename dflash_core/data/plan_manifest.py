"""Stage `bucket`: the plan's manifest, written once and verified by training."""

import dataclasses
import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from dflash_core.config import Config
from dflash_core.data.buckets import padding_stats
from dflash_core.data.dataset import MANIFEST, Dataset
from dflash_core.data.directory import replaced_directory
from dflash_core.data.identity import target_identity, text_digest, tokenizer_identity
from dflash_core.data.plan import BatchPlan
from dflash_core.errors import DataError, IdentityError

FORMAT = "dflash-plan"
FORMAT_VERSION = 1


@dataclass(frozen=True)
class PlanManifest:
    """What the plan was made from, and its statistics. `histogram` maps a bucket's length in tokens to its rows."""

    seed: int
    bucket: dict[str, int]
    dataset: str
    lengths: str
    tokenizer: str
    chat_template: str
    target: str
    num_samples: int
    steps_per_epoch: int
    tokens: int
    padded_tokens: int
    padding_waste: float
    micro_batches_per_step: float
    histogram: dict[str, int]
    format: str = FORMAT
    format_version: int = FORMAT_VERSION


def write_plan(config: Config, prepared_dir: Path, out_dir: Path) -> PlanManifest:
    """Plan the training split and write `out_dir`/manifest.json.

    Raises:
        DataError: the dataset is missing, damaged or empty.
        IdentityError: the dataset was made with another target or tokenizer than the configuration names.
    """
    dataset = Dataset.open(prepared_dir, "train")
    check_target(dataset, config.target.path)
    manifest = describe_plan(config, dataset, BatchPlan(dataset.lengths, config.bucket, config.training.seed))
    with replaced_directory(out_dir) as directory:
        text = json.dumps(dataclasses.asdict(manifest), indent=2, sort_keys=True) + "\n"
        (directory / MANIFEST).write_text(text, encoding="utf-8")
    return manifest


def open_plan(config: Config, dataset: Dataset, plan_dir: Path) -> BatchPlan:
    """The plan of the training split, if its manifest was made for this configuration, dataset and target.

    Raises:
        DataError: no manifest there.
        IdentityError: it was made from something else; the message names what and both values.
    """
    written = read_plan_manifest(plan_dir)
    check_target(dataset, config.target.path)
    plan = BatchPlan(dataset.lengths, config.bucket, config.training.seed)
    wanted = _identity(config, dataset)
    for name, value in wanted.items():
        found = getattr(written, name)
        if found != value:
            raise IdentityError(
                f"The plan in {plan_dir} was made for {name} {_short(found)}; this run wants {_short(value)}. "
                f'Re-run stage "bucket", or set {name} back.'
            )
    return plan


def read_plan_manifest(plan_dir: Path) -> PlanManifest:
    """manifest.json of a plan. Raises DataError where it is missing or of another format."""
    path = Path(plan_dir) / MANIFEST
    try:
        tree = json.loads(path.read_text(encoding="utf-8"))
        manifest = PlanManifest(**tree)
    except OSError:
        raise DataError(f"{path} is missing, expected the output of stage bucket. Run bucket first.") from None
    except (ValueError, TypeError) as error:
        raise DataError(f"{path} is no plan manifest ({repr(error)[:120]}), expected bucket's. Run stage bucket again.") from None
    if (manifest.format, manifest.format_version) != (FORMAT, FORMAT_VERSION):
        raise DataError(
            f"{path} has format {manifest.format} {manifest.format_version}, expected {FORMAT} {FORMAT_VERSION}. "
            "Run stage bucket again."
        )
    return manifest


def _identity(config: Config, dataset: Dataset) -> dict[str, object]:
    return {
        "seed": config.training.seed,
        "bucket": config.bucket.model_dump(mode="json"),
        "dataset": dataset.manifest.digest,
        "lengths": text_digest(",".join(map(str, dataset.lengths.tolist()))),
        "tokenizer": dataset.manifest.tokenizer,
        "chat_template": dataset.manifest.chat_template,
        "target": dataset.manifest.target,
    }


def describe_plan(config: Config, dataset: Dataset, plan: BatchPlan) -> PlanManifest:
    """The manifest of this plan."""
    stats = padding_stats(dataset.lengths, config.bucket.multiple)
    per_step = [len(plan.step_number(number).micro_batches) for number in range(plan.steps_per_epoch)]
    return PlanManifest(
        **_identity(config, dataset),
        num_samples=plan.num_samples,
        steps_per_epoch=plan.steps_per_epoch,
        tokens=stats.tokens,
        padded_tokens=stats.padded_tokens,
        padding_waste=round(stats.waste, 6),
        micro_batches_per_step=round(float(np.mean(per_step)), 3),
        histogram={str(length): count for length, count in stats.histogram},
    )


def check_target(dataset: Dataset, path: Path | str) -> None:
    """Raise IdentityError, with both values, unless the data were prepared for the target in `path`."""
    for name, made_for, found in (
        ("tokenizer", dataset.manifest.tokenizer, tokenizer_identity(path)),
        ("target", dataset.manifest.target, target_identity(path)),
    ):
        if made_for != found:
            raise IdentityError(
                f"The prepared data were made for {name} {_short(made_for)}; {path} is {_short(found)}. "
                'Re-run stage "prepare", or set target.path back.'
            )


def _short(value: object) -> str:
    return value[:12] if isinstance(value, str) else str(value)
