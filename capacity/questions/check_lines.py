"""A start-up log beside its prediction, line by line, each difference explained or said to be unexplained."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

from capplan.capacity.engines.budget import Budget
from capplan.capacity.engines.logs import Measured, StartupLog
from capplan.units import gib

GIB = 2**30

AGREES, EXPLAINED, UNEXPLAINED, NOT_PREDICTED = "agrees", "explained", "unexplained", "not predicted"

# How far a prediction may be off and still agree: a share of what was logged, or bytes where that is more. The shares
# are the errors that `capplan validate memory` holds nine rows in ten to; the bytes are what published logs of one
# setting differ by among themselves.
_SHARE = {
    "memory": 0.01,
    "weights": 0.04,
    "activation peak": 0.25,
    "outside of torch": 0.5,
    "consumed": 0.04,  # weights and what is outside of torch: one figure from 0.29
    "peak and graphs": 0.25,
    "CUDA graphs": 0.5,
    "graph estimate": 0.5,
    "KV memory": 0.10,
    "KV blocks": 0.10,
    "KV tokens": 0.10,
    "concurrency": 0.10,
}
_BYTES = {
    "weights": 0.05 * GIB,
    "activation peak": 0.5 * GIB,
    "outside of torch": 0.5 * GIB,
    "consumed": 0.5 * GIB,
    "peak and graphs": GIB,
    "CUDA graphs": 1.25
    * GIB,  # the engine's own estimate is off by up to 0.93 GiB, and the constant by a third
    "graph estimate": GIB,
    "KV memory": 1.5 * GIB,  # what the terms before it may be off by together
}
_GIVEN = (
    0.01  # how far blocks, tokens and concurrency may be off, given the memory that the log says they have
)


FAILURES = {
    "no_memory_for_cache": "no memory is left for the cache",
    "one_request_does_not_fit": "one request of max_model_len does not fit in the cache",
    "too_few_state_blocks": "there are fewer blocks for states than max_num_seqs",
    "out_of_memory": "it ran out of memory",
    "memory_taken_by_others": "other processes hold memory that it was told to use",
    "other": "a failure that is not one of memory, as far as the log says",
}
# failures that a memory budget can foresee
_FORESEEN = ("no_memory_for_cache", "one_request_does_not_fit", "too_few_state_blocks", "out_of_memory")


@dataclass(frozen=True, slots=True)
class Line:
    """One quantity: what was predicted, what the log says and where, and what to make of it."""

    name: str
    unit: str  # byte, or none for a count
    predicted: float | None
    logged: float
    line: int
    verdict: str
    why: str

    def to_dict(self) -> dict[str, Any]:
        known = self.predicted is not None and self.logged
        return {
            "name": self.name,
            "unit": self.unit,
            "predicted": self.predicted,
            "logged": self.logged,
            "relative_difference": self.predicted / self.logged - 1 if known and self.predicted else None,
            "line": self.line,
            "verdict": self.verdict,
            "why": self.why,
        }


@dataclass(frozen=True, slots=True)
class Predictions:
    """From the inputs alone; from what the log says of weights and activations; and of the cache's memory as well."""

    alone: Budget
    with_terms: Budget
    with_cache: Callable[[float], Budget]


def pinned(log: StartupLog) -> str | None:
    """Why the pool does not follow from the memory, where it is fixed by a flag."""
    for flag in ("kv_cache_memory_bytes", "num_gpu_blocks_override", "max_total_tokens"):
        if log.flags.get(flag):
            return f"the pool is pinned by {flag}"
    if log.most("pinned_bytes") or log.most("pinned_blocks"):
        return "the pool is pinned by a flag"
    return None


def cache_memory(log: StartupLog) -> Measured | None:
    """Memory of the cache, of the rank with the least."""
    for name in ("pools_bytes", "kv_bytes"):
        if (found := log.least(name)) is not None:
            return found
    keys, values = log.least("k_bytes"), log.least("v_bytes")  # SGLang has them apart
    if keys is None or values is None:
        return None
    both, half = keys.value + values.value, keys.half_digit + values.half_digit
    return Measured("kv_bytes", both, half, keys.rank, keys.line)


def _pools(log: StartupLog) -> bool:
    """Whether SGLang has pools beside the one that is known, for states or windows."""
    windows = log.most("window_tokens") and not log.most("pools_bytes")
    return bool(log.most("conv_bytes") or windows)


def compared(log: StartupLog, found: Predictions | None) -> Iterator[Line]:
    """Every line of the log that has a prediction, in the order of a start-up."""
    terms: list[tuple[str, str, Callable[[Budget], float]]] = [
        ("memory", "memory_bytes", lambda budget: budget.total),
        ("weights", "weights_bytes", lambda budget: budget.weights),
    ]
    if log.engine == "vllm":
        terms += [
            ("activation peak", "activation_bytes", lambda budget: budget.activation_peak),
            ("outside of torch", "non_torch_bytes", lambda budget: budget.non_torch),
            ("consumed", "consumed_bytes", lambda budget: budget.weights + budget.non_torch),
            (
                "peak and graphs",
                "activation_graphs_bytes",
                lambda budget: budget.activation_peak + budget.graphs,
            ),
            ("CUDA graphs", "graphs_bytes", lambda budget: budget.graph_memory),
            ("graph estimate", "graphs_estimate_bytes", lambda budget: budget.graph_memory),
        ]
    for name, key, term in terms:
        if (most := log.most(key)) is not None:
            line = _term(name, most, term(found.alone) if found else None)
            if name == "graph estimate" and line.verdict == UNEXPLAINED and found and not found.alone.graphs:
                line = replace(
                    line, verdict=EXPLAINED, why="only told: this version takes nothing from the cache for it"
                )
            yield line
    memory = cache_memory(log)
    if memory is not None:
        yield _memory(log, memory, found)
    if _pools(log):
        memory = None  # that of one pool does not say what all hold
    for name, measured, get in (
        ("KV blocks", log.least("blocks"), lambda budget: budget.num_blocks),
        ("KV tokens", log.least("tokens"), lambda budget: budget.kv_tokens),
        ("concurrency", log.least("concurrency"), lambda budget: budget.max_concurrency),
    ):
        if measured is not None and (log.engine == "vllm" or name != "KV blocks"):
            yield _capacity(name, measured, memory, get, log, found)


