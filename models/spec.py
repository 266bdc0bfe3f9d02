"""What a model is to a planner: its weight tensors and, layer by layer, what it caches.

A layer is a tuple of parts, since some run attention and a state side by side; a layer that caches nothing (an
mlp of its own, a no-op) has none.
"""

from __future__ import annotations

from collections.abc import Iterable
from math import prod
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from capplan.models.quantization import Quantization

# Which part of the model a weight belongs to. `embedding`, `position` and `lookup` (further tables: per-layer
# embeddings, n-grams) are looked up, not multiplied; `mixer` is
# what stands in for attention in a recurrent or convolution layer; `index` selects what sparse attention reads.
BUCKETS = (
    "embedding",
    "position",
    "lookup",
    "attention",
    "index",
    "mixer",
    "mlp",
    "experts",
    "shared",
    "router",
    "norm",
    "head",
)


class Weight(NamedTuple):
    """A weight tensor, or `copies` of the same shape (one a layer)."""

    name: str  # as transformers spells it, N standing for every number in it
    shape: tuple[
        int, ...
    ]  # (out features, in features) of a matrix; experts come first where they are one tensor
    bucket: str
    copies: int = 1
    experts: int = 1  # of which this is the weights of all (or the rows of a table of n-grams),
    chosen: int = 1  # and those a token is routed to

    @property
    def parameters(self) -> int:
        return prod(self.shape) * self.copies

    def below(self, prefix: str) -> Weight:
        """The same weight in a class that has the language model inside; `model.` is the model alone."""
        if prefix == "model." or not self.name.startswith("model."):
            return self
        return self._replace(name=prefix + self.name.removeprefix("model."))

    @property
    def active(self) -> int:
        """Parameters that one token passes through."""
        return self.parameters * self.chosen // self.experts


class Attention(NamedTuple):
    """MHA (kv_heads == heads), GQA, or MQA (kv_heads == 1): over the whole context, a window or a chunk."""

    heads: int
    kv_heads: int
    head_dim: int  # width of a key
    v_head_dim: int  # width of a value
    window: int | None = None  # tokens that stay in sight; None: the whole context
    chunked: bool = False  # the window does not slide but starts anew (Llama 4)
    shared: bool = False  # reads the cache of an earlier layer and keeps none
    index_dim: int = 0  # width of a key that selects blocks, kept for every token (MiniMax M3)
    index_every: int = 1  # tokens to one such key
    cross: bool = False  # over an encoder's tokens, kept once for a request
    held_spare: int = 0  # tokens that transformers holds beyond the window: it counts the token itself apart
    repeated: bool = False  # transformers keeps it once for every query head (Falcon 40B)


class LatentAttention(NamedTuple):
    """MLA: one latent vector and one rotary key a token, shared by all heads; no value of its own."""

    heads: int
    latent: int  # kv_lora_rank
    rope: int  # qk_rope_head_dim
    nope: int = 0  # qk_nope_head_dim, of the query
    v_head_dim: int = 0
    window: int | None = None  # tokens that stay in sight; None: the whole context
    roped: bool = True  # False: the layer has no rotary key; engines keep its place all the same
    shared: bool = False  # reads the latents of an earlier layer and keeps none
    index_dim: int = 0  # width of an indexer's key (DSA); 0: none, or the selection of an earlier layer
    index_every: int = 1  # tokens to one pooled key
    index_heads: int = 0
    index_fp32: bool = False  # transformers keeps the index keys in fp32, whatever the model's dtype
    top_k: int = 0  # tokens that an indexer, its own or an earlier layer's, lets through


class CompressedAttention(NamedTuple):
    """DeepSeek V4: raw vectors in a window, and one pooled vector for every `ratio` tokens; key and value are one.

    In V4.1 a few layers pool, and those after them read what they pooled.
    """

    heads: int
    width: int  # of the one vector that is key and value
    rope: int
    window: int
    ratio: int = 0  # tokens to one pooled vector; 0: the window alone
    overlap: bool = False  # neighbouring pools overlap by half: the ring holds two of everything
    index_dim: int = 0
    index_heads: int = 0
    top_k: int = 0
    reads_pooled: bool = False  # the pooled vectors of an earlier layer: it keeps its window alone
    index_pooled: bool = False  # index keys are made of the pooled vectors, not of tokens that wait


