"""Kimi delta attention (KDA) beside latent attention: Kimi Linear and K3, GLM-5.3-Flash, Ling 3; lightning attention.

Defaults are those of the family's class in transformers. Engines keep KDA's states in fp32.
"""

from __future__ import annotations

from typing import NamedTuple

from capplan.models.decoder import Decoder
from capplan.models.families.experts import (
    DRAFTS,
    NORMS,
    SHARED,
    after_first,
    dense_layers,
    routed,
    shared_experts,
    sparse_by_kind,
)
from capplan.models.families.latent import (
    V3,
    LatentDecoder,
    cached,
    indexed,
    indexer,
    indexer_weights,
    latent_weights,
    uncounted_drafts,
    widths,
)
from capplan.models.families.latent_sparse import hyper_connections, scheduled
from capplan.models.families.states import (
    FULL,
    INDEXED,
    LINEAR,
    convolution,
    kinds,
    lay_out,
    own_head,
    period,
    tensor,
)
from capplan.models.fields import Fields
from capplan.models.spec import Layer, State


class DeltaAttention(NamedTuple):
    """KDA: every head has a key, a query and a value of one width, and forgets by channel."""

    heads: int
    width: int
    kernel: int

    @property
    def wide(self) -> int:
        return self.heads * self.width

    @property
    def state(self) -> State:
        elements = self.heads * self.width * self.width
        return State("kda", self.heads, elements, "fp32", 3 * self.wide, self.kernel)


def kda(d: Decoder, layers: int, net: DeltaAttention, *, forget: str = "", gate: str = "") -> State:
    """`forget` and `gate` name the two gates' projections where they are of full rank."""
    name, wide = "self_attn", net.wide
    for part in ("q_proj", "k_proj", "v_proj"):
        d.linear(f"{name}.{part}", wide, d.hidden, "mixer", layers=layers)
    convolution(d, f"{name}.conv1d", 3 * wide, net.kernel, layers=layers)
    for low, full in (("forget_gate.f", forget), ("g", gate)):
        if full:
            d.linear(f"{name}.{full}", wide, d.hidden, "mixer", layers=layers)
        else:
            d.linear(f"{name}.{low}_a_proj", net.width, d.hidden, "mixer", layers=layers)
            d.linear(f"{name}.{low}_b_proj", wide, net.width, "mixer", layers=layers)
    tensor(d, f"{name}.forget_gate.dt_bias", wide, layers=layers)
    tensor(d, f"{name}.forget_gate.A_log", net.heads, layers=layers)
    d.linear(f"{name}.b_proj", net.heads, d.hidden, "mixer", layers=layers)
    d.norm(f"{name}.o_norm", width=net.width, layers=layers)
    d.linear(f"{name}.o_proj", d.hidden, wide, "mixer", layers=layers)
    return net.state


def _delta_attention(f: Fields, heads: int) -> tuple[DeltaAttention, Fields]:
    """KDA by an object of its own, or by fields of the model; the object."""
    name = "linear_attn_config"
    inner = f.part(name) if name in f.config else Fields({})
    inner.ignore("gate_lower_bound", "safe_gate")
    net = DeltaAttention(
        inner.maybe("num_heads") or f.count_or(heads, "linear_num_heads"),
        inner.maybe("head_dim") or f.count_or(128, "linear_head_dim"),
        inner.maybe("short_conv_kernel_size") or f.count_or(4, "linear_conv_kernel_dim"),
    )
    f.ignore("linear_num_heads", "linear_head_dim", "linear_conv_kernel_dim")
    return net, inner


def sparse_layers(d: Decoder, dense: int, name: str = "first_k_dense_replace") -> int:
    """Layers with experts: as mlp_layer_types lists them, else all after the first so many."""
    listed = d.layer_types("dense", "sparse", name="mlp_layer_types")
    d.fields.ignore(name)
    return listed.count("sparse") if listed else after_first(d, dense, name)


def _mlps(d: Decoder, sparse: int, experts: tuple[int, int], width: int, dense: int, into: int = 0) -> None:
    """A plain mlp in the dense layers, routed and shared experts in the others."""
    f = d.fields
    f.ignore("num_expert_group", "moe_renormalize", "moe_router_activation_func", "use_grouped_topk")
    width = f.count_or(width, "moe_intermediate_size")
    d.experts(*routed(f, *experts), width, layers=sparse, into=into)
    shared_experts(d, width * f.whole_or(1, *SHARED), sparse)
    dense_layers(d, d.layers - sparse, dense)


def _framed(d: Decoder, *, tied: bool | None = None) -> Decoder:
    """Norms, embedding and head; `tied` is the class's default, None where it never ties."""
    d.norm(*NORMS)
    d.embedding()
    d.last_norm()
    if tied is None:
        own_head(d)
    else:
        d.head(tied=tied)
    return d


