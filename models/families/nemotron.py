"""Nemotron-H and Nemotron 3: every layer is one block, Mamba-2, attention, an mlp or experts.

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
    kind_of,
    lay_out,
    mamba2,
    no_window,
    own_head,
    recurrent_dtype,
)
from capplan.models.fields import MAX_LAYERS, Fields, show
from capplan.models.spec import Layer

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
    f.ignore("mamba_expand", "expand", "norm_eps", "time_step_rank", *UNREAD)
    no_window(f)
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
