"""Watches every connection of the servers, the workers and a whole run, from outside of the processes, with only loopback there.

    python benchmarks/quiet_network.py --json quiet.json
    python benchmarks/quiet_network.py --analytics          # the same with the tools' analytics on: it must fail

In a network namespace that has loopback only (unshare), under strace, which follows all children: Prefect's and MLflow's servers
and the workers start, and the tiny chain runs through a deployment. What connects to any other address, or asks a name server
at all, is listed. Beside strace, in the same namespace, Chromium opens the pages of both servers (page_visit.py), and its own net log
is the witness: every host that a page asks is listed unless it is loopback. Exit status 0 means that both lists are empty. What
Chromium asks for by itself, such as its own updates, has no page as its initiator and is listed apart. With --analytics, Prefect's newer
page is opened as well, which calls amplitude.com. Needs strace, chromium, and root or user namespaces.
"""

import argparse
import json
import os
import re
import shlex
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

from page_visit import ask_for_visit, visited
from results import leave

# Set, so that our defaults for them don't apply.
ANALYTICS_ON = {
    "DO_NOT_TRACK": "false",
    "DVC_NO_ANALYTICS": "",
    "MLFLOW_DISABLE_TELEMETRY": "false",
    "PREFECT_SERVER_ANALYTICS_ENABLED": "true",
}
CONNECT = re.compile(r'(?:connect|sendto)\(.*?sa_family=AF_INET6?, sin6?_port=htons\((\d+)\).*?"([0-9a-f.:]+)"')
LOOPBACK_UP = "import fcntl, socket, struct; s = socket.socket(); fcntl.ioctl(s, 0x8914, struct.pack('16sh', b'lo', 0x1 | 0x40))"
NAME_SERVER = 53


def main(arguments: list[str] | None = None) -> int:
    """Watch; see the module's text."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--analytics", action="store_true", help="with the tools' analytics on")
    parser.add_argument("--json", type=Path, help="file to write; default: print")
    parser.add_argument("--inside", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.inside:
        run_everything(options.inside, options.analytics)
        return 0
    with tempfile.TemporaryDirectory(prefix="quiet-network-") as directory:
        result = watch(Path(directory), options.analytics)
    return leave(result, options.json, not result["outside"] and not result["pages_asked_outside"])


def watch(directory: Path, analytics: bool) -> dict[str, Any]:
    """Run everything in the namespace; gives who asked whom."""
    trace = directory / "trace"
    environment = {k: v for k, v in os.environ.items() if k != "CI"} | (ANALYTICS_ON if analytics else {})
    inside = [sys.executable, __file__, "--inside", str(directory), *(["--analytics"] if analytics else [])]
    visitor = shlex.join([sys.executable, str(Path(__file__).with_name("page_visit.py")), str(directory)])
    strace = ["strace", "-f", "--seccomp-bpf", "-qq", "-e", "trace=connect,sendto", "-o", str(trace)]
    namespace = ["unshare", "--net", *([] if os.geteuid() == 0 else ["--map-root-user"])]
    script = f"{sys.executable} -c \"{LOOPBACK_UP}\" && {{ {visitor} & exec \"$@\"; }}"
    done = subprocess.run([*namespace, "sh", "-c", script, "sh", *strace, *inside], env=environment, check=False)
    if done.returncode:
        raise RuntimeError(f"the run inside ended with {done.returncode}; its output is above")
    asked = Counter(
        f"{address}:{port}"
        for line in trace.read_text(encoding="utf-8", errors="replace").splitlines()
        if (found := CONNECT.search(line))
        for port, address in [found.groups()]
    )
    outside = {address: count for address, count in asked.items() if not _is_loopback(address) or address.endswith(f":{NAME_SERVER}")}
    counts = {"loopback_connections": sum(asked.values()) - sum(outside.values()), **visited(directory)}
    return {"outside": outside, **counts, "analytics": analytics}


def run_everything(directory: Path, analytics: bool) -> None:
    """Servers, workers, one run of the chain through a deployment, and a visit of the pages by the process beside strace."""
    from services_site import site, wait_for
    from stop_matrix import FINAL, PROFILE, RUN_S, tiny_settings  # imports torch, which the watcher needn't

    with site(directory, PROFILE, tiny_settings(directory / "inputs", 20)) as place:
        run_id = place.start("train-drafter", {"profile": PROFILE})
        wait_for(lambda: place.state(run_id)[0] in FINAL, RUN_S, "the run")
        if place.state(run_id)[0] != "COMPLETED":
            raise RuntimeError(json.dumps(place.state(run_id)))
        ask_for_visit(directory, place, run_id, analytics)


def _is_loopback(address: str) -> bool:
    return address.startswith(("127.", "::1:", "::ffff:127."))


if __name__ == "__main__":
    sys.exit(main())
