"""Keeps tracebacks out of a flow's log for errors that say all there is to know: DflashErrors, a full disk, a missing permission.

Prefect logs every exception of a flow or task with its traceback; PREFECT_LOGGING_LEVEL=DEBUG shows these as well. A file that
isn't there, a process that is gone or a bare error of a network may be a fault of ours, and keeps its traceback.
"""

import logging

from dflash_core.errors import DflashError
from dflash_core.exit_code import is_of_machine, sentence_of


class WithoutTraceback(logging.Filter):
    """Strips the traceback of a DflashError, or of a fault of the machine, from a record and leaves the sentence."""

    def filter(self, record: logging.LogRecord) -> bool:
        """Always lets the record pass."""
        error = record.exc_info[1] if record.exc_info else None
        if (isinstance(error, DflashError) or is_of_machine(error)) and not logging.getLogger("prefect").isEnabledFor(logging.DEBUG):
            record.exc_info = record.exc_text = None
            record.msg, record.args = str(error) if isinstance(error, DflashError) else sentence_of(error), ()
        return True


def install() -> None:
    """Put the filter on the loggers of flow runs and task runs, once."""
    for name in ("prefect.flow_runs", "prefect.task_runs"):
        logger = logging.getLogger(name)
        if not any(isinstance(f, WithoutTraceback) for f in logger.filters):
            logger.addFilter(WithoutTraceback())
