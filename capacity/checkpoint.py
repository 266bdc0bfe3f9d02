"""What a checkpoint takes on disk and, before an engine repacks it, in memory: tensor by tensor."""

from __future__ import annotations

from collections.abc import Iterable
from math import ceil
from typing import NamedTuple

from capplan.capacity import precision
from capplan.capacity.formula import formula
from capplan.models.quantization import Format
from capplan.models.spec import BUCKETS, Model, Weight
from capplan.models.stored import stored


class Part(NamedTuple):
    """The tensors of one bucket that are stored in one format, scales included."""

    dtype: str
    bucket: str
    parameters: int
    bytes: float


class Checkpoint(NamedTuple):
    """The bytes of a model's tensors."""

    parts: tuple[Part, ...]

    @property
    def bytes(self) -> float:
        return sum(part.bytes for part in self.parts)

    @property
    def parameters(self) -> int:
        return sum(part.parameters for part in self.parts)

    def by_dtype(self) -> dict[str, float]:
        """Bytes in each format, the largest first."""
        return self._by(0)

    def by_bucket(self) -> dict[str, float]:
        """Bytes in each part of the model, the largest first."""
        return self._by(1)

    def _by(self, field: int) -> dict[str, float]:
        found: dict[str, float] = {}
        for part in self.parts:
            key = str(part[field])
            found[key] = found.get(key, 0) + part.bytes
        return dict(sorted(found.items(), key=lambda item: -item[1]))


def checkpoint_bytes(model: Model, *, drafts: bool = False) -> Checkpoint:
    """The bytes of a model as its checkpoint stores it; a model without a list of tensors has one precision.

    drafts: with the draft (MTP) layers, which a checkpoint that has them ships and an engine loads under speculation.
    """
    if not model.weights:
        size = precision.WEIGHTS[model.dtype]
        return Checkpoint((Part(model.dtype, "mlp", model.parameters_total, model.parameters_total * size),))
    found: dict[tuple[str, str], Part] = {}
    for dtype, bucket, parameters, size in _pieces(
        model, (*model.weights, *(_drafts(model) if drafts else ()))
    ):
        so_far = found.get((dtype, bucket), Part(dtype, bucket, 0, 0.0))
        found[dtype, bucket] = Part(dtype, bucket, so_far.parameters + parameters, so_far.bytes + size)
    return Checkpoint(
        tuple(sorted(found.values(), key=lambda part: (BUCKETS.index(part.bucket), part.dtype)))
    )


# families whose checkpoints ship every draft layer with its own copy of the embedding and the head
_COPIED_TABLES = ("deepseek_v3", "deepseek_v32", "glm4_moe", "glm_moe_dsa")


def _drafts(model: Model) -> tuple[Weight, ...]:
    tables = [weight for weight in model.weights if weight.bucket in ("embedding", "head")]
    copied = model.draft_weights and model.family in _COPIED_TABLES
    return model.draft_weights + tuple(tables * len(model.draft_layers) if copied else ())


def _pieces(model: Model, weights: Iterable[Weight]) -> Iterable[tuple[str, str, int, float]]:
    others = model.quantization.others if model.quantization else model.dtype
    for piece in stored(weights, model.layers, model.hidden_size, model.quantization):
        elements = piece.rows * piece.columns
        if piece.format is None:
            size, dtype = elements * precision.WEIGHTS[others], others
        else:
            size, dtype = matrix_bytes(piece.rows, piece.columns, piece.format), piece.format.name
        yield dtype, piece.weight.bucket, elements * piece.matrices, size * piece.matrices


def matrix_bytes(rows: int, columns: int, stored_as: Format) -> float:
    """Bytes of one matrix in a format, with everything that is kept beside it.

    >>> from capplan.models.quantization import Format
    >>> matrix_bytes(4096, 4096, Format("int4", 4, 1, 128, scale_bytes=2, zero_bits=4)) * 8 / 4096**2
    4.15625
    """
    scales = scales_of_matrix(rows, columns, stored_as.rows or rows, stored_as.columns or columns)
    return quantized_matrix_bytes(
        rows * columns,
        stored_as.bits / 8,
        scales,
        stored_as.scale_bytes + stored_as.zero_bits / 8,
        columns * stored_as.column_bytes + stored_as.matrix_bytes,
    )


@formula
def scales_of_matrix(rows: float, columns: float, block_rows: float, block_columns: float) -> float:
    r"""Scales that a quantized matrix is stored with.

    .. math:: S = \left\lceil \frac{r}{b_r} \right\rceil \left\lceil \frac{c}{b_c} \right\rceil

    Parameters
    ----------
    rows : float
        Output features :math:`r` [-]
    columns : float
        Input features :math:`c` [-]
    block_rows : float
        Rows that share a scale; all of them for one scale a tensor, 1 for a group :math:`b_r` [-]
    block_columns : float
        Columns that share a scale :math:`b_c` [-]

    Returns
    -------
    float
        Scales of the matrix :math:`S` [-]

    Validity: a scale for a tensor, a row, a group of a row or a block; a block that is not full has one too.
    Not counted: a second level of scales.
    Source: DeepSeek-AI 2024, "DeepSeek-V3 Technical Report", section 3.3.2 (blocks of 128 x 128).

    DeepSeek V3's key-value down projection, 576 x 7168, whose last row of blocks is half full:

    >>> scales_of_matrix(rows=576, columns=7168, block_rows=128, block_columns=128)
    280
    """
    return ceil(rows / block_rows) * ceil(columns / block_columns)


@formula
def quantized_matrix_bytes(
    elements: float, bytes_per_element: float, scales: float, bytes_per_scale: float, other_bytes: float
) -> float:
    r"""Bytes of a quantized matrix with its scales.

    .. math:: W = n \, b + S \, b_s + o

    Parameters
    ----------
    elements : float
        Elements of the matrix :math:`n` [-]
    bytes_per_element : float
        Bytes of one, a half for four bits :math:`b` [byte]
    scales : float
        Scales it is stored with :math:`S` [-]
    bytes_per_scale : float
        Bytes of one, with its zero point where there is one :math:`b_s` [byte]
    other_bytes : float
        What is kept once: a scale of the scales, of the inputs, the group of every column :math:`o` [byte]

    Returns
    -------
    float
        The stored matrix :math:`W` [byte]

    Validity: elements packed without gaps, as in FP8, MXFP4, NVFP4, AWQ, GPTQ and compressed-tensors files.
    Not counted: what an engine pads or repacks at load; the header of the file.
    Source: OCP 2023, "Microscaling Formats (MX) v1.0", section 5 (a scale of 8 bits for 32 elements).

    The experts of gpt-oss 120B, most of its 65.25 GB: 36 layers of 128 with 24.9M parameters each, in MXFP4:

    >>> experts = 36 * 128 * 3 * 2880 * 2880
    >>> quantized_matrix_bytes(experts, 0.5, experts / 32, 1, other_bytes=0) / 1e9
    60.9140736
    """  # fmt: skip
    return elements * bytes_per_element + scales * bytes_per_scale + other_bytes
