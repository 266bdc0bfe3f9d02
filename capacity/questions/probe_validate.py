"""Do the formulas hold on this device? The ridge, the knee, the form of a step, and the time of every kernel."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any, ClassVar

from capplan.capacity.answer import Answer, Working
from capplan.capacity.decode import weight_only_batch_to_ridge
from capplan.capacity.questions import asked
from capplan.capacity.questions.probe_report import read_probes
from capplan.capacity.roofline import attainable_flops, operation_time, ridge_point
from capplan.capacity.step_time.calibration import Calibration, Constant, kernels_of
from capplan.capacity.step_time.chip import Chip, chip_of
from capplan.capacity.step_time.kernel_time import seconds as kernel_seconds
from capplan.capacity.step_time.measured_kernels import kernel_constants, refuse, with_kernels
from capplan.capacity.step_time.operations import Operation, attention_decode, attention_prefill, gemm
from capplan.errors import InputError

if TYPE_CHECKING:
    from capplan.report import Report

_HOLDS = 0.25  # of the ridge: within it the formula is said to hold
_WIDTHS = {"bf16": 2.0, "fp16": 2.0, "fp8": 1.0, "fp32": 4.0}
_HEAD = 128  # width of the heads of the attention probes
_USED = ("pass", "warn")


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbeValidate(Answer):
    """Formulas against what was measured: ridge and knee by dtype, the form of a decode step, kernels one by one."""

    question: ClassVar[str] = "probe-validate"

    device: str
    informational: bool  # measured on a CPU: no verdict about a GPU
    ridges: tuple[dict[str, Any], ...]  # by dtype [FLOP/byte]: by the datasheet, and measured
    knees: tuple[
        dict[str, Any], ...
    ]  # by dtype [rows]: by the formula, and where a step doubles or nears its best
    forms: tuple[
        dict[str, Any], ...
    ]  # of a decode step, by dtype: error of the pooled and of the summed form, as shares
    kernels: tuple[dict[str, Any], ...]  # by probe: error with shipped and with measured constants, as shares
    rows: tuple[dict[str, Any], ...]  # every row: measured and predicted [s]; one not covered says why

    def sweep(self) -> list[dict[str, Any]]:
        return [dict(row) for row in self.rows]

    def report(self) -> Report:
        from capplan.report import Report, Table

        tables: list[Table] = []
        cells: tuple[tuple[str, ...], ...]
        heads: tuple[str, ...]
        if self.ridges:
            cells = tuple(
                (
                    each["dtype"],
                    f"{each['spec']:,.4g}" if each["spec"] else "-",
                    f"{each['measured']:,.4g}",
                    f"{each['low']:,.4g} - {each['high']:,.4g}",
                    "" if each["holds"] is None else "holds" if each["holds"] else "does not hold",
                )
                for each in self.ridges
            )
            heads = ("FLOP/byte", "datasheet", "measured", "from - to", "within 25%")
            tables.append(Table(cells, heads, "Ridge: peak over bandwidth"))
        if self.knees:
            cells = tuple(
                (
                    each["dtype"],
                    *(_batch(each[key]) for key in ("formula", "measured_ridge", "batch_t2x", "batch_90pct")),
                    ""
                    if each["batch_90pct_over_formula"] is None
                    else f"{each['batch_90pct_over_formula']:.2f}x",
                )
                for each in self.knees
            )
            heads = (
                "rows",
                "formula",
                "by measured rates",
                "step doubles",
                "90% of the best rate",
                "that over formula",
            )
            tables.append(Table(cells, heads, "Knee: the batch that compute bounds"))
        if self.forms:
            cells = tuple(
                (
                    each["dtype"],
                    f"{each['points']:,}",
                    _percent(each["pooled"]),
                    _percent(each["summed"]),
                    each["fits"],
                )
                for each in self.forms
            )
            heads = ("decode step", "points", "pooled off by", "summed off by", "fits better")
            tables.append(Table(cells, heads, "Form: one pool of work, or a sum over operations"))
        if self.kernels:
            cells = tuple(
                (
                    each["probe"],
                    f"{each['covered']:,} of {each['rows']:,}",
                    _percent(each["shipped_median"]),
                    _percent(each["shipped_p90"]),
                    _percent(each["measured_median"]),
                    _percent(each["measured_p90"]),
                )
                for each in self.kernels
            )
            heads = ("kernels", "covered", "shipped off by", "p90", "measured off by", "p90")
            tables.append(Table(cells, heads, "Times by capplan's formulas"))
        return Report(self._headline(), tuple(tables), self.assumptions, self.warnings)

    def _headline(self) -> str:
        if self.informational:
            return f"{self.device}: measured on a CPU, for information"
        told = [
            f"{each['dtype']} ridge {each['measured']:,.0f} FLOP/byte"
            + (f", {each['spec']:,.0f} by the datasheet" if each["spec"] else "")
            for each in self.ridges
        ]
        told += [f"a step is {each['fits']} in {each['dtype']}" for each in self.forms]
        return f"{self.device}: {'; '.join(told) or 'nothing here to hold a formula against'}"


def _batch(rows: float | None) -> str:
    return "-" if rows is None else f"{rows:,.0f}"


def _percent(share: float | None) -> str:
    return "-" if share is None else f"{100 * share:.3g}%"


def probe_validate(path: str | PathLike[str]) -> ProbeValidate:
    """The formulas of capacity against a calibration file of the probes.

    Raises DataFileError for a file that can't be read, was changed, or is not of the probes.
    """
    found = read_probes(path)
    calibration, work = kernels_of(found, Path(path).name), Working()
    informational = found["device"]["kind"] == "cpu"
    if informational:
        work.warn("measured on a CPU: its figures say nothing of a GPU")
    spec, leaves = found["spec"], calibration.leaves
    chips = _chips(calibration, work)
    rows = tuple(_rows(found["results"], chips))
    return ProbeValidate(
        inputs={"file": str(path), "profile": found["profile"], "gpu": calibration.gpu},
        device=found["device"]["name"],
        informational=informational,
        ridges=tuple(_ridges(leaves, spec, work)),
        knees=tuple(_knees(leaves, spec, work)),
        forms=tuple(_forms(found["results"], leaves)),
        kernels=tuple(_kernels(rows)),
        rows=rows,
        **work.shown(),
    )


def _dtypes(leaves: Mapping[str, Constant], start: str, name: str) -> list[str]:
    return [
        path.split(".")[1] for path in leaves if path.startswith(f"{start}.") and path.endswith(f".{name}")
    ]


def _spec_ridge(dtype: str, spec: Mapping[str, Any], work: Working) -> float | None:
    """Peak over bandwidth of the datasheet [FLOP/byte]; None without one."""
    peak, bandwidth = spec["peak_flops_dense"].get(dtype), spec["hbm_bps"]
    if not peak or not bandwidth:
        return None
    return work(ridge_point, f"{dtype}, datasheet", peak_flops=peak, bandwidth=bandwidth)


def _ridges(
    leaves: Mapping[str, Constant], spec: Mapping[str, Any], work: Working
) -> Iterator[dict[str, Any]]:
    """knee.*.ridge is a batch: 2 / bytes of a weight FLOP/byte each."""
    for dtype in _dtypes(leaves, "knee", "ridge"):
        leaf, each = leaves[f"knee.{dtype}.ridge"], 2.0 / _WIDTHS.get(dtype, 2.0)
        by_spec = _spec_ridge(dtype, spec, work)
        measured = each * leaf.value
        yield {
            "dtype": dtype,
            "spec": by_spec,
            "measured": measured,
            "low": each * leaf.low,
            "high": each * leaf.high,
            "holds": abs(measured / by_spec - 1) <= _HOLDS if by_spec else None,
        }


def _knees(
    leaves: Mapping[str, Constant], spec: Mapping[str, Any], work: Working
) -> Iterator[dict[str, Any]]:
    for dtype in _dtypes(leaves, "knee", "ridge"):
        at = {name: leaves.get(f"knee.{dtype}.{name}") for name in ("ridge", "batch_t2x", "batch_90pct")}
        ridge, width = _spec_ridge(dtype, spec, Working()), _WIDTHS.get(dtype, 2.0)
        formula = None
        if ridge is not None:
            formula = work(weight_only_batch_to_ridge, dtype, ridge=ridge, bytes_per_parameter=width)
        nearly = at["batch_90pct"]
        yield {
            "dtype": dtype,
            "formula": formula,
            "measured_ridge": at["ridge"].value if at["ridge"] else None,
            "batch_t2x": at["batch_t2x"].value if at["batch_t2x"] else None,
            "batch_90pct": nearly.value if nearly else None,
            "batch_90pct_over_formula": nearly.value / formula if nearly and formula else None,
        }


def _forms(rows: Sequence[Mapping[str, Any]], leaves: Mapping[str, Constant]) -> Iterator[dict[str, Any]]:
    """The decode step of the suite by both forms, with rates that other probes measured, none fitted to these rows."""
    own = [row for row in rows if row["probe"] == "decoder_step" and row["status"] in _USED and row["time_s"]]
    for dtype in sorted({row["case"]["dtype"] for row in own}):
        peak, bandwidth = (
            _first(leaves, (f"gemm.{dtype}.plain.flops_typ", f"knee.{dtype}.peak")),
            _first(leaves, (f"knee.{dtype}.bandwidth", f"gemm.{dtype}.plain.bandwidth", "hbm.read_bps")),
        )
        if peak is None or bandwidth is None:
            continue
        power = _first(leaves, (f"knee.{dtype}.power", f"gemm.{dtype}.plain.power")) or 2.0
        read = max(
            (
                leaf.value
                for path, leaf in leaves.items()
                if path.startswith("attn_decode.") and path.endswith(f".{dtype}.rate")
            ),
            default=bandwidth,
        )
        pooled, summed = [], []
        mine = [row for row in own if row["case"]["dtype"] == dtype]
        for row in mine:
            flops, size, time = row["work"]["flops"], row["work"]["bytes"], row["time_s"]["median"]
            weights = min(size, flops / (2 * row["case"]["batch"]) * _WIDTHS[dtype])
            whole = flops / attainable_flops(flops / size, peak, bandwidth)
            parts = operation_time(0.0, flops / peak, weights / bandwidth, power) + (size - weights) / read
            pooled.append(abs(whole / time - 1))
            summed.append(abs(parts / time - 1))
        yield {
            "dtype": dtype,
            "points": len(mine),
            "pooled": median(pooled),
            "summed": median(summed),
            "fits": "summed" if median(summed) <= median(pooled) else "pooled",
        }


def _first(leaves: Mapping[str, Constant], paths: Sequence[str]) -> float | None:
    return next((leaves[path].value for path in paths if path in leaves), None)


# --- kernels one by one ---------------------------------------------------------------------------------------


def _chips(calibration: Calibration, work: Working) -> tuple[Chip, Chip] | None:
    """The chip with the shipped constants and with the measured ones; None where the registry has no such card."""
    if calibration.gpu is None or calibration.device["kind"] == "cpu":
        return None
    card = asked.as_gpu(calibration.gpu)
    try:
        refuse(calibration, card)
    except InputError as error:
        work.warn(str(error))
        return None
    chip = chip_of(card)
    return chip, with_kernels(chip, kernel_constants(calibration, chip))


def _product(case: Mapping[str, Any]) -> Operation | str:
    dtype = {"fp16": "bf16", "fp4": "nvfp4"}.get(case["dtype"], case["dtype"])
    dtype = "fp8_block" if case.get("recipe") == "block" else dtype
    return gemm("product", float(case["m"]), float(case["n"]), float(case["k"]), dtype)


def _decode(case: Mapping[str, Any]) -> Operation | str:
    if case["kernel"] in ("gather", "two_bmm"):
        return "no kernel that an engine runs"
    heads, kv_heads = float(case["heads"]), float(case["kv_heads"])
    kv = "fp8" if case["kv_dtype"].startswith("fp8") else case["kv_dtype"]
    lengths = float(case["batch"]), float(case["length"])
    return attention_decode(
        "decode", *lengths, heads=heads, kv_heads=kv_heads, head_dim=_HEAD, v_head_dim=_HEAD, kv=kv
    )


def _prefill(case: Mapping[str, Any]) -> Operation | str:
    queries, keys = float(case["queries"]), float(case["keys"])
    pairs = queries * (keys - queries) + queries * (queries + 1) / 2
    heads, kv_heads = float(case["heads"]), float(case["kv_heads"])
    return attention_prefill(
        "prefill",
        1.0,
        queries,
        pairs,
        heads=heads,
        kv_heads=kv_heads,
        head_dim=_HEAD,
        v_head_dim=_HEAD,
        tokens=keys,
        kv="bf16",
    )


_OPERATIONS: dict[str, Callable[[Mapping[str, Any]], Operation | str]] = {
    "gemm": _product,
    "fp8_gemm": _product,
    "weight_streaming": _product,
    "attn_decode": _decode,
    "attn_prefill": _prefill,
}


def _rows(results: Sequence[Mapping[str, Any]], chips: tuple[Chip, Chip] | None) -> Iterator[dict[str, Any]]:
    """Every row: covered, or not and why."""
    for row in results:
        told: dict[str, Any] = {
            "probe": row["probe"],
            "case": ", ".join(f"{name} {value}" for name, value in row["case"].items()),
            "covered": False,
            "reason": None,
            "measured_s": (row["time_s"] or {}).get("median"),
            "shipped_s": None,
            "fitted_s": None,
        }
        operation = _operation(row, chips)
        if isinstance(operation, str):
            told["reason"] = operation
        else:
            assert chips is not None
            shipped, measured = (float(kernel_seconds(operation, chip)) for chip in chips)
            told |= {"covered": True, "shipped_s": shipped, "fitted_s": measured}
        yield told


def _operation(row: Mapping[str, Any], chips: tuple[Chip, Chip] | None) -> Operation | str:
    """What a row ran, or why no formula predicts it."""
    if row["status"] not in _USED or not row["time_s"]:
        return f"{row['status']}: {row['reason']}"
    if chips is None:
        return "no constants of such a device"
    if row["probe"] not in _OPERATIONS:
        return "no kernel of a pass"
    try:
        return _OPERATIONS[row["probe"]](row["case"])
    except (KeyError, TypeError, ValueError) as error:
        return f"its case can't be read: {error!r}"


def _kernels(rows: Sequence[Mapping[str, Any]]) -> Iterator[dict[str, Any]]:
    for probe in dict.fromkeys(row["probe"] for row in rows if row["covered"]):
        own = [row for row in rows if row["probe"] == probe]
        covered = [row for row in own if row["covered"]]
        errors: dict[str, float] = {}
        for name, key in (("shipped", "shipped_s"), ("measured", "fitted_s")):
            off = sorted(abs(row[key] / row["measured_s"] - 1) for row in covered)
            errors |= {
                f"{name}_median": median(off),
                f"{name}_p90": off[min(len(off) - 1, int(0.9 * len(off)))],
            }
        yield {"probe": probe, "rows": len(own), "covered": len(covered), **errors}
