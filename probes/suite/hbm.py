"""The memory of the device: read, copied, written and both at once, over sizes from the caches' to gigabytes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from capplan.probes import fit
from capplan.probes.numerics import against, fresh, normal, poisoned, worst
from capplan.probes.probe import Case, Derived, Device, Measured, Numerics, Row, Value
from capplan.probes.timing import copies, timed

if TYPE_CHECKING:
    from torch import Tensor

NAME = "hbm"
TITLE = "memory read, copied, written and added up, by size"
FORMULA = "t = t0 + bytes / bandwidth"
WHAT = "the bandwidth that a decode step can hope for: it reads alone, and reading is faster than copying"
ORDER, VERSION = 20, 1

_ROW = 4096  # elements that are added up together in the read
_BYTES = {"read": 1, "copy": 2, "write": 1, "triad": 3}  # times the size of one buffer
_MIB = 2**20
_SIZES = {  # MiB of one buffer
    "quick": (16, 1024),
    "default": (1, 16, 64, 256, 1024, 4096),
    "full": (1, 4, 16, 64, 256, 1024, 2048, 4096, 8192),
}
_OF_CPU = {"quick": (4, 32), "default": (16, 64, 256), "full": (16, 64, 256, 512)}
_EXPECTED = 0.80  # of the datasheet, from a gigabyte on: H200 93%, A100 85%, MI300X 81%


def move(op: str, x: Tensor, y: Tensor, out: Tensor) -> Tensor:
    """out = row sums of x (read), x (copy), a constant (write), or x + 3 y (triad); x and y are [rows, 4096] fp32."""
    import torch

    if op == "read":
        return torch.sum(x, dim=1, out=out)
    if op == "copy":
        return out.copy_(x)
    if op == "write":
        return out.fill_(0.7)
    return torch.add(x, y, alpha=3.0, out=out)


def cases(profile: str, device: Device) -> list[Case]:
    sizes = (_SIZES if device.is_gpu else _OF_CPU)[profile]
    room = device.memory_bytes / 8  # three buffers, and room for what else is there
    return [
        {"op": op, "mib": size, "dtype": "fp32"} for op in _BYTES for size in sizes if size * _MIB <= room
    ]


def _shape(case: Case) -> tuple[int, int]:
    return case["mib"] * _MIB // 4 // _ROW, _ROW


def _out(op: str, rows: int, device: Device) -> Tensor:
    return poisoned((rows,) if op == "read" else (rows, _ROW), "fp32", device)


def check(case: Case, device: Device) -> Numerics:
    op, found = case["op"], []
    whole = _shape(case)[0]
    for rows in (min(whole, 257), min(whole, 1024)):  # odd too; the kernels are the same for all sizes
        x, y = (normal((rows, _ROW), "fp32", device, seed) for seed in (1, 2))
        got = move(op, x, y, _out(op, rows, device))
        a, b = x.double(), y.double()
        expected = {"read": a.sum(1), "copy": a, "write": a * 0 + 0.7, "triad": a + 3 * b}[op]
        found.append(against(got, expected, 2e-6))
    return worst(found)


def measure(case: Case, device: Device) -> Measured:
    from functools import partial

    op, shape = case["op"], _shape(case)
    size = case["mib"] * _MIB
    turns = copies(size, device)
    y = fresh(shape, "fp32", device) if op == "triad" else poisoned((1,), "fp32", device)
    calls = [
        partial(move, op, fresh(shape, "fp32", device), y, _out(op, shape[0], device)) for _ in range(turns)
    ]
    times, mode, cache = timed(calls, device, bytes_each=size)
    return Measured(times, mode, cache, bytes=float(_BYTES[op] * size), kernel=f"torch {op}", rotation=turns)


def derive(rows: Sequence[Row]) -> Derived:
    values: dict[str, Value] = {}
    predicted: dict[int, float] = {}
    for op in _BYTES:
        own = [row for row in rows if row["case"]["op"] == op]
        if not own:
            continue
        largest = max(own, key=lambda row: row["case"]["mib"])
        values[f"hbm.{op}_bps"] = fit.of_row(largest, largest["work"]["bytes"], "byte/s")
        if len(own) > 1:
            line = fit.line([r["work"]["bytes"] for r in own], [r["time_s"]["median"] for r in own])
            predicted |= {row["id"]: line(row["work"]["bytes"]) for row in own}
            if op == "read":
                off = [row["time_s"]["median"] / predicted[row["id"]] for row in own]
                values["hbm.t0"] = fit.value([line.start * each for each in off], "s", own, line.start)
    return Derived(values, [predicted.get(row["id"]) for row in rows])


def expect(row: Row, device: Device) -> str | None:
    """Reads of a gigabyte and more come to 80% of the datasheet on every card with HBM that we know figures of."""
    size, rate = row["work"]["bytes"], device.bandwidth
    if row["case"]["op"] == "read" and rate and size >= 2**30:
        share = row["achieved"]["bytes_ps"] / rate
        if share < _EXPECTED:
            return f"read at {100 * share:.0f}% of the datasheet, where {100 * _EXPECTED:.0f}% is usual"
    return None
