"""Gathers the facts of a report from what the stages left: the log, the evaluation, the manifests."""

from collections import Counter
from datetime import UTC, datetime
from itertools import groupby
from pathlib import Path

from dflash_core.checkpoint.manifest import read_status, read_verdict
from dflash_core.checkpoint.store import CheckpointStore
from dflash_core.config import Config
from dflash_core.data.dataset import Dataset, DatasetManifest
from dflash_core.data.plan_manifest import PlanManifest, read_plan_manifest
from dflash_core.errors import IdentityError
from dflash_core.evaluation.acceptance import Acceptance
from dflash_core.evaluation.record_file import read_record
from dflash_core.evaluation.records import EvaluationRecord, Outputs, Piece
from dflash_core.evaluation.records import SampleDecode as DecodedSample
from dflash_core.report.evaluation_facts import evaluation_rows, evaluation_tables, speed_up, with_interval
from dflash_core.report.facts import Facts, Measured, ProofRow, SampleDecode, TrainingCurves
from dflash_core.stages import layout
from dflash_core.training.log_reader import read_log
from dflash_core.training.records import CheckpointRecord, EvalRecord, Record, ResumeRecord, StartRecord, StepRecord

# Accuracies by slot are averaged over the run's last tenth: a single step has too few blocks.
LAST_SHARE = 0.1
BIN_TOKENS = 8


