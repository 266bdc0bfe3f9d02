"""Narrow formats: how a matrix is quantised for a recipe of cuda_rules, and what it stands for then, in fp64.

Always clamped before the cast: torch up to 2.11 makes NaN of what is too large for e4m3, later ones the largest value.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, NamedTuple

from capplan.probes.cuda_rules import BLOCK, Matrix

if TYPE_CHECKING:
    from torch import Tensor

LARGEST = {"e4m3fn": 448.0, "e4m3fnuz": 240.0, "e5m2": 57344.0}
# Error of a product of N(0, 1) matrices in a format, against the matrices before they were quantised: relative Frobenius,
# the same to 1% for scales of a tensor and of a row, whatever the device (5 seeds, torch 2.13)
FORMAT_ERROR = {"e4m3fn": 0.03735, "e4m3fnuz": 0.03735, "e5m2": 0.0743}
GROUP = {"mxfp8": 32, "nvfp4": 16}
_E2M1 = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)


class Quantised(NamedTuple):
    """A matrix [rows, K] in a narrow format."""

    data: Tensor  # as the kernel takes it
    scale: Tensor  # the same
    exact: Tensor  # fp64: what data and scale stand for


def fp8(name: str) -> torch.dtype:  # type: ignore[name-defined]  # noqa: F821
    """torch's dtype of e4m3fn, e4m3fnuz or e5m2."""
    import torch

    found: torch.dtype = getattr(torch, f"float8_{name}")
    return found


@cache
def unit_scale(device: object) -> Tensor:
    """A scale of one, made once: making it is a kernel too."""
    import torch

    return torch.ones((), device=device)


def narrow(x: Tensor, dtype: str, flavour: str) -> Tensor:
    """A matrix in a dtype of numerics; FP8 as a whole tensor, without its scale. flavour: fn or fnuz."""
    from capplan.probes.numerics import torch_dtype

    return quantised(x, "tensor", f"e4m3{flavour}").data if dtype == "fp8" else x.to(torch_dtype(dtype))


def quantised(x: Tensor, recipe: str, kind: str = "e4m3fn", *, weight: bool = False) -> Quantised:
    """A matrix in a recipe's format. weight: it is the right one, whose blocks are 128 by 128.

    x: [rows, K] fp32; K must be a multiple of 128 for `block`, of 32 for `mxfp8`, of 16 for `nvfp4`.
    """
    import torch

    if recipe in GROUP:
        return _grouped(x, recipe)
    most, rows, k = LARGEST[kind], x.shape[0], x.shape[1]
    if recipe == "tensor":
        scale = x.abs().amax() / most
        spread = scale.expand(rows, k)
    elif recipe == "row":
        scale = x.abs().amax(dim=1, keepdim=True) / most
        spread = scale.expand(rows, k)
    else:
        high = BLOCK if weight else 1
        padded = torch.nn.functional.pad(x, (0, 0, 0, -rows % high))
        tiles = padded.view(-1, high, k // BLOCK, BLOCK)
        scale = tiles.abs().amax(dim=(1, 3)).clamp(min=1e-30) / most
        spread = scale.repeat_interleave(high, 0)[:rows].repeat_interleave(BLOCK, 1)
    data = (x / spread).clamp(-most, most).to(fp8(kind))
    exact = data.double() * spread.double()
    if recipe == "block":  # outer-dimension major; of weights, blocks along K in fours
        pad = -scale.shape[1] % 4 if weight else 0
        scale = torch.nn.functional.pad(scale, (0, pad)).t().contiguous().t()
        scale = scale.contiguous() if weight else scale
    return Quantised(data, scale, exact)


def _grouped(x: Tensor, recipe: str) -> Quantised:
    """Scales of 32 or 16 neighbours, in the order of tiles that the tensor cores read."""
    import torch

    group = GROUP[recipe]
    tiles = x.view(x.shape[0], -1, group)
    largest = tiles.abs().amax(dim=2)
    if recipe == "mxfp8":
        most = LARGEST["e4m3fn"]
        power = torch.ceil(torch.log2(largest.clamp(min=1e-30) / most)).clamp(-127, 127)
        scale, held = torch.exp2(power), (power + 127).to(torch.uint8).view(torch.float8_e8m0fnu)
        data = (tiles / scale[..., None]).clamp(-most, most).to(torch.float8_e4m3fn)
        exact = data.double() * scale.double()[..., None]
        return Quantised(data.view(x.shape), tiled(held), exact.view(x.shape))
    held = (largest / _E2M1[-1]).clamp(2.0**-9, LARGEST["e4m3fn"]).to(torch.float8_e4m3fn)
    scale = held.float()
    levels = torch.tensor(_E2M1, device=x.device)
    middles = (levels[1:] + levels[:-1]) / 2
    code = torch.bucketize((tiles / scale[..., None]).abs().clamp(max=_E2M1[-1]), middles)
    exact = (levels[code] * tiles.sign()).double() * scale.double()[..., None]
    nibbles = (code + 8 * (tiles < 0)).to(torch.uint8).view(x.shape)
    data = (nibbles[:, 0::2] | (nibbles[:, 1::2] << 4)).view(torch.float4_e2m1fn_x2)
    return Quantised(data, tiled(held), exact.view(x.shape))


def tiled(scale: Tensor) -> Tensor:
    """Scales [rows, groups] in tiles of 128 by 4, each as 32 rows of 16: cuBLAS' layout SWIZZLE_32_4_4; flat."""
    import torch

    rows, groups = scale.shape
    flat = torch.nn.functional.pad(scale.view(torch.uint8), (0, -groups % 4, 0, -rows % 128))
    tiles = flat.view(flat.shape[0] // 128, 128, -1, 4).permute(0, 2, 1, 3)
    return tiles.reshape(-1, 4, 32, 4).transpose(1, 2).reshape(-1).view(scale.dtype)


def described(x: Tensor, of: str | None = None) -> Matrix:
    """A tensor as cuda_rules reads it; of: the name of its format where torch's is another."""
    names = {"float32": "fp32", "bfloat16": "bf16", "float16": "fp16", "float8_e8m0fnu": "e8m0"}
    own = str(x.dtype).removeprefix("torch.")
    return Matrix(tuple(x.shape), tuple(x.stride()), of or names.get(own, own.removeprefix("float8_")))
