"""What a kernel costs before it does anything: launched one by one from Python, and replayed in a CUDA graph."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from capplan.probes import fit
from capplan.probes.numerics import against
from capplan.probes.probe import Case, Derived, Device, Measured, Numerics, Row, Value
from capplan.probes.timing import SAMPLES

if TYPE_CHECKING:
    from torch import Tensor

NAME = "launch"
TITLE = "chains of tiny kernels, launched one by one and in one graph"
FORMULA = "eager: t = t0 + n * t_launch; graph: t = t_replay + n * t_node"
WHAT = "what each operation of a step costs beside its work, with and without graphs"
ORDER, VERSION = 10, 1

_LENGTHS = {"quick": (1, 10, 200), "default": (1, 10, 200, 1000), "full": (1, 10, 100, 200, 500, 1000, 2000)}
_SLOW = 15e-6  # s of a launch; more than that is a slow host
_WARM = 3


def bump(x: Tensor) -> Tensor:
    """x + 1, in place: as little as a kernel can do and still be seen to have run."""
    return x.add_(1.0)


def cases(profile: str, device: Device) -> list[Case]:
    ways = ("eager", "graph") if device.is_gpu else ("eager",)
    return [{"how": how, "n": n, "dtype": "fp32"} for how in ways for n in _LENGTHS[profile]]


def _chain(how: str, n: int, x: Tensor) -> Callable[[], object]:
    """n kernels after each other, each depending on the one before."""
    import torch

    def eager() -> None:
        for _ in range(n):
            bump(x)

    if how == "eager":
        return eager
    eager()  # modules are loaded outside of the capture
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        eager()
    x.zero_()
    return graph.replay  # type: ignore[no-any-return]


def check(case: Case, device: Device) -> Numerics:
    import torch

    x = torch.zeros(1, device=device.torch)
    run = _chain(case["how"], case["n"], x)
    run()
    run()
    # every kernel ran once each time, in order
    return against(x, torch.full((1,), 2.0 * case["n"], dtype=torch.float64, device=device.torch), 1e-9)


def measure(case: Case, device: Device) -> Measured:
    import torch

    run = _chain(case["how"], case["n"], torch.zeros(1, device=device.torch))
    wait = torch.cuda.synchronize if device.is_gpu else lambda: None
    times = []
    for sample in range(SAMPLES + _WARM):
        wait()
        before = time.perf_counter_ns()
        run()
        wait()  # the host's clock, but never around work that is still under way
        if sample >= _WARM:
            times.append((time.perf_counter_ns() - before) * 1e-9)
    return Measured(times, case["how"], "warm", kernel="torch add_")


def derive(rows: Sequence[Row]) -> Derived:
    values: dict[str, Value] = {}
    predicted: dict[int, float] = {}
    on_gpu = any(row["case"]["how"] == "graph" for row in rows)
    names = {"eager": ("call", "launch" if on_gpu else "cpu_op"), "graph": ("graph_replay", "graph_node")}
    for how, (start, each) in names.items():
        own = [row for row in rows if row["case"]["how"] == how]
        if len(own) < 2:
            continue
        line = fit.line([r["case"]["n"] for r in own], [r["time_s"]["median"] for r in own])
        predicted |= {row["id"]: line(row["case"]["n"]) for row in own}
        longest = max(own, key=lambda row: row["case"]["n"])
        at, time_s = 1.0 / line.rate, longest["time_s"]
        shares = [time_s[key] / time_s["median"] for key in ("p10", "median", "p90")]
        values[f"overhead.{start}"] = fit.value([line.start * s for s in shares], "s", own, line.start)
        values[f"overhead.{each}"] = fit.value([at * s for s in shares], "s", own, at)
    return Derived(values, [predicted.get(row["id"]) for row in rows])


def expect(row: Row, device: Device) -> str | None:
    """A launch from Python takes 4 to 10 us on hosts that are not busy."""
    each = row["time_s"]["median"] / row["case"]["n"]
    if device.is_gpu and row["case"]["how"] == "eager" and row["case"]["n"] >= 200 and each > _SLOW:
        return f"{1e6 * each:.1f} us a launch: a slow or busy host"
    return None
