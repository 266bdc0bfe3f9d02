"""Traces of requests, read from CSV or JSON lines: when each came, its lengths, the blocks of its prefix.

The columns of Azure's, Mooncake's, BurstGPT's and Vidur's files are known by their names, under any of their spellings.
A row that can't be a request is skipped and counted by its reason; a file without requests is an error.
"""

from __future__ import annotations

import csv
import json
from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from math import isfinite
from os import PathLike
from typing import Any

import numpy as np
from numpy.typing import NDArray

from capplan.errors import DataFileError
from capplan.units import counted

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

MOST_ROWS = 1_000_000
LONGEST = 10**9  # tokens of a request
BLOCK_TOKENS = 512  # of a prefix block in Mooncake's traces
_SECONDS = {"arrival_s": 1.0, "arrived_at": 1.0, "timestamp_s": 1.0, "timestamp_ms": 1e-3, "timestamp": None}
_INPUT = (
    *("input_tokens", "input_length", "contexttokens", "request tokens", "prompt_tokens", "isl"),
    "num_prefill_tokens",
)
_OUTPUT = (
    *("output_tokens", "output_length", "generatedtokens", "response tokens", "completion_tokens", "osl"),
    "num_decode_tokens",
)
_BLOCKS = ("block_ids", "hash_ids")
_IDS = ("request_id", "id")


@dataclass(frozen=True, slots=True)
class Trace:
    """Requests in the order in which they came; arrays of one length."""

    name: str
    arrival: Floats  # [second] since the first
    isl: Ints
    osl: Ints
    blocks: tuple[tuple[int, ...], ...] | None  # ids of the prompt's blocks, where the file has them
    skipped: Mapping[str, int]  # rows that are no requests, by reason
    timed: bool  # the file says when requests came
    out_of_order: int = 0  # rows that came before the one above them; they were sorted
    block_tokens: int | None = None  # of `blocks`; None: they are not of one size, or there are none

    def __len__(self) -> int:
        return len(self.isl)

    @property
    def rate(self) -> float:
        """Mean rate [request/second]."""
        return self.rate_of(len(self))

    def rate_of(self, first: int) -> float:
        """Mean rate of so many, the first [request/second]; of all where those came at one time."""
        for count in (min(first, len(self)), len(self)):
            span = float(self.arrival[count - 1])
            if span > 0:
                return (count - 1) / span
        return float("inf")

    def told(self) -> list[str]:
        """What a user has to know of the reading, a line each; empty for a clean file."""
        lines = [
            f"{self.name}: {counted(count, 'row')} skipped, {reason}"
            for reason, count in self.skipped.items()
        ]
        if self.out_of_order:
            lines.append(f"{self.name}: {counted(self.out_of_order, 'row')} out of order; sorted by time")
        if self.blocks is not None and self.block_tokens is None:
            lines.append(
                f"{self.name}: block ids do not divide the prompts into blocks of one size; each is taken for "
                f"{BLOCK_TOKENS} tokens"
            )
        return lines


def read_trace(path: str | PathLike[str], most: int = MOST_ROWS) -> Trace:
    """A trace from a file: JSON lines where it begins with a brace, else CSV under a line of column names.

    most: rows that are read; what lies behind them is counted as skipped.
    Timestamps are seconds, milliseconds where the column says `_ms` (and in Mooncake's own files), or dates.

    Raises DataFileError for a file that can't be read, has no such columns, or holds no request.
    """
    name = str(path)
    try:
        with open(path, encoding="utf-8-sig", errors="replace", newline="") as file:
            first = file.readline()
            if not first.strip():
                raise DataFileError(f"trace {name!r} is empty; a CSV or JSONL file of requests is accepted")
            file.seek(0)
            rows = _json_rows(file) if first.lstrip().startswith("{") else _csv_rows(file, name)
            return _trace(name, file, rows, most)
    except OSError as error:
        raise DataFileError(
            f"can't read the trace {name!r}: {(error.strerror or str(error)).lower()}"
        ) from error
    except (ValueError, csv.Error) as error:
        if isinstance(error, DataFileError):
            raise
        raise DataFileError(f"can't read the trace {name!r}: {str(error)[:200]}") from error


def _json_rows(file: Iterable[str]) -> Iterator[dict[str, Any] | None]:
    for line in file:
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except (ValueError, RecursionError):
            row = None
        yield {str(key).lower(): value for key, value in row.items()} if isinstance(row, dict) else None


def _csv_rows(file: Iterable[str], name: str) -> Iterator[dict[str, Any] | None]:
    reader = csv.reader(file)
    heads = [head.strip().lower() for head in next(reader)]
    if not set(heads) & {*_INPUT, *_OUTPUT}:
        raise DataFileError(
            f"trace {name!r} has the columns {', '.join(heads)[:200]!r}; {_wanted()} are accepted"
        )
    for row in reader:
        if row:
            yield dict(zip(heads, row, strict=False)) if len(row) >= len(heads) else None


def _wanted() -> str:
    return f"{_INPUT[0]} (or {_INPUT[2]}), {_OUTPUT[0]} (or {_OUTPUT[2]}) and perhaps arrival_s"


