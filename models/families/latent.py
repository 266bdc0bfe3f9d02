"""Parts of decoders with multi-head latent attention (MLA), for the families of the modules beside this one.

The num_key_value_heads and head_dim of their configs mean nothing: the latent has no heads, and the widths of a head
have fields of their own.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from capplan.models.decoder import Decoder
from capplan.models.families.experts import DRAFTS, NORMS, checked
from capplan.models.fields import Fields
from capplan.models.spec import LatentAttention, Layer

WIDTHS = ("q_lora_rank", "kv_lora_rank", "qk_rope_head_dim", "qk_nope_head_dim", "v_head_dim")
INDEX = ("index_n_heads", "index_head_dim", "index_topk")
EXPERTS = ("n_routed_experts", "num_experts_per_tok", "moe_intermediate_size", "n_shared_experts")
V3 = (1536, 512, 64, 128, 128)


class Widths(NamedTuple):
    """Ranks and head widths of latent attention."""

    query: int | None  # None: one matrix from the hidden state
    latent: int
    rope: int
    nope: int
    value: int


class Indexer(NamedTuple):
    """What selects the tokens that sparse attention (DSA) reads."""

    heads: int
    width: int
    top_k: int


class Experts(NamedTuple):
    total: int
    chosen: int
    width: int
    shared: int  # width of those that every token passes through, as one mlp


class LatentDecoder(Decoder):
    """A decoder that has latent attention in every layer."""

    def _kv_heads(self, default: int | None) -> int:
        self.fields.ignore("num_key_value_heads")
        return self.heads

    def _head_dim(self, default: int | None, grouped: bool) -> int:
        self.fields.ignore("head_dim", "qk_head_dim")
        return 0


def latent_attention(
    d: Decoder,
    f: Fields,
    default: Sequence[int | None] = V3,
    *,
    layers: int | None = None,
    name: str = "self_attn",
    direct: bool = True,
) -> LatentAttention:
    """Latent attention of every layer, or of so many: reads its fields, adds its weights, says what a layer caches."""
    w = widths(f, default, direct=direct)
    latent_weights(d, w, layers=layers, name=name)
    return cached(d, w)


def take_for_granted(f: Fields, names: Sequence[str], default: Sequence[int | None]) -> None:
    """Defaults of the class, for fields that a config leaves out."""
    given = {name: value for name, value in zip(names, default, strict=True) if value is not None}
    f.defaults = {**f.defaults, **given}


def widths(f: Fields, default: Sequence[int | None], *, direct: bool = True) -> Widths:
    """The widths; those that size the cache are given both or neither.

    direct: the class does without q_lora_rank where it is null.
    """
    take_for_granted(f, WIDTHS, default)
    pair = WIDTHS[1:3] if default[2] else ()
    missing = [name for name in pair if name not in f.config]
    if len(missing) == 1:
        raise f.error(f"field '{missing[0]}' is missing; latent attention needs {' and '.join(pair)}")
    query, latent, rope, nope, value = WIDTHS
    return Widths(
        f.maybe(query) if direct else f.count(query),
        f.count(latent),
        0 if f.maybe_zero(rope) == 0 else f.count(rope),
        f.count(nope),
        f.count(value),
    )


def cached(d: Decoder, w: Widths) -> LatentAttention:
    return LatentAttention(d.heads, w.latent, w.rope, w.nope, w.value)


def latent_weights(
    d: Decoder, w: Widths, *, layers: int | None = None, name: str = "self_attn", heads: int = 0
) -> None:
    query_weights(d, w, layers=layers, name=name, heads=heads)
    key_weights(d, w, layers=layers, name=name)
    value_weights(d, w, layers=layers, name=name, heads=heads)


def query_weights(
    d: Decoder, w: Widths, *, layers: int | None = None, name: str = "self_attn", heads: int = 0
) -> None:
    """Queries of all heads, through a latent of their own or straight from the hidden state."""
    wide = (heads or d.heads) * (w.nope + w.rope)
    if w.query is None:
        d.linear(f"{name}.q_proj", wide, d.hidden, "attention", layers=layers)
    else:
        query_latent(d, w.query, layers=layers, name=name)
        d.linear(f"{name}.q_b_proj", wide, w.query, "attention", layers=layers)


def query_latent(d: Decoder, rank: int, *, layers: int | None = None, name: str = "self_attn") -> None:
    bias = d.fields.flag("attention_bias")
    d.linear(f"{name}.q_a_proj", rank, d.hidden, "attention", bias=bias, layers=layers)
    d.norm(f"{name}.q_a_layernorm", width=rank, layers=layers)


def key_weights(d: Decoder, w: Widths, *, layers: int | None = None, name: str = "self_attn") -> None:
    """The latent and the rotary key: what is cached."""
    bias = d.fields.flag("attention_bias")
    d.linear(f"{name}.kv_a_proj_with_mqa", w.latent + w.rope, d.hidden, "attention", bias=bias, layers=layers)
    d.norm(f"{name}.kv_a_layernorm", width=w.latent, layers=layers)


def value_weights(
    d: Decoder, w: Widths, *, layers: int | None = None, name: str = "self_attn", heads: int = 0
) -> None:
    """Keys and values of all heads from the latent, and the output projection."""
    heads, bias = heads or d.heads, d.fields.flag("attention_bias")
    d.linear(f"{name}.kv_b_proj", heads * (w.nope + w.value), w.latent, "attention", layers=layers)
    d.linear(f"{name}.o_proj", d.hidden, heads * w.value, "attention", bias=bias, layers=layers)


def indexer(f: Fields, default: Sequence[int]) -> Indexer:
    take_for_granted(f, INDEX, default)
    return Indexer(*map(f.count, INDEX))


def indexer_weights(d: Decoder, index: Indexer, into: int, *, layers: int | None = None) -> None:
    """Queries from a vector of `into`, one key a token, and a weight for every head."""
    name = "self_attn.indexer"
    d.linear(f"{name}.wq_b", index.heads * index.width, into, "index", layers=layers)
    d.linear(f"{name}.wk", index.width, d.hidden, "index", layers=layers)
    d.norm(f"{name}.k_norm", width=index.width, bias=True, layers=layers)
    d.linear(f"{name}.weights_proj", index.heads, d.hidden, "index", layers=layers)


def indexed(part: LatentAttention, index: Indexer, own: bool) -> LatentAttention:
    """Sparse attention, by an indexer of the layer's own or by the selection of an earlier layer."""
    if not own:
        return part._replace(top_k=index.top_k)
    return part._replace(index_dim=index.width, index_heads=index.heads, top_k=index.top_k)


