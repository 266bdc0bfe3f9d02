"""What goes into a simulation and what comes out: requests, the service that runs them, what became of each."""

from __future__ import annotations

from dataclasses import dataclass, field
from math import inf
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from capplan.capacity.speculation import expected_tokens
from capplan.errors import InputError, near_misses

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]


_COLUMNS = {"arrival": np.float64, "isl": np.int64, "osl": np.int64, "stored": np.int64}


@dataclass(frozen=True, slots=True)
class Workload:
    """Requests in the order in which they come.

    arrival: shape (n,) [second], sorted, none negative. isl, osl: shape (n,) [token], one or more.
    prefix: ids of every prompt's leading blocks, shape (n,) of sequences of numbers; the same ids are the same tokens.
    prefix_tokens: tokens of such a block; the last of a prompt may hold fewer.
    stored: shape (n,) [token]: the beginning of every prompt that a store outside the engines has for all of them
    (LMCache, Mooncake's): it takes blocks and is attended to, but is not computed; loading it takes no time. Static batches
    compute it.
    concurrency: of a closed loop: so many are under way, and the next comes when one leaves; `arrival` is not read.
    timeout: how long a client waits for its first token [second]; then the request is given up.

    Raises InputError for arrays of unlike lengths, and for a value that is none of these.
    """

    arrival: Floats
    isl: Integers
    osl: Integers
    prefix: tuple[Any, ...] | None = None
    concurrency: int | None = None
    timeout: float = inf
    prefix_tokens: int = 512
    stored: Integers | None = None

    def __post_init__(self) -> None:
        for name, kind in _COLUMNS.items():
            if name == "stored" and self.stored is None:
                continue
            given = np.asarray(getattr(self, name))
            if given.ndim != 1 or given.shape != np.shape(self.arrival):
                raise InputError(f"{name} has the shape {given.shape}; one value a request is accepted")
            if not np.issubdtype(given.dtype, np.number) or not np.isfinite(given).all():
                raise InputError(f"{name} holds what is no number; finite numbers are accepted")
            if kind is np.int64 and (given != np.floor(given)).any():
                raise InputError(f"{name} holds a part of a token; whole numbers are accepted")
            object.__setattr__(self, name, np.ascontiguousarray(given, dtype=kind))
        if not len(self.arrival):
            raise InputError("a workload of no requests; one or more is accepted")
        if (self.arrival < 0).any() or (np.diff(self.arrival) < 0).any():
            raise InputError("arrivals are negative or out of order; sorted seconds from 0 are accepted")
        for name in ("isl", "osl"):
            if (least := int(getattr(self, name).min())) < 1:
                raise InputError(f"{name} {least} is no number of tokens of a request; 1 or more is accepted")
        if self.stored is not None and (self.stored < 0).any():
            raise InputError("stored holds a negative number of tokens; 0 or more is accepted")
        if self.prefix is not None and len(self.prefix) != len(self.arrival):
            raise InputError(f"{len(self.prefix)} lists of prefix blocks for {len(self.arrival)} requests")
        if not self.prefix_tokens >= 1:
            raise InputError(f"prefix_tokens {self.prefix_tokens!r} is not a whole number of 1 or more")
        if self.concurrency is not None and not self.concurrency >= 1:
            raise InputError(f"concurrency {self.concurrency!r} is not a whole number of 1 or more")
        if not self.timeout > 0:
            raise InputError(f"timeout {self.timeout!r} is not a time of more than 0 s")

    def __len__(self) -> int:
        return len(self.arrival)


class Piece(NamedTuple):
    """Where the time of a decode pass is affine: start + slope * context, up to `end` tokens of context together."""

    start: float  # [second]
    slope: float  # [second/token]
    end: float  # [token]


class StepTimes(Protocol):
    """How long a pass takes, of one replica. `context` is of all decoding sequences together [token]."""

    def decode(self, batch: int, context: float) -> Piece:
        """A pass in which `batch` sequences get a token each: the piece that holds for this context and on."""

    def prompts(self, batch: int, context: float, prompts: int, tokens: int, pairs: float) -> float:
        """A pass with prompts in it [second].

        prompts: how many; tokens: of their chunks together; pairs: keys that those see together, causally:
        chunk * before + chunk * (chunk + 1) / 2 of each. batch, context: decoding sequences in the same pass.
        Where ranks go together a sixth argument follows: the tokens of a rank in this pass, on average.
        """


