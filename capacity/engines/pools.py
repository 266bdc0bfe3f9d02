"""What the bytes that are left become: vLLM's blocks, or the token pools of SGLang and TensorRT-LLM."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import NamedTuple

from capplan.capacity import precision
from capplan.capacity.cache import Cache, cache
from capplan.capacity.engines.defaults import NEWEST, data, version_of
from capplan.capacity.engines.deployment import Deployment
from capplan.capacity.engines.device import Device
from capplan.capacity.engines.vllm_allocator import Allocation, allocate, decoding
from capplan.capacity.engines.vllm_blocks import attention_block, states_of
from capplan.capacity.engines.vllm_rules import Settings, ordered, rules
from capplan.errors import InputError
from capplan.models.spec import Attention, LatentAttention, Model, Part

OLDEST_ALLOCATOR = "0.11.2"  # the first whose blocks are on record
_LATENT = (0, 7, 1)  # before, vLLM caches keys and values of latent attention in full
_REFUSES_SEQUENCES = (0, 20, 0)  # from here max_num_seqs above the blocks of states is an error
_MOST_SPECULATED = 32  # tokens at a time that a block may tell of
NO_MEMORY = "no memory is left for the cache"
TOO_LONG = "one request of max_model_len does not fit in the cache"


class Pool(NamedTuple):
    """The cache of a rank, and whether the engine starts with it."""

    starts: bool
    why_not: str | None = None
    num_blocks: int | None = None
    kv_tokens: int | None = None  # as the log counts them
    max_concurrency: float | None = None
    longest: int | None = None  # the largest max_model_len that starts, where the one asked for does not
    needed_bytes: float | None = None  # for one request of max_model_len
    decoding: Callable[[int], float] | None = (
        None  # requests of so many tokens at once; where blocks are on record
    )
    assumptions: tuple[str, ...] = ()


def vllm_pool(model: Model, device: Device, flags: Deployment, left: float) -> Pool:
    """What vLLM's allocator makes of the bytes; of a model whose blocks are not on record, counted in bytes."""
    if version_of(flags) < _LATENT:
        model = _in_full(model)
    assumed = []
    if version_of(flags) < ordered(OLDEST_ALLOCATOR):
        assumed.append(f"blocks of vllm {flags.version} are divided as {OLDEST_ALLOCATOR} does")
    if flags.num_speculative_tokens and not _drafted(model, flags) and flags.speculative_method != "ngram":
        assumed.append("the draft model's weights and cache are not counted: its config is not known")
    try:
        found = allocate(model, _settings(model, device, flags), max(int(left), 0))
    except InputError as error:
        assumed.append(f"counted in bytes, without blocks: {error}")
        return _in_bytes(model, flags, left, tuple(assumed))
    return _in_blocks(model, device, flags, left, found, tuple(assumed))


def told_by_block(model: Model, device: Device, flags: Deployment) -> tuple[Deployment, list[str]]:
    """The deployment that makes the block which a hybrid's log tells, and what that takes for granted.

    States grow with the tokens speculated. Where no number of them makes the block, it is taken as it is.
    """
    said = flags.num_speculative_tokens
    if not states_of(model):  # a block that was asked for, after all
        return replace(flags, block_size=flags.hybrid_block, hybrid_block=None), []
    for tokens in (said,) if said or not model.drafts_cached else range(_MOST_SPECULATED + 1):
        method = flags.speculative_method or ("mtp" if tokens else None)
        tried = replace(flags, num_speculative_tokens=tokens, speculative_method=method, hybrid_block=None)
        settings = _settings(model, device, tried)
        try:
            block = attention_block(model, settings, rules(settings.version))[0]
        except InputError:
            break  # a block that is not on record
        if block == flags.hybrid_block:
            told = f"a block of {flags.hybrid_block:,} tokens: {tokens} are speculated at a time (MTP)"
            return tried, [] if tokens == said else [told]
    return flags, [f"a block of {flags.hybrid_block:,} tokens is taken as it is"]


def _in_blocks(
    model: Model, device: Device, flags: Deployment, left: float, found: Allocation, assumed: tuple[str, ...]
) -> Pool:
    ranks = flags.decode_context_parallel_size
    why, shown = _why_not(flags, found, left), found
    if (
        not found.fits and found.est_max_model_len
    ):  # the blocks are there, if not enough for the longest request
        shorter = replace(flags, max_model_len=found.est_max_model_len * ranks)
        shown = allocate(model, _settings(model, device, shorter), int(left))
    tokens = None if shown.reported_kv_tokens is None else shown.reported_kv_tokens * ranks
    concurrency, longest = shown.max_concurrency, found.est_max_model_len
    if _too_few_states(flags, shown):
        longest = 0  # a shorter request needs its state too
    if not found.fits and tokens is not None:
        concurrency = tokens / (flags.max_model_len or 1)
    return Pool(
        starts=why is None,
        why_not=why,
        num_blocks=shown.num_blocks,
        kv_tokens=tokens,
        max_concurrency=concurrency,
        longest=None if longest is None else longest * ranks,
        needed_bytes=found.needed_bytes,
        decoding=partial(decoding, shown, held=rules(_settings(model, device, flags).version)),
        assumptions=assumed,
    )


