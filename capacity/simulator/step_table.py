"""Times of passes from a table made once for a deployment, so that the loop looks up what step_time would compute.

The time of a pass is a sum over operations, and each depends on few things: products on the tokens of the pass, the
head on the tokens that are sampled, attention of decoding sequences on their number and context, attention of
prompts on the chunks. Each gets a table of its own. What tables differ from `passes.pass_time` by is under 0.1%
(tests/simulator/test_step_table.py).
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable
from math import inf, log2
from typing import Any

import numpy as np

from capplan.capacity.simulator.requests import Floats, Piece, Speculation
from capplan.capacity.step_time.chip import Chip
from capplan.capacity.step_time.engine_steps import Engine
from capplan.capacity.step_time.forward import Layout, Step, seen_pairs
from capplan.capacity.step_time.operations import Number
from capplan.capacity.step_time.passes import Pass, one_pass

_MOVED = ("dispatch", "combine")  # to experts of other data-parallel ranks, and back
_SAMPLED = ("lm_head", "sampling", "logits")  # operations on tokens that are sampled, not on all of a pass
_EXACT = 64  # whole numbers up to here are points of a table
_FINE = 16  # points to a doubling, of what is interpolated in one dimension
_COARSE = 3  # and of prompts, chunks, and what is cached of them
_HISTORY = 64.0  # tokens before a chunk, at which points start to double


class StepTable:
    """The passes of one replica; a StepTimes."""

    def __init__(
        self,
        plan: Layout,
        chip: Chip,
        engine: Engine,
        *,
        batch: int,
        tokens: int,
        longest: int,
        speculation: Speculation | None = None,
        draft_s: float | Callable[[Number], Number] = 0.0,
    ) -> None:
        """batch: the most sequences of a pass; tokens: the most prompt tokens; longest: context of a sequence.

        speculation: every decoding sequence then checks its drafted tokens in each pass. draft_s: what drafting
        takes for a batch [second], all tokens of a pass together; a number, or a function of the batch.
        """
        self.queries = 1 + (speculation.tokens if speculation else 0)
        self.sequence = engine.sequence
        drafting = draft_s if callable(draft_s) else lambda batch: draft_s + 0.0 * batch
        batches = np.arange(1.0, batch + 1)

        self.contexts = _contexts(plan, longest)
        decoding = one_pass(
            plan,
            chip,
            engine,
            Step(decode=batches[:, None], context=np.array(self.contexts), queries=self.queries),
        )
        shape = (batch, len(self.contexts))
        self._decode = np.broadcast_to(decoding.seconds + drafting(batches)[:, None], shape)
        # beside prompts a pass runs in another way: without graphs
        beside = engine._replace(slow=engine.prefill_slow)
        attention = _attention(
            one_pass(plan, chip, beside, Step(decode=batches[:, None], context=np.array(self.contexts)))
        )
        self._beside = np.broadcast_to(attention + drafting(batches)[:, None], shape)
        self._pieces: dict[int, list[Piece]] = {}
        self._rows: dict[int, list[Piece]] = {}

        # products, and what every pass costs
        most = tokens + batch * self.queries
        self.token_points = _points(most)
        whole = one_pass(plan, chip, engine, Step(prompts=1.0, chunk=np.array(self.token_points)))
        timed = [
            each.seconds
            for each in whole.timed
            if each.group != "attention" and each.operation.name not in _SAMPLED
        ]
        fixed = [each.seconds for each in whole.fixed if each.name != "sequences"]
        self._tokens = self._along(sum(timed) + sum(fixed))
        together = [each for each in whole.timed if plan.dp > 1]
        self._experts = self._along(sum([each.seconds for each in together if each.group == "experts"]))
        self._moved = self._along(sum([each.seconds for each in together if each.operation.name in _MOVED]))
        self.sampled_points = _points(batch * (1 + self.queries))
        sampled = one_pass(plan, chip, engine, Step(prompts=np.array(self.sampled_points), chunk=1.0))
        heads = [each.seconds for each in sampled.timed if each.operation.name in _SAMPLED]
        self._sampled = _listed(sum(heads), len(self.sampled_points))
        self._prompts = _PromptAttention(plan, chip, engine, batch, tokens, longest)

    def _along(self, times: Number) -> list[float]:
        """A table of these times along `token_points`."""
        return _listed(times, len(self.token_points))

    def decode(self, batch: int, context: float) -> Piece:
        """The piece of a decode pass that holds for this context and on."""
        row = self._pieces.get(batch)
        if row is None:
            row = self._pieces[batch] = _row(self._decode[batch - 1], self.contexts, batch)
        return row[bisect_right(self.contexts, context / batch)]

    def prompts(
        self,
        batch: int,
        context: float,
        prompts: int,
        tokens: int,
        pairs: float,
        mean: float | None = None,
        moved: float | None = None,
    ) -> float:
        """A pass with prompts in it [second]. Prompts of one pass count as so many of their mean length.

        mean: tokens of a data-parallel rank in this pass, on average, where the ranks share their experts; moved: those
        that each would send, were the busiest link's divided evenly. None is as many as on this one.
        """
        decoding = batch * self.queries
        time = _between(self.token_points, self._tokens, decoding + tokens)
        for times, of in ((self._experts, mean), (self._moved, moved)):
            if of is not None:
                time += _between(self.token_points, times, of)
                time -= _between(self.token_points, times, decoding + tokens)
        time += _between(self.sampled_points, self._sampled, decoding + prompts)
        time += self._prompts(prompts, tokens, pairs)
        if batch:
            row = self._rows.get(batch)
            if row is None:
                row = self._rows[batch] = _row(self._beside[batch - 1], self.contexts, batch)
            start, slope, _ = row[bisect_right(self.contexts, context / batch)]
            time += start + slope * context + self.sequence * batch
        return time


class _PromptAttention:
    """Attention of prompts in a pass: what a plain model of it says, times a factor that hardly varies.

    The model is linear in prompts, tokens, the keys that they see and the keys that are read.
    """

    def __init__(
        self, plan: Layout, chip: Chip, engine: Engine, prompts: int, tokens: int, longest: int
    ) -> None:
        numbers = 2.0 ** (np.arange(0, _COARSE * log2(max(prompts, 2)) + 1) / _COARSE)
        chunks = 2.0 ** (np.arange(0, _COARSE * log2(max(tokens, 2)) + 1) / _COARSE)
        before = _HISTORY * (2.0 ** (np.arange(0, _COARSE * log2(1 + longest / _HISTORY) + 1) / _COARSE) - 1)
        n, c, b = np.meshgrid(numbers, chunks, before, indexing="ij")
        time = np.broadcast_to(
            _attention(one_pass(plan, chip, engine, Step(prompts=n, chunk=c, before=b))), n.shape
        )
        terms = np.stack([np.ones_like(n), n * c, n * seen_pairs(b, c), n * (b + c), b + c], axis=-1)
        of = np.linalg.lstsq((terms / time[..., None]).reshape(-1, 5), np.ones(n.size), rcond=None)[0]
        of = np.maximum(of, 0.0) if (terms @ of <= 0).any() else of
        self.of = tuple(float(each) for each in of)
        self.factor = (time / (terms @ of)).ravel().tolist()
        self.shape = n.shape

    def __call__(self, prompts: int, tokens: int, pairs: float) -> float:
        chunk = tokens / prompts
        before = max(0.0, (pairs / prompts - chunk * (chunk + 1) / 2) / chunk)
        first, of_tokens, of_pairs, of_keys, of_last = self.of
        keys = before + chunk
        base = first + of_tokens * tokens + of_pairs * pairs + of_keys * prompts * keys + of_last * keys
        numbers, chunks, histories = self.shape
        i, x = _place(_COARSE * log2(prompts), numbers)
        j, y = _place(_COARSE * log2(chunk), chunks)
        k, z = _place(_COARSE * log2(1 + before / _HISTORY), histories)
        at, of = (i * chunks + j) * histories + k, self.factor
        right, up = histories, chunks * histories
        low = of[at] + z * (of[at + 1] - of[at])
        low += y * (of[at + right] + z * (of[at + right + 1] - of[at + right]) - low)
        if x:
            at += up
            high = of[at] + z * (of[at + 1] - of[at])
            high += y * (of[at + right] + z * (of[at + right + 1] - of[at + right]) - high)
            low += x * (high - low)
        return float(base * low)


def _place(at: float, points: int) -> tuple[int, float]:
    """The point below on an axis, and how far on to the next; past the end, the last of them."""
    if at >= points - 1:
        return points - 2, 1.0
    below = int(at)
    return below, at - below


def _attention(one: Pass) -> Number:
    return sum([each.seconds for each in one.timed if each.group == "attention"])


def _points(most: float) -> list[float]:
    """Where a table of one dimension is made: whole numbers, then so many to a doubling; up to `most` and past it."""
    doubling = _EXACT * 2.0 ** (np.arange(1, _FINE * max(0.0, log2(most / _EXACT)) + 2) / _FINE)
    return [*map(float, range(1, _EXACT + 1)), *doubling.tolist()]


def _contexts(plan: Layout, longest: int) -> list[float]:
    """Contexts of a sequence at which decoding is timed: doubling, and where a window or an indexer's choice fills."""
    points = {1.0, *(2.0 ** (np.arange(0, 4 * log2(max(longest, 2)) + 2) / 4)).tolist()}
    for part, _ in plan.attention:
        window, chosen = getattr(part, "window", None), getattr(part, "top_k", None)
        ratio = getattr(part, "ratio", None) or 1
        points |= {float(each) for each in (window, chosen and chosen * ratio) if each}
    return sorted(points)


def _row(times: Floats, contexts: list[float], batch: int) -> list[Piece]:
    """The pieces of one batch, by how many contexts are at or below the mean one."""
    x, y = np.array(contexts) * batch, times
    slopes = np.diff(y) / np.diff(x)
    starts = y[:-1] - slopes * x[:-1]
    pieces = [Piece(*each) for each in zip(starts.tolist(), slopes.tolist(), x[1:].tolist(), strict=True)]
    return [pieces[0], *pieces, pieces[-1]._replace(end=inf)]


def _between(points: list[float], values: list[float], at: float) -> float:
    """A table of one dimension at a place: straight between two points, and past the last."""
    i = min(bisect_right(points, at), len(points) - 1)
    low, first = points[i - 1], values[i - 1]
    return first + (at - low) * (values[i] - first) / (points[i] - low)


def _listed(value: Any, points: int) -> list[float]:
    """A sum of times as one float a point: a model without such an operation has none."""
    return np.broadcast_to(value, points).tolist()  # type: ignore[no-any-return]
