"""The roofline: which of compute and bandwidth runs out first."""

from __future__ import annotations

from capplan.capacity.formula import formula


@formula
def ridge_point(peak_flops: float, bandwidth: float) -> float:
    r"""Arithmetic intensity at which compute and memory bandwidth run out together.

    .. math:: I^{*} = \frac{\pi}{\beta}

    Parameters
    ----------
    peak_flops : float
        Dense peak at the precision of the product :math:`\pi` [FLOP/second]
    bandwidth : float
        Memory bandwidth :math:`\beta` [byte/second]

    Returns
    -------
    float
        Ridge point :math:`I^{*}` [FLOP/byte]

    Validity: dense peak; the headline with 2:4 sparsity doubles it for no real model.
    Not counted: the share of either peak that a real kernel reaches.
    Source: Williams, Waterman, Patterson 2009, "Roofline", CACM 52(4).

    An H200 in FP8:

    >>> round(ridge_point(peak_flops=1979e12, bandwidth=4.8e12), 4)
    412.2917
    """
    return peak_flops / bandwidth


@formula
def attainable_flops(intensity: float, peak_flops: float, bandwidth: float) -> float:
    r"""Highest compute rate at an arithmetic intensity.

    .. math:: \min(\pi, I \, \beta)

    Parameters
    ----------
    intensity : float
        Arithmetic intensity :math:`I` [FLOP/byte]
    peak_flops : float
        Dense peak :math:`\pi` [FLOP/second]
    bandwidth : float
        Memory bandwidth :math:`\beta` [byte/second]

    Returns
    -------
    float
        Attainable rate :math:`P` [FLOP/second]

    Validity: an upper bound; one kernel, or a sequence of them with the same intensity.
    Not counted: that a step is a sum of kernels on both sides of the ridge.
    Source: Williams, Waterman, Patterson 2009, "Roofline", CACM 52(4).

    Decode at batch 1 in FP8 on an H200 uses 0.5% of the silicon:

    >>> round(attainable_flops(2, 1979e12, 4.8e12) / 1979e12, 3)
    0.005
    """
    return min(peak_flops, intensity * bandwidth)


@formula
def operation_time(start: float, compute: float, memory: float, power: float) -> float:
    r"""Time of one operation: computing and moving overlap in part, after a start.

    .. math:: t = t_0 + (t_c^p + t_m^p)^{1/p}

    Parameters
    ----------
    start : float
        Until the first result: launch, ramp, the last wave :math:`t_0` [second]
    compute : float
        Its work at the rate that such kernels reach :math:`t_c` [second]
    memory : float
        Its bytes at the bandwidth that they reach :math:`t_m` [second]
    power : float
        How sharply the longer of the two wins; infinity is the plain roofline :math:`p` [-]

    Returns
    -------
    float
        Time :math:`t` [second]

    Validity: one kernel, or a fused few, on one GPU.
    Not counted: waves of tiles that end unevenly.
    Source: Williams, Waterman, Patterson 2009, "Roofline", CACM 52(4), with its maximum softened.

    At the ridge, where both terms are alike, p = 2 takes 1.4 times either:

    >>> round(operation_time(start=0, compute=1, memory=1, power=2), 4)
    1.4142
    """
    return start + (compute**power + memory**power) ** (1 / power)  # type: ignore[no-any-return]
