"""One optimizer step: gradients of sum(loss) / denominator over micro-batches, clipped, checked, applied.

The denominator is counted over all micro-batches before the first forward, so that neither accumulation nor
the number of processes changes the update.

Dims: B batch rows, T tokens (padded), A anchors per row, K block slots incl. anchor, S = K-1 label slots,
D hidden, F features width, V vocab, N rows with a label.
"""

import math
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from dflash_core.config import TrainingConfig
from dflash_core.data.loader import Batch
from dflash_core.distributed.gradients import Alone, Ranks
from dflash_core.drafter.head_loss import head_cross_entropy
from dflash_core.drafter.model import Drafter
from dflash_core.drafter.objectives import Objective
from dflash_core.errors import NonFiniteError, PipelineError
from dflash_core.target.ends import TargetEnds
from dflash_core.training.batches import MicroBatch, StepBatch
from dflash_core.training.optimizer import set_learning_rate
from dflash_core.training.side_stream import NOW


@dataclass(frozen=True)
class Trainee:
    """The drafter with what it needs around it to have a loss."""

    drafter: Drafter
    target: TargetEnds
    objective: Objective
    precision: Literal["float32", "bfloat16"]
    attention: Literal["fast", "reference"]

    @property
    def block_size(self) -> int:
        """K, the anchor included."""
        return self.drafter.spec.block_size


@dataclass(frozen=True)
class Tally:
    """Sums over the micro-batches of a step (float64 and int64 tensors; nothing is synchronised until read)."""

    loss_sum: Tensor
    correct_S: Tensor
    count_S: Tensor
    streak_sum: Tensor
    num_blocks: Tensor

    def __add__(self, other: "Tally") -> "Tally":
        return Tally(*(mine + theirs for mine, theirs in zip(vars(self).values(), vars(other).values(), strict=True)))


@dataclass(frozen=True)
class StepResult:
    """What one step computed; sums and counts, so that steps and ranks can be added."""

    loss_sum: float
    denominator: float
    correct_S: tuple[int, ...]
    count_S: tuple[int, ...]
    streak_sum: float
    num_blocks: int
    grad_norm: float  # before clipping
    learning_rate: float

    @property
    def loss(self) -> float:
        """Loss of the step; 0 where no slot had a label."""
        return self.loss_sum / self.denominator if self.denominator else 0.0

    @property
    def accuracy_S(self) -> tuple[float | None, ...]:
        """Share of right first guesses per slot, None without a label."""
        return tuple(c / n if n else None for c, n in zip(self.correct_S, self.count_S, strict=True))

    @property
    def streak(self) -> float | None:
        """1 + leading right slots, mean over blocks that have a label: a proxy of the acceptance length, biased
        low because a block that supervision cuts short counts in full."""
        return self.streak_sum / self.num_blocks if self.num_blocks else None


def train_step(
    trainee: Trainee,
    optimizer: torch.optim.Optimizer,
    step_batch: StepBatch,
    learning_rate: float,
    config: TrainingConfig,
    ranks: Ranks | None = None,
) -> StepResult:
    """Do one update, together with the other drafter ranks. Gradients are None before and after.

    A step without a single label changes nothing: AdamW would move weights by old momentum alone.

    Raises:
        PipelineError: the ranks' samples are not those of the plan; nothing was computed.
        NonFiniteError: the loss or the gradient's norm is NaN or infinite; weights and moments are as before.
    """
    ranks = ranks or Alone(trainee.drafter)
    denominator = agree(trainee, step_batch, ranks)
    if step_batch.ready is not NOW:
        step_batch.ready.wait([micro.features_BTF for micro in step_batch.micro_batches])
    tally = accumulate_gradients(trainee, step_batch.micro_batches, denominator, ranks, max(step_batch.outline.micro_batches))
    result = step_result(tally, denominator, ranks, ranks.clip(config.max_grad_norm) if denominator else 0.0, learning_rate)
    if not (math.isfinite(result.loss_sum) and math.isfinite(result.grad_norm)):
        optimizer.zero_grad(set_to_none=True)
        raise NonFiniteError(
            f"step {step_batch.outline.step} has loss {result.loss} and gradient norm {result.grad_norm}, expected finite numbers; "
            f"its samples are {', '.join(step_batch.outline.sample_ids)}. "
            "Weights were not updated; look at these samples, or resume with a lower learning_rate."
        )
    if denominator:
        set_learning_rate(optimizer, learning_rate)
        optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    return result


