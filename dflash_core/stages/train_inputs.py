"""Opens what training reads, and builds the drafter on it: dataset, plan, target, features, objective, for this rank's role."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor

from dflash_core.checkpoint.imported import check_fits_target, fill_from_import, imported_spec, start_identity
from dflash_core.config import Config
from dflash_core.data.dataset import Dataset
from dflash_core.data.plan import BatchPlan
from dflash_core.data.plan_manifest import open_plan
from dflash_core.distributed.transport import FeatureReceiver
from dflash_core.distributed.world import LEADER, World
from dflash_core.drafter.initialise import FeatureFunction, Probe, initialise
from dflash_core.drafter.model import Drafter
from dflash_core.drafter.objectives import make_objective
from dflash_core.drafter.spec import DrafterSpec, from_target
from dflash_core.errors import IdentityError
from dflash_core.stages import layout
from dflash_core.target.ends import TargetEnds, load_ends
from dflash_core.target.feature_store import FeatureCache
from dflash_core.target.mask_token import choose_mask_token
from dflash_core.target.model import Target
from dflash_core.target.parallel import load_parallel_target
from dflash_core.target.self_check import self_check
from dflash_core.training.batches import FeatureSource
from dflash_core.training.pipeline import ReceivedFeatures, local_features
from dflash_core.training.step import Trainee

_CHECKED_TOKENS = 64  # of the longest row, since the first may have three: enough for the self-check, and a fraction of a second for it
_PROBE_ROWS = 6  # one of 384 tokens costs a tenth of a second


@dataclass(frozen=True)
class Inputs:
    """Everything a rank needs beside its own state; `identity` is what a resume compares.

    `target` is whole on ranks that make features and the two ends on others; `trainee` is None where nothing is trained.
    """

    dataset: Dataset
    plan: BatchPlan
    spec: DrafterSpec
    target: TargetEnds
    trainee: Trainee | None
    source: FeatureSource
    identity: Mapping[str, Any]


def open_inputs(config: Config, workdir: Path, world: World | None = None) -> Inputs:
    """Open and verify the inputs in `workdir`, and initialise the drafter. Every rank calls it.

    Raises:
        ConfigError, DataError, IdentityError: an input is missing, damaged, or made for another one.
    """
    world = world or World()
    config = in_workdir(config, workdir)
    dataset = Dataset.open(workdir / layout.PREPARED, "train")
    plan = open_plan(config, dataset, workdir / layout.PLAN)
    target = _load_target(config, world)
    spec = make_spec(config, target, dataset)
    identity = _identity(config, dataset, spec)
    _check_same_everywhere(identity, world)
    if isinstance(target, Target):
        longest = dataset.sample(int(dataset.lengths.argmax())).input_ids
        self_check(target, spec.target_layer_ids, torch.from_numpy(longest[:_CHECKED_TOKENS].astype("int64")))
    drafter = _initial_drafter(config, target, spec, dataset, world)
    trainee = None
    if drafter is not None:
        objective = make_objective(config.objective, spec.block_size)
        trainee = Trainee(drafter, target, objective, config.training.precision, config.drafter.attention)
    return Inputs(dataset, plan, spec, target, trainee, _feature_source(config, workdir, target, dataset, plan, spec, world), identity)


def in_workdir(config: Config, workdir: Path) -> Config:
    """The same with the paths of target and imported drafter as seen from here."""
    target = config.target.model_copy(update={"path": str(workdir / config.target.path)})
    init_from = config.drafter.init_from
    drafter = config.drafter.model_copy(update={"init_from": None if init_from is None else str(workdir / init_from)})
    return config.model_copy(update={"target": target, "drafter": drafter})


def probe_of(dataset: Dataset) -> Probe:
    """A few rows from all over the dataset, in the middle of its lengths, for the initial weights."""
    middle = np.sort(np.argsort(dataset.lengths, kind="stable")[len(dataset) // 4 : max(1, len(dataset) * 3 // 4)])
    samples = [dataset.sample(int(row)) for row in middle[np.linspace(0, len(middle) - 1, _PROBE_ROWS).astype(int)]]
    return Probe.of(
        [torch.from_numpy(s.input_ids.astype("int64")) for s in samples], [torch.from_numpy(s.loss_mask) for s in samples]
    )


def make_spec(config: Config, target: TargetEnds, dataset: Dataset) -> DrafterSpec:
    """The drafter's shape, the imported one's where there is one, with a mask row that the training data never use."""
    imported = imported_spec(config.drafter)
    mask_row = config.drafter.mask_token_id if imported is None else imported.mask_token_id
    if imported is not None:
        check_fits_target(imported, target, config.drafter.init_from)
    counts = dataset.token_counts(target.vocab_size)
    mask_token_id = choose_mask_token(target.tokenizer, target.config, target.vocab_size, counts, mask_row)
    return imported or from_target(target.config, config.drafter, mask_token_id, target.embedding_scale)


def _load_target(config: Config, world: World) -> TargetEnds:
    """The whole target where this rank makes features, else its ends."""
    if not world.is_split:
        return Target.load(config.target)
    if world.trains:
        return load_ends(config.target)
    return load_parallel_target(config.target, world.team_device_group) if len(world.team) > 1 else Target.load(config.target)


def _initial_drafter(config: Config, target: TargetEnds, spec: DrafterSpec, dataset: Dataset, world: World) -> Drafter | None:
    """The first weights: imported, or made by the writer from features of the target that serves it; copied to all drafter ranks."""
    init_from, probe = config.drafter.init_from, probe_of(dataset)
    features = _handed_features(target, spec, probe, world) if world.is_split and init_from is None else None
    if not world.trains:
        return None
    drafter = Drafter(spec).to(target.device)
    if world.is_writer:
        if init_from is None:
            initialise(drafter, target, config.drafter.init, config.training.seed, probe, features)
        else:
            fill_from_import(drafter, Path(init_from))
    if len(world.drafter_ranks) > 1:
        for parameter in drafter.parameters():
            dist.broadcast(parameter.data, LEADER, group=world.device_group)
    return drafter


def _handed_features(target: TargetEnds, spec: DrafterSpec, probe: Probe, world: World) -> FeatureFunction:
    """On the writer: the probe's features as the target rank made them, one for each row in order."""
    made = None
    if world.serves_writer:
        made = [target.features(row[None].to(target.device), spec.target_layer_ids).cpu() for row in probe.rows]
    handed = iter(world.hand_over(made, world.target_leader, LEADER) or ())
    return lambda ids_1T, _: next(handed).to(ids_1T.device)


