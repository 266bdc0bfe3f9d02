"""Activations of 16 bits to FP8 with scales made as they come: one for a row, or for each 128 numbers of it."""
# mypy: disable-error-code="no-untyped-def, untyped-decorator, no-untyped-call"

from __future__ import annotations

from typing import TYPE_CHECKING

import triton
import triton.language as tl

from capplan.probes.kernels.paged_decode import INTERPRETED

if TYPE_CHECKING:
    from torch import Tensor


@triton.jit
def _nearest(number):
    """What e4m3fn holds of a number, as fp32: the interpreter rounds down as it casts, and what fits stays as it is."""
    bits = number.to(tl.int32, bitcast=True)
    normal = ((bits + 0x7FFFF + ((bits >> 20) & 1)) & -0x100000).to(tl.float32, bitcast=True)
    subnormal = (number + 24576.0) - 24576.0  # in steps of 2^-9
    return tl.where(tl.abs(number) < 2.0**-6, subnormal, normal)


@triton.jit
def _quantise(
    x, out, scales, x_row, scale_row, scale_group,
    LARGEST: tl.constexpr, GROUP: tl.constexpr, WIDTH: tl.constexpr, ROUND: tl.constexpr,
):  # fmt: skip
    row, group = tl.program_id(0).to(tl.int64), tl.program_id(1)
    lane = tl.arange(0, WIDTH)
    real = lane < GROUP
    at = row * x_row + group * GROUP + lane
    number = tl.load(x + at, real, 0.0).to(tl.float32)
    scale = tl.maximum(tl.max(tl.abs(number), 0), 1e-30) / LARGEST
    held = tl.minimum(tl.maximum(number / scale, -LARGEST), LARGEST)  # else an overflow may be NaN
    if ROUND:
        held = _nearest(held)
    tl.store(out + at, held.to(out.dtype.element_ty), real)
    tl.store(scales + row * scale_row + group * scale_group, scale)


def quantise(x: Tensor, out: Tensor, scales: Tensor, group: int, largest: float) -> None:
    """x [row, K], contiguous, to `out` of the same shape in FP8 and `scales` [row, K / group] fp32, in any strides."""
    rows, inner = x.shape
    width = triton.next_power_of_2(group)
    _quantise[rows, inner // group](
        x, out, scales, x.stride(0), *scales.stride(),
        LARGEST=largest, GROUP=group, WIDTH=width, ROUND=INTERPRETED, num_warps=max(1, min(16, width // 512)),
    )  # fmt: skip
