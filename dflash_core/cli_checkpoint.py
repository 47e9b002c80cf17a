"""The commands on a run's checkpoints; like cli.py, it loads nothing but typer until one of them runs."""

from pathlib import Path
from typing import Annotated

import typer

checkpoint_app = typer.Typer(
    no_args_is_help=True, rich_markup_mode="rich", help="The checkpoints of a run, named as their directories, or by step."
)

Run = Annotated[Path, typer.Argument(metavar="RUN", help="A run's directory: runs/NAME.")]
Name = Annotated[str, typer.Argument(metavar="NAME", help="step-00000500, or 500.")]


def _example(command: str) -> str:
    return f"Example: [bold]dflash-core checkpoint {command}[/bold]"


@checkpoint_app.command("list", epilog=_example("list runs/demo"))
def list_checkpoints(run: Run) -> None:
    """One line a checkpoint: state, size, where it comes from; what was put aside as well."""
    from dflash_core.stages import checkpoints as stage

    typer.echo(stage.listing(run))


@checkpoint_app.command(epilog=_example("show runs/demo 500"))
def show(run: Run, name: Name) -> None:
    """Manifest, state and verdict of one checkpoint, as JSON."""
    from dflash_core.stages import checkpoints as stage

    typer.echo(stage.description(run, name))


@checkpoint_app.command(epilog=_example("verify runs/demo"))
def verify(
    run: Run,
    names: Annotated[list[str] | None, typer.Argument(metavar="[NAME]...", help="Which; default: all.")] = None,
) -> None:
    """Read every byte and compare it with manifest and log; exit 3 if one is bad."""
    from dflash_core.stages import checkpoints as stage

    text, sound = stage.verification(run, names or [])
    typer.echo(text)
    raise typer.Exit(0 if sound else 3)


@checkpoint_app.command(epilog=_example("prune runs/demo --quarantined"))
def prune(
    run: Run,
    quarantined: Annotated[bool, typer.Option("--quarantined", help="Delete what was put aside as bad, too.")] = False,
) -> None:
    """Delete what the run's own settings (checkpoint.keep_last, keep_every) don't keep; refuse while the run goes on."""
    from dflash_core.stages import checkpoints as stage

    typer.echo(stage.pruning(run, quarantined))


@checkpoint_app.command(epilog=_example("diff runs/demo 500 1000"))
def diff(run: Run, first: Name, second: Name) -> None:
    """Where two checkpoints differ: progress, origin, and how far each tensor has moved."""
    from dflash_core.stages import checkpoints as stage

    typer.echo(stage.difference(run, first, second))


@checkpoint_app.command(epilog=_example("prove runs/demo 500"))
def prove(
    run: Run,
    name: Annotated[str | None, typer.Argument(metavar="[NAME]", help="step-00000500, or 500; default: the newest that can be proven.")] = None,
    steps: Annotated[int, typer.Option("--steps", min=1, help="Optimizer steps to replay; fewer than 3 can't show wrong moments.")] = 3,
    every: Annotated[bool, typer.Option("--all", help="Prove all of them.")] = False,
) -> None:
    """Replay steps from a checkpoint and compare them with the run's log; exit 0 proven, 3 not. Works while the run goes on."""
    from dflash_core.stages import checkpoint_prove as stage

    text, code = stage.run(run, name, steps, every)
    typer.echo(text)
    raise typer.Exit(code)
