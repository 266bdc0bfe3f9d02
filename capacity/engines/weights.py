"""Weights of one rank: which tensors an engine divides over tensor-parallel ranks, and which every rank holds whole.

Straight down the list of a model's tensors, as vLLM's layers take them (checked in 0.11.2 to 0.33.0): columns and rows
of matrices are divided; norms, routers, indexers and MLA's down projections are whole; keys and values of a rank are
those of its KV heads.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from math import ceil
from typing import NamedTuple, TypeVar

from capplan.capacity import precision
from capplan.capacity.checkpoint import matrix_bytes
from capplan.capacity.formula import formula
from capplan.errors import InputError
from capplan.models.quantization import Format, Quantization, Rule
from capplan.models.spec import Attention, CompressedAttention, LatentAttention, Model, State, Weight
from capplan.models.stored import Stored, stored

VOCABULARY_PADDING = 64  # rows of the embedding and the head are a multiple of it
MXFP4_PADDING = (
    128,
    256,
)  # of a rank's intermediate size and of the hidden size, for the MXFP4 kernels of experts

# names of matrices that no engine divides: MLA's down projections, and small ones
_WHOLE = (
    *("q_a_proj", "kv_a_proj_with_mqa", "wq_a", "wkv_a", "kv_proj", "fused_qkv_a_proj", "eh_proj", "fc"),
    *("shared_expert_gate", "g_a_proj", "f_a_proj", "compressor", "latent_down_proj", "latent_up_proj"),
    *("engram", "main_proj"),
)
_KEYS = ("k_proj", "v_proj")
_FUSED = ("qkv_proj", "query_key_value", "Wqkv", "c_attn", "W_pack", "wqkv")
_TABLES = ("embedding", "head", "lookup")
# biases of matrices whose input is divided are added once, after the sum
_OUTPUTS = ("o_proj.bias", "down_proj.bias", "fc2.bias", "dense.bias", "dense_4h_to_h.bias", "c_proj.bias")

# vLLM tabulates linearly stretched positions before they are stretched: factor times as many
_STRETCHED = {"gemma3": 8}

# what a build that says no more than its method is taken to hold: every linear layer, the head left alone
FORMATS = {
    "fp8": Format("fp8", 8, rows=1, columns=0),
    "int8": Format("int8", 8, rows=1, columns=0),
    "int4": Format("int4", 4, rows=1, columns=128, scale_bytes=2),
    "awq": Format("int4", 4, rows=1, columns=128, scale_bytes=2, zero_bits=4),
    "int6": Format("int8", 6, rows=1, columns=128, scale_bytes=2),
    "nvfp4": Format("nvfp4", 4, rows=1, columns=16, scale_bytes=1, matrix_bytes=8),
    "mxfp4": Format("mxfp4", 4, rows=1, columns=32, scale_bytes=1),
    "nf4": Format("nf4", 4, rows=1, columns=64, scale_bytes=1),
}


class RankWeights(NamedTuple):
    """Weights of the fullest and of the emptiest pipeline stage [byte]."""

    parts: dict[str, float]  # of the fullest, by bucket
    stages: tuple[float, ...]

    @property
    def bytes(self) -> float:
        return max(self.stages)

    @property
    def least(self) -> float:
        return min(self.stages)


_PLAIN = ("bf16", "fp16", "fp32")


def method(quant: str) -> str:
    """One name for what a build is made with: 'float16' is 'fp16'. Raises UnknownNameError."""
    return precision.canonical(quant, (*FORMATS, *_PLAIN), "quantization")


NARROWED = "a checkpoint in fp32 is loaded in 16 bit, as engines do (--weights fp32 keeps it)"


def narrowed(model: Model, quant: str | None) -> bool:
    """Whether the engine's dtype `auto` makes 16 bit of an fp32 checkpoint: vLLM, SGLang and TensorRT-LLM all do."""
    return quant is None and model.dtype == "fp32"


