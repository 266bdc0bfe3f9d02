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
