"""The memory of one rank, line by line, and what the engine's start-up log will say of it.

vLLM: the share of the device it may use, less weights, the activation peak of a profiling run, what lies outside of
torch, and from 0.21 an estimate of the CUDA graphs; the rest is the cache, which the allocator divides in blocks.
SGLang and TensorRT-LLM take a share of what is free, before and after the weights are loaded.
"""

from __future__ import annotations

import tomllib
from dataclasses import dataclass, replace
from datetime import date
from functools import cache
from pathlib import Path
from typing import Any

from capplan.capacity import cache as caches
from capplan.capacity import precision
from capplan.capacity.engines.deployment import Deployment
from capplan.capacity.engines.device import GIB, Device
from capplan.capacity.engines.vllm_allocator import Allocation, allocate
from capplan.capacity.engines.vllm_rules import Settings, ordered
from capplan.capacity.engines.weights import RankWeights, quantized, rank_weights, stage_layers
from capplan.capacity.formula import formula
from capplan.errors import InputError
from capplan.models.spec import Attention, LatentAttention, Model, Part

ENGINES = ("vllm", "sglang", "tensorrt-llm")
NEWEST, OLDEST_ALLOCATOR = "0.33.0", "0.11.2"
_V1 = {"cuda": "0.8.0", "rocm": "0.10.0"}  # the first version whose default engine is V1
_HIDDEN_COPIES = 3  # rows that live beside a layer's own: what goes in, the residual, what comes out
_REFUSES_SEQUENCES = (0, 20, 0)  # from here max_num_seqs above the blocks of states is an error
_CHUNKED = (0, 5, 4)  # from here V0 prefills prompts past 32k in chunks (not on ROCm)
_LATENT = (0, 7, 1)  # before, V0 caches keys and values of latent attention in full


@dataclass(frozen=True, slots=True, kw_only=True)
class Budget:
    """What one rank does with its memory [byte]; of a pipeline, the rank that decides."""

    total: float
    requested: float
    weights: float
    activation_peak: float
    non_torch: float
    graphs: float  # what is taken from the cache for them
    graph_memory: float  # what they are expected to take
    kv: float
    weight_parts: dict[str, float]
    num_blocks: int | None
    kv_tokens: int | None  # the log's line
    max_concurrency: float | None
    starts: bool
    why_not: str | None
    longest: int | None  # the largest max_model_len that starts, where the one asked for does not
    allocation: Allocation | None
    deployment: Deployment  # every default filled in
    assumptions: tuple[str, ...]


# --- formulas -------------------------------------------------------------------------------------------------


@formula
def sampler_peak(bytes_per_entry: float, sequences: float, vocabulary: float) -> float:
    r"""Memory of the sampler's warm-up in vLLM's profiling run, on logits gathered from all ranks.

    .. math:: S = c \, n \, V

    Parameters
    ----------
    bytes_per_entry : float
        Bytes a sequence and entry of the vocabulary, all copies together :math:`c` [byte]
    sequences : float
        max_num_seqs, or the batched tokens if those are fewer :math:`n` [-]
    vocabulary : float
        Entries of the vocabulary :math:`V` [-]

    Returns
    -------
    float
        Peak of the sampler :math:`S` [byte]

    Validity: vLLM V1; c is 37.7 up to 0.16 and 14 from 0.17.
    Not counted: hidden states of the batch, workspaces of kernels.
    Source: published start-up logs of vLLM 0.11 to 0.19 on H100 (memory_constants.toml).

    Llama 3 with 1,024 sequences:

    >>> round(sampler_peak(bytes_per_entry=14, sequences=1024, vocabulary=128256) / 2**30, 2)
    1.71
    """
    return bytes_per_entry * sequences * vocabulary


@formula
def forward_peak(tokens: float, hidden_copies: float, hidden: float, inner: float) -> float:
    r"""Activations of a forward pass without a cache: rows of hidden states, and the widest layer's own.

    .. math:: A = 2 \, T \, (k \, d + w)

    Parameters
    ----------
    tokens : float
        Tokens of the batch :math:`T` [token]
    hidden_copies : float
        Rows of hidden states that live at a time :math:`k` [-]
    hidden : float
        Width of the hidden states :math:`d` [-]
    inner : float
        Elements a token of the widest layer: gate, up and product of an mlp, on a rank :math:`w` [-]

    Returns
    -------
    float
        Activations in 16 bit :math:`A` [byte]

    Validity: vLLM's profiling run with compiled or plain layers.
    Not counted: kernels' workspaces.
    Source: vllm issue 10517, 29,000 tokens of Llama 3.1 8B peak at 2.99 GiB.

    >>> round(forward_peak(tokens=29000, hidden_copies=3, hidden=4096, inner=3 * 14336) / 2**30, 2)
    2.99
    """
    return 2 * tokens * (hidden_copies * hidden + inner)


