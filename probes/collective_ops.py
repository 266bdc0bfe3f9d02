"""Collectives of a rank, what each should leave, and how long they take."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from capplan.probes.numerics import torch_dtype
from capplan.probes.probe import Device

if TYPE_CHECKING:
    from torch import Tensor

OPS = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all")
DTYPE = "bf16"  # as activations are
_BLOCK = 99_991
_SAMPLES, _WARM = 20, 5
_SHORT = 2**20  # bytes below which calls are timed ten at a time


def collective(op: str, out: Tensor, given: Tensor) -> None:
    """One operation. All-reduce works in `out`; gather fills it from all ranks; reduce-scatter sums a part of it."""
    import torch.distributed as dist

    if op == "all_reduce":
        dist.all_reduce(out)
    elif op == "all_gather":
        dist.all_gather_into_tensor(out, given)
    elif op == "reduce_scatter":
        dist.reduce_scatter_tensor(out, given)
    else:
        dist.all_to_all_single(out, given)


def numbers(rank: int, size: int, device: Device) -> Tensor:
    """What a rank brings [number], which every other can make as well: a block as long as a prime number, again and again,
    so that parts that change places are seen."""
    import torch

    count = size // torch_dtype(DTYPE).itemsize
    block = torch.randn(_BLOCK, generator=torch.Generator().manual_seed(rank)).to(
        device.torch, torch_dtype(DTYPE)
    )
    return block.repeat(-(-count // _BLOCK))[:count]


def expected(op: str, rank: int, ranks: int, size: int, device: Device) -> Tensor:
    """What a rank should have in the end, in fp64 [number]."""
    import torch

    if op == "all_gather":
        return torch.cat([numbers(each, size // ranks, device) for each in range(ranks)]).double()
    if op == "all_to_all":
        return torch.cat([numbers(each, size, device).chunk(ranks)[rank] for each in range(ranks)]).double()
    total = numbers(0, size, device).double()
    for each in range(1, ranks):
        total += numbers(each, size, device)
    return total if op == "all_reduce" else total.chunk(ranks)[rank]


def times(call: Callable[[], object], size: int, device: Device) -> list[float]:
    """Times of one call [second], the same number of calls on every rank."""
    import torch
    import torch.distributed as dist

    calls = 10 if size < _SHORT else 1
    taken = []
    for _ in range(_WARM + _SAMPLES):
        dist.barrier()
        if device.is_gpu:
            before, after = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            torch.cuda.synchronize()
            before.record()
            for _ in range(calls):
                call()
            after.record()
            torch.cuda.synchronize()
            taken.append(before.elapsed_time(after) * 1e-3 / calls)
        else:
            start = time.perf_counter()
            for _ in range(calls):
                call()
            taken.append((time.perf_counter() - start) / calls)
    return taken[_WARM:]
