"""Prefect tasks, and the only importers of mlflow and dvc: one file for each tool."""

import tasks.environment  # noqa: F401
