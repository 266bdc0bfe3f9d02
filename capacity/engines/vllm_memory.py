"""What vLLM's profiling run finds beside the weights: the activation peak, what lies outside of torch, CUDA graphs."""

from __future__ import annotations

from capplan.capacity import precision
from capplan.capacity.engines.defaults import NEWEST, at_once, constant, defaults, is_v0, version_of
from capplan.capacity.engines.deployment import Deployment
from capplan.capacity.engines.device import Device
from capplan.capacity.engines.vllm_blocks import states_of
from capplan.capacity.engines.weights import mixture
from capplan.capacity.formula import formula
from capplan.models.spec import LatentAttention, Model
from capplan.units import gib

_SAMPLER_BYTES = 2 + 4 + 4 + 4  # logits in 16 bit, in fp32, probabilities, noise (v1/sample, 0.17 to 0.33)
_LOGIT_BYTES = 2  # of a profiling run that leaves the sampler's settings out
_SORTED_BELOW = 8  # sequences: a kernel of its own replaces the sort from there
_HIDDEN_COPIES = 3  # rows that live beside a layer's own: what goes in, the residual, what comes out


@formula
def sampler_peak(bytes_per_entry: float, sequences: float, vocabulary: float) -> float:
    r"""Memory of the sampler's warm-up in vLLM's profiling run, on logits gathered from all ranks.

    .. math:: S = c \, n \, V

    Parameters
    ----------
    bytes_per_entry : float
        Bytes a sequence and entry of the vocabulary, all copies together :math:`c` [byte]
    sequences : float
        max_num_seqs, or the batched tokens if those are fewer :math:`n` [-]
    vocabulary : float
        Entries of the vocabulary :math:`V` [-]

    Returns
    -------
    float
        Peak of the sampler :math:`S` [byte]

    Validity: vLLM V1; c is 14 where a kernel replaces the sort (0.9 to 0.11.0 with FlashInfer, 0.17 and later), else
    37.7.
    Not counted: hidden states of the batch, workspaces of kernels.
    Source: vLLM 0.19.0, v1/sample/ops/topk_topp_sampler.py; published start-up logs (memory_constants.toml).

    Llama 3 with 1,024 sequences:

    >>> round(sampler_peak(bytes_per_entry=14, sequences=1024, vocabulary=128256) / 2**30, 2)
    1.71
    """
    return bytes_per_entry * sequences * vocabulary


@formula
def forward_peak(tokens: float, hidden_copies: float, hidden_bytes: float, inner_bytes: float) -> float:
    r"""Activations of a forward pass without a cache: rows of hidden states, and the widest layer's own.

    .. math:: A = T \, (k \, d + w)

    Parameters
    ----------
    tokens : float
        Tokens of the batch :math:`T` [token]
    hidden_copies : float
        Rows of hidden states that live at a time :math:`k` [-]
    hidden_bytes : float
        A row of hidden states :math:`d` [byte/token]
    inner_bytes : float
        What the widest layer holds of a token: gate, up and product of an mlp, on a rank :math:`w` [byte/token]

    Returns
    -------
    float
        Activations :math:`A` [byte]

    Validity: vLLM's profiling run with compiled or plain layers.
    Not counted: kernels' workspaces.
    Source: vllm issue 10517, 29,000 tokens of Llama 3.1 8B peak at 2.99 GiB.

    >>> hidden, inner = 2 * 4096, 2 * 3 * 14336
    >>> peak = forward_peak(tokens=29000, hidden_copies=3, hidden_bytes=hidden, inner_bytes=inner)
    >>> round(peak / 2**30, 2)
    2.99
    """
    return tokens * (hidden_copies * hidden_bytes + inner_bytes)


