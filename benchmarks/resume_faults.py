"""Forty ways to resume a run wrongly: wrong checkpoints whose digests agree with them, and sessions that go on otherwise.

The first 21 are those that a survey of public trainers measured; the rest are this project's. Nothing here shares code
with the proof's own variations.

A fault of kind `file` changes what the checkpoint holds; the steps after it are the run's own. One of kind `session` leaves
the file right; the session that saved is killed after the save, and the one that goes on from it does something else.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import torch
from fault_bench import Bench, ResumeFault, Session, Stream, planned_rate
from torch import Tensor, nn

from dflash_core.checkpoint.contents import Contents
from dflash_core.data.plan import BatchPlan
from dflash_core.distributed.gradients import Alone
from dflash_core.training.batches import StepBatch, batches, checksum
from dflash_core.training.records import StepRecord
from dflash_core.training.schedule import learning_rate, noise_std


def _file(name: str, expected: str, change: Callable[[Bench], Contents]) -> ResumeFault:
    return ResumeFault(name, expected, "file", file=change)


def _session(name: str, expected: str, **how: Any) -> ResumeFault:
    return ResumeFault(name, expected, "session", session=Session(**how))


def _weights(bench: Bench, change: Mapping[str, Tensor]) -> Contents:
    return replace(bench.contents, weights={**bench.contents.weights, **change})


def _moments(bench: Bench, change: Callable[[str, Tensor], Tensor]) -> Contents:
    return replace(bench.contents, moments={name: change(name, tensor) for name, tensor in bench.contents.moments.items()})


def _progress(bench: Bench, steps: int) -> Contents:
    return replace(bench.contents, state={**bench.contents.state, "next_sample": bench.sample_at(steps)})


def _other_run(bench: Bench) -> Contents:
    identity = bench.contents.state["identity"]
    changed = {**identity, "training": {**identity["training"], "seed": identity["training"]["seed"] + 1}}
    return replace(bench.contents, state={**bench.contents.state, "identity": changed})


def _of_step(bench: Bench, steps_back: int) -> Contents:
    return bench.history[bench.contents.step - steps_back]


def _average(bench: Bench) -> Contents:
    past = [bench.contents, *(_of_step(bench, back) for back in (2, 4, 6))]
    return _weights(bench, {name: torch.stack([c.weights[name] for c in past]).mean(0) for name in bench.contents.weights})


def _torn(bench: Bench) -> Contents:
    names = sorted(bench.contents.weights)
    return _weights(bench, {name: bench.history[bench.contents.step + 2].weights[name] for name in names[::2]})


def _new_head(bench: Bench) -> Contents:
    old = bench.contents.weights["fc.weight"]
    return _weights(bench, {"fc.weight": torch.randn(old.shape, generator=torch.Generator().manual_seed(5)) * old.std()})


def _layer(weights: Mapping[str, Tensor], number: int) -> dict[str, Tensor]:
    return {name: tensor for name, tensor in weights.items() if name.startswith(f"layers.{number}.")}


def _exchange(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The first two layers' tensors, each under the other's name."""
    return {
        **{name.replace("layers.0.", "layers.1."): tensor for name, tensor in _layer(tensors, 0).items()},
        **{name.replace("layers.1.", "layers.0."): tensor for name, tensor in _layer(tensors, 1).items()},
    }


def _exchanged_moments(bench: Bench) -> Contents:
    return replace(bench.contents, moments={**bench.contents.moments, **_exchange(bench.contents.moments)})


def _slots(bench: Bench, reorder: Callable[[list[str]], list[str]]) -> Contents:
    """Moments given to other parameters of the same shape, in the order in which the drafter lists them."""
    moments = dict(bench.contents.moments)
    for key in ("exp_avg", "exp_avg_sq"):
        groups: dict[tuple[int, ...], list[str]] = {}
        for name, tensor in bench.contents.moments.items():
            if name.endswith("." + key):
                groups.setdefault(tuple(tensor.shape), []).append(name)
        for names in groups.values():
            moments |= {name: bench.contents.moments[other] for name, other in zip(names, reorder(names), strict=True)}
    return replace(bench.contents, moments=moments)


def _one_shard(name: str, tensor: Tensor) -> Tensor:
    half = len(tensor) // 2 if tensor.dim() else 0
    return torch.cat([tensor[:half], tensor[:half]]) if half * 2 == (len(tensor) if tensor.dim() else -1) else tensor


def _zero(*keys: str) -> Callable[[Bench], Contents]:
    return lambda bench: _moments(bench, lambda name, tensor: torch.zeros_like(tensor) if name.endswith(keys) else tensor)


class _HalfLost(Alone):
    """Gradients of the first half of the first step's micro-batches vanish, as where a save zeroes them in between."""

    def __init__(self, drafter: nn.Module, bench: Bench) -> None:
        super().__init__(drafter)
        self._drafter, self._seen, self._half = drafter, 0, None
        self._half = len(next(bench.stream()).micro_batches) // 2

    def before_backward(self, last: bool) -> None:
        if self._seen == self._half:
            self._drafter.zero_grad(set_to_none=True)
        self._seen += 1


