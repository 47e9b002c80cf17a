"""torchrun's agent with our processes: the part of a launch that needs torch.

torch's documentation recommends to extend SimpleElasticAgent, from which torchrun's own agent comes: rendezvous, the numbering
of ranks and the loop are its, the starting, watching and ending of processes is ours (supervision.py says why).
"""

import os
import signal
import time
from collections.abc import Callable, Sequence

from torch.distributed.elastic.agent.server import SimpleElasticAgent, Worker, WorkerGroup, WorkerSpec, WorkerState
from torch.distributed.elastic.agent.server.api import RunResult

from dflash_core.errors import Stopped
from dflash_core.launcher.meeting import NO_NAME_SERVER, Meeting
from dflash_core.launcher.options import LaunchOptions
from dflash_core.launcher.output import RankOutput
from dflash_core.launcher.peers import Peers
from dflash_core.launcher.processes import RankProcess, start_rank
from dflash_core.launcher.signals import StopSignals
from dflash_core.launcher.supervision import Supervision

_POLL_S = 0.05
_REPORTS_S = 15.0  # for the other nodes to end their ranks, too (supervision.py: 12 s), so that the first cause is known to all
_LINGER_S = 10.0


class RankAgent(SimpleElasticAgent):
    """Runs this node's ranks once. `command` is a rank's program and arguments."""

    def __init__(self, command: Sequence[str], options: LaunchOptions, output: RankOutput, signals: StopSignals) -> None:
        spec = WorkerSpec(
            role="rank",
            local_world_size=options.nproc,
            rdzv_handler=Meeting(options, output, signals),
            entrypoint=command[0],
            max_restarts=0,  # who retries is the flow, which first asks whether the inputs are the same
            monitor_interval=_POLL_S,
        )
        super().__init__(spec)
        self._command, self._options, self._output, self._signals = list(command), options, output, signals
        self._processes: list[RankProcess] = []
        self._supervision: Supervision | None = None
        self._peers: Peers | None = None

    def run_to_end(self) -> None:
        """Start the ranks and wait for them.

        Raises:
            Stopped, RunFailed: as Supervision.raise_outcome.
            ConfigError: the nodes didn't meet.
        """
        self.run()
        self._supervision.raise_outcome()

    def _start_workers(self, worker_group: WorkerGroup) -> dict[int, int]:
        for worker in worker_group.workers:
            with self._output.open(worker.global_rank, worker.world_size) as output:
                environment = self._environment(worker_group, worker)
                self._processes.append(start_rank(worker.global_rank, self._command, environment, output))
        self._supervision = Supervision(self._processes, self._output, self._options.grace_s)
        self._peers = Peers(worker_group.store, self._options.node_rank, self._options.nnodes)
        return {worker.local_rank: process.pid for worker, process in zip(worker_group.workers, self._processes, strict=True)}

    def _environment(self, group: WorkerGroup, worker: Worker) -> dict[str, str]:
        """What torchrun sets, under the same names."""
        variables = {
            "RANK": worker.global_rank,
            "LOCAL_RANK": worker.local_rank,
            "ROLE_RANK": worker.role_rank,
            "ROLE_NAME": group.spec.role,
            "WORLD_SIZE": worker.world_size,
            "LOCAL_WORLD_SIZE": group.spec.local_world_size,
            "ROLE_WORLD_SIZE": worker.role_world_size,
            "GROUP_RANK": group.group_rank,
            "GROUP_WORLD_SIZE": group.group_world_size,
            "MASTER_ADDR": group.master_addr,
            "MASTER_PORT": group.master_port,
            "TORCHELASTIC_RUN_ID": self._options.rdzv_id,
            "TORCHELASTIC_RESTART_COUNT": 0,
            "TORCHELASTIC_MAX_RESTARTS": 0,
            "TORCHELASTIC_USE_AGENT_STORE": True,
        }
        # Unless a person has chosen: the cores shared out among the processes, each of which would else take them all.
        defaults = {"OMP_NUM_THREADS": self._options.threads, "TORCH_NCCL_ASYNC_ERROR_HANDLING": 1}
        if self._options.nnodes == 1:
            defaults["GLOO_SOCKET_IFNAME"] = "lo"  # gloo else looks up the host's name, which needn't resolve
            defaults["RES_OPTIONS"] = NO_NAME_SERVER
        chosen = {name: os.environ.get(name, value) for name, value in defaults.items()}
        return {name: str(value) for name, value in (chosen | variables).items()}

    def _monitor_workers(self, worker_group: WorkerGroup) -> RunResult:
        self._look_around()
        if self._supervision.running:
            return RunResult(state=WorkerState.HEALTHY)
        # To the agent an end is an end: _exit_barrier follows, and the supervision knows what it means.
        return RunResult(state=WorkerState.SUCCEEDED, return_values={worker.global_rank: None for worker in worker_group.workers})

    def _look_around(self) -> None:
        """Take in what has happened here and elsewhere, and act on it."""
        for number in self._signals.take():
            self._supervision.ask_to_stop(number)
        self._supervision.others_failed(self._peers.failures())
        if self._peers.any_stopped:
            self._supervision.others_stopped()
        self._supervision.advance()
        self._peers.tell("running", self._supervision.stopped, self._supervision.failure)

    def _exit_barrier(self) -> None:
        """No rank runs here: wait for the other nodes. After a good end for as long as they take, since one may still fail."""
        supervision, peers = self._supervision, self._peers
        peers.tell("ended", supervision.stopped, supervision.failure)
        bad = supervision.stopped or supervision.failure is not None or bool(peers.failures())
        if bad:
            _wait_until(lambda: peers.all_have("ended"), _REPORTS_S)
        else:
            _wait_until(lambda: peers.all_have("ended") or self._given_up(), None)
        supervision.others_failed(peers.failures())
        if peers.any_stopped:
            supervision.others_stopped()
        peers.tell("left", supervision.stopped, supervision.failure)
        # The store is node 0's, and the others read it until they leave; who hasn't even ended isn't waited for again.
        serving = self._options.node_rank == 0 and peers.all_have("ended")
        _wait_until(lambda: peers.is_told and (peers.all_have("left") or not serving), _LINGER_S)

    def _given_up(self) -> bool:
        if self._signals.take():
            raise Stopped("The ranks of this node have ended, those of another run on; it was not waited for.")
        return bool(self._peers.failures())

    def _stop_workers(self, worker_group: WorkerGroup) -> None:
        raise AssertionError("nothing is restarted")

    def _shutdown(self, death_sig: int = signal.SIGTERM, timeout: int = 30) -> None:
        """The agent's last act. Ranks run here only where it was ended by an exception, which has no time to lose."""
        for process in self._processes:
            process.send(signal.SIGKILL)


def run_ranks(command: Sequence[str], options: LaunchOptions, output: RankOutput, signals: StopSignals) -> None:
    """Run the ranks of this node to their end. Raises as RankAgent.run_to_end."""
    RankAgent(command, options, output, signals).run_to_end()


def _wait_until(met: Callable[[], bool], seconds: float | None) -> None:
    deadline = None if seconds is None else time.monotonic() + seconds
    while not met() and (deadline is None or time.monotonic() < deadline):
        time.sleep(_POLL_S)
