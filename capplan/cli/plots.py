"""Pictures for a document: SVG or PNG, drawn by matplotlib (the extra `plot`)."""

from __future__ import annotations

import os
from itertools import cycle
from pathlib import Path
from typing import TYPE_CHECKING, Any

from capplan.capacity.answer import Answer
from capplan.capacity.decode import decode_intensity
from capplan.capacity.questions.compare import Compare
from capplan.capacity.questions.decode import Decode
from capplan.capacity.questions.fit import Fit
from capplan.capacity.questions.goodput import Goodput
from capplan.capacity.questions.kv import Kv
from capplan.capacity.questions.kv_side_by_side import KvSideBySide
from capplan.capacity.questions.perf import Perf
from capplan.capacity.questions.prefill import Prefill
from capplan.capacity.questions.probe_report import ProbeReport
from capplan.capacity.questions.roofline import Roofline
from capplan.capacity.questions.simulate import Simulate
from capplan.capacity.questions.speculate import Speculate
from capplan.capacity.questions.whiteboard import Whiteboard
from capplan.cli import probe_pictures, timeline
from capplan.cli.pass_pictures import draw
from capplan.cli.pictures import tradeoff
from capplan.cli.serving_pictures import attainment, gain
from capplan.errors import InputError, MissingPackageError
from capplan.units import gib, short, tokens
from capplan.whole_file import whole

if TYPE_CHECKING:
    from matplotlib.axes import Axes

FORMATS = (".svg", ".png")
# Okabe and Ito's palette: told apart in colour blindness, and in grey
BLUE, ORANGE, GREEN, GREY = "#0072B2", "#E69F00", "#009E73", "#999999"
LINES = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00")


def known_place(path: str) -> None:
    """Raise InputError for a file that can't be drawn to, by its name and folder."""
    target = Path(path)
    if target.suffix.lower() not in FORMATS:
        raise InputError(f"can't draw to {path!r}; the name must end in {' or '.join(FORMATS)}")
    if not os.path.isdir(target.parent):
        raise InputError(f"can't draw to {path!r}: there is no folder {str(target.parent)!r}")


def save(answer: Answer, path: str) -> None:
    """Draw an answer to a file; nothing is left behind when it can't be drawn.

    Raises InputError for another ending than .svg or .png, or a place that can't be written to;
    MissingPackageError without matplotlib.
    """
    known_place(path)
    target = Path(path)
    try:
        import matplotlib
    except ImportError as error:
        raise MissingPackageError("drawing needs matplotlib: pip install 'capplan[plot]'") from error
    matplotlib.use("Agg")
    matplotlib.rcParams["svg.hashsalt"] = "capplan"  # the same picture gives the same file
    from matplotlib.figure import Figure

    if isinstance(answer, Kv | KvSideBySide):
        figure = Figure(figsize=(7.5, 4.6), layout="constrained")
        _cache(figure.subplots(), [answer] if isinstance(answer, Kv) else list(answer.models))
    elif isinstance(answer, Roofline):
        figure = Figure(figsize=(7.5, 4.6), layout="constrained")
        _intensity(figure.subplots(), answer)
    elif isinstance(answer, Perf | Compare):
        if not answer.fits:
            raise InputError("there is no picture of what does not fit")
        figure = Figure(figsize=(7.5, 5.0), layout="constrained")
        _tradeoff(figure.subplots(), answer)
    elif isinstance(answer, Decode) or (isinstance(answer, Prefill) and answer.method == "operations"):
        figure = draw(answer)
    elif isinstance(answer, ProbeReport):
        figure = probe_pictures.draw(answer)
    elif isinstance(answer, Simulate):
        if not answer.timeline:
            raise InputError("there is no picture of what does not fit")
        figure = timeline.draw(answer)
    elif isinstance(answer, Speculate):
        figure = Figure(figsize=(7.5, 4.6), layout="constrained")
        gain(figure.subplots(), answer)
    elif isinstance(answer, Goodput):
        if not answer.configurations:
            raise InputError("there is no picture of an SLO that one request alone misses")
        figure = Figure(figsize=(7.5, 4.6), layout="constrained")
        attainment(figure.subplots(), answer)
    elif isinstance(answer, Fit):
        if answer.kv_budget_bytes > 0:
            figure = Figure(figsize=(7.5, 5.4), layout="constrained")
            bar, curve = figure.subplots(2, height_ratios=(1, 5))
            _concurrency(curve, answer)
        else:  # nothing fits: there is no curve
            figure = Figure(figsize=(7.5, 2.0), layout="constrained")
            bar = figure.subplots()
        _budget(bar, answer)
    elif isinstance(answer, Whiteboard):
        figure = Figure(figsize=(7.5, 9.6), layout="constrained")
        bar, curve, intensity = figure.subplots(3, height_ratios=(1, 5, 6))
        _budget(bar, answer.fit)
        _concurrency(curve, answer.fit)
        _intensity(intensity, answer.roofline)
    else:
        raise InputError(
            f"there is no picture of {answer.question!r} by a utilisation"
            if isinstance(answer, Prefill)
            else f"there is no picture of {answer.question!r}; kv, fit, roofline, prefill, decode, whiteboard, "
            "perf, compare, speculate, simulate, goodput and probe report have one"
        )
    try:
        with whole(target) as unfinished:
            figure.savefig(unfinished, format=target.suffix[1:].lower(), dpi=160, metadata=_metadata(target))
    except OSError as error:
        raise InputError(f"can't draw to {path!r}: {(error.strerror or str(error)).lower()}") from error
    except ValueError as error:  # a NUL in the name
        raise InputError(f"can't draw to {path!r}: {error}") from error


