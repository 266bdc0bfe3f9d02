"""What is written down while the loop runs: of each request, of the time between tokens, and of the state."""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Callable
from math import ceil, nan

import numpy as np

from capplan.capacity.simulator.requests import CacheUse, Gaps, Outcome, Timeline, Totals, Workload

Progress = Callable[[int, int], None]  # requests that have left, of how many

_REPORTED = 1024  # turns between two calls of Progress
_SAMPLES = 4096  # points that a timeline is thinned to, at the least


class Journal:
    """The requests as the loop reads them, and what is written down of each."""

    def __init__(self, workload: Workload, progress: Progress | None = None) -> None:
        n = len(workload)
        self.workload = workload
        self.progress = progress
        self.left = self.turns = 0
        self.timeout = workload.timeout
        closed = workload.concurrency is not None
        self.arrival = array("d", bytes(8 * n) if closed else workload.arrival.tobytes())
        self.isl = array("q", workload.isl.tobytes())
        self.osl = array("q", workload.osl.tobytes())
        self.stored = None if workload.stored is None else array("q", workload.stored.tobytes())
        self.first_scheduled, self.prefill_done, self.first_token, self.finished = (
            array("d", [nan]) * n for _ in range(4)
        )
        self.preemptions = array("q", bytes(8 * n))
        self.refused, self.timed_out = bytearray(n), bytearray(n)
        self.gaps = GapCounts()
        self.totals = Totals()

    def turn(self) -> None:
        self.turns += 1
        if self.progress and self.turns % _REPORTED == 0:
            self.progress(self.left, len(self.isl))

    def outcome(
        self, samples: list[Samples], end: float, blocks: int, caches: tuple[CacheUse, ...] = ()
    ) -> Outcome:
        """All that was written. samples: of each replica; end: when the last of them was done [second]."""
        floats = {
            name: np.frombuffer(getattr(self, name), dtype=np.float64)
            for name in ("arrival", "first_scheduled", "prefill_done", "first_token", "finished")
        }
        totals = self.totals
        totals.seconds = end - float(floats["arrival"][0])
        totals.blocks, totals.jumps = blocks, self.turns
        return Outcome(
            self.workload,
            **floats,
            preemptions=np.frombuffer(self.preemptions, dtype=np.int64),
            refused=np.frombuffer(self.refused, dtype=np.bool_),
            timed_out=np.frombuffer(self.timed_out, dtype=np.bool_),
            timeline=_merged(samples),
            gaps=self.gaps.shown(),
            totals=totals,
            caches=caches,
        )


class GapCounts:
    """Times between tokens, counted in bins that are 1% wide."""

    LEAST, WIDER, BINS = 1e-6, 1.01, 2600  # seconds; up to a day and more

    def __init__(self) -> None:
        self.edges = [self.LEAST * self.WIDER**k for k in range(self.BINS)]
        self.counts = [0] * (len(self.edges) + 1)

    def add(self, gap: float, count: int) -> None:
        self.counts[self._bin(gap)] += count

    def add_series(self, first: float, by: float, passes: int, batch: int) -> None:
        """Of so many passes, each longer than the one before by the same."""
        low, last = self._bin(first), self._bin(first + by * (passes - 1))
        done = 0
        for at in range(low, last):  # passes whose gap is below the upper edge
            below = min(passes, ceil((self.edges[at] - first) / by)) if by > 0 else passes
            if below > done:
                self.counts[at] += (below - done) * batch
                done = below
        self.counts[last] += (passes - done) * batch

    def _bin(self, gap: float) -> int:
        """Bin k lies below edge k."""
        return bisect_left(self.edges, gap)

    def shown(self) -> Gaps:
        held = [k for k, count in enumerate(self.counts) if count] or [1]
        low, high = max(1, held[0]), min(held[-1], len(self.edges) - 1)
        counts = np.array(self.counts[low : high + 1], dtype=np.int64)
        if low > held[0]:
            counts[0] += self.counts[0]
        if high < held[-1]:
            counts[-1] += self.counts[-1]
        return Gaps(np.array(self.edges[low - 1 : high + 1]), counts)


class Samples:
    """The state at points in time, thinned as they grow."""

    def __init__(self) -> None:
        self.time, self.running = array("d"), array("q")
        self.waiting, self.blocks = array("q"), array("q")
        self.next, self.apart = 0.0, 0.0

    def add(self, now: float, running: int, waiting: int, blocks: int) -> None:
        self.time.append(now)
        self.running.append(running)
        self.waiting.append(waiting)
        self.blocks.append(blocks)
        if len(self.time) >= 2 * _SAMPLES:
            self.apart = (now - self.time[0]) / _SAMPLES
            for name in ("time", "running", "waiting", "blocks"):
                setattr(self, name, getattr(self, name)[::2])
        self.next = now + self.apart


def _merged(samples: list[Samples]) -> Timeline:
    """The states of all replicas, added."""
    times = [np.frombuffer(each.time) for each in samples]
    grid = np.unique(np.concatenate(times))
    grid = grid[:: max(1, len(grid) // _SAMPLES)]
    sums = []
    for name in ("running", "waiting", "blocks"):
        total = np.zeros(len(grid), dtype=np.int64)
        for time, each in zip(times, samples, strict=True):
            at = np.searchsorted(time, grid, side="right") - 1
            values = np.frombuffer(getattr(each, name), dtype=np.int64)
            total += np.where(at >= 0, values[at], 0)
        sums.append(total)
    return Timeline(grid, *sums)
