"""What a row of the hardware registry says, with plain numbers in base units for the formulas.

`values` has every number again with its source, so that an answer can show where it comes from.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from capplan.hardware.reading import Value, check_sources, read_row
from capplan.hardware.schema import GPU, LINK, NODE


@dataclass(frozen=True, slots=True)
class Source:
    """Where numbers come from; `checked` is the day somebody last looked, as an ISO date."""

    id: str
    checked: str
    title: str = ""
    url: str = ""


@dataclass(frozen=True, slots=True)
class Price:
    """What somebody asks for one GPU for one hour; undated where the source is."""

    usd_per_gpu_hour: float
    basis: str
    source: str
    what: str = ""
    date: str = ""


@dataclass(frozen=True, slots=True)
class Instance:
    """A machine type of a cloud that carries this GPU."""

    cloud: str
    name: str
    gpus: int
    usd_per_hour: float | None = None
    region: str = ""
    price_date: str = ""
    source: str = ""
    vcpus: int | None = None
    memory_gib: float | None = None
    nvme_gb: float | None = None
    network_gbit_s: float | None = None
    spec_source: str = ""
    note: str = ""


@dataclass(frozen=True, slots=True)
class Link:
    """The link between GPUs. [byte/s] per GPU: all links one way, both ways, and what one pair gets one way."""

    kind: str = ""
    generation: int | None = None
    topology: str = ""
    domain_size: int | None = None
    unidirectional: float | None = None
    bidirectional: float | None = None
    p2p: float | None = None
    p2p_measured: float | None = None


@dataclass(frozen=True, slots=True)
class Gpu:
    """One accelerator as a process sees it: a GCD of an MI250X, one of the four GPUs of an A16.

    Base units: byte, byte/s, FLOP/s, W, Hz. None is unknown, never zero.
    """

    id: str
    name: str
    vendor: str
    aliases: tuple[str, ...]
    architecture: str
    form_factor: str
    released: str
    status: str
    compute_capability: str
    native_dtypes: tuple[str, ...]  # those with a matrix path in hardware
    memory_kind: str
    memory_label_bytes: float  # the number on the box, read as decimal
    memory_reported_bytes: float | None  # what nvidia-smi, rocm-smi, hl-smi or XLA reports
    memory_visible_bytes: float | None  # what a process can allocate from: torch's device total
    memory_bandwidth: float | None
    l2_bytes: float | None
    last_level_cache_bytes: float | None
    dense_flops: dict[str, float]
    matmul_efficiency: dict[str, float]  # best matmul measured, as a fraction of dense_flops
    link: Link | None
    pcie_generation: int | None
    pcie_lanes: int | None
    pcie_per_direction: float | None
    host_link_kind: str
    host_link_unidirectional: float | None
    nic_per_gpu: float | None
    sm_count: int | None
    sm_unit: str
    boost_clock_hz: float | None
    tdp_watts: float | None
    all_in_power_watts: float | None  # provisioned for one GPU with its share of everything around it
    purchase_price_usd: float | None
    devices_per_board: int | None
    max_gpus_per_node: int | None
    prices: tuple[Price, ...]
    instances: tuple[Instance, ...]
    notes: tuple[str, ...]
    sources: dict[str, Source]
    values: dict[str, Value]  # by dotted key, such as "memory.bandwidth"

    @property
    def price_range(self) -> tuple[float, float] | None:
        """The lowest and the highest hourly price that a customer pays; an owner's cost is not a price."""
        asked = [p.usd_per_gpu_hour for p in self.prices if p.basis != "ownership-cost-model"]
        return (min(asked), max(asked)) if asked else None


@dataclass(frozen=True, slots=True)
class Node:
    """A server or machine type: how many of which GPU, and what joins them. Base units, None is unknown."""

    id: str
    name: str
    aliases: tuple[str, ...]
    gpu: str  # the id of a row of gpus
    gpus: int
    link: Link | None
    pcie_generation: int | None
    pcie_lanes: int | None
    pcie_per_direction: float | None
    nic_layout: str
    nic_per_gpu: float | None
    local_ssd_bytes: float | None
    max_power_watts: float | None
    notes: tuple[str, ...]
    sources: dict[str, Source]
    values: dict[str, Value]


