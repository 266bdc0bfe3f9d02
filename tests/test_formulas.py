"""Every formula: a complete record, units that pint agrees with, and code that matches what is shown."""

from __future__ import annotations

import ast
import doctest
import importlib
import inspect
import pkgutil
from math import ceil

import pytest

import capplan.capacity
from capplan.capacity.record import Formula, find, names, record, written
from capplan.errors import UnknownNameError
from capplan.quantity import check_units

FORMULAS = [find(name) for name in names()]


def test_the_list_is_what_the_whiteboard_needs() -> None:
    assert {
        "kv_bytes_per_token",
        "weight_bytes",
        "kv_budget",
        "kv_tokens",
        "concurrency",
        "ridge_point",
        "decode_intensity",
        "decode_intensity_ceiling",
        "weight_only_batch_to_ridge",
        "prefill_rate",
        "prefill_time",
        "prefill_attention_flops",
        "gpus_for_prompt",
    } <= set(names())


@pytest.mark.parametrize("formula", FORMULAS, ids=lambda f: f.name)
def test_record_is_complete(formula: Formula) -> None:
    assert formula.summary.endswith(".")
    assert formula.latex
    assert formula.validity
    assert formula.not_counted
    assert formula.source
    assert ">>>" in formula.example
    assert [q.name for q in formula.parameters] == list(inspect.signature(formula.function).parameters)
    for quantity in (*formula.parameters, formula.result):
        assert quantity.meaning, f"{quantity.name} has no meaning"
        assert quantity.symbol != quantity.name, f"{quantity.name} has no symbol or unit"


@pytest.mark.parametrize("formula", FORMULAS, ids=lambda f: f.name)
def test_latex_names_every_parameter(formula: Formula) -> None:
    bare = formula.latex.replace("{", "").replace("}", "").replace(" ", "")
    for quantity in formula.parameters:
        default = inspect.signature(formula.function).parameters[quantity.name].default
        if default is inspect.Parameter.empty:
            symbol = quantity.symbol.replace("{", "").replace("}", "").replace(" ", "")
            assert symbol in bare, f"{quantity.symbol} of {quantity.name} is not in {formula.latex}"


@pytest.mark.parametrize("formula", FORMULAS, ids=lambda f: f.name)
def test_units_agree_with_pint(formula: Formula) -> None:
    units = {q.name: q.unit for q in formula.parameters}
    values = {q.name: 3.0 + i for i, q in enumerate(formula.parameters)}
    if formula.name == "prefix_cache_break_even":
        values = {"write_price": 1.25, "read_price": 0.1}
    check_units(formula.function, units, formula.result.unit, values)


@pytest.mark.parametrize("formula", FORMULAS, ids=lambda f: f.name)
def test_shown_expression_is_the_code(formula: Formula) -> None:
    """What `explain` prints, evaluated with numbers, is what the function returns."""
    values = {q.name: 3.0 + i for i, q in enumerate(formula.parameters)}
    shown = eval(
        compile(ast.parse(written(formula.function), mode="eval"), "shown", "eval"),
        {"min": min, "max": max, "ceil": ceil},
        values,
    )
    assert shown == formula.function(**values)


def test_one_return_expression_each() -> None:
    for formula in FORMULAS:
        tree = ast.parse(inspect.getsource(formula.function))
        assert sum(isinstance(node, ast.Return) for node in ast.walk(tree)) == 1, formula.name


def test_no_formula_does_anything_but_arithmetic() -> None:
    for formula in FORMULAS:
        calls = {
            node.func.id
            for node in ast.walk(ast.parse(written(formula.function)))
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)
        }
        assert calls <= {"min", "max", "ceil"}, formula.name


def test_numbers_are_put_in_by_whole_words() -> None:
    # `batch` must not be replaced inside `batch_to_ridge`
    assert "batch" not in written(find("weight_only_intensity").function, {"batch": "25"}).replace("25", "")


def test_unknown_formula_names_the_nearest() -> None:
    with pytest.raises(UnknownNameError, match="did you mean 'ridge_point'"):
        find("ridge_pont")


def test_record_survives_without_docstrings() -> None:
    def bare(a: float) -> float:
        return 2 * a

    assert record(bare).parameters == ()


PACKAGES = ("capplan", "capplan.capacity", "capplan.capacity.questions", "capplan.models", "capplan.hardware")
MODULES = [
    module.name
    for package in PACKAGES
    for module in pkgutil.iter_modules(importlib.import_module(package).__path__, package + ".")
    if not module.ispkg and not module.name.endswith("__main__")
]
MODULES.append("capplan")


@pytest.mark.parametrize("module", MODULES)
def test_doctests(module: str) -> None:
    result = doctest.testmod(importlib.import_module(module))
    assert result.failed == 0


def test_formulas_have_doctests_that_run() -> None:
    total = sum(
        doctest.testmod(importlib.import_module(f"capplan.capacity.{m.name}")).attempted
        for m in pkgutil.iter_modules(capplan.capacity.__path__)
        if not m.ispkg
    )
    assert total >= len(FORMULAS)
