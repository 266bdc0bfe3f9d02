"""Qwen3.8 Flash Next in vLLM: attention, its pooled keys, rings and states in one pool, against published start-ups."""

from dataclasses import replace

import pytest

from capplan.capacity.engines.vllm_allocator import allocate
from capplan.capacity.engines.vllm_blocks import state_bytes
from capplan.capacity.engines.vllm_rules import Settings, rules
from capplan.models.registry import model
from capplan.models.spec import State

GIB = 2**30


@pytest.mark.parametrize(
    ("cache", "length", "blocks", "tokens"),
    [  # what start-ups of vLLM issues 54426 and 54458 print; blocks are those that make their concurrency whole
        ("auto", 262_144, 744, 1_077_542),
        ("auto", 262_144, 539, 780_638),
        ("auto", 8_192, 730, 260_006),
        ("fp8", 262_144, 707, 1_853_358),
        ("fp8", 262_144, 534, 1_399_848),
        ("fp8", 262_144, 327, 857_210),
    ],
)
def test_a_pooled_index_lies_beside_its_attention(cache: str, length: int, blocks: int, tokens: int) -> None:
    """Qwen3.8 Flash Next on one GB10, two tokens speculated: 3 groups of delta nets and the n-gram layer of 4 states,
    one of rings."""
    flash_next = model("qwen3.8-flash-next")
    asked = Settings(
        version="0.29.0",
        max_model_len=length,
        kv_cache_dtype=cache,
        num_speculative_tokens=2,
        enable_prefix_caching=True,
        gpu="sm120",
    )
    pool = allocate(flash_next, asked, 30 * GIB).pool_bytes_per_block
    assert pool is not None
    found = allocate(flash_next, asked, blocks * pool)
    assert (found.block_size, found.reported_kv_tokens) == ({"auto": 1600, "fp8": 3184}[cache], tokens)


def test_bytes_of_a_block_with_a_pooled_index() -> None:
    """Issue 54426: 62,343 tokens to a GiB of fp8, 857,210 in all, are 327 blocks of 13 layers; in 16 bit 354."""
    flash_next = model("qwen3.8-flash-next")
    for cache, tokens, in_a_gib, blocks in (("fp8", 857_210, 62_343, 327), ("auto", 512_703, 35_310, 354)):
        asked = Settings(version="0.29.0", max_model_len=262_144, kv_cache_dtype=cache)
        asked = replace(asked, num_speculative_tokens=2, enable_prefix_caching=True, gpu="sm120")
        assert allocate(flash_next, asked, int(tokens / in_a_gib * GIB)).num_blocks == blocks


def test_states_and_index_by_rank() -> None:
    """LMCache pull 5042, four ranks: blocks of 784 tokens, and a convolution of n-grams of 184,320 bytes on each."""
    flash_next = model("qwen3.8-flash-next")
    asked = Settings(version="0.29.0", max_model_len=8192, tensor_parallel_size=4)
    found = allocate(flash_next, asked, 30 * GIB)
    assert found.block_size == 784
    assert sum(len(group.specs) for group in found.kv_cache_groups) == 73
    state = next(part for part in flash_next.layers[1] if isinstance(part, State) and part.kind == "conv")
    assert state_bytes(flash_next, state, asked, rules("0.29.0")) == 184_320
