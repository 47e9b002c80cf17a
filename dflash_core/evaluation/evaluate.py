"""Stage `evaluate`: acceptance length and speed of a drafter on held-out prompts or prompt sets, by real decoding.

Every prompt is decoded twice, by the target alone and with the drafter. Greedily, the outputs must be the same, and the chain
walk over the same answers is held to the real rounds, so that the cheap figure seen during training can be trusted. The
drafter as it is served is held to the drafter as it is trained.
"""

from collections.abc import Sequence
from pathlib import Path

import torch

from dflash_core.checkpoint.exported import load_drafter
from dflash_core.config import Config, EvaluationConfig
from dflash_core.drafter.model import Drafter
from dflash_core.errors import GateError
from dflash_core.evaluation.acceptance import by_category, histogram_PK, summarise
from dflash_core.evaluation.answering import Answers, decode_prompts
from dflash_core.evaluation.breakdown import by_position, by_prompt_length, by_set
from dflash_core.evaluation.compare import PromptResult, compare_outputs, compare_walk
from dflash_core.evaluation.definitions import definitions
from dflash_core.evaluation.parity import check_parity
from dflash_core.evaluation.questions import choose_questions
from dflash_core.evaluation.record_file import check_place, write_record
from dflash_core.evaluation.records import EvaluationRecord, Parity, PromptRecord, Subjects, WalkAgreement
from dflash_core.evaluation.samples import sample_decodes
from dflash_core.evaluation.speed import against_generate, measure_speed
from dflash_core.evaluation.subjects import check_subjects
from dflash_core.evaluation.walk_set import walk_rows
from dflash_core.target.model import Target

MOST_WALK_TIES = 0.01  # share of prompts in which a near tie may part the chain walk from real decoding
PARITY_TEXTS = 4  # some 300 tokens meet every length of a round many times


def evaluate(
    config: Config, workdir: Path, prepared_dir: Path, drafter_dir: Path, out_path: Path, *, any_target: bool = False, named: str | None = None
) -> EvaluationRecord:
    """Measure an exported drafter, write evaluation.json (atomically) and return it.

    Args:
        config: `evaluation` says what is decoded, how and in which dtype; target.path is relative to `workdir`.
        workdir: working directory of the run.
        prepared_dir: output of stage prepare, whose held-out split is measured where no prompt sets are named.
        drafter_dir: an export in z-lab's layout.
        out_path: evaluation.json.
        any_target: see `check_subjects`.
        named: what the record calls the drafter; None takes its directory.

    Raises:
        ConfigError, CheckpointError, DataError, IdentityError: an input is missing or of another target; raised
            before a model is loaded.
        GateError: in float32, an output differs from the target's own beyond a tie, the chain walk from the rounds of real
            decoding, or the serve path from the train path. evaluation.json is written first, with the positions.
    """
    target_dir = workdir / config.target.path
    subjects = check_subjects(config, target_dir, drafter_dir, any_target)
    subjects = subjects.model_copy(update={"drafter_path": named or subjects.drafter_path})
    questions = choose_questions(config, workdir, prepared_dir)
    check_place(out_path)
    dtype = getattr(torch, config.evaluation.dtype)
    target = Target.load(config.target.model_copy(update={"path": str(target_dir), "dtype": config.evaluation.dtype}))
    drafter = load_drafter(drafter_dir, dtype, target.device)
    answers = decode_prompts(target, drafter, questions.ask(), questions.num_prompts, config.evaluation)
    subjects = questions.described(subjects).model_copy(update={"device": str(target.device)})
    record = make_record(config.evaluation, target, drafter, subjects, answers)
    write_record(record, out_path)
    _refuse_faults(record, out_path)
    return record


