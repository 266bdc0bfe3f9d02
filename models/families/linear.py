"""Gated delta nets beside attention: Qwen3-Next and Qwen3.5, Olmo Hybrid, Lara.

Defaults are those of the family's class in transformers.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

from capplan.models.decoder import ROUTING, Decoder
from capplan.models.families.experts import (
    DRAFTS,
    NORMS,
    dense_layers,
    routed,
    shared_experts,
    sparse_by_step,
)
from capplan.models.families.states import (
    FULL,
    LINEAR,
    convolution,
    kinds,
    lay_out,
    period,
    recurrent_dtype,
    tensor,
)
from capplan.models.fields import Fields
from capplan.models.spec import Layer, State

SLIDING = "sliding_attention"
MTP = ("mtp_num_hidden_layers", *DRAFTS)


class DeltaNet(NamedTuple):
    """Keys and queries have heads in common, which may be fewer than those of the values."""

    keys: int
    values: int
    key: int
    value: int
    kernel: int

    @property
    def channels(self) -> int:
        """Of query, key and value, which pass through one convolution."""
        return 2 * self.keys * self.key + self.wide

    @property
    def wide(self) -> int:
        return self.values * self.value

    def state(self, dtype: str) -> State:
        elements = self.values * self.key * self.value
        return State("gdn", self.values, elements, dtype, self.channels, self.kernel)


def delta_net(f: Fields, default: Sequence[int] = (16, 32, 128, 128)) -> DeltaNet:
    keys, values, key, value = default
    net = DeltaNet(
        f.count_or(keys, "linear_num_key_heads"),
        f.count_or(values, "linear_num_value_heads"),
        f.count_or(key, "linear_key_head_dim"),
        f.count_or(value, "linear_value_head_dim"),
        f.count_or(4, "linear_conv_kernel_dim"),
    )
    if net.values % net.keys:
        raise f.error(
            f"field 'linear_num_key_heads' is {net.keys}, which does not divide the {net.values} value heads"
        )
    return net


def delta_net_weights(
    d: Decoder, net: DeltaNet, layers: int, inputs: dict[str, int], norm: str, out: str
) -> None:
    """Input projections by name, and what all families have."""
    name = "linear_attn"
    for part, width in inputs.items():
        d.linear(f"{name}.{part}", width, d.hidden, "mixer", layers=layers)
    convolution(d, f"{name}.conv1d", net.channels, net.kernel, layers=layers)
    for part in ("dt_bias", "A_log"):
        tensor(d, f"{name}.{part}", net.values, layers=layers)
    d.norm(f"{name}.{norm}", width=net.value, layers=layers)
    d.linear(f"{name}.{out}", d.hidden, net.wide, "mixer", layers=layers)


def qwen_delta_net(
    d: Decoder, layers: int, default: Sequence[int] = (16, 32, 128, 128), *, fused: bool = False
) -> State:
    """Input projections for query, key and value, for the output gate, and two numbers of every value head."""
    net = delta_net(d.fields, default)
    if fused:
        inputs = {"in_proj_qkvz": net.channels + net.wide, "in_proj_ba": 2 * net.values}
    else:
        inputs = {"in_proj_qkv": net.channels, "in_proj_z": net.wide}
        inputs |= {"in_proj_b": net.values, "in_proj_a": net.values}
    delta_net_weights(d, net, layers, inputs, "norm", "out_proj")
    return net.state(recurrent_dtype(d.fields, "mamba_ssm_dtype"))


def gated_attention(d: Decoder, layers: int) -> None:
    """An output gate as wide as the query and in one matrix with it."""
    bias = d.fields.flag("attention_bias")
    d.fields.ignore("attn_output_gate")
    for name, out, into in (
        ("q_proj", 2 * d.q_width, d.hidden),
        ("k_proj", d.kv_width, d.hidden),
        ("v_proj", d.kv_width, d.hidden),
        ("o_proj", d.hidden, d.q_width),
    ):
        d.linear(f"self_attn.{name}", out, into, "attention", bias=bias, layers=layers)
    d.norm("self_attn.q_norm", "self_attn.k_norm", width=d.head_dim, layers=layers)


def every_few(d: Decoder, attention: str) -> list[str]:
    """The class's order: attention once in full_attention_interval layers, as the last of them."""
    every = period(d.fields, "full_attention_interval", 4)
    return [LINEAR if (layer + 1) % every else attention for layer in range(d.layers)]


def gated_experts(d: Decoder, layers: int, default: tuple[int, int]) -> None:
    """Experts, and one that every token passes through, with a gate of its own."""
    f = d.fields
    d.experts(*routed(f, *default), f.count_or(512, "moe_intermediate_size"), layers=layers)
    shared_experts(d, f.count_or(512, "shared_expert_intermediate_size"), layers, "mlp.shared_expert")
    d.linear("mlp.shared_expert_gate", 1, d.hidden, "shared", layers=layers)


def _qwen(d: Decoder, *, fused: bool = False) -> Counter[str]:
    """All but the mlp."""
    f = d.fields
    f.ignore("output_gate_type", "mamba_ssm_dtype", "mlp_only_layers", "mtp_use_dedicated_embeddings")
    listed = kinds(d, (FULL, LINEAR), every_few(d, FULL))
    state = qwen_delta_net(d, listed.count(LINEAR), fused=fused)
    count = lay_out(d, listed, {FULL: (d.full_attention,), LINEAR: (state,)})
    gated_attention(d, count[FULL])
    d.norm(*NORMS)
    d.embedding()
    d.last_norm()
    d.head(tied=False)
    return count


