"""What can go wrong between ranks, for test_ranks.py: run in the ranks, which a test can't patch from outside."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from capplan.probes import page_transfer
from capplan.probes.probe import Device
from capplan.probes.suite import kv_transfer

RIGHT_SEND, RIGHT_RECEIVE = page_transfer.send, page_transfer.receive


def flipped_bit(pool: Any, pages: Any, way: str, peer: int) -> None:
    RIGHT_RECEIVE(pool, pages, way, peer)
    pool[pages[3], 17] ^= 1


def wrong_slot(pool: Any, pages: Any, way: str, peer: int) -> None:
    RIGHT_RECEIVE(pool, pages.roll(1), way, peer)


def two_swapped(pool: Any, pages: Any, way: str, peer: int) -> None:
    order = pages.clone()
    order[1], order[2] = pages[2], pages[1]
    RIGHT_RECEIVE(pool, order, way, peer)


def anothers_page(pool: Any, pages: Any, way: str, peer: int) -> None:
    order = pages.clone()
    order[-1] = next(page for page in range(len(pool)) if page not in pages.tolist())
    RIGHT_RECEIVE(pool, order, way, peer)


def stale_page(pool: Any, pages: Any, way: str, peer: int) -> None:
    before = pool[pages[0]].clone()
    RIGHT_RECEIVE(pool, pages, way, peer)
    pool[pages[0]] = before


def zeros(pool: Any, pages: Any, way: str, peer: int) -> None:
    RIGHT_RECEIVE(pool, pages, way, peer)
    pool[pages] = 0


def k_and_v_swapped(pool: Any, pages: Any, way: str, peer: int) -> None:
    RIGHT_RECEIVE(pool, pages, way, peer)
    pool[pages] = pool[pages].roll(pool.shape[1] // 2, 1)


def page_before(pool: Any, pages: Any, way: str, peer: int) -> None:
    RIGHT_SEND(pool, (pages - 1) % len(pool), way, peer)


RECEIVING: list[Callable[..., None]] = [
    flipped_bit,
    wrong_slot,
    two_swapped,
    anothers_page,
    stale_page,
    zeros,
    k_and_v_swapped,
]
SENDING: list[Callable[..., None]] = [page_before]
NAMES = ["right", *(fault.__name__ for fault in RECEIVING + SENDING)]


def every_fault(rank: int, ranks: int, job: list[Any], device: Device) -> list[Any]:
    """The transfer as it should be, then with each fault: a list of what transfer() says for the job's one case."""
    told = kv_transfer.transfer(rank, ranks, job, device)
    for fault in RECEIVING:
        page_transfer.receive = fault
        told += kv_transfer.transfer(rank, ranks, job, device)
    page_transfer.receive = RIGHT_RECEIVE
    for fault in SENDING:
        page_transfer.send = fault
        told += kv_transfer.transfer(rank, ranks, job, device)
    return told


def one_fails(rank: int, ranks: int, job: Any, device: Device) -> None:
    """Rank 1 fails while rank 0 waits for it."""
    import torch
    import torch.distributed as dist

    if rank:
        raise ValueError("a planted failure")
    dist.all_reduce(torch.ones(1))


def one_hangs(rank: int, ranks: int, job: Any, device: Device) -> None:
    """Rank 1 never comes to an end."""
    if rank:
        time.sleep(600)


def every_collective_fault(rank: int, ranks: int, job: Any, device: Device) -> list[Any]:
    """The collectives as they should be, then each with a fault of rank 1: what exchange() says of each."""
    from capplan.probes import collective_ops
    from capplan.probes.suite import collectives

    right = collective_ops.collective

    def left_out(op: str, out: Any, given: Any) -> None:
        """What this rank brings never counts."""
        if rank:
            given = given * 0
            if op == "all_reduce":
                out.zero_()
        right(op, out, given)

    def places_changed(op: str, out: Any, given: Any) -> None:
        right(op, out, given)
        if rank:
            out.copy_(out.roll(len(out) // 2))

    def unwritten(op: str, out: Any, given: Any) -> None:
        last = out[-1:].clone().fill_(float("nan"))
        right(op, out, given)
        if rank:
            out[-1:] = last

    told = [collectives.exchange(rank, ranks, job, device)]
    collective_ops.times = lambda *_: [1.0]  # what is wrong is not timed
    for fault in (left_out, places_changed, unwritten):
        collective_ops.collective = fault
        told.append(collectives.exchange(rank, ranks, job, device))
    return told


def every_one(rank: int, ranks: int, job: list[Any], device: Device) -> dict[str, list[Any]]:
    """Both, in one start of the ranks."""
    transfers = every_fault(rank, ranks, job, device)
    return {"transfers": transfers, "collectives": every_collective_fault(rank, ranks, None, device)}
