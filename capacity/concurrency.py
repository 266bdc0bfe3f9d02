"""How many requests fit, and how many accelerators one request needs."""

from __future__ import annotations

from capplan.capacity.formula import formula


@formula
def concurrency(kv_tokens: float, context: float) -> float:
    r"""Requests whose cache fits at the same time; whole requests are its floor.

    .. math:: B = \frac{N}{T}

    Parameters
    ----------
    kv_tokens : float
        Tokens that the cache holds :math:`N` [token]
    context : float
        Tokens of one request, prompt and output :math:`T` [token/request]

    Returns
    -------
    float
        Requests at once :math:`B` [request]

    Validity: every request at the same context, no shared prefix.
    Not counted: requests still growing to that context, which an engine may admit and preempt.
    Source: vLLM's start-up line "Maximum concurrency for N tokens per request".

    203,162 tokens hold 25 requests of 8K:

    >>> round(concurrency(kv_tokens=203161.6, context=8000), 4)
    25.3952
    """
    return kv_tokens / context


@formula
def gpus_for_prompt(
    prompt: float, kv_bytes_per_token: float, weight_bytes: float, memory: float, reserve: float
) -> float:
    r"""Accelerators whose pooled memory holds the weights and one prompt; whole ones are its ceiling.

    .. math:: G = \frac{W + S \, m}{H - R}

    Parameters
    ----------
    prompt : float
        Tokens of the prompt :math:`S` [token]
    kv_bytes_per_token : float
        Cache of one token :math:`m` [byte/token]
    weight_bytes : float
        Weights, held once over the pool :math:`W` [byte]
    memory : float
        Memory of one accelerator :math:`H` [byte]
    reserve : float
        Kept back on each :math:`R` [byte]

    Returns
    -------
    float
        Accelerators :math:`G` [-]

    Validity: weights and cache divide evenly over the pool: tensor parallel up to the number of KV heads.
    Not counted: that engines shard over powers of two and divisors of the head count.
    Source: the budget identity, solved for the number of accelerators.

    A 500K prompt of a 70B-class model does not fit one H200 and needs two:

    >>> round(gpus_for_prompt(500_000, 327_680, 70e9, 141e9, 4 * 2**30), 4)
    1.7105
    """
    return (weight_bytes + prompt * kv_bytes_per_token) / (memory - reserve)
