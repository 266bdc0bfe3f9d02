"""Memory of the host on one NUMA node: which cores are there, and pages that lie there."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from capplan.probes.probe import Device

if TYPE_CHECKING:
    from torch import Tensor

NODES = Path("/sys/devices/system/node")


def nodes() -> dict[int, set[int]]:
    """Cores by node, of those that this process may use; nodes without any are left out."""
    mine = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else set()
    found = {}
    for path in NODES.glob("node[0-9]*/cpulist"):
        if cores := _cores(path.read_text()) & mine:
            found[int(path.parent.name.removeprefix("node"))] = cores
    return dict(sorted(found.items()))


def _cores(text: str) -> set[int]:
    """Such as 0-3,8."""
    found: set[int] = set()
    for part in filter(None, text.strip().split(",")):
        first, _, last = part.partition("-")
        found |= set(range(int(first), int(last or first) + 1))
    return found


@contextmanager
def on_node(cores: set[int]) -> Iterator[None]:
    """This thread on the cores of a node: memory that it touches first lies there."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, cores)
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


@contextmanager
def pinned_on(cores: set[int], size: int, device: Device) -> Iterator[Tensor]:
    """So many random bytes on a node, pinned. Registered and not allocated by torch, which keeps pinned blocks and gives
    them out again, on whatever node they lie."""
    import torch

    with on_node(cores):
        some = torch.randint(256, (min(size, 2**24),), dtype=torch.uint8)
        held = some.repeat(-(-size // len(some)))[:size]  # touched by this thread
    driver = torch.cuda.cudart()
    if error := int(driver.cudaHostRegister(held.data_ptr(), size, 0)):
        raise RuntimeError(f"{size:,} bytes can't be pinned: error {error} of cudaHostRegister")
    try:
        yield held
    finally:
        torch.cuda.synchronize()
        driver.cudaHostUnregister(held.data_ptr())
