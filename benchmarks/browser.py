"""A real browser, driven over its DevTools protocol: opens pages, fills forms, takes pictures.

Chromium's own services (safe browsing, field trials, extensions, translation) are off by flags as far as there are any.
`chromium` must be on the path; nothing else is installed for it.
"""

import base64
import json
import shutil
import subprocess
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from websockets.sync.client import ClientConnection, connect

from dflash_core.launcher.processes import stop_when_parent_dies

FLAGS = (
    "--headless",
    "--no-sandbox",  # root has none
    "--remote-debugging-port=0",
    "--no-first-run",
    "--no-default-browser-check",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-default-apps",
    "--disable-domain-reliability",
    "--disable-extensions",
    "--disable-features=AutofillServerCommunication,CertificateTransparencyComponentUpdater,MediaRouter,OptimizationHints,Translate",
    "--disable-sync",
    "--metrics-recording-only",
    "--no-pings",
    "--password-store=basic",
    "--hide-scrollbars",
    "--enable-unsafe-swiftshader",  # drawings in WebGL without a graphics card; the pages are our own
)
START_S, LOAD_S, POLL_S = 60.0, 90.0, 0.2
WIDTH = 1200


class Page:
    """The browser's one page."""

    def __init__(self, connection: ClientConnection) -> None:
        self._connection = connection
        self._calls = 0
        self.size(900)

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """One command of the protocol. Raises RuntimeError where it is refused."""
        self._calls += 1
        self._connection.send(json.dumps({"id": self._calls, "method": method, "params": parameters}))
        while True:
            message = json.loads(self._connection.recv(LOAD_S))
            if message.get("id") == self._calls:  # anything else is an event
                if "error" in message:
                    raise RuntimeError(f"{method}: {message['error']}")
                return message["result"]

    def open(self, url: str, text: str) -> None:
        """Load a page, and wait until it shows a text."""
        self.call("Page.navigate", url=url)
        self.wait_for_text(text)

    def script(self, source: str) -> Any:
        """Run a script in the page; gives its value. Raises RuntimeError where the script does."""
        answer = self.call("Runtime.evaluate", expression=source, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in answer:
            raise RuntimeError(f"{source[:200]}: {answer['exceptionDetails'].get('exception', {}).get('description')}")
        return answer["result"].get("value")

    def wait(self, condition: str, seconds: float = LOAD_S) -> None:
        """Wait until a script gives something true. Raises RuntimeError, with what the page shows, where it doesn't in time."""
        until = time.monotonic() + seconds
        while not self.script(f"Boolean({condition})"):
            if time.monotonic() > until:
                raise RuntimeError(f"not within {seconds:g} s: {condition}; the page shows: {self.script('document.body.innerText')[:2000]}")
            time.sleep(POLL_S)

    def wait_for_text(self, text: str, seconds: float = LOAD_S) -> None:
        """Wait until the page shows a text."""
        self.wait(f"document.body && document.body.innerText.includes({json.dumps(text)})", seconds)

    def click(self, element: str) -> None:
        """Press the mouse on what a script gives, as a person does: once it stands still."""
        self.script(f"{element}.scrollIntoView({{block: 'center'}})")
        place, before = self._middle_of(element), None
        while place != before:
            time.sleep(POLL_S)
            place, before = self._middle_of(element), place
        for kind in ("mousePressed", "mouseReleased"):
            self.call("Input.dispatchMouseEvent", type=kind, button="left", clickCount=1, **place)

    def _middle_of(self, element: str) -> dict[str, float]:
        return self.script(f"(() => {{ const b = {element}.getBoundingClientRect(); return {{x: b.x + b.width / 2, y: b.y + b.height / 2}}; }})()")

    def type(self, element: str, text: str) -> None:
        """Write into a field, in place of what is there."""
        self.click(element)
        self.script(f"{element}.select()")
        self.call("Input.insertText", text=text)

    def size(self, height: int) -> None:
        """Of the window; the width is one."""
        self.call("Emulation.setDeviceMetricsOverride", width=WIDTH, height=height, deviceScaleFactor=1, mobile=False)

    def picture(self, file: Path) -> None:
        """What the window shows, as a PNG."""
        file.write_bytes(base64.b64decode(self.call("Page.captureScreenshot", format="png")["data"]))


@contextmanager
def browser(*flags: str) -> Iterator[Page]:
    """Start Chromium with a profile of its own; end it with all its children. Raises RuntimeError where there is none."""
    program = shutil.which("chromium")
    if program is None:
        raise RuntimeError("no chromium on the path. Install it (Debian: apt-get install chromium).")
    with tempfile.TemporaryDirectory(prefix="browser-", ignore_cleanup_errors=True) as profile:
        process = subprocess.Popen(
            [program, *FLAGS, *flags, f"--user-data-dir={profile}", "about:blank"],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            preexec_fn=stop_when_parent_dies,  # noqa: PLW1509 - one system call
        )
        try:
            with connect(_address(Path(profile)), max_size=None, proxy=None) as connection:
                yield Page(connection)
                # So that it writes its logs; a page that still works is no reason to wait.
                connection.send(json.dumps({"id": 0, "method": "Browser.close"}))
        finally:
            _end(process)


def _address(profile: Path) -> str:
    """Of the page's own connection, once the browser has said its port."""
    said, until = profile / "DevToolsActivePort", time.monotonic() + START_S
    while not said.exists() or not said.read_text(encoding="utf-8"):
        if time.monotonic() > until:
            raise RuntimeError(f"chromium did not start within {START_S:g} s")
        time.sleep(POLL_S)
    port = said.read_text(encoding="utf-8").split()[0]
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/json/list") as answer:
        return next(target["webSocketDebuggerUrl"] for target in json.load(answer) if target["type"] == "page")


def _end(process: subprocess.Popen[bytes]) -> None:
    try:
        process.wait(10)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