def _near(name: str, predicted: float, measured: Measured) -> bool:
    return abs(predicted - measured.value) <= _allowed(name, measured)


def _allowed(name: str, measured: Measured) -> float:
    return max(_SHARE[name] * abs(measured.value), _BYTES.get(name, 0.0), measured.half_digit)


def _term(name: str, measured: Measured, predicted: float | None) -> Line:
    if predicted is None:
        return Line(name, "byte", None, measured.value, measured.line, NOT_PREDICTED, "")
    near = _near(name, predicted, measured)
    why = f"within {gib(_allowed(name, measured))}" if near else ""
    if not near and name == "memory":
        why = "another card than named, or a part of one"
    return Line(name, "byte", predicted, measured.value, measured.line, AGREES if near else UNEXPLAINED, why)


def _memory(log: StartupLog, measured: Measured, found: Predictions | None) -> Line:
    """The cache's memory; a difference that comes out of the terms that the log gives is explained by them."""

    def line(predicted: float | None, verdict: str, why: str) -> Line:
        return Line("KV memory", "byte", predicted, measured.value, measured.line, verdict, why)

    if found is None:
        return line(None, NOT_PREDICTED, "")
    predicted = found.alone.kv
    if _near("KV memory", predicted, measured):
        return line(predicted, AGREES, f"within {gib(_allowed('KV memory', measured))}")
    if cause := pinned(log):
        return line(predicted, EXPLAINED, cause)
    if _pools(log):
        return line(predicted, EXPLAINED, "states or windows have a pool of their own beside it")
    given = found.with_terms.kv
    if given != predicted and _near("KV memory", given, measured):
        return line(predicted, EXPLAINED, f"given the weights and activations of the log it is {gib(given)}")
    if log.failures and measured.value <= 0:
        return line(predicted, UNEXPLAINED, "the log says that nothing was left")
    return line(predicted, UNEXPLAINED, "")


def _capacity(
    name: str,
    measured: Measured,
    memory: Measured | None,
    get: Callable[[Budget], float | None],
    log: StartupLog,
    found: Predictions | None,
) -> Line:
    """Blocks, tokens or concurrency: judged given the memory that the log says the cache has, if it does."""

    def line(predicted: float | None, verdict: str, why: str) -> Line:
        return Line(name, "", predicted, measured.value, measured.line, verdict, why)

    if found is None:
        return line(None, NOT_PREDICTED, "")
    predicted = get(found.alone)
    if memory is not None and memory.value > 0:
        ends = [get(found.with_cache(memory.value + sign * memory.half_digit)) for sign in (-1, 1)]
        if None not in ends:
            low, high = sorted(end for end in ends if end is not None)
            half = measured.half_digit
            middle = (low + high) / 2
            if low - half <= measured.value <= high + half:
                return line(predicted, AGREES, "exact, given the KV memory of the log")
            if abs(middle / measured.value - 1) <= _GIVEN if measured.value else middle == 0:
                return line(predicted, AGREES, f"{figure(middle)}, given the KV memory of the log")
            if cause := pinned(log):
                return line(predicted, EXPLAINED, cause)
            return line(
                predicted, UNEXPLAINED, f"given the KV memory of the log it should be {figure(middle)}"
            )
    if predicted is None:
        return line(None, NOT_PREDICTED, "not on record for this version")
    if _near(name, predicted, measured):
        return line(predicted, AGREES, f"within {_SHARE[name]:.0%}")
    if cause := pinned(log):
        return line(predicted, EXPLAINED, cause)
    return line(predicted, UNEXPLAINED, "")


def figure(number: float) -> str:
    return f"{number:,.2f}" if number < 1000 and not float(number).is_integer() else f"{number:,.0f}"


# --- whether it started ----------------------------------------------------------------------------------------


def started(log: StartupLog) -> bool | None:
    if log.ready:
        return True
    if log.failures:
        return False
    return True if log.least("concurrency") or log.least("tokens") else None


def start(log: StartupLog, did: bool | None, found: Predictions | None) -> tuple[str, str]:
    """What to make of a start, or of none."""
    if did is None:
        return NOT_PREDICTED, "the log ends before it says"
    if found is None:
        return NOT_PREDICTED, ""
    if found.alone.starts == did:
        return AGREES, ""
    if did:
        return UNEXPLAINED, f"predicted: {found.alone.why_not}"
    failure = log.failures[0]
    if failure.kind not in _FORESEEN:
        return EXPLAINED, FAILURES[failure.kind]
    if failure.kind == "out_of_memory" and log.least("tokens") and not found.alone.graphs:
        return EXPLAINED, "CUDA graphs are captured after the pool is taken and are not counted before"
    return UNEXPLAINED, FAILURES[failure.kind]
