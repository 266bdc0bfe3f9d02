"""What ranks exchange in tensor and expert parallelism: how long each collective takes, by size, and whether it is right."""

from __future__ import annotations

from collections.abc import Callable, Sequence
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
ORDER, VERSION = 42, 2

EXCHANGE = "capplan.probes.suite.collectives:exchange"  # what each rank runs
_SIZES = {
    "gpu": tuple(2**n for n in range(9, 30, 2)),
    "cpu": (2**12, 2**18, 2**22),
}  # bytes of the larger side
_BOUND = 1e-2  # of sums rounded at each rank; what is only moved is held to every bit
_SECONDS = 180.0
_TOLD: dict[int, list[Any]] = {}  # by ranks: all operations are run in one start of them


def exchange(rank: int, ranks: int, job: None, device: Device) -> dict[str, Any]:
    """One rank: every operation at every size, checked and then timed as often on each rank; on GPUs in a graph too."""
    told: dict[str, Any] = {"library_bytes": ops.library_bytes(device)}
    told |= {f"{op}.{mode}": [] for op in ops.OPS for mode in _modes(device)}
    for op in ops.OPS:
        for size in _SIZES["gpu" if device.is_gpu else "cpu"]:
            given = ops.numbers(rank, size // (ranks if op == "all_gather" else 1), device)
            wanted = ops.expected(op, rank, ranks, size, device)
            out = given.clone() if op == "all_reduce" else poisoned(tuple(wanted.shape), ops.DTYPE, device)
            wrong = ops.rejected(op, out, given, ranks)
            call, calls = partial(ops.collective, op, out, given), ops.calls_of(size)

            def anew(op: str = op, out: Any = out, given: Any = given) -> None:
                """What an all-reduce works in would grow beyond all numbers; of the others nothing may be left over."""
                out.copy_(given) if op == "all_reduce" else out.fill_(float("nan"))

            def seen(
                run: Callable[[], object], op: str = op, out: Any = out, wanted: Any = wanted
            ) -> Numerics:
                run()
                bound = 0.0 if op in ("all_gather", "all_to_all") else _BOUND
                return rows_against(out.view(16, -1), wanted.view(16, -1), bound)

            for mode in _modes(device):
                anew()
                once = ops.captured(call) if mode == "graph" else call
                anew()
                found = seen(once)
                if wrong:
                    found = found._replace(ok=False, why=wrong[0])
                several = ops.captured(call, calls) if mode == "graph" else partial(_repeat, call, calls)
                times = ops.times(several, calls, device, anew)
                told[f"{op}.{mode}"].append({"size": size, "numerics": list(found), "times": times})
    return told


def _modes(device: Device) -> tuple[str, ...]:
    return ("eager", "graph") if device.is_gpu else ("eager",)


def _repeat(call: Callable[[], object], calls: int) -> None:
    for _ in range(calls):
        call()


def cases(profile: str, device: Device) -> list[Case]:
    counts = [2]
    if device.is_gpu:
        import torch

        if not (counts := [n for n in (2, 4, 8) if n <= torch.cuda.device_count()]):
            raise Skipped("needs 2 GPUs")
    return [
        {"op": op, "ranks": n, "mode": mode, "dtype": ops.DTYPE}
        for n in (counts[-1:] if profile == "quick" else counts)
        for op in ops.OPS
        for mode in _modes(device)
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
    if device.is_gpu:
        values["library_bytes"] = float(max(one["library_bytes"] for one in _TOLD[case["ranks"]]))
    backend = "nccl" if device.is_gpu else "gloo-loopback"
    return Measured(slowest[-1], case["mode"], "uncertain", None, sizes[-1], ops.DTYPE, None, backend, values)


def derive(rows: Sequence[Row]) -> Derived:
    """The times by size of what runs in a graph, as decode steps do, and what one launched from Python starts with."""
    values: dict[str, Value] = {}
    predicted = []
    in_graph = {(row["case"]["op"], row["case"]["ranks"]) for row in rows if row["case"]["mode"] == "graph"}
    for row in rows:
        told = {name: float(took) for name, took in row["values"].items()}
        if (size := told.pop("library_bytes", None)) is not None:
            values[f"memory.nccl_bytes.{row['case']['ranks']}"] = Value(
                size, "byte", size, size, 1, [row["id"]]
            )
        table = {int(name.split(".")[1]): took for name, took in told.items()}
        found = fit.line(list(table), list(table.values()))
        predicted.append(found(row["work"]["bytes"]))
        op, count, mode = row["case"]["op"], row["case"]["ranks"], row["case"]["mode"]
        path, off = f"{NAME}.{op}.{count}", [found(size) / took for size, took in table.items()]
        if mode == "eager" and (op, count) in in_graph:
            values[f"{path}.eager"] = fit.value([min(table.values())], "s", [row])
            continue
        values[f"{path}.alpha"] = fit.value([found.start * each for each in off], "s", [row], found.start)
        values[f"{path}.algbw"] = fit.value([found.rate / each for each in off], "byte/s", [row], found.rate)
        values |= {f"{path}.at.{size}": fit.value([took], "s", [row]) for size, took in table.items()}
    return Derived(values, predicted)


def _told(case: Case, device: Device) -> list[list[dict[str, Any]]]:
    """What the ranks say of an operation, by rank and size."""
    count = case["ranks"]
    if count not in _TOLD:
        _TOLD[count] = ranks.run(EXCHANGE, count, None, device, _SECONDS)
    return [told[f"{case['op']}.{case['mode']}"] for told in _TOLD[count]]
