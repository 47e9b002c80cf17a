"""Every common spelling of a conversation file gives the same turns."""

import gzip
import json

import pyarrow
import pyarrow.parquet
import pytest

from dflash_core.data.conversations import Turn, read_conversations
from dflash_core.errors import DataError

PAIR = (Turn("user", "Hi?"), Turn("assistant", "Hello."))
SPELLINGS = {
    "messages": {"messages": [{"role": "user", "content": "Hi?"}, {"role": "assistant", "content": "Hello."}]},
    "sharegpt": {"conversations": [{"from": "human", "value": "Hi?"}, {"from": "gpt", "value": "Hello."}]},
    "sharegpt roles": {"conversations": [{"from": "user", "value": "Hi?"}, {"from": "assistant", "value": "Hello."}]},
    "role under conversations": {
        "conversations": [{"role": "user", "content": "Hi?"}, {"role": "assistant", "content": "Hello."}]
    },
    "conversation": {"conversation": [{"role": "User", "content": "Hi?"}, {"role": "Assistant", "content": "Hello."}]},
    "alpaca": {"instruction": "Hi?", "input": "", "output": "Hello."},
    "alpaca without input": {"instruction": "Hi?", "output": "Hello."},
    "dolly": {"instruction": "Hi?", "context": "", "response": "Hello."},
    "prompt response": {"prompt": "Hi?", "response": "Hello."},
    "prompt completion": {"prompt": "Hi?", "completion": "Hello."},
    "question answer": {"question": "Hi?", "answer": "Hello."},
    "message halves": {
        "prompt": [{"role": "user", "content": "Hi?"}],
        "completion": [{"role": "assistant", "content": "Hello."}],
    },
    "text parts": {
        "messages": [
            {"role": "user", "content": [{"type": "text", "text": "Hi"}, {"type": "text", "text": "?"}]},
            {"role": "assistant", "content": "Hello."},
        ]
    },
    "nulls of a wide table": {"messages": None, "question": "Hi?", "answer": "Hello.", "output": None, "id": None},
}


@pytest.mark.parametrize("row", SPELLINGS.values(), ids=SPELLINGS.keys())
def test_every_spelling_gives_the_same_turns(row, write_rows):
    (conversation,) = read_conversations(write_rows([row]))
    assert conversation.turns == PAIR
    assert conversation.category == "other" and conversation.split is None and conversation.finished


def test_spellings_may_mix_in_one_file(write_rows):
    conversations = list(read_conversations(write_rows(list(SPELLINGS.values()))))
    assert {c.turns for c in conversations} == {PAIR}
    assert len({c.sample_id for c in conversations}) == 1  # equal text, equal hash


def test_file_formats_agree(tmp_path):
    rows = [{"id": f"r{n}", "prompt": f"Hi {n}?", "response": "Hello.\u2028Bye.", "category": "small"} for n in range(3)]
    lines = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
    array = json.dumps(rows, ensure_ascii=False)
    (tmp_path / "a.jsonl").write_text(lines, encoding="utf-8")
    (tmp_path / "b.jsonl").write_bytes(b"\xef\xbb\xbf" + lines.replace("\n", "\r\n\r\n").encode())
    (tmp_path / "c.json").write_text(array, encoding="utf-8")
    (tmp_path / "d.json").write_text(lines, encoding="utf-8")
    (tmp_path / "e.jsonl.gz").write_bytes(gzip.compress(lines.encode()))
    (tmp_path / "f.json.gz").write_bytes(gzip.compress(b"\xef\xbb\xbf" + array.encode()))
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), tmp_path / "g.parquet")
    read = {path.name: [(c.sample_id, c.category, c.turns) for c in read_conversations(path)] for path in tmp_path.iterdir()}
    assert len(read) == 7
    assert all(found == read["a.jsonl"] for found in read.values())
    assert read["a.jsonl"][0] == ("r0", "small", (Turn("user", "Hi 0?"), Turn("assistant", "Hello.\u2028Bye.")))


def test_parquet_messages_column(tmp_path):
    path = tmp_path / "m.parquet"
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist([SPELLINGS["messages"], SPELLINGS["messages"]]), path)
    assert [c.turns for c in read_conversations(path)] == [PAIR, PAIR]


def test_system_many_turns_and_keys(write_rows):
    turns = [("system", "Be brief."), ("user", "a"), ("assistant", "b"), ("user", "c"), ("assistant", "")]
    row = {
        "id": 7,
        "split": "heldout",
        "category": "chat",
        "finished": False,
        "messages": [{"role": role, "content": text} for role, text in turns],
    }
    (conversation,) = read_conversations(write_rows([row]))
    assert [(t.role, t.content) for t in conversation.turns] == turns
    assert (conversation.sample_id, conversation.split, conversation.category) == ("7", "heldout", "chat")
    assert conversation.finished is False and conversation.prompt == "a"


def test_alpaca_input_and_a_rows_own_system_text(write_rows):
    (conversation,) = read_conversations(
        write_rows([{"system": "S", "instruction": "Sum up.", "input": "Text.", "output": "T."}])
    )
    assert conversation.turns == (Turn("system", "S"), Turn("user", "Sum up.\n\nText."), Turn("assistant", "T."))


def test_ids_may_not_repeat_across_files(write_rows):
    row = {"id": "x", "prompt": "a", "response": "b"}
    first, second = write_rows([row], "1.jsonl"), write_rows([row], "2.jsonl")
    seen: dict[str, str] = {}
    list(read_conversations(first, seen))
    with pytest.raises(DataError, match=r"2.jsonl line 1 repeats the id 'x' of .*1.jsonl line 1"):
        list(read_conversations(second, seen))
