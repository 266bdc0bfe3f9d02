"""Short convolutions beside attention or in it: LFM2 and LFM3, ZAYA.

Defaults are those of the family's class in transformers.
"""

from __future__ import annotations

from capplan.models.decoder import Decoder
from capplan.models.families.experts import routed
from capplan.models.families.states import (
    FULL,
    convolution,
    kinds,
    lay_out,
    tensor,
)
from capplan.models.fields import Fields, show
from capplan.models.spec import Layer, State

CONV, SLIDING = "conv", "sliding_attention"


# --- LFM ------------------------------------------------------------------------------------------------------

# Names of dimensions that the class does not read, beside those it does.
_DOUBLES = (
    *("block_dim", "block_mlp_init_scale", "block_norm_eps", "block_use_swiglu", "block_use_xavier_init"),
    *("conv_dim", "conv_dim_out", "conv_use_xavier_init", "block_out_init_scale", "num_heads", "use_pos_enc"),
)


def lfm2(f: Fields) -> Decoder:
    d = Decoder(f, kv_heads=8)
    attending = f.numbers("full_attn_idxs")
    default = [FULL if attending is None or layer in attending else CONV for layer in range(d.layers)]
    _short_convolutions(d, kinds(d, (FULL, CONV), default), 3)
    _lfm_mlp(d, _adjusted(f, f.count_or(12288, "block_ff_dim", "intermediate_size")), d.layers)
    return _lfm(d)


