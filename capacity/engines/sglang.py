"""The share of a GPU that SGLang takes for weights and pools where it is not told: mem_fraction_static."""

from __future__ import annotations

from capplan.capacity.engines.deployment import Deployment
from capplan.capacity.engines.device import GIB, Device
from capplan.capacity.engines.vllm_rules import ordered
from capplan.capacity.formula import formula

_MIB = 2**20
# memory [GiB] below which a GPU has: tokens of a chunk of prefill, and requests that its graphs are captured for, with
# fewer than four ranks and with more (0.5.23: srt/arg_groups/memory_hook.py)
_SIZES = (
    (20, 2048, 8, 8),
    (35, 4096, 48, 160),
    (60, 4096, 32, 160),
    (160, 8192, 256, 512),
    (float("inf"), 16384, 512, 512),
)
# before 0.5: GiB kept back, and GiB for every rank (0.4.9: srt/server_args.py)
_OLD = ((35, 2.8, 0.1), (90, 9.5, 0.5), (160, 12, 0.5), (float("inf"), 32, 0.0))
_LARGE = 60 * GIB  # from here 10 GiB are kept back at the least


@formula
def sglang_reserve(
    mebibyte: float, prefill_tokens: float, ranks: float, graph_requests: float, attention_replicas: float
) -> float:
    r"""What SGLang keeps back of a GPU for activations and CUDA graphs.

    .. math:: R = m \, (512 + 1.5 \, T + 128 \, p + 2 \, g + 4.5 \, g \, d)

    Parameters
    ----------
    mebibyte : float
        The unit that SGLang counts in :math:`m` [byte]
    prefill_tokens : float
        chunked_prefill_size :math:`T` [-]
    ranks : float
        Tensor times pipeline ranks :math:`p` [-]
    graph_requests : float
        Requests of the largest graph :math:`g` [-]
    attention_replicas : float
        Replicas of data-parallel attention, 0 without :math:`d` [-]

    Returns
    -------
    float
        Kept back :math:`R` [byte]

    Validity: SGLang 0.5 on CUDA; the last term is 3 g d up to 300 requests a graph.
    Not counted: graphs of prefill, DeepEP's buffers, symmetric memory, multimodal models.
    Source: SGLang 0.5.23, srt/arg_groups/memory_hook.py.

    Eight B200 with data-parallel attention:

    >>> sglang_reserve(2**20, prefill_tokens=16384, ranks=8, graph_requests=512, attention_replicas=8) / 2**30
    44.5
    """
    return mebibyte * (
        512
        + 1.5 * prefill_tokens
        + 128 * ranks
        + 2 * graph_requests
        + 4.5 * graph_requests * attention_replicas
    )


def mem_fraction_static(device: Device, flags: Deployment) -> float:
    """SGLang's default; by the memory of the device and how the model is divided."""
    total, ranks = device.total_bytes, flags.tensor_parallel_size * flags.pipeline_parallel_size
    replicas = flags.data_parallel_size if flags.data_parallel_size > 1 else 0
    if flags.version and ordered(flags.version, "sglang") < (0, 5, 0):
        base, each = next(row[1:] for row in _OLD if total < row[0] * GIB)
        kept = GIB * (
            base + each * ranks + (4 if replicas else 0) + (2 if flags.num_speculative_tokens else 0)
        )
    else:
        tokens, few, many = next(row[1:] for row in _SIZES if total < row[0] * GIB)
        graphs = 0 if flags.enforce_eager else few if flags.tensor_parallel_size < 4 else many
        kept = sglang_reserve(_MIB, flags.max_num_batched_tokens or tokens, ranks, graphs, replicas)
        if graphs <= 300:
            kept -= 1.5 * graphs * replicas * _MIB
        if total > _LARGE:
            kept = max(kept, 10 * GIB)
    return round((total - kept) / total, 3)
