"""AdamW over the drafter's float32 master weights, with matrices and norms in separate groups."""

import torch
from torch import nn

from dflash_core.config import TrainingConfig


def make_optimizer(drafter: nn.Module, config: TrainingConfig) -> torch.optim.AdamW:
    """Build AdamW; weight decay goes to matrices only, because norm scales start at 1 and mean 1.

    The parameters are float32 and the forward runs in autocast: with bfloat16 parameters a step of 6e-4 is
    below half a unit in the last place of 1.0 (2**-8), so every norm would stay exactly 1.0.
    """
    named = [(name, p) for name, p in drafter.named_parameters() if p.requires_grad]
    assert all(p.dtype == torch.float32 for _, p in named), [name for name, p in named if p.dtype != torch.float32]
    groups = [
        {"params": [p for _, p in named if p.ndim >= 2], "weight_decay": config.weight_decay},
        {"params": [p for _, p in named if p.ndim < 2], "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(groups, lr=config.learning_rate, betas=config.betas, eps=config.eps, fused=True)


def set_learning_rate(optimizer: torch.optim.Optimizer, value: float) -> None:
    """Use `value` for the next update of every group."""
    for group in optimizer.param_groups:
        group["lr"] = value
