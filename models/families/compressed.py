"""DeepSeek V4: one vector a token that is key and value at once, in a window, and pools of the tokens before it.

Defaults are those of the class in transformers.
"""

from __future__ import annotations

from capplan.models.decoder import Decoder
from capplan.models.families.experts import DRAFTS, NORMS, routed
from capplan.models.families.latent import Experts, Indexer, LatentDecoder, expert_weights, indexer
from capplan.models.families.latent_sparse import hyper_connections, hyper_head
from capplan.models.fields import Fields, show
from capplan.models.spec import CompressedAttention, Layer

WINDOW, SPARSE, HEAVY = "sliding_attention", "compressed_sparse_attention", "heavily_compressed_attention"
RATIOS = {0: WINDOW, 4: SPARSE, 128: HEAVY}  # as compress_ratios names the kinds, whatever they pool
DEFAULTS = {
    "head_dim": 512,
    "q_lora_rank": 1024,
    "o_groups": 8,
    "o_lora_rank": 1024,
    "sliding_window": 128,
    "moe_intermediate_size": 2048,
    "hc_mult": 4,
    DRAFTS[0]: 1,
}


def deepseek_v4(f: Fields) -> Decoder:
    """Every layer has a window; some pool 4 tokens and select among the pools, some pool 128 and read all."""
    f.defaults = {**f.defaults, **DEFAULTS}
    f.ignore(
        "attention_bias",
        "compress_rope_theta",
        "swiglu_limit",
        "hc_eps",
        "hc_sinkhorn_iters",
        "num_hash_layers",
    )
    d = LatentDecoder(f)
    d.head_dim = f.count("head_dim")
    e, index, drafts = _experts(f), indexer(f, (64, 128, 512)), f.maybe_zero(*DRAFTS) or 0
    kinds, pool = _kinds(d, drafts), _pools(f)
    window = CompressedAttention(d.heads, d.head_dim, _rotary(d), f.count("sliding_window"))
    sparse = window._replace(ratio=pool[SPARSE], overlap=True, top_k=index.top_k)
    sparse = sparse._replace(index_dim=index.width, index_heads=index.heads)
    parts: dict[str, Layer] = {
        WINDOW: (window,),
        SPARSE: (sparse,),
        HEAVY: (window._replace(ratio=pool[HEAVY]),),
    }
    d.mixers = [parts[kind] for kind in kinds]
    bias = f.flag("mlp_bias")
    block(d, e, bias=bias)
    d.drafts(drafts, parts[WINDOW], lambda: block(d, e, bias=bias))
    _pooling(d, "compressor", pool[HEAVY], d.head_dim, layers=kinds.count(HEAVY))
    _pooling(d, "compressor", pool[SPARSE], d.head_dim, layers=kinds.count(SPARSE), overlap=True)
    _index(d, index, pool[SPARSE], layers=kinds.count(SPARSE))
    hyper_head(d, f.count("hc_mult"))
    d.embedding()
    d.last_norm()
    d.head(tied=False)
    return d


