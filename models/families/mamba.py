"""Decoders with Mamba layers, alone or beside attention: one function a family.

Defaults are those of the family's class in transformers.
"""

from __future__ import annotations

from capplan.models.decoder import Decoder
from capplan.models.families.experts import checked
from capplan.models.families.states import (
    FULL,
    LINEAR,
    UNREAD,
    checked_width,
    kinds,
    lay_out,
    mamba1,
    mamba2,
    no_window,
    on,
    periodic,
    time_step_rank,
)
from capplan.models.fields import Fields
from capplan.models.spec import State

FINAL = "model.final_layernorm"


# --- Mamba alone --------------------------------------------------------------------------------------------


def mamba(f: Fields) -> Decoder:
    """Mamba, and Falcon Mamba, whose further norms have no weights."""
    d = Decoder(f, "backbone.layers.N.", heads=1, grouped=False)
    inner = f.maybe("intermediate_size") or f.count_or(2, "expand") * d.hidden
    f.ignore("expand", *UNREAD)
    rank = time_step_rank(f, d.hidden, "time_step_rank")
    part = mamba1(
        d,
        "mixer",
        inner,
        f.count_or(16, "state_size"),
        f.count_or(4, "conv_kernel"),
        rank,
        layers=d.layers,
        bias=f.flag("use_bias"),
        conv_bias=f.flag("use_conv_bias", default=True),
    )
    d.mixers = [(part,)] * d.layers
    return _backbone(d, tied=True)


def mamba2_alone(f: Fields) -> Decoder:
    d = Decoder(f, "backbone.layers.N.", heads=1, grouped=False)
    heads, head_dim = f.count_or(128, "num_heads"), f.count_or(64, "head_dim")
    checked_width(f, heads, "num_heads", head_dim, "head_dim", f.count_or(2, "expand") * d.hidden)
    f.ignore("intermediate_size", "time_step_rank", *UNREAD)
    part = mamba2(
        d,
        "mixer",
        heads,
        head_dim,
        f.count_or(128, "state_size"),
        f.count_or(8, "n_groups"),
        f.count_or(4, "conv_kernel"),
        layers=d.layers,
        bias=f.flag("use_bias"),
        conv_bias=f.flag("use_conv_bias", default=True),
    )
    d.mixers = [(part,)] * d.layers
    return _backbone(d, tied=False)


def _backbone(d: Decoder, *, tied: bool) -> Decoder:
    d.norm("norm")
    d.embedding("backbone.embeddings")
    d.last_norm("backbone.norm_f")
    d.head(tied=tied)
    return d


# --- Mamba beside attention ---------------------------------------------------------------------------------


def jamba(f: Fields) -> Decoder:
    """Attention once in so many layers; an mlp, or experts, in all."""
    d = Decoder(f, kv_heads=8)
    f.ignore(*UNREAD)
    no_window(f)
    attends = periodic(f, d.layers, "attn", 8, 4)
    sparse = periodic(f, d.layers, "expert", 2, 1)
    count = f.count_or(16, "num_experts", "num_local_experts")
    chosen = checked(f, f.count_or(2, "num_experts_per_tok"), count)
    state = mamba1(
        d,
        "mamba",
        f.count_or(2, "mamba_expand") * d.hidden,
        f.count_or(16, "mamba_d_state"),
        f.count_or(4, "mamba_d_conv"),
        rank := time_step_rank(f, d.hidden, "mamba_dt_rank"),
        layers=d.layers - sum(attends),
        bias=f.flag("mamba_proj_bias"),
        conv_bias=f.flag("mamba_conv_bias", default=True),
    )
    d.norm("mamba.dt_layernorm", width=rank, layers=d.layers - sum(attends))
    d.norm(
        "mamba.b_layernorm",
        "mamba.c_layernorm",
        width=f.count_or(16, "mamba_d_state"),
        layers=d.layers - sum(attends),
    )
    d.mixers = [(d.full_attention,) if attend else (state,) for attend in attends]
    d.attention(layers=sum(attends))
    experts = sum(sparse) if count > 1 else 0
    width, name = f.count_or(14336, "intermediate_size"), "feed_forward"
    d.gated_mlp(width, name=name, layers=d.layers - experts)
    d.experts(count, chosen, width, layers=experts, router=f"{name}.router", name=f"{name}.experts")
    return _framed(d, tied=False)


def _framed(d: Decoder, *, tied: bool) -> Decoder:
    """Two norms a layer, embedding, last norm and head."""
    d.norm("input_layernorm", "pre_ff_layernorm")
    d.embedding()
    d.last_norm(FINAL)
    d.head(tied=tied)
    return d


