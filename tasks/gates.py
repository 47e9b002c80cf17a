"""The gates of a promotion: what a drafter must have shown before it is served. A gate that can't be measured fails.

Each reads what the stages left and gives its evidence; none changes anything.
"""

import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from dflash_core.errors import DataError
from tasks import lineage
from tasks.registry import Version


@dataclass(frozen=True)
class Gate:
    """What one gate said, and from what."""

    name: str
    passed: bool
    reason: str
    evidence: Mapping[str, Any]


def measured(name: str, measure: Callable[[], Gate]) -> Gate:
    """The gate's answer; no answer is no."""
    try:
        return measure()
    except Exception as error:  # noqa: BLE001 - whatever keeps a gate from being measured closes it
        reason = " ".join(str(error).split())
        return Gate(name, False, f"it can't be measured: {type(error).__name__}: {reason}", {"error": reason})


def proven(root: Path) -> Gate:
    """The exported checkpoint is the last one of the run, a replay has proven it, and no checkpoint was rejected."""
    export, proof = _json(root / "build/drafter/lineage.json"), _json(root / "build/proof.json")
    last = next(v for v in proof["checkpoints"] if v["name"] == proof["last"])
    rejected = [v["name"] for v in proof["checkpoints"] if v["outcome"] == "rejected"]
    evidence = {"export": export, "proof": proof}
    if export["checkpoint_digest"] != last["digest"]:
        reason = f"the drafter is of checkpoint {export['checkpoint_digest'][:12]}, the proof of {str(last['digest'])[:12]}"
    elif last["outcome"] != "proven" or not last["sound"]:
        reason = f"{last['name']} is {last['outcome']}: {last['reason']}"
    elif rejected:
        reason = f"{', '.join(rejected)} of the same run {'is' if len(rejected) == 1 else 'are'} rejected"
    else:
        return Gate("proven", True, f"{last['name']} is proven by replay", evidence)
    return Gate("proven", False, reason, evidence)


def data_passed(root: Path) -> Gate:
    """The data gate has looked at what was trained on and found nothing."""
    verdict, trained_on = _json(root / "build/data_gate/verdict.json"), _json(root / "build/drafter/lineage.json").get("dataset")
    looked_at = verdict.get("dataset")
    if looked_at != trained_on:
        raise DataError(f"the data gate looked at dataset {str(looked_at)[:12]}, the drafter was made of {str(trained_on)[:12]}. Run check-data.")
    passed = verdict.get("passed") is True
    return Gate("data", passed, "the data gate passed" if passed else "the data gate did not pass", verdict)


def healthy(log_file: Path) -> Gate:
    """The diagnoser finds no fault in the run's log."""
    from dflash_core.diagnosis.diagnose import diagnose_file
    from dflash_core.diagnosis.outcome import as_tree, exit_code

    diagnosis = diagnose_file(log_file)
    sentence = f"{diagnosis.verdict.word.replace('_', ' ')}: {diagnosis.verdict.sentence}"
    return Gate("healthy", exit_code(diagnosis) == 0, sentence, as_tree(diagnosis))


def lossless(root: Path) -> Gate:
    """Decoding with the drafter gave the target's own text, in float32; differences at a tie of two logits are none."""
    evaluation = _own_evaluation(root)
    outputs, dtype = evaluation["outputs"], evaluation["subjects"]["dtype"]
    if outputs is None:
        raise DataError("it was evaluated by sampling, where no text is the right one; set evaluation.temperature to 0 and evaluate again.")
    if dtype != "float32":
        raise DataError(f"it was evaluated in {dtype}, where ties are everywhere; set evaluation.dtype to float32 and evaluate again.")
    passed = outputs["num_different"] == 0 and outputs["num_prompts"] > 0
    reason = f"{outputs['num_different']} of {outputs['num_prompts']} outputs differ from the target's own"
    return Gate("lossless", passed, reason, outputs)


