"""The terms every question needs: memory, weights, cache and compute of a model on a GPU, at a tier."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import ceil, inf, nan
from operator import index
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Literal, NamedTuple

from capplan.capacity import decode, precision
from capplan.capacity.answer import Working
from capplan.capacity.cache import (
    Cache,
    cache,
    state_bytes_per_request,
    stream_bytes_per_token,
    window_bytes_per_request,
)
from capplan.capacity.concurrency import gpus_for_prompt
from capplan.capacity.kv import kv_bytes_per_request, kv_bytes_per_token
from capplan.capacity.weights import quantized_weight_bytes, weight_bytes
from capplan.errors import DataFileError, InputError, near_misses
from capplan.models.spec import Attention, CompressedAttention, LatentAttention, Model
from capplan.units import gib

if TYPE_CHECKING:
    from capplan.hardware.spec import Gpu

TIERS = ("whiteboard", "engine", "measured")
Tier = Literal["whiteboard", "engine"]

GIB = 2**30
RESERVE = 4 * GIB  # the essay's, for activations and workspace
CONTEXTS = (8_000, 32_000, 128_000)
MOST_TOKENS = 10**12

# A process sees this much less than the driver reports when its own figure is not known: what the driver
# keeps back on NVIDIA parts (616-700 MiB in public logs); AMD parts show a process what they report.
_DRIVER_RESERVE = {"nvidia": 0.6 * GIB}


def known_tier(tier: str) -> Tier:
    """`whiteboard` or `engine`; raises InputError for anything else, `measured` included."""
    if tier == "whiteboard":
        return "whiteboard"
    if tier == "engine":
        return "engine"
    if tier == "measured":
        raise InputError("tier 'measured' needs a calibration file, which a later version reads; use engine")
    nearest = near_misses(tier, TIERS, count=1) if isinstance(tier, str) else []
    hint = f"; did you mean {nearest[0]!r}?" if nearest else ""
    raise InputError(f"unknown tier {tier!r}; one of {', '.join(TIERS)}{hint}")


def as_model(model: str | Model) -> Model:
    """A model by name or path, or as it is."""
    if isinstance(model, Model):
        return model
    if isinstance(model, PathLike):
        from capplan.models.hf import read_config

        return read_config(Path(model))
    if not isinstance(model, str):
        raise InputError(f"model {model!r} is not a name, a path of a config.json or a Model")
    from capplan.models.registry import model as named

    return named(model)


def as_gpu(gpu: str | Gpu) -> Gpu:
    """A GPU by name, or as it is."""
    from capplan.hardware.registry import gpu as named  # not on the way of `capplan kv`
    from capplan.hardware.spec import Gpu

    if isinstance(gpu, Gpu):
        return gpu
    if not isinstance(gpu, str):
        raise InputError(f"gpu {gpu!r} is neither a name (capplan gpus) nor a Gpu")
    return named(gpu)


def known_contexts(contexts: Sequence[int] | int | None, model: Model, work: Working) -> list[int]:
    """The contexts asked for, checked; the usual ones that the model can hold when none was asked for."""
    if contexts is None:
        usual = [context for context in CONTEXTS if context <= (model.max_context or max(CONTEXTS))]
        return usual or [model.max_context or CONTEXTS[0]]
    several = (
        contexts if isinstance(contexts, Iterable) and not isinstance(contexts, (str, bytes)) else (contexts,)
    )
    asked = [whole_tokens(context) for context in several]
    past = [context for context in sorted(set(asked)) if model.max_context and context > model.max_context]
    if past:
        listed = ", ".join(f"{context:,}" for context in past)
        work.warn(f"{listed} tokens: past the {model.max_context:,} that {model.id} was made for")
    if not asked:
        raise InputError("no context given; name at least one, such as 8000")
    return sorted(set(asked))


def whole_tokens(context: object) -> int:
    """A number of tokens; raises InputError for anything but a whole number from 1 to MOST_TOKENS."""
    try:
        count = 0 if isinstance(context, bool) else index(context)  # type: ignore[arg-type]  # numpy's, too
    except TypeError:
        count = 0
    if not 1 <= count <= MOST_TOKENS:
        said = repr(context) if count <= MOST_TOKENS else "past the limit"
        raise InputError(f"context {said} is not a whole number of tokens from 1 to {MOST_TOKENS:,}")
    return count


def number(value: object) -> float:
    """A real number as a float; nan for what is none."""
    try:
        return nan if isinstance(value, (bool, str)) else float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError, OverflowError):
        return nan


def known_reserve(reserve: float | None, tier: Tier, work: Working) -> float:
    """Bytes kept back from weights and cache; 4 GiB when not given."""
    if reserve is None:
        work.assume(f"{gib(RESERVE)} is kept back for activations and workspace (--reserve)")
        reserve = RESERVE
    elif not 0 <= number(reserve) < float("inf"):
        raise InputError(f"reserve {reserve!r} is not a number of bytes, zero or more")
    if tier == "engine":
        work.assume(
            "the reserve stands in for the engine's activation peak, CUDA graphs and communication buffers; "
            "--engine predicts them"
        )
    return float(reserve)


def source_of(gpu: Gpu, key: str) -> str:
    """Where a value of a GPU was read, and when."""
    value = gpu.values[key]
    source = gpu.sources[value.source]
    basis = "" if value.basis == "read" else f", {value.basis}"
    return f"{source.title or source.url}{basis}, checked {source.checked}"


def memory(gpu: Gpu, tier: Tier, work: Working) -> float:
    """Memory that weights and cache can share [byte]: the label in decimal, or what a process sees."""
    label = gpu.memory_label_bytes
    if tier == "whiteboard":
        return work.read("memory", label, "byte", f"{source_of(gpu, 'memory.label')}, read as decimal GB")
    if seen := gpu.memory_visible_bytes:
        return work.read(
            "memory", seen, "byte", f"{source_of(gpu, 'memory.process_visible')}. {_why(gpu, seen)}"
        )
    if reported := gpu.memory_reported_bytes:
        kept = _DRIVER_RESERVE.get(gpu.vendor, 0.0)
        less = f", less {kept / GIB:.1f} GiB that the driver keeps" if kept else ""
        work.assume(f"what a process sees on {gpu.id} was not measured: the driver's figure is used{less}")
        return work.read("memory", reported - kept, "byte", f"{source_of(gpu, 'memory.reported')}{less}")
    work.assume(f"neither the reported nor the visible memory of {gpu.id} is known: the label in decimal GB")
    return work.read("memory", label, "byte", source_of(gpu, "memory.label"))


def memory_name(tier: str, used: float, visible: float | None) -> str:
    """What the figure that `memory` gave is, in words."""
    if tier == "whiteboard":
        return "label, decimal"
    return "visible to a process" if used == visible else "not measured, see below"


def _why(gpu: Gpu, seen: float) -> str:
    """Why a process sees another figure than the label."""
    label, reported = gpu.memory_label_bytes, gpu.memory_reported_bytes
    decimal = f"{gib(seen)} is what a process sees, not the {gib(label)} of {label / 1e9:,.4g} decimal GB"
    counts = ": the label counts GiB and calls them GB" if seen > label else ""
    kept = (
        f"; the driver reports {gib(reported)} and keeps {gib(reported - seen)} of it"
        if reported and reported > seen
        else ""
    )
    return decimal + counts + kept


def automatic(name: str) -> bool:
    return isinstance(name, str) and name.strip().lower() == "auto"


def weights_precision(weights: str, model: Model) -> str:
    """The precision of the weights; `auto` is the checkpoint's own."""
    return model.dtype if automatic(weights) else precision.canonical(weights, precision.WEIGHTS, "weights")


