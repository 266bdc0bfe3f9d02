"""What does a calibration file of the probes say, where does it leave the shipped constants, and what does that change?"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from os import PathLike
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any, ClassVar

from capplan.calibration_file import read_document
from capplan.capacity.answer import Answer, Working
from capplan.capacity.engines.deployment import Deployment
from capplan.capacity.questions import asked, perf
from capplan.capacity.questions.deployed import Deployed
from capplan.capacity.step_time.calibration import Calibration, Constant, kernels_of
from capplan.capacity.step_time.chip import Chip, chip_of
from capplan.capacity.step_time.forward import Step
from capplan.capacity.step_time.measured_kernels import KernelConstant, kernel_constants, refuse, with_kernels
from capplan.capacity.step_time.passes import pass_time
from capplan.errors import CapplanError, DataFileError, InputError
from capplan.units import counted, seconds

if TYPE_CHECKING:
    from capplan.hardware.spec import Gpu
    from capplan.report import Report

MODEL = "llama-3.3-70b"  # whose passes tell what a constant changes
_CONTEXT, _PROMPT = 8_000, 4_096  # tokens
_PASSES = {
    "decode, batch 1": Step(decode=1.0, context=float(_CONTEXT)),
    "decode, batch 64": Step(decode=64.0, context=float(_CONTEXT)),
    "prefill": Step(prompts=1.0, chunk=float(_PROMPT), before=0.0),
}
_SEEN = 0.005  # of a time: a change below it is not told
_BAD = ("fail", "invalid", "warn")
_EACH = 2  # rows of a probe that are shown: the longest
_LISTED = 20  # rows with something to say that are shown


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbeReport(Answer):
    """The rows and constants of a device, beside the datasheet, the formulas and the shipped constants."""

    question: ClassVar[str] = "probe-report"

    device: str
    gpu: str | None
    verdict: str  # ok, degraded, unusable, cpu_only
    drift: float | None
    failed: int
    invalid: int
    rows: tuple[dict[str, Any], ...]  # times in seconds, rates in byte/s and FLOP/s
    probes: tuple[dict[str, Any], ...]  # one a probe: rows by status, error of its formula
    constants: tuple[dict[str, Any], ...]  # of `derived`, with the datasheet's figure where there is one
    kernels: tuple[dict[str, Any], ...]  # of kernels.toml: shipped and measured
    changes: tuple[dict[str, Any], ...]  # times of passes by the shipped and by a measured constant
    measured: tuple[dict[str, Any], ...] = field(
        default=(), repr=False
    )  # rows as the file has them, for pictures

    def result(self) -> dict[str, Any]:
        """All but the rows as the file has them."""
        return {name: each for name, each in Answer.result(self).items() if name != "measured"}

    def sweep(self) -> list[dict[str, Any]]:
        return [dict(row) for row in self.rows]

    def report(self) -> Report:
        from capplan.report import Report, Table

        apart = [each for each in self.kernels if each["apart"]]
        what = f"{self.device}{f' ({self.gpu})' if self.gpu else ''}: {counted(len(self.rows), 'row')}"
        headline = f"{what}, verdict {self.verdict}"
        if self.kernels:
            headline += (
                f"; {len(apart)} of {len(self.kernels)} shipped constants lie outside of what was measured"
            )
        heads: tuple[str, ...]
        cells: tuple[tuple[str, ...], ...]
        tables = [
            Table(
                tuple(_probe_cells(each) for each in self.probes),
                ("probe", "pass", "warn", "failed", "skipped", "formula off by", "p90"),
                "Probes",
            )
        ]
        if self.constants:
            cells = tuple(_constant_cells(each) for each in self.constants)
            tables.append(Table(cells, ("constant", "measured", "from - to", "spec", "% of it"), "Constants"))
        if self.kernels:
            cells = tuple(_kernel_cells(each) for each in self.kernels)
            heads = ("kernels.toml", "shipped", "measured", "from - to", "")
            tables.append(Table(cells, heads, "In the planner's terms"))
        if self.changes:
            cells = tuple(_change_cells(each) for each in self.changes)
            heads = ("because of", "pass", "as shipped", "as measured", "change")
            tables.append(Table(cells, heads, f"What that changes: {self.inputs['model']}"))
        longest = sorted((row for row in self.rows if row["time_s"]), key=lambda row: -row["time_s"])
        shown = [
            row for each in self.probes for row in [r for r in longest if r["probe"] == each["probe"]][:_EACH]
        ]
        if shown:
            heads = (
                "probe",
                "longest rows (all: --csv)",
                "measured",
                "+-",
                "rate",
                "% of spec",
                "formula",
                "error",
                "kernel",
                "",
            )
            tables.append(Table(tuple(_row_cells(row) for row in shown), heads, "Rows", words=True))
        odd = [row for row in self.rows if row["status"] in _BAD]
        if odd:
            cells = tuple((row["probe"], row["case"], row["status"], row["reason"] or "") for row in odd)
            more = f", {_LISTED} of {len(odd)}" if len(odd) > _LISTED else ""
            tables.append(Table(cells[:_LISTED], title=f"Rows with something to say{more}", words=True))
        return Report(headline, tuple(tables), self.assumptions, self.warnings)


def _probe_cells(each: Mapping[str, Any]) -> tuple[str, ...]:
    off = (
        ("-", "-")
        if each["off_median"] is None
        else (_percent(each["off_median"]), _percent(each["off_p90"]))
    )
    counts = (
        each["pass"],
        each["warn"],
        each["fail"] + each["invalid"],
        each["skipped"] + each["unsupported"],
    )
    return (each["probe"], *(f"{count:,}" if count else "-" for count in counts), *off)


def _row_cells(row: Mapping[str, Any]) -> tuple[str, ...]:
    rate, unit = (
        (row["flops_per_s"], "FLOP/s") if row["flops_per_s"] else (row["bytes_per_s"] or 0.0, "byte/s")
    )
    return (
        row["probe"],
        row["case"],
        seconds(row["time_s"]),
        _percent(row["iqr_rel"] / 2),
        figure(rate, unit) if rate else "-",
        "-" if row["percent_of_spec"] is None else f"{row['percent_of_spec']:.3g}%",
        "-" if row["predicted_s"] is None else seconds(row["predicted_s"]),
        "-" if row["error"] is None else f"{100 * row['error']:+.1f}%",
        row["kernel"] or "-",
        row["status"],
    )


def _constant_cells(each: Mapping[str, Any]) -> tuple[str, ...]:
    shown = [figure(each[key], each["unit"]) for key in ("value", "low", "high")]
    spec = (
        ("", "") if each["spec"] is None else (figure(each["spec"], each["unit"]), _percent(each["of_spec"]))
    )
    return (each["name"], shown[0], f"{shown[1]} - {shown[2]}", *spec)


def _kernel_cells(each: Mapping[str, Any]) -> tuple[str, ...]:
    shown = [f"{each[key]:.3g}" for key in ("shipped", "value", "low", "high")]
    return (each["name"], shown[0], shown[1], f"{shown[2]} - {shown[3]}", "differs" if each["apart"] else "")


def _change_cells(each: Mapping[str, Any]) -> tuple[str, ...]:
    return (
        each["because"],
        each["pass"],
        seconds(each["shipped_s"]),
        seconds(each["measured_s"]),
        f"{100 * each['change']:+.1f}%",
    )


def figure(value: float, unit: str) -> str:
    """A constant for display."""
    if unit == "s":
        return seconds(value)
    scale = {"FLOP/s": (1e12, "TFLOP/s"), "byte/s": (1e9, "GB/s"), "byte": (2**30, "GiB"), "Hz": (1e6, "MHz")}
    size, name = scale.get(unit, (1.0, "" if unit == "1" else unit))
    if unit == "FLOP/s" and value < size:  # of a CPU
        size, name = 1e9, "GFLOP/s"
    return f"{value / size:,.4g} {name}".strip()


def _percent(share: float) -> str:
    return f"{100 * share:.3g}%"


def probe_report(path: str | PathLike[str]) -> ProbeReport:
    """A calibration file of the probes, laid beside the datasheet, the formulas and what is shipped.

    Raises DataFileError for a file that can't be read, was changed, or is not of the probes.
    """
    found = read_probes(path)
    work = Working()
    calibration = kernels_of(found, Path(path).name)
    work.warn(*found["quality"]["warnings"])
    kernels: list[KernelConstant] = []
    changes: list[dict[str, Any]] = []
    card = _card(calibration, found, work)
    if card is not None:
        chip = chip_of(card)
        kernels = kernel_constants(calibration, chip)
        changes = _changes(card, kernels, work)
    return ProbeReport(
        inputs={
            "file": str(path),
            "profile": found["profile"],
            "created_utc": found["created_utc"],
            "label": found["label"],
            "model": MODEL,
        },
        device=found["device"]["name"],
        gpu=calibration.gpu,
        verdict=found["quality"]["verdict"],
        drift=found["quality"]["drift"],
        failed=found["quality"]["failed"],
        invalid=found["quality"]["invalid"],
        rows=tuple(_row(row) for row in found["results"]),
        probes=tuple(_probes(found["results"])),
        constants=tuple(_constants(calibration.leaves, found["spec"])),
        kernels=tuple({**each._asdict(), "apart": each.apart} for each in kernels),
        changes=tuple(changes),
        measured=tuple(found["results"]),
        **work.shown(),
    )


def read_probes(path: str | PathLike[str]) -> dict[str, Any]:
    """The JSON of a calibration file of the probes, with the parts that answers read. Raises DataFileError."""
    found = read_document(path)
    name = repr(str(path))
    if "engine" in found:
        raise DataFileError(f"{name} is of a benchmark; a file of capplan probe run is accepted")
    if "unfinished" in found:
        raise DataFileError(
            f"{name} is of a run that is not finished; capplan probe run --resume finishes it"
        )
    try:
        kernels_of(found, name)
    except ValueError as error:
        raise DataFileError(f"{name} is no calibration that can be read: {error}") from error
    return found


def _card(calibration: Calibration, found: Mapping[str, Any], work: Working) -> Gpu | None:
    """The registry's row that a file is of, if its constants may be laid beside that row's."""
    if found["device"]["kind"] == "cpu":
        work.warn(
            "measured on a CPU: rows are checked, their times are for information, and no plan takes them"
        )
        return None
    if calibration.gpu is None:
        work.warn("the registry has no such card: nothing is shipped that could be laid beside it")
        return None
    card = asked.as_gpu(calibration.gpu)
    try:
        refuse(calibration, card)
    except InputError as error:
        work.warn(str(error))
        return None
    return card


def _row(row: Mapping[str, Any]) -> dict[str, Any]:
    """A row as it is told, flat."""
    time, work, achieved = row["time_s"] or {}, row["work"], row["achieved"]
    numerics = row["numerics"] or {}
    return {
        "probe": row["probe"],
        "case": ", ".join(f"{name} {value}" for name, value in row["case"].items()),
        "status": row["status"],
        "reason": row["reason"],
        "kernel": row["kernel"],
        "mode": row["mode"],
        "cache": row["cache"],
        "time_s": time.get("median"),
        "iqr_rel": time.get("iqr_rel"),
        "samples": time.get("n"),
        "flops": work["flops"],
        "bytes": work["bytes"],
        "flops_per_s": achieved["flops_ps"],
        "bytes_per_s": achieved["bytes_ps"],
        "percent_of_spec": row["pct_spec"],
        "predicted_s": row["predicted_s"],
        "error": row["rel_err"],
        "relative_error_to_fp64": numerics.get("rel_fro"),
        "contended": row["contended"],
    }


def _probes(rows: Sequence[Mapping[str, Any]]) -> Iterator[dict[str, Any]]:
    for name in dict.fromkeys(row["probe"] for row in rows):
        own = [row for row in rows if row["probe"] == name]
        off = sorted(abs(row["rel_err"]) for row in own if row["rel_err"] is not None)
        yield {
            "probe": name,
            "formula": next((row["formula"] for row in own), None),
            **{
                status: sum(row["status"] == status for row in own)
                for status in ("pass", "warn", "fail", "invalid", "skipped", "unsupported")
            },
            "off_median": median(off) if off else None,
            "off_p90": off[min(len(off) - 1, int(0.9 * len(off)))] if off else None,
        }


def _constants(leaves: Mapping[str, Constant], spec: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    peaks, bandwidth = spec["peak_flops_dense"], spec["hbm_bps"]
    for name, leaf in leaves.items():
        first, *rest = name.split(".")
        of: float | None = None
        if leaf.unit == "FLOP/s" and rest:
            of = next((peaks[part] for part in rest if part in peaks), None)
        elif leaf.unit == "byte/s" and first in ("hbm", "gemm", "knee", "attn_decode", "attn_decode_mla"):
            of = bandwidth
        yield {
            "name": name,
            "unit": leaf.unit,
            "value": leaf.value,
            "low": leaf.low,
            "high": leaf.high,
            "rows": leaf.count,
            "spec": of,
            "of_spec": leaf.value / of if of else None,
        }


def _changes(card: Gpu, kernels: Sequence[KernelConstant], work: Working) -> list[dict[str, Any]]:
    """Times of passes by each constant that lies outside of what was measured, and by all measured ones together."""
    apart = [each for each in kernels if each.apart]
    if not apart:
        return []
    weights = "fp8" if card.dense_flops.get("fp8") else None
    exchanged = [each.exchanged[1] for each in kernels if each.points]
    try:
        spec = asked.as_model(MODEL)
        ranks = max(exchanged, default=None)  # else nothing would be exchanged
        found = perf.placed(spec, card, Deployment(quantization=weights), _CONTEXT, ranks, Working())
    except CapplanError as error:
        work.warn(f"what the constants change is not known: {error}")
        return []
    work.assume(
        f"passes are of {MODEL} in {weights or spec.dtype} on {found.gpus} x {card.id} under {found.engine.name}: "
        f"decode at {_CONTEXT:,} tokens, prefill of {_PROMPT:,}"
    )
    told: list[dict[str, Any]] = []
    several = [([each], each.name) for each in apart] + [(list(kernels), "all of them")]
    for constants, why in several if len(kernels) > 1 else several[:1]:
        told += _times(found, with_kernels(found.chip, constants), why)
    return told


def _times(found: Deployed, chip: Chip, why: str) -> Iterator[dict[str, Any]]:
    for name, step in _PASSES.items():
        shipped = float(pass_time(found.plan, found.chip, found.engine, step))
        measured = float(pass_time(found.plan, chip, found.engine, step))
        if abs(measured / shipped - 1) >= _SEEN:
            yield {
                "because": why,
                "pass": name,
                "shipped_s": shipped,
                "measured_s": measured,
                "change": measured / shipped - 1,
            }
