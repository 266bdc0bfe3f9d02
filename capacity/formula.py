r"""A formula is a pure function of numbers in base units; its docstring is its record.

The record (symbol, LaTeX, units, validity, source) is parsed from the docstring, and the plain form with
the numbers put in is made from the function's own return expression, so neither can drift from the code.
The fixed form of the docstring::

    One sentence.

    .. math:: I = \frac{F}{M}

    Parameters
    ----------
    flops : float
        Work of a step :math:`F` [FLOP]

    Returns
    -------
    float
        Arithmetic intensity :math:`I` [FLOP/byte]

    Validity: where it holds.
    Not counted: what it leaves out.
    Source: paper and equation, or engine and version.

    >>> and a doctest with a published number  # doctest: +SKIP
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

F = TypeVar("F", bound=Callable[..., float])

FUNCTIONS: dict[str, Callable[..., float]] = {}


def formula(function: F) -> F:
    """Enter a function in the list of formulas."""
    FUNCTIONS[function.__name__] = function
    return function
