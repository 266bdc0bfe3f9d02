"""The memory that there really is: on the label, reported, seen by a process, and what a process itself costs of it."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

from capplan.probes import fit
from capplan.probes.probe import Case, Derived, Device, Measured, Numerics, Row, Value

if TYPE_CHECKING:
    from torch import Tensor

NAME = "memory"
TITLE = "memory truth: total, free, what a context costs, how much can be filled and read back"
FORMULA = "usable = total - context - reserve"
WHAT = (
    "the bytes that weights and cache can have; the number on the box is neither GB nor what a process gets"
)
ORDER, VERSION = 5, 1

_STEP = 2**28  # byte of an allocation
_SHARE = {"quick": 0.5, "default": 0.97, "full": 0.97}  # of what is free
_OF_CPU, _MOST_OF_CPU = 0.1, 2**27  # a host has other work: a tenth, and 128 MiB at most
_CONTEXT_MOST = 2**31
_NODES = 200  # kernels of a graph


def filled(number: int, count: int, device: Device) -> Tensor:
    """A block of int32 that tells which block it is: each entry is its place times an odd number, plus the block's."""
    import torch

    return torch.arange(count, dtype=torch.int32, device=device.torch).mul_(2654435).add_(number)


def cases(profile: str, device: Device) -> list[Case]:
    return [{"fill": _SHARE[profile] if device.is_gpu else _OF_CPU}]


def _fill(case: Case, device: Device) -> tuple[int, int, int]:
    """Fill the share of what is free, and read it back: bytes filled, wrong entries, the largest block [byte]."""
    import torch

    total, free = _total_and_free(device)
    goal = int(min(case["fill"] * free, _MOST_OF_CPU if not device.is_gpu else total))
    step = min(_STEP, max(2**20, goal // 4))
    held: list[Tensor] = []
    wrong = 0
    try:
        while (len(held) + 1) * step <= goal:
            held.append(filled(len(held), step // 4, device))
    except torch.OutOfMemoryError:
        del held[-1:]  # room for the check
    for number, block in enumerate(held):
        wrong += int((block != filled(number, step // 4, device)).sum())
    size = len(held) * step
    held.clear()
    return size, wrong, step


def _total_and_free(device: Device) -> tuple[int, int]:
    import torch

    from capplan.probes.device import memory_of_host

    if not device.is_gpu:
        return memory_of_host()
    torch.cuda.empty_cache()
    free, total = torch.cuda.mem_get_info(device.index)
    return total, free


def check(case: Case, device: Device) -> Numerics:
    size, wrong, _ = _fill(case, device)
    why = (
        f"{wrong:,} entries are not what was written" if wrong else "" if size else "nothing could be filled"
    )
    return Numerics(not why, float(bool(wrong)), float(wrong), 0.0, 0, 0.0, why)


def measure(case: Case, device: Device) -> Measured:
    from capplan.probes.device import facts, spec

    before = time.perf_counter()
    size, _, _ = _fill(case, device)
    took = time.perf_counter() - before
    total, free = _total_and_free(device)
    values = {"total_bytes": float(total), "free_bytes": float(free), "filled_bytes": float(size)}
    if device.is_gpu:
        # of a device that nobody else uses, what is not free is the context's and the driver's
        values["context_bytes"] = float(total - free)
        values["graph_bytes"] = float(_graph(device))
        if reported := facts(device).get("reported_bytes"):
            values["reported_bytes"] = float(reported)
    notes = (
        [f"the label says {label}: {total / 1e9:.1f} GB of 10^9, {total / 2**30:.1f} GiB are there"]
        if (label := spec(device)["capacity_label"])
        else []
    )
    return Measured([took], "eager", "uncertain", kernel="torch arange", values=values, notes=notes)


def _graph(device: Device) -> int:
    """What a graph of 200 kernels keeps of the memory [byte]."""
    import torch

    x = torch.zeros(1, device=device.torch)
    x.add_(1.0)
    torch.cuda.synchronize()
    before, graph = torch.cuda.mem_get_info(device.index)[0], torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(_NODES):
            x.add_(1.0)
    graph.replay()
    torch.cuda.synchronize()
    return int(max(0, before - torch.cuda.mem_get_info(device.index)[0]))


def derive(rows: Sequence[Row]) -> Derived:
    row, values = rows[0], dict[str, Value]()
    told = row["values"]
    for name in ("total_bytes", "reported_bytes", "context_bytes", "graph_bytes"):
        if name in told:
            values[f"memory.{name}"] = fit.value([told[name]], "byte", [row])
    usable = told["total_bytes"] - told.get("context_bytes", 0.0)
    values["memory.usable_bytes"] = fit.value([usable], "byte", [row])
    return Derived(values)


def expect(row: Row, device: Device) -> str | None:
    """A context takes half a GiB or so; more is another process, or a part of the card."""
    context = row["values"].get("context_bytes", 0.0)
    if context > _CONTEXT_MOST:
        return f"{context / 2**30:.1f} GiB are not free although nothing was allocated: another process?"
    return None