def _mamba_2(
    d: Decoder, *, layers: int, inner: int = 0, out_bias: bool | None = None, norm: bool = True
) -> State:
    """Mamba-2 by the field names of Bamba, Falcon H1 and Granite 4."""
    f = d.fields
    f.ignore(*UNREAD)
    heads = f.count_or(128, "mamba_n_heads")
    expanded = f.count_or(2, "mamba_expand") * d.hidden
    inner = inner or expanded
    if inner % heads:
        raise f.error(f"field 'mamba_n_heads' is {heads}, which does not divide the inner width {inner}")
    auto = f.config.get("mamba_d_head", "auto") == "auto"
    head_dim = inner // heads if auto else f.count("mamba_d_head")
    f.ignore("mamba_d_head")
    checked_width(f, heads, "mamba_n_heads", head_dim, "mamba_d_head", inner)
    return mamba2(
        d,
        "mamba",
        heads,
        head_dim,
        f.count_or(256, "mamba_d_state"),
        f.count_or(1, "mamba_n_groups"),
        f.count_or(4, "mamba_d_conv"),
        layers=layers,
        bias=on(f, "mamba_proj_bias"),
        conv_bias=on(f, "mamba_conv_bias", default=True),
        out_bias=out_bias,
        norm=norm,
    )


def bamba(f: Fields) -> Decoder:
    d = Decoder(f, kv_heads=8)
    attending = set(f.numbers("attn_layer_indices") or ())
    if beyond := sorted(layer for layer in attending if layer >= d.layers):
        raise f.error(f"field 'attn_layer_indices' has {beyond[0]}, and there are {d.layers:,} layers")
    listed = [FULL if layer in attending else LINEAR for layer in range(d.layers)]
    state = _mamba_2(d, layers=d.layers - len(attending))
    lay_out(d, listed, {FULL: (d.full_attention,), LINEAR: (state,)})
    bias = f.flag("attention_bias")
    d.attention(bias=bias, out_bias=bias, layers=len(attending))
    d.gated_mlp(f.count_or(14336, "intermediate_size"), bias=f.flag("mlp_bias"), name="feed_forward")
    return _framed(d, tied=False)


def falcon_h1(f: Fields) -> Decoder:
    """Attention and Mamba-2 side by side in every layer."""
    d = Decoder(f, kv_heads=8)
    f.ignore(
        "mlp_multipliers", "mlp_expansion_factor", "mamba_use_mlp", "attn_layer_indices", "key_multiplier"
    )
    f.ignore(
        "attention_in_multiplier",
        "attention_out_multiplier",
        "lm_head_multiplier",
        "ssm_multipliers",
        "ssm_in_multiplier",
        "ssm_out_multiplier",
    )
    inner = (
        None
        if "mamba_d_ssm" in f.config and f.config["mamba_d_ssm"] is None
        else f.count_or(1024, "mamba_d_ssm")
    )
    f.ignore("mamba_d_ssm")
    state = _mamba_2(
        d,
        layers=d.layers,
        inner=inner or 0,
        out_bias=on(f, "projectors_bias"),
        norm=on(f, "mamba_rms_norm"),
    )
    d.mixers = [(d.full_attention, state)] * d.layers
    bias = f.flag("attention_bias")
    d.attention(bias=bias, out_bias=bias)
    d.gated_mlp(f.count_or(14336, "intermediate_size"), bias=f.flag("mlp_bias"), name="feed_forward")
    return _framed(d, tied=False)


def granitemoehybrid(f: Fields) -> Decoder:
    """Granite 4: the list of layers decides; Mamba's fields may linger where none is one."""
    d = Decoder(f)
    listed = kinds(d, (FULL, LINEAR), [LINEAR] * d.layers, "layer_types", "layers_block_type")
    attending = listed.count(FULL)
    state = _mamba_2(d, layers=d.layers - attending)
    lay_out(d, listed, {FULL: (d.full_attention,), LINEAR: (state,)})
    bias = f.flag("attention_bias")
    d.attention(bias=bias, out_bias=bias, layers=attending)
    count = f.whole_or(8, "num_local_experts")
    chosen = f.whole_or(2, "num_experts_per_tok")
    name = "block_sparse_moe"
    width = f.count_or(11008, "intermediate_size") if count else 1
    f.ignore("intermediate_size")
    if count:
        checked(f, chosen, count)
        d.experts(count, chosen, width, layers=d.layers, router=f"{name}.router", name=f"{name}.experts")
    shared = f.count_or(1024, "shared_intermediate_size")
    bucket = "shared" if count else "mlp"
    up, down = "shared_mlp.input_linear", "shared_mlp.output_linear"
    d.mlp(up, down, shared, gated=True, bias=False, bucket=bucket)
    d.norm("input_layernorm", "post_attention_layernorm")
    d.embedding()
    d.last_norm()
    d.head(tied=False)
    return d