@formula
def kv_bytes_left(
    total: float,
    utilization: float,
    weights: float,
    activation_peak: float,
    non_torch: float,
    graphs: float,
) -> float:
    r"""What vLLM V1 leaves for the cache on a rank.

    .. math:: C = u M - W - A - N - G

    Parameters
    ----------
    total : float
        Memory of the device that a process sees :math:`M` [byte]
    utilization : float
        gpu_memory_utilization :math:`u` [-]
    weights : float
        Weights of the rank :math:`W` [byte]
    activation_peak : float
        Peak of the profiling run above the weights :math:`A` [byte]
    non_torch : float
        Context, NCCL and custom all-reduce buffers :math:`N` [byte]
    graphs : float
        Estimate of the CUDA graphs, from 0.21 on :math:`G` [byte]

    Returns
    -------
    float
        Cache of the rank, negative when there is no room :math:`C` [byte]

    Validity: vLLM; closes within 0.05 GiB on 61 logs of 0.19.0 that print every term.
    Not counted: what other processes hold.
    Source: vLLM 0.33.0, v1/worker/gpu_worker.py, determine_available_memory.

    Llama 3.1 8B on an H100, as logged by 0.19.0 (58.11 GiB):

    >>> GiB = 2**30
    >>> left = kv_bytes_left(79.19 * GiB, 0.95, 14.99 * GiB, 1.89 * GiB, 0.25 * GiB, 0)
    >>> round(left / GiB, 2)
    58.1
    """
    return total * utilization - weights - activation_peak - non_torch - graphs


# --- data -----------------------------------------------------------------------------------------------------


@cache
def _data() -> dict[str, Any]:
    return tomllib.loads(Path(__file__).with_name("memory_constants.toml").read_text("utf-8"))


@cache
def constant(name: str) -> float:
    """A fitted constant; those in GiB as bytes."""
    row = next(row for row in _data()["constant"] if row["id"] == name)
    return float(row["value"]) * (GIB if row["unit"] == "GiB" else 1)


def version_on(day: date) -> str:
    """The vLLM that was current on a day.

    >>> version_on(date(2025, 10, 31))
    '0.11.0'
    """
    found = [version for version, released in _data()["releases"].items() if released <= day]
    return found[-1] if found else next(iter(_data()["releases"]))


def defaults(version: str) -> dict[str, Any]:
    """The defaults of vLLM's flags in a version."""
    found: dict[str, Any] = {}
    for row in _data()["vllm"]:
        if ordered(row["since"] + ".0") <= ordered(version):
            found |= row
    if not found:
        raise InputError(f"vllm {version!r} is older than 0.5, the first whose defaults are on record")
    return found


def with_defaults(model: Model, device: Device, asked: Deployment) -> Deployment:
    """The deployment with every blank flag filled in by the engine's default of its version."""
    if asked.engine not in ENGINES:
        raise InputError(f"engine {asked.engine!r} is not on record; one of {', '.join(ENGINES)}")
    length = asked.max_model_len or model.max_context
    if length is None:
        raise InputError(f"the context of {model.id} is not known; give max_model_len")
    version = (asked.version or NEWEST) if asked.engine == "vllm" else (asked.version or "")
    filled = replace(asked, version=version, max_model_len=length)
    if asked.engine == "sglang":
        table: dict[str, float] = _data()["sglang"]["mem_fraction_static"]
        share = [value for ranks, value in table.items() if int(ranks) <= asked.tensor_parallel_size][-1]
    elif asked.engine == "tensorrt-llm":
        share = float(_data()["tensorrt-llm"]["free_gpu_memory_fraction"])
    else:
        found = defaults(version)
        share = found["gpu_memory_utilization"]
        batch = _batch(found, device)
        tokens = asked.max_num_batched_tokens or batch["max_num_batched_tokens"]
        if asked.max_num_batched_tokens is None and _at_once(version, device, length):
            tokens = max(tokens, length)
        seqs = min(asked.max_num_seqs or batch["max_num_seqs"], tokens)
        filled = replace(filled, max_num_batched_tokens=tokens, max_num_seqs=seqs)
    if filled.gpu_memory_utilization is None:
        filled = replace(filled, gpu_memory_utilization=share)
    return filled


