"""How far are the predicted kernels off? Measured ones, each predicted from its inputs alone."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from os import PathLike
from statistics import median, quantiles
from typing import TYPE_CHECKING, Any, ClassVar

from capplan.capacity.answer import Answer
from capplan.capacity.questions import kernel_rows as read
from capplan.capacity.questions.kernel_suspects import GROUPS, suspect
from capplan.capacity.questions.measured import Row, read_table
from capplan.capacity.step_time.kernel_time import bound, spread, terms
from capplan.errors import CapplanError

if TYPE_CHECKING:
    from capplan.report import Report, Table

_ASSUMED = (
    "what ran is read from the columns and the notes: the kernel and its framework, moe_tp and moe_ep, line rates",
    "a quantised product of an engine includes the pass that quantises its input, attention of TensorRT-LLM the one "
    + "that stores keys and values",
    "loads of experts that are said to follow a power law are drawn as the benchmark draws them, the busiest rank",
    "rows that have no time are scored by their tflops or gbps",
    "each op is scored with and without its suspects",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ValidateKernels(Answer):
    """Published times of kernels and collectives against capplan's, by op, GPU, dtype and generation."""

    question: ClassVar[str] = "validate-kernels"

    row_count: int
    covered_count: int
    by_op: dict[str, dict[str, Any]]  # op -> rows, covered, median, mean, p90, bias, in_range
    by_op_without_suspects: dict[str, dict[str, Any]]
    by_group: dict[str, dict[str, dict[str, Any]]]  # gpu, dtype, op_and_generation, kernel -> name -> scores
    suspects: tuple[dict[str, Any], ...]  # groups of rows that are scored apart, with the evidence
    not_covered: dict[str, int]  # reason -> rows
    worst: tuple[dict[str, Any], ...]  # of rows that are not suspects
    rows: tuple[dict[str, Any], ...]

    def sweep(self) -> list[dict[str, Any]]:
        return [
            {
                **{key: row[key] for key in ("case_id", "covered", "reason", "suspect")},
                **{key: row["inputs"].get(key) for key in ("op", "gpu", "dtype", "kernel", "bound")},
                **{f"predicted_{name}": row["predicted"].get(name) for name in read.MEASURED},
                **{f"measured_{name}": row["measured"].get(name) for name in read.MEASURED},
            }
            for row in self.rows
        ]

    def report(self) -> Report:
        from capplan.report import Report, Table

        uncovered = self.row_count - self.covered_count
        main = self.by_op.get("gemm") or next(iter(self.by_op.values()), None)
        headline = f"{self.row_count:,} kernels: {self.covered_count:,} covered" + (
            f"; {'gemm' if 'gemm' in self.by_op else next(iter(self.by_op))} off by "
            f"{_percent(main['median'])} in the median, {_percent(main['p90'])} at p90"
            if main
            else ""
        )
        tables = [
            _errors("op", self.by_op),
            _errors("without suspects", self.by_op_without_suspects),
            _errors("gpu", self.by_group["gpu"]),
            _errors("dtype", self.by_group["dtype"]),
            _errors("op and generation", self.by_group["op_and_generation"]),
        ]
        if self.suspects:
            told = tuple((each["name"], f"{each['rows']:,}", each["why"]) for each in self.suspects)
            tables.append(Table(told, ("suspect", "rows", "why"), words=True))
        if self.worst:
            rows = tuple(
                (each["case_id"], each["column"], f"{each['predicted']:.4g}", f"{each['measured']:.4g}")
                for each in self.worst[:5]
            )
            tables.append(Table(rows, ("furthest off", "column", "predicted", "measured")))
        if uncovered:
            reasons = sorted(self.not_covered.items(), key=lambda item: -item[1])
            why = tuple((f"{count:,}", reason) for reason, count in reasons[:8])
            tables.append(Table(why, title=f"Not covered: {uncovered:,} rows", words=True))
        return Report(headline, tuple(tables), self.assumptions, self.warnings)


def _errors(title: str, groups: dict[str, dict[str, Any]]) -> Table:
    from capplan.report import Table

    rows = tuple(
        (
            name,
            f"{found['rows']:,}",
            *(_percent(found[key]) for key in ("median", "mean", "p90")),
            f"{100 * found['bias']:+.3g}%",
            "-" if found["in_range"] is None else f"{100 * found['in_range']:.0f}%",
        )
        for name, found in groups.items()
    )
    return Table(rows, (title, "rows", "median", "mean", "p90", "bias", "in range"))


def _percent(share: float) -> str:
    return f"{100 * share:.3g}%"


