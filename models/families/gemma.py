"""Gemma 2 and what came after it: windows, four norms a layer, caches that later layers share, per-layer embeddings.

Defaults are those of the family's class in transformers.
"""

from __future__ import annotations

from collections import Counter

from capplan.models.decoder import Decoder
from capplan.models.families.windows import all_but_every, pattern_of
from capplan.models.fields import Fields, show
from capplan.models.spec import Attention

SHARED = "num_kv_shared_layers"
OVERRIDES = "per_layer_config"
NORMS = (
    "input_layernorm",
    "post_attention_layernorm",
    "pre_feedforward_layernorm",
    "post_feedforward_layernorm",
)


def gemma2(f: Fields) -> Decoder:
    return _gemma2(f, NORMS)


def vaultgemma(f: Fields) -> Decoder:
    """Gemma 2 without the norms after attention and mlp."""
    return _gemma2(f, ("input_layernorm", "pre_feedforward_layernorm"))


def _gemma2(f: Fields, norms: tuple[str, ...]) -> Decoder:
    """Every second layer slides, the first among them."""
    d = Decoder(f, kv_heads=4, head_dim=256)
    d.window(default=4096, slides=all_but_every(2))
    return _plain(d, norms)


def gemma3(f: Fields) -> Decoder:
    """Query and key norms; five layers of six slide."""
    d = Decoder(f, kv_heads=4, head_dim=256)
    d.window(default=4096, slides=pattern_of(f, 6))
    if f.flag("use_bidirectional_attention"):
        _look_both_ways(d)
    f.ignore("_sliding_window_pattern")
    d.norm("self_attn.q_norm", "self_attn.k_norm", width=d.head_dim)
    return _plain(d, NORMS)


def _plain(d: Decoder, norms: tuple[str, ...]) -> Decoder:
    bias = d.fields.flag("attention_bias")
    d.embedding()
    d.attention(bias=bias, out_bias=bias)
    d.gated_mlp()
    d.norm(*norms)
    d.last_norm()
    d.head(tied=True)
    return d


