"""A forward pass of a model on one rank, as the operations that it runs.

`layout` reads a model's tensors once: matrices that engines fuse are one product, each divided over ranks as the
engines divide it. `operations` puts the tokens of a step in.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

from capplan.capacity import cache as caches
from capplan.capacity import precision
from capplan.capacity.engines.weights import quantized, rank_share, stage_layers
from capplan.capacity.step_time.operations import (
    ACTIVATION,
    OPERAND,
    STORED,
    Number,
    Operation,
    attention_decode,
    attention_prefill,
    collective,
    distinct_experts,
    elementwise,
    gemm,
    greatest,
    grouped_gemm,
    least,
    mla_decode,
)
from capplan.errors import InputError
from capplan.models.quantization import Format
from capplan.models.spec import Attention, CompressedAttention, LatentAttention, Model, Part, State, Weight
from capplan.models.stored import Stored, stored


class Linear(NamedTuple):
    """Matrices that see every token; the share of one rank."""

    name: str
    columns: float  # output features
    inner: float
    dtype: str
    count: float  # type: ignore[assignment]  # over tuple.count
    output: bool  # its sum over ranks is an all-reduce


class Experts(NamedTuple):
    """The routed experts of so many layers."""

    dtype: str
    hidden: int
    inner: float  # intermediate size on a rank
    experts: int
    chosen: int
    local: float  # on a rank
    matrices: int
    count: float  # type: ignore[assignment]  # over tuple.count


class Layout(NamedTuple):
    """What a rank of a deployment runs in every pass, whatever the tokens."""

    model: Model
    tp: int
    pp: int
    dp: int  # attention's data-parallel ranks, whose experts are one set
    expert_parallel: bool
    kv: str
    linear: tuple[Linear, ...]
    experts: tuple[Experts, ...]
    attention: tuple[tuple[Part, int], ...]
    head: Linear | None
    layers: int
    reduced: int  # all-reduces over tensor-parallel ranks
    mixtures: int  # layers with routed experts


class Step(NamedTuple):
    """The tokens of one pass of one data-parallel rank; numbers or arrays that broadcast."""

    decode: Number = 0.0  # sequences that get one token each
    context: Number = 0.0  # tokens that each of them has, on average
    prompts: Number = 0.0  # sequences with prompt tokens in this pass
    chunk: Number = 0.0  # prompt tokens of each
    before: Number = 0.0  # tokens of it that are cached already
    queries: int = 1  # tokens a decoding sequence checks in one pass: 1 + speculated


# the last piece of names whose input is divided over ranks, so that outputs have to be summed
_OUTPUT = (
    "o_proj",
    "down_proj",
    "out_proj",
    "dense",
    "dense_4h_to_h",
    "c_proj",
    "fc2",
    "fc_out",
    "output_linear",
    "w2",
    "wo",
    "o_b_proj",
)
# formats whose inputs get their scales in a pass of their own; a scale for the whole tensor goes with the norm
_SCALED_AT_RUN = ("fp8_block", "nvfp4")
# matrices that engines run as one product
_FUSED = {
    **dict.fromkeys(("q_proj", "k_proj", "v_proj", "g_proj"), "qkv_proj"),
    **dict.fromkeys(("gate_proj", "up_proj", "w1", "w3", "gate_up_proj"), "gate_up_proj"),
    **dict.fromkeys(("q_a_proj", "kv_a_proj_with_mqa"), "fused_qkv_a_proj"),
    **dict.fromkeys(("in_proj_qkv", "in_proj_z"), "in_proj_qkvz"),
    **dict.fromkeys(("in_proj_b", "in_proj_a"), "in_proj_ba"),
}


def layout(
    model: Model,
    *,
    quantization: str | None = None,
    kv: str = "bf16",
    tp: int = 1,
    pp: int = 1,
    dp: int = 1,
    expert_parallel: bool = False,
) -> Layout:
    """What one rank runs. kv: format of the cache; the rest as an engine's flags.

    Raises InputError for a model known only by its round size, or one that can't be divided so.
    """
    if not model.weights:
        raise InputError(f"{model.id} is known by its size alone; its operations need its tensors")
    stage_layers(len(model.layers), pp)
    held = quantized(model, quantization)
    others = held.quantization.others if held.quantization else held.dtype
    plain = others if others in ("fp16", "bf16", "fp32") else "bf16"
    share = rank_share(held, tp=tp, dp=dp, expert_parallel=expert_parallel)
    linear: dict[tuple[str, float, str, float, bool], float] = {}
    mixtures: list[Experts] = []
    head = None
    pieces = [
        _unstacked(piece)
        for piece in stored(held.weights, held.layers, held.hidden_size, held.quantization)
        if _multiplies(piece.weight)
    ]
    for piece in pieces:
        weight, dtype = piece.weight, _dtype(piece.format, plain)
        if weight.bucket in ("embedding", "position", "lookup", "norm", "experts"):
            continue
        name, output = _named(weight.name)
        of = share(piece)
        if weight.bucket == "head":
            head = Linear("lm_head", piece.rows * of, piece.columns, dtype, 1, False)
            continue
        rows, columns = (piece.rows, piece.columns * of) if output else (piece.rows * of, piece.columns)
        name = f"{weight.bucket}.{name}" if weight.bucket in ("shared", "mixer", "index") else name
        key = (name, columns, dtype, float(piece.matrices), output)
        linear[key] = linear.get(key, 0.0) + rows
    mixtures = list(_mixtures(held, pieces, plain, tp, dp, expert_parallel))
    if head is None:
        tables = [weight for weight in held.weights if weight.bucket == "embedding"]
        rows = tables[0].shape[0] if tables else held.vocab_size or 0
        head = Linear("lm_head", rows / tp, held.hidden_size, plain, 1, False)
    lines = tuple(
        Linear(name, rows, columns, dtype, count, output)
        for (name, columns, dtype, count, output), rows in linear.items()
    )
    counts: dict[Part, int] = {}
    for part in (part for layer in held.layers for part in layer):
        counts[part] = counts.get(part, 0) + 1
    mixed = sum(int(e.count) for e in mixtures)
    reduced = sum(round(line.count) for line in lines if line.output and not line.name.startswith("shared"))
    routed = 0 if dp > 1 and expert_parallel else mixed
    layers = len([layer for layer in held.layers if layer])
    return Layout(
        held,
        tp,
        pp,
        dp,
        expert_parallel,
        kv,
        lines,
        tuple(mixtures),
        tuple(counts.items()),
        head,
        layers,
        reduced + routed,
        mixed,
    )


def _multiplies(weight: Weight) -> bool:
    """Whether it is a matrix, or one for every expert; a convolution over tokens is none."""
    return len(weight.shape) in (2, 3) and min(weight.shape[-2:]) > 1 and not weight.name.endswith("bias")


def _unstacked(piece: Stored) -> Stored:
    """Experts that lie in one tensor as a matrix each; where they are quantised they are that already."""
    shape = piece.weight.shape
    if len(shape) == 3 and piece.rows == shape[0] * shape[1]:
        return piece._replace(rows=shape[1], matrices=piece.matrices * shape[0])
    return piece


def _named(name: str) -> tuple[str, bool]:
    """What a matrix is called in a list of operations, and whether its input is the divided side."""
    last = name.removesuffix(".weight").rsplit(".", 1)[-1]
    return _FUSED.get(last, last), last in _OUTPUT


def _dtype(format_: Format | None, plain: str) -> str:
    """The format of a matrix as operations.STORED has it."""
    if format_ is None:
        return plain
    if format_.dtype == "fp8" and format_.rows > 1 and format_.columns > 1:
        return "fp8_block"
    return format_.dtype


def _mixtures(
    model: Model, pieces: Iterable[Stored], plain: str, tp: int, dp: int, expert_parallel: bool
) -> Iterator[Experts]:
    """The routed experts, layers of one shape together."""
    found: dict[tuple[int, int, str, float], list[Stored]] = {}
    for piece in pieces:
        weight = piece.weight
        if weight.bucket == "experts":
            layers = piece.matrices / weight.experts
            found.setdefault((weight.experts, weight.chosen, _dtype(piece.format, plain), layers), []).append(
                piece
            )
    for (experts, chosen, dtype, layers), parts in found.items():
        hidden = model.hidden_size
        size = sum(part.rows * part.columns for part in parts)
        inner = max(
            (min(part.rows, part.columns) for part in parts if part.rows != part.columns), default=hidden
        )
        down = [p for p in parts if "down" in p.weight.name or p.weight.name.endswith("w2.weight")]
        if down:
            inner, hidden = down[0].columns, down[0].rows
        matrices = max(1, round(size / (hidden * inner)))
        ranks = tp * dp
        whole = expert_parallel
        yield Experts(
            dtype=dtype,
            hidden=hidden,
            inner=inner if whole else inner / ranks,
            experts=experts,
            chosen=chosen,
            local=experts / ranks if whole else experts,
            matrices=matrices,
            count=layers,
        )


def captured(tokens: Number) -> Number:
    """Tokens that a captured graph runs for so many: 1, 2, 4, multiples of 8 to 256 and of 16 to 512; none beyond.

    Source: vLLM 0.19, vllm/config/vllm.py, cudagraph_capture_sizes.

    >>> [captured(tokens) for tokens in (1, 3, 5, 9, 257, 600)]
    [1.0, 4.0, 8.0, 16.0, 272.0, 600.0]
    """
    by_8 = -(-tokens // 8.0) * 8.0 - 4.0 * (tokens <= 4) - 2.0 * (tokens <= 2) - 1.0 * (tokens <= 1)
    by_16 = -(-tokens // 16.0) * 16.0
    found = by_8 * (tokens <= 256) + by_16 * ((tokens > 256) & (tokens <= 512)) + tokens * (tokens > 512)
    return greatest(found, tokens * 1.0)


def operations(
    plan: Layout, step: Step, *, imbalance: float = 0.0, routing: float = 1.0, graphs: bool = False
) -> list[Operation]:
    """What one rank does in a pass: of a pipeline, all its stages one after another.

    imbalance: what the fullest of many expert-parallel ranks gets beyond the mean; the others wait for it. Of a few
    ranks each has a large share of the experts, and is nearer to the mean: 1 + imbalance * (1 - 1 / ranks).
    routing: so many tokens to this power hit as many experts when they choose evenly; 1: they do.
    graphs: a pass without prompts is padded to the tokens of a captured graph, and its padding chooses experts as well.
    """
    decoding = step.decode * step.queries
    prefilled = step.prompts * step.chunk
    tokens = decoding + prefilled
    if graphs and _none(step.prompts):
        tokens = captured(decoding)
    found = [
        gemm(line.name, tokens, line.columns, line.inner, line.dtype, line.count) for line in plan.linear
    ]
    for mixture in plan.experts:
        share = mixture.local / mixture.experts
        ranks = mixture.experts / mixture.local
        routed = tokens * plan.dp * (1.0 + imbalance * (1.0 - 1.0 / ranks))
        hit = distinct_experts(routed**routing, mixture.experts, mixture.chosen) * share
        found.append(
            grouped_gemm(
                "experts",
                routed,
                hidden=mixture.hidden,
                inner=mixture.inner,
                experts=mixture.experts,
                chosen=mixture.chosen,
                local=mixture.local,
                dtype=mixture.dtype,
                count=mixture.count,
                matrices=mixture.matrices,
                load=(routed * mixture.chosen * share, hit),
            )
        )
    for part, count in plan.attention:
        found += _attend(plan, part, count, step)
    found += _passes(plan, tokens)
    sampled = decoding + step.prompts
    if plan.head is not None:
        found.append(gemm("lm_head", sampled, plan.head.columns, plan.head.inner, plan.head.dtype))
        found.append(elementwise("sampling", sampled * plan.head.columns * plan.tp * 4, 1))
    found += _communication(plan, tokens, sampled)
    return found


def _passes(plan: Layout, tokens: Number) -> Iterator[Operation]:
    """What stands between products: every norm reads and writes the layer's input and the sum so far."""
    hidden = plan.model.hidden_size
    yield elementwise("norms", tokens * hidden * ACTIVATION * 4, 2 * plan.layers)
    for part, count in plan.attention:
        if isinstance(part, Attention) and not part.cross:
            width = (part.heads + 2 * max(part.kv_heads, plan.tp)) * part.head_dim / plan.tp
            yield elementwise("rotary_and_cache", tokens * width * ACTIVATION * 2, 2 * count)
        elif isinstance(part, LatentAttention):
            width = part.heads * part.rope / plan.tp + part.latent + part.rope
            yield elementwise("rotary_and_cache", tokens * width * ACTIVATION * 2, 2 * count)
    for line in plan.linear:
        if line.name.endswith("gate_up_proj"):
            yield elementwise("activation", tokens * line.columns * ACTIVATION * 1.5, line.count)
        if line.dtype in _SCALED_AT_RUN:
            yield elementwise("quantise", tokens * line.inner * (ACTIVATION + STORED[line.dtype]), line.count)