# --- Kimi -----------------------------------------------------------------------------------------------------


def kimi_linear(f: Fields) -> Decoder:
    """Kimi Linear; and Kimi K3, which has gates of full rank and experts at a narrower width."""
    d = LatentDecoder(f)
    d.context = f.maybe("model_max_length", most=10**9) or d.context
    f.ignore("mla_use_nope", "moe_layer_freq", "activation_situ_beta", "activation_situ_linear_beta")
    net, inner = _delta_attention(f, heads=32)
    listed = kinds(d, (FULL, LINEAR), _numbered(d, inner))
    w = widths(f, (None, *V3[1:]))
    full_rank = "g_proj" if inner.flag("use_full_rank_gate") else ""
    state = kda(d, listed.count(LINEAR), net, gate=full_rank)
    count = lay_out(d, listed, {FULL: (cached(d, w),), LINEAR: (state,)})
    latent_weights(d, w, layers=count[FULL])
    if f.flag("mla_use_output_gate"):
        d.linear("self_attn.g_proj", d.heads * w.value, d.hidden, "attention", layers=count[FULL])
    sparse = sparse_layers(d, 1)
    if f.maybe_zero("attn_res_block_size"):
        f.assumptions.append("the weights of residuals over blocks of layers are not known, and not counted")
    narrow = f.maybe("routed_expert_hidden_size")
    _mlps(d, sparse, (256, 8), 1024, 9216, narrow or 0)
    if narrow:
        d.linear("mlp.latent_down_proj", narrow, d.hidden, "mlp", layers=sparse)
        d.linear("mlp.latent_up_proj", d.hidden, narrow, "mlp", layers=sparse)
        if f.flag("latent_moe_use_norm"):
            d.norm("mlp.latent_norm", width=narrow, layers=sparse)
    uncounted_drafts(d, (cached(d, w),))
    return _framed(d)


def _numbered(d: Decoder, inner: Fields) -> list[str]:
    """The kinds of layers from two lists of their numbers, the first layer being 1; else the class's order."""
    full, linear = inner.numbers("full_attn_layers", least=1), inner.numbers("kda_layers", least=1)
    if full is None or linear is None:
        if full is not None or linear is not None:
            raise inner.error("fields 'full_attn_layers' and 'kda_layers' are given together or not at all")
        return [FULL if layer and layer % 4 == 0 else LINEAR for layer in range(d.layers)]
    if sorted((*full, *linear)) != list(range(1, d.layers + 1)):
        raise inner.error(
            f"fields 'full_attn_layers' and 'kda_layers' do not name each of the {d.layers:,} layers once"
        )
    return [FULL if layer in set(full) else LINEAR for layer in range(1, d.layers + 1)]


# --- GLM-5.3-Flash ---------------------------------------------------------------------------------------------


def glm5_next(f: Fields) -> Decoder:
    """KDA, and latent attention without positions that reads what an indexer of pooled keys selects."""
    d = LatentDecoder(f)
    f.ignore(
        "index_kpool_always_select_tail", "linear_lower_bound", "swiglu_limit", "hc_eps", "hc_sinkhorn_iters"
    )
    net, inner = _delta_attention(f, heads=64)
    inner.ignore("full_attn_layers", "kda_layers")
    default = [INDEXED if layer % 4 == 3 else LINEAR for layer in range(d.layers)]
    listed = [INDEXED if kind == FULL else kind for kind in kinds(d, (INDEXED, FULL, LINEAR), default)]
    own = _own_indexers(d, listed)
    w, index = widths(f, (1536, 512, 0, 256, 256), direct=False), indexer(f, (32, 128, 2048))
    if w.rope:
        raise f.error(f"field 'qk_rope_head_dim' is {w.rope}; 0 is accepted: these layers have no rotary key")
    pool = f.count_or(16, "index_kpool")
    if index.top_k % pool:
        raise f.error(f"field 'index_kpool' is {pool}, which does not divide 'index_topk', {index.top_k}")
    state = kda(d, listed.count(LINEAR), net)

    def attention(has: bool) -> Layer:
        return (indexed(cached(d, w), index, has)._replace(index_every=pool if has else 1),)

    d.mixers = [(state,) if kind == LINEAR else attention(has) for kind, has in zip(listed, own, strict=True)]
    latent_weights(d, w, layers=listed.count(INDEXED))
    indexer_weights(d, index, w.query or d.hidden, layers=sum(own))
    tensor(
        d, "self_attn.indexer.index_kpool_compress_ape", pool, index.width, layers=sum(own), bucket="index"
    )
    tensor(
        d,
        "self_attn.indexer.index_kpool_compress_gate",
        index.width,
        d.hidden,
        layers=sum(own),
        bucket="index",
    )
    _mlps(d, sparse_by_kind(d, 3), (288, 8), 2048, 12288)
    channels = f.count_or(4, "hc_mult")
    hyper_connections(d, channels, (2 + channels) * channels, 3)
    uncounted_drafts(d, attention(True))
    return _framed(d, tied=False)


