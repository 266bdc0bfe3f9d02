"""What is the highest rate inside the SLO? Goodput of a GPU: colocated, chunked and disaggregated, side by side."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import inf
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

from capplan.capacity import queueing
from capplan.capacity.answer import Answer, Working
from capplan.capacity.engines.deployment import Deployment
from capplan.capacity.questions import asked, pass_parts, services
from capplan.capacity.questions.deployed import Deployed
from capplan.capacity.questions.perf import lengths, measured, placed, refused, short_rate
from capplan.capacity.step_time.calibration import Calibration
from capplan.errors import InputError, near_misses
from capplan.models.resolve import with_tower
from capplan.models.spec import Model
from capplan.units import counted, seconds, tokens

if TYPE_CHECKING:
    from capplan.capacity.simulator.requests import Disaggregated, Outcome, Service
    from capplan.capacity.simulator.slo import Point, Slo, Verdict
    from capplan.capacity.simulator.workloads import Mix
    from capplan.hardware.spec import Gpu
    from capplan.report import Report

CONFIGURATIONS = ("colocated", "chunked", "disaggregated")
REQUESTS = 4_000  # at the least
MOST_REQUESTS = 20_000
_TIMES = 8  # that a run lasts as long as a request, so that filling and emptying count for little
_TAIL = 20  # requests past a percentile, at the least
LENGTH = 1024
MOST_INSTANCES = 8  # of both pools together
MOST_ASKED = 1024
PRECISION = 0.02
_BUDGETS = (512, 1024, 2048, 4096, 8192)  # tokens of a pass that are tried for chunks
_QUICK = 0.3  # of the requests, to choose between settings
_CURVE = (0.5, 0.75, 0.9, 1.0, 1.1, 1.25)  # of the goodput, in the curve
_IDLE = 1000  # requests that are looked at alone
_WHAT = {
    "colocated": "prompts whole, before any decoding",
    "chunked": "prompts in chunks, beside the decoding",
    "disaggregated": "prompts and decoding on GPUs of their own",
}

Progress = Callable[[str, int], None]  # what is searched, and points so far


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
        rows = tuple(
            (
                each["name"],
                f"{each['gpus']:,}",
                short_rate(each["requests_per_s"]) if each["requests_per_s"] else "none",
                short_rate(each["requests_per_s_per_gpu"]) if each["requests_per_s"] else "-",
                *(_value(each["bounds"], name) for name in names),
                " and ".join(each["limited_by"]),
                each["setting"],
            )
            for each in self.configurations
        )
        heads = ("", "GPUs", "req/s", "req/s/GPU", *names, "limit", "with")
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
            Table(rows, heads),
            Table(tuple((reason,) for reason in self.reasons), title="Why", words=True),
            Table(curve, ("req/s", *names, "attainment", "busy", "KV", "inside"), f"{self.best}, by rate"),
        ]
        return Report(headline, tuple(tables), self.assumptions, self.warnings)

    def _shown(self) -> list[dict[str, Any]]:
        """Rows of the best configuration that are worth a line: those nearest to the steps of the curve."""
        rows = [row for row in self.curve if row["configuration"] == self.best]
        kept = {
            min(range(len(rows)), key=lambda i: abs(rows[i]["requests_per_s"] / self.requests_per_s - step))
            for step in _CURVE
        }
        return [rows[i] for i in sorted(kept)]


def _flat(row: dict[str, Any]) -> dict[str, Any]:
    return {
        each["name"].replace("-", "_") + ("" if each["is_share"] else "_s"): each["value"]
        for each in row["bounds"]
    }


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


class _Run(NamedTuple):
    """A configuration that can be simulated."""

    name: str
    setting: str
    gpus: int
    replicas: int
    service: Service | Disaggregated


class _Found(NamedTuple):
    run: _Run
    rate: float
    points: list[Point]


def goodput(
    model: str | Model,
    gpu: str | Gpu,
    deployment: Deployment | None = None,
    *,
    slo: Slo,
    isl: int = LENGTH,
    osl: int = LENGTH,
    mix: Mix | None = None,
    cv: float = 1.0,
    requests: int | None = None,
    seed: int = 1,
    configurations: Sequence[str] = CONFIGURATIONS,
    pools: tuple[int, int] | None = None,
    instances: int | None = None,
    tp: int | None = None,
    calibration: Calibration | None = None,
    progress: Progress | None = None,
) -> Goodput:
    """The highest request rate of a GPU at which the SLO holds, of each configuration.

    model, gpu: registry names, a path to a config.json, or a Model and a Gpu.
    deployment: the engine, its version and flags of one instance; what is None is the engine's default.
    slo: bounds that have to hold (simulator.slo.Slo).
    isl, osl: tokens of every prompt and answer, or mix: requests of other lengths or arrivals (simulator.workloads).
    cv: of the gaps between arrivals; 1 is Poisson. requests: simulated at each rate; None is as many as the percentiles
    of the SLO need. seed: which.
    configurations: of CONFIGURATIONS. pools: prefill and decode instances; None tries the ratios that the rates of one
    of each suggest. instances: of the others; None is as many as the pools have together, so that all have as many GPUs.
    tp: tensor-parallel ranks of an instance; None is the smallest number that fits.
    calibration: constants of the engine measured on this GPU.

    Every rate and every configuration gets the same requests. Raises UnknownNameError, DataFileError, InputError.
    """
    from capplan.capacity.simulator.workloads import Mix, fixed, gamma

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
    longest = int((mix.isl + mix.osl).max())
    found = measured(placed(spec, card, deployment or Deployment(), longest, tp, work), calibration, work)
    work.assume(*found.assumptions)
    inputs = pass_parts.inputs_of(found, calibration) | {
        "isl": float(mix.isl.mean()),
        "osl": float(mix.osl.mean()),
        "cv": cv,
        "requests": requests,
        "seed": seed,
        "configurations": names,
        "slo": _bounds_of(slo),
    }
    why_not = refused(found, longest)
    if why_not is not None:
        return _unattainable(inputs, f"it does not fit: {why_not}", {}, (), work)
    whole = services.colocated(found, longest, scheduler="prefill-first", chunked=False)
    alone = _alone(whole, mix, slo)
    missed = [each for each in alone if each[1] > each[2]]
    idle = {f"{name.replace('-', '_')}_s": value for name, value, _ in alone}
    if missed:
        name, value, bound = max(missed, key=lambda each: each[1] / each[2])
        why_not = f"one request alone has {_words(name)} {seconds(value)}, over {seconds(bound)}: more replicas can't help"
        return _unattainable(inputs, why_not, idle, _remedies(found, mix, slo, longest), work)
    work.assume(
        f"every rate and placement gets the same requests (seed {seed}); the search ends within {100 * PRECISION:.0f}%"
    )
    work.assume("instances take requests in turn, and no prompt finds a prefix in the cache")
    search = _Search(found, whole, mix, slo, longest, requests, progress or (lambda what, points: None), work)
    results, count = [], instances or 1
    if "disaggregated" in names:
        split = search.disaggregated(pools)
        if split is not None:
            results.append(split)
            count = instances or split.run.replicas // found.ranks
    if "chunked" in names:
        results.insert(0, search.chunked(count))
    if "colocated" in names:
        results.insert(0, search.colocated(count))
    return _answer(inputs, idle, results, search, work)


def most_requests(slo: Slo) -> int:
    """Requests that are drawn where nobody says how many; a run takes the first of them, as many as it needs."""
    return max(MOST_REQUESTS, requests_for(slo))


def requests_for(slo: Slo) -> int:
    """Requests that a run needs for its percentiles: so many have to lie past the highest of them."""
    shares = [bound.share for bound in slo.bounds if bound.kind != "itl"]
    if slo.joint is not None:
        shares.append(slo.joint.share)
    return max(REQUESTS, *(round(_TAIL / (1 - share)) for share in shares), REQUESTS)


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


# --- one request alone --------------------------------------------------------------------------------------------


def _alone(service: Service, mix: Mix, slo: Slo) -> list[tuple[str, float, float]]:
    """Name, value and bound of each bound, where every request has the service for itself."""
    import numpy as np

    pairs = zip(mix.isl[:_IDLE].tolist(), mix.osl[:_IDLE].tolist(), strict=True)
    known: dict[tuple[int, int], tuple[float, float]] = {}
    times = [known.setdefault(pair, services.idle(service, *pair)) for pair in pairs]
    first, later = np.array([t for t, _ in times]), np.array([s for _, s in times])
    whole = first + later * (mix.osl[:_IDLE] - 1)
    values = {"ttft": first, "tpot": later, "itl": later, "e2e": whole}
    found = [
        (bound.name, float(np.quantile(values[bound.kind], bound.share)), bound.seconds)
        for bound in slo.bounds
    ]
    if slo.joint is not None:
        share = slo.joint.share
        found.append((f"ttft-p{100 * share:g}", float(np.quantile(first, share)), slo.joint.ttft))
        found.append((f"tpot-p{100 * share:g}", float(np.quantile(later, share)), slo.joint.tpot))
    return found


def _words(name: str) -> str:
    kind, _, share = name.partition("-")
    return f"{kind.upper()} {share}"


def _remedies(found: Deployed, mix: Mix, slo: Slo, longest: int) -> tuple[dict[str, Any], ...]:
    """What would let one request alone meet the SLO: more ranks, narrower weights, shorter prompts, another GPU."""
    told: list[dict[str, Any]] = []

    def tries(what: str, kind: str, flags: Deployment, card: Gpu, ranks: int) -> bool:
        try:
            other = placed(found.model, card, flags, longest, ranks, Working())
            if refused(other, longest) is not None:
                return False
            whole = services.colocated(other, longest, scheduler="prefill-first", chunked=False)
            alone = _alone(whole, mix, slo)
        except InputError:
            return False
        if any(value > bound for _, value, bound in alone):
            return False
        values = ", ".join(f"{_words(name)} {seconds(value)}" for name, value, _ in alone)
        told.append({"kind": kind, "what": what, "then": values})
        return True

    flags, ranks = found.flags, found.plan.tp
    flags = replace(flags, max_num_batched_tokens=None, max_num_seqs=None)
    node = found.gpu.max_gpus_per_node or MOST_INSTANCES
    for more in (2 * ranks, 4 * ranks, 8 * ranks):
        if more <= node and tries(f"--tp {more}", "tp", flags, found.gpu, more):
            break
    for dtype in ("fp8", "nvfp4"):
        if dtype not in (flags.quantization, found.model.dtype) and tries(
            f"--weights {dtype}", "weights", replace(flags, quantization=dtype), found.gpu, ranks
        ):
            break
    from capplan.hardware.registry import all_gpus

    faster = sorted(
        (
            card
            for card in all_gpus()
            if card.price_range and (card.memory_bandwidth or 0) > (found.gpu.memory_bandwidth or 0)
        ),
        key=lambda card: card.price_range or (inf, inf),
    )
    named = 0
    for card in faster:
        if named < 2 and card.id != found.gpu.id:
            named += tries(f"--gpu {card.id}", "gpu", flags, card, ranks)
    shorter = _longest_prompt(found, slo, longest)
    if shorter:
        told.append(
            {"kind": "isl", "what": f"prompts of at most {tokens(shorter)}", "then": "one alone is in time"}
        )
    return tuple(told)


def _longest_prompt(found: Deployed, slo: Slo, longest: int) -> int:
    """Tokens of a prompt that one request alone has in time; 0 where TTFT is not what is missed."""
    if slo.ttft == inf:
        return 0
    service = services.colocated(found, longest, scheduler="prefill-first", chunked=False)
    if services.idle(service, 1, 2)[1] > slo.tpot or services.idle(service, 1, 2)[0] > slo.ttft:
        return 0
    low, high = 1, longest
    while high - low > max(1, low // 100):
        middle = (low + high) // 2
        low, high = (middle, high) if services.idle(service, middle, 2)[0] <= slo.ttft else (low, middle)
    return low if low < longest - 1 else 0


# --- configurations -----------------------------------------------------------------------------------------------


class _Search:
    """The search for the goodput of each configuration, all with the same requests."""

    def __init__(
        self,
        found: Deployed,
        whole: Service,
        mix: Mix,
        slo: Slo,
        longest: int,
        requests: int | None,
        tell: Progress,
        work: Working,
    ) -> None:
        self.found, self.whole, self.slo, self.longest = found, whole, slo, longest
        self.mix, self.requests, self.tell, self.work = mix, requests, tell, work
        self.isl, self.osl = float(mix.isl.mean()), float(mix.osl.mean())
        prefill, _ = services.idle(whole, self.isl, self.osl)
        self.batch, self.step = self._decode_batch()
        # where prefill and decode together fill half of the time of an instance
        self.guess = 0.5 * found.ranks / (prefill + max(self.osl - 1, 0) * self.step / self.batch)
        self.lasts = prefill + self.osl * self.step  # one request, under load

    def count(self, run: _Run, share: float = 1.0) -> int:
        """Requests of a run at the rates to be tried."""
        if self.requests is not None:
            return max(1, round(share * min(self.requests, len(self.mix))))
        under_way = 2 * self.guess * run.replicas / self.found.ranks * self.lasts
        return min(
            len(self.mix), max(round(share * requests_for(self.slo)), round(_TIMES * share * under_way))
        )

    def colocated(self, instances: int) -> _Found:
        return self.of(self._run("colocated", "", self.whole, instances))

    def chunked(self, instances: int) -> _Found:
        """With the budget of tokens that has the highest goodput, of those up to the flags' own."""
        own = self.found.flags.max_num_batched_tokens or max(_BUDGETS)
        budgets = sorted({budget for budget in _BUDGETS if budget < own} | {own})
        runs = [
            self._run(
                "chunked",
                f"{budget:,} tokens a pass",
                services.colocated(self.found, self.longest, budget=budget),
                instances,
            )
            for budget in budgets
        ]
        return self.of(self.best_of(runs))

    def disaggregated(self, pools: tuple[int, int] | None) -> _Found | None:
        """With pools in the ratio that the rates of one instance of each suggest; from there on, as long as it gains,
        with more instances of the pool that is the limit.
        """
        import numpy as np

        found = self.found
        if found.flags.engine == "vllm":
            self.work.assume(
                "with pools the first token is the decode instance's, as vLLM's connectors give it out"
            )
        if pools is not None:
            return self._linked(self._pools(*pools))
        alone = self._run("disaggregated", "prefill alone", self.whole, 1)
        few = _first(self.mix, self.count(alone, _QUICK))
        prompts = type(few)(few.unit_times, few.isl, np.ones(len(few), dtype=np.int64))
        prefill_rate = self.of(alone, prompts, 2 * self.guess, 8).rate
        if not prefill_rate:
            return None
        decode_rate = found.ranks * self.batch / (max(self.osl - 1, 1) * self.step)
        sizes = sorted(_ratios(MOST_INSTANCES), key=lambda size: size[0] / size[1])

        def expected(size: tuple[int, int]) -> float:
            return queueing.pools_goodput(size[0], prefill_rate, size[1], decode_rate, found.gpus, found.gpus)

        at = max(range(len(sizes)), key=lambda i: (round(expected(sizes[i]), 9), -sum(sizes[i])))
        self.work(
            queueing.pool_ratio,
            "from one instance of each pool",
            prefill_rate=prefill_rate,
            decode_rate=decode_rate,
        )
        self.work(
            queueing.pools_goodput,
            f"{sizes[at][0]} prefill, {sizes[at][1]} decode: where the search of a ratio begins",
            prefills=sizes[at][0],
            prefill_rate=prefill_rate,
            decodes=sizes[at][1],
            decode_rate=decode_rate,
            prefill_gpus=found.gpus,
            decode_gpus=found.gpus,
        )
        best, tried = None, {at}
        while True:
            one = self.quick(self._pools(*sizes[at]))
            if best is not None and one.rate / one.run.gpus <= best.rate / best.run.gpus:
                break
            best = one
            limits = _limits(one)
            at += -1 if any(name[:4] in ("tpot", "itl-") for name in limits) else 1
            if not 0 <= at < len(sizes) or at in tried:
                break
            tried.add(at)
        return self._linked(best.run)

    def _linked(self, run: _Run) -> _Found:
        link = services.link_of(self.found.gpu, run.gpus, self.found.plan.tp)
        self.work.assume(f"between pools the cache goes over {link.name}, layer by layer")
        return self.of(run)

    def _pools(self, prefills: int, decodes: int) -> _Run:
        found, count = self.found, prefills + decodes
        service = services.pools(
            found,
            self.longest,
            prefills,
            decodes,
            typical=max(1, round(self.isl)),
            first_token_at="decode" if found.flags.engine == "vllm" else "prefill",
        )
        setting = f"{prefills} prefill, {decodes} decode"
        return _Run("disaggregated", setting, found.gpus * count, found.ranks * count, service)

    def _run(self, name: str, setting: str, service: Service, instances: int) -> _Run:
        replicas = instances * self.found.ranks
        return _Run(name, setting, instances * self.found.gpus, replicas, replace(service, replicas=replicas))

    def best_of(self, runs: list[_Run]) -> _Run:
        """The one with the highest goodput a GPU, by a search with fewer requests."""
        if len(runs) == 1:
            return runs[0]
        return max(reversed(runs), key=lambda run: self.quick(run).rate / run.gpus)

    def quick(self, run: _Run) -> _Found:
        """A search with fewer requests, to choose by."""
        return self.of(run, _first(self.mix, self.count(run, _QUICK)), points=8)

    def of(self, run: _Run, mix: Mix | None = None, guess: float | None = None, points: int = 12) -> _Found:
        """The search of one setting."""
        from capplan.capacity.simulator.loop import simulate
        from capplan.capacity.simulator.slo import highest_rate

        requests, tried = _first(self.mix, self.count(run)) if mix is None else mix, 0

        def count(_: Point) -> None:
            nonlocal tried
            tried += 1
            self.tell(f"{run.name} {run.setting}".strip(), tried)

        rate, found = highest_rate(
            lambda rate: simulate(requests.at(rate), run.service),
            self.slo,
            (guess or self.guess) * run.replicas / self.found.ranks,
            precision=PRECISION,
            most=points,
            tried=count,
        )
        return _Found(run, rate, found)

    def alone(self, run: _Run) -> _Run:
        """One instance of a configuration without pools."""
        from capplan.capacity.simulator.requests import Service

        assert isinstance(run.service, Service)
        service = replace(run.service, replicas=self.found.ranks)
        return _Run(run.name, run.setting, self.found.gpus, self.found.ranks, service)

    def fill(self, found: _Found) -> None:
        """Rates of the curve that the search did not come by."""
        from capplan.capacity.simulator.loop import simulate
        from capplan.capacity.simulator.slo import Point, verdict

        mix = _first(self.mix, self.count(found.run))
        for step in _CURVE:
            rate = step * found.rate
            if not any(abs(point.rate / rate - 1) < 0.06 for point in found.points):
                outcome = simulate(mix.at(rate), found.run.service)
                found.points.append(Point(rate, outcome, verdict(outcome, self.slo)))

    def _decode_batch(self) -> tuple[int, float]:
        """The largest batch whose passes are inside the bound of TPOT and whose cache there is, and its pass [second]."""
        service, context = self.whole, self.isl + self.osl / 2
        held = int(service.blocks * service.block_size / (self.isl + self.osl))
        low, high = 1, max(1, min(service.max_num_seqs, held)) + 1

        def step(batch: int) -> float:
            start, slope, _ = service.times.decode(batch, batch * context)
            return start + slope * batch * context

        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if step(middle) <= self.slo.tpot else (low, middle)
        return low, step(low)


