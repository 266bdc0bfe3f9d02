"""One operation of a forward pass on one rank: what it computes, what it moves, and the shape it has.

Shapes are numbers, or arrays that broadcast: a sweep over batches and contexts is one list of operations.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from capplan.capacity import precision

Number = Any  # a float, or a numpy array of them


def least(a: Number, b: Number | None) -> Number:
    """The smaller of two; None is no bound."""
    if b is None:
        return a
    if hasattr(a, "clip"):
        return a.clip(max=b)
    return b.clip(max=a) if hasattr(b, "clip") else min(a, b)


def greatest(a: Number, b: Number) -> Number:
    """The larger of two."""
    if hasattr(a, "clip"):
        return a.clip(min=b)
    return b.clip(min=a) if hasattr(b, "clip") else max(a, b)


# bytes of an activation as it lies in memory, and of a quantised one beside it
ACTIVATION = 2
# bytes of a weight by the format that a product multiplies in; scales included
STORED = {
    "fp16": 2.0,
    "bf16": 2.0,
    "fp32": 4.0,
    "fp8": 1.0,
    "fp8_block": 1.0 + 4 / 128**2,
    "int8": 1.0,
    "int4": 0.5 + 2 / 128,
    "nvfp4": precision.WEIGHTS["nvfp4"],
    "mxfp4": precision.WEIGHTS["mxfp4"],
    "w4a16_mxfp4": precision.WEIGHTS["mxfp4"],
    "w4a8_mxfp4": precision.WEIGHTS["mxfp4"],
}
# bytes of an activation as a product reads it, where that is not 16 bit
OPERAND = {
    "fp32": 4.0,
    "fp8": 1.0,
    "fp8_block": 1.0 + 4 / 128,
    "int8": 1.0,
    "nvfp4": precision.WEIGHTS["nvfp4"],
    "w4a8_mxfp4": 1.0 + 1 / 32,
}


class Operation(NamedTuple):
    """What one rank does `count` times in a pass; figures are of one time."""

    name: str  # such as qkv_proj
    kind: str  # gemm, grouped_gemm, attention_prefill, attention_decode, mla_decode, scan, elementwise, allreduce, ...
    dtype: str  # of a product: its weights' (see STORED); of attention: the cache's
    count: float  # type: ignore[assignment]  # over tuple.count, which nobody asks of an operation
    flops: Number = 0.0
    bytes: Number = 0.0  # to and from memory
    held: Number = 0.0  # of those, weights or cache: what has to come from memory whatever the kernel
    rows: Number = 0.0  # m of a product; tokens before routing of experts; sequences of attention
    columns: float = 0.0  # n; of attention: query heads
    inner: float = 0.0  # k; of attention: width of a head
    tokens: Number = 0.0  # of attention: keys that a query sees; of experts: before routing
    kv_heads: float = 0.0
    experts: float = 0.0  # on this rank
    hit: Number = 0.0  # of them, those that get a token
    message: Number = 0.0  # bytes a collective moves, as nccl-tests counts them
    ranks: int = 1
    variant: str = ""  # which kernel, where that is known: see kernel_time


def gemm(name: str, rows: Number, columns: float, inner: float, dtype: str, count: float = 1) -> Operation:
    """A matrix product of `rows` tokens with a weight of (columns, inner); its input is quantised before."""
    moved = rows * (columns * ACTIVATION + inner * OPERAND.get(dtype, ACTIVATION))
    held = columns * inner * STORED[dtype]
    return Operation(
        name,
        "gemm",
        dtype,
        count,
        flops=2.0 * rows * columns * inner,
        bytes=held + moved,
        held=held,
        rows=rows,
        columns=columns,
        inner=inner,
    )


def distinct_experts(tokens: Number, experts: float, chosen: float) -> Number:
    """Experts that get one token or more, when every token chooses evenly."""
    return experts * (1.0 - (1.0 - chosen / experts) ** tokens)


def grouped_gemm(
    name: str,
    tokens: Number,
    *,
    hidden: float,
    inner: float,
    experts: float,
    chosen: float,
    local: float,
    dtype: str,
    count: float = 1,
    matrices: int = 3,
    load: tuple[Number, Number] | None = None,
    variant: str = "",
) -> Operation:
    """The routed experts of a layer: gate, up and down of those that are hit, on a rank that holds `local` of them.

    tokens: before routing, of all ranks whose experts these are. inner: intermediate size of an expert on this rank.
    load: the rows that reach this rank and the experts hit, where tokens don't choose evenly.
    """
    routed, hit = load or (
        tokens * chosen * local / experts,
        distinct_experts(tokens, experts, chosen) * local / experts,
    )
    held = hit * matrices * hidden * inner * STORED[dtype]
    return Operation(
        name,
        "grouped_gemm",
        dtype,
        count,
        flops=2.0 * routed * matrices * hidden * inner,
        bytes=held + routed * (2 * hidden + matrices * inner) * ACTIVATION,
        held=held,
        rows=routed,
        columns=inner,
        inner=hidden,
        tokens=tokens,
        experts=local,
        hit=hit,
        variant=variant,
    )


def attention_decode(
    name: str,
    sequences: Number,
    tokens: Number,
    *,
    heads: float,
    kv_heads: float,
    head_dim: float,
    v_head_dim: float,
    kv: str,
    count: float = 1,
    variant: str = "",
) -> Operation:
    """One query a sequence over `tokens` cached keys and values."""
    held = sequences * tokens * kv_heads * precision.head_bytes(kv, int(head_dim), int(v_head_dim))
    return Operation(
        name,
        "attention_decode",
        kv,
        count,
        flops=2.0 * sequences * tokens * heads * (head_dim + v_head_dim),
        bytes=held + sequences * heads * (head_dim + v_head_dim) * ACTIVATION,
        held=held,
        rows=sequences,
        columns=heads,
        inner=head_dim,
        tokens=tokens,
        kv_heads=kv_heads,
        variant=variant,
    )


def mla_decode(
    name: str,
    sequences: Number,
    tokens: Number,
    *,
    heads: float,
    latent: float,
    rope: float,
    kv: str,
    count: float = 1,
) -> Operation:
    """One absorbed query a sequence over `tokens` cached latents, which every head reads."""
    held = sequences * tokens * precision.latent_bytes(kv, int(latent), int(rope))
    return Operation(
        name,
        "mla_decode",
        kv,
        count,
        flops=2.0 * sequences * tokens * heads * (2 * latent + rope),
        bytes=held + sequences * heads * (2 * latent + rope) * ACTIVATION,
        held=held,
        rows=sequences,
        columns=heads,
        inner=latent + rope,
        tokens=tokens,
        kv_heads=1,
    )


def attention_prefill(
    name: str,
    sequences: Number,
    queries: Number,
    pairs: Number,
    *,
    heads: float,
    kv_heads: float,
    head_dim: float,
    v_head_dim: float,
    tokens: Number,
    kv: str,
    count: float = 1,
    variant: str = "",
) -> Operation:
    """`queries` new tokens of a sequence; `pairs` is how many keys they see together (half the square if causal)."""
    held = sequences * tokens * kv_heads * precision.head_bytes(kv, int(head_dim), int(v_head_dim))
    return Operation(
        name,
        "attention_prefill",
        kv,
        count,
        flops=2.0 * sequences * pairs * heads * (head_dim + v_head_dim),
        bytes=held + sequences * queries * heads * (head_dim + v_head_dim) * ACTIVATION,
        held=held,
        rows=sequences * queries,
        columns=heads,
        inner=(head_dim + v_head_dim) / 2,
        tokens=tokens,
        kv_heads=kv_heads,
        variant=variant,
    )


def elementwise(name: str, size: Number, count: float = 1) -> Operation:
    """A pass over `size` bytes that computes next to nothing: a norm, an activation, a sum."""
    return Operation(name, "elementwise", "bf16", count, bytes=size)


def collective(
    name: str, kind: str, message: Number, ranks: int, count: float = 1, variant: str = ""
) -> Operation:
    """kind: allreduce, all_gather, reduce_scatter, alltoall, send_recv."""
    return Operation(name, kind, "bf16", count, message=message, ranks=ranks, variant=variant)
