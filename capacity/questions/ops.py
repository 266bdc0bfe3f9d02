"""Which operations does a pass consist of, how long does each take, and what bounds it?"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from capplan.capacity.answer import Answer, Working
from capplan.capacity.engines.deployment import Deployment
from capplan.capacity.questions import asked, pass_parts
from capplan.capacity.questions.deployed import Deployed
from capplan.capacity.questions.perf import measured, placed
from capplan.capacity.step_time import passes
from capplan.capacity.step_time.calibration import Calibration
from capplan.capacity.step_time.forward import Step
from capplan.capacity.step_time.kernel_time import spread
from capplan.capacity.step_time.passes import Pass, Timed, one_pass
from capplan.errors import InputError
from capplan.models.resolve import with_tower
from capplan.models.spec import Model
from capplan.units import counted, seconds, tokens

if TYPE_CHECKING:
    from capplan.hardware.spec import Gpu
    from capplan.report import Report


@dataclass(frozen=True, slots=True, kw_only=True)
class Ops(Answer):
    """The operations of one pass on one GPU, and the engine's fixed costs: together they are the pass."""

    question: ClassVar[str] = "ops"

    gpus: int
    time_s: float
    low_s: float
    high_s: float
    floor_s: float  # weights and cache at the full bandwidth, or the work at the peak
    bound_by: str  # what most of the time goes to, of these five
    compute_s: float
    memory_s: float
    latency_s: float  # starts of kernels
    link_s: float
    fixed_s: float  # the engine's own
    weight_bytes_read: float
    cache_bytes_read: float
    batch_fits: bool
    operations: tuple[dict[str, Any], ...]  # of all the times that each runs

    @property
    def fits(self) -> bool:
        return self.batch_fits

    def sweep(self) -> list[dict[str, Any]]:
        return [dict(row) for row in self.operations]

    def report(self) -> Report:
        from capplan.report import Report, Table

        inputs, reader = self.inputs, pass_parts.readers(self.inputs)
        batch, context, prompt = inputs["batch"], inputs["context"], inputs["prompt"]
        if prompt is None:
            done = f"a decode pass of {counted(batch, 'sequence')} at {tokens(context)}"
        else:
            after = f" after {tokens(context)}" if context else ""
            each = "" if batch == 1 else f"{batch:,} x "
            done = f"a prefill pass of {each}{tokens(prompt)}{after}"
        rows = [
            (
                row["name"],
                row["bound_by"],
                f"{100 * row['share']:.1f}%",
                seconds(row["time_s"]),
                seconds(row["time_s"] / row["count"]) if row["count"] else "",
                f"{row['count']:,.0f}",
                _in(row["flops"], 1e9),
                _in(row["bytes"] or row["message_bytes"], 1e6),
                row["dtype"] or "",
            )
            for row in self.operations
        ]
        rows.append(("the pass", self.bound_by, "100.0%", seconds(self.time_s), "", "", "", "", ""))
        limits = {name: getattr(self, f"{name}_s") / self.time_s for name in _SAID}
        first = sorted(limits, key=lambda name: -limits[name])
        goes = [f"{name} {100 * limits[name]:.0f}%" for name in first if limits[name] >= 0.005]
        facts = (
            ("time", seconds(self.time_s), f"{seconds(self.low_s)} - {seconds(self.high_s)}"),
            (
                "floor",
                seconds(self.floor_s),
                f"what the GPU allows; the pass takes {self.time_s / self.floor_s:.2f} x",
            ),
            ("goes to", goes[0], ", ".join(goes[1:])),
            ("weights read", f"{self.weight_bytes_read / 1e9:,.4g} GB", f"by {reader}"),
            ("cache read", f"{self.cache_bytes_read / 1e9:,.4g} GB", f"by {reader}"),
        )
        heads = ("operation", "bound by", "share", "time", "one", "times", "GFLOP", "MB", "dtype")
        return Report(
            f"{pass_parts.where(inputs, self.gpus)}: {done} takes {seconds(self.time_s)}, most of it "
            f"{_SAID[self.bound_by]}",
            (Table(facts), Table(tuple(rows), heads)),
            self.assumptions,
            self.warnings,
        )


_SAID = {
    "compute": "computing",
    "memory": "reading memory",
    "latency": "starting kernels",
    "link": "on the links between GPUs",
    "fixed": "the engine's fixed costs",
}


def _in(value: float, unit: float) -> str:
    scaled = value / unit
    return f"{scaled:,.0f}" if scaled >= 1000 else f"{scaled:,.4g}" if scaled else "-"


