"""Options that several commands share, and the choices that an option offers."""

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

Params = Annotated[Path, typer.Option("--params", metavar="FILE", help="The configuration.")]
DEFAULT_PARAMS = Path("params.yaml")
Nproc = Annotated[
    int | None,
    typer.Option("--nproc", metavar="N", help="Processes to start on this node; default: distributed.nproc, else none."),
]
Nnodes = Annotated[int, typer.Option("--nnodes", metavar="N", help="Nodes; run the command on each.")]
NodeRank = Annotated[int, typer.Option("--node-rank", metavar="I", help="This node's number, from 0.")]
Endpoint = Annotated[
    str | None, typer.Option("--rdzv-endpoint", metavar="HOST:PORT", help="Where nodes meet: node 0, a free port.")
]
RdzvId = Annotated[str | None, typer.Option("--rdzv-id", metavar="ID", help="Name of the meeting; default: the run's.")]
Grace = Annotated[
    float,
    typer.Option("--grace", min=0, metavar="SECONDS", help="From the signal to stop to SIGKILL, for processes started here."),
]


class ExportLayout(StrEnum):
    """Layouts that a drafter can be written in."""

    ZLAB = "zlab"
    SPECULATORS = "speculators"
    TRANSFORMERS = "transformers"


class Dtype(StrEnum):
    """Of exported weights."""

    FLOAT32 = "float32"
    BFLOAT16 = "bfloat16"
