"""A pass is the sum of what it shows, grows with what it has to do, and is never below what physics allows."""

from functools import cache

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from capplan.capacity.step_time import passes
from capplan.capacity.step_time.chip import chip_of
from capplan.capacity.step_time.engine_steps import engine_steps
from capplan.capacity.step_time.forward import Layout, Step, layout
from capplan.capacity.step_time.operations import Number
from capplan.capacity.step_time.passes import one_pass, pass_time
from capplan.hardware import registry
from capplan.models.registry import model

CHIPS = {name: chip_of(registry.gpu(name)) for name in ("a100-sxm", "l40s", "h200-sxm", "b200", "mi300x")}
ENGINES = {name: engine_steps(name) for name in ("vllm", "sglang", "tensorrt-llm")}
# heads, a window, a latent, a sparse latent, pooled vectors, states, experts with and without shared ones
MODELS = (
    *("llama-3.1-8b", "gemma-3-12b", "deepseek-v2-lite", "deepseek-v3.2", "deepseek-v4-flash"),
    *("qwen3-next-80b-a3b", "qwen3-30b-a3b", "gpt-oss-20b", "falcon-h1-7b"),
)
models, chips, engines = (st.sampled_from(sorted(names)) for names in (MODELS, CHIPS, ENGINES))
ranks = st.sampled_from([1, 2, 4, 8])
batches, contexts = st.floats(1, 2000), st.floats(1, 200_000)
some = settings(max_examples=80, deadline=None)


@cache
def plan(name: str, tp: int = 1, dp: int = 1, pp: int = 1, ep: bool = False, kv: str = "bf16") -> Layout:
    return layout(model(name), tp=tp, dp=dp, pp=pp, expert_parallel=ep, kv=kv)


def steps(batch: Number, context: Number, chunk: float = 512.0) -> list[Step]:
    """A pass of decode alone, one of a prompt, and one of both."""
    return [
        Step(decode=batch, context=context),
        Step(prompts=1.0, chunk=chunk, before=context),
        Step(decode=batch, context=context, prompts=2.0, chunk=chunk),
    ]


@some
@given(models, chips, engines, ranks, batches, contexts)
def test_the_parts_add_up(name: str, gpu: str, engine: str, tp: int, batch: float, context: float) -> None:
    chip = CHIPS[gpu]
    for step in steps(batch, context):
        one = one_pass(plan(name, tp), chip, ENGINES[engine], step)
        assert one.seconds == pytest.approx(pass_time(plan(name, tp), chip, ENGINES[engine], step), rel=1e-12)
        three = [(3.0, one)]
        assert sum(passes.by_group(three).values()) == pytest.approx(3 * one.seconds)
        assert sum(passes.by_limit(three).values()) == pytest.approx(3 * one.seconds)


@some
@given(models, chips, engines, ranks, batches, contexts)
def test_a_pass_is_never_below_the_floor(
    name: str, gpu: str, engine: str, tp: int, batch: float, context: float
) -> None:
    chip = CHIPS[gpu]
    for step in steps(batch, context):
        one = one_pass(plan(name, tp), chip, ENGINES[engine], step)
        moved = sum(each.operation.count * each.operation.held for each in one.timed) / chip.bandwidth
        worked = sum(
            each.operation.count * each.operation.flops / max(chip.peaks.values()) for each in one.timed
        )
        assert one.seconds >= max(moved, worked)
        low, high = passes.between([(1, one)], chip)
        assert passes.floor(one, chip) <= low < one.seconds < high


@some
@given(models, chips, engines, ranks, batches, contexts, st.floats(1, 4))
def test_more_bandwidth_is_never_slower(
    name: str, gpu: str, engine: str, tp: int, batch: float, context: float, times: float
) -> None:
    chip, one = CHIPS[gpu], plan(name, tp)
    for faster in (
        chip._replace(bandwidth=chip.bandwidth * times),
        chip._replace(link_bandwidth=chip.link_bandwidth * times, pcie_bandwidth=chip.pcie_bandwidth * times),
    ):
        for step in steps(batch, context):
            now, before = (pass_time(one, each, ENGINES[engine], step) for each in (faster, chip))
            assert now <= before * (1 + 1e-12)


@some
@given(models, chips, engines, ranks, batches, contexts, st.floats(1, 4))
def test_time_grows_with_batch_and_with_context(
    name: str, gpu: str, engine: str, tp: int, batch: float, context: float, times: float
) -> None:
    chip, of = CHIPS[gpu], ENGINES[engine]
    for more in (
        steps(batch * times, context),
        steps(batch, context * times),
        steps(batch, context, 512 * times),
    ):
        for step, larger in zip(steps(batch, context), more, strict=True):
            now, then = (pass_time(plan(name, tp), chip, of, each) for each in (step, larger))
            assert then >= now * (1 - 1e-12)


@pytest.mark.parametrize("name", MODELS)
def test_only_several_ranks_communicate(name: str) -> None:
    def collectives(tp: int) -> float:
        one = one_pass(plan(name, tp), CHIPS["h200-sxm"], ENGINES["vllm"], steps(8.0, 4000.0)[0])
        return float(passes.by_group([(1, one)])["collectives"])

    assert collectives(1) == 0
    assert 0 < collectives(2) < collectives(8)


