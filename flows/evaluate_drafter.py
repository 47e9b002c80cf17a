"""A flow of its own for measurements: a drafter on prompt sets, and against another drafter that was measured on them."""

import argparse
import sys
from typing import Any

from prefect import flow

from tasks import quiet_errors
from tasks.command_line import exit_code_of
from tasks.evaluation import DEFAULT_NAME, compare_with, evaluate_on
from tasks.forms import OneCheckpoint
from tasks.tracking import tracked
from tasks.worker_watch import watching_worker
from tasks.workspace import open_workspace

EXAMPLE = "Example: python -m flows.evaluate_drafter --workspace demo --prompts gsm8k/test.jsonl --name weekly"


@flow(name="evaluate-drafter")
def evaluate_drafter(
    workspace: str = "demo",
    prompt_sets: list[str] | None = None,
    drafter: str | None = None,
    name: str = DEFAULT_NAME,
    against: str | None = None,
    checkpoint: OneCheckpoint | None = None,
) -> dict[str, Any]:
    """Measure a drafter of a workspace's target.

    Args:
        workspace: Name of the directory below workspaces/.
        prompt_sets: Files to measure; those of the workspace's configuration where not given, else its held-out prompts.
        drafter: Directory in z-lab's layout; the workspace's own where not given.
        name: Directory below evaluations/ that takes the result.
        against: Name of an earlier result, or a path, to compare with.
        checkpoint: Name of one of the workspace's run, such as step-00000350, in place of a drafter.
    """
    quiet_errors.install()
    place = open_workspace(workspace)
    with watching_worker(), tracked(place) as tracker:  # no lock: it changes nothing that a flow in the same workspace writes
        measured = evaluate_on(place, tracker, prompt_sets or [], drafter, name, checkpoint)
        compare_with(place, tracker, name, against)
    return measured


def main(arguments: list[str]) -> int:
    """Run the flow from a shell; gives 0 measured, 3 an output that differs from the target's, 2 bad input."""
    parser = argparse.ArgumentParser(prog="python -m flows.evaluate_drafter", description=__doc__, epilog=EXAMPLE)
    parser.add_argument("--workspace", default="demo", help="name below workspaces/")
    parser.add_argument("--prompts", action="append", default=[], metavar="FILE", help="a prompt set; repeatable")
    parser.add_argument("--drafter", help="directory in z-lab's layout; default: the workspace's own")
    parser.add_argument("--checkpoint", help="name of one of the workspace's run, in place of --drafter")
    parser.add_argument("--name", default=DEFAULT_NAME, help="of the result, below the workspace's evaluations/")
    parser.add_argument("--against", help="name or path of an earlier result to compare with")
    options = parser.parse_args(arguments)
    chosen = (options.prompts, options.drafter, options.name, options.against, options.checkpoint)
    return exit_code_of(lambda: evaluate_drafter(options.workspace, *chosen))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