def _feature_source(
    config: Config, workdir: Path, target: TargetEnds, dataset: Dataset, plan: BatchPlan, spec: DrafterSpec, world: World
) -> FeatureSource:
    layer_ids = spec.target_layer_ids
    if world.is_split and world.trains:
        receiver = FeatureReceiver(world, spec.features_size, target.dtype, target.device)
        return ReceivedFeatures(receiver, plan, config, world)
    if config.training.feature_source == "online":
        return local_features(target.features, layer_ids, target.device)
    manifest = dataset.manifest
    cache = FeatureCache.open(
        workdir / layout.FEATURES,
        target=manifest.target,
        layer_ids=layer_ids,
        dtype=config.target.dtype,
        dataset=manifest.digest,
        bucket_multiple=config.bucket.multiple,
    )

    def cached(rows: Sequence[int], input_ids_BT: Tensor) -> Tensor:
        return cache.get(rows, input_ids_BT.shape[1])

    return cached


def _check_same_everywhere(identity: Mapping[str, Any], world: World) -> None:
    """Raise IdentityError where another rank opened other inputs: nodes may have their own disks."""
    for rank, theirs in enumerate(world.gather(dict(identity))):
        differing = [key for key in identity if identity[key] != theirs[key]]
        if differing:
            key = differing[0]
            raise IdentityError(
                f"{world.name(rank)} has {key} {theirs[key]!r:.80}, {world.name(world.rank)} has {identity[key]!r:.80}; expected the same on "
                "all. Give every node the same workspace and target."
            )


def _identity(config: Config, dataset: Dataset, spec: DrafterSpec) -> dict[str, Any]:
    """What must be equal for a resume to continue the same run. Where and how often it saves may change, and so may the ranks."""
    manifest = dataset.manifest
    return {
        "target": manifest.target,
        "target_dtype": config.target.dtype,
        "tokenizer": manifest.tokenizer,
        "chat_template": manifest.chat_template,
        "dataset": manifest.digest,
        "bucket": config.bucket.model_dump(mode="json"),
        "drafter": spec.to_zlab_config(),
        "init": start_identity(config.drafter),
        "attention": config.drafter.attention,
        "objective": config.objective.model_dump(mode="json"),
        "training": config.training.model_dump(mode="json"),
    }
