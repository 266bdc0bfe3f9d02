"""One pass under an engine: its operations and the engine's fixed costs, each with its time. Their sum is the pass.

    pass = launch * starts + slow * kernels + links * collectives + fixed costs

`operations` says what a rank runs, `kernel_time` how long that takes by itself, `engine_steps` what an engine adds.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from capplan.capacity.roofline import operation_time
from capplan.capacity.step_time.chip import Chip
from capplan.capacity.step_time.engine_steps import Engine
from capplan.capacity.step_time.forward import Layout, Step, operations
from capplan.capacity.step_time.kernel_time import COLLECTIVES, bound, multiplied, spread, terms
from capplan.capacity.step_time.operations import Number, Operation, greatest

GROUPS = ("attention", "projections", "experts", "head", "elementwise", "collectives", "fixed")
_BY_KIND = {
    **dict.fromkeys(("attention_decode", "mla_decode", "attention_prefill", "scan"), "attention"),
    **dict.fromkeys(COLLECTIVES, "collectives"),
    "gemm": "projections",
    "grouped_gemm": "experts",
    "elementwise": "elementwise",
}
_BY_NAME = {"lm_head": "head", "sampling": "head", "index": "attention"}


class Timed(NamedTuple):
    """An operation of a pass; its terms are of all the times that it runs, the engine's factors in them [second]."""

    operation: Operation
    start: Number
    compute: Number
    memory: Number  # or on the link
    power: float
    seconds: Number

    @property
    def group(self) -> str:
        """Which of GROUPS it counts to."""
        return _BY_NAME.get(self.operation.name) or _BY_KIND[self.operation.kind]

    @property
    def bound(self) -> str:
        """The longest of its terms: compute, memory, latency or link."""
        return bound(self.operation.kind, self.start, self.compute, self.memory)


class Fixed(NamedTuple):
    """What an engine adds to a pass, so many times; all of them together [second]."""

    name: str
    count: Number  # over tuple.count
    seconds: Number


class Pass(NamedTuple):
    """A pass, from its parts; numbers, or arrays where those of its step are."""

    timed: list[Timed]
    fixed: list[Fixed]

    @property
    def seconds(self) -> Number:
        return sum([each.seconds for each in self.timed]) + sum([each.seconds for each in self.fixed])


def one_pass(plan: Layout, chip: Chip, engine: Engine, step: Step) -> Pass:
    """A pass of these tokens: every operation of a rank, and every fixed cost."""
    prompts = not (isinstance(step.prompts, int | float) and step.prompts == 0)
    slow = engine.prefill_slow if prompts else engine.slow
    timed = []
    for operation in operations(
        plan, step, imbalance=engine.imbalance, routing=engine.routing, graphs=engine.graphs
    ):
        start, compute, memory, power = terms(operation, chip)
        if operation.kind in COLLECTIVES:
            first = once = operation.count * engine.links
        else:
            first, once = operation.count * engine.launch, operation.count * slow
        start, compute, memory = first * start, once * compute, once * memory
        time = operation_time(start, compute, memory, power)
        timed.append(Timed(operation, start, compute, memory, power, time))
    return Pass(timed, _fixed(plan, engine, step, prompts))


def _fixed(plan: Layout, engine: Engine, step: Step, prompts: bool) -> list[Fixed]:
    layers = len(plan.model.layers)
    found = [
        Fixed("step", 1, engine.step),
        Fixed("layers", layers, engine.layer * layers),
        Fixed("sequences", step.decode, engine.sequence * step.decode),
    ]
    if plan.mixtures:
        found.append(Fixed("mixtures", plan.mixtures, engine.mixture * plan.mixtures))
    if plan.pp > 1:
        found.append(Fixed("stages", plan.pp - 1, engine.stage * (plan.pp - 1)))
    if prompts:
        found.append(Fixed("prompt layers", layers, engine.prefill_layer * layers))
    return found


def pass_time(plan: Layout, chip: Chip, engine: Engine, step: Step) -> Number:
    """Time of one pass [second]."""
    return one_pass(plan, chip, engine, step).seconds


# --- sums over one pass or several ----------------------------------------------------------------------------


def by_group(passes: Iterable[tuple[float, Pass]]) -> dict[str, Number]:
    """Time of every group of GROUPS [second], of so many of each pass; they add up to the whole."""
    found: dict[str, Number] = dict.fromkeys(GROUPS, 0.0)
    for times, one in passes:
        for each in one.timed:
            found[each.group] += times * each.seconds
        found["fixed"] += times * sum([each.seconds for each in one.fixed])
    return found


def by_limit(passes: Iterable[tuple[float, Pass]]) -> dict[str, float]:
    """What the time goes to [second]: starts are latency, the rest of a kernel whichever of its terms is longer."""
    found = dict.fromkeys(("compute", "memory", "latency", "link", "fixed"), 0.0)
    for times, one in passes:
        for each in one.timed:
            name = "compute" if each.compute > each.memory else "memory"
            found["link" if each.operation.kind in COLLECTIVES else name] += times * (
                each.seconds - each.start
            )
            found["latency"] += times * each.start
        found["fixed"] += times * sum([each.seconds for each in one.fixed])
    return found


def between(passes: Iterable[tuple[float, Pass]], chip: Chip) -> tuple[Number, Number]:
    """The range that eight of ten measured times would lie in [second], and never below the floor.

    Each operation has the range of its kind in kernels.toml; what an engine adds is taken to spread as kernels of no
    kind of their own do. All are taken to err the same way, as kernels do that one library brings for one GPU.
    """
    low = high = least_ = 0.0
    for times, one in passes:
        for each in one.timed:
            below, above = spread(each.operation, chip)
            low, high = low + times * below * each.seconds, high + times * above * each.seconds
        below, above = fixed_spread(chip)
        fixed = times * sum([each.seconds for each in one.fixed])
        low, high = low + below * fixed, high + above * fixed
        least_ = least_ + times * floor(one, chip)
    return greatest(low, least_), high


_ENGINE = Operation("engine", "engine", "", 1)


def fixed_spread(chip: Chip) -> tuple[float, float]:
    """The range of an engine's fixed costs, as multiples: that of kernels of no kind of their own."""
    return spread(_ENGINE, chip)


def held_bytes(one: Pass) -> dict[str, Number]:
    """Weights and cache that a rank reads in a pass [byte]; of a pipeline, all its stages together."""
    found: dict[str, Number] = {"weights": 0.0, "cache": 0.0}
    for each in one.timed:
        found["cache" if each.group == "attention" else "weights"] += (
            each.operation.count * each.operation.held
        )
    return found


def floor(one: Pass, chip: Chip) -> Number:
    """What no kernels could be faster than [second]: weights and cache at the full bandwidth, work at the dense peak."""
    size = sum([each.operation.count * each.operation.held for each in one.timed])
    work = 0.0
    for each in one.timed:
        peak = chip.peaks[multiplied(each.operation, chip)]
        work = work + each.operation.count * each.operation.flops / peak
    return greatest(size / chip.bandwidth, work)
