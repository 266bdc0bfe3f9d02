"""Pages of a KV cache from one rank to another, with checksums: how fast prefill hands over to decode, and whether right."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from capplan.probes import page_transfer, ranks
from capplan.probes.attention import line
from capplan.probes.probe import Case, Derived, Device, Measured, Numerics, Row, Skipped, Value

NAME = "kv_transfer"
TITLE = "pages of a KV cache between two ranks, a message each or gathered into one, with checksums"
FORMULA = "t = t0 + bytes / rate"
WHAT = "what handing a cache over from prefill to decode takes, by size of a page"
ORDER, VERSION = 41, 1

TRANSFER = "capplan.probes.suite.kv_transfer:transfer"  # what each rank runs
_SHAPES = {  # bytes of a page, pages
    "gpu": tuple((size * 2**10, count) for size in (64, 256, 2048) for count in (8, 64, 256)),
    "cpu": ((2**16, 8), (2**16, 64)),
}
_QUICK = (256 * 2**10, 2**16)  # pages of a quick run
_WAYS = ("each", "gathered")
_SPARE = 8  # pages of either pool that the transfer has no business with
_SAMPLES, _WARM = 20, 3
_SECONDS = 120.0
_TOLD: dict[str, list[Any]] = {}  # what the ranks said: all cases are run in one start of them


def transfer(rank: int, ranks: int, job: list[Case], device: Device) -> list[dict[str, Any]]:
    """One rank: 0 sends, 1 receives, checks what came, and times it again; for each case. Never leaves the other waiting."""
    import torch
    import torch.distributed as dist

    told = []
    for case in job:
        count = case["pages"]
        numbers = torch.randn(
            (count + _SPARE, case["page_bytes"] // 2), generator=torch.Generator().manual_seed(rank)
        )
        pool = (
            numbers.bfloat16().view(torch.uint8).to(device.torch)
        )  # the receiver's is full of what was there before
        order = torch.randperm(len(pool), generator=torch.Generator().manual_seed(10 + rank)).to(device.torch)
        mine, others = order[:count], order[count:]
        before, sums = page_transfer.checksums(pool[others]), page_transfer.checksums(pool[mine])
        dist.broadcast(sums, 0)  # in the order of the sequence: they say which page is meant to be where
        wrong: set[int] = set()
        times = []
        for turn in range(1 + _WARM + _SAMPLES):
            dist.barrier()
            start = time.perf_counter()
            if rank:
                page_transfer.receive(pool, mine, case["way"], 0)
            else:
                page_transfer.send(pool, mine, case["way"], 1)
            if device.is_gpu:
                torch.cuda.synchronize()
            times.append(time.perf_counter() - start)
            if not turn:  # what was there before can't be taken for what came
                wrong.update((page_transfer.checksums(pool[mine]) != sums).nonzero().flatten().tolist())
        wrong.update((page_transfer.checksums(pool[mine]) != sums).nonzero().flatten().tolist())
        strayed = int((page_transfer.checksums(pool[others]) != before).sum())
        told.append({"wrong": sorted(wrong), "strayed": strayed, "times": times[1 + _WARM :]})
    return told


def cases(profile: str, device: Device) -> list[Case]:
    if device.is_gpu:
        import torch

        if torch.cuda.device_count() < 2:
            raise Skipped("needs 2 GPUs")
    made = _every(device)
    return [case for case in made if profile != "quick" or case["page_bytes"] in _QUICK]


def check(case: Case, device: Device) -> Numerics:
    """Every page where the receiver's table has it, byte for byte, and no other page touched."""
    sender, receiver = _told(case, device)
    wrong, strayed = receiver["wrong"] + sender["wrong"], receiver["strayed"] + sender["strayed"]
    why = f"{len(wrong)} of {case['pages']} pages came wrong, the first of them {wrong[0]}" if wrong else ""
    if strayed:
        why = "; ".join(filter(None, (why, f"{strayed} pages changed that were not to be written")))
    return Numerics(
        not why, (len(wrong) + strayed) / case["pages"], 0.0, 0.0, 0, 0.0, why, bit_stable=not why
    )


def measure(case: Case, device: Device) -> Measured:
    times = [max(both) for both in zip(*(told["times"] for told in _told(case, device)), strict=True)]
    backend = "nccl" if device.is_gpu else "gloo-loopback"
    return Measured(
        times, "eager", "uncertain", None, case["pages"] * case["page_bytes"], None, case["way"], backend
    )


def derive(rows: Sequence[Row]) -> Derived:
    values: dict[str, Value] = {}
    predicted: dict[int, float] = {}
    for way, size in sorted({(row["case"]["way"], row["case"]["page_bytes"]) for row in rows}):
        own = [row for row in rows if (row["case"]["way"], row["case"]["page_bytes"]) == (way, size)]
        values |= line(f"fabric.{NAME}.{way}.{size}", own, "bytes", "byte/s", predicted)
    return Derived(values, [predicted[row["id"]] for row in rows])


def _every(device: Device) -> list[Case]:
    shapes = _SHAPES["gpu" if device.is_gpu else "cpu"]
    return [{"page_bytes": size, "pages": count, "way": way} for size, count in shapes for way in _WAYS]


def _told(case: Case, device: Device) -> tuple[Any, Any]:
    """What sender and receiver say of a case."""
    every = _every(device)
    if TRANSFER not in _TOLD:
        _TOLD[TRANSFER] = ranks.run(TRANSFER, 2, every, device, _SECONDS)
    sender, receiver = _TOLD[TRANSFER]
    number = every.index(case)
    return sender[number], receiver[number]