def _look_both_ways(d: Decoder) -> None:
    """A window is centred on its token: half of it lies in the past."""
    d.windows = [window and window // 2 + 1 for window in d.windows]


def gemma3n(f: Fields) -> Decoder:
    """Four streams side by side (AltUp), low-rank residuals (Laurel), and an embedding for every layer."""
    d = Decoder(f, kv_heads=2, head_dim=256)
    d.window(default=512, slides=all_but_every(5))
    owners = _owners(d, default=15)
    f.ignore("activation_sparsity_pattern", "altup_active_idx", "altup_coef_clip", "altup_correct_scale")
    d.embedding()
    _attention(d, [d.full_attention] * d.layers, owners)
    for width, layers in Counter(_mlp_widths(d)).items():
        d.gated_mlp(width, layers=layers)
    d.norm(*NORMS)

    streams = f.count_or(4, "altup_num_inputs")
    d.linear("altup.correction_coefs", streams, streams, "mlp")
    d.linear("altup.prediction_coefs", streams**2, streams, "mlp")
    d.linear("altup.modality_router", streams, d.hidden, "mlp")
    d.norm("altup.router_norm")
    d.add(f"{d.layer}altup.correct_output_scale", (d.hidden,), "mlp", d.layers)
    for name in ("altup_projections", "altup_unembed_projections"):
        if streams > 1:
            d.add(f"model.{name}.N.weight", (d.hidden, d.hidden), "mlp", streams - 1)
    rank = f.count_or(64, "laurel_rank")
    d.linear("laurel.linear_left", rank, d.hidden, "mlp")
    d.linear("laurel.linear_right", d.hidden, rank, "mlp")
    d.norm("laurel.post_laurel_norm")
    _per_layer_embedding(d, f.count_or(256, "hidden_size_per_layer_input"))
    d.last_norm()
    d.head(tied=True)
    return d


def _mlp_widths(d: Decoder) -> list[int]:
    """One width for all layers, or a list of one a layer."""
    name = "intermediate_size"
    if isinstance(d.fields.config.get(name), list):
        return d.fields.numbers(name, length=d.layers, least=1) or []
    return [d.fields.count(name)] * d.layers


def gemma4(f: Fields) -> Decoder:
    """Global layers with heads of their own; some models have experts beside the mlp, or an embedding a layer."""
    d = _gemma4(f, window=512)
    if f.flag("enable_moe_block"):
        _experts_beside_the_mlp(d)
    else:
        f.ignore("num_experts", "top_k_experts", "moe_intermediate_size", "expert_intermediate_size")
    width = f.maybe_zero("hidden_size_per_layer_input")
    if width is None:
        width = f.assume("hidden_size_per_layer_input", 256)
    if width:
        _per_layer_embedding(d, width)
    else:
        f.ignore("vocab_size_per_layer_input")
    return d


def gemma4_unified(f: Fields) -> Decoder:
    return _gemma4(f, window=1024)


def _gemma4(f: Fields, window: int) -> Decoder:
    d = Decoder(f, kv_heads=4, head_dim=256)
    d.window(default=window, slides=all_but_every(6))
    d.windows[-1] = None  # the class lets the last layer see everything, whatever its type says
    if f.text("use_bidirectional_attention") == "all":
        _look_both_ways(d)
    owners = _owners(d, default=0, none=True)
    d.embedding()
    _attention(d, _heads_by_layer(d), owners, values_are_keys=f.flag("attention_k_eq_v"))
    wide = 2 if f.flag("use_double_wide_mlp") else 1  # where a layer shares a cache
    d.gated_mlp(layers=owners)
    d.gated_mlp(wide * f.count("intermediate_size"), layers=d.layers - owners)
    d.norm(*NORMS)
    d.last_norm()
    d.head(tied=True)
    return d


def _heads_by_layer(d: Decoder) -> list[Attention]:
    """Global layers have a head width of their own, and KV heads where keys are values; or all is told by layer."""
    f, alike = d.fields, d.full_attention
    overrides = f.find(OVERRIDES)[1]
    if overrides is None:
        width = f.count_or(512, "global_head_dim")
        kv_heads = f.maybe("num_global_key_value_heads") if f.flag("attention_k_eq_v") else None
        f.ignore("num_global_key_value_heads")
        kv_heads = d.checked_kv_heads(kv_heads or d.kv_heads, "num_global_key_value_heads")
        whole = alike._replace(kv_heads=kv_heads, head_dim=width, v_head_dim=width)
        return [alike if window else whole for window in d.windows]
    f.ignore("global_head_dim", "num_global_key_value_heads")
    return [_overridden(d, layer, alike) for layer in _by_layer(d, overrides)]


def _by_layer(d: Decoder, overrides: object) -> list[Fields]:
    """What per_layer_config says of each layer, by its number."""
    f = d.fields
    told = overrides if isinstance(overrides, dict) else {}
    numbers = {int(key): value for key, value in told.items() if key.isdecimal() and isinstance(value, dict)}
    if len(numbers) != len(told) or told is not overrides or any(number >= d.layers for number in numbers):
        raise f.error(
            f"field '{OVERRIDES}' is {show(overrides)}; objects by the number of a layer, "
            f"under {d.layers:,}, are accepted"
        )
    return [
        Fields(numbers.get(layer, {}), f"{f.where}: {OVERRIDES} of layer {layer}")
        for layer in range(d.layers)
    ]


def _overridden(d: Decoder, layer: Fields, alike: Attention) -> Attention:
    width = layer.maybe("head_dim") or alike.head_dim
    kv_heads = d.checked_kv_heads(layer.maybe("num_key_value_heads") or alike.kv_heads, OVERRIDES)
    if others := sorted(set(layer.config) - layer.read):
        raise layer.error(f"field {show(others[0])} is not understood; head_dim and num_key_value_heads are")
    return alike._replace(kv_heads=kv_heads, head_dim=width, v_head_dim=width)


def _owners(d: Decoder, default: int, *, none: bool = False) -> int:
    """How many layers, from the first, keep a cache: the rest read that of the last of their kind before them.

    none: it may be none at all, where the cache is another model's (an assistant that drafts).
    """
    f = d.fields
    shared = f.maybe_zero(SHARED)
    if shared is None:
        shared = f.assume(SHARED, default) if default else 0
    owners = d.layers - shared
    if owners < 0 or (owners == 0 and not none):
        raise f.error(f"field '{SHARED}' is {shared}, and some of the {d.layers} layers have to keep a cache")
    if owners and set(map(bool, d.windows[:owners])) != set(map(bool, d.windows)):
        raise f.error(f"field '{SHARED}' is {shared}, which leaves a kind of layer without a cache to share")
    return owners


def _attention(d: Decoder, heads: list[Attention], owners: int, *, values_are_keys: bool = False) -> None:
    """Query and key norms; keys and values only where a layer keeps a cache of its own."""
    bias = d.fields.flag("attention_bias")
    each = [
        part._replace(window=window, shared=layer >= owners)
        for layer, (part, window) in enumerate(zip(heads, d.windows, strict=True))
    ]
    d.mixers = [(part,) for part in each]
    for part, layers in Counter(each).items():
        query, key = part.heads * part.head_dim, part.kv_heads * part.head_dim
        d.linear("self_attn.q_proj", query, d.hidden, "attention", bias=bias, layers=layers)
        d.linear("self_attn.o_proj", d.hidden, query, "attention", bias=bias, layers=layers)
        d.norm("self_attn.q_norm", width=part.head_dim, layers=layers)
        if part.shared:
            continue
        d.norm("self_attn.k_norm", width=part.head_dim, layers=layers)
        d.linear("self_attn.k_proj", key, d.hidden, "attention", bias=bias, layers=layers)
        if part.window or not values_are_keys:
            d.linear("self_attn.v_proj", key, d.hidden, "attention", bias=bias, layers=layers)


def _experts_beside_the_mlp(d: Decoder) -> None:
    f = d.fields
    count, chosen = f.count("num_experts"), f.count("top_k_experts")
    d.experts(
        count, chosen, f.count("moe_intermediate_size"), layers=d.layers, router="router.proj", name="experts"
    )
    f.ignore("expert_intermediate_size")
    d.add(f"{d.layer}router.scale", (d.hidden,), "router", d.layers)
    d.add(f"{d.layer}router.per_expert_scale", (count,), "router", d.layers)
    d.norm("post_feedforward_layernorm_1", "post_feedforward_layernorm_2", "pre_feedforward_layernorm_2")


def _per_layer_embedding(d: Decoder, width: int) -> None:
    """A second table with a vector for every layer, which each layer gates into its stream."""
    rows = d.fields.count_or(262144, "vocab_size_per_layer_input")
    d.add("model.embed_tokens_per_layer.weight", (rows, d.layers * width), "lookup")
    d.add("model.per_layer_model_projection.weight", (d.layers * width, d.hidden), "mlp")
    d.add("model.per_layer_projection_norm.weight", (width,), "norm")
    d.linear("per_layer_input_gate", width, d.hidden, "mlp")
    d.linear("per_layer_projection", d.hidden, width, "mlp")
    d.norm("post_per_layer_input_norm")
