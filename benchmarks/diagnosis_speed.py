"""Measures the diagnoser on large logs: time from the command to its exit, processor time, peak memory, size of the report.

    python benchmarks/diagnosis_speed.py --rows 1000000 --block-size 16

Two files are made: step records as our own trainer writes them (block 16: fifteen accuracies a record), and a CSV of eight
columns. Each is diagnosed by the command line in a process of its own, with JSON and HTML written.
"""

import argparse
import json
import os
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv as arrow_csv

from dflash_core.training.records import StepRecord, to_line

# Records that are written whole by the trainer's own code; the others repeat them with their step, loss and rate.
WHOLE = 500


def losses(rows: int) -> np.ndarray:
    """A falling loss with one spike that takes 30 lines. float64 [rows]"""
    random = np.random.default_rng(0)
    loss = (0.8 + 8 * (1 + np.arange(rows) / (0.02 * rows)) ** -1.2) * (1 + 0.03 * random.normal(size=rows))
    loss[rows // 2 : rows // 2 + 30] += 5 * np.exp(-np.arange(30) / 8)
    return loss


def write_records(path: Path, rows: int, block_size: int) -> None:
    """`rows` step records."""
    random = np.random.default_rng(1)
    loss, rate = losses(rows).tolist(), (6e-4 * (1 - np.arange(rows) / rows)).tolist()
    patterns = [_pattern(i, block_size, random) for i in range(WHOLE)]
    with path.open("w", encoding="utf-8", newline="\n") as file:
        for i in range(rows):
            file.write(patterns[i % WHOLE] % (i + 1, loss[i], rate[i]))


def _pattern(i: int, block_size: int, random: np.random.Generator) -> str:
    """One record's line with %r for step, loss and rate."""
    record = StepRecord(
        run_id="1f0c2b9d8e7a", session_id="a1b2c3d4e5f6", step=0, wall_time=1.7e9 + i + random.random(), epoch=0, loss=0.0, loss_sum=900 * random.random(),
        denominator=512.25, per_position_accuracy=tuple(random.uniform(0.2, 0.3, block_size - 1).tolist()), per_position_count=(512,) * (block_size - 1),
        streak=random.uniform(1.4, 1.6), num_blocks=512, grad_norm=float(np.exp(random.normal(0, 0.1))), lr=0.0, noise_std=0.0, tokens=60_000 + i,
        padded_tokens=65_536, buckets=(1024, 1024, 2048, 2048), first_sample=8 * i, last_sample=8 * i + 7, hs_queue_depth=2,
        prefetch_queue_depth=int(random.integers(290, 310)), tok_per_s=random.uniform(25_900, 26_100), data_wait_s=random.random() / 1e3,
        target_s=random.random(), drafter_s=random.random(), checkpoint_s=0.0,
    )  # fmt: skip
    line = to_line(replace(record, step=-1, loss=-2.0, lr=-3.0)).decode()
    return line.replace('"step": -1', '"step": %r').replace('"loss": -2.0', '"loss": %r').replace('"lr": -3.0', '"lr": %r')


def write_csv(path: Path, rows: int) -> None:
    """Eight columns."""
    random, n = np.random.default_rng(2), np.arange(rows)
    columns = {
        "step": n + 1,
        "loss": losses(rows),
        "lr": 6e-4 * (1 - n / rows),
        "grad_norm": np.exp(random.normal(0, 0.1, rows)),
        "accuracy": 0.3 + 0.01 * random.normal(size=rows),
        "tok_per_s": 26_000 * (1 + 0.01 * random.normal(size=rows)),
        "tokens": n * 8192,
        "epoch": n * 6 // rows,
    }
    arrow_csv.write_csv(pa.table(columns), path)


def measure(log: Path) -> dict[str, Any]:
    """One diagnosis by the command line, in a process of its own."""
    page = log.with_suffix(".html")
    command = [sys.executable, "-m", "dflash_core", "diagnose", str(log), "--json", str(log.with_suffix(".diagnosis.json")), "--html", str(page)]
    started = time.perf_counter()
    child = os.posix_spawn(sys.executable, command, os.environ, file_actions=[(os.POSIX_SPAWN_OPEN, 1, os.devnull, os.O_WRONLY, 0)])
    _, status, used = os.wait4(child, 0)
    return {
        "log": log.name,
        "mb": round(log.stat().st_size / 1e6),
        "exit_code": os.waitstatus_to_exitcode(status),
        "wall_s": round(time.perf_counter() - started, 2),
        "cpu_s": round(used.ru_utime + used.ru_stime, 2),
        "peak_gb": round(used.ru_maxrss * 1024 / 1e9, 2),
        "html_kb": round(page.stat().st_size / 1e3),
    }


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--block-size", type=int, default=16)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--json", type=Path, metavar="FILE")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        records, table = Path(directory) / "train_log.jsonl", Path(directory) / "log.csv"
        write_records(records, arguments.rows, arguments.block_size)
        write_csv(table, arguments.rows)
        results = [measure(log) for log in (records, table) for _ in range(arguments.repeats)]
    print(json.dumps(results, indent=1))
    if arguments.json:
        arguments.json.write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