def _own_indexers(d: Decoder, listed: list[str]) -> list[bool]:
    """Which layers have an indexer of their own: of those that attend, as listed, or by pattern or period."""
    given = d.layer_types("full", "shared", name="indexer_types")
    full = [kind == "full" for kind in given] if given else scheduled(d)
    own = [kind == INDEXED and has for kind, has in zip(listed, full, strict=True)]
    if INDEXED in listed and not own[listed.index(INDEXED)]:
        raise d.fields.error(
            "the first layer that attends has no indexer of its own, and there is none to share"
        )
    return own


# --- Ling 3 -----------------------------------------------------------------------------------------------------


def bailing_hybrid(f: Fields) -> Decoder:
    """Latent attention as the last of so many layers, with an output gate of one number a head."""
    d = LatentDecoder(f)
    d.context = f.maybe("model_max_length", most=10**9) or d.context
    f.ignore("kda_safe_gate", "kda_lower_bound", "mtp_loss_scaling_factor", "rope_interleave")
    net = DeltaAttention(
        f.maybe("linear_num_heads") or d.heads,
        f.maybe("linear_head_dim") or f.count_or(128, "head_dim"),
        f.maybe("linear_conv_kernel_dim") or f.count_or(4, "short_conv_kernel_size"),
    )
    f.ignore("short_conv_kernel_size")
    every = period(f, "layer_group_size", 6)
    default = [LINEAR if (layer + 1) % every else FULL for layer in range(d.layers)]
    listed = kinds(d, (FULL, LINEAR), default)
    w = widths(f, (None, *V3[1:]))
    state = kda(d, listed.count(LINEAR), net, forget="forget_gate.f_proj", gate="g_proj")
    count = lay_out(d, listed, {FULL: (cached(d, w),), LINEAR: (state,)})

    def attention(layers: int) -> None:
        latent_weights(d, w, layers=layers)
        d.linear("self_attn.g_proj", d.heads, d.hidden, "attention", layers=layers)

    attention(count[FULL])
    sparse = sparse_layers(d, 2)
    _mlps(d, sparse, (512, 8), 768, 6144)

    def draft() -> None:
        attention(d.layers)
        _mlps(d, d.layers, (512, 8), 768, 6144)
        d.norm(*NORMS)

    d.drafts(f.whole_or(1, *DRAFTS), (cached(d, w),), draft)
    return _framed(d)


# --- MiniMax-Text-01 and M1 --------------------------------------------------------------------------------------


def minimax(f: Fields) -> Decoder:
    """Lightning attention: a state of key by value for every head. Experts in all layers."""
    d = Decoder(f, kv_heads=8)
    f.ignore(*(f"{part}_{factor}" for part in _SCALED for factor in ("alpha", "beta")))
    f.ignore(*(f"{part}_{factor}_factor" for part in _SCALED for factor in ("alpha", "beta")))
    f.ignore("block_size", "sliding_window", "postnorm", "layernorm_epsilon", "shared_moe_mode", "rotary_dim")
    default = [LINEAR if layer % 2 else FULL for layer in range(d.layers)]
    flags = f.numbers("attn_type_list", length=d.layers)
    if flags is not None:
        default = [FULL if flag else LINEAR for flag in flags]
    listed = kinds(d, (FULL, LINEAR), default)
    if f.maybe_zero("shared_intermediate_size"):
        raise f.error("field 'shared_intermediate_size' (a shared expert) is not supported; 0 is accepted")
    state = State("lightning", d.heads, d.heads * d.head_dim**2, "model", held_dtype="model")
    count = lay_out(d, listed, {FULL: (d.full_attention,), LINEAR: (state,)})
    linear, name = count[LINEAR], "self_attn"
    d.norm(f"{name}.norm", width=d.q_width, layers=linear)
    d.linear(f"{name}.qkv_proj", 3 * d.q_width, d.hidden, "mixer", layers=linear)
    d.linear(f"{name}.out_proj", d.hidden, d.q_width, "mixer", layers=linear)
    d.linear(f"{name}.output_gate", d.q_width, d.hidden, "mixer", layers=linear)
    d.attention(layers=count[FULL])
    d.experts(*routed(f, 8, 2), f.count_or(14336, "intermediate_size"), layers=d.layers)
    return _framed(d, tied=False)


_SCALED = (
    *("full_attn", "linear_attn", "mlp"),
    *("layernorm_full_attention", "layernorm_linear_attention", "layernorm_mlp"),
)
