"""The tokens of vLLM's blocks: what attention kernels ask for, and how recurrent states make them grow."""

from __future__ import annotations

from math import ceil, lcm

from capplan.capacity import precision
from capplan.capacity.engines.vllm_rules import BLOCK, Rules, Settings
from capplan.errors import InputError
from capplan.models.spec import Attention, CompressedAttention, LatentAttention, Model, Part, State

_WIDE = 2  # bytes of an element in the model's dtype, which is 16 bit


def states_of(model: Model) -> list[State]:
    return [part for layer in model.layers for part in layer if isinstance(part, State)]


def attention_of(model: Model) -> list[Attention | LatentAttention | CompressedAttention]:
    return [part for layer in model.layers for part in layer if not isinstance(part, State)]


def sparse(model: Model) -> bool:
    """Whether latent attention reads what an indexer selects (DSA)."""
    return any(isinstance(part, LatentAttention) and part.index_dim for part in attention_of(model))


def compressed(model: Model) -> bool:
    """Whether attention reads pooled vectors (DeepSeek V4)."""
    return any(isinstance(part, CompressedAttention) for part in attention_of(model))


def pools_shared(model: Model) -> bool:
    """Whether few layers pool for all (DeepSeek V4.1)."""
    return any(isinstance(part, CompressedAttention) and part.index_pooled for part in attention_of(model))


def cache_format(model: Model, settings: Settings) -> str:
    """The cache's format by the names of capacity/precision.py."""
    asked = settings.kv_cache_dtype.strip().lower()
    if asked == "auto":
        return "fp16" if model.dtype == "fp16" else "bf16"  # a checkpoint in fp32 is narrowed
    return precision.canonical(asked, precision.KV, "kv cache dtype")


def rank_heads(kv_heads: int, tensor_parallel_size: int) -> int:
    """KV heads on a rank; past their number a rank holds a copy of one."""
    if kv_heads % tensor_parallel_size and tensor_parallel_size % kv_heads:
        raise InputError(f"{kv_heads} KV heads can't be split over {tensor_parallel_size} ranks")
    return max(1, kv_heads // tensor_parallel_size)


# --- prefix caching of states ---------------------------------------------------------------------------------


def prefix_caching(model: Model, settings: Settings, rules: Rules) -> bool:
    """Whether prefix caching is on once vLLM has looked at the model."""
    states, asked = states_of(model), settings.enable_prefix_caching
    if not states:
        return asked is not False
    if asked is None:
        asked = rules.state_caching and bool(attention_of(model))
    return asked and (rules.state_align or every_block(states, rules))


def every_block(states: list[State], rules: Rules) -> bool:
    """Whether prefix caching keeps a state for every block, not just the last."""
    return rules.state_all and all(state.kind in ("mamba1", "mamba2") for state in states)


def checkpoint(model: Model, state: State, settings: Settings, rules: Rules) -> int:
    """What the block is a multiple of, where a kernel exports a state from inside a prefill; else 0."""
    bounded = model.family in rules.bounded_kda or model.id in rules.bounded_kda
    if state.kind == "kda" and not bounded:
        return 0
    return rules.checkpoints.get(state.kind, {}).get(settings.kernels, 0)


# --- sizes ----------------------------------------------------------------------------------------------------


def state_bytes(model: Model, state: State, settings: Settings, rules: Rules) -> int:
    """Convolution and recurrent state of a layer on one rank."""
    ranks = settings.tensor_parallel_size if state.heads > 1 else 1
    if state.heads % ranks:
        raise InputError(f"the {state.heads} heads of {model.id}'s states can't be split over {ranks} ranks")
    groups = ranks if state.conv_groups % ranks else state.conv_groups  # copies, until every rank has one
    speculated = settings.num_speculative_tokens if state.kind in rules.widened else 0
    columns = state.conv_kernel - 1 + speculated if state.conv_kernel else 0
    channels = (state.conv_channels + groups * state.conv_group_channels) // ranks
    dtype = _state_format(model, state, rules)
    element = _WIDE if dtype == "model" else int(precision.WEIGHTS[dtype])
    return channels * columns * _WIDE + state.recurrent // ranks * element


def _state_format(model: Model, state: State, rules: Rules) -> str:
    """The format of the recurrent state; that of Nemotron-H is a default which changed."""
    if model.family.startswith("nemotron_h"):
        unnamed = model.id.startswith(tuple(rules.nemotron_unnamed))
        if unnamed or rules.nemotron_state == "model":
            return rules.nemotron_state
    return state.recurrent_dtype


def _token_bytes(model: Model, part: Part, settings: Settings) -> int:
    """A token of one attention layer, as the block is sized by it."""
    kv = cache_format(model, settings)
    if isinstance(part, Attention):
        heads = rank_heads(part.kv_heads, settings.tensor_parallel_size)
        return int(heads * precision.head_bytes(kv, part.head_dim, part.head_dim))
    if isinstance(part, LatentAttention):
        return int(precision.latent_bytes(kv, part.latent, part.rope))
    raise InputError(f"{model.id} has recurrent states beside compressed attention")


# --- the block ------------------------------------------------------------------------------------------------


def attention_block(model: Model, settings: Settings, rules: Rules) -> tuple[int, int]:
    """Tokens of an attention block, and the page [byte] that states are padded to (0: their own size).

    With recurrent layers the block grows until an attention page holds a state.
    """
    kernel, asked = _kernel_block(model, settings, rules), settings.block_size
    states, attention = states_of(model), attention_of(model)
    if not states or not attention:
        demanded = rules.kernel_demands and asked and asked % kernel
        return (kernel if asked is None or demanded else asked), 0
    token = _token_bytes(model, attention[0], settings)
    if settings.hybrid_block is not None:
        return settings.hybrid_block, settings.hybrid_block * token
    latent = isinstance(attention[0], LatentAttention)
    if rules.hybrid_block == "own":
        block, multiple, kernel = asked or BLOCK, 64 if latent else BLOCK, 1
    else:
        block = asked or kernel
        multiple = max(kernel, block, rules.hybrid_latent if latent else 0)
    if prefix_caching(model, settings, rules):
        if every_block(states, rules):
            raise InputError(
                f"prefix caching of all states of {model.id} goes by a chunk of its kernel, not on record"
            )
        multiple = lcm(multiple, *(checkpoint(model, state, settings, rules) or 1 for state in states))
    size = max(state_bytes(model, state, settings, rules) for state in states)
    grown = multiple * ceil(size / (multiple * token))
    block = max(block, kernel * ceil(grown / kernel))
    return block, block * token


def _kernel_block(model: Model, settings: Settings, rules: Rules) -> int:
    """The block that the attention kernels of the model prefer."""
    attention = attention_of(model)
    fp8 = cache_format(model, settings) == "fp8"
    if compressed(model):
        return rules.kernel("compressed_shared" if pools_shared(model) else "compressed", settings.kernels)
    if sparse(model):
        return rules.kernel("sparse", settings.kernels)
    if any(isinstance(part, LatentAttention) for part in attention):
        return rules.kernel("latent_fp8" if fp8 else "latent", settings.kernels)
    widest = max((part.head_dim for part in attention if isinstance(part, Attention)), default=0)
    return rules.kernel(f"wide_{widest}{'_fp8' if fp8 else ''}", settings.kernels)
