"""Draws the README's figure from the log of a run: python benchmarks/readme_figure.py RUN_DIR docs/demo.png."""

import sys
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
from matplotlib import pyplot as plt

from dflash_core.report.figures import smooth
from dflash_core.training.log_reader import read_log
from dflash_core.training.records import EvalRecord, StepRecord

SPAN = 25  # steps of the running mean


def draw(run_dir: Path, out: Path) -> None:
    records = read_log(run_dir / "train_log.jsonl")
    steps = [r for r in records if isinstance(r, StepRecord)]
    evals = [r for r in records if isinstance(r, EvalRecord)]
    figure, (left, right) = plt.subplots(1, 2, figsize=(9, 2.8), layout="constrained")
    numbers = [r.step for r in steps]
    left.plot(numbers, [r.loss for r in steps], color="#c8d3e6", linewidth=0.8)
    left.plot(numbers, smooth([r.loss for r in steps], SPAN), color="#1f4e9c", linewidth=1.6)
    left.set(xlabel="optimizer step", ylabel="loss (nats)", title="training loss")
    taus = [r.metrics["tau"] for r in evals]
    low, high = ([r.metrics[name] for r in evals] for name in ("tau_low", "tau_high"))
    at = [r.step for r in evals]
    right.fill_between(at, low, high, color="#f3d9c2")
    right.plot(at, taus, "o-", color="#b4561b", linewidth=1.6)
    right.set(xlabel="optimizer step", ylabel="tokens per target forward", title="acceptance length, held-out (95 %)")
    for axes in (left, right):
        axes.spines[["top", "right"]].set_visible(False)
        axes.grid(alpha=0.25)
    out.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(out, dpi=110)


if __name__ == "__main__":
    draw(Path(sys.argv[1]), Path(sys.argv[2]))
