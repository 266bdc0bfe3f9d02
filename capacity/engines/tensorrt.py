"""What TensorRT-LLM's C++ runtime takes beside the engine, before the cache has its share."""

from __future__ import annotations

from capplan.capacity.engines.deployment import Deployment
from capplan.capacity.engines.vllm_rules import ordered
from capplan.capacity.formula import formula
from capplan.models.spec import Model

_MAX_BATCH_SIZE = 2048  # of trtllm-build, from 0.13
_SINCE, _UNTIL = (
    (0, 13, 0),
    (1, 0, 0),
)  # from 1.0 the default is the PyTorch backend, whose sampler keeps no such buffers


@formula
def decoder_buffers(element: float, requests: float, vocabulary: float, max_seq_len: float) -> float:
    r"""Buffers of the decoder and of the runtime, for as many requests as the engine was built for.

    .. math:: B = e \, n \, (7 \, V + L)

    Parameters
    ----------
    element : float
        A logit in fp32, or the number of a token :math:`e` [byte]
    requests : float
        max_batch_size :math:`n` [-]
    vocabulary : float
        Entries of the vocabulary :math:`V` [-]
    max_seq_len : float
        Tokens of the longest request :math:`L` [-]

    Returns
    -------
    float
        Buffers :math:`B` [byte]

    Validity: engines of TensorRT-LLM 0.13 to 0.21 without beams; logits are kept five times by the decoder and twice by
    the runtime.
    Not counted: the context of the engine's execution, which grows with max_num_tokens.
    Source: TensorRT-LLM issue 1188 (Qwen2.5 0.5B: 2.66 and 5.76 GB), 2317 (Llama 3.1 8B: 3 and almost 5 GB).

    Qwen2.5 0.5B as built by default, 8.42 GiB as logged:

    >>> round(decoder_buffers(element=4, requests=2048, vocabulary=151936, max_seq_len=32768) / 2**30, 2)
    8.36
    """
    return element * requests * (7 * vocabulary + max_seq_len)


def buffers(model: Model, flags: Deployment) -> float:
    """Of a version that is known to have them."""
    if not flags.version or not _SINCE <= ordered(flags.version, "tensorrt-llm") < _UNTIL:
        return 0.0
    requests = flags.max_num_seqs or _MAX_BATCH_SIZE
    return decoder_buffers(4, requests, model.vocab_size or 0, flags.max_model_len or 0)
