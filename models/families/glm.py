"""GLM 4.5 and its kin: mixtures with dense layers first, shared experts and draft layers.

Defaults are those of the family's class in transformers.
"""

from __future__ import annotations

from capplan.models.decoder import Decoder
from capplan.models.families.experts import (
    CHOSEN,
    COUNT,
    DRAFTS,
    SHARED,
    after_first,
    around,
    block,
    checked,
    dense_layers,
    ends,
    head_norms,
    routed,
    shared_experts,
)
from capplan.models.fields import Fields


def every_layer(f: Fields) -> None:
    """DeepSeek's file has a frequency of sparse layers; the classes here know of none but 1."""
    if f.maybe("moe_layer_freq") not in (None, 1):
        raise f.error(f"field 'moe_layer_freq' is {f.maybe('moe_layer_freq')}; 1 is supported")


def dots1(f: Fields) -> Decoder:
    d = Decoder(f, kv_heads=32)
    every_layer(f)
    f.ignore("use_sliding_window")  # the class goes by the other two
    first = f.whole_or(62, "max_window_layers")
    d.window(default=4096, slides=lambda layer: layer >= first)
    sparse = after_first(d, 0, "first_k_dense_replace")
    width = f.count_or(1408, "moe_intermediate_size")
    count, chosen = f.count(*COUNT), f.count(*CHOSEN)
    d.experts(count, checked(f, chosen, count), width, layers=sparse)
    shared_experts(d, width * (f.maybe_zero(*SHARED) or 0), sparse)
    dense_layers(d, d.layers - sparse, 10944)
    head_norms(d)
    return around(d, bias=f.flag("attention_bias"))


def glm4_moe(f: Fields) -> Decoder:
    d = Decoder(f, kv_heads=8)
    return _glm4_moe(d, experts=(128, 8), width=1408, dense=10944)


def _glm4_moe(
    d: Decoder,
    *,
    experts: tuple[int, int],
    width: int,
    dense: int,
    normed: bool | None = False,
    bias: bool | None = None,
) -> Decoder:
    """`normed` is the class's default of use_qk_norm; None: it has no such norms."""
    f = d.fields
    every_layer(f)
    bias = f.flag("attention_bias", "use_qkv_bias", default=bool(bias))
    normed = normed is not None and f.flag("use_qk_norm", default=normed)
    width = f.count_or(width, "moe_intermediate_size")
    count, chosen = routed(f, *experts)
    shared = width * f.whole_or(1, *SHARED)

    def sparse_layers(layers: int) -> None:
        d.experts(count, chosen, width, layers=layers)
        shared_experts(d, shared, layers)

    def attention() -> None:
        block(d, bias=bias, out_bias=False)
        if normed:
            head_norms(d)

    def draft() -> None:
        attention()
        sparse_layers(d.layers)

    sparse = after_first(d, 1, "first_k_dense_replace")
    sparse_layers(sparse)
    dense_layers(d, d.layers - sparse, dense)
    attention()
    d.drafts(f.maybe_zero(*DRAFTS) or 0, (d.full_attention,), draft)
    return ends(d)


def sarvam_moe(f: Fields) -> Decoder:
    d = Decoder(f, kv_heads=4, head_dim=64)
    return _glm4_moe(d, experts=(128, 6), width=1024, dense=8192, normed=True)


def glm4v_moe_text(f: Fields) -> Decoder:
    d = Decoder(f, kv_heads=8)
    return _glm4_moe(d, experts=(128, 8), width=1408, dense=10944, normed=None, bias=True)


def solar_open(f: Fields) -> Decoder:
    d = Decoder(f, kv_heads=8, head_dim=128)
    every_layer(f)
    f.ignore("intermediate_size", "first_k_dense_replace")
    width = f.count_or(1280, "moe_intermediate_size")
    d.experts(*routed(f, 128, 8), width, layers=d.layers)
    shared_experts(d, width * f.whole_or(1, *SHARED), d.layers)
    return around(d, bias=f.flag("attention_bias"), out_bias=False)
