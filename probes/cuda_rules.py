"""What CUDA rejects of a scaled product and the CPU accepts, in plain Python: so that a green CI says something.

From torch's ScaledBlas.cpp (main, 2026) and the issues named beside the rules. Recipes:

    tensor  one scale a matrix           row    one scale a row
    block   1x128 by 128x128 (DeepSeek)  mxfp8  1x32, e8m0 scales        nvfp4  1x16, e4m3 scales
"""

from __future__ import annotations

from typing import NamedTuple

RECIPES = ("tensor", "row", "block", "mxfp8", "nvfp4")
BLOCK = 128


class Matrix(NamedTuple):
    """A matrix as its kernel is told of it; strides in elements."""

    shape: tuple[int, ...]
    stride: tuple[int, ...]
    dtype: str  # e4m3fn, e4m3fnuz, e5m2, e2m1, fp32, e8m0, bf16, fp16


class Call(NamedTuple):
    """A scaled product, a [M, K] by b [K, N]."""

    recipe: str
    a: Matrix
    b: Matrix
    scale_a: Matrix
    scale_b: Matrix
    out: str = "bf16"
    bias: str | None = None
    fast_accum: bool = False


def supported(recipe: str, kind: str, capability: tuple[int, int], arch: str) -> str | None:
    """Why a device has no such product at all, or None: that is no failure."""
    if kind == "rocm":
        fine = {"tensor": ("gfx942", "gfx950"), "row": ("gfx942", "gfx950"), "mxfp8": ("gfx950",)}
        return None if arch in fine.get(recipe, ()) else f"{arch} has no {recipe} product"
    if capability < (8, 9):
        return f"sm_{capability[0]}{capability[1]} has no FP8 units"
    if recipe == "block" and capability != (9, 0):
        return "1x128 scales are for sm_90 alone"
    if recipe in ("mxfp8", "nvfp4") and capability < (10, 0):
        return f"sm_{capability[0]}{capability[1]} has no {recipe} units"
    return None


def cuda_rules(call: Call, fnuz: bool = False) -> list[str]:
    """Every reason for which CUDA would reject a call; none for one that it takes.

    fnuz: of ROCm on gfx942, whose FP8 has another bias.

    >>> a = Matrix((64, 1000), (1000, 1), "e4m3fn")
    >>> b = Matrix((1000, 128), (1, 1000), "e4m3fn")
    >>> one = Matrix((), (), "fp32")
    >>> cuda_rules(Call("tensor", a, b, one, one))
    ['K 1,000 is no multiple of 16']
    """
    if call.recipe not in RECIPES:
        return [f"unknown recipe {call.recipe!r}; {', '.join(RECIPES)}"]
    if len(call.a.shape) != 2 or len(call.b.shape) != 2:
        return ["both matrices must have two dimensions"]
    return [*_matrices(call, fnuz), *_scales(call), *_output(call)]


def _matrices(call: Call, fnuz: bool) -> list[str]:
    """Shapes, layouts and formats of a and b."""
    (m, k), (k_b, n) = call.a.shape, call.b.shape
    wrong = [f"a has K {k:,} and b has {k_b:,}"] if k != k_b else []
    for name, size in (("K", k), ("N", n)):
        if size % 16:
            wrong.append(f"{name} {size:,} is no multiple of 16")
    if call.recipe == "block" and m % 4:
        wrong.append(f"M {m:,} is no multiple of 4, which 1x128 scales on sm_90 need (vLLM #49932)")
    if call.a.stride[1] != 1 or call.a.stride[0] < k:
        wrong.append("a is not row-major")
    if call.b.stride[0] != 1 or call.b.stride[1] < k_b:
        wrong.append("b is not column-major: keep weights as [N, K] and pass their transpose")
    formats = {call.a.dtype, call.b.dtype}
    if call.recipe == "nvfp4":
        return wrong + ([] if formats == {"e2m1"} else ["nvfp4 multiplies e2m1 by e2m1"])
    if formats == {"e5m2"}:
        wrong.append("e5m2 by e5m2 is not there")
    allowed = {"e4m3fnuz", "e5m2fnuz"} if fnuz else {"e4m3fn", "e5m2"}
    if not formats <= allowed:
        wrong.append(
            f"{' and '.join(sorted(formats))}: this device multiplies {' and '.join(sorted(allowed))}"
        )
    return wrong


def _scales(call: Call) -> list[str]:
    """Shapes, strides and formats of the scales."""
    (m, k), n = call.a.shape, call.b.shape[1]
    a, b = call.scale_a, call.scale_b
    scale_format = {"mxfp8": "e8m0", "nvfp4": "e4m3fn"}.get(call.recipe, "fp32")
    wrong = [f"scales must be {scale_format}"] if {a.dtype, b.dtype} != {scale_format} else []
    if call.recipe == "tensor":
        return wrong + [
            f"scale_{x} has {_count(s):,} entries, not 1" for x, s in (("a", a), ("b", b)) if _count(s) != 1
        ]
    if call.recipe == "row":
        for name, scale, shape in (("a", a, (m, 1)), ("b", b, (1, n))):
            if scale.shape != shape:
                wrong.append(f"scale_{name} is {scale.shape}, not {shape}")
            elif max(scale.stride, default=1) > max(shape):
                wrong.append(f"scale_{name} is not contiguous")
        return wrong
    if call.recipe == "block":
        along = -(-k // BLOCK)
        if a.shape != (m, along):
            wrong.append(f"scale_a is {a.shape}, not {(m, along)}")
        elif a.stride != (1, m):
            wrong.append(f"scale_a has strides {a.stride}, not {(1, m)}: it must be outer-dimension major")
        padded = -(-along // 4) * 4
        if b.shape != (padded, -(-n // BLOCK)):
            wrong.append(
                f"scale_b is {b.shape}, not {(padded, -(-n // BLOCK))}: blocks along K come in fours"
            )
        return wrong
    group = 32 if call.recipe == "mxfp8" else 16
    for name, scale, rows in (("a", a, m), ("b", b, n)):
        size = _up(rows, 128) * _up(_up(k, group) // group, 4)
        if _count(scale) != size:
            wrong.append(
                f"scale_{name} has {_count(scale):,} entries, not {size:,}: 128 rows by 4 groups a tile"
            )
    return wrong


def _output(call: Call) -> list[str]:
    wrong = (
        []
        if call.out in ("bf16", "fp16", "fp32")
        else [f"out {call.out!r}; bf16, fp16 and fp32 are accepted"]
    )
    if call.bias is not None and (call.bias not in ("bf16", "fp16") or call.out == "fp32"):
        wrong.append("a bias must be bf16 or fp16, and not with an fp32 output")
    if call.fast_accum and call.recipe == "nvfp4":
        wrong.append("fast accumulation is not for FP4")
    return wrong


def _up(size: int, to: int) -> int:
    return -(-size // to) * to


def _count(matrix: Matrix) -> int:
    size = 1
    for length in matrix.shape:
        size *= length
    return size
