"""Service level objectives, whether a run meets them, and the highest rate at which one does."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import inf, isfinite, sqrt
from typing import NamedTuple

import numpy as np

from capplan.capacity.simulator import metrics
from capplan.capacity.simulator.requests import Outcome
from capplan.errors import InputError

_FILLS = 2  # times of a request, in which a service fills
KINDS = ("ttft", "wait", "tpot", "itl", "e2e")


class Bound(NamedTuple):
    """So large a share of the requests (for itl: of the tokens) takes at most so long."""

    kind: str  # of KINDS
    share: float
    seconds: float

    @property
    def name(self) -> str:
        """As an option spells it: ttft-p95."""
        return f"{self.kind}-p{100 * self.share:.6g}".replace(".", "")


class Joint(NamedTuple):
    """So large a share of the requests meets both bounds, each in the same request (DistServe's attainment)."""

    ttft: float  # [second]
    tpot: float
    share: float


@dataclass(frozen=True, slots=True)
class Slo:
    """Bounds that all have to hold. Raises InputError for none, and for a bound that is none."""

    bounds: tuple[Bound, ...] = ()
    joint: Joint | None = None

    def __post_init__(self) -> None:
        if not self.bounds and self.joint is None:
            raise InputError("no SLO given; name a bound, such as --ttft-p95 500ms --tpot-p95 25ms")
        for bound in self.bounds:
            if bound.kind not in KINDS:
                raise InputError(f"unknown latency {bound.kind!r}; one of {', '.join(KINDS)}")
            if not 0 < bound.share < 1:
                raise InputError(f"percentile {100 * bound.share:g} is not between 0 and 100")
            if not 0 < bound.seconds < inf:
                raise InputError(f"a bound of {bound.seconds!r} s is not a time above 0")
        if self.joint is not None:
            if not 0 < self.joint.share < 1:
                raise InputError(f"attainment {self.joint.share!r} is not a share between 0 and 1")
            if not (self.joint.ttft > 0 and self.joint.tpot > 0):
                raise InputError("bounds of a joint attainment are times above 0")

    @property
    def ttft(self) -> float:
        """The tightest bound of TTFT [second]; inf where there is none."""
        own = [bound.seconds for bound in self.bounds if bound.kind == "ttft"]
        return min([*own, self.joint.ttft] if self.joint else own, default=inf)

    @property
    def tpot(self) -> float:
        """The tightest bound of TPOT [second]; inf where there is none."""
        own = [bound.seconds for bound in self.bounds if bound.kind == "tpot"]
        return min([*own, self.joint.tpot] if self.joint else own, default=inf)


class Held(NamedTuple):
    """A bound and what became of it."""

    name: str
    bound: float
    value: float  # seconds, or a share where the bound is an attainment
    low: float  # 95% confidence
    high: float | None
    met: bool


@dataclass(frozen=True, slots=True)
class Verdict:
    """A run against an SLO."""

    met: bool
    held: tuple[Held, ...]
    saturated: bool
    too_short: bool  # all came before a service could have filled: what they met says nothing of a rate
    attainment: metrics.Attainment  # with the tightest bounds of TTFT and TPOT

    @property
    def broken(self) -> tuple[str, ...]:
        """The bounds that did not hold; `saturation` where the queue grew without end."""
        names = [each.name for each in self.held if not each.met]
        names += ["saturation"] if self.saturated else []
        return (*names, "too few requests") if self.too_short else tuple(names)


def verdict(outcome: Outcome, slo: Slo) -> Verdict:
    """Whether the requests of a run were inside the bounds. A request that was refused or given up misses all."""
    served = outcome.served
    unserved = 1 - float(served.mean())
    times = {
        "ttft": metrics.ttft(outcome)[served],
        "wait": (outcome.first_scheduled - outcome.arrival)[served],  # Sarathi's scheduling delay
        "e2e": (outcome.finished - outcome.arrival)[served],
    }
    per_token = metrics.tpot(outcome)[served]
    times["tpot"] = per_token[np.isfinite(per_token)]
    held = []
    for bound in slo.bounds:
        if bound.kind == "itl":
            found = metrics.of_gaps(outcome.gaps, (bound.share,))
        else:
            found = metrics.of(times[bound.kind], (bound.share,))
        if found is None:  # nothing was served, or every answer has one token
            met = bound.kind in ("tpot", "itl") and unserved == 0
            held.append(Held(bound.name, bound.seconds, 0.0 if met else inf, 0.0, None, met))
            continue
        one = found.percentiles[0]
        met = one.value <= bound.seconds and unserved <= 1 - bound.share
        held.append(Held(bound.name, bound.seconds, one.value, one.low, one.high, met))
    if slo.joint is not None:
        inside = metrics.inside(outcome, slo.joint.ttft, slo.joint.tpot)
        share, off = float(inside.mean()), metrics.half_width(inside)
        name = f"attainment-{100 * slo.joint.share:g}"
        low, high = max(0.0, share - off), min(1.0, share + off)
        held.append(Held(name, slo.joint.share, share, low, high, share >= slo.joint.share))
    saturated = metrics.backlog_growth(outcome) is not None
    too_short = False
    if outcome.workload.concurrency is None and served.any():
        span = float(outcome.arrival[-1] - outcome.arrival[0])
        too_short = span < _FILLS * float(np.median(times["e2e"]))
    return Verdict(
        met=all(each.met for each in held) and not saturated and not too_short,
        held=tuple(held),
        saturated=saturated,
        too_short=too_short,
        attainment=metrics.attainment(outcome, slo.ttft, slo.tpot),
    )


class Point(NamedTuple):
    """A rate that was tried."""

    rate: float  # [request/second]
    outcome: Outcome
    verdict: Verdict


def highest_rate(
    run: Callable[[float], Outcome],
    slo: Slo,
    guess: float,
    *,
    precision: float = 0.02,
    most: int = 12,
    tried: Callable[[Point], None] | None = None,
) -> tuple[float, list[Point]]:
    """The highest rate at which a run meets the SLO, by bisection, and every point that was tried, by rate.

    run: the outcome at a rate, always of the same requests, so that whether they are in time hardly depends on
    anything but the rate. guess: where to begin [request/second]. precision: relative width at which to end.
    most: points at the most. 0.0 where the SLO is not met even at a 1,000th of the guess.

    Raises InputError for a guess that is not above 0.
    """
    if not (isfinite(guess) and guess > 0):
        raise InputError(f"rate {guess!r} is not a number of requests a second above 0")
    points: list[Point] = []

    def meets(rate: float) -> bool:
        outcome = run(rate)
        point = Point(rate, outcome, verdict(outcome, slo))
        points.append(point)
        if tried is not None:
            tried(point)
        return point.verdict.met

    low, high, rate, step = 0.0, inf, guess, 1.3
    while len(points) < most:
        if meets(rate):
            low = rate
        else:
            high = rate
        if low and high < inf:
            if high / low <= 1 + precision:
                break
            rate = sqrt(low * high)
        elif low:
            rate, step = low * step, step * 1.5
        else:
            rate, step = high / step, step * 1.5
            if rate < guess / 1000:
                break
    return low, sorted(points, key=lambda point: point.rate)