@formula
def kv_bytes_left(
    total: float,
    utilization: float,
    weights: float,
    activation_peak: float,
    non_torch: float,
    graphs: float,
) -> float:
    r"""What vLLM V1 leaves for the cache on a rank.

    .. math:: C = u M - W - A - N - G

    Parameters
    ----------
    total : float
        Memory of the device that a process sees :math:`M` [byte]
    utilization : float
        gpu_memory_utilization :math:`u` [-]
    weights : float
        Weights of the rank :math:`W` [byte]
    activation_peak : float
        Peak of the profiling run above the weights :math:`A` [byte]
    non_torch : float
        Context, NCCL and custom all-reduce buffers :math:`N` [byte]
    graphs : float
        Estimate of the CUDA graphs, from 0.21 on :math:`G` [byte]

    Returns
    -------
    float
        Cache of the rank, negative when there is no room :math:`C` [byte]

    Validity: vLLM; closes within 0.05 GiB on 61 logs of 0.19.0 that print every term.
    Not counted: what other processes hold.
    Source: vLLM 0.33.0, v1/worker/gpu_worker.py, determine_available_memory.

    Llama 3.1 8B on an H100, as logged by 0.19.0 (58.11 GiB):

    >>> GiB = 2**30
    >>> left = kv_bytes_left(79.19 * GiB, 0.95, 14.99 * GiB, 1.89 * GiB, 0.25 * GiB, 0)
    >>> round(left / GiB, 2)
    58.1
    """
    return total * utilization - weights - activation_peak - non_torch - graphs


def activation_peak(
    model: Model, device: Device, flags: Deployment, *, samples: bool = True, taps: int = 0
) -> float:
    """The peak of vLLM's profiling run above the weights: the sampler's, or a layer's, whichever is larger.

    samples: whether the rank has the head; of a pipeline only the last does.
    taps: layers whose hidden states are kept for a draft model.
    """
    tokens = flags.max_num_batched_tokens or 0
    if at_once(flags.version or NEWEST, device, flags.max_model_len or 0):
        tokens = max(tokens, flags.max_model_len or 0)
    hidden, tp = 2 * model.hidden_size, flags.tensor_parallel_size  # in 16 bit
    peak = forward_peak(tokens, _HIDDEN_COPIES + taps, hidden, 2 * _widest(model, tp))
    per_entry = _LOGIT_BYTES if _logits_alone(model, flags) else _sampler_bytes(device, flags)
    if samples:
        logits = sampler_peak(per_entry, flags.max_num_seqs or 0, model.vocab_size or 0)
        peak = max(peak, logits + forward_peak(tokens, 1, hidden, 0))
    return peak + constant("workspace_bytes") + _sparse_workspace(model, flags)


def sorts(device: Device, flags: Deployment) -> bool:
    """Whether the sampler sorts all logits; a kernel does without, of vLLM's own or of FlashInfer's package."""
    sampler = _default(flags, "sampler")
    if sampler == "kernel":
        return (flags.max_num_seqs or 0) < _SORTED_BELOW
    return sampler == "sorts" or flags.flashinfer is False or device.generation == "rocm"


def _default(flags: Deployment, name: str) -> object:
    return defaults(flags.version or NEWEST)[name]


def _runner_v2(model: Model, flags: Deployment) -> bool:
    """Whether Model Runner V2 runs it by default; a few mixtures that had it before all did are taken as the others."""
    runs = _default(flags, "runner_v2")
    return runs == "all" or (runs == "dense" and not mixture(model) and not states_of(model))


def _logits_alone(model: Model, flags: Deployment) -> bool:
    """Whether the profiling run makes the logits and leaves the rest of the sampler out."""
    return _runner_v2(model, flags) and not _default(flags, "runner_v2_samples")


def _sampler_bytes(device: Device, flags: Deployment) -> float:
    return constant("sampler_sorting_bytes") if sorts(device, flags) else _SAMPLER_BYTES


def unreserved(model: Model, device: Device, flags: Deployment, graphs: float) -> list[str]:
    """What Model Runner V2 allocates once the cache has been given all that may be used."""
    if not _logits_alone(model, flags):
        return []
    sequences = min(flags.max_num_seqs or 0, flags.max_num_batched_tokens or 0)
    later = sampler_peak(_sampler_bytes(device, flags), sequences, model.vocab_size or 0)
    what = "its sampler"
    if graphs and not graphs_taken(model, flags):
        later, what = later + graphs, "its sampler and its CUDA graphs"
    told = f"up to {gib(later)} come on top of what may be used (--gpu-memory-utilization)"
    return [f"Model Runner V2 of vllm {flags.version} reserves nothing for {what}: {told}"]


