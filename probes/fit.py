"""Fits of the two forms that kernels' times have: a start and a rate, and a roofline with a rounded corner."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import exp, inf, log
from statistics import median, quantiles
from typing import NamedTuple

from capplan.probes.probe import Row, Value

_ABOVE = 2.0  # of the best rate seen: a roof may lie so far above it where no row is bound by it
_NO_START = 1e-9  # s
_FLAT = 0.02  # of a time: what its size adds is not told from none below it
_SMALL = 1e-3  # of a logarithm: where a fit stops
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
    if start < 0 or slope * max(b) < _FLAT:  # no start, or no growth, to be seen: the rate alone
        return Line(0.0, bb / sum(b))
    return Line(start, 1.0 / slope)


def roof(flops: Sequence[float], sizes: Sequence[float], times: Sequence[float]) -> Roof:
    """The roofline of least mean absolute error of the logarithm: pattern search (Hooke and Jeeves 1961) from several
    starts, as a late start and a soft corner look much alike."""
    rows = list(zip(flops, sizes, times, strict=True))
    peak, bandwidth = max(f / t for f, _, t in rows), max(b / t for _, b, t in rows)

    def off(where: Sequence[float]) -> float:
        found = Roof(*map(exp, where))
        if not _POWERS[0] <= found.power <= _POWERS[1]:
            return inf
        if found.peak > _ABOVE * peak or found.bandwidth > _ABOVE * bandwidth:
            return inf
        return sum(abs(log(found(f, b) / t)) for f, b, t in rows)

    starts = [
        [log(min(times) * share), log(peak), log(bandwidth), log(power)]
        for share in (0.3, 0.01)
        for power in (1.5, 3.0, 6.0)
    ]
    best = min((_descend(off, start) for start in starts), key=off)
    found = Roof(*map(exp, best))
    return found if found.start > _NO_START else found._replace(start=0.0)


def _descend(off: Callable[[Sequence[float]], float], at: list[float]) -> list[float]:
    """The least of `off` near a point: steps along each axis, then again as far in the direction that helped."""
    step, best = 0.5, off(at)
    while step > _SMALL:
        before, tried = at, list(at)
        for i in range(len(at)):
            for way in (step, -step):
                moved = [*tried[:i], tried[i] + way, *tried[i + 1 :]]
                if (found := off(moved)) < best:
                    tried, best = moved, found
        if tried == before:
            step /= 2
            continue
        while True:
            further = [2 * new - old for new, old in zip(tried, before, strict=True)]
            before, at = tried, tried
            if (found := off(further)) >= best:
                break
            tried, best = further, found
    return at


def value(found: Sequence[float], unit: str, rows: Sequence[Row], at: float | None = None) -> Value:
    """The median of what rows say, or `at`, with the range that eight of ten lie in: of the rows, and of the samples of
    a usual row."""
    middle = median(found) if at is None else at
    tenths = quantiles(found, n=10, method="inclusive") if len(found) > 3 else [min(found), max(found)]
    times = [row["time_s"] for row in rows if row.get("time_s")]
    less, more = (
        median([abs(time[key] / time["median"] - 1.0) for time in times if time["median"]] or [0.0])
        for key in ("p10", "p90")
    )
    lo, hi = min(tenths[0], middle * (1.0 - less)), max(tenths[-1], middle * (1.0 + more))
    return Value(middle, unit, lo, hi, len(found), [row["id"] for row in rows])


def of_roof(path: str, found: Roof, off: Sequence[float], rows: Sequence[Row]) -> dict[str, Value]:
    """The constants of a roofline under a path; each as far off as the fit is: predicted over measured."""
    told = (
        ("peak", "FLOP/s", found.peak),
        ("bandwidth", "byte/s", found.bandwidth),
        ("t0", "s", found.start),
        ("power", "1", found.power),
    )
    return {f"{path}.{name}": value([at * each for each in off], unit, rows, at) for name, unit, at in told}


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
