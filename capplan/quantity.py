"""The pint skin: numbers with units for whoever wants them, and the check of a formula's dimensions.

The registry has capplan's own definitions. Information, tokens, FLOPs, requests and money are dimensions, so
80 GB is never a number of tokens; and `8k` is never 8 Boltzmann constants, as in pint's default registry.

>>> (Q("62GiB", "byte") / Q("320KiB/token", "byte/token")).to("token").magnitude
203161.6
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from functools import cache
from math import isclose
from typing import Any

import pint

from capplan import units

_DEFINITIONS = """
    milli- = 1e-3 = m-
    micro- = 1e-6 = µ- = μ- = u-
    nano- = 1e-9 = n-
    kilo- = 1e3 = k- = K-
    mega- = 1e6 = M-
    giga- = 1e9 = G-
    tera- = 1e12 = T-
    peta- = 1e15 = P-
    exa- = 1e18 = E-
    kibi- = 2**10 = Ki-
    mebi- = 2**20 = Mi-
    gibi- = 2**30 = Gi-
    tebi- = 2**40 = Ti-
    pebi- = 2**50 = Pi-
    exbi- = 2**60 = Ei-
    byte = [information] = B
    bit = byte / 8
    token = [token] = tok
    request = [request] = req
    FLOP = [flop]
    FLOPS = FLOP / second
    second = [time] = s
    minute = 60 * second = min
    hour = 60 * minute = h
    day = 24 * hour = d
    USD = [currency]
    watt = [power] = W
    element = []
    layer = []
"""


@cache
def registry() -> pint.UnitRegistry[float]:
    """The one registry of capplan's units, built on the first call."""
    made: pint.UnitRegistry[float] = pint.UnitRegistry(None)
    made.load_definitions(_DEFINITIONS.strip().splitlines())
    return made


def Q(value: float | str, unit: str) -> pint.Quantity[float]:  # noqa: N802
    """A quantity of `value` [unit]; a text is read as on the command line, into base units.

    >>> Q(80, "GB").to("GiB").magnitude
    74.50580596923828
    >>> Q("400 Gbit/s", "byte/second")
    <Quantity(5e+10, 'byte / second')>
    >>> Q(80, "GB").to("token")
    Traceback (most recent call last):
        ...
    pint.errors.DimensionalityError: Cannot convert from 'gigabyte' ([information]) to 'token' ([token])
    """
    number = units.parse(value, unit) if isinstance(value, str) else value
    return registry().Quantity(number, "" if unit in ("1", "-") else unit)


def check_units(
    function: Callable[..., Any],
    parameter_units: Mapping[str, str],
    return_unit: str,
    values: Mapping[str, float],
) -> None:
    """Call a formula of plain floats with quantities of its declared units, and check what comes out.

    `values` are numbers in those units; a parameter that is left out has its default. A parameter of the unit
    "-" is given as a plain number. Raises pint.DimensionalityError where the formula adds or returns what it
    should not, and ValueError where the result differs from that of the plain call: a conversion is missing.

    >>> check_units(lambda size, rate: size / rate, {"size": "byte", "rate": "byte/second"}, "second",
    ...             {"size": 141e9, "rate": 4.8e12})
    >>> check_units(lambda size, rate: size * rate, {"size": "byte", "rate": "byte/second"}, "second",
    ...             {"size": 141e9, "rate": 4.8e12})  # doctest: +ELLIPSIS
    Traceback (most recent call last):
        ...
    pint.errors.DimensionalityError: Cannot convert from 'byte ** 2 / second' ... to 'second' ([time])
    """
    parameters = inspect.signature(function).parameters
    plain = {name: values.get(name, p.default) for name, p in parameters.items()}
    if missing := [name for name in plain if plain[name] is inspect.Parameter.empty]:
        raise ValueError(f"no value for {', '.join(missing)} of {function.__name__}")
    with_units = {
        name: number if parameter_units[name] == "-" else Q(number, parameter_units[name])
        for name, number in plain.items()
    }
    # a quotient of equal units is a plain number in another guise
    result = registry().Quantity(1.0, "") * function(**with_units)
    got = result.to("" if return_unit == "-" else return_unit).magnitude
    expected = function(**plain)
    if not isclose(got, expected, rel_tol=1e-9):
        raise ValueError(f"{function.__name__} gives {expected:g}, but with units {got:g} {return_unit}")
