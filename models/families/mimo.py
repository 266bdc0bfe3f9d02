"""MiMo V2: experts, and layers with a window among those of full attention, with keys wider than values.

Defaults of mimo_v2_flash are those of its class in transformers; mimo_v2, of V2.5 on, comes with code of its own.
"""

from __future__ import annotations

from capplan.models.decoder import Decoder
from capplan.models.families.experts import NORMS, dense_layers, ends, routed, sparse_by_kind
from capplan.models.families.experts_kinds import attend
from capplan.models.fields import Fields, show
from capplan.models.spec import Attention

LOCAL = ("swa_num_attention_heads", "swa_num_key_value_heads", "swa_head_dim", "swa_v_head_dim")
SINKS = (("add_swa_attention_sink_bias", True), ("add_full_attention_sink_bias", False))


def mimo_v2_flash(f: Fields) -> Decoder:
    """Layers with a window have twice the KV heads."""
    d = Decoder(f, kv_heads=4, head_dim=192)
    full = Attention(d.heads, d.kv_heads, d.head_dim, f.count_or(128, "v_head_dim"))
    size = f.maybe("sliding_window_size")
    window = size or f.maybe("sliding_window") or f.assume("sliding_window", 129)
    f.ignore("sliding_window")
    local = full._replace(kv_heads=2 * d.kv_heads, window=window, held_spare=1 if size else 0)
    _same_as_class(f, local)
    slides = _windows(d)
    if any(slides) and d.heads % local.kv_heads:
        raise f.error(
            f"field 'num_key_value_heads' is {d.kv_heads}: layers with a window have twice as many, "
            f"which does not divide the {d.heads} attention heads"
        )
    return _layers(d, full, local, slides)


def mimo_v2(f: Fields) -> Decoder:
    """Layers with a window have heads that the config says; its checkpoints fuse queries, keys and values."""
    f.ignore("attention_projection_layout", "hybrid_block_size", "sliding_window_size")
    d = Decoder(f)
    full = Attention(d.heads, d.kv_heads, d.head_dim, f.count("v_head_dim"))
    heads, kv_heads, key, value = map(f.count, LOCAL)
    if heads % kv_heads:
        raise f.error(f"field '{LOCAL[1]}' is {kv_heads}, which does not divide the {heads} attention heads")
    _sinks_as_known(f)
    local = Attention(heads, kv_heads, key, value, f.count("sliding_window"))
    slides = f.numbers("hybrid_layer_pattern", length=d.layers)
    if slides is None:
        raise f.error("field 'hybrid_layer_pattern' is missing; it says which layers have a window")
    return _layers(d, full, local, list(map(bool, slides)))


def _layers(d: Decoder, full: Attention, local: Attention, slides: list[bool]) -> Decoder:
    """The weights: layers with a window have sinks."""
    f = d.fields
    f.ignore("attention_chunk_size", "attention_value_scale", "n_shared_experts", "swa_rope_theta")
    attend(d, [local if slid else full for slid in slides], bias=f.flag("attention_bias"))
    d.sinks(heads=local.heads, layers=sum(slides))
    sparse = sparse_by_kind(d, dense=1, flags="moe_layer_freq")
    d.experts(*routed(f, 256, 8), f.count_or(2048, "moe_intermediate_size"), layers=sparse)
    dense_layers(d, d.layers - sparse, 16384)
    d.norm(*NORMS)
    return ends(d)


def _windows(d: Decoder) -> list[bool]:
    kinds = d.layer_types("full_attention", "sliding_attention")
    pattern = d.fields.numbers("hybrid_layer_pattern", length=d.layers)
    if kinds:
        return [kind == "sliding_attention" for kind in kinds]
    if pattern:
        return list(map(bool, pattern))
    return [i != 0 and (i + 1) % 6 != 0 for i in range(d.layers)]


def _same_as_class(f: Fields, local: Attention) -> None:
    """The class derives the heads and widths of layers with a window; a file that says otherwise is another model."""
    for name, derived in zip(LOCAL, local[:4], strict=True):
        if (given := f.maybe(name)) not in (None, derived):
            raise f.error(
                f"field '{name}' is {given}; {derived} is supported, as the full layers' heads imply"
            )
    _sinks_as_known(f)


def _sinks_as_known(f: Fields) -> None:
    for name, known in SINKS:
        if f.flag(name, default=known) is not known:
            raise f.error(f"field '{name}' is {show(not known)}; {show(known)} is supported")
