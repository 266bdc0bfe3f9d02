"""Pages of a KV cache from rank to rank, and the checksums that say whether they are where they should be.

A page is bytes, whatever its dtype: not every backend sends every dtype, and what counts is that no bit changes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor


def checksums(pages: Tensor) -> Tensor:
    """A number [page] int64 for each of pages [page, byte], a multiple of 8 bytes.

    The sum modulo 2^64 of words that were mixed with an odd weight of their place. Mixing can be undone, so whatever
    happens inside of one word is seen; what happens to several escapes with the chance of two random numbers being equal.
    """
    import torch

    words = pages.view(torch.int64)
    weights = 2 * torch.randint(2**53, words.shape[1:], generator=torch.Generator().manual_seed(7)) + 1
    weights = weights.to(pages.device)
    sums = []
    for some in words.split(64):
        mixed = some * weights
        mixed ^= (mixed >> 32) & 0xFFFFFFFF  # else the highest bits of two words would cancel
        sums.append((mixed * weights).sum(1))
    return torch.cat(sums)


def send(pool: Tensor, pages: Tensor, way: str, peer: int) -> None:
    """Pages of a pool [page, byte], in the order of the sequence, to another rank."""
    import torch.distributed as dist

    if way == "gathered":
        dist.send(pool[pages], peer)
        return
    sent = [dist.P2POp(dist.isend, pool[page], peer, tag=i) for i, page in enumerate(pages.tolist())]
    for request in dist.batch_isend_irecv(sent):
        request.wait()


def receive(pool: Tensor, pages: Tensor, way: str, peer: int) -> None:
    """Pages from another rank, in the order of the sequence, into these places of a pool [page, byte]."""
    import torch
    import torch.distributed as dist

    if way == "gathered":
        staged = torch.empty((len(pages), pool.shape[1]), dtype=pool.dtype, device=pool.device)
        dist.recv(staged, peer)
        pool[pages] = staged
        return
    awaited = [dist.P2POp(dist.irecv, pool[page], peer, tag=i) for i, page in enumerate(pages.tolist())]
    for request in dist.batch_isend_irecv(awaited):
        request.wait()
