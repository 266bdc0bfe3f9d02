"""How long a collective takes: a start by algorithm and ranks, and the bytes of the busiest link."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from capplan.capacity.step_time.chip import Chip, Fabric
from capplan.capacity.step_time.operations import Number, Operation, greatest, least

KINDS = ("allreduce", "all_gather", "reduce_scatter", "alltoall", "send_recv")
_NODE = 8  # GPUs of a node, where no link joins more
_US = 1e-6


def collective(operation: Operation, chip: Chip) -> tuple[Number, Number]:
    """Start, and time on the links [second]; messages are counted as nccl-tests counts them.

    variant: "nccl" is the library's own algorithm; "eager" is that, launched from Python; "across" goes between nodes,
    whatever the ranks; none is the fastest an engine has: for an all-reduce its own kernel while messages are small.
    """
    kind, message, ranks, variant = operation.kind, operation.message, operation.ranks, operation.variant
    if ranks <= 1:
        return 0.0, 0.0 * message
    if variant == "across":
        return _flat(chip.fabrics["rdma"], chip.nic_bandwidth, kind, message, ranks)
    node = max(chip.domain, _NODE)
    if ranks > node:
        return _across(kind, message, ranks, node, chip)
    name, bandwidth = _inside(ranks, chip)
    fabric = chip.fabrics[name]
    if points := chip.collectives.get((kind, ranks)):
        start, link = between(points, message)
    else:
        start, link = _flat(fabric, bandwidth, kind, message, ranks, chip.multicast and name == "nvlink")
    if variant == "eager":
        return start + fabric.eager_us * _US, link
    if kind != "allreduce" or variant == "nccl":
        return start, link
    # an engine's own kernel: in one step a rank reads all that the others have, in two its part of it, then the sums
    first = (fabric.direct_us + fabric.direct_rank_us * (ranks - 1)) * _US
    reading = message * (ranks - 1) / (bandwidth * fabric.direct_share)
    direct = first + least(reading, first + 2 * reading / ranks)
    fastest = least(direct, start + link)
    return first, fastest - least(first, fastest)


def between(points: Sequence[tuple[float, float]], message: Number) -> tuple[Number, Number]:
    """Start, and what a message adds to it [second], by straight lines between measured sizes and times.

    points: [(byte, second)], two or more, by size. Past the last one time grows as between the last two. No message is
    taken to be faster than a smaller one.
    """
    start = most = points[0][1]
    link = 0.0 * message
    for (size, _), (larger, time) in pairwise(points):
        inside = greatest(message - size, 0.0)
        if larger < points[-1][0]:
            inside = least(inside, larger - size)
        link = link + inside * max(0.0, time - most) / (larger - size)
        most = max(most, time)
    return start, link


def _inside(ranks: int, chip: Chip) -> tuple[str, float]:
    """What joins so many ranks of a node, and a GPU's bandwidth there."""
    if ranks > chip.domain:
        return "pcie", chip.pcie_bandwidth
    used = (
        (ranks - 1) / (chip.domain - 1) if chip.mesh and chip.domain > 1 else 1.0
    )  # of a link for each pair
    return chip.link, chip.link_bandwidth * used


def _flat(
    fabric: Fabric, bandwidth: float, kind: str, message: Number, ranks: int, multicast: bool = False
) -> tuple[Number, Number]:
    """Ranks that all have the same link."""
    ready = (fabric.start_us + fabric.rank_us * (min(ranks, _NODE) - 1)) * _US
    if kind == "send_recv":
        return ready, message / (bandwidth * fabric.peer_share)
    part = (ranks - 1) / ranks
    if (
        kind == "allreduce"
    ):  # a ring passes every byte twice; a switch that adds up and copies, once and a part of it
        part = min(2 * part, 1 + 1 / ranks) if multicast else 2 * part
    moved = message * part
    ramp = fabric.ramp_us * moved / (moved + fabric.ramp_bytes)
    return ready + ramp * _US, moved / (bandwidth * fabric.share)


def _across(kind: str, message: Number, ranks: int, node: int, chip: Chip) -> tuple[Number, Number]:
    """Nodes of GPUs: first inside, then each GPU with its like in the other nodes."""
    name, bandwidth = _inside(node, chip)
    outer = chip.fabrics["rdma"]
    nodes = -(-ranks // node)
    if kind == "alltoall":  # what is not for the own node crosses, while the rest stays
        start, link = _flat(chip.fabrics[name], bandwidth, kind, message * node / ranks, node)
        far = _flat(outer, chip.nic_bandwidth, "send_recv", message * (ranks - node) / ranks, nodes)
    elif kind == "send_recv":
        return _flat(outer, chip.nic_bandwidth, kind, message, 2)
    else:
        start, link = _flat(chip.fabrics[name], bandwidth, kind, message, node)
        far = _flat(outer, chip.nic_bandwidth, kind, message / node, nodes)
    return start + far[0], link + far[1]
