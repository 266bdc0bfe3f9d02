"""The loop against the plain one, and against what has to hold of any engine, on random services and workloads."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from math import inf
from typing import Any, ClassVar

import numpy as np
import pytest

from capplan.capacity.simulator import loop
from capplan.capacity.simulator.loop import simulate
from capplan.capacity.simulator.prefix_cache import Node, PrefixCache
from capplan.capacity.simulator.requests import (
    AffineTimes,
    Outcome,
    Piece,
    Service,
    Speculation,
    Workload,
)
from capplan.capacity.simulator.stepwise import simulate_stepwise
from capplan.errors import InputError

CONFIGURATIONS = 500
CACHING = range(1000, 1400)  # seeds whose prompts share beginnings, on services that find them
TIMES = AffineTimes((0.012, 8.1e-5, 1.1e-9), ((8, 0.0087, 3.3e-7, 2.1e-4), (inf, 0.0101, 2.9e-7, 1.7e-4)))


class Bent:
    """Step times whose slope doubles every 1,000 tokens of context up to 8,000."""

    def decode(self, batch: int, context: float) -> Piece:
        start, slope, below = 0.01 + 1e-4 * batch, 1e-7, 1000.0
        while context >= below and below < 8000:
            start -= slope * below  # the two pieces meet where one ends
            slope, below = 2 * slope, 2 * below
        return Piece(start, slope, below if below < 8000 else inf)

    def prompts(self, batch: int, context: float, prompts: int, tokens: int, pairs: float) -> float:
        return 0.02 + 1e-4 * (tokens + batch) + 1e-8 * (pairs + context)


def random_case(seed: int) -> tuple[Workload, Service]:
    r = np.random.default_rng(seed)
    block_size = int(r.choice([1, 4, 16, 16, 32]))
    seqs = int(r.choice([1, 2, 4, 8, 16, 40]))
    scheduler = str(r.choice(["mixed", "mixed", "prefill-first", "static"]))
    drafted = int(r.choice([0, 0, 0, 2, 3])) if block_size > 4 and scheduler != "static" else 0
    longest = int(r.choice([30, 200, 900]))
    count = int(r.integers(5, 60))
    isl = r.integers(1, longest, count)
    osl = r.integers(1, int(r.choice([2, 30, 150])), count)
    one = -(-(longest + 150) // block_size)  # blocks of the longest request
    service = Service(
        Bent() if r.random() < 0.5 else TIMES,
        blocks=int(one * r.choice([0.4, 1.2, 2, 4, 50])) + 2,
        block_size=block_size,
        max_num_seqs=seqs,
        max_num_batched_tokens=seqs * (1 + drafted) + int(r.choice([1, 64, 256, 2048])),
        scheduler=scheduler,
        chunked=bool(r.random() < 0.7),
        long_prefill_token_threshold=[None, None, 7, 100][seed % 4],
        watermark=float(r.choice([0.0, 0.01, 0.1])),
        preemption=str(r.choice(["recompute", "swap"])),
        swap_s_per_block=float(r.choice([0.0, 1e-4])),
        max_model_len=int(r.choice([longest, 10**6])),
        request_s=float(r.choice([0.0, 0.003])),
        replicas=int(r.choice([1, 1, 2, 3])),
        speculation=Speculation(drafted, float(r.choice([0.0, 0.6, 0.83]))) if drafted else None,
    )
    rate = float(r.choice([1, 10, 200]))
    closed = r.random() < 0.25
    workload = Workload(
        np.cumsum(r.exponential(1 / rate, count)),
        isl,
        osl,
        concurrency=int(r.integers(3, 20)) if closed else None,
        timeout=float(r.choice([inf, inf, inf, 0.001, 0.5, 3.0])),
    )
    return workload, service


def shared_case(seed: int) -> tuple[Workload, Service]:
    """A random case whose prompts go through a random tree of prefix blocks, and a prefix cache."""
    workload, service = random_case(seed)
    r = np.random.default_rng([seed, 1])
    width = int(r.choice([1, 5, 16, 64, 100]))
    branches, kept = int(r.choice([1, 2, 3])), float(r.choice([0.5, 1.0, 1.0]))
    again = r.integers(0, len(workload), len(workload))  # some say the same as another, to its end
    isl = np.where(r.random(len(workload)) < 0.3, workload.isl[again], workload.isl)
    ids = []
    for tokens in isl.tolist():
        whole, rest = divmod(tokens, width)
        own = [int(b) for b in r.integers(0, branches, whole)] + ([10**6 + tokens] if rest else [])
        ids.append(tuple(own[: int(kept * len(own))]))
    if service.scheduler == "static":
        service = replace(service, scheduler="mixed", max_num_batched_tokens=4096)
    service = replace(service, preemption="recompute", prefix_caching=True)
    stored = r.integers(0, isl + 20) if seed % 4 == 0 else None  # more than the prompt is all of it
    return replace(workload, isl=isl, prefix=tuple(ids), prefix_tokens=width, stored=stored), service


def case(seed: int) -> tuple[Workload, Service]:
    return shared_case(seed) if seed in CACHING else random_case(seed)


@cache
def both(seed: int) -> tuple[Service, Outcome, Outcome]:
    workload, service = case(seed)
    return service, simulate(workload, service), simulate_stepwise(workload, service)


@pytest.mark.parametrize("some", range(10))
def test_jumps_are_the_passes_one_by_one(some: int) -> None:
    for seed in [*range(some, CONFIGURATIONS, 10), *CACHING[some::10]]:
        _, jumped, stepped = both(seed)
        for name in ("arrival", "first_scheduled", "prefill_done", "first_token", "finished"):
            a, b = getattr(jumped, name), getattr(stepped, name)
            np.testing.assert_allclose(a, b, rtol=1e-9, atol=1e-9, err_msg=f"{name}, seed {seed}")
        for name in ("preemptions", "refused", "timed_out"):
            np.testing.assert_array_equal(
                getattr(jumped, name), getattr(stepped, name), err_msg=f"{name}, seed {seed}"
            )
        for name in (
            "passes",
            "prompt_passes",
            "prefill_tokens",
            "decode_tokens",
            "prompt_pairs",
            "context_tokens",
            "busy",
        ):
            a, b = getattr(jumped.totals, name), getattr(stepped.totals, name)
            assert a == pytest.approx(b, rel=1e-9), (name, seed)
        assert jumped.caches == stepped.caches, seed
        without = simulate(*case(seed), jumps=False)
        np.testing.assert_allclose(without.finished, jumped.finished, rtol=1e-9, atol=1e-9)


def test_configurations_are_of_every_kind() -> None:
    """What the other tests say, they say of something."""
    seen = [both(seed) for seed in range(CONFIGURATIONS)]
    assert {s.scheduler for s, _, _ in seen} == {"mixed", "prefill-first", "static"}
    for kind in ("recompute", "swap"):
        assert sum(int(o.preemptions.sum()) for s, o, _ in seen if s.preemption == kind) > 100
    assert sum(int(o.refused.sum()) for _, o, _ in seen) > 50
    assert sum(int(o.timed_out.sum()) for _, o, _ in seen) > 50
    assert sum(o.totals.passes for _, o, _ in seen) > 2 * sum(o.totals.jumps for _, o, _ in seen)


def test_nobody_is_lost_and_time_only_goes_on() -> None:
    for seed in range(CONFIGURATIONS):
        service, o, _ = both(seed)
        served = o.served
        assert (served.astype(int) + o.refused + o.timed_out == 1).all(), seed
        first, last = o.first_token[served], o.finished[served]
        assert (o.arrival[served] + service.request_s <= o.first_scheduled[served]).all()
        assert (o.first_scheduled[served] < first).all()
        assert (first <= last).all()
        assert (np.diff(o.timeline.time) >= 0).all()
        late = first - o.arrival[served] >= o.workload.timeout
        assert not late.any(), seed


def test_every_token_is_accounted_for() -> None:
    for seed in range(CONFIGURATIONS):
        service, o, _ = both(seed)
        w, served = o.workload, o.served
        later = int((w.osl[served] - 1).sum())
        assert o.totals.decode_tokens == later
        if service.speculation is None:
            assert o.gaps.counts.sum() == later, seed  # counted pass by pass
        computed, prompts = o.totals.prefill_tokens, int(w.isl[served].sum())
        if service.scheduler == "static" or (o.timed_out.any()):
            assert computed >= prompts
        elif o.preemptions.sum() == 0:
            assert computed == prompts, seed
        elif service.preemption == "recompute":
            assert computed >= prompts


def test_cache_is_never_more_than_the_pool() -> None:
    for seed in range(CONFIGURATIONS):
        service, o, _ = both(seed)
        assert (o.timeline.blocks <= service.blocks * service.replicas).all()
        assert (o.timeline.blocks >= 0).all()
        assert o.timeline.blocks[-1] == 0, seed
        assert (o.timeline.running <= service.max_num_seqs * service.replicas).all()


def test_first_come_is_first_scheduled() -> None:
    for seed in range(CONFIGURATIONS):
        service, o, _ = both(seed)
        if o.workload.concurrency is None:
            for k in range(service.replicas):
                starts = o.first_scheduled[k :: service.replicas]
                assert (np.diff(starts[np.isfinite(starts)]) >= 0).all(), seed


def test_unlike_prompts_take_as_long_as_without() -> None:
    """A cache that finds nothing changes nothing."""
    for seed in range(100):
        workload, service = shared_case(seed)
        unlike = tuple(
            tuple(range(1000 * i, 1000 * i + len(ids))) for i, ids in enumerate(workload.prefix or ())
        )
        found = simulate(replace(workload, prefix=unlike), service)
        if not found.preemptions.any():
            plain = simulate(workload, replace(service, prefix_caching=False))
            np.testing.assert_allclose(found.finished, plain.finished, rtol=1e-12, err_msg=f"seed {seed}")


class Checked(PrefixCache):
    """One that counts its blocks whenever it is asked for something."""

    made: ClassVar[list[Checked]] = []

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self.of_requests: set[Node] = set()
        self.made.append(self)

    def find(self, i: int, tokens: int, free: int) -> tuple[int, int]:
        found = super().find(i, tokens, free)
        assert self.queued == free  # no block is lost, and none is there twice
        self.of_requests.add(self.holding(i).spans[-1].node)
        self.check()
        return found

    def release(self, i: int, blocks: int) -> int:
        assert 0 <= self.holdings[i].blocks <= blocks
        found = super().release(i, blocks)
        self.check()
        return found

    def check(self) -> None:
        assert sum(run.blocks for run in self.queue) == self.queued
        queued = 0
        for node in {*self.nodes.values(), *self.of_requests}:
            assert node.held == max(node.holders, default=0)
            assert node.cached == node.held + sum(run.blocks for run in node.queued)
            assert all(count > 0 for count in node.holders.values())
            queued += node.cached - node.held
        assert queued == sum(run.blocks for run in self.queue if run.node is not None)
        held: dict[Node, int] = {}
        for holding in self.holdings.values():
            for node, begin, end in holding.spans:
                if (level := min(end, holding.blocks) - begin) > 0:
                    assert level in node.holders
                    held[node] = max(held.get(node, 0), level)
        assert all(node.held == level for node, level in held.items())


@pytest.mark.parametrize("some", range(4))
def test_no_block_is_lost_or_used_twice(some: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loop, "PrefixCache", Checked)
    found = 0
    for seed in CACHING[some::4]:
        Checked.made = []
        workload, service = shared_case(seed)
        outcome = simulate(workload, service)
        found += sum(use.found_tokens for use in outcome.caches)
        for each in Checked.made:
            assert not each.holdings, seed  # all who came are gone
            assert not any(node.held or node.holders for node in each.nodes.values()), seed
            each.settle(service.blocks)
            each.check()
            assert each.queued == service.blocks
        again = sum(use.found_tokens for use in outcome.caches)
        if workload.stored is None and not (outcome.preemptions.any() or outcome.timed_out.any()):
            served = outcome.served
            assert outcome.totals.prefill_tokens + again == workload.isl[served].sum(), seed
    assert found > 10_000


def test_prefixes_are_of_every_kind() -> None:
    rates, again = [], 0
    for seed in CACHING:
        workload = shared_case(seed)[0]
        outcome = both(seed)[1]
        rates += [use.hit_rate for use in outcome.caches]
        tokens = int((workload.isl + workload.osl)[outcome.preemptions > 0].sum())
        again += outcome.totals.recomputed_tokens < tokens
    assert sum(rate > 0.5 for rate in rates) > 30
    assert sum(rate == 0 for rate in rates) > 30
    assert again > 10


@pytest.mark.parametrize("rate", [1.0, 8.0, 30.0], ids=["light", "near saturation", "past it"])
def test_turns_are_by_requests_not_by_tokens(rate: float) -> None:
    """Twice the requests are twice the turns; ten times the answer, and the turns are the same."""

    def turns(count: int, osl: int) -> int:
        r = np.random.default_rng(1)
        arrival = np.cumsum(r.exponential(1 / rate, count))
        workload = Workload(arrival, r.integers(100, 2000, count), np.full(count, osl))
        service = Service(TIMES, blocks=10**6, max_num_seqs=512, max_num_batched_tokens=4096)
        return simulate(workload, service).totals.jumps

    few, twice, longer = turns(1000, 50), turns(2000, 50), turns(2000, 500)
    assert twice / few < 2.2
    assert longer < 1.5 * twice
    assert longer < 4 * 2000


def test_memory_is_by_requests() -> None:
    """What is kept of a request is a few numbers: the state over time is thinned."""
    r = np.random.default_rng(1)
    count = 20_000
    workload = Workload(
        np.cumsum(r.exponential(0.1, count)), r.integers(1, 500, count), r.integers(1, 50, count)
    )
    found = simulate(workload, Service(TIMES, blocks=10**5))
    assert found.totals.jumps > 20_000
    assert len(found.timeline.time) < 2 * 4096
    assert found.timeline.time[-1] == pytest.approx(np.nanmax(found.finished))
    assert len(found.gaps.counts) < 2600


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"arrival": [2.0, 1.0]}, "out of order"),
        ({"arrival": [-1.0, 1.0]}, "negative"),
        ({"arrival": [0.0, float("nan")]}, "arrival holds what is no number"),
        ({"isl": [0, 5]}, "isl 0 is no number of tokens"),
        ({"osl": [1.5, 5]}, "osl holds a part of a token"),
        ({"isl": [5]}, r"isl has the shape \(1,\)"),
        ({"timeout": 0}, "timeout 0 is not a time"),
        ({"concurrency": 0}, "concurrency 0 is not a whole number"),
        ({"stored": [3]}, r"stored has the shape \(1,\)"),
        ({"stored": [3, -1]}, "stored holds a negative number"),
        ({"prefix": ((1,),)}, "1 lists of prefix blocks for 2 requests"),
        ({"arrival": [], "isl": [], "osl": []}, "no requests"),
    ],
)
def test_a_workload_that_is_none_is_refused(wrong: dict[str, object], said: str) -> None:
    given = {"arrival": [0.0, 1.0], "isl": [5, 5], "osl": [5, 5]} | wrong
    with pytest.raises(InputError, match=said):
        Workload(**given)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"blocks": 0}, "blocks 0 is not"),
        ({"scheduler": "fair"}, "unknown scheduler 'fair'; one of mixed, prefill-first, static"),
        ({"preemption": "drop"}, "unknown preemption 'drop'; one of recompute, swap"),
        ({"max_num_batched_tokens": 64}, "less than the 128 tokens"),
        ({"watermark": 1.0}, "watermark 1.0"),
        ({"speculation": Speculation(16, 0.5)}, "16 drafted tokens"),
        ({"speculation": Speculation(2, 1.5)}, "acceptance 1.5"),
        ({"speculation": Speculation(2, 0.5), "scheduler": "static"}, "'static' has no speculation"),
    ],
)
def test_a_service_that_is_none_is_refused(wrong: dict[str, object], said: str) -> None:
    with pytest.raises(InputError, match=said):
        Service(**{"times": TIMES, "blocks": 100} | wrong)  # type: ignore[arg-type]
