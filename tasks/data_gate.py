"""The task of the data gate, with what it says as a text on the run's page, and a no told as an event."""

from collections.abc import Mapping
from typing import Any

from prefect import task
from prefect.cache_policies import NO_CACHE

from tasks import lineage
from tasks.artifacts import show_text
from tasks.events import DATA_REFUSED, tell
from tasks.stages import run_if_needed
from tasks.workspace import Workspace

KEY = "data-gate"
STAGE = "check-data"


@task(cache_policy=NO_CACHE, task_run_name=STAGE)
def check_data(workspace: Workspace, force: bool = False) -> bool:
    """Run the data gate; what it says is passed on also where it says no, which ends the flow."""
    file = workspace.root / "build/data_gate/verdict.json"
    before = file.stat().st_mtime_ns if file.exists() else None
    try:
        return run_if_needed(workspace, STAGE, force)
    finally:
        if file.exists() and file.stat().st_mtime_ns != before:
            _pass_on(workspace, lineage.read_json(file))


def _pass_on(workspace: Workspace, verdict: Mapping[str, Any]) -> None:
    show_text(KEY, as_markdown(verdict), f"What the data gate said; its page is {workspace.root / 'build/data_gate/page.html'}")
    if not verdict["passed"]:
        tell(DATA_REFUSED, f"data.{workspace.root.name}", workspace=workspace.root.name, dataset=verdict["dataset"], failed=verdict["failed"])


def as_markdown(verdict: Mapping[str, Any]) -> str:
    """What failed first, then the facts and what held."""
    expectations = sorted(verdict["expectations"], key=lambda entry: entry["passed"])
    failed = verdict["failed"]
    said = f"{len(failed)} of {len(expectations)} expectations don't hold" if failed else f"all {len(expectations)} expectations hold"
    rows = [
        f"| {'yes' if e['passed'] else '**no**'} | {e['table']} | {e['name']} | {_cell(e['says'])}{_key(e)} | {_cell(e['fault'] or e['observed'])} |"
        for e in expectations
    ]
    facts = ", ".join(f"{_cell(name)}: {_cell(value)}" for name, value in verdict["facts"].items())
    head = [f"**{'Passed' if verdict['passed'] else 'Refused'}**: {said}. {facts}", ""]
    return "\n".join([*head, "| holds | table | expectation | what must hold | found |", "| --- | --- | --- | --- | --- |", *rows])


def _key(expectation: Mapping[str, Any]) -> str:
    return f" `{expectation['limit']}`" if expectation["limit"] else ""


def _cell(text: Any) -> str:
    return " ".join(str(text).replace("|", "\\|").split())