def collect(config: Config, workdir: Path) -> Facts:
    """Read a finished chain's outputs in `workdir`.

    Raises:
        DataError: one is missing or broken.
        IdentityError: the evaluation is of another run's drafter.
    """
    records = read_log(workdir / config.run_dir / "train_log.jsonl")
    evaluation = read_record(workdir / layout.EVALUATION)
    _check_same_run(records, evaluation)
    dataset = Dataset.open(workdir / layout.PREPARED, "train")
    plan = read_plan_manifest(workdir / layout.PLAN)
    bins = Counter(int(n) // BIN_TOKENS * BIN_TOKENS for n in dataset.lengths)
    curves = _curves(records)
    return Facts(
        title=config.run,
        headline=_headline(curves, evaluation, plan),
        identity=_identity(config, records, dataset.manifest),
        evaluation=evaluation_rows(evaluation),
        tables=evaluation_tables(evaluation),
        curves=curves,
        overall=_measured(evaluation.acceptance),
        categories={name: _measured(a) for name, a in evaluation.by_category.items()},
        buckets=tuple(sorted((int(bound), rows) for bound, rows in plan.histogram.items())),
        bucket_multiple=plan.bucket["multiple"],
        lengths=tuple((start, bins[start]) for start in range(min(bins), max(bins) + BIN_TOKENS, BIN_TOKENS)),
        padding_waste=plan.padding_waste,
        samples=tuple(_sample(s) for s in evaluation.samples),
        proofs=proof_rows(CheckpointStore(workdir / config.run_dir / "checkpoints")),
        raw_evaluation=evaluation.model_dump(mode="json", exclude={"samples"}),
    )


def proof_rows(store: CheckpointStore) -> tuple[ProofRow, ...]:
    """What stands beside each checkpoint."""
    rows = []
    for name in store.names():
        verdict = read_verdict(store.root / name)
        rows.append(
            ProofRow(
                name=name,
                status=read_status(store.root / name),
                sound=bool(verdict.get("sound")),
                fault=verdict.get("fault"),
                first_difference=verdict.get("first_difference"),
                reason=verdict.get("reason", "No proof was tried."),
            )
        )
    return tuple(rows)


def _check_same_run(records: tuple[Record, ...], evaluation: EvaluationRecord) -> None:
    measured = evaluation.subjects.drafter_lineage.get("run_id")
    if records and measured is not None and measured != records[0].run_id:
        raise IdentityError(
            f"the evaluation is of a drafter of run {measured}, the training log is of run {records[0].run_id}. Run stage evaluate again."
        )


def _curves(records: tuple[Record, ...]) -> TrainingCurves:
    steps = [r for r in records if isinstance(r, StepRecord)]
    evals = [r for r in records if isinstance(r, EvalRecord) and r.metrics.get("tau") is not None]
    return TrainingCurves(
        steps=tuple(r.step for r in steps),
        loss=tuple(r.loss for r in steps),
        streak=tuple(r.streak for r in steps),
        lr=tuple(r.lr for r in steps),
        grad_norm=tuple(r.grad_norm for r in steps),
        slot_accuracy=_slot_accuracy(steps[-max(1, int(len(steps) * LAST_SHARE)) :]),
        eval_steps=tuple(r.step for r in evals),
        eval_tau=tuple(float(r.metrics["tau"] or 0) for r in evals),
    )


def _slot_accuracy(steps: list[StepRecord]) -> tuple[float | None, ...]:
    """Share of right tokens by slot, weighted by the number of labels."""
    num_slots = len(steps[0].per_position_count) if steps else 0
    right = [sum((r.per_position_accuracy[k] or 0.0) * r.per_position_count[k] for r in steps) for k in range(num_slots)]
    count = [sum(r.per_position_count[k] for r in steps) for k in range(num_slots)]
    return tuple(hits / n if n else None for hits, n in zip(right, count, strict=True))


def _headline(curves: TrainingCurves, evaluation: EvaluationRecord, plan: PlanManifest) -> dict[str, str]:
    outputs, speed = evaluation.outputs, evaluation.speed
    last = curves.loss[-max(1, len(curves.loss) // 10) :]
    return {
        "acceptance length τ": with_interval(evaluation.acceptance, 2),
        "outputs equal to the target's": _equal(outputs) if outputs else "sampled",
        "speed against the target alone": speed_up(speed.speedup, speed.speedup_low, speed.speedup_high),
        "optimizer steps": f"{curves.steps[-1]:,}" if curves.steps else "-",
        "loss, last tenth": f"{sum(last) / len(last):.3f}" if last else "-",
        "padding": f"{plan.padding_waste:.1%}",
    }


def _equal(outputs: Outputs) -> str:
    return f"{outputs.num_equal} of {outputs.num_prompts}" + (f", {outputs.num_ties} ties" if outputs.num_ties else "")


def _identity(config: Config, records: tuple[Record, ...], manifest: DatasetManifest) -> dict[str, str]:
    starts = [r for r in records if isinstance(r, StartRecord)]
    steps = [r for r in records if isinstance(r, StepRecord)]
    checkpoints = [r for r in records if isinstance(r, CheckpointRecord)]
    versions = starts[0].versions if starts else {}
    first = datetime.fromtimestamp(records[0].wall_time, UTC) if records else None
    return {
        "run": f"{config.run}, {records[0].run_id}" if records else config.run,
        "started": f"{first:%Y-%m-%d %H:%M} UTC" if first else "-",
        "sessions": f"{1 + sum(isinstance(r, ResumeRecord) for r in records)}",
        "target": f"{config.target.path}, {manifest.target[:12]}, {config.target.dtype}",
        "tokenizer, template": f"{manifest.tokenizer[:12]}, {manifest.chat_template[:12]}",
        "data": "; ".join(f"{name}: {s.rows:,} rows, {s.supervised_tokens:,} supervised tokens" for name, s in manifest.splits.items()),
        "dataset": manifest.digest[:12],
        "drafter": f"{config.drafter.num_layers} layers, block {config.drafter.block_size}, init from {config.drafter.init_from or config.drafter.init}",
        "objective": config.objective.kind,
        "optimizer": f"AdamW {config.training.learning_rate:g}, betas {config.training.betas}, weight decay {config.training.weight_decay:g}, "
        f"{config.training.schedule}",
        "precision": f"float32 masters, {config.training.precision} compute",
        "time in steps": _time_split(steps),
        "checkpoint": f"{checkpoints[-1].name}, {checkpoints[-1].digest[:12]}" if checkpoints else "-",
        "versions": ", ".join(f"{name} {version}" for name, version in versions.items()),
    }


def _time_split(steps: list[StepRecord]) -> str:
    parts = {
        "drafter": sum(r.drafter_s for r in steps),
        "target": sum(r.target_s for r in steps),
        "waiting for data": sum(r.data_wait_s for r in steps),
        "checkpoints": sum(r.checkpoint_s for r in steps),
    }
    total = sum(parts.values())
    return f"{total:,.0f} s: " + ", ".join(f"{name} {s / total:.0%}" for name, s in parts.items()) if total else "-"


def _measured(a: Acceptance) -> Measured:
    return Measured(
        tau=a.tau,
        low=a.tau_low,
        high=a.tau_high,
        num_prompts=a.num_prompts,
        num_rounds=a.num_rounds,
        num_tokens=a.num_tokens,
        histogram=tuple(a.histogram),
        survival=tuple(a.survival),
    )


def _sample(decoded: DecodedSample) -> SampleDecode:
    """Join the tokens that one target forward committed."""

    def of_round(piece: Piece) -> tuple[bool, int]:
        return piece.kind == "first", piece.round

    blocks: list[tuple[int, str]] = []
    for (is_prefill, _), pieces in groupby(decoded.pieces, of_round):
        texts = [piece.text for piece in pieces]
        blocks.append((0 if is_prefill else len(texts), "".join(texts)))
    return SampleDecode(
        sample_id=decoded.sample_id, category=decoded.category, tau=decoded.tau, prompt=decoded.prompt, blocks=tuple(blocks)
    )