def quantized(model: Model, quant: str | None) -> Model:
    """The model as a build of a method stores it; None: as engines load its own checkpoint."""
    if quant is None:
        return model._replace(dtype="bf16") if narrowed(model, quant) else model
    quant = method(quant)
    if quant in _PLAIN:
        return model._replace(quantization=None, dtype=quant)
    own = model.quantization
    if own is not None and FORMATS[quant].dtype in {format_.dtype for format_ in own.formats}:
        return model
    rule = Rule(FORMATS[quant], linear=True)
    ignored = _left_alone(model) if quant == "nvfp4" else ()
    return model._replace(
        quantization=Quantization(quant, (rule,), ignored=ignored), dtype=FORMATS[quant].dtype
    )


def mixture(model: Model) -> bool:
    """Whether tokens are routed to experts."""
    return any(weight.bucket == "experts" for weight in model.weights)


def _left_alone(model: Model) -> tuple[str, ...]:
    """What NVFP4 builds leave in 16 bit: all but the routed experts; of models without, what goes into a recurrence."""
    routed = mixture(model)
    buckets = ("mixer", "attention", "index", "mlp", "shared") if routed else ("mixer",)
    names = {weight.name.removesuffix(".weight") for weight in model.weights if weight.bucket in buckets}
    cores = sorted(name.split(".N.", 1)[-1] for name in names if routed or not name.endswith("out_proj"))
    return tuple(f"re:.*\\.\\d+\\.{re.escape(core)}" for core in cores)


_P = TypeVar("_P", Attention, LatentAttention, CompressedAttention, State)


def _first(model: Model, kind: type[_P]) -> _P | None:
    parts = (part for layer in model.layers for part in layer)
    return next((part for part in parts if isinstance(part, kind)), None)


def rank_weights(
    model: Model,
    *,
    tp: int = 1,
    pp: int = 1,
    dp: int = 1,
    expert_parallel: bool = False,
    drafts: bool = False,
    drafter: Model | None = None,
    rocm: bool = False,
    tables_on_host: bool = False,
) -> RankWeights:
    """Weights of a rank.

    expert_parallel: whole experts on each rank; otherwise every expert is divided, over data-parallel ranks too.
    drafts: with the draft (MTP) layers, which are loaded under speculation, on the last stage.
    drafter: a draft model beside it, stored as it is itself, there too.
    rocm: padded for ROCm's kernels.
    tables_on_host: without tables of n-grams, whose rows are read over the bus.
    """
    if not model.weights:
        total = model.parameters_total * precision.WEIGHTS[model.dtype]
        return RankWeights({"stated": total / tp / pp}, (total / tp / pp,))
    share = _Share(model, tp, dp, expert_parallel, MXFP4_PADDING[1 if rocm else 0])
    kept = [weight for weight in model.weights if not (tables_on_host and _hashed(weight))]
    layers = share.parts(weight for weight in kept if ".N" in weight.name)
    once = share.parts(weight for weight in kept if ".N" not in weight.name)
    tower = sum(share.parts(model.tower_weights).values())
    draft = sum(share.parts(model.draft_weights).values()) if drafts else 0.0
    if drafter is not None:
        draft += sum(_Share(drafter, tp, 1, False, share.padding).parts(drafter.weights).values())
    head = once.pop("head", None)
    first = {name: size for name, size in once.items() if name in (*_TABLES, "position")}
    first |= {"tower": tower} if tower else {}
    first["rope"] = _rope(model)
    last = {"head": once["embedding"] if head is None else head, "norm": once.get("norm", 0.0)}
    last |= {"draft": draft} if draft else {}
    tied = head is None and pp == 1  # one table serves both ends
    counts = stage_layers(len(model.layers), pp)
    stages = []
    ends = 0
    for stage, count in enumerate(counts):
        here, ends = range(ends, ends + count), ends + count
        parts = {name: size * _in_stage(model, name, here) for name, size in layers.items()}
        for name, size in (first if stage == 0 else {"rope": first["rope"]}).items():
            parts[name] = parts.get(name, 0) + size
        for name, size in (last if stage == pp - 1 else {}).items():
            if not (tied and name == "head"):
                parts[name] = parts.get(name, 0) + size
        stages.append(parts)
    fullest = max(stages, key=lambda parts: sum(parts.values()))
    return RankWeights(fullest, tuple(sum(parts.values()) for parts in stages))


