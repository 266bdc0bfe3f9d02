"""The record of a formula, read from its docstring and its code; only `explain` pays for it."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from pkgutil import iter_modules
from typing import Any

from capplan.capacity.formula import FUNCTIONS
from capplan.errors import UnknownNameError

_MATH = re.compile(r"\.\. math::(.*?)\n\n", re.DOTALL)
_QUANTITY = re.compile(r"(?P<meaning>.*?)\s*:math:`(?P<symbol>[^`]+)`\s*\[(?P<unit>[^\]]+)\]$", re.DOTALL)
_PARAMETER = re.compile(r"^(\w+) : \w+\n((?:    .*\n?)+)", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Quantity:
    """A parameter or the result of a formula."""

    name: str
    symbol: str  # LaTeX
    unit: str  # such as FLOP/byte; "-" is a plain number
    meaning: str


@dataclass(frozen=True, slots=True)
class Formula:
    """What there is to know about a formula."""

    name: str
    summary: str
    latex: str
    parameters: tuple[Quantity, ...]
    result: Quantity
    validity: str
    not_counted: str
    source: str
    example: str
    function: Callable[..., float]


def names() -> list[str]:
    """Every formula's name; imports all modules of capacity's formulas."""
    import capplan.capacity as package

    for module in iter_modules(package.__path__):
        if not module.ispkg:
            import_module(f"{package.__name__}.{module.name}")
    return sorted(FUNCTIONS)


def find(name: str) -> Formula:
    """A formula's record by name. Raises UnknownNameError with near misses."""
    known = names()
    wanted = name.strip().lower().replace("-", "_")
    if wanted not in known:
        raise UnknownNameError("formula", name, known, "capplan explain")
    return record(FUNCTIONS[wanted])


@cache
def record(function: Callable[..., float]) -> Formula:
    """The record of a formula, read from its docstring."""
    import inspect

    doc = inspect.getdoc(function) or ""  # empty under python -OO: the names are left
    head, _, rest = doc.partition("Parameters\n----------\n")
    body, _, returns = rest.partition("Returns\n-------\n")
    result_text, _, _ = returns.partition("\n\n")
    math = _MATH.search(head)
    return Formula(
        name=function.__name__,
        summary=" ".join(head.partition("\n\n")[0].split()),
        latex=" ".join(math.group(1).split()) if math else "",
        parameters=tuple(_quantity(name, text) for name, text in _PARAMETER.findall(body)),
        result=_quantity("result", result_text.partition("\n")[2]),
        validity=_labelled(doc, "Validity"),
        not_counted=_labelled(doc, "Not counted"),
        source=_labelled(doc, "Source"),
        example=doc[doc.find(">>>") :].strip() if ">>>" in doc else "",
        function=function,
    )


def _quantity(name: str, text: str) -> Quantity:
    match = _QUANTITY.match(" ".join(text.split()))
    if match is None:
        return Quantity(name, name, "-", " ".join(text.split()))
    return Quantity(name, match["symbol"], match["unit"], match["meaning"])


def _labelled(doc: str, label: str) -> str:
    match = re.search(rf"^{label}: (.*?)(?:\n\n|\Z)", doc, re.MULTILINE | re.DOTALL)
    paragraph = match.group(1) if match else ""
    return " ".join(re.split(r"\n(?:Validity|Not counted|Source): ", paragraph)[0].split())


@cache
def _expression(function: Callable[..., float]) -> ast.expr | None:
    import inspect

    try:
        tree = ast.parse(inspect.getsource(function))
    except (OSError, TypeError):  # no source beside the bytecode
        return None
    returned = [node.value for node in ast.walk(tree) if isinstance(node, ast.Return)]
    return returned[0] if len(returned) == 1 else None


def written(function: Callable[..., float], numbers: Mapping[str, Any] | None = None) -> str:
    """The formula as plain text, from its code; with `numbers`, the same with the numbers put in.

    >>> from capplan.capacity.roofline import ridge_point
    >>> written(ridge_point)
    'peak_flops / bandwidth'
    >>> written(ridge_point, {"peak_flops": "1,979 TFLOP/s", "bandwidth": "4.8 TB/s"})
    '1,979 TFLOP/s / 4.8 TB/s'
    """
    expression = _expression(function)
    if expression is None:
        return record(function).latex
    text = ast.unparse(expression)
    if numbers is None:
        return text
    return re.sub(r"\b[A-Za-z_]\w*\b", lambda m: str(numbers.get(m[0], m[0])), text)
