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
