"""Each kind has a log that must show it, at its place, and a like one that must not."""

from collections.abc import Callable

import numpy as np
import pytest

from dflash_core.diagnosis.diagnose import Diagnosis
from dflash_core.diagnosis.finding import Finding

Diagnose = Callable[..., Diagnosis]


def curve(n: int = 600, seed: int = 0, noise: float = 0.02) -> np.ndarray:
    """A falling loss with multiplicative noise. float64 [n]"""
    random = np.random.default_rng(seed)
    return (0.8 + 6 * np.exp(-np.arange(n) / (n / 12))) * (1 + noise * random.normal(size=n))


def rows_of(loss: np.ndarray, every: int = 1, **columns: np.ndarray) -> list[dict[str, float]]:
    """Rows of a log, one a line."""
    return [{"step": int((i + 1) * every), "loss": float(v)} | {k: float(c[i]) for k, c in columns.items()} for i, v in enumerate(loss)]


def of(diagnosis: Diagnosis, kind: str) -> list[Finding]:
    return [f for f in diagnosis.findings if f.kind == kind]


def test_a_healthy_log_shows_nothing_grave(diagnose: Diagnose) -> None:
    result = diagnose(rows_of(curve(), lr=np.full(600, 1e-4), grad_norm=np.full(600, 1.0)))
    assert result.verdict.word == "healthy"
    assert not [f for f in result.findings if f.severity != "note"]


def test_nan_in_the_middle_and_to_the_end(diagnose: Diagnose) -> None:
    loss = curve()
    loss[300:303] = np.nan
    assert diagnose(rows_of(loss)).verdict.word == "unstable_recovered"
    loss[400:] = np.inf
    result = diagnose(rows_of(loss))
    assert [(f.step, f.detail["last"]) for f in of(result, "nonfinite")] == [(301, 303), (401, 600)]
    assert result.verdict.word == "diverged" and result.causes[0].cause == "nonfinite"


def test_a_step_that_raised_before_it_was_logged(diagnose: Diagnose) -> None:
    rows = [row | {"kind": "step"} for row in rows_of(curve())]
    result = diagnose([*rows, {"kind": "finding", "what": "nonfinite", "step": 600, "at_step": 601}, {"kind": "stop", "step": 600}])
    assert of(result, "nonfinite")[0].step == 601 and result.verdict.word == "diverged" and result.causes[0].cause == "nonfinite"
    assert not of(diagnose([*rows, {"kind": "finding", "what": "loss_spike", "step": 600}]), "nonfinite")


def test_zero_and_frozen_stand_for_nan(diagnose: Diagnose) -> None:
    loss = curve()
    loss[400:] = 0.0
    assert of(diagnose(rows_of(loss)), "nonfinite")[0].step == 401
    loss[400:] = loss[399]
    assert of(diagnose(rows_of(loss)), "nonfinite")[0].step == 400


def test_a_loss_learnt_down_to_zero_is_none(diagnose: Diagnose) -> None:
    loss = np.round(np.exp(-np.arange(400) / 20), 4)
    assert not of(diagnose(rows_of(loss)), "nonfinite")


def test_spike_height_and_recovery(diagnose: Diagnose) -> None:
    loss = curve(noise=0.01)
    before = loss[399]
    loss[400:420] += 8 * np.exp(-np.arange(20) / 5) * (np.arange(20) % 2 == 0)
    (spike,) = of(diagnose(rows_of(loss)), "loss_spike")
    assert spike.step == 401 and spike.detail["trajectory"] == "oscillating"
    assert spike.detail["before"] == pytest.approx(before) and spike.detail["peak"] == pytest.approx(loss[400])
    assert 15 <= spike.detail["recovery_steps"] <= 30


def test_a_spike_that_decays_is_a_fault_and_wild_lines_near_each_other_are_none(diagnose: Diagnose) -> None:
    loss = curve(noise=0.01)
    loss[400:430] += 0.3 * np.exp(-np.arange(30) / 10)
    assert [f.severity for f in of(diagnose(rows_of(loss)), "loss_spike")] == ["fault"]
    loss = curve(noise=0.01)
    loss[[400, 403, 412]] += 0.3
    # What makes the way back long: a level that was judged low, by the luck of the lines before.
    loss[385:400] -= 0.012
    result = diagnose(rows_of(loss))
    assert of(result, "loss_spike") and {f.severity for f in of(result, "loss_spike")} == {"note"} and not result.verdict.unhealthy


def test_noise_is_no_spike(diagnose: Diagnose) -> None:
    result = diagnose(rows_of(curve(4000, noise=0.15)))
    assert not of(result, "loss_spike") and result.verdict.word == "healthy_noisy"


