"""What the launchers of several nodes tell each other while the ranks run: that they live, what failed, that they are done.

torchrun's agents don't: where a rank dies, the ranks of other nodes are left to the timeout of their collective, ten minutes
by default, and each node reports the failure that it saw itself. Here every node writes its state into the store each second
and reads the others', so that all of them end within seconds of the first failure, and name the same cause.
"""

import json
import threading
import time
from dataclasses import dataclass
from typing import Literal

from torch.distributed import DistError, Store

from dflash_core.launcher.failure import Failure

BEAT_S = 1.0
LOST_S = 30.0  # a loaded machine may miss many beats; within a minute all must have ended
Phase = Literal["running", "ended", "left"]  # left: has seen that all have ended, and needs the store no more


@dataclass
class _Peer:
    """Another node, as last heard of."""

    node: int
    heard_at: float
    beat: int = -1
    phase: Phase = "running"
    stopped: bool = False
    failure: Failure | None = None


class Peers:
    """The other nodes. Works in a thread with a connection of its own: where a machine has gone without a word, it would hang."""

    def __init__(self, store: Store, node: int, num_nodes: int) -> None:
        self._store, self._node = store.clone(), node
        self._peers = [_Peer(n, time.monotonic()) for n in range(num_nodes) if n != node]
        self._own: tuple[Phase, bool, Failure | None] = ("running", False, None)
        self._written = self._own
        self._beat = 0
        self._lost_store_at: float | None = None
        self._wake = threading.Event()
        if self._peers:
            threading.Thread(target=self._keep_up, daemon=True).start()

    def tell(self, phase: Phase, stopped: bool, failure: Failure | None) -> None:
        """Our own state; news go out at once."""
        if self._own != (phase, stopped, failure):
            self._own = (phase, stopped, failure)
            self._wake.set()

    @property
    def is_told(self) -> bool:
        """What we told is in the store, or nobody is there to read it."""
        return not self._peers or self._written == self._own or self._lost_store_at is not None

    @property
    def any_stopped(self) -> bool:
        """Ranks of another node have saved and ended."""
        return any(peer.stopped for peer in self._peers)

    def failures(self) -> list[Failure]:
        """What other nodes report, and nodes that have gone without a word."""
        return [peer.failure for peer in self._peers if peer.failure] + [
            self._gone(peer) for peer in self._peers if self._is_lost(peer)
        ]

    def all_have(self, phase: Phase) -> bool:
        """Whether each other node has ended or left, or won't be heard of any more."""
        later = ("ended", "left") if phase == "ended" else ("left",)
        return all(peer.phase in later or self._is_lost(peer) or self._lost_store_at is not None for peer in self._peers)

    def _keep_up(self) -> None:
        """Write and read until the process ends, or the store does."""
        keys = [f"node/{peer.node}" for peer in self._peers]
        try:
            while True:
                own = self._own
                self._store.set(f"node/{self._node}", self._as_json(*own))
                self._written = own
                if self._store.check(keys):
                    for peer, state in zip(self._peers, self._store.multi_get(keys), strict=True):
                        _hear(peer, json.loads(state))
                self._wake.wait(BEAT_S)
                self._wake.clear()
        except DistError:
            self._lost_store_at = time.time()

    def _as_json(self, phase: Phase, stopped: bool, failure: Failure | None) -> str:
        self._beat += 1
        return json.dumps({"beat": self._beat, "phase": phase, "stopped": stopped, "failure": failure and failure.to_json()})

    def _is_lost(self, peer: _Peer) -> bool:
        if peer.phase != "running":
            return False  # it may go whenever it likes
        return time.monotonic() - peer.heard_at > LOST_S or (peer.node == 0 and self._lost_store_at is not None)

    def _gone(self, peer: _Peer) -> Failure:
        how = "has closed its store" if peer.node == 0 and self._lost_store_at else f"has not been heard of for {LOST_S:g} s"
        sentence = (
            f"node {peer.node} {how}: its launcher was killed, or the machine or the network is down; the ranks here were ended. "
            "Run the same command again on every node to resume."
        )
        return Failure(sentence=sentence, exit_code=1, at=self._lost_store_at or time.time(), is_a_cause=True)


def _hear(peer: _Peer, state: dict) -> None:
    if state["beat"] == peer.beat:
        return
    peer.beat, peer.heard_at = state["beat"], time.monotonic()
    peer.stopped = state["stopped"]
    peer.failure = Failure.from_json(state["failure"]) if state["failure"] else None
    peer.phase = state["phase"]  # last: who sees that it has ended, sees how
