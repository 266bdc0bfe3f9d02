"""Which replica gets a request: the one with the fewest, counted anew from what the plain loop says became of each."""

from __future__ import annotations

from dataclasses import replace
from math import inf
from typing import Any

import numpy as np
import pytest

from capplan.capacity.simulator.loop import Router, simulate
from capplan.capacity.simulator.requests import (
    AffineTimes,
    Disaggregated,
    Floats,
    Link,
    Outcome,
    Service,
    Workload,
)
from capplan.capacity.simulator.stepwise import simulate_stepwise
from capplan.errors import InputError

TIMES = AffineTimes((0.012, 8.1e-5, 1.1e-9), ((8, 0.0087, 3.3e-7, 2.1e-4), (inf, 0.0101, 2.9e-7, 1.7e-4)))


def every(seconds: float, count: int) -> Floats:
    return np.array([seconds * k for k in range(count)])


class Recording(Router):
    """A router that tells whom it chose."""

    chosen: list[int]

    def give(self, i: int, now: float) -> None:
        super().give(i, now)
        self.chosen.append(self.turn - 1)


@pytest.fixture
def chosen(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The replica of each request that is simulated from here on."""
    Recording.chosen = []
    for module in ("loop", "disaggregated"):
        monkeypatch.setattr(f"capplan.capacity.simulator.{module}.Router", Recording)
    return Recording.chosen


def part(workload: Workload, rows: list[int]) -> Workload:
    prefix = None if workload.prefix is None else tuple(workload.prefix[i] for i in rows)
    return replace(
        workload,
        arrival=workload.arrival[rows],
        isl=workload.isl[rows],
        osl=workload.osl[rows],
        prefix=prefix,
    )


def load(found: Outcome, now: float) -> int:
    """Four for each that waits, one for each that runs. A request waits until the pass that it is first in."""
    waits = ~(found.first_scheduled < now)
    return int(np.where(waits, 4, ~(found.finished <= now)).sum())


@pytest.mark.parametrize("seed", range(6))
def test_the_least_loaded_gets_it_and_equals_take_turns(seed: int, chosen: list[int]) -> None:
    r = np.random.default_rng(seed)
    count, replicas = 40, int(r.choice([2, 3]))
    prefix = tuple((0, int(each)) for each in r.integers(1, 4, count))
    workload = Workload(
        np.cumsum(r.exponential(0.02, count)), r.integers(1, 900, count), r.integers(1, 60, count), prefix
    )
    service = Service(
        TIMES,
        blocks=1000,
        max_num_seqs=int(r.choice([2, 40])),
        max_num_batched_tokens=int(r.choice([64, 2048])),
        scheduler=str(r.choice(["mixed", "prefill-first"])),
        request_s=float(r.choice([0.0, 0.003])),
        prefix_caching=bool(r.random() < 0.5),
    )
    found = simulate(workload, replace(service, replicas=replicas, routing="least-loaded"))
    assert len(chosen) == count
    turn = 0
    for i in range(count):
        now, loads = float(workload.arrival[i]), []
        for k in range(replicas):
            before = [j for j in range(i) if chosen[j] == k]
            loads.append(load(simulate_stepwise(part(workload, before), service), now) if before else 0)
        expected = min(range(replicas), key=lambda k: (loads[k], (k - turn) % replicas))
        assert chosen[i] == expected, (i, loads)
        turn = expected + 1
    for k in range(replicas):
        rows = [i for i in range(count) if chosen[i] == k]
        alone = simulate_stepwise(part(workload, rows), service)
        np.testing.assert_allclose(found.finished[rows], alone.finished, rtol=1e-9)
        if service.prefix_caching:
            assert found.caches[k] == alone.caches[0]


def test_jumps_are_the_passes_one_by_one() -> None:
    r = np.random.default_rng(1)
    workload = Workload(np.cumsum(r.exponential(0.02, 300)), r.integers(1, 900, 300), r.integers(1, 60, 300))
    for ranks in (1, 2):
        service = Service(
            Together(), blocks=400, max_num_seqs=16, replicas=4, ranks=ranks, routing="least-loaded"
        )
        jumped, stepped = (simulate(workload, service, jumps=jumps) for jumps in (True, False))
        np.testing.assert_allclose(jumped.finished, stepped.finished, rtol=1e-9)
        assert jumped.totals.jumps < stepped.totals.jumps


class Together:
    """Times of ranks that go together, which are told what the others have."""

    decode = TIMES.decode

    def prompts(self, *work: Any) -> float:
        return TIMES.prompts(*work[:5])


@pytest.mark.parametrize("ranks", [1, 2])
def test_who_is_busy_with_a_long_one_gets_fewer(ranks: int, chosen: list[int]) -> None:
    """Every other request is a hundred times longer: in turn, one replica gets them all."""
    count = 200
    osl = np.where(np.arange(count) % 2, 10, 1000)
    workload = Workload(every(0.3, count), np.full(count, 200), osl)
    service = Service(Together(), blocks=2000, max_num_seqs=16, replicas=2, ranks=ranks)
    turns, least = (
        simulate(workload, replace(service, routing=rule)) for rule in ("round-robin", "least-loaded")
    )
    assert 0.45 < np.mean([osl[i] == 1000 for i in range(count) if chosen[i] == 0]) < 0.55
    assert (least.first_token - least.arrival).mean() < 0.5 * (turns.first_token - turns.arrival).mean()


def test_pools_route_prompts(chosen: list[int]) -> None:
    """A long prompt every other time: in turn, one prefill replica gets them all."""
    count = 200
    isl = np.where(np.arange(count) % 2, 10, 4000)
    workload = Workload(every(0.15, count), isl, np.full(count, 5))
    one = Service(TIMES, blocks=2000, replicas=2, max_num_batched_tokens=8192, scheduler="prefill-first")
    turns, least = (
        simulate(workload, Disaggregated(replace(one, routing=rule), one, Link("fast", 1e12), 1e5))
        for rule in ("round-robin", "least-loaded")
    )
    assert len(chosen) == count
    assert least.served.all()
    assert (least.first_token - least.arrival).mean() < 0.8 * (turns.first_token - turns.arrival).mean()


def test_one_replica_has_no_choice() -> None:
    workload = Workload(every(0.1, 20), np.full(20, 100), np.full(20, 50))
    found, plain = (
        simulate(workload, Service(TIMES, blocks=100, routing=rule))
        for rule in ("least-loaded", "round-robin")
    )
    np.testing.assert_array_equal(found.finished, plain.finished)


def test_one_that_will_be_refused_is_no_load(chosen: list[int]) -> None:
    """The second goes to the idle replica, and is too long: that is as idle for the third, though nobody looked yet."""
    isl = np.array([100, 5000, 100])
    workload = Workload(np.array([0.0, 0.001, 0.002]), isl, np.full(3, 50))
    service = Service(TIMES, blocks=100, request_s=0.01, replicas=2, routing="least-loaded")
    found = simulate(workload, service)
    assert found.refused.tolist() == [False, True, False]
    assert chosen == [0, 1, 1]


def test_what_can_not_be_routed_is_refused() -> None:
    workload = Workload(np.zeros(4), np.full(4, 100), np.full(4, 50), concurrency=2)
    with pytest.raises(InputError, match="with a concurrency each comes where one left"):
        simulate(workload, Service(TIMES, blocks=100, replicas=2, routing="least-loaded"))
    with pytest.raises(InputError, match="unknown routing 'least'; one of round-robin, least-loaded"):
        Service(TIMES, blocks=100, routing="least")
