"""Latent attention to every token: DeepSeek V2 and V3, and the families made like them.

Defaults are those of the family's class in transformers.
"""

from __future__ import annotations

from collections.abc import Sequence

from capplan.models.decoder import ROUTING, Decoder
from capplan.models.families.experts import after_first, checked, sparse_by_kind
from capplan.models.families.latent import (
    V3,
    Experts,
    LatentDecoder,
    Widths,
    around,
    cached,
    drafts,
    experts,
    ignore_frequency,
    latent_attention,
    latent_weights,
    mlps,
    sparse_by_frequency,
    uncounted_drafts,
    widths,
)
from capplan.models.fields import Fields


def deepseek_v2(f: Fields) -> Decoder:
    return _after_first_dense(
        f, V3, (64, None, 1407, 2), dense=0, bias=f.flag("mlp_bias"), count=["num_experts"]
    )


def deepseek_v3(f: Fields) -> Decoder:
    """DeepSeek V3 and R1, Kimi K2, Mistral Large 3."""
    return _after_first_dense(f, V3, (256, 8, 2048, 1), dense=3, draft_layers=1)


def mistral4(f: Fields) -> Decoder:
    return _after_first_dense(f, (1024, 256, 64, 64, 128), (128, 4, 2048, 1), dense=0)


def sarvam_mla(f: Fields) -> Decoder:
    """DeepSeek V3 under names of its own."""
    f.ignore("q_head_dim", "moe_router_enable_expert_bias", "router_dtype", "score_function")
    default = (128, 8, 2048, 1)
    return _after_first_dense(
        f, (None, *V3[1:]), default, dense=1, count=["num_experts"], shared="num_shared_experts"
    )


def _after_first_dense(
    f: Fields,
    default: Sequence[int | None],
    default_experts: Sequence[int | None],
    *,
    dense: int,
    bias: bool = False,
    draft_layers: int = 0,
    count: Sequence[str] = (),
    shared: str = "",
) -> Decoder:
    """Experts in all layers after the first so many."""
    d = LatentDecoder(f)
    d.layer_types("full_attention")
    w = widths(f, default)
    e = experts(f, default_experts, count=count, shared=shared)
    d.mixers = [(cached(d, w),)] * d.layers
    latent_weights(d, w)
    mlps(d, e, after_first(d, dense, "first_k_dense_replace"), bias=bias)
    ignore_frequency(f)
    drafts(d, w, e, default=draft_layers)
    return around(d)


def glm4_moe_lite(f: Fields) -> Decoder:
    """GLM-4.7 Flash. The class reads no first_k_dense_replace: one dense layer, unless mlp_layer_types says more."""
    f.ignore("first_k_dense_replace", "rope_interleave")
    d = LatentDecoder(f)
    w, e = widths(f, (768, 512, 64, 192, 256)), experts(f, (64, 4, 1536, 1))
    return _by_kind(d, w, e, sparse_by_kind(d, 1))


def axk1(f: Fields) -> Decoder:
    """A.X K1: a norm after the experts."""
    d = LatentDecoder(f)
    w, e = widths(f, V3, direct=False), experts(f, (192, 8, 2048, 1))
    sparse = sparse_by_frequency(d)
    d.norm("mlp.post_mlp_layernorm", layers=sparse)
    return _by_kind(d, w, e, sparse)


def _by_kind(d: Decoder, w: Widths, e: Experts, sparse: int) -> Decoder:
    d.layer_types("full_attention")
    d.mixers = [(cached(d, w),)] * d.layers
    latent_weights(d, w)
    mlps(d, e, sparse)
    ignore_frequency(d.fields)
    drafts(d, w, e)
    return around(d)


def minicpm3(f: Fields) -> Decoder:
    """Dense; values as wide as the hidden state divided among the heads, unless v_head_dim says otherwise."""
    f.ignore("scale_emb", "scale_depth", "dim_model_base")
    d = LatentDecoder(f)
    value = f.maybe("v_head_dim") or d.hidden // d.heads
    f.config = {**f.config, "v_head_dim": value}
    return _dense(f, d, (768, 256, 32, 64, None), bias=f.flag("mlp_bias"))


def youtu(f: Fields) -> Decoder:
    f.ignore("embedding_initializer_range")
    return _dense(f, LatentDecoder(f), V3)


def _dense(f: Fields, d: Decoder, default: Sequence[int | None], *, bias: bool = False) -> Decoder:
    d.layer_types("full_attention")
    d.mixers = [(latent_attention(d, f, default),)] * d.layers
    d.gated_mlp(bias=bias)
    return around(d, tied=True)


def longcat_flash(f: Fields) -> Decoder:
    """LongCat Flash: blocks of two attentions and two mlps, with experts beside them."""
    attentions = f.maybe("num_hidden_layers")  # what transformers calls layers: the attentions
    if attentions is not None:
        f.config = {name: value for name, value in f.config.items() if name != "num_hidden_layers"}
        f.config.setdefault("num_layers", attentions // 2)
    d = LatentDecoder(f)
    if attentions not in (None, 2 * d.layers):
        raise f.error(f"field 'num_hidden_layers' is {attentions}; two a layer, {2 * d.layers}, are accepted")
    w = widths(f, V3, direct=False)
    if f.config.get("qk_head_dim") not in (None, w.nope + w.rope):
        raise f.error(f"field 'qk_head_dim' is not the {w.nope} + {w.rope} of the two parts of a head")
    f.ignore("attention_method", "mla_scale_q_lora", "mla_scale_kv_lora")
    d.mixers = [(cached(d, w),)] * (2 * d.layers)
    latent_weights(d, w, layers=2 * d.layers, name="self_attn.N")
    _experts_with_a_way_past(d)
    width = f.count_or(12288, "ffn_hidden_size", "intermediate_size")
    d.gated_mlp(width, name="mlps.N", layers=2 * d.layers)
    d.norm("input_layernorm.N", "post_attention_layernorm.N", copies=2)
    uncounted_drafts(d, (cached(d, w),))
    d.embedding()
    d.last_norm()
    d.head(tied=False)
    return d


def _experts_with_a_way_past(d: Decoder) -> None:
    """Experts, of which some pass on what they get: they have no weights, but rows in the class's first tensor."""
    f = d.fields
    f.ignore(*ROUTING, "zero_expert_type", "router_dtype")
    f.defaults = {**f.defaults, "n_routed_experts": 512, "moe_topk": 12, "zero_expert_num": 256}
    count, idle = f.count("n_routed_experts", "num_local_experts"), f.maybe_zero("zero_expert_num") or 0
    total = count + idle
    chosen = checked(f, f.count("moe_topk", "num_experts_per_tok"), total)
    width = f.count_or(2048, "expert_ffn_hidden_size", "moe_intermediate_size")
    d.linear("mlp.router.classifier", total, d.hidden, "router", bias=f.flag("router_bias"))
    d.expert("mlp.experts.gate_up_proj", (count, 2 * width, d.hidden), total, chosen, d.layers)
    d.expert("mlp.experts.down_proj", (count, d.hidden, width), total, chosen, d.layers)
    d.expert("mlp.experts.gate_up_proj", (idle, 2 * width, d.hidden), idle, 0, d.layers)
    if idle:
        f.assumptions.append(
            f"{idle} of {total} experts compute nothing: a token's {chosen} are taken to be of both kinds in "
            "proportion; their unused rows in transformers' tensors are in the total"
        )
