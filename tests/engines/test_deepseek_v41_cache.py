"""DeepSeek V4.1 under engines: vLLM's blocks as its own planner makes them, and where the tables of n-grams lie."""

from dataclasses import replace
from typing import Any

import pytest

from capplan.capacity.engines.budget import budget
from capplan.capacity.engines.deployment import Deployment
from capplan.capacity.engines.device import device_of
from capplan.capacity.engines.emit import as_named, emit
from capplan.capacity.engines.vllm_allocator import allocate
from capplan.capacity.engines.vllm_rules import Settings
from capplan.capacity.engines.weights import rank_weights
from capplan.capacity.questions.engine_fit import engine_fit
from capplan.errors import InputError
from capplan.hardware.registry import gpu
from capplan.models.registry import model

GIB = 2**30
MILLION, SHORT = (1_048_576, 8192), (131_072, 4096)  # max-model-len, max-num-batched-tokens
DSPARK = {"speculative_method": "dspark"}


# what _get_packed_kv_cache_groups of the wheel of vllm 0.33.0 makes of the layers' specs: bytes of a block, layers of
# the groups of windows and of rings, and blocks of the longest request
@pytest.mark.parametrize(
    ("flags", "lengths", "block", "windows", "rings", "needed"),
    [
        ({}, MILLION, 116_928, [6, 6, 6, 6, 6, 5, 5], [3], 20_004),
        ({}, SHORT, 116_928, [6, 6, 6, 6, 6, 5, 5], [3], 3_876),
        ({"gpu": "sm120"}, MILLION, 230_400, [10] * 4, [3], 10_261),
        ({"gpu": "sm120"}, SHORT, 230_400, [10] * 4, [3], 2_069),
        ({"gpu": "sm100"}, MILLION, 136_224, [8] * 5, [3], 10_778),
        ({"gpu": "sm100"}, SHORT, 136_224, [8] * 5, [3], 2_330),
        ({"gpu": "sm100", "kv_cache_dtype": "fp8_ds_mla"}, MILLION, 212_256, [10] * 4, [3], 10_261),
        (
            {"gpu": "sm100", "num_speculative_tokens": 5, **DSPARK},
            MILLION,
            136_224,
            [8, 7, 7, 7, 7, 7],
            [3],
            11_295,
        ),
        # a ring of 16 tokens is more than half a block
        (
            {"num_speculative_tokens": 7, **DSPARK},
            SHORT,
            116_928,
            [6, 6, 6, 5, 5, 5, 5, 5],
            [1, 1, 1],
            4_139,
        ),
    ],
)
def test_blocks_are_those_of_vllm(
    flags: dict[str, Any],
    lengths: tuple[int, int],
    block: int,
    windows: list[int],
    rings: list[int],
    needed: int,
) -> None:
    longest, batched = lengths
    settings = Settings(version="0.33.0", max_model_len=longest, max_num_batched_tokens=batched, **flags)
    found = allocate(model("deepseek-v4.1-flash"), settings, 20 * GIB)
    assert found.pool_bytes_per_block == block
    by_kind: dict[str, list[int]] = {}
    for group in found.kv_cache_groups:
        by_kind.setdefault(group.specs[0].kind, []).append(len(group.specs))
    assert by_kind == {"sliding_mla": windows, "mla": [8], "ring": rings}
    assert found.num_blocks == 20 * GIB // block
    assert found.max_concurrency == pytest.approx(found.num_blocks / needed, rel=1e-12)


def test_pooled_vectors_are_in_fp8_before_0_31() -> None:
    """Three sources pool two tokens and one pools each; blocks of 128 tokens, pages of whole 512 bytes."""
    settings = Settings(version="0.30.0", max_model_len=131_072, gpu="sm100")
    found = allocate(model("deepseek-v4.1-flash"), settings, 20 * GIB)
    assert found.pool_bytes_per_block == 3 * (64 * 528 + 8_704) + 128 * 528 + 128 * 132 == 211_968


def test_a_four_bit_cache_is_for_sm100_alone() -> None:
    def asked(**flags: Any) -> Settings:
        return Settings(max_model_len=131_072, kv_cache_dtype="nvfp4_ds_mla", **flags)

    row = model("deepseek-v4.1-flash")
    assert allocate(row, asked(version="0.33.0", gpu="sm100"), 20 * GIB).fits
    for flags in ({"version": "0.33.0", "gpu": "sm90"}, {"version": "0.30.0", "gpu": "sm100"}):
        with pytest.raises(InputError, match="kv cache dtype 'nvfp4_ds_mla' is not one of"):
            allocate(row, asked(**flags), 20 * GIB)


