"""What the attention probes share: the fp64 reference, how far from it a kernel may be, and the line of their times."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from capplan.probes import fit
from capplan.probes.numerics import against
from capplan.probes.probe import Numerics, Row, Value

if TYPE_CHECKING:
    from torch import Tensor

# Relative error of the worst row: the output is rounded, and so are scores or weights before they meet V. FP8 caches are
# held against what they store, so the format's own error (3.7e-2) is not in it.
BOUND = {"fp32": 4e-6, "fp16": 2e-3, "bf16": 1e-2}


def attention64(q: Tensor, k: Tensor, v: Tensor, last: Tensor, scale: float) -> Tensor:
    """Attention in fp64 [row, head, width of v]: row i of q [row, head, width] sees the keys up to and with last[i].

    k [key, KV head, width] and v [key, KV head, width of v] are shared by heads / KV heads query heads each, in order.
    """
    import torch

    group = q.shape[1] // k.shape[1]
    unseen = torch.arange(k.shape[0], device=q.device)[None, :] > last.to(q.device)[:, None]
    out = []
    for head in range(q.shape[1]):  # one at a time: long prompts don't fit otherwise
        scores = q[:, head].double() @ k[:, head // group].double().t() * scale
        out.append(scores.masked_fill(unseen, -torch.inf).softmax(-1) @ v[:, head // group].double())
    return torch.stack(out, 1)


def rows_against(got: Tensor, expected: Tensor, bound: float) -> Numerics:
    """How far the worst row of `got` [row, ...] is from fp64. Rows that see few keys are large and would hide the others,
    whose means are small."""
    import torch

    if got.shape != expected.shape:
        return against(got, expected, bound)
    off = (got.double() - expected).flatten(1).norm(dim=1) / expected.flatten(1).norm(dim=1)
    worst = int(off.nan_to_num(nan=torch.inf).argmax())
    return against(got[worst], expected[worst], bound)


def line(
    path: str, rows: Sequence[Row], work: str, unit: str, predicted: dict[int, float]
) -> dict[str, Value]:
    """The start and the rate of rows whose times grow with `work` (flops | bytes); `predicted` gets a time for each.

    Rows of one size only give a rate. The ranges are as wide as the line is off; of one row alone, as its samples are.
    """
    if len(rows) == 1:
        predicted[rows[0]["id"]] = float(rows[0]["time_s"]["median"])
        return {f"{path}.rate": fit.of_row(rows[0], float(rows[0]["work"][work]), unit)}
    sizes = [float(row["work"][work]) for row in rows]
    times = [float(row["time_s"]["median"]) for row in rows]
    if max(sizes) < 1.5 * min(sizes):
        found = fit.Line(0.0, sum(sizes) / sum(times))
    else:
        found = fit.line(sizes, times)
    predicted |= {row["id"]: found(size) for row, size in zip(rows, sizes, strict=True)}
    off = [found(size) / time for size, time in zip(sizes, times, strict=True)]
    return {
        f"{path}.rate": fit.value([found.rate * each for each in off], unit, rows, found.rate),
        f"{path}.t0": fit.value([found.start * each for each in off], "s", rows, found.start),
    }