def _is_v0(version: str, device: Device) -> bool:
    return ordered(version) < ordered(_V1["rocm" if device.generation == "rocm" else "cuda"])


def _at_once(version: str, device: Device, length: int) -> bool:
    """Whether a prompt is prefilled in one batch, as V0 does unless it is very long."""
    chunked = length > 32768 and ordered(version) >= _CHUNKED and device.generation != "rocm"
    return _is_v0(version, device) and not chunked


def _batch(found: dict[str, Any], device: Device) -> dict[str, int]:
    a100 = device.generation == "sm80"
    shared = device.name.startswith("gb10") and "largest" in found
    for name in ("largest", "large"):
        size: dict[str, int] | None = found.get(name)
        if size and device.total_bytes >= size["at_least_gib"] * GIB and not a100 and not shared:
            return size
    small: dict[str, int] = found["small"]
    return small


# --- vLLM -----------------------------------------------------------------------------------------------------


def budget(
    model: Model,
    device: Device,
    asked: Deployment,
    *,
    weights_bytes: float | None = None,
    activation_bytes: float | None = None,
    kv_bytes: float | None = None,
) -> Budget:
    """The memory of one rank; `weights_bytes` and the others replace a prediction by what was measured.

    Raises InputError where the model or the flags are not on record for the engine.
    """
    flags = with_defaults(model, device, asked)
    held = _rank_weights(quantized(model, flags.quantization), flags)
    if flags.engine == "vllm" and ordered(_version(flags)) < _LATENT:
        model = _in_full(model)
    weights = held.bytes if weights_bytes is None else weights_bytes
    if flags.engine == "sglang":
        return _sglang(model, device, flags, weights, held.parts, kv_bytes)
    if flags.engine == "tensorrt-llm":
        return _tensorrt(model, device, flags, weights, held.parts, kv_bytes)
    peak = activation_peak(model, device, flags) if activation_bytes is None else activation_bytes
    outside = non_torch(device, flags)
    graph_memory = graph_estimate(model, device, flags)
    graphs = graph_memory if ordered(_version(flags)) >= (0, 21, 0) else 0.0
    share = flags.gpu_memory_utilization or 0.0
    left = kv_bytes_left(device.total_bytes, share, weights, peak, outside, graphs)
    if kv_bytes is not None:
        left = kv_bytes
    if flags.kv_cache_memory_bytes is not None:
        left = float(flags.kv_cache_memory_bytes)
    allocation, assumed = _allocated(model, device, flags, int(left))
    starts, why = _starts(model, flags, allocation, left)
    shown = (
        allocation if starts or not allocation else _at_its_longest(model, device, flags, left, allocation)
    )
    ranks = flags.decode_context_parallel_size
    tokens = shown.reported_kv_tokens if shown else None
    concurrency = _concurrency(shown, flags, starts)
    if allocation is None and left > 0:  # without blocks
        concurrency = left / max(_request_bytes(model, flags), 1.0)
        tokens = int(concurrency * (flags.max_model_len or 0))
    return Budget(
        total=device.total_bytes,
        requested=device.total_bytes * share,
        weights=weights,
        activation_peak=peak,
        non_torch=outside,
        graphs=graphs,
        graph_memory=graph_memory,
        kv=left,
        weight_parts=held.parts,
        num_blocks=shown.num_blocks if shown else None,
        kv_tokens=None if tokens is None else tokens * ranks,
        max_concurrency=concurrency,
        starts=starts,
        why_not=why,
        longest=_longest(allocation, ranks),
        allocation=allocation,
        deployment=flags,
        assumptions=tuple(assumed),
    )


def _version(flags: Deployment) -> str:
    return flags.version or NEWEST


