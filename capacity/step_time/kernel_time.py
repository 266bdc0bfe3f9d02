"""How long an operation takes: what computing and what moving would take, joined smoothly, after a start."""

from __future__ import annotations

from collections.abc import Callable

from capplan.capacity.step_time.chip import Chip, chip_of
from capplan.capacity.step_time.operations import Number, Operation

__all__ = ["Chip", "bound", "chip_of", "seconds"]

_SIXTEEN_BIT = ("bf16", "fp16", "fp32")


def seconds(operation: Operation, chip: Chip) -> Number:
    """Time of doing an operation once [second]; a number, or an array where the operation's figures are arrays."""
    start, compute, memory, power = _TERMS[operation.kind](operation, chip)
    return start + (compute**power + memory**power) ** (1.0 / power)


def bound(operation: Operation, chip: Chip) -> str:
    """What most of the time goes to: "compute", "memory", "latency" or "link"."""
    start, compute, memory, _ = _TERMS[operation.kind](operation, chip)
    if start >= compute and start >= memory:
        return "latency"
    if operation.kind in COLLECTIVES:
        return "link"
    return "compute" if compute > memory else "memory"


Terms = tuple[Number, Number, Number, float]


def _peak(operation: Operation, chip: Chip) -> float:
    return chip.peaks.get(operation.dtype) or chip.peaks["bf16"]


def _rate(shares: dict[str, float], dtype: str) -> float:
    """The share for a dtype, or for the nearest that the generation has one for."""
    if dtype in ("nvfp4", "mxfp4") and "fp4" in shares:
        return shares["fp4"]
    return shares.get(dtype) or shares.get(
        "fp8" if dtype.startswith(("fp8", "w4a8")) else "bf16", shares["bf16"]
    )


def _of(pair: dict[str, float], dtype: str) -> float:
    return pair["bf16" if dtype in _SIXTEEN_BIT else "quantised"]


def _gemm(operation: Operation, chip: Chip) -> Terms:
    of = chip.constants
    compute = operation.flops / (_peak(operation, chip) * _rate(of["gemm"], operation.dtype))
    memory = operation.bytes / (chip.bandwidth * _of(of["gemm_memory"], operation.dtype))
    return _of(of["gemm_start_us"], operation.dtype) * 1e-6, compute, memory, 2.0


def _grouped(operation: Operation, chip: Chip) -> Terms:
    start, compute, memory, power = _gemm(operation, chip)
    return 3 * start, 2.0 * compute, 1.25 * memory, power


def _decode(operation: Operation, chip: Chip) -> Terms:
    of = chip.constants
    compute = operation.flops / (0.4 * chip.peaks["bf16"])
    memory = operation.bytes / (chip.bandwidth * _of(of["decode_memory"], operation.dtype))
    return of["decode_start_us"] * 1e-6, compute, memory, 2.0


def _prefill(operation: Operation, chip: Chip) -> Terms:
    of = chip.constants
    compute = operation.flops / (of["prefill"] * chip.peaks["bf16"])
    memory = operation.bytes / (chip.bandwidth * 0.8)
    return of["decode_start_us"] * 1e-6, compute, memory, 2.0


def _elementwise(operation: Operation, chip: Chip) -> Terms:
    return 2e-6, operation.flops / chip.peaks["bf16"], operation.bytes / (0.8 * chip.bandwidth), 2.0


def _scan(operation: Operation, chip: Chip) -> Terms:
    return 5e-6, operation.flops / (0.3 * chip.peaks["bf16"]), operation.bytes / (0.7 * chip.bandwidth), 2.0


def _collective(operation: Operation, chip: Chip) -> Terms:
    ranks = operation.ranks
    if ranks <= 1:
        return 0.0, 0.0 * operation.message, 0.0, 1.0
    inside = ranks <= chip.domain
    bandwidth = (
        0.78 * chip.link_bandwidth
        if inside
        else 0.5 * chip.pcie_bandwidth
        if ranks <= 8
        else 0.8 * chip.nic_bandwidth
    )
    steps = 2.0 if operation.kind == "allreduce" else 1.0
    share = 1.0 if operation.kind == "send_recv" else steps * (ranks - 1) / ranks
    start = (8e-6 if inside else 20e-6) + 0.5e-6 * ranks
    return start, 0.0, share * operation.message / bandwidth, 1.0


COLLECTIVES = ("allreduce", "all_gather", "reduce_scatter", "alltoall", "send_recv")
_TERMS: dict[str, Callable[[Operation, Chip], Terms]] = {
    "gemm": _gemm,
    "grouped_gemm": _grouped,
    "attention_decode": _decode,
    "mla_decode": _decode,
    "attention_prefill": _prefill,
    "elementwise": _elementwise,
    "scan": _scan,
    **dict.fromkeys(COLLECTIVES, _collective),
}
