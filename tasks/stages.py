"""The task that runs one declared stage, if DVC finds that it must run."""

from prefect import get_run_logger, task
from prefect.cache_policies import NO_CACHE

from dflash_core.errors import ConfigError
from tasks import dvc_stages
from tasks.launch import Supervised, stage_environment
from tasks.workspace import PROJECT, Workspace


def run_if_needed(workspace: Workspace, name: str, force: bool = False) -> bool:
    """Run a stage's command and commit its outputs; False where it is up to date.

    Raises:
        CommandFailed, Stopped: as `Supervised.run`.
        ConfigError: params.yaml changed while the stage ran, so that its outputs belong to neither version.
    """
    logger = get_run_logger()
    if not force and dvc_stages.is_up_to_date(workspace.root, name):
        logger.info("[%s] up to date", name)
        return False
    params = workspace.root / "params.yaml"
    before = params.read_bytes()
    Supervised(
        name,
        dvc_stages.declared_stage(workspace.root, name).command,
        log_file=workspace.output_of(name),
        cwd=workspace.root,
        logger=logger,
        environment=stage_environment(PROJECT),
    ).run()
    if params.read_bytes() != before:
        raise ConfigError(f'{params} was changed while stage "{name}" ran; its outputs are not committed. Run the flow again.')
    dvc_stages.commit_outputs(workspace.root, name)
    return True


@task(cache_policy=NO_CACHE, task_run_name="what has changed")
def has_changed(workspace: Workspace) -> bool:
    """Whether any stage must run; asked once, since to ask each of them costs seconds."""
    changed = dvc_stages.changed_stages(workspace.root)
    get_run_logger().info("changed: %s", ", ".join(sorted(changed)) or "nothing, every stage is up to date")
    return bool(changed)


@task(cache_policy=NO_CACHE, task_run_name="store")
def store_outputs(workspace: Workspace) -> None:
    """Push the outputs to the project's DVC remote, if it has one."""
    num_files = dvc_stages.push(workspace.root, PROJECT)
    if num_files is not None:
        get_run_logger().info("%d files stored in the DVC remote", num_files)


@task(cache_policy=NO_CACHE, task_run_name="{name}")
def run_stage(workspace: Workspace, name: str, force: bool = False) -> bool:
    """`run_if_needed` as a task. DVC alone decides what is up to date, so Prefect's cache is off."""
    return run_if_needed(workspace, name, force)
