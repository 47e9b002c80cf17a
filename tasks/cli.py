"""The commands that need a tracker or the registry, added to dflash-core's own; the entry point of the console script.

dflash_core knows neither MLflow nor DVC, so these stand here. Like cli.py, this imports only typer until one of them runs.
"""

from pathlib import Path
from typing import Annotated

import typer

from dflash_core import cli

Uri = Annotated[
    str | None, typer.Option("--uri", metavar="URI", help="MLflow; default: MLFLOW_TRACKING_URI, or the project's own database.")
]


def _example(command: str) -> str:
    return f"Example: [bold]dflash-core {command}[/bold]"


@cli.app.command(epilog=_example("ship workspaces/demo/runs/demo"))
def ship(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="A run's directory.")],
    uri: Uri = None,
) -> None:
    """Deliver to MLflow what it lacks of a run: log, proofs, evaluation, drafter. Again is harmless."""
    from tasks import deliver

    typer.echo(deliver.ship_run(run, uri))


@cli.app.command("import-log", epilog=_example("import-log wandb-history.jsonl --name colleagues-run"))
def import_log(
    log: Annotated[Path, typer.Argument(metavar="LOG", help="A log that `diagnose` reads: W&B history, trainer_state.json, CSV, text.")],
    name: Annotated[str | None, typer.Option("--name", help="Of the MLflow run; default: the file's.")] = None,
    pattern: Annotated[str | None, typer.Option("--pattern", metavar="REGEX", help="Named groups (?P<step>...) (?P<loss>...) for other text.")] = None,
    uri: Uri = None,
) -> None:
    """Put another trainer's log into MLflow; the same file again adds nothing."""
    from tasks import deliver

    typer.echo(deliver.import_foreign(log, name, pattern, uri))


@cli.app.command(epilog=_example("pull dflash-smollm2-135m-instruct@champion --out drafter"))
def pull(
    reference: Annotated[str, typer.Argument(metavar="MODEL@ALIAS", help="Or MODEL/VERSION.")],
    out: Annotated[Path, typer.Option("--out", metavar="DIR", help="Directory to make.")],
    checkpoint: Annotated[bool, typer.Option("--checkpoint", help="Instead: the training state that it was exported from.")] = False,
    uri: Uri = None,
) -> None:
    """Bring a registered drafter's files back, byte for byte; or its checkpoint, for a training to go on from."""
    from tasks import pull as stage
    from tasks.mlflow_store import default_uri, reached

    uri = uri or default_uri()
    with reached(uri):
        version = stage.find(uri, reference)
        if checkpoint:
            typer.echo(f"the checkpoint of {version.name} is in {stage.pull_checkpoint(version, out)}")
        else:
            typer.echo(f"{version.name} is in {stage.pull(uri, version, out)}")


@cli.app.command(epilog=_example("rollback dflash-smollm2-135m-instruct"))
def rollback(
    model: Annotated[str, typer.Argument(metavar="MODEL", help="Name of the registered model.")],
    uri: Uri = None,
) -> None:
    """Make the previous champion the champion again."""
    from tasks import alias_moves, promotion
    from tasks.mlflow_store import default_uri, reached
    from tasks.registry import Registry

    uri = uri or default_uri()
    with reached(uri):
        registry = Registry(uri, model)  # before its name is one of a file
        with promotion.one_at_a_time(model):
            move = alias_moves.roll_back(registry)
    typer.echo(f"version {move['to']} of {model} is the champion again, version {move['from']} was rolled back")


@cli.app.command(epilog=_example("gc --delete"))
def gc(
    delete: Annotated[bool, typer.Option("--delete", help="Do it; without it, only say what would go.")] = False,
    days: Annotated[float, typer.Option("--days", min=0, help="Leave what is younger than this.")] = 1.0,
    uri: Uri = None,
) -> None:
    """Delete from DVC's cache what neither a workspace nor a version in the registry refers to."""
    from tasks import collect
    from tasks.mlflow_store import default_uri, reached

    uri = uri or default_uri()
    with reached(uri):
        typer.echo(collect.collect_project(uri, delete=delete, days=days))


def entry() -> None:
    """Entry point of the console script."""
    cli.entry()
