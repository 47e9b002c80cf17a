"""New prompts are answered once, and versioned, whatever is taken back, gone or stored elsewhere."""

import hashlib
import json
import os
import shutil
import threading
import time
from pathlib import Path

import pytest
import yaml

from dflash_core.errors import DataError
from dflash_core.target.new_prompts import batch_name
from dflash_core.target.prompts import read_prompts
from flows import retrain_nightly
from tasks import dvc_stages
from tasks import inbox as inbox_module
from tasks.inbox import collect, is_new_data, one_at_a_time

from .toy_inbox import Target, write

ABC = "900150983cd24fb0d6963f7d28e17f72"  # its hash


def lock_of(*files: Path) -> str:
    """Of a run that was made from files with this hash, and from code."""
    deps = [{"path": str(file), "md5": ABC} for file in (*files, Path("prepare.py"))]
    return yaml.safe_dump({"stages": {"prepare": {"deps": deps, "params": {"params.yaml": {"data": {"conversations": [*map(str, files)]}}}}}})


def test_only_what_is_new_is_answered(tmp_path: Path, own: Path) -> None:
    target, place, inbox = Target(), tmp_path / "collected", tmp_path / "inbox"
    write(inbox / "a.jsonl", "p1", "p2")
    first = collect(inbox, place, [own], target, tmp_path / "cache")
    pointer = (place / "conversations.dvc").read_text()
    write(inbox / "b.jsonl", "p2", "p3")
    second = collect(inbox, place, [own], target, tmp_path / "cache")
    assert target.asked == [["p2"], ["p3"]]
    assert first[0] == second[0] == own and len(first) == 2 and set(first) < set(second)
    assert (place / "conversations.dvc").read_text() != pointer, "each state has a version of its own"
    assert sorted(path.name[9:] for path in (inbox / "taken").iterdir()) == ["a.jsonl", "b.jsonl"]
    assert collect(inbox, place, [own], target, tmp_path / "cache") == second and len(target.asked) == 2


def test_what_was_left_out_is_asked_once(tmp_path: Path, own: Path) -> None:
    target, place, inbox = Target("p2", "p4"), tmp_path / "collected", tmp_path / "inbox"
    write(inbox / "a.jsonl", "p2")
    assert collect(inbox, place, [own], target, tmp_path / "cache") == [own], "a file without a row is none that prepare reads"
    write(inbox / "b.jsonl", "p2", "p3", "p4")
    both = collect(inbox, place, [own], target, tmp_path / "cache")
    write(inbox / "c.jsonl", "p2", "p4")
    assert collect(inbox, place, [own], target, tmp_path / "cache") == both and len(both) == 2
    assert target.asked == [["p2"], ["p3", "p4"]]
    assert len(list((inbox / "taken").iterdir())) == 3


def test_a_batch_that_was_taken_back_is_answered_again_where_its_prompts_are(tmp_path: Path, own: Path) -> None:
    target, place, inbox = Target(), tmp_path / "collected", tmp_path / "inbox"
    write(inbox / "a.jsonl", "p2")
    batch = collect(inbox, place, [own], target, tmp_path / "cache")[1]
    batch.unlink()
    assert collect(inbox, place, [own], target, tmp_path / "cache") == [own]
    (taken,) = (inbox / "taken").iterdir()
    taken.rename(inbox / taken.name)
    assert collect(inbox, place, [own], target, tmp_path / "cache") == [own, batch]
    assert target.asked == [["p2"], ["p2"]]