def own_indexers(d: Decoder, default: list[bool]) -> list[bool]:
    """Which layers have an indexer of their own; the others use the selection of the last that has."""
    kinds = d.layer_types("full", "shared", name="indexer_types")
    own = [kind == "full" for kind in kinds] if kinds else default
    if not own[0]:
        named = ("indexer_types", "index_topk_pattern", "index_skip_topk_offset")
        name = next((name for name in named if d.fields.config.get(name) is not None), named[0])
        raise d.fields.error(
            f"field '{name}' leaves the first layer without an indexer, and none is before it"
        )
    return own


def experts(
    f: Fields, default: Sequence[int | None], *, count: Sequence[str] = (), shared: str = ""
) -> Experts:
    """The fields of a mixture of experts; `count` and `shared` are further names of two of them."""
    take_for_granted(f, EXPERTS, default)
    total = f.count(EXPERTS[0], "num_local_experts", *count)
    chosen = checked(f, f.count(EXPERTS[1]), total)
    groups = f.maybe("n_group")
    if groups and total % groups:
        raise f.error(f"field 'n_group' is {groups}, which does not divide the {total} experts")
    width = f.count(EXPERTS[2])
    return Experts(total, chosen, width, width * f.count(EXPERTS[3], *filter(None, [shared])))


def expert_weights(d: Decoder, e: Experts, layers: int, *, bias: bool = False) -> None:
    """Routed experts and the shared ones; the routers' correction biases are buffers, and not counted."""
    d.experts(e.total, e.chosen, e.width, layers=layers)
    d.gated_mlp(e.shared, name="mlp.shared_experts", bucket="shared", bias=bias, layers=layers)


def mlps(d: Decoder, e: Experts, sparse: int, *, bias: bool = False) -> None:
    """A plain mlp in the dense layers, experts in so many others."""
    d.fields.ignore("intermediate_size")
    if sparse < d.layers:
        d.gated_mlp(bias=bias, layers=d.layers - sparse)
    expert_weights(d, e, sparse, bias=bias)


def sparse_by_frequency(d: Decoder) -> int:
    """Layers with experts by mlp_layer_types, or those that moe_layer_freq says after the first dense ones."""
    f, name = d.fields, "moe_layer_freq"
    kinds = d.layer_types("dense", "sparse", name="mlp_layer_types")
    if kinds:
        f.ignore(name, "first_k_dense_replace")
        return kinds.count("sparse")
    dense = f.whole_or(1, "first_k_dense_replace")
    if isinstance(f.config.get(name), list):
        each = f.numbers(name, length=d.layers) or []
    else:
        every = f.maybe(name) or 1
        each = [layer % every == 0 for layer in range(d.layers)]
    return sum(layer >= dense and bool(sparse) for layer, sparse in enumerate(each))


def ignore_frequency(f: Fields) -> None:
    """The class has experts in every layer after the first dense ones."""
    if f.config.get("moe_layer_freq", 1) != 1:
        f.assumptions.append("field 'moe_layer_freq' is not read by the class, and taken to be 1")
    f.ignore("moe_layer_freq")


def drafts(d: Decoder, w: Widths, e: Experts, index: Indexer | None = None, *, default: int = 0) -> None:
    """Draft layers: latent attention, with an indexer of its own where the model has one, and experts.

    default: how many the class builds where the config does not say.
    """
    f = d.fields
    if default:
        take_for_granted(f, DRAFTS[:1], [default])
    count = f.maybe_zero(*DRAFTS) or 0

    def block() -> None:
        latent_weights(d, w)
        if index:
            indexer_weights(d, index, w.query or d.hidden)
        expert_weights(d, e, count)
        d.norm(*NORMS)

    part = cached(d, w)
    d.drafts(count, (indexed(part, index, True) if index else part,), block)


def uncounted_drafts(d: Decoder, layer: Layer) -> None:
    """Draft layers that the config names and nobody has described: cached like `layer`."""
    count = d.fields.maybe_zero(*DRAFTS) or 0
    d.draft_mixers += [layer] * count
    if count:
        d.fields.assumptions.append(
            "draft layers are taken to cache as the other layers do; their weights are not known"
        )


def around(d: Decoder, *, tied: bool = False) -> Decoder:
    """Norms, embedding and head; `tied` is the class's default."""
    d.norm(*NORMS)
    d.embedding()
    d.last_norm()
    d.head(tied=tied)
    return d
