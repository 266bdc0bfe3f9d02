"""What a token and a request cost in cache."""

from __future__ import annotations

from capplan.capacity.formula import formula


@formula
def kv_bytes_per_token(layers: float, kv_heads: float, head_dim: float, bytes_per_element: float) -> float:
    r"""Bytes of KV cache that every token of context costs, over all layers.

    .. math:: m = 2 \, L \, n_{kv} \, d \, b

    Parameters
    ----------
    layers : float
        Layers that keep a cache of their own :math:`L` [-]
    kv_heads : float
        Key-value heads of a layer :math:`n_{kv}` [-]
    head_dim : float
        Width of a head, the same for keys and values :math:`d` [-]
    bytes_per_element : float
        Bytes of one element, kept for every token :math:`b` [byte/token]

    Returns
    -------
    float
        Cache of one token :math:`m` [byte/token]

    Validity: MHA, GQA and MQA layers that attend to the whole context; the 2 is key plus value.
    Not counted: block rounding, scales of a quantized cache, copies on tensor-parallel ranks past the
    number of KV heads.
    Source: Kwon et al. 2023, "Efficient Memory Management for LLM Serving with PagedAttention", section 3.

    A 70B-class model with 8 KV heads in FP16 costs 320 KiB a token:

    >>> kv_bytes_per_token(layers=80, kv_heads=8, head_dim=128, bytes_per_element=2)
    327680
    """
    return 2 * layers * kv_heads * head_dim * bytes_per_element


@formula
def kv_bytes_per_request(context: float, kv_bytes_per_token: float) -> float:
    r"""Bytes of KV cache that one request holds at a context, in layers that keep every token.

    .. math:: M = T \, m

    Parameters
    ----------
    context : float
        Tokens of the request, prompt and output :math:`T` [token/request]
    kv_bytes_per_token : float
        Cache of one token :math:`m` [byte/token]

    Returns
    -------
    float
        Cache of the request :math:`M` [byte/request]

    Validity: every layer caches every token.
    Not counted: block rounding.
    Source: the definition.

    One request of 200K tokens is 61 GiB:

    >>> round(kv_bytes_per_request(context=200_000, kv_bytes_per_token=327_680) / 2**30, 4)
    61.0352
    """
    return context * kv_bytes_per_token
