"""How long an operation takes: what computing and what moving would take, joined smoothly, after a start.

    t = start + (compute**p + memory**p) ** (1 / p)

p is finite because kernels overlap the two only in part. How near each comes to the GPU's peak is in kernels.toml.
Figures of an operation may be arrays: then the time is one too.

Variants of an operation: of prefill, "fp8" multiplies queries and keys in fp8; of decode, "trtllm" is TensorRT-LLM's
kernel, where that differs from the common one; of experts, "bare" is their two products without routing; of
collectives, see collectives.py.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from capplan.capacity.step_time import collectives
from capplan.capacity.step_time.chip import Chip, chip_of, data
from capplan.capacity.step_time.operations import ACTIVATION, Number, Operation, greatest, least

__all__ = ["COLLECTIVES", "Chip", "Terms", "bound", "chip_of", "seconds", "spread", "terms"]

COLLECTIVES = collectives.KINDS
_US = 1e-6
_TILE = 128.0  # queries that a processor takes at a time: FlashAttention-2 and -3, TensorRT-LLM
_ROWS = 16.0  # of a product, at least, or a multiple: mma.m16n8k16; query heads of one key head share one
_LATENT_ROWS = 64.0  # FlashMLA's tile of heads
_SIXTEEN_BIT = ("bf16", "fp16", "fp32")
_NONE = 1e-30
_SCALES_OF_32 = (
    "sm100",
    "sm120",
)  # tensor cores that scale blocks of 32: those of 128 are scaled beside them


class Terms(NamedTuple):
    """What a time is made of [second], and the exponent that joins the second and the third."""

    start: Number
    compute: Number
    memory: Number  # or on the link
    power: float


def seconds(operation: Operation, chip: Chip) -> Number:
    """Time of doing an operation once [second].

    Never below its FLOPs at the dense peak, nor its bytes at the full bandwidth. Source of the shape: Williams et al.
    2009, with the maximum softened; of the figures: kernels.toml.
    """
    start, compute, memory, power = _TERMS[operation.kind](operation, chip)
    return start + (compute**power + memory**power) ** (1.0 / power)


def terms(operation: Operation, chip: Chip) -> Terms:
    """What the time of doing an operation once is made of."""
    return _TERMS[operation.kind](operation, chip)


def bound(kind: str, start: Number, compute: Number, memory: Number) -> str:
    """The longest of an operation's terms: "compute", "memory", "latency" or "link"; of numbers, not of arrays."""
    if start >= compute and start >= memory:
        return "latency"
    if kind in COLLECTIVES:
        return "link"
    return "compute" if compute > memory else "memory"


def spread(operation: Operation, chip: Chip) -> tuple[float, float]:
    """The range that eight of ten measured times lie in, as multiples of `seconds`.

    Wider for a GPU whose own kind of kernels was not measured.
    """
    low, high = data()["spread"].get(operation.kind, data()["spread"]["other"])
    wider = 1.0 if chip.measured else data()["spread"]["unmeasured"]
    return low / wider, high * wider


def _reached(share: float, chip: Chip) -> float:
    """The share of its peak that a chip reaches, where one whose matrix units run at their full rate reaches `share`.

    What is lost to feeding them and to heat is lost to the units' rate, not to the rate that is sold.
    """
    return 1.0 / (1.0 + (1.0 / share - 1.0) * chip.allowed)


def _gemm(operation: Operation, chip: Chip) -> Terms:
    of = chip.constants
    reached = chip.peaks[operation.dtype] * _reached(of.gemm[chip.paths[operation.dtype]], chip)
    return Terms(
        of.start_us * _US + of.inner_ns * 1e-9 * operation.inner,
        operation.flops / reached,
        operation.bytes / (chip.bandwidth * of.memory),
        of.gemm_power,
    )


def multiplied(operation: Operation, chip: Chip) -> str:
    """The format that an operation multiplies in, by the names of a chip's peaks."""
    if operation.kind == "grouped_gemm" and operation.dtype == "mxfp4":
        # its inputs are in 8 bit where the hardware multiplies 4 with 8, in 16 elsewhere
        return "w4a8_mxfp4" if chip.generation == "sm100" else "w4a16_mxfp4"
    return operation.dtype if operation.dtype in chip.peaks else "bf16"


def _grouped_gemm(operation: Operation, chip: Chip) -> Terms:
    of, rows = chip.constants, operation.rows
    dtype = multiplied(operation, chip)
    share = of.gemm[chip.paths[dtype]] * of.grouped
    widened = dtype in ("int4", "w4a16_mxfp4")
    if widened:
        share *= of.weight_only
    if dtype == "fp8_block" and chip.generation in _SCALES_OF_32:
        share *= of.block_scaled
    work = operation.flops / (chip.peaks[dtype] * _reached(share, chip))
    memory = operation.bytes / (chip.bandwidth * of.memory)
    rounded = operation.hit / (rows + _NONE) / 2  # half a tile an expert, in rows of its own
    compute = work * (1.0 + of.grouped_tile * rounded)
    start = 2 * of.start_us * _US
    if operation.variant != "bare":
        if not widened:  # widening takes its time whatever the tile
            # an engine's kernel takes a smaller one where products with padding would outlast the reading of weights
            compute = least(compute, greatest(work * (1.0 + _ROWS * rounded), memory))
        passes = of.grouped_rows * rows + of.grouped_tokens * operation.tokens
        start = of.grouped_start_us * _US + passes * operation.inner * ACTIVATION / chip.bandwidth
    return Terms(
        start + of.inner_ns * 1e-9 * (operation.inner + operation.columns),
        compute,
        memory,
        of.gemm_power,
    )


