"""Data-parallel ranks whose experts are one set: a pass is of all of them, and as long as that of the slowest.

Each rank has its own queue, sequences and blocks. A rank with nothing to do runs along idly, and one that decodes waits
for another's prompts. Source: vLLM, vllm/v1/engine/core.py, DPEngineCoreProc (a dummy batch on idle ranks).
"""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil, inf
from typing import Any

from capplan.capacity.simulator.loop import Chunk, Replica, passes_until, sum_of_passes


def run_together(ranks: Sequence[Replica], until: float = inf) -> None:
    """Run what comes to these ranks, pass by pass of all of them: turns that begin before `until`."""
    while ranks[0].now < until:
        ranks[0].journal.turn()
        for rank in ranks:
            rank.receive()
            if rank.now >= rank.samples.next:
                rank.sample()
        chunks = [rank.schedule() for rank in ranks]
        if any(chunks):
            _prompt_pass(ranks, chunks)
        elif any(rank.batch for rank in ranks):
            _decode_passes(ranks, until)
        elif any(rank.swapping for rank in ranks):
            _spend(ranks, 0.0)
        else:
            soonest = max(ranks[0].now, min(rank.next_event() for rank in ranks))
            if soonest >= until:
                return
            for rank in ranks:
                rank.now = max(rank.now, soonest)


def _swapping(ranks: Sequence[Replica]) -> float:
    """What the others wait for the rank that swaps most [second]."""
    longest = max(rank.swapping for rank in ranks)
    for rank in ranks:
        rank.swapping = 0.0
    return longest


def _spend(ranks: Sequence[Replica], seconds: float) -> None:
    seconds += _swapping(ranks)
    for rank in ranks:
        rank.spend(seconds)


def _prompt_pass(ranks: Sequence[Replica], chunks: list[list[Chunk]]) -> None:
    """Some have prompts; the others decode beside them."""
    works = [rank.prompt_work(own) for rank, own in zip(ranks, chunks, strict=True)]
    width = ranks[0].width
    batches = [rank.batch if rank.mixed or not own else 0 for rank, own in zip(ranks, chunks, strict=True)]
    tokens = [b * width + work.tokens for b, work in zip(batches, works, strict=True)]
    mean = sum(tokens) / len(ranks)
    # a rank gets the tokens of all others, and the busiest link is of the one that has the fewest itself
    moved = (sum(tokens) - min(tokens)) / (len(ranks) - 1)
    swapped = _swapping(ranks)
    seconds = 0.0
    times: Any = ranks[0].service.times
    for rank, own, work in zip(ranks, chunks, works, strict=True):
        if own:
            seconds = max(seconds, times.prompts(*work, mean, moved))
        elif rank.alike():
            seconds = max(seconds, rank.run_of_passes(1, inf)[1])
    seconds += swapped
    for rank, own, work in zip(ranks, chunks, works, strict=True):
        if own:
            rank.run_prompts(own, work, seconds)
        elif rank.batch:
            rank.run_decode(1, seconds, 0.0, seconds)
        else:
            _idle(rank, seconds)


def _decode_passes(ranks: Sequence[Replica], until: float) -> None:
    """One pass of all, or as many as are alike and have the same rank as the slowest."""
    most = [each for rank in ranks if (each := rank.alike())]
    decoding = [rank for rank in ranks if rank.batch]
    if not decoding:
        return  # all were preempted
    passes, swapped = min(most), _swapping(ranks)
    series = []
    for rank in decoding:
        context, grown = rank.context + rank.batch, rank.growth * rank.batch
        start, slope, end = rank.service.times.decode(rank.batch, context)
        if end < inf:
            passes = min(passes, max(1, ceil((end - context) / grown)))
        series.append((start + slope * context, slope * grown))
    first, by = max(series)
    for other, more in series:
        if more > by:  # it becomes the slowest
            passes = min(passes, max(1, ceil((first - other) / (more - by))))
    left = min(until, *(rank.horizon() for rank in ranks)) - ranks[0].now
    if swapped:
        passes = 1
    elif left < inf:
        passes = passes_until(left, first, by, passes)
    seconds = sum_of_passes(passes, first, by) + swapped
    for rank in ranks:
        if rank.batch:
            rank.run_decode(passes, first + swapped, by, seconds)
        else:
            _idle(rank, seconds)


def _idle(rank: Replica, seconds: float) -> None:
    """It runs along with a dummy batch."""
    rank.spend(seconds)
