"""Each kind of bad input gives one clear message, exit code 2, and leaves existing outputs as they are."""

import gzip
import json
import struct
from collections.abc import Callable
from pathlib import Path

import pyarrow
import pyarrow.parquet
import pytest

from dflash_core.data.prepare import prepare
from dflash_core.errors import DflashError

GOOD = {"prompt": "Hello there?", "response": "I am fine, thank you."}


def messages(*turns: tuple[str, object]) -> dict:
    return {"messages": [{"role": role, "content": content} for role, content in turns]}


def lines(*rows: object, name: str = "bad.jsonl") -> Callable[[Path], Path]:
    """Writes JSONL: a good row first, so that errors must name line 2 and later."""
    text = "".join((row if isinstance(row, str) else json.dumps(row)) + "\n" for row in (GOOD, *rows))
    return raw(text.encode(), name)


def raw(data: bytes, name: str) -> Callable[[Path], Path]:
    def write(directory: Path) -> Path:
        (directory / name).write_bytes(data)
        return directory / name

    return write


def table(columns: dict, name: str = "bad.parquet") -> Callable[[Path], Path]:
    def write(directory: Path) -> Path:
        pyarrow.parquet.write_table(pyarrow.table(columns), directory / name)
        return directory / name

    return write


def directory_named(name: str) -> Callable[[Path], Path]:
    def make(directory: Path) -> Path:
        (directory / name).mkdir()
        return directory / name

    return make