def graphs_taken(model: Model, flags: Deployment) -> bool:
    """Whether an estimate of the CUDA graphs is taken from the cache."""
    taken = _default(flags, "graphs_taken")
    return taken == "always" or (taken == "runner v1" and not _runner_v2(model, flags))


def depends_on_flashinfer(device: Device, flags: Deployment) -> bool:
    """Whether the sampler is another where FlashInfer's package is missing, and nobody says whether it is there."""
    if flags.engine != "vllm" or flags.flashinfer is not None:
        return False
    return _default(flags, "sampler") == "flashinfer" and not sorts(device, flags)


def sampler_assumed(model: Model, flags: Deployment) -> list[str]:
    """What is taken for granted of FlashInfer's package, where it decides about the sampler."""
    further = constant("sampler_sorting_bytes") - _SAMPLER_BYTES
    more = sampler_peak(further, flags.max_num_seqs or 0, model.vocab_size or 0)
    without = f"without it the sampler of vllm {flags.version} sorts, in up to {gib(more)} more"
    return [f"FlashInfer's package is there, as in vLLM's images (its wheel does not bring it); {without}"]


def _sparse_workspace(model: Model, flags: Deployment) -> float:
    """Buffers of sparse latent attention and its indexer, sized by max_model_len (flashmla_sparse.py, indexer.py)."""
    parts = (part for layer in model.layers for part in layer)
    part = next((p for p in parts if isinstance(p, LatentAttention) and p.index_dim), None)
    if part is None:
        return 0.0
    rows = 5 * 2 * (part.latent + part.rope) + 40 * precision.index_bytes(part.index_dim)
    return rows * (flags.max_model_len or 0) + 512 * 2**20


def _widest(model: Model, tp: int) -> float:
    """Elements a token of the widest layer: an mlp's gate, up and product, the rows sent to experts, or what goes into
    a recurrence, before and after its convolution and in the chunks of its kernel.
    """
    hidden, widest, mixed = model.hidden_size, 0.0, 0.0
    kinds = {state.kind for state in states_of(model)}
    copies = constant("mixer_copies") if kinds & {"gdn", "kda"} else 2
    for weight in model.weights:
        leaf = weight.name.removesuffix(".weight").rsplit(".", 1)[-1]
        if weight.bucket in ("mlp", "shared") and len(weight.shape) == 2 and weight.shape[-1] == hidden:
            widest = max(widest, 3 * weight.shape[0] / (2 if "gate_up" in leaf else 1) / tp)
        if weight.bucket == "experts" and len(weight.shape) >= 2:
            inner = max(weight.shape[-2:], key=lambda size: size != hidden)
            if "gate_up" in leaf:
                inner //= 2
            widest = max(widest, weight.chosen * (max(2 * inner / tp, hidden) + inner / tp))
        if weight.bucket == "mixer" and len(weight.shape) == 2 and weight.shape[-1] == hidden:
            mixed += copies * weight.shape[0] / tp
    return max(widest, mixed)


def non_torch(device: Device, flags: Deployment) -> float:
    """Memory outside of torch's allocator: context, NCCL and custom all-reduce buffers."""
    recent = version_of(flags) >= (0, 17, 0)
    if device.generation == "rocm":
        found = constant("non_torch_rocm")
        if not is_v0(flags.version or NEWEST, device) and version_of(flags) < (0, 13, 0):
            found += constant("rocm_attention_bytes")
    else:
        found = constant("non_torch" if recent else "non_torch_old")
    if flags.tensor_parallel_size > 1:
        own = {"nvlink": "collectives", "rtx_pro": "collectives_rtx_pro"}.get(device.link) if recent else None
        found += constant(own or "collectives_plain")
    return found


def graph_estimate(model: Model, device: Device, flags: Deployment) -> float:
    """The engine's own estimate of its CUDA graphs, which falls with the number of sizes that are captured."""
    if flags.enforce_eager or (device.generation == "rocm" and version_of(flags) < (0, 33, 0)):
        return 0.0
    per_sequence = 1 + flags.num_speculative_tokens
    largest = min(512, 2 * (flags.max_num_seqs or 256) * per_sequence)
    sizes = 3 + largest // 8 if largest <= 256 else 35 + (largest - 256) // 16
    layers = len(model.layers) / flags.pipeline_parallel_size
    return constant("graph_bytes") * layers * sizes / 51
