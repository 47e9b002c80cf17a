"""Saves beside the loop: one in flight, put off, loud, never torn; and a loop that saves computes what one that doesn't does."""

import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from dflash_core.checkpoint.contents import Piece, Share
from dflash_core.checkpoint.digests import tensors_digest
from dflash_core.checkpoint.resume import RunDirectory
from dflash_core.checkpoint.saves import Past, Saves
from dflash_core.checkpoint.staging import HostBuffers
from dflash_core.checkpoint.store import CheckpointStore, Committed, Writing
from dflash_core.checkpoint.writer import BackgroundWriter
from dflash_core.distributed.gradients import Alone
from dflash_core.errors import CheckpointError
from dflash_core.training.log_reader import read_log
from dflash_core.training.loop import Position
from dflash_core.training.records import LogWriter

BESIDE = {"wait": False}


class GatedStore(CheckpointStore):
    """A store whose writes wait until the test lets one through, or fail."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.gate = threading.Semaphore(0)
        self.error: Exception | None = None

    def write(self, share: Share, writing: Writing) -> Committed | None:
        while not self.gate.acquire(timeout=0.01):
            if writing.given_up():
                raise CheckpointError("given up")
        if self.error:
            raise self.error
        return super().write(share, writing)


class Session:
    """Saves of one tensor whose value is the step."""

    def __init__(self, directory: RunDirectory, config: Any, past: Past | None = None) -> None:
        self.store = GatedStore(directory.store.root)
        self.log = LogWriter(directory.log_path)
        self.live = torch.zeros(3)
        origin = {"run_id": self.log.run_id}
        self.saves = Saves(self.share, HostBuffers(), self.store, Alone(torch.nn.Linear(1, 1)), self.log, config, origin, "0123abcd", past)

    def share(self, at: Position) -> Share:
        return Share(at.step, {"w": Piece.whole(self.live)}, {}, {"step": at.step, "generators": {}})

    def step(self, number: int, due: bool = False) -> None:
        self.live.fill_(number)
        self.saves.boundary(Position(number, number * 2), due, self.saves.news())

    def let_through(self) -> None:
        self.store.gate.release()
        self.saves._writer.join(10)


@pytest.fixture
def session(run_dir: RunDirectory, world: Callable[..., Any]) -> Iterator[Session]:
    made = Session(run_dir, world(checkpoint=BESIDE).config)
    yield made
    made.saves.close()
    made.log.close()


def saved(directory: RunDirectory) -> list[tuple[int, int]]:
    """(step, steps put off) of each checkpoint in the log."""
    return [(r.step, r.deferred) for r in read_log(directory.log_path) if r.kind == "checkpoint"]


def test_the_loop_goes_on_while_a_save_is_written_and_logs_it_when_it_is_on_disk(session: Session, run_dir: RunDirectory) -> None:
    session.step(1, due=True)
    session.step(2)
    assert session.saves.news() == (1.0, 0.0) and saved(run_dir) == [] and session.store.names() == ()
    session.let_through()
    session.step(3)
    assert saved(run_dir) == [(1, 0)] and session.saves.news() == (0.0, 0.0)
    loaded = session.store.load_newest()
    assert loaded.contents.weights["w"].tolist() == [1.0] * 3, "the state at its own step, not at the one that it was written in"


def test_a_save_that_falls_due_meanwhile_is_put_off_to_the_first_boundary_after_it(session: Session, run_dir: RunDirectory) -> None:
    for number in range(1, 6):
        session.step(number, due=number % 2 == 1)  # 1, 3, 5: the last two fall due while the first is written
    session.let_through()
    session.step(6)
    session.let_through()
    session.step(7)
    assert saved(run_dir) == [(1, 0), (6, 3)]
    assert session.store.load("step-00000006")[1].weights["w"].tolist() == [6.0] * 3


def test_only_the_last_save_is_waited_for(session: Session, run_dir: RunDirectory) -> None:
    session.step(1, due=True)
    session.step(2, due=True)
    threading.Timer(0.05, lambda: session.store.gate.release(2)).start()
    session.saves.finish(Position(2, 4))
    assert saved(run_dir) == [(1, 0), (2, 0)]
    records = [r for r in read_log(run_dir.log_path) if r.kind == "checkpoint"]
    assert records[0].blocked_s > 0.03, "the wait counts as blocked"
    session.saves.finish(Position(2, 4))
    assert len(saved(run_dir)) == 2, "what is on disk is not saved again"


def test_a_failed_save_is_loud_one_step_later_and_costs_no_other(session: Session, run_dir: RunDirectory) -> None:
    session.step(1, due=True)
    session.let_through()
    session.step(2, due=True)
    session.store.error = CheckpointError("disk full")
    session.let_through()
    with pytest.raises(CheckpointError, match="disk full"):
        session.step(3)
    assert session.store.names() == ("step-00000001",) and saved(run_dir) == [(1, 0)]


def test_the_failure_of_another_rank_is_loud_here(session: Session) -> None:
    session.step(1, due=True)
    with pytest.raises(CheckpointError, match="failed in another rank"):
        session.saves.boundary(Position(2, 4), False, (1.0, 1.0))


def test_each_checkpoint_names_the_one_before_it(run_dir: RunDirectory, world: Callable[..., Any]) -> None:
    session = Session(run_dir, world(checkpoint=BESIDE).config, Past(step=1, digest="from the last session"))
    for number in (2, 3):
        session.step(number, due=True)
        session.let_through()
    session.saves.finish(Position(3, 6))
    manifests = [session.store.load(name)[0] for name in session.store.names()]
    assert [origin_of(m)["parent"] for m in manifests] == ["from the last session", manifests[0].digest]
    session.log.close()


def origin_of(committed: Committed) -> dict[str, Any]:
    from dflash_core.checkpoint.manifest import read_manifest

    return read_manifest(committed.path)["origin"]


def test_after_an_error_elsewhere_the_save_in_flight_still_ends_in_the_log(session: Session, run_dir: RunDirectory) -> None:
    session.step(1, due=True)
    session.store.gate.release()
    session.saves.rescue()
    assert saved(run_dir) == [(1, 0)]


def test_closing_gives_up_what_is_in_flight(session: Session) -> None:
    session.step(1, due=True)
    session.saves.close()
    assert session.saves.news() == (0.0, 1.0) and session.store.names() == ()


def test_the_best_so_far_is_kept_by_later_sessions_too(run_dir: RunDirectory, world: Callable[..., Any]) -> None:
    first = Session(run_dir, world(checkpoint=BESIDE).config)
    first.saves.measured(1, {"tau": 2.0})
    first.store.gate.release(9)
    for number in (1, 2):
        first.step(number, due=True)
        first.saves.finish(Position(number, number))
    first.log.close()
    second = Session(run_dir, world(checkpoint=BESIDE).config, Past(step=2, taus={1: 2.0, 2: 1.0}))
    second.store.gate.release(9)
    for number in (3, 4):
        second.saves.measured(number, {"tau": 1.5})
        second.step(number, due=True)
        second.saves.finish(Position(number, number))
    second.log.close()
    assert second.store.names() == ("step-00000001", "step-00000003", "step-00000004")


def test_a_write_by_reference_is_torn_and_ours_is_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Updates race with the write, one after each chunk. The torn file verifies; its digest is that of no state there ever was."""
    monkeypatch.setattr("dflash_core.checkpoint.tensor_file._CHUNK_BYTES", 64)
    found = {}
    for way in ("by reference", "staged"):
        live = {name: torch.zeros(64) for name in "abcd"}
        digests = [tensors_digest(live)]

        def update(live: dict[str, torch.Tensor] = live, digests: list[str] = digests) -> bool:
            for tensor in live.values():
                tensor += 1
            digests.append(tensors_digest(live))
            return False

        share = Share(1, {name: Piece.whole(tensor) for name, tensor in live.items()}, {}, {})
        share = HostBuffers().stage(share) if way == "staged" else share
        store = CheckpointStore(tmp_path / way)
        committed = store.write(share, Writing({}, "0123abcd", update))
        assert store.load_newest().committed == committed
        found[way] = digests.index(committed.weights_digest) if committed.weights_digest in digests else "none"
    assert found == {"by reference": "none", "staged": 0}


