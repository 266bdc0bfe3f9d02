"""Dense decoders in Llama's manner: one function a family, from a config's fields to weights and cache.

Defaults are those of the family's class in transformers.
"""

from __future__ import annotations

from capplan.models.decoder import Decoder
from capplan.models.fields import Fields


def llama(f: Fields) -> Decoder:
    bias = f.flag("attention_bias")
    return like_llama(Decoder(f), bias=bias, out_bias=bias, mlp_bias=f.flag("mlp_bias"))


def like_llama(
    d: Decoder,
    *,
    bias: bool = False,
    out_bias: bool = False,
    mlp_bias: bool = False,
    ungated: tuple[str, str] | None = None,
    norms: tuple[str, ...] = ("input_layernorm", "post_attention_layernorm"),
    norm_bias: bool = False,
    tied: bool = False,
) -> Decoder:
    """Attention and mlp with their norms. `ungated`: names of an mlp of two matrices; `tied`: the class's default."""
    d.embedding()
    d.attention(bias=bias, out_bias=out_bias)
    if ungated:
        d.mlp(*ungated, d.fields.count("intermediate_size"), bias=mlp_bias)
    else:
        d.gated_mlp(bias=mlp_bias)
    d.norm(*norms, bias=norm_bias)
    d.last_norm(bias=norm_bias)
    d.head(tied=tied)
    return d


def mistral(f: Fields) -> Decoder:
    d = Decoder(f, kv_heads=8)
    d.window(default=4096)
    return like_llama(d)


def ministral3(f: Fields) -> Decoder:
    d = Decoder(f, kv_heads=8, head_dim=128)
    d.window()
    return like_llama(d)


def qwen2(f: Fields) -> Decoder:
    """Biases on query, key and value."""
    d = Decoder(f, kv_heads=32)
    d.window(default=4096, switch=True)
    return like_llama(d, bias=True)


def qwen3(f: Fields) -> Decoder:
    """A query norm and a key norm over each head."""
    bias = f.flag("attention_bias")
    d = Decoder(f, kv_heads=32, head_dim=128)
    d.window(default=4096, switch=True)
    d.norm("self_attn.q_norm", "self_attn.k_norm", width=d.head_dim)
    return like_llama(d, bias=bias, out_bias=bias)


def phi3(f: Fields) -> Decoder:
    """Phi-3 and Phi-4: fused projections."""
    d = Decoder(f)
    d.window()
    return like_phi3(d)


def like_phi3(d: Decoder) -> Decoder:
    d.embedding()
    d.fused_attention("self_attn.qkv_proj", "self_attn.o_proj")
    d.mlp("mlp.gate_up_proj", "mlp.down_proj", d.fields.count("intermediate_size"), gated=True, bias=False)
    d.norm("input_layernorm", "post_attention_layernorm")
    d.last_norm()
    d.head(tied=False)
    return d


def phi(f: Fields) -> Decoder:
    """Phi-1 and Phi-2: one norm a layer, biases everywhere, the head included."""
    d = Decoder(f)
    d.embedding()
    d.attention(bias=True, out_bias=True, out="dense")
    if f.flag("qk_layernorm"):
        d.norm("self_attn.q_layernorm", "self_attn.k_layernorm", width=d.head_dim, bias=True)
    d.mlp("mlp.fc1", "mlp.fc2", f.count("intermediate_size"))
    d.norm("input_layernorm", bias=True)
    d.last_norm("model.final_layernorm", bias=True)
    d.head(tied=False, bias=True)
    return d


def gemma(f: Fields) -> Decoder:
    bias = f.flag("attention_bias")
    return like_llama(Decoder(f, kv_heads=16, head_dim=256), bias=bias, out_bias=bias, tied=True)


def internlm2(f: Fields) -> Decoder:
    bias = f.flag("bias")
    d = Decoder(f)
    d.embedding("model.tok_embeddings")
    d.fused_attention("attention.wqkv", "attention.wo", bias=bias, out_bias=bias)
    width = f.count("intermediate_size")
    d.linear("feed_forward.w1", width, d.hidden, "mlp")
    d.mlp("feed_forward.w3", "feed_forward.w2", width, bias=False)
    d.norm("attention_norm", "ffn_norm")
    d.last_norm()
    d.head("output", tied=False)
    return d


def cohere(f: Fields) -> Decoder:
    """Command R: attention and mlp side by side under one norm; query and key norms in the larger model."""
    bias = f.flag("attention_bias")
    d = Decoder(f)
    d.context = f.maybe("model_max_length", most=10**9) or d.context
    d.embedding()
    d.attention(bias=bias, out_bias=bias)
    if f.flag("use_qk_norm"):
        d.norm("self_attn.q_norm", width=d.q_width)
        d.norm("self_attn.k_norm", width=d.kv_width)
    d.gated_mlp()
    d.norm("input_layernorm")
    d.last_norm()
    d.head(tied=True)
    return d


