"""Mixtures of experts whose weights have names of their own, or that keep less than their layers suggest.

Defaults are those of the family's class in transformers.
"""

from __future__ import annotations

from capplan.models.decoder import ROUTING, Decoder
from capplan.models.families.experts import (
    NORMS,
    around,
    checked,
    dense_layers,
    ends,
    head_norms,
    routed,
    sparse_by_kind,
)
from capplan.models.fields import Fields, show


def dbrx(f: Fields) -> Decoder:
    """Attention and experts described in objects of their own; the experts in three tensors."""
    d = Decoder(f, "transformer.blocks.N.", grouped=False)
    d.context = f.maybe("max_seq_len", "max_position_embeddings", most=10**9)
    attention, experts = f.part("attn_config"), f.part("ffn_config")
    attention.ignore("model_type", "attn_pdrop", "clip_qkv", "rope_theta")
    experts.ignore("ffn_act_fn", "moe_jitter_eps", "moe_loss_weight", "moe_normalize_expert_weights")
    experts.ignore("hidden_size", "uniform_expert_assignment", *ROUTING)
    f.ignore("output_router_logits", "num_key_value_heads")
    d.kv_heads = d.checked_kv_heads(attention.count_or(1, "kv_n_heads"), "attn_config.kv_n_heads")
    d.embedding("transformer.wte")
    d.fused_attention("norm_attn_norm.attn.Wqkv", "norm_attn_norm.attn.out_proj")
    count, chosen = routed(experts, 4, 1)
    d.linear("ffn.router.layer", count, d.hidden, "router")
    rows = count * experts.count_or(3584, "ffn_hidden_size")
    for name in ("w1", "v1", "w2"):
        d.expert(f"ffn.experts.mlp.{name}", (rows, d.hidden), count, chosen, d.layers)
    d.norm("norm_attn_norm.norm_1", "norm_attn_norm.norm_2")
    d.last_norm("transformer.norm_f")
    d.head(tied=False)
    return d


def jetmoe(f: Fields) -> Decoder:
    """Attention is a mixture too: each of the chosen experts brings as many query heads as there are KV heads."""
    kv_heads = f.count_or(16, "num_key_value_heads")
    count, chosen = routed(f, 8, 2)
    d = Decoder(f, heads=kv_heads * chosen)
    f.ignore("num_attention_heads", "glu", "bias", "num_layers", "moe_num_experts", "moe_top_k", *ROUTING)
    d.head_dim = f.count_or(128, "kv_channels", "head_dim")
    width = f.count_or(5632, "intermediate_size")
    keys = d.kv_width
    d.embedding()
    d.linear("self_attention.kv_proj", 2 * keys, d.hidden, "attention")
    for name, up, down in (("mlp", 2 * width, width), ("self_attention.experts", keys, keys)):
        d.expert(f"{name}.input_linear.weight", (count, up, d.hidden), count, chosen, d.layers)
        d.expert(f"{name}.output_linear.weight", (count, d.hidden, down), count, chosen, d.layers)
        d.linear(f"{name}.router.layer", count, d.hidden, "router")
        d.add(f"{d.layer}{name}.bias", (d.hidden,), "experts", d.layers)
    d.norm(*NORMS)
    d.last_norm()
    d.head(tied=True)
    return d


def aria_text(f: Fields) -> Decoder:
    d = Decoder(f)
    width = f.count_or(4096, "intermediate_size")
    d.experts(*routed(f, 8, 2), width, layers=d.layers, router="mlp.router")
    if shared := f.whole_or(2, "moe_num_shared_experts"):
        bias = f.flag("mlp_bias")
        d.gated_mlp(shared * width, bias=bias, name="mlp.shared_experts", bucket="shared")
    f.ignore("mlp_bias", "moe_z_loss_coeff", "moe_aux_loss_coeff")
    return around(d, bias=f.flag("attention_bias"))


def ernie4_5_vl_moe_text(f: Fields) -> Decoder:
    """Two mixtures in a layer: text takes the one, images the other; the shared experts are for both."""
    bias = f.flag("use_bias")
    d = Decoder(f, kv_heads=4)
    f.ignore("moe_norm_min")
    sparse = sparse_by_kind(d, dense=1)
    widths = f.numbers("moe_intermediate_size", length=2, least=1) or [1536, 512]
    count, chosen = routed(f, 64, 6)
    for name, width, reached in (("text_moe", widths[0], chosen), ("vision_moe", widths[1], 0)):
        inside = f"mlp.{name}."
        d.experts(count, reached, width, layers=sparse, router=f"{inside}gate", name=f"{inside}experts")
        if sparse:
            d.add(f"{d.layer}{inside}gate.moe_statics.e_score_correction_bias", (1, count), "router", sparse)
    if shared := f.whole_or(2, "moe_num_shared_experts"):
        shared_width = shared * widths[0]
        d.gated_mlp(shared_width, bias=bias, name="mlp.shared_experts", bucket="shared", layers=sparse)
    dense_layers(d, d.layers - sparse, 12288, bias=bias)
    return around(d, bias=bias, tied=True)


