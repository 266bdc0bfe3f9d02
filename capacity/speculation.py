"""Speculative decoding in closed form: what a draft of a few tokens is worth."""

from __future__ import annotations

from capplan.capacity.formula import formula


@formula
def expected_tokens(acceptance: float, speculated: float) -> float:
    r"""Tokens that one run of the target model yields: those of the draft that hold, and one of its own.

    .. math:: E = \frac{1 - \alpha^{\gamma + 1}}{1 - \alpha}

    Parameters
    ----------
    acceptance : float
        Probability that a drafted token is accepted :math:`\alpha` [-]
    speculated : float
        Tokens of a draft :math:`\gamma` [-]

    Returns
    -------
    float
        Mean tokens of a run :math:`E` [-]

    Validity: acceptances that do not depend on each other; all of them hold at an acceptance of 1.
    Not counted: that later tokens of a draft hold less often than the first.
    Source: Leviathan et al. (ICML 2023), "Fast Inference from Transformers via Speculative Decoding", eq. 1.

    T5-XXL with T5-small, English to German:

    >>> round(expected_tokens(acceptance=0.75, speculated=7), 4)
    3.5995
    """
    return (1 - acceptance ** (speculated + 1)) / (1 - acceptance) if acceptance != 1 else speculated + 1


@formula
def walltime_ratio(acceptance: float, speculated: float, cost_ratio: float) -> float:
    r"""How many times as fast decoding is with a draft, where checking a draft takes no longer than one token.

    .. math:: \frac{1 - \alpha^{\gamma + 1}}{(1 - \alpha)(\gamma\, c + 1)}

    Parameters
    ----------
    acceptance : float
        Probability that a drafted token is accepted :math:`\alpha` [-]
    speculated : float
        Tokens of a draft :math:`\gamma` [-]
    cost_ratio : float
        Time of a run of the draft over one of the target :math:`c` [-]

    Returns
    -------
    float
        Speed-up :math:`S` [-]

    Validity: while reading the weights sets the time, that is at small batches; an acceptance below 1.
    Not counted: the work of checking, which sets the time past the ridge (batch_speed_up).
    Source: Leviathan et al. (ICML 2023), theorem 3.8.

    T5-XXL with T5-small, English to German; the paper measured 3.4:

    >>> round(walltime_ratio(acceptance=0.75, speculated=7, cost_ratio=0.02), 3)
    3.157
    """
    return (1 - acceptance ** (speculated + 1)) / ((1 - acceptance) * (speculated * cost_ratio + 1))  # type: ignore[no-any-return]  # a power may be complex


@formula
def operations_ratio(acceptance: float, speculated: float, work_ratio: float) -> float:
    r"""Work of a token with a draft over its work without: what is checked and does not hold is lost.

    .. math:: \frac{(1 - \alpha)(\gamma\, \hat c + \gamma + 1)}{1 - \alpha^{\gamma + 1}}

    Parameters
    ----------
    acceptance : float
        Probability that a drafted token is accepted :math:`\alpha` [-]
    speculated : float
        Tokens of a draft :math:`\gamma` [-]
    work_ratio : float
        Work of the draft for a token over that of the target :math:`\hat c` [-]

    Returns
    -------
    float
        Work with speculation over work without :math:`r` [-]

    Validity: acceptances that do not depend on each other; an acceptance below 1.
    Not counted: reading of weights and cache.
    Source: Leviathan et al. (ICML 2023), theorem 3.11.

    Its inverse is what is left of the throughput where compute sets the time:

    >>> round(operations_ratio(acceptance=0.75, speculated=7, work_ratio=0.02), 3)
    2.261
    """
    return (  # type: ignore[no-any-return]
        (1 - acceptance) * (speculated * work_ratio + speculated + 1) / (1 - acceptance ** (speculated + 1))
    )


@formula
def batch_speed_up(tokens: float, step: float, speculated: float, draft: float, verify: float) -> float:
    r"""How many times as fast a batch decodes with a draft, all times being those of that batch.

    .. math:: S(B) = \frac{E\, s(B, 1)}{\gamma\, d(B) + s(B, \gamma + 1)}

    Parameters
    ----------
    tokens : float
        Tokens of a run of the target :math:`E` [-]
    step : float
        Time of a pass without speculation :math:`s(B, 1)` [second]
    speculated : float
        Tokens of a draft :math:`\gamma` [-]
    draft : float
        Time of a pass of the draft :math:`d(B)` [second]
    verify : float
        Time of a pass that checks the draft :math:`s(B, \gamma + 1)` [second]

    Returns
    -------
    float
        Speed-up :math:`S(B)` [-]

    Validity: a draft of one token after another; every sequence of the batch speculates.
    Not counted: the room that drafted tokens take in the cache.
    Source: the times of one round over those of the passes that it stands for; at a batch of one, and a verify
    that takes as long as a step, it is walltime_ratio.

    Past the ridge checking eight tokens takes eight times as long, and the gain is a loss:

    >>> batch_speed_up(tokens=3.6, step=0.02, speculated=7, draft=0.0004, verify=0.16) < 1
    True
    """
    return tokens * step / (speculated * draft + verify)
