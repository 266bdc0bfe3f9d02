"""capplan validate"""

from __future__ import annotations

from typing import Annotated

import typer

from capplan.cli import options as opt
from capplan.cli.render import emit
from capplan.errors import InputError, UnknownNameError


def command(
    kind: Annotated[
        str,
        typer.Argument(
            metavar="KIND",
            help="What the rows measure: allocator, memory, performance or kernels.",
            show_default=False,
        ),
    ],
    file: Annotated[
        str, typer.Argument(metavar="FILE", help="A CSV file of measured rows.", show_default=False)
    ],
    given: Annotated[
        list[str] | None,
        typer.Option(
            "--given",
            metavar="COLUMN",
            help="A measured column that may be read, such as m_weights_gib_per_gpu; may be repeated.",
        ),
    ] = None,
    json: opt.Json = False,
    csv: Annotated[bool, typer.Option("--csv", help="Print every row, predicted beside measured.")] = False,
) -> None:
    """How far capplan is off: measured rows, each predicted from its inputs alone.

    capplan validate allocator vllm_allocator.csv

    capplan validate memory engine_memory.csv --given m_weights_gib_per_gpu --json

    capplan validate performance throughput.csv --csv

    capplan validate kernels kernels.csv
    """
    kinds = ("allocator", "memory", "performance", "kernels")
    if kind not in kinds:
        raise UnknownNameError("kind of rows", kind, kinds, f"one of {', '.join(kinds)}")
    if kind == "memory":
        from capplan.capacity.questions.validate_memory import validate_memory

        raise typer.Exit(emit(validate_memory(file, given=_columns(given)), as_json=json, as_csv=csv))
    if given:
        raise InputError("--given is for rows of memory: nothing of other rows is both measured and read")
    if kind == "performance":
        from capplan.capacity.questions.validate_performance import validate_performance

        raise typer.Exit(emit(validate_performance(file), as_json=json, as_csv=csv))
    if kind == "kernels":
        from capplan.capacity.questions.validate_kernels import validate_kernels

        raise typer.Exit(emit(validate_kernels(file), as_json=json, as_csv=csv))
    from capplan.capacity.questions.validate import validate_allocator

    raise typer.Exit(emit(validate_allocator(file), as_json=json, as_csv=csv))


def _columns(given: list[str] | None) -> list[str]:
    """The names of all --given options; one may name several, with commas."""
    return [name.strip() for text in given or () for name in text.split(",") if name.strip()]
