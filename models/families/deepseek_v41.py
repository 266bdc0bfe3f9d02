"""DeepSeek V4.1: the window and the pools of V4, where a few layers pool for those after them, and n-gram tables.

No class of transformers builds it yet: weights are named as V4's are there, dimensions have no defaults, and the
tensors add up to those of the released files.
"""

from __future__ import annotations

from capplan.models.decoder import Decoder
from capplan.models.families.compressed import block
from capplan.models.families.experts import DRAFTS, checked
from capplan.models.families.latent import Experts, LatentDecoder
from capplan.models.fields import Fields
from capplan.models.spec import CompressedAttention, Layer

RATIOS = (0, 1, 2)  # tokens to a pooled vector; 0: the window alone
SOURCES, INDEXERS = "kv_source_layer_ids", "index_source_layer_ids"


def deepseek_v41(f: Fields) -> Decoder:
    """Layers of kv_source_layer_ids pool; those of index_source_layer_ids select, for themselves and the next ones."""
    f.ignore(
        "attention_bias", "compress_rope_theta", "swiglu_limit", "hc_eps", "hc_sinkhorn_iters", "gate_temp"
    )
    f.ignore("candidate_source_layer_id", "candidate_topk_blocks", "candidate_block_size")  # what is scored
    d = LatentDecoder(f)
    d.head_dim = f.count("head_dim")
    drafts = f.maybe_zero(*DRAFTS) or 0
    experts = _experts(f, "n_routed_experts", "num_experts_per_tok")
    window = CompressedAttention(d.heads, d.head_dim, f.count("qk_rope_head_dim"), f.count("sliding_window"))
    ratios = _ratios(d, drafts)
    d.mixers = _layers(d, window, ratios)
    # V4's block; a layer joins its channels with what the one before computed, so no head joins them at the end
    block(d, experts)
    _pooling(d, ratios)
    _tables(d)
    if drafts:
        _drafter(d, drafts, (window,))
    d.embedding()
    d.last_norm()
    d.head(tied=False)
    return d


def _experts(f: Fields, count: str, chosen: str) -> Experts:
    total, width = f.count(count), f.count("moe_intermediate_size")
    return Experts(total, checked(f, f.count(chosen), total), width, width * f.count("n_shared_experts"))


def _ratios(d: Decoder, drafts: int) -> list[int]:
    """Tokens to a pooled vector, layer by layer; a list may name those of the draft layers after them."""
    f, name = d.fields, "compress_ratios"
    ratios = f.numbers(name) or []
    if len(ratios) not in (d.layers, d.layers + drafts):
        raise f.error(f"field '{name}' has {len(ratios):,} entries; {d.layers:,}, one a layer, are needed")
    if wrong := [ratio for ratio in ratios if ratio not in RATIOS]:
        raise f.error(f"field '{name}' has {wrong[0]}; accepted: {', '.join(map(str, RATIOS))}")
    return ratios[: d.layers]


def _layer_ids(d: Decoder, name: str) -> list[int]:
    """The layers of a list, in order."""
    found = sorted(set(d.fields.numbers(name) or ()))
    if found and found[-1] >= d.layers:
        raise d.fields.error(f"field '{name}' has {found[-1]}; layers are 0 to {d.layers - 1}")
    return found


def _layers(d: Decoder, window: CompressedAttention, ratios: list[int]) -> list[Layer]:
    """What every layer keeps: its window, and where it is a source the pooled vectors and their index keys."""
    f = d.fields
    heads, width, top_k = map(f.count, ("index_n_heads", "index_head_dim", "index_topk"))
    sources, indexers = _layer_ids(d, SOURCES), _layer_ids(d, INDEXERS)
    first = next((layer for layer in range(d.layers) if ratios[layer]), d.layers)
    for name, listed in ((SOURCES, sources), (INDEXERS, indexers)):
        if alone := [layer for layer in listed if not ratios[layer]]:
            raise f.error(f"field '{name}' has {alone[0]}, a layer that has its window alone")
        if first < d.layers and (not listed or listed[0] > first):
            raise f.error(f"field '{name}' leaves layer {first} without one at or before it")
    found: list[Layer] = []
    for layer, ratio in enumerate(ratios):
        part = window._replace(ratio=ratio, top_k=top_k if ratio else 0, index_pooled=bool(ratio))
        if layer in sources:
            part = part._replace(index_dim=width, index_heads=heads)
        elif ratio:
            part = part._replace(reads_pooled=True)
        found.append((part,))
    return found


