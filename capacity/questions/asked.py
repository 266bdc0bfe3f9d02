"""What was asked: names, contexts, precisions and a tier, checked; a caller's mistake is one clear line."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import nan
from operator import index
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from capplan.capacity import precision
from capplan.capacity.answer import Working
from capplan.errors import InputError, near_misses
from capplan.models.spec import Model

if TYPE_CHECKING:
    from capplan.hardware.spec import Gpu

TIERS = ("whiteboard", "engine", "measured")
Tier = Literal["whiteboard", "engine"]

RESERVE = 4 * 2**30  # the essay's, for activations and workspace
CONTEXTS = (8_000, 32_000, 128_000)
MOST_TOKENS = 10**12


def known_tier(tier: str) -> Tier:
    """`whiteboard` or `engine`; raises InputError for anything else, `measured` included."""
    if tier == "whiteboard":
        return "whiteboard"
    if tier == "engine":
        return "engine"
    if tier == "measured":
        raise InputError(
            "tier 'measured' needs a calibration file, which fit, perf, compare, decode, prefill and ops take "
            "with --calibration; use engine"
        )
    nearest = near_misses(tier, TIERS, count=1) if isinstance(tier, str) else []
    hint = f"; did you mean {nearest[0]!r}?" if nearest else ""
    raise InputError(f"unknown tier {tier!r}; one of {', '.join(TIERS)}{hint}")


def as_model(model: str | Model) -> Model:
    """A model by name or path, or as it is."""
    if isinstance(model, Model):
        return model
    if isinstance(model, PathLike):
        from capplan.models.hf import read_config

        return read_config(Path(model))
    if not isinstance(model, str):
        raise InputError(f"model {model!r} is not a name, a path of a config.json or a Model")
    from capplan.models.registry import model as named

    return named(model)


_HOW = {
    "recalled": "are recalled: no config file was seen",
    "class-defaults": "are the defaults of its class in transformers: no config file was seen",
}


def assumed_of(model: Model) -> tuple[str, ...]:
    """What was taken for granted of a model: how its dimensions are known, and what its reader assumed."""
    how = _HOW.get(model.basis)
    known = (f"the dimensions of {model.id} {how}",) if how else ()
    return (*known, *model.assumptions)


def as_gpu(gpu: str | Gpu) -> Gpu:
    """A GPU by name, or as it is."""
    from capplan.hardware.registry import gpu as named  # not on the way of `capplan kv`
    from capplan.hardware.spec import Gpu

    if isinstance(gpu, Gpu):
        return gpu
    if not isinstance(gpu, str):
        raise InputError(f"gpu {gpu!r} is neither a name (capplan gpus) nor a Gpu")
    return named(gpu)


def known_contexts(contexts: Sequence[int] | int | None, model: Model, work: Working) -> list[int]:
    """The contexts asked for, checked; the usual ones that the model can hold when none was asked for."""
    if contexts is None:
        usual = [context for context in CONTEXTS if context <= (model.max_context or max(CONTEXTS))]
        return usual or [model.max_context or CONTEXTS[0]]
    several = (
        contexts if isinstance(contexts, Iterable) and not isinstance(contexts, (str, bytes)) else (contexts,)
    )
    asked = [whole_tokens(context) for context in several]
    past = [context for context in sorted(set(asked)) if model.max_context and context > model.max_context]
    if past:
        listed = ", ".join(f"{context:,}" for context in past)
        work.warn(f"{listed} tokens: past the {model.max_context:,} that {model.id} was made for")
    if not asked:
        raise InputError("no context given; name at least one, such as 8000")
    return sorted(set(asked))


def whole_tokens(context: object) -> int:
    """A number of tokens; raises InputError for anything but a whole number from 1 to MOST_TOKENS."""
    try:
        count = 0 if isinstance(context, bool) else index(context)  # type: ignore[arg-type]  # numpy's, too
    except TypeError:
        count = 0
    if not 1 <= count <= MOST_TOKENS:
        said = repr(context) if count <= MOST_TOKENS else "past the limit"
        raise InputError(f"context {said} is not a whole number of tokens from 1 to {MOST_TOKENS:,}")
    return count


MOST_SEQUENCES = 10**6


def known_batches(batches: Iterable[int]) -> list[int]:
    """Sequences of a pass, checked, each once, the fewest first."""
    found = set()
    if not isinstance(batches, Iterable):
        raise InputError(f"batches {batches!r} is not a list of numbers of sequences, such as [1, 64]")
    for batch in batches:
        if isinstance(batch, bool) or not isinstance(batch, int) or not 1 <= batch <= MOST_SEQUENCES:
            raise InputError(
                f"batch {batch!r} is not a whole number of sequences from 1 to {MOST_SEQUENCES:,}"
            )
        found.add(batch)
    if not found:
        raise InputError("no batch given; name at least one, such as 32")
    return sorted(found)


def number(value: object) -> float:
    """A real number as a float; nan for what is none."""
    try:
        return nan if isinstance(value, (bool, str)) else float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError, OverflowError):
        return nan


def is_whole(value: object, most: int) -> bool:
    """Whether it is a whole number from 1 to `most`, numpy's included."""
    try:
        return not isinstance(value, bool) and 1 <= index(value) <= most  # type: ignore[arg-type]
    except TypeError:
        return False


def known_tp(tp: int) -> int:
    """Tensor-parallel ranks, checked."""
    if not isinstance(tp, int) or isinstance(tp, bool) or not 1 <= tp <= 1024:
        raise InputError(f"tp {tp!r} is not a whole number of ranks from 1 to 1,024")
    return tp


def known_reserve(reserve: float | None, tier: Tier, work: Working) -> float:
    """Bytes kept back from weights and cache; 4 GiB when not given."""
    if reserve is None:
        work.assume(f"{RESERVE / 2**30:.0f} GiB is kept back for activations and workspace (--reserve)")
        reserve = RESERVE
    elif not 0 <= number(reserve) < float("inf"):
        raise InputError(f"reserve {reserve!r} is not a number of bytes, zero or more")
    if tier == "engine":
        work.assume(
            "the reserve stands in for the engine's activation peak, CUDA graphs and communication buffers; "
            "--engine predicts them"
        )
    return float(reserve)


def automatic(name: str) -> bool:
    return isinstance(name, str) and name.strip().lower() == "auto"


def weights_precision(weights: str, model: Model) -> str:
    """The precision of the weights; `auto` is the checkpoint's own."""
    return model.dtype if automatic(weights) else precision.canonical(weights, precision.WEIGHTS, "weights")


def kv_precision(kv: str, model: Model) -> str:
    """The precision of the cache; `auto` is what the checkpoint was made for, or 16 bit, as engines do."""
    if automatic(kv):
        if model.quantization is not None and model.quantization.kv in precision.KV:
            return model.quantization.kv
        return "fp16" if model.dtype in ("fp16", "fp32") else "bf16"
    return precision.canonical(kv, precision.KV, "kv precision")
