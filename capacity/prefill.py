"""The work of a prompt, and how long it takes."""

from __future__ import annotations

from capplan.capacity.formula import formula


@formula
def prefill_linear_flops(prompt: float, flops_per_token: float, head_flops: float = 0) -> float:
    r"""Work of the weight matrices for a whole prompt.

    .. math:: F_l = S \, f + F_h

    Parameters
    ----------
    prompt : float
        Tokens of the prompt :math:`S` [token]
    flops_per_token : float
        Work of one token :math:`f` [FLOP/token]
    head_flops : float
        Work of the output head where it runs once, for the last token alone :math:`F_h` [FLOP]

    Returns
    -------
    float
        Work :math:`F_l` [FLOP]

    Validity: no cached prefix.
    Not counted: attention.
    Source: Kaplan et al. 2020, "Scaling Laws for Neural Language Models", section 2.1.

    >>> prefill_linear_flops(prompt=200_000, flops_per_token=140e9)
    2.8e+16
    """
    return prompt * flops_per_token + head_flops


@formula
def prefill_attention_flops(
    layers: float, heads: float, head_dim: float, prompt: float, flops_per_pair: float = 4
) -> float:
    r"""Work of causal attention for a whole prompt: half of all pairs of tokens.

    .. math:: F_a = \frac{4 \, L \, n_q \, d \, S^2}{2}

    Parameters
    ----------
    layers : float
        Layers that attend to the whole context :math:`L` [-]
    heads : float
        Query heads of a layer :math:`n_q` [-]
    head_dim : float
        Width of a head :math:`d` [-]
    prompt : float
        Tokens of the prompt :math:`S` [token]
    flops_per_pair : float
        Two products of a multiply and an add, for every element of a pair of tokens :math:`4` [FLOP/token/token]

    Returns
    -------
    float
        Work :math:`F_a` [FLOP]

    Validity: full causal attention by a kernel that skips the masked half.
    Not counted: softmax; the diagonal's half block.
    Source: Dao 2023, "FlashAttention-2", section 4.1 (4 S^2 d heads, divided by 2 for a causal mask).

    At 200K a 70B-class model spends 1.9 times its linear layers on attention:

    >>> round(prefill_attention_flops(80, 64, 128, 200_000) / 2.8e16, 4)
    1.8725
    """
    return flops_per_pair * layers * heads * head_dim * prompt**2 / 2


@formula
def prefill_window_flops(
    layers: float, heads: float, head_dim: float, prompt: float, window: float, flops_per_pair: float = 4
) -> float:
    r"""Work of attention for a prompt that is longer than what each token attends to.

    .. math:: F_w = 4 \, L \, n_q \, d \, w \left(S - \frac{w}{2}\right)

    Parameters
    ----------
    layers : float
        Layers that attend to a window :math:`L` [-]
    heads : float
        Query heads of a layer :math:`n_q` [-]
    head_dim : float
        Width of a head :math:`d` [-]
    prompt : float
        Tokens of the prompt :math:`S` [token]
    window : float
        Tokens attended to, at most :math:`w` [token]
    flops_per_pair : float
        Two products of a multiply and an add, for every element of a pair of tokens :math:`4` [FLOP/token/token]

    Returns
    -------
    float
        Work :math:`F_w` [FLOP]

    Validity: a prompt at least as long as the window; a kernel that skips what is out of sight.
    Not counted: softmax; what a sparse attention's indexer costs to choose.
    Source: Beltagy et al. 2020, "Longformer", section 3.1 (linear in the prompt).

    A window as long as the prompt is causal attention:

    >>> prefill_window_flops(80, 64, 128, 200_000, 200_000) == prefill_attention_flops(80, 64, 128, 200_000)
    True
    """
    return flops_per_pair * layers * heads * head_dim * window * (prompt - window / 2)


@formula
def prefill_rate(peak_flops: float, flops_per_token: float, utilisation: float = 1) -> float:
    r"""Prompt tokens a second when compute is the limit.

    .. math:: r = \frac{u \, \pi}{f}

    Parameters
    ----------
    peak_flops : float
        Dense peak :math:`\pi` [FLOP/second]
    flops_per_token : float
        Work of one token :math:`f` [FLOP/token]
    utilisation : float
        Share of the peak that is reached :math:`u` [-]

    Returns
    -------
    float
        Prefill rate :math:`r` [token/second]

    Validity: prompts long enough to be compute-bound, short enough for attention not to matter.
    Not counted: attention, launch overhead, communication.
    Source: "How I would design an LLM inference API in a system design interview" (the essay).

    A 70B-class model in FP8 on one H200 at peak:

    >>> round(prefill_rate(peak_flops=1979e12, flops_per_token=140e9), 2)
    14135.71
    """
    return utilisation * peak_flops / flops_per_token


@formula
def prefill_time(flops: float, peak_flops: float, utilisation: float = 1) -> float:
    r"""Time of a prompt's work when compute is the limit.

    .. math:: t = \frac{F}{u \, \pi}

    Parameters
    ----------
    flops : float
        Work of the prompt :math:`F` [FLOP]
    peak_flops : float
        Dense peak :math:`\pi` [FLOP/second]
    utilisation : float
        Share of the peak that is reached :math:`u` [-]

    Returns
    -------
    float
        Time of the prompt :math:`t` [second]

    Validity: one accelerator, one prompt at a time.
    Not counted: waiting in the queue, launch overhead, communication.
    Source: "How I would design an LLM inference API in a system design interview" (the essay).

    200K tokens at half of an H200's FP8 peak, linear layers only:

    >>> round(prefill_time(flops=2.8e16, peak_flops=1979e12, utilisation=0.5), 4)
    28.2971
    """
    return flops / (utilisation * peak_flops)
