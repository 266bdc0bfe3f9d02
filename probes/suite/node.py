"""Every GPU of the machine, one at a time and all at once: who is slow, and what power, heat and links shared by all take."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median
from typing import Any

from capplan.probes import fit, node_work, ranks
from capplan.probes.probe import Case, Derived, Device, Measured, Numerics, Row, Skipped, Value

NAME = "node"
TITLE = "memory read, products and copies from the host on every GPU of the machine, alone and all at once"
FORMULA = "rate of the slowest of all at once / rate of the probed one alone"
WHAT = "how much slower a group is than the GPU that was probed: it runs at its slowest member"
ORDER, VERSION = 85, 1

EVERYONE = "capplan.probes.suite.node:everyone"  # what each rank runs
_SAMPLES, _WINDOW = 20, {"gpu": 0.1, "cpu": 2e-3}  # s of a sample: of twenty, the GPU is as hot as it gets
_SLOW = 0.93  # of the median
_SECONDS = 240.0
_TOLD: dict[int, list[Any]] = {}  # by GPUs: all cases are run in one start of the ranks


def everyone(rank: int, ranks: int, job: None, device: Device) -> dict[str, Any]:
    """One rank: every work checked, then timed while the others wait, and while they do the same."""
    import torch.distributed as dist

    told: dict[str, Any] = {}
    for work in node_work.works(device):
        call, found = node_work.call_of(work, device)
        times: dict[str, list[float]] = {}
        usual = min(node_work.timed(call, 1, device) for _ in range(3))  # the first loads what it runs
        calls = max(1, round(_WINDOW[node_work.where(device)] / usual))
        for turn in (*range(ranks), None):
            dist.barrier()
            if turn in (rank, None):
                how = "together" if turn is None else "alone"
                times[how] = [node_work.timed(call, calls, device) for _ in range(_SAMPLES)]
        dist.barrier()
        told[work] = {"numerics": list(found), **times}
    return told


def cases(profile: str, device: Device) -> list[Case]:
    count = 2
    if device.is_gpu:
        import torch

        if (count := torch.cuda.device_count()) < 2:
            raise Skipped("needs 2 GPUs")
    return [
        {"work": work, "gpus": count, "how": how}
        for work in node_work.works(device)
        for how in ("alone", "together")
    ]


def _told(case: Case, device: Device) -> list[Any]:
    """What each rank says of a work."""
    count = case["gpus"]
    if count not in _TOLD:
        _TOLD[count] = ranks.run(EVERYONE, count, None, device, _SECONDS)
    return [told[case["work"]] for told in _TOLD[count]]


def check(case: Case, device: Device) -> Numerics:
    """The worst of all GPUs, with its number."""
    found = [Numerics(*told["numerics"]) for told in _told(case, device)]
    rank = max(range(len(found)), key=lambda each: (not found[each].ok, found[each].rel_fro))
    why = f"GPU {rank}: {found[rank].why}" if found[rank].why else ""
    return found[rank]._replace(why=why)


def measure(case: Case, device: Device) -> Measured:
    """The slowest GPU's times; the medians of all are in `values`, and that of the probed one is `own_s`."""
    every = [told[case["how"]] for told in _told(case, device)]
    values = {f"time_s.{rank}": median(times) for rank, times in enumerate(every)}
    values["own_s"] = median(every[device.index if device.index < len(every) else 0])
    flops, moved = node_work.amount(case["work"], device)
    dtype, of = node_work.SIZE[node_work.where(device)][1], "host" if case["work"] == "h2d" else "memory"
    slowest, kernel = max(every, key=median), f"torch {case['work']}"
    return Measured(slowest, "sustained", "warm", flops, moved, dtype, kernel, values=values, of=of)


def expect(row: Row, device: Device) -> str | None:
    """GPUs of a node differ by some 5%; more is a slow one."""
    times = {
        name.partition(".")[2]: took for name, took in row["values"].items() if name.startswith("time_s.")
    }
    share, rank = min((median(times.values()) / took, rank) for rank, took in times.items())
    return (
        f"GPU {rank} is at {share:.0%} of the median of the {len(times)}"
        if device.is_gpu and share < _SLOW
        else None
    )


def derive(rows: Sequence[Row]) -> Derived:
    values: dict[str, Value] = {}
    at = {(row["case"]["work"], row["case"]["how"]): row for row in rows}
    for (work, how), row in at.items():
        kind, unit = ("flops", "FLOP/s") if work == "gemm" else ("bytes", "byte/s")
        alone = at.get((work, "alone"))
        values[f"{NAME}.{work}.{how}"] = fit.of_row(row, row["work"][kind], unit)
        if how == "together" and alone is not None:
            values[f"{NAME}.{work}.slowest"] = fit.of_row(row, alone["values"]["own_s"], "1")
    return Derived(values)