def validate_kernels(path: str | PathLike[str]) -> ValidateKernels:
    """Predicts every measured kernel of a CSV from its inputs, and says how far off that is.

    path: a file with the columns of kernels_measured.csv: gpu, op, time_us, tflops, gbps, and those of a shape that the
    op has: m, n, k; batch, heads, kv_heads, head_dim, q_len, kv_len; bytes, world_size; num_experts, topk; dtype,
    kv_dtype; notes. What was measured is compared, never read for a prediction.

    Raises DataFileError for a file that can't be read or has not those columns.
    """
    table = read_table(path, read.NEEDED)
    rows = [_scored(row, number) for number, row in enumerate(table, start=1)]
    covered = [row for row in rows if row["covered"]]
    believed = [row for row in covered if row["suspect"] is None]
    reasons: dict[str, int] = {}
    for row in rows:
        if not row["covered"]:
            reasons[row["reason"]] = reasons.get(row["reason"], 0) + 1

    def by(name: str) -> Callable[[dict[str, Any]], str]:
        return lambda row: str(row["inputs"][name])

    return ValidateKernels(
        inputs={"path": str(path), "kind": "kernels"},
        row_count=len(rows),
        covered_count=len(covered),
        by_op=_grouped(covered, by("op")),
        by_op_without_suspects=_grouped(believed, by("op")),
        by_group={
            "gpu": _grouped(covered, by("gpu")),
            "dtype": _grouped(covered, by("dtype")),
            "op_and_generation": _grouped(
                covered, lambda row: f"{row['inputs']['op']}, {row['inputs']['generation']}"
            ),
            "kernel": _grouped(covered, by("kernel")),
        },
        suspects=tuple(_suspects(covered)),
        not_covered=reasons,
        worst=tuple(_worst(believed)),
        rows=tuple(rows),
        assumptions=_ASSUMED,
    )


# --- one row --------------------------------------------------------------------------------------------------


def _scored(row: Row, number: int) -> dict[str, Any]:
    """Prediction beside measurement; or why there is no prediction."""
    found: dict[str, Any] = {
        "case_id": row.get("case_id") or f"row {number}",
        "covered": False,
        "reason": None,
        "suspect": None,
        "inputs": {},
        "predicted": {},
        "measured": {},
    }
    try:
        measured = {name: read.number(row, name) for name in read.MEASURED}
        found["measured"] = measured
        case = read.case(row)
        predicted = read.predicted(case)
    except CapplanError as error:
        return {**found, "reason": str(error)}
    compared = next((name for name in read.MEASURED if measured[name] and name in predicted), None)
    if compared is None:
        return {**found, "reason": "no measured column that a prediction can be compared with"}
    last = case.operations[-1] if case.operations else None
    low, high = spread(last, case.chip) if last else (None, None)
    inputs = {
        "op": row["op"].strip().lower(),
        "gpu": case.chip.name,
        "generation": case.chip.generation,
        "dtype": (last.dtype if last and last.flops else "-"),
        "kernel": case.family,
        "bound": bound(last.kind, *terms(last, case.chip)[:3]) if last else "link",
        "compared": compared,
        "low": low,  # what eight of ten times lie in, as multiples of the predicted one
        "high": high,
        "assumptions": [*case.chip.assumptions, *case.assumptions],
    }
    return {
        **found,
        "covered": True,
        "suspect": suspect(row, case),
        "inputs": inputs,
        "predicted": {name: predicted.get(name) for name in read.MEASURED},
    }


# --- the score ------------------------------------------------------------------------------------------------


def _error(row: dict[str, Any]) -> float:
    """Relative error of the column that is compared, signed."""
    name = row["inputs"]["compared"]
    return float(row["predicted"][name] / row["measured"][name] - 1)


def _in_range(row: dict[str, Any]) -> bool:
    """Whether the measured time lies in the range that is stated with the predicted one."""
    low, high, name = row["inputs"]["low"], row["inputs"]["high"], row["inputs"]["compared"]
    times = row["measured"][name] / row["predicted"][name]
    times = times if name == "time_us" else 1 / times
    return bool(low <= times <= high)


def _scores(rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    errors = [_error(row) for row in rows]
    ranged = [_in_range(row) for row in rows if row["inputs"]["low"] is not None]  # copies have no range
    sizes = sorted(abs(error) for error in errors)
    return {
        "rows": len(sizes),
        "median": median(sizes),
        "mean": sum(sizes) / len(sizes),
        "p90": quantiles(sizes, n=10, method="inclusive")[-1] if len(sizes) > 1 else sizes[0],
        "bias": median(errors),
        "in_range": sum(ranged) / len(ranged) if ranged else None,
    }


def _grouped(
    rows: Iterable[dict[str, Any]], name: Callable[[dict[str, Any]], str]
) -> dict[str, dict[str, Any]]:
    groups: dict[str, list[dict[str, Any]]] = {}
    for row in rows:
        groups.setdefault(name(row), []).append(row)
    return {each: _scores(groups[each]) for each in sorted(groups)}


def _suspects(covered: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    found = _grouped([row for row in covered if row["suspect"]], lambda row: str(row["suspect"]))
    return [
        {"name": name, "why": GROUPS[name], "rows": scores["rows"], "bias": scores["bias"]}
        for name, scores in sorted(found.items(), key=lambda item: -int(item[1]["rows"]))
    ]


def _worst(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """The rows furthest off, as a ratio either way."""

    def distance(row: dict[str, Any]) -> float:
        times = _error(row) + 1
        return max(times, 1 / times)

    return [
        {
            "case_id": row["case_id"],
            "column": row["inputs"]["compared"],
            "predicted": row["predicted"][row["inputs"]["compared"]],
            "measured": row["measured"][row["inputs"]["compared"]],
            "relative_error": _error(row),
        }
        for row in sorted(rows, key=distance, reverse=True)[:10]
    ]
