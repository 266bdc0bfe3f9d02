"""The pint skin, and the check of formulas' dimensions."""

from __future__ import annotations

import math

import pint
import pytest

from capplan import units
from capplan.errors import UnitError
from capplan.quantity import Q, check_units, registry

DECIMAL, BINARY = ["k", "K", "M", "G", "T", "P", "E"], ["Ki", "Mi", "Gi", "Ti", "Pi", "Ei"]
GRID = [
    *((f"{p}{name}", "byte") for name in ("B", "byte", "bit") for p in ["", *DECIMAL, *BINARY]),
    *((f"{p}{name}", "token") for name in ("token", "tok") for p in ["", *DECIMAL, *BINARY]),
    *((f"{p}{name}", "request") for name in ("request", "req") for p in ["", *DECIMAL, *BINARY]),
    *((f"{p}FLOP", "FLOP") for p in ["", *DECIMAL]),
    *((f"{p}FLOPS", "FLOP/second") for p in ["", *DECIMAL]),
    *((f"{p}W", "W") for p in ["", *DECIMAL]),
    *((f"{p}USD", "USD") for p in ["", *DECIMAL]),
    *((name, "second") for name in ("s", "ms", "us", "µs", "ns", "min", "minute", "h", "hour", "d", "day")),
]
QUOTIENTS = [
    (f"{above}/{below}", f"{base}/{base_below}")
    for above, base in GRID
    if "/" not in base
    for below, base_below in GRID
    if below in ("s", "ms", "h", "B", "tok", "Mtok", "token", "req", "KiB")
]


@pytest.mark.parametrize(("text", "unit"), GRID)
def test_parse_agrees_with_pint(text: str, unit: str) -> None:
    assert units.parse(f"2.5 {text}", unit) == pytest.approx(Q(2.5, text).to(unit).magnitude, rel=1e-14)


def test_parse_agrees_with_pint_on_quotients() -> None:
    for text, unit in QUOTIENTS:
        expected = Q(2.5, text).to(unit).magnitude
        assert units.parse(f"2.5 {text}", unit) == pytest.approx(expected, rel=1e-14), text


def test_a_text_is_read_as_on_the_command_line() -> None:
    assert Q("141GB", "byte") == Q(141, "GB")
    assert Q("50%", "1") == Q(0.5, "-")
    with pytest.raises(UnitError, match="in two ways"):
        Q("80gb", "byte")


def test_one_registry() -> None:
    assert registry() is registry()
    assert Q(1, "byte") + Q(8, "bit") == Q(2, "byte")


@pytest.mark.parametrize(
    ("unit", "other"),
    [
        ("GB", "token"),
        ("byte", "1"),
        ("token", "1"),
        ("FLOP", "1"),
        ("request", "token"),
        ("W", "FLOP/second"),
        ("USD", "1"),
        ("byte/token", "byte"),
        ("second", "byte"),
    ],
)
def test_dimensions_stay_apart(unit: str, other: str) -> None:
    with pytest.raises(pint.DimensionalityError):
        Q(80, unit).to("" if other == "1" else other)
    with pytest.raises(pint.DimensionalityError):
        Q(80, unit) + Q(80, other)


@pytest.mark.parametrize("unit", ["radian", "k", "K", "Gb", "gb", "M", "kelvin", "boltzmann_constant"])
def test_units_of_other_fields_do_not_exist(unit: str) -> None:
    with pytest.raises(pint.UndefinedUnitError):
        Q(8, unit)


def test_elements_and_layers_are_plain_counts() -> None:
    assert Q(2, "byte/element") * Q(128, "element") == Q(256, "byte")
    assert Q(4096, "byte/layer") * 80 == Q(80 * 4096, "byte")


def time_to_read(size: float, bandwidth: float, efficiency: float = 1) -> float:
    return size / (efficiency * bandwidth)


READ = {"size": "byte", "bandwidth": "byte/second", "efficiency": "-"}
NUMBERS = {"size": 141e9, "bandwidth": 4.8e12}


def test_right_units_pass() -> None:
    check_units(time_to_read, READ, "second", NUMBERS)
    check_units(time_to_read, READ, "second", {**NUMBERS, "efficiency": 0.8})


@pytest.mark.parametrize("declared", ["byte", "1/second", "-", "token", "second/token"])
def test_a_wrong_result_unit_is_found(declared: str) -> None:
    with pytest.raises(pint.DimensionalityError):
        check_units(time_to_read, READ, declared, NUMBERS)


def test_a_wrong_parameter_unit_is_found() -> None:
    with pytest.raises(pint.DimensionalityError):
        check_units(time_to_read, {**READ, "size": "token"}, "second", NUMBERS)


def test_a_sum_of_different_things_is_found() -> None:
    with pytest.raises(pint.DimensionalityError):
        check_units(
            lambda weights, kv: weights + kv,
            {"weights": "byte", "kv": "byte/token"},
            "byte",
            {"weights": 1, "kv": 1},
        )


def test_a_missing_conversion_is_found() -> None:
    declared = {"price": "USD/hour", "time": "second"}
    with pytest.raises(ValueError, match=r"gives 9000, but with units 2\.5 USD"):
        check_units(lambda price, time: price * time, declared, "USD", {"price": 2.5, "time": 3600})


@pytest.mark.parametrize(
    ("function", "parameters", "result"),
    [
        (lambda tokens, block: math.ceil(tokens / block), {"tokens": "token", "block": "token"}, "-"),
        (lambda tokens, block: tokens / block, {"tokens": "token", "block": "token"}, "-"),
        (lambda tokens, block: max(tokens, block), {"tokens": "token", "block": "token"}, "token"),
        (lambda tokens, block: max(tokens - block, 0), {"tokens": "token", "block": "token"}, "token"),
        (lambda tokens, block: block / tokens, {"tokens": "token/request", "block": "token"}, "request"),
        (lambda tokens, block: 1 / (tokens * block), {"tokens": "token", "block": "-"}, "1/token"),
        (lambda tokens, block: tokens**2 * block, {"tokens": "token", "block": "FLOP/token/token"}, "FLOP"),
    ],
)
def test_what_formulas_do_with_numbers(function, parameters, result) -> None:  # type: ignore[no-untyped-def]
    check_units(function, parameters, result, {"tokens": 1000.0, "block": 16.0})


def test_a_value_is_needed_for_every_parameter() -> None:
    with pytest.raises(ValueError, match="no value for bandwidth of time_to_read"):
        check_units(time_to_read, READ, "second", {"size": 1})
