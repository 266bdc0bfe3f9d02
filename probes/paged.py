"""A paged KV cache of one layer, as engines keep it, filled with everything that goes wrong in one.

Pages are in random order; slots that no token owns hold NaN, in the last page of a sequence and in pages of nobody; and
the entries of the table past a sequence's end name no page at all. What reads one of them is caught.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from capplan.probes.attention import attention64
from capplan.probes.numerics import torch_dtype
from capplan.probes.probe import Device

if TYPE_CHECKING:
    import torch
    from torch import Tensor

NO_PAGE = 2**30  # an address so far off that reading it is a fault on a GPU
SPARE = 3  # pages of nobody
_AMAX = 4.5  # what a static scale of an FP8 cache was calibrated to; larger numbers are clamped


class Cache(NamedTuple):
    """K and V [page, slot, KV head, width]; latents of MLA are K [page, slot, 1, width] alone, and V is K.

    table: [sequence, page of it] int32, which page. lengths: [sequence] int32 tokens. The scales are what a stored number
    is multiplied with: 1 but for FP8.
    """

    k: Tensor
    v: Tensor
    table: Tensor
    lengths: Tensor
    k_scale: float = 1.0
    v_scale: float = 1.0

    @property
    def page(self) -> int:
        """Slots of a page."""
        return int(self.k.shape[1])


def empty(
    lengths: Sequence[int], page: int, heads: int, width: int, dtype: str, device: Device, seed: int
) -> Cache:
    """A cache of NaN with a shuffled table for sequences of these lengths [token]."""
    import torch

    counts = [-(-length // page) for length in lengths]
    order = torch.randperm(sum(counts) + SPARE, generator=torch.Generator().manual_seed(seed)).to(torch.int32)
    table = torch.full((len(lengths), max(counts)), NO_PAGE, dtype=torch.int32)
    for i, count in enumerate(counts):
        table[i, :count] = order[sum(counts[:i]) : sum(counts[: i + 1])]
    k, v = (_poison((len(order), page, heads, width), torch_dtype(dtype), device) for _ in range(2))
    # K and V have scales of their own, so that swapping them is seen
    k_scale = v_scale = 1.0
    if dtype.startswith("fp8"):
        largest = torch.finfo(k.dtype).max
        k_scale, v_scale = _AMAX / largest, 1.25 * _AMAX / largest
    tokens = torch.tensor(lengths, dtype=torch.int32)
    return Cache(k, v, table.to(device.torch), tokens.to(device.torch), k_scale, v_scale)


def write(cache: Cache, k: Tensor, v: Tensor, sequence: Tensor, position: Tensor) -> None:
    """Puts K and V [token, KV head, width] of tokens at `position` of `sequence` (both [token] int64) into their slots."""
    page = cache.table[sequence, position // cache.page].long()
    bits(cache.k)[page, position % cache.page] = bits(store(k, cache.k.dtype, cache.k_scale))
    bits(cache.v)[page, position % cache.page] = bits(store(v, cache.v.dtype, cache.v_scale))


def bits(x: Tensor) -> Tensor:
    """Numbers of FP8 as bytes: not every release of torch can index them as numbers."""
    import torch

    return x.view(torch.uint8) if x.element_size() == 1 else x


def store(x: Tensor, dtype: torch.dtype, scale: float) -> Tensor:
    """Numbers as a cache of a dtype holds them: divided by its scale, and clamped, as what FP8 makes of an overflow depends
    on the release of torch (NaN until 2.11) and on the flavour."""
    import torch

    if dtype.itemsize > 1 or dtype == torch.uint8:  # bytes are packed already
        return x.to(dtype)
    largest = torch.finfo(dtype).max
    return (x.float() / scale).clamp(-largest, largest).to(dtype)


def held(x: Tensor, dtype: torch.dtype, scale: float | Tensor) -> Tensor:
    """What a reader should find of x in fp64: for FP8 the nearest of its 256 values, looked up and not cast."""
    import torch

    if dtype.itemsize > 1:
        return x.to(dtype).double()
    grid = torch.arange(256, dtype=torch.uint8, device=x.device).view(dtype).double()
    order = grid[torch.isfinite(grid)].unique()
    even = torch.isin(order, grid[::2])  # numbers whose last bit is 0: what lies half-way goes to them
    wanted = (x.float() / scale).double().clamp(order[0], order[-1])
    above = torch.searchsorted(order, wanted).clamp(1, len(order) - 1)
    low, high = order[above - 1], order[above]
    up = (high - wanted < wanted - low) | ((high - wanted == wanted - low) & even[above])
    return torch.where(up, high, low) * scale


def reference(q: Tensor, k: Tensor, v: Tensor, cache: Cache, lengths: Sequence[int], scale: float) -> Tensor:
    """Attention of one token a sequence in fp64 [sequence, head, width], from K and V [token, KV head, width] as they
    came, one sequence after the other and without pages."""
    import torch

    out, start = [], 0
    for i, length in enumerate(lengths):
        own = slice(start, start := start + length)
        keys = held(k[own], cache.k.dtype, cache.k_scale)
        values = held(v[own], cache.v.dtype, cache.v_scale)
        out.append(attention64(q[i : i + 1], keys, values, torch.tensor([length - 1]), scale))
    return torch.cat(out)


def sequence64(cache: Cache, number: int) -> tuple[Tensor, Tensor]:
    """K and V of one sequence as its pages hold them, in fp64 [token, KV head, width]."""
    length = int(cache.lengths[number])
    pages = cache.table[number, : -(-length // cache.page)].long()
    k, v = (
        bits(pool)[pages].view(pool.dtype).flatten(0, 1)[:length].float().double() * scale
        for pool, scale in ((cache.k, cache.k_scale), (cache.v, cache.v_scale))
    )
    return k, v


def owners(lengths: Sequence[int], device: Device) -> tuple[Tensor, Tensor]:
    """Sequence and position of every token of a batch, [token] int64 each, for write()."""
    import torch

    sequence = torch.cat([torch.full((n,), i, dtype=torch.int64) for i, n in enumerate(lengths)])
    position = torch.cat([torch.arange(n) for n in lengths])
    return sequence.to(device.torch), position.to(device.torch)


def _poison(shape: tuple[int, ...], dtype: torch.dtype, device: Device) -> Tensor:
    import torch

    if dtype == torch.uint8:  # all bits set is NaN in FP8, in 16 and in 32 bits
        return torch.full(shape, 255, dtype=dtype, device=device.torch)
    nan = bits(torch.tensor(torch.nan).to(dtype))
    return torch.full(shape, nan.item(), dtype=nan.dtype, device=device.torch).view(dtype)
