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
    "imbalance": (0.0, 1.5, 0.1),
    "routing": (0.6, 1.0, 0.03),
}
SHARED = ("imbalance", "routing")
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


def fit(
    known: Sequence[Known], engine: str, start: Mapping[str, float], *, shared: bool = True
) -> dict[str, float]:
    """Gauss-Newton within the bounds, on errors that count less the larger they are (Geman-McClure's weights)."""
    mixed = bool(start["mixed"])
    names = [
        name for name in BOUNDS if not ((name == "together" and mixed) or (name in SHARED and not shared))
    ]
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


def lost(known: Mapping[str, Sequence[Known]], constants: Mapping[str, Mapping[str, float]]) -> float:
    """What the fits make small, over all engines."""
    every = np.concatenate([_residuals(rows_, name, constants[name]) for name, rows_ in known.items()])
    return float(np.sum((every / _WIDTH) ** 2 / (1 + (every / _WIDTH) ** 2)))


def fit_all(
    known: Mapping[str, Sequence[Known]], constants: Mapping[str, Mapping[str, float]]
) -> dict[str, dict[str, float]]:
    """Every engine's own constants and the shared ones in turn, until neither moves."""
    best = {name: dict(each) for name, each in constants.items()}
    for _ in range(3):
        best = {name: fit(known[name], name, each, shared=False) for name, each in best.items()}
        for name in SHARED:
            low, high, unit = BOUNDS[name]
            lowest, step = lost(known, best), float(unit)
            while step > unit / 8:
                for sign in (1, -1):
                    value = min(max(next(iter(best.values()))[name] + sign * step, low), high)
                    tried = {engine: {**each, name: value} for engine, each in best.items()}
                    if (found := lost(known, tried)) < lowest:
                        best, lowest = tried, found
                        break
                else:
                    step /= 2
    return best


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


def _written(
    text: str,
    constants: Mapping[str, Mapping[str, float]],
    known: Mapping[str, Sequence[Known]],
    fitted: Mapping[str, list[float]],
    left: Mapping[str, list[float]],
) -> str:
    """The table with these constants in place of those it has, and what they were fitted to."""
    lines, section = [], ""
    for line in text.partition("\n[fit")[0].rstrip().splitlines():
        section = line[1:-1] if line.startswith("[") else section
        name, _, rest = line.partition(" = ")
        if name in BOUNDS and section:
            own = constants[section if section in constants else ENGINES[0]]
            comment = rest.partition("  #")[2]
            line = f"{name} = {own[name]:.4g}" + (f"  #{comment}" if comment else "")
        lines.append(line)
    lines += ["", "# median and mean of |predicted / measured - 1|, over all engines", "[fit.error]"]
    for title, found in (("in_fit", fitted), ("left_out", left)):
        parts = (
            f"{name} = {{ rows = {each['rows']}, median = {each['median']:.3f}, mean = {each['mean']:.3f} }}"
            for name, each in score(found).items()
        )
        if told := ", ".join(parts):
            lines.append(f"{title} = {{ {told} }}")
    lines += ["", "# model and GPU of the rows that constants were fitted to", "[fit.families]"]
    for engine, found_rows in known.items():
        pairs = sorted({row.family for row in found_rows})
        lines += [f"{engine} = [", *(f'  ["{model}", "{gpu}"],' for model, gpu in pairs), "]"]
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
    known = rows(path)
    start = {name: {**table["shared"], **table[name]} for name in ENGINES}
    constants = fit_all(known, start)
    pooled: dict[str, list[float]] = {name: [] for name in SCORED}
    pooled_out: dict[str, list[float]] = {name: [] for name in SCORED}
    for engine, own in constants.items():
        print(engine, ", ".join(f"{name} {own[name]:.4g}" for name in BOUNDS if name in own))
        found = errors(known[engine], engine, own)
        print(_told("fitted", score(found)))
        for name, each in found.items():
            pooled[name] += each
        if asked.left_out:
            found = left_out(known[engine], engine, start[engine])
            print(_told("left out", score(found)), flush=True)
            for name, each in found.items():
                pooled_out[name] += each
    print(_told("all engines, fitted", score(pooled)))
    if asked.left_out:
        print(_told("all engines, left out", score(pooled_out)))
    if asked.write:
        TABLE.write_text(_written(text, constants, known, pooled, pooled_out), "utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
