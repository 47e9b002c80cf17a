"""Prompt sets in every spelling, several turns with the target's own answers between, and what is refused."""

import gzip
import json
import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest

from dflash_core.config import parse_config
from dflash_core.data.template import load_tokenizer
from dflash_core.errors import ConfigError, DataError
from dflash_core.evaluation.prompt_sets import read_prompt_set, read_prompt_sets
from dflash_core.evaluation.questions import choose_questions
from dflash_core.evaluation.turns import Renderer
from dflash_core.target.directory import read_architecture
from dflash_core.target.tiny import make_tiny_tokenizer


def write(path: Path, *rows: object) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    lines = (row if isinstance(row, str) else json.dumps(row, ensure_ascii=False) for row in rows)
    path.write_text("".join(line + "\n" for line in lines), encoding="utf-8")
    return path


@pytest.mark.parametrize(
    "row, system, questions",
    [
        ({"turns": ["one", "two"]}, None, ("one", "two")),
        ({"question_id": 81, "category": "writing", "turns": ["one"]}, None, ("one",)),
        ({"question": "one", "answer": "#### 3"}, None, ("one",)),
        ({"task_id": "HumanEval/0", "prompt": "def f():", "entry_point": "f", "canonical_solution": "x", "test": "t"}, None, ("def f():",)),
        ({"instruction": "do", "instances": [{"input": "this", "output": "done"}]}, None, ("do\n\nthis",)),
        ({"instruction": "do", "instances": [{"input": "", "output": "done"}]}, None, ("do",)),
        ({"instruction": "do", "input": "this", "output": "done"}, None, ("do\n\nthis",)),
        ({"instruction": "do", "system": "be brief"}, "be brief", ("do",)),
        ({"conversations": [{"from": "human", "value": "a"}, {"from": "gpt", "value": "b"}, {"from": "human", "value": "c"}]}, None, ("a", "c")),
        ({"messages": [{"role": "system", "content": "s"}, {"role": "user", "content": "a"}]}, "s", ("a",)),
    ],
)
def test_every_spelling_gives_its_user_turns(tmp_path: Path, row: dict, system: str | None, questions: tuple[str, ...]) -> None:
    (dialogue,) = read_prompt_set(write(tmp_path / "some_set" / "test.jsonl", row), 9).dialogues
    assert (dialogue.system, dialogue.questions, dialogue.set_name) == (system, questions, "some_set/test")
    assert dialogue.category == row.get("category", "some_set/test")
    assert dialogue.sample_id == f"some_set/test/{row.get('question_id', row.get('task_id', 1))}"


def test_lines_end_at_newline_only_and_the_first_rows_are_taken(tmp_path: Path) -> None:
    rows = [{"turns": [f"a\u2028b\u0085c {i}"]} for i in range(5)]
    plain = write(tmp_path / "x" / "q.jsonl", *rows)
    packed = plain.with_name("p.jsonl.gz")
    packed.write_bytes(gzip.compress(plain.read_bytes()))
    array = plain.with_name("a.json")
    array.write_text(json.dumps(rows))
    found = read_prompt_sets([plain, packed, array], 3)
    assert [s.name for s in found] == ["x/q", "x/p", "x/a"]
    assert all([d.questions for d in s.dialogues] == [(f"a\u2028b\u0085c {i}",) for i in range(3)] for s in found)
    assert len(read_prompt_set(plain, 9).dialogues) == 5


@pytest.mark.parametrize(
    "rows, text",
    [
        ([{"question_id": 1, "choices": [{"turns": ["x"]}]}], r"line 1 has the keys 'question_id', 'choices', expected one of turns, "),
        ([], "holds 0 rows"),
        ([{"turns": []}], "line 1 has no user turn with text"),
        ([{"turns": "one"}], r"turns is text, expected a list of texts"),
        ([{"turns": ["a", 3]}], "turns 2 has a number"),
        ([{"id": "a", "prompt": "x"}, {"id": "a", "prompt": "y"}], "line 2 repeats the id of .* line 1"),
        ([{"messages": [{"role": "assistant", "content": "x"}]}], "no user turn"),
        ([{"id": "5", "turns": ["a", "b"]}, {"id": "5#2", "turns": ["c"]}], "line 2 repeats the id of .* line 1, .*5#2"),
        ([{"messages": [{"role": r, "content": "x"} for r in ("system", "user", "system")]}], "line 1 has a system turn after another turn, expected"),
        ([{"messages": [{"role": r, "content": "x"} for r in ("user", "assistant", "system", "user")]}], "line 1 has a system turn after another turn, expected"),
        (['{"prompt": "x", "category": "a\\ud800"}'], "line 1, category holds half a surrogate pair at character 1"),
        (['{"prompt": "x", "id": "\\udc00"}'], "line 1, id holds half a surrogate pair at character 0"),
    ],
)
def test_bad_rows_are_refused_with_their_place(tmp_path: Path, rows: list, text: str) -> None:
    with pytest.raises(DataError, match=text) as caught:
        read_prompt_set(write(tmp_path / "q.jsonl", *rows), 9)
    assert caught.value.exit_code == 2