def _ratios(most: int) -> list[tuple[int, int]]:
    """Sizes of two pools of at most so many together, the smallest of each ratio."""
    from math import gcd

    return [(p, n - p) for n in range(2, most + 1) for p in range(1, n) if gcd(p, n) == 1]


def _limits(found: _Found) -> tuple[str, ...]:
    """The bounds that break first above the rate that was found."""
    above = [point for point in found.points if point.rate > found.rate and not point.verdict.met]
    return above[0].verdict.broken if above else ()


def _first(mix: Mix, count: int) -> Mix:
    return type(mix)(mix.unit_times[:count], mix.isl[:count], mix.osl[:count])


# --- the answer ---------------------------------------------------------------------------------------------------


def _answer(
    inputs: dict[str, Any], idle: dict[str, float], results: list[_Found], search: _Search, work: Working
) -> Goodput:
    rows = [_row(each, search.osl) for each in results]
    best = max(rows, key=lambda row: row["requests_per_s_per_gpu"], default=None)
    if best is not None and not best["requests_per_s"]:
        best = None
    one_alone = None
    if best is not None:
        chosen = next(each for each in results if each.run.name == best["name"])
        search.fill(chosen)
        if best["name"] != "disaggregated" and chosen.run.replicas > search.found.ranks:
            one_alone = search.of(search.alone(chosen.run)).rate
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
        one_instance_requests_per_s=one_alone,
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


