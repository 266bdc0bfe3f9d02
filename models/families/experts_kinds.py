"""Mixtures of experts with layers of several kinds: windows, chunks, blocks, heads of their own.

Defaults are those of the family's class in transformers.
"""

from __future__ import annotations

from collections import Counter

from capplan.models.decoder import Decoder
from capplan.models.families.experts import (
    DRAFTS,
    FOUR_NORMS,
    NORMS,
    SHARED,
    after_first,
    around,
    block,
    dense_layers,
    ends,
    head_norms,
    routed,
    shared_experts,
    sparse_by_kind,
)
from capplan.models.families.windows import all_but_every, pattern_of
from capplan.models.fields import Fields
from capplan.models.spec import Attention


def attend(
    d: Decoder, parts: list[Attention], *, bias: bool = False, out_bias: bool = False
) -> dict[Attention, int]:
    """What each layer caches, and the projections that go with it; how many layers have which heads and widths."""
    d.mixers = [(part,) for part in parts]
    kinds = Counter(part._replace(window=None, index_dim=0) for part in parts)
    for like, layers in kinds.items():
        d.attention(bias=bias, out_bias=out_bias, layers=layers, like=like)
    return kinds


def gpt_oss(f: Fields) -> Decoder:
    """Sinks, biases everywhere, every other layer with a window."""
    d = Decoder(f, kv_heads=8, head_dim=64)
    f.ignore("initial_context_length", "swiglu_alpha", "swiglu_limit")
    d.window(default=128, slides=all_but_every(2))
    width = f.count_or(2880, "intermediate_size")
    d.experts(*routed(f, 128, 4), width, layers=d.layers, router="mlp.router", bias=True)
    d.sinks()
    return around(d, bias=f.flag("attention_bias", default=True))


def afmoe(f: Fields) -> Decoder:
    """A gate on attention's output; norms around both halves of a layer."""
    d = Decoder(f, head_dim=128)
    every = f.maybe("global_attn_every_n_layers") or 4
    d.window(default=1024, slides=all_but_every(every))
    f.ignore("score_func", "load_balance_coeff", "num_expert_groups", "num_limited_groups", "use_grouped_mm")
    sparse = after_first(d, 1, "num_dense_layers")
    count, chosen = routed(f, 64, 6)
    width = f.count_or(1408, "moe_intermediate_size")
    d.experts(count, chosen, width, layers=sparse, router="mlp.router.gate")
    if sparse:
        d.add(f"{d.layer}mlp.expert_bias", (count,), "router", sparse)
    shared_experts(d, width * f.whole_or(2, *SHARED), sparse)
    dense_layers(d, d.layers - sparse, 6144)
    head_norms(d)
    d.linear("self_attn.gate_proj", d.q_width, d.hidden, "attention")
    norms = (*NORMS, "pre_mlp_layernorm", "post_mlp_layernorm")
    return around(d, bias=f.flag("attention_bias"), norms=norms)


def exaone_moe(f: Fields) -> Decoder:
    d = Decoder(f, kv_heads=32)
    d.window(default=4096, slides=pattern_of(f, 4))
    d.draft_mixers += [(d.full_attention,)] * (f.maybe_zero(*DRAFTS) or 0)
    f.ignore("is_moe_layer", "first_last_k_dense_replace")
    sparse = sparse_by_kind(d, dense=f.whole_or(1, "first_k_dense_replace"))
    width = f.count_or(1024, "moe_intermediate_size")
    d.experts(*routed(f, 64, 8), width, layers=sparse)
    shared_experts(d, width * f.whole_or(1, *SHARED), sparse)
    dense_layers(d, d.layers - sparse, 16384)
    head_norms(d)
    return around(d)


def hy_v3(f: Fields) -> Decoder:
    bias = f.flag("mlp_bias")
    d = Decoder(f, kv_heads=8, head_dim=128)
    f.ignore("enable_moe_fp32_combine", "enable_lm_head_fp32", "enable_attention_fp32_softmax")
    d.draft_mixers += [(d.full_attention,)] * (f.maybe_zero(*DRAFTS) or 0)
    f.ignore("qk_norm", "use_grouped_mm")
    first = f.maybe_zero("first_k_dense_replace")
    sparse = sparse_by_kind(d, dense=1 if first is None else first)
    width = f.count_or(1536, "moe_intermediate_size")
    d.experts(*routed(f, 192, 8), width, layers=sparse)
    shared = width * f.whole_or(1, *SHARED) or f.count_or(13312, "intermediate_size")
    d.gated_mlp(shared, bias=bias, name="mlp.shared_experts", bucket="shared", layers=sparse)
    dense_layers(d, d.layers - sparse, 13312, bias=bias)
    head_norms(d)
    return around(d, bias=f.flag("attention_bias"))


