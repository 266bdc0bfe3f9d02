"""Correct first: normal data, poisoned outputs, and the distance to fp64."""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING

from capplan.probes.probe import Device, Numerics

if TYPE_CHECKING:
    from torch import Tensor

# Relative Frobenius error of an output rounded to a dtype, against fp64 (torch 2.13, CPU, N(0, 1)); the bound is
# twice that: cuBLAS may add up the parts of a long K in the output's own 16 bits, once more rounded
ROUNDING = {"fp64": 1e-15, "fp32": 2.6e-7, "tf32": 3e-4, "fp16": 2.07e-4, "bf16": 1.66e-3}
ROOM = 2.0
_MANY = 2**20


def bound(dtype: str, inner: int) -> float:
    """The error that a product with an output of this dtype may have: that of rounding it and, in fp32, of adding up."""
    return ROOM * ROUNDING[dtype] * (max(1.0, inner / 1024) ** 0.5 if dtype == "fp32" else 1.0)


def normal(shape: tuple[int, ...], dtype: str, device: Device, seed: int) -> Tensor:
    """Normal random data, the same each time, and on every device but for large ones: never zeros or small integers, which draw less power (M2)."""
    import torch

    many = device.is_gpu and prod(shape) > _MANY  # minutes, if the host made them
    where = device.torch if many else "cpu"
    generator = torch.Generator(where).manual_seed(seed)
    made = torch.randn(shape, generator=generator, dtype=torch.float32, device=where)
    return made.to(device.torch, torch_dtype(dtype))


def fresh(shape: tuple[int, ...], dtype: str, device: Device) -> Tensor:
    """Normal random data made on the device itself, for buffers too large to be made on the host."""
    import torch

    if dtype.startswith("fp8"):  # normal_ has no FP8 kernel
        return torch.randn(shape, dtype=torch.bfloat16, device=device.torch).to(torch_dtype(dtype))
    return torch.randn(shape, dtype=torch_dtype(dtype), device=device.torch)


def poisoned(shape: tuple[int, ...], dtype: str, device: Device) -> Tensor:
    """An output full of NaN, so that an entry that a kernel leaves unwritten is seen."""
    import torch

    return torch.full(shape, float("nan"), dtype=torch_dtype(dtype), device=device.torch)


def torch_dtype(name: str) -> torch.dtype:  # type: ignore[name-defined]  # noqa: F821
    """The dtype of torch that a name stands for."""
    import torch

    names = {
        "fp64": torch.float64,
        "fp32": torch.float32,
        "bf16": torch.bfloat16,
        "fp16": torch.float16,
        "fp8": torch.float8_e4m3fn,
        "fp8_fn": torch.float8_e4m3fn,
        "fp8_fnuz": torch.float8_e4m3fnuz,
        "fp8_e5m2": torch.float8_e5m2,
        "uint8": torch.uint8,
    }
    return names[name]


def against(got: Tensor, expected: Tensor, bound: float, why: str = "") -> Numerics:
    """How far `got` is from `expected` (fp64, the same shape), and whether within `bound` of relative Frobenius error."""
    import torch

    if got.shape != expected.shape:
        return Numerics(
            False, 1.0, 0.0, 1.0, 0, bound, f"shape {tuple(got.shape)}, not {tuple(expected.shape)}"
        )
    got64, expected64 = got.detach().double(), expected.double()
    bad = int((~torch.isfinite(got64)).sum())
    size = float(expected64.norm())
    if bad or not size:
        said = f"{bad:,} of {got64.numel():,} entries are not finite" if bad else "the reference is all zeros"
        return Numerics(False, 1.0, 0.0, 1.0, bad, bound, said)
    off = got64 - expected64
    error = float(off.norm()) / size
    cosine = float((got64 * expected64).sum()) / (size * float(got64.norm()) or 1.0)
    far = f"relative error {error:.2e} is above {bound:.2e}" if error > bound else ""
    return Numerics(not (far or why), error, float(off.abs().max()), 1.0 - cosine, 0, bound, far or why)


def worst(several: list[Numerics]) -> Numerics:
    """The one that decides: a failed one, else the one nearest to its bound."""
    return max(several, key=lambda each: (not each.ok, each.rel_fro / each.bound))


def same_bits(first: Tensor, second: Tensor) -> bool:
    """Whether two runs gave the same bits, NaN included."""
    import torch

    return bool(torch.equal(first.contiguous().view(torch.uint8), second.contiguous().view(torch.uint8)))