def make_record(
    config: EvaluationConfig, target: Target, drafter: Drafter, subjects: Subjects, answers: Answers
) -> EvaluationRecord:
    """All of evaluation.json from the decoded prompts; runs the chain walk and the parity check."""
    results, samples, block_size = answers.results, config.bootstrap_samples, subjects.block_size
    table_PK = histogram_PK([r.speculative.rounds for r in results], block_size)
    acceptance, categories = summarise(table_PK, samples), by_category(table_PK, [r.prompt.category for r in results], samples)
    greedy, prompts = config.temperature == 0, tuple(map(_prompt_record, results))
    outputs = compare_outputs(target, results, config.tie_margin) if greedy else None
    return EvaluationRecord(
        subjects=subjects,
        acceptance=acceptance,
        by_set=by_set(prompts, block_size, samples),
        by_category=categories,
        by_position=by_position(prompts, block_size, samples),
        by_prompt_length=by_prompt_length(prompts, block_size, samples),
        definitions=definitions(acceptance, categories, results, greedy),
        outputs=outputs,
        walk=compare_walk(target, drafter, results, outputs, config.tie_margin, config.block_size) if outputs else None,
        parity=_parity(config, target, drafter, results),
        speed=measure_speed(results, samples, block_size),
        generate=against_generate(results, answers.generated, samples),
        prompts=prompts,
        samples=sample_decodes(target.tokenizer, results),
    )


def _parity(config: EvaluationConfig, target: Target, drafter: Drafter, results: Sequence[PromptResult]) -> Parity:
    """Along the longest answers, where an error of positions is largest."""
    longest = sorted(results, key=lambda r: -len(r.plain.tokens))[:PARITY_TEXTS]
    texts = [(r.prompt.prompt_ids, r.plain.tokens) for r in longest if len(r.plain.tokens) > 1]
    rows = walk_rows(target, texts, drafter.spec.target_layer_ids)
    return check_parity(target, drafter, rows, config.tie_margin)


def _prompt_record(result: PromptResult) -> PromptRecord:
    prompt = result.prompt
    return PromptRecord(
        sample_id=prompt.sample_id,
        set_name=prompt.set_name,
        category=prompt.category,
        turn=prompt.turn,
        num_prompt_tokens=len(prompt.prompt_ids),
        num_tokens=len(result.speculative.tokens),
        rounds=result.speculative.rounds,
        plain_s=result.plain.seconds.total,
        speculative_s=result.speculative.seconds.total,
    )


def _refuse_faults(record: EvaluationRecord, out_path: Path) -> None:
    """Raise where float32 results that must be equal aren't. In bfloat16 near ties are everywhere; they are only listed."""
    if record.subjects.dtype != "float32":
        return
    _refuse_parity(record.parity, out_path)
    if record.outputs and record.outputs.num_different:
        raise GateError(
            f"{record.outputs.num_different} of {record.outputs.num_prompts} outputs differ from the target's own greedy output, "
            f"expected 0. The positions are in {out_path}; report them, τ can't be trusted."
        )
    if record.walk:
        _refuse_walk(record.walk, out_path)


def _refuse_parity(parity: Parity, out_path: Path) -> None:
    if parity.largest_difference > parity.tolerance or parity.num_different_drafts:
        raise GateError(
            f"the drafter as served differs from the drafter as trained by {parity.largest_difference:.2g} in a hidden state and in "
            f"{parity.num_different_drafts} drafts of {parity.num_blocks} blocks, expected at most {parity.tolerance:g} and 0. More is in "
            f"{out_path}; report it, acceptance is of another network than was trained."
        )


def _refuse_walk(walk: WalkAgreement, out_path: Path) -> None:
    ties = sum(difference.tie for difference in walk.differences)
    faults = len(walk.differences) - ties
    if faults or ties > max(1, MOST_WALK_TIES * walk.num_prompts):
        raise GateError(
            f"the chain walk differs from real decoding in {faults} prompts, and by near ties in {ties} of "
            f"{walk.num_prompts}, expected 0 and at most 1 %. The positions are in {out_path}; report them."
        )