def kv_precision(kv: str, model: Model) -> str:
    """The precision of the cache; `auto` is what the checkpoint was made for, or 16 bit, as engines do."""
    if automatic(kv):
        if model.quantization is not None and model.quantization.kv in precision.KV:
            return model.quantization.kv
        return model.dtype if model.dtype in ("fp16", "fp32") else "bf16"
    return precision.canonical(kv, precision.KV, "kv precision")


def cache_of(model: Model, kv: str, work: Working) -> Cache:
    """The cache of a sequence; its slope is shown as a sum over groups of alike layers."""
    found = cache(model, kv)
    if model.drafts_cached:
        work.assume("draft (MTP) layers are not counted: they are cached and loaded under speculation alone")
    for stream in found.streams:
        if stream.slope and stream.part == "kv_full" and stream.plain:
            layers, kv_heads, head_dim, bytes_per_element = stream.layers, *stream.plain
            work(
                kv_bytes_per_token,
                f"{model.id}, cache in {kv}",
                layers=layers,
                kv_heads=kv_heads,
                head_dim=head_dim,
                bytes_per_element=bytes_per_element,
            )
        elif stream.slope:
            work(
                stream_bytes_per_token,
                f"{stream.part}: {stream.entry}",
                layers=stream.layers,
                entry_bytes=stream.entry_bytes,
                tokens_per_entry=stream.every,
            )
    return found


