"""What is the highest rate inside the SLO? Goodput of a GPU: colocated, chunked and disaggregated, side by side."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import inf
from typing import TYPE_CHECKING, Any, ClassVar

from capplan.capacity.answer import Answer, Working
from capplan.capacity.engines.deployment import Deployment
from capplan.capacity.questions import asked, pass_parts, services
from capplan.capacity.questions.goodput_alone import alone, remedies, words
from capplan.capacity.questions.goodput_search import (
    CURVE,
    PRECISION,
    Found,
    Progress,
    Run,
    Search,
    limits,
    most_requests,
)
from capplan.capacity.questions.perf import lengths, measured, placed, refused, short_rate
from capplan.capacity.step_time.calibration import Calibration
from capplan.errors import InputError, near_misses
from capplan.models.resolve import with_tower
from capplan.models.spec import Model
from capplan.units import counted, seconds, tokens

if TYPE_CHECKING:
    from capplan.capacity.simulator.requests import Outcome
    from capplan.capacity.simulator.slo import Point, Slo, Verdict
    from capplan.capacity.simulator.workloads import Mix
    from capplan.hardware.spec import Gpu
    from capplan.report import Report

CONFIGURATIONS = ("colocated", "chunked", "disaggregated")
LENGTH = 1024
MOST_ASKED = 1024
_TAKEN = {
    "round-robin": "in turn",
    "least-loaded": "where 4 x waiting + running is least when they come",
}
_NOTHING_WOULD = (
    "nothing that was tried",
    "more GPUs of a node, narrower weights, other GPUs, shorter prompts",
)
_WHAT = {
    "colocated": "prompts whole, before any decoding",
    "chunked": "prompts in chunks, beside the decoding",
    "disaggregated": "prompts and decoding on GPUs of their own",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Goodput(Answer):
    """The highest request rate inside an SLO, of each way to place prefill and decode, and which is best and why."""

    question: ClassVar[str] = "goodput"

    attainable: bool  # by any configuration, at any rate
    why_not: str | None
    idle: dict[str, float]  # ttft_s and tpot_s of a request alone, at the percentiles of the SLO
    remedies: tuple[dict[str, Any], ...]  # what would meet it, where one request alone doesn't
    best: str | None
    requests_per_s: float
    requests_per_s_per_gpu: float
    output_tokens_per_s_per_gpu: float
    one_instance_requests_per_s: float | None  # of the best configuration, where that has no pools
    reasons: tuple[str, ...]
    configurations: tuple[dict[str, Any], ...]
    curve: tuple[dict[str, Any], ...]  # one row a configuration and rate that was tried

    @property
    def fits(self) -> bool:
        return self.best is not None

    def sweep(self) -> list[dict[str, Any]]:
        return [
            {key: value for key, value in row.items() if key != "bounds"} | _flat(row) for row in self.curve
        ]

    def report(self) -> Report:
        from capplan.report import Report, Table

        inputs = self.inputs
        gpus = (
            self.configurations[0]["gpus"]
            if self.configurations
            else inputs["deployment"]["tensor_parallel_size"]
        )
        where = pass_parts.where(inputs, gpus)
        slo = ", ".join(_bound_words(each) for each in inputs["slo"])
        if not self.attainable:
            rows = tuple((each["what"], each["then"]) for each in self.remedies)
            if self.idle and not rows:  # where it does not fit, nothing was tried
                rows = (_NOTHING_WOULD,)
            tables = [Table(rows, title="What would", words=True)] if rows else []
            return Report(
                f"{where} can't meet {slo}: {self.why_not}", tuple(tables), self.assumptions, self.warnings
            )
        if self.best is None:
            return Report(f"{where}: no rate meets {slo}", (), self.assumptions, self.warnings)
        chosen = next(each for each in self.configurations if each["name"] == self.best)
        headline = (
            f"{inputs['model']} on {inputs['gpu']}, {slo}: {short_rate(self.requests_per_s_per_gpu)} req/s a GPU "
            f"({short_rate(self.output_tokens_per_s_per_gpu)} output tok/s), {self.best}: "
            f"{short_rate(self.requests_per_s)} req/s on {counted(chosen['gpus'], 'GPU')}"
        )
        names = [each["name"] for each in inputs["slo"]]
        alike = len({each["gpus"] for each in self.configurations}) == 1
        rows = tuple(
            (
                each["name"],
                short_rate(each["requests_per_s"]) if each["requests_per_s"] else "none",
                short_rate(each["requests_per_s_per_gpu"]) if each["requests_per_s"] else "-",
                *(_value(each["bounds"], name) for name in names),
                " and ".join(each["limited_by"]),
                _short(each),
            )
            for each in self.configurations
        )
        heads = ("", "req/s", "req/s/GPU", *names, "limit", "with")
        why = tuple((name, text) for name, _, text in (reason.partition(": ") for reason in self.reasons))
        curve = tuple(
            (
                short_rate(row["requests_per_s"]),
                *(
                    "grows" if row["saturated"] and n[:4] in ("ttft", "e2e-") else _value(row["bounds"], n)
                    for n in names
                ),
                f"{100 * row['attainment']:.1f}%",
                f"{100 * row['busy']:.0f}%",
                f"{100 * row['kv']:.0f}%",
                "yes" if row["met"] else "saturated" if row["saturated"] else "no",
            )
            for row in self._shown()
        )
        tables = [
            Table(rows, heads, f"On {counted(chosen['gpus'], 'GPU')} each" if alike else ""),
            Table(why, title="Why", words=True),
            Table(curve, ("req/s", *names, "attainment", "busy", "KV", "inside"), f"{self.best}, by rate"),
        ]
        return Report(headline, tuple(tables), self.assumptions, self.warnings)

    def _shown(self) -> list[dict[str, Any]]:
        """Rows of the best configuration that are worth a line: those nearest to the steps of the curve."""
        rows = [row for row in self.curve if row["configuration"] == self.best]
        kept = {
            min(range(len(rows)), key=lambda i: abs(rows[i]["requests_per_s"] / self.requests_per_s - step))
            for step in CURVE
        }
        return [rows[i] for i in sorted(kept)]


def _flat(row: dict[str, Any]) -> dict[str, Any]:
    return {
        each["name"].replace("-", "_") + ("" if each["is_share"] else "_s"): each["value"]
        for each in row["bounds"]
    }


def _short(row: dict[str, Any]) -> str:
    """The setting of a configuration, in few characters: 2P 1D are two prefill and one decode instance."""
    return str(row["setting"]).replace(" tokens a", " a").replace(" prefill,", "P").replace(" decode", "D")


def _value(bounds: Sequence[dict[str, Any]], name: str) -> str:
    found = next((each for each in bounds if each["name"] == name), None)
    if found is None or found["value"] is None:
        return "-"
    return f"{100 * found['value']:.1f}%" if found["is_share"] else seconds(found["value"])


def _bound_words(bound: dict[str, Any]) -> str:
    if bound["is_share"]:
        inside = [
            f"{name.upper()} {seconds(bound[f'{name}_s'])}" for name in ("ttft", "tpot") if bound[f"{name}_s"]
        ]
        return f"{100 * bound['bound']:g}% within {' and '.join(inside)}"
    kind, _, share = bound["name"].partition("-")
    return f"{kind.upper()} {share} {seconds(bound['bound'])}"


def goodput(
    model: str | Model,
    gpu: str | Gpu,
    deployment: Deployment | None = None,
    *,
    slo: Slo,
    isl: int = LENGTH,
    osl: int = LENGTH,
    mix: Mix | None = None,
    mix_of: str | None = None,
    cv: float = 1.0,
    requests: int | None = None,
    seed: int = 1,
    configurations: Sequence[str] = CONFIGURATIONS,
    pools: tuple[int, int] | None = None,
    instances: int | None = None,
    tp: int | None = None,
    calibration: Calibration | None = None,
    routing: str = "round-robin",
    progress: Progress | None = None,
) -> Goodput:
    """The highest request rate of a GPU at which the SLO holds, of each configuration.

    model, gpu: registry names, a path to a config.json, or a Model and a Gpu.
    deployment: the engine, its version and flags of one instance; what is None is the engine's default.
    slo: bounds that have to hold (simulator.slo.Slo).
    isl, osl: tokens of every prompt and answer, or mix: requests of other lengths or arrivals (simulator.workloads);
    mix_of: what they are, for the record.
    cv: of the gaps between arrivals; 1 is Poisson. requests: simulated at each rate; None is as many as the percentiles
    of the SLO need. seed: which.
    configurations: of CONFIGURATIONS. pools: prefill and decode instances; None tries the ratios that the rates of one
    of each suggest. instances: of the others; None is as many as the pools have together, so that all have as many GPUs.
    tp: tensor-parallel ranks of an instance; None is the smallest number that fits.
    calibration: constants of the engine measured on this GPU. routing: which instance gets a request: round-robin, or
    least-loaded as vLLM's data-parallel balancer does.

    Every rate and every configuration gets the same requests. Raises UnknownNameError, DataFileError, InputError.
    """
    from capplan.capacity.simulator.workloads import Mix, fixed, gamma, known_requests

    spec, card = asked.as_model(model), asked.as_gpu(gpu)
    spec, towers = with_tower(spec)
    names = _known_configurations(configurations)
    for what, count in (("instances", instances), *(("pools of", size) for size in pools or ())):
        if count is not None and (isinstance(count, bool) or not 1 <= count <= MOST_ASKED):
            raise InputError(f"{what} {count!r} is not a whole number of instances from 1 to {MOST_ASKED}")
    work = Working()
    work.assume(*asked.assumed_of(spec), *towers)
    if mix is None:
        isl, osl = lengths(isl, osl)
        count = most_requests(slo) if requests is None else requests
        mix = Mix(gamma(count, seed, cv), *fixed(count, isl, osl))
    most = min(spec.max_context or inf, (deployment and deployment.max_model_len) or inf)
    if most < inf:
        mix, left_out = mix.without(int(most))
        if left_out:
            work.warn(
                f"{counted(left_out, 'request')} of more than {tokens(most)} left out: they would be refused"
            )
    if not len(mix):
        raise InputError(f"every request is longer than the {tokens(most)} that are accepted")
    (mix if requests is None else mix.first(known_requests(requests))).takes_a_rate()
    longest = int((mix.isl + mix.osl).max())
    found = measured(placed(spec, card, deployment or Deployment(), longest, tp, work), calibration, work)
    work.assume(*found.assumptions)
    inputs = pass_parts.inputs_of(found, calibration) | {
        "isl": float(mix.isl.mean()),
        "osl": float(mix.osl.mean()),
        "workload": mix_of,
        "cv": cv if mix.own_rate is None else None,  # a trace draws nothing
        "requests": requests,
        "seed": seed if mix.own_rate is None else None,
        "configurations": names,
        "routing": routing,
        "slo": _bounds_of(slo),
    }
    why_not = refused(found, longest)
    if why_not is not None:
        return _unattainable(inputs, f"it does not fit: {why_not}", {}, (), work)
    whole = services.colocated(found, longest, scheduler="prefill-first", chunked=False)
    whole = replace(whole, routing=routing)  # raises for one that is unknown
    times = alone(whole, mix, slo)
    missed = [each for each in times if each[1] > each[2]]
    idle = {f"{name.replace('-', '_')}_s": value for name, value, _ in times}
    if missed:
        name, value, bound = max(missed, key=lambda each: each[1] / each[2])
        why_not = f"one request alone has {words(name)} {seconds(value)}, over {seconds(bound)}: more replicas can't help"
        return _unattainable(inputs, why_not, idle, remedies(found, mix, slo, longest), work)
    which = (
        f"requests (seed {seed})" if mix.own_rate is None else "requests of the trace, stretched to each rate"
    )
    work.assume(
        f"every rate and placement gets the same {which}; the search ends within {100 * PRECISION:.0f}%",
        "every pass takes what the step-time model says, with no jitter (capplan validate performance)",
        f"instances take requests {_TAKEN[routing]}, and no prompt finds a prefix in the cache",
    )
    search = Search(found, whole, mix, slo, longest, requests, progress or (lambda what, points: None), work)
    results, count = [], instances or 1
    if "disaggregated" in names:
        try:
            split = search.disaggregated(pools)
        except InputError as error:  # no link is on record
            if len(names) == 1:
                raise
            work.warn(str(error))
            split = None
        if split is not None:
            results.append(split)
            count = instances or split.run.replicas // found.ranks
    if "chunked" in names:
        results.insert(0, search.chunked(count))
    if "colocated" in names:
        results.insert(0, search.colocated(count))
    return _answer(inputs, idle, results, search, work)


def _known_configurations(names: Sequence[str]) -> list[str]:
    for name in names:
        if name not in CONFIGURATIONS:
            nearest = near_misses(name, CONFIGURATIONS, 1)
            hint = f"; did you mean {nearest[0]!r}?" if nearest else ""
            raise InputError(f"unknown configuration {name!r}; one of {', '.join(CONFIGURATIONS)}{hint}")
    if not names:
        raise InputError(f"no configuration given; name at least one of {', '.join(CONFIGURATIONS)}")
    return list(dict.fromkeys(names))


def _bounds_of(slo: Slo) -> list[dict[str, Any]]:
    told: list[dict[str, Any]] = [
        {"name": bound.name, "bound": bound.seconds, "is_share": False} for bound in slo.bounds
    ]
    if slo.joint is not None:
        told.append(
            {
                "name": f"attainment-{100 * slo.joint.share:g}",
                "bound": slo.joint.share,
                "is_share": True,
                "ttft_s": slo.joint.ttft if slo.joint.ttft < inf else None,
                "tpot_s": slo.joint.tpot if slo.joint.tpot < inf else None,
            }
        )
    return told


def _unattainable(
    inputs: dict[str, Any],
    why_not: str,
    idle: dict[str, float],
    remedies: tuple[dict[str, Any], ...],
    work: Working,
) -> Goodput:
    return Goodput(
        inputs=inputs,
        attainable=False,
        why_not=why_not,
        idle=idle,
        remedies=remedies,
        best=None,
        requests_per_s=0.0,
        requests_per_s_per_gpu=0.0,
        output_tokens_per_s_per_gpu=0.0,
        one_instance_requests_per_s=None,
        reasons=(),
        configurations=(),
        curve=(),
        **work.shown(),
    )


# --- the answer ---------------------------------------------------------------------------------------------------


def _answer(
    inputs: dict[str, Any], idle: dict[str, float], results: list[Found], search: Search, work: Working
) -> Goodput:
    rows = [_row(each, search.osl) for each in results]
    best = max(rows, key=lambda row: row["requests_per_s_per_gpu"], default=None)
    if best is not None and not best["requests_per_s"]:
        best = None
    one_alone: Found | None = None
    if best is not None:
        chosen = next(each for each in results if each.run.name == best["name"])
        search.fill(chosen)
        if best["name"] != "disaggregated" and chosen.run.replicas > search.found.ranks:
            one_alone = search.of(search.alone(chosen.run))
    points = [
        _point(each.run, point) for each in results for point in sorted(each.points, key=lambda p: p.rate)
    ]
    return Goodput(
        inputs=inputs,
        attainable=best is not None,
        why_not=None if best is not None else "at no rate that was tried",
        idle=idle,
        remedies=(),
        best=best["name"] if best else None,
        requests_per_s=best["requests_per_s"] if best else 0.0,
        requests_per_s_per_gpu=best["requests_per_s_per_gpu"] if best else 0.0,
        output_tokens_per_s_per_gpu=best["output_tokens_per_s_per_gpu"] if best else 0.0,
        one_instance_requests_per_s=one_alone.rate if one_alone else None,
        reasons=_reasons(best, rows, idle, one_alone) if best else (),
        configurations=tuple(rows),
        curve=tuple(points),
        **work.shown(),
    )


def _bounds(verdict: Verdict) -> list[dict[str, Any]]:
    return [
        {
            "name": each.name,
            "bound": each.bound,
            "value": None if each.value == inf else each.value,
            "low": None if each.low == inf else each.low,
            "high": each.high,
            "met": each.met,
            "is_share": each.name.startswith("attainment"),
        }
        for each in verdict.held
    ]


def _point(run: Run, point: Point) -> dict[str, Any]:
    outcome: Outcome = point.outcome
    totals = outcome.totals
    time = totals.seconds or inf
    return {
        "configuration": run.name,
        "requests_per_s": point.rate,
        "requests_per_s_per_gpu": point.rate / run.gpus,
        "met": point.verdict.met,
        "saturated": point.verdict.saturated,
        "attainment": point.verdict.attainment.joint,
        "attainment_ttft": point.verdict.attainment.ttft,
        "attainment_tpot": point.verdict.attainment.tpot,
        "busy": totals.busy / time / run.replicas,
        "kv": totals.block_seconds / (totals.blocks * time) if totals.blocks else 0.0,
        "preempted": int((outcome.preemptions > 0).sum()),
        "bounds": _bounds(point.verdict),
    }


def _row(found: Found, osl: float) -> dict[str, Any]:
    run, rate = found.run, found.rate
    at = next((point for point in found.points if point.rate == rate), None)
    return {
        "name": run.name,
        "what": _WHAT[run.name],
        "setting": run.setting,
        "gpus": run.gpus,
        "requests_per_s": rate,
        "requests_per_s_per_gpu": rate / run.gpus,
        "output_tokens_per_s_per_gpu": rate * osl / run.gpus,
        "limited_by": list(limits(found)),
        "bounds": _bounds(at.verdict) if at else [],
        "points": len(found.points),
        "requests": len(found.points[0].outcome.workload) if found.points else 0,
    }


def _reasons(
    best: dict[str, Any], rows: list[dict[str, Any]], idle: dict[str, float], one_alone: Found | None
) -> tuple[str, ...]:
    """Why the best one is: what stops each of the others, and what stops it."""
    told = []
    room = [
        f"{words(each['name'])} is {seconds(each['value'])} of {seconds(each['bound'])}"
        for each in best["bounds"]
        if not each["is_share"] and each["value"] is not None and each["name"] not in best["limited_by"]
    ]
    limit = " and ".join(_limit_words(each) for each in best["limited_by"]) or "the points of the search"
    told.append(f"{best['name']}: {best['what']}; ends at {limit}" + (f", {', '.join(room)}" if room else ""))
    for row in rows:
        if row is best:
            continue
        if not row["requests_per_s"]:
            told.append(f"{row['name']}: at no rate; {_stops(row, idle)}")
            continue
        ratio = row["requests_per_s_per_gpu"] / best["requests_per_s_per_gpu"]
        if ratio > 1 - PRECISION:
            told.append(f"{row['name']}: the same within what the search resolves; {_stops(row, idle)}")
        else:
            told.append(f"{row['name']}: {100 * (1 - ratio):.0f}% less a GPU; {_stops(row, idle)}")
    if one_alone is not None:
        ends = " and ".join(_limit_words(each) for each in limits(one_alone)) or "the points of the search"
        rate = f"{short_rate(one_alone.rate)} req/s" if one_alone.rate else "at no rate"
        told.append(
            f"one instance alone: {rate}; ends at {ends}; several that take turns have fewer bursts each"
        )
    return tuple(told)


def _limit_words(name: str) -> str:
    return words(name) if "-p" in name else name


def _stops(row: dict[str, Any], idle: dict[str, float]) -> str:
    """What stops a configuration, in words."""
    broken = row["limited_by"]
    kinds = {name.partition("-")[0] for name in broken}
    named = " and ".join(_limit_words(each) for each in broken) or "nothing that was tried"
    prompt = max((value for name, value in idle.items() if name.startswith("ttft")), default=None)
    if row["name"] == "colocated" and kinds & {"tpot", "itl"}:
        stall = f" for {seconds(prompt)}" if prompt else ""
        return f"{named}: every prompt stops all decoding{stall}"
    if row["name"] == "chunked" and kinds & {"ttft", "e2e"}:
        return f"{named}: a prompt takes more passes, beside the decoding"
    if row["name"] == "chunked" and kinds & {"tpot", "itl"}:
        return f"{named}: passes with chunks are longer than those that only decode"
    if row["name"] == "disaggregated" and "ttft" in kinds:
        return f"{named}: prompts queue for the prefill instances alone, and the cache has to go over"
    if row["name"] == "disaggregated" and kinds & {"tpot", "itl"}:
        return f"{named}: its decode instances are full"
    return f"{named} is its limit"