def from_toml(data: Mapping[str, Any], where: str) -> Gpu:
    """A row of gpus, checked; `where` is the file that an error names."""
    row = read_row(data, GPU, where)
    check_sources(row, where)
    values = {key: found for key, found in row.items() if isinstance(found, Value)}
    base = {key: found.value for key, found in values.items()}
    return Gpu(
        id=row["id"],
        name=row["name"],
        vendor=row["vendor"],
        aliases=row.get("aliases", ()),
        architecture=row.get("architecture", ""),
        form_factor=row.get("form_factor", ""),
        released=row.get("released", ""),
        status=row.get("status", ""),
        compute_capability=row.get("compute_capability", ""),
        native_dtypes=row.get("native_dtypes", ()),
        memory_kind=row.get("memory.kind", ""),
        memory_label_bytes=base["memory.label"],
        memory_reported_bytes=base.get("memory.reported"),
        memory_visible_bytes=base.get("memory.process_visible"),
        memory_bandwidth=base.get("memory.bandwidth"),
        l2_bytes=base.get("memory.l2"),
        last_level_cache_bytes=base.get("memory.last_level_cache"),
        dense_flops=_section(base, "dense_flops"),
        matmul_efficiency=_section(base, "matmul_efficiency"),
        link=_link(row, base),
        pcie_generation=row.get("pcie.generation"),
        pcie_lanes=row.get("pcie.lanes"),
        pcie_per_direction=base.get("pcie.per_direction"),
        host_link_kind=row.get("host_link.kind", ""),
        host_link_unidirectional=base.get("host_link.unidirectional"),
        nic_per_gpu=base.get("nic.per_gpu"),
        sm_count=row.get("board.sm_count"),
        sm_unit=row.get("board.sm_unit", ""),
        boost_clock_hz=base.get("board.boost_clock"),
        tdp_watts=base.get("board.tdp"),
        all_in_power_watts=base.get("board.all_in_power"),
        purchase_price_usd=base.get("board.purchase_price"),
        devices_per_board=row.get("board.devices_per_board"),
        max_gpus_per_node=row.get("board.max_gpus_per_node"),
        prices=tuple(Price(**price) for price in row.get("prices", [])),
        instances=tuple(Instance(**instance) for instance in row.get("instances", [])),
        notes=row.get("notes", ()),
        sources=_sources(row),
        values=values,
    )


def node_from_toml(data: Mapping[str, Any], where: str) -> Node:
    """A row of nodes, checked; `where` is the file that an error names."""
    row = read_row(data, NODE, where)
    check_sources(row, where)
    values = {key: found for key, found in row.items() if isinstance(found, Value)}
    base = {key: found.value for key, found in values.items()}
    return Node(
        id=row["id"],
        name=row["name"],
        aliases=row.get("aliases", ()),
        gpu=row["gpu"],
        gpus=row["gpus"],
        link=_link(row, base),
        pcie_generation=row.get("pcie.generation"),
        pcie_lanes=row.get("pcie.lanes"),
        pcie_per_direction=base.get("pcie.per_direction"),
        nic_layout=row.get("nic.layout", ""),
        nic_per_gpu=base.get("nic.per_gpu"),
        local_ssd_bytes=base.get("storage.local_ssd"),
        max_power_watts=base.get("power.maximum"),
        notes=row.get("notes", ()),
        sources=_sources(row),
        values=values,
    )


def _section(base: Mapping[str, float], name: str) -> dict[str, float]:
    return {key.partition(".")[2]: value for key, value in base.items() if key.startswith(name + ".")}


def _link(row: Mapping[str, Any], base: Mapping[str, float]) -> Link | None:
    parts = {key: row[f"interconnect.{key}"] for key in LINK if f"interconnect.{key}" in row}
    return Link(**(parts | _section(base, "interconnect"))) if parts else None


def _sources(row: Mapping[str, Any]) -> dict[str, Source]:
    return {source["id"]: Source(**source) for source in row.get("sources", [])}
