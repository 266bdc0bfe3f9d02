"""Latents as DeepSeek's FP8 cache packs them: a row of bytes for a token, of which the part that is turned stays in 16 bits.

512 byte   the latent in FP8 (e4m3fn)
 16 byte   four fp32 scales, each of 128 of its numbers
128 byte   64 bf16 numbers that are turned, and have no scale
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor

LATENT, ROPE, GROUP = 512, 64, 128
SCALES = LATENT // GROUP
BYTES = LATENT + 4 * SCALES + 2 * ROPE
_LARGEST = 448.0  # of e4m3fn


def packed(tokens: Tensor) -> Tensor:
    """Rows of bytes [..., 656] of latents [..., 576]; clamped before the cast, as what FP8 makes of an overflow differs."""
    import torch

    latent, rope = tokens.float().split([LATENT, ROPE], dim=-1)
    groups = latent.unflatten(-1, (SCALES, GROUP))
    scale = groups.abs().amax(-1, keepdim=True).clamp(min=1e-30) / _LARGEST
    narrow = (groups / scale).clamp(-_LARGEST, _LARGEST).to(torch.float8_e4m3fn).flatten(-2)
    parts = (narrow, scale.flatten(-2), rope.bfloat16())
    return torch.cat([part.contiguous().view(torch.uint8) for part in parts], -1)


def unpacked(rows: Tensor, dtype: torch.dtype) -> Tensor:  # type: ignore[name-defined]  # noqa: F821
    """Latents [..., 576] from rows of bytes [..., 656]."""
    import torch

    narrow, scale, rope = (part.contiguous() for part in rows.split([LATENT, 4 * SCALES, 2 * ROPE], dim=-1))
    groups = narrow.view(torch.float8_e4m3fn).float().unflatten(-1, (SCALES, GROUP))
    latent = groups * scale.view(torch.float32)[..., None]
    return torch.cat([latent.flatten(-2).to(dtype), rope.view(torch.bfloat16).to(dtype)], -1)


def held(tokens: Tensor) -> Tensor:
    """What a reader should find of latents [..., 576], in fp64: the nearest of FP8's values, looked up and not cast."""
    import torch

    from capplan.probes import paged

    latent, rope = tokens.float().split([LATENT, ROPE], dim=-1)
    groups = latent.unflatten(-1, (SCALES, GROUP))
    scale = groups.abs().amax(-1, keepdim=True).clamp(min=1e-30) / _LARGEST
    nearest = paged.held(groups, torch.float8_e4m3fn, scale)
    return torch.cat([nearest.flatten(-2), rope.bfloat16().double()], -1)