def table_bytes(model: Model) -> float:
    """Bytes of a model's tables of n-grams, on all ranks together; 0 where it has none."""
    share = _Share(model, 1, 1, False, MXFP4_PADDING[0])
    return sum(share.parts(weight for weight in model.weights if _hashed(weight)).values())


def _hashed(weight: Weight) -> bool:
    """Whether it is a table of n-grams, of which a token reads a few rows."""
    return weight.bucket == "lookup" and 1 < weight.chosen < weight.experts


def _in_stage(model: Model, bucket: str, here: range) -> float:
    """The share of a bucket's weights that lies in these layers, where it is known which have them."""
    kinds = {"mixer": (State,), "attention": (Attention, LatentAttention)}
    if bucket in kinds:
        holds = [any(isinstance(part, kinds[bucket]) for part in layer) for layer in model.layers]
        if sum(holds):
            return sum(holds[i] for i in here) / sum(holds)
    total = len(model.layers)
    dense = _dense_first(model)
    if dense and bucket == "mlp":
        return max(0, min(here.stop, dense) - here.start) / dense
    if dense and bucket in ("experts", "shared", "router"):
        return max(0, here.stop - max(here.start, dense)) / (total - dense)
    return len(here) / total


def _dense_first(model: Model) -> int:
    """Layers with a plain mlp before those with experts (DeepSeek, GLM, Kimi); 0 where they take turns or none is."""
    counts = dict.fromkeys(("mlp", "experts"), 0)
    for weight in model.weights:
        if weight.bucket in counts and ".N" in weight.name and len(weight.shape) > 1:
            counts[weight.bucket] = max(counts[weight.bucket], weight.copies)
    dense, sparse = counts["mlp"], counts["experts"]
    return dense if dense + sparse == len(model.layers) and 2 * dense < len(model.layers) else 0