def olmo(f: Fields) -> Decoder:
    """Norms without parameters."""
    bias = f.flag("attention_bias")
    d = Decoder(f)
    d.embedding()
    d.attention(bias=bias, out_bias=bias)
    d.gated_mlp()
    d.head(tied=False)
    return d


def olmo2(f: Fields) -> Decoder:
    """Norms after attention and mlp; query and key norms over all heads together."""
    bias = f.flag("attention_bias")
    d = Decoder(f)
    d.embedding()
    d.attention(bias=bias, out_bias=bias)
    d.norm("self_attn.q_norm", width=d.q_width)
    d.norm("self_attn.k_norm", width=d.kv_width)
    d.gated_mlp()
    d.norm("post_attention_layernorm", "post_feedforward_layernorm")
    d.last_norm()
    d.head(tied=False)
    return d


def stablelm(f: Fields) -> Decoder:
    """A query norm and a key norm for every head, where there are any."""
    d = Decoder(f, kv_heads=32)
    d.embedding()
    d.attention(bias=f.flag("use_qkv_bias"))
    if f.flag("qk_layernorm"):
        d.norm("self_attn.q_layernorm.norms.N", width=d.head_dim, copies=d.heads)
        d.norm("self_attn.k_layernorm.norms.N", width=d.head_dim, copies=d.kv_heads)
    d.gated_mlp()
    d.norm("input_layernorm", bias=True)
    if not f.flag("use_parallel_residual"):
        d.norm("post_attention_layernorm", bias=True)
    d.last_norm(bias=True)
    d.head(tied=False)
    return d


def starcoder2(f: Fields) -> Decoder:
    bias = f.flag("use_bias", default=True)
    d = Decoder(f, kv_heads=2)
    d.window()
    f.ignore("norm_type", "mlp_type")  # labels the class does not read
    d.embedding()
    d.attention(bias=bias, out_bias=bias)
    d.mlp("mlp.c_fc", "mlp.c_proj", f.count("intermediate_size"), bias=bias)
    d.norm("input_layernorm", "post_attention_layernorm", bias=True)
    d.last_norm(bias=True)
    d.head(tied=True)
    return d


def glm(f: Fields) -> Decoder:
    return like_glm(Decoder(f, kv_heads=2, head_dim=128), bias=f.flag("attention_bias", default=True))


def like_glm(d: Decoder, *, bias: bool = True, out_bias: bool = False, after: bool = False) -> Decoder:
    """Gate and up projection in one matrix; norms after attention and mlp as well, where asked for."""
    d.embedding()
    d.attention(bias=bias, out_bias=out_bias)
    d.mlp("mlp.gate_up_proj", "mlp.down_proj", d.fields.count("intermediate_size"), gated=True, bias=False)
    d.norm("input_layernorm", "post_attention_layernorm")
    if after:
        d.norm("post_self_attn_layernorm", "post_mlp_layernorm")
    d.last_norm()
    d.head(tied=False)
    return d


def ernie4_5(f: Fields) -> Decoder:
    bias = f.flag("use_bias")
    d = Decoder(f, kv_heads=2, head_dim=128)
    return like_llama(d, bias=bias, out_bias=bias, mlp_bias=bias, tied=True)


def hunyuan_v1_dense(f: Fields) -> Decoder:
    bias = f.flag("attention_bias")
    d = Decoder(f)
    f.ignore("use_qk_norm")  # the class has the norms whatever this says
    d.norm("self_attn.query_layernorm", "self_attn.key_layernorm", width=d.head_dim)
    if f.config.get("use_cla") in (None, False):  # layers share caches only when this is on
        f.ignore("use_cla", "cla_share_factor")
    return like_llama(d, bias=bias, out_bias=bias)


def seed_oss(f: Fields) -> Decoder:
    bias, out_bias = f.flag("attention_bias", default=True), f.flag("attention_out_bias")
    d = Decoder(f, kv_heads=8, head_dim=128)
    return like_llama(d, bias=bias, out_bias=out_bias, mlp_bias=f.flag("mlp_bias"))


def smollm3(f: Fields) -> Decoder:
    """Some layers have no rotary embedding: they slide, where any do."""
    bias = f.flag("attention_bias")
    d = Decoder(f, kv_heads=4)
    if f.flag("use_sliding_window") and f.config.get("sliding_window"):
        every = f.count_or(4, "no_rope_layer_interval")
        rotated = f.numbers("no_rope_layers", length=d.layers) or [(i + 1) % every for i in range(d.layers)]
        d.window(slides=lambda layer: not rotated[layer])
    elif d.layer_types("full_attention", "sliding_attention"):
        d.window()  # the kinds count without the switch
    else:
        f.ignore("sliding_window")
    f.ignore("max_window_layers")
    return like_llama(d, bias=bias, out_bias=bias, mlp_bias=f.flag("mlp_bias"), tied=True)
