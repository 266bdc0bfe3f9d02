"""Weights of a rank, against figures that start-up logs print."""

from typing import Any

import pytest

from capplan.capacity.engines.weights import quantized, rank_weights, stage_layers
from capplan.errors import InputError
from capplan.models.registry import model

GIB = 2**30


def gib(name: str, quant: str | None = None, **how: Any) -> float:
    return rank_weights(quantized(model(name), quant), **how).bytes / GIB


@pytest.mark.parametrize(
    ("name", "quant", "tp", "logged"),
    [
        ("llama-3.1-8b", None, 1, 14.99),
        ("llama-3.1-8b", None, 2, 7.51),
        ("llama-3.1-8b", None, 4, 3.77),
        ("llama-3.1-8b", "fp8", 1, 8.49),
        ("llama-3.1-8b", "int4", 1, 5.38),
        ("llama-3.3-70b", "fp8", 1, 67.72),
        ("llama-3.3-70b", "int8", 2, 33.88),
        ("qwen2.5-7b", None, 4, 3.55),
        ("qwen3-32b", None, 1, 61.03),
        ("gemma-2-27b", None, 1, 50.72),
        ("deepseek-r1", None, 8, 79.41),
    ],
)
def test_as_logged(name: str, quant: str | None, tp: int, logged: float) -> None:
    assert gib(name, quant, tp=tp) == pytest.approx(logged, rel=0.01)


def test_experts_padded_for_their_kernels() -> None:
    assert gib("gpt-oss-20b") == pytest.approx(13.72, rel=0.01)  # Marlin
    assert gib("gpt-oss-20b", tp=2) == pytest.approx(7.01, rel=0.01)
    assert gib("gpt-oss-120b", tp=4) == pytest.approx(17.22, rel=0.01)


def test_pipeline_stages_hold_the_tables_at_the_ends() -> None:
    held = rank_weights(model("llama-3.1-8b"), pp=4)
    assert held.bytes / GIB == pytest.approx(4.26, rel=0.01)
    assert held.least < 0.8 * held.bytes
    assert sum(stage_layers(61, 4)) == 61


def test_stages_hold_the_layers_that_are_theirs() -> None:
    """61 layers in stages of 15, 15, 16 and 15: the first three have no experts, so that the third stage has most."""
    one, staged = rank_weights(model("deepseek-v3"), tp=8), rank_weights(model("deepseek-v3"), tp=8, pp=4)
    experts = one.parts["experts"] / 58
    assert staged.parts["experts"] == pytest.approx(16 * experts)
    assert "mlp" not in staged.parts or staged.parts["mlp"] == 0
    assert max(staged.stages) == staged.stages[2]
    dense = one.parts["mlp"] / 3
    assert staged.stages[1] - staged.stages[0] == pytest.approx(
        3 * (experts + (one.parts["shared"] + one.parts["router"]) / 58 - dense) - one.parts["embedding"]
    )
    assert sum(staged.stages) == pytest.approx(one.bytes + 3 * one.parts["rope"])


def test_stages_hold_the_mixers_that_are_theirs() -> None:
    """Two of 96 layers in turn: a stage of 9 or 10 layers has two or three of attention, not 2.4."""
    found = rank_weights(model("qwen3-next-80b-a3b"), pp=5)
    attention = rank_weights(model("qwen3-next-80b-a3b")).parts["attention"] / 12
    assert found.parts["attention"] / attention == pytest.approx(round(found.parts["attention"] / attention))


def test_heads_are_copied_past_their_number() -> None:
    once, past = rank_weights(model("qwen2.5-7b"), tp=4), rank_weights(model("qwen2.5-7b"), tp=28)
    keys = model("qwen2.5-7b").layers[0][0]
    assert once.parts["attention"] * 4 < past.parts["attention"] * 28, keys


def test_drafts_only_under_speculation() -> None:
    plain, drafted = rank_weights(model("glm-5")), rank_weights(model("glm-5"), drafts=True)
    assert "draft" not in plain.parts
    assert drafted.bytes > plain.bytes or not model("glm-5").draft_weights


def test_whole_experts_or_divided_ones_weigh_the_same() -> None:
    whole = rank_weights(model("qwen3-30b-a3b"), tp=8, expert_parallel=True).parts["experts"]
    assert whole == pytest.approx(rank_weights(model("qwen3-30b-a3b"), tp=8).parts["experts"])


def test_what_is_not_known_is_refused() -> None:
    with pytest.raises(InputError, match="unknown quantization 'fp3'; did you mean"):
        quantized(model("llama-3.1-8b"), "fp3")
    with pytest.raises(InputError, match="32 layers can't be divided over 33 pipeline stages"):
        rank_weights(model("llama-3.1-8b"), pp=33)


def test_engines_load_a_checkpoint_in_fp32_in_16_bit() -> None:
    wide = model("gpt-j-6b")
    assert quantized(wide, None).dtype == "bf16"
    assert quantized(wide, "float32").dtype == "fp32"
    assert gib("gpt-j-6b", "fp32") == pytest.approx(2 * gib("gpt-j-6b"), rel=1e-3)


def test_a_build_has_the_spellings_of_a_precision() -> None:
    small = model("llama-3.1-8b")
    assert quantized(small, "bfloat16") == quantized(small, "bf16")
    assert quantized(small, "fp8_e4m3") == quantized(small, "fp8")
