"""Opens what training reads, and builds the drafter on it: dataset, plan, target, features, objective."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from dflash_core.config import Config
from dflash_core.data.dataset import Dataset
from dflash_core.data.plan import BatchPlan
from dflash_core.data.plan_manifest import open_plan
from dflash_core.drafter.initialise import Probe, initialise
from dflash_core.drafter.model import Drafter
from dflash_core.drafter.objectives import make_objective
from dflash_core.drafter.spec import DrafterSpec, from_target
from dflash_core.stages import layout
from dflash_core.target.feature_store import FeatureCache
from dflash_core.target.mask_token import choose_mask_token
from dflash_core.target.model import Target
from dflash_core.target.self_check import self_check
from dflash_core.training.batches import FeatureSource
from dflash_core.training.step import Trainee

_CHECKED_TOKENS = 64  # of the longest row, since the first may have three: enough for the self-check, and a fraction of a second for it
_PROBE_ROWS = 6  # one of 384 tokens costs a tenth of a second


@dataclass(frozen=True)
class Inputs:
    """Everything a run needs beside its own state; `identity` is what a resume compares."""

    dataset: Dataset
    plan: BatchPlan
    trainee: Trainee
    source: FeatureSource
    identity: Mapping[str, Any]


def open_inputs(config: Config, workdir: Path) -> Inputs:
    """Open and verify the inputs in `workdir`, and initialise the drafter.

    Raises:
        ConfigError, DataError, IdentityError: an input is missing, damaged, or made for another one.
    """
    config = config.model_copy(update={"target": config.target.model_copy(update={"path": str(workdir / config.target.path)})})
    dataset = Dataset.open(workdir / layout.PREPARED, "train")
    plan = open_plan(config, dataset, workdir / layout.PLAN)
    target = Target.load(config.target)
    spec = make_spec(config, target, dataset)
    longest = dataset.sample(int(dataset.lengths.argmax())).input_ids
    self_check(target, spec.target_layer_ids, torch.from_numpy(longest[:_CHECKED_TOKENS].astype("int64")))
    drafter = Drafter(spec).to(target.device)
    initialise(drafter, target, config.drafter.init, config.training.seed, probe_of(dataset))
    trainee = Trainee(
        drafter, target, make_objective(config.objective, spec.block_size), config.training.precision, config.drafter.attention
    )
    return Inputs(
        dataset, plan, trainee, _feature_source(config, workdir, target, dataset, spec), _identity(config, dataset, spec)
    )


def probe_of(dataset: Dataset) -> Probe:
    """A few rows from all over the dataset, in the middle of its lengths, for the initial weights."""
    middle = np.sort(np.argsort(dataset.lengths, kind="stable")[len(dataset) // 4 : max(1, len(dataset) * 3 // 4)])
    samples = [dataset.sample(int(row)) for row in middle[np.linspace(0, len(middle) - 1, _PROBE_ROWS).astype(int)]]
    return Probe.of(
        [torch.from_numpy(s.input_ids.astype("int64")) for s in samples], [torch.from_numpy(s.loss_mask) for s in samples]
    )


def make_spec(config: Config, target: Target, dataset: Dataset) -> DrafterSpec:
    """The drafter's shape, with a mask row that the training data never use."""
    mask_token_id = choose_mask_token(
        target.tokenizer, target.config, target.vocab_size, dataset.token_counts(target.vocab_size), config.drafter.mask_token_id
    )
    scale = float(getattr(target.model.get_input_embeddings(), "embed_scale", 1.0))
    return from_target(target.config, config.drafter, mask_token_id, scale)


def _feature_source(config: Config, workdir: Path, target: Target, dataset: Dataset, spec: DrafterSpec) -> FeatureSource:
    layer_ids = spec.target_layer_ids
    if config.training.feature_source == "cached":
        manifest = dataset.manifest
        cache = FeatureCache.open(
            workdir / layout.FEATURES,
            target=manifest.target,
            layer_ids=layer_ids,
            dtype=config.target.dtype,
            dataset=manifest.digest,
            bucket_multiple=config.bucket.multiple,
        )
        return lambda rows, input_ids_BT: cache.get(rows, input_ids_BT.shape[1])

    def online(rows: Sequence[int], input_ids_BT: Tensor) -> Tensor:
        return target.features(input_ids_BT.to(target.device), layer_ids)

    return online


def _identity(config: Config, dataset: Dataset, spec: DrafterSpec) -> dict[str, Any]:
    """What must be equal for a resume to continue the same run. Where and how often it saves may change."""
    manifest = dataset.manifest
    return {
        "target": manifest.target,
        "target_dtype": config.target.dtype,
        "tokenizer": manifest.tokenizer,
        "chat_template": manifest.chat_template,
        "dataset": manifest.digest,
        "bucket": config.bucket.model_dump(mode="json"),
        "drafter": spec.to_zlab_config(),
        "init": config.drafter.init,
        "attention": config.drafter.attention,
        "objective": config.objective.model_dump(mode="json"),
        "training": config.training.model_dump(mode="json"),
    }
