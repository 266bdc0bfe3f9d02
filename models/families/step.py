"""Step 3, 3.5 and 3.7: mixtures of experts with fields of their own names.

Defaults are those of the family's class in transformers; Step 3 has none there.
"""

from __future__ import annotations

from capplan.models.decoder import Decoder
from capplan.models.families.experts import (
    DRAFTS,
    NORMS,
    dense_layers,
    ends,
    head_norms,
    routed,
    shared_experts,
)
from capplan.models.families.experts_kinds import attend, gate
from capplan.models.fields import Fields, show
from capplan.models.spec import Attention

# Fields that change no weight and no cache
UNREAD = (
    *(
        "use_moe",
        "moe_every_n_layer",
        "use_moe_router_bias",
        "moe_router_activation",
        "moe_dtype",
        "need_fp32_gate",
    ),
    *(
        "use_qk_norm",
        "use_head_wise_attn_gate",
        "norm_expert_weight",
        "swiglu_limits",
        "swiglu_limits_shared",
        "sink",
    ),
    *(
        "use_bidirectional_attention",
        "partial_rotary_factors",
        "zero_centered",
        "yarn_only_types",
        "use_rope_layers",
    ),
)


def step3_text(f: Fields) -> Decoder:
    """Step 3: queries from a narrow matrix that all heads share, one KV head; named as in the checkpoint."""
    d = Decoder(f, kv_heads=1, head_dim=256)
    f.ignore(*UNREAD)
    narrow = f.count("share_q_dim")
    for name, out, into in (
        ("q_proj", narrow, d.hidden),
        ("wq", d.q_width, narrow),
        ("k_proj", d.kv_width, d.hidden),
        ("v_proj", d.kv_width, d.hidden),
        ("o_proj", d.hidden, d.q_width),
    ):
        d.linear(f"self_attn.{name}", out, into, "attention")
    d.norm("self_attn.inter_norm", width=narrow)
    sparse = len(
        [layer for layer in listed_layers(f, "moe_layers_enum") or range(4, d.layers - 1) if layer < d.layers]
    )
    width = f.count("moe_intermediate_size")
    d.experts(*routed(f, 48, 3), width, layers=sparse, router="moe.gate", name="moe")
    shared_experts(d, f.count("share_expert_dim"), sparse, "share_expert")
    dense_layers(d, d.layers - sparse, 18432)
    d.norm(*NORMS)
    return ends(d)


def step3p5(f: Fields) -> Decoder:
    """Step 3.5 and 3.7: layers with a window have more query heads; a gate on attention's output."""
    bias, mlp_bias = f.flag("attention_bias"), f.flag("mlp_bias")
    d = Decoder(f, kv_heads=8, head_dim=128)
    f.ignore(*UNREAD)
    drafts = f.maybe_zero(*DRAFTS) or 0
    kinds = _padded(d, drafts, "layer_types", "full_attention", "sliding_attention")
    kinds = kinds or ["full_attention"] * (d.layers + drafts)
    window = f.maybe("sliding_window")
    if "sliding_attention" in kinds[: d.layers] and not window:
        raise f.error("field 'layer_types' has 'sliding_attention', and field 'sliding_window' has no window")
    full = d.full_attention
    local = full._replace(heads=_sliding_heads(d), window=window)
    parts = [local if kind == "sliding_attention" else full for kind in kinds]
    parts[: d.layers] = _own_heads(d, parts[: d.layers])
    for like, layers in attend(d, parts[: d.layers], bias=bias, out_bias=bias).items():
        gate(d, like, layers)
    d.draft_mixers += [(part,) for part in parts[d.layers :]]
    sparse = _sparse(d, drafts)
    d.experts(*routed(f, 288, 8), f.count_or(1280, "moe_intermediate_size"), layers=sparse)
    shared = f.count_or(1280, "share_expert_dim", "share_expert_dims")
    d.gated_mlp(shared, bias=mlp_bias, name="mlp.shared_experts", bucket="shared", layers=sparse)
    dense_layers(d, d.layers - sparse, 11264, bias=mlp_bias)
    head_norms(d)
    d.norm(*NORMS)
    return ends(d)


def listed_layers(f: Fields, name: str) -> set[int] | None:
    """The numbers of layers in a list, or in a text with commas, as Step has them."""
    _, listed = f.find(name)
    if type(listed) is not str:
        numbers = f.numbers(name)
        return None if numbers is None else set(numbers)
    words = [word.strip() for word in listed.split(",") if word.strip()]
    if not all(word.isdecimal() and len(word) < 6 for word in words):
        raise f.error(f"field '{name}' is {show(listed)}; numbers of layers are accepted")
    return {int(word) for word in words}


def _sparse(d: Decoder, drafts: int) -> int:
    """Sparse layers by kind, by a list of their numbers, or all but the first three."""
    f = d.fields
    f.ignore("moe_layers_enum", "mtp_mlp_layer_types")
    kinds = _padded(d, drafts, "mlp_layer_types", "dense", "sparse")
    if kinds:
        return kinds[: d.layers].count("sparse")
    listed = listed_layers(f, "moe_layers_enum")
    return max(0, d.layers - 3) if listed is None else sum(layer in listed for layer in range(d.layers))


def _padded(d: Decoder, drafts: int, name: str, *accepted: str) -> list[str] | None:
    """The kinds of the layers and, after them or in a list of their own, of the draft layers."""
    _, kinds = d.fields.find(name)
    if type(kinds) is list and len(kinds) == d.layers + drafts:
        d.fields.ignore(f"mtp_{name}")
        return d.layer_types(*accepted, name=name, length=d.layers + drafts)
    kinds = d.layer_types(*accepted, name=name)
    more = d.layer_types(*accepted, name=f"mtp_{name}", length=drafts)
    return kinds and kinds + (more or ["full_attention"] * drafts)


def _sliding_heads(d: Decoder) -> int:
    f, name = d.fields, "attention_other_setting"
    other = f.part(name) if f.find(name)[1] else Fields({})
    other.ignore(*other.config)
    return f.maybe("num_sliding_attention_heads") or other.maybe("num_attention_heads") or d.heads


def _own_heads(d: Decoder, parts: list[Attention]) -> list[Attention]:
    """The layers with the query heads that per_layer_config has for some, as transformers 5 writes them."""
    f, name = d.fields, "per_layer_config"
    if not f.find(name)[1]:
        return parts
    layers = f.part(name)
    heads = {}
    for layer in layers.config:
        own = layers.part(layer)
        heads[layer] = own.count("num_attention_heads")
    return [part._replace(heads=heads.get(str(i), d.heads)) for i, part in enumerate(parts)]
