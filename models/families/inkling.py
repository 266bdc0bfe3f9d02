"""Inkling: experts, windows with heads of their own, and short convolutions whose last columns are cached as well.

Defaults are those of the family's class in transformers.
"""

from __future__ import annotations

from typing import NamedTuple

from capplan.models.decoder import Decoder
from capplan.models.families.experts import NORMS, dense_layers, routed, sparse_by_kind
from capplan.models.fields import Fields
from capplan.models.spec import Attention, Layer, State

FULL, LOCAL = "hybrid", "hybrid_sliding"
UNREAD = (
    *("log_scaling_n_floor", "log_scaling_alpha", "logits_mup_width_multiplier", "embedding_multiplier"),
    *("shared_expert_sink", "rms_norm_eps_moe_gate", "number_of_conv_states", "conv_bias", "use_sconv"),
    *("qk_l2_clip_threshold", "rel_l2_clip_threshold", "mlp_gate_softcap", "mlp_up_softcap"),
    *("n_layers_per_attn_res_block", "tie_word_embeddings"),  # no class of the family ties its head
    *("mtp_hidden_states_first", "chain_hidden_post_norm", "local_layer_ids", "dense_mlp_idx"),
)


class Local(NamedTuple):
    """The class's defaults of the layers with a window."""

    heads: int
    kv_heads: int
    window: int


class Inkling(Decoder):
    """Both kinds of layer: how many of each, their heads and widths, and the convolutions."""

    def __init__(self, f: Fields, local: Local) -> None:
        super().__init__(f, kv_heads=8, head_dim=128)
        f.ignore(*UNREAD)
        self.context = f.maybe("max_position_embeddings", "model_max_length", most=10**9)
        self.kernel = f.count_or(4, "conv_kernel_size", "sconv_kernel_size")
        self.window_size = f.count_or(local.window, "sliding_window_size", "sliding_window")
        self.relative = f.count_or(16, "d_rel")
        heads = f.count_or(local.heads, "swa_num_attention_heads")
        kv_heads = f.count_or(local.kv_heads, "swa_num_key_value_heads")
        if heads % kv_heads:
            raise f.error(
                f"field 'swa_num_key_value_heads' is {kv_heads}, which does not divide the {heads} heads"
            )
        width = f.count_or(128, "swa_head_dim")
        self.attentions = {
            FULL: self.full_attention,
            LOCAL: Attention(heads, kv_heads, width, width, self.window_size),
        }
        self.extent = {FULL: f.count_or(1024, "rel_extent"), LOCAL: self.window_size}
        self.kinds = self.layer_types(FULL, LOCAL) or self._default_kinds()
        self.mixers = [self.cached(kind) for kind in self.kinds]

    def _default_kinds(self) -> list[str]:
        listed = self.fields.numbers("local_layer_ids")
        local = [i for i in range(self.layers) if (i + 1) % 6 != 0] if listed is None else listed
        return [LOCAL if layer in local else FULL for layer in range(self.layers)]

    def cached(self, kind: str) -> Layer:
        """Keys and values, and what four convolutions look back on: over both of them, and over both residuals."""
        of = self.attentions[kind]
        divided = State(
            "short convolution",
            heads=of.kv_heads,
            conv_channels=2 * of.kv_heads * of.head_dim,
            conv_kernel=self.kernel,
            held_conv_dtype="fp32",
        )
        return of, divided, divided._replace(heads=1, conv_channels=2 * self.hidden)

    def convolution(self, name: str, channels: int, layers: int) -> None:
        if layers:
            self.add(f"{self.layer}{name}.conv1d.weight", (channels, 1, self.kernel), "mixer", layers)

    def vector(self, name: str, shape: tuple[int, ...], bucket: str, layers: int) -> None:
        if layers:
            self.add(f"{self.layer}{name}", shape, bucket, layers)

    def ends(self, vocab: int) -> None:
        self.embedding()
        self.last_norm("model.embed_tokens.embed_norm")
        self.last_norm()
        self.add("lm_head.weight", (vocab, self.hidden), "head")


def inkling_text(f: Fields) -> Decoder:
    """Inkling 1: a mixture whose router weighs the shared experts too."""
    d = Inkling(f, Local(heads=64, kv_heads=16, window=512))
    _drafts(d)
    for kind, of in d.attentions.items():
        layers = d.kinds.count(kind)
        d.attention(layers=layers, like=of)
        d.linear("self_attn.r_proj", of.heads * d.relative, d.hidden, "attention", layers=layers)
        for part in ("k_sconv", "v_sconv"):
            d.convolution(f"self_attn.{part}", of.kv_heads * of.head_dim, layers)
        d.norm("self_attn.q_norm", "self_attn.k_norm", width=of.head_dim, layers=layers)
        d.vector("self_attn.rel_logits_proj.proj", (d.relative, d.extent[kind]), "attention", layers)
    for part in ("attn_sconv", "mlp_sconv"):
        d.convolution(part, d.hidden, d.layers)
    d.norm(*NORMS)
    _mixture(d)
    f.ignore("unpadded_vocab_size")
    d.ends(d.vocab)
    return d


