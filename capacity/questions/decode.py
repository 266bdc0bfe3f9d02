"""How long between tokens: one decode pass, what it consists of, and how far it is from what the GPU allows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from capplan.capacity.answer import Answer, Working
from capplan.capacity.engines.deployment import Deployment
from capplan.capacity.questions import asked, pass_parts
from capplan.capacity.questions.deployed import Deployed
from capplan.capacity.questions.perf import measured, placed
from capplan.capacity.service import stream_rate
from capplan.capacity.step_time import passes
from capplan.capacity.step_time.calibration import Calibration
from capplan.capacity.step_time.forward import Step
from capplan.capacity.step_time.passes import Pass, one_pass
from capplan.models.resolve import with_tower
from capplan.models.spec import Model
from capplan.units import counted, seconds, tokens

if TYPE_CHECKING:
    from capplan.hardware.spec import Gpu
    from capplan.report import Report

BATCHES = tuple(2**i for i in range(10))  # 1, 2, 4, ... 512


@dataclass(frozen=True, slots=True, kw_only=True)
class Decode(Answer):
    """Time between tokens of one decode pass by batch and context, its parts, and the rates that follow."""

    question: ClassVar[str] = "decode"

    gpus: int
    at: tuple[dict[str, Any], ...]  # one entry a context and batch

    @property
    def fits(self) -> bool:
        return any(row["fits"] for row in self.at)

    def sweep(self) -> list[dict[str, Any]]:
        return [dict(row) for row in self.at]

    def report(self) -> Report:
        from capplan.report import Report, Table

        row = headline_row(self.at)
        what = f"{counted(row['batch'], 'sequence')} of {tokens(row['context'])}"
        headline = (
            f"{pass_parts.where(self.inputs, self.gpus)}: {seconds(row['time_s'])} between tokens "
            f"({seconds(row['low_s'])} - {seconds(row['high_s'])}) with {what}"
        )
        if not row["fits"]:
            memory = row["most_by"] == "memory"
            headline += ", which do not fit in memory" if memory else ", more than max-num-seqs allows"
        tables = []
        for context in dict.fromkeys(row["context"] for row in self.at):
            rows = [row for row in self.at if row["context"] == context]
            most = rows[0]["most_batch"]
            room = "no bound on the batch" if most is None else pass_parts.holds(rows[0]["most_by"], most)
            times = tuple(_cells(row) for row in rows)
            columns = (
                "batch",
                "between tokens",
                "from - to",
                "tok/s/user",
                "tok/s/GPU",
                "bound by",
                "floor x",
            )
            tables.append(Table(times, columns, f"At {tokens(context)}; {room}"))
            groups, shares = pass_parts.group_table(rows)
            parts = tuple((_batch(row), *share, *_read(row)) for row, share in zip(rows, shares, strict=True))
            heads = ("batch", *groups, "weights GB", "cache GB")
            tables.append(Table(parts, heads, f"Its parts, and what {pass_parts.readers(self.inputs)} reads"))
        return Report(headline, tuple(tables), self.assumptions, self.warnings)


def headline_row(rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """At the first context, the largest batch that fits; else the smallest."""
    first = [row for row in rows if row["context"] == rows[0]["context"]]
    return next((row for row in reversed(first) if row["fits"]), first[0])


def _batch(row: dict[str, Any]) -> str:
    return f"{row['batch']:,}" if row["fits"] else f"({row['batch']:,})"


def _cells(row: dict[str, Any]) -> tuple[str, ...]:
    return (
        _batch(row),
        seconds(row["time_s"]),
        f"{seconds(row['low_s'])} - {seconds(row['high_s'])}",
        _rate(row["tokens_per_s_per_user"]),
        _rate(row["tokens_per_s_per_gpu"]),
        pass_parts.bound(row),
        f"{row['time_over_floor']:.2f}",
    )


def _read(row: dict[str, Any]) -> tuple[str, str]:
    return f"{row['weight_bytes_read'] / 1e9:,.4g}", f"{row['cache_bytes_read'] / 1e9:,.4g}"


def _rate(rate: float) -> str:
    return f"{rate:,.0f}" if rate >= 100 else f"{rate:.3g}"


def decode(
    model: str | Model,
    gpu: str | Gpu,
    deployment: Deployment | None = None,
    *,
    batches: Sequence[int] | int | None = None,
    contexts: Sequence[int] | int | None = None,
    tp: int | None = None,
    calibration: Calibration | None = None,
) -> Decode:
    """Time between tokens when `batch` sequences of `context` tokens decode together, and nothing else runs.

    model, gpu: registry names, a path to a config.json, or a Model and a Gpu.
    deployment: the engine, its version and flags; what is None is the engine's default. max_model_len is the longest
    context where it is None.
    batches: sequences of a pass, of each data-parallel rank; 1, 2, 4, ... 512 when not given.
    contexts: tokens that each of them has [token]; 8,000 when not given.
    tp: tensor-parallel ranks; None is the smallest number that fits.
    calibration: constants of the engine measured on this GPU.

    Raises UnknownNameError, DataFileError, InputError.

    >>> found = decode("llama-3.3-70b", "h200-sxm", batches=[1, 32], contexts=8000, tp=2)
    >>> [row["bound_by"] for row in found.at]
    ['memory', 'memory']
    """
    spec, card = asked.as_model(model), asked.as_gpu(gpu)
    spec, towers = with_tower(spec)
    work = Working()
    work.assume(*asked.assumed_of(spec), *towers)
    sizes = asked.known_batches(
        [batches] if isinstance(batches, int) else BATCHES if batches is None else batches
    )
    lengths = asked.known_contexts(contexts, spec, work)
    if contexts is None:
        lengths = lengths[:1]
    longest = max(lengths)
    found = placed(spec, card, pass_parts.allowing(deployment, longest), longest, tp, work)
    found = measured(found, calibration, work)
    work.assume(*found.assumptions)
    if calibration is None or calibration.ttft_off is None:
        work.assume(pass_parts.RANGE)
    off = calibration.tpot_off if calibration else None
    if found.plan.dp > 1:
        work.assume("a batch is of each data-parallel rank; rates are of all ranks")
    if found.plan.pp > 1:
        work.assume(
            "one batch at a time goes through the stages; with one for each, rates are up to PP times these"
        )
    rows, shown = [], {}
    for context in lengths:
        most = pass_parts.most_of(found, context)
        for batch in sizes:
            one = one_pass(
                found.plan, found.chip, found.engine, Step(decode=float(batch), context=float(context))
            )
            rows.append(_row(found, one, batch, context, most, off))
            shown[batch, context] = one
    for row in rows:
        if not row["fits"] and batches is not None:
            holds = pass_parts.holds(row["most_by"], row["most_batch"])
            work.warn(f"{holds} of {tokens(row['context'])} in a pass: batches in brackets do not fit")
    top = headline_row(rows)
    one, what = shown[top["batch"], top["context"]], f"batch {top['batch']:,} at {tokens(top['context'])}"
    pass_parts.show_working(found, one, work, what)
    work(stream_rate, what, tpot=top["time_s"])
    return Decode(
        inputs=pass_parts.inputs_of(found, calibration) | {"batches": sizes, "contexts": lengths},
        gpus=found.gpus,
        at=tuple(rows),
        **work.shown(),
    )


def _row(
    found: Deployed, one: Pass, batch: int, context: int, most: float, off: float | None
) -> dict[str, Any]:
    parts = [(1.0, one)]
    time, held = pass_parts.time_of(parts, found.chip, off), passes.held_bytes(one)
    least = passes.floor(one, found.chip)
    rate = batch * found.plan.pp * found.ranks / time["time_s"]
    return {
        "context": context,
        "batch": batch,
        "fits": batch <= most,
        "most_batch": int(most) if most < asked.MOST_TOKENS else None,
        "most_by": found.bounded_by(context),
        **time,
        **pass_parts.groups_of(parts),
        **pass_parts.limits_of(parts),
        "tokens_per_s": rate,
        "tokens_per_s_per_gpu": rate / found.gpus,
        "tokens_per_s_per_user": stream_rate(time["time_s"]),
        "weight_bytes_read": held["weights"],
        "cache_bytes_read": held["cache"],
        "floor_s": least,
        "time_over_floor": time["time_s"] / least,
    }