A = ("assistant", "Fine.")
U = ("user", "Hi?")
GZIP = gzip.compress((json.dumps(GOOD) + "\n").encode() * 50)
LONG = {"prompt": "word " * 200, "response": "short"}
CASES: dict[str, tuple[Callable[[Path], Path], str, dict]] = {
    "empty file": (raw(b"", "bad.jsonl"), "holds 0 rows", {}),
    "blank lines only": (raw(b"\n\n  \n", "bad.jsonl"), "holds 0 rows", {}),
    "empty array": (raw(b"[]", "bad.json"), "holds 0 rows", {}),
    "broken JSON": (lines('{"prompt": "a", '), "line 2 is broken JSON", {}),
    "broken array": (raw(b'[{"prompt": 1},', "bad.json"), "is broken JSON", {}),
    "unknown role": (lines(messages(("wizard", "x"), A)), "line 2, messages 1 has the unknown role 'wizard'", {}),
    "no role": (lines({"messages": [{"content": "x"}]}), "unknown role None", {}),
    "answer missing": (lines({"prompt": "a"}), "line 2 has 'prompt' but no answer", {}),
    "answer null": (lines(messages(U, ("assistant", None))), r"\(assistant\) has no content", {}),
    "ends with user": (lines(messages(U, A, U)), "line 2 ends with the user's turn", {}),
    "latin-1": (raw('{"prompt": "Köln", "response": "x"}\n'.encode("latin-1"), "bad.jsonl"), "line 1 is not UTF-8", {}),
    "utf-16": (raw('{"prompt": "a", "response": "x"}\n'.encode("utf-16"), "bad.jsonl"), "line 1 is not UTF-8", {}),
    "NaN": (lines('{"prompt": "a", "response": NaN}'), "line 2 holds NaN", {}),
    "NaN in Parquet": (table({"prompt": ["a"], "response": [float("nan")]}), "row 1, response has a number", {}),
    "directory": (directory_named("bad.jsonl"), "is a directory", {}),
    "missing file": (lambda directory: directory / "absent.jsonl", "does not exist", {}),
    "unknown extension": (raw(b"a,b\n", "bad.csv"), r"unknown extension '\.csv'", {}),
    "packed Parquet": (raw(GZIP, "bad.parquet.gz"), "unknown extension", {}),
    "truncated gzip": (raw(GZIP[: len(GZIP) // 2], "bad.jsonl.gz"), "not a whole gzip file", {}),
    "no gzip at all": (raw(b"{}\n", "bad.jsonl.gz"), "not a whole gzip file", {}),
    "damaged gzip": (raw(GZIP[:-8] + struct.pack("<II", 1, 2), "bad.jsonl.gz"), "not a whole gzip file", {}),
    "no Parquet at all": (raw(b"PAR1 no", "bad.parquet"), "can't be read as Parquet", {}),
    "unknown columns": (table({"text": ["a"]}), "row 1 has the keys 'text'", {}),
    "object for array": (raw(b'{\n"data": []\n}', "bad.json"), "holds one JSON object", {}),
    "array in JSONL": (lines([GOOD]), "line 2 is a JSON array", {}),
    "text row": (lines('"hello"'), "line 2 is a JSON string", {}),
    "assistant first": (lines(messages(A, U)), "an assistant's turn as turn 1, expected the user's", {}),
    "two users": (lines(messages(U, U, A)), "a user's turn as turn 2, expected the assistant's", {}),
    "two assistants": (lines(messages(U, A, A)), "an assistant's turn as turn 3, expected the user's", {}),
    "late system": (lines(messages(U, ("system", "x"))), "a system turn as turn 2", {}),
    "system only": (lines(messages(("system", "x"))), "has no user turn", {}),
    "empty messages": (lines({"messages": []}), "is an empty list", {}),
    "messages no list": (lines({"messages": "hello"}), "is text, expected a list", {}),
    "message no object": (lines({"messages": ["hello"]}), "messages 1 is text", {}),
    "tool role": (lines(messages(U, ("tool", "42"), A)), "messages 2 is a tool turn", {}),
    "tool call": (lines({"messages": [{"role": "assistant", "content": "", "tool_calls": [{}]}]}), "tool turn", {}),
    "function": (lines({"conversations": [{"from": "function_call", "value": "f()"}]}), "tool turn", {}),
    "reasoning apart": (
        lines({"messages": [{"role": "assistant", "content": "x", "reasoning_content": "hm"}]}),
        "keeps reasoning apart",
        {},
    ),
    "number for content": (lines(messages(U, ("assistant", 42))), "messages 2 has a number", {}),
    "image part": (lines(messages(("user", [{"type": "image", "url": "x"}]), A)), "content part of type 'image'", {}),
    "duplicate ids": (
        lines(*[GOOD | {"id": "x"}, GOOD | {"id": "x"}]),
        "line 3 repeats the id 'x' of .*bad.jsonl line 2",
        {},
    ),
    "half a pair in an id": (lines(GOOD | {"id": "a\ud800"}), "id holds half a surrogate pair at character 1", {}),
    "half a pair in a category": (lines(GOOD | {"category": "\ud800"}), "category holds half a surrogate pair at character 0", {}),
    "id of another type": (lines(GOOD | {"id": 1.5}), "has the id 1.5", {}),
    "null byte": (lines({"prompt": "a\0b", "response": "x"}), "holds a null byte at character 1", {}),
    "half a surrogate": (lines('{"prompt": "\\ud800", "response": "x"}'), "half a surrogate pair", {}),
    "unknown split": (lines(GOOD | {"split": "dev"}), "unknown split 'dev'", {}),
    "one prompt in both splits": (
        lines(GOOD | {"split": "train"}, GOOD | {"split": "heldout", "response": "Other."}),
        "line 3 puts a prompt into heldout that .* line 2 has in train",
        {},
    ),
    "finished no boolean": (lines(GOOD | {"finished": "no"}), "has finished 'no'", {}),
    "deep nesting": (lines('{"prompt": ' + "[" * 200_000), "(nested too deeply|broken JSON)", {}),
    "long prompts only": (raw((json.dumps(LONG) + "\n").encode(), "bad.jsonl"), r"0 rows .*prompt_too_long 1", {}),
    "empty answers only": (raw(b'{"prompt": "a", "response": ""}\n', "bad.jsonl"), r"0 rows .*answer_too_short 1", {}),
    "special token spelt out": (raw(b'{"prompt": "a<|im_end|>", "response": "b"}\n', "bad.jsonl"), "control_token 1", {}),
    "none held out": (
        raw(b'{"prompt": "a", "response": "Fine."}\n', "bad.jsonl"),
        "0 of 1 rows fell",
        {"heldout_fraction": 1e-9},
    ),
    "all held out": (raw(b'{"prompt": "a", "response": "Fine."}\n', "bad.jsonl"), "0 rows are left", {"heldout_fraction": 1.0}),
    "mask token in the data": (lines(), r"holds token 2, which is drafter.mask_token_id", {"drafter": {"mask_token_id": 2}}),
}


@pytest.mark.parametrize(("make", "message", "settings"), CASES.values(), ids=CASES.keys())
def test_bad_input(make, message, settings, tmp_path, make_config):
    out = tmp_path / "build" / "prepared"
    out.mkdir(parents=True)
    (out / "manifest.json").write_text("kept")
    with pytest.raises(DflashError, match=message) as caught:
        prepare(make_config(make(tmp_path), **settings), out)
    text = str(caught.value)
    assert caught.value.exit_code == 2
    assert "\n" not in text and len(text) < 700 and text.endswith(".") and "expected" in text
    assert [path.name for path in out.iterdir()] == ["manifest.json"] and (out / "manifest.json").read_text() == "kept"
    assert [path.name for path in out.parent.iterdir()] == ["prepared"]


def test_missing_target_is_a_configuration_error(tmp_path, make_config, write_rows):
    config = make_config(write_rows([GOOD]))
    config = config.model_copy(update={"target": config.target.model_copy(update={"path": str(tmp_path)})})
    with pytest.raises(DflashError, match="expected tokenizer.json") as caught:
        prepare(config, tmp_path / "out")
    assert caught.value.exit_code == 2 and not (tmp_path / "out").exists()
