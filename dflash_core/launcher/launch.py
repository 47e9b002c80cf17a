"""Starts the processes of a distributed run on this node and sees them through: the work of torchrun, in our own process.

`python -m torch.distributed.run` as a child was the other choice. It ends with exit code 1 and a traceback whatever happened,
a stop included; sends SIGTERM to the ranks that are still saving as soon as one has saved; names as first failure any of those
that fail within the same second; leaves its ranks training when it is killed; and lets other nodes wait for their collective's
timeout. What it is good at, the meeting of the nodes and the numbering of the ranks, is used from its library (agent.py).

The command line that would start the same ranks by hand is printed first, and works: a rank can't tell the difference.
"""

import sys
from collections.abc import Sequence
from pathlib import Path

from dflash_core.launcher.agent import run_ranks
from dflash_core.launcher.options import LaunchOptions
from dflash_core.launcher.output import RankOutput
from dflash_core.launcher.signals import StopSignals


def launch(worker: Sequence[str], options: LaunchOptions, log_dir: Path) -> None:
    """Run `python WORKER...` once for each rank of this node, in the main thread; return when all of all nodes ended well.

    Args:
        worker: what follows `python`, as ("-m", "dflash_core", "train") or ("script.py",).
        options: how many, and where they meet.
        log_dir: gets rank-N.log, the output of rank N; a later launch appends.

    Raises:
        Stopped: SIGTERM or SIGINT came, to us or to ranks, and the ranks ended with exit code 4.
        RunFailed: a rank failed or was killed, or a node was lost; with the exit code of the first that did.
        ConfigError: the nodes didn't meet, or the log directory can't be written.
    """
    with RankOutput(log_dir) as output, StopSignals() as signals:
        output.note(f"the same by hand: {options.torchrun_command(worker)}")
        run_ranks([sys.executable, "-u", *worker], options, output, signals)