def ops(
    model: str | Model,
    gpu: str | Gpu,
    deployment: Deployment | None = None,
    *,
    batch: int = 1,
    context: int | None = None,
    prompt: int | None = None,
    tp: int | None = None,
    calibration: Calibration | None = None,
) -> Ops:
    """The operations of one pass of one data-parallel rank, with time, share and what bounds each.

    model, gpu: registry names, a path to a config.json, or a Model and a Gpu.
    deployment: the engine, its version and flags; what is None is the engine's default.
    batch: sequences of the pass. context: tokens that each has in the cache [token]; 8,000 where it decodes.
    prompt: tokens that each gets in this pass [token]; None for a decode pass, of one each.
    tp: tensor-parallel ranks; None is the smallest number that fits.

    Raises UnknownNameError, DataFileError, InputError.

    >>> found = ops("llama-3.1-8b", "h100-sxm", batch=1, context=1000)
    >>> found.bound_by, round(found.weight_bytes_read / 1e9, 1)
    ('memory', 15.0)
    """
    spec, card = asked.as_model(model), asked.as_gpu(gpu)
    spec, towers = with_tower(spec)
    work = Working()
    work.assume(*asked.assumed_of(spec), *towers)
    batch = asked.known_batches([batch])[0]
    if prompt is not None:
        try:
            prompt = asked.whole_tokens(prompt)
        except InputError as error:
            raise InputError(str(error).replace("context", "prompt", 1)) from error
    empty = prompt is not None and not context
    context = 0 if empty else asked.known_contexts(context, spec, work)[0]
    length = context + (prompt or 1)
    found = placed(spec, card, pass_parts.allowing(deployment, length), length, tp, work)
    found = measured(found, calibration, work)
    if prompt is None:
        step = Step(decode=float(batch), context=float(context))
    else:
        step = Step(prompts=float(batch), chunk=float(prompt), before=float(context))
        if batch * prompt > found.engine.budget:
            work.warn(
                f"{batch * prompt:,} tokens are more than the {found.engine.budget:,.0f} of a pass "
                "(--max-num-batched-tokens): the engine takes several passes, which capplan prefill adds up"
            )
    most = pass_parts.most_of(found, length)
    if batch > most:
        holds = pass_parts.holds(found.bounded_by(length), most)
        work.warn(f"{holds} of {tokens(length)} in a pass, not {batch:,}")
    work.assume(*found.assumptions, pass_parts.RANGE)
    one = one_pass(found.plan, found.chip, found.engine, step)
    off = None if calibration is None else calibration.tpot_off if prompt is None else calibration.ttft_off
    pass_parts.show_working(found, one, work, "the pass")
    held, times = passes.held_bytes(one), pass_parts.time_of([(1, one)], found.chip, off)
    return Ops(
        inputs=pass_parts.inputs_of(found, calibration)
        | {"batch": batch, "context": context, "prompt": prompt},
        gpus=found.gpus,
        time_s=times["time_s"],
        low_s=times["low_s"],
        high_s=times["high_s"],
        floor_s=passes.floor(one, found.chip),
        **pass_parts.limits_of([(1, one)]),
        weight_bytes_read=held["weights"],
        cache_bytes_read=held["cache"],
        batch_fits=batch <= most,
        operations=tuple(_rows(found, one)),
        **work.shown(),
    )


def _rows(found: Deployed, one: Pass) -> list[dict[str, Any]]:
    """Every operation and every fixed cost, the longest first; their times add up to the pass."""
    whole = one.seconds
    rows = [_row(found, each, whole) for each in one.timed]
    low, high = passes.fixed_spread(found.chip)
    rows += [
        {
            "name": f"{found.engine.name}: {cost.name}",
            "group": "fixed",
            "kind": "fixed",
            "dtype": None,
            "count": float(cost.count),
            "flops": 0.0,
            "bytes": 0.0,
            "message_bytes": 0.0,
            "time_s": cost.seconds,
            "low_s": low * cost.seconds,
            "high_s": high * cost.seconds,
            "share": cost.seconds / whole,
            "bound_by": "fixed",
        }
        for cost in one.fixed
        if cost.seconds
    ]
    return sorted(rows, key=lambda row: -row["time_s"])


def _row(found: Deployed, each: Timed, whole: float) -> dict[str, Any]:
    op = each.operation
    low, high = spread(op, found.chip)
    return {
        "name": op.name,
        "group": each.group,
        "kind": op.kind,
        "dtype": op.dtype,
        "count": float(op.count),
        "flops": op.count * op.flops,
        "bytes": op.count * op.bytes,
        "message_bytes": op.count * op.message,
        "time_s": each.seconds,
        "low_s": low * each.seconds,
        "high_s": high * each.seconds,
        "share": each.seconds / whole,
        "bound_by": each.bound,
    }
