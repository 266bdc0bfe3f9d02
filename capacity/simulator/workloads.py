"""What comes to a service: when requests arrive, and how long they are.

Arrival processes are drawn at a mean of one request a second and divided by the rate that is asked for; times and
lengths have random numbers of their own. So the same seed gives every rate and every configuration the same
requests in the same order and bunched in the same way, and a difference between two results is no accident of the
draw (common random numbers).

>>> mix = Mix(poisson(1000, seed=1), *fixed(1000, isl=500, osl=50))
>>> slow, fast = mix.times(1.0), mix.times(10.0)
>>> bool(np.allclose(slow, 10 * fast))
True
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import inf

import numpy as np

from capplan.capacity.simulator.requests import Workload
from capplan.capacity.simulator.traces import BLOCK_TOKENS, Floats, Ints, Trace
from capplan.errors import InputError
from capplan.units import counted

_NEVER = 1e15  # [second]: the clock has no milliseconds any more
_ARRIVALS, _INPUTS, _OUTPUTS, _ROWS = range(4)  # streams of one seed


@dataclass(frozen=True, slots=True)
class Mix:
    """Requests without a rate: arrival times at a mean of one a second, and the tokens of prompt and answer."""

    unit_times: Floats  # [second]
    isl: Ints
    osl: Ints
    blocks: tuple[tuple[int, ...], ...] | None = None  # prefix blocks of each prompt, where they are known
    own_rate: float | None = None  # of a trace [request/second]: any part of it is stretched
    block_tokens: int = BLOCK_TOKENS  # of a prefix block

    def __len__(self) -> int:
        return len(self.isl)

    def times(self, rate: float) -> Floats:
        """Arrival times at a mean rate [request/second]. Raises InputError for a rate that is not above 0."""
        if not 0 < rate < inf:
            raise InputError(f"rate {rate!r} is not a number of requests a second above 0")
        if self.unit_times[-1] > _NEVER * rate:
            raise InputError(
                f"at a rate of {rate!r} the last of {len(self):,} requests comes in {_NEVER:g} s or later"
            )
        return self.unit_times / rate

    def takes_a_rate(self) -> None:
        """Raise InputError where all requests come at one time, which no rate changes."""
        if self.unit_times[-1] == 0:
            raise InputError(
                f"{counted(len(self), 'request')} at one time: a rate would not be used; requests of more than one time are "
                "accepted with it"
            )

    def at(self, rate: float, timeout: float = inf) -> Workload:
        """The workload at a mean rate [request/second]. Raises InputError."""
        return Workload(self.times(rate), self.isl, self.osl, self.blocks, None, timeout, self.block_tokens)

    def closed(self, concurrency: int, timeout: float = inf) -> Workload:
        """The same requests in a closed loop: so many under way, the next comes when one leaves."""
        none = np.zeros(len(self))
        return Workload(none, self.isl, self.osl, self.blocks, concurrency, timeout, self.block_tokens)

    def first(self, count: int) -> Mix:
        """So many requests, the first. Of drawn arrivals they come as all do; of a trace's, at a mean of one a second."""
        return self._part(np.arange(min(count, len(self))))

    def without(self, longest: int) -> tuple[Mix, int]:
        """The requests of at most so many tokens, prompt and answer, and how many are left out.

        The others come at a mean of one a second again.
        """
        kept = np.flatnonzero(self.isl + self.osl <= longest)
        left_out = len(self) - len(kept)
        return (self._part(kept, len(kept) / len(self)) if left_out else self), left_out

    def _part(self, rows: Ints, share: float = 1.0) -> Mix:
        """Some of the requests; share: of drawn ones, how many are kept of those that came."""
        times = self.unit_times[rows]
        if self.own_rate is None:
            times = times * share
        elif len(rows):
            times = times - times[0]
            times = times * ((len(rows) - 1) / times[-1] if times[-1] > 0 else 1.0)
        blocks = None if self.blocks is None else tuple(self.blocks[i] for i in rows)
        return Mix(times, self.isl[rows], self.osl[rows], blocks, self.own_rate, self.block_tokens)


def _stream(seed: int, of: int) -> np.random.Generator:
    """Random numbers for one purpose, which drawing more for another doesn't shift."""
    if isinstance(seed, bool) or not isinstance(seed, int) or seed < 0:
        raise InputError(f"seed {seed!r} is not a whole number, zero or more")
    return np.random.default_rng([seed, of])


