"""Split-KV decode attention over paged latents (MLA, absorbed): one tile of the cache is both the keys and the values.

A cache is of bf16, of FP8 with one scale, or of the packed rows of latent_rows.

A program takes the tokens of one split of one sequence for a block of heads, so a latent is read once a block and from
memory once, as the blocks of a sequence run side by side. The splits are joined by paged_decode.join.
"""
# mypy: disable-error-code="no-untyped-def, untyped-decorator, no-untyped-call"

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import torch
import triton
import triton.language as tl

from capplan.probes import latent_rows
from capplan.probes.kernels.paged_decode import LOG2_E, products

if TYPE_CHECKING:
    from torch import Tensor

    from capplan.probes.paged import Cache


class Tiling(NamedTuple):
    """Heads of a block, tokens of a tile, and what the compiler may use to hide the latency of memory."""

    rows: int
    tokens: int
    warps: int
    stages: int


@triton.jit
def _attend_split(
    q, pages, scales, turned_pages, table, lengths, means, lse, scale_log2, splits, heads,
    q_sequence, q_head, page_stride, slot_stride, table_sequence,
    ROWS: tl.constexpr, TOKENS: tl.constexpr, PAGE: tl.constexpr, LATENT: tl.constexpr, ROPE: tl.constexpr,
    GROUP: tl.constexpr, DOT: tl.constexpr,
):  # fmt: skip
    # blocks of heads run fastest: they read the same latents, which the L2 cache still holds
    block, split, sequence = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    length = tl.load(lengths + sequence)
    share = tl.cdiv(tl.cdiv(length, splits), TOKENS) * TOKENS
    start = split * share
    end = tl.minimum(start + share, length)

    lane, column, turned = tl.arange(0, TOKENS), tl.arange(0, LATENT), LATENT + tl.arange(0, ROPE)
    head = block * ROWS + tl.arange(0, ROWS)
    real = head < heads
    at = q + sequence * q_sequence + head[:, None] * q_head
    asked = tl.load(at + column[None, :], real[:, None], 0.0).to(DOT)
    asked_turned = tl.load(at + turned[None, :], real[:, None], 0.0).to(DOT)

    top = tl.full([ROWS], -float("inf"), tl.float32)
    weight = tl.zeros([ROWS], tl.float32)
    total = tl.zeros([ROWS, LATENT], tl.float32)
    for first in range(start, end, TOKENS):
        token = first + lane
        live = token < end
        if PAGE % TOKENS == 0:
            page = tl.load(table + sequence * table_sequence + first // PAGE).to(tl.int64)
        else:
            page = tl.load(table + sequence * table_sequence + token // PAGE, live, 0).to(tl.int64)
        place = page * page_stride + token % PAGE * slot_stride
        stored = tl.load(pages + place[:, None] + column[None, :], live[:, None], 0.0)
        # packed: FP8, then a scale for each GROUP of them in fp32, then what is turned in 16 bits
        if GROUP:
            number = tl.arange(0, LATENT // GROUP)
            scale_at = place[:, None] // 4 + LATENT // 4 + number[None, :]
            each = tl.load(scales + scale_at, live[:, None], 0.0)
            cut = tl.reshape(stored.to(tl.float32), [TOKENS, LATENT // GROUP, GROUP])
            latent = tl.reshape(cut * each[:, :, None], [TOKENS, LATENT]).to(DOT)
            rope_at = place[:, None] // 2 + (LATENT + 4 * (LATENT // GROUP)) // 2 + turned[None, :] - LATENT
            rope = tl.load(turned_pages + rope_at, live[:, None], 0.0).to(DOT)
        else:
            latent = stored.to(DOT)
            rope = tl.load(pages + place[:, None] + turned[None, :], live[:, None], 0.0).to(DOT)
        scores = tl.dot(asked, tl.trans(latent), input_precision="ieee")
        scores = tl.dot(asked_turned, tl.trans(rope), scores, input_precision="ieee") * scale_log2
        scores = tl.where(live[None, :], scores, -float("inf"))
        higher = tl.maximum(top, tl.max(scores, 1))
        fade = tl.exp2(top - higher)
        p = tl.exp2(scores - higher[:, None])
        weight = weight * fade + tl.sum(p, 1)
        total = tl.dot(p.to(DOT), latent, total * fade[:, None], input_precision="ieee")
        top = higher

    some = end > start
    weight = tl.where(some, weight, 1.0)
    cell = (sequence * heads + head).to(tl.int64) * splits + split
    tl.store(lse + cell, tl.where(some, top + tl.log2(weight), -float("inf")), real)
    tl.store(means + cell[:, None] * LATENT + column[None, :], total / weight[:, None], real[:, None])


def attend_splits(
    q: Tensor, cache: Cache, scale: float, tiling: Tiling, means: Tensor, lse: Tensor
) -> tuple[Tensor, Tensor]:
    """Means of the latents [sequence, head, split, latent] and log2-sum-exp2 of the scores [sequence, head, split], fp32.

    q: [sequence, head, latent + rope], both powers of two. Both are written to, and given back.
    """
    batch, heads, width = q.shape
    splits, latent = means.shape[2:]
    pages = scales = turned = cache.k
    if cache.k.dtype == torch.uint8:
        pages, scales, turned = (
            cache.k.view(dtype) for dtype in (torch.float8_e4m3fn, torch.float32, torch.bfloat16)
        )
    _attend_split[triton.cdiv(heads, tiling.rows), splits, batch](
        q, pages, scales, turned, cache.table, cache.lengths, means, lse, scale * cache.k_scale * LOG2_E, splits, heads,
        *q.stride()[:2], *cache.k.stride()[:2], cache.table.stride(0),
        ROWS=tiling.rows, TOKENS=tiling.tokens, PAGE=cache.page, LATENT=latent, ROPE=width - latent,
        GROUP=0 if pages is scales else latent_rows.GROUP,
        DOT=products(q.dtype, pages.dtype if pages is scales else q.dtype),  # what has its own scale needs bf16's range
        num_warps=tiling.warps, num_stages=tiling.stages,
    )  # fmt: skip
    return means, lse
