"""Makes the constants of capacity/engines/memory_constants.toml anew from published start-ups, and says how far off they are.

    python tools/fit_memory_constants.py [engine_memory_logs.csv]

Every constant is the value with which the rows that its entry names come out as logged in its column: the median of each
model family's rows, and of the families the middle one, so that a sweep over one family does not decide. The errors are those of `capplan validate memory` with the constants as they are, as they would be made, and with
those made without any row of a row's own model family: what a model that nobody has logged may expect.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from fnmatch import fnmatchcase
from pathlib import Path
from statistics import median, median_low
from typing import Any, NamedTuple

from capplan.capacity.engines import defaults
from capplan.capacity.engines.budget import Budget, budget
from capplan.capacity.engines.deployment import Deployment
from capplan.capacity.engines.device import GIB, Device
from capplan.capacity.questions import memory_rows as read
from capplan.capacity.questions import validate_memory as scoring
from capplan.capacity.questions.measured import Row, read_table
from capplan.errors import CapplanError
from capplan.models.spec import Model

DIGITS = 3  # that a constant is stated in
# what logs say that has no column
_NOTED = {
    "non_torch": re.compile(r"non-torch(?: forward)? (\d+\.\d+) GiB"),
    "graph_estimate": re.compile(r"CUDA-graph estimate (\d+\.\d+) GiB"),
}
_STEP = 1.1  # by which a constant is moved to see what hangs on it

Values = dict[str, float]


class Start(NamedTuple):
    """A row, read."""

    row: Row
    model: Model
    device: Device
    flags: Deployment


def constants() -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = defaults.data()["constant"]
    return found


@contextmanager
def held(values: Values) -> Iterator[None]:
    """The constants at these values."""
    before = {row["id"]: row["value"] for row in constants()}
    _set(values)
    try:
        yield
    finally:
        _set(before)


def _set(values: Values) -> None:
    for row in constants():
        row["value"] = values.get(row["id"], row["value"])
    defaults.constant.cache_clear()


def starts(table: Iterable[Row]) -> dict[str, Start]:
    """The rows of models and GPUs that are on record, by case id."""
    found = {}
    for row in table:
        try:
            resolved = read.model(row)
            flags = read.deployment(row, resolved.quantization, [])
            found[row["case_id"]] = Start(row, resolved.model, read.device(row, []), flags)
        except CapplanError:
            continue
    return found


# --- one constant ---------------------------------------------------------------------------------------------


def logged(start: Start, column: str) -> float | None:
    """What the log says, in GiB or tokens."""
    if column in _NOTED:
        found = _NOTED[column].search(start.row.get("notes", ""))
        return float(found[1]) if found else None
    text = start.row[column]
    return float(text) if text else None


def predicted(start: Start, column: str, version: str | None) -> float:
    """The same, as capplan has it: of a pool from the logged weights, where there are some."""
    flags = replace(start.flags, version=version) if version else start.flags
    weights = logged(start, "m_weights_gib_per_gpu") if column != "m_weights_gib_per_gpu" else None
    rank = budget(start.model, start.device, flags, weights_bytes=weights * GIB if weights else None)
    return float(rank.kv_tokens or 0) if column == "m_kv_tokens" else _bytes(rank, column) / GIB


def _bytes(rank: Budget, column: str) -> float:
    return {
        "m_weights_gib_per_gpu": rank.weights,
        "m_kv_gib_per_gpu": rank.kv,
        "m_activation_peak_gib": rank.activation_peak,
        "non_torch": rank.non_torch,
        "graph_estimate": rank.graph_memory,
    }[column]


def estimates(entry: Mapping[str, Any], rows: Mapping[str, Start]) -> dict[str, float]:
    """The value that each row of a constant asks for; rows on which it has no bearing have none."""
    name, column, version = entry["id"], entry["column"], entry.get("read_as")
    now, found = float(entry["value"]), {}
    for case, start in rows.items():
        measured = logged(start, column)
        if measured is None or not any(fnmatchcase(case, pattern) for pattern in entry["rows"]):
            continue
        here = predicted(start, column, version)
        with held({name: now * _STEP}):
            slope = (predicted(start, column, version) - here) / (now * (_STEP - 1))
        if slope:
            found[case] = now + (measured - here) / slope
    return found


def fitted(rows: Mapping[str, Start]) -> Values:
    """Every constant from these rows, in the order of the file; one without a row has its entry's `without`."""
    made: Values = {}
    for entry in constants():
        with held(made):
            asked = estimates(entry, rows)
        made[entry["id"]] = rounded(_middle(asked, rows)) if asked else float(entry["without"])
    return made


