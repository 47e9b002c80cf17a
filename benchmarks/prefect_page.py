"""What a person does in Prefect's page: fills in the form of a deployment, presses Submit, looks at the run and at its artifacts."""

import json
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

from browser import Page

FIELD = (
    "[...document.querySelectorAll('.schema-form-property')]"
    ".find(e => e.querySelector('.schema-form-property__label').innerText.split(' (')[0] === {name})"
)
# The page draws its timeline, and what a table holds, after it has come.
PAINT_S = 4.0
PRESSES, PRESS_S = 6, 20.0
ARTIFACTS_TAB = "[...document.querySelectorAll('[class*=tab]')].filter(e => e.innerText.trim() === 'Artifacts').pop()"
ARTIFACTS = "[...new Map([...document.querySelectorAll('a[href*=\"/artifacts/artifact/\"]')].map(e => [e.href, e])).values()]"
ARTIFACT_KEY = "document.querySelector('a[href*=\"/artifacts/key/\"]').innerText"


def start_run(page: Page, address: str, deployment: str, parameters: dict[str, Any], form: Path | None = None) -> None:
    """Fill in the form and press its button, until the page has left the form. `form` takes a picture before."""
    page.size(1500)
    page.open(f"{address}/deployments/deployment/{deployment}/run", "Submit")
    page.wait(f"{_field('profile')}.querySelector('textarea').value")  # the deployment's own value, which comes last
    for name, value in parameters.items():
        _fill(page, name, value)
    if form:
        page.picture(form)
    for _ in range(PRESSES - 1):  # leaving the last field can move the button from under the mouse, and a busy server answers 503
        with suppress(RuntimeError):
            _submit(page)
            return
    _submit(page)


def _submit(page: Page) -> None:
    page.click("document.querySelector('form button[type=submit]')")
    page.wait("!location.pathname.endsWith('/run')", PRESS_S)


def take_pictures(page: Page, address: str, run: str, log_line: str, directory: Path, name: str) -> None:
    """Of a run that has ended: NAME.png its page, NAME-artifacts.png the list of its artifacts, and NAME-KEY.png each of them."""
    page.size(1100)
    page.open(f"{address}/runs/flow-run/{run}", log_line)
    time.sleep(PAINT_S)
    page.picture(directory / f"{name}.png")
    page.click(ARTIFACTS_TAB)
    page.wait(f"{ARTIFACTS}.length")
    time.sleep(PAINT_S)
    page.picture(directory / f"{name}-artifacts.png")
    for link in sorted(page.script(f"{ARTIFACTS}.map(e => e.href)")):
        page.size(700)
        page.open(link, "Details")
        time.sleep(PAINT_S)
        page.picture(directory / f"{name}-{page.script(ARTIFACT_KEY)}.png")


def _fill(page: Page, name: str, value: Any) -> None:
    """One field as its type asks for: a switch, a text, a field that is empty until its type is chosen, a group of fields."""
    if isinstance(value, dict):
        for inner, inner_value in value.items():
            _fill(page, inner.replace("_", " ").title(), inner_value)
        return
    field = _field(name)
    if isinstance(value, bool):
        if page.script(f"{field}.querySelector('input[type=checkbox]').checked") != value:
            page.click(f"{field}.querySelector('.p-toggle__control, input[type=checkbox]')")
        return
    if page.script(f"Boolean({field}.querySelector('.p-button-group'))"):
        page.click(f"{field}.querySelector('.p-button-group button')")
        page.wait(f"{field}.querySelector('textarea, fieldset input')")
    page.type(f"{field}.querySelector('textarea, fieldset input')", str(value))


def _field(name: str) -> str:
    return FIELD.format(name=json.dumps(name))
