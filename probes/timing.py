"""How a call is timed: warmed up, over rotated buffers, by events or in a graph, as many times as a median needs.

The rules are M3 to M6 of the method: calls of 200 us and more back to back between two events; shorter ones at least ten
times in a CUDA graph, so that what Python takes to launch them is not counted; on a CPU by the clock.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import NamedTuple

from capplan.probes.probe import Device

METHOD = 1  # grows when how a call is timed changes
SAMPLES = 20
_SHORT = 200e-6  # s; below it a launch from Python is seen
_WARM_CALLS, _WARM_SECONDS = 3, 25e-3
_SAMPLE_SECONDS = 2e-3  # of calls back to back, at least
_IN_GRAPH = 10  # calls, at least
_SUSTAINED = 2.0  # s of the same call before it is timed
_COOL = 20e-3  # s between the samples of a burst
_CPU_SECONDS, _CPU_SAMPLES = 0.15, 3  # a case on a CPU is for information: no longer, no fewer
_COLD = 5  # times L2 that the buffers have in all
_MOST_COPIES, _MOST_ON_CPU = 512, 2

Call = Callable[[], object]


class Times(NamedTuple):
    """Times of one call [second], and how they were taken."""

    times: list[float]
    mode: str
    cache: str


def copies(bytes_each: float, device: Device) -> int:
    """How many copies of a buffer make the working set five times L2, so that each call finds its own out of cache."""
    most = _MOST_COPIES if device.is_gpu else _MOST_ON_CPU
    return max(1, min(most, -(-_COLD * device.l2_bytes // max(1, int(bytes_each)))))


def timed(
    calls: Sequence[Call], device: Device, *, bytes_each: float, sustained: bool = False, graph: bool = True
) -> Times:
    """Times of calls that differ in their buffers alone, taken in turn.

    bytes_each: what one call touches [byte]; says whether the caches were cold. sustained: after two seconds of the same
    work, as prefill runs, and not in bursts. graph: whether calls may be captured.
    """
    cold = "cold" if bytes_each * len(calls) >= _COLD * device.l2_bytes else "warm"
    if not device.is_gpu:
        return Times(_on_cpu(calls), "eager", cold)
    return _on_gpu(calls, cold, sustained, graph)


def _on_cpu(calls: Sequence[Call]) -> list[float]:
    calls[0]()
    times: list[float] = []
    start = time.perf_counter()
    while len(times) < SAMPLES:
        before = time.perf_counter_ns()
        calls[len(times) % len(calls)]()
        times.append((time.perf_counter_ns() - before) * 1e-9)
        if time.perf_counter() - start > _CPU_SECONDS and len(times) >= _CPU_SAMPLES:
            break
    return times


def _on_gpu(calls: Sequence[Call], cold: str, sustained: bool, graph: bool) -> Times:
    import torch

    begun, turn = time.perf_counter(), 0
    while turn < max(_WARM_CALLS, len(calls)) or time.perf_counter() - begun < _WARM_SECONDS:
        calls[turn % len(calls)]()
        turn += 1
        torch.cuda.synchronize()
    estimate = between(lambda: [call() for call in calls]) / len(calls)
    if estimate < _SHORT and graph:
        number = len(calls) * -(-_IN_GRAPH // len(calls))
        captured = torch.cuda.CUDAGraph()
        with torch.cuda.graph(captured):
            for i in range(number):
                calls[i % len(calls)]()
        run, mode = captured.replay, "graph"
    else:
        number = max(1, round(_SAMPLE_SECONDS / max(estimate, 1e-7)))
        run, mode = (lambda: [calls[i % len(calls)]() for i in range(number)]), "burst"
    if sustained:
        begun = time.perf_counter()
        while time.perf_counter() - begun < _SUSTAINED:
            run()
            torch.cuda.synchronize()
        mode = "sustained"
    between(run)
    times = []
    for _ in range(SAMPLES):
        if not sustained:
            time.sleep(_COOL)  # else the chip is as hot as in the sustained mode
        times.append(between(run) / number)
    return Times(times, mode, cold)


def between(run: Callable[[], object]) -> float:
    """Time between two events around what is launched [second]; a pause before lets the launches get ahead."""
    import torch

    before, after = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    torch.cuda.synchronize()
    torch.cuda._sleep(200_000)  # cycles, some 0.1 ms
    before.record()
    run()
    after.record()
    torch.cuda.synchronize()
    return float(before.elapsed_time(after)) * 1e-3
