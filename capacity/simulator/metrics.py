"""What is measured of a simulation, each figure under the name that its source gives it.

TTFT is split into the wait for a first pass, the prefill, and from its end to the token. TPOT is a figure of a request:
its time after the first token over the tokens after the first (DistServe). ITL, or TBT, is the time between two tokens,
and its percentiles are over all tokens of all requests (Sarathi-Serve): a stall that an answer's mean hides shows there.
A request of one token has no TPOT. Attainment is joint where one request has to meet all bounds, which is less
than what each bound reaches by itself.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import inf, sqrt
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from capplan.capacity.simulator.requests import Floats, Gaps, Outcome
from capplan.errors import InputError

SHARES = (0.5, 0.9, 0.95, 0.99, 0.999)
_BATCHES = 20
_T = 2.093  # 97.5% of Student's t with 19 degrees of freedom
_Z = 1.96
_GROWS = 0.03  # of the requests that come stay behind
_FEWEST = 100  # requests that say something of a trend


class Percentile(NamedTuple):
    """The value that so large a share stays at or below [second], and its 95% confidence interval."""

    share: float
    value: float
    low: float
    high: float | None  # None: the run is too short to bound it


class Latency(NamedTuple):
    """One kind of time, of all requests (or tokens) that have it [second]."""

    count: int  # type: ignore[assignment]  # over tuple.count
    mean: float
    percentiles: tuple[Percentile, ...]
    most: float

    def at(self, share: float) -> Percentile:
        """The percentile of a share that was asked for."""
        return next(each for each in self.percentiles if each.share == share)


class Attainment(NamedTuple):
    """Shares of all requests inside their bounds; one refused or given up is inside none."""

    joint: float
    ttft: float
    tpot: float


@dataclass(frozen=True, slots=True)
class Metrics:
    """A run in figures. Of a saturated service ttft, wait and e2e are None: they grow for as long as it lasts."""

    requests: int
    served: int
    refused: int
    timed_out: int
    preempted: int
    saturated: bool
    backlog_growth: float  # requests under way, gained a second
    request_rate: float  # that leave [request/second]
    input_rate: float  # [token/second]
    output_rate: float
    ttft: Latency | None
    wait: Latency | None
    prefill: Latency | None
    first_step: Latency | None  # from the end of the prefill; with pools, the cache's way lies in it
    tpot: Latency | None
    itl: Latency | None
    e2e: Latency | None
    busy: float  # share of the time that replicas were in a pass
    kv: float  # share of the blocks in use, on average over time


def summary(
    outcome: Outcome, *, replicas: int = 1, warm_up: float = 0.0, shares: tuple[float, ...] = SHARES
) -> Metrics:
    """The figures of a run; latencies without the first share `warm_up` of the requests.

    replicas: of the service, both pools together; `busy` is of all of them.

    Raises InputError for a warm-up outside 0 to 1, or a share that is not between 0 and 1.
    """
    if not 0 <= warm_up < 1:
        raise InputError(f"warm-up {warm_up!r} is not a share of the requests from 0 to below 1")
    work, totals = outcome.workload, outcome.totals
    counted = np.zeros(len(work), dtype=bool)
    counted[int(warm_up * len(work)) :] = True
    counted &= outcome.served

    def latency(times: Floats) -> Latency | None:
        return of(times[counted & np.isfinite(times)], shares)

    growth = backlog_growth(outcome)
    saturated = growth is not None
    seconds = totals.seconds or inf
    served = outcome.served
    return Metrics(
        requests=len(work),
        served=int(served.sum()),
        refused=int(outcome.refused.sum()),
        timed_out=int(outcome.timed_out.sum()),
        preempted=int((outcome.preemptions > 0).sum()),
        saturated=saturated,
        backlog_growth=growth or 0.0,
        request_rate=int(served.sum()) / seconds,
        input_rate=int(work.isl[served].sum()) / seconds,
        output_rate=int(work.osl[served].sum()) / seconds,
        ttft=None if saturated else latency(ttft(outcome)),
        wait=None if saturated else latency(outcome.first_scheduled - outcome.arrival),
        prefill=latency(outcome.prefill_done - outcome.first_scheduled),
        first_step=latency(outcome.first_token - outcome.prefill_done),
        tpot=latency(tpot(outcome)),
        itl=of_gaps(outcome.gaps, shares),
        e2e=None if saturated else latency(outcome.finished - outcome.arrival),
        busy=totals.busy / seconds / replicas,
        kv=totals.block_seconds / (totals.blocks * seconds) if totals.blocks else 0.0,
    )


def ttft(outcome: Outcome) -> Floats:
    """Time to first token of every request [second]; nan for one without."""
    return outcome.first_token - outcome.arrival


def tpot(outcome: Outcome) -> Floats:
    """Time per output token of every request, without the first [second]; nan for answers of one token."""
    later = outcome.workload.osl - 1
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.where(later > 0, (outcome.finished - outcome.first_token) / later, np.nan)


def inside(outcome: Outcome, ttft_bound: float = inf, tpot_bound: float = inf) -> NDArray[np.bool_]:
    """Whether each request meets both bounds [second]; an answer of one token meets any bound of TPOT."""
    per_token = tpot(outcome)
    later = (per_token <= tpot_bound) | np.isnan(per_token)
    return outcome.served & (ttft(outcome) <= ttft_bound) & later


def attainment(outcome: Outcome, ttft_bound: float = inf, tpot_bound: float = inf) -> Attainment:
    """Shares of all requests that meet the bounds [second]."""
    return Attainment(
        float(inside(outcome, ttft_bound, tpot_bound).mean()),
        float(inside(outcome, ttft_bound=ttft_bound).mean()),
        float(inside(outcome, tpot_bound=tpot_bound).mean()),
    )


# --- percentiles ------------------------------------------------------------------------------------------------


def of(values: Floats, shares: tuple[float, ...] = SHARES) -> Latency | None:
    """Mean and percentiles of times in the order in which their requests came; None of no times."""
    if not len(values):
        return None
    ordered = np.sort(values)
    found = tuple(_percentile(values, ordered, share) for share in shares)
    return Latency(len(values), float(values.mean()), found, float(ordered[-1]))


def _percentile(values: Floats, ordered: Floats, share: float) -> Percentile:
    if not 0 < share < 1:
        raise InputError(f"percentile {100 * share:g} is not between 0 and 100")
    value = float(np.quantile(ordered, share))
    off = half_width(values > value, 1 - share)
    low = float(np.quantile(ordered, max(0.0, share - off)))
    top = share + off
    high = float(np.quantile(ordered, top)) if top <= 1 - 1 / len(values) else None
    return Percentile(share, value, low, high)


def half_width(inside: NDArray[np.bool_], share: float | None = None) -> float:
    """Half of the 95% confidence interval of a share of requests, in their order.

    Requests of one queue are late together, so the binomial's width is too small: the means of batches of consecutive
    requests hold what neighbours have in common. Source: batch means, A. M. Law, Simulation Modeling and Analysis,
    chapter 9; the interval of a percentile from that of its share: R. S. Woodruff, JASA 47, 1952.
    """
    count = len(inside)
    mean = float(inside.mean()) if share is None else share
    width = _Z * sqrt(max(mean * (1 - mean), 0.25 / count) / count)
    if count < 10 * _BATCHES:
        return width
    means = inside[: count - count % _BATCHES].reshape(_BATCHES, -1).mean(axis=1)
    return max(width, _T * float(means.std(ddof=1)) / sqrt(_BATCHES))


def of_gaps(gaps: Gaps, shares: tuple[float, ...] = SHARES) -> Latency | None:
    """Mean and percentiles of the times between tokens, from their histogram: 1% exact, without intervals."""
    total = int(gaps.counts.sum())
    if not total:
        return None
    cumulated = np.cumsum(gaps.counts) / total
    found = []
    for share in shares:
        i = int(np.searchsorted(cumulated, share))
        below = float(cumulated[i - 1]) if i else 0.0
        part = (share - below) / max(float(cumulated[i]) - below, 1e-300)
        value = float(gaps.edges[i] + part * (gaps.edges[i + 1] - gaps.edges[i]))
        found.append(Percentile(share, value, float(gaps.edges[i]), float(gaps.edges[i + 1])))
    middles = (gaps.edges[:-1] + gaps.edges[1:]) / 2
    last = int(np.flatnonzero(gaps.counts)[-1])
    mean = float((middles * gaps.counts).sum() / total)
    return Latency(total, mean, tuple(found), float(gaps.edges[last + 1]))


# --- saturation -------------------------------------------------------------------------------------------------


def backlog_growth(outcome: Outcome) -> float | None:
    """Requests that a saturated service has more under way with every second; None of one that keeps up.

    Past saturation every request waits longer than the one before, by the same share of the time between them, and as
    long as batches still grow the number under way grows in a line. Both are read from the quarters of a run; the
    second without its beginning, in which any service fills. A run of too few requests to tell, or of a closed loop,
    is not called saturated.
    """
    work, arrival = outcome.workload, outcome.arrival
    span = float(arrival[-1] - arrival[0])
    if work.concurrency is not None or len(work) < _FEWEST or span <= 0:
        return None
    left = np.sort(np.where(np.isfinite(outcome.finished), outcome.finished, inf))
    gone = outcome.refused | outcome.timed_out
    under_way = np.arange(len(work)) - np.searchsorted(left, arrival, side="right") - np.cumsum(gone)

    wait = outcome.first_scheduled - arrival
    begun = np.isfinite(wait)
    if begun.sum() >= _FEWEST and (by := _trend(wait[begun])) is not None and by / span > _GROWS:
        over = by / span  # the k-th starts after k / capacity: the wait grows by rate / capacity - 1
        return over / (1 + over) * len(work) / span
    times = (outcome.finished - arrival)[: len(work) // 4]
    filled = arrival[0] + _filling(times[np.isfinite(times)])
    settled = under_way[arrival >= filled]
    if len(settled) < max(_FEWEST, len(work) / 4):
        return None
    growth = _trend(settled.astype(float))
    if growth is None or growth / len(settled) <= _GROWS:
        return None
    return growth / len(settled) * len(work) / span


def too_few(outcome: Outcome) -> int | None:
    """The requests that would tell whether a service keeps up, where those that came were over before it was full."""
    work, arrival = outcome.workload, outcome.arrival
    span, times = float(arrival[-1] - arrival[0]), outcome.finished - arrival
    lasts = _filling(times[np.isfinite(times)])
    if work.concurrency is not None or not 0 < span < lasts < inf:
        return None
    return round(4 * len(work) * lasts / span)


def _filling(times: Floats) -> float:
    """How long a service fills, by the times of its requests: until nine tenths of those under way are there.

    A few long answers are most of what is under way, so that it is not the usual request that says how long.
    """
    if not len(times):
        return inf
    ordered = np.sort(times)
    share = np.cumsum(ordered) / ordered.sum()
    longest = ordered[min(int(np.searchsorted(share, 0.9)), len(ordered) - 1)]
    return max(1.5 * float(np.median(ordered)), float(longest))


def _trend(values: Floats) -> float | None:
    """How much values gain from end to end, where each quarter lies above the one before; else None."""
    _, second, third, fourth = (float(part.mean()) for part in np.array_split(values, 4))
    if second < third < fourth and fourth > 1.5 * second:
        return 2 * (fourth - second)
    return None