def _metadata(target: Path) -> dict[str, Any]:
    return {"Date": None} if target.suffix.lower() == ".svg" else {}


def _title(answer: Answer) -> str:
    inputs = answer.inputs
    return f"{inputs['model']} in {inputs['weights']} on one {inputs['gpu']}, KV cache in {inputs['kv']}"


def _plain_ticks(axes: Axes) -> None:
    """1,000 and not a power of ten, on both logarithmic axes; a light grid."""
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_formatter(lambda value, _: f"{value:,.4g}" if value < 1000 else short(round(value)))
    axes.grid(True, which="major", linewidth=0.4, alpha=0.6)


def _budget(axes: Axes, fit: Fit) -> None:
    """Weights, reserve and cache as one bar, up to the memory of the GPU."""
    left = 0.0
    for name, size, colour in (
        ("weights", fit.weight_bytes, BLUE),
        ("reserve", fit.reserve_bytes, GREY),
        ("KV cache", max(0.0, fit.kv_budget_bytes), GREEN),
    ):
        width = size / 2**30
        axes.barh(0, width, left=left, color=colour, label=f"{name} {gib(size)}")
        left += width
    memory = fit.memory_bytes / 2**30
    axes.axvline(memory, color="black", linewidth=1.5)
    if left > memory * 1.0001:
        axes.axvspan(
            memory,
            left,
            facecolor="white",
            hatch="//",
            edgecolor="#D55E00",
            label=f"missing {gib(-fit.kv_budget_bytes)}",
        )
    axes.set(
        yticks=[],
        xlim=(0, max(left, memory) * 1.02),
        xlabel=f"GiB; the line is what the GPU has, {memory:,.1f}",
    )
    axes.set_title(_title(fit), fontsize=10)
    figure = axes.get_figure(root=True)
    assert figure is not None
    figure.legend(
        *axes.get_legend_handles_labels(), loc="outside upper center", ncols=4, frameon=False, fontsize=9
    )
    for side in ("top", "right", "left"):
        axes.spines[side].set_visible(False)


def _concurrency(axes: Axes, fit: Fit) -> None:
    """Requests that fit against their context, with the contexts asked for marked."""
    room = max(0.0, fit.kv_budget_bytes)
    longest = max([*map(int, fit.requests), 2_000])
    contexts = [1_000 * (2 * longest / 1_000) ** (i / 200) for i in range(201)]
    held = [sum(_held(stream, c) for stream in fit.streams) for c in contexts]
    axes.plot(contexts, [max(room / each, 1e-3) for each in held], color=BLUE)
    axes.axhline(1, color="black", linewidth=0.8, linestyle=":")
    for context, count in fit.concurrency.items():
        if count > 0:
            axes.plot(int(context), count, "o", color="#D55E00")
            axes.annotate(
                f"{fit.requests[context]:,} of {short(int(context))}",
                (int(context), count),
                xytext=(6, 6),
                textcoords="offset points",
                fontsize=9,
            )
    axes.set(xscale="log", yscale="log", xlabel="tokens of a request", ylabel="requests at once")
    axes.set_ylim(0.3, 2 * max(1, *(room / each for each in held)))
    _plain_ticks(axes)