def _communication(plan: Layout, tokens: Number, sampled: Number) -> Iterator[Operation]:
    hidden = plan.model.hidden_size
    if plan.tp > 1:
        yield collective("allreduce", "allreduce", tokens * hidden * ACTIVATION, plan.tp, plan.reduced + 1)
        head = plan.head.columns if plan.head else 0
        yield collective("logits", "all_gather", sampled * head * plan.tp * ACTIVATION, plan.tp)
    if plan.dp > 1 and plan.mixtures:
        chosen = max(mixture.chosen for mixture in plan.experts)
        ranks = plan.dp * plan.tp
        sent = tokens * hidden * min(chosen, ranks)
        # quantised before they are sent, where experts take them so; their outputs come back in 16 bit
        width = max(OPERAND.get(mixture.dtype, ACTIVATION) for mixture in plan.experts)
        yield collective("dispatch", "alltoall", sent * width, ranks, plan.mixtures)
        yield collective("combine", "alltoall", sent * ACTIVATION, ranks, plan.mixtures)
    if plan.pp > 1:
        yield collective("stages", "send_recv", tokens * hidden * ACTIVATION, 2, plan.pp - 1)


def _attend(plan: Layout, part: Part, count: int, step: Step) -> Iterator[Operation]:
    if isinstance(part, State):
        yield from _recur(plan, part, count, step)
    elif isinstance(part, Attention):
        yield from _heads(plan, part, count, step)
    elif isinstance(part, LatentAttention):
        yield from _latent(plan, part, count, step)
    else:
        yield from _compressed(plan, part, count, step)