def _pooling(d: Decoder, ratios: list[int]) -> None:
    """How tokens become one vector, with a gate where there is more than one; keys are made of what was pooled."""
    f = d.fields
    sources, indexers = _layer_ids(d, SOURCES), _layer_ids(d, INDEXERS)
    gated = sum(ratios[layer] > 1 for layer in sources)
    heads, width = f.count("index_n_heads"), f.count("index_head_dim")
    d.linear("self_attn.compressor.kv_proj", d.head_dim, d.hidden, "attention", layers=len(sources))
    d.linear("self_attn.compressor.gate_proj", d.head_dim, d.hidden, "attention", layers=gated)
    d.norm("self_attn.compressor.kv_norm", width=d.head_dim, layers=len(sources))
    name = "self_attn.indexer"
    d.linear(f"{name}.q_b_proj", heads * width, f.count("q_lora_rank"), "index", layers=len(indexers))
    d.linear(f"{name}.weights_proj", heads, d.hidden, "index", layers=len(indexers))
    d.linear(f"{name}.wk", width, d.head_dim, "index", layers=len(sources))
    d.norm(f"{name}.k_norm", width=width, layers=len(sources))


def _tables(d: Decoder) -> None:
    """Engram: a table of hashed n-grams in a few layers, and what of its rows goes into every channel."""
    f = d.fields
    f.ignore("engram_vocab_size", "engram_pad_id", "engram_pad_token_id", "engram_compressed_vocab_size")
    layers = _layer_ids(d, "engram_layer_ids")
    if not layers:
        f.ignore("engram_num_embeddings", "engram_max_ngram_size", "engram_n_heads", "engram_head_dim")
        return
    rows = f.numbers("engram_num_embeddings", length=len(layers), least=1, most=2**31)
    if rows is None:
        raise f.error("field 'engram_num_embeddings' is missing; the rows of every table are needed")
    sizes, heads = f.count("engram_max_ngram_size") - 1, f.count("engram_n_heads")
    width, channels = f.count("engram_head_dim"), f.count("hc_mult")
    for count in rows:  # a token reads a row of every size and head
        d.ngram_table("engram.embed", count, width, read=min(sizes * heads, count))
    wide = (channels + 1) * d.hidden  # a key for every channel, and a value
    d.linear("engram.wkv", wide, sizes * heads * width, "mlp", layers=len(layers))
    for name in ("q_weight", "k_weight"):
        d.add(f"{d.layer}engram.{name}", (channels, d.hidden), "norm", len(layers))


def _drafter(d: Decoder, drafts: int, cached: Layer) -> None:
    """DSpark: a block of tokens is drafted by a few layers of windows, from what layers of the model had."""
    f = d.fields
    f.ignore("dspark_block_size", "dspark_noise_token_id")
    taps, rank = _layer_ids(d, "dspark_target_layer_ids"), f.count("dspark_markov_rank")
    experts = _experts(f, "dspark_n_routed_experts", "dspark_num_experts_per_tok")

    def weights() -> None:
        block(d, experts)
        d.layer = "mtp.layers.N."
        d.linear("main_proj", d.hidden, len(taps) * d.hidden, "mlp", layers=1)
        d.norm("main_norm", "norm", layers=1)
        for name in ("embed", "head"):
            d.add(f"mtp.markov_head.{name}.weight", (d.vocab, rank), "lookup")
        d.add("mtp.confidence_head.proj.weight", (1, d.hidden + rank), "head")

    d.draft_layers(drafts, cached, weights)
