"""Copies between the GPU and the memory of each socket: what a worker loses whose memory lies on the wrong one."""

from __future__ import annotations

import time
from collections.abc import Sequence

from capplan.probes import fit, numa
from capplan.probes.device import facts
from capplan.probes.numerics import same_bits
from capplan.probes.probe import Case, Derived, Device, Measured, Numerics, Row, Skipped, Value
from capplan.probes.timing import SAMPLES

NAME = "numa_copy"
TITLE = "pinned copies to and from memory of every NUMA node of the host"
FORMULA = "far / near"
WHAT = "whether a worker has to be bound to the socket of its GPU before it offloads a cache or loads weights"
ORDER, VERSION = 31, 1

_MIB = {"quick": 256, "default": 1024, "full": 1024}
_WARM = 3


def cases(profile: str, device: Device) -> list[Case]:
    if not device.is_gpu:
        raise Skipped("no accelerator to copy to")
    found = numa.nodes()
    if len(found) < 2:
        raise Skipped("one NUMA node: all memory is as near")
    return [{"node": node, "way": way, "mib": _MIB[profile]} for node in found for way in ("h2d", "d2h")]


def _run(case: Case, device: Device, samples: int) -> tuple[list[float], bool]:
    """Times of a copy [second], and whether every byte arrived."""
    import torch

    size, times = case["mib"] * 2**20, []
    there = torch.randint(256, (size,), dtype=torch.uint8, device=device.torch)
    with numa.pinned_on(numa.nodes()[case["node"]], size, device) as here:
        source, target = (here, there) if case["way"] == "h2d" else (there, here)
        for _ in range(samples):
            torch.cuda.synchronize()
            before = time.perf_counter_ns()
            target.copy_(source, non_blocking=True)
            torch.cuda.synchronize()
            times.append((time.perf_counter_ns() - before) * 1e-9)
        return times, same_bits(here, there.cpu())


def check(case: Case, device: Device) -> Numerics:
    right = _run({**case, "mib": 16}, device, 1)[1]
    why = "" if right else "the copy is not what was sent"
    return Numerics(right, float(not right), 0.0, 0.0, 0, 0.0, why)


def measure(case: Case, device: Device) -> Measured:
    times, _ = _run(case, device, SAMPLES + _WARM)
    own = facts(device).get("numa_node")
    values = {} if own is None else {"near": float(own == case["node"])}
    size = float(case["mib"] * 2**20)
    return Measured(
        times[_WARM:], "eager", "uncertain", bytes=size, kernel="torch copy_", values=values, of="host"
    )


def derive(rows: Sequence[Row]) -> Derived:
    """By near and far where it is known which is which; else the fastest node is taken to be near."""
    values: dict[str, Value] = {}
    for way in sorted({row["case"]["way"] for row in rows}):
        own = sorted(
            (row for row in rows if row["case"]["way"] == way),
            key=lambda row: (-row["values"].get("near", 0.0), float(row["time_s"]["median"])),
        )
        near, far = own[0], max(own[1:], key=lambda row: float(row["time_s"]["median"]), default=own[0])
        for name, row in (("near", near), ("far", far))[: len(own)]:
            values[f"host_link.{way}_{name}_bps"] = fit.of_row(row, row["work"]["bytes"], "byte/s")
        if len(own) > 1:
            share = fit.of_row(far, near["time_s"]["median"], "1")
            values[f"host_link.{way}_far_share"] = share
    return Derived(values)
