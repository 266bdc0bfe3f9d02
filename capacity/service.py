"""What the latency target and the price list imply."""

from __future__ import annotations

from capplan.capacity.formula import formula


@formula
def stream_rate(tpot: float) -> float:
    r"""Tokens a second that one user sees at a time per output token.

    .. math:: r_s = \frac{1}{\mathrm{TPOT}}

    Parameters
    ----------
    tpot : float
        Time per output token :math:`\mathrm{TPOT}` [second/token]

    Returns
    -------
    float
        Rate of one stream :math:`r_s` [token/second]

    Validity: after the first token.
    Not counted: the time to the first token.
    Source: the definition.

    >>> stream_rate(0.025)
    40.0
    """
    return 1 / tpot


@formula
def prefix_cache_break_even(write_price: float, read_price: float) -> float:
    r"""Requests after which caching a shared prefix is cheaper than sending it anew; its ceiling is the answer.

    .. math:: n = \frac{p_w - p_r}{1 - p_r}

    Parameters
    ----------
    write_price : float
        Price of writing a token to the cache, over the input price :math:`p_w` [-]
    read_price : float
        Price of reading it back, over the input price :math:`p_r` [-]

    Returns
    -------
    float
        Requests with the same prefix :math:`n` [-]

    Validity: the first request writes, all others read before the entry expires.
    Not counted: the part of the prompt that is not shared.
    Source: n requests cost n uncached and write + (n - 1) read cached; solved for equality.

    Write at 1.25 and read at 0.1 of the input price break even within two requests:

    >>> round(prefix_cache_break_even(write_price=1.25, read_price=0.1), 4)
    1.2778
    """
    return (write_price - read_price) / (1 - read_price)