def request_bytes(found: Cache, context: int, work: Working) -> float:
    """Cache of one request [byte]: slope * T, and what is capped or fixed."""
    total = 0.0
    if found.slope:
        total += work(kv_bytes_per_request, context=context, kv_bytes_per_token=found.slope)
    for stream in found.streams:
        if stream.most is not None:
            total += work(
                window_bytes_per_request,
                f"{stream.part}: {stream.entry}",
                layers=stream.layers,
                entry_bytes=stream.entry_bytes,
                context=context,
                window=stream.most,
            )
        elif not stream.every:
            total += work(
                state_bytes_per_request,
                f"{stream.part}: {stream.entry}",
                layers=stream.layers,
                state_bytes=stream.entry_bytes,
            )
        elif stream.encoder:
            work.assume("the cache of cross-attention is not counted: it holds the encoder's tokens")
    return total


def per_token_at(found: Cache, context: int, work: Working) -> float:
    """Cache of a request over its tokens [byte/token]: the slope, unless windows or states add to it."""
    if all(stream.slope for stream in found.streams):
        return found.slope
    return request_bytes(found, context, work) / context


def weights_in_memory(model: Model, weights: str, tier: Tier, work: Working) -> float:
    """Weights [byte]: one precision throughout at the whiteboard, tensor by tensor for an engine."""
    size = precision.WEIGHTS[weights]
    total = model.parameters_total
    if model.parameters_stated is not None:
        work.assume(f"{model.id} has a stated size of {total:,} parameters, not a list of tensors")
    if tier == "whiteboard" or model.parameters_stated is not None:
        return work(weight_bytes, f"{model.id} in {weights}", parameters=total, bytes_per_parameter=size)
    if model.checkpoint_bytes_read and weights == model.dtype:
        work.assume("the weights are all tensors of the files; an engine may leave draft layers out")
        stored = sum(model.checkpoint_bytes_read.values())
        return work.read("weight_bytes", stored, "byte", "headers of the checkpoint's files")
    if model.quantization is not None and weights == model.dtype:
        return _as_stored(model, work)
    if size >= 2:
        return work(weight_bytes, f"{model.id} in {weights}", parameters=total, bytes_per_parameter=size)
    matrices = model.matrix_parameters
    work.assume(
        f"{weights} weights: the layers' matrices in {weights}; embedding, head, norms and biases in 16 bit"
    )
    return work(
        quantized_weight_bytes,
        f"{model.id} in {weights}",
        matrix_parameters=matrices,
        bytes_per_matrix_parameter=size,
        other_parameters=total - matrices,
        bytes_per_other_parameter=unquantized_bytes(weights),
    )


def _as_stored(model: Model, work: Working) -> float:
    """Weights of a quantized checkpoint as its own config says they are stored [byte], format by format."""
    from capplan.capacity.checkpoint import checkpoint_bytes

    by_dtype: dict[str, tuple[int, float]] = {}
    for part in checkpoint_bytes(model).parts:
        parameters, size = by_dtype.get(part.dtype, (0, 0.0))
        by_dtype[part.dtype] = parameters + part.parameters, size + part.bytes
    return sum(
        work(
            weight_bytes,
            f"{model.id}, stored in {dtype}, scales included",
            parameters=parameters,
            bytes_per_parameter=size / parameters,
        )
        for dtype, (parameters, size) in by_dtype.items()
    )


def unquantized_bytes(weights: str) -> float:
    """Bytes of a parameter that quantization leaves alone."""
    return max(2.0, precision.WEIGHTS[weights])


def peak(gpu: Gpu, weights: str, work: Working) -> tuple[str, float]:
    """The precision products run in and its dense peak [FLOP/second]."""
    found = precision.matrix_rate(weights, gpu.dense_flops)
    if found is None:
        known = ", ".join(gpu.dense_flops) or "none"
        raise DataFileError(
            f"no dense rate that {weights} weights run at is known for gpu {gpu.id!r}; known: {known}"
        )
    dtype, rate = found
    if dtype != weights and not (weights.endswith("fp4") and dtype == "fp4"):
        work.assume(f"{gpu.id} has no {weights} matrix rate on record: products run in {dtype}")
    return dtype, work.read(
        f"peak_flops ({dtype})", rate, "FLOP/second", source_of(gpu, f"dense_flops.{dtype}")
    )


def bandwidth(gpu: Gpu, work: Working) -> float:
    """Memory bandwidth [byte/second]."""
    if not gpu.memory_bandwidth:
        raise DataFileError(f"the memory bandwidth of gpu {gpu.id!r} is not known")
    return work.read("bandwidth", gpu.memory_bandwidth, "byte/second", source_of(gpu, "memory.bandwidth"))


