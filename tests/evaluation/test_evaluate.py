"""Stage evaluate from files to evaluation.json, its refusals before a model is loaded, and the in-training measure."""

import io
import json
import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest
from rich.console import Console

import dflash_core.evaluation.evaluate as stage
from dflash_core.checkpoint.export import export_zlab
from dflash_core.config import Config, TargetConfig, parse_config
from dflash_core.data.dataset import Dataset
from dflash_core.drafter.proposing import DrafterCache
from dflash_core.errors import CheckpointError, ConfigError, DataError, GateError, IdentityError
from dflash_core.evaluation import answering
from dflash_core.evaluation.decode import target_decode
from dflash_core.evaluation.evaluate import evaluate
from dflash_core.evaluation.prompts import choose_prompts
from dflash_core.evaluation.record_file import write_record
from dflash_core.evaluation.records import EvaluationRecord, WalkDifference
from dflash_core.evaluation.table import results_table
from dflash_core.evaluation.turns import ask_once
from dflash_core.report.evaluation_facts import evaluation_rows, evaluation_tables
from dflash_core.stages import compare as compare_command
from dflash_core.stages import evaluate as evaluate_command

NUM_PROMPTS = 5


def run(world: SimpleNamespace, out: Path, drafter_dir: Path | None = None, config: Config | None = None) -> EvaluationRecord:
    """Evaluate in the world's directory."""
    drafter_dir = drafter_dir or world.root / "drafter"
    return evaluate(config or world.config, world.root, world.root / "prepared", drafter_dir, out / "evaluation.json")


@pytest.fixture(scope="module")
def measured(world: SimpleNamespace, tmp_path_factory: pytest.TempPathFactory) -> tuple[EvaluationRecord, Path]:
    """One evaluation, and the directory that holds it."""
    out = tmp_path_factory.mktemp("measured")
    return run(world, out), out


def test_evaluation_measures_writes_and_can_be_read_again(measured: tuple[EvaluationRecord, Path]) -> None:
    record, out = measured
    assert record == EvaluationRecord.model_validate_json((out / "evaluation.json").read_text(encoding="utf-8"))
    assert [path.name for path in out.iterdir()] == ["evaluation.json"]
    assert record.acceptance.num_prompts == record.outputs.num_prompts == NUM_PROMPTS
    assert record.outputs.num_different == 0 and record.walk.num_equal + len(record.walk.differences) == NUM_PROMPTS
    assert record.acceptance.num_tokens == sum(prompt.num_tokens - 1 for prompt in record.prompts)
    assert list(record.by_set) == ["held out"] and record.by_set["held out"] == record.acceptance
    for parts in (record.by_category, record.by_prompt_length, record.by_position):
        assert sum(part.num_tokens for part in parts.values()) == record.acceptance.num_tokens
    assert record.generate.num_prompts == 1 and record.generate.speedup > 0
    assert record.parity.num_blocks > 4 and record.parity.largest_difference < 1e-3 and record.parity.num_different_drafts == 0
    assert sorted(record.by_category) == ["code", "list", "story"]
    assert record.speed.speculative_s > record.speed.drafter_s > 0
    for sample in record.samples:
        assert len(sample.pieces) <= 12 and sample.pieces[0].kind == "first"
    text = io.StringIO()
    Console(file=text, width=120).print(results_table(record))
    odd = record.model_copy(update={"by_category": {"[/b] [red]": record.acceptance}})
    Console(file=text, width=120).print(results_table(odd))  # square brackets in a category are no markup
    assert "[/b] [red]" in text.getvalue() and "τ" in text.getvalue() and f"{NUM_PROMPTS} of {NUM_PROMPTS} outputs equal" in text.getvalue()


