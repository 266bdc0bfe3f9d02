"""More dense decoders in Llama's manner, each with a part or two of its own.

Defaults are those of the family's class in transformers.
"""

from __future__ import annotations

from math import isqrt

from capplan.models.decoder import Decoder
from capplan.models.families.dense import like_glm, like_llama
from capplan.models.fields import Fields
from capplan.models.spec import Weight

UP_DOWN = ("mlp.up_proj", "mlp.down_proj")


def apertus(f: Fields) -> Decoder:
    """Query and key norms, and an activation with two parameters of its own."""
    bias = f.flag("attention_bias")
    d = Decoder(f)
    f.ignore("mlp_bias", "post_norm", "qk_norm")
    d.norm("self_attn.q_norm", "self_attn.k_norm", width=d.head_dim)
    if (f.text("hidden_act") or "xielu") == "xielu":
        for name in ("alpha_p", "alpha_n"):
            d.add(f"{d.layer}mlp.act_fn.{name}", (1,), "mlp", d.layers)
    norms = ("attention_layernorm", "feedforward_layernorm")
    return like_llama(d, bias=bias, out_bias=bias, ungated=UP_DOWN, norms=norms)


def apertus1p5(f: Fields) -> Decoder:
    """Apertus that may write fewer tokens than it reads."""
    rows = f.maybe("output_vocab_size")
    d = apertus(f)
    if rows:
        d.weights = [
            w._replace(shape=(rows, d.hidden)) if w.name == "lm_head.weight" else w for w in d.weights
        ]
    return d


def arcee(f: Fields) -> Decoder:
    bias = f.flag("attention_bias")
    return like_llama(Decoder(f), bias=bias, out_bias=bias, mlp_bias=f.flag("mlp_bias"), ungated=UP_DOWN)


def jais2(f: Fields) -> Decoder:
    bias = f.flag("attention_bias", default=True)
    mlp_bias = f.flag("mlp_bias", default=True)
    return like_llama(
        Decoder(f), bias=bias, out_bias=bias, mlp_bias=mlp_bias, ungated=UP_DOWN, norm_bias=True
    )


def nemotron(f: Fields) -> Decoder:
    """Nemotron 4 and Minitron: a squared ReLU instead of a gate, norms with biases."""
    bias = f.flag("attention_bias")
    d = Decoder(f)
    return like_llama(
        d, bias=bias, out_bias=bias, mlp_bias=f.flag("mlp_bias"), ungated=UP_DOWN, norm_bias=True
    )


def nanochat(f: Fields) -> Decoder:
    """Norms without parameters."""
    bias = f.flag("attention_bias")
    d = Decoder(f)
    f.ignore("qkv_bias")
    d.embedding()
    d.attention(bias=bias, out_bias=bias)
    d.mlp("mlp.fc1", "mlp.fc2", f.count("intermediate_size"), bias=False)
    d.head(tied=False)
    return d


def bitnet(f: Fields) -> Decoder:
    """A norm before each of the two output projections."""
    bias = f.flag("attention_bias")
    d = Decoder(f, kv_heads=5)
    d.norm("self_attn.attn_sub_norm")
    d.norm("mlp.ffn_sub_norm", width=f.count("intermediate_size"))
    return like_llama(d, bias=bias, out_bias=bias)


def diffllama(f: Fields) -> Decoder:
    """Attention as the difference of two, weighed by four vectors a layer."""
    bias = f.flag("attention_bias")
    d = Decoder(f)
    if d.kv_heads % 2:
        raise f.error(
            f"field 'num_key_value_heads' is {d.kv_heads}, and the two attentions need half of them each"
        )
    for name in ("lambda_q1", "lambda_k1", "lambda_q2", "lambda_k2"):
        d.add(f"{d.layer}self_attn.{name}", (d.head_dim,), "attention", d.layers)
    f.ignore("lambda_std_dev")
    return like_llama(d, bias=bias, out_bias=bias)


def doge(f: Fields) -> Decoder:
    """A learned mask over the values; experts of one vector each in some models."""
    bias, mlp_bias = f.flag("attention_bias"), f.flag("mlp_bias")
    d = Decoder(f)
    d.window()
    f.ignore("keep_window_size", "norm_topk_prob", "output_router_logits", "router_aux_loss_coef")
    d.add(f"{d.layer}self_attn.A", (d.kv_heads,), "attention", d.layers)
    d.linear("self_attn.dt_proj", d.kv_heads, d.kv_width, "attention", bias=bias)
    d.norm("self_attn.q_norm", "self_attn.k_norm", width=d.head_dim)
    for name in ("input_residual", "post_attention_residual"):
        d.add(f"{d.layer}{name}", (d.hidden,), "norm", d.layers)
    if f.flag("is_moe"):
        count, chosen = f.count_or(16384, "num_experts"), f.count_or(64, "num_experts_per_tok")
        d.linear("mlp.router_gate", 2 * isqrt(count), d.hidden, "router")
        for name in ("down_embed", "up_embed"):
            shape = (count, d.hidden)
            d.weights.append(
                Weight(
                    f"{d.layer}mlp.{name}.weight", shape, "experts", d.layers, experts=count, chosen=chosen
                )
            )
    f.ignore("num_experts", "num_experts_per_tok")
    return like_llama(d, bias=bias, out_bias=bias, mlp_bias=mlp_bias)


