"""How many bytes does a token of context cost in each of several models?"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from capplan import units
from capplan.capacity.answer import Answer, Working
from capplan.capacity.questions.asked import CONTEXTS, as_model, known_contexts
from capplan.capacity.questions.kv import Kv, of_spec
from capplan.errors import InputError
from capplan.models.spec import Model
from capplan.units import gib, tokens

if TYPE_CHECKING:
    from capplan.report import Report


@dataclass(frozen=True, slots=True, kw_only=True)
class KvSideBySide(Answer):
    """The caches of several models at the same contexts."""

    question: ClassVar[str] = "kv-side-by-side"

    models: tuple[Kv, ...]

    def result(self) -> dict[str, Any]:
        return {"models": [{"model": each.inputs["model"], **each.result()} for each in self.models]}

    def sweep(self) -> list[dict[str, Any]]:
        return [{"model": each.inputs["model"], **row} for each in self.models for row in each.sweep()]

    def report(self) -> Report:
        from capplan.report import Report, Table

        first = self.models[0]
        rows = [
            ("parameters, B", *(units.format(each.params_total / 1e9, "1", 4) for each in self.models)),
            ("active, B", *(units.format(each.params_active / 1e9, "1", 4) for each in self.models)),
            ("bytes a token", *(f"{each.kv_bytes_per_token:,.6g}" for each in self.models)),
            ("state", *(gib(each.state_bytes_per_sequence) for each in self.models)),
            *(
                (tokens(int(c)), *(gib(each.kv_bytes_at[c]) for each in self.models))
                for c in first.kv_bytes_at
            ),
        ]
        least = min(self.models, key=lambda each: list(each.kv_bytes_at.values())[-1])
        longest = list(first.kv_bytes_at)[-1]
        return Report(
            f"{least.inputs['model']} has the smallest cache at {tokens(int(longest))}: "
            f"{gib(least.kv_bytes_at[longest])} a request",
            (Table(tuple(rows), ("", *(each.inputs["model"] for each in self.models))),),
            self.assumptions,
            self.warnings,
        )


def kv_side_by_side(
    models: Sequence[str | Model],
    *,
    kv: str = "auto",
    contexts: Sequence[int] | int | None = None,
    tier: str = "engine",
    tp: int = 1,
) -> KvSideBySide:
    """The caches of several models at the same contexts. Parameters and errors as in `kv`."""
    specs = list({spec.id: spec for spec in map(as_model, models)}.values())  # a model named twice is one
    if not specs:
        raise InputError("no model given; name at least one (capplan models)")
    shortest = min(specs, key=lambda spec: spec.max_context or max(CONTEXTS))
    lengths = known_contexts(None, shortest, Working()) if contexts is None else contexts
    answers = tuple(of_spec(spec, kv, lengths, tier, tp) for spec in specs)
    work = Working()
    for spec, answer in zip(specs, answers, strict=True):
        work.include(answer, prefix=f"{spec.id}: ")
    inputs = {**answers[0].inputs, "model": [spec.id for spec in specs]}
    return KvSideBySide(inputs=inputs, models=answers, **work.shown())
