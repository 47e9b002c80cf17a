"""The processes of a run and their roles.

Drafter ranks come first, so rank 0, which writes the log and the checkpoints, always trains. In placement
`colocated` every rank has a target of its own. In `split` the last ranks run the target only, `tensor_parallel` of
them together on one; the first of such a team is its leader, which sends.
"""

import datetime
import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.distributed as dist

from dflash_core.config import DistributedConfig
from dflash_core.errors import ConfigError, PipelineError, Stopped

LEADER = 0


@dataclass(frozen=True)
class World:
    """Ranks and roles; `teams` are the target ranks of `split`, each tuple one target.

    Groups on CPU tensors (gloo): `control` of all ranks, `messages` of all for the threads that carry features,
    `drafters` of the drafter ranks, `team_words` of this rank's team. On tensors of the device (NCCL on a GPU): `features`
    of all ranks, `device_group` of the drafter ranks, `team_device_group`. None where there is only one process, or no team.
    """

    rank: int = 0
    size: int = 1
    drafter_ranks: tuple[int, ...] = (0,)
    teams: tuple[tuple[int, ...], ...] = ()
    control: dist.ProcessGroup | None = field(default=None, repr=False)
    drafters: dist.ProcessGroup | None = field(default=None, repr=False)
    messages: dist.ProcessGroup | None = field(default=None, repr=False)
    features: dist.ProcessGroup | None = field(default=None, repr=False)
    device_group: dist.ProcessGroup | None = field(default=None, repr=False)
    team_words: dist.ProcessGroup | None = field(default=None, repr=False)
    team_device_group: dist.ProcessGroup | None = field(default=None, repr=False)

    @property
    def is_writer(self) -> bool:
        """Writes log and checkpoints, and shows progress."""
        return self.rank == LEADER

    @property
    def is_split(self) -> bool:
        """Targets run in ranks of their own."""
        return bool(self.teams)

    @property
    def trains(self) -> bool:
        """This rank holds the drafter, or a shard of it."""
        return self.rank in self.drafter_ranks

    @property
    def role(self) -> str:
        """For messages."""
        return "drafter" if self.trains else "target"

    @property
    def leads_team(self) -> bool:
        """Sends its team's features."""
        return any(team[0] == self.rank for team in self.teams)

    @property
    def team(self) -> tuple[int, ...]:
        """The target ranks that share this target rank's target."""
        return next(team for team in self.teams if self.rank in team)

    @property
    def target_leader(self) -> int:
        """The rank whose target serves the writer, for the first weights and for evaluation."""
        return self.teams[0][0] if self.is_split else LEADER

    @property
    def serves_writer(self) -> bool:
        """Holds the target that serves the writer, or a part of it."""
        return self.rank in self.teams[0] if self.is_split else self.is_writer

    def name(self, rank: int) -> str:
        """`rank 2 (target)`."""
        return f"rank {rank} ({'drafter' if rank in self.drafter_ranks else 'target'})"

    def describe(self) -> dict[str, Any]:
        """For the log."""
        return {"size": self.size, "drafter_ranks": list(self.drafter_ranks), "target_teams": [list(team) for team in self.teams]}

    def hand_over(self, thing: Any, source: int, destination: int) -> Any:
        """Move an object of ours (never one from a file) from one rank to another; other ranks pass None and get None."""
        if source == destination:
            return thing if self.rank == source else None
        box = [thing]
        if self.rank == source:
            dist.send_object_list(box, destination, self.control)
        if self.rank == destination:
            dist.recv_object_list(box, source, self.control)
        return box[0] if self.rank == destination else None

    def tell(self, thing: Any, source: int = LEADER) -> Any:
        """Give an object of ours to all ranks."""
        if self.size == 1:
            return thing
        box = [thing]
        dist.broadcast_object_list(box, source, self.control)
        return box[0]

    def gather(self, thing: Any) -> list[Any]:
        """Every rank's object, in all ranks."""
        if self.size == 1:
            return [thing]
        box: list[Any] = [None] * self.size
        dist.all_gather_object(box, thing, self.control)
        return box


