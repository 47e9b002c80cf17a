"""The nightly flow: takes new prompts in, and trains on all there is if that has changed."""

from typing import Annotated, Any

from prefect import flow
from prefect.states import Completed, State
from pydantic import Field

from flows.train_drafter import run_chain
from tasks import quiet_errors
from tasks.forms import NO_CHANGES, Minutes, Profile, TrainingChanges
from tasks.inbox import is_new_data, one_at_a_time, take_in
from tasks.publication import line_of
from tasks.this_run import own_workspace, time_limit
from tasks.worker_watch import watching_worker
from tasks.workspace import WORKSPACES, configuration_of, make_workspace

Inbox = Annotated[str, Field(min_length=1, description="Directory of prompt files (*.jsonl or *.jsonl.gz, an id and a prompt a line).")]
Tokens = Annotated[int, Field(ge=1, le=32768, description="Longest answer to a new prompt, in tokens.")]


@flow(name="retrain-nightly")
def retrain_nightly(
    profile: Profile = "demo",
    inbox: Inbox = "inbox",
    max_new_tokens: Tokens = 256,
    changes: TrainingChanges = NO_CHANGES,
    force: bool = False,
    time_limit_minutes: Minutes | None = None,
    overrides: dict[str, Any] | None = None,
) -> dict[str, Any] | State:
    """Answer new prompts by the target, and train on all conversations; nothing to do where they are as in the last run.

    Args:
        profile: "demo", "smoke", another name in profiles/, or the path of a params.yaml.
        inbox: Directory of prompt files, relative to the project; a file that was taken in moves to taken/ in it.
        max_new_tokens: Longest answer to a new prompt.
        changes: Changes to the profile's training; `init_from` goes on from a drafter instead of from scratch.
        force: Train also where no conversation is new.
        time_limit_minutes: Stop, with the training saved, after so long, not counting the wait for another night; a retry of the run goes on.
        overrides: Any other values by dotted key of params.yaml, such as {"data_gate.max_dropped": 0.2}; they win over `changes`.
    """
    quiet_errors.install()
    with watching_worker(), one_at_a_time(profile), time_limit(time_limit_minutes):  # what a night waits for another isn't its own time
        wanted = changes.as_overrides() | (overrides or {})
        files = take_in(profile, inbox, max_new_tokens, wanted)
        scheduled = f"nightly-{configuration_of(profile)[0]}"
        lines = (line_of(scheduled, wanted), scheduled)
        if not force and not is_new_data(WORKSPACES, lines[0], files):
            return Completed(name="NothingToDo", message="The conversations are those of the last completed run.")
        wanted["data.conversations"] = files
        place = make_workspace(profile, own_workspace(profile), wanted, lines=lines, from_nothing=force, of_a_run=True)
        return run_chain(place, force)
