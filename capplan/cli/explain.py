"""capplan explain"""

from __future__ import annotations

from typing import Annotated

import typer

from capplan.cli import options as opt
from capplan.cli.render import emit


def command(
    name: Annotated[
        str | None, typer.Argument(metavar="NAME", help="A formula; all are listed without.")
    ] = None,
    json: opt.Json = False,
) -> None:
    """A formula by name: its equation, units, validity and source.

    capplan explain

    capplan explain decode_intensity_ceiling
    """
    from capplan.capacity.questions.formulas import formulas

    raise typer.Exit(emit(formulas(name), as_json=json))
