"""What an engine adds to the kernels of a pass."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import NamedTuple

from capplan.errors import UnknownNameError
from capplan.registry import read_toml

TABLE = Path(__file__).with_name("engine_steps.toml")


class Engine(NamedTuple):
    """Constants of an engine; see engine_steps.toml. Times in seconds."""

    name: str
    step: float  # every pass
    layer: float  # every layer of a pass
    mixture: float  # every layer of routed experts: routing and sorting
    sequence: float  # every decoding sequence of a pass
    stage: float  # handing a batch on to the next pipeline stage
    launch: float  # of the start of a kernel, what is left in a graph
    slow: float  # kernels of a decode pass against kernels in a loop
    links: float  # collectives, the same
    prefill_layer: float  # every layer of a pass with prompt tokens, beyond that of one without
    prefill_slow: float
    request: float  # before a request's first pass
    queue: float  # prompts that a prompt waits for, in prompts
    together: (
        float  # where prompts go first and lengths are alike: the share of requests that come all at once
    )
    imbalance: float  # rows of the fullest of many expert-parallel ranks beyond the mean, as a share of it
    routing: float  # tokens to this power hit as many experts as if they chose evenly
    budget: float  # tokens of a pass
    mixed: bool  # prompts share a pass with decoding sequences
    poll: float = 1.0  # passes between two looks for new requests
    graphs: bool = False  # passes without prompts are padded to a captured graph; padding chooses experts too


@cache
def engine_steps(name: str) -> Engine:
    """The constants of an engine. Raises UnknownNameError."""
    table = read_toml(TABLE)
    rows = {key: row for key, row in table.items() if key not in ("fit", "shared")}
    if name not in rows:
        raise UnknownNameError("engine", name, list(rows), f"one of {', '.join(rows)}")
    return engine_of(name, {**table["shared"], **rows[name]})


@cache
def fitted_families() -> frozenset[tuple[str, str, str]]:
    """Engine, model and GPU of the rows that constants were fitted to."""
    fit = read_toml(TABLE).get("fit", {})
    return frozenset((e, m, g) for e, found in fit.get("families", {}).items() for m, g in found)


def engine_of(name: str, row: dict[str, float]) -> Engine:
    """An engine of a table whose times are in microseconds."""
    times = {
        field.removesuffix("_us"): value * (1e-6 if field.endswith("_us") else 1)
        for field, value in row.items()
        if field in _FIELDS
    }
    return Engine(name=name, **times)  # type: ignore[arg-type]


_FIELDS = {*Engine._fields, *(f"{field}_us" for field in Engine._fields)}
