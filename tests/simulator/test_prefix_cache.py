"""Prompts that take up blocks of their beginning: cases that can be said by hand; test_loop has the random ones."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from capplan.capacity.simulator.loop import simulate
from capplan.capacity.simulator.prefix_cache import Node, PrefixCache
from capplan.capacity.simulator.requests import AffineTimes, Disaggregated, Link, Outcome, Service, Workload
from capplan.capacity.simulator.stepwise import simulate_stepwise
from capplan.errors import InputError

TIMES = AffineTimes(
    (0.012, 8.1e-5, 1.1e-9), ((8, 0.0087, 3.3e-7, 2.1e-4), (float("inf"), 0.0101, 2.9e-7, 1.7e-4))
)
SERVICE = Service(TIMES, blocks=1000, max_num_batched_tokens=8192, prefix_caching=True)


def run(
    isl: Sequence[int],
    ids: Sequence[tuple[int, ...]],
    service: Service | Disaggregated = SERVICE,
    **other: Any,
) -> Outcome:
    """Requests a minute apart, of one token each unless told."""
    given: dict[str, Any] = {"osl": [1] * len(isl), "arrival": [60.0 * k for k in range(len(isl))]} | other
    return simulate(Workload(isl=np.array(isl), prefix=tuple(ids), **given), service)


def prefill(tokens: int, before: int) -> float:
    return TIMES.prompts(0, 0, 1, tokens, tokens * before + tokens * (tokens + 1) / 2)


def ttft(found: Outcome) -> list[float]:
    return list(found.first_token - found.arrival)


def test_a_prefix_is_not_computed_again_but_is_attended_to() -> None:
    found = run([1500, 1500], [(1, 2, 3), (1, 2, 4)])
    assert ttft(found) == pytest.approx([prefill(1500, 0), prefill(1500 - 1024, 1024)])
    assert found.totals.prefill_tokens == 1500 + 476
    assert [(use.prompt_tokens, use.found_tokens) for use in found.caches] == [(3000, 1024)]
    assert found.caches[0].hit_rate == pytest.approx(1024 / 3000)


def test_the_last_token_is_always_computed() -> None:
    """1,024 tokens are 64 blocks: the one of the last token is computed, to the 16 of it."""
    assert ttft(run([1024, 1024], [(1, 2), (1, 2)]))[1] == pytest.approx(prefill(16, 1008))
    assert ttft(run([1025, 1025], [(1, 2, 3), (1, 2, 3)]))[1] == pytest.approx(prefill(1, 1024))


@pytest.mark.parametrize(("block_size", "there"), [(16, 1024), (100, 1000), (784, 784), (1040, 0)])
def test_what_is_found_are_whole_blocks_of_the_engine(block_size: int, there: int) -> None:
    found = run([2000, 2000], [(1, 2, 3, 4), (1, 2, 5, 6)], replace(SERVICE, block_size=block_size))
    assert found.caches[0].found_tokens == there


def test_the_same_block_behind_another_is_another() -> None:
    assert run([1024, 1024], [(1, 2), (3, 2)]).caches[0].found_tokens == 0


def test_the_longest_unused_goes_first_and_of_it_the_end() -> None:
    """100 blocks. C takes the 36 that were never used and four of A's 32, of its end; whoever comes next five of B's."""
    a, b, c, of_a, of_b = (512, (1,)), (512, (2,)), (640, (3, 4)), (513, (1, 5)), (513, (2, 5))

    def found(*requests: tuple[int, tuple[int, ...]]) -> int:
        isl, ids = zip(*requests, strict=True)
        return run(list(isl), list(ids), replace(SERVICE, blocks=100)).caches[0].found_tokens // 16

    assert found(a, b, c, of_a) == 28
    assert found(a, b, c, of_a, of_b) == 28 + 27
    assert found(a, b, of_a, c, of_a) == 32 + 32  # used since: C takes B's
    assert found(a, b, of_a, c, of_b) == 32 + 27


def test_blocks_of_two_that_run_count_once() -> None:
    """64 of the prefix, one of the longer prompt, and one of the first answer."""

    def used(*ids: tuple[int, ...]) -> int:
        line = run([1024, 1040], list(ids), arrival=[0.0, 0.001], osl=[50, 50]).timeline
        return int(line.blocks[line.running == 2][0])

    assert used((1, 2), (1, 2, 3)) == 64 + 1 + 1
    assert used((1, 2), (3, 4, 5)) == 64 + 65 + 1


def test_one_that_is_computed_again_finds_its_own_blocks() -> None:
    """With blocks for both prompts but not for their answers, the later is preempted, and computed but in part."""
    service = replace(SERVICE, blocks=40, max_num_batched_tokens=2048)
    given: dict[str, Any] = {"arrival": [0.0, 0.0], "osl": [200, 200]}
    found = run([256, 256], [(1,), (2,)], service, **given)
    whole = run([256, 256], [(1,), (2,)], replace(service, prefix_caching=False), **given)
    assert found.preemptions.tolist() == whole.preemptions.tolist() == [0, 1]
    assert 0 < found.totals.recomputed_tokens < whole.totals.recomputed_tokens
    again = whole.totals.recomputed_tokens - found.totals.recomputed_tokens
    assert found.totals.prefill_tokens == whole.totals.prefill_tokens - again
    assert found.caches[0].found_tokens == 0  # which is of prompts that come
    assert found.finished[1] < whole.finished[1]


def test_each_replica_has_its_own() -> None:
    ids = [(1, 2)] * 4
    two = run([1024] * 4, ids, replace(SERVICE, replicas=2))
    assert [use.found_tokens for use in two.caches] == [1008, 1008]
    assert run([1024] * 4, ids).caches[0].found_tokens == 3 * 1008


def test_the_prefill_pool_has_one() -> None:
    pools = Disaggregated(SERVICE, SERVICE, Link("fast", 1e12), bytes_per_token=1e5)
    found = run([1500, 1500], [(1, 2, 3), (1, 2, 4)], pools, osl=[20, 20])
    assert ttft(found)[1] == pytest.approx(prefill(476, 1024))
    assert [use.found_tokens for use in found.caches] == [1024]
    assert found.timeline.blocks[-1] == 0


def test_what_a_store_has_is_attended_to_and_not_computed() -> None:
    workload = Workload(np.array([0.0, 60.0]), np.full(2, 1500), np.full(2, 2), stored=np.array([1030, 9999]))
    found = simulate(workload, replace(SERVICE, prefix_caching=False))
    assert ttft(found) == pytest.approx([prefill(1500 - 1024, 1024), prefill(1500 - 1488, 1488)])
    pools = Disaggregated(SERVICE, SERVICE, Link("fast", 1e12), bytes_per_token=1e5)
    apart = simulate(workload, pools)
    assert ttft(apart) == pytest.approx(ttft(found))
    assert apart.totals.transfer_seconds == pytest.approx(2 * 1500 * 1e5 / 1e12)  # all of it goes over


def test_without_ids_nothing_is_found() -> None:
    workload = Workload(np.arange(20.0), np.full(20, 700), np.full(20, 30))
    found, plain = (simulate(workload, replace(SERVICE, prefix_caching=on)) for on in (True, False))
    assert found.caches == ()
    np.testing.assert_array_equal(found.finished, plain.finished)


@pytest.mark.parametrize("wrong", [{"scheduler": "static"}, {"preemption": "swap"}])
def test_rules_that_have_no_prefix_cache_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(InputError, match="no prefix caching"):
        replace(SERVICE, **wrong)


def test_what_is_done_is_by_requests(monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs of blocks that go into the queue: twice for twice the requests, with answers of any length."""
    appended = 0
    append = PrefixCache.append

    def counted(self: PrefixCache, node: Node | None, blocks: int) -> None:
        nonlocal appended
        appended += 1
        append(self, node, blocks)

    monkeypatch.setattr(PrefixCache, "append", counted)

    def runs(count: int, osl: int) -> int:
        nonlocal appended
        appended = 0
        r = np.random.default_rng(1)
        ids = tuple((0, int(a), 1000 + k) for k, a in enumerate(r.integers(1, 100, count)))
        workload = Workload(
            np.cumsum(r.exponential(0.1, count)), np.full(count, 1500), np.full(count, osl), ids
        )
        simulate(workload, replace(SERVICE, blocks=20_000))
        return appended

    few, twice, longer = runs(500, 20), runs(1000, 20), runs(1000, 200)
    assert twice / few < 2.2
    assert longer < 1.2 * twice
    assert longer < 5 * 1000


def test_the_plain_loop_agrees_on_a_trace_of_conversations() -> None:
    """Turns that grow, a cache too small for them, and prompts in chunks beside each other."""
    r = np.random.default_rng(3)
    turns = [(talk, turn) for turn in range(6) for talk in range(12)]
    ids = tuple((0, *(100 * talk + k for k in range(1 + 2 * turn))) for talk, turn in turns)
    isl = np.array([16 * (len(each) - 1) + int(r.integers(1, 17)) for each in ids])
    workload = Workload(
        np.cumsum(r.exponential(0.05, len(ids))), isl, r.integers(1, 40, len(ids)), ids, prefix_tokens=16
    )
    service = Service(
        TIMES,
        blocks=60,
        max_num_seqs=6,
        max_num_batched_tokens=64,
        long_prefill_token_threshold=24,
        prefix_caching=True,
    )
    ours, plain = simulate(workload, service), simulate_stepwise(workload, service)
    np.testing.assert_allclose(ours.finished, plain.finished, rtol=1e-9)
    assert ours.caches == plain.caches
    assert 0.05 < ours.caches[0].hit_rate < 0.95
