"""Copies between the host and the device: pinned and pageable, one way and both, in one block and in many."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

from capplan.probes import fit
from capplan.probes.device import link_now
from capplan.probes.numerics import same_bits
from capplan.probes.probe import Case, Derived, Device, Measured, Numerics, Row, Skipped, Value
from capplan.probes.timing import SAMPLES

if TYPE_CHECKING:
    from torch import Tensor

NAME = "host_copy"
TITLE = "copies to and from the host, pinned and pageable, by block size"
FORMULA = "t = blocks * t_op + bytes / bandwidth"
WHAT = "whether a cache is worth sending to the host, and how fast weights come up"
ORDER, VERSION = 30, 1

_KIB = 2**10
_SIZES = {  # KiB in all
    "quick": (64, 262144),
    "default": (4, 64, 2048, 65536, 262144),
    "full": (4, 64, 512, 2048, 16384, 65536, 262144, 1048576),
}
_BLOCKS = (64, 512, 2048)  # KiB of a block of a cache
_MANY = 65536  # KiB that are sent in blocks
_MADE = 2**24  # byte of random data, repeated: a gigabyte of them takes seconds
_WARM = 3
_EXPECTED = 0.80  # of the link's rate


def copy(source: Tensor, target: Tensor, block: int) -> None:
    """target = source, so many elements at a time; asynchronous where the host's side is pinned."""
    for at in range(0, source.numel(), block):
        target[at : at + block].copy_(source[at : at + block], non_blocking=True)


def cases(profile: str, device: Device) -> list[Case]:
    if not device.is_gpu:
        raise Skipped("no accelerator to copy to")
    ways = [(way, host) for way in ("h2d", "d2h", "both") for host in ("pinned", "pageable")]
    ways.remove(("both", "pageable"))  # pageable copies wait for each other
    whole = [
        {"way": way, "host": host, "kib": size, "block_kib": size}
        for way, host in ways
        for size in _SIZES[profile]
    ]
    blocks = [
        {"way": way, "host": "pinned", "kib": _MANY, "block_kib": block}
        for way in ("h2d", "d2h")
        for block in _BLOCKS
    ]
    return whole + blocks


def _buffers(case: Case, device: Device) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Buffers on the host and the device, with unlike data: two pairs, so that both ways can go at once."""
    import torch

    count = case["kib"] * _KIB
    pinned = case["host"] == "pinned"
    some = [torch.randint(0, 256, (min(count, _MADE),), dtype=torch.uint8) for _ in range(2)]
    hosts = [each.repeat(-(-count // len(each)))[:count] for each in some]  # touched by this process first
    hosts = [each.pin_memory() if pinned else each for each in hosts]
    others = [torch.randint(0, 256, (count,), dtype=torch.uint8, device=device.torch) for _ in range(2)]
    return hosts[0], hosts[1], others[0], others[1]


def _run(case: Case, buffers: tuple[Tensor, Tensor, Tensor, Tensor]) -> None:
    import torch

    up, down, up_to, down_from = buffers
    block = case["block_kib"] * _KIB
    streams = [torch.cuda.Stream(), torch.cuda.Stream()]
    if case["way"] in ("h2d", "both"):
        with torch.cuda.stream(streams[0]):
            copy(up, up_to, block)
    if case["way"] in ("d2h", "both"):
        with torch.cuda.stream(streams[1]):
            copy(down_from, down, block)
    torch.cuda.synchronize()


def check(case: Case, device: Device) -> Numerics:
    buffers = _buffers(case, device)
    up, down, up_to, down_from = buffers
    _run(case, buffers)
    wrong = [case["way"] != "d2h" and not same_bits(up, up_to.cpu())]
    wrong += [case["way"] != "h2d" and not same_bits(down, down_from.cpu())]
    why = "the copy is not what was sent" if any(wrong) else ""
    return Numerics(not why, float(any(wrong)), 0.0, 0.0, 0, 0.0, why)


def measure(case: Case, device: Device) -> Measured:
    import torch

    buffers, times = _buffers(case, device), []
    for sample in range(SAMPLES + _WARM):
        torch.cuda.synchronize()
        before = time.perf_counter_ns()
        _run(case, buffers)  # ends synchronised
        if sample >= _WARM:
            times.append((time.perf_counter_ns() - before) * 1e-9)
    size = case["kib"] * _KIB * (2 if case["way"] == "both" else 1)
    of = "host" if case["way"] != "both" else "link"  # both ways at once may pass the rate of one
    now = link_now(device)  # right after it was used
    return Measured(times, "eager", "uncertain", bytes=float(size), kernel="torch copy_", values=now, of=of)


def derive(rows: Sequence[Row]) -> Derived:
    values: dict[str, Value] = {}
    predicted: dict[int, float] = {}
    for way, host in {(row["case"]["way"], row["case"]["host"]) for row in rows}:
        own = [row for row in rows if (row["case"]["way"], row["case"]["host"]) == (way, host)]
        whole = [row for row in own if row["case"]["kib"] == row["case"]["block_kib"]]
        largest = max(whole, key=lambda row: row["case"]["kib"])
        name = f"host_link.{way}_bps" if host == "pinned" else f"host_link.{way}_pageable_bps"
        values[name] = fit.of_row(largest, largest["work"]["bytes"], "byte/s")
        if len(whole) > 1:
            line = fit.line([r["work"]["bytes"] for r in whole], [r["time_s"]["median"] for r in whole])
            for row in own:
                blocks = row["case"]["kib"] / row["case"]["block_kib"]
                predicted[row["id"]] = line.start * blocks + row["work"]["bytes"] / line.rate
            if (way, host) == ("h2d", "pinned"):
                values["host_link.t_op"] = fit.value([line.start], "s", whole)
    return Derived(values, [predicted.get(row["id"]) for row in rows])


def expect(row: Row, device: Device) -> str | None:
    """Large pinned copies come to 80 to 95% of the link."""
    case, rate = row["case"], device.host_link
    if (
        rate
        and case["host"] == "pinned"
        and case["way"] != "both"
        and case["kib"] == case["block_kib"] >= 2**18
    ):
        share = row["achieved"]["bytes_ps"] / rate
        if share < _EXPECTED:
            return f"{100 * share:.0f}% of the link's rate: a narrower link, or memory of another socket?"
    return None
