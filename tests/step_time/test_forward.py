"""A forward pass does the work that its model's tensors say."""

from math import prod

import pytest

from capplan.capacity.step_time.forward import Step, layout, operations
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
