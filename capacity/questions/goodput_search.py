"""The search for the goodput of each placement of prefill and decode, all with the same requests."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

from capplan.capacity import queueing
from capplan.capacity.answer import Working
from capplan.capacity.questions import services
from capplan.capacity.questions.deployed import Deployed

if TYPE_CHECKING:
    from capplan.capacity.simulator.requests import Disaggregated, Service
    from capplan.capacity.simulator.slo import Point, Slo
    from capplan.capacity.simulator.workloads import Mix

REQUESTS = 4_000  # at the least
MOST_REQUESTS = 20_000
MOST_INSTANCES = 8  # of both pools together
PRECISION = 0.02
CURVE = (0.5, 0.75, 0.9, 1.0, 1.1, 1.25)  # of the goodput, in the curve
_TIMES = 8  # that a run lasts as long as a request, so that filling and emptying count for little
_TAIL = 20  # requests past a percentile, at the least
_QUICK = 0.3  # of the requests, to choose between settings
_BUDGETS = (512, 1024, 2048, 4096, 8192)  # tokens of a pass that are tried for chunks

Progress = Callable[[str, int], None]  # what is searched, and points so far


class Run(NamedTuple):
    """A configuration that can be simulated."""

    name: str
    setting: str
    gpus: int
    replicas: int
    service: Service | Disaggregated


class Found(NamedTuple):
    run: Run
    rate: float
    points: list[Point]


def most_requests(slo: Slo) -> int:
    """Requests that are drawn where nobody says how many; a run takes the first of them, as many as it needs."""
    return max(MOST_REQUESTS, requests_for(slo))


def requests_for(slo: Slo) -> int:
    """Requests that a run needs for its percentiles: so many have to lie past the highest of them."""
    shares = [bound.share for bound in slo.bounds if bound.kind != "itl"]
    if slo.joint is not None:
        shares.append(slo.joint.share)
    return max(REQUESTS, *(round(_TAIL / (1 - share)) for share in shares), REQUESTS)


class Search:
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

    def count(self, run: Run, share: float = 1.0) -> int:
        """Requests of a run at the rates to be tried."""
        under_way = 2 * self.guess * run.replicas / self.found.ranks * self.lasts
        wanted = self.requests
        if wanted is None:
            wanted = max(requests_for(self.slo), round(_TIMES * under_way))
        elif wanted < under_way and share == 1:
            enough = int(float(f"{_TIMES * under_way:.2g}"))
            self.work.warn(
                f"{wanted:,} requests are too few to fill the service, and rates are too high: about {enough:,} are needed "
                "(--requests)"
            )
        return max(1, round(share * min(wanted, len(self.mix))))

    def colocated(self, instances: int) -> Found:
        return self.of(self._run("colocated", "", self.whole, instances))

    def chunked(self, instances: int) -> Found:
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

    def disaggregated(self, pools: tuple[int, int] | None) -> Found | None:
        """With pools in the ratio that the rates of one instance of each suggest; from there on, as long as it gains,
        with more instances of the pool that is the limit.
        """
        import numpy as np

        found = self.found
        if self.whole.ranks > 1:
            self.work.warn(
                "data-parallel ranks that share experts wait for each other; those of pools are simulated as if they did "
                "not, so that pools look better than they are"
            )
        if found.flags.engine == "vllm":
            self.work.assume(
                "with pools the first token is the decode instance's, as vLLM's connectors give it out"
            )
        if pools is not None:
            return self._linked(self._pools(*pools))
        alone = self._run("disaggregated", "prefill alone", self.whole, 1)
        few = self.mix.first(self.count(alone, _QUICK))
        prompts = replace(few, osl=np.ones(len(few), dtype=np.int64))
        prefill_rate = self.of(alone, prompts, 2 * self.guess, 8).rate
        if not prefill_rate:
            return None
        prompt, _ = services.idle(self.whole, self.isl, self.osl)
        if prefill_rate * prompt / found.ranks < 1:
            self.work(
                queueing.prefill_ttft,
                "the mean of one prefill instance at its highest rate, were prompts alike and one in a pass",
                rate=prefill_rate / found.ranks,
                prefill=prompt,
            )
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
            decodes_full = any(name.startswith(("tpot", "itl")) for name in limits(one))
            at += -1 if decodes_full else 1
            if not 0 <= at < len(sizes) or at in tried:
                break
            tried.add(at)
        return self._linked(best.run)

    def _linked(self, run: Run) -> Found:
        link = services.link_of(self.found.gpu, run.gpus, self.found.plan.tp)
        self.work.assume(f"between pools the cache goes over {link.name}, layer by layer")
        return self.of(run)

    def _pools(self, prefills: int, decodes: int) -> Run:
        found, count = self.found, prefills + decodes
        service = services.pools(
            found,
            self.longest,
            prefills,
            decodes,
            typical=max(1, round(self.isl)),
            first_token_at="decode" if found.flags.engine == "vllm" else "prefill",
        )
        service = replace(service, prefill=replace(service.prefill, routing=self.whole.routing))
        setting = f"{prefills} prefill, {decodes} decode"
        return Run("disaggregated", setting, found.gpus * count, found.ranks * count, service)

    def _run(self, name: str, setting: str, service: Service, instances: int) -> Run:
        replicas = instances * self.found.ranks
        service = replace(service, replicas=replicas, routing=self.whole.routing)
        return Run(name, setting, instances * self.found.gpus, replicas, service)

    def best_of(self, runs: list[Run]) -> Run:
        """The one with the highest goodput a GPU, by a search with fewer requests."""
        if len(runs) == 1:
            return runs[0]
        return max(reversed(runs), key=lambda run: self.quick(run).rate / run.gpus)

    def quick(self, run: Run) -> Found:
        """A search with fewer requests, to choose by."""
        return self.of(run, self.mix.first(self.count(run, _QUICK)), points=8)

    def of(self, run: Run, mix: Mix | None = None, guess: float | None = None, points: int = 12) -> Found:
        """The search of one setting."""
        from capplan.capacity.simulator.loop import simulate
        from capplan.capacity.simulator.slo import highest_rate

        requests, tried = self.mix.first(self.count(run)) if mix is None else mix, 0

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
        return Found(run, rate, found)

    def alone(self, run: Run) -> Run:
        """One instance of a configuration without pools."""
        from capplan.capacity.simulator.requests import Service

        assert isinstance(run.service, Service)
        service = replace(run.service, replicas=self.found.ranks)
        return Run(run.name, run.setting, self.found.gpus, self.found.ranks, service)

    def fill(self, found: Found) -> None:
        """Rates of the curve that the search did not come by."""
        from capplan.capacity.simulator.loop import simulate
        from capplan.capacity.simulator.slo import Point, verdict

        mix = self.mix.first(self.count(found.run))
        for step in CURVE:
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


def limits(found: Found) -> tuple[str, ...]:
    """The bounds that break first above the rate that was found."""
    above = [point for point in found.points if point.rate > found.rate and not point.verdict.met]
    return above[0].verdict.broken if above else ()
