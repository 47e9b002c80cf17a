"""Puts forty resume faults into runs of our own and asks the proof for each; healthy checkpoints beside them.

    python benchmarks/fault_battery.py --n 40 --healthy 50 --json battery.json

The runs are real ones of a tiny random target, with feature noise on and still warming up, trained through the stage. Each
fault (benchmarks/resume_faults.py) is put behind a checkpoint in the middle of a run. Healthy checkpoints come from runs
with several objectives, schedules and precisions, and from sessions that resume rightly. Exit status 0: every fault is
rejected, its class right in nine of ten, and no healthy checkpoint rejected.
"""

import argparse
import json
import os
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch
from kill_campaign import make_workspace
from recorded_sessions import put_fault
from resume_faults import FAULTS, Bench, ResumeFault, Session

from dflash_core.checkpoint.resume import RunDirectory
from dflash_core.config import Config, load_config
from dflash_core.proof.band import MEASURED, measured_band
from dflash_core.proof.conduct import prove_and_mark
from dflash_core.proof.prove import DEFAULT_STEPS, prove
from dflash_core.proof.recorded import RecordedRun
from dflash_core.proof.replay import Setting, replay
from dflash_core.stages.proof_setting import open_setting
from dflash_core.stages.train import train

STEPS, EVERY, FAULT_AT = 40, 2, 20
AFTER = 4
NOISE = {"std": 0.1, "warmup_steps": 30}
VARIANTS: tuple[dict[str, Any], ...] = (
    {"run": "noise", "training": {"feature_noise": NOISE}},
    {"run": "dpace", "training": {"feature_noise": NOISE, "schedule": "wsd"}, "objective": {"kind": "dpace"}},
    {"run": "bf16", "training": {"precision": "bfloat16", "weight_decay": 0.1}},
)
RIGHT_SHARE = 0.9


@dataclass(frozen=True)
class Judged:
    """What the proof said of one checkpoint."""

    name: str
    kind: str
    expected: str | None  # None: healthy
    rejected: bool
    fault: str | None
    first_difference: str | None
    evidence: str
    seconds: float  # diagnosis included

    @property
    def right(self) -> bool:
        """As it should be."""
        return self.rejected == (self.expected is not None) and self.fault == self.expected


def main(arguments: list[str] | None = None) -> int:
    """Run the battery; see the module's text."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--n", type=int, default=len(FAULTS), help="faults, in the order of the list")
    parser.add_argument("--healthy", type=int, default=50, help="healthy checkpoints")
    parser.add_argument("--only", help="faults whose name has this in it")
    parser.add_argument("--elsewhere", action="store_true", help="prove as if on another machine: within the measured band, not bit for bit")
    parser.add_argument("--json", type=Path, help="JSON to write")
    options = parser.parse_args(arguments)
    faults = [fault for fault in FAULTS if not options.only or options.only in fault.name][: options.n]
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory(prefix="fault-battery-") as directory:
        result = campaign(Path(directory), faults, options.healthy, options.elsewhere)
    print(table(result))
    if options.json:
        options.json.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    return 0 if result["passed"] else 1


def campaign(directory: Path, faults: Sequence[ResumeFault], num_healthy: int, elsewhere: bool = False) -> dict[str, Any]:
    """Train the runs in `directory`, put the faults in, prove everything."""
    workspace = make_workspace(directory / "workspace", STEPS)
    configs = [variant_of(workspace, variant) for variant in VARIANTS[: max(1, -(-num_healthy // 15))]]
    with open(os.devnull, "w", encoding="utf-8") as silent:
        sys.stderr, kept = silent, sys.stderr  # progress lines
        for config in configs:
            train(config, workspace, resume=False)
        sys.stderr = kept
    runs = [workspace / config.run_dir for config in configs]
    settings = [open_setting(RecordedRun(run)) for run in runs]
    if elsewhere:
        settings = [replace(setting, conditions={**setting.conditions, "device": "another machine"}) for setting in settings]
    faulty = list(judge_faults(settings[0], runs[0], directory / "faults", faults))
    healthy = [judged for setting, run in zip(settings, runs, strict=True) for judged in judge_healthy(setting, run, directory / run.name)]
    orders = [ratio for setting, run in zip(settings, runs, strict=True) for ratio in other_orders(setting, run)] if num_healthy else []
    return summary(faulty, healthy[:num_healthy]) | {"other_orders": len(orders), "outside_the_band": sum(ratio > 1 for ratio in orders)}


def variant_of(workspace: Path, variant: Mapping[str, Any]) -> Config:
    """The workspace's configuration, changed."""
    tree = load_config(workspace / "params.yaml").model_dump(mode="json")
    for section, values in {"checkpoint": {"every": EVERY, "keep_last": STEPS, "wait": True, "proof_steps": DEFAULT_STEPS}, **variant}.items():
        tree[section] = values if not isinstance(values, dict) or section == "objective" else tree[section] | values
    return Config.model_validate(tree)


