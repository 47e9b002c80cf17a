"""Stage `report` as a command."""

import json
import os
from dataclasses import asdict
from pathlib import Path

from dflash_core.config import Config
from dflash_core.report.collect import collect
from dflash_core.report.figures import draw_all
from dflash_core.report.page import render
from dflash_core.stages import layout


def run(config: Config) -> str:
    """Write build/report/report.html and report.json; gives the line that a person sees."""
    facts = collect(config, Path())
    layout.REPORT.mkdir(parents=True, exist_ok=True)
    page = layout.REPORT / "report.html"
    _write(layout.REPORT / "report.json", json.dumps(asdict(facts), ensure_ascii=False) + "\n")
    _write(page, render(facts, draw_all(facts)))
    return f"report is in {page}"


def _write(path: Path, text: str) -> None:
    temporary = path.with_suffix(".tmp")
    temporary.write_text(text, encoding="utf-8")
    os.replace(temporary, path)
