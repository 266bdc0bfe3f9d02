"""Latent attention that reads what an indexer selects (DSA): DeepSeek V3.2, GLM-5, A.X K2, Mistral Large 4, Hy4.

Defaults are those of the family's class in transformers. Every token's latent stays cached, and an index key with it.
"""

from __future__ import annotations

from typing import Any

from capplan.models.decoder import Decoder
from capplan.models.families.experts import NORMS, sparse_by_kind
from capplan.models.families.latent import (
    V3,
    Experts,
    Indexer,
    LatentDecoder,
    Widths,
    around,
    cached,
    drafts,
    experts,
    ignore_frequency,
    indexed,
    indexer,
    indexer_weights,
    key_weights,
    latent_weights,
    mlps,
    own_indexers,
    query_latent,
    query_weights,
    sparse_by_frequency,
    uncounted_drafts,
    value_weights,
    widths,
)
from capplan.models.fields import Fields, show
from capplan.models.spec import Layer

SPARSE = (
    "indexed_attention",
    "deepseek_sparse_attention",
)  # the second is the name of before transformers 5.24


def deepseek_v32(f: Fields) -> Decoder:
    d = LatentDecoder(f)
    f.ignore("mlp_bias")
    w, e = widths(f, V3, direct=False), experts(f, (256, 8, 2048, 1), count=["num_experts"])
    return _sparse(d, w, e, indexer(f, (64, 128, 2048)), [True] * d.layers, dense=3)


def glm_moe_dsa(f: Fields) -> Decoder:
    """GLM-5; from 5.2 on, most layers use the selection of an earlier one."""
    d = LatentDecoder(f)
    f.ignore("mlp_bias", "indexer_rope_interleave", "index_share_for_mtp_iteration")
    w = widths(f, (2048, 512, 64, 192, 256), direct=False)
    e = experts(f, (256, 8, 2048, 1), count=["num_experts"])
    return _sparse(d, w, e, indexer(f, (32, 128, 2048)), own_indexers(d, scheduled(d)), dense=3)


def scheduled(d: Decoder) -> list[bool]:
    """Which layers have an indexer, as a pattern or a period says it."""
    f, name = d.fields, "index_topk_pattern"
    every, first = f.maybe_zero("index_topk_freq") or 1, f.maybe_zero("index_skip_topk_offset")
    _, pattern = f.find(name)
    if pattern is None:
        first = 2 if first is None else first
        return [max(layer - first + 1, 0) % every == 0 for layer in range(d.layers)]
    kinds = [{"F": "full", "S": "shared"}.get(c, c) for c in pattern] if isinstance(pattern, str) else pattern
    if (
        type(kinds) is not list
        or len(kinds) != d.layers
        or any(kind not in ("full", "shared") for kind in kinds)
    ):
        raise f.error(
            f"field '{name}' is {show(pattern)}; {d.layers:,} letters F or S, one a layer, are accepted"
        )
    return [kind == "full" for kind in kinds]


def _sparse(d: Decoder, w: Widths, e: Experts, index: Indexer, own: list[bool], *, dense: int) -> Decoder:
    """Latent attention with indexers in some layers or all; experts after the first so many layers."""
    f = d.fields
    d.layer_types(*SPARSE)
    d.mixers = _layers(d, w, index, own)
    latent_weights(d, w)
    indexer_weights(d, index, w.query or d.hidden, layers=sum(own))
    first = f.whole_or(dense, "first_k_dense_replace") if f.config.get("mlp_layer_types") is None else 0
    f.ignore("first_k_dense_replace")
    mlps(d, e, sparse_by_kind(d, first))
    ignore_frequency(f)
    drafts(d, w, e, index)
    return around(d)


def _layers(d: Decoder, w: Widths, index: Indexer, own: list[bool]) -> list[Layer]:
    return [(indexed(cached(d, w), index, has),) for has in own]


def axk2(f: Fields) -> Decoder:
    """A.X K2: queries and an output gate from one matrix; gates of low rank in the norms, except before a dense mlp."""
    d = LatentDecoder(f)
    d.layer_types(*SPARSE)
    if (f.maybe("n_group") is None) != (f.maybe("topk_group") is None):
        raise f.error("fields 'n_group' and 'topk_group' are given together or not at all")
    w, index = widths(f, (384, 128, 32, 64, 64), direct=False), indexer(f, (16, 128, 2048))
    e, rank = experts(f, (128, 8, 512, 1)), f.count_or(16, "gated_norm_rank")
    d.mixers = _layers(d, w, index, [True] * d.layers)
    query = w.query or 0
    query_latent(d, query)
    gated = d.heads * (w.nope + w.rope + w.value)
    d.linear("self_attn.q_gate_proj", gated, 2 * query, "attention")
    key_weights(d, w)
    value_weights(d, w)
    indexer_weights(d, index, query)
    sparse = sparse_by_frequency(d)
    mlps(d, e, sparse)
    before, after = NORMS
    for name, layers in ((before, d.layers), (after, sparse)):
        d.norm(f"{name}.norm", layers=layers)
        d.linear(f"{name}.mlp.fc1", rank, d.hidden, "mlp", layers=layers)
        d.linear(f"{name}.mlp.fc2", d.hidden, rank, "mlp", layers=layers)
    d.norm(after, layers=d.layers - sparse)
    uncounted_drafts(d, d.mixers[-1])
    d.embedding()
    d.last_norm()
    d.head(tied=False)
    return d


