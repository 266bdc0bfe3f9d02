"""Pools of their own for prefill and decode: what has to hold, and the cases that can be said by hand."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from math import inf

import numpy as np
import pytest

from capplan.capacity.simulator.loop import simulate
from capplan.capacity.simulator.requests import (
    AffineTimes,
    Disaggregated,
    Link,
    Outcome,
    Service,
    Workload,
)
from capplan.errors import InputError

CONFIGURATIONS = 200
TIMES = AffineTimes((0.012, 8.1e-5, 1.1e-9), ((8, 0.0087, 3.3e-7, 2.1e-4), (inf, 0.0101, 2.9e-7, 1.7e-4)))
ONE = Service(TIMES, blocks=1000, scheduler="prefill-first")
PER_TOKEN = 1e5  # bytes
PREFILL = 0.012 + 8.1e-5 * 1000 + 1.1e-9 * 1e6  # of 1,000 tokens


def alone(link: Link, layers: int = 1, first: str = "prefill", osl: int = 11) -> Outcome:
    service = Disaggregated(ONE, ONE, link, PER_TOKEN, layers, first)
    return simulate(Workload(np.array([0.0]), np.array([1000]), np.array([osl])), service)


def decoding(passes: int) -> float:
    return sum(0.0087 + 2.1e-4 + 3.3e-7 * (1000 + k) for k in range(1, passes + 1))


def test_a_request_alone_takes_prefill_transfer_and_decode() -> None:
    link = Link("slow", bandwidth=1e9, latency=0.01)  # 1e8 bytes: 0.11 s
    found = alone(link)
    assert found.first_token[0] == pytest.approx(PREFILL)
    assert found.finished[0] == pytest.approx(PREFILL + 0.11 + decoding(10))
    found = alone(link, first="decode")  # the decode replica gives out all eleven
    assert found.prefill_done[0] == pytest.approx(PREFILL)
    assert found.first_token[0] == pytest.approx(PREFILL + 0.11 + decoding(1))
    assert found.finished[0] == pytest.approx(PREFILL + 0.11 + decoding(11))


@pytest.mark.parametrize("bandwidth", [0.5e9, 1e9, 2e9, 5e9])
def test_layers_hide_the_transfer_behind_the_prefill(bandwidth: float) -> None:
    """What is left of it is max(t / L, t - D * (1 - 1 / L))."""
    layers, transfer = 40, 1e8 / bandwidth
    exposed = max(transfer / layers, transfer - PREFILL * (1 - 1 / layers))
    found = alone(Link("", bandwidth), layers)
    assert found.finished[0] == pytest.approx(PREFILL + exposed + decoding(10))


def test_transfers_on_one_link_wait_for_each_other() -> None:
    workload = Workload(np.zeros(2), np.array([1000, 1000]), np.array([2, 2]))
    two = replace(ONE, replicas=2)
    ends = []
    for shared in (False, True):
        service = Disaggregated(two, two, Link("", 1e9, shared=shared), PER_TOKEN)
        ends.append(np.sort(simulate(workload, service).finished))
    own, one = ends
    assert own[0] == pytest.approx(own[1])
    assert one[0] == pytest.approx(own[0])
    assert one[1] - one[0] == pytest.approx(0.1)


def test_a_full_decode_pool_holds_the_prefill_pool_up() -> None:
    """Eight prompts, a decode replica with room for two, a prefill replica with room for three."""
    workload = Workload(np.zeros(8), np.full(8, 1000), np.full(8, 100))
    roomy = Disaggregated(ONE, ONE, Link("", 1e12), PER_TOKEN)
    small = replace(ONE, blocks=140)  # 63 for each prompt, 69 with its answer
    tight = replace(roomy, prefill=replace(ONE, blocks=190), decode=small)
    free, held = simulate(workload, roomy), simulate(workload, tight)
    assert held.served.all()
    assert held.preemptions.sum() == 0
    np.testing.assert_allclose(np.sort(held.prefill_done)[:2], np.sort(free.prefill_done)[:2])
    # the last prompts are computed only when the first answers are out
    assert np.sort(held.first_scheduled)[7] > np.sort(held.finished)[1]
    assert np.sort(free.first_scheduled)[7] < np.sort(free.finished)[0]


def test_an_answer_of_one_token_needs_no_decode() -> None:
    found = alone(Link("", 1e9), osl=1)
    assert found.finished[0] == found.first_token[0] == pytest.approx(PREFILL)
    assert found.totals.transfer_seconds == 0


def test_a_slower_link_is_never_faster() -> None:
    r = np.random.default_rng(3)
    workload = Workload(
        np.cumsum(r.exponential(0.1, 200)), r.integers(200, 2000, 200), r.integers(2, 80, 200)
    )
    means = [
        float(simulate(workload, Disaggregated(ONE, ONE, Link("", bandwidth), PER_TOKEN)).finished.mean())
        for bandwidth in (1e12, 1e10, 3e9, 1e9)
    ]
    assert means == sorted(means)
    assert means[-1] > means[0] + 0.1


def random_case(seed: int) -> tuple[Workload, Disaggregated]:
    r = np.random.default_rng(seed)
    longest, count = int(r.choice([60, 400, 1500])), int(r.integers(5, 60))
    one = -(-(longest + 80) // 16)

    def pool() -> Service:
        return Service(
            TIMES,
            blocks=int(one * r.choice([1.1, 2, 5, 40])) + 1,
            max_num_seqs=int(r.choice([1, 4, 32])),
            max_num_batched_tokens=int(r.choice([64, 512, 2048])),
            scheduler=str(r.choice(["mixed", "prefill-first"])),
            chunked=bool(r.random() < 0.7),
            preemption=str(r.choice(["recompute", "swap"])),
            swap_s_per_block=1e-4,
            replicas=int(r.choice([1, 1, 2, 3])),
        )

    link = Link("", float(r.choice([1e8, 1e9, 1e11])), float(r.choice([0, 1e-3])), bool(r.random() < 0.5))
    service = Disaggregated(
        pool(), pool(), link, PER_TOKEN, int(r.choice([1, 32])), str(r.choice(["prefill", "decode"]))
    )
    workload = Workload(
        np.cumsum(r.exponential(1 / float(r.choice([1, 10, 200])), count)),
        r.integers(1, longest, count),
        r.integers(1, int(r.choice([2, 80])), count),
        concurrency=int(r.integers(2, 20)) if r.random() < 0.25 else None,
        timeout=float(r.choice([inf, inf, 0.001, 0.5])),
    )
    return workload, service


@cache
def run(seed: int) -> Outcome:
    return simulate(*random_case(seed))


def test_jumps_are_the_passes_one_by_one() -> None:
    for seed in range(CONFIGURATIONS):
        jumped = run(seed)
        stepped = simulate(*random_case(seed), jumps=False)
        for name in ("arrival", "first_scheduled", "prefill_done", "first_token", "finished", "preemptions"):
            a, b = getattr(jumped, name), getattr(stepped, name)
            np.testing.assert_allclose(a, b, rtol=1e-9, atol=1e-9, err_msg=f"{name}, seed {seed}")


def test_nobody_is_lost_and_no_block_is_left() -> None:
    preempted = 0
    for seed in range(CONFIGURATIONS):
        o = run(seed)
        assert (o.served.astype(int) + o.refused + o.timed_out == 1).all(), seed
        some = o.served
        assert (o.arrival[some] <= o.first_scheduled[some]).all()
        assert (o.first_scheduled[some] < o.prefill_done[some]).all()
        assert (o.prefill_done[some] <= o.first_token[some]).all()
        assert (o.first_token[some] <= o.finished[some]).all()
        assert o.timeline.blocks[-1] == 0, seed
        assert (o.timeline.blocks >= 0).all()
        assert (o.timeline.blocks <= o.totals.blocks).all()
        assert o.gaps.counts.sum() == o.totals.decode_tokens == (o.workload.osl[some] - 1).sum(), seed
        preempted += int(o.preemptions.sum())
    assert preempted > 20


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"first_token_at": "link"}, "unknown first_token_at 'link'; one of prefill, decode"),
        ({"decode": replace(ONE, scheduler="static")}, "scheduler 'static' has no pools"),
    ],
)
def test_what_is_no_pool_is_refused(change: dict[str, object], said: str) -> None:
    service = replace(Disaggregated(ONE, ONE, Link("", 1e9), PER_TOKEN), **change)  # type: ignore[arg-type]
    with pytest.raises(InputError, match=said):
        simulate(Workload(np.array([0.0]), np.array([10]), np.array([10])), service)
