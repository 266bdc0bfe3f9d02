"""Copies from one GPU to another, one way and both ways at once: what the link between each pair carries."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from statistics import median
from typing import TYPE_CHECKING

from capplan.probes import fit
from capplan.probes.attention import line
from capplan.probes.numerics import fresh, same_bits
from capplan.probes.probe import Case, Derived, Device, Measured, Numerics, Row, Skipped, Value
from capplan.probes.timing import timed

if TYPE_CHECKING:
    from torch import Tensor

NAME = "peer_copy"
TITLE = "copies between the GPUs of this machine, every pair, one way and both ways at once"
FORMULA = "t = t0 + bytes / rate"
WHAT = "the link of each pair of GPUs, and the slowest of them, which a tensor-parallel group runs at"
ORDER, VERSION = 40, 1

_SIZES = {"quick": (2**28,), "default": (2**16, 2**22, 2**28), "full": tuple(2**n for n in range(10, 31, 2))}
_SLOW = 0.7  # of the median of the pairs


def copy(target: Tensor, source: Tensor) -> None:
    """target = source, on another device, in the order of the source's stream."""
    target.copy_(source, non_blocking=True)


def cases(profile: str, device: Device) -> list[Case]:
    if not device.is_gpu:
        raise Skipped("needs 2 GPUs")
    import torch

    count = torch.cuda.device_count()
    if count < 2:
        raise Skipped("needs 2 GPUs")
    pairs = [(a, b) for a in range(count) for b in range(count) if a != b]
    made = [(a, b, size, False) for a, b in pairs for size in _SIZES[profile]]
    made += [(a, b, max(_SIZES[profile]), True) for a, b in pairs if a < b]
    return [dict(zip(("source", "target", "bytes", "duplex"), each, strict=True)) for each in made]


def check(case: Case, device: Device) -> Numerics:
    """Every byte, both ways where both are copied."""
    import torch

    wrong = 0
    for source, target in _buffers(case, device):
        target.fill_(torch.nan)
        copy(target, source)
        torch.cuda.synchronize(source.device)
        torch.cuda.synchronize(target.device)
        wrong += not same_bits(source.cpu(), target.cpu())
    why = f"{wrong} of the buffers arrived with other bytes" if wrong else ""
    return Numerics(not wrong, float(wrong), 0.0, 0.0, 0, 0.0, why, bit_stable=not wrong)


def measure(case: Case, device: Device) -> Measured:
    import torch

    buffers = _buffers(case, device)
    near = torch.cuda.Stream(case["source"])
    far = torch.cuda.Stream(case["target"])

    def both_ways() -> None:
        """Each copy on a stream of the GPU that it starts from; what is timed waits for both."""
        (source, target), (back, home) = buffers
        begun = torch.cuda.current_stream(case["source"])
        for stream in (near, far):
            stream.wait_stream(begun)
        with torch.cuda.stream(near):
            copy(target, source)
        with torch.cuda.stream(far):
            copy(home, back)
        for stream in (near, far):
            begun.wait_stream(stream)

    call = both_ways if case["duplex"] else partial(copy, *reversed(buffers[0]))
    with torch.cuda.device(case["source"]):
        times, mode, _ = timed([call], device, bytes_each=case["bytes"], graph=False)
        peers = torch.cuda.can_device_access_peer(case["source"], case["target"])
    size = case["bytes"] * (2 if case["duplex"] else 1)
    return Measured(times, mode, "uncertain", None, size, None, "copy", values={"peer_access": float(peers)})


def expect(row: Row, device: Device) -> str | None:
    """Without peer access a copy goes through the host."""
    pair = f"GPU {row['case']['source']} and GPU {row['case']['target']}"
    return None if row["values"]["peer_access"] else f"{pair} can't reach each other's memory"


def derive(rows: Sequence[Row]) -> Derived:
    values: dict[str, Value] = {}
    predicted: dict[int, float] = {}
    plain = [row for row in rows if not row["case"]["duplex"]]
    rates = {}
    for pair in sorted({(row["case"]["source"], row["case"]["target"]) for row in plain}):
        own = [row for row in plain if (row["case"]["source"], row["case"]["target"]) == pair]
        path = f"fabric.pairs.{pair[0]}_{pair[1]}"
        values |= line(path, own, "bytes", "byte/s", predicted)
        rates[pair] = values[f"{path}.rate"].value
    if rates:
        values["fabric.slowest"] = fit.value([min(rates.values())], "byte/s", plain)
        slow = sum(rate < _SLOW * median(rates.values()) for rate in rates.values())
        values["fabric.slow_pairs"] = fit.value([float(slow)], "1", plain)
    for row in rows:
        if row["case"]["duplex"]:
            path = f"fabric.duplex.{row['case']['source']}_{row['case']['target']}"
            values[f"{path}.rate"] = fit.of_row(row, row["work"]["bytes"], "byte/s")
    return Derived(values, [predicted.get(row["id"]) for row in rows])


def _buffers(case: Case, device: Device) -> list[tuple[Tensor, Tensor]]:
    """Where a copy starts and where it ends; for both ways, the way back too."""
    from dataclasses import replace

    ends = [replace(device, index=case[end]) for end in ("source", "target")]
    ways = [ends, ends[::-1]] if case["duplex"] else [ends]
    return [
        (fresh((case["bytes"] // 2,), "bf16", a), fresh((case["bytes"] // 2,), "bf16", b)) for a, b in ways
    ]