def mistral_large4_text(f: Fields) -> Decoder:
    """Some layers have no rotary key, and some use the latents of an earlier layer."""
    d = LatentDecoder(f)
    d.layer_types(*SPARSE)
    f.config = {**f.config, "q_lora_rank": None}  # the class knows none
    w, index = widths(f, (None, 512, 64, 64, 128)), indexer(f, (32, 128, 2048))
    e = experts(f, (128, 4, 6144, 1), count=["num_experts"])
    own, source, roped = own_indexers(d, scheduled(d)), _sources(d), _roped(d)
    part = cached(d, w)
    d.mixers = [
        (indexed(part, index, own[i])._replace(roped=roped[i], shared=source[i] != i),)
        for i in range(d.layers)
    ]
    for rotary in (True, False):
        some = [i for i in range(d.layers) if roped[i] == rotary]
        here = w if rotary else w._replace(nope=w.nope + w.rope, rope=0)
        query_weights(d, here, layers=len(some))
        key_weights(d, here, layers=sum(source[i] == i for i in some))
        value_weights(d, here, layers=len(some))
    d.add("model.rotary_emb.alpha", (w.rope // 2,), "attention")  # how far each frequency is stretched
    owners, name = sum(own), "self_attn.indexer"
    indexer_weights(d, index, d.hidden, layers=owners)
    d.norm(f"{name}.q_input_norm", bias=True, layers=owners)
    for scaled, heads, layers in ((name, index.heads, owners), ("self_attn", d.heads, d.layers)):
        for weight in ("scale", "bias"):
            d.add(f"{d.layer}{scaled}.softmax_scaling.{weight}", (heads,), "attention", layers)
    first = f.whole_or(1, "first_k_dense_replace") if f.config.get("mlp_layer_types") is None else 0
    f.ignore("first_k_dense_replace")
    mlps(d, e, sparse_by_kind(d, first))
    uncounted_drafts(d, (indexed(part, index, True),))
    return around(d)


def _sources(d: Decoder) -> list[int]:
    """The layer whose latents each layer uses."""
    name = "kv_source_layers"
    source = d.fields.numbers(name, length=d.layers)
    if source is None:
        return list(range(d.layers))
    for layer, of in enumerate(source):
        if of > layer or source[of] != of:
            raise d.fields.error(
                f"field '{name}' has {of} for layer {layer}; itself or an earlier layer that keeps latents is accepted"
            )
    return source


def _roped(d: Decoder) -> list[bool]:
    f, name = d.fields, "no_rope_layers"
    roped = f.numbers(name)
    every = f.maybe("no_rope_layer_interval") or 4
    if roped is None:
        return [(layer + 1) % every != 0 for layer in range(d.layers)]
    if len(roped) < d.layers:
        raise f.error(f"field '{name}' is {show(roped)}; one entry a layer, {d.layers:,}, is needed")
    return [bool(rotary) for rotary in roped[: d.layers]]


def hy_v4(f: Fields) -> Decoder:
    return _hy_v4(f, (1536, 512, 64, 192, 256), (256, 8, 768, 1), (16, 128, 2048))


def hy_v4_vl_text(f: Fields) -> Decoder:
    return _hy_v4(f, (2048, 512, 64, 192, 256), (256, 8, 2048, 1), (32, 128, 2048))


def _hy_v4(f: Fields, *default: Any) -> Decoder:
    """Hy4: an output gate and sinks; the hidden state in several channels, joined anew before each part."""
    d = LatentDecoder(f)
    d.layer_types(*SPARSE)
    w, e, index = widths(f, default[0], direct=False), experts(f, default[1]), indexer(f, default[2])
    own = own_indexers(d, [layer == 0 or (layer - 1) % 4 == 0 for layer in range(d.layers)])
    d.mixers = _layers(d, w, index, own)
    latent_weights(d, w)
    indexer_weights(d, index, w.query or 0, layers=sum(own))
    d.linear("self_attn.gate_proj", d.heads * w.value, d.hidden, "attention")
    d.sinks()
    f.ignore("first_k_dense_replace", "swiglu_limit", "hc_eps", "hc_magnitude", "learnable_sink_init")
    mlps(d, e, sparse_by_kind(d, 1))
    channels = f.count_or(4, "hc_mult")
    hyper_connections(d, channels, 2 * channels, 2)
    hyper_head(d, channels)
    uncounted_drafts(d, (indexed(cached(d, w), index, True),))
    return around(d)


def hyper_connections(d: Decoder, channels: int, rows: int, scales: int) -> None:
    """The hidden state in several channels: how they are joined before attention and mlp."""
    wide = channels * d.hidden
    for name, bucket in (("attn_hc", "attention"), ("ffn_hc", "mlp")):
        for weight, shape in (("fn", (rows, wide)), ("base", (rows,)), ("scale", (scales,))):
            d.add(f"{d.layer}{name}.{weight}", shape, bucket, d.layers)


def hyper_head(d: Decoder, channels: int) -> None:
    """How the channels are joined at the end."""
    wide = channels * d.hidden
    for weight, shape in (("fn", (channels, wide)), ("base", (channels,)), ("scale", (1,))):
        d.add(f"model.hc_head.hc_{weight}", shape, "mlp")
