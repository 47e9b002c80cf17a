"""One optimizer step: denominators, guards, masters, counts."""

import itertools
import math
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
import torch
from forked_ranks import on_ranks
from torch import Tensor
from torch.nn import functional

from dflash_core.errors import NonFiniteError
from dflash_core.training.batches import MicroBatch, StepBatch, add_noise, batches
from dflash_core.training.optimizer import make_optimizer
from dflash_core.training.step import Tally, Trainee, _count, accumulate_gradients, block_embeds, slot_losses, train_step

SLOTS = 3


def first_batch(world: object) -> StepBatch:
    return next(batches(world.plan, world.dataset, world.source, world.config, next_sample=0))


def gradients(
    trainee: Trainee, micro_batches: tuple[MicroBatch, ...], denominator: float | None = None
) -> tuple[Tally, dict[str, Tensor]]:
    if denominator is None:
        denominator = sum(trainee.objective.denominator(m.mask_BAS) for m in micro_batches)
    trainee.drafter.zero_grad()
    tally = accumulate_gradients(trainee, micro_batches, denominator)
    return tally, {n: torch.zeros_like(p) if p.grad is None else p.grad.clone() for n, p in trainee.drafter.named_parameters()}


def rows_of(micro: MicroBatch, rows: slice) -> MicroBatch:
    batch = replace(
        micro.batch,
        sample_ids=micro.batch.sample_ids[rows],
        **{f: getattr(micro.batch, f)[rows] for f in ("input_ids_BT", "loss_mask_BT", "lengths_B", "anchors_BA", "keep_BA")},
    )
    return MicroBatch(batch, micro.features_BTF[rows], micro.labels_BAS[rows], micro.mask_BAS[rows])


def assert_close(found: dict[str, Tensor], expected: dict[str, Tensor], tolerance: float = 1e-6) -> None:
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        torch.testing.assert_close(found[name], value, rtol=1e-4, atol=tolerance, msg=name)


def test_loss_is_the_weighted_mean_written_out(world: Callable) -> None:
    """sum(w CE) / sum(w) over the whole step, from logits and labels gathered by hand (dflash_spec 2.1)."""
    here = world()
    batch, trainee = first_batch(here), here.trainee
    weighted, weights = 0.0, 0.0
    with torch.no_grad():
        for micro in batch.micro_batches:
            ids = micro.batch.input_ids_BT
            hidden = trainee.drafter(
                micro.features_BTF, block_embeds(trainee, ids, micro.batch.anchors_BA), micro.batch.anchors_BA, "reference"
            )
            for row in range(len(ids)):
                for block, anchor in enumerate(micro.batch.anchors_BA[row].tolist()):
                    for k in range(1, SLOTS + 1):
                        inside = anchor + k < int(micro.batch.lengths_B[row])
                        if micro.batch.keep_BA[row, block] and inside and micro.batch.loss_mask_BT[row, anchor + k]:
                            logits = hidden[row, block, k] @ trainee.target.head_weight_VD.T
                            w = math.exp(-(k - 1) / 4.0)
                            weighted += w * float(functional.cross_entropy(logits, ids[row, anchor + k]))
                            weights += w
    result = train_step(trainee, make_optimizer(trainee.drafter, here.config.training), batch, 1e-3, here.config.training)
    assert result.denominator == pytest.approx(weights) and result.loss == pytest.approx(weighted / weights, rel=1e-5)
    assert len(batch.micro_batches) > 1, "or the test says nothing about accumulation"


def test_spec7_06_fp32_masters(world: Callable) -> None:
    """50 steps at a final learning rate of 1e-5 under bfloat16 autocast move every norm away from 1; bfloat16 weights would not."""
    here = world(
        rows=4,
        tokens_per_step=64,
        training={"precision": "bfloat16", "epochs": 40, "schedule": "constant", "learning_rate": 1e-5, "warmup_ratio": 0.0},
    )
    trainee, config = here.trainee, here.config.training
    optimizer = make_optimizer(trainee.drafter, config)
    for batch in batches(here.plan, here.dataset, here.source, here.config, next_sample=0):
        train_step(trainee, optimizer, batch, config.learning_rate, config)
        if batch.outline.step == 50:
            break
    norms = {name: p for name, p in trainee.drafter.named_parameters() if p.ndim == 1}
    assert len(norms) == 2 * 4 + 2
    for name, scale in norms.items():
        assert scale.dtype == torch.float32 and bool((scale != 1.0).all()), name
        moved = (scale - 1.0).abs().max()
        assert 0 < moved < 2**-9, f"{name} moved {moved}: below half a unit of bfloat16 at 1.0, so only a float32 master keeps it"
        assert bool((scale.bfloat16() == 1.0).all())


def test_weight_decay_spares_norms(world: Callable) -> None:
    here = world(training={"weight_decay": 0.1})
    matrices, vectors = make_optimizer(here.trainee.drafter, here.config.training).param_groups
    assert matrices["weight_decay"] == 0.1 and vectors["weight_decay"] == 0.0
    assert all(p.ndim == 2 for p in matrices["params"]) and all(p.ndim == 1 for p in vectors["params"])
    assert sum(len(g["params"]) for g in (matrices, vectors)) == len(list(here.trainee.drafter.parameters()))


