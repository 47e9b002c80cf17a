"""Shared by all tests: the environment of third-party programs, set before any of them is imported, and Ctrl-C."""

import os
import signal

import tasks.environment  # noqa: F401

# A shell starts what it puts in the background with SIGINT ignored, and the tests of Ctrl-C would wait for ever.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# Before torch is imported. Threads cost more than they save at the tests' shapes, 1.3 s a step instead of 0.05 on two busy cores, and
# a pool of them hangs in a fork.
os.environ.setdefault("OMP_NUM_THREADS", "1")
