"""A forward pass does the work that its model's tensors say."""

from math import prod
from typing import Any

import numpy as np
import pytest

from capplan.capacity.step_time.forward import Layout, Step, captured, layout, operations
from capplan.capacity.step_time.operations import Operation
from capplan.models.registry import model, names
from capplan.models.spec import Weight

KNOWN = [name for name in names() if model(name).weights]


def _is_no_matrix(weight: Weight) -> bool:
    """Convolutions over a few tokens, a gate of one row, the biases of experts: no product of matrices."""
    return 1 in weight.shape[-2:] or weight.name.endswith("bias")


@pytest.mark.parametrize("name", KNOWN)
def test_linear_work_is_two_flops_a_parameter(name: str) -> None:
    spec = model(name)
    found = operations(layout(spec), Step(decode=1.0, context=1000.0))
    done = sum(
        op.count * op.flops for op in found if op.kind in ("gemm", "grouped_gemm") and op.name != "lm_head"
    )
    apart = ("embedding", "position", "lookup", "norm", "head")
    none = sum(w.active for w in spec.weights if w.bucket not in apart and w.shape[1:] and _is_no_matrix(w))
    assert done == pytest.approx(2 * (spec.active_matrix_parameters - none), rel=1e-9)


@pytest.mark.parametrize("name", KNOWN)
def test_every_product_is_run_a_whole_number_of_times(name: str) -> None:
    plan = layout(model(name))
    counts = [line.count for line in plan.linear] + [mixture.count for mixture in plan.experts]
    assert all(count == int(count) >= 1 for count in counts)
    assert plan.mixtures <= len(plan.model.layers)
    for mixture in plan.experts:
        experts = [w for w in plan.model.weights if w.bucket == "experts" and len(w.shape) > 1]
        one = max(prod(w.shape[-2:]) for w in experts if not w.name.endswith("bias"))
        assert mixture.hidden * mixture.inner <= one  # one expert's, never all that are stacked


@pytest.mark.parametrize(
    ("name", "a_layer"),
    [("llama-3.3-70b", 2), ("gpt-j-6b", 2), ("falcon-180b", 2), ("qwen3-30b-a3b", 2), ("deepseek-v3", 2)],
)
def test_a_layer_sums_over_ranks_after_attention_and_after_its_mlp(name: str, a_layer: int) -> None:
    plan = layout(model(name), tp=2)
    assert plan.reduced == a_layer * len(plan.model.layers)


def test_an_indexer_s_prompt_meets_the_latents_themselves() -> None:
    """DeepSeek V3.2 on 8 ranks: 16 heads, latents of 512 + 64, 2,048 keys for each of the last queries of 64K."""
    plan = layout(model("deepseek-v3.2"), tp=8)
    found = operations(plan, Step(prompts=1.0, chunk=8192.0, before=57_344.0))
    (sparse,) = (each for each in found if each.name == "attention_prefill.sparse")
    assert sparse.count == 61
    assert sparse.flops == 2 * 8192 * 2048 * 16 * (2 * 512 + 64)
    assert sparse.held == 65_536 * (512 + 64) * 2
    assert not any(each.name == "attention_prefill.mla" for each in found)
    short = operations(plan, Step(prompts=2.0, chunk=100.0))
    (sparse,) = (each for each in short if each.name == "attention_prefill.sparse")
    assert sparse.flops == 2 * 2 * 5050 * 16 * (2 * 512 + 64)  # all pairs, causally
    dense = operations(layout(model("deepseek-v3"), tp=8), Step(prompts=1.0, chunk=100.0))
    assert any(each.name == "attention_prefill.mla" for each in dense)


def test_attention_over_an_encoder_does_not_grow_with_the_text() -> None:
    """Llama 3.2 90B Vision: 80 layers attend to text, 20 to images."""
    found = operations(layout(model("llama-3.2-90b-vision"), tp=4), Step(decode=4.0, context=1000.0))
    assert sum(each.count for each in found if each.kind == "attention_decode") == 80


def _experts(plan: Layout, step: Step, **engine: Any) -> Operation:
    return next(each for each in operations(plan, step, **engine) if each.name == "experts")


def test_padding_up_to_a_captured_graph_chooses_experts_too() -> None:
    plan = layout(model("qwen3-30b-a3b"))
    five, eight = (Step(decode=tokens, context=100.0) for tokens in (5.0, 8.0))
    assert _experts(plan, five, graphs=True).hit == _experts(plan, eight).hit > 1.4 * _experts(plan, five).hit
    beside_a_prompt = five._replace(prompts=1.0, chunk=100.0)
    assert _experts(plan, beside_a_prompt, graphs=True) == _experts(plan, beside_a_prompt)
    batches = np.array([1.0, 2, 3, 4, 5, 8, 9, 249, 256, 257, 500, 512, 513])
    assert captured(batches).tolist() == [1, 2, 4, 4, 8, 8, 16, 256, 256, 272, 512, 512, 513]


def test_few_expert_parallel_ranks_are_nearer_to_the_mean() -> None:
    step = Step(decode=64.0, context=100.0)
    fullest = []
    for ranks in (1, 2, 8, 64):
        plan = layout(model("qwen3-30b-a3b"), dp=ranks, expert_parallel=True)
        fullest.append(_experts(plan, step, imbalance=0.6).rows / _experts(plan, step).rows)
    assert fullest == pytest.approx([1, 1.3, 1.525, 1.590625])


@pytest.mark.parametrize(
    ("name", "wide"), [("qwen3-30b-a3b", 2), ("deepseek-v3", 1 + 4 / 128), ("gpt-oss-120b", 2)]
)
def test_tokens_go_to_their_experts_as_those_take_them(name: str, wide: float) -> None:
    plan = layout(model(name), dp=2, expert_parallel=True)
    sent = {each.name: each.message for each in operations(plan, Step(decode=10.0, context=100.0))}
    assert sent["combine"] == 10 * plan.model.hidden_size * 2 * 2
    assert sent["dispatch"] == 10 * plan.model.hidden_size * 2 * wide
