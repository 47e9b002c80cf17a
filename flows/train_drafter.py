"""The main flow: from conversations to a trained drafter with a proof behind it, its acceptance length and a report."""

import argparse
import sys
from typing import Any

import yaml
from prefect import flow

from dflash_core.errors import ConfigError
from tasks import quiet_errors
from tasks.command_line import exit_code_of
from tasks.proof import prove
from tasks.stages import run_stage
from tasks.summary import print_summary
from tasks.tracking import record_outputs, tracked
from tasks.training import train
from tasks.workspace import in_use, make_workspace

EXAMPLE = "Example: python -m flows.train_drafter --profile mine.yaml --set training.epochs=2"


@flow(name="train-drafter")
def train_drafter(
    profile: str = "demo", workspace: str | None = None, overrides: dict[str, Any] | None = None, force: bool = False
) -> dict[str, Any]:
    """Train a drafter and measure it.

    Args:
        profile: "demo", "smoke", another name in profiles/, or the path of a params.yaml.
        workspace: Name of the directory below workspaces/; the profile's name where not given.
        overrides: Values by dotted key, such as {"training.epochs": 2}.
        force: Run every stage, also those that are up to date.
    """
    quiet_errors.install()
    place = make_workspace(profile, workspace, overrides)
    with in_use(place.root), tracked(place) as tracker:
        run_stage(place, "prepare", force)
        run_stage(place, "bucket", force)
        run_stage(place, "check-data", force)
        run_stage(place, "features", force)
        train(place, tracker, force)
        prove(place, tracker, force)
        run_stage(place, "evaluate", force)
        run_stage(place, "report", force)
        record_outputs(tracker, place)
    return print_summary(place)


def _override(text: str) -> tuple[str, Any]:
    key, equals, value = text.partition("=")
    if not equals:
        raise ConfigError(f"--set takes KEY=VALUE, found {text!r}. Write for example --set training.epochs=2.")
    try:
        return key, yaml.safe_load(value)
    except yaml.YAMLError:
        raise ConfigError(f"--set {key} has a value that is no YAML, {value!r}. Put quotes around it.") from None


def main(arguments: list[str]) -> int:
    """Run the flow from a shell; gives the exit code of the stage that failed, or 0."""
    parser = argparse.ArgumentParser(prog="python -m flows.train_drafter", description=__doc__, epilog=EXAMPLE)
    parser.add_argument("--profile", default="demo", help="demo, smoke, another name in profiles/, or a YAML file")
    parser.add_argument("--workspace", help="name below workspaces/; default: the profile's")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="for example training.epochs=2")
    parser.add_argument("--force", action="store_true", help="run also what is up to date")
    options = parser.parse_args(arguments)

    def run() -> None:
        train_drafter(options.profile, options.workspace, dict(map(_override, options.set)), options.force)

    return exit_code_of(run)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
