"""The engine's loop: take in what has come, schedule, run a pass, hand out tokens; again.

A pass with prompts is one turn of the loop. Passes that only decode are alike as long as nobody comes, leaves or
needs a block that is not there: so many of them are one turn too, a jump. The time of such a pass is affine in the
context of its sequences together, and that grows by the same from pass to pass, so that the sum is a closed form.
Nothing is ever done for each sequence of a pass: the loop keeps totals.

`stepwise` is the same loop written plainly, pass by pass and sequence by sequence; tests hold the two equal.

Sources: vLLM's v1 scheduler (vllm/v1/core/sched/scheduler.py) for the order of what is scheduled, preempted and
admitted; Kwon et al. 2023 for blocks; Agrawal et al. 2024 for chunked prefill and stall-free batches; Yu et al. 2022
for batches at the level of passes, and of requests (static).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from heapq import heappop, heappush
from itertools import islice
from math import ceil, inf, isnan, sqrt
from typing import NamedTuple

from capplan.capacity.simulator.journal import Journal, Progress, Samples
from capplan.capacity.simulator.prefix_cache import PrefixCache
from capplan.capacity.simulator.requests import CacheUse, Disaggregated, Outcome, Service, Workload
from capplan.errors import InputError

Chunk = tuple[int, int, int]  # of a prompt: the request, tokens, and tokens computed before


def simulate(
    workload: Workload,
    service: Service | Disaggregated,
    *,
    jumps: bool = True,
    progress: Progress | None = None,
) -> Outcome:
    """What becomes of the requests of a workload on a service.

    jumps: False takes every pass by itself, which is the same but for rounding.
    progress: called now and then.

    >>> import numpy as np
    >>> from capplan.capacity.simulator.requests import AffineTimes
    >>> times = AffineTimes((0.02, 1e-4, 0.0), ((inf, 0.01, 0.0, 0.001),))
    >>> one = Workload(np.array([0.0]), np.array([100]), np.array([11]))
    >>> found = simulate(one, Service(times, blocks=100))
    >>> round(float(found.first_token[0]), 6), round(float(found.finished[0]), 6)
    (0.03, 0.14)
    """
    journal = Journal(workload, progress)
    if isinstance(service, Disaggregated):
        from capplan.capacity.simulator.disaggregated import run_pools

        replicas = run_pools(journal, service, jumps)
        blocks = service.prefill.blocks * service.prefill.replicas
        blocks += service.decode.blocks * service.decode.replicas
    else:
        routed = is_routed(workload, service)
        replicas = [
            Replica(
                service,
                journal,
                *(((), None) if routed else arrivals(workload, k, service.replicas)),
                jumps=jumps,
            )
            for k in range(service.replicas)
        ]
        if routed:
            router = Router(replicas)
            for i, now in enumerate(journal.arrival):
                run(replicas, service.ranks, now)
                router.give(i, now)
        run(replicas, service.ranks)
        for replica in replicas:
            replica.sample()
        blocks = service.blocks * service.replicas
    caches = tuple(CacheUse(r.asked_tokens, r.found_tokens) for r in replicas if r.cache)
    return journal.outcome([r.samples for r in replicas], max(r.now for r in replicas), blocks, caches)


def run(replicas: list[Replica], ranks: int, until: float = inf) -> None:
    """All turns that begin before `until`: of each replica by itself, or of so many together."""
    if ranks == 1:
        for replica in replicas:
            replica.run(until)
        return
    from capplan.capacity.simulator.lockstep import run_together

    for k in range(0, len(replicas), ranks):
        run_together(replicas[k : k + ranks], until)


def is_routed(workload: Workload, service: Service) -> bool:
    """Whether it hangs on the replicas' load which of them gets a request; else each can be run by itself.

    Raises InputError for a closed loop.
    """
    if service.routing == "round-robin" or service.replicas == 1:
        return False
    if workload.concurrency is not None:
        raise InputError(
            f"routing {service.routing!r} is of requests that come by themselves; with a concurrency each comes where one "
            "left: round-robin is accepted"
        )
    return True


class Router:
    """Gives each request to the replica with the fewest; among equals in turn."""

    def __init__(self, replicas: Sequence[Replica]) -> None:
        self.replicas, self.turn = replicas, 0

    def give(self, i: int, now: float) -> None:
        """All replicas have run all that begins before now."""
        count = len(self.replicas)
        at = min(range(count), key=lambda k: (self.replicas[k].score(now), (k - self.turn) % count))
        self.replicas[at].inbox.append(i)
        self.turn = at + 1


def arrivals(workload: Workload, k: int, replicas: int) -> tuple[Iterable[int], Iterator[int]]:
    """The requests that replica k gets, in turn: those that come by themselves, and those that follow one that left."""
    if workload.concurrency is None:
        return range(k, len(workload), replicas), iter(())
    own = iter(range(k, len(workload), min(replicas, workload.concurrency)))
    share = workload.concurrency // replicas + (k < workload.concurrency % replicas)
    return list(islice(own, share)), own


class Decoding(NamedTuple):
    """A sequence that decodes, as it was when it joined. It needs a block when passes % period is its phase."""

    joined: int  # decode passes that the replica had run
    cached: int  # tokens
    blocks: int
    phase: int
    ends: int  # decode passes that the replica will have run
    left: int  # tokens to come


class PromptWork(NamedTuple):
    """A pass with prompts, as StepTimes.prompts takes it."""

    batch: int
    context: float
    prompts: int
    tokens: int
    pairs: float


class Replica:
    """One engine: its queues, its running sequences, its blocks and its clock."""

    def __init__(
        self,
        service: Service,
        journal: Journal,
        inbox: Iterable[int],
        spare: Iterator[int] | None = None,
        *,
        jumps: bool = True,
    ) -> None:
        """inbox: requests that come by themselves, in order; spare: those of which one comes when another leaves."""
        self.service, self.journal, self.jumps = service, journal, jumps
        self.coming = iter(inbox)
        self.inbox: deque[int] = deque()  # those that come next
        if journal.workload.concurrency is not None:
            self.inbox.extend(self.coming)
        self.spare = spare or iter(())
        self.now, self.idle = 0.0, False
        self.leaving = (0.0, 0)  # when somebody left last, and how many did then
        self.samples = Samples()

        # flags, as the loop reads them
        self.mixed = service.scheduler == "mixed"
        drafted = service.speculation.tokens if service.speculation else 0
        self.width = 1 + drafted  # tokens of a decoding sequence in a pass
        self.lookahead = drafted
        self.growth: float = service.speculation.per_pass if service.speculation else 1
        self.period = max(1, int(service.block_size / self.growth))  # passes that a block lasts
        self.kept_free = int(service.watermark * service.blocks)
        self.chunk = service.long_prefill_token_threshold or service.max_num_batched_tokens  # the longest

        # queues
        self.waiting: deque[int] = deque()  # have not been scheduled yet
        self.preempted: deque[int] = deque()  # go before them
        self.generated: dict[int, int] = {}  # tokens that a preempted one has, where it is to be recomputed
        self.swapped: dict[
            int, tuple[int, int]
        ] = {}  # cached tokens and tokens to come, where it was swapped
        self.last_token: dict[int, float] = {}  # of preempted ones

        # running: in the order of admission; None while its prompt is computed
        self.running: dict[int, Decoding | None] = {}
        self.prefilling: dict[int, tuple[int, int]] = {}  # tokens to compute, and blocks
        self.partial: dict[int, int] = {}  # prompts that have a chunk behind them, and how far each is
        self.batch = 0  # decoding sequences
        self.context: float = 0  # tokens that they have cached, together
        self.passes = 0  # decode passes so far
        self.due = [0] * self.period  # sequences that need a block, by phase
        self.ends: list[tuple[int, int]] = []  # heap: when each leaves; stale where it was preempted
        self.since: list[tuple[float, int]] = []  # last tokens: when, and of how many sequences
        self.free = service.blocks
        self.cache = None
        if service.prefix_caching and journal.workload.prefix is not None:
            self.cache = PrefixCache(service.blocks, service.block_size, journal.workload)
        self.asked_tokens = self.found_tokens = 0  # of the prefix cache
        self.crowded = False  # somebody was preempted for the next pass: nobody is admitted to it
        self.expected = 0  # sequences that have blocks here and are on their way
        self.swapping = 0.0  # to be added to the next pass [second]

    # --- the loop -------------------------------------------------------------------------------------------------

    def run(self, until: float = inf) -> None:
        """Turns that begin before `until`."""
        self.idle = False
        static = self.service.scheduler == "static"
        while self.now < until:
            self.journal.turn()
            self.receive()
            if self.now >= self.samples.next:
                self.sample()
            if static:
                if self.waiting:
                    self.static_batch()
                    continue
            elif chunks := self.schedule():
                self.prompt_pass(chunks)
                continue
            elif self.batch:
                self.decode_passes(until)
                continue
            elif self.swapping:
                self.spend(0.0)
                continue
            soonest = max(self.now, self.next_event())
            if soonest >= until:
                self.idle = True
                break
            self.now = soonest

    def sample(self) -> None:
        self.samples.add(self.now, len(self.running), self.queued(), self.service.blocks - self.free)

    def score(self, now: float) -> int:
        """How loaded it is, as vLLM's balancer counts; who leaves with the pass under way is still here."""
        running = len(self.running) + (self.leaving[1] if self.leaving[0] > now else 0)
        coming = sum(self.fits(i) for i in self.inbox)  # one that will be refused does not wait
        return 4 * (self.queued() + coming) + running

    def queued(self) -> int:
        return len(self.waiting) + len(self.preempted)

    def due_at(self) -> float:
        """When the next request is before the scheduler."""
        if not self.inbox:
            following = next(self.coming, None)
            if following is None:
                return inf
            self.inbox.append(following)
        return self.journal.arrival[self.inbox[0]] + self.service.request_s

    def next_event(self) -> float:
        """When there will be something to do for one that has nothing to do now."""
        return min(self.due_at(), self.deadline())

    def receive(self) -> None:
        """Queue what has come by now; let those go whose client did not wait."""
        while self.due_at() <= self.now:
            i = self.inbox.popleft()
            if self.fits(i):
                self.waiting.append(i)
            else:
                self.journal.refused[i] = True
                self.leave()
        if self.journal.timeout < inf:
            self.give_up()

    def fits(self, i: int) -> bool:
        """Whether it can be served at all."""
        service, isl, osl = self.service, self.journal.isl[i], self.journal.osl[i]
        if service.max_model_len is not None and isl + osl > service.max_model_len:
            return False
        if not self.lookahead:
            return self.blocks_of(isl + osl) <= service.blocks
        passes = ceil((osl - 1) / self.growth)
        return self.blocks_of(isl) + ceil(passes / self.period) + 1 <= service.blocks

    def blocks_of(self, tokens: int) -> int:
        return -(-(tokens + self.lookahead) // self.service.block_size)

    def leave(self) -> None:
        """One is gone: in a closed loop another comes. What a client does that gave up (a retry) would go here."""
        self.count_leaving()
        self.journal.left += 1
        following = next(self.spare, None)
        if following is not None:
            self.journal.arrival[following] = self.now
            self.inbox.append(following)

    def count_leaving(self) -> None:
        self.leaving = (self.now, self.leaving[1] + 1 if self.leaving[0] == self.now else 1)

    # --- clients that do not wait ---------------------------------------------------------------------------------

    def deadline(self) -> float:
        """When the next client gives up that has no token yet."""
        if self.journal.timeout == inf:
            return inf
        unserved = [i for i in self.preempted if isnan(self.journal.first_token[i])]
        unserved += [i for i in self.prefilling if i not in self.generated]
        if self.waiting:
            unserved.append(self.waiting[0])
        soonest = min((self.journal.arrival[i] for i in unserved), default=inf) + self.journal.timeout
        if self.inbox and not self.waiting:  # it is not known to be late before it is here
            late = self.journal.arrival[self.inbox[0]] + self.journal.timeout
            soonest = min(soonest, max(late, self.due_at()))
        return soonest

    def late(self, i: int) -> bool:
        """Whether its client has left, without a token."""
        journal = self.journal
        return isnan(journal.first_token[i]) and self.now >= journal.arrival[i] + journal.timeout

    def give_up(self) -> None:
        while self.waiting and self.late(self.waiting[0]):
            self.gone(self.waiting.popleft())
        for i in [i for i in self.preempted if self.late(i)]:
            self.preempted.remove(i)
            self.gone(i)
        for i in [i for i in self.prefilling if self.late(i)]:
            self.drop(i, self.prefilling.pop(i)[1])
            self.partial.pop(i, None)
            self.gone(i)

    def gone(self, i: int) -> None:
        if self.cache:
            self.cache.forget(i)
        self.journal.timed_out[i] = True
        self.leave()

    # --- what the next pass consists of ---------------------------------------------------------------------------

    def schedule(self) -> list[Chunk]:
        """Prompts of the next pass: each a request, tokens, and tokens computed before. Resumed ones just join.

        Blocks that decoding sequences need for the pass are theirs before anybody is admitted.
        """
        self.crowded = False
        if self.mixed:
            self.make_room()
        if not self.partial and not self.waiting and not self.preempted:
            return []
        service = self.service
        chunks: list[Chunk] = []
        budget = service.max_num_batched_tokens - (self.batch * self.width if self.mixed else 0)
        cache, stored = self.cache, self.journal.stored
        for i, done in self.partial.items():
            if budget > 0:
                chunks.append((i, min(budget, self.chunk, self.prefilling[i][0] - done), done))
                budget -= chunks[-1][1]
                if cache:
                    cache.computed(i, done + chunks[-1][1], self.free)
        while not self.crowded and budget > 0 and len(self.running) + self.expected < service.max_num_seqs:
            queue = self.preempted or self.waiting
            if not queue:
                break
            i = queue[0]
            resumed = self.swapped.get(i)
            tokens = resumed[0] if resumed else self.journal.isl[i] + self.generated.get(i, 0)
            blocks = self.blocks_of(tokens)
            at_once = 1 if resumed and self.slack(tokens, blocks) == 0 else 0
            free = self.free - self.due[self.passes % self.period]
            if self.running:
                free -= self.kept_free
            found, in_use = cache.find(i, tokens, self.free) if cache else (0, 0)
            if blocks + at_once - in_use > free:
                break
            before = found * service.block_size
            if stored and not resumed:
                before = max(before, min(stored[i], tokens - 1) // service.block_size * service.block_size)
            if not (service.chunked or resumed) and tokens - before > budget and chunks:
                break
            queue.popleft()
            self.free -= blocks - in_use
            if resumed:
                self.swap(blocks)
                del self.swapped[i]
                self.join(i, tokens, blocks, resumed[1], self.last_token.pop(i, None))
                budget -= self.width if self.mixed else 0
                continue
            if queue is self.waiting:
                self.journal.first_scheduled[i] = self.now
            self.running[i], self.prefilling[i] = None, (tokens, blocks)
            chunk = tokens - before
            if service.chunked:
                chunk = min(chunk, budget, self.chunk)
            chunks.append((i, chunk, before))
            budget -= chunk
            if cache:
                cache.take_up(i, found)
                cache.computed(i, before + chunk, self.free)
                self.count_found(i, tokens, found * service.block_size)
        return chunks

    def count_found(self, i: int, tokens: int, found: int) -> None:
        """So many of a prompt's tokens were in the prefix cache."""
        if i in self.generated:
            self.journal.totals.recomputed_tokens -= found
        elif not self.journal.preemptions[i]:
            self.asked_tokens += tokens
            self.found_tokens += found

    def make_room(self) -> None:
        """Preempt the last admitted until the others have the blocks of their next pass."""
        while self.due[self.passes % self.period] > self.free and self.running:
            self.preempt()
            self.crowded = True

    def preempt(self) -> None:
        i, sequence = self.running.popitem()
        self.journal.preemptions[i] += 1
        self.preempted.appendleft(i)
        if sequence is None:  # its prompt, as far as it is
            self.give_back(i, self.prefilling.pop(i)[1])
            self.partial.pop(i, None)
            return
        blocks, gained = self.take_out(sequence)
        if not isnan(self.journal.first_token[i]):
            when, count = self.since.pop()
            if count > 1:
                self.since.append((when, count - 1))
            self.last_token[i] = when
        gained = min(gained, sequence.left - 1)
        left = sequence.left - gained
        if self.service.preemption == "swap":
            self.swapped[i] = (sequence.cached + gained, left)
            self.swap(blocks)
        else:
            self.generated[i] = self.journal.osl[i] - left
            tokens = self.journal.isl[i] + self.generated[i]
            self.journal.totals.recomputed_tokens += tokens
            if self.cache:
                self.cache.computed(i, tokens - 1, self.free)  # the last is sampled, not computed
        self.give_back(i, blocks)

    def give_back(self, i: int, blocks: int) -> None:
        self.free += self.cache.release(i, blocks) if self.cache else blocks

    def swap(self, blocks: int) -> None:
        self.swapping += blocks * self.service.swap_s_per_block
        self.journal.totals.swapped_blocks += blocks

    # --- decoding sequences come and go ---------------------------------------------------------------------------

    def slack(self, cached: int, blocks: int) -> int:
        """Passes before it needs another block."""
        tokens = blocks * self.service.block_size - cached - self.lookahead
        return min(int(tokens / self.growth), self.period - 1)

    def join(self, i: int, cached: int, blocks: int, left: int, last: float | None) -> None:
        """It decodes from the next pass on. last: when it had its last token; None before its first."""
        phase = (self.passes + self.slack(cached, blocks)) % self.period
        ends = self.passes + ceil(left / self.growth)
        self.running[i] = Decoding(self.passes, cached, blocks, phase, ends, left)
        heappush(self.ends, (ends, i))
        self.due[phase] += 1
        self.batch += 1
        self.context += cached
        if last is None:
            return
        if self.since and self.since[-1][0] == last:
            self.since[-1] = (last, self.since[-1][1] + 1)
        else:
            self.since.append((last, 1))

    def take_out(self, sequence: Decoding) -> tuple[int, int]:
        """Take it from the totals: how many blocks it has, and the tokens that it got."""
        joined, cached, blocks, phase, _, _ = sequence
        passes, period = self.passes - joined, self.period
        blocks += (self.passes - 1 - phase) // period - (joined - 1 - phase) // period
        self.due[phase] -= 1
        self.batch -= 1
        self.context -= cached + passes * self.growth
        return blocks, int(passes * self.growth + 1e-9)

    def let_finish(self) -> None:
        """Those that have had their last token."""
        running, ends = self.running, self.ends
        while ends and ends[0][0] <= self.passes:
            end, i = heappop(ends)
            sequence = running.get(i)
            if sequence is None or sequence.ends != end:
                continue  # it was preempted since
            del running[i]
            self.give_back(i, self.take_out(sequence)[0])
            self.finish(i)
        self.since = [(self.now, self.batch)] if self.batch else []

    # --- passes ---------------------------------------------------------------------------------------------------

    def spend(self, seconds: float) -> None:
        """Time of a pass, and of what is swapped in it."""
        seconds += self.swapping
        self.swapping = 0.0
        self.now += seconds
        totals = self.journal.totals
        totals.busy += seconds
        totals.block_seconds += seconds * (self.service.blocks - self.free)

    def prompt_pass(self, chunks: list[Chunk]) -> None:
        """One pass with prompts; decoding sequences are in it where the scheduler mixes."""
        work = self.prompt_work(chunks)
        self.run_prompts(chunks, work, self.service.times.prompts(*work))

    def prompt_work(self, chunks: list[Chunk]) -> PromptWork:
        """What a pass with these chunks consists of."""
        tokens, pairs = 0, 0.0
        for _, chunk, before in chunks:
            tokens += chunk
            pairs += chunk * before + chunk * (chunk + 1) / 2
        batch = self.batch if self.mixed else 0
        return PromptWork(batch, self.context + batch if batch else 0, len(chunks), tokens, pairs)

    def run_prompts(self, chunks: list[Chunk], work: PromptWork, seconds: float) -> None:
        totals, began = self.journal.totals, self.now
        batch, context, _, tokens, pairs = work
        self.spend(seconds)
        totals.passes += 1
        totals.prompt_passes += 1
        totals.prefill_tokens += tokens
        totals.prompt_pairs += pairs
        if batch:
            totals.context_tokens += context
            self.decoded(1)
            for when, count in self.since:
                self.journal.gaps.add(self.now - when, count)
            self.let_finish()
        for i, chunk, before in chunks:
            if before + chunk < self.prefilling[i][0]:
                self.partial[i] = before + chunk
            else:
                self.partial.pop(i, None)
                self.prefilled(i, began)

    def prefilled(self, i: int, began: float) -> None:
        """Its prompt is computed and a token sampled; began: the start of the pass."""
        journal = self.journal
        tokens, blocks = self.prefilling.pop(i)
        had = self.generated.pop(i, 0)
        if had:  # recomputed: the pass gave it its next token
            journal.gaps.add(self.now - self.last_token.pop(i), 1)
        elif self.late(i):
            self.drop(i, blocks)
            self.gone(i)
            return
        else:
            journal.prefill_done[i] = journal.first_token[i] = self.now
        left = journal.osl[i] - had - 1
        if left:
            self.join(i, tokens, blocks, left, self.now)
        else:
            self.drop(i, blocks)
            self.finish(i)

    def drop(self, i: int, blocks: int) -> None:
        del self.running[i]
        self.give_back(i, blocks)

    def finish(self, i: int) -> None:
        if self.cache:
            self.cache.forget(i)
        self.journal.finished[i] = self.now
        self.journal.totals.decode_tokens += self.journal.osl[i] - 1
        self.leave()

    def decode_passes(self, until: float) -> None:
        """Passes without prompts: one, or as many as are alike."""
        if most := self.alike():
            self.run_decode(*self.run_of_passes(most, min(until, self.horizon())))

    def alike(self) -> int:
        """How many passes without prompts are alike, if nobody comes; 0 where nobody is left to decode."""
        self.make_room()
        if not self.batch:
            return 0
        while (sequence := self.running.get(self.ends[0][1])) is None or sequence.ends != self.ends[0][0]:
            heappop(self.ends)
        most = self.ends[0][0] - self.passes
        if self.crowded or self.swapping or not self.jumps:
            most = 1
        return self.passes_with_blocks(most)

    def run_decode(self, passes: int, first: float, by: float, seconds: float) -> None:
        """So many passes: the first takes `first`, each later one `by` more; all of them `seconds`."""
        batch, gaps = self.batch, self.journal.gaps
        totals = self.journal.totals
        totals.passes += passes
        totals.context_tokens += passes * (self.context + batch) + (
            self.growth * batch * passes * (passes - 1) / 2
        )
        for when, count in self.since:
            gaps.add(self.now - when + first + self.swapping, count)
        if passes > 1:
            gaps.add_series(first + by, by, passes - 1, batch)
        self.spend(seconds)
        self.decoded(passes)
        self.let_finish()

    def horizon(self) -> float:
        """Until when passes stay alike: somebody comes who can be admitted, or leaves without a token."""
        behind = self.waiting or self.preempted or len(self.running) >= self.service.max_num_seqs
        if behind and self.journal.workload.concurrency is None:
            return self.deadline()  # whoever comes waits behind the others
        return min(self.due_at(), self.deadline())

    def passes_with_blocks(self, most: int) -> int:
        """How many passes, of `most`, the free blocks are enough for; the first has been seen to."""
        batch, period = self.batch, self.period
        if -(-most // period) * batch <= self.free:
            return most
        passes = self.free // batch * period  # in each period every sequence needs one
        left = self.free % batch
        while passes < most:
            left -= self.due[(self.passes + passes) % period]
            if left < 0:
                break
            passes += 1
        return min(most, passes)

    def run_of_passes(self, most: int, horizon: float) -> tuple[int, float, float, float]:
        """Passes that begin before the horizon, `most` at the most: how many, the time of the first, by how much
        the next is longer, and the time of all [second]."""
        batch, grown = self.batch, self.growth * self.batch
        context = self.context + batch
        done, seconds, first, by = 0, 0.0, 0.0, 0.0
        left = horizon - self.now
        while done < most and (seconds < left or not done):
            start, slope, end = self.service.times.decode(batch, context)
            time, more = start + slope * context, slope * grown
            passes = most - done
            if end < inf:
                passes = min(passes, max(1, ceil((end - context) / grown)))
            if left < inf:
                passes = min(passes, passes_until(left - seconds, time, more, passes))
            if not done:  # by how much later pieces grow is told to the gaps alone, and differs little
                first, by = time, more
            seconds += passes * time + more * (passes * (passes - 1) / 2)
            done += passes
            context += grown * passes
        return done, first, by, seconds

    def decoded(self, passes: int) -> None:
        """Every decoding sequence has had so many passes: its tokens are cached, its blocks taken."""
        at, due, period = self.passes, self.due, self.period
        blocks = self.batch * (passes // period)
        for k in range(at, at + passes % period):
            blocks += due[k % period]
        self.free -= blocks
        self.passes += passes
        self.context += self.growth * self.batch * passes

    # --- batches of requests, one after another -------------------------------------------------------------------

    def static_batch(self) -> None:
        """A batch runs until its longest answer is out; all are padded to the longest, and all leave together.

        The cache is reserved for prompt and answer, both the longest of the batch.
        """
        journal, service = self.journal, self.service
        batch: list[int] = []
        isl = osl = 0
        while self.waiting and len(batch) < service.max_num_seqs:
            i = self.waiting[0]
            wider = max(isl, journal.isl[i]), max(osl, journal.osl[i])
            if (len(batch) + 1) * self.blocks_of(sum(wider)) > service.blocks:
                break
            isl, osl = wider
            batch.append(self.waiting.popleft())
            journal.first_scheduled[i] = self.now
        width, totals = len(batch), journal.totals
        reserved = width * self.blocks_of(isl + osl)
        self.free -= reserved
        pairs = width * (isl * (isl + 1) / 2)
        self.spend(service.times.prompts(0, 0, width, width * isl, pairs))
        totals.passes += 1
        totals.prompt_passes += 1
        totals.prefill_tokens += width * isl
        totals.prompt_pairs += pairs
        kept = []
        for i in batch:
            if self.late(i):
                self.gone(i)
                continue
            journal.prefill_done[i] = journal.first_token[i] = self.now
            kept.append(i)
        self.running = dict.fromkeys(kept)
        self.batch, self.context = width, width * isl
        lengths = sorted(journal.osl[i] - 1 for i in kept)
        for k, length in enumerate(lengths):
            passes = length - (lengths[k - 1] if k else 0)
            for more in [passes] if self.jumps else [1] * passes:
                self.padded_passes(more, len(lengths) - k)
        self.batch, self.context = 0, 0
        self.running = {}
        self.free += reserved
        for i in kept:
            self.finish(i)

    def padded_passes(self, passes: int, alive: int) -> None:
        """Passes of a static batch, of which so many sequences are not yet done."""
        if not passes:
            return
        self.sample()
        done, first, by, seconds = self.run_of_passes(passes, inf)
        self.journal.gaps.add_series(first, by, done, alive)
        totals = self.journal.totals
        totals.passes += done
        totals.context_tokens += done * (self.context + self.batch) + self.batch * done * (done - 1) / 2
        self.spend(seconds)
        self.context += self.batch * done


def passes_until(left: float, time: float, more: float, most: int) -> int:
    """Passes that begin before `left` is over, the first taking `time` and each `more` than the one before."""
    if left <= 0:
        return 1
    if more <= 0:
        passes = ceil(left / time) if time > 0 else most
    else:
        half = time - more / 2  # passes * half + passes^2 * more / 2 = left
        passes = ceil(2 * left / (half + sqrt(half * half + 2 * more * left)))
    passes = min(most, max(1, passes))
    # the root is rounded; the sum decides
    while passes > 1 and sum_of_passes(passes - 1, time, more) >= left:
        passes -= 1
    while passes < most and sum_of_passes(passes, time, more) < left:
        passes += 1
    return passes


def sum_of_passes(passes: int, time: float, more: float) -> float:
    return passes * time + more * (passes * (passes - 1) / 2)