def _mixture(d: Inkling) -> None:
    f = d.fields
    sparse = sparse_by_kind(d, dense=f.maybe_zero("dense_mlp_idx") or 0)
    older = f.maybe("dense_intermediate_size")  # beside it, intermediate_size is that of an expert
    width = f.count("intermediate_size") if older else f.count_or(3072, "moe_intermediate_size")
    f.ignore("moe_intermediate_size")
    count, chosen = routed(f, 256, 6)
    d.experts(count, chosen, width, layers=sparse, router="")
    shared = f.whole_or(2, "n_shared_experts")
    d.linear("mlp.gate", count + shared, d.hidden, "router", layers=sparse)
    d.vector("mlp.gate.global_scale", (1,), "router", sparse)
    for part in ("gate_proj", "up_proj", "down_proj"):
        shape = (d.hidden, width) if part == "down_proj" else (width, d.hidden)
        d.vector(f"mlp.shared_experts.{part}", (shared, *shape), "shared", sparse if shared else 0)
    if older:
        d.gated_mlp(older, layers=d.layers - sparse)
    else:
        dense_layers(d, d.layers - sparse, 24576)
    d.vector("mlp.global_scale", (1,), "mlp", d.layers - sparse)


def _drafts(d: Inkling) -> None:
    drafts = d.fields.maybe_zero("num_mtp_layers", "num_nextn_predict_layers") or 0
    local = d.fields.numbers("mtp_local_layer_ids") or []
    d.draft_mixers += [d.cached(LOCAL if layer in local else FULL) for layer in range(drafts)]


def inkling2_text(f: Fields) -> Decoder:
    return _inkling2(Inkling(f, Local(heads=48, kv_heads=8, window=1024)), experts=384, width=2304)


def inkling2_loop_text(f: Fields) -> Decoder:
    """Some layers run several times, each time with caches of their own and messages from the time before."""
    d = Inkling(f, Local(heads=24, kv_heads=8, window=1024))
    old = f.part("loop_config") if f.find("loop_config")[1] else Fields({})
    old.ignore(*old.config)

    def setting(name: str, older: str, default: int) -> int:
        value = old.maybe_zero(older)
        f.ignore(name)
        return f.whole_or(default, name) if value is None else value

    first = setting("loop_layer_index_start", "core_start", 6)
    last = setting("loop_layer_index_end", "core_end", 18)
    passes = setting("loop_num_passes", "num_passes", 3)
    rank = setting("loop_gate_rank", "gate_rank", 64)
    if not 0 < first <= last or passes < 1:
        raise f.error(
            f"field 'loop_layer_index_start' and its companions name no loop: {first}, {last}, {passes}"
        )
    looped = len(d.kinds[first:last])
    for gate in ("q", "k", "v", "mlp"):
        name = f"{gate}_message_gate"
        d.linear(f"{name}.down_proj", rank, 2 * d.hidden, "attention", layers=looped)
        for part in ("forget", "message"):
            d.linear(f"{name}.{part}_gate_proj", d.hidden, rank, "attention", layers=looped)
    if last > first:
        d.add("model.message_input.query", (last - first, 4, d.hidden), "norm")
    assert d.mixers is not None
    d.mixers += d.mixers[first:last] * (passes - 1)
    f.assumptions.append(f"layers {first} to {last - 1} run {passes} times; the weights are counted once")
    return _inkling2(d, experts=128, width=1152)


def _inkling2(d: Inkling, *, experts: int, width: int) -> Decoder:
    """Inkling 2: every projection with what follows it, sinks that depend on the token, gates, and no plain mlp."""
    f = d.fields
    for kind, of in d.attentions.items():
        _attention2(d, kind, of, d.kinds.count(kind))
    for part in ("post_attention_convolution", "post_mlp_convolution"):
        d.convolution(part, d.hidden, d.layers)
    d.vector("mlp_input.query", (d.hidden,), "norm", d.layers)
    d.norm("post_attention_layernorm")
    d.experts(
        *routed(f, experts, 8),
        f.count_or(width, "moe_intermediate_size", "intermediate_size"),
        layers=d.layers,
    )
    d.add("model.final_input.query", (d.hidden,), "norm")
    d.ends(f.count_or(200058, "unpadded_vocab_size"))
    return d


def _attention2(d: Inkling, kind: str, of: Attention, layers: int) -> None:
    if not layers:
        return
    wide, keys = of.heads * of.head_dim, of.kv_heads * of.head_dim
    full = kind == FULL
    for name, out, into in (
        ("q_proj.linear", wide, d.hidden),
        ("k_proj.linear", keys, d.hidden),
        ("v_proj.linear", keys, d.hidden),
        ("o_proj.gate_proj", wide, d.hidden),
        ("o_proj.linear", d.hidden, wide),
        ("sink_proj", of.heads, d.hidden),
        ("relative_position_bias.linear", of.heads * d.relative, d.hidden),
    ):
        d.linear(f"self_attn.{name}", out, into, "attention", layers=layers)
    for part in ("k_proj.sconv", "v_proj.sconv"):
        if full:  # the token has a say in its convolution
            d.vector(f"self_attn.{part}.static_weight", (d.kernel, keys), "mixer", layers)
            d.linear(
                f"self_attn.{part}.weight_proj", of.kv_heads * d.kernel, d.hidden, "mixer", layers=layers
            )
        else:
            d.convolution(f"self_attn.{part}", keys, layers)
    d.vector("self_attn.q_proj.norm.scale", (of.heads, of.head_dim), "norm", layers)
    d.vector("self_attn.relative_position_bias.norm.scale", (of.heads, d.relative), "norm", layers)
    d.vector("self_attn.relative_position_bias.proj", (d.relative, d.extent[kind]), "attention", layers)
    d.norm(*([f"{part}_input_layernorm" for part in "qkv"] if full else ["input_layernorm"]), layers=layers)
    later = d.kinds[1:].count(kind)  # the first layer has nothing to look back on
    d.vector("attention_input.query", (3, d.hidden) if full else (d.hidden,), "norm", later)