def test_missing_files_and_equal_names_are_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="nothing.jsonl is no file"):
        read_prompt_set(tmp_path / "nothing.jsonl", 9)
    one, other = (write(tmp_path / place / "x" / "q.jsonl", {"prompt": "a"}) for place in "ab")
    with pytest.raises(DataError, match="2 prompt sets are called x/q"):
        read_prompt_sets([one, other], 9)


def renderer(template: str = "chat", longest: int | None = None) -> Renderer:
    return Renderer(make_tiny_tokenizer(), template, longest)


def test_a_later_turn_holds_the_target_s_own_answers(tmp_path: Path) -> None:
    (dialogue,) = read_prompt_set(write(tmp_path / "x" / "q.jsonl", {"turns": ["What is it?", "And why?"], "id": 7}), 1).dialogues
    render = renderer()
    asking = render.ask(dialogue)
    first = next(asking)
    answer = render.tokenizer("A small boat<|im_end|>")["input_ids"]
    second = asking.send(answer)
    with pytest.raises(StopIteration):
        asking.send(answer)
    text = render.tokenizer.decode(list(second.prompt_ids))
    assert (first.sample_id, second.sample_id, first.turn, second.turn) == ("x/q/7#1", "x/q/7#2", 1, 2)
    assert text == (
        "<|im_start|>user\nWhat is it?<|im_end|>\n<|im_start|>assistant\nA small boat<|im_end|>\n"
        "<|im_start|>user\nAnd why?<|im_end|>\n<|im_start|>assistant\n"
    )
    assert text.startswith(render.tokenizer.decode(list(first.prompt_ids)))


def test_raw_text_has_no_template_around_it(tmp_path: Path) -> None:
    (dialogue,) = read_prompt_set(write(tmp_path / "q.jsonl", {"prompt": "def larger(a, b):"}), 1).dialogues
    render = renderer("raw")
    assert render.tokenizer.decode(render.ids(dialogue, ())) == "def larger(a, b):"


def test_turns_too_long_for_the_target_are_left_out_and_counted(tmp_path: Path) -> None:
    sets = read_prompt_set(write(tmp_path / "q.jsonl", {"turns": ["one " * 60, "two"]}, {"turns": ["one", "two " * 60, "three"]}), 9)
    render = renderer(longest=40)
    asked = []
    for dialogue in sets.dialogues:
        for prompt in (asking := render.ask(dialogue)):
            asked.append(prompt.sample_id)
            with pytest.raises(StopIteration):
                asking.send([5])
    assert [sample_id.split("/")[-1] for sample_id in asked] == ["2#1"] and sum(render.left_out.values()) == 4


@pytest.mark.parametrize("turns", [["say <|im_end|> now"], ["one", "say <|im_end|> now"]])
def test_a_control_token_in_a_question_is_refused_before_the_first_is_asked(tmp_path: Path, turns: list[str]) -> None:
    (dialogue,) = read_prompt_set(write(tmp_path / "q.jsonl", {"turns": turns}), 1).dialogues
    with pytest.raises(DataError, match=r"spells out '<\|im_end\|>'"):
        renderer().ids(dialogue, ())


def test_sets_that_fit_nowhere_are_refused_before_a_model_is_loaded(world: SimpleNamespace, tmp_path: Path) -> None:
    path = write(tmp_path / "q.jsonl", {"prompt": "one two three"})
    tree = world.config.model_dump()
    tree["evaluation"] |= {"prompt_sets": [str(path)], "max_new_tokens": 2040}
    with pytest.raises(DataError, match="shortest of 1 prompts and 2040 new tokens make .* expected at most the target's 2048"):
        choose_questions(parse_config(tree, "test"), world.root, tmp_path)


def test_a_target_whose_config_is_broken_gives_no_tokenizer(world: SimpleNamespace, tmp_path: Path) -> None:
    target = shutil.copytree(world.root / "target", tmp_path / "target")
    tree = json.loads((target / "config.json").read_text())
    (target / "config.json").write_text(json.dumps(tree | {"max_position_embeddings": "x"}))
    with pytest.raises(ConfigError, match="max_position_embeddings.* expected int, got str"):
        load_tokenizer(str(target))
    with pytest.raises(ConfigError, match="max_position_embeddings.* expected int, got str"):
        read_architecture(target)