def decode_weights(
    model: Model, weights: str, stored: float, tier: Tier, work: Working
) -> tuple[float, float]:
    """Parameters that multiply a decoded token, and weights read in a step [byte].

    At the whiteboard both are the whole model. Really the input embedding is looked up, one row a token; a
    tied one is read all the same, as the head.
    """
    if tier == "whiteboard" or model.parameters_stated is not None:
        return model.parameters_active, stored
    if model.active_matrix_parameters < model.matrix_parameters:
        work.assume("a decode step reads every expert, as it does at a large batch")
    tied = not model.parameters(("head",))
    looked_up = model.parameters(("position",) if tied else ("position", "embedding"))
    multiplied = model.active_matrix_parameters + model.head_parameters
    return multiplied, stored - looked_up * unquantized_bytes(weights)


def prefill_weights(model: Model, tier: Tier) -> tuple[float, float]:
    """Parameters that multiply every prompt token, and those that multiply only the last: the head."""
    if tier == "whiteboard" or model.parameters_stated is not None:
        return model.parameters_active, 0
    return model.active_matrix_parameters, model.head_parameters


class Seen(NamedTuple):
    """The work of attention in alike layers: heads of a width, over so many tokens at the most."""

    layers: int
    heads: int
    width: float  # of a head, the mean of key and value
    most: float  # tokens that are attended to; infinity: all


def attention_of(model: Model, phase: Literal["prefill", "decode"], work: Working) -> list[Seen]:
    """What attention has to do, group by group.

    Latent attention decodes in the absorbed form (queries meet the latent itself) and prefills in the plain one.
    """
    groups: dict[Seen, int] = {}
    for part in (part for layer in model.layers for part in layer):
        if isinstance(part, Attention):
            if part.cross:
                continue
            seen = Seen(1, part.heads, (part.head_dim + part.v_head_dim) / 2, part.window or inf)
        elif isinstance(part, LatentAttention):
            wide = part.latent + part.rope / 2
            plain = (part.nope + part.rope + part.v_head_dim) / 2
            most = min(part.top_k or inf, part.window or inf)
            seen = Seen(1, part.heads, wide if phase == "decode" else plain, most)
        elif isinstance(part, CompressedAttention):
            seen = Seen(1, part.heads, part.width, part.window + (part.top_k or 0))
            work.assume(
                "attention over pooled vectors is counted as its window and what its indexer lets through"
            )
        else:
            work.assume(
                "the work of recurrent and convolution states is not counted; it is small beside the matrices"
            )
            continue
        groups[seen] = groups.get(seen, 0) + 1
    return [seen._replace(layers=count) for seen, count in groups.items()]


def attention_flops(model: Model, context: int, work: Working) -> float:
    """Work of attention for one decoded token [FLOP/token], over all layers."""
    return sum(
        work(
            decode.attention_flops_per_token,
            layers=seen.layers,
            heads=seen.heads,
            head_dim=seen.width,
            context=min(context, seen.most),
        )
        for seen in attention_of(model, "decode", work)
    )


def decode_intensities(
    model: Model,
    context: int,
    batch: int,
    flops_per_token: float,
    weight_bytes: float,
    kv_bytes_per_token: float,
    work: Working,
) -> dict[str, float]:
    """Work of a token [FLOP], intensity of a decode step and its ceiling [FLOP/byte].

    Each for the linear layers alone, and `_with_attention`.
    """
    attention = attention_flops(model, context, work)
    found = {}
    for suffix, flops in (("", flops_per_token), ("_with_attention", flops_per_token + attention)):
        why = "with attention" if suffix else "linear layers"
        found["flops_per_token" + suffix] = flops
        found["intensity" + suffix] = work(
            decode.decode_intensity,
            why,
            batch=batch,
            flops_per_token=flops,
            weight_bytes=weight_bytes,
            context=context,
            kv_bytes_per_token=kv_bytes_per_token,
        )
        found["ceiling" + suffix] = work(
            decode.decode_intensity_ceiling,
            why,
            flops_per_token=flops,
            context=context,
            kv_bytes_per_token=kv_bytes_per_token,
        )
    return found


def gpus_needed(
    prompt: int, kv_bytes_per_token: float, weight_bytes: float, memory: float, reserve: float, work: Working
) -> int | None:
    """Accelerators whose pooled memory holds the weights and one prompt; None if the reserve takes it all."""
    if memory <= reserve:
        return None
    return at_least(
        work(
            gpus_for_prompt,
            prompt=prompt,
            kv_bytes_per_token=kv_bytes_per_token,
            weight_bytes=weight_bytes,
            memory=memory,
            reserve=reserve,
        )
    )


def whole(requests: float) -> int:
    """Whole requests: the floor, and never below zero."""
    return max(0, int(requests + 1e-9))


def at_least(gpus: float) -> int:
    """Whole accelerators: the ceiling."""
    return ceil(gpus - 1e-9)
