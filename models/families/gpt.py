"""Families whose weights are named after GPT-2 or Megatron: wte, c_attn, query_key_value, dense_h_to_4h.

Defaults are those of the family's class in transformers.
"""

from __future__ import annotations

from capplan.models.decoder import Decoder
from capplan.models.fields import Fields


def gpt2(f: Fields) -> Decoder:
    """GPT-2, and GPT-3 by its dimensions."""
    d = Decoder(f, "transformer.h.N.", grouped=False)
    f.ignore("n_ctx")
    return _gpt2(f, d)


def gpt_bigcode(f: Fields) -> Decoder:
    """GPT-2 with one KV head (SantaCoder, StarCoder)."""
    d = Decoder(f, "transformer.h.N.", grouped=False)
    d.kv_heads = 1 if f.flag("multi_query", default=True) else d.heads
    f.ignore("num_key_value_heads")  # transformers 5 derives it from multi_query
    return _gpt2(f, d)


def _gpt2(f: Fields, d: Decoder) -> Decoder:
    d.embedding("transformer.wte")
    d.context = f.count_or(1024, "n_positions", "max_position_embeddings")
    d.positions("transformer.wpe", d.context)
    d.fused_attention("attn.c_attn", "attn.c_proj", bias=True, out_bias=True)
    d.mlp("mlp.c_fc", "mlp.c_proj", f.maybe("n_inner") or 4 * d.hidden)
    d.norm("ln_1", "ln_2", bias=True)
    d.last_norm("transformer.ln_f", bias=True)
    d.head(tied=True)
    return d


def gptj(f: Fields) -> Decoder:
    """One norm a layer; biases in the mlp and the head, none in the attention."""
    d = Decoder(f, "transformer.h.N.", grouped=False)
    d.embedding("transformer.wte")
    for name in ("q_proj", "k_proj", "v_proj", "out_proj"):
        d.linear(f"attn.{name}", d.hidden, d.hidden, "attention")
    d.mlp("mlp.fc_in", "mlp.fc_out", f.maybe("n_inner") or 4 * d.hidden)
    d.norm("ln_1", bias=True)
    d.last_norm("transformer.ln_f", bias=True)
    d.head(tied=False, bias=True)
    return d


def gpt_neox(f: Fields) -> Decoder:
    bias = f.flag("attention_bias", default=True)
    f.ignore("use_parallel_residual")  # the order of the sums; both norms are there either way
    d = Decoder(f, "gpt_neox.layers.N.", grouped=False)
    d.embedding("gpt_neox.embed_in")
    d.fused_attention("attention.query_key_value", "attention.dense", bias=bias, out_bias=bias)
    d.mlp("mlp.dense_h_to_4h", "mlp.dense_4h_to_h", f.count("intermediate_size"))
    d.norm("input_layernorm", "post_attention_layernorm", bias=True)
    d.last_norm("gpt_neox.final_layer_norm", bias=True)
    d.head("lm_head", tied=False)
    return d


def bloom(f: Fields) -> Decoder:
    """Alibi instead of positions; a norm after the embedding."""
    f.ignore("apply_residual_connection_post_layernorm")
    d = Decoder(f, "transformer.h.N.", grouped=False)
    d.embedding("transformer.word_embeddings")
    d.last_norm("transformer.word_embeddings_layernorm", bias=True)
    attention = "self_attention.query_key_value", "self_attention.dense"
    d.fused_attention(*attention, bias=True, out_bias=True)
    d.mlp("mlp.dense_h_to_4h", "mlp.dense_4h_to_h", f.maybe("n_inner") or 4 * d.hidden)
    d.norm("input_layernorm", "post_attention_layernorm", bias=True)
    d.last_norm("transformer.ln_f", bias=True)
    d.head(tied=True)
    return d


