"""What a dense decoder does not show: experts, indexers, states, and models whose dimensions nobody read."""

from __future__ import annotations

import pytest

import capplan
from capplan.capacity.questions.models import letter, model_facts
from capplan.models.spec import Attention, State

GIB = 2**30


def test_the_batch_to_the_ridge_counts_every_expert_that_is_read() -> None:
    found = capplan.roofline("deepseek-v3", "h200-sxm")
    expected = found.ridge_flop_per_byte * found.weight_bytes_read / found.flops_per_token
    assert found.weight_only_batch_to_ridge == pytest.approx(expected)
    assert found.weight_only_batch_to_ridge > 3_000  # 256 experts are read, 8 are used


def test_batch_1_is_where_the_weight_only_line_starts() -> None:
    found = capplan.roofline("mixtral-8x7b", "h200-sxm")
    assert found.weight_only_intensity_batch_1 * found.weight_only_batch_to_ridge == pytest.approx(
        found.ridge_flop_per_byte
    )


def test_an_indexer_meets_every_token() -> None:
    """2 FLOP x 64 heads x 128 wide for a pair of tokens, over 61 layers and half of all pairs; latents beyond 2,048
    tokens are met by none."""
    (row,) = capplan.prefill("deepseek-v3.2", "h200-sxm", contexts=[128_000]).at
    indexer = 61 * 2 * 64 * 128 * 128_000**2 / 2
    latents = 61 * 4 * 128 * (512 + 64 / 2) * 2_048 * (128_000 - 2_048 / 2)
    assert row["attention_flops"] == pytest.approx(indexer + latents)


def test_attention_runs_in_16_bit_beside_fp8_weights() -> None:
    (row,) = capplan.prefill("70b-class", "h200-sxm", weights="fp8", contexts=[200_000], tier="whiteboard").at
    assert row["peak_s"] == pytest.approx(row["linear_flops"] / 1979e12 + row["attention_flops"] / 989.5e12)


def test_tokens_of_cache_are_said_to_be_of_a_length_where_it_matters() -> None:
    assert "tokens of KV cache at that length" in str(capplan.fit("gemma-3-27b", "h100-sxm"))
    assert "at that length" not in str(capplan.fit("llama-3.1-8b", "h100-sxm"))


def test_requests_follow_the_cache_function() -> None:
    found = capplan.fit("gemma-3-27b", "h100-sxm", contexts=[1_000, 32_000])
    for context, count in found.concurrency.items():
        cache = int(context) * 81_920 + 52 * 8_192 * min(int(context), 1_024)
        assert count == pytest.approx(found.kv_budget_bytes / cache)


def test_a_latent_is_whole_on_every_rank() -> None:
    assert capplan.kv("deepseek-v3", tp=8).kv_bytes_per_token == 70_272
    assert capplan.kv("llama-3.3-70b", tp=8).kv_bytes_per_token == 327_680 / 8
    assert capplan.kv("llama-3.3-70b", tp=16).kv_bytes_per_token == 327_680 / 8  # copies past 8 KV heads


@pytest.mark.parametrize("model", ["glm-4.5-air", "bloom-176b", "llama-3.3-70b"])
def test_dimensions_nobody_read_are_said_in_every_answer(model: str) -> None:
    assert any("no config file was seen" in text for text in capplan.kv(model).assumptions)


def test_what_a_state_is_kept_in_is_said() -> None:
    assert "recurrent states in bf16, as vLLM keeps them" in capplan.kv("qwen3-next-80b-a3b").assumptions


def test_the_sum_is_shown() -> None:
    explained = capplan.kv("deepseek-v3.2", contexts=[8_000]).explain()
    assert "70,272 byte/token + 8,052 byte/token = 78,324 byte/token" in explained
    assert "growing + capped + fixed" in capplan.kv("gemma-3-27b").explain()


def test_letters_of_layers() -> None:
    attention, state = Attention(8, 8, 64, 64), State("mamba2", heads=8, recurrent=1)
    assert letter((attention, state)) == "P"
    assert letter((attention, attention._replace(cross=True))) == "X"
    assert letter(()) == "N"
    assert model_facts("t5-v1.1-xxl").layer_map == "X" * 24
