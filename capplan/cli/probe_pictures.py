"""Four pictures of a device: its measured roofline, products by rows, decode attention by bytes, and the knee of a step."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import cycle
from typing import TYPE_CHECKING, Any

from capplan.report import printable

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from capplan.capacity.questions.probe_report import ProbeReport

    Rows = Sequence[Mapping[str, Any]]

# Okabe and Ito's
_LINES = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00")
_GREY = "#999999"
_USED = ("pass", "warn")


def draw(answer: ProbeReport) -> Figure:
    """The four, on one page; one without rows says so."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11.0, 8.2), layout="constrained")
    rows = [row for row in answer.measured if row["status"] in _USED and row["time_s"]]
    panels = figure.subplots(2, 2).ravel()
    for axes, panel in zip(panels, (_roofline, _products, _decode, _knee), strict=True):
        panel(axes, rows, answer)
        axes.title.set_fontsize(10)
        axes.tick_params(labelsize=8)
        axes.grid(True, which="major", linewidth=0.4, alpha=0.6)
        if axes.get_legend_handles_labels()[1]:
            axes.legend(frameon=False, fontsize=8)
        elif not axes.has_data():
            axes.text(0.5, 0.5, "not measured", ha="center", transform=axes.transAxes, color=_GREY)
    title = f"{answer.device}, {answer.inputs['created_utc'][:10]}: {answer.verdict}"
    figure.suptitle(_words(title), fontsize=11)
    return figure


def _words(text: str) -> str:
    """A file's words as matplotlib is to set them: printable, and never as a formula."""
    return printable(text).replace("$", r"\$")


def _by(
    rows: Rows, probes: tuple[str, ...], *keys: str
) -> Iterator[tuple[str, str, list[Mapping[str, Any]]]]:
    """Rows of probes by what their cases say of some keys: the name, a colour, and the rows."""
    own = [row for row in rows if row["probe"] in probes]
    names = [_words(" ".join(str(row["case"][key]) for key in keys if key in row["case"])) for row in own]
    for name, colour in zip(dict.fromkeys(names), cycle(_LINES), strict=False):
        yield name, colour, [row for row, said in zip(own, names, strict=True) if said == name]


def _constant(answer: ProbeReport, name: str, key: str = "value") -> float | None:
    found: float | None = next((each[key] for each in answer.constants if each["name"] == name), None)
    return found


def _roofline(axes: Axes, rows: Rows, answer: ProbeReport) -> None:
    """What products and reads reached, under the measured roofs (lines) and the datasheet's (dotted)."""
    bandwidth = _constant(answer, "knee.bf16.bandwidth") or _constant(answer, "hbm.read_bps")
    for name, colour, own in _by(rows, ("gemm", "fp8_gemm", "weight_streaming"), "dtype"):
        at = [
            (row["work"]["flops"] / row["work"]["bytes"], row["achieved"]["flops_ps"] / 1e12) for row in own
        ]
        axes.plot(*zip(*at, strict=True), "o", color=colour, markersize=3, label=name)
        peak = max((row["achieved"]["flops_ps"] for row in own), default=0.0)
        peaks = (
            (peak, bandwidth, "-"),
            (_spec(answer, name), _constant(answer, "hbm.read_bps", "spec"), ":"),
        )
        for top, slope, style in peaks:
            if top and slope:
                x = [0.3, top / slope, 3e4]
                axes.plot(
                    x,
                    [each * slope / 1e12 for each in x[:2]] + [top / 1e12],
                    style,
                    color=colour,
                    linewidth=1,
                )
    axes.set(
        xscale="log",
        yscale="log",
        xlabel="FLOP/byte",
        ylabel="TFLOP/s",
        title="Roofline: measured; dotted: datasheet",
    )


def _spec(answer: ProbeReport, dtype: str) -> float | None:
    return next(
        (each["spec"] for each in answer.constants if each["name"].startswith(f"gemm.{dtype}.")), None
    )


def _products(axes: Axes, rows: Rows, answer: ProbeReport) -> None:
    """Share of the datasheet's peak by rows; TFLOP/s where there is no datasheet."""
    share = False
    for name, colour, own in _by(rows, ("gemm", "fp8_gemm"), "dtype", "recipe"):
        peak = _spec(answer, own[0]["case"]["dtype"])
        share = share or bool(peak)
        at = sorted(
            (row["case"]["m"], row["achieved"]["flops_ps"] / (peak / 100 if peak else 1e12)) for row in own
        )
        axes.plot(*zip(*at, strict=True), "o", color=colour, markersize=3, label=name)
    axes.set(
        xscale="log",
        xlabel="rows of the product",
        ylabel="% of the peak" if share else "TFLOP/s",
        title="Products by rows",
    )
    axes.set_ylim(bottom=0)


def _decode(axes: Axes, rows: Rows, answer: ProbeReport) -> None:
    """Bandwidth of decode attention by the bytes of K and V that one call reads."""
    for name, colour, own in _by(rows, ("attn_decode",), "kernel", "kv_dtype"):
        at = sorted((row["work"]["bytes"] / 1e6, row["achieved"]["bytes_ps"] / 1e9) for row in own)
        axes.plot(*zip(*at, strict=True), "o-", color=colour, markersize=3, linewidth=0.8, label=name)
    read = _constant(answer, "hbm.read_bps")
    if read is not None and axes.has_data():
        axes.axhline(read / 1e9, color="black", linewidth=1, label="memory read")
    axes.set(xscale="log", xlabel="MB of K and V", ylabel="GB/s", title="Decode attention by what it reads")
    axes.set_ylim(bottom=0)


def _knee(axes: Axes, rows: Rows, answer: ProbeReport) -> None:
    """Time of a step by batch, as measured (dots) and by the fitted formula (line); the ridge is upright."""
    for name, colour, own in _by(rows, ("weight_streaming",), "dtype", "n"):
        ordered = sorted(own, key=lambda row: row["case"]["m"])
        batches = [row["case"]["m"] for row in ordered]
        axes.plot(
            batches,
            [1e3 * row["time_s"]["median"] for row in ordered],
            "o",
            color=colour,
            markersize=3,
            label=name,
        )
        fitted = [
            (m, 1e3 * row["predicted_s"])
            for m, row in zip(batches, ordered, strict=True)
            if row["predicted_s"]
        ]
        if fitted:
            axes.plot(*zip(*fitted, strict=True), "-", color=colour, linewidth=1)
        if (ridge := _constant(answer, f"knee.{ordered[0]['case']['dtype']}.ridge")) is not None:
            axes.axvline(ridge, color=colour, linewidth=0.8, linestyle=":")
    axes.set(
        xscale="log",
        yscale="log",
        xlabel="batch; upright: the ridge",
        ylabel="ms",
        title="Weights by a growing batch",
    )
