"""A flow of its own for proofs: of one checkpoint or of all that a workspace's run has, also while it trains."""

import argparse
import sys
from typing import Annotated, Any

from prefect import flow
from pydantic import Field

from tasks import quiet_errors
from tasks.command_line import exit_code_of
from tasks.forms import MadeWorkspace
from tasks.proof import ALL, prove_one
from tasks.tracking import tracked
from tasks.worker_watch import watching_worker
from tasks.workspace import open_workspace

CheckpointName = Annotated[str, Field(pattern=r"^(all|\d+|step-\d{8,})$", description='A name such as step-00000350, a step, or "all".')]
EXAMPLE = "Example: python -m flows.validate_checkpoint --workspace demo --checkpoint step-00000350"


@flow(name="validate-checkpoint")
def validate_checkpoint(workspace: MadeWorkspace = "demo", checkpoint: CheckpointName = ALL) -> list[dict[str, Any]]:
    """Prove checkpoints by replaying the steps after them.

    Args:
        workspace: Name of a directory below workspaces/. Where there is none, a profile, such as demo or nightly-demo: its last completed run's.
        checkpoint: Name of one, such as step-00000350, or "all".
    """
    quiet_errors.install()
    place = open_workspace(workspace)
    with watching_worker(), tracked(place) as tracker:  # no lock: it changes nothing that a flow in the same workspace writes
        return prove_one(place, tracker, checkpoint)


def main(arguments: list[str]) -> int:
    """Run the flow from a shell; gives 0 proven, 3 not, 2 bad input."""
    parser = argparse.ArgumentParser(prog="python -m flows.validate_checkpoint", description=__doc__, epilog=EXAMPLE)
    parser.add_argument("--workspace", default="demo", help="name below workspaces/; where there is none, a profile: its last completed run's")
    parser.add_argument("--checkpoint", default=ALL, help="name of one; default: all")
    options = parser.parse_args(arguments)
    return exit_code_of(lambda: validate_checkpoint(options.workspace, options.checkpoint))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
