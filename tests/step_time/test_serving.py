"""Serving in equilibrium: work is conserved, the slower part sets the rate, and what is faster is never slower."""

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from capplan.capacity.step_time.chip import chip_of
from capplan.capacity.step_time.engine_steps import Engine, engine_steps
from capplan.capacity.step_time.forward import Step, layout
from capplan.capacity.step_time.passes import pass_time
from capplan.capacity.step_time.serving import closed_loop, disaggregated, full_load, open_loop
from capplan.hardware import registry
from capplan.models.registry import model

H100 = chip_of(registry.gpu("h100-sxm"))
VLLM, SGLANG, TRTLLM = (engine_steps(name) for name in ("vllm", "sglang", "tensorrt-llm"))
DENSE = layout(model("llama-3.3-70b"), quantization="fp8", tp=4)
SMALL = layout(model("llama-3.1-8b"))
LENGTHS = st.integers(16, 20_000)


@settings(deadline=None, max_examples=60)
@given(isl=LENGTHS, osl=st.integers(2, 8_000), concurrency=st.integers(1, 1024))
def test_requests_under_way_are_those_asked_for(isl: int, osl: int, concurrency: int) -> None:
    """Little's law: rate times the time of a request."""
    for engine in (VLLM, SGLANG):
        found = closed_loop(DENSE, H100, engine, isl=isl, osl=osl, concurrency=concurrency)
        under_way = found.requests_per_s * (found.ttft + (osl - 1) * found.tpot)
        assert under_way == pytest.approx(concurrency, rel=1e-9)
        assert found.tpot >= found.step * (1 - 1e-9)
        assert found.ttft > 0
        assert 0 < found.batch <= concurrency * (1 + 1e-9)


@settings(deadline=None, max_examples=40)
@given(isl=LENGTHS, osl=st.integers(2, 8_000), concurrency=st.integers(1, 512))
def test_more_bandwidth_and_more_flops_are_never_slower(isl: int, osl: int, concurrency: int) -> None:
    faster = H100._replace(
        bandwidth=H100.bandwidth * 1.5, peaks={name: rate * 1.5 for name, rate in H100.peaks.items()}
    )
    before = closed_loop(SMALL, H100, VLLM, isl=isl, osl=osl, concurrency=concurrency)
    after = closed_loop(SMALL, faster, VLLM, isl=isl, osl=osl, concurrency=concurrency)
    assert after.requests_per_s >= before.requests_per_s * (
        1 - 1e-3
    )  # the fixed point is not followed to its end
    assert after.step <= before.step * (1 + 1e-9) or after.batch > before.batch


def test_arrays_are_numbers_side_by_side() -> None:
    asked = [1.0, 8.0, 64.0, 512.0]
    together = closed_loop(DENSE, H100, VLLM, isl=1024, osl=512, concurrency=np.array(asked), most=300.0)
    for place, concurrency in enumerate(asked):
        alone = closed_loop(DENSE, H100, VLLM, isl=1024, osl=512, concurrency=concurrency, most=300.0)
        for name in ("requests_per_s", "ttft", "tpot", "batch", "step"):
            assert getattr(together, name)[place] == pytest.approx(getattr(alone, name), rel=1e-9)


@settings(deadline=None, max_examples=60)
@given(isl=LENGTHS, osl=st.integers(8, 8_000))
def test_more_requests_are_never_served_slower(isl: int, osl: int) -> None:
    for engine in (VLLM, SGLANG, TRTLLM):
        rates = [
            closed_loop(SMALL, H100, engine, isl=isl, osl=osl, concurrency=count).requests_per_s
            for count in range(1, 40, 3)
        ]
        assert all(many >= few * (1 - 1e-3) for few, many in pairwise(rates))


@pytest.mark.parametrize(("isl", "osl"), [(1024, 16), (8000, 100), (1024, 1024)])
def test_one_request_never_gains_from_others(isl: int, osl: int) -> None:
    """Where first tokens take long beside few later ones, most requests are not decoding."""
    for engine in (VLLM, SGLANG, TRTLLM):
        asked = [
            closed_loop(SMALL, H100, engine, isl=isl, osl=osl, concurrency=count) for count in range(1, 40)
        ]
        for few, many in pairwise(asked):
            assert many.tpot >= few.tpot * (1 - 1e-6)
            assert many.ttft >= few.ttft * (1 - 1e-6)


