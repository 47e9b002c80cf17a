"""A flow of its own for measurements: a drafter on prompt sets, and against another drafter that was measured on them."""

import argparse
import sys
from typing import Annotated, Any

from prefect import flow
from pydantic import Field

from tasks import quiet_errors
from tasks.command_line import exit_code_of
from tasks.evaluation import DEFAULT_NAME, Subject, compare_with, earlier_result, evaluate_on
from tasks.forms import MadeWorkspace, OneCheckpoint, ResultName
from tasks.tracking import tracked
from tasks.worker_watch import watching_worker
from tasks.workspace import open_workspace

EXAMPLE = "Example: python -m flows.evaluate_drafter --workspace demo --prompts gsm8k/test.jsonl --name weekly"


@flow(name="evaluate-drafter")
def evaluate_drafter(
    workspace: MadeWorkspace = "demo",
    prompt_sets: list[Annotated[str, Field(min_length=1)]] | None = None,
    drafter: Annotated[str, Field(min_length=1)] | None = None,
    name: ResultName | None = None,
    against: Annotated[str, Field(min_length=1)] | None = None,
    checkpoint: OneCheckpoint | None = None,
) -> dict[str, Any]:
    """Measure a drafter of a workspace's target.

    Args:
        workspace: Name of a directory below workspaces/. Where there is none, a profile, such as demo or nightly-demo: its last completed run's.
        prompt_sets: Files to measure; those of the workspace's configuration where not given, else its held-out prompts.
        drafter: Directory in z-lab's layout; the workspace's own where not given.
        name: Directory below evaluations/ that takes the result; a checkpoint's has the checkpoint's name, if none is given.
        against: Name of an earlier result, or a path, to compare with.
        checkpoint: Name or step of one of the run's checkpoints, to measure in place of a drafter.
    """
    quiet_errors.install()
    place = open_workspace(workspace)
    subject = Subject(tuple(prompt_sets or ()), drafter, checkpoint)
    name = name or checkpoint or DEFAULT_NAME
    earlier = earlier_result(place, name, against)
    with watching_worker(), tracked(place) as tracker:  # no lock: it changes nothing that a flow in the same workspace writes
        measured = evaluate_on(place, tracker, subject, name)
        compare_with(place, tracker, name, earlier)
    return measured


def main(arguments: list[str]) -> int:
    """Run the flow from a shell; gives 0 measured, 3 an output that differs from the target's, 2 bad input."""
    parser = argparse.ArgumentParser(prog="python -m flows.evaluate_drafter", description=__doc__, epilog=EXAMPLE)
    parser.add_argument("--workspace", default="demo", help="name below workspaces/; where there is none, a profile: its last completed run's")
    parser.add_argument("--prompts", action="append", default=[], metavar="FILE", help="a prompt set; repeatable")
    parser.add_argument("--drafter", help="directory in z-lab's layout; default: the workspace's own")
    parser.add_argument("--checkpoint", metavar="NAME", help="measure one of the run's checkpoints in place of a drafter")
    parser.add_argument("--name", help=f"of the result, below the workspace's evaluations/; default: the checkpoint's, or {DEFAULT_NAME}")
    parser.add_argument("--against", help="name or path of an earlier result to compare with")
    options = parser.parse_args(arguments)
    o = options
    return exit_code_of(lambda: evaluate_drafter(o.workspace, o.prompts, o.drafter, o.name, o.against, o.checkpoint))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