def _point(run: _Run, point: Point) -> dict[str, Any]:
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


def _row(found: _Found, osl: float) -> dict[str, Any]:
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
        "limited_by": list(_limits(found)),
        "bounds": _bounds(at.verdict) if at else [],
        "points": len(found.points),
        "requests": len(found.points[0].outcome.workload) if found.points else 0,
    }


def _reasons(
    best: dict[str, Any], rows: list[dict[str, Any]], idle: dict[str, float], one_alone: float | None
) -> tuple[str, ...]:
    """Why the best one is: what stops each of the others, and what stops it."""
    told = []
    room = [
        f"{_words(each['name'])} is {seconds(each['value'])} of {seconds(each['bound'])}"
        for each in best["bounds"]
        if not each["is_share"] and each["value"] is not None and each["name"] not in best["limited_by"]
    ]
    limit = " and ".join(_limit_words(each) for each in best["limited_by"]) or "the points of the search"
    told.append(f"{best['name']}, {best['what']}, ends at {limit}" + (f"; {', '.join(room)}" if room else ""))
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
        told.append(
            f"one instance alone: {short_rate(one_alone)} req/s; several that take turns have fewer bursts each"
        )
    return tuple(told)


def _limit_words(name: str) -> str:
    return name if name == "saturation" or name.startswith("attainment") else _words(name)


def _stops(row: dict[str, Any], idle: dict[str, float]) -> str:
    """What stops a configuration, in words."""
    limits = row["limited_by"]
    kinds = {name.partition("-")[0] for name in limits}
    named = " and ".join(_limit_words(each) for each in limits) or "nothing that was tried"
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