def cohere2_moe(f: Fields) -> Decoder:
    """Attention and experts side by side under one norm; the first layers may be dense, with windows of their own."""
    d = Decoder(f, head_dim=128)
    first = f.maybe_zero("first_k_dense_replace") or 0
    prefix = all_but_every(f.maybe("prefix_dense_sliding_window_pattern") or 1)
    rest = pattern_of(f, 4)
    d.window(default=4096, slides=lambda i: prefix(i) if i < first else rest(i - first))
    f.ignore(
        "shared_expert_combination_strategy", "expert_selection_fn", "prefix_dense_sliding_window_pattern"
    )
    sparse = sparse_by_kind(d, dense=first)
    width = f.count_or(22528, "intermediate_size")
    d.experts(*routed(f, 8, 2), width, layers=sparse)
    shared_experts(d, width * f.whole_or(0, *SHARED), sparse)
    dense = f.maybe("prefix_dense_intermediate_size") or width
    d.gated_mlp(dense, layers=d.layers - sparse)
    return around(d, bias=f.flag("attention_bias"), norms=("input_layernorm",), tied=True)


def beam(f: Fields) -> Decoder:
    """A gate on attention's output, with a bias a head; the last layer sees everything, as every sixth does."""
    d = Decoder(f, kv_heads=8, head_dim=128)
    every = all_but_every(6)
    d.window(default=512, slides=lambda layer: every(layer) and layer != d.layers - 1)
    sparse = sparse_by_kind(d, dense=3)
    d.experts(*routed(f, 256, 8), f.count_or(2560, "moe_intermediate_size"), layers=sparse)
    dense_layers(d, d.layers - sparse, 20480)
    head_norms(d)
    d.linear("self_attn.gate_proj", d.q_width, d.hidden, "attention")
    d.add(f"{d.layer}self_attn.gate_bias", (d.heads,), "attention", d.layers)
    return around(d, bias=f.flag("attention_bias"), norms=FOUR_NORMS)


def mellum(f: Fields) -> Decoder:
    bias = f.flag("attention_bias")
    d = Decoder(f, kv_heads=4, head_dim=128)
    d.window(default=1024, slides=lambda layer: False)
    count, chosen = routed(f, 64, 8)
    width = f.count_or(896, "moe_intermediate_size")

    def layer(sparse: int) -> None:
        d.experts(count, chosen, width, layers=sparse)
        dense_layers(d, d.layers - sparse, 7168)
        head_norms(d)
        block(d, bias=bias)

    layer(sparse_by_kind(d, dense=0))
    drafts = f.maybe_zero(*DRAFTS) or 0
    kinds = d.layer_types("full_attention", "sliding_attention", name="mtp_layer_types", length=drafts)
    mlps = d.layer_types("dense", "sparse", name="mtp_mlp_layer_types", length=drafts) or ["sparse"]
    slides = not kinds or kinds[0] == "sliding_attention"
    window = (f.maybe("sliding_window") or 1024) if slides else None
    d.drafts(drafts, (d.full_attention._replace(window=window),), lambda: layer(mlps.count("sparse")))
    return ends(d)


def kolibri1(f: Fields) -> Decoder:
    """Norms before and after both halves of a layer; every fifth layer sees everything."""
    d = Decoder(f, kv_heads=4, head_dim=128)
    d.window(default=513, slides=all_but_every(5))
    f.ignore("intermediate_size")
    d.experts(*routed(f, 384, 6), f.count_or(512, "moe_intermediate_size"), layers=d.layers)
    shared_experts(d, f.count_or(512, "shared_expert_intermediate_size"), d.layers)
    head_norms(d)
    return around(d, norms=(*NORMS, "post_self_attn_layernorm", "post_mlp_layernorm"))


def laguna(f: Fields) -> Decoder:
    """Query heads by the layer; a gate on attention's output, a head or an element at a time."""
    bias = f.flag("attention_bias")
    d = Decoder(f, kv_heads=8, head_dim=128)
    d.window(default=512, slides=lambda layer: False)
    name = "num_attention_heads_per_layer"
    heads = f.numbers(name, length=d.layers, least=1) or [d.heads] * d.layers
    if odd := [of for of in heads if of % d.kv_heads]:
        raise f.error(f"field '{name}' has {odd[0]}, which the {d.kv_heads} KV heads do not divide")
    parts = [
        Attention(of, d.kv_heads, d.head_dim, d.head_dim, window)
        for of, window in zip(heads, d.windows, strict=True)
    ]
    for like, layers in attend(d, parts, bias=bias, out_bias=bias).items():
        gate(d, like, layers)
    sparse = sparse_by_kind(d, dense=1)
    count, chosen = routed(f, 256, 8)
    d.experts(count, chosen, f.count_or(512, "moe_intermediate_size"), layers=sparse)
    if sparse:
        d.add(f"{d.layer}mlp.gate.e_score_correction_bias", (count,), "router", sparse)
    shared_experts(d, f.count_or(512, "shared_expert_intermediate_size"), sparse)
    dense_layers(d, d.layers - sparse, 8192)
    f.ignore("moe_apply_router_weight_on_input", "moe_router_logit_softcapping")
    head_norms(d)
    d.norm(*NORMS)
    return ends(d)