def test_a_wrong_output_is_a_gate_that_says_no_after_the_record_is_written(
    world: SimpleNamespace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    decode = answering.speculative_decode

    def broken(*arguments: object) -> object:
        decoded = decode(*arguments)
        wrong = tuple((token + 1) % 400 for token in decoded.tokens)
        return type(decoded)(wrong, decoded.rounds, decoded.drafts, decoded.seconds)

    monkeypatch.setattr(answering, "speculative_decode", broken)
    with pytest.raises(GateError, match=f"{NUM_PROMPTS} of {NUM_PROMPTS} outputs differ.*expected 0"):
        run(world, tmp_path)
    assert json.loads((tmp_path / "evaluation.json").read_text())["outputs"]["num_different"] == NUM_PROMPTS


def test_both_ways_of_decoding_end_at_the_targets_stop_tokens(
    world: SimpleNamespace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    prompts = choose_prompts(Dataset.open(world.root / "prepared", "heldout"), 1)
    answer = target_decode(world.target, prompts[0].prompt_ids, 12, ()).tokens
    stop = answer[3]
    monkeypatch.setattr(answering, "stop_token_ids", lambda model, tokenizer: frozenset({stop}))
    settings = world.config.evaluation
    (result,) = answering.decode_prompts(world.target, world.drafter.eval(), ask_once(prompts), 1, settings).results
    assert result.plain.tokens == result.speculative.tokens == answer[: answer.index(stop) + 1]


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_the_target_is_loaded_in_the_dtype_of_the_evaluation(world: SimpleNamespace, monkeypatch: pytest.MonkeyPatch, dtype: str) -> None:
    class Loaded(Exception):
        pass

    def load(config: TargetConfig) -> None:
        raise Loaded(config.dtype)

    monkeypatch.setattr(stage.Target, "load", load)
    config = world.config.model_copy(update={"evaluation": world.config.evaluation.model_copy(update={"dtype": dtype})})
    with pytest.raises(Loaded, match=dtype):
        run(world, world.root, config=config)


def test_what_the_gate_lets_pass(measured: tuple[EvaluationRecord, Path], tmp_path: Path) -> None:
    record, _ = measured

    def differing(faults: int, ties: int, dtype: str = "float32") -> EvaluationRecord:
        found = [WalkDifference(sample_id="x", round=0, position=9, walked=1, decoded=2, margin=0.0, tie=i >= faults) for i in range(faults + ties)]
        changed = {"walk": record.walk.model_copy(update={"differences": tuple(found)})}
        return record.model_copy(update=changed | {"subjects": record.subjects.model_copy(update={"dtype": dtype})})

    stage._refuse_faults(differing(0, 1), tmp_path)  # one near tie of a few prompts
    stage._refuse_faults(differing(3, 3, "bfloat16"), tmp_path)
    for faults, ties in ((1, 0), (0, 2)):
        with pytest.raises(GateError, match=f"in {faults} prompts, and by near ties in {ties}"):
            stage._refuse_faults(differing(faults, ties), tmp_path)


def test_an_output_past_its_end_is_a_gate_that_says_no(world: SimpleNamespace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    decode = answering.speculative_decode

    def longer(*arguments: object) -> object:
        decoded = decode(*arguments)
        return type(decoded)((*decoded.tokens, 7), (*decoded.rounds, 1), (*decoded.drafts, (7, 7, 7)), decoded.seconds)

    monkeypatch.setattr(answering, "speculative_decode", longer)
    with pytest.raises(GateError, match=f"{NUM_PROMPTS} of {NUM_PROMPTS} outputs differ.*expected 0"):
        run(world, tmp_path)


def with_evaluation(config: Config, **settings: object) -> Config:
    """The configuration with other settings of the evaluation, checked as params.yaml is."""
    return parse_config(config.model_dump() | {"evaluation": config.evaluation.model_dump() | settings}, "test")


@pytest.fixture
def prompt_sets(tmp_path: Path) -> list[str]:
    """Two sets, one of two turns."""
    paths = [tmp_path / "sets" / "chats.jsonl", tmp_path / "sets" / "sums.jsonl"]
    paths[0].parent.mkdir()
    paths[0].write_text(json.dumps({"question_id": 1, "category": "writing", "turns": ["Write a story.", "Now shorter."]}) + "\n")
    paths[1].write_text("".join(json.dumps({"question": f"What is {i} and {i}?", "answer": str(2 * i)}) + "\n" for i in range(3)))
    return list(map(str, paths))


def test_prompt_sets_are_measured_turn_by_turn(world: SimpleNamespace, tmp_path: Path, prompt_sets: list[str]) -> None:
    record = run(world, tmp_path, config=with_evaluation(world.config, prompt_sets=prompt_sets, num_prompts=2))
    assert [p.sample_id for p in record.prompts] == ["sets/chats/1#1", "sets/chats/1#2", "sets/sums/1", "sets/sums/2"]
    assert [p.turn for p in record.prompts] == [1, 2, 1, 1] and record.prompts[1].num_prompt_tokens > record.prompts[0].num_prompt_tokens + 12
    assert list(record.by_set) == ["sets/chats", "sets/sums"] and list(record.by_category) == ["sets/sums", "writing"]
    assert list(record.subjects.prompt_sets) == ["sets/chats", "sets/sums"] and record.outputs.num_equal == 4
    assert record.generate.num_prompts == 1
    text = io.StringIO()
    Console(file=text, width=120).print(results_table(record))
    assert "sets/chats" in text.getvalue() and "generate()" in text.getvalue()


def test_prompts_decoded_at_once_give_the_same_record_but_for_the_times(world: SimpleNamespace, tmp_path: Path, prompt_sets: list[str]) -> None:
    settings = {"prompt_sets": prompt_sets, "num_prompts": 2}
    alone, together = (run(world, tmp_path / str(n), config=with_evaluation(world.config, **settings, batch_size=n)) for n in (1, 3))
    untimed = [[p.model_dump(exclude={"plain_s", "speculative_s"}) for p in record.prompts] for record in (alone, together)]
    assert untimed[0] == untimed[1] and together.acceptance == alone.acceptance
    assert together.outputs.num_equal == together.walk.num_equal == 4 and together.subjects.batch_size == 3
    assert together.generate is None and together.speed.target_s > 0
    assert "3 prompts at once" in evaluation_rows(together)["measured in"]


@pytest.mark.parametrize("rule", ["rejection", "match"])
def test_sampled_answers_are_measured_and_held_to_no_text(world: SimpleNamespace, tmp_path: Path, rule: str) -> None:
    config = with_evaluation(world.config, temperature=0.8, rule=rule, num_prompts=3)
    record = run(world, tmp_path, config=config)
    assert record.outputs is record.walk is None and record.subjects.rule == rule and record.acceptance.tau >= 1
    named = {d.name: d.value for d in record.definitions}
    assert named["1 + product of marginals"] is None and named["share of drafts accepted"] == 1 - record.acceptance.num_wasted / record.acceptance.num_drafted
    rows = evaluation_rows(record)
    assert rows["rule"] == f"{rule} at temperature 0.8" and "outputs" not in rows
    titles = [table.title for table in evaluation_tables(record)]
    assert titles[0] == "Acceptance by category" and titles[-1].startswith("The same rounds")


def test_a_smaller_block_is_measured_in_all_ways(world: SimpleNamespace, tmp_path: Path) -> None:
    record = run(world, tmp_path, config=with_evaluation(world.config, block_size=2, num_generate_prompts=0))
    assert (record.subjects.block_size, record.subjects.trained_block_size) == (2, 4) and len(record.acceptance.histogram) == 2
    assert record.outputs.num_different == 0 and record.generate is None
    assert all(difference.tie for difference in record.walk.differences)
    with pytest.raises(ConfigError, match="block_size is 9, .* was trained with 4"):
        run(world, tmp_path, config=with_evaluation(world.config, block_size=9))


def test_a_served_drafter_that_is_another_is_a_gate_that_says_no(
    world: SimpleNamespace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    commit = DrafterCache.commit
    monkeypatch.setattr(DrafterCache, "commit", lambda self, n: commit(self, max(1, n - 1)))
    with pytest.raises(GateError, match="as served differs from the drafter as trained by .* expected at most 0.01 and 0"):
        run(world, tmp_path)
    assert (tmp_path / "evaluation.json").exists()


def test_two_evaluations_are_compared_by_the_command(measured: tuple[EvaluationRecord, Path], tmp_path: Path) -> None:
    first, out = measured
    text = compare_command.run(out, out / "evaluation.json", tmp_path / "c.json")
    assert "5 prompts are too few to tell" in text and "code" in text
    found = json.loads((tmp_path / "c.json").read_text())
    assert found["overall"]["first"] == first.acceptance.tau and sorted(found["by_category"]) == ["code", "list", "story"]
    odd = shutil.copytree(out, tmp_path / "weekly.json")
    assert "5 prompts" in compare_command.run(out, odd, None)
    other = first.model_copy(update={"subjects": first.subjects.model_copy(update={"prompts_digest": "0" * 64})})
    write_record(other, tmp_path / "other/evaluation.json")
    with pytest.raises(IdentityError, match=r"asked 5 of held out \(chat, .*\), the second 5 of held out \(chat, 00000000\); expected the same prompts"):
        compare_command.run(out, tmp_path / "other", None)
    with pytest.raises(DataError, match="b/evaluation.json can't be read"):
        compare_command.run(out, tmp_path / "b", None)


@pytest.mark.parametrize(
    "fault",
    [
        "another target", "another vocabulary", "other layers", "no mask row", "a mask row past the end", "no drafter", "no data",
        "no place for the result", "layers past the end",
        "data of another", "full context", "no such set", "a set of answers",
    ],
)
def test_what_does_not_belong_together_is_refused_before_a_model_is_loaded(
    world: SimpleNamespace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fault: str
) -> None:
    monkeypatch.setattr(stage.Target, "load", lambda config: pytest.fail("the target was loaded"))
    directory, drafter = tmp_path / "drafter", world.drafter
    lineage = {"target_identity": "0" * 64} if fault == "another target" else world.lineage
    export_zlab(drafter.state_dict(), drafter.spec, "target", directory, lineage)
    path = directory / "config.json"
    tree, prepared, config = json.loads(path.read_text()), world.root / "prepared", world.config
    out = tmp_path / "evaluation.json"
    expected: tuple[type[Exception], str] = {
        "another target": (IdentityError, "000000000000.*" + world.lineage["target_identity"][:12]),
        "another vocabulary": (IdentityError, "vocab_size 600.*has 512"),
        "other layers": (IdentityError, "num_hidden_layers 9.*has 6"),
        "layers past the end": (ConfigError, r"layer ids are \(0, 99\), expected ascending ids from 0 to 4"),
        "no mask row": (ConfigError, "mask_token_id"),
        "a mask row past the end": (ConfigError, "mask_token_id 512 is no row .* 0 to 511"),
        "no such set": (DataError, "nothing.jsonl is no file"),
        "a set of answers": (DataError, "has the keys 'choices', expected one of turns"),
        "no drafter": (CheckpointError, "config.json"),
        "no data": (DataError, "prepare"),
        "no place for the result": (CheckpointError, "taken/evaluation.json can't be written"),
        "data of another": (IdentityError, "tokenizer 000000000000.*Re-run stage"),
        "full context": (DataError, "2040 new tokens make .* expected at most the target's 2048"),
    }[fault]
    match fault:
        case "another vocabulary":
            path.write_text(json.dumps(tree | {"vocab_size": 600}))
        case "other layers":
            path.write_text(json.dumps(tree | {"num_target_layers": 9}))
        case "layers past the end":
            tree["dflash_config"]["target_layer_ids"] = [0, 99]
            path.write_text(json.dumps(tree))
        case "no mask row":
            del tree["dflash_config"]["mask_token_id"]
            path.write_text(json.dumps(tree))
        case "a mask row past the end":
            tree["dflash_config"]["mask_token_id"] = 512
            path.write_text(json.dumps(tree))
        case "no such set":
            config = with_evaluation(config, prompt_sets=[str(tmp_path / "nothing.jsonl")])
        case "a set of answers":
            (tmp_path / "answers.jsonl").write_text('{"choices": [{"turns": ["x"]}]}\n')
            config = with_evaluation(config, prompt_sets=[str(tmp_path / "answers.jsonl")])
        case "no drafter":
            directory = tmp_path / "nothing"
        case "no place for the result":
            (tmp_path / "taken").touch()
            out = tmp_path / "taken/evaluation.json"
        case "no data":
            prepared = tmp_path / "nothing"
        case "data of another":
            prepared = shutil.copytree(prepared, tmp_path / "prepared")
            manifest = json.loads((prepared / "manifest.json").read_text())
            (prepared / "manifest.json").write_text(json.dumps(manifest | {"tokenizer": "0" * 64}))
        case "full context":
            config = config.model_copy(update={"evaluation": config.evaluation.model_copy(update={"max_new_tokens": 2040})})
    with pytest.raises(expected[0], match=expected[1]) as error:
        evaluate(config, world.root, prepared, directory, out)
    assert error.value.exit_code == 2 and not out.exists()


def test_without_a_drafter_the_stage_that_writes_one_is_named(world: SimpleNamespace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(DataError, match=r"build/drafter does not exist.* Run prove first\."):
        evaluate_command.run(world.config)