@dataclass(frozen=True, slots=True)
class AffineTimes:
    """Step times by published coefficients, as DistServe's and Splitwise's simulators have them [second].

    prefill: a + b * sum(n) + c * sum(n^2). decode: a + b * sum(context) + c * batch, of the first row whose `below`
    is more than the batch. A pass of both takes the prefill's time, and of the decode's what is no constant.
    """

    prefill: tuple[float, float, float]
    decode_rows: tuple[tuple[float, float, float, float], ...]  # below, a, b, c

    def decode(self, batch: int, context: float) -> Piece:
        _, a, b, c = next(row for row in self.decode_rows if batch < row[0])
        return Piece(a + c * batch, b, inf)

    def prompts(self, batch: int, context: float, prompts: int, tokens: int, pairs: float) -> float:
        a, b, c = self.prefill
        time = a + b * tokens + c * (2 * pairs - tokens)  # n^2 is twice the pairs, less n
        if batch:
            _, _, of_context, of_batch = next(row for row in self.decode_rows if batch < row[0])
            time += of_context * context + of_batch * batch
        return time


@dataclass(frozen=True, slots=True)
class Speculation:
    """Draft tokens that one pass checks. Step times of the service are of passes with them, drafting included."""

    tokens: int  # drafted a pass, for each sequence
    acceptance: float  # chance that a drafted token is taken, given that those before it were

    @property
    def per_pass(self) -> float:
        """Tokens that a sequence gets in a pass, on average."""
        return float(expected_tokens(self.acceptance, self.tokens))


SCHEDULERS = ("mixed", "prefill-first", "static")
PREEMPTIONS = ("recompute", "swap")
ROUTINGS = ("round-robin", "least-loaded")


@dataclass(frozen=True, slots=True)
class Service:
    """What a replica runs on, and by which rules.

    scheduler: `mixed` puts prompts beside decoding sequences (vLLM v1, Sarathi's stall-free batches), `prefill-first`
    lets them wait (vLLM v0, SGLang), `static` runs a batch to its end before the next.
    chunked: whether a prompt is divided where max_num_batched_tokens ends; if not, one that is longer goes alone.
    long_prefill_token_threshold: the most that a pass takes of one prompt, so that others go beside it (vLLM's flag; None: no
    limit); only where prompts are divided.
    routing: which of the replicas gets a request: the next in turn, or the one with the fewest, of which one that waits
    counts as four that run (vLLM's data-parallel balancer, with counts of the moment; vLLM's are up to 0.1 s old).
    prefix_caching: whether a prompt takes up blocks of its beginning that are still there (simulator.prefix_cache); it does
    nothing for a workload without prefix blocks.
    """

    times: StepTimes
    blocks: int  # of the cache, of one replica
    block_size: int = 16  # [token]
    max_num_seqs: int = 128
    max_num_batched_tokens: int = 2048
    scheduler: str = "mixed"
    chunked: bool = True
    long_prefill_token_threshold: int | None = None  # [token]
    watermark: float = 0.0  # share of the blocks that admitting a request leaves free
    preemption: str = "recompute"
    swap_s_per_block: float = 0.0  # one way [second]
    max_model_len: int | None = None
    request_s: float = 0.0  # before a request can be scheduled [second]
    replicas: int = 1
    ranks: int = 1  # replicas whose passes go together: data-parallel ranks whose experts are one set
    speculation: Speculation | None = None
    prefix_caching: bool = False
    routing: str = "round-robin"

    def __post_init__(self) -> None:
        for name in ("blocks", "block_size", "max_num_seqs", "max_num_batched_tokens", "replicas"):
            if getattr(self, name) < 1:
                raise InputError(f"{name} {getattr(self, name)!r} is not a whole number of 1 or more")
        if self.long_prefill_token_threshold is not None and self.long_prefill_token_threshold < 1:
            raise InputError(
                f"long_prefill_token_threshold {self.long_prefill_token_threshold!r} is not a whole number of 1 or more"
            )
        for name, names in (
            ("scheduler", SCHEDULERS),
            ("preemption", PREEMPTIONS),
            ("routing", ROUTINGS),
        ):
            if getattr(self, name) not in names:
                nearest = near_misses(getattr(self, name), names, 1)
                hint = f"; did you mean {nearest[0]!r}?" if nearest else ""
                raise InputError(f"unknown {name} {getattr(self, name)!r}; one of {', '.join(names)}{hint}")
        if self.speculation and self.scheduler == "static":
            raise InputError(
                "scheduler 'static' has no speculation; mixed or prefill-first is accepted with it"
            )
        if self.speculation and not 1 <= self.speculation.tokens < self.block_size:
            raise InputError(
                f"{self.speculation.tokens} drafted tokens; from 1 to fewer than the {self.block_size} of a block "
                "are accepted"
            )
        if self.speculation and not 0 <= self.speculation.acceptance <= 1:
            raise InputError(f"acceptance {self.speculation.acceptance!r} is not a share from 0 to 1")
        width = self.max_num_seqs * (1 + (self.speculation.tokens if self.speculation else 0))
        if self.scheduler == "mixed" and self.max_num_batched_tokens < width:
            raise InputError(
                f"max_num_batched_tokens {self.max_num_batched_tokens} is less than the {width:,} tokens of "
                "max_num_seqs decoding sequences"
            )
        if self.ranks < 1 or self.replicas % self.ranks:
            raise InputError(f"{self.replicas} replicas are no groups of {self.ranks!r} ranks each")
        if self.ranks > 1 and self.scheduler == "static":
            raise InputError(
                "scheduler 'static' has no ranks that go together; mixed or prefill-first is accepted"
            )
        if self.prefix_caching and (self.scheduler == "static" or self.preemption == "swap"):
            kind = "scheduler 'static'" if self.scheduler == "static" else "preemption 'swap'"
            raise InputError(
                f"{kind} has no prefix caching; scheduler mixed or prefill-first and preemption recompute have it"
            )
        if not 0 <= self.watermark < 1:
            raise InputError(f"watermark {self.watermark!r} is not a share from 0 to below 1")


