"""Signs in the tensors themselves: none in a right checkpoint, and each where it belongs."""

from dataclasses import replace

import torch
from resume_faults import FAULTS, Bench

from dflash_core.proof.hints import hints
from dflash_core.proof.tensors import layers, parts


def told(bench: Bench, name: str) -> str:
    contents = next(f for f in FAULTS if f.name == name).file(bench)
    return " | ".join(f"{hint.fault}: {hint.text}" for hint in hints(contents, bench.setting.config.training.betas, others(bench)))


def others(bench: Bench) -> dict:
    return {f"step {step}": contents for step, contents in bench.history.items() if step != bench.contents.step}


def test_right_checkpoints_give_no_sign(bench: Bench) -> None:
    for contents in bench.history.values():
        apart = {f"step {step}": other for step, other in bench.history.items() if step != contents.step}
        assert hints(contents, bench.setting.config.training.betas, apart) == ()


def test_each_sign_is_seen(bench: Bench) -> None:
    assert "weights: every weight is a bfloat16 number" in told(bench, "weights_rounded_to_bf16")
    assert "weights: 1 tensors are those of step 12 to the bit, first fc.weight" in told(bench, "one_tensor_stale")
    assert "moments: all second moments are zero" in told(bench, "adam_second_moment_lost")
    assert "moments: it holds no optimizer state after 14 steps" in told(bench, "optimizer_not_saved")
    assert "moments: every moment is a bfloat16 number" in told(bench, "moments_rounded_to_bf16")
    assert "step_counter: optimizer step counters are 0 after 14 steps" in told(bench, "step_counter_not_saved")


def test_moments_of_other_gradients_are_impossible(bench: Bench) -> None:
    moments = {n: 100 * t if n.endswith("fc.weight.exp_avg") else t for n, t in bench.contents.moments.items()}
    found = hints(replace(bench.contents, moments=moments), (0.9, 0.95), {})
    assert [h.fault for h in found] == ["moments"] and "first moments of fc.weight are larger" in found[0].text
    assert hints(replace(bench.contents, moments=moments), (0.99, 0.95), {}) == (), "no bound exists for such betas"


def test_weights_that_are_not_finite(bench: Bench) -> None:
    weights = {**bench.contents.weights, "norm.weight": torch.full_like(bench.contents.weights["norm.weight"], torch.nan)}
    assert "norm.weight holds numbers that are not finite" in hints(replace(bench.contents, weights=weights), (0.9, 0.95), {})[0].text


def test_names_by_part_of_the_drafter(bench: Bench) -> None:
    assert layers(bench.contents.weights) == ("layers.0", "layers.1")
    assert parts(["fc.weight", "layers.0.a.weight", "layers.0.b.weight"]) == {
        "fc": ("fc.weight",), "layers.0": ("layers.0.a.weight", "layers.0.b.weight"),
    }  # fmt: skip
