"""The cache function: fixed + slope * T + capped terms, by kind of layer, format and rank."""

from __future__ import annotations

from math import ceil

import pytest
from hypothesis import given
from hypothesis import strategies as st

from capplan.capacity import precision
from capplan.capacity.cache import cache
from capplan.errors import InputError
from capplan.models.spec import Attention, LatentAttention, Layer, Model, State

GQA = Attention(heads=64, kv_heads=8, head_dim=128, v_head_dim=128)
SLIDING = GQA._replace(window=1024)
MLA = LatentAttention(heads=128, latent=512, rope=64, nope=128, v_head_dim=128)
INDEXED = MLA._replace(index_dim=128, index_heads=64, top_k=2048)
MAMBA2 = State(
    "mamba2",
    heads=128,
    recurrent=128 * 64 * 128,
    conv_channels=128 * 64,
    conv_kernel=4,
    conv_group_channels=2 * 128,
    conv_groups=8,
)


def of(*layers: Layer, context: int | None = None) -> Model:
    return Model("m", "m", "test", 4096, layers, (), "bf16", max_context=context)


def test_a_cache_is_affine_in_the_context() -> None:
    kept = cache(of((GQA,), (SLIDING,), (MAMBA2,), ()))
    token = 8 * (128 + 128) * 2
    state = 128 * 64 * 128 * 4 + (128 * 64 + 8 * 2 * 128) * 3 * 2
    assert kept.slope == token
    assert kept.fixed == state
    assert kept.bytes_at(500) == state + 500 * token + 500 * token
    assert kept.bytes_at(5000) == state + 5000 * token + 1024 * token


def test_a_window_as_long_as_the_context_caps_nothing() -> None:
    layer = (GQA._replace(window=262_144),)
    assert cache(of(layer, context=131_072)).slope == 4096
    assert cache(of(layer, context=300_000)).slope == 0


def test_a_layer_that_shares_keeps_nothing() -> None:
    assert cache(of((GQA,), (GQA._replace(shared=True),))).slope == 4096


def test_key_and_value_may_differ_in_width() -> None:
    layer = (Attention(heads=64, kv_heads=4, head_dim=192, v_head_dim=128),)
    assert cache(of(layer)).slope == 4 * (192 + 128) * 2


@pytest.mark.parametrize(("tp", "heads"), [(1, 8), (2, 4), (4, 2), (8, 1), (16, 1), (3, 3)])
def test_kv_heads_are_divided_and_copied_past_their_number(tp: int, heads: int) -> None:
    assert cache(of((GQA,)), tp=tp).slope == heads * 512


@pytest.mark.parametrize("tp", [1, 2, 8, 16])
def test_a_latent_is_whole_on_every_rank(tp: int) -> None:
    assert cache(of(*[(MLA,)] * 61), tp=tp).slope == 61 * 576 * 2 == 70_272


def test_an_indexer_keeps_keys_of_its_own() -> None:
    kept = cache(of(*[(INDEXED,)] * 61))
    assert kept.slope == 61 * 1152 + 61 * 132 == 78_324
    assert cache(of(*[(INDEXED,)] * 61), "fp8_ds_mla").slope == 61 * (656 + 132) == 48_068


def test_decode_context_parallel_divides_tokens_not_states() -> None:
    model = of((MLA,), (MAMBA2,))
    assert cache(model, dcp=4).slope == 1152 / 4
    assert cache(model, dcp=4).fixed == cache(model).fixed


@pytest.mark.parametrize(("tp", "groups"), [(1, 8), (2, 4), (8, 1), (16, 1), (3, 3)])
def test_states_divide_by_heads_and_copy_groups(tp: int, groups: int) -> None:
    heads = ceil(128 / tp)  # a rank has whole heads
    conv = (heads * 64 + groups * 256) * 3 * 2
    assert cache(of((MAMBA2,)), tp=tp).fixed == heads * 64 * 128 * 4 + conv


def test_drafts_are_cached_only_when_asked_for() -> None:
    model = Model("m", "m", "test", 4096, ((GQA,),), (), "bf16", draft_layers=((GQA,),))
    assert cache(model).slope == 4096
    assert cache(model, drafts=True).slope == 2 * 4096


@pytest.mark.parametrize(
    ("name", "size"),
    [
        ("bf16", 512),
        ("fp16", 512),
        ("fp8", 256),
        ("fp8_per_token_head", 264),
        ("int8_per_token_head", 264),
        ("int4_per_token_head", 136),
        ("nvfp4", 144),
        ("turboquant_k8v4", 196),
        ("turboquant_4bit_nc", 134),
        ("turboquant_k3v4_nc", 118),
        ("turboquant_3bit_nc", 102),
    ],
)
def test_formats_of_one_head_of_128(name: str, size: float) -> None:
    """vLLM's formats: bytes of key and value of one head and token."""
    assert precision.head_bytes(name, 128, 128) == size


def test_a_format_of_latents_is_none_of_heads() -> None:
    with pytest.raises(InputError, match="'fp8_ds_mla' is not a format of keys and values"):
        cache(of((GQA,)), "fp8_ds_mla")
    with pytest.raises(InputError, match="not a format of latent attention; one of"):
        cache(of((MLA,)), "nvfp4")


def test_the_transformers_view_holds_a_token_less_in_a_window_and_a_column_more_in_a_convolution() -> None:
    theirs = cache(of((SLIDING,), (MAMBA2,)), view="transformers")
    assert theirs.parts_at(5000) == {
        "kv_window": 1023 * 4096,
        "conv_state": (128 * 64 + 8 * 256) * 4 * 2,
        "recurrent_state": 128 * 64 * 128 * 4,
    }


LAYERS = st.lists(
    st.sampled_from([(GQA,), (SLIDING,), (MLA,), (INDEXED,), (MAMBA2,), ()]), min_size=1, max_size=9
)


@given(LAYERS, st.integers(0, 10**6), st.integers(0, 10**6))
def test_more_tokens_never_take_less(layers: list[Layer], a: int, b: int) -> None:
    kept = cache(of(*layers))
    low, high = sorted((a, b))
    assert kept.bytes_at(low) <= kept.bytes_at(high)
    assert kept.bytes_at(high) <= kept.fixed + kept.slope * high + sum(
        s.bytes_at(10**9) for s in kept.windows
    )


@given(LAYERS, st.integers(1, 64))
def test_more_ranks_never_take_more_on_one(layers: list[Layer], tp: int) -> None:
    assert cache(of(*layers), tp=tp).bytes_at(5000) <= cache(of(*layers)).bytes_at(5000)
