"""A simulation as events in the Chrome trace format, which chrome://tracing, Perfetto and speedscope open.

Every request is a row of spans: the wait for its first pass, its prefill, its decoding. The state of the replicas is
three counters. Source: "Trace Event Format", Google, 2016: complete events (X) and counters (C), times in microseconds.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from heapq import heappop, heappush
from math import isnan
from typing import Any, TextIO

from capplan.capacity.simulator.requests import Outcome

_US = 1e6


def write_trace(outcome: Outcome, file: TextIO) -> int:
    """Write all events as one JSON object; returns how many."""
    file.write('{"displayTimeUnit": "ms", "traceEvents": [\n')
    count = 0
    for event in events(outcome):
        file.write((",\n" if count else "") + json.dumps(event))
        count += 1
    file.write("\n]}\n")
    return count


def events(outcome: Outcome) -> Iterator[dict[str, Any]]:
    """The events; requests that overlap are on rows of their own, and a row is used again."""
    work = outcome.workload
    stamps = zip(
        outcome.arrival.tolist(),
        outcome.first_scheduled.tolist(),
        outcome.first_token.tolist(),
        outcome.finished.tolist(),
        strict=True,
    )
    free: list[int] = []  # rows that are not used
    taken: list[tuple[float, int]] = []  # heap: until when, and the row
    rows = 0
    for i, (arrival, scheduled, first, finished) in enumerate(stamps):
        if isnan(finished):
            what = "refused" if outcome.refused[i] else "given up" if outcome.timed_out[i] else "unfinished"
            yield _event("i", what, arrival, 0, s="p", args={"request": i})
            continue
        while taken and taken[0][0] <= arrival:
            heappush(free, heappop(taken)[1])
        if not free:
            heappush(free, rows := rows + 1)
        row = heappop(free)
        heappush(taken, (finished, row))
        facts = {
            "request": i,
            "isl": int(work.isl[i]),
            "osl": int(work.osl[i]),
            "preemptions": int(outcome.preemptions[i]),
        }
        for name, begin, end in (
            ("wait", arrival, scheduled),
            ("prefill", scheduled, first),
            ("decode", first, finished),
        ):
            if end > begin:
                yield _event("X", name, begin, row, dur=(end - begin) * _US, args=facts)
    line = outcome.timeline
    for time, running, waiting, blocks in zip(
        line.time.tolist(), line.running.tolist(), line.waiting.tolist(), line.blocks.tolist(), strict=True
    ):
        yield _event("C", "requests", time, 0, args={"running": running, "waiting": waiting})
        yield _event("C", "KV blocks", time, 0, args={"used": blocks})


def _event(phase: str, name: str, time: float, row: int, **more: Any) -> dict[str, Any]:
    return {"ph": phase, "name": name, "ts": time * _US, "pid": 1, "tid": row, **more}
