"""Automatic prefix caching: a prompt takes up the blocks of its beginning that are still there.

A full block is known by the tokens up to its end. One that nobody holds stays in the free queue, and is found there
until the queue has come down to it and it is taken for something else: least recently used first, and of one request
its last block first. A request that finds blocks holds them with whoever else does. The last token of a prompt is always
computed, since the next is sampled from it. Where two compute a block at once, the second keeps its own, and nobody
finds that one or those behind it; vLLM finds them once the first is gone.

Nothing is done for each block: the blocks of one block of a trace are a count that are there, and a count that are held.

Source: vLLM, vllm/v1/core/kv_cache_manager.py and block_pool.py.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from typing import NamedTuple

from capplan.capacity.simulator.requests import Workload


class Node:
    """The engine's blocks that end in one block of a trace, after certain others, or in what is a request's own.

    The first `cached` of them are there; the first `held` of those are in use, the others in the free queue.
    """

    __slots__ = ("cached", "held", "holders", "number", "queued")

    def __init__(self, number: int) -> None:
        self.number = number
        self.cached = self.held = 0
        self.holders: dict[int, int] = {}  # how many hold so many of the blocks
        self.queued: deque[Run] = deque()  # in the free queue, the last of its blocks first


class Run:
    """Neighbours in the free queue."""

    __slots__ = ("blocks", "node")

    def __init__(self, node: Node | None, blocks: int) -> None:
        self.node, self.blocks = node, blocks  # None: nothing that could be found


class Span(NamedTuple):
    """A node in a request's sequence: blocks begin to end."""

    node: Node
    begin: int
    end: int


class Holding:
    """What a request holds that others can find: the first `blocks` of its sequence."""

    __slots__ = ("alone", "at", "blocks", "spans")

    def __init__(self, spans: list[Span]) -> None:
        self.spans = spans
        self.blocks = self.at = 0  # at: the span of its next block
        self.alone = False  # what follows is another's too, and this copy is not found


class PrefixCache:
    """The free queue of one engine's blocks, and what can be found in it or is in use.

    `free` of the methods is the number of free blocks: blocks that were taken since are off the front of the queue.
    """

    def __init__(self, blocks: int, block_size: int, workload: Workload) -> None:
        self.block_size, self.workload = block_size, workload
        self.ids = workload.prefix or ()
        self.nodes: dict[tuple[int, int], Node] = {}  # by the number of the one before, and the id
        self.holdings: dict[int, Holding] = {}
        self.queue: OrderedDict[Run, None] = OrderedDict()
        self.queued = 0  # blocks in it
        self.append(None, blocks)

    def holding(self, i: int) -> Holding:
        """What a request holds, and the nodes that its tokens go through."""
        if i in self.holdings:
            return self.holdings[i]
        size, width, isl = self.block_size, self.workload.prefix_tokens, int(self.workload.isl[i])
        spans, before, begin = [], -1, 0
        for k, each in enumerate(self.ids[i]):
            node = self.nodes.get((before, each))
            if node is None:
                node = self.nodes[before, each] = Node(len(self.nodes))
            end = min((k + 1) * width, isl) // size
            if end > begin:
                spans.append(Span(node, begin, end))
            before, begin = node.number, end
        spans.append(Span(Node(-1), begin, (isl + int(self.workload.osl[i])) // size))
        found = self.holdings[i] = Holding(spans)
        return found

    def find(self, i: int, tokens: int, free: int) -> tuple[int, int]:
        """Blocks of a prompt of so many tokens that are there, and those of them that are in use."""
        self.settle(free)
        most, found, in_use = (tokens - 1) // self.block_size, 0, 0
        for node, begin, end in self.holding(i).spans:
            end = min(end, most)
            here = min(node.cached, end - begin)
            if here <= 0:
                break
            found += here
            in_use += min(node.held, here)
            if begin + here < end:
                break
        return found, in_use

    def take_up(self, i: int, blocks: int) -> None:
        """Hold the first so many, which were found."""
        holding = self.holding(i)
        holding.blocks, holding.at, holding.alone = blocks, 0, False
        for at, (node, begin, end) in enumerate(holding.spans):
            level = min(end, blocks) - begin
            if level <= 0:
                break
            holding.at = at
            node.holders[level] = node.holders.get(level, 0) + 1
            if level > node.held:
                self.unqueue(node, level - node.held)
                node.held = level

    def computed(self, i: int, tokens: int, free: int) -> None:
        """So many tokens of a request are in its blocks, or will be with the pass: the full ones can be found."""
        holding, full = self.holdings[i], tokens // self.block_size
        if holding.alone or full <= holding.blocks:
            return
        self.settle(free)
        while holding.blocks < full and holding.at < len(holding.spans):
            node, begin, end = holding.spans[holding.at]
            if end == holding.blocks:
                holding.at += 1
                continue
            old, new = holding.blocks - begin, min(end, full) - begin
            if node.cached > old:
                holding.alone = True
                return
            if old:
                _hold_no_more(node, old)
            node.holders[new] = node.holders.get(new, 0) + 1
            node.cached = node.held = new
            holding.blocks = begin + new

    def release(self, i: int, blocks: int) -> int:
        """Give back all that a request has, its last block first; how many are free then."""
        holding = self.holdings[i]
        freed = blocks - holding.blocks
        self.append(None, freed)
        spans, at = holding.spans, min(holding.at, len(holding.spans) - 1)
        for node, begin, end in reversed(spans[: at + 1]):
            level = min(end, holding.blocks) - begin
            if level <= 0:
                continue
            _hold_no_more(node, level)
            held = max(node.holders, default=0)
            if held < node.held:
                freed += node.held - held
                self.append(node, node.held - held)
                node.held = held
        holding.blocks = holding.at = 0
        return freed

    def forget(self, i: int) -> None:
        """A request that is gone."""
        self.holdings.pop(i, None)

    # --- the queue ------------------------------------------------------------------------------------------------

    def append(self, node: Node | None, blocks: int) -> None:
        """Blocks that nobody holds any more, behind the others."""
        if blocks:
            run = Run(node, blocks)
            self.queue[run] = None
            self.queued += blocks
            if node is not None:
                node.queued.append(run)

    def unqueue(self, node: Node, blocks: int) -> None:
        """So many of a node's blocks, the first, are in use again."""
        self.queued -= blocks
        while blocks:
            run = node.queued[-1]
            taken = min(blocks, run.blocks)
            run.blocks -= taken
            blocks -= taken
            if not run.blocks:
                node.queued.pop()
                del self.queue[run]

    def settle(self, free: int) -> None:
        """Take from the front what was taken for something else: it can't be found any more."""
        while self.queued > free:
            run = next(iter(self.queue))
            taken = min(self.queued - free, run.blocks)
            run.blocks -= taken
            self.queued -= taken
            if run.node is not None:
                run.node.cached -= taken
            if not run.blocks:
                del self.queue[run]
                if run.node is not None:
                    run.node.queued.popleft()


def _hold_no_more(node: Node, level: int) -> None:
    left = node.holders[level] - 1
    if left:
        node.holders[level] = left
    else:
        del node.holders[level]