def judge_faults(setting: Setting, run_dir: Path, directory: Path, faults: Sequence[ResumeFault], at: int = FAULT_AT) -> Iterator[Judged]:
    """Put each fault behind the checkpoint of step `at`, and prove that."""
    store = RunDirectory(run_dir).store
    history = {int(name.removeprefix("step-")): store.load(name)[1] for name in store.names()}
    bench = Bench(setting, history[at], history)
    for fault in faults:
        target = directory / fault.name
        target.mkdir(parents=True)
        name = put_fault(run_dir, target, bench, fault, AFTER)
        verdict = prove_and_mark(setting, RecordedRun(target), name)
        yield _judged(fault.name, fault.kind, fault.expected, verdict.outcome == "rejected", verdict)


def judge_healthy(setting: Setting, run_dir: Path, directory: Path) -> Iterator[Judged]:
    """Every checkpoint, and one that another session went on from rightly."""
    recorded = RecordedRun(run_dir)
    store = recorded.directory.store
    names = store.names()  # the last one by the steps past the end
    for name in names:
        verdict = prove(setting, recorded, name)
        yield _judged(f"{run_dir.name}/{name}", "healthy", None, not verdict.sound, verdict)
    middle = names[len(names) // 2]
    bench = Bench(setting, store.load(middle)[1], {})
    (directory / "resumed").mkdir(parents=True)
    put_fault(run_dir, directory / "resumed", bench, ResumeFault("none", "", "session", session=Session()), AFTER)
    verdict = prove(setting, RecordedRun(directory / "resumed"), middle)
    yield _judged(f"{run_dir.name}/{middle}, resumed", "healthy", None, not verdict.sound, verdict)


def other_orders(setting: Setting, run_dir: Path) -> Iterator[float]:
    """Healthy steps added up as 3 and 4 ranks would, against the band of 1 and 2: the largest difference in widths of the band."""
    store = RunDirectory(run_dir).store
    for name in store.names():
        contents = store.load(name)[1]
        one, two, *others = (replay(setting, contents, DEFAULT_STEPS, num_ranks=ranks) for ranks in (1, 2, 3, 4))
        band = measured_band(one, two, ())
        for other in others:
            yield max(
                abs(getattr(a, field) / getattr(b, field) - 1) / band.width[field][place]
                for place, (a, b) in enumerate(zip(one, other, strict=True))
                for field in MEASURED
            )


def _judged(name: str, kind: str, expected: str | None, rejected: bool, verdict: Any) -> Judged:
    evidence = verdict.evidence[0] if verdict.evidence else verdict.reason
    return Judged(name, kind, expected, rejected, verdict.fault, verdict.first_difference, evidence, verdict.seconds)


def summary(faulty: Sequence[Judged], healthy: Sequence[Judged]) -> dict[str, Any]:
    """The counts that acceptance asks for."""
    rejected, right = sum(j.rejected for j in faulty), sum(j.right for j in faulty)
    wrongly = sum(j.rejected for j in healthy)
    seconds = sorted(j.seconds for j in healthy)
    return {
        "faults": [asdict(j) | {"right": j.right} for j in faulty],
        "num_faults": len(faulty),
        "rejected": rejected,
        "right_class": right,
        "num_healthy": len(healthy),
        "healthy_rejected": wrongly,
        "healthy_failures": [asdict(j) for j in healthy if j.rejected],
        "steps_of_a_proof": DEFAULT_STEPS,
        "seconds_of_a_proof": seconds[len(seconds) // 2] if seconds else None,
        "seconds_of_a_diagnosis_at_most": max((j.seconds for j in faulty), default=None),
        "passed": rejected == len(faulty) and right >= RIGHT_SHARE * len(faulty) and wrongly == 0,
    }


def table(result: Mapping[str, Any]) -> str:
    """For a terminal."""
    lines = [f"{'fault':48} {'in':8} {'rejected':9} {'class named':17} {'s':>5}  first difference; evidence"]
    for row in result["faults"]:
        named = (row["fault"] or "-") + ("" if row["right"] else f" (is {row['expected']})")
        rejected = "yes" if row["rejected"] else "NO"
        lines.append(
            f"{row['name']:48} {row['kind']:8} {rejected:9} {named:17} {row['seconds']:5.1f}  {(row['first_difference'] or '-')[:110]}; {row['evidence'][:110]}"
        )
    lines.append(
        f"{result['rejected']} of {result['num_faults']} rejected, class right in {result['right_class']}; "
        f"{result['healthy_rejected']} of {result['num_healthy']} healthy ones rejected; "
        f"{result['outside_the_band']} of {result['other_orders']} replays in another order of additions outside the band; "
        f"a proof replays {result['steps_of_a_proof']} steps, median {result['seconds_of_a_proof'] or 0:.2f} s here"
    )
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
