"""An answer's working in words: each formula, the same with the numbers put in, the result, the source."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from capplan.capacity.record import Quantity, record, written
from capplan.units import gib

if TYPE_CHECKING:
    from capplan.capacity.answer import Answer, Step


def number(value: float, unit: str) -> str:
    """A number as it stands in a formula: base units, scaled by a decimal prefix where that is shorter.

    >>> number(4.8e12, "byte/second"), number(327680, "byte/token"), number(2, "-")
    ('4.8 TB/s', '327,680 byte/token', '2')
    """
    short = {"-": "", "second": "s", "FLOP/second": "FLOP/s", "byte/second": "B/s", "byte": "B"}.get(
        unit, unit
    )
    if unit.split("/")[0] in ("byte", "FLOP") and abs(value) >= 1e6:
        for factor, prefix in ((1e12, "T"), (1e9, "G"), (1e6, "M")):
            if abs(value) >= factor:
                scaled = short.replace("byte", "B", 1)
                return f"{value / factor:,.6g} {prefix}{scaled}"
    digits = f"{value:,.0f}" if value == int(value) else f"{value:,.6g}"
    return f"{digits} {short}".strip()


def _inputs(step: Step) -> dict[str, float]:
    import inspect

    defaults = {
        name: parameter.default
        for name, parameter in inspect.signature(step.formula).parameters.items()
        if parameter.default is not inspect.Parameter.empty
    }
    return {**defaults, **step.inputs}


def _result(value: float, quantity: Quantity) -> str:
    text = number(value, quantity.unit)
    head, _, rest = quantity.unit.partition("/")
    if head == "byte" and rest != "second" and abs(value) >= 1024:
        return f"{text} = {gib(value)}{f'/{rest}' if rest else ''}"
    return text


def explain(answer: Answer) -> str:
    """The working of an answer, formula by formula in the order of first use."""
    parts = []
    if answer.given:
        lines = [f"  {g.name} = {number(g.value, g.unit)}: {g.source}" for g in answer.given]
        parts.append("\n".join(["Given", *lines]))
    by_formula: dict[Callable[..., float], list[Step]] = {}
    for step in answer.steps:
        by_formula.setdefault(step.formula, []).append(step)
    for function, steps in by_formula.items():
        formula = record(function)
        units = {quantity.name: quantity.unit for quantity in formula.parameters}
        lines = [f"{formula.name}: {formula.summary}", f"  = {written(function)}"]
        for step in steps:
            inputs = {name: number(value, units.get(name, "-")) for name, value in _inputs(step).items()}
            put_in = f"  = {written(function, inputs)} = {_result(step.value, formula.result)}"
            line = put_in + (f"   ({step.why})" if step.why else "")
            if line not in lines:
                lines.append(line)
        lines += [
            f"  {label}: {text}"
            for label, text in (("not counted", formula.not_counted), ("source", formula.source))
            if text
        ]
        parts.append("\n".join(lines))
    parts += [
        "\n".join(f"{label}: {text}" for text in texts)
        for label, texts in (("assumed", answer.assumptions), ("warning", answer.warnings))
        if texts
    ]
    return "\n\n".join(parts)
