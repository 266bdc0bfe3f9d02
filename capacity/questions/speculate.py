"""What is speculation worth? The gain of a draft by batch and acceptance, and the batch at which it turns to a loss."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from capplan.capacity import speculation
from capplan.capacity.answer import Answer, Working
from capplan.capacity.engines.deployment import Deployment
from capplan.capacity.questions import asked, pass_parts
from capplan.capacity.questions.deployed import Deployed
from capplan.capacity.questions.perf import placed
from capplan.capacity.step_time.forward import Layout, Step, layout
from capplan.capacity.step_time.passes import pass_time
from capplan.errors import InputError
from capplan.models.resolve import with_tower
from capplan.models.spec import Model
from capplan.units import seconds, tokens

if TYPE_CHECKING:
    from capplan.hardware.spec import Gpu
    from capplan.report import Report

BATCHES = tuple(2**i for i in range(10))  # 1, 2, 4, ... 512
ACCEPTANCES = (0.5, 0.6, 0.7, 0.8, 0.9)
SPECULATED = tuple(range(1, 9))
DRAFT_COST = 0.05
MOST_SPECULATED = 64
_PAYS = 1.01  # a gain of less is noise


@dataclass(frozen=True, slots=True, kw_only=True)
class Speculate(Answer):
    """Gain of speculative decoding by batch and acceptance, and where it turns into a loss."""

    question: ClassVar[str] = "speculate"

    gpus: int
    most_batch: int | None  # that memory holds; None without a bound
    at: tuple[
        dict[str, Any], ...
    ]  # one entry a batch and acceptance, with the number of tokens that gains most
    pays_until: tuple[
        dict[str, Any], ...
    ]  # the largest batch asked for at which each acceptance gains; null: none

    def sweep(self) -> list[dict[str, Any]]:
        return [dict(row) for row in self.at]

    def report(self) -> Report:
        from capplan.report import Report, Table

        rates = self.inputs["acceptances"]
        by = {(row["batch"], row["acceptance"]): row for row in self.at}
        batches = list(dict.fromkeys(row["batch"] for row in self.at))
        rate, where = rates[len(rates) // 2], pass_parts.where(self.inputs, self.gpus)
        gains = [
            f"{by[b, rate]['speed_up']:.2f} at batch {b:,}" for b in dict.fromkeys((batches[0], batches[-1]))
        ]
        headline = f"{where}, {tokens(self.inputs['context'])} of context: times as fast with an acceptance of {rate:g}: "
        headline += ", ".join(gains)
        rows = []
        for batch in batches:
            one = by[batch, rates[0]]
            held = self.most_batch is None or batch <= self.most_batch
            cells = tuple(
                f"{by[batch, rate]['speed_up']:.2f} ({by[batch, rate]['speculated']})" for rate in rates
            )
            rows.append((f"{batch:,}" if held else f"({batch:,})", *cells, seconds(one["step_s"])))
        heads = ("batch", *(f"{rate:g}" for rate in rates), "a pass without")
        tables = [Table(tuple(rows), heads, "Times as fast, by acceptance; in brackets: drafted tokens")]
        until = tuple(
            (
                f"acceptance {row['acceptance']:g}",
                "no batch" if row["batch"] is None else f"batch {row['batch']:,}",
            )
            for row in self.pays_until
        )
        tables.append(Table(until, title="A draft pays up to"))
        return Report(headline, tuple(tables), self.assumptions, self.warnings)


def speculate(
    model: str | Model,
    gpu: str | Gpu,
    deployment: Deployment | None = None,
    *,
    draft: str | Model | None = None,
    draft_cost: float | None = None,
    acceptances: Sequence[float] = ACCEPTANCES,
    speculated: Sequence[int] = SPECULATED,
    batches: Sequence[int] = BATCHES,
    context: int = 4_000,
    tp: int | None = None,
) -> Speculate:
    """The gain of speculative decoding when `batch` sequences of `context` tokens decode together.

    draft: a draft model that runs on the same ranks, one token after another. draft_cost: instead of it, the time of a
    draft's pass over that of the target's, at every batch; 0 for n-gram lookup, 0.05 when neither is given.
    acceptances: probabilities that a drafted token holds. speculated: numbers of drafted tokens; the best of them is
    told for every batch and acceptance.
    context [token]: of each sequence. tp: tensor-parallel ranks; None is the smallest number that fits.

    Raises UnknownNameError, DataFileError, InputError.

    >>> found = speculate("llama-3.3-70b", "h200-sxm", draft="llama-3.2-1b", batches=[1, 512], tp=4)
    >>> gains = {(row["batch"], row["acceptance"]): row["speed_up"] for row in found.at}
    >>> gains[1, 0.8] > 2 > gains[512, 0.8]
    True
    """
    spec, card = asked.as_model(model), asked.as_gpu(gpu)
    spec, towers = with_tower(spec)
    work = Working()
    work.assume(*asked.assumed_of(spec), *towers)
    rates, lengths = _acceptances(acceptances), _speculated(speculated)
    sizes, context = asked.known_batches(batches), asked.whole_tokens(context)
    found = placed(spec, card, pass_parts.allowing(deployment, context), context, tp, work)
    work.assume(*found.assumptions)
    plan, small, cost = found.plan, _draft(found, draft, draft_cost, work), draft_cost
    if small is None and cost is None:
        cost = DRAFT_COST
        work.assume(f"a draft's pass takes {cost:g} of the target's (--draft or --draft-cost)")
    work.assume("every sequence of a batch speculates; tokens are accepted independently of each other")
    rows = []
    for batch in sizes:
        passes = _Passes(found, small, cost or 0.0, batch, context)
        for rate in rates:
            rows.append(max((passes.row(rate, count) for count in lengths), key=lambda r: r["speed_up"]))
    first = max(rows, key=lambda row: row["speed_up"])
    work(
        speculation.expected_tokens,
        f"acceptance {first['acceptance']:g}",
        acceptance=first["acceptance"],
        speculated=first["speculated"],
    )
    work(
        speculation.batch_speed_up,
        f"batch {first['batch']:,}",
        tokens=first["tokens_per_pass"],
        step=first["step_s"],
        speculated=first["speculated"],
        draft=first["draft_s"],
        verify=first["verify_s"],
    )
    if first["acceptance"] < 1:
        work(
            speculation.walltime_ratio,
            "checking for nothing, as at a small batch",
            acceptance=first["acceptance"],
            speculated=first["speculated"],
            cost_ratio=first["draft_s"] / first["step_s"],
        )
    most = pass_parts.most_of(found, context)
    bounded = most < asked.MOST_TOKENS
    if bounded and max(sizes) > most:
        work.warn(
            f"memory holds {int(most):,} sequences of {tokens(context)}: batches in brackets do not fit"
        )
    return Speculate(
        inputs=pass_parts.inputs_of(found, None)
        | {
            "draft": None if small is None else small.model.id,
            "draft_cost": cost,
            "acceptances": rates,
            "speculated": lengths,
            "batches": sizes,
            "context": context,
        },
        gpus=plan.tp * plan.pp * plan.dp,
        most_batch=int(most) if bounded else None,
        at=tuple(rows),
        pays_until=tuple(
            {
                "acceptance": rate,
                "batch": max(
                    (r["batch"] for r in rows if r["acceptance"] == rate and r["speed_up"] >= _PAYS),
                    default=None,
                ),
            }
            for rate in rates
        ),
        **work.shown(),
    )


class _Passes:
    """The passes of one batch: without a draft, of the draft, and the target's over a draft of each length."""

    def __init__(self, found: Deployed, small: Layout | None, cost: float, batch: int, context: int) -> None:
        self.found, self.batch, self.context = found, batch, context
        self.step = self._time(found.plan, 1)
        self.draft = cost * self.step if small is None else self._time(small, 1)
        self.verify: dict[int, float] = {}

    def _time(self, plan: Layout, queries: int) -> float:
        step = Step(decode=float(self.batch), context=float(self.context), queries=queries)
        return float(pass_time(plan, self.found.chip, self.found.engine, step))

    def row(self, acceptance: float, count: int) -> dict[str, Any]:
        if count not in self.verify:
            self.verify[count] = self._time(self.found.plan, count + 1)
        run = speculation.expected_tokens(acceptance, count)
        gain = speculation.batch_speed_up(run, self.step, count, self.draft, self.verify[count])
        return {
            "batch": self.batch,
            "acceptance": acceptance,
            "speculated": count,
            "tokens_per_pass": run,
            "step_s": self.step,
            "draft_s": self.draft,
            "verify_s": self.verify[count],
            "speed_up": gain,
            "tpot_s": self.step / gain,
        }