def known_requests(count: int) -> int:
    """A number of requests, checked."""
    if isinstance(count, bool) or not isinstance(count, int) or not 1 <= count <= 10**8:
        raise InputError(f"requests {count!r} is not a whole number from 1 to 100,000,000")
    return count


# --- arrivals, at a mean of one request a second ----------------------------------------------------------------


def poisson(count: int, seed: int) -> Floats:
    """Arrivals that know nothing of each other: gaps are exponential."""
    return np.cumsum(_stream(seed, _ARRIVALS).exponential(size=known_requests(count)))


def gamma(count: int, seed: int, cv: float) -> Floats:
    """Independent gaps with a coefficient of variation: 1 is Poisson, more is bursty, 0 is a clock.

    Raises InputError for a cv below 0.
    """
    if not 0 <= cv < 100:
        raise InputError(f"burstiness {cv!r} is not a coefficient of variation from 0 to 100")
    if cv == 0:
        return np.arange(1.0, known_requests(count) + 1)
    shape = cv**-2
    return np.cumsum(_stream(seed, _ARRIVALS).gamma(shape, 1 / shape, size=known_requests(count)))


def markov_modulated(
    count: int, seed: int, *, burst: float = 5.0, share: float = 0.1, length: float = 60.0
) -> Floats:
    """Poisson arrivals whose rate changes between calm and bursts, each lasting an exponential time.

    burst: the rate in a burst over that in calm. share: of the time, in bursts. length: of a mean burst, in mean gaps
    between requests. Unlike gamma gaps, short gaps follow each other. Raises InputError.
    """
    if not (burst >= 1 and 0 < share < 1 and length > 0):
        raise InputError(
            f"bursts {burst!r} times as fast for {share!r} of the time are none; 1 or more, and a share between 0 "
            "and 1, are accepted"
        )
    random = _stream(seed, _ARRIVALS)
    calm = 1 / (1 - share + share * burst)  # so that the mean is 1
    rates, holds = (calm, calm * burst), (length * (1 - share) / share, length)
    gaps = random.exponential(size=known_requests(count))
    times = np.empty(count)
    now, state = 0.0, int(random.random() < share)
    until = random.exponential(holds[state])
    for i, work in enumerate(gaps.tolist()):  # a unit of work a request, done at the rate of the state
        while work > (until - now) * rates[state]:
            work -= (until - now) * rates[state]
            now, state = until, 1 - state
            until = now + random.exponential(holds[state])
        now += work / rates[state]
        times[i] = now
    return times


def ramp(count: int, seed: int, points: Sequence[tuple[float, float]]) -> Floats:
    """Poisson arrivals at a rate that goes from point to point in straight lines: (time, rate), in mean gaps and
    multiples of the mean rate; after the last point the rate stays.

    Raises InputError for fewer than one point, times that do not grow, or a rate below 0.

    >>> times = ramp(2000, 1, [(0, 0.5), (1000, 1.5)])
    >>> bool(np.searchsorted(times, 500) < 1000 - np.searchsorted(times, 500))
    True
    """
    clock = [float(time) for time, _ in points]
    rates = [float(rate) for _, rate in points]
    if not points or clock[0] != 0 or any(b <= a for a, b in pairwise(clock)):
        raise InputError(
            "a ramp is points of time and rate, the first at time 0, each later than the one before"
        )
    if min(rates) < 0 or rates[-1] <= 0:
        raise InputError("the rates of a ramp are zero or more, and the last is above 0")
    work = np.cumsum(_stream(seed, _ARRIVALS).exponential(size=known_requests(count)))
    times = np.empty(count)
    done = 0.0  # requests expected so far
    for i, (start, rate) in enumerate(zip(clock, rates, strict=True)):
        last = i == len(clock) - 1
        slope = 0.0 if last else (rates[i + 1] - rate) / (clock[i + 1] - start)
        end = float("inf") if last else done + (rate + rates[i + 1]) / 2 * (clock[i + 1] - start)
        here = (work > done) & (work <= end)
        left = work[here] - done
        # solves rate * t + slope * t**2 / 2 = left, in the form that holds for a slope of 0
        times[here] = start + 2 * left / (rate + np.sqrt(np.maximum(rate * rate + 2 * slope * left, 0.0)))
        done = end
    return times


# --- lengths ----------------------------------------------------------------------------------------------------