def exaone(f: Fields) -> Decoder:
    bias = f.flag("attention_bias")
    d = Decoder(f, kv_heads=8)
    return like_llama(d, bias=bias, out_bias=bias, mlp_bias=f.flag("mlp_bias"))


def iquestcoder(f: Fields) -> Decoder:
    bias = f.flag("attention_bias")
    d = Decoder(f, kv_heads=8, head_dim=128)
    f.ignore("sliding_window", "max_window_layers")  # the class has no windows, and refuses the switch
    return like_llama(d, bias=bias, out_bias=bias, mlp_bias=f.flag("mlp_bias"))


def internlm3(f: Fields) -> Decoder:
    """One setting of biases for all projections: the class refuses two."""
    bias, mlp_bias = f.flag("qkv_bias", "attention_bias"), f.flag("bias", "mlp_bias")
    if bias != mlp_bias:
        raise f.error("fields 'qkv_bias' and 'bias' disagree; the class accepts one setting for both")
    d = Decoder(f, kv_heads=2, head_dim=128)
    return like_llama(d, bias=bias, out_bias=bias, mlp_bias=mlp_bias)


def hyperclovax(f: Fields) -> Decoder:
    """Norms after attention and mlp as well."""
    bias = f.flag("attention_bias")
    d = Decoder(f)
    if f.flag("use_post_norm", default=True):
        d.norm("post_norm1", "post_norm2")
    return like_llama(d, bias=bias, out_bias=bias, mlp_bias=f.flag("mlp_bias"))


def helium(f: Fields) -> Decoder:
    """The output projection is square, whatever the heads are."""
    bias = f.flag("attention_bias")
    d = Decoder(f, kv_heads=20, head_dim=128)
    for name, width in (("q_proj", d.q_width), ("k_proj", d.kv_width), ("v_proj", d.kv_width)):
        d.linear(f"self_attn.{name}", width, d.hidden, "attention", bias=bias)
    d.linear("self_attn.o_proj", d.hidden, d.hidden, "attention")
    d.embedding()
    d.gated_mlp(bias=f.flag("mlp_bias"))
    d.norm("input_layernorm", "post_attention_layernorm")
    d.last_norm()
    d.head(tied=False)
    return d


def glm4(f: Fields) -> Decoder:
    """GLM with norms after attention and mlp as well."""
    d = Decoder(f, kv_heads=2, head_dim=128)
    return like_glm(d, bias=f.flag("attention_bias", default=True), after=True)


def hrm_text(f: Fields) -> Decoder:
    """Two stacks that run in cycles: each pass over a layer keeps a cache of its own. Norms without parameters."""
    bias, mlp_bias = f.flag("attention_bias"), f.flag("mlp_bias")
    d = Decoder(f, head_dim=128, grouped=False)
    d.head_dim = f.maybe("head_dim") or f.assume("head_dim", 128)
    f.ignore("L_bp_cycles", "embedding_scale", "prefix_lm", "num_key_value_heads")
    d.embedding()
    d.add("model.z_L_init", (d.hidden,), "embedding")
    passes = f.count_or(2, "H_cycles") * (f.count_or(3, "L_cycles") + 1)
    stacked = f.maybe("num_layers_per_stack")
    run, d.layers = d.layers, stacked or d.layers
    d.mixers = [(d.full_attention,)] * (run if stacked else run * passes)
    for stack in ("L_module", "H_module"):
        d.layer = f"model.{stack}.layers.N."
        d.attention(bias=bias, out_bias=bias)
        d.linear("self_attn.gate_proj", d.q_width, d.hidden, "attention", bias=bias)
        d.gated_mlp(bias=mlp_bias)
    d.head(tied=False)
    return d


def mllama(f: Fields) -> Decoder:
    """Llama 3.2 Vision: some layers look at the image instead of the text."""
    d = Decoder(f, kv_heads=8)
    name = "cross_attention_layers"
    crossing = f.numbers(name)
    if crossing is None:
        crossing = f.assume(name, [3, 8, 13, 18, 23, 28, 33, 38])
    crossing = [layer for layer in crossing if layer < d.layers]
    cross = len(set(crossing))
    f.ignore("cross_attention_hidden_size")
    self_attention = d.full_attention
    d.mixers = [(self_attention._replace(cross=layer in crossing),) for layer in range(d.layers)]
    d.add("model.embed_tokens.weight", (d.vocab + 8, d.hidden), "embedding")  # eight tokens for images
    d.attention(layers=d.layers - cross)
    for part, width, into in (
        ("q_proj", d.q_width, d.hidden),
        ("k_proj", d.kv_width, d.hidden),
        ("v_proj", d.kv_width, d.hidden),
        ("o_proj", d.hidden, d.q_width),
    ):
        d.linear(f"cross_attn.{part}", width, into, "attention", layers=cross)
    d.norm("cross_attn.q_norm", "cross_attn.k_norm", width=d.head_dim, layers=cross)
    for gate in ("cross_attn_attn_gate", "cross_attn_mlp_gate"):
        if cross:
            d.add(f"{d.layer}{gate}", (1,), "attention", cross)
    d.gated_mlp()
    d.norm("input_layernorm", "post_attention_layernorm")
    d.last_norm()
    f.ignore("tie_word_embeddings")  # never: the tables differ in rows
    d.add("lm_head.weight", (d.vocab, d.hidden), "head")
    return d
