"""An answer laid out for people: a headline, tables, notes; as text, Markdown or HTML."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

Row = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Table:
    """Rows of text under optional column heads; the first column is the label, the rest align right."""

    rows: tuple[Row, ...]
    columns: Row = ()
    title: str = ""
    words: bool = False  # cells are words, not figures: all read from the left


@dataclass(frozen=True, slots=True)
class Report:
    """What a person reads: the answer first, then the figures, then what was assumed."""

    headline: str
    tables: tuple[Table, ...] = ()
    assumptions: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()


def printable(text: str) -> str:
    """A text with what a terminal would obey, or could not show, spelt out: what a file calls itself is anybody's."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def escaped(report: Report) -> Report:
    """A report all of whose words can be printed."""
    tables = (
        Table(
            tuple(tuple(map(printable, row)) for row in table.rows),
            tuple(map(printable, table.columns)),
            printable(table.title),
            table.words,
        )
        for table in report.tables
    )
    notes = (tuple(map(printable, lines)) for lines in (report.assumptions, report.warnings))
    return Report(printable(report.headline), tuple(tables), *notes)


def _aligned(table: Table) -> list[str]:
    """Label on the left, figure on the right; without column heads, a third column is a note on the left."""
    rows = [table.columns, *table.rows] if table.columns else list(table.rows)
    count = max(len(row) for row in rows)
    full = [row + ("",) * (count - len(row)) for row in rows]
    widths = [max(len(row[i]) for row in full) for i in range(count)]
    left = range(count) if table.words else (0,) if table.columns else (0, 2)
    return [
        "  ".join(
            cell.ljust(width) if i in left else cell.rjust(width)
            for i, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in full
    ]


def to_text(report: Report) -> str:
    """Plain text, for a terminal or a log."""
    report = escaped(report)
    parts = [report.headline]
    for table in report.tables:
        lines = ["  " + line for line in _aligned(table)]
        parts.append("\n".join([table.title, *lines] if table.title else lines))
    parts += [
        "\n".join(f"{label}: {line}" for line in lines)
        for label, lines in (("assumed", report.assumptions), ("warning", report.warnings))
        if lines
    ]
    return "\n\n".join(parts)


def to_markdown(report: Report) -> str:
    """GitHub-flavoured Markdown, to paste into a ticket or a design document."""

    def line(cells: Sequence[str], count: int) -> str:
        padded = [cell.replace("|", r"\|") for cell in (*cells, *[""] * (count - len(cells)))]
        return f"| {' | '.join(padded)} |"

    report = escaped(report)
    parts = [f"**{report.headline}**"]
    for table in report.tables:
        count = max(len(row) for row in (table.columns, *table.rows))
        heads = table.columns or ("",) * count
        rule = ":---" if table.words else "---:"
        body = [line(heads, count), line([":---", *[rule] * (count - 1)], count)]
        body += [line(row, count) for row in table.rows]
        parts.append("\n".join([f"{table.title}\n", *body] if table.title else body))
    parts += [
        "\n".join(f"- {label}: {text}" for text in lines)
        for label, lines in (("assumed", report.assumptions), ("warning", report.warnings))
        if lines
    ]
    return "\n\n".join(parts)


def to_html(report: Report) -> str:
    """A small HTML fragment, for a notebook."""
    from html import escape

    def cells(row: Row, tag: str, words: bool) -> str:
        align = ("left", *["left" if words else "right"] * (len(row) - 1))
        return "".join(
            f'<{tag} style="text-align:{a}">{escape(cell)}</{tag}>'
            for a, cell in zip(align, row, strict=True)
        )

    report = escaped(report)
    parts = [f"<p><b>{escape(report.headline)}</b></p>"]
    for table in report.tables:
        caption = f"<caption>{escape(table.title)}</caption>" if table.title else ""
        head = f"<thead><tr>{cells(table.columns, 'th', table.words)}</tr></thead>" if table.columns else ""
        body = "".join(f"<tr>{cells(row, 'td', table.words)}</tr>" for row in table.rows)
        parts.append(f"<table>{caption}{head}<tbody>{body}</tbody></table>")
    parts += [
        f"<p><small>{label}: {escape(text)}</small></p>"
        for label, lines in (("assumed", report.assumptions), ("warning", report.warnings))
        for text in lines
    ]
    return "".join(parts)
