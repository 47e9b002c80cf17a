"""Stage `evaluate`: acceptance length and speed of a drafter on held-out prompts, by real decoding.

Every prompt is decoded twice, by the target alone and with the drafter; the outputs must be the same. The chain walk
over the same answers is then held to the real rounds, so that the cheap figure seen during training can be trusted.
"""

import os
import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from dflash_core.checkpoint.exported import load_drafter, read_json, read_lineage, read_spec
from dflash_core.config import Config
from dflash_core.data.dataset import Dataset
from dflash_core.data.identity import target_identity
from dflash_core.data.plan_manifest import check_target
from dflash_core.drafter.model import Drafter
from dflash_core.drafter.spec import DrafterSpec
from dflash_core.errors import CheckpointError, DataError, GateError, IdentityError
from dflash_core.evaluation.acceptance import by_category, histogram_PK, summarise
from dflash_core.evaluation.compare import PromptResult, compare_outputs, compare_walk
from dflash_core.evaluation.decode import speculative_greedy, target_greedy
from dflash_core.evaluation.progress import DecodingProgress
from dflash_core.evaluation.prompts import HeldoutPrompt, choose_prompts
from dflash_core.evaluation.records import EvaluationRecord, PromptRecord, Speed, Subjects
from dflash_core.evaluation.samples import sample_decodes
from dflash_core.target.model import Target
from dflash_core.target.part_files import stop_token_ids

MOST_WALK_TIES = 0.01  # share of prompts in which a near tie may part the chain walk from real decoding


def evaluate(config: Config, workdir: Path, prepared_dir: Path, drafter_dir: Path, out_path: Path) -> EvaluationRecord:
    """Measure an exported drafter, write evaluation.json (atomically) and return it.

    Args:
        config: `evaluation` says how much is decoded and in which dtype; target.path is relative to `workdir`.
        workdir: working directory of the run.
        prepared_dir: output of stage prepare; its held-out split is measured.
        drafter_dir: an export in z-lab's layout.
        out_path: evaluation.json.

    Raises:
        ConfigError, CheckpointError, DataError, IdentityError: an input is missing or of another target; raised
            before a model is loaded.
        GateError: in float32, an output differs from the target's own beyond a tie, or the chain walk from the rounds
            of real decoding. evaluation.json is written first, with the positions.
    """
    target_dir = workdir / config.target.path
    _, subjects = check_subjects(config, target_dir, drafter_dir)
    heldout = Dataset.open(prepared_dir, "heldout")
    check_target(heldout, target_dir)
    prompts = choose_prompts(heldout, config.evaluation.num_prompts)
    check_lengths(prompts, config.evaluation.max_new_tokens, target_dir)
    dtype = getattr(torch, config.evaluation.dtype)
    target = Target.load(config.target.model_copy(update={"path": str(target_dir), "dtype": config.evaluation.dtype}))
    drafter = load_drafter(drafter_dir, dtype, target.device)
    results = decode_prompts(target, drafter, prompts, config.evaluation.max_new_tokens)
    record = make_record(config, target, drafter, subjects.model_copy(update={"device": str(target.device)}), results)
    write_record(record, out_path)
    _refuse_faults(record, out_path)
    return record


def check_subjects(config: Config, target_dir: Path, drafter_dir: Path) -> tuple[DrafterSpec, Subjects]:
    """Whether drafter and target belong together, from their files alone.

    Raises:
        CheckpointError, ConfigError, IdentityError: with both values.
    """
    spec, lineage = read_spec(drafter_dir), read_lineage(drafter_dir)
    tree = _text_config(target_dir)
    for field, own in (
        ("hidden_size", spec.hidden_size),
        ("num_hidden_layers", spec.num_target_layers),
        ("vocab_size", spec.vocab_size),
    ):
        if field in tree and tree[field] != own:
            raise IdentityError(
                f"{drafter_dir} was made for a target with {field} {own}, {target_dir} has {tree[field]}. "
                "Name the drafter's own target."
            )
    identity = target_identity(target_dir)
    if lineage.get("target_identity", identity) != identity:
        raise IdentityError(
            f"{drafter_dir} was made for target {lineage['target_identity'][:12]}, {target_dir} is {identity[:12]}. "
            "Name the drafter's own target, or train again."
        )
    subjects = Subjects(
        drafter_path=str(drafter_dir),
        drafter_lineage=lineage,
        target_path=config.target.path,
        target_identity=identity,
        dtype=config.evaluation.dtype,
        block_size=spec.block_size,
        max_new_tokens=config.evaluation.max_new_tokens,
        num_threads=torch.get_num_threads(),
        device="cpu",
    )
    return spec, subjects


def check_lengths(prompts: Sequence[HeldoutPrompt], max_new_tokens: int, target_dir: Path) -> None:
    """Raise DataError where a prompt and its answer may outgrow the target's context: past it any text is as good as noise."""
    limit = _text_config(target_dir).get("max_position_embeddings")
    longest = max(prompts, key=lambda prompt: len(prompt.prompt_ids))
    needed = len(longest.prompt_ids) + max_new_tokens
    if limit is not None and needed > limit:
        raise DataError(
            f"prompt {longest.sample_id!r} and {max_new_tokens} new tokens make {needed} tokens, expected at most the target's "
            f"{limit}. Lower evaluation.max_new_tokens, or data.max_length and run stage prepare again."
        )


