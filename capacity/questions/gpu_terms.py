"""What a GPU brings: the memory that weights and cache share, its peak and its bandwidth, each with its source."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from capplan.capacity import precision
from capplan.capacity.answer import Working
from capplan.capacity.questions.asked import Tier
from capplan.capacity.step_time.measured_kernels import refuse
from capplan.errors import DataFileError, InputError
from capplan.units import gib

if TYPE_CHECKING:
    from capplan.capacity.step_time.calibration import Calibration
    from capplan.hardware.spec import Gpu

# A process sees this much less than the driver reports when its own figure is not known: what the driver
# keeps back on NVIDIA parts (616-700 MiB in public logs); AMD parts show a process what they report.
_DRIVER_RESERVE = {"nvidia": 0.6 * 2**30}


def source_of(gpu: Gpu, key: str) -> str:
    """Where a value of a GPU was read, and when."""
    value = gpu.values[key]
    source = gpu.sources[value.source]
    basis = "" if value.basis == "read" else f", {value.basis}"
    return f"{source.title or source.url}{basis}, checked {source.checked}"


def memory(gpu: Gpu, tier: Tier, work: Working) -> float:
    """Memory that weights and cache can share [byte]: the label in decimal, or what a process sees."""
    label = gpu.memory_label_bytes
    if "unified" in gpu.memory_kind:
        work.assume(
            f"the memory of {gpu.id} is shared with the system and its programs, which take their part of it"
        )
    if tier == "whiteboard":
        return work.read("memory", label, "byte", f"{source_of(gpu, 'memory.label')}, read as decimal GB")
    if seen := gpu.memory_visible_bytes:
        return work.read(
            "memory", seen, "byte", f"{source_of(gpu, 'memory.process_visible')}. {_why(gpu, seen)}"
        )
    if reported := gpu.memory_reported_bytes:
        kept = _DRIVER_RESERVE.get(gpu.vendor, 0.0)
        less = f", less {kept / 2**30:.1f} GiB that the driver keeps" if kept else ""
        work.assume(f"what a process sees on {gpu.id} was not measured: the driver's figure is used{less}")
        return work.read("memory", reported - kept, "byte", f"{source_of(gpu, 'memory.reported')}{less}")
    work.assume(f"neither the reported nor the visible memory of {gpu.id} is known: the label in decimal GB")
    return work.read("memory", label, "byte", source_of(gpu, "memory.label"))


def with_memory(gpu: Gpu, found: Calibration) -> Gpu:
    """A GPU with the memory that a process was measured to see. Raises InputError for a calibration without it, or of
    another GPU."""
    refuse(found, gpu)
    leaf = found.leaves.get("memory.total_bytes")
    if leaf is None:
        raise InputError(f"calibration {found.name!r} has no memory (capplan probe run --only memory)")
    from capplan.hardware.reading import Value
    from capplan.hardware.spec import Source

    seen = Value(leaf.value, "GiB", "calibration", "read")
    return replace(
        gpu,
        memory_visible_bytes=leaf.value,
        values={**gpu.values, "memory.process_visible": seen},
        sources={**gpu.sources, "calibration": Source("calibration", str(found.created), found.name)},
    )


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


def peak(gpu: Gpu, weights: str, work: Working) -> tuple[str, float]:
    """The precision products run in and its dense peak [FLOP/second]."""
    found = precision.matrix_rate(weights, gpu.dense_flops)
    if found is None:
        known = ", ".join(gpu.dense_flops) or "none"
        raise DataFileError(
            f"no dense rate that {weights} weights run at is known for gpu {gpu.id!r}; known: {known}"
        )
    dtype, rate = found
    if dtype != weights and not (weights == "nvfp4" and dtype == "fp4"):
        why = (
            "leave activations in 16 bit"
            if weights in ("int4", "mxfp4")
            else f"have no rate on {gpu.id} on record"
        )
        work.assume(f"{weights} weights {why}: products run in {dtype}")
    return dtype, work.read(
        f"peak_flops ({dtype})", rate, "FLOP/second", source_of(gpu, f"dense_flops.{dtype}")
    )


def bandwidth(gpu: Gpu, work: Working) -> float:
    """Memory bandwidth [byte/second]."""
    if not gpu.memory_bandwidth:
        raise DataFileError(f"the memory bandwidth of gpu {gpu.id!r} is not known")
    return work.read("bandwidth", gpu.memory_bandwidth, "byte/second", source_of(gpu, "memory.bandwidth"))
