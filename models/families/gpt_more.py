"""More families whose weights have names of their own, and Nemotron's pruned Llamas, of which no two layers are alike.

Defaults are those of the family's class in transformers.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

from capplan.models.decoder import Decoder
from capplan.models.fields import Fields, show
from capplan.models.spec import Layer


def codegen(f: Fields) -> Decoder:
    """GPT-J with one matrix for query, key and value."""
    d = Decoder(f, "transformer.h.N.", grouped=False)
    f.ignore("n_ctx")
    d.embedding("transformer.wte")
    d.fused_attention("attn.qkv_proj", "attn.out_proj")
    d.mlp("mlp.fc_in", "mlp.fc_out", f.maybe("n_inner") or 4 * d.hidden)
    d.norm("ln_1", bias=True)
    d.last_norm("transformer.ln_f", bias=True)
    d.head(tied=False, bias=True)
    return d


def gpt_neo(f: Fields) -> Decoder:
    """Local and global layers in turn; transformers keeps everything in both."""
    layers = f.count("num_layers", "num_hidden_layers")
    d = Decoder(
        f, "transformer.h.N.", grouped=False, heads=f.count("num_heads", "num_attention_heads"), layers=layers
    )
    _check_attention_types(f, layers)
    f.ignore("window_size", "attention_layers")
    d.embedding("transformer.wte")
    d.context = f.count_or(2048, "max_position_embeddings")
    d.positions("transformer.wpe", d.context)
    for name in ("k_proj", "v_proj", "q_proj", "out_proj"):
        d.linear(f"attn.attention.{name}", d.hidden, d.hidden, "attention", bias=name == "out_proj")
    d.mlp("mlp.c_fc", "mlp.c_proj", f.maybe("intermediate_size") or 4 * d.hidden)
    d.norm("ln_1", "ln_2", bias=True)
    d.last_norm("transformer.ln_f", bias=True)
    d.head(tied=True)
    return d


def _check_attention_types(f: Fields, layers: int) -> None:
    """[[["global", "local"], 12]]: kinds, and how often they come."""
    name = "attention_types"
    value = f.find(name)[1]
    if value is None:
        return
    try:
        count = sum(len(kinds) * times for kinds, times in value)
    except (TypeError, ValueError):
        count = -1
    if count != layers:
        raise f.error(
            f"field '{name}' is {show(value)}; pairs of kinds and times for {layers} layers are accepted"
        )


def mpt(f: Fields) -> Decoder:
    """Alibi instead of positions, and no bias anywhere."""
    d = Decoder(f, "transformer.blocks.N.", grouped=False)
    attention = f.find("attn_config")[1] or {}
    if (
        not isinstance(attention, dict)
        or attention.get("attn_type", "multihead_attention") != "multihead_attention"
    ):
        raise f.error("field 'attn_config' is not one of multi-head attention; the class has no other")
    f.ignore(
        "expansion_ratio", "learned_pos_emb", "no_bias", "embedding_fraction", "norm_type", "init_config"
    )
    f.ignore("init_device", "ffn_config", "emb_pdrop", "verbose", "logit_scale", "fc_type")
    d.embedding("transformer.wte")
    d.fused_attention("attn.Wqkv", "attn.out_proj")
    d.mlp("ffn.up_proj", "ffn.down_proj", 4 * d.hidden, bias=False)
    d.norm("norm_1", "norm_2")
    d.last_norm("transformer.norm_f")
    d.head(tied=True)
    return d


def persimmon(f: Fields) -> Decoder:
    d = Decoder(f, grouped=False)
    f.ignore("num_key_value_heads", "head_dim")
    d.embedding()
    d.fused_attention("self_attn.query_key_value", "self_attn.dense", bias=True, out_bias=True)
    if f.flag("qk_layernorm", default=True):
        d.norm("self_attn.q_layernorm", "self_attn.k_layernorm", width=d.head_dim, bias=True)
    d.mlp("mlp.dense_h_to_4h", "mlp.dense_4h_to_h", f.count("intermediate_size"))
    d.norm("input_layernorm", "post_attention_layernorm", bias=True)
    d.last_norm("model.final_layernorm", bias=True)
    d.head(tied=False)
    return d


def gpt_neox_japanese(f: Fields) -> Decoder:
    """One bias in all: that of the last layer's attention."""
    d = Decoder(f, "gpt_neox_japanese.layers.N.", grouped=False)
    d.embedding("gpt_neox_japanese.embed_in")
    d.fused_attention("attention.query_key_value", "attention.dense")
    d.add(f"{d.layer}attention.dense_bias", (d.hidden,), "attention")
    width = int(d.hidden * f.count_or(4, "intermediate_multiple_size"))
    d.mlp("mlp.dense_h_to_4h", "mlp.dense_4h_to_h", width, bias=False)
    d.norm("input_layernorm", "post_attention_layernorm", bias=True)
    d.last_norm("gpt_neox_japanese.final_layer_norm", bias=True)
    d.head("embed_out", tied=True)
    return d


