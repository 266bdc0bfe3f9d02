"""Pictures made of characters, for a terminal."""

from __future__ import annotations

from collections.abc import Sequence
from math import log10
from typing import TYPE_CHECKING

from capplan.units import gib, tokens

if TYPE_CHECKING:
    from capplan.capacity.answer import Answer
    from capplan.capacity.questions.compare import Compare
    from capplan.capacity.questions.fit import Fit
    from capplan.capacity.questions.perf import Perf
    from capplan.capacity.questions.roofline import Roofline


def picture(answer: Answer, columns: int) -> str:
    """The picture that goes with an answer, with its line ends; empty where there is none."""
    from capplan.capacity.questions.compare import Compare
    from capplan.capacity.questions.decode import Decode
    from capplan.capacity.questions.fit import Fit
    from capplan.capacity.questions.perf import Perf
    from capplan.capacity.questions.prefill import Prefill
    from capplan.capacity.questions.roofline import Roofline
    from capplan.capacity.questions.speculate import Speculate

    if isinstance(answer, Decode) or (isinstance(answer, Prefill) and answer.method == "operations"):
        from capplan.cli.pass_pictures import bars

        return "\n" + bars(answer, columns)
    if isinstance(answer, Fit):
        return "\n" + memory_bar(answer, columns)
    if isinstance(answer, Perf | Compare):
        drawn = tradeoff(answer)
        return "\n" + tradeoff_plot(drawn, columns) if drawn else ""
    if isinstance(answer, Roofline):
        return "\n" + roofline_plot(answer, columns)
    if answer.question == "simulate" and answer.fits:  # asked by name: its module loads numpy
        from capplan.cli.timeline import chart

        return "\n" + chart(answer, columns)  # type: ignore[arg-type]
    if isinstance(answer, Speculate):
        from capplan.cli.serving_pictures import gain_chart

        return "\n" + gain_chart(answer, columns)
    return ""


def memory_bar(fit: Fit, columns: int = 80) -> str:
    """The memory of a GPU as a bar: weights, reserve, KV cache; what is missing when they don't fit."""
    left = fit.kv_budget_bytes
    parts = [("weights", "█", fit.weight_bytes), ("reserve", "░", fit.reserve_bytes), ("KV cache", "▒", left)]
    if left < 0:
        parts[2] = ("missing", "!", -left)
    whole = sum(size for _, _, size in parts) if left >= 0 else fit.weight_bytes + fit.reserve_bytes
    room = max(20, min(columns, 100) - 2)
    bar, upto = "", 0.0
    for _, character, size in parts if left >= 0 else parts[:2]:
        upto += size
        bar += character * (round(room * upto / whole) - len(bar))
    if left < 0:
        kept = round(room * fit.memory_bytes / whole)
        bar = bar[:kept] + "!" * (len(bar) - kept)
    names = [f"{character} {name} {gib(size)}" for name, character, size in parts]
    key = "   ".join(names)
    if len(key) > room:
        key = "\n".join(names)
    return f"{bar}\n{key}\n"


def roofline_plot(answer: Roofline, columns: int = 80, lines: int = 16) -> str:
    """The roofline on logarithmic axes; a letter where decode stands at each context."""
    peak, slope = answer.peak_flops_per_s, answer.bandwidth_bytes_per_s
    ridge = answer.ridge_flop_per_byte
    points = [(row["intensity_with_attention"], row["context"], row["batch"]) for row in answer.at]
    lowest = min(1.0, *(x for x, _, _ in points))
    x0, x1 = log10(lowest), log10(max(ridge, *(x for x, _, _ in points))) + 0.6
    y0, y1 = log10(lowest * slope), log10(peak)
    across = max(30, min(columns, 100) - 12)
    grid = [[" "] * across for _ in range(lines + 1)]

    def place(x: float, flops: float, character: str) -> None:
        column = round((log10(x) - x0) / (x1 - x0) * (across - 1))
        line = round((y1 - log10(flops)) / (y1 - y0) * lines)
        grid[min(max(line, 0), lines)][min(max(column, 0), across - 1)] = character

    for column in range(across):
        x = 10 ** (x0 + (x1 - x0) * column / (across - 1))
        place(x, min(peak, x * slope), "─" if x > ridge else "╱")
    names = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
    shown = list(zip(names, points, strict=False))
    for name, (x, _, _) in reversed(shown):
        place(x, min(peak, x * slope), name)
    labels = {0: f"{peak / 1e12:,.0f}", lines: f"{10**y0 / 1e12:,.2g}"}
    body = "".join(f"{labels.get(i, ''):>9} ┤{''.join(row).rstrip()}\n" for i, row in enumerate(grid))
    axis = " " * 10 + "└" + "─" * across + "\n"
    ticks = _ticks(x0, x1, across)
    key = "".join(
        f"  {name}: {tokens(context)}, batch {batch:,}: {x:,.1f} FLOP/byte\n"
        for name, (x, context, batch) in shown
    )
    return (
        f"  TFLOP/s, dense {answer.compute_precision}, over FLOP/byte; the ridge is at {ridge:,.0f}\n"
        f"{body}{axis}{' ' * 11}{ticks}\n{key}"
    )