@some
@given(chips, engines, ranks, batches, contexts)
def test_twice_the_replicas_do_twice_the_work_in_the_same_time(
    gpu: str, engine: str, tp: int, batch: float, context: float
) -> None:
    for step in steps(batch, context):
        one, two = (
            pass_time(plan("llama-3.1-8b", tp, dp), CHIPS[gpu], ENGINES[engine], step) for dp in (1, 2)
        )
        assert one == two  # of as many sequences each


@pytest.mark.parametrize("name", MODELS)
def test_arrays_are_numbers_side_by_side(name: str) -> None:
    batch, context = np.array([1.0, 7.0, 256.0]), np.array([10.0, 5_000.0, 100_000.0])
    chip, engine = CHIPS["h200-sxm"], ENGINES["vllm"]
    for i, step in enumerate(steps(batch, context)):
        together = one_pass(plan(name, 2), chip, engine, step)
        apart = [
            one_pass(plan(name, 2), chip, engine, steps(float(b), float(c))[i])
            for b, c in zip(batch, context, strict=True)
        ]
        assert together.seconds == pytest.approx([each.seconds for each in apart])
        for side in (0, 1):
            expected = [passes.between([(1, each)], chip)[side] for each in apart]
            assert passes.between([(1, together)], chip)[side] == pytest.approx(expected)


def test_a_bf16_weight_is_read_whole_and_the_cache_at_its_length() -> None:
    # Llama 3.1 8B: 7.50e9 parameters of layers and head in 16 bit; 131,072 bytes a token of cache
    one = one_pass(plan("llama-3.1-8b"), CHIPS["h200-sxm"], ENGINES["vllm"], Step(decode=4.0, context=1000.0))
    held = passes.held_bytes(one)
    assert held["weights"] == pytest.approx(2 * (32 * 218_103_808 + 128_256 * 4096), rel=1e-3)
    assert held["cache"] == 4 * 1000 * 131_072


def test_a_pipeline_waits_between_its_stages() -> None:
    step, chip, engine = Step(decode=8.0, context=1000.0), CHIPS["h200-sxm"], ENGINES["vllm"]
    one, two = (one_pass(plan("llama-3.1-8b", 1, 1, pp), chip, engine, step) for pp in (1, 2))
    costs = {each.name: each.seconds for each in two.fixed}
    assert costs["stages"] == engine.stage
    assert two.seconds > one.seconds + engine.stage


def test_the_floor_of_a_prompt_is_its_work_at_the_peak() -> None:
    # 8 tokens a decode pass are read from memory; 8,192 of a prompt are computed: 2 FLOP for each of 6.98e9 parameters
    # of the layers, and 4 x 4,096 x 32 for each of 8,192^2 / 2 pairs
    chip, engine = CHIPS["h200-sxm"], ENGINES["vllm"]
    one = one_pass(plan("llama-3.1-8b"), chip, engine, Step(prompts=1.0, chunk=8192.0))
    work = 2 * 8192 * 32 * 218_103_808 + 4 * 4096 * 32 * 8192**2 / 2
    assert passes.floor(one, chip) == pytest.approx(work / 989.5e12, rel=1e-3)


def test_the_floor_of_mxfp4_experts_is_at_the_rate_that_they_multiply_at() -> None:
    """On Blackwell their inputs are in 8 bit, on Hopper in 16: 4.5 and 0.99 PFLOP/s."""
    for gpu, peak in (("b200", 4.5e15), ("h200-sxm", 989.5e12)):
        one = one_pass(plan("gpt-oss-120b"), CHIPS[gpu], ENGINES["vllm"], Step(prompts=1.0, chunk=8192.0))
        others = [each for each in one.timed if each.operation.name != "experts"]
        (experts,) = (each.operation for each in one.timed if each.operation.name == "experts")
        rest = passes.floor(one._replace(timed=others), CHIPS[gpu])
        found = passes.floor(one, CHIPS[gpu])
        assert found == pytest.approx(rest + experts.count * experts.flops / peak)
        assert found < one.seconds


def test_queries_of_a_prompt_read_a_compressed_cache_from_memory_once() -> None:
    """DeepSeek V4 Flash: 43 layers, 1,024 bytes a vector; a vector for each token, and pooled ones beside."""
    chip, engine = CHIPS["b200"], ENGINES["vllm"]
    held = passes.held_bytes(
        one_pass(plan("deepseek-v4-flash"), chip, engine, Step(prompts=1.0, chunk=8000.0))
    )
    assert 43 * 8000 * 1024 < held["cache"] < 1.3 * 43 * 8000 * 1024
    two = passes.held_bytes(
        one_pass(plan("deepseek-v4-flash"), chip, engine, Step(prompts=2.0, chunk=8000.0))
    )
    assert two["cache"] == pytest.approx(2 * held["cache"])


@pytest.mark.parametrize(
    ("name", "operation", "group"),
    [
        ("deepseek-v3.2", "index", "attention"),
        ("falcon-h1-7b", "state_update", "attention"),
        ("deepseek-v3.2", "shared.gate_up_proj", "projections"),
        ("deepseek-v3.2", "experts", "experts"),
        ("llama-3.1-8b", "lm_head", "head"),
        ("llama-3.1-8b", "sampling", "head"),
        ("llama-3.1-8b", "norms", "elementwise"),
        ("llama-3.1-8b", "logits", "collectives"),
    ],
)
def test_group_of_an_operation(name: str, operation: str, group: str) -> None:
    one = one_pass(plan(name, 2), CHIPS["h200-sxm"], ENGINES["vllm"], steps(4.0, 4000.0)[0])
    assert {each.group for each in one.timed if each.operation.name == operation} == {group}
