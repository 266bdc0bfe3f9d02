"""Two forms of a decode step's time: a sum over its operations, and one pool of work. Which one fits is for rows to say."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean
from typing import NamedTuple

from capplan.probes import fit


class Work(NamedTuple):
    """What a step does."""

    context: int  # tokens of a sequence
    flops: float  # of the products with weights
    weights: float  # bytes
    kv: float  # bytes of K and V that are read


class Summed(NamedTuple):
    """t = roofline of the products + (bytes of K and V) / kv_rate"""

    products: fit.Roof
    kv_rate: float  # byte/s

    def __call__(self, work: Work) -> float:
        return self.products(work.flops, work.weights) + work.kv / self.kv_rate


class Pooled(NamedTuple):
    """t = roofline of all FLOPs over all bytes, as if K and V were weights"""

    all: fit.Roof

    def __call__(self, work: Work) -> float:
        return self.all(work.flops, work.weights + work.kv)


def pooled(works: Sequence[Work], times: Sequence[float]) -> Pooled:
    """The pool that fits times [second] best."""
    sizes = [work.weights + work.kv for work in works]
    return Pooled(fit.roof([work.flops for work in works], sizes, times))


def summed(works: Sequence[Work], times: Sequence[float]) -> Summed:
    """The sum that fits times [second] best: what short contexts take without reading K and V, and long ones without the
    products, in turn until both stand. Of one context alone K and V are read as fast as weights."""
    first = min(work.context for work in works)
    last = max(work.context for work in works)
    short = [(work, time) for work, time in zip(works, times, strict=True) if work.context == first]
    long = [(work, time) for work, time in zip(works, times, strict=True) if work.context == last]
    kv_rate = pooled(works, times).all.bandwidth
    while True:
        rest = [max(time - work.kv / kv_rate, 0.1 * time) for work, time in short]
        products = fit.roof([w.flops for w, _ in short], [w.weights for w, _ in short], rest)
        over = [max(time - products(work.flops, work.weights), 0.01 * time) for work, time in long]
        found = sum(work.kv for work, _ in long) / sum(over)
        if first == last or abs(found / kv_rate - 1.0) < 1e-3:
            return Summed(products, kv_rate)
        kv_rate = found


def off(form: Summed | Pooled, works: Sequence[Work], times: Sequence[float]) -> float:
    """Mean of |predicted / measured - 1|."""
    return fmean(abs(form(work) / time - 1.0) for work, time in zip(works, times, strict=True))