class _Leftover(Alone):
    """The first step's gradient is added to one that was never cleared."""

    def __init__(self, drafter: nn.Module, bench: Bench) -> None:
        super().__init__(drafter)
        self._drafter, self._first = drafter, True

    def before_backward(self, last: bool) -> None:
        if self._first:
            generator = torch.Generator().manual_seed(3)
            for parameter in self._drafter.parameters():
                parameter.grad = torch.randn(parameter.shape, generator=generator) * 1e-3
        self._first = False


def _initial_masters(offset: int, drafter: nn.Module, bench: Bench) -> None:
    for name, parameter in drafter.named_parameters() if offset == 1 else ():
        parameter.copy_(bench.setting.initial[name])


def _bfloat16_masters(offset: int, drafter: nn.Module, bench: Bench) -> None:
    for parameter in drafter.parameters():
        parameter.copy_(parameter.bfloat16())


def _numbered(bench: Bench, stream: Stream) -> Stream:
    """A session that counts its steps on, whatever its data are."""
    for number, batch in enumerate(stream, start=bench.contents.step + 1):
        yield replace(batch, outline=replace(batch.outline, step=number))


def _replayed_queue(bench: Bench) -> Stream:
    """The two batches that had waited in the queue are trained on again, under the name of the next ones."""
    old, planned = bench.stream(bench.sample_at(-2)), bench.stream()
    for number, batch in enumerate(planned):
        stale = next(old) if number < 2 else batch
        yield replace(stale, outline=replace(batch.outline, checksum=stale.checksum))


def _claims_the_plan(offset: int, record: StepRecord, bench: Bench) -> StepRecord:
    """The log repeats the plan's checksum instead of the trained samples'."""
    planned = bench.setting.plan.step_number(record.step - 1)
    ids = [bench.setting.dataset.sample_id(row) for micro in planned.micro_batches for row in micro.rows]
    return replace(record, checksum=checksum(ids))


def _other_order(bench: Bench) -> Stream:
    plan = BatchPlan(bench.setting.dataset.lengths, bench.setting.plan.bucket, bench.setting.plan.seed + 1)
    config, number = bench.setting.config, bench.contents.step
    stream = batches(plan, bench.setting.dataset, bench.setting.source, config, next_sample=plan.step_number(number).first_sample)
    for batch, mine in zip(stream, bench.stream(), strict=False):
        outline = replace(batch.outline, first_sample=mine.outline.first_sample, next_sample=mine.outline.next_sample)
        yield replace(batch, outline=outline)


def _renoised(change: Callable[[StepBatch, Bench], float | None], generator: torch.Generator | None = None) -> Callable[[Bench], Stream]:
    """The planned steps without their noise, and then with noise of another level or of a generator."""

    def stream(bench: Bench) -> Stream:
        noise = bench.setting.config.training.feature_noise
        for batch in bench.stream(feature_noise=noise.model_copy(update={"std": 0.0, "warmup_steps": 0})):
            std = change(batch, bench)
            micro = tuple(
                replace(m, features_BTF=m.features_BTF.float() + _uniform(m.features_BTF, m.batch.lengths_B, std, generator)) if std else m
                for m in batch.micro_batches
            )
            yield replace(batch, micro_batches=micro, noise_std=noise_std(batch.outline.step, noise))

    return stream


def _uniform(features_BTF: Tensor, lengths_B: Tensor, std: float, generator: torch.Generator) -> Tensor:
    drawn_BTF = (torch.rand(features_BTF.shape, generator=generator) - 0.5) * 2 * std
    return drawn_BTF * (torch.arange(features_BTF.shape[1]) < lengths_B[:, None])[..., None]


def _own_level(batch: StepBatch, bench: Bench) -> float:
    return noise_std(batch.outline.step, bench.setting.config.training.feature_noise)


def _noise_of_the_first(bench: Bench) -> Stream:
    """Each rank draws with the state of the first one: every row of a micro-batch gets the first row's noise."""
    clean = _renoised(lambda batch, bench: None)(bench)
    for batch, noisy in zip(clean, bench.stream(), strict=True):
        micro = tuple(
            replace(plain, features_BTF=plain.features_BTF.float() + _first_row(plain, own)) for plain, own in zip(batch.micro_batches, noisy.micro_batches, strict=True)
        )
        yield replace(batch, micro_batches=micro)


def _first_row(plain: Any, noisy: Any) -> Tensor:
    noise_TF = (noisy.features_BTF.float() - plain.features_BTF.float())[0]
    keep_BT = torch.arange(noise_TF.shape[0]) < torch.minimum(plain.batch.lengths_B, plain.batch.lengths_B[0])[:, None]
    return noise_TF * keep_BT[..., None]


