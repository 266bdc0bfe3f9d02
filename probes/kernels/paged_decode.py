"""Split-KV decode attention over a paged cache: one new token a sequence, K and V read once for a group of query heads.

A program takes the tokens of one split of one sequence for one KV head; all query heads of the group are the rows of its
products. A second kernel joins the splits by their log-sum-exp. Softmax is in powers of two.
"""
# mypy: disable-error-code="no-untyped-def, untyped-decorator, no-untyped-call"

from __future__ import annotations

import os
from typing import TYPE_CHECKING, NamedTuple

import torch
import triton
import triton.language as tl

if TYPE_CHECKING:
    from torch import Tensor

    from capplan.probes.paged import Cache

LOG2_E = 1.4426950408889634
# The interpreter multiplies the bits of bfloat16 as if they were integers; in float32 it is right
INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"


def products(queries: torch.dtype, cache: torch.dtype) -> tl.dtype:
    """The dtype in which queries meet a cache.

    A number of FP8 becomes one of fp16 in half an instruction, and none is lost; to bf16 it takes three, one of them at a
    quarter of the rate, and reading the cache would wait for it.
    """
    if INTERPRETED or queries == torch.float32:
        return tl.float32
    return tl.float16 if cache.itemsize == 1 or queries == torch.float16 else tl.bfloat16


class Tiling(NamedTuple):
    """Tokens of a tile, and what the compiler may use to hide the latency of memory behind the products."""

    tokens: int
    warps: int
    stages: int


@triton.jit
def _attend_split(
    q, k_pages, v_pages, table, lengths, means, lse, scale_log2, splits,
    q_sequence, q_head, k_page, k_slot, k_head, v_page, v_slot, v_head, table_sequence,
    GROUP: tl.constexpr, ROWS: tl.constexpr, TOKENS: tl.constexpr, PAGE: tl.constexpr, WIDTH: tl.constexpr,
    DOT: tl.constexpr,
):  # fmt: skip
    # KV heads run fastest: what neighbours read lies side by side in memory
    kv_head, split, sequence = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    length = tl.load(lengths + sequence)
    share = (
        tl.cdiv(tl.cdiv(length, splits), TOKENS) * TOKENS
    )  # whole tiles: only the last one of all is ragged
    start = split * share
    end = tl.minimum(start + share, length)

    row, lane, column = tl.arange(0, ROWS), tl.arange(0, TOKENS), tl.arange(0, WIDTH)
    real = row < GROUP  # products have at least 16 rows; those past the group are padding
    head = kv_head * GROUP + row
    asked = tl.load(
        q + sequence * q_sequence + head[:, None] * q_head + column[None, :], real[:, None], 0.0
    ).to(DOT)

    top = tl.full([ROWS], -float("inf"), tl.float32)
    weight = tl.zeros([ROWS], tl.float32)
    total = tl.zeros([ROWS, WIDTH], tl.float32)
    for first in range(start, end, TOKENS):
        token = first + lane
        live = token < end
        if PAGE % TOKENS == 0:  # a tile lies in one page: one entry of the table
            page = tl.load(table + sequence * table_sequence + first // PAGE).to(tl.int64)
        else:  # entries past the end name no page, and are not read
            page = tl.load(table + sequence * table_sequence + token // PAGE, live, 0).to(tl.int64)
        slot = token % PAGE
        # slots past the end may hold NaN, which no weight of zero takes away: they are not loaded
        k_at = k_pages + (page * k_page + slot * k_slot)[:, None] + kv_head * k_head + column[None, :]
        v_at = v_pages + (page * v_page + slot * v_slot)[:, None] + kv_head * v_head + column[None, :]
        k = tl.load(k_at, live[:, None], 0.0).to(DOT)
        v = tl.load(v_at, live[:, None], 0.0).to(DOT)
        scores = tl.dot(asked, tl.trans(k), input_precision="ieee") * scale_log2
        scores = tl.where(live[None, :], scores, -float("inf"))
        higher = tl.maximum(top, tl.max(scores, 1))
        fade = tl.exp2(top - higher)
        p = tl.exp2(scores - higher[:, None])
        weight = weight * fade + tl.sum(p, 1)
        total = total * fade[:, None] + tl.dot(p.to(DOT), v, input_precision="ieee")
        top = higher

    some = end > start
    weight = tl.where(some, weight, 1.0)
    cell = (sequence * tl.num_programs(0) * GROUP + head).to(tl.int64) * splits + split
    # a split without tokens weighs nothing, and leaves zeros rather than 0 / 0
    tl.store(lse + cell, tl.where(some, top + tl.log2(weight), -float("inf")), real)
    tl.store(means + cell[:, None] * WIDTH + column[None, :], total / weight[:, None], real[:, None])


@triton.jit
def _join(means, lse, out, scale, splits, MOST: tl.constexpr, STEP: tl.constexpr, WIDTH: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    column, every = tl.arange(0, WIDTH), tl.arange(0, MOST)
    top = tl.max(tl.load(lse + row * splits + every, every < splits, -float("inf")), 0)
    total = tl.zeros([WIDTH], tl.float32)
    weight = 0.0
    for first in range(0, splits, STEP):  # a few at a time: all of them would not fit in the registers
        split = first + tl.arange(0, STEP)
        real = split < splits
        each = tl.exp2(tl.load(lse + row * splits + split, real, -float("inf")) - top)
        mean = tl.load(means + (row * splits + split)[:, None] * WIDTH + column[None, :], real[:, None], 0.0)
        total += tl.sum(mean * each[:, None], 0)
        weight += tl.sum(each, 0)
    tl.store(out + row * WIDTH + column, (total / weight * scale).to(out.dtype.element_ty))


def attend_splits(
    q: Tensor, cache: Cache, scale: float, tiling: Tiling, means: Tensor, lse: Tensor
) -> tuple[Tensor, Tensor]:
    """Means of V [sequence, head, split, width] and log2-sum-exp2 of the scores [sequence, head, split], both fp32.

    q: [sequence, head, width], a width that is a power of two; every length is at least 1. Both are written to, and given
    back.
    """
    batch, heads, width = q.shape
    kv_heads, splits = cache.k.shape[2], means.shape[2]
    group = heads // kv_heads
    _attend_split[kv_heads, splits, batch](
        q, cache.k, cache.v, cache.table, cache.lengths, means, lse, scale * cache.k_scale * LOG2_E, splits,
        *q.stride()[:2], *cache.k.stride()[:3], *cache.v.stride()[:3], cache.table.stride(0),
        GROUP=group, ROWS=max(16, triton.next_power_of_2(group)), TOKENS=tiling.tokens, PAGE=cache.page, WIDTH=width,
        DOT=products(q.dtype, cache.k.dtype), num_warps=tiling.warps, num_stages=tiling.stages,
    )  # fmt: skip
    return means, lse


def join(means: Tensor, lse: Tensor, scale: float, out: Tensor) -> Tensor:
    """Attention over all tokens [sequence, head, width] from that over each split, times `scale`; written to `out`."""
    splits, width = means.shape[2:]
    most = triton.next_power_of_2(splits)
    rows = means.shape[0] * means.shape[1]
    _join[(rows,)](means, lse, out, scale, splits, MOST=most, STEP=min(most, 16), WIDTH=width)
    return out