def _none(sequences: Number) -> bool:
    return isinstance(sequences, int | float) and sequences == 0


def seen_pairs(before: Number, chunk: Number, window: int | None = None) -> Number:
    """Keys that the tokens of a chunk see together, causally: all that came before, or those of a window.

    >>> seen_pairs(0, 4), seen_pairs(4, 2), seen_pairs(0, 4, window=2)
    (10.0, 11.0, 7.0)
    """
    pairs = chunk * before + chunk * (chunk + 1) / 2
    if window is None:
        return pairs
    last, first = greatest(before + chunk - window, 0.0), greatest(before - window, 0.0)
    return pairs - (last * (last + 1) - first * (first + 1)) / 2


def _heads(plan: Layout, part: Attention, count: int, step: Step) -> Iterator[Operation]:
    if part.cross:  # over an encoder's tokens, of which a step says nothing
        return
    heads, kv_heads = part.heads / plan.tp, max(1.0, part.kv_heads / plan.tp)
    kind = "window" if part.window else "full"
    shape: dict[str, Any] = {
        "heads": heads,
        "kv_heads": kv_heads,
        "head_dim": part.head_dim,
        "v_head_dim": part.v_head_dim,
    }
    if not _none(step.decode):
        seen = least(step.context, part.window)
        yield attention_decode(
            f"attention_decode.{kind}", step.decode, seen, kv=plan.kv, count=count, **shape
        )
    if not _none(step.prompts):
        pairs = seen_pairs(step.before, step.chunk, part.window)
        seen = least(step.before + step.chunk, None if part.window is None else part.window + step.chunk)
        yield attention_prefill(
            f"attention_prefill.{kind}",
            step.prompts,
            step.chunk,
            pairs,
            tokens=seen,
            kv=plan.kv,
            count=count,
            **shape,
        )


