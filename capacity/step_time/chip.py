"""What the time of an operation needs of a GPU: its peaks, its memory, its links, and how near kernels come to them."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from capplan.errors import InputError
from capplan.registry import read_toml

if TYPE_CHECKING:
    from capplan.hardware.spec import Gpu

_Value = TypeVar("_Value")
DATA = Path(__file__).parent / "kernels.toml"

# The matrix paths that serve a dtype, best first: a format without a path of its own is widened.
_PATHS = {
    "fp32": ("fp32", "tf32"),  # PyTorch takes TF32 where it is asked to, and engines do not ask
    "bf16": ("bf16", "fp16"),
    "fp16": ("fp16", "bf16"),
    "fp8": ("fp8", "bf16", "fp16"),
    "fp8_block": ("fp8", "bf16", "fp16"),
    "int8": ("int8", "bf16", "fp16"),
    "int4": ("bf16", "fp16"),
    "nvfp4": ("fp4", "bf16", "fp16"),
    "mxfp4": ("bf16", "fp16"),
    "w4a16_mxfp4": ("bf16", "fp16"),
    "w4a8_mxfp4": ("fp8", "bf16", "fp16"),
}
_SHARES = {"fp8": "fp8", "int8": "fp8", "fp4": "fp4"}  # of another path: bf16

_BY_CAPABILITY = {"8.9": "sm89", "8": "sm80", "9": "sm90", "10": "sm100", "11": "sm100", "12": "sm120"}
_MEASURED = ("8.0", "8.6", "8.9", "9.0", "10.0", "10.3", "12.0")
# Whose kernels are nearest, where none of a maker's were measured: those with HBM and a tensor unit to Hopper
_NEAREST = {"nvidia": "sm80", "apple": "sm89"}
_LIKE_BLACKWELL = ("CDNA4", "Rubin")

# What is assumed of a GPU whose row doesn't say
_PROCESSORS = 132.0
_CLOCK = 1.9e9  # Hz; boost clocks of data-centre GPUs since 2020 lie between 1.4 and 2.6 GHz
_HOST = 32e9  # byte/s of a link to the host: PCIe 4 x16
_NETWORK = 12.5e9  # byte/s a GPU: 100 Gb/s
_CACHE = 32 * 2**20
_HOST_GPUS = 8  # GPUs of a node without a link of their own

# Exponentials a processor computes in a cycle: CUDA programming guide, throughput of native arithmetic instructions
# (16 since compute capability 8.0); twice that on 10.3: NVIDIA, "Inside NVIDIA Blackwell Ultra", 2025-08
_EXPONENTIALS = {"10.3": 32.0}
_SIXTEEN = 16.0
# bf16 FLOP a processor's matrix units can do in a cycle: NVIDIA's architecture white papers. Some cards are sold with
# less (H20, RTX 5090, A10G): their units have that much more time to be fed.
_UNITS = {"7": 512.0, "8.0": 2048.0, "8": 1024.0, "9": 4096.0, "10": 8192.0, "12": 1024.0}
_HOPPER_FLOP = 4096.0  # gives processors of another make a like number of cycles


class Constants(NamedTuple):
    """How near kernels come to the peaks: kernels.toml says where each comes from.

    Shares are of the dense peak or of the bandwidth. The first twelve are a generation's, the others everybody's.
    """

    gemm: Mapping[str, float]  # of the peak, by matrix path: bf16, fp8, fp4
    memory: float  # of the bandwidth, reading weights
    start_us: float  # of a product
    attention_start_us: float
    decode: Mapping[str, float]  # of the bandwidth, reading a cache of bf16 or fp8
    pair_us: float  # of a sequence and its heads of one key head, in decode, on a processor
    prefill: float  # of the peak
    grouped: float  # of what a dense product reaches
    grouped_start_us: float  # routing, sorting and two products of experts
    gemm_power: float
    inner_ns: float  # of a product, per element of the inner dimension
    attention_power: float
    attention_compute: float  # of the peak, in decode
    latent_compute: float
    latent_start: float  # of decode over latents, times attention_start_us
    split_us: float  # of dividing long contexts and adding up
    split_tokens: float  # context at which half of that is due
    prefill_start: float  # times attention_start_us
    prefill_power: float
    prefill_tile_us: float  # of a tile of queries, on a processor
    prefill_path: float  # of the longest row of tiles that is not hidden
    softmax_power: float  # joins products and exponentials; 1: one after the other
    fp8_gain: float  # of attention's peak, where queries and keys are multiplied in fp8
    fp8_start: float  # of decode over an fp8 cache, times attention_start_us
    fp8_pair: float
    fp8_read: float  # byte a processor reads of an fp8 cache in a cycle, with FlashAttention-3 on Hopper
    grouped_tile: float  # rows that an expert's share is rounded up by, at most
    grouped_rows: float  # passes over the rows that experts get: gathered, quantised, added up
    grouped_tokens: float  # passes over the tokens before they are routed: all ranks sort them all
    weight_only: float  # of the 16-bit peak, in experts whose weights are widened first
    block_scaled: (
        float  # of the fp8 peak, in experts with a scale for 128 on hardware that scales blocks of 32
    )
    pass_us: float  # of an elementwise pass
    pass_memory: float
    scan_compute: float


class Fabric(NamedTuple):
    """What a collective costs on one kind of link: kernels.toml says where each figure comes from."""

    share: float  # of the link's bandwidth
    peer_share: float  # of it, from one GPU to another
    start_us: float
    rank_us: float  # for each rank beyond the first
    ramp_us: float  # until large messages stream
    ramp_bytes: float
    direct_us: float  # an engine's own all-reduce, by reading from every peer
    direct_rank_us: float
    direct_share: float
    eager_us: float  # a collective launched from Python, without a graph


class Chip(NamedTuple):
    """One GPU of a node as its kernels see it; base units."""

    name: str
    generation: str  # whose constants these are
    measured: bool  # or only nearest to what was measured
    peaks: Mapping[str, float]  # dense FLOP/s by an operation's dtype
    paths: Mapping[str, str]  # the matrix path of a dtype, as Constants.gemm names it
    allowed: float  # share of its matrix units' rate that its peak is
    bandwidth: float  # byte/s of memory
    sms: float
    cycles: float  # of all processors, a second
    exponentials: float  # a second
    l2: float  # byte
    link: str  # what joins the GPUs of a domain: a fabric of kernels.toml
    link_bandwidth: float  # byte/s of one GPU, one way, all its links
    domain: int  # GPUs that the link joins
    multicast: bool  # the switch adds up and copies: NVLink SHARP
    mesh: bool  # a link for each pair
    pcie_bandwidth: float
    nic_bandwidth: float
    constants: Constants
    fabrics: Mapping[str, Fabric]
    assumptions: tuple[str, ...] = ()
    # of this GPU and its like, where they were measured: sizes and times [byte, second] by operation and ranks
    collectives: Mapping[tuple[str, int], tuple[tuple[float, float], ...]] = {}


@cache
def data() -> dict[str, Any]:
    """kernels.toml"""
    return read_toml(DATA)


@cache
def constants_of(generation: str) -> Constants:
    """A generation's constants, with those that all share."""
    return Constants(**data()["generation"][generation], **data()["shared"])


