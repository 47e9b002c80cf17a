"""Shared by all tests: the environment of third-party programs, set before any of them is imported, and Ctrl-C."""

import os
import signal

import pytest

import tasks.environment  # noqa: F401

# A shell starts what it puts in the background with SIGINT ignored, and the tests of Ctrl-C would wait for ever.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# Before torch is imported. Threads cost more than they save at the tests' shapes, 1.3 s a step instead of 0.05 on two busy cores, and
# a pool of them hangs in a fork.
os.environ.setdefault("OMP_NUM_THREADS", "1")

FORKING = {"in_ranks", "forked", "on_ranks"}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tests that fork into ranks in one worker, which as the second largest group (after that of the flows) begins with them.

    A fork has one thread, and waits for ever for what another thread held when it was made: in a worker that has had servers,
    databases and their clients, one of some hundred forks did.
    """
    for item in items:
        if FORKING & set(getattr(item, "fixturenames", ())):
            item.add_marker(pytest.mark.xdist_group("forks"))