def _trace(name: str, file: Iterable[str], rows: Iterator[dict[str, Any] | None], most: int) -> Trace:
    arrival, isl, osl = array("d"), array("q"), array("q")
    blocks: list[tuple[int, ...]] = []
    skipped: dict[str, int] = {}
    seen: set[Any] = set()
    columns: _Columns | None = None
    for row in rows:
        if row is None:
            reason: str | None = "not a row of this file's kind"
        elif columns is None and (columns := _columns(name, row)) is None:
            reason = "not a row of this file's kind"
        elif len(isl) >= most:
            skipped[f"past the first {most:,}"] = 1 + sum(1 for _ in file)  # lines, unread
            break
        else:
            assert columns is not None
            reason = _take(row, columns, arrival, isl, osl, blocks, seen)
        if reason is not None:
            skipped[reason] = skipped.get(reason, 0) + 1
    if not len(isl):
        why = "; ".join(f"{counted(count, 'row')} {reason}" for reason, count in skipped.items()) or "no rows"
        raise DataFileError(f"trace {name!r} holds no request: {why}")
    times = np.frombuffer(arrival, dtype=np.float64)
    order = np.argsort(times, kind="stable")
    times = times[order] - times[order[0]]
    assert columns is not None
    return Trace(
        name=name,
        arrival=times,
        isl=np.frombuffer(isl, dtype=np.int64)[order],
        osl=np.frombuffer(osl, dtype=np.int64)[order],
        blocks=tuple(blocks[i] for i in order) if columns.blocks else None,
        skipped=skipped,
        timed=columns.time is not None,
        block_tokens=_block_tokens(isl, blocks) if columns.blocks else None,
        out_of_order=int(np.sum(np.diff(np.frombuffer(arrival, dtype=np.float64)) < 0)),
    )


def _block_tokens(isl: Iterable[int], blocks: Iterable[Sequence[int]]) -> int | None:
    """The size of which every prompt has as many blocks as ids: Mooncake's where that is one, else a power of two."""
    least, most = 1, LONGEST
    for tokens, ids in zip(isl, blocks, strict=True):
        if ids:
            least = max(least, -(-tokens // len(ids)))
        if len(ids) > 1:
            most = min(most, -(-tokens // (len(ids) - 1)) - 1)
    sizes = (BLOCK_TOKENS, *(2**k for k in range(30)), least)
    return next((size for size in sizes if least <= size <= most), None)


@dataclass(frozen=True, slots=True)
class _Columns:
    time: str | None
    second: float | None  # of one unit of `time`; None for dates
    isl: str
    osl: str
    blocks: str | None
    id: str | None


def _columns(name: str, row: Mapping[str, Any]) -> _Columns | None:
    """Which columns a file has, from its first row. Raises DataFileError where lengths are missing."""

    def first(names: Iterable[str]) -> str | None:
        return next((each for each in names if each in row), None)

    isl, osl = first(_INPUT), first(_OUTPUT)
    if isl is None or osl is None:
        raise DataFileError(
            f"trace {name!r} has the columns {', '.join(row)[:200]!r}; {_wanted()} are accepted"
        )
    time = first(_SECONDS)
    second = _SECONDS[time] if time else 1.0
    if time == "timestamp":
        # Mooncake's are milliseconds, Azure's are dates, BurstGPT's are seconds
        second = 1e-3 if "hash_ids" in row else None if _number(row[time]) is None else 1.0
    return _Columns(time, second, isl, osl, first(_BLOCKS), first(_IDS))


def _take(
    row: Mapping[str, Any],
    columns: _Columns,
    arrival: array[float],
    isl: array[int],
    osl: array[int],
    blocks: list[tuple[int, ...]],
    seen: set[Any],
) -> str | None:
    """Append a row; why not, where it is no request."""
    when = 0.0
    if columns.time is not None:
        text = row.get(columns.time)
        found = _date(text) if columns.second is None else _number(text)
        if found is None:
            return "without a time that can be read"
        when = found * (columns.second or 1.0)
        if not isfinite(when):
            return "with a time that is not a finite number"
        if when < 0:
            return "with a negative time"
    lengths = []
    for side, name in (("input", columns.isl), ("output", columns.osl)):
        count = _number(row.get(name))
        if count is None or not isfinite(count) or count != int(count):
            return f"whose {side} tokens are not a whole number"
        if count < 0:
            return f"with negative {side} tokens"
        if count == 0:
            return f"without {side} tokens"
        if count > LONGEST:
            return f"with more than {LONGEST:,} {side} tokens"
        lengths.append(int(count))
    if columns.id is not None:
        key = row.get(columns.id)
        if isinstance(key, (str, int)) and key != "":
            if key in seen:
                return "with the id of a row above"
            seen.add(key)
    if columns.blocks is not None:
        ids = row.get(columns.blocks)
        if isinstance(ids, str):
            try:
                ids = json.loads(ids)
            except ValueError:
                ids = None
        if not isinstance(ids, list) or not all(isinstance(each, int) for each in ids):
            return "whose block ids are not a list of whole numbers"
        blocks.append(tuple(ids))
    arrival.append(when)
    isl.append(lengths[0])
    osl.append(lengths[1])
    return None


def _number(value: Any) -> float | None:
    if isinstance(value, bool) or value is None:
        return None
    try:
        return float(value)
    except (TypeError, ValueError, OverflowError):
        return None


def _date(value: Any) -> float | None:
    """Seconds of a date such as 2023-11-16 18:15:46.6805900."""
    try:
        head, dot, fraction = str(value).strip().partition(".")
        digits = "".join(c for c in fraction if c.isdigit())
        return datetime.fromisoformat(f"{head}+00:00").timestamp() + (float(f"0.{digits}") if dot else 0.0)
    except ValueError:
        return None


def prefix_share(trace: Trace) -> float:
    """Share of a trace's prompt blocks that an unbounded cache holds already: the leading ones that it has seen.

    Raises DataFileError for a trace without blocks.
    """
    if trace.blocks is None:
        raise DataFileError(f"trace {trace.name!r} has no block_ids")
    seen: set[int] = set()
    hits = total = 0
    for ids in trace.blocks:
        total += len(ids)
        for each in ids:
            if each not in seen:
                break
            hits += 1
        seen.update(ids)
    return hits / total
