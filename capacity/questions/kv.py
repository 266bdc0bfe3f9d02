"""How many bytes does a token of context cost?"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from capplan.capacity.answer import Answer, Working
from capplan.capacity.questions.asked import (
    as_model,
    assumed_of,
    known_contexts,
    known_tier,
    known_tp,
    kv_precision,
)
from capplan.capacity.questions.model_terms import cache_of, request_bytes, streams_of
from capplan.models.spec import Attention, Model

if TYPE_CHECKING:
    from capplan.report import Report


@dataclass(frozen=True, slots=True, kw_only=True)
class Kv(Answer):
    """The cache of a model: what a token, and a request at each context, costs."""

    question: ClassVar[str] = "kv"

    params_total: int
    params_active: int
    kv_bytes_per_token: float
    state_bytes_per_sequence: float
    windows: tuple[dict[str, Any], ...]
    kv_bytes_at: dict[str, float]  # context -> bytes of one request
    streams: tuple[dict[str, Any], ...]  # what alike layers keep, summed over a request
    max_context: int | None

    def sweep(self) -> list[dict[str, Any]]:
        return [{"context": int(c), "kv_bytes_per_request": b} for c, b in self.kv_bytes_at.items()]

    def report(self) -> Report:
        from capplan import units
        from capplan.report import Report, Table
        from capplan.units import gib, tokens

        per_token = self.kv_bytes_per_token
        rows = tuple((tokens(int(c)), gib(b)) for c, b in self.kv_bytes_at.items())
        kept = tuple((s["part"].replace("_", " "), f"{s['layers']} layers", _kept(s)) for s in self.streams)
        headline = (
            f"{self.inputs['model']}: {per_token:,.0f} bytes of KV cache a token "
            f"({units.format(per_token / 1024, '1', 4)} KiB) in {self.inputs['kv']}"
        )
        if self.inputs["tp"] > 1:
            headline += f" on each of {self.inputs['tp']} ranks"
        if self.windows:
            most = sum(window["window"] * window["kv_bytes_per_token"] for window in self.windows)
            headline += f", and up to {gib(most)} of windows"
        if self.state_bytes_per_sequence:
            headline += f", and {gib(self.state_bytes_per_sequence)} of state"
        return Report(
            headline,
            (
                Table(rows, ("context", "one request")),
                Table(kept, title="What the layers keep"),
                Table(
                    (
                        ("parameters", f"{self.params_total:,}"),
                        (
                            "longest context",
                            f"{self.max_context:,} tokens" if self.max_context else "unknown",
                        ),
                    )
                ),
            ),
            self.assumptions,
            self.warnings,
        )


def _kept(stream: dict[str, Any]) -> str:
    every, most = stream["tokens_per_entry"], stream["most_entries"]
    how = "a sequence" if not every else "a token" if every == 1 else f"{every} tokens"
    return f"{stream['entry']}, once {how}" + (f", {most:,} at most" if most is not None else "")


def kv(
    model: str | Model,
    *,
    kv: str = "auto",
    contexts: Sequence[int] | int | None = None,
    tier: str = "engine",
    tp: int = 1,
) -> Kv:
    """Bytes of KV cache of a token and of a request.

    model: a registry name, a path to a config.json (or its folder), or a Model.
    kv: precision of the cache; `auto` is 16 bit.
    contexts: tokens of a request, prompt and output; the usual lengths when not given.
    tier: `whiteboard` or `engine`; both count the cache alike.
    tp: tensor-parallel ranks; the answer is what each of them holds.

    Raises UnknownNameError, DataFileError (a config that can't be read right), InputError.

    >>> kv("70b-class", kv="fp16").kv_bytes_per_token
    327680.0
    """
    return of_spec(as_model(model), kv, contexts, tier, tp)


def of_spec(spec: Model, kv: str, contexts: Sequence[int] | int | None, tier: str, tp: int = 1) -> Kv:
    level = known_tier(tier)
    work = Working()
    work.assume(*assumed_of(spec))
    precision = kv_precision(kv, spec)
    lengths = known_contexts(contexts, spec, work)
    chunked = any(isinstance(part, Attention) and part.chunked for layer in spec.layers for part in layer)
    found = cache_of(spec, precision, work, known_tp(tp))
    at = {str(context): request_bytes(found, context, work) for context in lengths}
    return Kv(
        inputs={"model": spec.id, "kv": precision, "contexts": lengths, "tier": level, "tp": tp},
        params_total=spec.parameters_total,
        params_active=spec.parameters_active,
        kv_bytes_per_token=found.slope,
        state_bytes_per_sequence=found.fixed,
        windows=tuple(
            {
                "kind": "chunked" if stream.part == "kv_window" and chunked else "sliding",
                "window": stream.most,
                "n_layers": stream.layers,
                "kv_bytes_per_token": stream.layers * stream.entry_bytes,
            }
            for stream in found.windows
        ),
        kv_bytes_at=at,
        streams=streams_of(found),
        max_context=spec.max_context,
        **work.shown(),
    )
