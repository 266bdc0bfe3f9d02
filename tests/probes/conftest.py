"""Calibration files of devices that are made up: rows with times by a roofline that is known, and what follows from them.

The probes' own derive() makes the constants, so that what is planted has to be found again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from capplan.calibration_file import SCHEMA, sealed
from capplan.hardware.registry import gpu
from capplan.probes.fit import Roof
from capplan.probes.probe import Device, Measured, Numerics, Row, probe
from capplan.probes.timing import METHOD
from capplan.probes.verdict import derived_of, quality_of
from capplan.probes.worker import laid_out

Made = Callable[..., dict[str, Any]]
FINE = Numerics(True, 1e-3, 0.0, 0.0, 0, 2.5e-3)
US = 1e-6


def made_device(name: str = "h200-sxm") -> Device:
    """A card of the registry as the probes would see it."""
    row = gpu(name)
    amd = row.vendor == "amd"
    major, minor = (0, 0) if amd else map(int, row.compute_capability.split("."))
    return Device(
        kind="rocm" if amd else "cuda",
        index=0,
        name=row.name,
        arch=row.compute_capability if amd else f"sm_{major}{minor}",
        sm_count=row.sm_count or 0,
        l2_bytes=int(row.l2_bytes or 0),
        memory_bytes=int(row.memory_visible_bytes or 0),
        capability=(major, minor),
        gpu=row.id,
        peaks=row.dense_flops,
        bandwidth=row.memory_bandwidth,
        host_link=row.pcie_per_direction,
        fp8_flavour="fnuz" if row.compute_capability == "gfx942" else "fn",
        max_clock=1980e6,
    )


def made_row(name: str, case: dict[str, Any], time: float, spread: float = 0.01, **more: Any) -> Row:
    """A row of a probe whose median time is given; eight of ten samples lie within `spread` of it."""
    times = [time * (1 + spread * (i - 10) / 8) for i in range(21)]
    measured = Measured(times, more.pop("mode", "burst"), more.pop("cache", "cold"), **more)
    return laid_out(probe(name), case, "pass", None, FINE, measured) | {
        "telemetry": None,
        "contended": False,
    }


def made_document(
    name: str = "h200-sxm",
    *,
    products: float = 0.75,  # share of the peak
    memory: float = 0.88,  # share of the bandwidth
    link: float = 0.88,
    launch: float = 5 * US,
    node: float = 1.5 * US,
    power: float = 3.0,
    spread: float = 0.01,
    change: Callable[[dict[str, Any]], object] = lambda document: None,
    **facts: Any,
) -> dict[str, Any]:
    """The calibration of a device that reaches these shares. facts: of `device`; change: whatever else is to differ."""
    seen = made_device(name)
    rows = list(_rows(seen, products, memory, link, launch, node, power, spread))
    for number, each in enumerate(rows):
        each["id"] = number
    about = {
        "kind": seen.kind,
        "index": 0,
        "name": seen.name,
        "arch": seen.arch,
        "uuid_sha256_16": "0" * 16,
        "sku_guess": seen.gpu,
        "sku_match": "exact",
        "sm_count": seen.sm_count,
        "l2_bytes": seen.l2_bytes,
        "mem_total_bytes": seen.memory_bytes,
        "ecc": True,
        "mig": {"enabled": False, "profile": None},
        "max_sm_mhz": 1980,
        "max_mem_mhz": 3201,
        "power_limit_w": 700.0,
        "power_default_w": 700.0,
        "pcie": {"gen": 5, "width": 16, "gen_max": 5, "width_max": 16},
        "fp8_flavour": "fn",
    } | facts
    made = {
        "schema": SCHEMA,
        "method_version": METHOD,
        "capplan_version": "0",
        "created_utc": "2026-11-29T12:00:00+00:00",
        "profile": "default",
        "duration_s": 300.0,
        "seed": 1,
        "label": None,
        "device": about,
        "stack": {
            "driver": "580.1",
            "cuda": "13.0",
            "torch": "2.13.0",
            "triton": "3.6.0",
            "host_cpu": "a CPU",
        },
        "spec": {
            "source": f"capplan gpus {seen.gpu}",
            "peak_flops_dense": dict(seen.peaks),
            "hbm_bps": seen.bandwidth,
        },
        "telemetry": None,
        "results": rows,
        "derived": derived_of(rows)[0],
        "quality": quality_of(rows, about, 0.01),
    }
    change(made)
    return sealed(made)


def _rows(
    seen: Device,
    products: float,
    memory: float,
    link: float,
    launch: float,
    node: float,
    power: float,
    spread: float,
) -> Iterator[Row]:
    assert seen.bandwidth
    assert seen.host_link
    told = {"total_bytes": float(seen.memory_bytes), "free_bytes": 0.9 * seen.memory_bytes}
    told |= {"filled_bytes": 0.8 * seen.memory_bytes, "context_bytes": 5e8}
    yield made_row("memory", {"fill": 0.97}, 0.1, spread, mode="eager", cache="uncertain", values=told)
    for op, times in (("read", 1), ("copy", 2), ("write", 1), ("triad", 3)):
        for mib in (16, 256, 4096):
            size = float(times * mib * 2**20)
            yield made_row(
                "hbm",
                {"op": op, "mib": mib, "dtype": "fp32"},
                3 * US + size / (memory * seen.bandwidth),
                spread,
                bytes=size,
            )
    for how, each in (("eager", launch), ("graph", node)):
        for n in (1, 10, 200, 1000):
            yield made_row(
                "launch", {"how": how, "n": n, "dtype": "fp32"}, 8 * US + n * each, spread, mode=how
            )
    for way in ("h2d", "d2h"):
        for kib in (64, 2048, 1048576):
            size = float(kib * 1024)
            case = {"way": way, "host": "pinned", "kib": kib, "block_kib": kib}
            time = 6 * US + size / (link * seen.host_link)
            yield made_row("host_copy", case, time, spread, bytes=size, of="host")
    bf16 = Roof(4 * US, products * seen.peaks["bf16"], memory * seen.bandwidth, power)
    for n, k in ((8192, 8192), (28672, 8192), (8192, 28672)):
        for m in (1, 16, 64, 128, 256, 512, 1024, 4096, 8192):
            flops, size = 2.0 * m * n * k, 2.0 * (m * k + n * k + m * n)
            case = {"m": m, "n": n, "k": k, "dtype": "bf16", "shapes": "llm70b", "mode": "burst"}
            yield made_row("gemm", case, bf16(flops, size), spread, flops=flops, bytes=size, dtype="bf16")
    n, k = 51200, 7168
    for m in (1, 2, 4, 8, 16, 32, 64, 96, 128, 160, 192, 224, 256, 320, 384, 512, 768, 1024, 2048, 4096):
        flops, size = 2.0 * m * n * k, 2.0 * (m * k + n * k + m * n)
        case = {"m": m, "n": n, "k": k, "dtype": "bf16", "shapes": "gemv"}
        yield made_row(
            "weight_streaming", case, bf16(flops, size), spread, flops=flops, bytes=size, dtype="bf16"
        )
    fp8 = Roof(4 * US, products * seen.peaks["fp8"], memory * seen.bandwidth, power)
    for n, k in ((8192, 8192), (28672, 8192)):
        for m in (1, 16, 256, 1024, 4096, 8192):
            flops, size = 2.0 * m * n * k, 1.0 * (m * k + n * k) + 2.0 * m * n
            case = {"m": m, "n": n, "k": k, "dtype": "fp8", "recipe": "row", "fast_accum": False}
            case |= {"shapes": "llm70b", "mode": "burst"}
            yield made_row("fp8_gemm", case, fp8(flops, size), spread, flops=flops, bytes=size, dtype="fp8")


@pytest.fixture(scope="session")
def document() -> Made:
    """Makes the calibration of a device: see made_document."""
    return made_document


@pytest.fixture(scope="session")
def row() -> Callable[..., Row]:
    """Makes a row of a probe: see made_row."""
    return made_row


@pytest.fixture(scope="session")
def device() -> Callable[..., Device]:
    """Makes a card of the registry as the probes would see it: see made_device."""
    return made_device
