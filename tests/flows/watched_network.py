"""Notes every address but loopback that this process, or any Python that it starts, connects to or looks up."""

import importlib.util
import os
from pathlib import Path

# Python runs a module of this name at its start; -S and -I would keep it from that, which nothing here uses.
HOOK = '''
import sys

def _note(event, arguments, _open=open):
    if event == "socket.connect" and isinstance(arguments[1], tuple):
        host = arguments[1][0]
    elif event in ("socket.getaddrinfo", "socket.gethostbyname"):
        host = arguments[0]
    else:
        return
    host = host.decode() if isinstance(host, bytes) else host
    if host not in (None, "", "localhost", "0.0.0.0", "::", "::1") and not host.startswith("127."):
        with _open({file!r}, "a") as notes:
            notes.write(f"{{event}} {{host}} by {{sys.argv[:3]}}\\n")

sys.addaudithook(_note)
'''


class WatchedNetwork:
    """Watches from its making on; `environment` is for processes that are to be watched."""

    def __init__(self, directory: Path) -> None:
        self._notes = directory / "asked-outside"
        self._hook = directory / "sitecustomize.py"
        self._hook.write_text(HOOK.format(file=str(self._notes)))
        self.environment = {"PYTHONPATH": os.pathsep.join(filter(None, [str(directory), os.environ.get("PYTHONPATH", "")]))}

    def watch_this_process(self) -> None:
        """From now on, and for good: an audit hook can't be taken off."""
        spec = importlib.util.spec_from_file_location("watched_network_hook", self._hook)
        spec.loader.exec_module(importlib.util.module_from_spec(spec))

    def outside(self) -> list[str]:
        """What was asked of the outside, and by whom."""
        return self._notes.read_text().splitlines() if self._notes.exists() else []