@dataclass(frozen=True, slots=True)
class Link:
    """What a cache goes over from a prefill replica to a decode replica; transfers on it wait for each other."""

    name: str
    bandwidth: float  # [byte/second]
    latency: float = 0.0  # [second]
    shared: bool = False  # one link for all; else one for each prefill replica


@dataclass(frozen=True, slots=True)
class Disaggregated:
    """Prefill and decode in pools of their own. A prompt's blocks are held until its cache is over; it goes over when
    the decode replica has blocks for it.

    layers: the cache goes over layer by layer, while later layers are computed; 1 sends it whole at the end.
    first_token_at: `prefill` counts the first token where it is sampled (DistServe), `decode` where the decode replica
    gives it out again (vLLM's connectors). Clients' patience ends with the prefill; ranks of a pool run each by itself.
    """

    prefill: Service
    decode: Service
    link: Link
    bytes_per_token: float
    layers: int = 1
    first_token_at: str = "prefill"


@dataclass(frozen=True, slots=True)
class Timeline:
    """The state of all replicas together, thinned evenly; arrays of one length."""

    time: Floats  # [second]
    running: Integers
    waiting: Integers
    blocks: Integers  # used


@dataclass(frozen=True, slots=True)
class Gaps:
    """Times between two tokens of a request (ITL, TBT), over all tokens: a histogram, every bin 1% wide."""

    edges: Floats  # [second], one more than bins
    counts: Integers


@dataclass(slots=True)
class Totals:
    """What the replicas did, all together."""

    seconds: float = 0.0  # from the first arrival to the last token
    busy: float = 0.0  # [second], of all replicas
    passes: int = 0
    prompt_passes: int = 0  # those of them that have prompts
    prefill_tokens: int = 0  # computed; those of recomputed requests again
    decode_tokens: int = 0  # given out by decode
    prompt_pairs: float = 0.0  # keys that prompt tokens saw
    context_tokens: float = 0.0  # cached tokens that decode passes read
    block_seconds: float = 0.0  # blocks used, times the time
    blocks: int = 0  # of all replicas
    recomputed_tokens: int = 0
    swapped_blocks: int = 0
    transfer_seconds: float = 0.0
    jumps: int = 0  # decisions of the loop: passes, and runs of like passes


@dataclass(frozen=True, slots=True)
class CacheUse:
    """What one replica's prefix cache was asked for; prompts that are computed again after a preemption don't count."""

    prompt_tokens: int
    found_tokens: int

    @property
    def hit_rate(self) -> float:
        return self.found_tokens / self.prompt_tokens if self.prompt_tokens else 0.0


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of every request; arrays of shape (n,), times in seconds, nan for what did not happen.

    finished is nan for a request that was refused or given up.
    """

    workload: Workload
    arrival: Floats  # as in the workload; in a closed loop, when it came
    first_scheduled: Floats  # the start of its first pass
    prefill_done: Floats
    first_token: Floats
    finished: Floats  # its last token
    preemptions: Integers
    refused: NDArray[np.bool_]  # longer than max_model_len or than the pool
    timed_out: NDArray[np.bool_]
    timeline: Timeline
    gaps: Gaps
    totals: Totals = field(default_factory=Totals)
    caches: tuple[CacheUse, ...] = ()  # of every replica that has a prefix cache

    @property
    def hit_rate(self) -> float | None:
        """Of all prefix caches together; None where no replica has one."""
        if not self.caches:
            return None
        prompts = sum(use.prompt_tokens for use in self.caches)
        return CacheUse(prompts, sum(use.found_tokens for use in self.caches)).hit_rate

    @property
    def served(self) -> NDArray[np.bool_]:
        return np.isfinite(self.finished)