def test_a_batch_that_was_taken_back_is_in_the_next_version_no_more(tmp_path: Path, own: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place, inbox, stored = tmp_path / "collected", tmp_path / "inbox", []
    monkeypatch.setattr(dvc_stages, "push", lambda *_: stored.append((place / "conversations.dvc").read_text()) or 1)
    write(inbox / "a.jsonl", "p2")
    batch = collect(inbox, place, [own], Target(), tmp_path / "cache")[1]
    batch.unlink()
    batch.with_name(f"{batch.name}.manifest.json").unlink()
    for _ in range(2):
        assert collect(inbox, place, [own], Target(), tmp_path / "cache") == [own]
    assert len(set(stored)) == len(stored) == 2, "the remote is asked about each state once"
    with dvc_stages._opened(place) as repo:
        repo.checkout(force=True)
    assert not batch.exists()


def test_what_could_not_be_stored_is_stored_next(tmp_path: Path, own: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    answers = iter([None, 3])  # no remote yet
    monkeypatch.setattr(dvc_stages, "push", lambda *_: next(answers))
    write(tmp_path / "inbox/a.jsonl", "p2")
    for _ in range(3):
        collect(tmp_path / "inbox", tmp_path / "collected", [own], Target(), tmp_path / "cache")
    assert next(answers, "asked twice") == "asked twice"


def test_another_remote_is_given_all_there_is(tmp_path: Path, own: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    urls, stored = iter(["a", "a", "b"]), []
    monkeypatch.setattr(dvc_stages, "remote_url", lambda _: next(urls))
    monkeypatch.setattr(dvc_stages, "push", lambda *_: stored.append(1) or 1)
    write(tmp_path / "inbox/a.jsonl", "p2")
    for _ in range(3):
        collect(tmp_path / "inbox", tmp_path / "collected", [own], Target(), tmp_path / "cache")
    assert len(stored) == 2


def test_conversations_that_are_gone_come_back(tmp_path: Path, own: Path) -> None:
    target, place, cache = Target(), tmp_path / "collected", tmp_path / "cache"
    write(tmp_path / "inbox/a.jsonl", "p2")
    files = collect(tmp_path / "inbox", place, [own], target, cache)
    text, version = files[1].read_bytes(), (place / "conversations.dvc").read_text()
    shutil.rmtree(place / "conversations")
    assert collect(tmp_path / "inbox", place, [own], target, cache) == files and files[1].read_bytes() == text
    shutil.rmtree(place / "conversations")
    shutil.rmtree(cache)
    with pytest.raises(DataError, match="a part of .*no DVC remote"):
        collect(tmp_path / "inbox", place, [own], target, cache)
    assert (place / "conversations.dvc").read_text() == version and target.asked == [["p2"]], "an empty version would replace it"


def test_a_copy_that_goes_on_waits(tmp_path: Path, own: Path) -> None:
    for name in (".a.jsonl.x7Qd", ".b.jsonl", "c.jsonl.part"):
        write(tmp_path / "inbox" / name, "p2")
    assert collect(tmp_path / "inbox", tmp_path / "collected", [own], Target(), tmp_path / "cache") == [own]
    assert len(list((tmp_path / "inbox").iterdir())) == 3


@pytest.mark.parametrize("name", [f"{'a' * 249}.jsonl", f"{'ä' * 124}.jsonl", os.fsdecode(b"caf\xe9.jsonl")])
def test_whatever_the_name_of_a_file_it_is_taken_once(tmp_path: Path, own: Path, name: str) -> None:
    target, file = Target(), write(tmp_path / "inbox" / name, "p2")
    for _ in range(2):
        collect(file.parent, tmp_path / "collected", [own], target, tmp_path / "cache")
    (taken,) = (file.parent / "taken").iterdir()
    assert not file.exists() and target.asked == [["p2"]]
    assert taken.name.endswith("a.jsonl" if name.startswith("a") else ".jsonl") and taken.name.encode()


def test_no_inbox_is_nothing_new(tmp_path: Path, own: Path) -> None:
    assert collect(tmp_path / "none", tmp_path / "collected", [own], Target(), tmp_path / "cache") == [own]


def test_a_file_that_comes_while_the_target_answers_waits(tmp_path: Path, own: Path) -> None:
    def overtaken(prompts: Path, out: Path) -> None:
        Target()(prompts, out)
        write(tmp_path / "inbox/a.jsonl", "p3")

    write(tmp_path / "inbox/a.jsonl", "p2")
    collect(tmp_path / "inbox", tmp_path / "collected", [own], overtaken, tmp_path / "cache")
    target = Target()
    collect(tmp_path / "inbox", tmp_path / "collected", [own], target, tmp_path / "cache")
    assert target.asked == [["p3"]]


def test_a_prompt_is_asked_as_prepare_reads_it(tmp_path: Path, own: Path) -> None:
    """Else its answer is to another prompt, and its text another one the next time."""
    target, place, inbox = Target(), tmp_path / "collected", tmp_path / "inbox"
    turns = [{"role": role, "content": text} for role, text in (("human", "Say p2."), ("gpt", "p2"), ("human", "Again."))]
    for name in ("a.jsonl", "b.jsonl"):
        write(inbox / name).write_text(json.dumps({"id": "p2", "messages": turns}) + "\n")
        collect(inbox, place, [own], target, tmp_path / "cache")
    (asked,) = place.glob("*.jsonl")
    assert [turn["role"] for turn in json.loads(asked.read_text())["messages"]] == ["user", "assistant", "user"]
    assert target.asked == [["p2"]]


def test_a_batch_keeps_its_name(tmp_path: Path) -> None:
    """Else one that was begun before an update is answered again after it."""
    line = '{"id": "p2", "split": null, "category": "", "messages": [{"role": "user", "content": "Say p2."}]}\n'
    prompts = list(read_prompts(write(tmp_path / "a.jsonl", "p2")))
    assert batch_name(prompts) == hashlib.sha256(line.encode()).hexdigest()[:16]


def test_two_nights_run_one_after_the_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    order: list[str] = []

    def night() -> None:
        with one_at_a_time("demo"):
            order.append("in")
            time.sleep(0.1)
            order.append("out")

    monkeypatch.setattr(inbox_module, "COLLECTED", tmp_path)
    threads = [threading.Thread(target=night) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert order == ["in", "out"] * 2


def test_the_wait_for_another_night_is_not_of_the_time_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inbox_module, "COLLECTED", tmp_path)
    monkeypatch.setattr(retrain_nightly, "take_in", lambda *_: [])
    monkeypatch.setattr(retrain_nightly, "is_new_data", lambda *_: False)
    held = threading.Event()

    def other_night() -> None:
        with one_at_a_time("demo"):
            held.set()
            time.sleep(1.0)

    other = threading.Thread(target=other_night)
    other.start()
    held.wait()
    assert retrain_nightly.retrain_nightly.fn("demo", time_limit_minutes=0.5 / 60).name == "NothingToDo"
    other.join()


def test_data_are_new_until_a_run_of_them_is_published(tmp_path: Path) -> None:
    file = tmp_path / "c.jsonl"
    file.write_text("abc")
    assert is_new_data(tmp_path, "nightly-demo", [str(file)])
    (tmp_path / ".published").mkdir()
    published = {"workspace": "w", "run_dir": "r", "lock": lock_of(file)}
    (tmp_path / ".published/nightly-demo.json").write_text(json.dumps(published))
    assert not is_new_data(tmp_path, "nightly-demo", [str(file)])
    file.write_text("abcd")
    assert is_new_data(tmp_path, "nightly-demo", [str(file)])


def test_a_batch_that_was_taken_back_makes_the_data_new(tmp_path: Path) -> None:
    own, batch = tmp_path / "c.jsonl", tmp_path / "d.jsonl"
    own.write_text("abc")
    batch.write_text("abc")
    (tmp_path / ".published").mkdir()
    (tmp_path / ".published/nightly-demo.json").write_text(json.dumps({"workspace": "w", "run_dir": "r", "lock": lock_of(own, batch)}))
    assert not is_new_data(tmp_path, "nightly-demo", [str(own), str(batch)])
    assert is_new_data(tmp_path, "nightly-demo", [str(own)])