def block(d: Decoder, e: Experts, *, bias: bool = False) -> None:
    """A layer without its pools."""
    f = d.fields
    rank, groups, out_rank = f.count("q_lora_rank"), f.count("o_groups"), f.count("o_lora_rank")
    wide = d.heads * d.head_dim
    if wide % groups:
        raise f.error(
            f"field 'o_groups' is {groups}, which does not divide the {wide:,} outputs of the heads"
        )
    d.linear("self_attn.q_a_proj", rank, d.hidden, "attention")
    d.norm("self_attn.q_a_norm", width=rank)
    d.linear("self_attn.q_b_proj", wide, rank, "attention")
    d.linear("self_attn.kv_proj", d.head_dim, d.hidden, "attention")
    d.norm("self_attn.kv_norm", width=d.head_dim)
    # each group has its own rows
    d.linear("self_attn.o_a_proj", groups * out_rank, wide // groups, "attention")
    d.linear("self_attn.o_b_proj", d.hidden, groups * out_rank, "attention")
    d.sinks()
    expert_weights(d, e, d.layers, bias=bias)
    channels = f.count("hc_mult")
    hyper_connections(d, channels, (2 + channels) * channels, 3)
    d.norm(*NORMS)


def _pooling(
    d: Decoder,
    name: str,
    pool: int,
    width: int,
    *,
    layers: int,
    overlap: bool = False,
    bucket: str = "attention",
) -> None:
    """How tokens become one vector: a value and a gate of each, and a bias for its place in the pool."""
    name, wide = f"self_attn.{name}", 2 * width if overlap else width
    d.linear(f"{name}.kv_proj", wide, d.hidden, bucket, layers=layers)
    d.linear(f"{name}.gate_proj", wide, d.hidden, bucket, layers=layers)
    d.norm(f"{name}.kv_norm", width=width, layers=layers)
    if layers:
        d.add(f"{d.layer}{name}.position_bias", (pool, wide), "norm", layers)


def _index(d: Decoder, index: Indexer, pool: int, *, layers: int) -> None:
    name = "compressor.indexer"
    _pooling(d, name, pool, index.width, layers=layers, overlap=True, bucket="index")
    queries = index.heads * index.width
    d.linear(f"self_attn.{name}.q_b_proj", queries, d.fields.count("q_lora_rank"), "index", layers=layers)
    d.linear(f"self_attn.{name}.scorer.weights_proj", index.heads, d.hidden, "index", layers=layers)


def _experts(f: Fields) -> Experts:
    """Routed by content or, in the first layers, by the token itself: the weights are the same."""
    count, chosen = routed(f, 256, 6)
    width = f.count("moe_intermediate_size", "intermediate_size")
    if f.config.get("n_shared_experts", 1) != 1:
        f.assumptions.append("field 'n_shared_experts' is not read by the class, and taken to be 1")
    f.ignore("n_shared_experts")
    return Experts(count, chosen, width, width)


def _kinds(d: Decoder, drafts: int) -> list[str]:
    """The kind of every layer; a list may name those of the draft layers after them."""
    f = d.fields
    lists = {name: f.find(name)[1] for name in ("layer_types", "compress_ratios", "mlp_layer_types")}
    for name, values in lists.items():
        if values is not None and (
            type(values) is not list or len(values) not in (d.layers, d.layers + drafts)
        ):
            raise f.error(
                f"field '{name}' is {show(values)}; a list of {d.layers:,}, one a layer, is accepted"
            )
    kinds, ratios = lists["layer_types"], lists["compress_ratios"]
    if kinds is None and ratios is None:
        f.assume("layer_types", "pools of 128 in the first two layers, then of 128 and of 4 by turns")
        kinds = [SPARSE if layer > 1 and layer % 2 else HEAVY for layer in range(d.layers)]
    elif kinds is None:
        kinds = [RATIOS.get(ratio, ratio) if type(ratio) is int else ratio for ratio in ratios]
    name = "compress_ratios" if lists["layer_types"] is None else "layer_types"
    for kind in kinds:
        if kind not in (WINDOW, SPARSE, HEAVY):
            accepted = ", ".join(map(str, RATIOS) if name == "compress_ratios" else RATIOS.values())
            raise f.error(f"field '{name}' has {show(kind)}; accepted: {accepted}")
    return list(kinds[: d.layers])


def _pools(f: Fields) -> dict[str, int]:
    """Tokens to a pool, by the kind of layer."""
    _, given = f.find("compress_rates")
    pools = {SPARSE: 4, HEAVY: 128} if given is None else given
    if type(pools) is not dict or not {SPARSE, HEAVY} <= pools.keys():
        raise f.error(
            f"field 'compress_rates' is {show(given)}; an object with '{SPARSE}' and '{HEAVY}' is accepted"
        )
    inside = Fields({**pools}, f.where)
    csa, hca = f.maybe("compress_rate_csa"), f.maybe("compress_rate_hca")
    return {SPARSE: csa or inside.count(SPARSE), HEAVY: hca or inside.count(HEAVY)}


def _rotary(d: Decoder) -> int:
    """Elements of the vector that are rotary: a share of it, an eighth unless it is said."""
    f = d.fields
    rotary = f.maybe("qk_rope_head_dim")
    _, share = f.find("partial_rotary_factor")
    if share is None:
        return d.head_dim // 8 if rotary is None else rotary
    if type(share) not in (int, float) or not 0 < share <= 1:
        raise f.error(
            f"field 'partial_rotary_factor' is {show(share)}; a number above 0, 1 at most, is accepted"
        )
    return int(d.head_dim * share)