def _rank_weights(stored: Model, flags: Deployment) -> RankWeights:
    tp, dp, experts = flags.tensor_parallel_size, flags.data_parallel_size, flags.enable_expert_parallel
    drafts = flags.num_speculative_tokens > 0 and flags.speculative_method == "mtp"
    if flags.engine == "sglang" and dp > 1:  # its data-parallel attention lies inside the tp ranks
        attention = rank_weights(stored, tp=max(1, tp // dp), drafts=drafts).parts
        parts = rank_weights(stored, tp=tp, expert_parallel=experts, drafts=drafts).parts
        parts |= {name: attention[name] for name in ("attention", "absorbed") if name in attention}
        return RankWeights(parts, (sum(parts.values()),))
    if flags.engine == "tensorrt-llm" and not any(weight.bucket == "head" for weight in stored.weights):
        tables = [weight for weight in stored.weights if weight.bucket == "embedding"]
        heads = tuple(table._replace(bucket="head", name="lm_head.weight") for table in tables[:1])
        stored = replace(stored, weights=(*stored.weights, *heads))  # its engines hold a tied table twice
    return rank_weights(
        stored,
        tp=tp,
        pp=flags.pipeline_parallel_size,
        dp=dp if any(weight.bucket == "experts" for weight in stored.weights) else 1,
        expert_parallel=experts,
        drafts=drafts,
    )


def _in_full(model: Model) -> Model:
    """Latent attention as vLLM cached it before it knew better: every head's key and value, padded to 256."""

    def full(part: Part) -> Part:
        if not isinstance(part, LatentAttention):
            return part
        width = 256 if part.nope + part.rope > 128 else part.nope + part.rope
        return Attention(part.heads, part.heads, width, width)

    return replace(model, layers=tuple(tuple(full(part) for part in layer) for layer in model.layers))


def activation_peak(model: Model, device: Device, flags: Deployment) -> float:
    """The peak of vLLM's profiling run above the weights: the sampler's, or a layer's, whichever is larger."""
    version, tokens = ordered(_version(flags)), flags.max_num_batched_tokens or 0
    v0 = _is_v0(_version(flags), device)
    if _at_once(_version(flags), device, flags.max_model_len or 0):
        tokens = max(tokens, flags.max_model_len or 0)
    hidden, tp = model.hidden_size, flags.tensor_parallel_size
    peak = forward_peak(tokens, _HIDDEN_COPIES, hidden, _widest(model, tp))
    per_entry = constant("sampler_bytes" if version >= (0, 17, 0) else "sampler_bytes_old")
    if flags.pipeline_parallel_size == 1 and not v0:
        logits = sampler_peak(per_entry, flags.max_num_seqs or 0, model.vocab_size or 0)
        peak = max(peak, logits + forward_peak(tokens, 1, hidden, 0))
    return peak + constant("workspace_bytes") + _sparse_workspace(model, flags)


def _sparse_workspace(model: Model, flags: Deployment) -> float:
    """Buffers of sparse latent attention and its indexer, sized by max_model_len (flashmla_sparse.py, indexer.py)."""
    parts = (part for layer in model.layers for part in layer)
    part = next((p for p in parts if isinstance(p, LatentAttention) and p.index_dim), None)
    if part is None:
        return 0.0
    rows = 5 * 2 * (part.latent + part.rope) + 40 * precision.index_bytes(part.index_dim)
    return rows * (flags.max_model_len or 0) + 512 * 2**20


def _widest(model: Model, tp: int) -> float:
    """Elements a token of the widest layer: an mlp's gate, up and product, the rows sent to experts, or what goes into
    a recurrence, before and after its convolution.
    """
    hidden, widest, mixed = model.hidden_size, 0.0, 0.0
    for weight in model.weights:
        leaf = weight.name.removesuffix(".weight").rsplit(".", 1)[-1]
        if weight.bucket in ("mlp", "shared") and len(weight.shape) == 2 and weight.shape[-1] == hidden:
            widest = max(widest, 3 * weight.shape[0] / (2 if "gate_up" in leaf else 1) / tp)
        if weight.bucket == "experts" and len(weight.shape) >= 2:
            inner = max(weight.shape[-2:], key=lambda size: size != hidden)
            if "gate_up" in leaf:
                inner //= 2
            widest = max(widest, weight.chosen * (max(2 * inner / tp, hidden) + inner / tp))
        if weight.bucket == "mixer" and len(weight.shape) == 2 and weight.shape[-1] == hidden:
            mixed += constant("mixer_copies") * weight.shape[0] / tp
    return max(widest, mixed)


def non_torch(device: Device, flags: Deployment) -> float:
    """Memory outside of torch's allocator: context, NCCL and custom all-reduce buffers."""
    recent = ordered(_version(flags)) >= (0, 17, 0)
    if device.generation == "rocm":
        found = constant("non_torch_rocm")
    else:
        found = constant("non_torch" if recent else "non_torch_old")
    if flags.tensor_parallel_size > 1:
        link = "collectives" if device.link == "nvlink" else f"collectives_{device.link}"
        found += constant(link if recent else "collectives_old")
    return found


def graph_estimate(model: Model, device: Device, flags: Deployment) -> float:
    """The engine's own estimate of its CUDA graphs, which falls with the number of sizes that are captured."""
    if flags.enforce_eager or (device.generation == "rocm" and ordered(_version(flags)) < (0, 33, 0)):
        return 0.0
    per_sequence = 1 + flags.num_speculative_tokens
    largest = min(512, 2 * (flags.max_num_seqs or 256) * per_sequence)
    sizes = 3 + largest // 8 if largest <= 256 else 35 + (largest - 256) // 16
    layers = len(model.layers) / flags.pipeline_parallel_size
    return constant("graph_bytes") * layers * sizes / 51


def _settings(flags: Deployment, device: Device, length: int) -> Settings:
    version = _version(flags)
    return Settings(
        version=version if ordered(version) >= ordered(OLDEST_ALLOCATOR) else OLDEST_ALLOCATOR,
        max_model_len=-(-length // flags.decode_context_parallel_size),
        max_num_batched_tokens=flags.max_num_batched_tokens or 8192,
        max_num_seqs=flags.max_num_seqs or 256,
        tensor_parallel_size=flags.tensor_parallel_size,
        kv_cache_dtype=flags.kv_cache_dtype,
        block_size=flags.block_size,
        enable_prefix_caching=flags.enable_prefix_caching,
        num_speculative_tokens=flags.num_speculative_tokens,
        speculative_method=flags.speculative_method or "mtp",
        gpu=device.generation,
    )


def _stage(model: Model, flags: Deployment) -> Model:
    """The layers of the stage that has most of them."""
    if flags.pipeline_parallel_size == 1:
        return model
    counts = stage_layers(len(model.layers), flags.pipeline_parallel_size)
    most = max(range(len(counts)), key=lambda i: counts[i])
    start = sum(counts[:most])
    return replace(model, layers=model.layers[start : start + counts[most]])


def _allocated(
    model: Model, device: Device, flags: Deployment, free: int
) -> tuple[Allocation | None, list[str]]:
    assumed = []
    if ordered(_version(flags)) < ordered(OLDEST_ALLOCATOR):
        assumed.append(f"blocks of vllm {flags.version} are divided as {OLDEST_ALLOCATOR} does")
    drafted = flags.num_speculative_tokens > 0
    if drafted and flags.speculative_method == "mtp" and not any(model.draft_layers):
        flags = replace(flags, speculative_method="draft")
    if drafted and flags.speculative_method not in ("mtp", "ngram"):
        assumed.append("the draft model's weights and cache are not counted: its config is not known")
    settings = _settings(flags, device, flags.max_model_len or 0)
    try:
        return allocate(_stage(model, flags), settings, max(free, 0)), assumed
    except InputError as error:
        assumed.append(f"counted in bytes, without blocks: {error}")
        return None, assumed


def _starts(
    model: Model, flags: Deployment, allocation: Allocation | None, left: float
) -> tuple[bool, str | None]:
    if left <= 0:
        return False, "no memory is left for the cache"
    if allocation is None:
        fits = left >= _request_bytes(model, flags)
        return fits, None if fits else "one request of max_model_len does not fit"
    if not allocation.fits:
        return False, (allocation.error_class or "").removeprefix("other: ").replace("_", " ")
    if allocation.mamba_seqs_ok is False and not flags.enforce_eager:
        if ordered(_version(flags)) >= _REFUSES_SEQUENCES:
            return False, "max_num_seqs exceeds the blocks for recurrent states"
    return True, None


def _request_bytes(model: Model, flags: Deployment) -> float:
    """The cache of the longest request without blocks, where those of the model are not on record."""
    drafts = flags.num_speculative_tokens > 0 and flags.speculative_method == "mtp" and model.drafts_cached
    kv = _format(model, flags)
    kept = caches.cache(model, kv, tp=flags.tensor_parallel_size, drafts=drafts)
    return kept.bytes_at(flags.max_model_len or 0)


def _format(model: Model, flags: Deployment) -> str:
    asked = flags.kv_cache_dtype.strip().lower()
    if asked == "auto":
        return "fp16" if model.dtype == "fp16" else "bf16"
    return precision.canonical({"fp4_e2m1": "nvfp4"}.get(asked, asked), precision.KV, "kv cache dtype")


def _at_its_longest(
    model: Model, device: Device, flags: Deployment, left: float, allocation: Allocation
) -> Allocation | None:
    """The blocks that a pool has which is too small for the longest request."""
    if allocation.fits or not allocation.est_max_model_len:
        return allocation
    shorter = replace(flags, max_model_len=allocation.est_max_model_len * flags.decode_context_parallel_size)
    return _allocated(model, device, shorter, int(left))[0]


def _concurrency(shown: Allocation | None, flags: Deployment, starts: bool) -> float | None:
    if shown is None or shown.max_concurrency is None or starts:
        return shown.max_concurrency if shown else None
    ranks = flags.decode_context_parallel_size
    return (shown.reported_kv_tokens or 0) * ranks / (flags.max_model_len or 1)


def _longest(allocation: Allocation | None, ranks: int) -> int | None:
    if allocation is None or allocation.est_max_model_len is None:
        return None
    return allocation.est_max_model_len * ranks


# --- SGLang and TensorRT-LLM ----------------------------------------------------------------------------------


def _sglang(
    model: Model,
    device: Device,
    flags: Deployment,
    weights: float,
    parts: dict[str, float],
    kv_bytes: float | None,
) -> Budget:
    """mem_fraction_static of what is free at start holds the weights and every pool."""
    outside = constant("non_torch") if device.free_bytes is None else 0.0
    free = device.total_bytes - outside if device.free_bytes is None else device.free_bytes
    static = free * (flags.gpu_memory_utilization or 0.0)
    left = static - weights if kv_bytes is None else kv_bytes
    ratio = float(_data()["sglang"]["swa_full_tokens_ratio"])
    return _pooled(model, device, flags, weights, parts, left, static, outside, ratio)


def _tensorrt(
    model: Model,
    device: Device,
    flags: Deployment,
    weights: float,
    parts: dict[str, float],
    kv_bytes: float | None,
) -> Budget:
    """free_gpu_memory_fraction of what is free once the engine is loaded."""
    outside = constant("non_torch") + (constant("collectives_old") if flags.tensor_parallel_size > 1 else 0.0)
    free = device.total_bytes if device.free_bytes is None else device.free_bytes
    share = flags.gpu_memory_utilization or 0.0
    left = share * (free - weights - outside) if kv_bytes is None else kv_bytes
    return _pooled(model, device, flags, weights, parts, left, device.total_bytes, outside, 1.0)


def _pooled(
    model: Model,
    device: Device,
    flags: Deployment,
    weights: float,
    parts: dict[str, float],
    left: float,
    requested: float,
    outside: float,
    window_share: float,
) -> Budget:
    """Tokens of a pool without groups: full attention whole, windows a share of its tokens."""
    kv = _format(model, flags)
    drafts = flags.num_speculative_tokens > 0 and flags.speculative_method == "mtp" and model.drafts_cached
    sparse = any(getattr(part, "index_dim", 0) for layer in model.layers for part in layer)
    if flags.engine == "sglang" and sparse and kv in ("bf16", "fp16") and model.dtype == "fp8":
        kv = "fp8_ds_mla"  # SGLang's default for DeepSeek V3.2
    found = caches.cache(model, kv, tp=flags.tensor_parallel_size, drafts=drafts)
    windows = sum(s.layers * s.entry_bytes for s in found.streams if s.most is not None and s.every)
    per_token = found.slope + window_share * windows
    states = found.fixed * (flags.max_num_seqs or 0)
    tokens = int((left - states) / per_token) if per_token and left > states else 0
    length = flags.max_model_len or 1
    return Budget(
        total=device.total_bytes,
        requested=requested,
        weights=weights,
        activation_peak=0.0,
        non_torch=outside,
        graphs=0.0,
        graph_memory=0.0,
        kv=left,
        weight_parts=parts,
        num_blocks=None,
        kv_tokens=tokens,
        max_concurrency=tokens / length,
        starts=tokens > 0,
        why_not=None if tokens > 0 else "no memory is left for the cache",
        longest=None if tokens > 0 else 0,
        allocation=None,
        deployment=flags,
        assumptions=(),
    )
