"""Ranks that are small scripts, nodes in processes of their own, and waiting for what they do."""

import multiprocessing
import os
import socket
import threading
import time
from collections.abc import Callable
from pathlib import Path

PROJECT = Path(__file__).resolve().parents[2]
# What a script starts with; `asked` lists the signals that came, as training's StopRequest would have them.
PREAMBLE = """
import os, signal, sys, time
rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
asked = []
def listen():
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda n, frame: asked.append(signal.Signals(n).name))
    print("ready", flush=True)
def wait(seconds=60):
    end = time.monotonic() + seconds
    while time.monotonic() < end and not asked:
        time.sleep(0.01)
"""
# A launcher in a process of its own: node 1 of 2, or one that is killed. Forked from a server that has torch, which costs 2 s.
NODE = """
from dflash_core.errors import DflashError
from dflash_core.launcher import supervision
from dflash_core.launcher.launch import launch
from dflash_core.launcher.options import LaunchOptions
supervision.SETTLE_S = 0.5
try:
    launch({worker!r}, LaunchOptions(**{options!r}), {logs!r})
except DflashError as error:
    {said!r}.write_text(str(error))
    raise SystemExit(error.exit_code)
"""
FORKED = multiprocessing.get_context("forkserver")
FORKED.set_forkserver_preload(["dflash_core.launcher.launch"])


def lines(directory: Path, rank: int) -> list[str]:
    """What a rank wrote, without the launcher's heading."""
    path = directory / f"rank-{rank}.log"
    return [line for line in path.read_text().splitlines() if not line.startswith("===")] if path.exists() else []


def when(condition: Callable[[], bool], then: Callable[[], None]) -> threading.Thread:
    """Do something once a condition holds; `launch` has the main thread."""

    def watch() -> None:
        until(condition)
        then()

    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    return thread


def until(condition: Callable[[], bool], seconds: float = 60) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "waited too long"
        time.sleep(0.02)


def all_ready(directory: Path, ranks: int = 2) -> Callable[[], bool]:
    return lambda: all("ready" in lines(directory, rank) for rank in range(ranks))


def interrupt_us(number: int) -> Callable[[], None]:
    return lambda: os.kill(os.getpid(), number)


def free_endpoint() -> str:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return f"127.0.0.1:{listener.getsockname()[1]}"
