"""A night that is killed at any moment, or loses its node, leaves a batch that the next one goes on with."""

import os
import shutil
from pathlib import Path

import pytest

from dflash_core.errors import DataError
from tasks.inbox import collect

from .toy_inbox import Target, write


@pytest.mark.parametrize("left", ["", '{"id": "p2", "prompt": "Say p2."}\n', '{"id": "p2", "pro'])
def test_a_batch_whose_prompts_a_lost_node_has_cut_begins_anew(tmp_path: Path, own: Path, left: str) -> None:
    def lost(prompts: Path, out: Path) -> None:
        prompts.write_text(left)
        raise KeyboardInterrupt

    target, inbox = Target(), tmp_path / "inbox"
    write(inbox / "a.jsonl", "p2", "p3")
    with pytest.raises(KeyboardInterrupt):
        collect(inbox, tmp_path / "collected", [own], lost, tmp_path / "cache")
    collect(inbox, tmp_path / "collected", [own], target, tmp_path / "cache")
    assert target.asked == [["p2", "p3"]] and len(list((inbox / "taken").iterdir())) == 1


def test_who_is_killed_while_the_target_answers_goes_on_with_the_same_batch(tmp_path: Path, own: Path) -> None:
    outs: list[Path] = []

    def killed(prompts: Path, out: Path) -> None:
        outs.append(out)
        raise KeyboardInterrupt

    write(tmp_path / "inbox/a.jsonl", "p2")
    for _ in range(2):
        with pytest.raises(KeyboardInterrupt):
            collect(tmp_path / "inbox", tmp_path / "collected", [own], killed, tmp_path / "cache")
    assert outs[0] == outs[1] and (tmp_path / "inbox/a.jsonl").exists()


def test_who_is_killed_before_the_answers_are_versioned_versions_them_next(tmp_path: Path, own: Path) -> None:
    def killed(prompts: Path, out: Path) -> None:
        Target()(prompts, out)
        raise KeyboardInterrupt

    place = tmp_path / "collected"
    write(tmp_path / "inbox/a.jsonl", "p2")
    with pytest.raises(KeyboardInterrupt):
        collect(tmp_path / "inbox", place, [own], killed, tmp_path / "cache")
    assert not (place / "conversations.dvc").exists()
    target = Target()
    collect(tmp_path / "inbox", place, [own], target, tmp_path / "cache")
    assert (place / "conversations.dvc").exists() and not target.asked


def test_who_is_killed_between_the_answers_and_their_manifest_goes_on_with_that_batch(tmp_path: Path, own: Path) -> None:
    target, place, inbox, outs = Target("p4"), tmp_path / "collected", tmp_path / "inbox", []

    def killed(prompts: Path, out: Path) -> None:
        outs.append(out)
        target(prompts, out)
        out.with_name(f"{out.name}.manifest.json").unlink()
        out.with_name(f"{out.name}.parts").mkdir()
        out.with_name(f"{out.name}.parts").joinpath("part.jsonl").write_text("{}")
        raise KeyboardInterrupt

    def goes_on(prompts: Path, out: Path) -> None:
        outs.append(out)
        target(prompts, out)

    write(inbox / "a.jsonl", "p2", "p4")
    with pytest.raises(KeyboardInterrupt):
        collect(inbox, place, [own], killed, tmp_path / "cache")
    write(inbox / "b.jsonl", "p3", "p4")
    collect(inbox, place, [own], goes_on, tmp_path / "cache")
    assert target.asked == [["p2", "p4"], ["p2", "p4"], ["p3"]] and outs[0] == outs[1] != outs[2]
    whole = {f"{out.name}{ending}" for out in outs for ending in ("", ".manifest.json")}
    assert {path.name for path in (place / "conversations").iterdir()} == whole and not outs[0].parent.exists()


@pytest.mark.parametrize("moves", [0, 1, 2])
def test_who_is_killed_while_a_batch_is_brought_in_has_it_next(tmp_path: Path, own: Path, moves: int) -> None:
    target, real, left = Target(), os.replace, iter(range(moves))
    inbox, place = tmp_path / "inbox", tmp_path / "collected"

    def dies(*args: Path) -> None:
        if next(left, None) is None:
            raise KeyboardInterrupt
        real(*args)

    write(inbox / "a.jsonl", "p2")
    with pytest.MonkeyPatch.context() as patch, pytest.raises(KeyboardInterrupt):
        collect(inbox, place, [own], lambda *args: (target(*args), patch.setattr(os, "replace", dies)), tmp_path / "cache")
    write(inbox / "b.jsonl", "p2")
    both = collect(inbox, place, [own], target, tmp_path / "cache")
    assert target.asked == [["p2"]] and len(both) == 2 and len(list((place / "conversations").iterdir())) == 2


def test_a_batch_that_was_begun_is_dropped_with_its_prompts(tmp_path: Path, own: Path) -> None:
    def killed(prompts: Path, out: Path) -> None:
        raise KeyboardInterrupt

    file, target = write(tmp_path / "inbox/a.jsonl", "p2", "p3"), Target()
    with pytest.raises(KeyboardInterrupt):
        collect(file.parent, tmp_path / "collected", [own], killed, tmp_path / "cache")
    write(file, "p3")
    collect(file.parent, tmp_path / "collected", [own], target, tmp_path / "cache")
    assert target.asked == [["p3"]]


@pytest.mark.parametrize("left", [0, 3, 17, -10])
def test_a_pointer_that_a_lost_node_has_cut_is_written_anew_or_named(tmp_path: Path, own: Path, left: int) -> None:
    target, place = Target(), tmp_path / "collected"
    pointer = place / "conversations.dvc"
    write(tmp_path / "inbox/a.jsonl", "p2")
    files = collect(tmp_path / "inbox", place, [own], target, tmp_path / "cache")
    whole = pointer.read_text()
    pointer.write_text(whole[:left])
    assert collect(tmp_path / "inbox", place, [own], target, tmp_path / "cache") == files and pointer.read_text() == whole
    pointer.write_text(whole[:left])
    shutil.rmtree(place / "conversations")
    for _ in range(2):
        with pytest.raises(DataError, match="conversations.dvc is cut short.*conversations is gone. Bring .* or remove the pointer"):
            collect(tmp_path / "inbox", place, [own], target, tmp_path / "cache")
    pointer.unlink()
    for file in place.glob("*.jsonl"):
        file.rename(tmp_path / "inbox" / file.name)
    assert collect(tmp_path / "inbox", place, [own], target, tmp_path / "cache") == files and target.asked == [["p2"], ["p2"]]
