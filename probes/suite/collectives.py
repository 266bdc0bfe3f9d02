"""What ranks exchange in tensor and expert parallelism: how long each collective takes, by size, and whether it is right."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from statistics import median
from typing import Any

from capplan.probes import collective_ops as ops
from capplan.probes import fit, ranks
from capplan.probes.attention import rows_against
from capplan.probes.numerics import poisoned
from capplan.probes.probe import Case, Derived, Device, Measured, Numerics, Row, Skipped, Value

NAME = "collectives"
TITLE = "all-reduce, all-gather, reduce-scatter and all-to-all between the ranks of this machine, by size"
FORMULA = "t = alpha + bytes / algorithm bandwidth"
WHAT = "what tensor and expert parallelism cost a layer; times and algorithm bandwidth, as NVLink SHARP makes busbw untrue"
ORDER, VERSION = 42, 1

EXCHANGE = "capplan.probes.suite.collectives:exchange"  # what each rank runs
_SIZES = {
    "gpu": tuple(2**n for n in range(9, 30, 2)),
    "cpu": (2**12, 2**18, 2**22),
}  # bytes of the larger side
_BOUND = 1e-2  # of sums rounded at each rank; what is only moved is held to every bit
_SECONDS = 180.0
_TOLD: dict[int, list[Any]] = {}  # by ranks: all operations are run in one start of them


def exchange(rank: int, ranks: int, job: None, device: Device) -> dict[str, list[dict[str, Any]]]:
    """One rank: every operation at every size, checked and then timed as often on each rank."""
    told: dict[str, list[dict[str, Any]]] = {op: [] for op in ops.OPS}
    for op in ops.OPS:
        for size in _SIZES["gpu" if device.is_gpu else "cpu"]:
            given = ops.numbers(rank, size // (ranks if op == "all_gather" else 1), device)
            wanted = ops.expected(op, rank, ranks, size, device)
            out = given.clone() if op == "all_reduce" else poisoned(tuple(wanted.shape), ops.DTYPE, device)
            ops.collective(op, out, given)
            bound = 0.0 if op in ("all_gather", "all_to_all") else _BOUND
            found = rows_against(out.view(16, -1), wanted.view(16, -1), bound)
            times = ops.times(partial(ops.collective, op, out, given), size, device)
            told[op].append({"size": size, "numerics": list(found), "times": times})
    return told


def cases(profile: str, device: Device) -> list[Case]:
    if not device.is_gpu:
        return [{"op": op, "ranks": 2, "dtype": ops.DTYPE} for op in ops.OPS]
    import torch

    counts = [n for n in (2, 4, 8) if n <= torch.cuda.device_count()]
    if not counts:
        raise Skipped("needs 2 GPUs")
    return [
        {"op": op, "ranks": n, "dtype": ops.DTYPE}
        for n in (counts[-1:] if profile == "quick" else counts)
        for op in ops.OPS
    ]


def check(case: Case, device: Device) -> Numerics:
    """The worst of all sizes and ranks."""
    found = [Numerics(*one["numerics"]) for told in _told(case, device) for one in told]
    return max(found, key=lambda each: (not each.ok, each.rel_fro))


def measure(case: Case, device: Device) -> Measured:
    """The largest size; the medians of all are in `values`. A rank that waits is not faster: the slowest counts."""
    every = list(zip(*_told(case, device), strict=True))
    slowest = [[max(turn) for turn in zip(*(one["times"] for one in size), strict=True)] for size in every]
    sizes = [size[0]["size"] for size in every]
    values = {f"time_s.{size}": median(times) for size, times in zip(sizes, slowest, strict=True)}
    backend = "nccl" if device.is_gpu else "gloo-loopback"
    return Measured(slowest[-1], "eager", "uncertain", None, sizes[-1], ops.DTYPE, None, backend, values)


def derive(rows: Sequence[Row]) -> Derived:
    values: dict[str, Value] = {}
    predicted = []
    for row in rows:
        table = {int(name.split(".")[1]): float(took) for name, took in row["values"].items()}
        found = fit.line(list(table), list(table.values()))
        path = f"{NAME}.{row['case']['op']}.{row['case']['ranks']}"
        off = [found(size) / took for size, took in table.items()]
        values[f"{path}.alpha"] = fit.value([found.start * each for each in off], "s", [row], found.start)
        values[f"{path}.algbw"] = fit.value([found.rate / each for each in off], "byte/s", [row], found.rate)
        predicted.append(found(row["work"]["bytes"]))
    return Derived(values, predicted)


def _told(case: Case, device: Device) -> list[list[dict[str, Any]]]:
    """What the ranks say of an operation, by rank and size."""
    count = case["ranks"]
    if count not in _TOLD:
        _TOLD[count] = ranks.run(EXCHANGE, count, None, device, _SECONDS)
    return [told[case["op"]] for told in _TOLD[count]]
