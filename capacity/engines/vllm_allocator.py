"""What vLLM's allocator makes of the bytes that are free for the cache: blocks, and what its log says of them.

Straight down: a kv_cache_spec for every layer, kv_cache_groups, bytes of a block in the pool that all groups share,
what the longest request needs, blocks, tokens, concurrency. Rules that differ by version are in vllm_versions.toml.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import ceil

from capplan.capacity.engines.vllm_blocks import attention_of, compressed, pools_shared, prefix_caching
from capplan.capacity.engines.vllm_groups import (
    KVCacheGroup,
    RefusedError,
    bytes_per_block,
    in_tuples,
    kv_cache_groups,
    needed_per_block,
)
from capplan.capacity.engines.vllm_rules import Rules, Settings, rules
from capplan.capacity.engines.vllm_specs import KVCacheSpec, kv_cache_specs
from capplan.errors import InputError
from capplan.models.spec import Attention, Model

TOO_LONG = "one_request_does_not_fit"
NO_MEMORY = "other: No available memory for the cache blocks."
NEEDS_FP8 = "other: DeepSeek V4 needs an fp8 cache in this version"

# Methods whose drafts come from no model: the next batch waits for them, so one is in flight
_UNOVERLAPPED = ("ngram", "suffix", "medusa")


@dataclass(frozen=True, slots=True, kw_only=True)
class Allocation:
    """What vLLM does with the bytes; the figures of its log are None where it does not start."""

    kv_cache_specs: tuple[KVCacheSpec, ...]
    kv_cache_groups: tuple[KVCacheGroup, ...] = ()
    enable_prefix_caching: bool
    fits: bool
    error_class: str | None = None
    pool_bytes_per_block: int | None = None
    num_blocks: int | None = None
    reported_kv_tokens: int | None = None  # in the log's line
    max_concurrency: float | None = None
    needed_bytes: int | None = None  # for one request of max_model_len
    est_max_model_len: int | None = None  # where that does not fit: what would, 0 if nothing
    mamba_seqs_ok: bool | None = None  # a block for the state of each of max_num_seqs

    @property
    def block_size(self) -> int | None:
        """Tokens of a block of the group of full attention; of the first group where none is that alone."""
        full = [
            group for group in self.kv_cache_groups if group.kind == "mla" or group.kind.startswith("full")
        ]
        return next((group.block_size for group in (*full, *self.kv_cache_groups)), None)

    @property
    def page_bytes(self) -> int | None:
        """The page of the first group: of a layer, or of all where theirs differ."""
        return self.kv_cache_groups[0].page_size_bytes if self.kv_cache_groups else None

    @property
    def padding_layers(self) -> int:
        """Places for layers that stay empty, since groups are equal."""
        if any(group.uniform for group in self.kv_cache_groups):
            return 0
        counts = [len(group.specs) for group in self.kv_cache_groups]
        return max(counts, default=0) * len(counts) - sum(counts)


def allocate(model: Model, settings: Settings, available_bytes: int) -> Allocation:
    """What vLLM makes of `available_bytes` on each rank.

    Raises InputError for a version, a model or settings whose rules are not on record.

    Not counted: pipeline, data and context parallelism; where ranks differ, the one with the fewest blocks decides.
    """
    held = rules(settings.version)
    specs = kv_cache_specs(model, settings, held)
    caching = prefix_caching(model, settings, held)

    def stopped(why: str, groups: Sequence[KVCacheGroup] = (), **known: int) -> Allocation:
        return Allocation(
            kv_cache_specs=tuple(specs),
            kv_cache_groups=tuple(groups),
            enable_prefix_caching=caching,
            fits=False,
            error_class=why,
            pool_bytes_per_block=known.get("pool"),
            needed_bytes=known.get("needed"),
            est_max_model_len=known.get("longest"),
        )

    try:
        _known_format(model, settings, held)
        groups = kv_cache_groups(specs, held, hybrid=_hybrid(model, settings, held))
    except RefusedError as error:
        return stopped(str(error))
    pool = bytes_per_block(groups, held)
    in_flight = _batches(settings, held) * settings.max_num_batched_tokens

    def needed(max_model_len: int) -> int:
        if held.need == "layers":  # not seen: padding, and that windows may be kept whole
            return sum(spec.blocks(max_model_len, in_flight) * spec.page_size_bytes for spec in specs)
        blocks = sum(group.blocks(max_model_len, in_flight) for group in groups)
        return blocks * needed_per_block(groups, held)

    usable = available_bytes - (pool if held.need == "usable" else 0)
    if usable <= 0:
        return stopped(NO_MEMORY, groups, pool=pool)
    need = needed(settings.max_model_len)
    if need > usable:
        longest = _longest(needed, usable, settings.max_model_len)
        return stopped(TOO_LONG, groups, pool=pool, needed=need, longest=longest)

    num_blocks = available_bytes // pool
    concurrency = num_blocks / _blocks_per_request(groups, settings.max_model_len, in_flight, held)
    if held.tokens_line == "concurrency":
        tokens = int(concurrency * settings.max_model_len)
    else:
        tokens = num_blocks // len(groups) * min(group.block_size for group in groups)
    stateful = any(spec.kind == "mamba" for spec in specs)
    return Allocation(
        kv_cache_specs=tuple(specs),
        kv_cache_groups=tuple(groups),
        enable_prefix_caching=caching,
        fits=True,
        pool_bytes_per_block=pool,
        num_blocks=num_blocks,
        reported_kv_tokens=tokens,
        max_concurrency=concurrency,
        needed_bytes=need,
        mamba_seqs_ok=settings.max_num_seqs <= num_blocks if stateful else None,
    )


def decoding(found: Allocation, tokens: int, held: Rules) -> float:
    """Requests of so many tokens that can decode at once: their prompts are through, so that of a window they keep what
    is in sight."""
    if not found.num_blocks:  # and where vLLM refuses the model, no groups
        return 0.0
    return found.num_blocks / _blocks_per_request(found.kv_cache_groups, tokens, 1, held)


def _known_format(model: Model, settings: Settings, held: Rules) -> None:
    """DeepSeek V4 has one format, which a version may want named; V4.1 one more, on sm100."""
    if not compressed(model):
        return
    asked, accepted = settings.kv_cache_dtype, ["auto", "fp8", "fp8_e4m3", "fp8_ds_mla"]
    if pools_shared(model) and settings.gpu == "sm100" and held.pooled_record == "nvfp4":
        accepted.append("nvfp4_ds_mla")
    if asked not in accepted:
        raise InputError(
            f"kv cache dtype {asked!r} is not one of {model.id}; accepted here: {', '.join(accepted)}"
        )
    if asked == "auto" and not held.compressed_auto:
        raise RefusedError(NEEDS_FP8)


def _hybrid(model: Model, settings: Settings, held: Rules) -> bool:
    """Whether layers of several kinds get groups of their own."""
    chunked = any(isinstance(part, Attention) and part.chunked for part in attention_of(model))
    drafting = settings.num_speculative_tokens > 0 and settings.speculative_method not in _UNOVERLAPPED
    if chunked and (drafting or not held.chunked_groups):
        return False
    return settings.hybrid_kv_cache_manager is not False


def _batches(settings: Settings, held: Rules) -> int:
    """Batches in flight at a time."""
    waits = settings.num_speculative_tokens > 0 and settings.speculative_method in _UNOVERLAPPED
    return 1 if waits else held.batches


def _blocks_per_request(
    groups: Sequence[KVCacheGroup], max_model_len: int, in_flight: int, held: Rules
) -> int:
    """Blocks of the longest request, in all groups."""
    counts = [group.blocks(max_model_len, in_flight) for group in groups]
    if not in_tuples(groups, held):
        return sum(counts)
    pages = sum(count * group.page_size_bytes for count, group in zip(counts, groups, strict=True))
    return ceil(pages / groups[0].page_size_bytes)  # counted in blocks of the first


def _longest(needed: Callable[[int], int], usable: int, max_model_len: int) -> int:
    """The longest request that fits."""
    fitting, failing = 0, max_model_len
    while failing - fitting > 1:
        middle = (fitting + failing) // 2
        fitting, failing = (middle, failing) if needed(middle) <= usable else (fitting, middle)
    return fitting
