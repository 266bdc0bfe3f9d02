"""How fast does it serve? Latency and throughput of a deployment at so many requests under way."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import date
from math import isfinite
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

from capplan.capacity import service
from capplan.capacity.answer import Answer, Working
from capplan.capacity.engines.deployment import Deployment
from capplan.capacity.questions import asked, gpu_terms
from capplan.capacity.questions.deployed import Deployed, deployed
from capplan.capacity.questions.engine_fit import checked, servable
from capplan.capacity.step_time.calibration import Calibration, calibrated, warnings_of
from capplan.capacity.step_time.forward import Step
from capplan.capacity.step_time.measured_kernels import kernel_constants, refuse, unmeasured, with_kernels
from capplan.capacity.step_time.operations import least
from capplan.capacity.step_time.passes import between as pass_range
from capplan.capacity.step_time.passes import one_pass
from capplan.capacity.step_time.serving import Serving, closed_loop
from capplan.errors import InputError
from capplan.models.resolve import with_tower
from capplan.models.spec import Model
from capplan.units import counted, gib, seconds, tokens

if TYPE_CHECKING:
    from capplan.hardware.spec import Gpu
    from capplan.report import Report, Table

CONCURRENCY = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512)
LENGTH = 1024  # tokens of a prompt and of an answer, where none is given
_MOST_REQUESTS = 10**6
_RANKS = (1, 2, 4, 8, 16, 32, 64)
_NODE = 8  # GPUs, where it is not on record
_PREFILL_BOUND = 0.5  # share of the time
STEADY = (
    "times are of the steady state: a new request comes whenever one leaves; the queue of a benchmark's first "
    "moments, when all come at once, is not counted"
)
RANGE = (
    "ranges are those that measured kernels lie in, all erring the same way; `capplan validate performance` says how far "
    "whole predictions are off"
)


class Load(NamedTuple):
    """Serving at one concurrency: what one data-parallel rank does, and the ranges of its passes as multiples."""

    serving: Serving
    active: float  # ranks that have a request
    ttft: tuple[float, float]
    tpot: tuple[float, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Perf(Answer):
    """Time to first token, time per output token and throughput of a deployment, at each concurrency."""

    question: ClassVar[str] = "perf"

    gpus: int
    starts: bool  # and one request fits
    why_not: str | None
    weight_bytes: float  # of one rank
    kv_bytes: float
    most_requests: float | None  # of these lengths that run at once, on all ranks; None without a bound
    most_by: str  # what bounds them: memory or max-num-seqs
    engine_constants: tuple[
        dict[str, Any], ...
    ]  # times in seconds; `from` is engine_steps.toml or a calibration
    at: tuple[dict[str, Any], ...]  # one a concurrency

    @property
    def fits(self) -> bool:
        return self.starts

    def sweep(self) -> list[dict[str, Any]]:
        return [dict(row) for row in self.at]

    def report(self) -> Report:
        from capplan.report import Report, Table

        inputs = self.inputs
        engine = " ".join(part for part in (inputs["engine"], inputs["engine_version"]) if part)
        where = f"{inputs['model']} under {engine} on {self.gpus} x {inputs['gpu']}"
        if not self.starts:
            return Report(f"{where} does not fit: {self.why_not}", (), self.assumptions, self.warnings)
        best = max(self.at, key=lambda row: row["output_tokens_per_s"])
        headline = (
            f"{where}, prompts of {tokens(inputs['isl'])}, answers of {tokens(inputs['osl'])}: "
            f"{best['output_tokens_per_s']:,.0f} output tok/s at {counted(best['concurrency'], 'request')}"
        )
        facts = [
            ("weights", gib(self.weight_bytes), "of one rank"),
            ("KV cache", gib(self.kv_bytes), "of one rank"),
        ]
        if self.most_requests is not None:
            facts.append(("at once", f"{int(self.most_requests):,}", f"such requests, by {self.most_by}"))
        heads = (
            "concurrency",
            "TTFT",
            "TPOT",
            "tok/s/user",
            "tok/s/GPU",
            "output tok/s",
            "limit",
            "total tok/s",
            "req/s",
            "batch",
            "prefill",
        )
        rows = tuple(
            (
                f"{row['concurrency']:,}",
                seconds(row["ttft_s"]),
                seconds(row["tpot_s"]),
                short_rate(row["tokens_per_s_per_user"]),
                short_rate(row["output_tokens_per_s_per_gpu"]),
                short_rate(row["output_tokens_per_s"]),
                row["limit"],
                short_rate(row["total_tokens_per_s"]),
                f"{row['requests_per_s']:,.3g}",
                f"{row['decode_batch']:,.0f}",
                f"{100 * row['prefill_share']:.0f}%",
            )
            for row in self.at
        )
        tables = [
            Table(tuple(facts)),
            Table(rows, heads),
            ranges("concurrency", [(f"{row['concurrency']:,}", row) for row in self.at]),
        ]
        if inputs["calibration"]:
            told = tuple(
                (
                    each["name"],
                    shown(each["value"]),
                    between(shown, each["low"], each["high"]),
                    "measured" if each["trust"] == "measured" else "the points say little",
                )
                for each in self.engine_constants
                if each["from"] == inputs["calibration"]
                for shown in (seconds if each["unit"] == "s" else "{:.4g}".format,)
            )
            columns = ("constant", "value", "from - to", "")
            tables.append(Table(told, columns, title=f"Measured, from {inputs['calibration']}"))
        return Report(headline, tuple(tables), self.assumptions, self.warnings)


def short_rate(rate: float) -> str:
    """A rate for display."""
    return f"{rate:,.0f}" if rate >= 100 else f"{rate:.3g}"


def ranges(head: str, rows: Sequence[tuple[str, dict[str, Any]]]) -> Table:
    """The ranges of rows, each under its name."""
    from capplan.report import Table

    told = tuple(
        (
            name,
            between(seconds, row["ttft_low_s"], row["ttft_high_s"]),
            between(seconds, row["tpot_low_s"], row["tpot_high_s"]),
            between(short_rate, row["output_tokens_per_s_low"], row["output_tokens_per_s_high"]),
        )
        for name, row in rows
    )
    return Table(told, (head, "TTFT from to", "TPOT from to", "output tok/s from to"))


def between(shown: Any, low: float, high: float) -> str:
    """A range for display."""
    return f"{shown(low)} - {shown(high)}"


def perf(
    model: str | Model,
    gpu: str | Gpu,
    deployment: Deployment | None = None,
    *,
    isl: int = LENGTH,
    osl: int = LENGTH,
    concurrency: Sequence[int] = CONCURRENCY,
    tp: int | None = None,
    calibration: Calibration | None = None,
) -> Perf:
    """Latency and throughput of one deployment, at each number of requests under way.

    model, gpu: registry names, a path to a config.json, or a Model and a Gpu.
    deployment: the engine, its version and flags; what is None is the engine's default. max_model_len is the length
    of a request where it is None.
    isl, osl: tokens of a prompt and of an answer. concurrency: requests of all replicas together.
    tp: tensor-parallel ranks; None is the smallest number that fits.
    calibration: constants of the engine measured on this GPU (step_time.calibration.read_calibration).

    Raises UnknownNameError, DataFileError, InputError.

    >>> found = perf("llama-3.1-8b", "h100-sxm", isl=1000, osl=1000, concurrency=[1, 64])
    >>> [row["limit"] for row in found.at]
    ['decode', 'decode']
    """
    spec, card = asked.as_model(model), asked.as_gpu(gpu)
    spec, towers = with_tower(spec)
    work = Working()
    work.assume(*asked.assumed_of(spec), *towers)
    isl, osl = lengths(isl, osl)
    loads = loads_of(concurrency)
    found = placed(spec, card, deployment or Deployment(), isl + osl, tp, work)
    found = measured(found, calibration, work)
    why_not = refused(found, isl + osl)
    work.assume(*found.assumptions)
    given(found, calibration, work)
    rows = []
    if why_not is None:
        work.assume(STEADY)
        if calibration is None or calibration.ttft_off is None:
            work.assume(RANGE)
        rows = [row(found, isl, osl, count, calibration, work) for count in loads]
    most = found.most(isl + osl) * found.ranks
    flags = found.flags
    return Perf(
        inputs={
            "model": spec.id,
            "gpu": card.id,
            "engine": flags.engine,
            "engine_version": flags.version or None,
            "deployment": {name: getattr(flags, name) for name in Deployment.__slots__},
            "isl": isl,
            "osl": osl,
            "concurrency": loads,
            "tier": "measured" if calibration else "engine",
            "calibration": calibration.name if calibration else None,
        },
        gpus=found.gpus,
        starts=why_not is None,
        why_not=why_not,
        weight_bytes=found.memory.weights,
        kv_bytes=max(0.0, found.memory.kv),
        most_requests=most if isfinite(most) else None,
        most_by=found.bounded_by(isl + osl),
        engine_constants=_constants(found, calibration),
        at=tuple(rows),
        **work.shown(),
    )


def lengths(isl: object, osl: object) -> tuple[int, int]:
    """Tokens of a prompt and of an answer, checked."""
    found = []
    for name, count in (("isl", isl), ("osl", osl)):
        try:
            found.append(asked.whole_tokens(count))
        except InputError as error:
            raise InputError(f"{name}: {str(error).removeprefix('context ')}") from error
    if found[1] < 2:
        raise InputError("osl 1: an answer of one token has no time per output token; 2 or more is accepted")
    return found[0], found[1]


def loads_of(counts: Sequence[int]) -> list[int]:
    """Requests under way, checked, each once, the fewest first."""
    if not isinstance(counts, Sequence) or isinstance(counts, str | bytes):
        raise InputError(f"concurrency {counts!r} is not a list of numbers of requests, such as [1, 64]")
    for count in counts:
        if isinstance(count, bool) or not isinstance(count, int) or not 1 <= count <= _MOST_REQUESTS:
            raise InputError(
                f"concurrency {count!r} is not a whole number of requests from 1 to {_MOST_REQUESTS:,}"
            )
    if not counts:
        raise InputError("no concurrency given; name at least one, such as 64")
    return sorted(set(counts))


def placed(
    model: Model, gpu: Gpu, flags: Deployment, longest: int, tp: int | None, work: Working, requests: int = 1
) -> Deployed:
    """The deployment on its GPUs: on the fewest tensor-parallel ranks that hold it, where no number is given.

    longest: tokens of a request, prompt and answer. requests: so many are to fit at once; if no number of ranks of
    one node holds them all, one is enough. Raises InputError where no number of ranks can divide the model.
    """
    checked(flags)
    if tp is not None and not asked.is_whole(tp, 1024):
        raise InputError(f"tensor_parallel_size {tp!r} is not a whole number from 1 to 1,024")
    if flags.max_model_len is None:
        flags = replace(flags, max_model_len=longest)
        work.assume(f"max_model_len is a request's {longest:,} tokens, prompt and answer (--max-model-len)")
    if model.max_context and longest > model.max_context:
        work.warn(f"{longest:,} tokens: past the {model.max_context:,} that {model.id} was made for")
    if tp is not None:
        return _deployed(model, gpu, replace(flags, tensor_parallel_size=tp))
    last, fewest, why = None, None, None
    node = gpu.max_gpus_per_node or _NODE
    for ranks in _RANKS:
        if fewest is not None and ranks > node:
            break
        try:
            last = _deployed(model, gpu, replace(flags, tensor_parallel_size=ranks))
        except InputError as error:  # heads or data-parallel replicas that can't be divided so
            why = why or error
            continue
        if longest > (flags.max_model_len or longest):  # more ranks would not help
            break
        if refused(last, longest) is None:
            fewest = fewest or last
            if last.most(longest) * last.ranks >= requests:
                fewest = last
                break
    found = fewest or last
    if found is None:
        assert why is not None
        raise why
    if fewest is not None:
        holds = "one request" if requests == 1 else f"all {requests:,} requests"
        if fewest.most(longest) * fewest.ranks < requests:
            holds = f"one request, since no number in one node holds all {requests:,}"
        work.assume(f"tensor-parallel size: the smallest whose memory holds {holds} (--tp)")
    return found


def _deployed(model: Model, gpu: Gpu, flags: Deployment) -> Deployed:
    servable(model, checked(flags))
    return deployed(model, gpu, flags)


def refused(found: Deployed, longest: int) -> str | None:
    """Why a deployment serves no request of this length; None where it does."""
    if not found.memory.starts:
        return found.memory.why_not or "the engine does not start"
    asked_for = found.flags.max_model_len or longest
    if longest > asked_for:
        return f"a request of {longest:,} tokens is longer than max_model_len {asked_for:,}"
    if found.most(longest) < 1:
        left = gib(max(0.0, found.memory.kv))
        return f"{left} of KV cache on a GPU hold no request of {longest:,} tokens"
    return None


def measured(found: Deployed, calibration: Calibration | None, work: Working) -> Deployed:
    """The deployment with the constants of a calibration. Raises InputError for one of another GPU or engine."""
    if calibration is None:
        return found
    if not isinstance(calibration, Calibration):
        raise InputError(f"calibration {calibration!r} is not one that read_calibration gave")
    flags = found.flags
    refuse(calibration, found.gpu)
    work.warn(*warnings_of(calibration, found.model.id, flags.version, date.today()))
    if calibration.engine is None:
        kernels = kernel_constants(calibration, found.chip)
        if not kernels:
            raise InputError(
                f"calibration {calibration.name!r} has no constant that a plan needs; run more probes"
            )
        names = ", ".join(each.name for each in kernels)
        work.assume(
            f"{names} are from {calibration.name}, measured on {calibration.created}; ranges are as shipped"
        )
        work.warn(*unmeasured(calibration, found.chip, found.plan))
        return replace(found, chip=with_kernels(found.chip, kernels), measured=tuple(kernels))
    work.assume(
        f"{', '.join(calibration.constants)} are from {calibration.name}, measured on {calibration.created}; ranges "
        "are its error on points left out of the fit"
    )
    return replace(found, engine=calibrated(found.engine, found.gpu.id, calibration))


def load(found: Deployed, isl: int, osl: int, concurrency: float, calibration: Calibration | None) -> Load:
    """Serving at one concurrency of all ranks together, in the steady state."""
    active = min(float(found.ranks), concurrency)
    serving = closed_loop(
        found.plan,
        found.chip,
        found.engine,
        isl=isl,
        osl=osl,
        concurrency=concurrency / active,
        most=found.most(isl + osl),
    )
    if calibration is not None and calibration.ttft_off is not None and calibration.tpot_off is not None:
        ttft, tpot = ((1 / (1 + off), 1 + off) for off in (calibration.ttft_off, calibration.tpot_off))
        return Load(serving, active, ttft, tpot)
    batch, context, chunk = serving.batch / found.plan.pp, isl + osl / 2, least(isl, found.engine.budget)
    later = Step(decode=batch, context=context)
    first = Step(
        decode=batch if found.engine.mixed else 0.0,
        context=context,
        prompts=1.0,
        chunk=chunk,
        before=(isl - chunk) / 2,
    )
    ttft, step = _range(found, first), _range(found, later)
    share = serving.prefill_share
    low, high = (share * one + (1 - share) * other for one, other in zip(ttft, step, strict=True))
    return Load(serving, active, ttft, (low, high))


def _range(found: Deployed, step: Step) -> tuple[float, float]:
    """Where the time of a pass may lie, as multiples of what is predicted."""
    one = one_pass(found.plan, found.chip, found.engine, step)
    low, high = pass_range([(1.0, one)], found.chip)
    return min(1.0, low / one.seconds), high / one.seconds


def row(
    found: Deployed,
    isl: int,
    osl: int,
    concurrency: int,
    calibration: Calibration | None,
    work: Working | None = None,
    label: str = "",
) -> dict[str, Any]:
    """What a user is told of one concurrency; `work` keeps the formulas behind it, under a label."""
    at = load(found, isl, osl, concurrency, calibration)
    serving = at.serving
    if work is not None:
        each, why = concurrency / at.active, f"{label}{counted(concurrency, 'request')}"
        work(
            service.closed_loop_rate,
            why,
            prefill=serving.prefill_share / serving.requests_per_s,
            output_tokens=osl,
            step=serving.step,
            batch=serving.batch,
        )
        work(
            service.closed_loop_tpot,
            why,
            concurrency=each,
            rate=serving.requests_per_s,
            ttft=serving.ttft,
            output_tokens=osl,
            step=serving.step,
        )
    rate = serving.requests_per_s * at.active
    output = rate * osl
    return {
        "concurrency": concurrency,
        "ttft_s": serving.ttft,
        "ttft_low_s": serving.ttft * at.ttft[0],
        "ttft_high_s": serving.ttft * at.ttft[1],
        "tpot_s": serving.tpot,
        "tpot_low_s": serving.tpot * at.tpot[0],
        "tpot_high_s": serving.tpot * at.tpot[1],
        "output_tokens_per_s": output,
        "output_tokens_per_s_low": output / at.tpot[1],
        "output_tokens_per_s_high": output / at.tpot[0],
        "total_tokens_per_s": rate * (isl + osl),
        "output_tokens_per_s_per_gpu": output / found.gpus,
        "tokens_per_s_per_user": service.stream_rate(serving.tpot),
        "requests_per_s": rate,
        "decode_batch": serving.batch,
        "prefill_share": serving.prefill_share,
        "limit": _limit(found, serving, isl + osl, concurrency / at.active),
    }


def _limit(found: Deployed, serving: Serving, longest: int, concurrency: float) -> str:
    """What stands in the way of more: the cache, the engine's own bound of a batch, prompts, or decoding."""
    if concurrency > found.most(longest):
        return found.bounded_by(longest)
    return "prefill" if serving.prefill_share > _PREFILL_BOUND else "decode"


