"""dots3: latent attention of two kinds, of other widths within a window than where an indexer selects (DSA).

Defaults are those of the class in transformers.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from capplan.models.decoder import Decoder
from capplan.models.families.latent import (
    V3,
    WIDTHS,
    LatentDecoder,
    Widths,
    around,
    cached,
    experts,
    indexed,
    indexer,
    indexer_weights,
    latent_weights,
    mlps,
    sparse_by_frequency,
    uncounted_drafts,
    widths,
)
from capplan.models.families.latent_sparse import SPARSE
from capplan.models.fields import Fields, show

FULL, WINDOW = "full_attention", "sliding_attention"
HEADS, ROPE = "num_attention_heads", "qk_rope_head_dim"
IN_WINDOW = {
    HEADS: 64,
    "q_lora_rank": 1024,
    "kv_lora_rank": 1024,
    "head_dim": 256,
    "qk_nope_head_dim": 192,
    "v_head_dim": 128,
}
SHARED = ("moe_shared_expert_intermediate_size", "shared_experts_intermediate_size")


class Kind(NamedTuple):
    """What layers that are alike have in common."""

    heads: int
    widths: Widths
    window: int | None
    sparse: bool


def dots3_note_text(f: Fields) -> Decoder:
    """Gates of the heads, and a norm of the rotary key."""
    f.ignore("mlp_bias", "swa_num_key_value_heads", "swa_rope_theta")
    d = LatentDecoder(f)
    w, index = widths(f, (1024, *V3[1:]), direct=False), indexer(f, (64, 128, 2048))
    kinds = _kinds(d, w)
    d.mixers = []
    for kind in kinds:
        part = cached(d, kind.widths)._replace(heads=kind.heads, window=kind.window)
        d.mixers.append((indexed(part, index, True)._replace(index_fp32=True) if kind.sparse else part,))
    for kind in dict.fromkeys(kinds):
        layers = kinds.count(kind)
        latent_weights(d, kind.widths, layers=layers, heads=kind.heads)
        d.norm("self_attn.k_rope_only_layernorm", width=kind.widths.rope, layers=layers)
        d.linear("self_attn.g_proj", kind.heads, d.hidden, "attention", layers=layers)
        if kind.sparse:
            indexer_weights(d, index, kind.widths.query or 0, layers=layers)
    e = experts(f, (256, 8, 1536, 1))
    shared = f.maybe(SHARED[0]) or f.count_or(1536, SHARED[1])
    f.ignore(SHARED[1])
    mlps(d, e._replace(shared=shared * f.count("n_shared_experts")), sparse_by_frequency(d))
    uncounted_drafts(d, (indexed(cached(d, w), index, True),))
    return around(d)


def _kinds(d: Decoder, w: Widths) -> list[Kind]:
    """Every layer's kind: by layer_types, or the first two and every fourth see everything."""
    f = d.fields
    own = _own_fields(f)
    said = None if f.config.get("use_dsa") is None and own is not None else f.flag("use_dsa", default=True)
    window = f.maybe("sliding_window") or f.count_or(512, "sliding_window_size")
    slides = f.flag("use_sliding_window", default=True)
    f.ignore("use_dsa", "sliding_window_size", *(f"swa_{name}" for name in (*IN_WINDOW, ROPE)))
    types = d.layer_types(*SPARSE, FULL, WINDOW)
    if types is None:
        whole = FULL if said is False else SPARSE[0]
        types = [whole if not slides or i < 2 or i % 4 == 1 else WINDOW for i in range(d.layers)]
    windowed = _in_window(f) if own is None and WINDOW in types else (d.heads, w)
    kinds = []
    for layer, kind in enumerate(types):
        heads, here = windowed if kind == WINDOW else (d.heads, w)
        if own and str(layer) in own:
            heads, here = _overridden(f, f"per_layer_config.{layer}", own[str(layer)], heads, here)
        sparse = kind in SPARSE if said is None else said
        kinds.append(Kind(heads, here, window if kind == WINDOW else None, sparse and kind != WINDOW))
    return kinds


def _own_fields(f: Fields) -> dict[str, Any] | None:
    """What transformers writes of the layers that differ from the rest."""
    name = "per_layer_config"
    _, own = f.find(name)
    if own is not None and (
        type(own) is not dict or not all(type(fields) is dict for fields in own.values())
    ):
        raise f.error(f"field '{name}' is {show(own)}; an object of objects, by layer, is accepted")
    return own


def _overridden(f: Fields, where: str, own: dict[str, Any], heads: int, w: Widths) -> tuple[int, Widths]:
    layer = Fields({HEADS: heads, **dict(zip(WIDTHS, w, strict=True)), **own}, f.where)
    layer.ignore("num_key_value_heads", "head_dim")
    found = layer.count(HEADS), Widths(*map(layer.count, WIDTHS))
    if unknown := next((name for name in own if name not in layer.read), None):
        raise f.error(f"field '{where}' has {show(unknown)}, which is not understood")
    return found


def _in_window(f: Fields) -> tuple[int, Widths]:
    """Heads and widths of the layers with a window, which files of the maker's give with a prefix."""
    f.defaults = {**f.defaults, **{f"swa_{name}": value for name, value in IN_WINDOW.items()}}
    heads, query, latent, whole, nope, value = (f.count(f"swa_{name}") for name in IN_WINDOW)
    rope = f.maybe(f"swa_{ROPE}") or whole - nope
    if whole != nope + rope or rope < 1:
        raise f.error(f"field 'swa_head_dim' is {whole}, which is not the sum of the two parts of a head")
    return heads, Widths(query, latent, rope, nope, value)