def _draft(
    found: Deployed, draft: str | Model | None, draft_cost: float | None, work: Working
) -> Layout | None:
    if draft is None:
        if draft_cost is not None and not 0 <= asked.number(draft_cost) < 10:
            raise InputError(f"draft cost {draft_cost!r} is not a share of the target's pass from 0 to 10")
        return None
    if draft_cost is not None:
        raise InputError("a draft model and a draft cost exclude each other; give one")
    small = asked.as_model(draft)
    work.assume(*asked.assumed_of(small))
    if small.vocab_size and found.model.vocab_size and small.vocab_size != found.model.vocab_size:
        work.warn(
            f"{small.id} has {small.vocab_size:,} tokens in its vocabulary and {found.model.id} {found.model.vocab_size:,}: "
            "engines draft with models of the same one"
        )
    return layout(small, kv=found.plan.kv if found.plan.kv != "nvfp4" else "bf16", tp=found.plan.tp)


def _acceptances(given: Sequence[float]) -> list[float]:
    for rate in given:
        if not 0 <= asked.number(rate) <= 1:
            raise InputError(f"acceptance {rate!r} is not a probability from 0 to 1")
    if not given:
        raise InputError("no acceptance given; name at least one, such as 0.7")
    return sorted({float(rate) for rate in given})


def _speculated(given: Sequence[int]) -> list[int]:
    for count in given:
        if isinstance(count, bool) or not isinstance(count, int) or not 1 <= count <= MOST_SPECULATED:
            raise InputError(f"{count!r} drafted tokens is not a whole number from 1 to {MOST_SPECULATED}")
    if not given:
        raise InputError("no number of drafted tokens given; name at least one, such as 4")
    return sorted(set(given))