def _text_config(target_dir: Path) -> dict[str, Any]:
    tree = read_json(target_dir / "config.json", "the target")
    return tree.get("text_config", tree)


def decode_prompts(
    target: Target, drafter: Drafter, prompts: Sequence[HeldoutPrompt], max_new_tokens: int
) -> tuple[PromptResult, ...]:
    """Answer every prompt twice. A short answer is decoded first and thrown away: first calls pay for set-up."""
    stops = stop_token_ids(target.model, target.tokenizer)
    for decode in (lambda ids: target_greedy(target, ids, 4, ()), lambda ids: speculative_greedy(target, drafter, ids, 4, ())):
        decode(prompts[0].prompt_ids)
    results = []
    with DecodingProgress(len(prompts)) as progress:
        for prompt in prompts:
            plain = target_greedy(target, prompt.prompt_ids, max_new_tokens, stops)
            speculative = speculative_greedy(target, drafter, prompt.prompt_ids, max_new_tokens, stops)
            results.append(PromptResult(prompt, plain, speculative))
            progress.update(speculative.rounds, plain.seconds.total, speculative.seconds.total)
    return tuple(results)


def make_record(
    config: Config, target: Target, drafter: Drafter, subjects: Subjects, results: Sequence[PromptResult]
) -> EvaluationRecord:
    """All of evaluation.json from the decoded prompts; runs the chain walk."""
    table_PK = histogram_PK([r.speculative.rounds for r in results], drafter.spec.block_size)
    categories, samples = [r.prompt.category for r in results], config.evaluation.bootstrap_samples
    outputs = compare_outputs(target, results, config.evaluation.tie_margin)
    return EvaluationRecord(
        subjects=subjects,
        acceptance=summarise(table_PK, samples),
        by_category=by_category(table_PK, categories, samples),
        outputs=outputs,
        walk=compare_walk(target, drafter, results, outputs, config.evaluation.tie_margin),
        speed=measure_speed(results),
        prompts=tuple(
            PromptRecord(
                sample_id=r.prompt.sample_id,
                category=r.prompt.category,
                num_tokens=len(r.speculative.tokens),
                histogram=tuple(row),
                plain_s=r.plain.seconds.total,
                speculative_s=r.speculative.seconds.total,
            )
            for r, row in zip(results, table_PK.tolist(), strict=True)
        ),
        samples=sample_decodes(target.tokenizer, results),
    )


def measure_speed(results: Sequence[PromptResult]) -> Speed:
    """Sum the wall times. The speed-up compares seconds of the same answers, so it needs no token counts."""
    splits = [r.speculative.seconds for r in results]
    plain_s, speculative_s = sum(r.plain.seconds.total for r in results), sum(s.total for s in splits)
    return Speed(
        plain_s=plain_s,
        speculative_s=speculative_s,
        speedup=plain_s / speculative_s,
        prefill_s=sum(s.prefill for s in splits),
        target_s=sum(s.target for s in splits),
        drafter_s=sum(s.drafter for s in splits),
        overhead_s=sum(s.overhead for s in splits),
        plain_tokens_per_s=sum(len(r.plain.tokens) for r in results) / plain_s,
        speculative_tokens_per_s=sum(len(r.speculative.tokens) for r in results) / speculative_s,
    )


def write_record(record: EvaluationRecord, out_path: Path) -> None:
    """Write evaluation.json whole or not at all. Raises CheckpointError where the file system refuses."""
    temporary = out_path.with_name(f".{out_path.name}.{uuid.uuid4().hex[:8]}")
    try:
        out_path.parent.mkdir(parents=True, exist_ok=True)
        temporary.write_text(record.model_dump_json(indent=1) + "\n", encoding="utf-8")
        os.replace(temporary, out_path)
    except OSError as error:
        temporary.unlink(missing_ok=True)
        raise CheckpointError(
            f"{out_path} can't be written: {error.strerror or error}. Free space or check permissions."
        ) from None


def _refuse_faults(record: EvaluationRecord, out_path: Path) -> None:
    """Raise where float32 results that must be equal aren't. In bfloat16 near ties are everywhere; they are only listed."""
    if record.subjects.dtype != "float32":
        return
    if record.outputs.num_different:
        raise GateError(
            f"{record.outputs.num_different} of {record.outputs.num_prompts} outputs differ from the target's own greedy output, "
            f"expected 0. The positions are in {out_path}; report them, τ can't be trusted."
        )
    ties = sum(difference.tie for difference in record.walk.differences)
    faults = len(record.walk.differences) - ties
    if faults or ties > max(1, MOST_WALK_TIES * record.walk.num_prompts):
        raise GateError(
            f"the chain walk differs from real decoding in {faults} prompts, and by near ties in {ties} of "
            f"{record.walk.num_prompts}, expected 0 and at most 1 %. The positions are in {out_path}; report them."
        )