def _adjusted(f: Fields, width: int) -> int:
    """Two thirds of the width that the config names, rounded up, unless it is meant as it is."""
    multiple = f.count_or(256, "block_multiple_of") if "block_multiple_of" in f.config else 256
    name = "block_ffn_dim_multiplier"
    _, factor = f.find(name)
    factor = 1.0 if name not in f.config else factor
    if type(factor) not in (int, float) or not 0 < factor <= 100:
        raise f.error(f"field '{name}' is {show(factor)}; a number above 0 is accepted")
    if not f.flag("block_auto_adjust_ff_dim", default=True):
        return width
    return -(-int(factor * int(2 * width / 3)) // multiple) * multiple


def lfm2_moe(f: Fields) -> Decoder:
    d = Decoder(f, kv_heads=8)
    _short_convolutions(d, kinds(d, (FULL, CONV), []), 3)
    f.ignore("use_expert_bias")  # a buffer
    dense = min(d.layers, f.whole_or(2, "num_dense_layers"))
    _lfm_mlp(d, f.count_or(7168, "intermediate_size") if dense else 1, dense)
    f.ignore("intermediate_size")
    name, width = "feed_forward", f.count_or(1792, "moe_intermediate_size")
    sparse = d.layers - dense
    d.experts(*routed(f, 32, 4), width, layers=sparse, router=f"{name}.gate", name=f"{name}.experts")
    return _lfm(d)


def lfm3(f: Fields) -> Decoder:
    """Windows in some layers, a gate of one number a head, norms before and after."""
    d = Decoder(f, kv_heads=4, head_dim=128)
    order = [
        FULL if layer % 4 == 2 else SLIDING if layer % 4 == 0 and layer else CONV for layer in range(d.layers)
    ]
    listed = kinds(d, (FULL, SLIDING, CONV), order)
    name = "sliding_window"
    window = f.maybe(name) if name in f.config else f.assume(name, 256)
    if SLIDING in listed and not window:
        raise f.error(f"field 'layer_types' has 'sliding_attention', and field '{name}' has no window")
    part = _convolution(d, listed.count(CONV), 7)
    attention = d.full_attention
    lay_out(d, listed, {FULL: (attention,), SLIDING: (attention._replace(window=window),), CONV: (part,)})
    layers, bias = d.layers - listed.count(CONV), f.flag("attention_bias")
    d.attention(bias=bias, out_bias=bias, layers=layers)
    d.norm("self_attn.q_norm", "self_attn.k_norm", width=d.head_dim, layers=layers)
    if f.flag("use_attention_gate", default=True):
        d.linear("self_attn.g_proj", d.heads, d.hidden, "attention", layers=layers)
    if f.flag("use_sandwich_norm", default=True):
        d.norm("post_operator_norm", "post_ffn_norm")
    _lfm_mlp(d, f.count_or(7680, "intermediate_size"), d.layers)
    return _lfm(d)


def _short_convolutions(d: Decoder, listed: list[str], kernel: int) -> None:
    """LFM2's layers: convolutions, and attention with a norm of queries and keys."""
    if not listed:
        raise d.fields.error("field 'layer_types' is missing; a kind for each layer is needed")
    part = _convolution(d, listed.count(CONV), kernel)
    count = lay_out(d, listed, {FULL: (d.full_attention,), CONV: (part,)})
    d.attention(out="out_proj", layers=count[FULL])
    d.norm("self_attn.q_layernorm", "self_attn.k_layernorm", width=d.head_dim, layers=count[FULL])


def _convolution(d: Decoder, layers: int, kernel: int) -> State:
    """Two gates around a convolution of each channel."""
    f = d.fields
    bias, kernel = f.flag("conv_bias"), f.count_or(kernel, "conv_L_cache")
    convolution(d, "conv.conv", d.hidden, kernel, layers=layers, bias=bias)
    d.linear("conv.in_proj", 3 * d.hidden, d.hidden, "mixer", bias=bias, layers=layers)
    d.linear("conv.out_proj", d.hidden, d.hidden, "mixer", bias=bias, layers=layers)
    return State("conv", d.hidden, conv_channels=d.hidden, conv_kernel=kernel)


def _lfm_mlp(d: Decoder, width: int, layers: int) -> None:
    name = "feed_forward"
    d.linear(f"{name}.w1", width, d.hidden, "mlp", layers=layers)
    d.mlp(f"{name}.w3", f"{name}.w2", width, bias=False, layers=layers)


def _lfm(d: Decoder) -> Decoder:
    f = d.fields
    f.ignore(*_DOUBLES)
    d.norm("operator_norm", "ffn_norm")
    d.embedding()
    d.last_norm("model.embedding_norm")
    if f.config.get("tie_embedding") is None:
        d.head(tied=True)
    elif not f.flag("tie_embedding"):  # it decides where it is given
        d.add("lm_head.weight", (d.vocab, d.hidden), "head")
    f.ignore("tie_embedding", "tie_word_embeddings")
    return d


# --- ZAYA -----------------------------------------------------------------------------------------------------

HYBRID, HYBRID_SLIDING = "hybrid", "hybrid_sliding"


def zaya(f: Fields) -> Decoder:
    """Queries and keys pass through two convolutions, half of each value comes from the token before."""
    d = Decoder(f, kv_heads=2, head_dim=128)
    f.ignore("intermediate_size")
    listed = kinds(d, (HYBRID, HYBRID_SLIDING), [HYBRID] * d.layers)
    window = f.maybe("sliding_window")
    if HYBRID_SLIDING in listed and not window:
        raise f.error("field 'layer_types' has 'hybrid_sliding', and field 'sliding_window' has no window")
    first, second = f.count_or(2, "cca_time0"), f.count_or(2, "cca_time1")
    channels, delayed = d.q_width + d.kv_width, d.kv_width // 2
    state = State(
        "conv",
        d.kv_heads,
        delayed,
        "model",
        channels,
        first + second - 1,
        held_dtype="model",
        held_spare=0,
    )
    attention = d.full_attention
    parts: dict[str, Layer] = {
        HYBRID: (attention, state),
        HYBRID_SLIDING: (attention._replace(window=window), state),
    }
    lay_out(d, listed, parts)
    bias, name = f.flag("attention_bias"), "self_attn.qkv_proj"
    widths = {"q_proj": d.q_width, "k_proj": d.kv_width, "v_proj_current": delayed, "v_proj_delayed": delayed}
    for part, width in widths.items():
        d.linear(f"{name}.{part}", width, d.hidden, "attention", bias=bias)
    convolution(d, f"{name}.conv_qk_depthwise", channels, first, layers=d.layers, bias=True)
    convolution(d, f"{name}.conv_qk_grouped", channels, second, layers=d.layers, bias=True, group=d.head_dim)
    tensor(d, "self_attn.qk_norm.temp", d.kv_heads, layers=d.layers, bucket="norm")
    d.linear("self_attn.o_proj", d.hidden, d.q_width, "attention", bias=bias)
    _zaya_experts(d)
    for place in ("post_attention_residual_scale", "post_mlp_residual_scale"):
        for part in ("hidden_states_scale", "hidden_states_bias", "residual_scale", "residual_bias"):
            tensor(d, f"{place}.{part}", d.hidden, layers=d.layers, bucket="norm")
    for part in ("scale", "bias"):
        d.add(f"model.input_hidden_states_{part}", (d.hidden,), "norm")
    d.norm("input_layernorm", "post_attention_layernorm")
    d.embedding()
    d.last_norm()
    d.head(tied=True, bias=f.flag("lm_head_bias"))
    return d


def _zaya_experts(d: Decoder) -> None:
    """One expert a token, or none: a small mlp of the router's decides, with what the layer before it thought."""
    f, name = d.fields, "mlp.gate"
    count, rank = f.count_or(16, "num_experts"), f.count_or(256, "router_hidden_size")
    if f.maybe("num_experts_per_tok") not in (None, 1):
        raise f.error(f"field 'num_experts_per_tok' is {f.count('num_experts_per_tok')}; 1 is supported")
    d.experts(count, 1, f.count_or(2048, "moe_intermediate_size"), layers=d.layers, router="")
    d.linear(f"{name}.down_proj", rank, d.hidden, "router", bias=True)
    tensor(d, f"{name}.router_states_scale", rank, layers=d.layers - 1, bucket="router")
    d.norm(f"{name}.router_mlp.norm", width=rank)
    for part in ("fc1", "fc2"):
        d.linear(f"{name}.router_mlp.{part}", rank, rank, "router", bias=True)
    d.linear(f"{name}.router_mlp.out_proj", count + 1, rank, "router")
