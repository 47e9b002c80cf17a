"""Variations of what a session does with a right state: data, noise, learning rate, accumulation."""

from collections.abc import Callable, Iterator
from dataclasses import replace

from torch import nn

from dflash_core.distributed.gradients import Alone
from dflash_core.proof.replay import Setting
from dflash_core.proof.variation import Variation
from dflash_core.training.batches import CollatedStep, checksum
from dflash_core.training.schedule import learning_rate, noise_std

# Queues before the drafter hold a few steps; an accumulation factor taken twice shifts by as many.
_STEPS_OFF = (-1, 1, -2, 2, -3, 3, -4, 4, -5, 5, -6, 6, -8, 8, -10, 10, -16, 16)
_OTHER_EPOCH = 1_000_003  # of the noise alone: any that the run doesn't reach


def wrong_noise(setting: Setting, step: int) -> Iterator[Variation]:
    """Feature noise that is missing, of another level, or drawn under another key."""
    noise = setting.config.training.feature_noise
    if noise.std == 0.0:
        return
    yield _noise("mode", "feature noise is off", lambda c: replace(c, noise_std=0.0))
    yield _noise("rng", "the noise's warm-up began again", lambda c: replace(c, noise_std=noise_std(c.outline.step - step, noise)))
    yield _noise("rng", "the noise is at its plateau", lambda c: replace(c, noise_std=noise.std))
    yield _noise("rng", "every sample of a micro-batch has the first one's noise", _first_ones_noise)
    yield _noise("rng", "the noise is that of the first epoch", lambda c: _of_epoch(c, 0))


def other_noise(draw: int) -> Variation:
    """The same run with other random numbers in its noise, and nothing else."""
    return _noise("rng", "other random numbers", lambda c: _of_epoch(c, _OTHER_EPOCH + draw))


def wrong_data(setting: Setting, step: int) -> Iterator[Variation]:
    """The log claims the right samples, and the step was made of others."""
    for steps in (*_STEPS_OFF, -step):
        if step + steps >= 0:
            fault = "repeated_batches" if steps < 0 else "skipped_batches"
            which = f"{abs(steps)} steps {'earlier' if steps < 0 else 'later'}"
            yield Variation(fault=fault, text=f"the first batches are those of {which}, as many as that", shift=steps, shift_for=abs(steps))
            yield Variation(fault=fault, text=f"the batches are those of {which}", shift=steps)


def wrong_rates(setting: Setting, step: int) -> Iterator[Variation]:
    """The log has the right learning rate, and another one was applied."""
    training, total = setting.config.training, setting.total_steps

    def of_step(number: int) -> float:
        return learning_rate(min(max(number, 1), total), total, training)

    yield _rate("the schedule began again", lambda offset, _: of_step(offset))
    yield _rate("the learning rate is the peak's", lambda _, __: training.learning_rate)
    for off in _STEPS_OFF:
        yield _rate(f"the learning rate is that of {off:+d} steps", lambda offset, _, off=off: of_step(step + offset + off))


def wrong_accumulation(num_micro_batches: int) -> Iterator[Variation]:
    """A part of the first step's gradient is lost, or all of it is there twice."""
    for lost in range(1, num_micro_batches):
        text = f"the gradient of the first {lost} of {num_micro_batches} micro-batches is lost"
        yield Variation(fault="accumulation", text=text, ranks=lambda drafter, lost=lost: _Forgets(drafter, before=lost + 1))
    for kept in range(1, num_micro_batches):
        text = f"the gradient of the last {num_micro_batches - kept} of {num_micro_batches} micro-batches is lost"
        yield Variation(fault="accumulation", text=text, ranks=lambda drafter, kept=kept: _Keeps(drafter, kept))
    yield Variation(fault="accumulation", text="the gradient is there twice", ranks=_Doubles)


class _FirstStep(Alone):
    """Ranks that count micro-batches, and spoil the gradient of the first step only."""

    def __init__(self, drafter: nn.Module) -> None:
        super().__init__(drafter)
        self.drafter, self.micro_batch, self.first = drafter, 0, True

    def before_backward(self, last: bool) -> None:
        self.micro_batch += 1
        if self.first:
            self.spoil()

    def finish_gradients(self) -> None:
        if self.first:
            self.micro_batch += 1
            self.spoil(ended=True)
        self.first = False

    def spoil(self, ended: bool = False) -> None:
        """Change the gradients that are there before micro-batch number `micro_batch`, or after the last one."""


class _Forgets(_FirstStep):
    def __init__(self, drafter: nn.Module, before: int) -> None:
        super().__init__(drafter)
        self._before = before

    def spoil(self, ended: bool = False) -> None:
        if self.micro_batch == self._before:
            self.drafter.zero_grad(set_to_none=True)


class _Keeps(_FirstStep):
    def __init__(self, drafter: nn.Module, kept: int) -> None:
        super().__init__(drafter)
        self._kept, self._saved = kept, []

    def spoil(self, ended: bool = False) -> None:
        if self.micro_batch == self._kept + 1:
            self._saved = [None if p.grad is None else p.grad.clone() for p in self.drafter.parameters()]
        if ended:
            for parameter, saved in zip(self.drafter.parameters(), self._saved, strict=True):
                parameter.grad = saved


class _Doubles(_FirstStep):
    def spoil(self, ended: bool = False) -> None:
        for parameter in self.drafter.parameters() if ended else ():
            if parameter.grad is not None:
                parameter.grad.mul_(2.0)


def _noise(fault: str, text: str, change: Callable[[CollatedStep], CollatedStep]) -> Variation:
    return Variation(fault=fault, text=text, collated=change)


def _rate(text: str, rate: Callable[[int, float], float]) -> Variation:
    return Variation(fault="schedule", text=text, rate=rate)


def _of_epoch(collated: CollatedStep, epoch: int) -> CollatedStep:
    """The noise is keyed by the epoch; anchors are drawn already."""
    return replace(collated, outline=replace(collated.outline, epoch=epoch))


def _first_ones_noise(collated: CollatedStep) -> CollatedStep:
    """Noise is keyed by the sample's id, which nothing else in a collated batch depends on but the checksum."""
    batches = tuple(replace(batch, sample_ids=(batch.sample_ids[0],) * len(batch.sample_ids)) for batch in collated.batches)
    ids = [sample_id for batch in batches for sample_id in batch.sample_ids]
    return replace(collated, batches=batches, outline=replace(collated.outline, checksum=checksum(ids)))
