"""The memory of one rank, line by line, and what the engine's start-up log will say of it.

vLLM: the share of the device it may use, less weights, the activation peak of a profiling run, what lies outside of
torch, and from 0.21 an estimate of the CUDA graphs; the rest is the cache, which the allocator divides in blocks.
SGLang and TensorRT-LLM take a share of what is free, before and after the weights are loaded.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from capplan.capacity.engines.cache_format import auto_format
from capplan.capacity.engines.defaults import constant, with_defaults
from capplan.capacity.engines.deployment import Deployment
from capplan.capacity.engines.device import Device
from capplan.capacity.engines.pools import Pool, token_pool, told_by_block, vllm_pool
from capplan.capacity.engines.tensorrt import buffers
from capplan.capacity.engines.vllm_blocks import rank_heads
from capplan.capacity.engines.vllm_memory import (
    activation_peak,
    depends_on_flashinfer,
    graph_estimate,
    graphs_taken,
    kv_bytes_left,
    non_torch,
    sampler_assumed,
    unreserved,
)
from capplan.capacity.engines.weights import (
    RankWeights,
    mixture,
    quantized,
    rank_weights,
    stage_layers,
    table_bytes,
)
from capplan.errors import InputError
from capplan.models.drafters import Drafter, drafter
from capplan.models.spec import Attention, Model
from capplan.units import gib


@dataclass(frozen=True, slots=True, kw_only=True)
class Budget:
    """What one rank does with its memory [byte]; of a pipeline, the stage that decides."""

    total: float
    requested: float
    weights: float
    weight_parts: dict[str, float]
    activation_peak: float
    non_torch: float
    graphs: float  # what is taken from the cache for them
    graph_memory: float  # what they are expected to take
    kv: float
    pool: Pool
    deployment: Deployment  # every default filled in

    @property
    def starts(self) -> bool:
        return self.pool.starts

    @property
    def why_not(self) -> str | None:
        return self.pool.why_not

    @property
    def num_blocks(self) -> int | None:
        return self.pool.num_blocks

    @property
    def kv_tokens(self) -> int | None:
        return self.pool.kv_tokens

    @property
    def max_concurrency(self) -> float | None:
        return self.pool.max_concurrency

    @property
    def assumptions(self) -> tuple[str, ...]:
        return self.pool.assumptions


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

    Where nobody says whether FlashInfer's package is there, and the engine does not start without it, that is the answer.

    Raises InputError where the model or the flags are not on record for the engine.
    """
    known = {"weights_bytes": weights_bytes, "activation_bytes": activation_bytes, "kv_bytes": kv_bytes}
    found = _budget(model, device, asked, **known)
    if not depends_on_flashinfer(device, found.deployment):
        return found
    told = sampler_assumed(model, found.deployment)
    if found.starts:
        without = _budget(model, device, replace(asked, flashinfer=False), **known)
        if not without.starts:
            found, told = without, [_needs_flashinfer(found, without)]
    return replace(found, pool=found.pool._replace(assumptions=(*found.assumptions, *told)))


def _needs_flashinfer(found: Budget, without: Budget) -> str:
    version, more = without.deployment.version, gib(found.kv - without.kv)
    return (
        f"FlashInfer's package is missing, as the wheel of vllm {version} does not bring it: its sampler sorts; with it "
        f"(vLLM's images have it) there are {more} more for the cache, and it starts"
    )


def _budget(
    model: Model,
    device: Device,
    asked: Deployment,
    *,
    weights_bytes: float | None,
    activation_bytes: float | None,
    kv_bytes: float | None,
) -> Budget:
    draft = drafter(asked.draft_model) if asked.draft_model else None
    if draft is not None:
        model, asked = _speculating(model, asked, draft)
    flags = with_defaults(model, device, asked)
    told: list[str] = []
    if flags.kv_cache_dtype.strip().lower() == "auto":
        kv, told = auto_format(model, flags.engine, version=flags.version, quantization=flags.quantization)
        if kv not in ("bf16", "fp16"):
            flags = replace(flags, kv_cache_dtype=kv)
    if flags.engine == "vllm":
        if asked.version and asked.version != flags.version:
            told.append(
                f"vllm {asked.version} does not know {model.id}; {flags.version} is the first that does"
            )
        if flags.hybrid_block is not None:
            flags, block = told_by_block(model, device, flags)
            told += block
    _divides(model, flags)
    stored = quantized(model, flags.quantization)
    held = _rank_weights(stored, flags, device.generation == "rocm", draft)
    tables = table_bytes(stored) if _on_host(flags) else 0.0
    if tables:
        told.append(f"tables of n-grams lie in host memory: {gib(tables)} for each replica of the model")
    if flags.engine != "vllm":
        static = _static(model, device, flags, held, weights_bytes, kv_bytes)
        return replace(static, pool=static.pool._replace(assumptions=(*static.assumptions, *told)))
    outside, graph_memory = non_torch(device, flags), graph_estimate(model, device, flags)
    graphs = graph_memory if graphs_taken(model, flags) else 0.0
    told += unreserved(model, device, flags, graph_memory)
    share, counts = flags.gpu_memory_utilization or 0.0, stage_layers(len(model.layers), len(held.stages))
    stages = []
    for stage, layers in enumerate(counts):
        weights = held.stages[stage] if weights_bytes is None else weights_bytes
        peak = activation_bytes
        if peak is None:
            last = stage == len(counts) - 1
            peak = activation_peak(model, device, flags, samples=last, taps=draft.taps if draft else 0)
        left = kv_bytes_left(device.total_bytes, share, weights, peak, outside, graphs)
        start = sum(counts[:stage])
        if _caches(model, start, layers) or len(counts) == 1:
            stages.append((left / layers, start, layers, weights, peak, left))
    _, start, layers, weights, peak, left = min(stages)  # the one with the least room for a layer
    if kv_bytes is not None:
        left = kv_bytes
    if flags.kv_cache_memory_bytes is not None:
        left = float(flags.kv_cache_memory_bytes)
    here = model if len(counts) == 1 else model._replace(layers=model.layers[start : start + layers])
    pool = vllm_pool(here, device, flags, left)
    return Budget(
        total=device.total_bytes,
        requested=device.total_bytes * share,
        weights=weights,
        weight_parts=held.parts,
        activation_peak=peak,
        non_torch=outside,
        graphs=graphs,
        graph_memory=graph_memory,
        kv=left,
        pool=pool._replace(assumptions=(*pool.assumptions, *told)),
        deployment=flags,
    )


