"""Which ranks a run has, what each of them runs, and its share of a step."""

from dataclasses import dataclass
from typing import Literal

from dflash_core.config import Config
from dflash_core.distributed.world import split_ranks
from dflash_core.plan_estimate.products import Products


@dataclass(frozen=True)
class Role:
    """`count` ranks that do the same. A step's tokens are shared by the ranks that run the same model."""

    name: Literal["rank", "target rank", "drafter rank"]
    count: int
    runs_target: bool
    runs_drafter: bool
    target_shards: int = 1  # ranks that hold one target together
    drafter_shards: int = 1  # ranks that hold one drafter's state together

    @property
    def share(self) -> float:
        """Of a step's tokens, what this rank works on: ranks that hold one target together work on the same."""
        return self.target_shards / self.count if not self.runs_drafter else 1 / self.count


def plan_roles(config: Config, num_ranks: int, products: Products) -> tuple[Role, ...]:
    """One role where all ranks are alike, else drafter ranks and target ranks.

    Raises:
        ConfigError: the configuration's target ranks leave none of `num_ranks` for the drafter.
    """
    settings = config.distributed
    sharded = settings.parallel == "fsdp2"
    drafter_ranks, teams = split_ranks(settings, num_ranks, _balanced(num_ranks, settings.tensor_parallel, products))
    drafters = len(drafter_ranks)
    shards = drafters if sharded else 1
    if not teams:
        return (Role("rank", drafters, True, True, drafter_shards=shards),)
    return (
        Role("drafter rank", drafters, False, True, drafter_shards=shards),
        Role("target rank", len(teams) * settings.tensor_parallel, True, False, target_shards=settings.tensor_parallel),
    )


def fewest_ranks(config: Config) -> int:
    """Ranks that the placement needs at least."""
    settings = config.distributed
    return 1 if settings.placement == "colocated" else (settings.target_ranks or settings.tensor_parallel) + 1


def _balanced(num_ranks: int, tensor_parallel: int, products: Products) -> int:
    """Target ranks in proportion to the target's share of the multiply-adds; the run itself measures instead."""
    share = products.target / (products.target + products.drafter)
    groups = round(share * num_ranks / tensor_parallel)
    most = max(1, (num_ranks - 1) // tensor_parallel)
    return min(max(1, groups), most) * tensor_parallel
