"""Zamba: Mamba layers, some with a transformer block before them; all of those share one block, or a few in turn.

Defaults are those of the family's class in transformers.
"""

from __future__ import annotations

from collections import Counter

from capplan.models.decoder import Decoder
from capplan.models.families.states import (
    LINEAR,
    UNREAD,
    checked_width,
    convolution,
    kinds,
    mamba1_state,
    mamba2,
    periodic,
    tensor,
    time_step_rank,
)
from capplan.models.fields import Fields
from capplan.models.spec import State

HYBRID, BLOCK, ADAPTER = "hybrid", "block", "adapter"


def zamba(f: Fields) -> Decoder:
    """Mamba in heads: a projection to keys, queries and time steps for each."""
    d = Decoder(f, heads=1, grouped=False)
    f.ignore(*UNREAD)
    rest = periodic(f, max(0, d.layers - 3), "attn", 6, 4)
    default = [LINEAR, LINEAR, HYBRID, *(HYBRID if hybrid else LINEAR for hybrid in rest)]
    count = _shared_block(d, default[: max(3, d.layers)], "shared_transf", kv_heads=16)
    d.gated_mlp(
        f.count_or(14848, "intermediate_size"), name="shared_transf.feed_forward", layers=count[BLOCK]
    )
    inner, kernel = f.count_or(2, "mamba_expand") * d.hidden, f.count_or(4, "mamba_d_conv")
    state, heads = f.count_or(16, "mamba_d_state"), f.count_or(2, "n_mamba_heads")
    if inner % heads:
        raise f.error(f"field 'n_mamba_heads' is {heads}, which does not divide the inner width {inner}")
    width, rank = inner // heads, time_step_rank(f, d.hidden, "mamba_dt_rank")
    bias, conv_bias = f.flag("mamba_proj_bias"), f.flag("mamba_conv_bias", default=True)
    for prefix, layers in _mamba_layers(count):
        name = f"{prefix}mamba"
        d.linear(f"{name}.in_proj", 2 * inner, d.hidden, "mixer", bias=bias, layers=layers)
        convolution(d, f"{name}.conv1d", inner, kernel, layers=layers, bias=conv_bias)
        tensor(d, f"{name}.x_proj_weight", heads, rank + 2 * state, width, layers=layers)
        tensor(d, f"{name}.dt_proj_weight", heads, width, rank, layers=layers)
        tensor(d, f"{name}.dt_proj_bias", heads, width, layers=layers, bucket="norm")
        tensor(d, f"{name}.A_log", heads, width, state, layers=layers)
        tensor(d, f"{name}.D", heads, width, layers=layers, bucket="norm")
        d.linear(f"{name}.out_proj", d.hidden, inner, "mixer", bias=bias, layers=layers)
    return _framed(d, count, mamba1_state(inner, state, kernel))


def zamba2(f: Fields) -> Decoder:
    """Mamba-2, and low-rank adapters that tell the uses of a shared block apart."""
    d = Decoder(f, heads=1, grouped=False)
    if f.flag("use_long_context"):
        d.context = 16384
    f.ignore(
        "kv_channels",
        "ffn_hidden_size",
        "use_shared_mlp_adapter",
        "gated_linear_unit",
        "use_conv_bias",
        "use_mem_rope",
        *UNREAD,
    )
    default = [LINEAR, *([LINEAR] * 5 + [HYBRID]) * 7]
    default += [*[LINEAR] * 4, HYBRID, *[LINEAR] * 3, HYBRID, LINEAR, LINEAR]
    name = "shared_transformer"
    count = _shared_block(d, default, name, blocks=f.count_or(1, "num_mem_blocks"))
    bias = f.flag("add_bias_linear")
    width = f.maybe("intermediate_size") or 4 * d.hidden
    rank = f.count_or(128, "adapter_rank")
    up, down = f"{name}.feed_forward.gate_up_proj", f"{name}.feed_forward.down_proj"
    d.mlp(up, down, width, gated=True, bias=bias, layers=count[BLOCK])
    _adapters(d, f"{up}_adapter_list", d.hidden, 2 * width, rank, count, "mlp")
    if f.flag("use_shared_attention_adapter"):
        wide = _attention_width(d)
        for part in ("q", "k", "v"):
            _adapters(d, f"{name}.self_attn.linear_{part}_adapter_list", wide, wide, rank, count, "attention")
    heads, inner = f.count_or(8, "n_mamba_heads"), f.count_or(2, "mamba_expand") * d.hidden
    head_dim = f.maybe("mamba_headdim") or inner // heads
    checked_width(f, heads, "n_mamba_heads", head_dim, "mamba_headdim", inner)
    shape = f.count_or(64, "mamba_d_state"), f.count_or(1, "mamba_ngroups"), f.count_or(4, "mamba_d_conv")
    for prefix, layers in _mamba_layers(count):
        state = mamba2(d, f"{prefix}mamba", heads, head_dim, *shape, layers=layers, bias=bias, conv_bias=True)
    return _framed(d, count, state)