@cache
def fabrics() -> dict[str, Fabric]:
    return {name: Fabric(**figures) for name, figures in data()["fabric"].items()}


def _by_capability(table: Mapping[str, _Value], capability: str) -> _Value | None:
    """What a table says of a compute capability, or of all of its major version."""
    return table.get(capability, table.get(capability.partition(".")[0]))


def generation_of(gpu: Gpu) -> tuple[str, bool]:
    """The generation whose constants stand for a GPU, and whether kernels of its own kind were measured."""
    capability = gpu.compute_capability
    found = _by_capability(_BY_CAPABILITY, capability)
    if gpu.vendor == "nvidia" and found:
        return found, capability in _MEASURED
    if gpu.architecture.startswith(_LIKE_BLACKWELL):
        return "sm100", False
    return _NEAREST.get(gpu.vendor, "sm90"), False


def chip_of(gpu: Gpu) -> Chip:
    """A row of the registry as kernels see it; what the row doesn't say is assumed, and told.

    Raises InputError for a row without a memory bandwidth or any matrix rate.
    """
    generation, measured = generation_of(gpu)
    assumed: list[str] = []
    if not measured:
        assumed.append(
            f"{gpu.id}: no kernel of its kind was measured; {generation}'s shares of peak are taken"
        )
    if gpu.memory_bandwidth is None:
        raise InputError(f"gpu {gpu.id!r} has no memory bandwidth on record")
    peaks, paths = _peaks(gpu, assumed)

    def said(value: float | None, otherwise: float, what: str) -> float:
        if value is None:
            assumed.append(f"{gpu.id}: {what} not on record; {otherwise:g} is taken")
        return otherwise if value is None else value

    pcie = said(gpu.pcie_per_direction, _HOST, "byte/s to the host")
    link, topology, bandwidth, domain = "pcie", "", pcie, gpu.max_gpus_per_node or _HOST_GPUS
    if gpu.link is not None and gpu.link.unidirectional and gpu.link.kind not in ("pcie", "ethernet", "none"):
        topology, bandwidth = gpu.link.topology.lower(), gpu.link.unidirectional
        link, domain = ("nvlink" if "nvlink" in gpu.link.kind else "mesh"), gpu.link.domain_size or 1
    counted = gpu.sm_unit in ("SM", "CU") and gpu.sm_count is not None
    sms = float(gpu.sm_count) if counted and gpu.sm_count else _PROCESSORS
    if not counted:
        assumed.append(f"{gpu.id}: no count of processors that compares with SMs; {_PROCESSORS:g} are taken")
        cycles = peaks["bf16"] / _HOPPER_FLOP
    else:
        cycles = sms * said(gpu.boost_clock_hz, _CLOCK, "clock in Hz")
    units = _by_capability(_UNITS, gpu.compute_capability)
    allowed = 1.0
    if counted and units and gpu.boost_clock_hz:
        allowed = min(1.0, peaks["bf16"] / (sms * units * gpu.boost_clock_hz))
    return Chip(
        name=gpu.id,
        generation=generation,
        measured=measured,
        peaks=peaks,
        paths=paths,
        allowed=allowed,
        bandwidth=gpu.memory_bandwidth,
        sms=sms,
        cycles=cycles,
        exponentials=cycles * _EXPONENTIALS.get(gpu.compute_capability, _SIXTEEN),
        l2=said(gpu.l2_bytes, _CACHE, "bytes of L2"),
        link=link,
        link_bandwidth=bandwidth,
        domain=domain,
        multicast="switch" in topology and generation in ("sm90", "sm100"),
        mesh="mesh" in topology or "all to all" in topology,
        pcie_bandwidth=pcie,
        nic_bandwidth=said(gpu.nic_per_gpu, _NETWORK, "byte/s of network"),
        constants=constants_of(generation),
        fabrics=fabrics(),
        assumptions=tuple(assumed),
    )


def _peaks(gpu: Gpu, assumed: list[str]) -> tuple[dict[str, float], dict[str, str]]:
    """The dense rate of every dtype, and the matrix path that it takes."""
    rates = dict(gpu.dense_flops)
    if not (rates.get("bf16") or rates.get("fp16")):
        narrow = next((name for name in ("fp8", "fp4") if rates.get(name)), None)
        if narrow is None:
            raise InputError(f"gpu {gpu.id!r} has no dense matrix rate on record")
        rates["bf16"] = rates[narrow] / (2 if narrow == "fp8" else 4)
        assumed.append(f"{gpu.id}: bf16 rate not on record; it is taken from {narrow}'s by their widths")
    paths = {
        dtype: next((path for path in order if rates.get(path)), "bf16" if rates.get("bf16") else "fp16")
        for dtype, order in _PATHS.items()
    }
    peaks = {dtype: rates[path] for dtype, path in paths.items()}
    return peaks, {dtype: _SHARES.get(path, "bf16") for dtype, path in paths.items()}