def _speculating(model: Model, asked: Deployment, draft: Drafter) -> tuple[Model, Deployment]:
    """The model with a drafter's layers in place of draft layers of its own."""
    if asked.engine != "vllm":
        raise InputError(f"a draft model under {asked.engine} is not planned yet")
    width, own = draft.model.hidden_size, model.hidden_size
    if width and own and width != own:
        raise InputError(
            f"drafter {draft.model.id} reads hidden states of {width:,}, and those of {model.id} have {own:,}"
        )
    tokens = asked.num_speculative_tokens or draft.tokens
    flags = replace(asked, speculative_method=draft.method, num_speculative_tokens=tokens)
    return model._replace(draft_layers=draft.model.layers, draft_weights=()), flags


def _caches(model: Model, start: int, layers: int) -> bool:
    """Whether any of the layers keeps a cache of its own."""
    parts = (part for layer in model.layers[start : start + layers] for part in layer)
    return any(not getattr(part, "shared", False) for part in parts)


def _divides(model: Model, flags: Deployment) -> None:
    """Raises InputError where heads can't be split over the ranks that share attention."""
    ranks = max(1, flags.tensor_parallel_size // flags.attention_replicas)
    for part in (part for layer in model.layers for part in layer):
        heads = getattr(part, "heads", 1)
        if heads > 1 and heads % ranks:
            raise InputError(f"the {heads} heads of {model.id} can't be split over {ranks} ranks")
        if isinstance(part, Attention) and flags.engine != "tensorrt-llm":  # which rounds KV heads up
            rank_heads(part.kv_heads, ranks)


def _rank_weights(stored: Model, flags: Deployment, rocm: bool, draft: Drafter | None) -> RankWeights:
    tp, dp, experts = flags.tensor_parallel_size, flags.data_parallel_size, flags.enable_expert_parallel
    drafts, on_host = flags.drafts_itself, _on_host(flags)
    if flags.attention_replicas > 1:
        attention = rank_weights(stored, tp=max(1, tp // dp), drafts=drafts).parts
        whole = rank_weights(stored, tp=tp, expert_parallel=experts, drafts=drafts, tables_on_host=on_host)
        parts = dict(whole.parts)
        parts |= {name: attention[name] for name in ("attention", "absorbed") if name in attention}
        return RankWeights(parts, (sum(parts.values()),))
    if flags.engine == "tensorrt-llm" and not any(weight.bucket == "head" for weight in stored.weights):
        tables = [weight for weight in stored.weights if weight.bucket == "embedding"]
        heads = tuple(table._replace(bucket="head", name="lm_head.weight") for table in tables[:1])
        stored = stored._replace(weights=(*stored.weights, *heads))  # its engines hold a tied table twice
    return rank_weights(
        stored,
        tp=tp,
        pp=flags.pipeline_parallel_size,
        dp=dp if flags.engine == "vllm" and mixture(stored) else 1,
        expert_parallel=experts,
        drafts=drafts,
        drafter=draft.model if draft else None,
        rocm=rocm,
        tables_on_host=on_host,
    )


def _on_host(flags: Deployment) -> bool:
    """Whether tables of n-grams lie in host memory, as vLLM puts them where it is not told."""
    return flags.engine == "vllm" if flags.tables_on_host is None else flags.tables_on_host


def _static(
    model: Model,
    device: Device,
    flags: Deployment,
    held: RankWeights,
    weights_bytes: float | None,
    kv_bytes: float | None,
) -> Budget:
    """SGLang: mem_fraction_static of what is free at start holds weights and pools. TensorRT-LLM:
    free_gpu_memory_fraction of what is free once the engine is loaded.
    """
    counted = flags.engine == "sglang" and device.unified  # as memory that is no longer free
    loaded = held.bytes + (constant("sglang_unified") if counted else 0.0)
    weights = loaded if weights_bytes is None else weights_bytes
    share = flags.gpu_memory_utilization or 0.0
    outside = constant("non_torch")
    if flags.engine == "sglang":
        free = device.total_bytes - outside if device.free_bytes is None else device.free_bytes
        requested = free * share
        left = requested - weights
    else:
        if flags.tensor_parallel_size > 1:
            outside += constant("collectives_plain")
        outside += buffers(model, flags)
        free = (device.free_bytes or device.total_bytes) - weights - outside
        left = share * free
        requested = weights + outside + left
    left = left if kv_bytes is None else kv_bytes
    return Budget(
        total=device.total_bytes,
        requested=requested,
        weights=weights,
        weight_parts=held.parts | ({"load": loaded - held.bytes} if loaded > held.bytes else {}),
        activation_peak=0.0,
        non_torch=outside,
        graphs=0.0,
        graph_memory=0.0,
        kv=left,
        pool=token_pool(model, flags, left),
        deployment=flags,
    )