def test_where_prompts_share_passes_a_token_waits_for_one_pass_at_most() -> None:
    """1,024 tokens in and 4 out: a budget of 8,192 starts 8 prompts a pass, so that 24 decode and the others wait."""
    found = closed_loop(SMALL, H100, VLLM, isl=1024, osl=4, concurrency=256)
    full = Step(decode=24.0, context=1026.0, prompts=8.0, chunk=1024.0)
    assert found.batch == pytest.approx(24)
    assert found.tpot == pytest.approx(pass_time(SMALL, H100, VLLM, full), rel=1e-6)
    assert found.requests_per_s == pytest.approx(8 / found.tpot, rel=1e-6)
    first = closed_loop(SMALL, H100, SGLANG, isl=1024, osl=4, concurrency=256)  # prompts go first there
    assert first.tpot > 5 * found.tpot


def test_requests_that_do_not_fit_wait_and_the_batch_stops_growing() -> None:
    free = closed_loop(DENSE, H100, VLLM, isl=1024, osl=512, concurrency=256)
    short = closed_loop(DENSE, H100, VLLM, isl=1024, osl=512, concurrency=256, most=32.0)
    assert short.batch == pytest.approx(32)
    assert short.ttft > 5 * free.ttft
    assert short.tpot < free.tpot
    assert short.requests_per_s < free.requests_per_s


def test_a_loop_never_serves_more_than_full_load() -> None:
    full = full_load(DENSE, H100, VLLM, isl=1024, osl=512, batch=64.0)
    loop = closed_loop(DENSE, H100, VLLM, isl=1024, osl=512, concurrency=64.0)
    assert loop.requests_per_s <= full.requests_per_s


def test_an_open_loop_meets_the_closed_one_of_the_same_rate() -> None:
    loop = closed_loop(DENSE, H100, VLLM, isl=1024, osl=512, concurrency=32.0)
    found = open_loop(DENSE, H100, VLLM, isl=1024, osl=512, rate=loop.requests_per_s)
    assert found.batch == pytest.approx(loop.batch, rel=0.05)
    assert found.tpot == pytest.approx(loop.tpot, rel=0.05)


def test_a_pipeline_serves_more_and_answers_no_sooner() -> None:
    one = full_load(
        layout(model("llama-3.3-70b"), quantization="fp8"), H100, VLLM, isl=512, osl=512, batch=64.0
    )
    two = full_load(
        layout(model("llama-3.3-70b"), quantization="fp8", pp=2), H100, VLLM, isl=512, osl=512, batch=128.0
    )
    assert 1.5 * one.requests_per_s < two.requests_per_s < 2 * one.requests_per_s
    assert two.tpot > one.tpot


def test_of_two_pools_the_slower_sets_the_rate() -> None:
    asked = {"isl": 8192, "osl": 256, "concurrency": 512.0, "decode_ranks": 4}
    narrow = disaggregated(SMALL, SMALL, H100, VLLM, **asked, prefill_ranks=1)
    wide = disaggregated(SMALL, SMALL, H100, VLLM, **asked, prefill_ranks=16)
    assert narrow.prefill_share == pytest.approx(1, rel=1e-6)  # prefill never rests
    assert wide.requests_per_s > 2 * narrow.requests_per_s
    assert wide.tpot > narrow.tpot  # more sequences reach the decode pool
    assert narrow.tpot == narrow.step  # prefill takes nothing from it


def test_prefill_takes_its_time_from_decode() -> None:
    short = closed_loop(DENSE, H100, VLLM, isl=128, osl=256, concurrency=64.0)
    long = closed_loop(DENSE, H100, VLLM, isl=8192, osl=256, concurrency=64.0)
    assert long.tpot - long.step > 5 * (short.tpot - short.step)
    assert long.prefill_share > 0.3 > short.prefill_share


@pytest.mark.parametrize("engine", [VLLM, SGLANG, TRTLLM])
def test_a_request_alone_waits_for_no_other(engine: Engine) -> None:
    busy = engine._replace(queue=engine.queue + 3, poll=8.0)
    alone, as_alone = (
        closed_loop(DENSE, H100, each, isl=2000, osl=500, concurrency=1) for each in (engine, busy)
    )
    assert alone.ttft == as_alone.ttft == pytest.approx(engine.request + alone.prefill)
    two, longer = (
        closed_loop(DENSE, H100, each, isl=2000, osl=500, concurrency=2) for each in (engine, busy)
    )
    assert longer.ttft > two.ttft + alone.prefill
