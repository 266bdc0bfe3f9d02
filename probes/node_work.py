"""What every GPU of a machine does by itself and with all others: memory read, a product, a copy from the host."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial

from capplan.probes.numerics import fresh, poisoned
from capplan.probes.probe import Device, Numerics
from capplan.probes.suite import gemm, hbm
from capplan.probes.timing import between

WORKS = ("read", "gemm", "h2d")
MIB = 2**20
READ = {"gpu": 1024, "cpu": 16}  # MiB
SIZE = {"gpu": (8192, "bf16"), "cpu": (256, "fp32")}  # rows, outputs and inner of a product
COPY = 256  # MiB


def where(device: Device) -> str:
    return "gpu" if device.is_gpu else "cpu"


def works(device: Device) -> tuple[str, ...]:
    return WORKS if device.is_gpu else WORKS[:2]


def amount(work: str, device: Device) -> tuple[float | None, float | None]:
    """FLOPs and bytes of one call."""
    if work == "gemm":
        return 2.0 * SIZE[where(device)][0] ** 3, None
    return None, float(MIB * (READ[where(device)] if work == "read" else COPY))


def call_of(work: str, device: Device) -> tuple[Callable[[], object], Numerics]:
    """A work of this GPU, ready to run, and whether it is right."""
    import torch

    if work == "read":
        rows = READ[where(device)] * MIB // 4 // 4096
        x, out = fresh((rows, 4096), "fp32", device), poisoned((rows,), "fp32", device)
        found = hbm.check({"op": "read", "mib": 1, "dtype": "fp32"}, device)
        return partial(hbm.move, "read", x, x, out), found
    if work == "gemm":
        size, dtype = SIZE[where(device)]
        a, b, out = (fresh((size, size), dtype, device) for _ in range(3))
        return partial(gemm.gemm, a, b, out), gemm.check(
            {"m": 64, "n": 256, "k": size, "dtype": dtype}, device
        )
    host = torch.randint(256, (COPY * MIB,), dtype=torch.uint8).pin_memory()
    there = torch.zeros_like(host, device=device.torch)
    there.copy_(host)
    wrong = int((there.cpu() != host).sum())
    why = f"{wrong:,} bytes arrived otherwise" if wrong else ""
    return partial(there.copy_, host, non_blocking=True), Numerics(
        not why, float(bool(wrong)), 0.0, 0.0, 0, 0.0, why
    )


def timed(call: Callable[[], object], calls: int, device: Device) -> float:
    """Time of one call [second], of several on end."""
    if device.is_gpu:
        return between(lambda: [call() for _ in range(calls)]) / calls
    start = time.perf_counter()
    for _ in range(calls):
        call()
    return (time.perf_counter() - start) / calls
