"""What does a load do to a service? Every request of a workload through the engine's loop, and what each waited for."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from math import inf
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from capplan.capacity.answer import Answer, Working
from capplan.capacity.engines.deployment import Deployment
from capplan.capacity.questions import asked, pass_parts, services
from capplan.capacity.questions.deployed import Deployed
from capplan.capacity.questions.perf import LENGTH, given, lengths, measured, placed
from capplan.capacity.simulator import loop, metrics
from capplan.capacity.simulator.requests import Disaggregated, Link, Outcome, Service, Speculation, Workload
from capplan.capacity.simulator.step_table import StepTable
from capplan.capacity.simulator.workloads import Mix, fixed, gamma
from capplan.capacity.speculation import expected_tokens
from capplan.capacity.step_time.calibration import Calibration
from capplan.capacity.step_time.forward import Step, sequence_bytes
from capplan.capacity.step_time.passes import between, floor, held_bytes, one_pass, pass_time
from capplan.errors import InputError, UnknownNameError
from capplan.models.resolve import with_tower
from capplan.models.spec import Model
from capplan.units import counted, seconds, tokens

if TYPE_CHECKING:
    from capplan.hardware.spec import Gpu
    from capplan.report import Report

REQUESTS = 1000
MOST = 10_000  # instances
_POINTS = 200  # of the timeline, as it is printed
_SPLIT = (
    ("ttft", "TTFT"),
    ("wait", "  wait"),
    ("prefill", "  prefill"),
    ("first_step", "  to the token"),
    ("tpot", "TPOT"),
    ("itl", "ITL"),
    ("e2e", "end to end"),
)
SIMULATED = (
    "every pass takes what the step-time model says, with no jitter; the client's network is not simulated"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Simulate(Answer):
    """What became of the requests of a workload on a deployment: latencies, rates, and the state over time."""

    question: ClassVar[str] = "simulate"

    gpus: int
    replicas: int
    starts: bool
    why_not: str | None
    kv_blocks: int  # of all replicas
    block_tokens: int
    requests: dict[str, int]  # asked, served, refused, timed_out, preempted
    saturated: bool  # it could not keep up: ttft, wait and e2e have no value then
    backlog_growth_requests_per_s: float
    seconds: float  # from the first arrival to the last token
    requests_per_s: float
    input_tokens_per_s: float
    output_tokens_per_s: float
    output_tokens_per_s_per_gpu: float
    latencies: tuple[dict[str, Any], ...]  # one a kind: mean, percentiles and their 95% confidence intervals
    utilisation: dict[str, float]  # shares: busy, compute, bandwidth, kv
    passes: int
    pass_low: float  # the range of a pass, as multiples: eight of ten measured kernels lie in it
    pass_high: float
    preemptions: int
    recomputed_tokens: int
    prefix_hit_rate: float | None  # share of the prompts' tokens that were cached; None: no prefix cache
    prefix_cache: tuple[dict[str, Any], ...]  # one a cache: tokens asked for and found, and the hit rate
    timeline: tuple[dict[str, Any], ...]  # thinned
    outcome: Outcome | None = field(default=None, repr=False, compare=False)  # every request

    @property
    def fits(self) -> bool:
        return self.starts and not self.saturated and self.requests["served"] > 0

    def _hits_in_words(self) -> str:
        rates = [each["hit_rate"] for each in self.prefix_cache]
        each = f"; {min(rates):.1%} to {max(rates):.1%} by instance" if len(rates) > 1 else ""
        return f"of the prompts' tokens{each}"

    def result(self) -> dict[str, Any]:
        found = Answer.result(self)
        del found["outcome"]  # too long for a screen; --trace-out writes it
        return found

    def sweep(self) -> list[dict[str, Any]]:
        return [dict(row) for row in self.latencies]

    def report(self) -> Report:
        from capplan.report import Report, Table

        inputs = self.inputs
        engine = " ".join(part for part in (inputs["engine"], inputs["engine_version"]) if part)
        where = f"{inputs['model']} under {engine} on {self.gpus} x {inputs['gpu']}"
        if not self.starts:
            return Report(f"{where} does not fit: {self.why_not}", (), self.assumptions, self.warnings)
        told = {row["latency"]: row for row in self.latencies}
        if self.saturated:
            headline = (
                f"{where} does not keep up with {_load(inputs)}: it serves {self.requests_per_s:.3g} a second, and "
                f"{self.backlog_growth_requests_per_s:.3g} a second stay behind"
            )
        elif "ttft" in told:
            per_token = told.get("tpot")
            later = f", TPOT {seconds(per_token['p99_s'])}" if per_token else ""
            served, asked_ = self.requests["served"], self.requests["asked"]
            share = f"serves {served:,} of {asked_:,} requests, " if served < asked_ else ""
            headline = f"{where} at {_load(inputs)}: {share}p99 TTFT {seconds(told['ttft']['p99_s'])}{later}"
        else:
            headline = f"{where} serves none of the {self.requests['asked']:,} requests"
        count, use = self.requests, self.utilisation
        facts = [
            ("served", f"{count['served']:,}", f"of {counted(count['asked'], 'request')}"),
            *(
                (name.replace("_", " "), f"{count[name]:,}", why)
                for name, why in (
                    ("refused", "longer than max-model-len, or than the cache"),
                    ("timed_out", "their clients left without a token"),
                    ("preempted", f"once or more, {self.preemptions:,} times together"),
                )
                if count[name]
            ),
            ("rate", f"{self.requests_per_s:,.3g}", f"requests a second, over {seconds(self.seconds)}"),
            (
                "output tok/s",
                f"{self.output_tokens_per_s:,.0f}",
                f"{self.output_tokens_per_s_per_gpu:,.0f} a GPU",
            ),
            ("in a pass", f"{use['busy']:.0%}", "of the time"),
            ("compute", f"{use['compute']:.0%}", "of the dense peak"),
            ("bandwidth", f"{use['bandwidth']:.0%}", "of the memory's, by weights and cache"),
            ("KV cache", f"{use['kv']:.0%}", f"of {self.kv_blocks:,} blocks of {tokens(self.block_tokens)}"),
        ]
        if self.prefix_hit_rate is not None:
            facts.append(("prefix hits", f"{self.prefix_hit_rate:.1%}", self._hits_in_words()))
        heads = ("", "mean", "p50", "p90", "p95", "p99", "p99.9", "most")
        rows = tuple(
            (
                label,
                *(seconds(told[name][key]) for key in ("mean_s", *_keys(), "most_s")),
            )
            for name, label in _SPLIT
            if name in told and (name != "first_step" or told[name]["most_s"] > 0)
        )
        sure = tuple(
            (
                label,
                *(
                    f"{seconds(told[name][f'{key}_low_s'])} - "
                    + ("?" if told[name][f"{key}_high_s"] is None else seconds(told[name][f"{key}_high_s"]))
                    for key in ("p50", "p90", "p99")
                ),
            )
            for name, label in _SPLIT
            if name in told and name in ("ttft", "tpot", "e2e")
        )
        tables = (
            Table(tuple(facts)),
            Table(rows, heads),
            Table(sure, ("95% sure", "p50 from to", "p90 from to", "p99 from to")),
        )
        return Report(headline, tables, self.assumptions, self.warnings)


def _keys() -> tuple[str, ...]:
    return tuple(f"{_named(share)}_s" for share in metrics.SHARES)


def _named(share: float) -> str:
    """p50 of 0.5, p999 of 0.999."""
    return f"p{100 * share:g}".replace(".", "")


def _load(inputs: dict[str, Any]) -> str:
    if inputs["concurrency"] is not None:
        return f"{counted(inputs['concurrency'], 'request')} under way"
    rate = inputs["rate_per_s"]
    return f"{rate:.4g} request{'' if rate == 1 else 's'} a second"


def simulate(
    model: str | Model,
    gpu: str | Gpu,
    deployment: Deployment | None = None,
    *,
    rate: float | None = None,
    concurrency: int | None = None,
    isl: int = LENGTH,
    osl: int = LENGTH,
    mix: Mix | None = None,
    cv: float = 1.0,
    requests: int = REQUESTS,
    seed: int = 1,
    timeout: float = inf,
    scheduler: str | None = None,
    chunked: bool = True,
    long_prefill_token_threshold: int | None = None,
    preemption: str = "recompute",
    prefix_caching: bool | None = None,
    watermark: float = 0.0,
    routing: str = "round-robin",
    speculation: Speculation | None = None,
    draft_cost: float = 0.0,
    instances: int = 1,
    pools: tuple[int, int] | None = None,
    link: str | float | None = None,
    warm_up: float = 0.0,
    tp: int | None = None,
    calibration: Calibration | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Simulate:
    """What becomes of so many requests on one deployment.

    model, gpu, deployment, tp, calibration: as `perf` takes them.
    rate: requests a second, all instances together; None with a trace's mix is its own. Or concurrency: so many under way,
    the next comes when one leaves.
    isl, osl: tokens of every prompt and answer, or mix: requests of other lengths or arrivals (simulator.workloads).
    cv: of the gaps between arrivals; 1 is Poisson. requests: how many; seed: which.
    timeout: seconds that a client waits for its first token.
    scheduler: mixed, prefill-first or static; None is as the engine does. chunked: whether prompts are divided;
    long_prefill_token_threshold: the most tokens that a pass takes of one, so that others go beside it.
    prefix_caching: whether prompts take up blocks of their beginning that are still there; None is as vLLM does, where the
    requests come with ids of their blocks.
    speculation: tokens drafted a pass, and how often they hold; draft_cost: time of a draft's pass over the target's.
    instances: of the deployment; routing: round-robin, or least-loaded as vLLM's data-parallel balancer does.
    pools: prefill and decode instances instead, with the cache over link: gpu, pcie or network of the GPU's record, or a
    bandwidth [byte/second] of an instance; None is the GPUs' own within a node, else the network.
    warm_up: share of the requests, the first, that latencies leave out. progress: called with requests done, of all.

    Raises UnknownNameError, DataFileError, InputError.

    >>> found = simulate("llama-3.1-8b", "h100-sxm", rate=2.0, requests=200, isl=1000, osl=100)
    >>> found.requests["served"], found.saturated
    (200, False)
    """
    spec, card = asked.as_model(model), asked.as_gpu(gpu)
    spec, towers = with_tower(spec)
    work = Working()
    work.assume(*asked.assumed_of(spec), *towers)
    if mix is None:
        mix = Mix(gamma(requests, seed, cv), *fixed(requests, *lengths(isl, osl)))
    if rate is not None:
        mix.takes_a_rate()
    elif concurrency is None:
        rate = mix.own_rate
    workload = _workload(mix, rate, concurrency, timeout)
    flags = deployment or Deployment()
    longest = int((workload.isl + workload.osl).max())
    most = min(flags.max_model_len or longest, spec.max_context or longest)
    if int((workload.isl + workload.osl).min()) > most:
        raise InputError(f"every request is longer than the {tokens(most)} that are accepted")
    longest = min(longest, most)  # longer ones are refused, and counted
    found = placed(spec, card, flags, longest, tp, work)
    found = measured(found, calibration, work)
    work.assume(*found.assumptions)
    given(found, calibration, work)
    why_not = None if found.memory.starts else found.memory.why_not or "the engine does not start"
    if scheduler is None:
        scheduler = "mixed" if found.engine.mixed else "prefill-first"
    caching = services.caches_prefixes(
        prefix_caching, workload.prefix is not None, found, scheduler, preemption, work
    )
    inputs = pass_parts.inputs_of(found, calibration) | {
        "isl": float(workload.isl.mean()),
        "osl": float(workload.osl.mean()),
        "cv": cv if mix.own_rate is None else None,  # a trace draws nothing
        "requests": len(workload),
        "seed": seed if mix.own_rate is None else None,
        "rate_per_s": rate,
        "concurrency": concurrency,
        "timeout_s": timeout if timeout < inf else None,
        "scheduler": scheduler,
        "chunked": chunked,
        "long_prefill_token_threshold": long_prefill_token_threshold,
        "preemption": preemption,
        "prefix_caching": caching,
        "watermark": watermark,
        "routing": routing,
        "speculated": speculation.tokens if speculation else None,
        "acceptance": speculation.acceptance if speculation else None,
        "draft_cost": draft_cost if speculation else None,
        "instances": None if pools else instances,
        "pools": list(pools) if pools else None,
        "link": link,
        "warm_up": warm_up,
    }
    if why_not is not None:
        return _nothing(found, inputs, why_not, len(workload), work)
    if long_prefill_token_threshold is not None and (not chunked or inputs["scheduler"] == "static"):
        raise InputError(
            f"long_prefill_token_threshold {long_prefill_token_threshold!r} is of prompts that are divided over passes; "
            "chunked prefill and scheduler mixed or prefill-first are accepted with it"
        )
    if inputs["scheduler"] == "static" and (preemption == "swap" or watermark):
        unused = "preemption 'swap'" if preemption == "swap" else f"watermark {watermark!r}"
        raise InputError(
            f"scheduler 'static' reserves the cache of a whole batch: {unused} would not be used"
        )
    if concurrency is not None and mix.own_rate is not None:
        work.assume(
            "requests of the trace come in its order, one when another leaves; its times are not used"
        )
    own: dict[str, Any] = {
        "scheduler": inputs["scheduler"],
        "chunked": chunked,
        "long_prefill_token_threshold": long_prefill_token_threshold,
        "preemption": preemption,
        "prefix_caching": caching,
        "watermark": watermark,
        "routing": routing,
        "max_model_len": found.flags.max_model_len,
        "swap_s_per_block": _swap_time(found) if preemption == "swap" else 0.0,
    }
    service: Service | Disaggregated
    if isinstance(instances, bool) or not isinstance(instances, int) or not 1 <= instances <= MOST:
        raise InputError(f"instances {instances!r} is not a whole number from 1 to {MOST:,}")
    if routing == "least-loaded" and (pools is not None or instances * found.ranks == 1):
        where = "pools" if pools is not None else "one instance"
        raise InputError(f"routing {routing!r} is between instances without pools; {where} would not use it")
    if pools is None and link is not None:
        raise InputError(f"link {link!r} is of the cache between pools; give pools with it, such as 1:1")
    if pools is None:
        service = replace(services.colocated(found, longest, chunked=chunked, replicas=instances), **own)
        if speculation is not None:
            service = _speculating(found, service, speculation, draft_cost, longest)
            work(
                expected_tokens,
                "a sequence in a pass",
                acceptance=speculation.acceptance,
                speculated=speculation.tokens,
            )
            work.assume(
                f"a drafted token is taken with {speculation.acceptance:.0%} where those before it were, alike for all "
                "requests and positions; an ITL is then between two passes, not two tokens"
            )
        count, gpus, blocks = service.replicas, found.gpus * instances, service.blocks * service.replicas
        block = service.block_size
    else:
        if instances != 1:
            raise InputError(f"{instances} instances and pools exclude each other; give one")
        if speculation is not None:
            raise InputError("speculation is simulated without pools; give one of the two")
        both = services.pools(
            found, longest, *_pool_sizes(pools), typical=round(workload.isl.mean()), first_token_at="prefill"
        )
        service = replace(both, prefill=replace(both.prefill, **own), decode=replace(both.decode, **own))
        if link is not None:
            service = replace(service, link=_link(found, link))
        count = service.prefill.replicas + service.decode.replicas
        gpus, block = found.gpus * sum(pools), service.decode.block_size
        blocks = both.prefill.blocks * both.prefill.replicas + both.decode.blocks * both.decode.replicas
        work.assume(f"the cache goes from pool to pool over {service.link.name}, layer by layer")
    if routing != "round-robin":
        work.assume("a request goes where 4 x waiting + running is least, as counted when it comes")
    work.assume(SIMULATED)
    outcome = loop.simulate(workload, service, progress=progress)
    low, high = _range(found, outcome)
    if calibration is None:
        work.assume(
            f"a pass may take from {low:.2f} to {high:.2f} times what is said, as measured kernels do; what is waited "
            "for near saturation spreads further"
        )
    summed = metrics.summary(outcome, replicas=count, warm_up=warm_up)
    if summed.saturated:
        work.warn(
            "the service does not keep up: what a request waits for grows for as long as the load lasts, so no "
            "latency from arrival on is given"
        )
    elif (wanted := metrics.too_few(outcome)) is not None:
        work.warn(
            "the last request comes before the service is full: it can't be told whether it keeps up, and latencies are "
            f"lower than under a load that lasts; about {float(f'{wanted:.2g}'):,.0f} requests are needed (--requests)"
        )
    if summed.timed_out:
        work.warn(
            f"{counted(summed.timed_out, 'client')} left without a token: latencies are of the others alone, whom the wait "
            "did not drive off"
        )
    if summed.refused:
        work.warn(
            f"{counted(summed.refused, 'request')} refused: longer than max-model-len, or than the cache"
        )
    return Simulate(
        inputs=inputs,
        gpus=gpus,
        replicas=count,
        starts=True,
        why_not=None,
        kv_blocks=blocks,
        block_tokens=block,
        requests={
            "asked": summed.requests,
            "served": summed.served,
            "refused": summed.refused,
            "timed_out": summed.timed_out,
            "preempted": summed.preempted,
        },
        saturated=summed.saturated,
        backlog_growth_requests_per_s=summed.backlog_growth,
        seconds=outcome.totals.seconds,
        requests_per_s=summed.request_rate,
        input_tokens_per_s=summed.input_rate,
        output_tokens_per_s=summed.output_rate,
        output_tokens_per_s_per_gpu=summed.output_rate / gpus,
        latencies=tuple(_latencies(summed)),
        utilisation={
            "busy": summed.busy,
            "kv": summed.kv,
            **_utilisation(found, outcome, count),
        },
        passes=outcome.totals.passes,
        pass_low=low,
        pass_high=high,
        preemptions=int(outcome.preemptions.sum()),
        recomputed_tokens=outcome.totals.recomputed_tokens,
        prefix_hit_rate=outcome.hit_rate,
        prefix_cache=tuple(
            {"prompt_tokens": use.prompt_tokens, "found_tokens": use.found_tokens, "hit_rate": use.hit_rate}
            for use in outcome.caches
        ),
        timeline=tuple(_timeline(outcome)),
        outcome=outcome,
        **work.shown(),
    )


def _workload(mix: Mix, rate: float | None, concurrency: int | None, timeout: float) -> Workload:
    """The requests at a rate, or in a closed loop."""
    if (rate is None) == (concurrency is None):
        raise InputError("a rate or a concurrency is accepted; give one of the two")
    if rate is not None:
        return mix.at(rate, timeout)
    if isinstance(concurrency, bool) or not isinstance(concurrency, int) or concurrency < 1:
        raise InputError(f"concurrency {concurrency!r} is not a whole number of requests, 1 or more")
    return mix.closed(concurrency, timeout)


def _speculating(
    found: Deployed, service: Service, speculation: Speculation, draft_cost: float, longest: int
) -> Service:
    """The service with passes that check drafted tokens, and the drafting before each."""
    if not 0 <= draft_cost < inf:
        raise InputError(f"draft cost {draft_cost!r} is not a share of a pass, 0 or more")
    width = 1 + speculation.tokens
    batch = service.max_num_seqs
    if service.scheduler == "mixed":
        batch = min(batch, service.max_num_batched_tokens // width)  # as many as a pass has tokens for
    if batch < 1:
        raise InputError(
            f"{speculation.tokens} drafted tokens are more than the {service.max_num_batched_tokens:,} of a pass"
        )

    def drafting(batch: Any) -> Any:
        middle = Step(decode=batch, context=longest / 2)
        return speculation.tokens * draft_cost * pass_time(found.plan, found.chip, found.engine, middle)

    tokens_ = (
        service.max_num_batched_tokens if service.chunked else max(service.max_num_batched_tokens, longest)
    )
    table = StepTable(
        found.plan,
        found.chip,
        found.engine,
        batch=batch,
        tokens=tokens_,
        longest=longest,
        speculation=speculation,
        draft_s=drafting,
    )
    return replace(service, times=table, max_num_seqs=batch, speculation=speculation)


def _pool_sizes(sizes: tuple[int, int]) -> tuple[int, int]:
    if len(sizes) != 2 or any(
        isinstance(n, bool) or not isinstance(n, int) or not 1 <= n <= MOST for n in sizes
    ):
        raise InputError(
            f"pools {sizes!r} are not two numbers of instances from 1 to {MOST:,}, prefill first"
        )
    return sizes


LINKS = ("gpu", "pcie", "network")


def _link(found: Deployed, link: str | float) -> Link:
    """The link of an instance that was named, or one of so many bytes a second."""
    gpu, ranks = found.gpu, found.plan.tp
    if not isinstance(link, str):
        if not 0 < link < inf:
            raise InputError(f"link {link!r} is not a bandwidth in bytes a second above 0")
        return Link(f"{link / 1e9:,.4g} GB/s", float(link), latency=1e-5)
    on_record = {
        "gpu": gpu.link.unidirectional if gpu.link else None,
        "pcie": gpu.pcie_per_direction,
        "network": gpu.nic_per_gpu,
    }
    if link not in on_record:
        raise UnknownNameError("link", link, LINKS, "gpu, pcie, network or a bandwidth such as 50GB/s")
    each = on_record[link]
    if each is None:
        raise InputError(
            f"nothing is on record of the {link} link of {gpu.id!r}; a bandwidth such as 50GB/s is accepted"
        )
    return Link(f"{link} {each / 1e9:,.4g} GB/s a GPU", each * ranks, latency=1e-5)


def _swap_time(found: Deployed) -> float:
    """One block over PCIe, one way [second]."""
    host = found.gpu.pcie_per_direction
    if host is None:
        raise InputError(
            f"nothing is on record of the PCIe of {found.gpu.id!r}; preemption 'recompute' needs none"
        )
    size = found.flags.block_size or 16
    return sequence_bytes(found.plan, 4096) / 4096 * size / host


def _latencies(summed: metrics.Metrics) -> list[dict[str, Any]]:
    rows = []
    for name, _ in _SPLIT:
        latency: metrics.Latency | None = getattr(summed, name)
        if latency is None:
            continue
        row: dict[str, Any] = {"latency": name, "count": latency.count, "mean_s": latency.mean}
        for each in latency.percentiles:
            of = _named(each.share)
            row |= {f"{of}_s": each.value, f"{of}_low_s": each.low, f"{of}_high_s": each.high}
        rows.append(row | {"most_s": latency.most})
    return rows


def _utilisation(found: Deployed, outcome: Outcome, replicas: int) -> dict[str, float]:
    """Shares of the dense peak and of the memory bandwidth, over the whole run and all replicas.

    What a token costs is from two passes of the model at two contexts; weights that a pass reads, from one that decodes
    and one with prompts, of the mean number of tokens each: experts that few tokens choose are few.
    """
    totals, chip = outcome.totals, found.chip
    time = totals.seconds * replicas
    if not time or not totals.passes:
        return {"compute": 0.0, "bandwidth": 0.0}
    endless = chip._replace(bandwidth=inf)  # then the floor of a pass is its work at the peak

    def one(batch: float, context: float) -> Any:
        return one_pass(found.plan, chip, found.engine, Step(decode=batch, context=context))

    near, far = (float(floor(one(1.0, context), endless)) for context in (1000.0, 3000.0))
    of_pair = (far - near) / 2000.0
    of_token = near - 1000.0 * of_pair
    computed = totals.prefill_tokens + totals.decode_tokens
    work = computed * of_token + (totals.prompt_pairs + totals.context_tokens) * of_pair
    mean = max(1.0, totals.decode_tokens / totals.passes)
    prompts = totals.prompt_passes
    held = held_bytes(one(mean, 1000.0))
    read = (totals.passes - prompts) * held["weights"] + totals.context_tokens * held["cache"] / (
        1000.0 * mean
    )
    if prompts:
        read += prompts * held_bytes(one(mean + totals.prefill_tokens / prompts, 1000.0))["weights"]
    return {"compute": work / time, "bandwidth": float(read) / chip.bandwidth / time}


def _range(found: Deployed, outcome: Outcome) -> tuple[float, float]:
    """Where the time of a pass with the mean number of sequences may lie, as multiples of what is predicted."""
    totals, work = outcome.totals, outcome.workload
    batch = max(1.0, totals.decode_tokens / max(1, totals.passes))
    context = float((work.isl + work.osl / 2).mean())
    one = one_pass(found.plan, found.chip, found.engine, Step(decode=batch, context=context))
    low, high = between([(1.0, one)], found.chip)
    return min(1.0, float(low / one.seconds)), float(high / one.seconds)


def _timeline(outcome: Outcome) -> list[dict[str, Any]]:
    """The state at points evenly apart."""
    line = outcome.timeline
    times = np.linspace(line.time[0], line.time[-1], _POINTS)
    at = np.searchsorted(line.time, times, side="right") - 1
    return [
        {
            "time_s": float(time),
            "running": int(line.running[k]),
            "waiting": int(line.waiting[k]),
            "kv_blocks": int(line.blocks[k]),
        }
        for time, k in zip(times, at, strict=True)
    ]


def _nothing(found: Deployed, inputs: dict[str, Any], why_not: str, asked_: int, work: Working) -> Simulate:
    return Simulate(
        inputs=inputs,
        gpus=found.gpus,
        replicas=0,
        starts=False,
        why_not=why_not,
        kv_blocks=0,
        block_tokens=found.flags.block_size or 16,
        requests={"asked": asked_, "served": 0, "refused": 0, "timed_out": 0, "preempted": 0},
        saturated=False,
        backlog_growth_requests_per_s=0.0,
        seconds=0.0,
        requests_per_s=0.0,
        input_tokens_per_s=0.0,
        output_tokens_per_s=0.0,
        output_tokens_per_s_per_gpu=0.0,
        latencies=(),
        utilisation=dict.fromkeys(("busy", "kv", "compute", "bandwidth"), 0.0),
        passes=0,
        pass_low=1.0,
        pass_high=1.0,
        preemptions=0,
        recomputed_tokens=0,
        prefix_hit_rate=None,
        prefix_cache=(),
        timeline=(),
        **work.shown(),
    )
