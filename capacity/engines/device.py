"""A GPU as an engine sees it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from capplan.hardware.spec import Gpu

GIB = 2**30
_DRIVER_RESERVE = {"nvidia": 0.6 * GIB}  # kept back, where what a process sees was not measured
_GENERATIONS = {"7": "sm80", "8": "sm80", "9": "sm90", "10": "sm100", "11": "sm100", "12": "sm120"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Device:
    """Memory in bytes, and what decides about kernels."""

    total_bytes: float
    generation: str = "sm90"  # as engines/vllm_rules.py names them
    link: str = "nvlink"  # how its collectives get through: nvlink, pcie, or rtx_pro
    name: str = ""
    free_bytes: float | None = None  # at start; None: all of it
    unified: bool = False  # shared with the system, so that what a process lost is not its GPU's alone


def device_of(gpu: Gpu, *, total_bytes: float | None = None, free_bytes: float | None = None) -> Device:
    """A row of the registry; `total_bytes` is what a log reports instead."""
    kept = _DRIVER_RESERVE.get(gpu.vendor, 0.0)
    seen = gpu.memory_visible_bytes or (gpu.memory_reported_bytes or gpu.memory_label_bytes + kept) - kept
    major = gpu.compute_capability.split(".")[0]
    return Device(
        total_bytes=total_bytes or seen,
        generation="rocm" if gpu.vendor == "amd" else _GENERATIONS.get(major, "sm90"),
        link=_link(gpu),
        name=gpu.id,
        free_bytes=free_bytes,
        unified="unified" in gpu.memory_kind,
    )


def _link(gpu: Gpu) -> str:
    if gpu.link is not None and gpu.link.kind == "nvlink":
        return "nvlink"
    return "rtx_pro" if gpu.id.startswith("rtx-pro-6000") else "pcie"
