"""Qwen4-Exp: delta nets, sparse attention by pooled index keys, several residual channels, tables of n-grams.

Defaults are those of the family's class in transformers.
"""

from __future__ import annotations

from capplan.models.decoder import Decoder
from capplan.models.families.linear import MTP, every_few, gated_attention, gated_experts, qwen_delta_net
from capplan.models.families.states import FULL, INDEXED, LINEAR, convolution, kinds
from capplan.models.fields import Fields
from capplan.models.spec import Attention, Layer, State

MOST_TABLES = 4_096
INDEXER = (
    "indexer_n_heads",
    "indexer_kv_heads",
    "indexer_head_dim",
    "indexer_budget",
    "indexer_compress_ratio",
)


def qwen4_exp(f: Fields) -> Decoder:
    d = Decoder(f, kv_heads=2, head_dim=256)
    f.ignore(
        "output_gate_type", "mamba_ssm_dtype", "mlp_only_layers", "intermediate_size", "split_ngram_parts"
    )
    f.ignore("seed", "number_of_conv_states")
    listed = kinds(d, (INDEXED, FULL, LINEAR), every_few(d, INDEXED))
    listed = [INDEXED if kind == FULL else kind for kind in listed]
    linear, attending = listed.count(LINEAR), listed.count(INDEXED)
    state, attention = qwen_delta_net(d, linear), d.full_attention
    gated_attention(d, attending)
    if attending:
        width, pooled = _indexer(d, attending)
        attention = attention._replace(index_dim=width, index_every=pooled)
    f.ignore(*INDEXER)
    channels = _hyper_connections(d)
    parts: dict[str, Layer] = {INDEXED: (attention,), LINEAR: (state,)}
    d.mixers = [parts[kind] for kind in listed]
    _tables(d, channels, listed)
    gated_experts(d, d.layers, (512, 10))
    d.embedding()
    d.head(tied=False)
    _drafts(d, attention)
    return d


def _drafts(d: Decoder, attention: Attention) -> None:
    """A draft layer attends and routes like the others; its residual channels, 1% of it, are not on record."""
    d.fields.ignore("mtp", "mtp_use_dedicated_embeddings")

    def block() -> None:
        gated_attention(d, d.layers)
        if attention.index_dim:
            _indexer(d, d.layers)
        gated_experts(d, d.layers, (512, 10))

    d.drafts(d.fields.maybe_zero(*MTP) or 0, (attention,), block)


def _indexer(d: Decoder, layers: int) -> tuple[int, int]:
    """What selects blocks of tokens: width of its key, and tokens to one key."""
    f, name = d.fields, "self_attn.indexer"
    heads, kv_heads, width, budget, pooled = map(f.count, INDEXER)
    if kv_heads != 1:
        raise f.error(f"field 'indexer_kv_heads' is {kv_heads}; 1 is supported")
    if budget % pooled:
        raise f.error(
            f"field 'indexer_compress_ratio' is {pooled}, which does not divide the budget of {budget}"
        )
    d.linear(f"{name}.index_qk_proj", (heads + 1) * width, d.hidden, "index", layers=layers)
    d.norm(f"{name}.q_layernorm", f"{name}.k_layernorm", width=width, layers=layers)
    return width, pooled


def _hyper_connections(d: Decoder) -> int:
    """Residual channels: how they are mixed before attention and mlp and joined at the end. Returns their number."""
    f = d.fields
    channels, rank = f.count_or(4, "hc_count"), f.count_or(320, "hc_lowrank")
    if channels < 2:
        raise f.error(f"field 'hc_count' is {channels}; 2 or more is accepted")
    wide = channels * d.hidden
    for name, bucket in (("attn_hyper_connection", "attention"), ("mlp_hyper_connection", "mlp")):
        d.norm(f"{name}.hc_norm", width=wide)
        d.linear(f"{name}.input_mix_weight_down", rank, wide, bucket)
        d.linear(f"{name}.input_mix_weight_up", wide, rank, bucket)
        d.linear(f"{name}.block_inject_weight", channels, wide, bucket)
    last = "model.hyper_connection_mixer"
    d.add(f"{last}.hc_norm.weight", (wide,), "norm")
    d.add(f"{last}.input_mix_weight_down.weight", (rank, wide), "mlp")
    d.add(f"{last}.input_mix_weight_up.weight", (wide, rank), "mlp")
    return channels


def _tables(d: Decoder, channels: int, listed: list[str]) -> None:
    """Layers that look up the last few tokens in hashed tables, and convolve what they find."""
    f = d.fields
    names = (
        "ple_embed_dim",
        "ple_conv_kernel_size",
        "ngram_size",
        "heads_per_ngram",
        "ngram_vocab_size_base",
    )
    ids = sorted(set(f.numbers("ple_layer_ids", least=1) or ()))  # the first layer is 1
    if not ids:
        f.ignore(*names, "make_ngram_vocab_size_divisible_by")
        return
    if wrong := [i for i in ids if i > d.layers or listed[i - 1] != LINEAR]:
        raise f.error(
            f"field 'ple_layer_ids' has {wrong[0]}, which is not the number of a linear_attention layer"
        )
    width, kernel = f.maybe("ple_embed_dim") or d.hidden, f.count_or(4, "ple_conv_kernel_size")
    size = f.count_or(3, "ngram_size")
    heads = (size - 1) * f.count_or(8, "heads_per_ngram")
    if not heads or width % heads or heads * len(ids) > MOST_TABLES:
        raise f.error(f"field 'ple_embed_dim' is {width}, which {heads} heads of n-grams do not divide")
    base = f.maybe("ngram_vocab_size_base", most=2**31) or f.assume("ngram_vocab_size_base", 20_000_000)
    whole = f.count_or(128, "make_ngram_vocab_size_divisible_by")
    primes = _primes(base, heads * len(ids))
    for i in range(len(ids)):
        rows = sum(primes[i * heads : (i + 1) * heads])
        rows = -(-rows // whole) * whole
        d.ngram_table("ple.ple_embedding.ngram_embedding", rows, width // heads, read=heads)
    wide, layers = channels * d.hidden, len(ids)
    d.linear("ple.key_proj", wide, width, "mlp", layers=layers)
    d.linear("ple.value_proj", d.hidden, width, "mlp", layers=layers)
    d.norm("ple.norm_key", "ple.norm_query", "ple.norm_conv", width=wide, layers=layers)
    convolution(d, "ple.conv1d", wide, kernel, layers=layers)
    # the convolution skips between tokens; every rank has all of its channels
    reach = (kernel - 1) * size + 1
    state = State("conv", conv_channels=wide, conv_kernel=reach, held_spare=0)
    d.mixers = [(*layer, state) if i + 1 in ids else layer for i, layer in enumerate(d.layout)]


def _primes(start: int, count: int) -> list[int]:
    """The first so many primes from `start` on: each head hashes into a table of another size."""
    found: list[int] = []
    number = start
    while len(found) < count:
        if _is_prime(number):
            found.append(number)
        number += 1
    return found


def _is_prime(number: int) -> bool:
    """Miller and Rabin's test, which is exact below 3.2e9 with these bases."""
    if number < 11:
        return number in (2, 3, 5, 7)
    if any(number % small == 0 for small in (2, 3, 5, 7)):
        return False
    twos = (number - 1 & 1 - number).bit_length() - 1
    odd = number - 1 >> twos
    for base in (2, 3, 5, 7):
        power = pow(base, odd, number)
        if power in (1, number - 1):
            continue
        if not any((power := power * power % number) == number - 1 for _ in range(twos - 1)):
            return False
    return True
