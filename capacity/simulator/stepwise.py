"""The same loop written plainly: every pass by itself, every sequence of it, every block by its number.

Slow, and the oracle of `loop`: both take the same step times, and what becomes of a request is the same to 1e-9.
It checks itself as it goes: a block has one owner, or those who found it; the pool is never short, a sequence has the
blocks of its tokens, and what it finds in the cache are blocks of the same tokens.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Hashable, Iterable
from math import ceil, inf, nan

import numpy as np

from capplan.capacity.simulator.requests import CacheUse, Gaps, Outcome, Service, Timeline, Totals, Workload


class Sequence:
    """A request, and how far it is."""

    def __init__(self, i: int, arrival: float, isl: int, osl: int, prefix: Iterable[int] = ()) -> None:
        self.i, self.arrival, self.isl, self.osl = i, arrival, isl, osl
        self.prefix, self.stored = tuple(prefix), 0
        self.generated = 0  # tokens given out
        self.prompt = isl  # tokens to compute before it can decode
        self.computed = 0
        self.decodes = False
        self.passes = self.needed = self.until_block = 0  # since it decodes; in all; before it needs a block
        self.blocks: list[int] = []
        self.known = 0  # blocks, the first, that others may find
        self.alone = False  # the next of them is another's too
        self.swapped = False
        self.first_scheduled = self.first_token = self.finished = self.last_token = nan
        self.preemptions = 0
        self.refused = self.timed_out = False


class BlockPool:
    """Blocks by number; taking what is not there, or giving back what is not taken, is an error of the loop.

    A block that is given back keeps its name until it is taken for another.
    """

    def __init__(self, blocks: int) -> None:
        self.blocks, self.free, self.taken = blocks, deque(range(blocks)), Counter[int]()
        self.named: dict[Hashable, int] = {}
        self.names: dict[int, Hashable] = {}

    def take(self, count: int) -> list[int]:
        assert count <= len(self.free), "more blocks than there are"
        found = [self.free.popleft() for _ in range(count)]
        for block in found:
            assert not self.taken[block], "a block of two owners"
            self.taken[block] = 1
            if block in self.names:
                del self.named[self.names.pop(block)]
        return found

    def find(self, names: Iterable[Hashable]) -> list[int]:
        """The blocks of these names, up to the first that is not there."""
        found = []
        for name in names:
            if name not in self.named:
                break
            found.append(self.named[name])
        return found

    def take_up(self, blocks: list[int]) -> None:
        """Those that were found have one more owner."""
        for block in blocks:
            assert block in self.names
            if not self.taken[block]:
                self.free.remove(block)
            self.taken[block] += 1

    def name(self, block: int, name: Hashable) -> bool:
        """Name a block, if none has the name."""
        assert self.taken[block] == 1
        assert block not in self.names
        if name in self.named:
            return False
        self.named[name], self.names[block] = block, name
        return True

    def give(self, blocks: list[int]) -> None:
        for block in reversed(blocks):
            assert self.taken[block], "a block given back twice"
            self.taken[block] -= 1
            if not self.taken[block]:
                del self.taken[block]
                self.free.append(block)
        blocks.clear()


def simulate_stepwise(workload: Workload, service: Service) -> Outcome:
    """What becomes of the requests of a workload on a service, pass by pass."""
    everyone = [
        Sequence(i, float(workload.arrival[i]), int(workload.isl[i]), int(workload.osl[i]), prefix)
        for i, prefix in enumerate(workload.prefix or [()] * len(workload))
    ]
    if workload.stored is not None:
        for sequence, stored in zip(everyone, workload.stored.tolist(), strict=True):
            sequence.stored = stored
    engines = []
    for k in range(service.replicas):
        own = first = everyone[k :: service.replicas]
        if workload.concurrency is not None:
            own = everyone[k :: min(service.replicas, workload.concurrency)]
            first = own[
                : workload.concurrency // service.replicas + (k < workload.concurrency % service.replicas)
            ]
            for sequence in first:
                sequence.arrival = 0.0
        engines.append(Stepwise(service, workload, first, own[len(first) :]))
        engines[-1].run()

    def of(name: str) -> np.ndarray:
        return np.array([getattr(sequence, name) for sequence in everyone])

    samples = np.array([sample for engine in engines for sample in engine.samples])
    gaps = np.sort([gap for engine in engines for gap in engine.gaps])
    edges = np.append(gaps, inf)  # a bin a gap
    totals = Totals(
        seconds=max(engine.now for engine in engines) - everyone[0].arrival,
        blocks=service.blocks * service.replicas,
    )
    for name in ("passes", "prompt_passes", "busy", "prefill_tokens", "prompt_pairs", "context_tokens"):
        setattr(totals, name, sum(getattr(engine, name) for engine in engines))
    totals.decode_tokens = sum(each.osl - 1 for each in everyone if each.finished == each.finished)
    return Outcome(
        workload,
        of("arrival"),
        of("first_scheduled"),
        of("first_token"),
        of("first_token"),
        of("finished"),
        of("preemptions"),
        of("refused"),
        of("timed_out"),
        Timeline(samples[:, 0], *(samples[:, k].astype(np.int64) for k in (1, 2, 3))),
        Gaps(edges, np.ones(len(gaps), dtype=np.int64)),
        totals,
        tuple(CacheUse(*engine.found) for engine in engines if engine.caches),
    )


class Stepwise:
    """One replica."""

    def __init__(
        self, service: Service, workload: Workload, first: list[Sequence], spare: list[Sequence]
    ) -> None:
        self.service, self.timeout = service, workload.timeout
        self.caches = service.prefix_caching and workload.prefix is not None
        self.prefix_tokens = workload.prefix_tokens
        self.found = [0, 0]  # tokens of prompts, and those that were found
        self.coming, self.spare = deque(first), deque(spare)
        self.pool = BlockPool(service.blocks)
        self.waiting: deque[Sequence] = deque()  # preempted ones first
        self.running: list[Sequence] = []  # in the order of admission
        self.drafted = service.speculation.tokens if service.speculation else 0
        self.growth = service.speculation.per_pass if service.speculation else 1
        self.period = max(1, int(service.block_size / self.growth))
        self.now = self.swapping = 0.0
        self.samples: list[tuple[float, int, int, int]] = []
        self.gaps: list[float] = []
        self.passes = self.prompt_passes = self.prefill_tokens = 0
        self.busy = self.prompt_pairs = self.context_tokens = 0.0

    def run(self) -> None:
        while True:
            self.receive()
            self.samples.append((self.now, len(self.running), len(self.waiting), len(self.pool.taken)))
            if not self.running and not self.waiting:
                if not self.coming:
                    assert not self.pool.taken, "blocks left over"
                    assert sorted(self.pool.free) == list(range(self.service.blocks)), "blocks lost"
                    return
                self.now = max(self.now, self.coming[0].arrival + self.service.request_s)
            elif self.service.scheduler == "static":
                self.static_batch()
            else:
                self.one_pass(*self.schedule())

    # --- who is there ---------------------------------------------------------------------------------------------

    def receive(self) -> None:
        while self.coming and self.coming[0].arrival + self.service.request_s <= self.now:
            sequence = self.coming.popleft()
            if self.fits(sequence):
                self.waiting.append(sequence)
            else:
                sequence.refused = True
                self.leave()
        for sequence in [*self.waiting, *self.running]:
            if sequence.generated == 0 and self.late(sequence):
                (self.waiting if sequence in self.waiting else self.running).remove(sequence)
                self.give_up(sequence)

    def fits(self, sequence: Sequence) -> bool:
        most = self.service.max_model_len
        if most is not None and sequence.isl + sequence.osl > most:
            return False
        if self.drafted == 0:
            return self.blocks_of(sequence.isl + sequence.osl) <= self.service.blocks
        later = ceil(ceil((sequence.osl - 1) / self.growth) / self.period)
        return self.blocks_of(sequence.isl) + later + 1 <= self.service.blocks

    def late(self, sequence: Sequence) -> bool:
        return self.now >= sequence.arrival + self.timeout

    def give_up(self, sequence: Sequence) -> None:
        self.pool.give(sequence.blocks)
        sequence.timed_out = True
        self.leave()

    def leave(self) -> None:
        if self.spare:
            self.spare[0].arrival = self.now
            self.coming.append(self.spare.popleft())

    def finish(self, sequence: Sequence) -> None:
        self.pool.give(sequence.blocks)
        sequence.finished = self.now
        self.leave()

    # --- schedule -------------------------------------------------------------------------------------------------

    def blocks_of(self, tokens: int) -> int:
        return ceil((tokens + self.drafted) / self.service.block_size)

    def room_for(self, cached: int, blocks: int) -> int:
        """Passes before a sequence needs another block."""
        slack = blocks * self.service.block_size - cached - self.drafted
        return min(int(slack / self.growth), self.period - 1)

    def decoding(self) -> list[Sequence]:
        return [sequence for sequence in self.running if sequence.decodes]

    def short(self) -> list[Sequence]:
        """Those that need a block for the next pass."""
        return [s for s in self.decoding() if (s.passes - s.until_block) % self.period == 0]

    def make_room(self) -> bool:
        preempted = False
        while len(self.short()) > len(self.pool.free):
            victim = self.running.pop()
            victim.preemptions += 1
            preempted = True
            if victim.decodes and self.service.preemption == "swap":
                self.swapping += len(victim.blocks) * self.service.swap_s_per_block
                victim.swapped = True
            if victim.decodes:
                gained = min(int(victim.passes * self.growth + 1e-9), victim.osl - victim.generated - 1)
                victim.generated += gained
                victim.prompt = victim.isl + victim.generated
                self.remember(victim, victim.prompt - 1)
            if victim.swapped:
                victim.prompt -= 1  # the last token is not in the cache yet
            victim.computed, victim.decodes = 0, False
            self.pool.give(victim.blocks)
            self.waiting.appendleft(victim)
        return preempted

    def schedule(self) -> tuple[list[Sequence], list[tuple[Sequence, int]]]:
        """Who decodes in the next pass, and the chunks of prompts in it."""
        service = self.service
        mixed = service.scheduler == "mixed"
        preempted = self.make_room() if mixed else False
        budget = service.max_num_batched_tokens
        budget -= len(self.decoding()) * (1 + self.drafted) if mixed else 0
        longest = service.long_prefill_token_threshold or service.max_num_batched_tokens
        chunks = []
        for sequence in self.running:
            if not sequence.decodes and budget > 0:
                chunks.append((sequence, min(budget, longest, sequence.prompt - sequence.computed)))
                budget -= chunks[-1][1]
                self.remember(sequence, sequence.computed + chunks[-1][1])
        kept_free = int(service.watermark * service.blocks)
        while self.waiting and not preempted and budget > 0 and len(self.running) < service.max_num_seqs:
            sequence = self.waiting[0]
            blocks = self.blocks_of(sequence.prompt)
            free = len(self.pool.free) - len(self.short()) - (kept_free if self.running else 0)
            until_block = self.room_for(sequence.prompt, blocks)
            found = self.cached(sequence)
            in_use = sum(self.pool.taken[block] > 0 for block in found)
            if blocks - in_use + (sequence.swapped and until_block == 0) > free:
                break
            whole = not service.chunked and not sequence.swapped
            before = len(found) * service.block_size
            if not sequence.swapped:
                before = max(before, self.in_store(sequence))
            if whole and sequence.prompt - before > budget and chunks:
                break
            self.waiting.popleft()
            self.pool.take_up(found)
            sequence.blocks = found + self.pool.take(blocks - len(found))
            sequence.known, sequence.computed, sequence.alone = len(found), before, False
            self.running.append(sequence)
            if sequence.swapped:
                self.swapping += blocks * service.swap_s_per_block
                sequence.swapped = False
                self.start(sequence)
                budget -= 1 + self.drafted if mixed else 0
                continue
            if sequence.first_scheduled != sequence.first_scheduled:
                sequence.first_scheduled = self.now
            if self.caches and sequence.preemptions == 0:
                self.found[0] += sequence.prompt
                self.found[1] += len(found) * service.block_size
            left = sequence.prompt - before
            chunks.append((sequence, left if whole else min(left, budget, longest)))
            budget -= chunks[-1][1]
            self.remember(sequence, before + chunks[-1][1])
        if mixed:
            return self.decoding(), chunks
        if not chunks:
            self.make_room()
        return [] if chunks else self.decoding(), chunks

    def block_name(self, sequence: Sequence, k: int) -> Hashable:
        """Of its block k: the ids of all up to its last token, or its own."""
        end = (k + 1) * self.service.block_size
        ids = sequence.prefix[: -(-end // self.prefix_tokens)]
        if end <= sequence.isl and len(ids) * self.prefix_tokens >= end:
            return ids, k
        return sequence.i, k

    def cached(self, sequence: Sequence) -> list[int]:
        """The blocks of its prompt that are there; its last token is computed in any case."""
        if not self.caches:
            return []
        most = (sequence.prompt - 1) // self.service.block_size
        return self.pool.find(self.block_name(sequence, k) for k in range(most))

    def in_store(self, sequence: Sequence) -> int:
        """Tokens of whole blocks that a store outside has."""
        tokens = min(sequence.stored, sequence.prompt - 1)
        return tokens - tokens % self.service.block_size

    def remember(self, sequence: Sequence, tokens: int) -> None:
        """Name the blocks that are full with so many tokens, up to the first that another has too."""
        while self.caches and not sequence.alone and sequence.known < tokens // self.service.block_size:
            k = sequence.known
            sequence.alone = not self.pool.name(sequence.blocks[k], self.block_name(sequence, k))
            sequence.known += not sequence.alone

    def start(self, sequence: Sequence) -> None:
        """It decodes from the next pass on."""
        sequence.decodes, sequence.passes = True, 0
        sequence.needed = ceil((sequence.osl - sequence.generated) / self.growth)
        sequence.until_block = self.room_for(sequence.prompt, len(sequence.blocks))

    # --- a pass ---------------------------------------------------------------------------------------------------

    def one_pass(self, decoding: list[Sequence], chunks: list[tuple[Sequence, int]]) -> None:
        times = self.service.times
        for sequence in decoding:
            if (sequence.passes - sequence.until_block) % self.period == 0:
                sequence.blocks += self.pool.take(1)
        context = sum([s.prompt + s.passes * self.growth + 1 for s in decoding])
        if chunks:
            tokens = sum(chunk for _, chunk in chunks)
            pairs = sum(chunk * s.computed + chunk * (chunk + 1) / 2 for s, chunk in chunks)
            self.spend(times.prompts(len(decoding), context, len(chunks), tokens, pairs))
            self.prompt_passes += 1
            self.prefill_tokens += tokens
            self.prompt_pairs += pairs
        elif decoding:
            start, slope, _ = times.decode(len(decoding), context)
            self.spend(start + slope * context)
        else:
            self.spend(0.0)
            return
        self.passes += 1
        self.context_tokens += context
        for sequence in decoding:
            self.token(sequence)
            sequence.passes += 1
            if self.drafted == 0:
                cached = sequence.prompt + sequence.passes
                assert len(sequence.blocks) == ceil(cached / self.service.block_size), (
                    "blocks are not its tokens'"
                )
            if sequence.passes == sequence.needed:
                self.running.remove(sequence)
                self.finish(sequence)
        for sequence, chunk in chunks:
            sequence.computed += chunk
            if sequence.computed == sequence.prompt:
                self.prefilled(sequence)

    def prefilled(self, sequence: Sequence) -> None:
        if sequence.generated == 0 and self.late(sequence):
            self.running.remove(sequence)
            self.give_up(sequence)
            return
        self.token(sequence)
        sequence.generated += 1
        if sequence.generated == sequence.osl:
            self.running.remove(sequence)
            self.finish(sequence)
        else:
            self.start(sequence)

    def token(self, sequence: Sequence) -> None:
        if sequence.first_token != sequence.first_token:
            sequence.first_token = self.now
        else:
            self.gaps.append(self.now - sequence.last_token)
        sequence.last_token = self.now

    def spend(self, seconds: float) -> None:
        self.now += seconds + self.swapping
        self.busy += seconds + self.swapping
        self.swapping = 0.0

    # --- batches of requests --------------------------------------------------------------------------------------

    def static_batch(self) -> None:
        batch: list[Sequence] = []
        while self.waiting and len(batch) < self.service.max_num_seqs:
            wider = [*batch, self.waiting[0]]
            longest = max(s.isl for s in wider) + max(s.osl for s in wider)
            if len(wider) * self.blocks_of(longest) > self.service.blocks:
                break
            batch = wider
            self.waiting.popleft().first_scheduled = self.now
        isl, osl = max(s.isl for s in batch), max(s.osl for s in batch)
        for sequence in batch:
            sequence.blocks = self.pool.take(self.blocks_of(isl + osl))
        width = len(batch)
        pairs = width * (isl * (isl + 1) / 2)
        self.spend(self.service.times.prompts(0, 0, width, width * isl, pairs))
        self.passes += 1
        self.prompt_passes += 1
        self.prefill_tokens += width * isl
        self.prompt_pairs += pairs
        for sequence in list(batch):
            if self.late(sequence):
                batch.remove(sequence)
                self.give_up(sequence)
            else:
                self.token(sequence)
        for done in range(1, max((s.osl for s in batch), default=1)):
            context = width * (isl + done)
            start, slope, _ = self.service.times.decode(width, context)
            self.spend(start + slope * context)
            self.passes += 1
            self.context_tokens += context
            for sequence in batch:
                if sequence.osl > done:
                    self.token(sequence)
        for sequence in batch:
            self.finish(sequence)