def agree(trainee: Trainee, step_batch: StepBatch, ranks: Ranks) -> float:
    """The denominator of all ranks, counted before the first forward, once their samples are those of the plan."""
    mine = sum(trainee.objective.denominator(micro.mask_BAS) for micro in step_batch.micro_batches)
    outline = step_batch.outline
    denominator, checksum, step = ranks.sum([mine, step_batch.checksum, outline.step])
    if checksum != outline.checksum or step != outline.step * ranks.num_ranks:
        raise PipelineError(
            f"step {outline.step}: the samples of its {ranks.num_ranks} ranks add up to {checksum:.0f}, the plan's to {outline.checksum} "
            f"(mean step {step / ranks.num_ranks:g}): a sample is lost or repeated. Nothing was trained on it; resume, and report it."
        )
    return denominator


def accumulate_gradients(
    trainee: Trainee, micro_batches: tuple[MicroBatch, ...], denominator: float, ranks: Ranks | None = None, num_rounds: int = 0
) -> Tally:
    """Add the gradients of sum(loss) / denominator; `denominator` is that of the whole step, ranks included.

    A micro-batch without a label adds nothing and runs nothing, whatever other micro-batches or ranks hold. Where
    forwards are collective (`ranks.lockstep`) it runs all the same, and a rank with fewer than `num_rounds`
    micro-batches repeats one with every label masked.
    """
    ranks = ranks or Alone(trainee.drafter)
    todo = in_lockstep(trainee, micro_batches, num_rounds) if ranks.lockstep else [m for m in micro_batches if bool(m.mask_BAS.any())]
    device = next(trainee.drafter.parameters()).device
    tally = empty_tally(trainee.block_size - 1, device)
    for number, micro in enumerate(todo, start=1):
        ranks.before_backward(last=number == len(todo))
        labels_BAS, mask_BAS = micro.labels_BAS.to(device), micro.mask_BAS.to(device)
        ce_BAS, predicted_BAS = slot_losses(trainee, micro, labels_BAS, mask_BAS)
        loss_sum = trainee.objective.loss_sum(ce_BAS, mask_BAS)
        (loss_sum / (denominator or 1.0)).backward()
        tally += _count(loss_sum.detach(), predicted_BAS, labels_BAS, mask_BAS)
    if denominator:
        ranks.finish_gradients()
    return tally


def in_lockstep(trainee: Trainee, micro_batches: tuple[MicroBatch, ...], num_rounds: int) -> list[MicroBatch]:
    """As many micro-batches as the busiest rank has: the rank's own, then silent ones."""
    return [*micro_batches, *[silent_micro_batch(trainee)] * (num_rounds - len(micro_batches))]


def silent_micro_batch(trainee: Trainee) -> MicroBatch:
    """The smallest micro-batch that runs a forward and a backward and adds zero gradients: two tokens, no label."""
    spec = trainee.drafter.spec
    nothing_11S = torch.zeros(1, 1, spec.block_size - 1, dtype=torch.int64)
    one_11 = torch.ones(1, 1, dtype=torch.int64)
    batch = Batch((), torch.zeros(1, 2, dtype=torch.int64), torch.zeros(1, 2, dtype=torch.bool), 2 * one_11[0], one_11, one_11 == 0)
    return MicroBatch(batch, torch.zeros(1, 2, spec.features_size), nothing_11S, nothing_11S.bool())