def ctrl(f: Fields) -> Decoder:
    d = Decoder(f, "transformer.h.N.", grouped=False)
    d.embedding("transformer.w")
    for name in ("Wq", "Wk", "Wv", "dense"):
        d.linear(f"multi_head_attention.{name}", d.hidden, d.hidden, "attention", bias=True)
    d.mlp("ffn.N", "ffn.N", f.count("dff"))
    d.norm("layernorm1", "layernorm2", bias=True)
    d.last_norm("transformer.layernorm", bias=True)
    d.head(tied=True, bias=True)
    return d


def xglm(f: Fields) -> Decoder:
    """Positions are computed."""
    layers = f.count("num_layers", "num_hidden_layers")
    heads = f.count("attention_heads", "num_attention_heads")
    d = Decoder(f, grouped=False, heads=heads, layers=layers)
    f.ignore("scale_embedding")
    d.embedding()
    return _like_fairseq(d, f.count("ffn_dim"), "model.layer_norm")


def biogpt(f: Fields) -> Decoder:
    d = Decoder(f, "biogpt.layers.N.", grouped=False)
    f.ignore("scale_embedding")
    d.embedding("biogpt.embed_tokens")
    d.context = f.count_or(1024, "max_position_embeddings")
    d.positions("biogpt.embed_positions", d.context + 2)
    return _like_fairseq(d, f.count("intermediate_size"), "biogpt.layer_norm", head="output_projection")


def _like_fairseq(d: Decoder, width: int, norm: str, head: str = "lm_head") -> Decoder:
    d.attention(bias=True, out_bias=True, out="out_proj")
    d.mlp("fc1", "fc2", width)
    d.norm("self_attn_layer_norm", "final_layer_norm", bias=True)
    d.last_norm(norm, bias=True)
    d.head(head, tied=True)
    return d


def nemotron_nas(f: Fields) -> Decoder:
    """Llama pruned block by block: fewer KV heads, a narrower mlp, or no attention or mlp at all."""
    bias, mlp_bias = f.flag("attention_bias"), f.flag("mlp_bias")
    d = Decoder(f, grouped=False)
    d.head_dim = f.maybe("head_dim") or d.head_dim
    f.ignore("intermediate_size", "num_key_value_heads")  # told block by block
    blocks = f.find("block_configs")[1]
    if type(blocks) is not list or len(blocks) != d.layers:
        raise f.error(
            f"field 'block_configs' is {show(blocks)}; a list of {d.layers:,} objects, one a layer, is needed"
        )
    layout: list[Layer] = []
    shapes: Counter[tuple[int, int]] = Counter()  # KV heads and width of the mlp of a block; 0: none
    for number, block in enumerate(blocks):
        attention, ffn = (_part(f, block, part, number) for part in ("attention", "ffn"))
        group = attention.maybe("n_heads_in_group")
        no_attention = attention.flag("no_op")
        window = attention.maybe("window_length")
        if not no_attention and (not group or d.heads % group):
            raise attention.error(
                f"field 'n_heads_in_group' is {show(group)}; a divisor of {d.heads} is needed"
            )
        kv_heads = 0 if no_attention else d.heads // (group or 1)
        own = d.full_attention._replace(kv_heads=kv_heads, window=window)
        layout.append(() if no_attention else (own,))
        shapes[kv_heads, 0 if ffn.flag("no_op") else _width(ffn, d.hidden)] += 1
        for part in (attention, ffn):
            part.ignore("num_sink_tokens", "unshifted_sink", "use_prefill_window_in_sink_attention")
            part.refuse_the_rest()
    d.mixers = layout
    d.embedding()
    for (kv_heads, width), layers in shapes.items():
        d.kv_heads = kv_heads
        if kv_heads:
            d.attention(bias=bias, out_bias=bias, layers=layers)
            d.norm("input_layernorm", layers=layers)
        if width:
            d.gated_mlp(width, bias=mlp_bias, layers=layers)
            d.norm("post_attention_layernorm", layers=layers)
    d.last_norm()
    d.head(tied=False)
    return d


def _part(f: Fields, block: Any, name: str, number: int) -> Fields:
    part = block.get(name) if isinstance(block, dict) else None
    if not isinstance(part, dict):
        raise f.error(f"field 'block_configs' has no '{name}' in block {number}; an object is needed")
    where = f"block_configs of layer {number}: {name}"
    fields = Fields(part, f"{f.where}: {where}" if f.where else where)
    if fields.flag("replace_with_linear"):
        raise fields.error(
            "field 'replace_with_linear' is true; blocks with a matrix instead are not supported"
        )
    fields.ignore("sparsify")
    return fields


def _width(ffn: Fields, hidden: int) -> int:
    """Two thirds of a multiple of the hidden size, rounded up to a multiple of 256."""
    name, factor = ffn.find("ffn_mult")
    if type(factor) not in (int, float) or not 0 < factor < 1000:
        raise ffn.error(f"field '{name}' is {show(factor)}; a positive number is accepted")
    return -(-int(2 * factor * hidden / 3) // 256) * 256
