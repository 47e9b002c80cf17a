"""What a campaign leaves: its figures as JSON, and an exit status that says whether they hold."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any


def leave(result: Mapping[str, Any], path: Path | None, holds: bool) -> int:
    """Write the figures to `path`, or print them; 0 where they hold, else 1."""
    text = json.dumps(result, indent=1) + "\n"
    if path:
        path.write_text(text, encoding="utf-8")
    else:
        print(text, end="")
    return 0 if holds else 1
