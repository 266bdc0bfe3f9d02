"""Pictures of a pass and its parts: bars of characters for a terminal, and bars for a document."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from capplan.capacity.questions.pass_parts import GROUP_NAMES
from capplan.units import seconds, short, tokens

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from capplan.capacity.questions.decode import Decode
    from capplan.capacity.questions.prefill import Prefill

    Drawn = Decode | Prefill

CHARACTERS = {
    "projections": "█",
    "attention": "▒",
    "experts": "▓",
    "head": "░",
    "elementwise": "·",
    "collectives": "=",
    "fixed": "-",
}
COLOURS = {  # Okabe and Ito's
    "projections": "#0072B2",
    "attention": "#E69F00",
    "experts": "#009E73",
    "head": "#56B4E9",
    "elementwise": "#CC79A7",
    "collectives": "#D55E00",
    "fixed": "#999999",
}


def panels(answer: Drawn) -> dict[str, list[tuple[str, dict[str, Any]]]]:
    """Title -> a label and a row of figures for every bar: batches of a context, or all prompts."""
    from capplan.capacity.questions.decode import Decode

    if not isinstance(answer, Decode):
        return {"": [(short(row["prompt"]), row) for row in answer.at]}
    found: dict[str, list[tuple[str, dict[str, Any]]]] = {}
    for row in answer.at:
        rows = found.setdefault(f"at {tokens(row['context'])}", [])
        if row["fits"] or not rows or rows[-1][1]["fits"]:  # of those that don't fit the first is enough
            rows.append((f"{row['batch']:,}" if row["fits"] else f"({row['batch']:,})", row))
    return found


def bars(answer: Drawn, columns: int = 80) -> str:
    """A bar for every batch or prompt, its parts in characters of their own: of one scale for batches, of one length
    for prompts, whose times lie too far apart."""
    from capplan.capacity.questions.decode import Decode

    decodes = isinstance(answer, Decode)
    text = ""
    for title, rows in panels(answer).items():
        wide = max(len(label) for label, _ in rows)
        room = max(20, min(columns, 100) - wide - 15)
        longest = max(row["time_s"] for _, row in rows)
        text += f"  time between tokens by batch, {title}\n" if decodes else "  parts of the time by prompt\n"
        for label, row in rows:
            bar, upto = "", 0.0
            for group, character in CHARACTERS.items():
                upto += row[f"{group}_s"]
                bar += character * (round(room * upto / (longest if decodes else row["time_s"])) - len(bar))
            text += f"  {label:>{wide}} {bar} {seconds(row['time_s'])}\n"
    return text + _key(answer, columns)


def _key(answer: Drawn, columns: int) -> str:
    lines = [""]
    for group, character in CHARACTERS.items():
        if any(row[f"{group}_s"] for row in answer.at):
            name = f"  {character} {GROUP_NAMES[group]}"
            lines[-1:] = [lines[-1] + name] if len(lines[-1] + name) <= columns else [lines[-1], name]
    return "\n".join(lines) + "\n"


def draw(answer: Drawn) -> Figure:
    """Stacked bars with the range and the floor; of prompts the time of a token, which a plain roofline has alike."""
    from matplotlib.figure import Figure

    from capplan.capacity.questions.decode import Decode

    drawn = panels(answer)
    count = max(len(rows) for rows in drawn.values())
    figure = Figure(figsize=(max(7.5, 1.6 + 0.62 * count), 1.0 + 3.4 * len(drawn)), layout="constrained")
    for axes, (title, rows) in zip(
        figure.subplots(len(drawn), squeeze=False)[:, 0], drawn.items(), strict=True
    ):
        if isinstance(answer, Decode):
            _stack(axes, rows, [1e3] * len(rows), "floor_s")
            axes.set(
                xlabel="batch; in brackets: does not fit in memory", ylabel="ms between tokens", title=title
            )
        else:
            _stack(axes, rows, [1e6 / row["prompt"] for _, row in rows], "peak_s")
            axes.set(xlabel="tokens of the prompt", ylabel="µs a token")
        axes.title.set_fontsize(10)
    from capplan.capacity.questions.pass_parts import where

    flags = answer.inputs["deployment"]
    kinds = f"weights {flags['quantization'] or 'auto'}, KV cache {flags['kv_cache_dtype']}"
    figure.suptitle(f"{where(answer.inputs, answer.gpus)}\n{kinds}", fontsize=10)
    handles, labels = figure.axes[0].get_legend_handles_labels()
    figure.legend(handles[::-1], labels[::-1], loc="outside right upper", frameon=False, fontsize=9)
    return figure


def _stack(axes: Axes, rows: list[tuple[str, dict[str, Any]]], scale: list[float], floor: str) -> None:
    labels = [label for label, _ in rows]
    places = range(len(rows))
    upto = [0.0] * len(rows)
    for group, colour in COLOURS.items():
        parts = [row[f"{group}_s"] * s for (_, row), s in zip(rows, scale, strict=True)]
        if not any(parts):
            continue
        drawn = axes.bar(places, parts, bottom=upto, color=colour, width=0.75, label=GROUP_NAMES[group])
        for bar, (_, row) in zip(drawn, rows, strict=True):
            bar.set_alpha(1.0 if row.get("fits", True) else 0.35)
        upto = [a + b for a, b in zip(upto, parts, strict=True)]
    low, high = (
        [row[key] * s for (_, row), s in zip(rows, scale, strict=True)] for key in ("low_s", "high_s")
    )
    below = [max(0.0, a - b) for a, b in zip(upto, low, strict=True)]
    above = [b - a for a, b in zip(upto, high, strict=True)]
    axes.errorbar(
        places,
        upto,
        yerr=[below, above],
        fmt="none",
        color="black",
        capsize=3,
        linewidth=1,
        label="from - to",
    )
    least = [row[floor] * s for (_, row), s in zip(rows, scale, strict=True)]
    axes.hlines(
        least,
        [x - 0.45 for x in places],
        [x + 0.45 for x in places],
        color="black",
        linewidth=1.5,
        linestyle=(0, (2, 1)),
        label="what the GPU allows",
    )
    axes.set_xticks(list(places), labels)
    axes.grid(True, axis="y", linewidth=0.4, alpha=0.6)
    axes.set_axisbelow(True)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