def _qwen_drafts(d: Decoder, experts: tuple[int, int] | None, width: int = 0) -> None:
    """A draft layer has attention over everything, and an mlp like the others."""

    def block() -> None:
        gated_attention(d, d.layers)
        d.norm(*NORMS)
        if experts:
            gated_experts(d, d.layers, experts)
        else:
            d.gated_mlp(width)

    d.drafts(d.fields.maybe_zero(*MTP) or 0, (d.full_attention,), block)


def qwen3_next(f: Fields) -> Decoder:
    d = Decoder(f, kv_heads=2, head_dim=256)
    sparse = sparse_by_step(d, dense=[])
    _qwen(d, fused=True)
    if sparse:
        gated_experts(d, sparse, (512, 10))
    else:
        f.ignore("num_experts_per_tok", "moe_intermediate_size", "shared_expert_intermediate_size", *ROUTING)
    dense_layers(d, d.layers - sparse, 5632)
    _qwen_drafts(d, (512, 10))
    return d


def qwen3_5(f: Fields) -> Decoder:
    d = Decoder(f, kv_heads=4, head_dim=256)
    _qwen(d)
    width = f.count_or(12288, "intermediate_size")
    d.gated_mlp(width)
    _qwen_drafts(d, None, width)
    return d


def qwen3_5_moe(f: Fields) -> Decoder:
    d = Decoder(f, kv_heads=2, head_dim=256)
    f.ignore("intermediate_size", "decoder_sparse_step")
    _qwen(d)
    gated_experts(d, d.layers, (256, 8))
    _qwen_drafts(d, (256, 8))
    return d


def olmo_hybrid(f: Fields) -> Decoder:
    """Norms after attention and its mlp, and before a delta net."""
    d = Decoder(f)
    f.ignore("linear_a_log_min", "linear_a_log_max", "linear_dt_min", "linear_dt_max", "linear_dt_init_floor")
    f.ignore("linear_allow_neg_eigval")
    default = [FULL if layer % 4 == 3 else LINEAR for layer in range(d.layers)]
    if FULL not in default:
        default[-1] = FULL
    listed = kinds(d, (FULL, LINEAR), default)
    if len(set(listed)) == 1:
        raise f.error(f"field 'layer_types' has {listed[0]!r} alone; a layer of the other kind is needed")
    keys = f.maybe("linear_num_key_heads") or d.heads
    key = f.maybe("linear_key_head_dim") or 3 * d.hidden // (4 * keys)
    net = DeltaNet(
        keys,
        f.maybe("linear_num_value_heads") or d.heads,
        key,
        f.maybe("linear_value_head_dim") or 2 * key,
        f.count_or(4, "linear_conv_kernel_dim"),
    )
    count = lay_out(d, listed, {FULL: (d.full_attention,), LINEAR: (net.state("model"),)})
    linear, full = count[LINEAR], count[FULL]
    wide = net.keys * net.key
    inputs = {"q_proj": wide, "k_proj": wide, "v_proj": net.wide, "g_proj": net.wide}
    inputs |= {"a_proj": net.values, "b_proj": net.values}
    delta_net_weights(d, net, linear, inputs, "o_norm", "o_proj")
    bias = f.flag("attention_bias")
    d.attention(bias=bias, out_bias=bias, layers=full)
    d.norm("self_attn.q_norm", width=d.q_width, layers=full)
    d.norm("self_attn.k_norm", width=d.kv_width, layers=full)
    d.norm("input_layernorm", layers=linear)
    d.norm("post_attention_layernorm")
    d.norm("post_feedforward_layernorm", layers=full)
    d.gated_mlp(f.count_or(11008, "intermediate_size"))
    d.embedding()
    d.last_norm()
    d.head(tied=False)
    return d


def lara_mini(f: Fields) -> Decoder:
    """Delta nets, windows and full attention in turn; experts in all layers."""
    d = Decoder(f, kv_heads=4, head_dim=128)
    f.ignore("intermediate_size")
    order = (LINEAR, SLIDING, LINEAR, FULL, SLIDING)
    listed = kinds(d, (FULL, SLIDING, LINEAR), [order[layer % 5] for layer in range(d.layers)])
    state = qwen_delta_net(d, listed.count(LINEAR), (8, 16, 128, 128))
    window = f.count_or(512, "sliding_window")
    attention = d.full_attention
    parts: dict[str, Layer] = {
        FULL: (attention,),
        SLIDING: (attention._replace(window=window),),
        LINEAR: (state,),
    }
    count = lay_out(d, listed, parts)
    bias, layers = f.flag("attention_bias"), count[FULL] + count[SLIDING]
    d.attention(bias=bias, out_bias=bias, layers=layers)
    d.norm("self_attn.q_norm", "self_attn.k_norm", width=d.head_dim, layers=layers)
    d.experts(*routed(f, 128, 4), f.count_or(512, "moe_intermediate_size"), layers=d.layers)
    shared_experts(d, f.count_or(512, "shared_expert_intermediate_size"), d.layers, "mlp.shared_expert")
    d.norm(*NORMS)
    d.embedding()
    d.last_norm()
    d.head(tied=True)
    return d
