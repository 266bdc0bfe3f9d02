"""Prefill and decode in pools of their own, with the cache between them on a link.

A decode replica takes a request when it has blocks for its prompt; only then the cache goes over, and only when it is
over the prefill replica has its own blocks back. So a full decode pool holds the prefill pool up. A prefix cache is of the
prefill replicas: what a decode replica gets is its own.

Each replica has its clock, and the one that is furthest behind goes next. What a prefill replica hands over comes at
its clock or later, so that a decode replica may run up to there. Sources: Zhong et al. 2024 (DistServe), Patel et al.
2024 (Splitwise: layer by layer), vLLM's connectors (blocks first, then the transfer).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import replace
from heapq import heappop, heappush
from itertools import cycle, islice
from math import inf, isnan, nextafter

from capplan.capacity.simulator.journal import Journal
from capplan.capacity.simulator.loop import Chunk, Replica, Router, is_routed
from capplan.capacity.simulator.requests import Disaggregated, Link
from capplan.errors import InputError


def run_pools(journal: Journal, service: Disaggregated, jumps: bool) -> list[Replica]:
    """Run all requests through both pools; the replicas as they are then.

    Raises InputError where the pools' block sizes or schedulers don't go together.
    """
    if "static" in (service.prefill.scheduler, service.decode.scheduler):
        raise InputError("scheduler 'static' has no pools; mixed or prefill-first is accepted")
    if service.first_token_at not in ("prefill", "decode"):
        raise InputError(
            f"unknown first_token_at {service.first_token_at!r}; one of prefill, decode is accepted"
        )
    pools = _Pools(journal, service, jumps)
    while True:
        prefill = min(pools.prefill, key=_clock)
        if pools.route(_clock(prefill)):
            continue
        decode = min(pools.decode, key=_clock)
        if _clock(prefill) == _clock(decode) == inf:
            return [*pools.prefill, *pools.decode]
        if _clock(prefill) <= _clock(decode):
            prefill.run(nextafter(_clock(prefill), inf))  # one turn
        else:
            decode.run(_clock(prefill))


def _clock(replica: Replica) -> float:
    """When its next turn begins."""
    return max(replica.now, replica.next_event()) if replica.idle else replica.now


class Wire:
    """A link, and until when it is taken."""

    def __init__(self, link: Link) -> None:
        self.link, self.free_at = link, 0.0

    def send(self, size: float, begin: float, earliest_end: float) -> float:
        """When so many bytes are over that could go from `begin` on."""
        begin = max(begin, self.free_at)
        self.free_at = max(begin + self.link.latency + size / self.link.bandwidth, earliest_end)
        return self.free_at


class _Pools:
    def __init__(self, journal: Journal, service: Disaggregated, jumps: bool) -> None:
        self.service = service
        self.journal = journal
        workload, prefill, decode = journal.workload, service.prefill.replicas, service.decode.replicas
        everyone = iter(range(len(workload)))
        self.spare: Iterator[int] = iter(())
        first: list[Iterable[int]] = [range(k, len(workload), prefill) for k in range(prefill)]
        self.coming: deque[int] = deque()  # to be routed
        if is_routed(workload, service.prefill):
            self.coming.extend(everyone)
            first = [()] * prefill
        elif workload.concurrency is not None:
            now = list(islice(everyone, workload.concurrency))
            first = [now[k::prefill] for k in range(prefill)]
            self.spare = everyone
        shared = Wire(service.link)
        self.prefill = [
            Prefill(self, first[k], shared if service.link.shared else Wire(service.link), jumps)
            for k in range(prefill)
        ]
        self.decode = [Decode(self, jumps) for _ in range(decode)]
        self.turn = cycle(self.prefill)
        self.router = Router(self.prefill)

    def route(self, now: float) -> bool:
        """Give the next request to a prefill replica, if it comes before any of them goes on; whether it did."""
        if not self.coming or self.journal.arrival[self.coming[0]] > now:
            return False
        i = self.coming.popleft()
        self.router.give(i, self.journal.arrival[i])
        return True

    def leave(self, now: float) -> None:
        self.journal.left += 1
        following = next(self.spare, None)
        if following is not None:
            self.journal.arrival[following] = now
            next(self.turn).inbox.append(following)

    def hand_over(self, prompt: Prompt) -> None:
        """To the decode replica with the fewest requests."""
        decode = min(self.decode, key=Decode.load)
        heappush(decode.handed, (prompt.ready, prompt.i, prompt))


class Prompt:
    """A computed prompt whose cache is still where it was computed."""

    def __init__(self, i: int, began: float, ready: float, blocks: int, source: Prefill) -> None:
        self.i, self.began, self.ready = i, began, ready  # began: its last pass
        self.blocks, self.source = blocks, source
        self.waited = False  # for blocks of the decode replica


class Prefill(Replica):
    """A replica that computes prompts, and keeps their blocks until the cache is over."""

    def __init__(self, pools: _Pools, inbox: Iterable[int], wire: Wire, jumps: bool) -> None:
        super().__init__(pools.service.prefill, pools.journal, inbox, jumps=jumps)
        self.pools, self.wire = pools, wire
        self.releases: list[tuple[float, int, int]] = []  # heap: when, whose, and how many blocks

    def fits(self, i: int) -> bool:
        return self.blocks_of(self.journal.isl[i]) <= self.service.blocks and self.pools.decode[0].fits(i)

    def receive(self) -> None:
        while self.releases and self.releases[0][0] <= self.now:
            _, i, blocks = heappop(self.releases)
            self.give_back(i, blocks)
            if self.cache:
                self.cache.forget(i)
        super().receive()

    def next_event(self) -> float:
        return min(super().next_event(), self.releases[0][0] if self.releases else inf)

    def leave(self) -> None:
        self.count_leaving()
        self.pools.leave(self.now)

    def prefilled(self, i: int, began: float) -> None:
        journal = self.journal
        _, blocks = self.prefilling.pop(i)
        if self.late(i):
            self.drop(i, blocks)
            self.gone(i)
            return
        journal.prefill_done[i] = self.now
        if self.pools.service.first_token_at == "prefill":
            journal.first_token[i] = self.now
            if journal.osl[i] == 1:
                self.drop(i, blocks)
                self.finish(i)
                return
        del self.running[i]
        self.count_leaving()
        self.pools.hand_over(Prompt(i, began, self.now, blocks, self))


class Decode(Replica):
    """A replica that takes prompts with their cache and decodes."""

    def __init__(self, pools: _Pools, jumps: bool) -> None:
        service = replace(pools.service.decode, prefix_caching=False)
        super().__init__(service, pools.journal, (), jumps=jumps)
        self.pools = pools
        self.handed: list[tuple[float, int, Prompt]] = []  # heap: when they are ready
        self.accepted: deque[Prompt] = deque()  # ready, and waiting for blocks
        self.on_their_way: list[tuple[float, int, int]] = []  # heap: when the cache is here, and its blocks
        self.fresh: list[int] = []  # have no token yet

    def queued(self) -> int:
        return super().queued() + len(self.accepted) + len(self.on_their_way)

    def load(self) -> int:
        return len(self.handed) + len(self.accepted) + len(self.on_their_way) + len(self.running)

    def leave(self) -> None:
        self.pools.leave(self.now)

    def next_event(self) -> float:
        ready = self.handed[0][0] if self.handed else inf
        return min(ready, self.on_their_way[0][0] if self.on_their_way else inf)

    def horizon(self) -> float:
        """Whoever comes may have a transfer begin, but behind those that wait for blocks."""
        here = self.on_their_way[0][0] if self.on_their_way else inf
        full = self.accepted or self.preempted or self.load() >= self.service.max_num_seqs
        return here if full else self.next_event()

    def receive(self) -> None:
        while self.on_their_way and self.on_their_way[0][0] <= self.now:
            _, i, blocks = heappop(self.on_their_way)
            self.expected -= 1
            isl, osl = self.journal.isl[i], self.journal.osl[i]
            if isnan(self.journal.first_token[i]):
                self.join(i, isl, blocks, osl, None)
            else:
                self.join(i, isl, blocks, osl - 1, self.journal.first_token[i])
        while self.handed and self.handed[0][0] <= self.now:
            self.accepted.append(heappop(self.handed)[2])

    def schedule(self) -> list[Chunk]:
        chunks = super().schedule()
        while self.accepted and not self.preempted:
            prompt = self.accepted[0]
            blocks = self.blocks_of(self.journal.isl[prompt.i])
            free = self.free - self.due[self.passes % self.period] - (self.kept_free if self.running else 0)
            if blocks > free or len(self.running) + self.expected >= self.service.max_num_seqs:
                prompt.waited = True
                break
            self.accepted.popleft()
            self.free -= blocks
            self.expected += 1
            self.fetch(prompt, blocks)
        return chunks

    def fetch(self, prompt: Prompt, blocks: int) -> None:
        """Its cache comes over: layer by layer behind the pass that computed it, if there were blocks for it then."""
        pools, i = self.pools, prompt.i
        size = self.journal.isl[i] * pools.service.bytes_per_token
        link, layers = pools.service.link, pools.service.layers
        seconds = link.latency + size / link.bandwidth
        if layers > 1 and not prompt.waited:
            begin = prompt.began + (prompt.ready - prompt.began) / layers
            end = prompt.source.wire.send(size, begin, prompt.ready + seconds / layers)
        else:
            end = prompt.source.wire.send(size, self.now, 0.0)
        self.journal.totals.transfer_seconds += seconds
        heappush(self.on_their_way, (max(end, self.now), i, blocks))
        heappush(prompt.source.releases, (max(end, self.now), i, prompt.blocks))

    def join(self, i: int, cached: int, blocks: int, left: int, last: float | None) -> None:
        super().join(i, cached, blocks, left, last)
        if last is None:
            self.fresh.append(i)

    def preempt(self) -> None:
        super().preempt()
        if self.preempted[0] in self.fresh:
            self.fresh.remove(self.preempted[0])

    def decode_passes(self, until: float) -> None:
        jumps, self.jumps = self.jumps, self.jumps and not self.fresh
        super().decode_passes(until)
        self.jumps = jumps
        self.mark_first()

    def prompt_pass(self, chunks: list[Chunk]) -> None:
        super().prompt_pass(chunks)
        if self.mixed:
            self.mark_first()

    def mark_first(self) -> None:
        for i in self.fresh:
            self.journal.first_token[i] = self.now
        self.fresh.clear()
