"""Runs a function in every rank of a world, in forks of this process: an interpreter each would spend 5 s on imports."""

import multiprocessing
import os
import socket
import time
import traceback
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection, wait
from multiprocessing.context import ForkProcess
from typing import Any

import torch
from torch.distributed import TCPStore

_FORK = multiprocessing.get_context("fork")


class RankError(RuntimeError):
    """A rank raised, or was gone; the message is its traceback."""


def on_ranks(size: int, function: Callable[..., Any], *arguments: Any, timeout_s: float = 600.0) -> list[Any]:
    """`function(*arguments)` in `size` processes that have torchrun's variables; their answers in the order of the ranks.

    Raises:
        RankError: of the rank that failed first; the others are killed.
    """
    torch.set_num_threads(1)  # a forked OpenMP pool of more than one thread hangs
    listener = socket.create_server(("127.0.0.1", 0))
    pipes = [_FORK.Pipe(duplex=False) for _ in range(size)]
    ranks = [_FORK.Process(target=_rank, args=(rank, size, listener, pipes[rank][1], function, arguments)) for rank in range(size)]
    for process in ranks:
        process.start()
    for _, writer in pipes:
        writer.close()
    # After the forks: a fork waits for ever for a lock that the store's thread held when it was made, and one in some 2,000 did.
    # Until it listens, what the ranks ask waits in the socket.
    port = listener.getsockname()[1]
    store = TCPStore("127.0.0.1", port, is_master=True, wait_for_workers=False, master_listen_fd=listener.detach())
    try:
        return _answers(ranks, [reader for reader, _ in pipes], time.monotonic() + timeout_s)
    finally:
        for process in ranks:
            process.kill()
            process.join()
        del store  # served them until now


def _answers(ranks: Sequence[ForkProcess], readers: Sequence[Connection], deadline: float) -> list[Any]:
    found: dict[int, Any] = {}
    while len(found) < len(readers):
        waiting = {reader: rank for rank, reader in enumerate(readers) if rank not in found}
        ready = wait(list(waiting), max(0.0, deadline - time.monotonic()))
        if not ready:
            raise RankError(f"ranks {sorted(waiting.values())} of {len(readers)} did not answer in time")
        for reader in ready:
            rank = waiting[reader]
            try:
                worked, answer = reader.recv()
            except EOFError:
                ranks[rank].join(10)
                worked, answer = False, f"gone, exit code {ranks[rank].exitcode}"
            if not worked:
                raise RankError(f"rank {rank} of {len(readers)}: {answer}")
            found[rank] = answer
    for process in ranks:
        process.join(max(1.0, deadline - time.monotonic()))
        if process.exitcode != 0:
            raise RankError(f"a rank answered, then ended with {process.exitcode}")
    return [found[rank] for rank in range(len(readers))]


def settle_after_fork() -> None:
    """Call first in a fork. torch makes its thread pool anew there, and fails where two threads come to that at once (2.13)."""
    torch.set_num_threads(1)


def _rank(rank: int, size: int, listener: socket.socket, pipe: Connection, function: Callable[..., Any], arguments: Sequence[Any]) -> None:
    settle_after_fork()
    os.environ |= {
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "WORLD_SIZE": str(size),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(listener.getsockname()[1]),
        "TORCHELASTIC_USE_AGENT_STORE": "True",
        "TORCHELASTIC_RESTART_COUNT": "0",
        "GLOO_SOCKET_IFNAME": "lo",
    }
    listener.close()
    try:
        answer = (True, function(*arguments))
    except BaseException:  # noqa: BLE001 - the answer, whatever it is
        answer = (False, traceback.format_exc())
    pipe.send(answer)