def test_buffers_are_kept_and_hold_what_was_staged_last() -> None:
    buffers, live = HostBuffers(), torch.zeros(2, 3)
    share = Share(1, {"w": Piece.whole(live)}, {"w.exp_avg": Piece(live[1:], 1, (2, 3))}, {})
    first = buffers.stage(share)
    live += 1
    assert first.weights["w"].rows.sum() == 0 and first.moments["w.exp_avg"].first_row == 1
    second = buffers.stage(share)
    assert second.weights["w"].rows.data_ptr() == first.weights["w"].rows.data_ptr() != live.data_ptr()
    assert second.weights["w"].rows.sum() == 6


def test_the_writer_takes_its_share_of_a_core_until_somebody_waits_for_it() -> None:
    writer, half = BackgroundWriter(), threading.Event()

    def work() -> float:
        began = time.perf_counter()
        for number in range(6):
            while time.thread_time() < 0.004 * (number + 1):
                pass
            writer.given_up()
            if number == 2:
                half.set()
        return time.perf_counter() - began

    for hurried in (False, True):
        half.clear()
        writer.start(work, core_share=0.1)
        if hurried:
            assert half.wait(5)
            began = time.perf_counter()
            writer.hurry()
        writer.join(5)
        took = writer.result()
        if not hurried:
            assert took >= 6 * 0.036
    assert time.perf_counter() - began < 5 * 0.036 and took >= 3 * 0.036


def test_a_writer_that_is_called_off_ends_its_rest_and_tells_the_job() -> None:
    writer = BackgroundWriter()

    def work() -> bool:
        while time.thread_time() < 0.004:
            pass
        return writer.given_up()

    writer.start(work, core_share=1e-9)
    writer.give_up()
    writer.join(5)
    assert writer.result() is True
