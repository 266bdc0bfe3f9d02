"""capplan gpus"""

from __future__ import annotations

from typing import Annotated

import typer

from capplan.capacity.answer import Answer
from capplan.cli import options as opt
from capplan.cli.render import emit
from capplan.errors import InputError


def command(
    name: Annotated[
        str | None, typer.Argument(metavar="GPU", help="Show everything on record of this one.")
    ] = None,
    containing: Annotated[
        str, typer.Option("--filter", metavar="TEXT", help="Part of an id, name, vendor or architecture.")
    ] = "",
    dtype: Annotated[
        str | None, typer.Option("--dtype", metavar="DTYPE", help="Only with a matrix rate for it: fp8, fp4.")
    ] = None,
    min_memory: Annotated[
        str, typer.Option("--min-memory", metavar="SIZE", help="Only with at least this on the label: 80GB.")
    ] = "0",
    sort: Annotated[
        str | None,
        typer.Option(
            "--sort",
            metavar="KEY",
            help="memory, bandwidth, bf16, fp8, fp4, power, or price (cheapest first).",
        ),
    ] = None,
    json: opt.Json = False,
    csv: opt.Csv = False,
) -> None:
    """The accelerators on record, or everything known of one, with sources.

    capplan gpus --filter nvidia --dtype fp8 --sort bandwidth

    capplan gpus h200-sxm
    """
    from capplan.capacity.questions.gpus import gpu_facts, gpus

    answer: Answer
    if name is not None:
        if containing or dtype is not None or sort is not None or min_memory != "0":
            raise InputError(f"a filter or sort key does not go with one GPU, {name!r}")
        answer = gpu_facts(name)
    else:
        answer = gpus(
            containing=containing,
            dtype=dtype,
            min_memory=opt.size("--min-memory", min_memory) or 0.0,
            sort=sort,
        )
    raise typer.Exit(emit(answer, as_json=json, as_csv=csv))