def _why_not(flags: Deployment, found: Allocation, left: float) -> str | None:
    if left <= 0:
        return NO_MEMORY
    if not found.fits:
        told = (found.error_class or "").removeprefix("other: ")
        return TOO_LONG if told == "one_request_does_not_fit" else told
    if _too_few_states(flags, found):
        return f"max_num_seqs {flags.max_num_seqs} exceeds the {found.num_blocks} blocks for recurrent states"
    return None


def _too_few_states(flags: Deployment, found: Allocation) -> bool:
    """Whether vLLM refuses to start, since there is no block for the state of each of max_num_seqs."""
    refuses = version_of(flags) >= _REFUSES_SEQUENCES and not flags.enforce_eager
    return refuses and found.mamba_seqs_ok is False


def _settings(model: Model, device: Device, flags: Deployment) -> Settings:
    recorded = version_of(flags) >= ordered(OLDEST_ALLOCATOR)
    drafted, named = _drafted(model, flags), flags.speculative_method
    method = named if named and (drafted or named == "ngram") else "draft"
    return Settings(
        version=(flags.version or NEWEST) if recorded else OLDEST_ALLOCATOR,
        max_model_len=-(-(flags.max_model_len or 1) // flags.decode_context_parallel_size),
        max_num_batched_tokens=flags.max_num_batched_tokens or 8192,
        max_num_seqs=flags.max_num_seqs or 256,
        tensor_parallel_size=flags.tensor_parallel_size,
        kv_cache_dtype=flags.kv_cache_dtype,
        block_size=flags.block_size,
        hybrid_block=flags.hybrid_block,
        enable_prefix_caching=flags.enable_prefix_caching,
        num_speculative_tokens=flags.num_speculative_tokens,
        speculative_method=method,
        gpu=device.generation,
        flashinfer=flags.flashinfer is not False,
    )


def _drafted(model: Model, flags: Deployment) -> bool:
    """Whether draft layers on record speculate: the model's own, or a drafter's in their place."""
    drafter = flags.num_speculative_tokens > 0 and flags.draft_model is not None
    return (flags.drafts_itself or drafter) and model.drafts_cached


def _in_full(model: Model) -> Model:
    """Latent attention as vLLM cached it before it knew better: every head's key and value, padded to 256."""

    def full(part: Part) -> Part:
        if not isinstance(part, LatentAttention):
            return part
        width = 256 if part.nope + part.rope > 128 else part.nope + part.rope
        return Attention(part.heads, part.heads, width, width)

    return model._replace(layers=tuple(tuple(full(part) for part in layer) for layer in model.layers))


# --- without blocks -------------------------------------------------------------------------------------------


def _format(model: Model, flags: Deployment) -> str:
    asked = flags.kv_cache_dtype.strip().lower()
    if asked == "auto":
        return "fp16" if model.dtype == "fp16" else "bf16"
    return precision.canonical({"fp4_e2m1": "nvfp4"}.get(asked, asked), precision.KV, "kv cache dtype")


def _kept(model: Model, flags: Deployment) -> Cache:
    kv, ranks = _format(model, flags), flags.tensor_parallel_size
    ranks = max(1, ranks // flags.attention_replicas)
    if flags.engine == "sglang":
        sparse = any(getattr(part, "index_dim", 0) for layer in model.layers for part in layer)
        if sparse and flags.kv_cache_dtype == "auto" and model.dtype == "fp8":
            kv = "fp8_ds_mla"  # its choice for DeepSeek V3.2
    return cache(model, kv, tp=ranks, drafts=_drafted(model, flags))


def _in_bytes(model: Model, flags: Deployment, left: float, assumed: tuple[str, ...]) -> Pool:
    length = flags.max_model_len or 1
    need = _kept(model, flags).bytes_at(length)
    concurrency = max(left, 0.0) / need if need else 0.0
    why = NO_MEMORY if left <= 0 else TOO_LONG if concurrency < 1 else None
    return Pool(
        starts=why is None,
        why_not=why,
        kv_tokens=int(concurrency * length),
        max_concurrency=concurrency,
        needed_bytes=need,
        assumptions=assumed,
    )


def token_pool(model: Model, flags: Deployment, left: float) -> Pool:
    """Tokens of a pool without groups: full attention whole, windows a share of its tokens, states beside them."""
    kept = _kept(model, flags)
    window_share = _window_share(model) if flags.engine == "sglang" else 1.0
    windows = sum(s.layers * s.entry_bytes for s in kept.streams if s.most is not None and s.every)
    per_token = kept.slope + window_share * windows
    states = kept.fixed * (flags.max_num_seqs or 0)
    tokens = int((left - states) / per_token) if per_token and left > states else 0
    return Pool(
        starts=tokens > 0,
        why_not=None if tokens else NO_MEMORY,
        kv_tokens=tokens,
        max_concurrency=tokens / (flags.max_model_len or 1),
        longest=None if tokens else 0,
    )


def _window_share(model: Model) -> float:
    """Tokens of SGLang's pool of windows for one of the pool of everything."""
    found = data()["sglang"]
    return float(found["swa_full_tokens_ratio_of"].get(model.family, found["swa_full_tokens_ratio"]))
