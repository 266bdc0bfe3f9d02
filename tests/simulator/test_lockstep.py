"""Ranks whose passes go together."""

from __future__ import annotations

from dataclasses import replace
from math import inf
from typing import Any

import numpy as np
import pytest

from capplan.capacity.simulator.loop import simulate
from capplan.capacity.simulator.requests import AffineTimes, Outcome, Service, Workload
from capplan.errors import InputError

CONFIGURATIONS = 150


class Times(AffineTimes):
    """Step times that know of other ranks' tokens."""

    def prompts(self, *work: Any) -> float:
        return super().prompts(*work[:5]) + 1e-6 * float(sum(work[5:]))


TIMES = Times((0.012, 8.1e-5, 1.1e-9), ((8, 0.0087, 3.3e-7, 2.1e-4), (inf, 0.0101, 2.9e-7, 1.7e-4)))
TWO = Service(TIMES, blocks=1000, replicas=2, ranks=2)
APART = replace(TWO, ranks=1)


def test_a_rank_that_decodes_waits_for_the_prompts_of_another() -> None:
    """The second request comes to the other rank while the first decodes."""
    workload = Workload(np.array([0.0, 0.5]), np.array([10, 2000]), np.array([100, 2]))
    together, apart = simulate(workload, TWO), simulate(workload, APART)
    prefill = float(together.first_token[1] - together.first_scheduled[1])
    late = float(together.finished[0] - apart.finished[0])
    assert prefill > 0.15
    assert late == pytest.approx(prefill - 0.0089, rel=0.01)  # the pass would have taken 8.9 ms without
    assert float(together.gaps.edges[-1]) > prefill > 5 * float(apart.gaps.edges[-2])


def test_an_idle_rank_holds_nobody_up() -> None:
    workload = Workload(np.array([0.0]), np.array([100]), np.array([50]))
    together, apart = simulate(workload, TWO), simulate(workload, APART)
    # but for the experts' share of the other rank's tokens, which are none, and for its getting all of this one's
    assert together.finished[0] == pytest.approx(apart.finished[0] + 1e-6 * (100 / 2 + 100))


def test_the_slowest_rank_sets_the_pace() -> None:
    """Contexts grow apart: first one rank is the slowest, then the other."""
    slow = Times((0.012, 0.0, 0.0), ((2, 0.010, 1e-6, 0.0), (inf, 0.009, 5e-6, 0.0)))
    # rank 0 has one sequence of 600 tokens; rank 1 two short ones, whose context grows twice as fast
    workload = Workload(np.zeros(4), np.array([600, 40, 1, 40]), np.array([400, 400, 1, 400]))
    service = replace(TWO, times=slow, max_num_batched_tokens=4096)
    jumped, stepped = simulate(workload, service), simulate(workload, service, jumps=False)
    np.testing.assert_allclose(jumped.finished, stepped.finished, rtol=1e-12)
    first = [0.010 + 1e-6 * (601 + k) for k in range(399)]
    second = [0.009 + 5e-6 * (82 + 2 * k) for k in range(399)]
    assert first[0] > second[0]
    assert first[-1] < second[-1]
    most = sum(max(pair) for pair in zip(first, second, strict=True))
    assert jumped.finished[0] - jumped.first_token[0] == pytest.approx(most, rel=1e-9)


def random_case(seed: int) -> tuple[Workload, Service]:
    r = np.random.default_rng(seed)
    longest, count, ranks = int(r.choice([60, 400])), int(r.integers(5, 60)), int(r.choice([2, 3, 4]))
    service = Service(
        TIMES,
        blocks=int(-(-(longest + 80) // 16) * r.choice([1.1, 2, 40])) + 1,
        max_num_seqs=int(r.choice([1, 4, 32])),
        max_num_batched_tokens=int(r.choice([64, 512])),
        scheduler=str(r.choice(["mixed", "prefill-first"])),
        chunked=bool(r.random() < 0.7),
        preemption=str(r.choice(["recompute", "swap"])),
        swap_s_per_block=1e-4,
        replicas=ranks * int(r.choice([1, 2])),
        ranks=ranks,
    )
    workload = Workload(
        np.cumsum(r.exponential(1 / float(r.choice([1, 10, 200])), count)),
        r.integers(1, longest, count),
        r.integers(1, int(r.choice([2, 80])), count),
        concurrency=int(r.integers(8, 20)) if r.random() < 0.25 else None,
        timeout=float(r.choice([inf, inf, 0.001, 0.5])),
    )
    return workload, service


def test_nobody_is_lost_and_jumps_are_the_passes_one_by_one() -> None:
    preempted = 0
    for seed in range(CONFIGURATIONS):
        o: Outcome = simulate(*random_case(seed))
        stepped = simulate(*random_case(seed), jumps=False)
        for name in ("arrival", "first_scheduled", "first_token", "finished", "preemptions"):
            a, b = getattr(o, name), getattr(stepped, name)
            np.testing.assert_allclose(a, b, rtol=1e-9, atol=1e-9, err_msg=f"{name}, seed {seed}")
        assert (o.served.astype(int) + o.refused + o.timed_out == 1).all(), seed
        assert o.timeline.blocks[-1] == 0, seed
        assert o.gaps.counts.sum() == o.totals.decode_tokens, seed
        preempted += int(o.preemptions.sum())
    assert preempted > 20


def test_groups_are_whole() -> None:
    with pytest.raises(InputError, match="3 replicas are no groups of 2 ranks"):
        Service(TIMES, blocks=10, replicas=3, ranks=2)
