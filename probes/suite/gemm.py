"""Products of 16-bit matrices: the peak that is reached, the bandwidth of few rows, and what a product costs to start."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from capplan.probes import fit
from capplan.probes.numerics import against, bound, fresh, normal, poisoned
from capplan.probes.probe import Case, Derived, Device, Measured, Numerics, Row, Value
from capplan.probes.timing import copies, timed

if TYPE_CHECKING:
    from torch import Tensor

NAME = "gemm"
TITLE = "products of bf16, fp16 and (on a CPU) fp32 matrices over the shapes of language models"
FORMULA = "t = t0 + ((F / peak)^p + (B / bandwidth)^p)^(1/p)"
WHAT = "the share of the peak that products reach, and of the bandwidth where rows are few"
ORDER, VERSION = 70, 1

# (outputs, inner) of Llama-3 70B's projections and of DeepSeek-V3's: set llm70b and dsv3
SHAPES = {
    "llm70b": ((8192, 8192), (28672, 8192), (8192, 28672), (10240, 8192)),
    "dsv3": ((7168, 2112), (7168, 16384)),
    "small": ((1024, 1024), (1536, 1000)),  # a CPU's
}
_ROWS = {
    "quick": (1, 64, 512, 4096),
    "default": (1, 16, 64, 128, 256, 512, 1024, 2048, 4096, 8192),
    "full": (1, 8, 16, 32, 64, 96, 128, 160, 192, 224, 256, 384, 512, 768, 1024, 2048, 4096, 8192, 16384),
}
_EXPECTED = 0.50  # of the peak: 0.8 of what A100 to B200 typically reach, 262 of 312 to 1471 of 2250 TFLOP/s
LARGE = 4096  # rows, outputs and inner from which a product counts to the typical rate


def gemm(a: Tensor, b: Tensor, out: Tensor) -> Tensor:
    """out = a @ b.T for a [rows, inner] and b [outputs, inner], as weights are stored."""
    import torch

    return torch.mm(a, b.t(), out=out)


def cases(profile: str, device: Device) -> list[Case]:
    sets = ("llm70b", "dsv3") if device.is_gpu else ("small",)
    shapes = [(name, *shape) for name in sets for shape in SHAPES[name]]
    if profile == "quick" and device.is_gpu:
        shapes = shapes[1:3]
    rows = _ROWS[profile] if device.is_gpu else (1, 17, 64)
    dtypes = ("bf16", "fp16") if device.is_gpu else ("bf16", "fp16", "fp32")
    found = [
        {"m": m, "n": n, "k": k, "dtype": dtype, "shapes": name, "mode": "burst"}
        for dtype in dtypes
        for name, n, k in (shapes[:1] if dtype == "fp16" and profile != "full" and device.is_gpu else shapes)
        for m in rows
    ]
    # prefill runs hot: the largest products once more after two seconds of them
    hot = [{**case, "mode": "sustained"} for case in found if case["m"] == LARGE and case["n"] == 28672]
    return found + hot


def check(case: Case, device: Device) -> Numerics:
    m, n, k, dtype = case["m"], case["n"], case["k"], case["dtype"]
    a, b = normal((m, k), dtype, device, 1), normal((n, k), dtype, device, 2)
    got = gemm(a, b, poisoned((m, n), dtype, device))
    return against(got, a.double() @ b.double().t(), bound(dtype, k))


def measure(case: Case, device: Device) -> Measured:
    from functools import partial

    m, n, k, dtype = case["m"], case["n"], case["k"], case["dtype"]
    width = 4 if dtype == "fp32" else 2
    size = width * (m * k + n * k + m * n)
    sets = [
        (fresh((m, k), dtype, device), fresh((n, k), dtype, device), poisoned((m, n), dtype, device))
        for _ in range(copies(size, device))
    ]
    calls = [partial(gemm, *each) for each in sets]
    times, mode, cache = timed(calls, device, bytes_each=size, sustained=case["mode"] == "sustained")
    return Measured(times, mode, cache, 2.0 * m * n * k, size, dtype, "torch.mm", rotation=len(calls))


def derive(rows: Sequence[Row]) -> Derived:
    values: dict[str, Value] = {}
    predicted: dict[int, float] = {}
    for dtype in sorted({row["case"]["dtype"] for row in rows}):
        values |= rates(f"gemm.{dtype}.plain", [r for r in rows if r["case"]["dtype"] == dtype], predicted)
    return Derived(values, [predicted.get(row["id"]) for row in rows])


def expect(row: Row, device: Device) -> str | None:
    """See slow."""
    return slow(row, device, _EXPECTED)


def slow(row: Row, device: Device, expected: float) -> str | None:
    """What large products fall short of; a slow device is honest all the same."""
    peak = device.peaks.get(row["dtype"])
    if not peak or min(row["case"][key] for key in "mnk") < LARGE:
        return None
    share = row["achieved"]["flops_ps"] / peak
    return f"{share:.0%} of the peak, where {expected:.0%} is usual" if share < expected else None


def rates(path: str, rows: Sequence[Row], predicted: dict[int, float]) -> dict[str, Value]:
    """The roofline of products of one kind, and their typical and best rates; `predicted` gets a time for each row."""
    cool = [row for row in rows if row["case"]["mode"] != "sustained"]
    found = fit.roof(
        [row["work"]["flops"] for row in cool],
        [row["work"]["bytes"] for row in cool],
        [row["time_s"]["median"] for row in cool],
    )
    for row in rows:
        predicted[row["id"]] = found(row["work"]["flops"], row["work"]["bytes"])
    off = [predicted[row["id"]] / row["time_s"]["median"] for row in cool]
    most = max(min(row["case"][key] for key in "mnk") for row in rows)
    large = [row for row in rows if min(row["case"][key] for key in "mnk") >= min(LARGE, most)]
    sustained = [row for row in large if row["case"]["mode"] == "sustained"] or large
    values = {
        f"{path}.flops_typ": fit.value([r["achieved"]["flops_ps"] for r in large], "FLOP/s", large),
        f"{path}.flops_best": fit.value([max(r["achieved"]["flops_ps"] for r in rows)], "FLOP/s", large),
        f"{path}.flops_sustained": fit.value(
            [r["achieved"]["flops_ps"] for r in sustained], "FLOP/s", sustained
        ),
    }
    return values | fit.of_roof(path, found, off, cool)