@pytest.mark.parametrize("objective", ["decayed_ce", "dpace"])
def test_spec7_08_denominator_invariance_accumulation(world: Callable, objective: str) -> None:
    """Uneven micro-batches give the gradients of the same rows one at a time; denominators per micro-batch would not."""
    here = world(objective=objective)
    batch = first_batch(here)
    _, whole = gradients(here.trainee, batch.micro_batches)
    split = tuple(rows_of(m, slice(r, r + 1)) for m in batch.micro_batches for r in range(len(m.batch.sample_ids)))
    assert len(split) > len(batch.micro_batches) > 1
    labels = [int(m.mask_BAS.sum()) for m in split]
    assert max(labels) > min(labels)
    _, apart = gradients(here.trainee, split)
    assert_close(apart, whole)


def _rank_gradients(make_world: Callable) -> dict[str, np.ndarray]:
    """What each rank does: its share of rows, the denominator summed over ranks before the forward, gradients summed after."""
    torch.distributed.init_process_group("gloo")
    here = make_world()
    mine = first_batch(here).micro_batches[torch.distributed.get_rank() :: torch.distributed.get_world_size()]
    denominator = torch.tensor(sum(here.trainee.objective.denominator(m.mask_BAS) for m in mine), dtype=torch.float64)
    torch.distributed.all_reduce(denominator)
    _, found = gradients(here.trainee, mine, float(denominator))
    for gradient in found.values():
        torch.distributed.all_reduce(gradient)
    torch.distributed.barrier()
    torch.distributed.destroy_process_group()
    return {name: gradient.numpy() for name, gradient in found.items()}


def test_spec7_08_denominator_invariance(world: Callable) -> None:
    """Two gloo ranks with uneven anchors end with the gradients of one process."""
    here = world()
    micro_batches = first_batch(here).micro_batches
    assert len({int(m.mask_BAS.sum()) for m in micro_batches}) > 1
    _, alone = gradients(here.trainee, micro_batches)
    for found in on_ranks(2, _rank_gradients, world, timeout_s=60.0):
        assert_close({name: torch.from_numpy(value) for name, value in found.items()}, alone)


def test_spec7_10_micro_batch_without_anchors_changes_nothing(world: Callable, unsupervised: Callable) -> None:
    """Rows without a label, alone in a micro-batch, leave loss, scale and gradients of the others as they are."""
    here = world()
    batch = first_batch(here)
    silent = batch.micro_batches[0]
    rows = [int(i.removeprefix("s")) for i in silent.batch.sample_ids]
    muted = first_batch(unsupervised(here, rows))
    assert not muted.micro_batches[0].mask_BAS.any() and muted.micro_batches[0].batch.anchors_BA.shape[1] == 1
    expected_tally, expected = gradients(here.trainee, batch.micro_batches[1:])
    tally, found = gradients(here.trainee, muted.micro_batches)
    assert_close(found, expected, 0.0)
    assert torch.equal(tally.loss_sum, expected_tally.loss_sum) and int(tally.num_blocks) == int(expected_tally.num_blocks)


def test_spec7_10_row_without_anchors_beside_others(world: Callable, unsupervised: Callable) -> None:
    """Padded block rows in a batch (a row with no anchor of its own) give no NaN and no gradient."""
    here = world()
    micro = next(m for m in first_batch(here).micro_batches if len(m.batch.sample_ids) > 1)
    muted = first_batch(unsupervised(here, [int(micro.batch.sample_ids[0].removeprefix("s"))]))
    same = next(m for m in muted.micro_batches if m.batch.sample_ids == micro.batch.sample_ids)
    assert not same.mask_BAS[0].any() and same.mask_BAS[1:].any()
    _, found = gradients(here.trainee, (same,))
    _, expected = gradients(here.trainee, (rows_of(micro, slice(1, None)),))
    assert all(bool(g.isfinite().all()) for g in found.values())
    assert_close(found, expected)


def test_a_step_without_any_label_changes_nothing(world: Callable, unsupervised: Callable) -> None:
    here = world()
    optimizer = make_optimizer(here.trainee.drafter, here.config.training)
    train_step(here.trainee, optimizer, first_batch(here), 1e-3, here.config.training)  # so that there is momentum
    before = {k: v.clone() for k, v in here.trainee.drafter.state_dict().items()}
    empty = unsupervised(here, range(len(here.dataset)))
    result = train_step(here.trainee, optimizer, first_batch(empty), 1e-3, here.config.training)
    assert (result.loss, result.denominator, result.num_blocks, result.streak, result.grad_norm) == (0.0, 0.0, 0, None, 0.0)
    assert result.accuracy_S == (None,) * SLOTS
    assert all(torch.equal(before[k], v) for k, v in here.trainee.drafter.state_dict().items())