def given(found: Deployed, calibration: Calibration | None, work: Working) -> None:
    """The figures that the times stand on, with their sources."""
    gpu_terms.memory(found.gpu, "engine", work)
    gpu_terms.bandwidth(found.gpu, work)
    for dtype, rate in sorted(found.gpu.dense_flops.items()):
        if dtype in ("bf16", "fp8", "fp4"):
            source = gpu_terms.source_of(found.gpu, f"dense_flops.{dtype}")
            work.read(f"peak_flops ({dtype})", rate, "FLOP/second", source)
    for each in _constants(found, calibration):
        unit = "second" if each["unit"] == "s" else "-"
        name = each["name"] if each["name"].startswith("kernels.") else f"{found.engine.name}.{each['name']}"
        work.read(name, each["value"], unit, each["from"])


_TIMES = ("step", "layer", "mixture", "sequence", "stage", "prefill_layer", "request")
_NO_CONSTANTS = ("name", "budget", "mixed", "poll")


def _constants(found: Deployed, calibration: Calibration | None) -> tuple[dict[str, Any], ...]:
    """The engine's constants, and where each is from."""
    told = []
    for name in found.engine._fields:
        if name in _NO_CONSTANTS:
            continue
        of = calibration.constants.get(name) if calibration else None
        told.append(
            {
                "name": name,
                "value": getattr(found.engine, name),
                "unit": "s" if name in _TIMES else "1",
                "low": of.low if of else None,
                "high": of.high if of else None,
                "trust": of.trust if of else "shipped",
                "from": calibration.name if of and calibration else "engine_steps.toml",
            }
        )
    for each in found.measured:
        scale, unit = (1e-6, "s") if each.unit == "us" else (1.0, "1")
        told.append(
            {
                "name": f"kernels.{each.name}",
                "value": scale * each.value,
                "unit": unit,
                "low": scale * each.low,
                "high": scale * each.high,
                "trust": "measured",
                "from": calibration.name if calibration else "",
            }
        )
    return tuple(told)
