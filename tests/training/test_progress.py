"""The line a person reads."""

import io
from dataclasses import replace

from rich.console import Console

from dflash_core.training.progress import ProgressLine, waiting
from dflash_core.training.records import StepRecord

RECORD = StepRecord(
    run_id="r", session_id="s", step=1, wall_time=0.0, epoch=0, loss=3.25, loss_sum=6.5, denominator=2.0, per_position_accuracy=(0.5,),
    per_position_count=(2,), streak=1.5, num_blocks=2, grad_norm=0.7, lr=1e-3, noise_std=0.0, tokens=1000, padded_tokens=1100, buckets=(32,),
    first_sample=0, last_sample=1, hs_queue_depth=0, prefetch_queue_depth=0, tok_per_s=2500.0, data_wait_s=0.6, target_s=0.5, target_idle_s=0.0,
    drafter_s=0.4, checkpoint_s=0.0, imbalance=1.0,
)  # fmt: skip


def shown(terminal: bool, times: list[float]) -> str:
    """What 120 steps of one second print, the clock read as given."""
    text = io.StringIO()
    moments = iter(times)
    with ProgressLine(120, 0, Console(file=text, force_terminal=terminal, width=200), clock=lambda: next(moments)) as progress:
        for step in range(1, 121):
            progress.update(replace(RECORD, step=step))
    return text.getvalue()


def test_without_a_terminal_a_plain_line_comes_every_ten_seconds() -> None:
    lines = shown(False, [float(second) for second in range(121)]).splitlines()
    assert len(lines) == 13, "steps 1, 11, ..., 111, and the last"
    assert lines[1] == (
        "step 11/120 loss 3.250 streak 1.50 2,500 tok/s 1.00 s/step 0:01:49 left, target-bound, drafter busy 40%, target busy 100%"
    )
    assert lines[-1].startswith("step 120/120")


def test_on_a_terminal_one_line_is_redrawn() -> None:
    text = shown(True, [float(second) for second in range(121)])
    assert "120/120" in text and "target-bound" in text and "streak 1.50" in text


def test_it_says_which_side_sets_the_pace() -> None:
    held_back = replace(RECORD, data_wait_s=0.01, drafter_s=0.99, target_s=0.25, target_idle_s=0.75)
    assert waiting(held_back) == "drafter-bound, drafter busy 99%, target busy 25%"
    assert waiting(replace(RECORD, target_s=0.0)) == "target-bound, drafter busy 40%"
    assert waiting(replace(RECORD, checkpoint_s=4.0)) == "target-bound, drafter busy 8%, target busy 100%, saving 80%"