def better(root: Path, champion: Mapping[str, Any] | None, margin: float, tolerance: float, samples: int) -> Gate:
    """Acceptance length against the champion's on the same prompts.

    Args:
        champion: its evaluation, measured as the candidate's; None where there is no champion, and any drafter that
            gains over plain decoding is better than none.
    """
    from dflash_core.evaluation.paired import paired_difference

    candidate = _own_evaluation(root)
    tau = candidate["acceptance"]["tau"]
    if champion is None:
        passed = tau is not None and tau > 1
        reason = f"τ {tau:.3f}, no champion to compare with; more than 1 is asked for" if tau is not None else "no prompt had a round"
        return Gate("better", passed, reason, {"candidate": candidate["acceptance"]})
    if different := differences_of_setting(candidate, champion):
        raise DataError(f"candidate and champion were not measured alike: {'; '.join(different)}. Evaluate again.")
    found = paired_difference([(one["rounds"], other["rounds"]) for one, other in zip(champion["prompts"], candidate["prompts"], strict=True)], samples)
    if found.low is None or found.difference is None:
        raise DataError(f"{found.num_prompts} prompts have no spread to draw from, at least 2 with a round are needed. Evaluate more.")
    evidence = {"difference": asdict(found), "margin": margin, "tolerance": tolerance, "champion": champion["subjects"]}
    said = f"τ {found.second:.3f} against {found.first:.3f}: {found.difference:+.3f} (95 %: {found.low:+.3f} to {found.high:+.3f})"
    if found.low < -tolerance:
        return Gate("better", False, f"{said}; it may be worse", evidence)
    if found.difference <= margin:
        return Gate("better", False, f"{said}; more than {margin:+.3f} is asked for", evidence)
    return Gate("better", True, said, evidence)


def loads(drafter: Path, version: Version) -> Gate:
    """The files in the registry are those that were measured, and load strictly."""
    from dflash_core.checkpoint.exported import load_drafter
    from tasks.pull import check_files

    check_files(version, drafter)
    num_weights = sum(parameter.numel() for parameter in load_drafter(drafter).parameters())
    files = json.loads(version.tags["dflash.files"])
    return Gate("loads", True, f"{len(files)} files as registered, {num_weights:,} weights", {"files": files, "num_weights": num_weights})


def not_rolled_back(version: Version, again: bool) -> Gate:
    """Somebody took it out of service; it doesn't come back by itself."""
    when = version.tags.get("dflash.rolled_back")
    passed = when is None or again
    reason = "never rolled back" if when is None else f"rolled back at {when}" + ("" if again else "; with again it may come back")
    return Gate("not_rolled_back", passed, reason, {"again": again})


# Parts of an evaluation's subjects that name the drafter, the machine or where the prompts lay, and not what is measured.
NOT_OF_THE_SETTING = (
    *("drafter_path", "drafter_lineage", "target_path", "block_size", "trained_block_size"),
    *("num_threads", "device", "prompt_sets", "batch_size"),
)


def differences_of_setting(one: Mapping[str, Any], other: Mapping[str, Any]) -> list[str]:
    """What keeps two evaluations from being compared prompt by prompt: target, decoding settings, or the prompts."""
    keys = sorted({*one["subjects"], *other["subjects"]} - {*NOT_OF_THE_SETTING})
    found = [f"{key} {one['subjects'].get(key)} and {other['subjects'].get(key)}" for key in keys if one["subjects"].get(key) != other["subjects"].get(key)]
    # The answers are the target's own, so the same prompts have answers of the same length.
    prompts = [[(p["sample_id"], p.get("turn"), p["num_tokens"]) for p in evaluation["prompts"]] for evaluation in (one, other)]
    return found + (["other prompts"] if prompts[0] != prompts[1] else [])


def _own_evaluation(root: Path) -> dict[str, Any]:
    """The evaluation of the workspace's drafter.

    Raises:
        DataError: it is missing, or of another drafter.
    """
    evaluation, export = _json(root / "build/evaluation/evaluation.json"), _json(root / "build/drafter/lineage.json")
    measured_checkpoint = evaluation["subjects"]["drafter_lineage"].get("checkpoint_digest")
    if measured_checkpoint != export["checkpoint_digest"]:
        raise DataError(
            f"the evaluation is of checkpoint {str(measured_checkpoint)[:12]}, the drafter of {export['checkpoint_digest'][:12]}. Evaluate again."
        )
    return evaluation


def _json(path: Path) -> dict[str, Any]:
    tree = lineage.read_json(path)
    if not tree:
        raise DataError(f"{path} is missing, empty or no JSON object. Run the stage that writes it.")
    return tree
