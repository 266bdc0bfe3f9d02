"""How an answer is printed: a table for people, JSON, CSV, or its working."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, TextIO

from capplan.cli.notes import tell
from capplan.errors import ExitCode, InputError

if TYPE_CHECKING:
    from capplan.capacity.answer import Answer
    from capplan.report import Report, Row, Table


def emit(
    answer: Answer,
    *,
    as_json: bool = False,
    as_csv: bool = False,
    explain: bool = False,
    plot: str | None = None,
) -> int:
    """Print an answer in the form asked for; returns the exit code."""
    only_one(json=as_json, csv=as_csv, explain=explain)
    if plot is not None:
        from capplan.cli.plots import save

        save(answer, plot)
    tell()
    if as_json:
        print_json(answer.to_dict())
    elif as_csv:
        print_csv(answer.sweep())
    elif explain:
        from capplan.report import printable

        print("\n".join(map(printable, answer.explain().split("\n"))))
    else:
        print_report(answer.report())
        if is_terminal():
            from capplan.cli.pictures import picture

            print(picture(answer, width()), end="")
    return ExitCode.ANSWERED if answer.fits else ExitCode.DOES_NOT_FIT


def only_one(**forms: bool) -> None:
    """Raise InputError when two output forms are asked for."""
    asked = [f"--{name}" for name, wanted in forms.items() if wanted]
    if len(asked) > 1:
        raise InputError(f"{' and '.join(asked)} exclude each other; give one")


def print_json(document: dict[str, Any]) -> None:
    """One JSON object; whole floats as integers, so that 327680.0 reads 327680."""
    print(json.dumps(_whole(document), indent=2, allow_nan=False))


def _whole(value: Any) -> Any:
    if isinstance(value, float) and value.is_integer() and abs(value) < 2**53:
        return int(value)
    if isinstance(value, dict):
        return {key: _whole(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_whole(item) for item in value]
    return value


def print_csv(rows: Sequence[dict[str, Any]]) -> None:
    """One row a line, under the names of the JSON."""
    import csv

    from capplan.report import printable

    if not rows:
        return
    columns = list(dict.fromkeys(key for row in rows for key in row))
    writer = csv.DictWriter(sys.stdout, columns, lineterminator="\n")
    csv.writer(sys.stdout, lineterminator="\n").writerow(map(printable, columns))
    writer.writerows(
        {key: printable(value) if isinstance(value, str) else _whole(value) for key, value in row.items()}
        for row in rows
    )


def is_terminal(stream: TextIO | None = None) -> bool:
    """Whether a person is looking: at the answer, or at another stream."""
    return (stream or sys.stdout).isatty() and os.environ.get("TERM") != "dumb"


def width() -> int:
    """Columns of the terminal; 80 where there is none."""
    from shutil import get_terminal_size

    return max(40, get_terminal_size((80, 24)).columns)


def _fitted(table: Table, room: int) -> tuple[list[str], int, bool]:
    """Headings, a word a line if that makes the table fit; blanks between columns; whether no cell need wrap."""
    count = max(len(row) for row in (table.columns, *table.rows))
    heads = [*table.columns, *[""] * (count - len(table.columns))]
    cells = [max((len(row[i]) for row in table.rows if i < len(row)), default=0) for i in range(count)]
    for gap in (2, 1):
        left = room - gap * (count - 1)
        if sum(max(cell, len(head)) for cell, head in zip(cells, heads, strict=True)) <= left:
            return heads, gap, True
        stacked = ["\n".join(head.split()) for head in heads]
        longest = [max(map(len, head.split()), default=0) for head in heads]
        if table.columns and sum(map(max, cells, longest)) <= left:
            return stacked, gap, True
    return heads, 2 if not table.columns else 1, False


def _narrowed(table: Table, columns: int) -> tuple[Table, Row]:
    """A table without the last columns that a terminal has no room for, and the heads of those."""
    from dataclasses import replace

    if not table.columns or table.words:
        return table, ()
    # heads may wrap at a blank, figures may not
    least = [
        max(*(len(row[i]) for row in table.rows), *map(len, head.split()), 1)
        for i, head in enumerate(table.columns)
    ]
    kept = len(least)
    while kept > 2 and sum(least[:kept]) + kept - 1 > columns:
        kept -= 1
    rows = tuple(row[:kept] for row in table.rows)
    return replace(table, columns=table.columns[:kept], rows=rows), table.columns[kept:]


def print_report(report: Report) -> None:
    """The report as plain text, or with rich's tables in a terminal."""
    from capplan.report import escaped, to_text

    if not is_terminal():
        print(to_text(report))
        return
    report = escaped(report)
    from rich.console import Console
    from rich.table import Table as Grid
    from rich.text import Text

    plain = bool(os.environ.get("NO_COLOR"))  # rich would leave bold and dim
    console = Console(highlight=False, width=width(), color_system=None if plain else "auto")
    console.print(Text(report.headline, style="bold"))
    for full in report.tables:
        table, left_out = _narrowed(full, width())
        heads, gap, whole = _fitted(table, width())
        grid = Grid(
            title=table.title or None,
            title_justify="left",
            title_style="italic",
            box=None,
            pad_edge=False,
            padding=(0, gap, 0, 0),
            show_header=bool(table.columns),
            header_style="dim",
        )
        for i, heading in enumerate(heads):
            note = i == 2 and not table.columns
            grid.add_column(
                Text(heading),
                justify="left" if i == 0 or note or table.words else "right",
                style="dim" if note else "",
                no_wrap=i == 0 or whole,
                overflow="fold",  # a figure is never cut
            )
        for row in table.rows:
            grid.add_row(*(Text(cell) for cell in row))
        console.print()
        console.print(grid)
        if left_out:
            console.print(Text(f"not shown in {width()} columns: {', '.join(left_out)} (--csv)", style="dim"))
    for label, lines, style in (
        ("assumed", report.assumptions, "dim"),
        ("warning", report.warnings, "yellow"),
    ):
        for i, line in enumerate(lines):
            console.print(*([""] if i == 0 else []), Text(f"{label}: {line}", style=style), sep="\n")
