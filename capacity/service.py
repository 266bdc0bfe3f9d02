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


@formula
def closed_loop_rate(prefill: float, output_tokens: float, step: float, batch: float) -> float:
    r"""Requests a second where each costs its prefill and its share of the decode passes.

    .. math:: \lambda = \frac{1}{t_p + (O - 1)\, t_s / B}

    Parameters
    ----------
    prefill : float
        Time that a prompt adds to the passes :math:`t_p` [second/request]
    output_tokens : float
        Tokens of an answer :math:`O` [-]
    step : float
        Time of a decode pass :math:`t_s` [second]
    batch : float
        Sequences that decode together :math:`B` [request]

    Returns
    -------
    float
        Rate :math:`\lambda` [request/second]

    Validity: in equilibrium, with the same number of requests always under way.
    Not counted: the spread of lengths, and requests that are preempted.
    Source: conservation of work: the passes of one second are those of the requests that leave in it.

    A prompt of 50 ms and 1,000 tokens at 64 in a pass of 16 ms:

    >>> round(closed_loop_rate(prefill=0.05, output_tokens=1001, step=0.016, batch=64), 4)
    3.3333
    """
    return 1 / (prefill + (output_tokens - 1) * step / batch)


@formula
def closed_loop_tpot(
    concurrency: float, rate: float, ttft: float, output_tokens: float, step: float
) -> float:
    r"""Time per output token that is left of a request's time once it has its first token.

    .. math:: \mathrm{TPOT} = \max\left(\frac{N / \lambda - \mathrm{TTFT}}{O - 1}, t_s\right)

    Parameters
    ----------
    concurrency : float
        Requests under way :math:`N` [request]
    rate : float
        Requests that come, and leave :math:`\lambda` [request/second]
    ttft : float
        Time to the first token :math:`\mathrm{TTFT}` [second]
    output_tokens : float
        Tokens of an answer :math:`O` [-]
    step : float
        Time of a decode pass, which no token is faster than :math:`t_s` [second]

    Returns
    -------
    float
        Time per output token :math:`\mathrm{TPOT}` [second]

    Validity: in equilibrium, for answers of two tokens or more.
    Not counted: the spread of lengths.
    Source: Little's law, J. D. C. Little, Operations Research 9(3), 1961: a request's time is N / rate.

    64 requests at 3.2 a second take 20 s each:

    >>> closed_loop_tpot(concurrency=64, rate=3.2, ttft=2.5, output_tokens=1001, step=0.016)
    0.0175
    """
    return max((concurrency / rate - ttft) / (output_tokens - 1), step)


@formula
def tokens_per_dollar(tokens_per_second: float, gpus: float, price: float) -> float:
    r"""Output tokens that a dollar buys, with every GPU paid for all the time.

    .. math:: \frac{X}{n\, c}

    Parameters
    ----------
    tokens_per_second : float
        Output of all GPUs together :math:`X` [token/second]
    gpus : float
        GPUs :math:`n` [-]
    price : float
        Price of one of them :math:`c` [USD/second]

    Returns
    -------
    float
        Output tokens for a dollar :math:`X / (n c)` [token/USD]

    Validity: at the load that the rate is of.
    Not counted: hours in which the load is lower, and all that is paid beside the GPUs.
    Source: the definition.

    2,000 tok/s from two GPUs at 2 USD an hour each:

    >>> round(tokens_per_dollar(tokens_per_second=2000, gpus=2, price=2 / 3600))
    1800000
    """
    return tokens_per_second / (gpus * price)


@formula
def tokens_per_joule(tokens_per_second: float, gpus: float, power: float) -> float:
    r"""Output tokens for a joule, that is tokens a second for a watt.

    .. math:: \frac{X}{n\, P}

    Parameters
    ----------
    tokens_per_second : float
        Output of all GPUs together :math:`X` [token/second]
    gpus : float
        GPUs :math:`n` [-]
    power : float
        Power of one of them :math:`P` [W]

    Returns
    -------
    float
        Output tokens for a joule :math:`X / (n P)` [token/second/W]

    Validity: for power that is drawn, or for its limit as a bound.
    Not counted: with a board's power, all that is around it; a board in decode draws less than its limit.
    Source: the definition.

    2,000 tok/s from two boards of 700 W:

    >>> round(tokens_per_joule(tokens_per_second=2000, gpus=2, power=700), 4)
    1.4286
    """
    return tokens_per_second / (gpus * power)
