"""Where the launchers of all nodes meet: torchrun's static rendezvous, with waits that a signal ends.

Node 0 serves a TCPStore, which the ranks then use for theirs (MASTER_ADDR, MASTER_PORT), as under torchrun. Its own handler
waits in C++ for up to ten minutes, in which Ctrl-C isn't heard; this one waits in Python and says for whom. A node alone
binds to loopback, at any free port; several nodes have no choice but to listen where they can be reached.
"""

import os
import socket
import time
from collections.abc import Callable
from datetime import timedelta

from torch.distributed import DistNetworkError, PrefixStore, TCPStore
from torch.distributed.elastic.rendezvous import RendezvousHandler, RendezvousInfo, RendezvousStoreInfo

from dflash_core.errors import ConfigError, Stopped
from dflash_core.launcher.options import LaunchOptions
from dflash_core.launcher.output import RankOutput
from dflash_core.launcher.signals import StopSignals

MEETING_S = 600.0  # nodes are often started by hand, one after the other
# For glibc, where one node is all that takes part: torch's store asks for the name of each peer, for its log, and what no hosts file
# answers goes to the name server, which may be far away or gone.
NO_NAME_SERVER = "attempts:0"
_STORE_TIMEOUT = timedelta(seconds=60)
_RETRY_S = 0.5


class Meeting(RendezvousHandler):
    """One meeting of all nodes; there is no second, since nothing is restarted."""

    def __init__(self, options: LaunchOptions, output: RankOutput, signals: StopSignals, meeting_s: float = MEETING_S) -> None:
        self._options, self._output, self._signals = options, output, signals
        self._deadline = time.monotonic() + meeting_s
        self._meeting_s = meeting_s
        self._server: TCPStore | None = None  # kept for as long as we live: it serves the ranks

    def next_rendezvous(self) -> RendezvousInfo:
        """Meet.

        Raises:
            ConfigError: the address doesn't serve, a node rank is taken twice, or a node didn't come.
            Stopped: a signal came.
        """
        alone = self._options.nnodes == 1
        self._server = self._serve_here() if alone else self._serve_there() if self._options.node_rank == 0 else self._connect()
        store = PrefixStore(self._options.rdzv_id, self._server)
        if not alone:
            self._gather(store)
        place = RendezvousStoreInfo(self._server.host, self._server.port)
        return RendezvousInfo(store, self._options.node_rank, self._options.nnodes, place)

    def _serve_here(self) -> TCPStore:
        os.environ.setdefault("RES_OPTIONS", NO_NAME_SERVER)
        listener = socket.create_server(("127.0.0.1", 0))
        port = listener.getsockname()[1]
        fd = listener.detach()  # the store's from here on
        return TCPStore("127.0.0.1", port, is_master=True, wait_for_workers=False, timeout=_STORE_TIMEOUT, master_listen_fd=fd)

    def _serve_there(self) -> TCPStore:
        host, port = self._options.address
        try:
            return TCPStore(host, port, is_master=True, wait_for_workers=False, timeout=_STORE_TIMEOUT)
        except DistNetworkError as error:
            raise ConfigError(
                f"node 0 can't listen at {host}:{port}: {str(error).splitlines()[0]}. Choose a free port of this machine."
            ) from None

    def _connect(self) -> TCPStore:
        host, port = self._options.address
        # By a plain socket first: a store that can't connect prints pages of C++ frames at each try.
        self._wait_until(lambda: _answers(host, port), f"node 0 does not answer at {host}:{port}")
        return TCPStore(host, port, is_master=False, wait_for_workers=False, timeout=_STORE_TIMEOUT)

    def _gather(self, store: PrefixStore) -> None:
        options = self._options
        if store.add(f"arrived/{options.node_rank}", 1) > 1:
            raise ConfigError(
                f"--node-rank {options.node_rank} is taken by another node at {options.rdzv_endpoint}; give each node its own."
            )
        for node in range(options.nnodes):
            self._wait_until(
                lambda node=node: store.check([f"arrived/{node}"]),
                f"node {node} of {options.nnodes} has not come to {options.rdzv_endpoint} with --rdzv-id {options.rdzv_id}",
            )

    def _wait_until(self, met: Callable[[], bool], complaint: str) -> None:
        said = False
        while not met():
            if self._signals.take():
                raise Stopped("Stopped before any rank had started. Run the same command again.")
            if time.monotonic() > self._deadline:
                raise ConfigError(
                    f"{complaint}, waited {self._meeting_s:g} s. Start the same command there, with its own --node-rank."
                )
            if not said:
                self._output.note(f"waiting: {complaint}")
                said = True
            time.sleep(_RETRY_S)

    def get_backend(self) -> str:
        """As torchrun would be told by --rdzv-backend."""
        return "static"

    @property
    def use_agent_store(self) -> bool:
        """The ranks connect to our store instead of serving one."""
        return True

    def is_closed(self) -> bool:
        """Nodes can't be added, so there is nothing to close."""
        return False

    def set_closed(self) -> None:
        """See is_closed."""

    def num_nodes_waiting(self) -> int:
        """Nodes that want to join a run that has begun."""
        return 0

    def get_run_id(self) -> str:
        """Name of the meeting."""
        return self._options.rdzv_id

    def shutdown(self) -> bool:
        """The store ends with our process."""
        return True


def _answers(host: str, port: int) -> bool:
    try:
        with socket.create_connection((host, port), timeout=_RETRY_S):
            return True
    except OSError:
        return False
