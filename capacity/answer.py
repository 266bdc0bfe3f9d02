"""What every question returns, and the working behind it."""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

from capplan import __version__

if TYPE_CHECKING:
    from capplan.report import Report


class Step(NamedTuple):
    """One formula that was used: what went in, what came out, and what it is for."""

    formula: Callable[..., float]
    inputs: dict[str, float]
    value: float
    why: str = ""


class Given(NamedTuple):
    """A number from the world: where it was read, and when."""

    name: str
    value: float
    unit: str
    source: str


class Working:
    """Calls formulas and keeps what they were called with, so that an answer can show its working."""

    def __init__(self) -> None:
        self.steps: list[Step] = []
        self.given: list[Given] = []
        self.assumptions: list[str] = []
        self.warnings: list[str] = []

    def __call__(self, formula: Callable[..., float], why: str = "", /, **inputs: float) -> float:
        value = formula(**inputs)
        self.steps.append(Step(formula, inputs, value, why))
        return value

    def read(self, name: str, value: float, unit: str, source: str) -> float:
        given = Given(name, value, unit, source)
        if given not in self.given:
            self.given.append(given)
        return value

    def assume(self, *texts: str) -> None:
        self.assumptions += [text for text in texts if text not in self.assumptions]

    def warn(self, *texts: str) -> None:
        self.warnings += [text for text in texts if text not in self.warnings]

    def include(self, answer: Answer, prefix: str = "") -> None:
        """Take over the working of another answer; a prefix says whose assumptions they are."""
        self.steps += answer.steps
        self.given += [given for given in answer.given if given not in self.given]
        self.assume(*(prefix + text for text in answer.assumptions))
        self.warn(*(prefix + text for text in answer.warnings))

    def shown(self) -> dict[str, Any]:
        """The working as the fields of an Answer."""
        return {
            "assumptions": tuple(self.assumptions),
            "warnings": tuple(self.warnings),
            "steps": tuple(self.steps),
            "given": tuple(self.given),
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """The answer to a question: its own fields are the result, in base units with the unit in the name."""

    question: ClassVar[str] = ""
    schema_version: ClassVar[int] = 1

    inputs: dict[str, Any]
    assumptions: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    steps: tuple[Step, ...] = field(default=(), repr=False)
    given: tuple[Given, ...] = field(default=(), repr=False)

    @property
    def fits(self) -> bool:
        """False when the answer is that it does not fit (exit code 1)."""
        return True

    def result(self) -> dict[str, Any]:
        """The fields that are the answer's own."""
        shared = {f.name for f in fields(Answer)}
        return {f.name: getattr(self, f.name) for f in fields(self) if f.name not in shared}

    def to_dict(self) -> dict[str, Any]:
        """The answer as `--json` prints it."""
        return {
            "schema": f"capplan/{self.question}/{self.schema_version}",
            "capplan": __version__,
            "inputs": deepcopy(self.inputs),  # the caller's to change
            "result": deepcopy(self.result()),
            "assumptions": list(self.assumptions),
            "warnings": list(self.warnings),
        }

    def sweep(self) -> list[dict[str, Any]]:
        """One row a context, for `--csv`; empty where nothing is swept."""
        return []

    def report(self) -> Report:
        """The answer laid out for people."""
        raise NotImplementedError

    def explain(self) -> str:
        """Every formula used: as it stands, with the numbers put in, the result, the source."""
        from capplan.capacity.explain import explain

        return explain(self)

    def __str__(self) -> str:
        from capplan.report import to_text

        return to_text(self.report())

    def _repr_html_(self) -> str:
        from capplan.report import to_html

        return to_html(self.report())
