"""Shared by all tests: the environment of third-party programs, set before any of them is imported."""

import tasks.environment  # noqa: F401