def _shared_block(
    d: Decoder, default: list[str], name: str, *, kv_heads: int | None = None, blocks: int = 1
) -> Counter[str]:
    """Which layers attend, over the hidden state and the embedding side by side; the blocks' norms and attention."""
    f = d.fields
    listed = kinds(d, (HYBRID, LINEAR), default, "layers_block_type", "layer_types")
    if len(listed) != d.layers:
        raise f.error(f"field 'layers_block_type' is missing, and the class's list has {len(listed)} layers")
    ids = f.numbers("hybrid_layer_ids")
    if ids is not None and ids != [layer for layer, kind in enumerate(listed) if kind == HYBRID]:
        raise f.error("fields 'hybrid_layer_ids' and 'layers_block_type' disagree; one of them is enough")
    count = Counter(listed)
    uses = Counter(use % blocks for use in range(count[HYBRID]))
    count[BLOCK], count[ADAPTER] = len(uses), count[HYBRID]
    if not f.flag("tie_word_embeddings", default=True):  # transformers then unties the blocks too
        count[BLOCK], count[ADAPTER] = count[HYBRID], sum(n * n for n in uses.values())
        f.assumptions.append(
            "field 'tie_word_embeddings' is false: the layers that share a block have one each"
        )
    d.heads = f.count("num_attention_heads")
    d.kv_heads = d._kv_heads(kv_heads)
    d.head_dim = f.maybe("attention_head_dim", "head_dim") or 2 * d.hidden // d.heads
    d.mixers = [(d.full_attention,) if kind == HYBRID else () for kind in listed]
    wide, layers = _attention_width(d), count[BLOCK]
    for part, width in (("q_proj", d.q_width), ("k_proj", d.kv_width), ("v_proj", d.kv_width)):
        d.linear(f"{name}.self_attn.{part}", width, wide, "attention", layers=layers)
    d.linear(f"{name}.self_attn.o_proj", d.hidden, d.q_width, "attention", layers=layers)
    d.norm(f"{name}.input_layernorm", width=wide, layers=layers)
    d.norm(f"{name}.pre_ff_layernorm", layers=layers)
    d.linear("linear", d.hidden, d.hidden, "attention", layers=count[HYBRID])
    return count


def _attention_width(d: Decoder) -> int:
    return d.fields.maybe("attention_hidden_size") or 2 * d.hidden


def _adapters(
    d: Decoder, name: str, into: int, out: int, rank: int, count: Counter[str], bucket: str
) -> None:
    """One for every use of a block."""
    d.linear(f"{name}.N.0", rank, into, bucket, layers=count[ADAPTER])
    d.linear(f"{name}.N.1", out, rank, bucket, layers=count[ADAPTER])


def _mamba_layers(count: Counter[str]) -> list[tuple[str, int]]:
    """Mamba layers by what their names begin with."""
    return [("", count[LINEAR]), ("mamba_decoder.", count[HYBRID])]


def _framed(d: Decoder, count: Counter[str], state: State) -> Decoder:
    d.mixers = [(*layer, state) for layer in d.layout]
    for prefix, layers in _mamba_layers(count):
        d.norm(f"{prefix}input_layernorm", layers=layers)
    d.embedding()
    d.last_norm("model.final_layernorm")
    d.head(tied=True)
    return d