def _middle(asked: Mapping[str, float], rows: Mapping[str, Start]) -> float:
    """Of the families' medians."""
    by_family: dict[str, list[float]] = {}
    for case, value in asked.items():
        by_family.setdefault(family(rows[case].model), []).append(value)
    return median_low(median(values) for values in by_family.values())


def rounded(value: float) -> float:
    return float(f"{value:.{DIGITS}g}")


# --- the errors -----------------------------------------------------------------------------------------------


def family(model: Model) -> str:
    """What a maker calls its models: qwen of qwen2, qwen3_moe and qwen3_5_moe."""
    return re.split(r"[^a-z]", model.family)[0]


def predictions(path: Path, given: Sequence[str]) -> list[dict[str, Any]]:
    found = scoring.validate_memory(path, given=given).rows
    return [
        row
        for row in found
        if row["covered"] and row["confidence"] == "stated" and all(row["measured"][name] for name in given)
    ]


def left_out(path: Path, rows: Mapping[str, Start], given: Sequence[str]) -> list[dict[str, Any]]:
    """Every row predicted with constants made without its own family."""
    of, found = {case: family(start.model) for case, start in rows.items()}, []
    for left in sorted(set(of.values())):
        made = fitted({case: start for case, start in rows.items() if of[case] != left})
        with held(made):
            found += [row for row in predictions(path, given) if of[row["case_id"]] == left]
    return found


def report(path: Path, rows: Mapping[str, Start], made: Values) -> Iterator[str]:
    for given, title in (((), "from inputs alone"), (("m_weights_gib_per_gpu",), "given the logged weights")):
        with held(made):
            anew = predictions(path, given)
        yield f"\n{title:34}  {'as stated':^17}  {'made anew':^17}  {'family left out':^17}"
        yield f"{'':28}{'rows':>6}" + 3 * f"  {'median':>8} {'p90':>8}"
        tables = [scores(found) for found in (predictions(path, given), anew, left_out(path, rows, given))]
        for name, found in tables[0].items():
            errors = (f"{each[name]['median']:>8.2%} {each[name]['p90']:>8.2%}" for each in tables)
            yield f"{name.removeprefix('m_'):28}{found['rows']:>6}  " + "  ".join(errors)


def scores(rows: Sequence[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    return scoring.column_scores(rows) | scoring.derived_scores(rows)


def main(arguments: Sequence[str]) -> None:
    folder = os.environ.get("CAPPLAN_MEASURED_DATA") or Path(__file__).parents[2] / "shared/data"
    path = Path(arguments[0]) if arguments else Path(folder) / "engine_memory_logs.csv"
    rows = starts(read_table(path, read.NEEDED))
    made = fitted(rows)
    print(f"{'constant':24}{'stated':>10}{'made':>10}  rows   lowest to highest")
    for entry in constants():
        with held({name: made[name] for name in made if name != entry["id"]}):
            asked = sorted(estimates(entry, rows).values())
        spread = f"{asked[0]:.3g} to {asked[-1]:.3g}" if asked else "-"
        mark = "" if made[entry["id"]] == entry["value"] else "   changes"
        print(
            f"{entry['id']:24}{entry['value']:>10g}{made[entry['id']]:>10g}{len(asked):>6}   {spread}{mark}"
        )
    for line in report(path, rows, made):
        print(line)


if __name__ == "__main__":
    main(sys.argv[1:])
