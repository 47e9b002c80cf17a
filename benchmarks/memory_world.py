"""A world small enough to train in milliseconds: a table for a target, rows in memory, the real drafter and plan."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from dflash_core.config import Config, parse_config
from dflash_core.data.dataset import Sample
from dflash_core.data.plan import BatchPlan
from dflash_core.drafter.model import Drafter
from dflash_core.drafter.objectives import make_objective
from dflash_core.drafter.spec import DrafterSpec
from dflash_core.training.hooks import News, Position
from dflash_core.training.step import Trainee

HIDDEN, VOCAB, LAYERS = 16, 48, (1, 3)


class TableTarget:
    """Features and embeddings from fixed random tables; a row's features depend on its token and the one before."""

    logit_softcap = None

    def __init__(self) -> None:
        generator = torch.Generator().manual_seed(7)
        self.embedding_VD = torch.randn(VOCAB, HIDDEN, generator=generator) * 0.5
        self.head_weight_VD = torch.randn(VOCAB, HIDDEN, generator=generator) * 0.3
        self.table_VF = torch.randn(VOCAB, HIDDEN * len(LAYERS), generator=generator)

    def embed(self, ids: Tensor) -> Tensor:
        return self.embedding_VD[ids]

    def features(self, input_ids_BT: Tensor, layer_ids: Sequence[int]) -> Tensor:
        before_BT = torch.nn.functional.pad(input_ids_BT, (1, 0))[:, :-1]
        return self.table_VF[input_ids_BT] + 0.5 * self.table_VF[before_BT]


class MemoryDataset:
    """Rows of 6 to 30 tokens whose second half is supervised."""

    def __init__(self, count: int) -> None:
        random = np.random.default_rng(3)
        self.samples = [self._sample(random, row) for row in range(count)]
        self.lengths = np.array([len(s.input_ids) for s in self.samples], dtype=np.int32)

    @staticmethod
    def _sample(random: np.random.Generator, row: int) -> Sample:
        ids = random.integers(0, VOCAB - 1, size=int(random.integers(6, 31))).astype(np.int32)
        return Sample(f"s{row}", "list", ids, np.arange(len(ids)) >= len(ids) // 2)

    def __len__(self) -> int:
        return len(self.samples)

    def sample(self, row: int) -> Sample:
        return self.samples[row]

    def sample_id(self, row: int) -> str:
        return self.samples[row].sample_id


class NotedSaves:
    """Saves that note their steps and write nothing."""

    def __init__(self, steps: list[int] | None = None) -> None:
        self.steps = [] if steps is None else steps

    def news(self) -> tuple[float, float]:
        return 0.0, 0.0

    def boundary(self, position: Position, due: bool, news: News) -> float:
        if due:
            self.steps.append(position.step)
        return 0.0

    def finish(self, position: Position) -> None:
        if position.step not in self.steps:
            self.steps.append(position.step)

    def measured(self, step: int, metrics: Mapping[str, float | None]) -> None:
        pass

    def rescue(self) -> None:
        pass

    def close(self) -> None:
        pass


@dataclass(frozen=True)
class MemoryWorld:
    """Everything `batches` and `train_step` take."""

    config: Config
    dataset: MemoryDataset
    plan: BatchPlan
    trainee: Trainee

    def source(self, rows: Sequence[int], input_ids_BT: Tensor) -> Tensor:
        return self.trainee.target.features(input_ids_BT, LAYERS)


def make_world(
    rows: int = 24,
    *,
    training: dict[str, Any] | None = None,
    distributed: dict[str, Any] | None = None,
    checkpoint: dict[str, Any] | None = None,
    objective: str = "decayed_ce",
    **bucket: int,
) -> MemoryWorld:
    """The same world for the same arguments."""
    tree = {
        "target": {"path": "target"},
        "data": {"conversations": ["c.jsonl"]},
        "bucket": {"multiple": 8, "tokens_per_step": 128, "tokens_per_microbatch": 64} | bucket,
        "drafter": {"num_layers": 2, "block_size": 4},
        "objective": {"kind": objective} | ({"gamma": 4.0} if objective == "decayed_ce" else {}),
        "training": {"epochs": 2, "num_anchors": 6, "learning_rate": 5e-3, "warmup_ratio": 0.1, "precision": "float32"}
        | (training or {}),
        "distributed": distributed or {},
        # Which steps have a checkpoint depends on the disk's speed, unless saves are waited for.
        "checkpoint": {"every": 3, "keep_last": 2, "wait": True, "proof_steps": 0} | (checkpoint or {}),
    }
    config = parse_config(tree, "test")
    dataset = MemoryDataset(rows)
    spec = DrafterSpec(
        hidden_size=HIDDEN, intermediate_size=32, num_heads=2, num_kv_heads=1, head_dim=8, num_layers=2, block_size=4,
        mask_token_id=VOCAB - 1, target_layer_ids=LAYERS, num_target_layers=6, vocab_size=VOCAB,
    )  # fmt: skip
    torch.manual_seed(0)
    trainee = Trainee(Drafter(spec), TableTarget(), make_objective(config.objective, 4), config.training.precision, "fast")
    return MemoryWorld(config, dataset, BatchPlan(dataset.lengths, config.bucket, config.training.seed), trainee)


def without_supervision(world: MemoryWorld, rows: Sequence[int]) -> MemoryWorld:
    """The same world with no label in `rows`."""
    dataset = MemoryDataset(len(world.dataset))
    for row in rows:
        dataset.samples[row] = replace(dataset.samples[row], loss_mask=np.zeros_like(dataset.samples[row].loss_mask))
    return replace(world, dataset=dataset)
