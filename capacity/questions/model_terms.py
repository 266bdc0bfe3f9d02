"""What a model takes: its cache, its weights, the work of a token, at a tier."""

from __future__ import annotations

from math import ceil, inf
from typing import Any, Literal, NamedTuple

from capplan.capacity import decode, precision
from capplan.capacity.answer import Working
from capplan.capacity.cache import (
    Cache,
    cache,
    cache_bytes_per_request,
    growing_bytes_per_token,
    state_bytes_per_request,
    stream_bytes_per_token,
    window_bytes_per_request,
)
from capplan.capacity.concurrency import gpus_for_prompt
from capplan.capacity.kv import kv_bytes_per_request, kv_bytes_per_token
from capplan.capacity.questions.asked import Tier
from capplan.capacity.weights import quantized_weight_bytes, weight_bytes
from capplan.models.spec import Attention, CompressedAttention, LatentAttention, Model


def cache_of(model: Model, kv: str, work: Working, tp: int = 1) -> Cache:
    """The cache of a sequence on a rank; its slope is shown as a sum over groups of alike layers."""
    found = cache(model, kv, tp=tp)
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
        if stream.part == "recurrent_state":
            work.assume(f"recurrent states in {stream.entry.rpartition(' in ')[2]}, as vLLM keeps them")
    growing = [stream for stream in found.streams if stream.slope]
    if len(growing) > 1:
        index = sum(stream.slope for stream in growing if stream.part.startswith("index"))
        work(growing_bytes_per_token, "the sum", kv_bytes=found.slope - index, index_bytes=index)
    return found


def request_bytes(found: Cache, context: int, work: Working) -> float:
    """Cache of one request [byte]: slope * T, and what is capped or fixed."""
    growing = capped = fixed = 0.0
    if found.slope:
        growing = work(kv_bytes_per_request, context=context, kv_bytes_per_token=found.slope)
    for stream in found.streams:
        if stream.most is not None:
            capped += work(
                window_bytes_per_request,
                f"{stream.part}: {stream.entry}",
                layers=stream.layers,
                entry_bytes=stream.entry_bytes,
                context=context,
                window=stream.most,
            )
        elif not stream.every:
            fixed += work(
                state_bytes_per_request,
                f"{stream.part}: {stream.entry}",
                layers=stream.layers,
                state_bytes=stream.entry_bytes,
            )
        elif stream.encoder:
            work.assume("the cache of cross-attention is not counted: it holds the encoder's tokens")
    if not capped and not fixed:
        return growing
    return work(cache_bytes_per_request, f"{context:,} tokens", growing=growing, capped=capped, fixed=fixed)


def streams_of(found: Cache) -> tuple[dict[str, Any], ...]:
    """What alike layers keep, as answers show it."""
    return tuple(
        {
            "part": stream.part,
            "layers": stream.layers,
            "entry": stream.entry,
            "entry_bytes": stream.entry_bytes,
            "tokens_per_entry": stream.every,
            "most_entries": stream.most,
            "of_encoder_tokens": stream.encoder,
            "bytes_per_token": stream.slope,
        }
        for stream in found.streams
    )


def selects(model: Model) -> bool:
    """Whether an indexer or a block selection picks what attention reads."""
    parts = (part for layer in model.layers for part in layer)
    return any(getattr(part, "index_dim", 0) or getattr(part, "top_k", 0) for part in parts)


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
    scales = "" if weights not in ("int4", "fp4") else ", the scales of groups not counted"
    work.assume(
        f"{weights} weights: the layers' matrices in {weights}{scales}; embedding, head, norms and biases in "
        "16 bit"
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


def _of_encoder(model: Model, work: Working) -> None:
    if any(getattr(part, "cross", False) for layer in model.layers for part in layer):
        work.assume("encoder and decoder are counted together, as if every token passed through both")


def decode_weights(
    model: Model, weights: str, stored: float, tier: Tier, work: Working
) -> tuple[float, float]:
    """Parameters that multiply a decoded token, and weights read in a step [byte].

    At the whiteboard both are the whole model. Really the input embedding is looked up, one row a token; a
    tied one is read all the same, as the head.
    """
    _of_encoder(model, work)
    if tier == "whiteboard" or model.parameters_stated is not None:
        return model.parameters_active, stored
    if model.active_matrix_parameters < model.matrix_parameters:
        work.assume("a decode step reads every expert, as it does at a large batch")
    tied = not model.parameters(("head",))
    looked_up = model.parameters(("position",) if tied else ("position", "embedding"))
    multiplied = model.active_matrix_parameters + model.head_parameters
    return multiplied, stored - looked_up * unquantized_bytes(weights)


def prefill_weights(model: Model, tier: Tier, work: Working) -> tuple[float, float]:
    """Parameters that multiply every prompt token, and those that multiply only the last: the head."""
    _of_encoder(model, work)
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

    Latent attention decodes in the absorbed form (queries meet the latent itself) and prefills in the plain one,
    unless an indexer picks tokens: then it is absorbed in both. An indexer meets every key it keeps, once.
    """
    groups: dict[Seen, int] = {}
    for part in (part for layer in model.layers for part in layer):
        found = []
        if isinstance(part, Attention):
            if not part.cross:
                found.append(Seen(1, part.heads, (part.head_dim + part.v_head_dim) / 2, part.window or inf))
        elif isinstance(part, LatentAttention):
            absorbed = part.latent + part.rope / 2
            plain = (part.nope + part.rope + part.v_head_dim) / 2
            wide = absorbed if phase == "decode" or part.top_k else plain
            found.append(Seen(1, part.heads, wide, min(part.top_k or inf, part.window or inf)))
            if part.index_heads:
                found.append(_indexer(part.index_heads, part.index_dim, part.index_every))
        elif isinstance(part, CompressedAttention):
            found.append(Seen(1, part.heads, part.width, part.window))
            if part.ratio:
                pooled = part.top_k * part.ratio if part.top_k else inf
                found.append(Seen(1, part.heads, part.width / part.ratio, pooled))
            if part.index_heads:
                found.append(_indexer(part.index_heads, part.index_dim, part.ratio or 1))
        else:
            work.assume(
                "the work of recurrent and convolution states is not counted; it is small beside the matrices"
            )
        for seen in found:
            groups[seen] = groups.get(seen, 0) + 1
    return [seen._replace(layers=count) for seen, count in groups.items()]


def _indexer(heads: int, width: int, every: int) -> Seen:
    """An indexer's queries meet keys and no values: half of the work of attention of its width."""
    return Seen(1, heads, width / 2 / every, inf)


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
