"""The cache that every layer asks of vLLM: its kv_cache_spec, layer by layer, on one rank."""

from __future__ import annotations

from collections.abc import Iterator
from math import ceil, lcm
from typing import NamedTuple

from capplan.capacity import precision
from capplan.capacity.engines.vllm_blocks import (
    attention_block,
    attention_of,
    cache_format,
    checkpoint,
    every_block,
    pools_shared,
    prefix_caching,
    rank_heads,
    sparse,
    state_bytes,
    states_of,
)
from capplan.capacity.engines.vllm_rules import GPUS, Rules, Settings
from capplan.errors import InputError
from capplan.models.spec import Attention, CompressedAttention, LatentAttention, Layer, Model, State

LOCAL = ("sliding", "chunked", "sliding_mla")
_FP8_DS_MLA = (512, 64)  # the one geometry that FlashMLA's sparse kernel packs in 656 bytes
# DeepSeek V4: tokens of a block of a compressor's states, by those that it pools
_COMPRESSOR_BLOCKS = {4: 4, 128: 8}


class KVCacheSpec(NamedTuple):
    """The cache of one layer."""

    kind: str  # full | sliding | chunked | mla | sliding_mla | mamba | ring
    block_size: int  # tokens of a block
    page_size_bytes: int  # a block, as it lies in memory
    shape: tuple[int | str, ...]  # what else must be equal for layers to share a group
    window: int | None = None  # tokens in sight; kept, though unused, where the whole context is allocated
    chunked: bool = False
    states: int = 1  # of a recurrent layer: blocks that a request holds
    every_block: bool = False  # and one more for every block after the first
    stride: int = 1  # bytes that a whole block of the pool is a multiple of

    def blocks(self, max_model_len: int, in_flight: int) -> int:
        """Blocks that the longest request holds at most, with so many tokens in flight.

        >>> KVCacheSpec("sliding", 16, 65536, (), window=1024).blocks(32768, in_flight=8192)
        577
        """
        if self.kind == "ring":
            return 1
        if self.kind == "mamba":
            return self.states + (ceil(max_model_len / self.block_size) - 1 if self.every_block else 0)
        if self.kind in ("sliding", "sliding_mla"):
            held = min((self.window or 0) - 1 + in_flight, max_model_len)
            return ceil(held / self.block_size) + 1  # a window may begin inside a block
        if self.kind == "chunked":
            return ceil(min((self.window or 0) + in_flight, max_model_len) / self.block_size)
        return ceil(max_model_len / self.block_size)


def kv_cache_specs(model: Model, settings: Settings, rules: Rules) -> list[KVCacheSpec]:
    """The cache of every layer, in the order of the layers; draft layers last."""
    _checked(model, settings)
    drafts = model.draft_layers if settings.drafts else ()
    if settings.drafts and not any(drafts):
        raise InputError(f"{model.id} has no draft (MTP) layers on record to speculate with")
    own = _specs_of(model, model.layers, settings, rules)
    drafted = _specs_of(model, drafts, settings, rules)
    if settings.speculative_method == "dflash":
        drafted = [_written_ahead(spec) for spec in drafted]
    return [*own, *drafted]


def _specs_of(model: Model, layers: tuple[Layer, ...], settings: Settings, rules: Rules) -> list[KVCacheSpec]:
    block, page = attention_block(model, settings, rules)
    found: list[KVCacheSpec] = []
    for part in (part for layer in layers for part in layer):
        if isinstance(part, State):
            found.append(_state_spec(model, part, settings, rules, block, page))
        elif isinstance(part, CompressedAttention):
            found += _compressed_specs(part, settings, block, _records(model, part, settings, rules))
        elif isinstance(part, LatentAttention):
            found += _latent_specs(model, part, settings, block)
        elif not part.shared:
            found.append(_attention_spec(model, part, settings, rules, block))
            if part.index_dim:
                found += _pooled_specs(part, settings, block)
    return found


