"""What a checkpoint holds of a live run, put back; and whether it is the same run."""

import random
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from dflash_core.checkpoint.contents import Contents
from dflash_core.checkpoint.snapshot import check_identity, restore, take_share
from dflash_core.errors import CheckpointError, IdentityError
from dflash_core.training.optimizer import make_optimizer


def contents_of(world: object, optimizer: torch.optim.Optimizer) -> Contents:
    """The live state as one process saves it."""
    share = take_share(world.trainee.drafter, optimizer, step=1, next_sample=6, run_id="r", identity={"a": 1})
    parts = ({name: piece.rows for name, piece in part.items()} for part in (share.weights, share.moments))
    return Contents(1, *parts, share.state)


def test_snapshot_puts_back_weights_moments_and_generators(world: Callable) -> None:
    here, there = world(), world()
    optimizer = make_optimizer(here.trainee.drafter, here.config.training)
    for param in here.trainee.drafter.parameters():
        param.grad = torch.ones_like(param)
    optimizer.step()
    saved = contents_of(here, optimizer)
    expected = (torch.rand(3).tolist(), np.random.rand(3).tolist(), [random.random() for _ in range(3)])
    other = make_optimizer(there.trainee.drafter, there.config.training)
    restore(saved, there.trainee.drafter, other)
    assert (torch.rand(3).tolist(), np.random.rand(3).tolist(), [random.random() for _ in range(3)]) == expected
    again = contents_of(there, other)
    for kind in ("weights", "moments"):
        ours, theirs = getattr(saved, kind), getattr(again, kind)
        assert len(theirs) > 10 and all(torch.equal(ours[k], theirs[k]) for k in ours | theirs)
    assert again.moments["fc.weight.exp_avg"].data_ptr() != saved.moments["fc.weight.exp_avg"].data_ptr()


def test_a_checkpoint_of_another_shape_is_refused(world: Callable) -> None:
    here = world()
    optimizer = make_optimizer(here.trainee.drafter, here.config.training)
    saved = contents_of(here, optimizer)
    saved.weights["norm.weight"] = torch.ones(3)
    with pytest.raises(CheckpointError, match=r"norm.weight is \(3,\).*\(16,\)"):
        restore(saved, here.trainee.drafter, optimizer)
    del saved.weights["norm.weight"]
    with pytest.raises(CheckpointError, match=r"norm\.weight"):
        restore(saved, here.trainee.drafter, optimizer)


def test_identity_names_the_field_and_both_values() -> None:
    saved = {"target": "a1", "training": {"learning_rate": 6e-4, "betas": [0.9, 0.95]}}
    check_identity(saved, {"target": "a1", "training": {"learning_rate": 6e-4, "betas": (0.9, 0.95)}}, Path("runs/a"))
    with pytest.raises(IdentityError, match=r"runs/a .*training\.learning_rate = 0\.0006; .* now has 0\.001.*set `run` to another name, or remove runs/a"):
        check_identity(saved, {"target": "a1", "training": {"learning_rate": 1e-3, "betas": [0.9, 0.95]}}, Path("runs/a"))
    with pytest.raises(IdentityError, match=r"dataset = None; .* now has 'd'"):
        check_identity(saved, saved | {"dataset": "d"}, Path("runs/a"))


def test_a_difference_is_accepted_where_it_is_named_and_told_with_both_values() -> None:
    saved = {"target": "a1", "training": {"learning_rate": 6e-4, "seed": 1}}
    current = {"target": "a1", "training": {"learning_rate": 1e-3, "seed": 2}}
    assert check_identity(saved, current, Path("r"), ["training"]) == {"training.learning_rate": [6e-4, 1e-3], "training.seed": [1, 2]}
    with pytest.raises(IdentityError, match="training.seed = 1"):
        check_identity(saved, current, Path("r"), ["training.learning_rate"])
    assert check_identity(saved, saved, Path("r"), ["target"]) == {}
