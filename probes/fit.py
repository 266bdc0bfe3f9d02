"""Fits of the two forms that kernels' times have: a start and a rate, and a roofline with a rounded corner."""

from __future__ import annotations

from collections.abc import Sequence
from math import exp, inf, log
from statistics import median, quantiles
from typing import NamedTuple

from capplan.probes.probe import Row, Value

_POWERS = (1.0, 8.0)  # that join computing and moving: one after the other, to nearly the maximum


class Line(NamedTuple):
    """t = start + size / rate"""

    start: float  # s
    rate: float  # of the size, a second

    def __call__(self, size: float) -> float:
        return self.start + size / self.rate


class Roof(NamedTuple):
    """t = start + ((flops / peak)^p + (bytes / bandwidth)^p)^(1/p)"""

    start: float  # s
    peak: float  # FLOP/s
    bandwidth: float  # byte/s
    power: float

    def __call__(self, flops: float, size: float) -> float:
        longer, shorter = sorted((flops / self.peak, size / self.bandwidth), reverse=True)
        joined: float = (1.0 + (shorter / longer) ** self.power) ** (1.0 / self.power)
        return self.start + longer * joined


def line(sizes: Sequence[float], times: Sequence[float]) -> Line:
    """The start and the rate that give the least mean relative error, squared. Needs two sizes that differ."""
    # least squares of start / t + (1 / rate) * size / t = 1
    a = [1.0 / t for t in times]
    b = [size / t for size, t in zip(sizes, times, strict=True)]
    aa, ab, bb = (sum(x * y for x, y in zip(u, v, strict=True)) for u, v in ((a, a), (a, b), (b, b)))
    under = aa * bb - ab * ab
    if under <= 1e-12 * aa * bb:
        raise ValueError("a line needs two sizes that differ")
    start, slope = (sum(a) * bb - sum(b) * ab) / under, (sum(b) * aa - sum(a) * ab) / under
    if start < 0 or slope <= 0:  # no start to be seen: the rate alone
        return Line(0.0, bb / sum(b))
    return Line(start, 1.0 / slope)


def roof(flops: Sequence[float], sizes: Sequence[float], times: Sequence[float]) -> Roof:
    """The roofline of least mean absolute error of the logarithm, by coordinate descent from the best that was seen."""
    rows = list(zip(flops, sizes, times, strict=True))
    at = [
        log(min(times) / 4),
        log(max(f / t for f, _, t in rows)),
        log(max(b / t for _, b, t in rows)),
        log(2.0),
    ]

    def off(where: Sequence[float]) -> float:
        start, peak, bandwidth, power = map(exp, where)
        if not _POWERS[0] <= power <= _POWERS[1]:
            return inf
        found = Roof(start, peak, bandwidth, power)
        return sum(abs(log(found(f, b) / t)) for f, b, t in rows)

    step, best = 0.5, off(at)
    while step > 1e-3:
        moved = False
        for i in range(4):
            for way in (step, -step):
                tried = [*at[:i], at[i] + way, *at[i + 1 :]]
                if (found := off(tried)) < best:
                    at, best, moved = tried, found, True
        step = step if moved else step / 2
    return Roof(*map(exp, at))


def value(found: Sequence[float], unit: str, rows: Sequence[Row], at: float | None = None) -> Value:
    """The median of what rows say, or `at`, with the range that eight of ten lie in."""
    middle = median(found) if at is None else at
    lo, hi = (quantiles(found, n=10)[i] for i in (0, 8)) if len(found) > 3 else (min(found), max(found))
    return Value(middle, unit, min(lo, middle), max(hi, middle), len(found), [row["id"] for row in rows])


def of_row(row: Row, amount: float, unit: str) -> Value:
    """A rate of one row, with the spread of its samples: amount / time."""
    time = row["time_s"]
    return Value(
        amount / time["median"], unit, amount / time["p90"], amount / time["p10"], time["n"], [row["id"]]
    )


def crossing(at: Sequence[float], grown: Sequence[float], level: float) -> float | None:
    """Where something that grows first reaches a level, between the two that were tried; None where it never does."""
    for place, size in enumerate(grown):
        if size >= level:
            if not place:
                return float(at[0])
            part = (level - grown[place - 1]) / (size - grown[place - 1])
            return at[place - 1] + part * (at[place] - at[place - 1])
    return None
