"""Serving in a closed loop: so many requests are always under way, and prefill takes its time from decode."""

from __future__ import annotations

from typing import Any, NamedTuple

from capplan.capacity.step_time.chip import Chip
from capplan.capacity.step_time.forward import Layout, Step, operations
from capplan.capacity.step_time.kernel_time import seconds
from capplan.capacity.step_time.operations import Number


class Engine(NamedTuple):
    """What an engine adds to the kernels of a step; see engine_steps.toml."""

    name: str
    step: float  # every pass [second]
    layer: float  # every layer of a pass
    sequence: float  # every sequence of a pass
    slow: float  # kernels in a step against kernels in a loop
    prefill_step: float  # a pass with prompt tokens, beyond that of one without
    prefill_slow: float
    request: float  # before a request's first pass
    budget: float  # tokens of a pass
    mixed: bool  # prompts share a pass with decoding sequences


class Serving(NamedTuple):
    """What a service does in equilibrium; of one replica."""

    requests_per_s: Number
    ttft: Number
    tpot: Number
    batch: Number  # decoding sequences
    step: Number  # a decode pass alone
    prefill: Number  # of one prompt
    share: Number  # of the time that prefill takes


def engine_of(name: str, row: dict[str, Any]) -> Engine:
    return Engine(
        name, row["step_us"] * 1e-6, row["layer_us"] * 1e-6, row["sequence_us"] * 1e-6, row["slow"],
        row["prefill_step_us"] * 1e-6, row["prefill_slow"], row["request_us"] * 1e-6, row["budget"], row["mixed"],
    )  # fmt: skip


def pass_time(plan: Layout, chip: Chip, engine: Engine, step: Step) -> Number:
    """Time of one pass [second]."""
    prompts = not (isinstance(step.prompts, int | float) and step.prompts == 0)
    work = sum(op.count * seconds(op, chip) for op in operations(plan, step))
    fixed = engine.step + engine.layer * len(plan.model.layers) + engine.sequence * step.decode
    if prompts:
        return work * engine.prefill_slow + fixed + engine.prefill_step
    return work * engine.slow + fixed


def closed_loop(
    plan: Layout, chip: Chip, engine: Engine, *, isl: float, osl: float, concurrency: Number, rounds: int = 4
) -> Serving:
    """`concurrency` requests always under way, of `isl` prompt tokens and `osl` generated ones."""
    context = isl + osl / 2
    batch = concurrency * 1.0
    chunk = min(isl, engine.budget)
    passes = isl / chunk
    for _ in range(rounds):
        step = pass_time(plan, chip, engine, Step(decode=batch, context=context))
        if engine.mixed:
            full = pass_time(
                plan, chip, engine,
                Step(decode=batch, context=context, prompts=1.0, chunk=chunk, before=(isl - chunk) / 2),
            )  # fmt: skip
            own, extra = passes * full, passes * (full - step)
        else:
            own = passes * pass_time(
                plan, chip, engine, Step(prompts=1.0, chunk=chunk, before=(isl - chunk) / 2)
            )
            extra = own
        steps = max(osl - 1, 1e-9)
        rate = batch / (steps * step + batch * extra)
        share = rate * extra
        tpot = step / (1 - share)
        wait = extra * share / (2 * (1 - share)) + 0.5 * step
        ttft = engine.request + wait + own
        rate = concurrency / (ttft + steps * tpot)
        batch = rate * steps * tpot
    return Serving(rate, ttft, tpot, batch, step, own, rate * extra)