def hunyuan_v1_moe(f: Fields) -> Decoder:
    """Hunyuan-A13B: as many shared experts as one; counts may be given layer by layer."""
    d = Decoder(f)
    if f.find("use_cla")[1]:
        raise f.error("field 'use_cla' is true (layers that share a cache); model_type 'hunyuan' has that")
    head_norms(d, "query_layernorm", "key_layernorm")
    width = f.count_or(11008, "intermediate_size")
    d.gated_mlp(width, name="mlp.shared_mlp", bucket="shared")
    _hunyuan_experts(d, width)
    return around(d, bias=f.flag("attention_bias"))


def hunyuan(f: Fields) -> Decoder:
    """Hunyuan-Large: `cla_share_factor` neighbouring layers share the keys and values of the first of them."""
    bias = f.flag("attention_bias")
    d = Decoder(f)
    share = (f.maybe("cla_share_factor") or 1) if f.flag("use_cla") else 1
    full = d.full_attention
    owners = [layer % share == 0 for layer in range(d.layers)]
    d.mixers = [(full if owns else full._replace(shared=True),) for owns in owners]
    for name in ("q_proj", "o_proj"):
        d.linear(f"self_attn.{name}", d.q_width, d.hidden, "attention", bias=bias)
    for name in ("k_proj", "v_proj"):
        d.linear(f"self_attn.{name}", d.kv_width, d.hidden, "attention", bias=bias, layers=sum(owners))
    if f.flag("use_qk_norm"):
        d.norm("self_attn.query_layernorm", width=d.head_dim)
        d.norm("self_attn.key_layernorm", width=d.head_dim, layers=sum(owners))
    width = f.count("intermediate_size")
    shared = _one_value(f, "num_shared_expert") or 0
    d.gated_mlp(width * shared, name="mlp.shared_mlp", bucket="shared")
    _hunyuan_experts(d, width)
    d.norm(*NORMS)
    return ends(d)


def _hunyuan_experts(d: Decoder, width: int) -> None:
    f = d.fields
    f.ignore(
        "use_mixed_mlp_moe", "moe_drop_tokens", "moe_random_routing_dropped_token", "moe_layer_num_skipped"
    )
    f.ignore(
        "use_qk_norm", "norm_type", "mlp_bias", "cla_share_factor", "capacity_factor", "group_limited_greedy"
    )
    f.ignore(
        "num_shared_expert", "moe_intermediate_size", "attention_head_dim", "use_cla", "n_group", "dense_list"
    )
    f.ignore("num_media_embeds", "position_embedding_xdrope", "use_rotary_pos_emb", "skip_cls_token")
    count = f.whole_or(1, "num_experts", "num_local_experts")
    _, chosen = f.find("moe_topk", "num_experts_per_tok")
    if type(chosen) is list:
        listed = f.numbers("moe_topk", "num_experts_per_tok", length=d.layers, least=1) or []
        by_layer = {k: listed.count(k) for k in listed}
    else:
        by_layer = {f.count_or(1, "moe_topk", "num_experts_per_tok"): d.layers}
    d.linear("mlp.gate.wg", count, d.hidden, "router")
    for chosen, layers in by_layer.items():
        d.experts(count, checked(f, chosen, count), width, layers=layers, router="")


def _one_value(f: Fields, name: str) -> int | None:
    """A number, or a list of the same number for every layer."""
    _, value = f.find(name)
    if type(value) is not list:
        return f.maybe_zero(name)
    values = f.numbers(name) or [0]
    if len(set(values)) > 1:
        raise f.error(f"field '{name}' is {show(value)} numbers; layers that differ are not supported")
    return values[0]


def deepseek_ocr2_text(f: Fields) -> Decoder:
    """DeepSeek-OCR 2: the mixture of DeepSeek V2 over plain heads, whose width the file has no say in."""
    return _deepseek_ocr(f, Decoder(f), experts=(64, 6), width=1407, dense=11008)


def unlimited_ocr_text(f: Fields) -> Decoder:
    """All of the prompt stays in sight, and a window of what is generated."""
    d = Decoder(f, kv_heads=10)
    d.layer_types("reference_sliding_attention", "full_attention")
    f.ignore("sliding_window")
    f.assumptions.append(
        "only generated tokens ever leave a reference window: every token is taken to be kept"
    )
    return _deepseek_ocr(f, d, experts=(64, 6), width=896, dense=6848)


def _deepseek_ocr(f: Fields, d: Decoder, *, experts: tuple[int, int], width: int, dense: int) -> Decoder:
    d.head_dim = d.hidden // d.heads
    bias = f.flag("mlp_bias")
    first = f.maybe_zero("first_k_dense_replace")
    sparse = sparse_by_kind(d, dense=1 if first is None else first)
    width = f.count_or(width, "moe_intermediate_size")
    d.experts(*routed(f, *experts), width, layers=sparse)
    if shared := f.whole_or(2, "n_shared_experts"):
        d.gated_mlp(shared * width, bias=bias, name="mlp.shared_experts", bucket="shared", layers=sparse)
    dense_layers(d, d.layers - sparse, dense, bias=bias)
    return around(d, bias=f.flag("attention_bias"))
