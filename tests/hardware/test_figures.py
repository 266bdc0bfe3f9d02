"""The figures themselves: memory as drivers report it, the rates plans rest on, and all of the facts behind them."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from capplan.hardware.registry import GPUS, all_gpus, gpu, names, node

GIB, MIB = 2**30, 2**20
SHIPPED = sorted(path.stem for path in GPUS.shipped.glob("*.toml"))

# id, label GB, MiB that the tool reports, the rule behind it, GiB that a process sees (low, high)
MEMORY = [
    ("a100-sxm-80", 80, 81920, 80 * 1024, (79.14, 79.25)),
    ("a100-sxm-40", 40, 40960, 40 * 1024, (39.39, 39.49)),
    ("a30", 24, 24576, 24 * 1024, None),
    ("v100-sxm2-32", 32, 32510, None, (31.73, 31.73)),
    ("h100-sxm", 80, 81559, 80 * 1024 * (1 - 0.00441), (79.14, 79.33)),
    ("h100-nvl", 94, 95830, 94 * 1024 * (1 - 0.00443), (93.09, 93.09)),
    ("h20-sxm", 96, 97871, 96 * 1024 * (1 - 0.00440), (94.5, 95.22)),
    ("h200-sxm", 141, 143771, 141 * 1024 * (1 - 0.00425), (139.72, 139.81)),
    ("gh200-144", 144, 146831, 144 * 1024 * (1 - 0.00424), None),
    ("b200-sxm", 180, 183359, 180 * 1024 * 191 / 192, (178.34, 178.36)),
    ("gb200-nvl72", 186, 189471, 186 * 1024 * 191 / 192, (184.31, 184.31)),
    ("b300-sxm", 270, 275040, 270 * 1024 * 191 / 192, (267.68, 267.69)),
    ("gb300-nvl72", 288, 284208, 279 * 1024 * 191 / 192, (276.50, 276.50)),
    ("t4", 16, 15360, 16 * 1024 * 15 / 16, None),
    ("a10g", 24, 23028, 24564 * 15 / 16, (22.03, 22.15)),
    ("l4", 24, 23034, 24570 * 15 / 16, (22.03, 22.07)),
    ("l40s", 48, 46068, 49140 * 15 / 16, (44.34, 44.53)),
    ("rtx-a6000", 48, 49140, 48 * 1024 - 12, (47.4, 47.5)),
    ("rtx-4090", 24, 24564, 24 * 1024 - 12, (23.64, 23.65)),
    ("rtx-5090", 32, 32607, 32 * 1024 - 161, (31.34, 31.39)),
    ("rtx-pro-6000-server", 96, 97887, 96 * 1024 - 417, (94.96, 94.98)),
    ("mi250x", 64, 68702699520 / MIB, 64 * 1024 - 16, (63.98, 63.98)),
    ("mi300x", 192, 206141652992 / MIB, 192 * 1024 - 16, (191.69, 191.98)),
    ("mi325x", 256, 262128, 256 * 1024 - 16, (255.69, 255.98)),
    ("mi355x", 288, 309220868096 / MIB, 288 * 1024 - 16, (287.98, 287.98)),
    ("gaudi3", 128, 131072, 128 * 1024, None),
    ("tpu-v5e", 16, 15.75 * 1024, None, (15.75, 15.75)),
    ("tpu-v7", 96, 94.75 * 1024, None, (94.75, 94.75)),  # one of the two devices of a chip
    ("gb10-dgx-spark", 128, None, None, (119.6, 121.7)),
]


@pytest.mark.parametrize(("name", "label", "reported", "rule", "visible"), MEMORY, ids=[m[0] for m in MEMORY])
def test_memory(
    name: str, label: float, reported: float | None, rule: float | None, visible: tuple[float, float] | None
) -> None:
    row = gpu(name)
    assert row.memory_label_bytes == label * 1e9
    assert row.memory_reported_bytes == (reported and reported * MIB)
    if rule and reported:
        assert abs(reported - rule) <= 6  # MiB
    if visible is None:
        assert row.memory_visible_bytes is None
    else:
        assert row.memory_visible_bytes is not None
        assert visible[0] <= round(row.memory_visible_bytes / GIB, 3) <= visible[1]


def test_the_h200_of_the_whiteboard() -> None:
    h200 = gpu("h200")
    assert h200.memory_label_bytes == 141e9
    assert h200.memory_bandwidth == 4.8e12
    assert h200.dense_flops["fp8"] == 1979e12
    assert h200.values["dense_flops.fp8"].sparse == 3958e12
    assert h200.memory_visible_bytes == 139.8 * GIB
    assert h200.memory_label_bytes / GIB == pytest.approx(
        131.3, abs=0.05
    )  # the decimal reading, short by 8.5 GiB
    assert h200.values["memory.reported"].written == "143771 MiB"


def test_traps_that_lists_fall_into() -> None:
    assert gpu("a10g").dense_flops["bf16"] == 70e12  # not the A10's 125
    assert gpu("l40s").dense_flops["fp8"] == 733e12  # 1466 is sparse
    assert gpu("h100").dense_flops["bf16"] == 989.5e12  # 1979 is sparse
    assert gpu("b300").dense_flops["fp4"] == 13500e12  # 3/4 of 18000
    assert gpu("b300").dense_flops["int8"] == 153.5e12  # 4500 is the B200's
    assert gpu("trn2").dense_flops["bf16"] == 667e12  # 2563 is 4:1 sparse
    assert gpu("4090").dense_flops["bf16"] == 165.2e12  # 330 accumulates in fp16
    assert gpu("gaudi3").dense_flops["bf16"] == 1677e12  # 1835 assumes a clock that parts don't run at
    assert gpu("rtx-pro-6000").memory_bandwidth == 1597e9  # 1792 is the workstation card
    assert gpu("mi250x").dense_flops["bf16"] == 383e12 / 2  # a process sees one of two
    pair = gpu("mi300x").link
    assert pair is not None
    assert (pair.unidirectional, pair.p2p) == (448e9, 64e9)  # a mesh: one pair gets one of seven links


def test_a_price_is_what_a_customer_pays() -> None:
    h200 = gpu("h200-sxm")
    assert min(p.usd_per_gpu_hour for p in h200.prices) == 1.41  # what an owner's model says it costs
    assert h200.price_range == (1.6, 10.6)
    assert gpu("a16").price_range is None


# --- every figure against the measured facts, where they are at hand ---

# what the facts count by module or chip and the row by device
DEVICES = {"mi250x": 2, "tpu-v7": 2}


def _load(name: str) -> Any:
    given = os.environ.get("CAPPLAN_MEASURED_DATA")
    folder = Path(given) if given else Path(__file__).resolve().parents[3] / "shared" / "data"
    path = folder / name
    return json.loads(path.read_text("utf-8")) if path.is_file() else []


FACTS: dict[str, dict[str, Any]] = {fact["id"]: fact for fact in _load("accelerators_facts.json")}
FABRIC: dict[str, Any] = _load("node_fabric_facts.json") or {}
needs_facts = pytest.mark.skipif(
    not FACTS, reason="accelerators_facts.json is not here; set CAPPLAN_MEASURED_DATA"
)


def _figures(fact: dict[str, Any]) -> Iterator[tuple[str, float | None]]:
    """The dotted key of every figure of a fact, for one device."""
    devices = DEVICES.get(fact["id"], 1)
    link, pcie, host = fact["interconnect"], fact["pcie"] or {}, fact["host_link"] or {}
    reported = fact["memory_mib_reported"]
    yield "memory.label", fact["memory_marketing_label_gb"] * 1e9 / devices
    yield "memory.reported", reported and reported * MIB / devices
    yield "memory.process_visible", fact["memory_bytes_process_visible"]
    yield "memory.bandwidth", fact["memory_bandwidth_bytes_s"] / devices
    yield "memory.l2", fact["l2_bytes"] and fact["l2_bytes"] / devices
    yield "memory.last_level_cache", fact["last_level_cache_bytes"]
    for dtype, rate in fact["dense_flops"].items():
        yield f"dense_flops.{dtype}", rate and rate / devices
    one_way, both = link.get("per_gpu_unidirectional_bytes_s"), link.get("per_gpu_bidirectional_bytes_s")
    yield "interconnect.unidirectional", one_way and one_way / devices
    yield "interconnect.bidirectional", both and both / devices
    yield "interconnect.p2p", link.get("p2p_unidirectional_bytes_s")
    yield "pcie.per_direction", pcie.get("bytes_s_per_direction")
    yield "host_link.unidirectional", host.get("unidirectional_bytes_s")
    yield "host_link.bidirectional", host.get("bidirectional_bytes_s")
    yield "nic.per_gpu", fact["nic_bytes_s"] and fact["nic_bytes_s"] / devices
    yield "board.tdp", fact["tdp_w"] and fact["tdp_w"] / devices
    yield "board.boost_clock", fact["boost_clock_hz"]
    kilowatts = fact["all_in_provisioned_kw_per_gpu"]
    yield "board.all_in_power", kilowatts and kilowatts * 1e3
    bought = fact["purchase_usd"]
    yield "board.purchase_price", bought["value"] if bought and bought["source"] else None


@needs_facts
def test_the_rows_are_the_facts() -> None:
    assert names() == sorted(FACTS)


@needs_facts
@pytest.mark.parametrize("name", SHIPPED)
def test_every_figure_is_the_facts(name: str) -> None:
    fact, row = FACTS[name], gpu(name)
    for key, expected in _figures(fact):
        if expected is None:
            assert key not in row.values, f"{key} is unknown in the facts"
        else:
            assert row.values[key].value == pytest.approx(expected, rel=1e-3), key
    for dtype, sparse in (fact["published_sparse_flops"] or {}).items():
        found = row.values[f"dense_flops.{dtype}"].sparse
        assert found == pytest.approx(sparse / DEVICES.get(name, 1), rel=1e-3), dtype
    assert row.sm_count == (fact["sm_count"] and fact["sm_count"] // DEVICES.get(name, 1))
    assert row.max_gpus_per_node == fact["max_gpus_per_node"] * DEVICES.get(name, 1)
    assert row.devices_per_board == fact["devices_per_board"]
    assert row.pcie_generation == (fact["pcie"] or {}).get("gen")
    assert row.pcie_lanes == (fact["pcie"] or {}).get("lanes")
    assert row.architecture == fact["architecture"]
    assert row.memory_kind == fact["memory_kind"]


@needs_facts
@pytest.mark.parametrize("name", SHIPPED)
def test_every_price_and_instance_is_the_facts(name: str) -> None:
    fact, row = FACTS[name], gpu(name)
    rental = fact["rental_usd_per_gpu_hour"]
    points = rental["points"] if rental else []
    assert [(p.usd_per_gpu_hour, p.basis) for p in row.prices] == [(p["usd"], p["basis"]) for p in points]
    assert [p.date for p in row.prices] == ["" if "undated" in p["date"] else p["date"] for p in points]
    assert row.price_range == ((rental["low"], rental["high"]) if rental else None)
    assert [row.sources[p.source].url for p in row.prices] == [p["source"] for p in points]
    for found, expected in zip(row.instances, fact["instances"], strict=True):
        assert found.name == expected["name"]
        assert found.gpus == expected["gpus"] * DEVICES.get(name, 1)
        assert found.usd_per_hour == expected["on_demand_usd_hour"]
        assert found.nvme_gb == expected["nvme_gb"]
        assert found.vcpus == expected.get("vcpus")
        bits = expected["network_bits_s"]
        assert found.network_gbit_s == (bits and bits / 1e9)


@needs_facts
@pytest.mark.parametrize("name", SHIPPED)
def test_a_row_cites_the_facts_sources_and_copies_no_sentence(name: str) -> None:
    fact, row = FACTS[name], gpu(name)
    sentences = {s.lower() for key in ("notes", "registry_disagreements") for s in fact[key] if len(s) > 30}
    written = [*row.notes, *(v.note for v in row.values.values()), *(i.note for i in row.instances)]
    assert not [note for note in written if note.lower() in sentences]
    urls = {s.url for s in row.sources.values()}
    assert not fact["source_urls"] or urls & set(fact["source_urls"]) or "analogy" in row.notes[0]


@pytest.mark.skipif(not FABRIC, reason="node_fabric_facts.json is not here; set CAPPLAN_MEASURED_DATA")
def test_measured_matmul_and_copy_rates_are_the_facts() -> None:
    measured = FABRIC["matmul_efficiency_measured"]
    for dtype in ("bf16", "fp8"):
        found = {row.id: row.matmul_efficiency[dtype] for row in all_gpus() if dtype in row.matmul_efficiency}
        assert found == measured[dtype]
    host = {entry["platform"]: entry for entry in FABRIC["host_to_device_pinned_measured"]}
    h200 = host["8x H200, PCIe 5 x16 each"]
    assert gpu("h200-sxm").values["pcie.host_to_device"].value == h200["h2d_bytes_s"]
    assert gpu("h200-sxm").values["pcie.device_to_host"].value == h200["d2h_bytes_s"]
    pairs = {entry["link"]: entry["bytes_s"] for entry in FABRIC["device_to_device_measured"]}
    for name, link in (("a100-sxm-80", "NVLink 3 pair, A100"), ("h200-sxm", "NVLink 4 pair, H200")):
        assert gpu(name).values["interconnect.p2p_measured"].value == pytest.approx(pairs[link])


@pytest.mark.skipif(not FABRIC, reason="node_fabric_facts.json is not here; set CAPPLAN_MEASURED_DATA")
def test_the_networks_of_nodes_are_the_facts() -> None:
    layouts = {entry["node"]: entry["nics"] for entry in FABRIC["nic_layouts"]}
    for name, entry in (
        ("dgx-a100", "DGX A100"),
        ("dgx-h100", "DGX H100/H200"),
        ("hgx-h200", "DGX H100/H200"),
        ("dgx-b200", "DGX B200"),
        ("dgx-b300", "DGX B300"),
        ("gb200-tray", "DGX GB200 tray (4 GPUs)"),
        ("p4d.24xlarge", "AWS p4d"),
        ("p5.48xlarge", "AWS p5"),
        ("p5en.48xlarge", "AWS p5en, trn2"),
        ("trn2.48xlarge", "AWS p5en, trn2"),
        ("p6-b200.48xlarge", "AWS p6-b200"),
        ("p6-b300.48xlarge", "AWS p6-b300"),
        ("a3-highgpu-8g", "GCP a3-high"),
        ("a3-megagpu-8g", "GCP a3-mega"),
        ("nd96isr-mi300x-v5", "Azure ND MI300X v5"),
        ("mi355x-8gpu", "MI300X/MI325X/MI355X usual"),
    ):
        cards, speed = layouts[entry].split(" Gb/s")[0].split(" x ")
        found = node(name)
        assert found.nic_layout.startswith(f"{cards} x {speed} Gb/s")
        assert found.nic_per_gpu == pytest.approx(int(cards) * int(speed) * 1e9 / 8 / found.gpus), name
