"""Arithmetic intensity of decode: work of a step over bytes it reads."""

from __future__ import annotations

from capplan.capacity.formula import formula


@formula
def linear_flops_per_token(parameters: float, flops_per_parameter: float = 2) -> float:
    r"""Work of the weight matrices for one token: a multiply and an add a parameter.

    .. math:: f = 2 \, P

    Parameters
    ----------
    parameters : float
        Parameters that multiply the token :math:`P` [-]
    flops_per_parameter : float
        A multiply and an add :math:`2` [FLOP/token]

    Returns
    -------
    float
        Work of one token :math:`f` [FLOP/token]

    Validity: prefill and decode alike; only active parameters in a mixture of experts.
    Not counted: attention over the context, norms, softmax.
    Source: Kaplan et al. 2020, "Scaling Laws for Neural Language Models", section 2.1.

    >>> linear_flops_per_token(parameters=70e9)
    140000000000.0
    """
    return flops_per_parameter * parameters


@formula
def attention_flops_per_token(
    layers: float, heads: float, head_dim: float, context: float, flops_per_pair: float = 4
) -> float:
    r"""Work of attention for one token over a context: queries with keys, then weights with values.

    .. math:: f_a = 4 \, L \, n_q \, d \, T

    Parameters
    ----------
    layers : float
        Layers that attend to the whole context :math:`L` [-]
    heads : float
        Query heads of a layer :math:`n_q` [-]
    head_dim : float
        Width of a head :math:`d` [-]
    context : float
        Tokens attended to :math:`T` [token]
    flops_per_pair : float
        Two products of a multiply and an add, for every element of a pair of tokens :math:`4` [FLOP/token/token]

    Returns
    -------
    float
        Work of one token :math:`f_a` [FLOP/token]

    Validity: full attention; over the cache it adds 2 (query heads / KV heads) / bytes FLOP a byte read.
    Not counted: softmax, rotary embedding.
    Source: Dao et al. 2022, "FlashAttention", section 3.1 (the two products of exact attention).

    A 70B-class model at 8K:

    >>> attention_flops_per_token(layers=80, heads=64, head_dim=128, context=8000)
    20971520000
    """
    return flops_per_pair * layers * heads * head_dim * context


@formula
def weight_only_intensity(
    batch: float, bytes_per_parameter: float, flops_per_parameter: float = 2, tokens_per_request: float = 1
) -> float:
    r"""Arithmetic intensity of a decode step that reads nothing but weights.

    .. math:: I_w = \frac{2 \, B}{b_w}

    Parameters
    ----------
    batch : float
        Requests in the step :math:`B` [request]
    bytes_per_parameter : float
        Bytes read for a parameter that multiplies the token; in a mixture of experts all of them are read
        :math:`b_w` [byte]
    flops_per_parameter : float
        A multiply and an add :math:`2` [FLOP/token]
    tokens_per_request : float
        Tokens of a request in one step :math:`1` [token/request]

    Returns
    -------
    float
        Arithmetic intensity :math:`I_w` [FLOP/byte]

    Validity: small batch and short context, where the cache is a small part of what is read.
    Not counted: the cache.
    Source: Pope et al. 2022, "Efficiently Scaling Transformer Inference", section 2.

    >>> weight_only_intensity(batch=1, bytes_per_parameter=1)
    2.0
    """
    return flops_per_parameter * tokens_per_request * batch / bytes_per_parameter


@formula
def weight_only_batch_to_ridge(
    ridge: float, bytes_per_parameter: float, flops_per_parameter: float = 2, tokens_per_request: float = 1
) -> float:
    r"""Batch at which decode would reach the ridge if it read nothing but weights.

    .. math:: B^{*} = \frac{I^{*} \, b_w}{2}

    Parameters
    ----------
    ridge : float
        Ridge point :math:`I^{*}` [FLOP/byte]
    bytes_per_parameter : float
        Bytes read for a parameter that multiplies the token; in a mixture of experts all of them are read
        :math:`b_w` [byte]
    flops_per_parameter : float
        A multiply and an add :math:`2` [FLOP/token]
    tokens_per_request : float
        Tokens of a request in one step :math:`1` [token/request]

    Returns
    -------
    float
        Requests :math:`B^{*}` [request]

    Validity: a lower bound that no real context reaches. Quantization does not move it where halving the
    bytes also doubles the peak: both factors cancel.
    Not counted: the cache, which caps the intensity below the ridge at any batch.
    Source: Pope et al. 2022, "Efficiently Scaling Transformer Inference", section 2; the essay's 206.

    FP8 and FP16 on an H200, each at its own peak:

    >>> round(weight_only_batch_to_ridge(ridge=1979e12 / 4.8e12, bytes_per_parameter=1), 4)
    206.1458
    >>> round(weight_only_batch_to_ridge(ridge=989.5e12 / 4.8e12, bytes_per_parameter=2), 4)
    206.1458
    """
    return ridge * bytes_per_parameter / (flops_per_parameter * tokens_per_request)


