"""capplan validate"""

from __future__ import annotations

from typing import Annotated

import typer

from capplan.cli import options as opt
from capplan.cli.render import emit
from capplan.errors import UnknownNameError


def command(
    kind: Annotated[
        str, typer.Argument(metavar="KIND", help="What the rows measure: allocator.", show_default=False)
    ],
    file: Annotated[
        str, typer.Argument(metavar="FILE", help="A CSV file of measured rows.", show_default=False)
    ],
    json: opt.Json = False,
    csv: Annotated[bool, typer.Option("--csv", help="Print every row, predicted beside measured.")] = False,
) -> None:
    """How far capplan is off: measured rows, each predicted from its inputs alone.

    capplan validate allocator vllm_kv_oracle.csv
    """
    from capplan.capacity.questions.validate import KINDS, validate_allocator

    if kind not in KINDS:
        raise UnknownNameError("kind of rows", kind, KINDS, f"one of {', '.join(KINDS)}")
    raise typer.Exit(emit(validate_allocator(file), as_json=json, as_csv=csv))