def step_result(tally: Tally, denominator: float, ranks: Ranks, grad_norm: float, learning_rate: float) -> StepResult:
    """Sums over all ranks."""
    slots = len(tally.correct_S)
    totals = ranks.sum([*tally.loss_sum.reshape(1).tolist(), *tally.correct_S.tolist(), *tally.count_S.tolist(), int(tally.streak_sum), int(tally.num_blocks)])
    return StepResult(
        loss_sum=totals[0],
        denominator=float(denominator),
        correct_S=tuple(map(int, totals[1 : 1 + slots])),
        count_S=tuple(map(int, totals[1 + slots : 1 + 2 * slots])),
        streak_sum=totals[-2],
        num_blocks=int(totals[-1]),
        grad_norm=grad_norm,
        learning_rate=learning_rate,
    )


def empty_tally(num_slots: int, device: torch.device) -> Tally:
    """All zero."""
    return Tally(
        torch.zeros((), dtype=torch.float64, device=device),
        *(torch.zeros(num_slots, dtype=torch.int64, device=device) for _ in range(2)),
        *(torch.zeros((), dtype=torch.int64, device=device) for _ in range(2)),
    )


def slot_losses(trainee: Trainee, micro: MicroBatch, labels_BAS: Tensor, mask_BAS: Tensor) -> tuple[Tensor, Tensor]:
    """Cross-entropy (float32, 0 where masked) and first guess (int64, -1 where masked) of every label slot.

    Only the N rows with a label reach the head, which is most of the work where the vocabulary is large.
    """
    device = labels_BAS.device
    anchors_BA = micro.batch.anchors_BA.to(device)
    ids_BT = micro.batch.input_ids_BT.to(device)
    features_BTF = micro.features_BTF.to(device)
    with torch.autocast(device.type, dtype=torch.bfloat16, enabled=trainee.precision == "bfloat16"):
        embeds_BAKD = block_embeds(trainee, ids_BT, anchors_BA)
        hidden_BASD = trainee.drafter(features_BTF, embeds_BAKD, anchors_BA, trainee.attention, label_slots_only=True)
        rows_N = mask_BAS.reshape(-1).nonzero().squeeze(1)
        hidden_ND = hidden_BASD.flatten(0, 2).index_select(0, rows_N)
        output = head_cross_entropy(
            hidden_ND, trainee.target.head_weight_VD, labels_BAS.reshape(-1)[rows_N], softcap=trainee.target.logit_softcap
        )
    ce = torch.zeros(mask_BAS.numel(), device=device).index_copy(0, rows_N, output.ce_N.float())
    predicted = torch.full((mask_BAS.numel(),), -1, device=device).index_copy(0, rows_N, output.predicted_N)
    return ce.view_as(mask_BAS), predicted.view_as(mask_BAS)


def block_embeds(trainee: Trainee, ids_BT: Tensor, anchors_BA: Tensor) -> Tensor:
    """Embeddings_BAKD of [anchor token, MASK x (K-1)] by the frozen target."""
    with torch.no_grad():
        anchor_BA1D = trainee.target.embed(ids_BT.gather(1, anchors_BA)).unsqueeze(2)
        mask_D = trainee.target.embed(torch.tensor([trainee.drafter.spec.mask_token_id], device=ids_BT.device))[0]
    batch, anchors = anchors_BA.shape
    return torch.cat([anchor_BA1D, mask_D.expand(batch, anchors, trainee.block_size - 1, -1)], dim=2)


def _count(loss_sum: Tensor, predicted_BAS: Tensor, labels_BAS: Tensor, mask_BAS: Tensor) -> Tally:
    """Hits per slot and leading hits per block; the first wrong or unsupervised slot ends a block's streak."""
    correct_BAS = (predicted_BAS == labels_BAS) & mask_BAS
    with_label_BA = mask_BAS.any(dim=-1)
    leading_BA = correct_BAS.long().cumprod(dim=-1).sum(dim=-1)
    num_blocks = with_label_BA.sum()
    return Tally(
        loss_sum.double(),
        correct_BAS.sum(dim=(0, 1)),
        mask_BAS.sum(dim=(0, 1)),
        (leading_BA * with_label_BA).sum() + num_blocks,
        num_blocks,
    )