@formula
def decode_intensity(
    batch: float,
    flops_per_token: float,
    weight_bytes: float,
    context: float,
    kv_bytes_per_token: float,
    tokens_per_request: float = 1,
) -> float:
    r"""Arithmetic intensity of a decode step: every request adds its work, and its cache to the read.

    .. math:: I(B) = \frac{B \, f}{W + B \, T \, m}

    Parameters
    ----------
    batch : float
        Requests in the step :math:`B` [request]
    flops_per_token : float
        Work of one token :math:`f` [FLOP/token]
    weight_bytes : float
        Weights read in a step :math:`W` [byte]
    context : float
        Tokens of each request :math:`T` [token/request]
    kv_bytes_per_token : float
        Cache of one token :math:`m` [byte/token]
    tokens_per_request : float
        Tokens of a request in one step :math:`1` [token/request]

    Returns
    -------
    float
        Arithmetic intensity :math:`I` [FLOP/byte]

    Validity: pooled over the step; the parts run one after another, so it bounds the step's time from below.
    Not counted: activations, and cache pages read more than once.
    Source: "How I would design an LLM inference API in a system design interview" (the essay); Yuan et al. 2024, "LLM Inference Unveiled: Survey and Roofline Model Insights", section 2.

    25 requests of 8K, a 70B-class model in FP8 with an FP16 cache, linear layers only:

    >>> round(decode_intensity(25, 140e9, 70e9, 8000, 327_680), 4)
    25.8234
    """
    return (
        batch * tokens_per_request * flops_per_token / (weight_bytes + batch * context * kv_bytes_per_token)
    )


@formula
def decode_intensity_ceiling(
    flops_per_token: float, context: float, kv_bytes_per_token: float, tokens_per_request: float = 1
) -> float:
    r"""Arithmetic intensity that decode approaches as the batch grows: no batch is left in it.

    .. math:: I_{\infty} = \lim_{B \to \infty} I(B) = \frac{f}{T \, m}

    Parameters
    ----------
    flops_per_token : float
        Work of one token :math:`f` [FLOP/token]
    context : float
        Tokens of each request :math:`T` [token/request]
    kv_bytes_per_token : float
        Cache of one token :math:`m` [byte/token]
    tokens_per_request : float
        Tokens of a request in one step :math:`1` [token/request]

    Returns
    -------
    float
        Ceiling of the arithmetic intensity :math:`I_{\infty}` [FLOP/byte]

    Validity: as decode_intensity.
    Not counted: as decode_intensity.
    Source: "How I would design an LLM inference API in a system design interview" (the essay).

    8K, 32K and 200K, linear layers only:

    >>> [round(decode_intensity_ceiling(140e9, T, 327_680), 4) for T in (8_000, 32_000, 200_000)]
    [53.4058, 13.3514, 2.1362]
    """
    return tokens_per_request * flops_per_token / (context * kv_bytes_per_token)


@formula
def decode_floor(weight_bytes: float, cache_bytes: float, bandwidth: float) -> float:
    r"""Time that no decode pass can be below: every weight and the cache of every sequence are read once.

    .. math:: t_{\min} = \frac{W + K}{\beta}

    Parameters
    ----------
    weight_bytes : float
        Weights that the pass reads on one GPU :math:`W` [byte]
    cache_bytes : float
        Cache of all its sequences on one GPU :math:`K` [byte]
    bandwidth : float
        Memory bandwidth :math:`\beta` [byte/second]

    Returns
    -------
    float
        Time :math:`t_{\min}` [second]

    Validity: weights and cache that don't stay in a cache on the chip from one pass to the next.
    Not counted: work, where it takes longer; activations.
    Source: Pope et al. 2022, "Efficiently Scaling Transformer Inference", section 2.

    70 GB of weights and 25 sequences of 8,000 tokens at 327,680 byte on an H200:

    >>> round(decode_floor(weight_bytes=70e9, cache_bytes=25 * 8000 * 327_680, bandwidth=4.8e12), 5)
    0.02824
    """
    return (weight_bytes + cache_bytes) / bandwidth
