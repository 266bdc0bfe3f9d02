"""Serving: passes one after another, in which prefill takes its time from decode.

The throughput follows from conservation of work: a request costs its prefill and its share of the decode passes.
How the time of a request divides into first token and later ones follows from who waits for whom.
"""

from __future__ import annotations

from typing import NamedTuple

from capplan.capacity.step_time.chip import Chip
from capplan.capacity.step_time.engine_steps import Engine
from capplan.capacity.step_time.forward import Layout, Step
from capplan.capacity.step_time.operations import Number, greatest, least
from capplan.capacity.step_time.passes import pass_time

ROUNDS = 3  # of the fixed point; the next changes a batch by less than 0.1%


class Serving(NamedTuple):
    """What one replica does in equilibrium [second, token]."""

    requests_per_s: Number
    ttft: Number
    tpot: Number
    batch: Number  # decoding sequences
    step: Number  # a decode pass alone
    prefill: Number  # from the first pass with a prompt to its last
    prefill_share: Number  # of the time


class _Costs(NamedTuple):
    """What a decode pass takes, and what a prompt adds."""

    step: Number
    own: Number  # passes with this prompt
    extra: Number  # what they take beyond the decode passes they stand for


def _costs(plan: Layout, chip: Chip, engine: Engine, isl: Number, osl: Number, batch: Number) -> _Costs:
    # a pipeline has as many batches under way as it has stages
    batch, stages = batch / plan.pp, plan.pp
    context, chunk = isl + osl / 2, least(isl, engine.budget)
    step = pass_time(plan, chip, engine, Step(decode=batch, context=context))
    # prompts that arrive within a pass share the next one
    prompts = least(greatest(batch / greatest(osl - 1.0, 1.0), 1.0), greatest(engine.budget / isl, 1.0))
    passes, before = isl / chunk, (isl - chunk) / 2
    if engine.mixed:
        both = Step(decode=batch, context=context, prompts=prompts, chunk=chunk, before=before)
        own = passes * pass_time(plan, chip, engine, both)
        return _Costs(step, own, greatest(own - passes * step, 0.0) / prompts / stages)
    own = passes * pass_time(plan, chip, engine, Step(prompts=prompts, chunk=chunk, before=before))
    return _Costs(step, own, own / prompts / stages)


def _decoding(concurrency: Number, ttft: Number, extra: Number, steps: Number) -> Number:
    """Requests that are past their first token: all but rate * ttft, at the rate of so many, 1 / (extra + steps / x).

    steps: a request's decode passes [second]. The root of extra x^2 + (steps + ttft - concurrency extra) x =
    concurrency steps.
    """
    half = (steps + ttft - concurrency * extra) / 2
    return concurrency * steps / (half + (half**2 + extra * concurrency * steps) ** 0.5)


def closed_loop(
    plan: Layout,
    chip: Chip,
    engine: Engine,
    *,
    isl: Number,
    osl: Number,
    concurrency: Number,
    most: Number | None = None,
    together: Number = 0.0,
) -> Serving:
    """`concurrency` requests of `isl` and `osl` tokens always under way; a new one comes when one leaves.

    most: sequences that fit in the cache; the others wait.
    together: share of requests that come at once with all others: the first of a benchmark's run, or all of them
    where prompts go first and lengths are alike.
    """
    steps = greatest(osl - 1.0, 1e-9)
    if engine.mixed:
        # a pass starts no more prompts than its budget holds, and each decodes for `steps` passes
        most = least(steps * engine.budget / isl, most)
    batch = least(concurrency * 1.0, most)
    others = greatest(1.0 - 1.0 / concurrency, 0.0)  # a request alone waits for no pass and for no prompt
    for _ in range(ROUNDS):
        step, own, extra = _costs(plan, chip, engine, isl, osl, batch)
        ttft = engine.request + own + others * (0.5 * engine.poll * step + engine.queue * own)
        decoding = _decoding(concurrency, ttft, extra, steps * step)
        batch = least(greatest(decoding, least(concurrency, 1.0)), most)
    rate = 1 / (extra + steps * step / batch)
    ttft = ttft + together * (concurrency - 1.0) / 2 * extra
    # where they can't all decode at once, they wait before they start
    ttft = greatest(
        ttft, concurrency / rate - steps * (step + batch * extra / steps) if most is not None else 0.0
    )
    tpot = greatest((concurrency / rate - ttft) / steps, step)
    rate = least(rate, concurrency / (ttft + steps * tpot))  # a request alone has nobody to fill its gaps
    batch = steps * step * rate / (1 - rate * extra)  # on average, of the passes that decode
    return Serving(rate, ttft, tpot, batch, step, own, rate * extra)


