"""The memory budget of one accelerator, and the tokens it holds."""

from __future__ import annotations

from capplan.capacity.formula import formula


@formula
def kv_budget(memory: float, weight_bytes: float, reserve: float) -> float:
    r"""Memory left for the KV cache: what there is, less weights, less a reserve.

    .. math:: C = H - W - R

    Parameters
    ----------
    memory : float
        Memory of the accelerator :math:`H` [byte]
    weight_bytes : float
        Weights :math:`W` [byte]
    reserve : float
        Kept for activations, workspace and the runtime :math:`R` [byte]

    Returns
    -------
    float
        Budget of the cache, negative when the weights do not fit :math:`C` [byte]

    Validity: one accelerator holding the whole model.
    Not counted: whatever the reserve stands in for: activation peak, CUDA graphs, communication buffers.
    Source: the budget identity of PagedAttention engines (vLLM: memory at start, less weights, less peak).

    70 GB of weights on 141 GB with 4 GiB kept back leave 62 GiB:

    >>> round(kv_budget(memory=141e9, weight_bytes=70e9, reserve=4 * 2**30) / 2**30, 4)
    62.1239
    """
    return memory - weight_bytes - reserve


@formula
def kv_tokens(kv_budget: float, kv_bytes_per_token: float) -> float:
    r"""Tokens of context that fit in the KV cache.

    .. math:: N = \frac{C}{m}

    Parameters
    ----------
    kv_budget : float
        Memory of the cache :math:`C` [byte]
    kv_bytes_per_token : float
        Cache of one token :math:`m` [byte/token]

    Returns
    -------
    float
        Tokens, over all requests :math:`N` [token]

    Validity: every layer caches every token.
    Not counted: block rounding.
    Source: the definition.

    62 GiB hold about 203,000 tokens at 320 KiB each:

    >>> kv_tokens(kv_budget=62 * 2**30, kv_bytes_per_token=320 * 2**10)
    203161.6
    """
    return kv_budget / kv_bytes_per_token
