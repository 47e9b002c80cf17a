"""How many processes a launch starts and where they meet, and the torchrun command line that says the same."""

import os
import shlex
from collections.abc import Sequence
from dataclasses import dataclass

from dflash_core.errors import ConfigError

GRACE_S = 30.0  # torchrun's own default between the signal and SIGKILL
_EXAMPLE = "--nnodes 2 --node-rank 0 --rdzv-endpoint HOST:PORT --nproc 8"


@dataclass(frozen=True, kw_only=True)
class LaunchOptions:
    """One node's part of a launch.

    Args:
        nproc: processes to start on this node.
        nnodes: nodes that take part; each gets the same command with its own `node_rank`.
        node_rank: node 0 has the lowest ranks, and is where the processes meet.
        rdzv_endpoint: HOST:PORT of node 0; one node alone needs none.
        rdzv_id: keeps the keys of two runs apart, where they meet at one place.
        grace_s: seconds from the signal that stops a run to the SIGKILL for those that haven't ended.
    """

    nproc: int
    nnodes: int = 1
    node_rank: int = 0
    rdzv_endpoint: str | None = None
    rdzv_id: str = "dflash"
    grace_s: float = GRACE_S

    def __post_init__(self) -> None:
        if self.nproc < 1 or self.nnodes < 1:
            raise ConfigError(
                f"found {self.nproc} processes on {self.nnodes} nodes, expected at least one of each; correct --nproc."
            )
        if not 0 <= self.node_rank < self.nnodes:
            raise ConfigError(
                f"--node-rank {self.node_rank} is not in 0..{self.nnodes - 1} of --nnodes {self.nnodes}; correct one."
            )
        if self.nnodes > 1 and self.rdzv_endpoint is None:
            raise ConfigError(f"--nnodes {self.nnodes} needs the address of node 0; add it, as in {_EXAMPLE}.")
        if self.rdzv_endpoint is not None:
            _split(self.rdzv_endpoint)

    @property
    def num_ranks(self) -> int:
        """Processes of the run, where every node starts as many as this one."""
        return self.nproc * self.nnodes

    @property
    def address(self) -> tuple[str, int]:
        """Host and port where several nodes meet."""
        assert self.rdzv_endpoint is not None, self
        return _split(self.rdzv_endpoint)

    @property
    def threads(self) -> int:
        """Threads of each process: this node's cores, shared out; torchrun's own choice is 1, and a warning."""
        return max(1, len(os.sched_getaffinity(0)) // self.nproc)

    def torchrun_command(self, worker: Sequence[str]) -> str:
        """The shell command that starts the same processes by hand; `worker` is what follows `python`."""
        command = [
            "torchrun",
            "--nproc-per-node",
            str(self.nproc),
            "--max-restarts",
            "0",
            "--shutdown-timeout",
            f"{self.grace_s:.0f}",
        ]
        if self.rdzv_endpoint is None:
            command.append("--standalone")
        else:
            command += ["--nnodes", str(self.nnodes), "--node-rank", str(self.node_rank), "--rdzv-backend", "static"]
            command += ["--rdzv-endpoint", self.rdzv_endpoint, "--rdzv-id", self.rdzv_id]
        return f"OMP_NUM_THREADS={os.environ.get('OMP_NUM_THREADS', self.threads)} {shlex.join([*command, *worker])}"


def _split(endpoint: str) -> tuple[str, int]:
    host, _, port = endpoint.rpartition(":")
    if not host or not port.isdecimal() or not 0 < int(port) < 2**16:
        raise ConfigError(
            f"--rdzv-endpoint {endpoint!r} is not HOST:PORT with a port of 1 to 65535; correct it, as in {_EXAMPLE}."
        )
    return host.strip("[]"), int(port)