def _latent(plan: Layout, part: LatentAttention, count: int, step: Step) -> Iterator[Operation]:
    heads = part.heads / plan.tp
    most = part.window or part.top_k or None
    if not _none(step.decode):
        seen = least(step.context, most)
        yield mla_decode(
            "mla_decode",
            step.decode,
            seen,
            heads=heads,
            latent=part.latent,
            rope=part.rope,
            kv=plan.kv,
            count=count,
        )
        if part.index_dim:
            yield _index(step.decode, step.context, step.context, part, count)
    if not _none(step.prompts):
        width = part.nope + part.rope
        pairs = seen_pairs(step.before, step.chunk, most)
        if part.top_k:  # every query has keys of its own, and meets the latents themselves
            found = mla_decode(
                "attention_prefill.sparse", step.prompts * step.chunk, pairs / greatest(step.chunk, 1.0), heads=heads,
                latent=part.latent, rope=part.rope, kv=plan.kv, count=count,
            )  # fmt: skip
            yield _read_once(found, step.prompts * (step.before + step.chunk), plan, part.latent, part.rope)
        else:
            yield attention_prefill(
                "attention_prefill.mla", step.prompts, step.chunk, pairs, tokens=step.before + step.chunk,
                heads=heads, kv_heads=heads, head_dim=width, v_head_dim=part.v_head_dim, kv="bf16", count=count,
            )  # fmt: skip
        if part.index_dim:
            pairs = seen_pairs(step.before, step.chunk, None)
            yield _index(step.prompts, pairs, step.before + step.chunk, part, count)