def opt(f: Fields) -> Decoder:
    """Learned positions, two rows more than the context."""
    bias = f.flag("enable_bias", default=True)
    norms = f.flag("layer_norm_elementwise_affine", default=True)
    bare = f.flag("_remove_final_layer_norm")
    d = Decoder(f, "model.decoder.layers.N.", grouped=False)
    width = f.maybe("word_embed_proj_dim") or d.hidden
    d.embedding("model.decoder.embed_tokens", width)
    d.context = f.count_or(2048, "max_position_embeddings")
    d.positions("model.decoder.embed_positions", d.context + 2)
    if width != d.hidden:  # OPT-350M: the stack is wider than the embedding
        d.add("model.decoder.project_in.weight", (d.hidden, width), "mlp")
        d.add("model.decoder.project_out.weight", (width, d.hidden), "mlp")
    d.attention(bias=bias, out_bias=bias, out="out_proj")
    d.mlp("fc1", "fc2", f.count("ffn_dim"), bias=bias)
    if norms:
        d.norm("self_attn_layer_norm", "final_layer_norm", bias=True)
    if f.flag("do_layer_norm_before", default=True) and not bare and norms:
        d.last_norm("model.decoder.final_layer_norm", bias=True)
    d.head(tied=True, width=width)
    return d


def falcon(f: Fields) -> Decoder:
    """Three layouts: many KV heads (40B, 180B), one KV head (7B), and MHA with two norms (the 1B models)."""
    grouped = f.flag("new_decoder_architecture", default=f.config.get("model_type") == "RefinedWeb")
    multi_query = f.flag("multi_query", default=True)
    parallel = f.flag("parallel_attn", default=True)
    bias = f.flag("bias")
    d = Decoder(f, "transformer.h.N.", grouped=False)
    given = f.maybe("num_kv_heads", "n_head_kv")
    if grouped:
        d.kv_heads = d.checked_kv_heads(given or f.assume("num_kv_heads", d.heads), "num_kv_heads")
    else:
        d.kv_heads = 1 if multi_query else d.heads
    d.mixers = [(d.full_attention._replace(repeated=grouped),)] * d.layers
    d.embedding("transformer.word_embeddings")
    attention = "self_attention.query_key_value", "self_attention.dense"
    d.fused_attention(*attention, bias=bias, out_bias=bias)
    width = f.maybe("ffn_hidden_size") or 4 * d.hidden
    d.mlp("mlp.dense_h_to_4h", "mlp.dense_4h_to_h", width, bias=bias)
    norms = f.maybe("num_ln_in_parallel_attn") or (2 if grouped else 1)
    if not parallel:
        d.norm("input_layernorm", "post_attention_layernorm", bias=True)
    elif norms == 2:
        d.norm("ln_attn", "ln_mlp", bias=True)
    else:
        d.norm("input_layernorm", bias=True)
    d.last_norm("transformer.ln_f", bias=True)
    d.head(tied=True)
    return d


def chatglm(f: Fields) -> Decoder:
    """ChatGLM2 and 3: grouped heads and a gated mlp, in matrices named as Megatron names them."""
    bias = f.flag("add_bias_linear")
    d = Decoder(f, "transformer.encoder.layers.N.", grouped=False)
    d.head_dim = f.maybe("kv_channels") or d.head_dim
    if f.flag("multi_query_attention"):
        name = "multi_query_group_num"
        d.kv_heads = d.checked_kv_heads(f.count_or(1, name), name)
    f.ignore("multi_query_group_num", "bias_dropout_fusion", "apply_query_key_layer_scaling")
    layer_norm = not f.flag("rmsnorm", default=True)
    d.embedding("transformer.embedding.word_embeddings")
    qkv_bias = bias or f.flag("add_qkv_bias")
    attention = "self_attention.query_key_value", "self_attention.dense"
    d.fused_attention(*attention, bias=qkv_bias, out_bias=bias)
    mlp = "mlp.dense_h_to_4h", "mlp.dense_4h_to_h"
    d.mlp(*mlp, f.count("ffn_hidden_size"), gated=True, bias=bias)
    d.norm("input_layernorm", "post_attention_layernorm", bias=layer_norm)
    if f.flag("post_layer_norm", default=True):
        d.last_norm("transformer.encoder.final_layernorm", bias=layer_norm)
    d.head("transformer.output_layer", tied=False)
    return d