def fixed(count: int, isl: int, osl: int) -> tuple[Ints, Ints]:
    """Prompts and answers all of one length [token]."""
    return np.full(known_requests(count), isl, dtype=np.int64), np.full(count, osl, dtype=np.int64)


def lognormal(
    count: int,
    seed: int,
    *,
    isl: float,
    osl: float,
    isl_sigma: float = 1.0,
    osl_sigma: float = 1.0,
    least: int = 1,
    most: int | None = None,
) -> tuple[Ints, Ints]:
    """Lengths whose logarithms are normal: means isl and osl [token], sigmas of the logarithm.

    Requests under `least` tokens on a side are rounded up to it; those over `most`, both sides together, are drawn
    anew, so that the mean of what is left is lower. Raises InputError.
    """
    known_requests(count)
    if not (isl >= 1 and osl >= 1 and 0 <= isl_sigma < 5 and 0 <= osl_sigma < 5):
        raise InputError(
            f"lengths of {isl!r} and {osl!r} tokens with sigmas {isl_sigma!r} and {osl_sigma!r} can't be drawn; means of "
            "1 or more and sigmas from 0 to 5 are accepted"
        )
    if most is not None and most < 2 * least:
        raise InputError(f"no request of at most {most:,} tokens has {least:,} on each side")
    sides = []
    for mean, sigma, of in ((isl, isl_sigma, _INPUTS), (osl, osl_sigma, _OUTPUTS)):
        sides.append((np.log(mean) - sigma * sigma / 2, sigma, _stream(seed, of)))

    def draw(size: int) -> list[Ints]:
        return [
            np.maximum(random.lognormal(mu, sigma, size).astype(np.int64), least)
            for mu, sigma, random in sides
        ]

    inputs, outputs = draw(count)
    for _ in range(1000):
        over = np.flatnonzero(inputs + outputs > (most or np.iinfo(np.int64).max))
        if not len(over):
            return inputs, outputs
        inputs[over], outputs[over] = draw(len(over))
    raise InputError(f"requests of at most {most:,} tokens are too rare at means of {isl:,} and {osl:,}")


def empirical(
    count: int, seed: int, isl: Sequence[tuple[int, float]], osl: Sequence[tuple[int, float]]
) -> tuple[Ints, Ints]:
    """Lengths from tables of (tokens, cumulative share), each side for itself; straight lines between the entries.

    Raises InputError for a table that does not grow to a share of 1.
    """
    known_requests(count)
    found = []
    for side, table, of in (("isl", isl, _INPUTS), ("osl", osl, _OUTPUTS)):
        lengths, shares = [tokens for tokens, _ in table], [share for _, share in table]
        grows = all(b > a for a, b in pairwise(lengths)) and shares == sorted(shares)
        if not table or not grows or lengths[0] < 1 or shares[0] < 0 or abs(shares[-1] - 1) > 1e-9:
            raise InputError(
                f"the {side} table is no distribution: tokens and shares grow, the last share is 1"
            )
        drawn = np.interp(_stream(seed, of).random(count), shares, lengths)
        found.append(np.maximum(np.rint(drawn).astype(np.int64), 1))
    return found[0], found[1]


def joint(count: int, seed: int, trace: Trace) -> tuple[Ints, Ints]:
    """Lengths of requests of a trace, drawn with replacement: long prompts keep the answers that they had."""
    rows = _stream(seed, _ROWS).integers(0, len(trace), size=known_requests(count))
    return trace.isl[rows], trace.osl[rows]


def replay(trace: Trace, count: int | None = None) -> Mix:
    """A trace as it came; a rate stretches or shrinks its time. Raises InputError where it has no times."""
    if not trace.timed:
        raise InputError(
            f"trace {trace.name!r} says nothing of when requests came; its lengths alone can be drawn"
        )
    if trace.arrival[-1] == 0:
        came = "holds one request" if len(trace) == 1 else f"has all {len(trace):,} requests at one time"
        raise InputError(
            f"trace {trace.name!r} {came}, so that it has no rate; its lengths alone can be drawn"
        )
    many = min(len(trace), len(trace) if count is None else known_requests(count))
    blocks = trace.blocks[:many] if trace.blocks is not None else None
    rate = trace.rate_of(many)  # a trace's beginning may be calmer than all of it
    size = trace.block_tokens or BLOCK_TOKENS
    return Mix(trace.arrival[:many] * rate, trace.isl[:many], trace.osl[:many], blocks, rate, size)
