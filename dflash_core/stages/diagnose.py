"""Stage `diagnose`: a log's diagnosis as text, and on request as JSON and as an HTML report."""

import json
from pathlib import Path

from dflash_core.diagnosis.diagnose import diagnose_file
from dflash_core.diagnosis.outcome import as_text, as_tree, exit_code
from dflash_core.diagnosis.page import render
from dflash_core.errors import DataError


def run(log: Path, events: list[str], json_file: Path | None, html_file: Path | None, pattern: str | None) -> tuple[str, int]:
    """Diagnose `log`; give the text for the terminal and the exit code.

    Raises:
        DataError: the log or an event can't be read, or an output can't be written.
    """
    diagnosis = diagnose_file(log, events, pattern)
    if json_file is not None:
        _write(json_file, json.dumps(as_tree(diagnosis), indent=1, ensure_ascii=False) + "\n")
    if html_file is not None:
        _write(html_file, render(diagnosis))
    return as_text(diagnosis), exit_code(diagnosis)


def _write(path: Path, text: str) -> None:
    try:
        path.write_text(text, encoding="utf-8", errors="replace")
    except OSError as error:
        raise DataError(f"{path} can't be written: {error.strerror}. Choose another place.") from None
