"""The flow that makes a workspace's drafter the champion of its model, if every gate lets it pass; and the way back."""

import argparse
import sys
from typing import Any

from prefect import flow

from tasks import quiet_errors
from tasks.approval import ask_a_person
from tasks.command_line import exit_code_of
from tasks.forms import MadeWorkspace, ModelName
from tasks.promotion import one_at_a_time, open_registry
from tasks.promotion_settings import PromotionSettings
from tasks.promotion_steps import conclude, judge, roll_back
from tasks.worker_watch import watching_worker
from tasks.workspace import open_workspace

DEFAULTS = PromotionSettings()
EXAMPLE = "Example: python -m flows.promote_drafter --workspace demo --margin 0.02; back again: --rollback dflash-smollm2-135m-instruct"


@flow(name="promote-drafter")
def promote_drafter(workspace: MadeWorkspace = "demo", settings: PromotionSettings = DEFAULTS) -> dict[str, Any]:
    """Compare a workspace's drafter with the champion and promote it.

    Args:
        workspace: Name of a directory below workspaces/. Where there is none, a profile, such as demo or nightly-demo: its last completed run's.
        settings: What is asked of the drafter.
    """
    quiet_errors.install()
    place = open_workspace(workspace)
    registry = open_registry(place, settings)
    with watching_worker():
        with one_at_a_time(registry.model):
            judgement = judge(place, registry, settings)
            if not (settings.approval and judgement.promotable):
                return conclude(registry, judgement)
        ask_a_person(registry, judgement, settings)  # not under the lock, for it may take a day
        with one_at_a_time(registry.model):
            return conclude(registry, judgement)


@flow(name="rollback-drafter")
def rollback_drafter(model: ModelName) -> dict[str, Any]:
    """Make the previous champion the champion again.

    Args:
        model: Name of the registered model.
    """
    quiet_errors.install()
    with one_at_a_time(model):
        return roll_back(model)


def main(arguments: list[str]) -> int:
    """Run a flow from a shell; gives 0 promoted or nothing to do, 3 a gate said no, 2 bad input."""
    parser = argparse.ArgumentParser(prog="python -m flows.promote_drafter", description=__doc__, epilog=EXAMPLE)
    parser.add_argument("--workspace", default="demo", help="name below workspaces/; where there is none, a profile: its last completed run's")
    parser.add_argument("--model", help="registered model; default: dflash- and the target's name")
    parser.add_argument("--margin", type=float, default=0.0, help="tokens by which τ must exceed the champion's")
    parser.add_argument("--tolerance", type=float, default=0.0, help="tokens that the interval's lower end may be below zero")
    parser.add_argument("--by-reference", action="store_true", help="register DVC's digest, no copy of the files")
    parser.add_argument("--approval", action="store_true", help="wait for a person to approve in the UI")
    parser.add_argument("--again", action="store_true", help="promote although it was rolled back before")
    parser.add_argument("--rollback", metavar="MODEL", help="instead: make the previous champion of MODEL the champion again")
    chosen = vars(parser.parse_args(arguments))
    model, workspace = chosen.pop("rollback"), chosen.pop("workspace")
    return exit_code_of(lambda: rollback_drafter(model) if model is not None else promote_drafter(workspace, chosen))  # Prefect checks the settings


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
