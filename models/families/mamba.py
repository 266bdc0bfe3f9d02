"""Decoders with Mamba layers, alone or beside attention: one function a family.

Defaults are those of the family's class in transformers.
"""

from __future__ import annotations

from collections import Counter

from capplan.models.decoder import ROUTING, Decoder
from capplan.models.families.experts import checked
from capplan.models.families.states import (
    FULL,
    LINEAR,
    UNREAD,
    checked_width,
    kind_of,
    kinds,
    lay_out,
    mamba1,
    mamba2,
    on,
    own_head,
    periodic,
    recurrent_dtype,
    time_step_rank,
)
from capplan.models.fields import MAX_LAYERS, Fields, show
from capplan.models.spec import Layer, State

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
    _no_window(f)
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


def _no_window(f: Fields) -> None:
    if f.maybe_zero("sliding_window"):
        f.assumptions.append(
            "field 'sliding_window' is not read by the class; attention is over the whole context"
        )


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
    f.ignore("lm_head_multiplier", "ssm_multipliers", "ssm_in_multiplier", "ssm_out_multiplier")
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


# --- Nemotron-H ---------------------------------------------------------------------------------------------

_LETTERS = {"M": LINEAR, "E": "moe", "*": FULL, "-": "mlp"}
_BLOCKS = (LINEAR, FULL, "moe", "mlp")


def nemotron_h(f: Fields) -> Decoder:
    """Every layer is one block: Mamba-2, attention, an mlp or experts, these at a narrower width in some."""
    listed = _blocks(f, ("layers_block_type", "layer_types"), "hybrid_override_pattern")
    if listed is None:
        listed = [LINEAR, "moe", FULL, "mlp"]
        f.assume("layers_block_type", listed)
    given = f.maybe("num_hidden_layers")
    if given not in (None, len(listed)):
        raise f.error(f"field 'num_hidden_layers' is {given}, and {len(listed):,} layers are listed")
    f.ignore(
        "use_bias", "attention_bias", "attention_head_dim", "n_shared_experts", "moe_shared_expert_overlap"
    )
    f.ignore("mamba_expand", "expand", "norm_eps", *UNREAD)
    _no_window(f)
    d = Decoder(f, kv_heads=8, head_dim=128, layers=len(listed))
    parts = _nemotron(d, Counter(listed))
    lay_out(d, listed, parts)
    d.embedding("model.embeddings")
    d.last_norm("model.norm_f")
    own_head(d)
    _nemotron_drafts(d, parts)
    return d


def _blocks(f: Fields, names: tuple[str, ...], pattern: str) -> list[str] | None:
    """Kinds of layers, as a list or as a pattern of letters."""
    name, listed = f.find(*names)
    letters = f.text(pattern)
    if listed is None and letters is None:
        return None
    if listed is None:
        if unknown := next((letter for letter in letters or "" if letter not in _LETTERS), None):
            raise f.error(f"field '{pattern}' has {show(unknown)}; made of {' '.join(_LETTERS)}")
        listed, name = [_LETTERS[letter] for letter in letters or ""], pattern
    if type(listed) is not list or not 0 < len(listed) <= MAX_LAYERS:
        raise f.error(f"field '{name}' is {show(listed)}; a list of kinds of layers is accepted")
    return [kind_of(f, kind, _BLOCKS, name) for kind in listed]


def _nemotron(d: Decoder, count: Counter[str]) -> dict[str, Layer]:
    """The weights of so many blocks of each kind; what each caches."""
    f, mixer = d.fields, "mixer"
    bias, mlp_bias = f.flag("use_bias"), f.flag("mlp_bias")
    state = mamba2(
        d,
        mixer,
        f.count_or(128, "mamba_num_heads"),
        f.count_or(64, "mamba_head_dim"),
        f.count_or(128, "ssm_state_size"),
        f.count_or(8, "n_groups", "mamba_n_groups"),
        f.count_or(4, "conv_kernel", "mamba_d_conv"),
        layers=count[LINEAR],
        bias=bias,
        conv_bias=f.flag("use_conv_bias", "mamba_conv_bias", default=True),
        dtype=recurrent_dtype(f, "mamba_ssm_cache_dtype", default="fp32"),
    )
    f.ignore("mamba_proj_bias")
    for name, out, into in (
        ("q_proj", d.q_width, d.hidden),
        ("k_proj", d.kv_width, d.hidden),
        ("v_proj", d.kv_width, d.hidden),
        ("o_proj", d.hidden, d.q_width),
    ):
        d.linear(f"{mixer}.{name}", out, into, "attention", layers=count[FULL])
    width = f.count_or(21504, "intermediate_size") if count["mlp"] else 1
    f.ignore("intermediate_size")
    d.mlp(f"{mixer}.up_proj", f"{mixer}.down_proj", width, bias=mlp_bias, layers=count["mlp"])
    _nemotron_experts(d, count["moe"], mlp_bias)
    d.norm("norm", layers=sum(count.values()))
    return {LINEAR: (state,), FULL: (d.full_attention,), "moe": (), "mlp": ()}


def _nemotron_experts(d: Decoder, layers: int, bias: bool) -> None:
    f = d.fields
    if not layers:
        f.ignore("n_routed_experts", "num_local_experts", "num_experts_per_tok", "moe_intermediate_size")
        f.ignore("moe_shared_expert_intermediate_size", "moe_latent_size", *ROUTING)
        return
    count = f.count_or(8, "n_routed_experts", "num_local_experts")
    chosen = checked(f, f.count_or(2, "num_experts_per_tok"), count)
    width, latent = f.count_or(7688, "moe_intermediate_size"), f.maybe("moe_latent_size")
    d.experts(
        count,
        chosen,
        width,
        layers=layers,
        into=latent or 0,
        gated=False,
        router="mixer.gate",
        name="mixer.experts",
    )
    shared = f.count_or(7688, "moe_shared_expert_intermediate_size")
    up, down = "mixer.shared_experts.up_proj", "mixer.shared_experts.down_proj"
    d.mlp(up, down, shared, bias=bias, bucket="shared", layers=layers)
    if latent:
        d.linear("mixer.fc1_latent_proj", latent, d.hidden, "mlp", bias=bias, layers=layers)
        d.linear("mixer.fc2_latent_proj", d.hidden, latent, "mlp", bias=bias, layers=layers)


def _nemotron_drafts(d: Decoder, parts: dict[str, Layer]) -> None:
    """Draft steps: a projection of two norms, and the blocks listed for them."""
    f = d.fields
    count = f.maybe_zero("num_nextn_predict_layers") or 0
    listed = _blocks(f, ("mtp_layers_block_type",), "mtp_hybrid_override_pattern") or [FULL, "moe"]
    cached = tuple(part for kind in listed for part in parts[kind])
    blocks = Counter({kind: n * count for kind, n in Counter(listed).items()})

    def block() -> None:
        _nemotron(d, blocks)

    d.drafts(count, cached, block)
