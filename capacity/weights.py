"""What the weights take."""

from __future__ import annotations

from capplan.capacity.formula import formula


@formula
def weight_bytes(parameters: float, bytes_per_parameter: float) -> float:
    r"""Bytes of the weights when every parameter has the same precision.

    .. math:: W = P \, b_w

    Parameters
    ----------
    parameters : float
        Parameters of the model :math:`P` [-]
    bytes_per_parameter : float
        Bytes of one parameter :math:`b_w` [byte]

    Returns
    -------
    float
        Weights :math:`W` [byte]

    Validity: one precision throughout: a 16-bit checkpoint, or the whiteboard.
    Not counted: embeddings and norms that a quantized checkpoint leaves in 16 bit.
    Source: the definition.

    70B parameters in FP8 are 65 GiB:

    >>> round(weight_bytes(parameters=70e9, bytes_per_parameter=1) / 2**30, 4)
    65.1926
    """
    return parameters * bytes_per_parameter


@formula
def quantized_weight_bytes(
    matrix_parameters: float,
    bytes_per_matrix_parameter: float,
    other_parameters: float,
    bytes_per_other_parameter: float,
) -> float:
    r"""Bytes of a quantized checkpoint: the layers' matrices quantized, everything else as trained.

    .. math:: W = P_m \, b_m + P_o \, b_o

    Parameters
    ----------
    matrix_parameters : float
        Parameters of the layers' matrices :math:`P_m` [-]
    bytes_per_matrix_parameter : float
        Bytes of one of them, scales included :math:`b_m` [byte]
    other_parameters : float
        Embedding, head, norms and biases :math:`P_o` [-]
    bytes_per_other_parameter : float
        Bytes of one of them :math:`b_o` [byte]

    Returns
    -------
    float
        Weights :math:`W` [byte]

    Validity: checkpoints that quantize every linear layer and leave the embedding, the head, norms and
    biases in 16 bit, as FP8 and INT4 checkpoints of dense models usually do.
    Not counted: scales kept per tensor, and what an engine repacks or pads at load.
    Source: vLLM 0.33.0, model_executor/layers/quantization (the head and the embedding are not quantized).

    Llama 3.3 70B in FP8: 68.5 GB of matrices and 2.1 GB of parameters at two bytes:

    >>> quantized_weight_bytes(68_451_041_280, 1, 2_102_665_216, 2)
    72656371712
    """
    return matrix_parameters * bytes_per_matrix_parameter + other_parameters * bytes_per_other_parameter
