"""One way in which a run may have gone on otherwise than its checkpoint says; a replay can follow it."""

import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from dflash_core.checkpoint.contents import Contents
from dflash_core.distributed.gradients import Alone, Ranks
from dflash_core.proof.faults import Fault
from dflash_core.training.batches import CollatedStep

# Called with the number of the update after the checkpoint, from 1, and the drafter.
OnUpdate = Callable[[int, nn.Module], None]


def _as_it_is(thing: Any) -> Any:
    return thing


@dataclass(frozen=True, kw_only=True)
class Variation:
    """What is done otherwise, and which fault that would be.

    Fields:
        contents: changes what is loaded.
        collated: changes what is known of a step's data, before features and noise.
        shift, shift_for: optimizer steps by which the data are ahead of what is claimed, and for how many steps they are.
        rate: the learning rate applied, from the update's number after the checkpoint and the planned rate.
        ranks: how gradients are gathered.
        before_update, after_update: change weights around an update.
    """

    fault: Fault | None = None
    text: str = "as stored"
    contents: Callable[[Contents], Contents] = _as_it_is
    collated: Callable[[CollatedStep], CollatedStep] = _as_it_is
    shift: int = 0
    shift_for: int = sys.maxsize
    rate: Callable[[int, float], float] = lambda _, planned: planned
    ranks: Callable[[nn.Module], Ranks] = Alone
    before_update: OnUpdate | None = None
    after_update: OnUpdate | None = None

    def watch(self, optimizer: torch.optim.Optimizer, drafter: nn.Module) -> list[Any]:
        """Hook the changes of weights into the optimizer; gives handles to remove."""
        handles = []
        for action, register in (
            (self.before_update, optimizer.register_step_pre_hook),
            (self.after_update, optimizer.register_step_post_hook),
        ):
            if action is not None:
                handles.append(register(_counted(action, drafter)))
        return handles


AS_STORED = Variation()


def _counted(action: OnUpdate, drafter: nn.Module) -> Callable[..., None]:
    updates = 0

    def hook(*_: Any) -> None:
        nonlocal updates
        updates += 1
        with torch.no_grad():
            action(updates, drafter)

    return hook
