"""The main flow: from conversations to a trained drafter with a proof behind it, its acceptance length and a report."""

import argparse
import sys
from typing import Any

import yaml
from prefect import flow

from dflash_core.errors import ConfigError
from tasks import quiet_errors
from tasks.command_line import exit_code_of
from tasks.data_gate import check_data
from tasks.forms import NO_CHANGES, Minutes, Profile, TrainingChanges, WorkspaceName
from tasks.proof import prove
from tasks.publication import begin_own_run
from tasks.stages import has_changed, run_stage, store_outputs
from tasks.summary import print_summary
from tasks.this_run import default_workspace, time_limit
from tasks.tracking import record_outputs, tracked
from tasks.training import train
from tasks.worker_watch import watching_worker
from tasks.workspace import Workspace, in_use, make_workspace, publish_workspace

EXAMPLE = "Example: python -m flows.train_drafter --profile mine.yaml --set training.epochs=2"


@flow(name="train-drafter")
def train_drafter(
    profile: Profile = "demo",
    workspace: WorkspaceName | None = None,
    overrides: dict[str, Any] | None = None,
    force: bool = False,
    changes: TrainingChanges = NO_CHANGES,
    time_limit_minutes: Minutes | None = None,
) -> dict[str, Any]:
    """Train a drafter and measure it.

    Args:
        profile: "demo", "smoke", another name in profiles/, or the path of a params.yaml.
        workspace: Name of the directory below workspaces/. Where not given: a new one for this run, if a deployment runs it,
            which starts from what the last completed run has left; the profile's name from a shell.
        overrides: Any other values by dotted key of params.yaml, such as {"training.warmup_ratio": 0.1}; they win over `changes`.
        force: Run every stage, also those that are up to date; a workspace that is new then starts from nothing.
        changes: Changes to the profile's training; what is left empty stays as it is.
        time_limit_minutes: Stop, with the training saved, after so long; a retry of the run goes on.
    """
    quiet_errors.install()
    with watching_worker(), time_limit(time_limit_minutes):
        own = default_workspace(profile)
        place = make_workspace(
            profile,
            workspace or own,
            changes.as_overrides() | (overrides or {}),
            from_nothing=force,
            of_a_run=workspace is None and own is not None,
        )
        return run_chain(place, force)


def run_chain(place: Workspace, force: bool = False) -> dict[str, Any]:
    """Every stage of a workspace that isn't up to date; what completes is where the next run of its line starts."""
    with in_use(place.root):
        if force or has_changed(place):
            run_stage(place, "prepare", force)
            run_stage(place, "bucket", force)
            check_data(place, force)
            run_stage(place, "features", force)
            begin_own_run(place.root, place.config.run_dir, force)
            with tracked(place) as tracker:
                train(place, tracker, force)
                prove(place, tracker, force)
                run_stage(place, "evaluate", force)
                run_stage(place, "report", force)
                record_outputs(tracker, place)
        publish_workspace(place)
        store_outputs(place)
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