def gate(d: Decoder, like: Attention, layers: int) -> None:
    """A gate on attention's output: one number a head, or one an element."""
    _, gating = d.fields.find("gating")
    a_head = gating is None or gating is True or gating == "per-head"
    width = like.heads if a_head else like.heads * like.head_dim
    d.linear("self_attn.g_proj", width, d.hidden, "attention", layers=layers)


def llama4_text(f: Fields) -> Decoder:
    """Chunks in three layers of four, those with rotary embedding; experts in every so manieth layer."""
    bias = f.flag("attention_bias")
    d = Decoder(f, kv_heads=8, head_dim=128)
    f.ignore("use_qk_norm", "attn_temperature_tuning", "floor_scale", "attn_scale")  # norms without weights
    attend(d, _chunks(d), bias=bias, out_bias=bias)
    step = f.maybe("interleave_moe_layer_step") or 1
    named = f.numbers("moe_layers")
    sparse = len(
        [i for i in range(d.layers) if (i + 1) % step == 0]
        if named is None
        else [i for i in range(d.layers) if i in named]
    )
    width = f.count_or(8192, "intermediate_size")
    inside = "feed_forward."
    d.experts(*routed(f, 16, 1), width, layers=sparse, router=f"{inside}router", name=f"{inside}experts")
    shared_experts(d, width, sparse, f"{inside}shared_expert")
    dense = f.count_or(16384, "intermediate_size_mlp") if sparse < d.layers else 1
    f.ignore("intermediate_size_mlp")
    d.gated_mlp(dense, name="feed_forward", layers=d.layers - sparse)
    d.norm(*NORMS)
    return ends(d)


def _chunks(d: Decoder) -> list[Attention]:
    f, name = d.fields, "attention_chunk_size"
    chunk = f.maybe(name) if name in f.config else f.assume(name, 8192)
    kinds = d.layer_types("full_attention", "chunked_attention")
    rotary = f.numbers("no_rope_layers", length=None) or []
    if rotary and len(rotary) != d.layers:
        f.numbers("no_rope_layers", length=d.layers)  # raises
    every = f.maybe("no_rope_layer_interval") or 4
    if kinds is None:
        rotary = rotary or [int((i + 1) % every != 0) for i in range(d.layers)]
        kinds = ["chunked_attention" if chunk and turned else "full_attention" for turned in rotary]
    elif "chunked_attention" in kinds and not chunk:
        raise f.error(f"field 'layer_types' has 'chunked_attention', and field '{name}' has no size")
    full = d.full_attention
    return [
        full._replace(window=chunk, chunked=True) if kind == "chunked_attention" else full for kind in kinds
    ]


def muse_spark_text(f: Fields) -> Decoder:
    """Experts at a width of their own; gates on attention's output and on both residuals; many norms have no weights."""
    d = Decoder(f, kv_heads=16, head_dim=64)
    last = d.layers - 1
    d.window(default=2048, slides=lambda layer: (last - layer) % 4 != 0)
    f.ignore("layer_rope_theta", "qk_scale_factor", "output_multiplier", "residual_gate_temperature")
    d.linear("self_attn.gate_proj", d.q_width, d.hidden, "attention")
    sparse = sparse_by_kind(d, dense=0)
    into = f.count_or(4096, "moe_hidden_size")
    d.experts(*routed(f, 256, 8), f.count_or(4096, "moe_intermediate_size"), into=into, layers=sparse)
    d.linear("mlp.pre_expert_proj", into, d.hidden, "shared", layers=sparse)
    d.linear("mlp.post_expert_proj", d.hidden, into, "shared", layers=sparse)
    d.norm("mlp.pre_expert_norm", "mlp.experts.post_expert_norm", width=into, layers=sparse)
    dense_layers(d, d.layers - sparse, 16384)
    for half in ("attention", "feedforward"):
        d.add(f"{d.layer}post_{half}_residual_gate.gate", (d.hidden,), "norm", d.layers)
    norms = ("input_layernorm", "pre_feedforward_layernorm", "post_feedforward_layernorm")
    return around(d, bias=f.flag("attention_bias"), norms=norms)