def _wide(operation: Operation, chip: Chip) -> float:
    """The peak of attention: in the cache's format where that has 16 bit or more, else in bf16."""
    return chip.peaks[operation.dtype if operation.dtype in _SIXTEEN_BIT else "bf16"]


def _decode(operation: Operation, chip: Chip) -> Terms:
    """A query a sequence: the cache is read once for all heads that share it; long contexts are divided."""
    of = chip.constants
    plain = operation.dtype in _SIXTEEN_BIT
    group = operation.columns / operation.kv_heads
    padded = -(-group // _ROWS) * _ROWS / group
    tokens = operation.tokens
    start = of.attention_start_us * (1.0 if plain else of.fp8_start)
    pairs = operation.rows * operation.kv_heads / chip.sms * of.pair_us * (1.0 if plain else of.fp8_pair)
    reading = chip.bandwidth * of.decode["bf16" if plain else "fp8"]
    if not plain and chip.generation == "sm90" and operation.variant != "trtllm":
        # FlashAttention-3 turns values over in shared memory before it can multiply them in fp8: the processors, not
        # the memory, set the pace, so that an H200 reads no faster than an H100
        reading = least(reading, of.fp8_read * chip.cycles)
    return Terms(
        (start + pairs + of.split_us * tokens / (tokens + of.split_tokens)) * _US,
        operation.flops * padded / (_wide(operation, chip) * of.attention_compute),
        operation.bytes / reading,
        of.attention_power,
    )


def _latent_decode(operation: Operation, chip: Chip) -> Terms:
    """All heads read one latent: with many of them it is products, not bytes, that take the time."""
    of = chip.constants
    # Blackwell's kernel multiplies an fp8 cache as it is, Hopper's widens it
    narrow = operation.dtype not in _SIXTEEN_BIT and chip.generation == "sm100"
    peak = chip.peaks["fp8"] if narrow else _wide(operation, chip)
    padded = -(-operation.columns // _LATENT_ROWS) * _LATENT_ROWS / operation.columns
    tokens = operation.tokens
    pairs = operation.rows / chip.sms * of.pair_us
    return Terms(
        (of.latent_start * of.attention_start_us + pairs + of.split_us * tokens / (tokens + of.split_tokens))
        * _US,
        operation.flops * padded / (peak * of.latent_compute),
        operation.bytes / (chip.bandwidth * of.decode["bf16"]),
        of.attention_power,
    )


def _prefill(operation: Operation, chip: Chip) -> Terms:
    """Tiles of queries over the keys before them; each product of a query and a key costs an exponential too."""
    of = chip.constants
    peak = _wide(operation, chip) * _reached(of.prefill, chip)
    if operation.variant == "fp8" and chip.paths["fp8"] == "fp8":
        peak *= of.fp8_gain
    tiles = operation.rows / _TILE * operation.columns
    width = 4.0 * operation.inner
    # the last row of tiles has every key before it, and waits for nobody
    path = of.prefill_path * _TILE * operation.tokens * chip.sms * width
    flops = operation.flops + path
    products = flops / peak
    exponentials = flops / width / chip.exponentials
    together = of.softmax_power
    start = of.prefill_start * of.attention_start_us + of.prefill_tile_us * tiles / chip.sms
    return Terms(
        start * _US,
        (products**together + exponentials**together) ** (1.0 / together),
        operation.bytes / (chip.bandwidth * of.memory),
        of.prefill_power,
    )


def _elementwise(operation: Operation, chip: Chip) -> Terms:
    of = chip.constants
    memory = operation.bytes / (chip.bandwidth * of.pass_memory)
    return Terms(of.pass_us * _US, operation.flops / chip.peaks["bf16"], memory, of.gemm_power)


def _scan(operation: Operation, chip: Chip) -> Terms:
    of = chip.constants
    compute = operation.flops / (chip.peaks["bf16"] * of.scan_compute)
    memory = operation.bytes / (chip.bandwidth * of.pass_memory)
    return Terms(2 * of.pass_us * _US, compute, memory, of.gemm_power)


def _collective(operation: Operation, chip: Chip) -> Terms:
    start, link = collectives.collective(operation, chip)
    return Terms(start, 0.0 * link, link, 1.0)


_TERMS: dict[str, Callable[[Operation, Chip], Terms]] = {
    "gemm": _gemm,
    "grouped_gemm": _grouped_gemm,
    "attention_decode": _decode,
    "mla_decode": _latent_decode,
    "attention_prefill": _prefill,
    "elementwise": _elementwise,
    "scan": _scan,
    **dict.fromkeys(COLLECTIVES, _collective),
}
