"""What an inbox may not hold: it is refused before anything is answered, with the file and what to do."""

import json
import os
from pathlib import Path

import pytest

from dflash_core.errors import ConfigError, DataError
from tasks.inbox import collect

from .toy_inbox import Target, write


@pytest.mark.parametrize(
    ("row", "said"),
    [
        ({"prompt": "\ud83d"}, "half a surrogate pair"),
        ({"prompt": "\0"}, "null byte"),
        ({"prompt": "x", "split": "test"}, "unknown split"),
        ({"prompt": "x", "id": ""}, "the id ''"),
        ({"prompt": "x", "id": None}, "expected an object with id"),
        ({"messages": [{"role": "bot", "content": "x"}, {"role": "user", "content": "x"}]}, "unknown role"),
        ({"messages": [{"role": "user", "content": "x"}, {"role": "user", "content": "x"}]}, "alternate"),
    ],
)
def test_what_no_later_night_could_read_is_refused_before_it_is_answered(tmp_path: Path, own: Path, row: dict[str, object], said: str) -> None:
    target = Target()
    write(tmp_path / "inbox/a.jsonl", "p2")
    (tmp_path / "inbox/b.jsonl").write_text(json.dumps({"id": "p3"} | row) + "\n")
    with pytest.raises(DataError, match=rf"b.jsonl line 1.*{said}"):
        collect(tmp_path / "inbox", tmp_path / "collected", [own], target, tmp_path / "cache")
    assert not target.asked


def test_an_id_stands_for_one_text(tmp_path: Path, own: Path) -> None:
    write(tmp_path / "inbox/a.jsonl", "p1", text="Sing {}.")
    with pytest.raises(DataError, match="one text an id"):
        collect(tmp_path / "inbox", tmp_path / "collected", [own], Target(), tmp_path / "cache")
    assert (tmp_path / "inbox/a.jsonl").exists()


def prompt(name: str, *turns: tuple[str, str], **keys: str) -> str:
    return json.dumps({"id": name, "messages": [{"role": role, "content": text} for role, text in turns]} | keys) + "\n"


FIRST, SECOND = ("user", "Say it."), (("assistant", "It."), ("user", "Again."))


@pytest.mark.parametrize("said", ["1" * 5000, "[" * 100_000])
def test_a_file_that_is_refused_is_named_whatever_its_name(tmp_path: Path, own: Path, said: str) -> None:
    file = write(tmp_path / "inbox" / os.fsdecode(b"caf\xe9.jsonl"), "p2")
    file.write_text(file.read_text() + f'{{"id": {said}')
    with pytest.raises(DataError) as refused:
        collect(file.parent, tmp_path / "collected", [own], Target(), tmp_path / "cache")
    assert r"caf\udce9.jsonl line 2 is" in str(refused.value).encode().decode()


def test_a_file_is_no_inbox(tmp_path: Path, own: Path) -> None:
    with pytest.raises(ConfigError, match="own.jsonl is a file, expected a directory"):
        collect(own, tmp_path / "collected", [own], Target(), tmp_path / "cache")


@pytest.mark.parametrize("garbled", [(), ("p2",)], ids=["answered", "left out"])
@pytest.mark.parametrize(
    ("other", "said"),
    [
        ([FIRST, ("assistant", "It."), ("user", "Once more.")], "for 'Once more.' .user., which stands for 'Again.' .user. already"),
        ([("system", "Be brief."), FIRST, *SECOND], "for 'Be brief.' .system., which stands for 'Say it.' .user. already"),
        ([FIRST], "for a text that ends before, which stands for 'It.' .assistant. already"),
    ],
)
def test_a_text_is_all_of_its_turns(tmp_path: Path, own: Path, garbled: tuple[str, ...], other: list[tuple[str, str]], said: str) -> None:
    target, file = Target(*garbled), write(tmp_path / "inbox/a.jsonl")
    for _ in range(2):
        file.write_text(prompt("p2", FIRST, *SECOND))
        collect(file.parent, tmp_path / "collected", [own], target, tmp_path / "cache")
    file.write_text(prompt("p2", *other))
    write(file.with_name("b.jsonl"), "p3")
    with pytest.raises(DataError, match=f"a.jsonl has the id 'p2' {said}; expected one text an id"):
        collect(file.parent, tmp_path / "collected", [own], target, tmp_path / "cache")
    assert target.asked == [["p2"]] and file.exists()


@pytest.mark.parametrize("turns", [[("human", "Say it.")], [FIRST, *SECOND]])
def test_what_may_have_been_the_prompt_of_a_conversation_from_elsewhere_is_known(tmp_path: Path, turns: list[tuple[str, str]]) -> None:
    own, target, file = tmp_path / "own.jsonl", Target(), write(tmp_path / "inbox/a.jsonl")
    said = [{"from": "human", "value": "Say it."}, {"from": "gpt", "value": "It."}, {"from": "human", "value": "Again."}, {"from": "gpt", "value": "It."}]
    own.write_text(json.dumps({"id": "p2", "conversations": said}) + "\n")
    file.write_text(prompt("p2", *turns))
    assert collect(file.parent, tmp_path / "collected", [own], target, tmp_path / "cache") == [own] and not target.asked
    file.write_text(prompt("p2", ("system", "Be brief."), FIRST))
    with pytest.raises(DataError, match="one text an id"):
        collect(file.parent, tmp_path / "collected", [own], target, tmp_path / "cache")


def test_a_text_is_in_one_split(tmp_path: Path, own: Path) -> None:
    """Else prepare would refuse the answers, each night anew."""
    target, file = Target(), tmp_path / "inbox/a.jsonl"
    file.parent.mkdir()
    file.write_text(json.dumps({"id": "p2", "prompt": "Hm?", "split": "train"}) + "\n")
    collect(file.parent, tmp_path / "collected", [own], target, tmp_path / "cache")
    for name in ("p2", "p3"):
        file.write_text(json.dumps({"id": name, "prompt": "Hm?", "split": "heldout"}) + "\n")
        with pytest.raises(DataError, match=f"a.jsonl has the prompt '{name}' in heldout.*in train already"):
            collect(file.parent, tmp_path / "collected", [own], target, tmp_path / "cache")
    file.write_text(json.dumps({"id": "p2", "prompt": "Hm?", "split": "train"}) + "\n")
    collect(file.parent, tmp_path / "collected", [own], target, tmp_path / "cache")
    assert target.asked == [["p2"]]
