"""What the time of an operation needs of a GPU: its peaks, its memory, its links, and how near kernels come to them."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from capplan.errors import InputError
from capplan.registry import read_toml

if TYPE_CHECKING:
    from capplan.hardware.spec import Gpu

CONSTANTS = Path(__file__).parent / "kernels.toml"

# the generation whose kernels an architecture runs, or comes nearest to
_BY_CAPABILITY = {"8.9": "sm89", "8": "sm80", "9": "sm90", "10": "sm100", "11": "sm100", "12": "sm120"}
_MEASURED = ("8.0", "8.9", "9.0", "10.0", "10.3", "12.0")
_NEAREST = {
    "amd": "sm90",  # matrix cores, HBM and kernels of Hopper's day
    "google": "sm90",
    "intel": "sm90",
    "aws": "sm90",
    "apple": "sm89",
}
_BLACKWELL_OR_LATER = ("CDNA4", "Rubin")

# the dense peak of an operation's dtype, best first: a format without a path of its own is widened
_PEAKS = {
    "fp32": ("tf32", "fp32"),
    "bf16": ("bf16", "fp16"),
    "fp16": ("fp16", "bf16"),
    "fp8": ("fp8", "bf16", "fp16"),
    "fp8_block": ("fp8", "bf16", "fp16"),
    "int8": ("int8", "bf16", "fp16"),
    "int4": ("bf16", "fp16"),
    "nvfp4": ("fp4", "bf16", "fp16"),
    "mxfp4": ("fp4", "bf16", "fp16"),
    "w4a16_mxfp4": ("bf16", "fp16"),
    "w4a8_mxfp4": ("fp8", "bf16", "fp16"),
}


class Chip(NamedTuple):
    """One GPU of a node as its kernels see it; base units."""

    name: str
    generation: str  # whose constants these are
    peaks: dict[str, float]  # dense FLOP/s by an operation's dtype
    bandwidth: float  # byte/s of memory
    sms: float
    l2: float  # byte
    link: str  # nvlink, pcie, mesh: what joins the GPUs of a domain
    link_bandwidth: float  # byte/s of one GPU, one way
    pcie_bandwidth: float
    nic_bandwidth: float
    domain: int  # GPUs that the link joins
    constants: dict[str, Any]
    assumptions: tuple[str, ...] = ()


@cache
def constants() -> dict[str, Any]:
    """kernels.toml"""
    return read_toml(CONSTANTS)


def generation_of(gpu: Gpu) -> tuple[str, bool]:
    """The generation whose constants stand for a GPU, and whether its own kind was measured."""
    capability = gpu.compute_capability
    found = _BY_CAPABILITY.get(capability) or _BY_CAPABILITY.get(capability.partition(".")[0])
    if gpu.vendor == "nvidia" and found:
        return found, capability in _MEASURED
    if gpu.architecture.startswith(_BLACKWELL_OR_LATER):
        return "sm100", False
    return _NEAREST.get(gpu.vendor, "sm80"), False


def chip_of(gpu: Gpu) -> Chip:
    """A row of the registry as kernels see it; what the row doesn't say is assumed, and told.

    Raises InputError for a row without bandwidth or without any matrix rate.
    """
    generation, measured = generation_of(gpu)
    assumed = []
    if not measured:
        assumed.append(
            f"{gpu.id}: no kernel of its architecture was measured; shares of peak are {generation}'s"
        )
    if gpu.memory_bandwidth is None:
        raise InputError(f"gpu {gpu.id!r} has no memory bandwidth on record")
    rates = dict(gpu.dense_flops)
    if not _first(rates, _PEAKS["bf16"]):
        if not (narrow := _first(rates, ("fp8", "fp4"))):
            raise InputError(f"gpu {gpu.id!r} has no dense matrix rate on record")
        rates["bf16"] = narrow / (2 if "fp8" in rates else 4)
        assumed.append(f"{gpu.id}: bf16 rate not on record; it is taken by the width of the format on record")
    peaks = {dtype: found for dtype, order in _PEAKS.items() if (found := _first(rates, order))}
    link, domain, bandwidth = "pcie", 1, gpu.pcie_per_direction
    if gpu.link is not None and gpu.link.unidirectional and gpu.link.kind not in ("pcie", "ethernet", "none"):
        link = "nvlink" if gpu.link.kind.startswith("nvlink") else "mesh"
        domain, bandwidth = gpu.link.domain_size or 1, gpu.link.unidirectional
    if gpu.pcie_per_direction is None:
        assumed.append(f"{gpu.id}: host link not on record; 32 GB/s is taken")
    if gpu.nic_per_gpu is None:
        assumed.append(f"{gpu.id}: network not on record; 12.5 GB/s a GPU is taken")
    if gpu.sm_count is None:
        assumed.append(f"{gpu.id}: processors not on record; 132 are taken")
    pcie = gpu.pcie_per_direction or 32e9
    return Chip(
        name=gpu.id,
        generation=generation,
        peaks=peaks,
        bandwidth=gpu.memory_bandwidth,
        sms=float(gpu.sm_count or 132),
        l2=gpu.l2_bytes or 32 * 2**20,
        link=link,
        link_bandwidth=bandwidth or pcie,
        pcie_bandwidth=pcie,
        nic_bandwidth=gpu.nic_per_gpu or 12.5e9,
        domain=domain,
        constants=constants()[generation],
        assumptions=tuple(assumed),
    )


def _first(rates: Mapping[str, float], order: tuple[str, ...]) -> float | None:
    return next((rates[name] for name in order if rates.get(name)), None)
