"""Fits what engines add to their kernels (capacity/step_time/engine_steps.toml) to published benchmarks.

    python tools/fit_engine_steps.py [throughput_measured.csv] [--left-out] [--write]

Prints the constants of every engine and how far predictions are off: on the rows that they were fitted to and, with
--left-out, on every model and GPU in turn whose rows the fit did not see (kernels.toml stays as it is: its rows are of
kernels, none of these). The file is $CAPPLAN_MEASURED_DATA's, else ../shared/data's. --write puts constants, families
and errors into the table.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import numpy as np

from capplan.capacity.questions import throughput_rows as read
from capplan.capacity.questions.measured import read_table
from capplan.capacity.questions.throughput_rows import Case
from capplan.capacity.questions.validate_performance import SCORED, _compared, _suspected, predicted
from capplan.capacity.step_time.engine_steps import TABLE, engine_of
from capplan.errors import CapplanError
from capplan.registry import read_toml

ENGINES = ("vllm", "sglang", "tensorrt-llm")
# what is fitted: lowest, highest and typical step. Kernels of a pass are no faster than in a loop.
BOUNDS = {
    "step_us": (0, 10_000, 500),
    "layer_us": (0, 100, 5),
    "mixture_us": (0, 100, 5),
    "sequence_us": (0, 100, 5),
    "stage_us": (0, 10_000, 500),
    "launch": (0.2, 1.5, 0.1),
    "slow": (1.0, 1.6, 0.05),
    "links": (0.2, 3.0, 0.1),
    "prefill_layer_us": (0, 300, 20),
    "prefill_slow": (1.0, 2.0, 0.05),
    "request_us": (0, 100_000, 5_000),
    "queue": (0, 4, 0.2),
    "together": (0, 1, 0.1),
    "imbalance": (1.0, 2.5, 0.1),
}
WEIGHTS = {"tpot": 1.0, "ttft": 0.4, "throughput": 1.0}
_WIDTH = 0.1  # of log errors, beyond which a row counts less and less
_HOLD = 0.05  # how strongly a constant is held where it stands, in its typical steps
_ROUNDS = 15


class Known(NamedTuple):
    """A row, and what it is scored by."""

    case: Case
    columns: dict[str, tuple[str, float]]  # tpot, ttft, throughput -> its column, and what was measured
    family: tuple[str, str]  # model and GPU


def rows(path: Path) -> dict[str, list[Known]]:
    """By engine, the rows that are covered, less what is suspected of them."""
    found: dict[str, list[Known]] = {name: [] for name in ENGINES}
    for row in read_table(path, read.NEEDED):
        try:
            case = read.case(row)
            forecast = predicted(case)
        except CapplanError:
            continue
        measured = read.measured(row)
        _, doubted = _suspected(row, case, measured)
        scored = {"predicted": forecast, "measured": measured}
        pairs = {name: _compared(scored, name) for name in SCORED if name not in doubted}
        columns = {name: (pair[0], pair[2]) for name, pair in pairs.items() if pair}
        if columns:
            found[case.engine].append(Known(case, columns, (case.model, case.chip.name)))
    return found


def errors(known: Sequence[Known], engine: str, constants: Mapping[str, float]) -> dict[str, list[float]]:
    """log(predicted / measured) by column."""
    found: dict[str, list[float]] = {name: [] for name in SCORED}
    own = engine_of(engine, dict(constants))
    for row in known:
        forecast = predicted(row.case, own)
        for name, (column, truth) in row.columns.items():
            found[name].append(float(np.log((forecast[column] or 1e-9) / truth)))
    return found


def _residuals(known: Sequence[Known], engine: str, constants: Mapping[str, float]) -> Any:
    found = errors(known, engine, constants)
    return np.concatenate([WEIGHTS[name] * np.array(each) for name, each in found.items()])


def fit(known: Sequence[Known], engine: str, start: Mapping[str, float]) -> dict[str, float]:
    """Gauss-Newton within the bounds, on errors that count less the larger they are (Geman-McClure's weights)."""
    names = [name for name in BOUNDS if name in start]
    low, high, unit = (np.array([BOUNDS[name][i] for name in names], float) for i in range(3))
    at = np.clip(np.array([start[name] for name in names]), low, high)
    origin, damping = at.copy(), 1.0

    def residuals(values: Any) -> Any:
        return _residuals(known, engine, {**start, **dict(zip(names, map(float, values), strict=True))})

    def loss(values: Any, found: Any) -> float:
        square = (found / _WIDTH) ** 2
        return float(np.sum(square / (1 + square)) + np.sum((_HOLD * (values - origin) / unit) ** 2))

    found = residuals(at)
    best = loss(at, found)
    for _ in range(_ROUNDS):
        slopes = np.empty((len(found), len(at)))
        for i, step in enumerate(unit * 0.1):
            moved = at.copy()
            moved[i] += step if at[i] + step <= high[i] else -step
            slopes[:, i] = (residuals(moved) - found) / (moved[i] - at[i]) * unit[i]
        weights = 1 / (1 + (found / _WIDTH) ** 2) ** 2
        hold = _HOLD * _WIDTH
        normal = slopes.T @ (slopes * weights[:, None]) + hold**2 * np.eye(len(at))
        slope = slopes.T @ (weights * found) + hold**2 * (at - origin) / unit
        before = best
        for _ in range(6):
            free = ~(((at <= low) & (slope > 0)) | ((at >= high) & (slope < 0)))
            step = np.zeros(len(at))
            part = normal[np.ix_(free, free)]
            step[free] = np.linalg.solve(part + damping * np.diag(np.diag(part)), slope[free])
            tried = np.clip(at - step * unit, low, high)
            there = residuals(tried)
            if (value := loss(tried, there)) < best:
                at, found, best, damping = tried, there, value, damping / 3
                break
            damping *= 4
        if before - best < 1e-4 * before:
            break
    return {**start, **dict(zip(names, map(float, at), strict=True))}


def score(found: Mapping[str, Iterable[float]]) -> dict[str, dict[str, float]]:
    """Median, mean and bias of the errors by column."""
    scores = {}
    for name, logs in found.items():
        each = [float(np.expm1(log)) for log in logs]
        if each:
            sizes = [abs(error) for error in each]
            scores[name] = {
                "rows": len(each),
                "median": median(sizes),
                "mean": sum(sizes) / len(sizes),
                "bias": median(each),
            }
    return scores


def left_out(known: Sequence[Known], engine: str, start: Mapping[str, float]) -> dict[str, list[float]]:
    """The errors of every family's rows under constants that were fitted to the others."""
    found: dict[str, list[float]] = {name: [] for name in SCORED}
    for family in sorted({row.family for row in known}):
        others = [row for row in known if row.family != family]
        own = [row for row in known if row.family == family]
        if not others:
            continue
        for name, each in errors(own, engine, fit(others, engine, start)).items():
            found[name] += each
    return found


def _told(title: str, scores: Mapping[str, Mapping[str, float]]) -> str:
    parts = (
        f"{name} {found['rows']:.0f} rows, median {found['median']:.1%}, mean {found['mean']:.1%}, "
        f"bias {found['bias']:+.1%}"
        for name, found in scores.items()
    )
    return f"  {title}: " + "; ".join(parts)


def _written(text: str, engine: str, constants: Mapping[str, float]) -> str:
    """The table with an engine's constants in place of those it has."""
    lines, inside = [], False
    for line in text.splitlines():
        if line.startswith("["):
            inside = line == f"[{engine}]"
        name = line.split(" = ")[0]
        if inside and name in BOUNDS:
            comment = line.partition("  #")[2]
            line = f"{name} = {constants[name]:.4g}" + (f"  #{comment}" if comment else "")
        lines.append(line)
    return "\n".join(lines) + "\n"


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("file", nargs="?", type=Path)
    parser.add_argument("--left-out", action="store_true")
    parser.add_argument("--write", action="store_true")
    asked = parser.parse_args()
    folder = Path(os.environ.get("CAPPLAN_MEASURED_DATA", "../shared/data"))
    path = asked.file or folder / "throughput_measured.csv"
    if not path.exists():
        print(f"error: no file {str(path)!r}; name one, or set CAPPLAN_MEASURED_DATA", file=sys.stderr)
        return 2
    table, text = read_toml(TABLE), TABLE.read_text("utf-8")
    pooled: dict[str, list[float]] = {name: [] for name in SCORED}
    pooled_out: dict[str, list[float]] = {name: [] for name in SCORED}
    families: dict[str, list[list[str]]] = {}
    for engine, known in rows(path).items():
        start = {name: float(value) for name, value in table[engine].items() if not isinstance(value, str)}
        constants = fit(known, engine, start)
        print(engine, ", ".join(f"{name} {constants[name]:.4g}" for name in BOUNDS if name in constants))
        found = errors(known, engine, constants)
        print(_told("fitted", score(found)))
        for name, each in found.items():
            pooled[name] += each
        if asked.left_out:
            found = left_out(known, engine, constants)
            print(_told("left out", score(found)))
            for name, each in found.items():
                pooled_out[name] += each
        families[engine] = sorted(map(list, {row.family for row in known}))
        text = _written(text, engine, constants)
    print(_told("all engines, fitted", score(pooled)))
    if asked.left_out:
        print(_told("all engines, left out", score(pooled_out)))
    if asked.write:
        head = text.partition("[fit")[0].rstrip()
        lines = ["", "", "[fit.families]  # model and GPU of the rows that constants were fitted to"]
        for engine, pairs in families.items():
            lines += [f"{engine} = [", *(f'  ["{model}", "{gpu}"],' for model, gpu in pairs), "]"]
        TABLE.write_text(head + "\n".join(lines) + "\n", "utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