def test_tables_of_n_grams_lie_in_host_memory_under_vllm() -> None:
    """196.6B parameters in FP8 with a scale for 32, divided over the ranks; EngramConfig.cpu_offload is on."""
    row, card = model("deepseek-v4.1-flash"), device_of(gpu("h200-sxm"))
    eight = Deployment(tensor_parallel_size=8, max_model_len=131_072)
    here, there = budget(row, card, replace(eight, tables_on_host=False)), budget(row, card, eight)
    sglang = budget(row, card, replace(eight, engine="sglang"))
    tables = 196_613_849_600 * (1 + 1 / 32) / 8
    assert here.weights - there.weights == pytest.approx(tables, rel=1e-4)
    assert sglang.weights - there.weights == pytest.approx(tables, rel=1e-2)
    # published: InferenceX pull 3310, with its drafts
    assert there.weights / GIB == pytest.approx(49.6, rel=0.06)
    said = "tables of n-grams lie in host memory: 188.8 GiB for each replica of the model"
    assert said in there.assumptions
    assert said not in (*here.assumptions, *sglang.assumptions)


def test_tables_are_placed_where_a_model_has_them() -> None:
    for on_host in (True, False):
        with pytest.raises(InputError, match="has no tables of n-grams to place"):
            engine_fit("llama-3.1-8b", "h100-sxm", Deployment(tables_on_host=on_host))
    eight = Deployment(engine="sglang", tensor_parallel_size=8, tables_on_host=True)
    assert engine_fit("qwen3.8-flash-next", "h200-sxm", eight).starts
    for engine in ("sglang", "trtllm"):
        assert "# tables of n-grams are planned in host memory; no flag of" in emit(eight, "x/y", engine)
        assert "tables" not in emit(replace(eight, tables_on_host=None), "x/y", engine)


@pytest.mark.parametrize(("tp", "measured"), [(2, 145), (4, 81.57)])
def test_weights_of_a_rank_with_drafts(tp: int, measured: float) -> None:
    """Published: InferenceX pulls 3320 (2026-09-20, GB200, about 145 GiB) and 3321 (GB300, 81.57 GiB)."""
    held = rank_weights(model("deepseek-v4.1-flash"), tp=tp, drafts=True, tables_on_host=True)
    assert held.bytes / GIB == pytest.approx(measured, rel=0.025)


def test_an_older_vllm_is_taken_as_the_first_that_knows_the_model() -> None:
    row, card = model("deepseek-v4.1-flash"), device_of(gpu("h200-sxm"))
    found = budget(row, card, Deployment(version="0.29.0", tensor_parallel_size=8, max_model_len=131_072))
    assert found.deployment.version == "0.30.0"
    assert any("0.29.0 does not know deepseek-v4.1-flash; 0.30.0" in text for text in found.assumptions)
    newest = budget(row, card, Deployment(tensor_parallel_size=8, max_model_len=131_072))
    assert newest.deployment.version == "0.33.0"
    # 0.19.0, which does not know the model, was taken to divide its cache into 12,416 tokens
    old = Deployment(version="0.19.0", tensor_parallel_size=4, max_model_len=8192)
    assert budget(model("qwen3.8-flash-next"), card, old).deployment.version == "0.29.0"


def test_its_drafts_are_called_dspark() -> None:
    flags = Deployment(num_speculative_tokens=5, speculative_method="mtp", tables_on_host=False)
    named = as_named(flags, "deepseek_v41")
    line = emit(named, "deepseek-ai/DeepSeek-V4.1-Flash")
    assert '"method": "dspark"' in line
    assert "--engram-config '{\"cpu_offload\": false}'" in line
    assert "DSPARK --speculative-dspark-block-size 5" in emit(named, "x/y", "sglang")
    assert as_named(flags, "deepseek_v3") is flags


def test_sglang_gives_windows_a_tenth() -> None:
    row, card = model("deepseek-v4.1-flash"), device_of(gpu("h200-sxm"))
    plan = Deployment(engine="sglang", tensor_parallel_size=8, max_model_len=131_072, max_num_seqs=8)
    found = budget(row, card, plan)
    per_token = (3 / 2 + 1) * (584 + 132) + 0.1 * 40 * 584
    assert found.kv_tokens == int((found.kv - 8 * 3 * 8192) / per_token)