class State(NamedTuple):
    """What a recurrent or convolution layer keeps of a sequence: it does not grow with it.

    Engines keep one column of a convolution less than its kernel has. transformers keeps `held_spare` more, and has
    dtypes of its own.
    """

    kind: str  # mamba1, mamba2, gdn, kda, lightning, conv, rglru, rwkv, mlstm, ...
    heads: int = 1  # that tensor parallelism can divide; 1: every rank holds all
    recurrent: int = 0  # elements of the recurrent state, all heads
    recurrent_dtype: str = "fp32"  # what engines take: a format, or `model`: that of the model
    conv_channels: int = 0  # channels that are divided with the heads
    conv_kernel: int = 0  # columns that a convolution reaches over, the current one included
    conv_group_channels: int = 0  # channels of one group of keys and queries shared by its heads (Mamba-2)
    conv_groups: int = 0
    held_dtype: str = "fp32"  # of the recurrent state in transformers,
    held_conv_dtype: str = "model"  # and of the convolution's columns
    held_spare: int = 1


Part = Attention | LatentAttention | CompressedAttention | State
Layer = tuple[Part, ...]


class Model(NamedTuple):
    """A model: one entry of `layers` a layer, in order; every parameter in `weights`.

    A model class known only by its round size (the essay's 70B) has `parameters_stated` and no `weights`.
    """

    id: str
    name: str
    family: str  # the model_type of its config.json
    hidden_size: int
    layers: tuple[Layer, ...]
    weights: tuple[Weight, ...]
    dtype: str  # of the checkpoint's matrices: bf16, fp16, fp32, fp8, int8, nvfp4, mxfp4, int4
    vocab_size: int | None = None
    max_context: int | None = None  # tokens
    quantization: Quantization | None = None  # how a quantised checkpoint stores which matrices
    checkpoint_bytes_read: dict[str, int] | None = None  # by dtype, from the headers of the files themselves
    parameters_stated: int | None = None
    draft_layers: tuple[Layer, ...] = ()  # MTP layers, cached and loaded only under speculation
    draft_weights: tuple[Weight, ...] = ()
    tower_weights: tuple[Weight, ...] = ()  # vision and audio towers with their projectors
    basis: str = "read"  # how the dimensions are known: read | recalled | class-defaults | stated
    released: str | None = None
    aliases: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    source: str | None = None  # where the dimensions come from
    checked: str | None = None  # the day they were read there
    assumptions: tuple[str, ...] = ()  # what the reader took for granted

    @property
    def parameters_total(self) -> int:
        """Parameters of the language model: draft layers and towers are counted apart."""
        return self.parameters_stated or self.parameters(BUCKETS)

    @property
    def parameters_active(self) -> int:
        """Parameters a token passes through, embedding table and head included."""
        return self.parameters_stated or sum(weight.active for weight in self.weights)

    @property
    def parameters_active_without_embedding(self) -> int:
        """The other convention: the input table is looked up, and left out."""
        return self.parameters_active - self.parameters(("embedding", "position"))

    @property
    def drafts_cached(self) -> bool:
        return any(self.draft_layers)

    def parameters(self, buckets: Iterable[str]) -> int:
        wanted = set(buckets)
        return sum(weight.parameters for weight in self.weights if weight.bucket in wanted)

    @property
    def matrix_parameters(self) -> int:
        """Parameters of the layers' matrices; embedding, head, norms and biases apart."""
        return sum(weight.parameters for weight in self.weights if _multiplies(weight))

    @property
    def active_matrix_parameters(self) -> int:
        """Of those, what one token is multiplied by."""
        return sum(weight.active for weight in self.weights if _multiplies(weight))

    @property
    def head_parameters(self) -> int:
        """Parameters of the output projection as a matrix product, tied or not."""
        return (self.vocab_size or 0) * self.hidden_size


def _multiplies(weight: Weight) -> bool:
    return weight.bucket not in ("embedding", "position", "lookup", "norm", "head") and len(weight.shape) > 1