def split_ranks(config: DistributedConfig, size: int, target_ranks: int | None = None) -> tuple[tuple[int, ...], tuple[tuple[int, ...], ...]]:
    """Drafter ranks and target teams of a world of `size` processes.

    Args:
        target_ranks: what a calibration chose, where the configuration leaves it open.

    Raises:
        ConfigError: `split` without a rank for each side.
    """
    if config.placement == "colocated":
        return tuple(range(size)), ()
    targets = config.target_ranks or target_ranks or config.tensor_parallel
    if not 0 < targets < size:
        raise ConfigError(
            f"placement split has {targets} target ranks in a world of {size} processes, expected at least one rank of each side. "
            f"Start at least {targets + 1} (--nproc), or set distributed.placement to colocated."
        )
    first = size - targets
    width = config.tensor_parallel
    teams = tuple(tuple(range(start, start + width)) for start in range(first, size, width))
    return tuple(range(first)), teams


@contextmanager
def join_processes(config: DistributedConfig) -> Iterator[tuple[int, int]]:
    """Join the process group that torchrun announced in the environment; yields (rank, size), (0, 1) where it did not.

    gloo carries CPU tensors everywhere; on a GPU node NCCL carries the device's. Its communicators are made when they are
    first used, in groups of those that use them: without `device_id`, which would make one of all ranks that nothing uses.

    Raises:
        ConfigError: more processes on this node than it has GPUs.
        PipelineError: another rank is gone or stuck.
    """
    size = int(os.environ.get("WORLD_SIZE", "1"))
    if size == 1:
        yield 0, 1
        return
    on_gpus = torch.cuda.is_available()
    if on_gpus:
        _choose_gpu(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group("cpu:gloo,cuda:nccl" if on_gpus else "gloo", timeout=datetime.timedelta(seconds=config.timeout_s))
    orderly = False
    try:
        with naming_lost_ranks(dist.get_rank()):
            yield dist.get_rank(), size
        orderly = True
    except Stopped:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)  # torchrun sends it again, to ranks that have nothing left to stop
        orderly = True
        raise
    finally:
        # NCCL waits here, without a timeout, for transfers that the other side no longer takes part in. After an error
        # the end of the process is what ends them.
        if orderly or not on_gpus:
            dist.destroy_process_group()


@contextmanager
def naming_lost_ranks(rank: int) -> Iterator[None]:
    """Turns what a communication library raises when another rank is gone or stuck into a PipelineError."""
    try:
        yield
    except RuntimeError as error:
        text = " ".join(str(error).split())
        if not isinstance(error, dist.DistError) and "gloo" not in text and "NCCL" not in text:
            raise
        raise PipelineError(
            f"rank {rank} waited for the other ranks, and one of them {lost_because(text)} ({text[:160]}). "
            "Look at the log of the rank that ended first, then resume."
        ) from error


def lost_because(text: str) -> str:
    """What a library's error message says of the rank that was waited for."""
    return "is stuck" if "timed out" in text.lower() else "is gone"


def _choose_gpu(local_rank: int) -> None:
    count = torch.cuda.device_count()
    if local_rank >= count:
        raise ConfigError(f"this node has {count} GPUs and was to run process {local_rank + 1}, expected at most one a GPU. Lower --nproc.")
    torch.cuda.set_device(local_rank)


def make_world(config: DistributedConfig, rank: int, size: int, target_ranks: int | None = None) -> World:
    """The world of these processes; every rank calls it, since making groups is collective. Errors as `split_ranks`."""
    drafter_ranks, teams = split_ranks(config, size, target_ranks)
    if size == 1:
        return World()
    timeout = datetime.timedelta(seconds=config.timeout_s)
    device_backend = "nccl" if torch.cuda.is_available() else "gloo"

    def group(ranks: tuple[int, ...] | None = None, backend: str = "gloo") -> dist.ProcessGroup:
        return dist.new_group(ranks, timeout=timeout, backend=backend)

    team_groups = {team: (group(team), group(team, device_backend)) for team in teams}  # collective: every rank makes all
    team_words, team_device_group = next((team_groups[team] for team in teams if rank in team), (None, None))
    return World(
        rank=rank,
        size=size,
        drafter_ranks=drafter_ranks,
        teams=teams,
        control=group(),
        messages=group(),
        features=group(backend=device_backend),
        drafters=group(drafter_ranks),
        device_group=group(drafter_ranks, device_backend),
        team_words=team_words,
        team_device_group=team_device_group,
    )
