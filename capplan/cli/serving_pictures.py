"""Pictures of serving: what a draft gains by batch, and what share of requests meets its bounds by rate."""

from __future__ import annotations

from itertools import cycle
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from capplan.capacity.questions.goodput import Goodput
    from capplan.capacity.questions.speculate import Speculate

LINES = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00")  # Okabe and Ito's


def gain(axes: Axes, answer: Speculate) -> None:
    """Speed-up against batch, a line for each acceptance, with the line at which a draft is worth nothing."""
    inputs = answer.inputs
    for rate, colour in zip(inputs["acceptances"], cycle(LINES), strict=False):
        rows = [row for row in answer.at if row["acceptance"] == rate]
        axes.plot(
            [row["batch"] for row in rows],
            [row["speed_up"] for row in rows],
            "o-",
            color=colour,
            markersize=4,
            label=f"acceptance {rate:g}",
        )
    axes.axhline(1, color="black", linewidth=1)
    if answer.most_batch is not None and answer.most_batch < max(inputs["batches"]):
        axes.axvline(answer.most_batch, color="#999999", linestyle=":", label="what memory holds")
    axes.set(
        xscale="log",
        xlabel="sequences of a pass",
        ylabel="times as fast as without a draft",
        title=f"{inputs['model']} on {answer.gpus} x {inputs['gpu']}, {inputs['context']:,} tokens of context",
    )
    axes.title.set_fontsize(10)
    axes.set_ylim(bottom=0)
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
    axes.grid(True, linewidth=0.4, alpha=0.6)
    axes.legend(frameon=False, fontsize=9)


def attainment(axes: Axes, answer: Goodput) -> None:
    """Share of requests inside the bounds against the rate of a GPU, a line for each placement; its goodput is marked."""
    for each, colour in zip(answer.configurations, cycle(LINES), strict=False):
        rows = [row for row in answer.curve if row["configuration"] == each["name"]]
        axes.plot(
            [row["requests_per_s_per_gpu"] for row in rows],
            [100 * row["attainment"] for row in rows],
            "o-",
            color=colour,
            markersize=4,
            label=f"{each['name']}{', ' if each['setting'] else ''}{each['setting']}",
        )
        if each["requests_per_s"]:
            axes.axvline(each["requests_per_s_per_gpu"], color=colour, linewidth=0.8, linestyle=":")
    inputs = answer.inputs
    axes.set(
        xlabel="requests a second and GPU; dotted: the highest inside the SLO",
        ylabel="% of requests inside the bounds of TTFT and TPOT",
        title=f"{inputs['model']} on {inputs['gpu']}, {inputs['isl']:,.0f} tokens in, {inputs['osl']:,.0f} out",
    )
    axes.title.set_fontsize(10)
    axes.set_xlim(left=0)
    axes.set_ylim(0, 102)
    axes.grid(True, linewidth=0.4, alpha=0.6)
    axes.legend(frameon=False, fontsize=9)


def gain_chart(answer: Speculate, columns: int = 80) -> str:
    """Speed-up of each batch as a bar, at the middle acceptance; the mark is where a draft is worth nothing."""
    rates = answer.inputs["acceptances"]
    rate = rates[len(rates) // 2]
    rows = [row for row in answer.at if row["acceptance"] == rate]
    room = max(20, min(columns, 100) - 20)
    scale = room / max(1.2, *(row["speed_up"] for row in rows))
    one = round(scale)
    text = f"  times as fast, at an acceptance of {rate:g}; the mark is 1\n"
    for row in rows:
        bar = "█" * round(scale * row["speed_up"])
        line = bar.ljust(one + 1)
        text += f"{row['batch']:>9,} {(line[:one] + '│' + line[one + 1 :]).rstrip()} {row['speed_up']:.2f}\n"
    return text
