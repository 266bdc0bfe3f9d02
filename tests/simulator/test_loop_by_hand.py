"""The loop's rules, on cases that can be followed on paper."""

from __future__ import annotations

from math import ceil, inf

import numpy as np
import pytest

from capplan.capacity.simulator.loop import simulate
from capplan.capacity.simulator.requests import AffineTimes, Outcome, Service, Speculation, Workload
from capplan.capacity.speculation import expected_tokens

PASS = 1.0  # second, whatever decodes
# a pass with prompts takes 10 s and 0.1 s a token; decoding beside them is free
TIMES = AffineTimes((10.0, 0.1, 0.0), ((inf, PASS, 0.0, 0.0),))


def run(
    arrival: list[float], isl: list[int], osl: list[int], *, concurrency: int | None = None, **flags: object
) -> Outcome:
    service = Service(TIMES, **{"blocks": 1000, "block_size": 10} | flags)  # type: ignore[arg-type]
    return simulate(Workload(np.array(arrival), np.array(isl), np.array(osl), None, concurrency), service)


def test_one_request() -> None:
    o = run([5.0], [100], [4])
    assert o.first_scheduled[0] == 5
    assert o.first_token[0] == 5 + 10 + 10
    assert o.finished[0] == 25 + 3 * PASS
    assert o.gaps.counts.sum() == 3


def test_a_prompt_goes_in_chunks_of_the_budget() -> None:
    o = run([0.0], [100], [2], max_num_seqs=4, max_num_batched_tokens=40)
    assert o.first_token[0] == (10 + 4) + (10 + 4) + (10 + 2)
    whole = run([0.0], [100], [2], max_num_seqs=4, max_num_batched_tokens=40, chunked=False)
    assert whole.first_token[0] == 10 + 10


def test_others_go_beside_a_long_prompt_under_a_threshold() -> None:
    """The long one takes 30 of a pass's 40 tokens, and the short ones the rest, in the order in which they came."""
    o = run([0.0, 0.0, 0.0], [90, 10, 10], [1, 1, 1], max_num_batched_tokens=40, max_num_seqs=4,
            long_prefill_token_threshold=30)  # fmt: skip
    assert list(o.first_token) == [14 + 14 + 13, 14, 14 + 14]
    without = run([0.0, 0.0, 0.0], [90, 10, 10], [1, 1, 1], max_num_batched_tokens=40, max_num_seqs=4)
    assert list(without.first_token) == [14 + 14 + 13, 14 + 14 + 13, 14 + 14 + 13]


def test_mixed_passes_decode_beside_a_prompt_and_prefill_first_does_not() -> None:
    """The second comes while the first, of 5 tokens, has had 2."""
    times = [0.0, 11.5], [10, 100], [5, 5]
    mixed = run(*times)
    # the pass of its second token ends at 12; then one with the prompt gives it the third
    assert mixed.first_token[1] == 12 + 20
    assert mixed.finished[0] == 12 + 20 + 2 * PASS
    assert mixed.finished[1] == 12 + 20 + 4 * PASS
    first = run(*times, scheduler="prefill-first")
    assert first.first_token[1] == 12 + 20
    assert first.finished[0] == 12 + 20 + 3 * PASS  # its third token waited
    for o in (mixed, first):
        assert o.gaps.edges[-1] > 20  # the stall shows in the time between tokens


def test_nobody_passes_the_first_in_line() -> None:
    """The second does not fit beside the first; the third would, and waits behind it."""
    o = run([0.0, 1.0, 2.0], [500, 600, 10], [20, 2, 2], blocks=100)
    assert o.first_scheduled[1] == o.finished[0]
    assert o.first_scheduled[2] == o.first_scheduled[1]


def test_a_watermark_stays_free_for_those_who_run() -> None:
    two = [0.0, 0.0], [480, 480], [2, 2]
    together = run(*two, blocks=100)
    apart = run(*two, blocks=100, watermark=0.1)  # 48 + 48 of 100 leave less than ten
    assert together.first_scheduled[1] == 0
    assert apart.first_scheduled[1] == apart.finished[0]


def test_the_last_admitted_is_preempted_and_computed_again() -> None:
    """Ten blocks: both prompts take five each, and the first pass needs one more of each."""
    o = run([0.0, 0.0], [50, 50], [3, 3], blocks=10)
    assert o.preemptions.tolist() == [0, 1]
    assert o.first_token.tolist() == [20, 20]
    assert o.finished[0] == 20 + 2 * PASS
    # 51 tokens are computed again when the first has left: that gives the second token
    assert o.finished[1] == 22 + (10 + 5.1) + PASS
    assert o.totals.recomputed_tokens == 51
    swapped = run([0.0, 0.0], [50, 50], [3, 3], blocks=10, preemption="swap", swap_s_per_block=0.2)
    # five blocks go out in the next pass, and come back in the one after the first has left
    assert swapped.finished[0] == pytest.approx(20 + 2 * PASS + 1.0)
    assert swapped.finished[1] == pytest.approx(23 + 1.0 + 2 * PASS)


def test_a_static_batch_leaves_together() -> None:
    o = run([0.0, 0.0, 1.0], [10, 20, 10], [3, 11, 2], scheduler="static", max_num_seqs=2)
    assert o.first_token.tolist()[:2] == [14, 14]  # both padded to 20
    assert o.finished.tolist()[:2] == [24, 24]
    assert o.first_scheduled[2] == 24


def test_a_closed_loop_sends_the_next_when_one_leaves() -> None:
    o = run([0.0] * 3, [10, 10, 10], [2, 4, 2], concurrency=2)
    assert o.arrival.tolist() == [0, 0, o.finished[0]]


def test_a_closed_loop_of_fewer_than_the_replicas_serves_everyone() -> None:
    """One under way takes one of three replicas; two take turns on two."""
    given = ([0.0] * 5, [10] * 5, [2] * 5)
    assert run(*given, concurrency=1, replicas=3).finished.tolist() == [12, 24, 36, 48, 60]
    assert run(*given, concurrency=2, replicas=3).finished.tolist() == [12, 12, 24, 24, 36]


def test_replicas_take_requests_in_turn() -> None:
    o = run([0.0] * 4, [10] * 4, [2] * 4, replicas=2, max_num_seqs=1, max_num_batched_tokens=10)
    assert o.first_scheduled.tolist() == [0, 0, 12, 12]


@pytest.mark.parametrize(("drafted", "acceptance"), [(3, 0.7), (5, 0.0), (4, 1.0), (1, 0.5)])
def test_drafts_that_hold_are_tokens_for_nothing(drafted: int, acceptance: float) -> None:
    """Leviathan's expected tokens a pass; lookahead takes blocks for what may be drafted."""
    o = run([0.0], [100], [201], speculation=Speculation(drafted, acceptance))
    passes = ceil(200 / expected_tokens(acceptance, drafted) - 1e-9)
    assert o.finished[0] - o.first_token[0] == pytest.approx(passes * PASS)
    plain, ahead = (
        run([0.0], [100], [2], speculation=kind).timeline.blocks.max()
        for kind in (None, Speculation(drafted, acceptance))
    )
    assert (plain, ahead) == (10, 11)


def test_what_is_longer_than_the_pool_is_refused() -> None:
    o = run([0.0, 0.0, 0.0], [900, 995, 10], [100, 10, 5], blocks=100)
    assert o.refused.tolist() == [False, True, False]
    assert np.isnan(o.finished[1])
    limited = run([0.0, 0.0], [50, 60], [10, 10], max_model_len=60)
    assert limited.refused.tolist() == [False, True]