def open_loop(
    plan: Layout,
    chip: Chip,
    engine: Engine,
    *,
    isl: Number,
    osl: Number,
    rate: Number,
    most: Number | None = None,
) -> Serving:
    """Requests come at a rate of their own; where it is more than can be served, latencies are without end."""
    steps = greatest(osl - 1.0, 1e-9)
    batch = least(rate * steps * 0.01, most)
    for _ in range(2 * ROUNDS):
        step, own, extra = _costs(plan, chip, engine, isl, osl, greatest(batch, 1.0))
        left = greatest(1 - rate * extra, 1e-3)
        batch = least(rate * steps * step / left, most)
    tpot = step / left
    ttft = engine.request + 0.5 * engine.poll * step + own * (1 + engine.queue * (1 - left))
    return Serving(rate, ttft, tpot, batch, step, own, rate * extra)


def full_load(
    plan: Layout, chip: Chip, engine: Engine, *, isl: Number, osl: Number, batch: Number
) -> Serving:
    """Requests never run out: `batch` sequences decode, and another prompt follows each that leaves."""
    steps = greatest(osl - 1.0, 1e-9)
    step, own, extra = _costs(plan, chip, engine, isl, osl, batch)
    rate = 1 / (extra + steps * step / batch)
    return Serving(rate, own, step + batch * extra / steps, batch, step, own, rate * extra)


def disaggregated(
    decode: Layout,
    prefill: Layout,
    chip: Chip,
    engine: Engine,
    *,
    isl: Number,
    osl: Number,
    concurrency: Number,
    decode_ranks: float,
    prefill_ranks: float,
    transfer: Number = 0.0,
    most: Number | None = None,
    together: Number = 0.0,
) -> Serving:
    """Prefill and decode on GPUs of their own: neither takes time from the other, and the slower sets the rate.

    concurrency: of all; most: sequences of one decode rank. transfer: of a prompt's cache to its decode rank [second].
    """
    steps = greatest(osl - 1.0, 1e-9)
    chunk = least(isl, engine.budget)
    passes, before = isl / chunk, (isl - chunk) / 2
    prompts = least(
        greatest(concurrency / prefill_ranks / greatest(osl - 1.0, 1.0), 1.0),
        greatest(engine.budget / isl, 1.0),
    )
    own = passes * pass_time(prefill, chip, engine, Step(prompts=prompts, chunk=chunk, before=before))
    extra = own / prompts / prefill_ranks
    batch = least(concurrency / decode_ranks, most)
    for _ in range(ROUNDS):
        step = pass_time(decode, chip, engine, Step(decode=batch, context=isl + osl / 2))
        rate = least(
            least(concurrency / (own + transfer + steps * step), batch * decode_ranks / (steps * step)),
            1 / extra,
        )
        batch = least(
            greatest(rate * steps * step / decode_ranks, least(concurrency / decode_ranks, 1.0)), most
        )
    busy = rate * extra
    ttft = engine.request + own * (1 + engine.queue * busy) + transfer + step
    ttft = ttft + together * (concurrency - 1.0) / 2 * extra
    ttft = greatest(ttft, concurrency / rate - steps * step - own)
    return Serving(rate, ttft, step, batch, step, own, busy)