def stage_layers(layers: int, pp: int) -> list[int]:
    """Layers of every pipeline stage, as vLLM divides them: what is left over goes to the stages before the last.

    >>> stage_layers(32, 4), stage_layers(61, 4)
    ([8, 8, 8, 8], [15, 15, 16, 15])
    """
    if pp > layers:
        raise InputError(f"{layers} layers can't be divided over {pp} pipeline stages")
    counts = [layers // pp] * pp
    for i in range(2, layers % pp + 2):
        counts[-i] += 1
    return counts


def rank_share(
    model: Model, *, tp: int = 1, dp: int = 1, expert_parallel: bool = False
) -> Callable[[Stored], float]:
    """How much of a tensor lies on one rank, before any padding of experts."""
    return _Share(model, tp, dp, expert_parallel, MXFP4_PADDING[0]).of


@formula
def vocabulary_rows(vocabulary: float, tensor_parallel_size: float) -> float:
    r"""Rows of the embedding table, or of the head, on one rank.

    .. math:: r = 64 \left\lceil \frac{V}{64} \right\rceil / t

    Parameters
    ----------
    vocabulary : float
        Entries of the vocabulary :math:`V` [-]
    tensor_parallel_size : float
        Ranks that share the table :math:`t` [-]

    Returns
    -------
    float
        Rows of a rank :math:`r` [-]

    Validity: vocabulary-parallel tables; t divides 64.
    Not counted: rows added for LoRA.
    Source: vLLM 0.33.0, model_executor/layers/vocab_parallel_embedding.py, DEFAULT_VOCAB_PADDING_SIZE.

    Granite's 49,155 entries become 49,216 rows:

    >>> vocabulary_rows(vocabulary=49155, tensor_parallel_size=2)
    24608.0
    """
    return 64 * ceil(vocabulary / 64) / tensor_parallel_size


class _Share:
    """How much of every tensor a rank holds."""

    def __init__(self, model: Model, tp: int, dp: int, expert_parallel: bool, padding: int) -> None:
        self.model, self.tp, self.padding = model, tp, padding
        self.expert_ranks, self.whole_experts = tp * dp, expert_parallel
        self.attention = _first(model, Attention)
        self.latent, self.state = _first(model, LatentAttention), _first(model, State)

    def parts(self, weights: Iterable[Weight]) -> dict[str, float]:
        """Bytes by bucket."""
        model, found = self.model, dict[str, float]()
        others = model.quantization.others if model.quantization else model.dtype
        element = precision.WEIGHTS[others if others in ("bf16", "fp16", "fp32") else "bf16"]
        for piece in stored(weights, model.layers, model.hidden_size, model.quantization):
            bucket = piece.weight.bucket
            if piece.format is None:
                size = piece.rows * piece.columns * element
            else:
                size = matrix_bytes(piece.rows, piece.columns, piece.format)
            size *= piece.matrices * self.of(piece) * self._padding(piece)
            found[bucket] = found.get(bucket, 0) + size
            if self.latent and piece.weight.name.endswith(("kv_b_proj.weight", "wkv_b.weight")):
                # absorbed decoding keeps keys' and values' halves in 16 bit beside the projection
                copies = piece.rows * piece.columns * 2 * piece.matrices * self.of(piece)
                found["absorbed"] = found.get("absorbed", 0) + copies
        return found

    def of(self, piece: Stored) -> float:
        """The share of a tensor that lies on one rank."""
        weight, tp = piece.weight, self.tp
        parts = weight.name.split(".")
        if weight.bucket in _TABLES:
            rows = weight.shape[0]
            return vocabulary_rows(rows, tp) / rows if len(weight.shape) > 1 else 1 / tp
        if weight.bucket in ("norm", "router", "index", "position") or any(p in _WHOLE for p in parts):
            return 1.0
        if weight.name.endswith(_OUTPUTS):
            return 1.0
        if weight.bucket == "experts":
            return self._experts(weight)
        if weight.bucket == "attention" and self.attention:
            return self._heads(parts, self.attention)
        if weight.bucket == "mixer" and self.state and self.state.heads == 1:
            return 1.0
        return 1 / tp

    def _experts(self, weight: Weight) -> float:
        ranks = self.expert_ranks
        if not self.whole_experts:
            return 1 / ranks
        return ceil(weight.experts / ranks) / weight.experts

    def _heads(self, parts: list[str], attention: Attention) -> float:
        """Keys and values of a rank are those of its KV heads, of which it has one at the least."""
        kv = max(1.0, attention.kv_heads / self.tp) / attention.kv_heads
        if any(part in _KEYS for part in parts):
            return kv
        if any(part in _FUSED for part in parts):
            queries, keys = attention.heads / self.tp, 2 * attention.kv_heads
            return (queries + keys * kv) / (attention.heads + keys)
        return 1 / self.tp

    def _padding(self, piece: Stored) -> float:
        """MXFP4 experts are padded for their kernels when they are loaded."""
        if piece.weight.bucket != "experts" or piece.format is None or piece.format.name != "mxfp4":
            return 1.0
        hidden = self.model.hidden_size
        inner = piece.columns if piece.rows in (hidden, 2 * hidden) else piece.rows
        inner = piece.columns if hidden == piece.columns == piece.rows else inner
        of_rank = inner if self.whole_experts else inner / self.expert_ranks
        to_inner, to_hidden = self.padding, MXFP4_PADDING[1]
        padded = to_inner * ceil(of_rank / to_inner) / of_rank
        return padded * to_hidden * ceil(hidden / to_hidden) / hidden


def _rope(model: Model) -> float:
    """The table of rotary angles, sine and cosine of every position in 16 bit."""
    positions = (model.max_context or 0) * _STRETCHED.get(model.family, 1)
    if attention := _first(model, Attention):
        return 2.0 * positions * attention.head_dim
    if latent := _first(model, LatentAttention):
        return 4.0 * positions * latent.rope
    pools = _first(model, CompressedAttention)  # one table for raw vectors and one for pooled ones, in fp32
    return 8.0 * positions * pools.rope if pools else 0.0
