"""What a model is to a planner: its weight tensors and, layer by layer, what it caches."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from math import prod

# Which part of the model a weight belongs to. `embedding` and `position` are looked up, not multiplied.
BUCKETS = ("embedding", "position", "attention", "mlp", "norm", "head")


@dataclass(frozen=True, slots=True)
class Weight:
    """A weight tensor, or `copies` of the same shape (one a layer)."""

    name: str  # as the checkpoint spells it, N standing for the layer number
    shape: tuple[int, ...]  # (out features, in features) of a matrix
    bucket: str
    copies: int = 1

    @property
    def parameters(self) -> int:
        return prod(self.shape) * self.copies


@dataclass(frozen=True, slots=True)
class FullAttention:
    """Attention over the whole context: MHA (kv_heads == heads), GQA, or MQA (kv_heads == 1)."""

    heads: int
    kv_heads: int
    head_dim: int  # width of a key
    v_head_dim: int  # width of a value

    @property
    def kv_elements_per_token(self) -> int:
        """Elements one token leaves in this layer's cache, keys and values together."""
        return self.kv_heads * (self.head_dim + self.v_head_dim)


@dataclass(frozen=True, slots=True)
class Model:
    """A decoder: one entry of `layers` a layer, in order; every parameter in `weights`.

    A model class known only by its round size (the essay's 70B) has `parameters_stated` and no `weights`.
    """

    id: str
    name: str
    family: str  # the model_type of its config.json
    hidden_size: int
    layers: tuple[FullAttention, ...]
    weights: tuple[Weight, ...]
    dtype: str  # of the checkpoint's matrices: bf16, fp16, fp32, fp8
    vocab_size: int | None = None
    max_context: int | None = None  # tokens
    parameters_stated: int | None = None
    basis: str = "read"  # how the dimensions are known: read | recalled | class-defaults | stated
    released: str | None = None
    aliases: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    source: str | None = None  # where the dimensions come from
    checked: str | None = None  # the day they were read there
    assumptions: tuple[str, ...] = ()  # what the reader took for granted

    @property
    def parameters_total(self) -> int:
        return self.parameters_stated or self.parameters(BUCKETS)

    @property
    def parameters_active(self) -> int:
        """Parameters a token passes through, embedding and head included; all of them in a dense model."""
        return self.parameters_total

    def parameters(self, buckets: Iterable[str]) -> int:
        wanted = set(buckets)
        return sum(weight.parameters for weight in self.weights if weight.bucket in wanted)

    @property
    def matrix_parameters_per_layer_stack(self) -> int:
        """Parameters of the layers' matrices: what one token is multiplied by, the head apart."""
        return sum(
            w.parameters for w in self.weights if w.bucket in ("attention", "mlp") and len(w.shape) > 1
        )

    @property
    def head_parameters(self) -> int:
        """Parameters of the output projection as a matrix product, tied or not."""
        return (self.vocab_size or 0) * self.hidden_size
