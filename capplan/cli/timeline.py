"""Pictures of a simulation: who runs, who waits, and how full the cache is, over time."""

from __future__ import annotations

from typing import TYPE_CHECKING

from capplan.units import seconds

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from capplan.capacity.questions.simulate import Simulate

BLUE, ORANGE, GREEN = "#0072B2", "#E69F00", "#009E73"  # Okabe and Ito's
_EIGHTHS = " ▁▂▃▄▅▆▇█"


def draw(answer: Simulate) -> Figure:
    """Running and waiting requests above, the share of the cache in use below."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7.5, 5.0), layout="constrained")
    above, below = figure.subplots(2, sharex=True, height_ratios=(3, 2))
    times = [row["time_s"] for row in answer.timeline]
    for key, colour in (("running", BLUE), ("waiting", ORANGE)):
        above.step(times, [row[key] for row in answer.timeline], where="post", color=colour, label=key)
    used = [100 * row["kv_blocks"] / answer.kv_blocks for row in answer.timeline]
    below.step(times, used, where="post", color=GREEN)
    inputs = answer.inputs
    above.set(
        ylabel="requests", title=f"{inputs['model']} on {answer.gpus} x {inputs['gpu']}, {load(answer)}"
    )
    above.title.set_fontsize(10)
    above.legend(frameon=False, fontsize=9, loc="upper left", bbox_to_anchor=(1, 1))
    below.set(xlabel="seconds", ylabel="KV cache used, %", ylim=(0, 105))
    for axes in (above, below):
        axes.set_ylim(bottom=0)
        axes.grid(True, linewidth=0.4, alpha=0.6)
    return figure


def load(answer: Simulate) -> str:
    """The load, in words."""
    if answer.inputs["concurrency"] is not None:
        return f"{answer.inputs['concurrency']:,} requests under way"
    return f"{answer.inputs['rate_per_s']:.4g} requests/s"


def chart(answer: Simulate, columns: int = 80) -> str:
    """The same in characters: a line each, as high as its own most."""
    room = max(20, min(columns, 100) - 24)
    lines = []
    for key, label, most in (
        ("running", "running", None),
        ("waiting", "waiting", None),
        ("kv_blocks", "KV blocks", answer.kv_blocks),
    ):
        values = [row[key] for row in answer.timeline]
        top = most or max(1, *values)
        cells = []
        for k in range(room):  # the most of what a cell stands for
            first = k * len(values) // room
            part = values[first : max(first + 1, (k + 1) * len(values) // room)]
            cells.append(_EIGHTHS[-(-8 * max(part) // top)])
        lines.append(f"  {label:<10}{''.join(cells)} of {top:,}\n")
    end = seconds(answer.timeline[-1]["time_s"])
    return "".join(lines) + f"  {'':<10}0{end.rjust(room - 1)}\n"