def test_level_shift_and_slope(diagnose: Diagnose) -> None:
    loss = curve()
    loss[300:] += 0.3
    (shift,) = of(diagnose(rows_of(loss)), "level_shift")
    assert abs(shift.step - 301) <= 3 and shift.detail["to"] - shift.detail["from"] == pytest.approx(0.3, abs=0.03)
    assert shift.severity == "warning"
    loss[300:] += 2.5  # nearly half of what it came down
    result = diagnose(rows_of(loss))
    assert of(result, "level_shift")[0].severity == "fault" and result.verdict.word == "diverged"
    assert next(r.state for r in result.ruled if r.what == "lost weights") == "can't be told"
    loss = curve()
    loss[200:] += np.linspace(0, 0.5, 400)
    assert not of(diagnose(rows_of(loss)), "level_shift")


def test_drop_then_return(diagnose: Diagnose) -> None:
    loss = curve()
    loss[300:400] -= 0.2
    (dip,) = of(diagnose(rows_of(loss)), "drop_then_return")
    assert abs(dip.step - 301) <= 3 and abs(dip.detail["returns_at"] - 401) <= 3


def test_divergence_and_what_comes_back(diagnose: Diagnose) -> None:
    loss = curve()
    loss[350:] += np.linspace(0, 4, 250)
    result = diagnose(rows_of(loss))
    assert of(result, "divergence") and result.verdict.word == "diverged"
    loss = curve()
    loss[300:400] += 2 * np.sin(np.linspace(0, np.pi, 100))
    result = diagnose(rows_of(loss))
    assert of(result, "instability_episode") and result.verdict.word == "unstable_recovered"


def test_a_rise_before_nan_is_named(diagnose: Diagnose) -> None:
    loss = np.array([16.0, 3.0, 2.5, 2.2, 2.5] + [np.nan] * 20)
    result = diagnose(rows_of(loss, every=200))
    assert of(result, "slow_climb")[0].step == 1000


