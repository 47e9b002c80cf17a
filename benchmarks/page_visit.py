"""The part of quiet_network.py that looks at the servers' pages in Chromium, in a process of its own that strace doesn't slow.

It waits in a directory for the addresses, opens each page until it shows what it must, and leaves the browser's net log there.
"""

import json
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from browser import browser

from dflash_core.launcher.processes import stop_when_parent_dies

if TYPE_CHECKING:
    from services_site import Site

ASKED, DONE, NET_LOG = "visit.json", "visited.json", "net-log.json"
WAIT_S = 1800.0
REST_S = 3.0  # on each page, for what it does by itself after it has come
LOOPBACK = {"127.0.0.1", "localhost", "::1"}
NO_PAGE = "not an origin"  # what a page asks for has its origin as initiator; the browser's own services have this
NO_NETWORK = {"about", "blob", "chrome", "chrome-extension", "data", "devtools"}  # schemes that ask nobody


def ask_for_visit(directory: Path, place: "Site", run_id: str, analytics: bool) -> None:
    """Have the other process open the pages, and wait for it. With analytics, Prefect's newer page is one of them."""
    from services_site import wait_for

    prefect, mlflow = place.prefect_page, place.machine.mlflow_uri
    found = place.client.read_deployment_by_name("train-drafter/train-drafter")
    pages = {
        f"{prefect}/dashboard": "Dashboard",
        f"{prefect}/deployments/deployment/{found.id}/run": "Submit",
        f"{prefect}/runs/flow-run/{run_id}": "Completed",
        f"{prefect}/runs/flow-run/{run_id}?tab=Artifacts": "Artifacts",
        f"{mlflow}/#/experiments": "dflash",
        f"{mlflow}/#/models": "Models",
    }
    if analytics:
        pages[f"{prefect}/v2/dashboard"] = "Dashboard"
    _write(directory / ASKED, pages)
    wait_for((directory / DONE).exists, WAIT_S, "the visit of the pages")
    unseen = set(pages) - set(json.loads((directory / DONE).read_text(encoding="utf-8")))
    if unseen:
        raise RuntimeError(f"not all pages could be opened, the reason is above: {sorted(unseen)}")


def visited(directory: Path) -> dict[str, Any]:
    """What the visit found, by the browser's net log: hosts that aren't loopback which the pages asked, and those which the browser asked by itself."""
    pages = [urlsplit(address) for address in json.loads((directory / DONE).read_text(encoding="utf-8"))]
    # A browser that is ended leaves the log without its last brackets; each event is a line.
    lines = (directory / NET_LOG).read_text(encoding="utf-8", errors="replace").splitlines()
    asked = [request for line in lines if (request := _request(line))]
    outside = [(host, initiator) for host, initiator in asked if host not in LOOPBACK]
    return {
        "pages": [page.path + page.fragment for page in pages],
        "pages_asked_outside": sorted({host for host, initiator in outside if initiator != NO_PAGE}),
        "pages_asked_loopback": len(asked) - len(outside),
        "browser_asked_by_itself": sorted({host for host, initiator in outside if initiator == NO_PAGE}),
    }


def visit(directory: Path) -> None:
    """Open each page."""
    from services_site import wait_for

    wait_for((directory / ASKED).exists, WAIT_S, "the servers")
    pages = json.loads((directory / ASKED).read_text(encoding="utf-8"))
    seen = []
    try:
        with browser(f"--log-net-log={directory / NET_LOG}") as page:
            for address, text in pages.items():
                page.open(address, text)
                time.sleep(REST_S)
                seen.append(address)
    finally:
        _write(directory / DONE, seen)


def _request(line: str) -> tuple[str, str] | None:
    """The host that an event of the log asks, and the page that it asks for."""
    try:
        event = json.loads(line.rstrip(",\n"))
    except ValueError:
        return None
    parameters = event.get("params", {}) if isinstance(event, dict) else {}
    if "url" not in parameters or "initiator" not in parameters:  # only the event that begins a request has both
        return None
    address = urlsplit(parameters["url"])
    return None if address.scheme in NO_NETWORK else (address.hostname or parameters["url"], parameters["initiator"])


def _write(file: Path, tree: Any) -> None:
    temporary = file.with_suffix(".tmp")
    temporary.write_text(json.dumps(tree), encoding="utf-8")
    temporary.rename(file)


if __name__ == "__main__":
    stop_when_parent_dies()
    visit(Path(sys.argv[1]))