def _pooled_specs(part: Attention, settings: Settings, block: int) -> Iterator[KVCacheSpec]:
    """Qwen4-Exp's index: a key for so many tokens, and a ring of those that are not pooled yet, each with its position
    on three axes; in 16 bit whatever the cache is in. Source: vLLM, models/qwen4_exp/common/qsa_cache.py."""
    every, row = part.index_every, 2 * part.index_dim
    yield KVCacheSpec("mla", block, block // every * row, ("pooled", part.index_dim))
    tokens = every * ceil((every + settings.num_speculative_tokens) / every)
    yield KVCacheSpec("ring", tokens, tokens * (row + 3 * 8), ("ring", part.index_dim))


def _written_ahead(spec: KVCacheSpec) -> KVCacheSpec:
    """A layer of a DFlash drafter: its context is written before it attends, and none of it may be freed, so that a
    window is cached as full attention. Source: https://github.com/vllm-project/vllm/issues/50707 (2026-08-21)."""
    return spec._replace(kind="full") if spec.kind == "sliding" else spec


def _checked(model: Model, settings: Settings) -> None:
    """Raises InputError for what is not modelled here."""
    if settings.gpu not in GPUS:
        raise InputError(f"unknown GPU generation {settings.gpu!r}; one of {', '.join(GPUS)}")
    if not any(model.layers):
        raise InputError(f"{model.id} has no layers on record that keep a cache")
    for part in attention_of(model):
        if isinstance(part, Attention) and part.cross:
            raise InputError(f"{model.id} has cross-attention, whose cache vLLM sizes by the encoder")
        if isinstance(part, Attention) and part.index_dim and part.index_every == 1:
            raise InputError(f"{model.id} has block-sparse attention with an index of its own kind")
        if isinstance(part, LatentAttention) and (part.window is not None or part.index_every > 1):
            raise InputError(f"{model.id} has windows or pooled keys of latents, in a layout of vLLM's own")


# --- attention ------------------------------------------------------------------------------------------------


def _attention_spec(
    model: Model, part: Attention, settings: Settings, rules: Rules, block: int
) -> KVCacheSpec:
    kind = "full" if part.window is None else "chunked" if part.chunked else "sliding"
    own_width = rules.value_width == "all" or (rules.value_width == "full" and kind == "full")
    value = part.v_head_dim if own_width else part.head_dim
    heads = rank_heads(part.kv_heads, settings.tensor_parallel_size)
    token = int(heads * precision.head_bytes(cache_format(model, settings), part.head_dim, value))
    shape = (heads, part.head_dim, value)
    window = part.window
    if window and kind == "sliding":
        window += rules.window_shift.get(model.family, 0) + _retained(model, settings, rules)
    return KVCacheSpec(kind, block, block * token, shape, window, part.chunked)


def _retained(model: Model, settings: Settings, rules: Rules) -> int:
    """Tokens that windows keep beside their own, where a chain of draft layers runs over the last ones again."""
    chained = settings.num_speculative_tokens if settings.speculative_method == "mtp" else 0
    chain = min(len(model.draft_layers), chained)
    return settings.num_speculative_tokens - 1 if rules.draft_chain and chain > 1 else 0


def _latent_specs(
    model: Model, part: LatentAttention, settings: Settings, block: int
) -> Iterator[KVCacheSpec]:
    """The latents, whole on every rank, and the keys of an indexer where the layer has its own."""
    kv = cache_format(model, settings)
    if kv == "fp8" and sparse(model) and (part.latent, part.rope) == _FP8_DS_MLA:
        kv = "fp8_ds_mla"
    if not part.shared:
        token = int(precision.latent_bytes(kv, part.latent, part.rope))
        yield KVCacheSpec("mla", block, block * token, (part.latent + part.rope,))
    if part.index_dim:
        token = int(precision.index_bytes(part.index_dim))
        yield KVCacheSpec("mla", block, block * token, ("index", part.index_dim))


class _Records(NamedTuple):
    """How DeepSeek V4's vectors lie in blocks [byte]."""

    raw: int  # a vector of a window
    pooled: int
    page: int  # what pages are multiples of
    tokens: int  # of a block of raw vectors
    stride: int = 1


def _records(model: Model, part: CompressedAttention, settings: Settings, rules: Rules) -> _Records:
    """V4.1 on sm100 has its rotary elements in fp8 as well, and a scale for 32; pooled vectors may be in 4 bit."""
    row = int(precision.compressed_bytes("fp8_ds_mla", part.width, part.rope))
    if not pools_shared(model):
        return _Records(row, row, page=576, tokens=64)
    if settings.gpu != "sm100":
        return _Records(row, row, page=576, tokens=32)
    raw = part.width + part.width // 32
    asked = settings.kv_cache_dtype
    narrow = asked == "nvfp4_ds_mla" or (asked != "fp8_ds_mla" and rules.pooled_record == "nvfp4")
    pooled = part.width // 2 + part.width // 16 if narrow else raw
    # the kernel that came with 4 bit reads blocks as whole records, of either kind
    stride = lcm(raw, pooled) if rules.pooled_record == "nvfp4" else 1
    return _Records(raw, pooled, page=512, tokens=32, stride=stride)


def _compressed_specs(
    part: CompressedAttention, settings: Settings, block: int, records: _Records
) -> Iterator[KVCacheSpec]:
    """DeepSeek V4: raw vectors in a window, pooled vectors, their index, and the compressors' states in fp32."""

    def paged(kind: str, tokens: int, size: int, width: int, window: int | None = None) -> KVCacheSpec:
        page = records.page * ceil(size / records.page)
        return KVCacheSpec(kind, tokens, page, (width, size), window, stride=records.stride)

    yield paged("sliding_mla", records.tokens, records.tokens * records.raw, part.width, part.window)
    if not part.ratio or part.reads_pooled:
        return
    rows = block // part.ratio
    yield paged("mla", block, rows * records.pooled, part.width)
    if part.index_dim:
        yield paged("mla", block, rows * int(precision.index_bytes(part.index_dim)), part.index_dim)
    if part.index_pooled:
        if part.ratio > 1:
            steps = settings.num_speculative_tokens + 2  # drafts, the token after them and the row before
            tokens = max(8, 1 << (steps - 1).bit_length())
            yield KVCacheSpec("ring", tokens, tokens * 2 * part.width * 4, (part.width,))
        return
    both = 2 if part.overlap else 1
    tokens = _COMPRESSOR_BLOCKS.get(part.ratio, part.ratio)
    for width in (part.width, part.index_dim):
        if width:
            state = 2 * both * width * 4  # value and gate
            yield paged("sliding_mla", tokens, tokens * state, width, both * part.ratio)


def promoted(spec: KVCacheSpec, block: int | None, *, alike: bool) -> KVCacheSpec:
    """A windowed layer as it is cached without the hybrid manager: over the whole context."""
    tokens = block or spec.block_size
    return spec._replace(
        kind="mla" if spec.kind == "sliding_mla" else "full",
        block_size=tokens,
        page_size_bytes=spec.page_size_bytes * tokens // spec.block_size,
        shape=spec.shape if alike else (*spec.shape, "promoted"),
    )


# --- recurrent states -----------------------------------------------------------------------------------------


def _state_spec(
    model: Model, state: State, settings: Settings, rules: Rules, block: int, page: int
) -> KVCacheSpec:
    page = page or state_bytes(model, state, settings, rules)
    shape = (state.recurrent, state.conv_channels, state.conv_group_channels)
    drafts = settings.num_speculative_tokens if rules.state_drafts else 0
    if not prefix_caching(model, settings, rules):
        return KVCacheSpec("mamba", settings.max_model_len, page, shape, states=1 + drafts)
    if every_block(states_of(model), rules):
        return KVCacheSpec("mamba", block, page, shape, states=1 + drafts, every_block=True)
    further = 1 if checkpoint(model, state, settings, rules) else 0
    return KVCacheSpec("mamba", block, page, shape, states=2 + drafts + further)
