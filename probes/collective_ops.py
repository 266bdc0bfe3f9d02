"""Collectives of a rank, what each should leave, what NCCL would reject of them, and how long they take."""

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


def rejected(op: str, out: Tensor, given: Tensor, ranks: int) -> list[str]:
    """What NCCL, or torch before it, would not take of a call, also where gloo takes it."""
    large, small = (out, given) if op == "all_gather" else (given, out)
    parts = 1 if op in ("all_reduce", "all_to_all") else ranks
    wrong = [
        f"{name} is not contiguous" for name, x in (("out", out), ("given", given)) if not x.is_contiguous()
    ]
    if out.dtype != given.dtype:
        wrong.append(f"out is {out.dtype} and given {given.dtype}")
    if large.numel() != parts * small.numel():
        wrong.append(f"{large.numel():,} numbers are not {parts} times {small.numel():,}")
    if op == "all_to_all" and len(given) % ranks:
        wrong.append(f"{len(given):,} numbers can't be divided among {ranks} ranks")
    if op != "all_reduce" and out.data_ptr() == given.data_ptr():
        wrong.append("out and given are one")
    return wrong


def captured(call: Callable[[], object], calls: int = 1) -> Callable[[], object]:
    """The replay of a CUDA graph of a collective, so many times after each other, as a decode step has them.

    What watches over NCCL's work asks the device meanwhile, from a thread of its own: only this thread's calls may spoil
    the capture.
    """
    import torch

    call()  # the connections are made at the first call, and that can't be captured
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, capture_error_mode="thread_local"):
        for _ in range(calls):
            call()
    return graph.replay  # type: ignore[no-any-return]


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


def library_bytes(device: Device) -> int:
    """Memory that the library takes for a group of ranks, which it makes at its first collective [byte]; none on a CPU."""
    import torch

    if not device.is_gpu:
        return 0
    one = torch.ones(1, device=device.torch)
    torch.cuda.synchronize()
    before = torch.cuda.mem_get_info(device.index)[0]
    collective("all_reduce", one, one)
    torch.cuda.synchronize()
    return int(max(0, before - torch.cuda.mem_get_info(device.index)[0]))


def calls_of(size: int) -> int:
    """How many calls are timed together: ten of a short one."""
    return 10 if size < _SHORT else 1


def times(
    run: Callable[[], object], calls: int, device: Device, before: Callable[[], object] = lambda: None
) -> list[float]:
    """Times of one of the `calls` that run() makes [second], as often on every rank. before: what is not timed."""
    import torch
    import torch.distributed as dist

    taken = []
    for _ in range(_WARM + _SAMPLES):
        before()
        dist.barrier()
        if device.is_gpu:
            begun, ended = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            torch.cuda.synchronize()
            begun.record()
            run()
            ended.record()
            torch.cuda.synchronize()
            taken.append(begun.elapsed_time(ended) * 1e-3 / calls)
        else:
            start = time.perf_counter()
            run()
            taken.append((time.perf_counter() - start) / calls)
    return taken[_WARM:]