def _tradeoff(axes: Axes, answer: Perf | Compare) -> None:
    """Throughput of a GPU against what one user sees; of one GPU also the range."""
    inputs = answer.inputs
    for (name, curve), colour in zip(tradeoff(answer).items(), cycle(LINES), strict=False):
        users, rates = [x for x, _, _ in curve], [y for _, y, _ in curve]
        axes.plot(users, rates, "o-", color=colour, markersize=4, linewidth=1.5, label=name)
        marked = curve if isinstance(answer, Perf) else [curve[0], curve[-1]]
        previous: tuple[float, float] | None = None
        for x, y, count in marked:
            # points that a bound of memory draws together are named once
            if (
                previous
                and abs(x - previous[0]) < 0.02 * users[0]
                and abs(y - previous[1]) < 0.02 * rates[-1]
            ):
                continue
            previous = x, y
            axes.annotate(f"{count:,}", (x, y), xytext=(5, 4), textcoords="offset points", fontsize=8)
    if isinstance(answer, Perf):
        low, high = ([row["tpot_s"] / row[f"tpot_{side}_s"] for row in answer.at] for side in ("high", "low"))
        edge = [(x * f, y * f) for f, x, y in zip(low, users, rates, strict=True)]
        edge += [(x * f, y * f) for f, x, y in reversed(list(zip(high, users, rates, strict=True)))]
        axes.fill(*zip(*edge, strict=True), color=BLUE, alpha=0.12, linewidth=0, label="range")
    axes.legend(frameon=False, fontsize=9)
    axes.set(
        xlabel="tok/s a user (1 / TPOT); beside a point: requests under way",
        ylabel="output tok/s a GPU",
        title=f"{inputs['model']} under {inputs['engine']}, {inputs['isl']:,} tokens in, {inputs['osl']:,} out",
    )
    axes.title.set_fontsize(10)
    axes.set_xlim(left=0)
    axes.set_ylim(bottom=0)
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_formatter(lambda value, _: f"{value:,.6g}")
    axes.grid(True, linewidth=0.4, alpha=0.6)


def _cache(axes: Axes, answers: list[Kv]) -> None:
    """Bytes of a request against its context; of one model also each term, so that they can be seen to cross."""
    contexts = sorted({int(context) for answer in answers for context in answer.kv_bytes_at})
    low, high = (contexts[0], contexts[-1]) if len(contexts) > 1 else (1_000, 1_000_000)
    points = [low * (high / low) ** (i / 200) for i in range(201)]
    solid = [(colour, style) for style in ("-", ":", "-.") for colour in LINES]
    dashed = [(colour, style) for style in ("--", "-.", ":") for colour in LINES[1:]]
    for answer, (colour, style) in zip(answers, cycle(solid), strict=False):
        at = [sum(_held(stream, t) for stream in answer.streams) / 2**30 for t in points]
        axes.plot(points, at, color=colour, linewidth=2, linestyle=style, label=answer.inputs["model"])
    if len(answers) == 1 and len(answers[0].streams) > 1:
        for stream, (colour, style) in zip(answers[0].streams, cycle(dashed), strict=False):
            name = f"{stream['part'].replace('_', ' ')}, {stream['layers']} layers"
            held = [_held(stream, t) / 2**30 for t in points]
            axes.plot(points, held, color=colour, linewidth=1, linestyle=style, label=name)
    axes.set(
        xscale="log",
        yscale="log",
        xlabel="tokens of a request",
        ylabel="GiB of one request",
        title=f"KV cache in {answers[0].inputs['kv']}",
    )
    axes.title.set_fontsize(10)
    _plain_ticks(axes)
    axes.legend(frameon=False, fontsize=9, loc="upper left", bbox_to_anchor=(1, 1))


def _held(stream: dict[str, Any], tokens_: float) -> float:
    every, most = stream["tokens_per_entry"], stream["most_entries"]
    if stream["of_encoder_tokens"]:
        return 0.0
    entries = 1.0 if not every else tokens_ / every
    size: float = stream["layers"] * stream["entry_bytes"]
    return size * (entries if most is None else min(entries, most))


def _intensity(axes: Axes, answer: Roofline) -> None:
    """Arithmetic intensity of decode against batch at each context, under the ridge."""
    batches = [10 ** (i / 50) for i in range(201)]
    for row, colour in zip(answer.at, cycle(LINES), strict=False):
        flops = row["flops_per_token_with_attention"]
        curve = [
            decode_intensity(b, flops, answer.weight_bytes_read, row["context"], row["kv_bytes_per_token"])
            for b in batches
        ]
        axes.plot(batches, curve, color=colour, label=tokens(row["context"]))
        if row["fits"]:
            axes.plot(
                row["batch"], row["intensity_with_attention"], "o", color=colour, clip_on=False, zorder=3
            )
        axes.axhline(row["ceiling_with_attention"], color=colour, linewidth=0.8, linestyle=":")
    ridge = answer.ridge_flop_per_byte
    axes.axhline(ridge, color="black", linewidth=1.2)
    axes.annotate(
        f"ridge {ridge:,.0f} FLOP/byte",
        (1, ridge),
        xytext=(4, -12),
        textcoords="offset points",
        fontsize=9,
    )
    weight_only = [b * answer.weight_only_intensity_batch_1 for b in batches]
    axes.plot(batches, weight_only, color=GREY, linestyle="--", label="weights alone")
    axes.set(
        xscale="log",
        yscale="log",
        xlabel="batch (dot: the largest that fits; dotted line: what no batch passes)",
        ylabel="FLOP/byte of a decode step, with attention",
        title=_title(answer),
        xlim=(1, 1e4),
        ylim=(min(0.5, answer.weight_only_intensity_batch_1), 3 * ridge),
    )
    axes.title.set_fontsize(10)
    _plain_ticks(axes)
    axes.legend(frameon=False, fontsize=9, loc="upper left", bbox_to_anchor=(1, 1))