def _warmed_up_again(bench: Bench) -> Stream:
    noise, start = bench.setting.config.training.feature_noise, bench.contents.step
    stream = _renoised(lambda batch, _: noise_std(batch.outline.step - start, noise), torch.Generator().manual_seed(1))(bench)
    for batch in stream:
        yield replace(batch, noise_std=noise_std(batch.outline.step - start, noise))


def _longer(bench: Bench, step: int) -> float:
    return learning_rate(step, bench.setting.total_steps * 2, bench.setting.config.training)


FAULTS: tuple[ResumeFault, ...] = (
    _session("rng_not_restored", "rng", stream=lambda b: b.stream(seed=b.setting.config.training.seed + 1)),
    _session("data_restart_epoch0", "repeated_batches", stream=lambda b: _numbered(b, b.stream(0))),
    _session("data_replays_last_8_steps", "repeated_batches", stream=lambda b: _numbered(b, b.stream(b.sample_at(-8)))),
    _file("data_skips_8_steps", "skipped_batches", lambda b: _progress(b, 8)),
    _session("optimizer_lost", "moments", contents=lambda b: replace(b.contents, moments={})),
    _session("adam_step_counter_reset", "step_counter", contents=_zero(".step")),
    _file("adam_second_moment_lost", "moments", _zero(".exp_avg_sq")),
    _file("optimizer_moments_swapped_between_layers", "moments", _exchanged_moments),
    _file("optimizer_moments_shifted_one_slot_same_shape", "moments", lambda b: _slots(b, lambda names: names[1:] + names[:1])),
    _session("lr_schedule_restarted", "schedule", rate=lambda b, step: planned_rate(b, step - b.contents.step)),
    _session("lr_jump_to_peak", "schedule", rate=lambda b, step: b.setting.config.training.learning_rate),
    _session("lr_schedule_off_by_8_steps", "schedule", rate=lambda b, step: planned_rate(b, step - 8)),
    _file("head_reinitialised", "weights", _new_head),
    _file("one_layer_not_loaded", "weights", lambda b: _weights(b, _layer(b.setting.initial, 1))),
    _file("weights_rounded_to_bf16", "weights", lambda b: _weights(b, {n: t.bfloat16().float() for n, t in b.contents.weights.items()})),
    _file("weights_10_steps_stale", "weights", lambda b: _weights(b, _of_step(b, 10).weights)),
    _file("ema_loaded_as_weights", "weights", _average),
    _file("torn_write_half_tensors_2_steps_newer", "weights", _torn),
    _session("accumulated_half_gradient_lost", "accumulation", ranks=_HalfLost),
    _session("noise_left_off", "mode", stream=_renoised(lambda batch, _: None)),
    _session(
        "log_double_counts_first_loss",
        "logging",
        record=lambda offset, r, _: replace(r, loss=2 * r.loss, loss_sum=2 * r.loss_sum) if offset == 1 else r,
    ),
    _session("masters_not_filled", "masters", before_update=_initial_masters),
    _session("masters_kept_in_bfloat16", "masters", after_update=_bfloat16_masters),
    _file("moments_of_other_parameters", "moments", lambda b: _slots(b, lambda names: names[::-1])),
    _file("one_ranks_moments_given_to_all", "moments", lambda b: _moments(b, _one_shard)),
    _file("moments_rounded_to_bf16", "moments", lambda b: _moments(b, lambda n, t: t if n.endswith(".step") else t.bfloat16().float())),
    _session("first_moment_lost", "moments", contents=_zero(".exp_avg")),
    _file("optimizer_not_saved", "moments", lambda b: replace(b.contents, moments={})),
    _file("step_counter_not_saved", "step_counter", _zero(".step")),
    _session("noise_warm_up_restarted", "rng", stream=_warmed_up_again),
    _session("noise_of_one_rank_given_to_all", "rng", stream=_noise_of_the_first),
    _session("noise_of_another_generator", "rng", stream=_renoised(_own_level, torch.Generator().manual_seed(2))),
    _session("prefetch_queue_replayed", "repeated_batches", stream=_replayed_queue, record=_claims_the_plan),
    _session("samples_in_another_order", "data_order", stream=_other_order),
    _session("schedule_length_changed", "schedule", rate=_longer),
    _session(
        "lr_restarted_and_logged_right",
        "schedule",
        rate=lambda b, step: planned_rate(b, step - b.contents.step),
        logged_rate=planned_rate,
    ),
    _file("one_tensor_stale", "weights", lambda b: _weights(b, {"fc.weight": _of_step(b, 2).weights["fc.weight"]})),
    _session("two_layers_exchanged", "weights", contents=lambda b: _weights(b, _exchange(b.contents.weights))),
    _session("gradient_left_from_before_the_save", "accumulation", ranks=_Leftover),
    _file("checkpoint_of_another_run", "identity", _other_run),
)
