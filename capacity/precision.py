"""How many bytes a number takes, by the names engines use."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from math import ceil

from capplan.errors import InputError, UnknownNameError

# bytes a parameter, with the scales of a group where the format has them
WEIGHTS = {
    "fp32": 4.0,
    "bf16": 2.0,
    "fp16": 2.0,
    "fp8": 1.0,
    "int8": 1.0,
    "mxfp4": (4 + 8 / 32) / 8,  # OCP Microscaling v1.0: an 8-bit scale for 32 elements
    "nvfp4": (4 + 8 / 16) / 8,  # an 8-bit scale for 16 elements
    "fp4": 0.5,  # no scales: the whiteboard's half byte
    "int4": 0.5,
}

# bytes of one head's key and value of d and v elements; names as in vLLM's --kv-cache-dtype
_HEAD: dict[str, Callable[[int, int], float]] = {
    "fp32": lambda d, v: 4 * (d + v),
    "bf16": lambda d, v: 2 * (d + v),
    "fp16": lambda d, v: 2 * (d + v),
    "fp8": lambda d, v: d + v,  # scales are a few numbers a layer
    "int8": lambda d, v: d + v,
    "fp8_per_token_head": lambda d, v: d + v + 8,  # an fp32 scale each for key and value
    "int8_per_token_head": lambda d, v: d + v + 8,
    "int4_per_token_head": lambda d, v: (d + v) / 2 + 8,
    "nvfp4": lambda d, v: (d + v) * (1 / 2 + 1 / 16),
    "turboquant_k8v4": lambda d, v: _even(d + v / 2 + 4),
    "turboquant_4bit_nc": lambda d, v: _even(d / 2 + 2 + v / 2 + 4),
    "turboquant_k3v4_nc": lambda d, v: _even(ceil(3 * d / 8) + 2 + v / 2 + 4),
    "turboquant_3bit_nc": lambda d, v: _even(ceil(3 * d / 8) + 2 + ceil(3 * v / 8) + 4),
}

# bytes of a latent of c elements with a rotary key of r
_LATENT: dict[str, Callable[[int, int], float]] = {
    "fp32": lambda c, r: 4 * (c + r),
    "bf16": lambda c, r: 2 * (c + r),
    "fp16": lambda c, r: 2 * (c + r),
    "fp8": lambda c, r: c + r,
    "int8": lambda c, r: c + r,
    "fp8_ds_mla": lambda c, r: c + c / 128 * 4 + 2 * r,  # an fp32 scale for 128; the rotary key in bf16
    "nvfp4_ds_mla": lambda c, r: c / 2 + c / 16 + r,
}

# bytes of DeepSeek V4's one vector of w elements, r of them rotary
_COMPRESSED: dict[str, Callable[[int, int], float]] = {
    "fp32": lambda w, r: 4 * w,
    "bf16": lambda w, r: 2 * w,
    "fp16": lambda w, r: 2 * w,
    "fp8": lambda w, r: w - r + 2 * r + 8,  # what engines store under fp8: fp8_ds_mla
    "fp8_ds_mla": lambda w, r: w - r + 2 * r + 8,
}

# every format of the cache
KV = tuple(dict.fromkeys((*_HEAD, *_LATENT, *_COMPRESSED)))


def _even(size: float) -> float:
    return 2 * ceil(size / 2)


def _format(kv: str, table: dict[str, Callable[[int, int], float]], what: str) -> Callable[[int, int], float]:
    if kv not in table:
        raise InputError(f"{kv!r} is not a format of {what}; one of {', '.join(table)}")
    return table[kv]


def head_bytes(kv: str, head_dim: int, v_head_dim: int) -> float:
    """Bytes of the key and value of one head and token, scales included.

    >>> head_bytes("bf16", 128, 128), head_bytes("nvfp4", 128, 128), head_bytes("turboquant_k3v4_nc", 128, 128)
    (512, 144.0, 118)
    """
    return _format(kv, _HEAD, "keys and values")(head_dim, v_head_dim)


def latent_bytes(kv: str, latent: int, rope: int) -> float:
    """Bytes of one latent vector with its rotary key.

    >>> latent_bytes("bf16", 512, 64), latent_bytes("fp8_ds_mla", 512, 64), latent_bytes("nvfp4_ds_mla", 512, 64)
    (1152, 656.0, 352.0)
    """
    return _format(kv, _LATENT, "latent attention")(latent, rope)


def compressed_bytes(kv: str, width: int, rope: int) -> float:
    """Bytes of one vector of compressed attention.

    >>> compressed_bytes("bf16", 512, 64), compressed_bytes("fp8_ds_mla", 512, 64)
    (1024, 584)
    """
    return _format(kv, _COMPRESSED, "compressed attention")(width, rope)


def index_bytes(width: int) -> float:
    """Bytes of an indexer's key: fp8, with an fp32 scale for 128 elements.

    >>> index_bytes(128)
    132
    """
    return width + 4 * ceil(width / 128)


_SPELLINGS = {
    "float32": "fp32",
    "float": "fp32",
    "bfloat16": "bf16",
    "float16": "fp16",
    "half": "fp16",
    "fp8_e4m3": "fp8",
    "fp8_e5m2": "fp8",
    "e4m3": "fp8",
    "e5m2": "fp8",
    "w8a8": "int8",
}

# the precision a product runs in when the accelerator has no path for the stored one
_MATRIX_RATE = {"nvfp4": "fp4", "mxfp4": "bf16", "int4": "bf16"}  # the last two leave activations in 16 bit


def canonical(name: str, table: Iterable[str], noun: str) -> str:
    """One name for a precision: 'float16' and 'half' are 'fp16'. Raises UnknownNameError."""
    if not isinstance(name, str):
        raise InputError(f"{noun} {name!r} is not the name of a precision, such as fp8")
    wanted = name.strip().lower().replace("-", "_")
    wanted = _SPELLINGS.get(wanted, wanted)
    if wanted not in table:
        raise UnknownNameError(noun, name, table, f"one of {', '.join(table)}")
    return wanted


def matrix_rate(weights: str, dense_flops: dict[str, float]) -> tuple[str, float] | None:
    """The precision whose dense rate a product with these weights runs at, and that rate [FLOP/second].

    Weights stored in a precision that the accelerator does not multiply in are widened first, to bf16, or
    fp16 where there is no bf16; None if the accelerator's rates are not known.
    """
    for dtype in (_MATRIX_RATE.get(weights, weights), "bf16", "fp16", "fp32"):
        if rate := dense_flops.get(dtype):
            return dtype, rate
    return None