def test_stairs_and_their_period(diagnose: Diagnose) -> None:
    loss = curve(1200, noise=0.01) - 0.1 * (np.arange(1200) // 200)
    (stairs,) = of(diagnose(rows_of(loss)), "epoch_stairs")
    assert stairs.detail["period"] == pytest.approx(200, abs=4)


def test_a_period_and_wandering_noise(diagnose: Diagnose) -> None:
    wave = 0.05 * (np.arange(1000) % 25 < 8)
    (found,) = of(diagnose(rows_of(curve(1000) + wave)), "periodic")
    assert found.detail["period"] == 25
    random = np.random.default_rng(3)
    slow = np.convolve(random.normal(size=1030), np.ones(31) / 31, "valid") * 0.1
    assert not of(diagnose(rows_of(curve(1000) + slow)), "periodic")


def test_plateau_then_progress(diagnose: Diagnose) -> None:
    random = np.random.default_rng(0)
    loss = np.concatenate([np.linspace(9, 6, 100), np.full(400, 6.0), np.linspace(6, 2, 300)]) + random.normal(0, 0.03, 800)
    (flat,) = of(diagnose(rows_of(loss)), "plateau")
    assert 80 <= flat.step <= 130 and 480 <= flat.detail["last"] <= 530
    assert not of(diagnose(rows_of(curve())), "plateau")


def test_gradient_spike_without_the_loss(diagnose: Diagnose) -> None:
    norm = np.exp(np.random.default_rng(1).normal(0, 0.1, 600))
    norm[450] *= 20
    (spike,) = of(diagnose(rows_of(curve(), grad_norm=norm)), "grad_spike")
    assert spike.step == 451 and spike.detail["loss_effect_sigma"] < 4 and spike.severity == "note"


@pytest.mark.parametrize(("length", "kind"), [(1, "batch_variance"), (6, "unexplained"), (200, "sustained_degradation")])
def test_accuracy_drops_by_how_long_they_last(diagnose: Diagnose, length: int, kind: str) -> None:
    accuracy = 0.3 + 0.005 * np.random.default_rng(2).normal(size=600)
    accuracy[400 : 400 + length] -= 0.15
    (drop,) = of(diagnose(rows_of(curve(), acc=accuracy)), "accuracy_drop")
    assert drop.step == 401 and drop.detail["class"] == kind


def test_held_out_loss_turning_up(diagnose: Diagnose) -> None:
    rows = rows_of(curve())
    for i in range(20):
        rows[30 * i + 29]["val_loss"] = 2.0 - 0.05 * min(i, 10) + 0.04 * max(i - 10, 0)
    result = diagnose(rows)
    assert of(result, "train_eval_split")[0].step == 330 and result.causes[0].cause == "overfit"
    for i in range(20):
        rows[30 * i + 29]["val_loss"] = 2.0 - 0.05 * min(i, 10)
    assert not of(diagnose(rows), "train_eval_split")


def test_held_out_loss_that_bursts_and_comes_back(diagnose: Diagnose) -> None:
    random = np.random.default_rng(8)

    def run(burst: float, training: float) -> Diagnosis:
        rows = rows_of(curve())
        for i in range(20):
            rows[30 * i + 29]["val_loss"] = (2.0 - 0.03 * i) * (1 + 0.002 * random.normal()) + (burst if i in (11, 12) else 0.0)
        for row in rows[330:400]:
            row["loss"] += training
        return diagnose(rows)

    result = run(0.4, 0.0)
    (burst,) = of(result, "overfit_burst")
    assert (burst.step, burst.detail["back_at"], burst.severity) == (360, 420, "warning")
    assert not result.verdict.unhealthy and "overfit" in [c.cause for c in result.causes]
    assert not of(run(0.0, 0.0), "overfit_burst"), "noise of evaluations"
    assert not of(run(0.4, 0.6), "overfit_burst"), "the training loss rises as well: no overfitting"


def test_queue_that_drains_at_constant_speed(diagnose: Diagnose) -> None:
    random = np.random.default_rng(4)
    depth = np.linspace(300, 220, 600) + random.normal(0, 4, 600)
    speed = 26000 * (1 + random.normal(0, 0.01, 600))
    (drift,) = of(diagnose(rows_of(curve(), prefetch_queue_depth=depth, tok_per_s=speed)), "queue_drift")
    assert drift.detail["throughput"] == "constant" and drift.detail["to"] == pytest.approx(220, abs=5)
    assert not of(diagnose(rows_of(curve(), prefetch_queue_depth=depth * 0 + 300 + random.normal(0, 4, 600))), "queue_drift")


def test_a_lasting_change_of_speed(diagnose: Diagnose) -> None:
    speed = 26000 * (1 + np.random.default_rng(5).normal(0, 0.01, 600))
    speed[350:] *= 0.7
    (change,) = of(diagnose(rows_of(curve(), tok_per_s=speed)), "throughput_change")
    assert abs(change.step - 351) <= 3 and change.severity == "warning"


def test_learning_rate_that_starts_again_and_one_that_is_rounded(diagnose: Diagnose) -> None:
    cosine = 1e-3 * 0.5 * (1 + np.cos(np.linspace(0, np.pi, 600)))
    again = cosine.copy()
    again[400:] = cosine[:200]
    assert of(diagnose(rows_of(curve(), lr=again)), "lr_break")[0].step == 401
    assert not of(diagnose(rows_of(curve(), lr=np.round(cosine, 5))), "lr_break")
    warm = np.concatenate([1e-3 * np.arange(1, 19) / 18, cosine])[:600]
    again = np.concatenate([warm[:450], warm[:150]])
    assert [f.step for f in of(diagnose(rows_of(curve(), lr=again)), "lr_break")] == [451]
    assert not of(diagnose(rows_of(curve(), lr=warm)), "lr_break"), "a warm-up and its end are no break"


def test_sum_for_mean(diagnose: Diagnose) -> None:
    rows = rows_of(4 * curve())
    for i in range(10):
        rows[60 * i + 59]["val_loss"] = rows[60 * i + 59]["loss"] / 4
    result = diagnose(rows)
    assert of(result, "loss_scale_wrong")[0].detail["factor"] == 4 and result.verdict.word == "loss_scale_wrong"


def test_running_mean_that_restarts(diagnose: Diagnose) -> None:
    loss = np.concatenate([0.5 - 1e-5 * np.arange(60), [0.9], 0.52 - 1e-5 * np.arange(5)])
    found = of(diagnose(rows_of(loss)), "logging_artifact")
    assert found and found[0].detail["artefact"] == "running_mean_restart" and found[0].step == 61


def test_lines_of_two_grids(diagnose: Diagnose) -> None:
    random = np.random.default_rng(6)
    rows = [{"step": s, "loss": 5.2 - s / 1e5 + random.normal(0, 0.002)} for s in range(111, 9000, 336)]
    rows += [{"step": s, "loss": 4.6 + random.normal(0, 0.05)} for s in range(1000, 9000, 1000)]
    result = diagnose(sorted(rows, key=lambda r: r["step"]), "checkpoint=every:1000")
    assert of(result, "logging_artifact")[0].detail["artefact"] == "log_position_aliasing" and not result.verdict.unhealthy


def test_window_carried_over_the_epoch(diagnose: Diagnose) -> None:
    loss = curve(900)
    loss[[300, 600]] *= 1.5
    rows = rows_of(loss, every=32, epoch=np.arange(900) // 300, grad_norm=np.ones(900))
    found = of(diagnose(rows), "logging_artifact")
    assert [f.step for f in found] == [301 * 32, 601 * 32] and found[0].detail["ratio"] == pytest.approx(1.5, abs=0.1)


def test_a_short_noisy_log_is_not_called(diagnose: Diagnose) -> None:
    loss = 0.6 + 0.11 * np.random.default_rng(7).normal(size=128)
    loss[40] = 1.13
    result = diagnose(rows_of(loss))
    assert result.verdict.word == "inconclusive" and of(result, "single_outlier")[0].step == 41


def test_a_short_log_with_little_noise_is_called(diagnose: Diagnose) -> None:
    result = diagnose(rows_of(curve(20)))
    assert result.verdict.word == "healthy" and result.causes[0].cause == "normal"
