"""Which formulas are there, and what is known of one?"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from capplan.capacity.answer import Answer
from capplan.capacity.record import Formula, find, names, written
from capplan.report import Report, Table


@dataclass(frozen=True, slots=True, kw_only=True)
class Formulas(Answer):
    """Formulas: equation, units, validity and source of each."""

    question: ClassVar[str] = "explain"

    formulas: tuple[dict[str, Any], ...]

    def report(self) -> Report:
        if self.inputs["name"] is not None:
            return _of_one(find(self.inputs["name"]))
        rows = tuple((f["name"], f["unit"], f["summary"]) for f in self.formulas)
        return Report(f"{len(rows)} formulas; capplan explain NAME shows one", (Table(rows),))


def formulas(name: str | None = None) -> Formulas:
    """The formula of a name, or all of them. Raises UnknownNameError."""
    found = [find(each) for each in (names() if name is None else [name])]
    return Formulas(inputs={"name": name}, formulas=tuple(_document(formula) for formula in found))


def _document(formula: Formula) -> dict[str, Any]:
    return {
        "name": formula.name,
        "summary": formula.summary,
        "latex": formula.latex,
        "expression": written(formula.function),
        "parameters": [
            {"name": q.name, "symbol": q.symbol, "unit": q.unit, "meaning": q.meaning}
            for q in formula.parameters
        ],
        "unit": formula.result.unit,
        "symbol": formula.result.symbol,
        "validity": formula.validity,
        "not_counted": formula.not_counted,
        "source": formula.source,
        "example": formula.example,
    }


def _of_one(formula: Formula) -> Report:
    quantities = (*formula.parameters, formula.result)
    rows = tuple((q.name, f"[{q.unit}]", f"{q.meaning}, {q.symbol}") for q in quantities)
    texts = (
        ("code", written(formula.function)),
        ("LaTeX", formula.latex),
        ("validity", formula.validity),
        ("not counted", formula.not_counted),
        ("source", formula.source),
    )
    example = tuple((line,) for line in formula.example.splitlines())
    tables = (
        Table(tuple((label, "", text) for label, text in texts if text)),
        Table(rows, title="Parameters and result"),
        Table(example, title="Example"),
    )
    return Report(f"{formula.name}: {formula.summary}", tuple(table for table in tables if table.rows))