@pytest.mark.parametrize("poison", ["loss", "gradient"])
def test_non_finite_stops_before_the_update(world: Callable, poison: str, monkeypatch: pytest.MonkeyPatch) -> None:
    here = world()
    trainee, batch = here.trainee, first_batch(here)
    optimizer = make_optimizer(trainee.drafter, here.config.training)
    train_step(trainee, optimizer, batch, 1e-3, here.config.training)
    before = {k: v.clone() for k, v in trainee.drafter.state_dict().items()}
    moments = [v["exp_avg"].clone() for v in optimizer.state.values()]
    if poison == "loss":
        batch.micro_batches[0].features_BTF[0, 0, 0] = float("nan")
    else:
        trainee.drafter.norm.weight.register_hook(lambda grad: grad * float("inf"))
    with pytest.raises(NonFiniteError, match=r"step 1 .*expected finite.* s\d+, s\d+") as error:
        train_step(trainee, optimizer, batch, 1e-3, here.config.training)
    assert all(sample in str(error.value) for sample in batch.sample_ids) and error.value.exit_code == 3
    assert all(torch.equal(before[k], v) for k, v in trainee.drafter.state_dict().items())
    assert all(torch.equal(m, v["exp_avg"]) for m, v in zip(moments, optimizer.state.values(), strict=True))


def test_gradient_norm_is_logged_before_clipping_and_the_update_is_clipped(world: Callable) -> None:
    here = world(training={"max_grad_norm": 1e-3})
    _, raw = gradients(here.trainee, first_batch(here).micro_batches)
    norm = math.sqrt(sum(float(g.double().square().sum()) for g in raw.values()))
    seen: list[float] = []
    optimizer = make_optimizer(here.trainee.drafter, here.config.training)
    optimizer.register_step_pre_hook(
        lambda *_: seen.append(math.sqrt(sum(float(p.grad.double().square().sum()) for p in here.trainee.drafter.parameters())))
    )
    here.trainee.drafter.zero_grad()
    result = train_step(here.trainee, optimizer, first_batch(here), 1e-3, here.config.training)
    assert result.grad_norm == pytest.approx(norm, rel=1e-4) and norm > 1e-2
    assert seen == [pytest.approx(1e-3, rel=1e-2)]


def test_streak_counts_leading_hits_of_blocks_with_a_label() -> None:
    labels = torch.tensor([[[1, 2, 3], [1, 2, 3], [1, 2, 3], [1, 2, 3], [1, 2, 3]]])
    predicted = torch.tensor([[[1, 2, 3], [9, 2, 3], [1, 2, 3], [1, 9, 3], [1, 2, 3]]])
    mask = torch.tensor([[[1, 1, 1], [1, 1, 1], [1, 0, 1], [1, 1, 1], [0, 0, 0]]], dtype=torch.bool)
    tally = _count(torch.tensor(1.0), predicted, labels, mask)
    # leading hits: 3, 0, 1 (a hole ends the streak), 1; the block without a label does not count
    assert (int(tally.streak_sum), int(tally.num_blocks)) == (3 + 0 + 1 + 1 + 4, 4)
    assert tally.correct_S.tolist() == [3, 2, 4] and tally.count_S.tolist() == [4, 3, 4]


def test_slot_losses_are_zero_and_unpredicted_where_masked(world: Callable) -> None:
    here = world()
    micro = first_batch(here).micro_batches[0]
    ce, predicted = slot_losses(here.trainee, micro, micro.labels_BAS, micro.mask_BAS)
    assert bool((ce[~micro.mask_BAS] == 0).all()) and bool((predicted[~micro.mask_BAS] == -1).all())
    assert bool((ce[micro.mask_BAS] > 0).all()) and bool((predicted[micro.mask_BAS] >= 0).all())


def test_feature_noise_is_bound_to_samples_and_spares_padding(world: Callable) -> None:
    here = world()
    micro = next(m for m in first_batch(here).micro_batches if len(m.batch.sample_ids) > 1)
    noisy = add_noise(micro.features_BTF, micro.batch, epoch=1, seed=0, std=0.05)
    alone = rows_of(micro, slice(1, 2))
    assert torch.equal(noisy[1:2], add_noise(alone.features_BTF, alone.batch, epoch=1, seed=0, std=0.05))
    length = int(micro.batch.lengths_B[0])
    difference = (noisy - micro.features_BTF)[0]
    assert bool((difference[length:] == 0).all()) and 0.04 < float(difference[:length].abs().max()) <= 0.0501
    assert not torch.equal(noisy, add_noise(micro.features_BTF, micro.batch, epoch=2, seed=0, std=0.05))


def test_noise_reaches_the_features_at_the_step_configured(world: Callable) -> None:
    """The plateau comes at optimizer step 4, however many micro-batches a step has."""
    here = world(training={"feature_noise": {"std": 0.2, "warmup_steps": 4}, "epochs": 3})
    widths = []
    for batch in itertools.islice(batches(here.plan, here.dataset, here.source, here.config, next_sample=0), 6):
        clean = [here.source((), m.batch.input_ids_BT) for m in batch.micro_batches]
        widths.append(max(float((m.features_BTF - c).abs().max()) for m, c in zip(batch.micro_batches, clean, strict=True)))
    assert widths == pytest.approx([0.05, 0.1, 0.15, 0.2, 0.2, 0.2], rel=0.02)