Curve = list[tuple[float, float, int]]  # tok/s a user, tok/s a GPU, requests under way


def tradeoff(answer: Perf | Compare) -> dict[str, Curve]:
    """Throughput against latency, one curve a GPU; nothing where none fits."""
    from capplan.capacity.questions.perf import Perf

    found: dict[str, Curve] = {}
    rows = (
        [{"gpu": answer.inputs["gpu"], "gpus": answer.gpus} | row for row in answer.at]
        if isinstance(answer, Perf)
        else list(answer.curves)
    )
    for row in rows:
        point = (row["tokens_per_s_per_user"], row["output_tokens_per_s_per_gpu"], row["concurrency"])
        found.setdefault(f"{row['gpus']} x {row['gpu']}", []).append(point)
    return found


def tradeoff_plot(curves: dict[str, Curve], columns: int = 80, lines: int = 16) -> str:
    """Output tok/s a GPU over tok/s a user: requests under way beside the points of one GPU, a letter for each of more."""
    across = max(30, min(columns, 100) - 12)
    points = [point for curve in curves.values() for point in curve]
    right, top = max(x for x, _, _ in points) * 1.08, max(y for _, y, _ in points) * 1.05
    grid = [[" "] * across for _ in range(lines + 1)]

    def place(x: float, y: float) -> tuple[int, int]:
        return round((1 - y / top) * lines), round(x / right * (across - 1))

    names = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
    shown = list(zip(names, curves.items(), strict=False))
    for letter, (_, curve) in reversed(shown):
        for x, y, _ in curve:
            line, column = place(x, y)
            grid[line][column] = letter if len(curves) > 1 else "●"
    if len(curves) == 1:
        for x, y, count in points:
            line, column = place(x, y)
            label = f"{count:,}"
            room = grid[line][column + 1 : column + 2 + len(label)]
            if len(room) > len(label) and set(room) == {" "}:
                grid[line][column + 1 : column + 1 + len(label)] = label
    steps = [lines * i // 4 for i in range(5)]
    labels = {line: f"{top * (1 - line / lines):,.0f}" for line in steps}
    body = "".join(f"{labels.get(i, ''):>9} ┤{''.join(row).rstrip()}\n" for i, row in enumerate(grid))
    axis = " " * 10 + "└" + "─" * across + "\n"
    ticks = [" "] * across
    for i in range(5):
        label = f"{right * i / 4:,.0f}"
        at = min(round((across - 1) * i / 4), across - len(label))
        ticks[at : at + len(label)] = label
    head = "  output tok/s a GPU, over tok/s a user"
    key = (
        "".join(f"  {letter}: {name}\n" for letter, (name, _) in shown)
        if len(curves) > 1
        else "  beside a point: requests under way\n"
    )
    return f"{head}\n{body}{axis}{' ' * 11}{''.join(ticks).rstrip()}\n{key}"


def _ticks(x0: float, x1: float, across: int) -> str:
    text = [" "] * across
    marks: Sequence[int] = range(int(x0), int(x1) + 1)
    for power in marks:
        label = f"{10**power:,}"
        at = round((power - x0) / (x1 - x0) * (across - 1))
        if at >= 0 and at + len(label) <= across:
            text[at : at + len(label)] = label
    return "".join(text).rstrip()