def _read_once(found: Operation, vectors: Number, plan: Layout, latent: int, rope: int) -> Operation:
    """Neighbouring queries read much the same vectors, which have to come from memory once."""
    return found._replace(held=least(found.held, vectors * precision.latent_bytes(plan.kv, latent, rope)))


def _index(
    sequences: Number, pairs: Number, keys: Number, part: LatentAttention | CompressedAttention, count: int
) -> Operation:
    """An indexer scores every key for every query, and reads it once for all of a sequence: not divided over ranks."""
    every = getattr(part, "index_every", 0) or getattr(part, "ratio", 0) or 1
    held = sequences * keys / every * precision.index_bytes(part.index_dim)
    return Operation(
        "index", "elementwise", "fp8", count,
        flops=2.0 * sequences * pairs / every * part.index_heads * part.index_dim,
        bytes=held,
        held=held,
    )  # fmt: skip


def _compressed(plan: Layout, part: CompressedAttention, count: int, step: Step) -> Iterator[Operation]:
    """DeepSeek V4: raw vectors of a window and pooled ones of what lies before."""
    heads = part.heads / plan.tp
    for sequences, queries, tokens in (
        (step.decode, 1.0, step.context),
        (step.prompts, step.chunk, step.before + step.chunk / 2),
    ):
        if _none(sequences):
            continue
        pooled = tokens / part.ratio if part.ratio else 0.0
        seen = least(tokens, part.window) + least(pooled, part.top_k or None)
        latent = part.width - part.rope
        found = mla_decode(
            "compressed_attention", sequences * queries, seen, heads=heads, latent=latent, rope=part.rope, kv=plan.kv,
            count=count,
        )  # fmt: skip
        kept = least(tokens + queries / 2, part.window + queries) + pooled
        yield _read_once(found, sequences * kept, plan, latent, part.rope)
        if part.index_dim:
            keys = tokens + queries / 2
            yield _index(sequences, queries * tokens, keys, part, count)


def _recur(plan: Layout, part: State, count: int, step: Step) -> Iterator[Operation]:
    """A state is read and written for every token that is decoded; a prompt is scanned in chunks."""
    ranks = plan.tp if part.heads > 1 else 1
    size = part.recurrent / ranks * caches.STATES.get(part.recurrent_dtype, 4)
    channels = part.conv_channels / ranks
    if not _none(step.decode):
        yield Operation(
            "state_update", "scan", "fp32", count,
            flops=6.0 * step.decode * part.recurrent / ranks,
            bytes=step.decode * (2 * size + 2 * channels * part.conv_kernel * ACTIVATION),
            held=step.decode * 2 * size,
            rows=step.decode,
        )  # fmt: skip
    if not _none(step.prompts):
        tokens = step.prompts * step.chunk
        yield Operation(
            "state_scan", "scan", "bf16", count,
            flops=8.0 * tokens * part.recurrent / ranks,
            bytes=step.prompts * 2 * size + tokens * channels * 6 * ACTIVATION,
            held=step.prompts * 2 * size,
            rows=tokens,
        )  # fmt: skip


def sequence_bytes(plan: Layout, tokens: float) -> float:
    """Bytes of the cache of one sequence on one rank, all its stages together."""
    return caches.cache(plan.model, plan.kv, tp=plan.tp).bytes_at(round(tokens))
