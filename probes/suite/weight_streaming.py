"""One weight matrix by more and more rows: where streaming weights ends and computing begins."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

from capplan.probes import fit
from capplan.probes.cuda_rules import supported
from capplan.probes.formats import narrow, unit_scale
from capplan.probes.numerics import against, bound, fresh, normal, poisoned
from capplan.probes.probe import Case, Derived, Device, Measured, Numerics, Row, Value
from capplan.probes.timing import copies, timed

if TYPE_CHECKING:
    from torch import Tensor

NAME = "weight_streaming"
TITLE = (
    "weights times a growing batch: the ridge, the batch that doubles the step, the batch that reaches 90%"
)
FORMULA = "t = t0 + ((F / peak)^p + (B / bandwidth)^p)^(1/p); ridge = peak / bandwidth * bytes a weight / 2"
WHAT = "the batch from which compute bounds a step, and how soft that corner is"
ORDER, VERSION = 75, 1

_SHAPES = {"quick": [(8192, 8192)], "default": [(51200, 7168)], "full": [(51200, 7168), (8192, 8192)]}
_BATCHES = {
    "quick": (1, 16, 64, 128, 256, 512, 1024, 2048),
    "default": (
        *(1, 2, 4, 8, 16, 32, 64, 96, 128, 160, 192, 208, 224, 256),
        *(320, 384, 512, 768, 1024, 2048, 4096),
    ),
}
_BATCHES["full"] = _BATCHES["default"]
_OF_CPU = (1, 2, 4, 8, 16, 32, 64)
_DIP = 0.03  # of the rate of fewer rows
_WIDTHS = {"bf16": 2.0, "fp8": 1.0, "fp32": 4.0}


def stream(x: Tensor, weights: Tensor, out: Tensor) -> Tensor:
    """out [batch, outputs] = x [batch, inner] @ weights [outputs, inner] transposed; FP8 with unit scales."""
    import torch

    if weights.dtype in (torch.bfloat16, torch.float32):
        return torch.mm(x, weights.t(), out=out)
    one = unit_scale(x.device)
    return torch._scaled_mm(x, weights.t(), one, one, out_dtype=torch.bfloat16, use_fast_accum=True)


def cases(profile: str, device: Device) -> list[Case]:
    if not device.is_gpu:  # BLAS goes from gemv to gemm here: a change of kernels, not a roofline
        return [{"m": m, "n": 2048, "k": 2048, "dtype": "fp32", "shapes": "gemv"} for m in _OF_CPU]
    narrow = supported("tensor", device.kind, device.capability, device.arch) is None
    return [
        {"m": m, "n": n, "k": k, "dtype": dtype, "shapes": "gemv"}
        for dtype in (("bf16", "fp8") if narrow else ("bf16",))
        for n, k in _SHAPES[profile]
        for m in _BATCHES[profile]
    ]


def check(case: Case, device: Device) -> Numerics:
    m, n, k, dtype = case["m"], case["n"], case["k"], case["dtype"]
    x, weights = (
        narrow(normal(s, "fp32", device, i), dtype, device.fp8_flavour)
        for i, s in enumerate(((m, k), (n, k)))
    )
    out = "bf16" if dtype == "fp8" else dtype
    got = stream(x, weights, poisoned((m, n), out, device))
    # with fast accumulation 14 bits are kept of sums: 7.7e-7 of K more (fp8_gemm), and room for it
    most = bound(out, k) + (1.2e-6 * k if dtype == "fp8" else 0.0)
    return against(got, x.double() @ weights.double().t(), most)


def measure(case: Case, device: Device) -> Measured:
    m, n, k, dtype = case["m"], case["n"], case["k"], case["dtype"]
    size = _WIDTHS[dtype] * (m * k + n * k) + (2.0 if dtype == "fp8" else _WIDTHS[dtype]) * m * n
    out = "bf16" if dtype == "fp8" else dtype
    calls = [
        partial(
            stream,
            narrow(fresh((m, k), "fp32", device), dtype, device.fp8_flavour),
            narrow(fresh((n, k), "fp32", device), dtype, device.fp8_flavour),
            poisoned((m, n), out, device),
        )
        for _ in range(copies(size, device))
    ]
    times, mode, cache = timed(calls, device, bytes_each=size)
    return Measured(times, mode, cache, 2.0 * m * n * k, size, dtype, "torch gemm", rotation=len(calls))


def derive(rows: Sequence[Row]) -> Derived:
    values: dict[str, Value] = {}
    predicted: dict[int, float] = {}
    for dtype in sorted({row["case"]["dtype"] for row in rows}):
        own = [row for row in rows if row["case"]["dtype"] == dtype]
        largest = max(row["case"]["n"] * row["case"]["k"] for row in own)
        own = sorted(
            (r for r in own if r["case"]["n"] * r["case"]["k"] == largest), key=lambda row: row["case"]["m"]
        )
        if len(own) >= 4:
            values |= _knee(dtype, own, predicted)
    return Derived(values, [predicted.get(row["id"]) for row in rows])


def _knee(dtype: str, rows: list[Row], predicted: dict[int, float]) -> dict[str, Value]:
    """The corner of one matrix's roofline."""
    flops, sizes = ([row["work"][key] for row in rows] for key in ("flops", "bytes"))
    times = [row["time_s"]["median"] for row in rows]
    found = fit.roof(flops, sizes, times)
    predicted |= {row["id"]: found(*both) for row, *both in zip(rows, flops, sizes, strict=True)}
    path, width = f"knee.{dtype}", _WIDTHS[dtype]
    off = [predicted[row["id"]] / time for row, time in zip(rows, times, strict=True)]
    first, most = rows[0], max(row["achieved"]["flops_ps"] for row in rows)
    ridge = most * width / (2.0 * first["achieved"]["bytes_ps"])
    values = {
        f"{path}.bandwidth": fit.of_row(first, first["work"]["bytes"], "byte/s"),
        f"{path}.peak": fit.value([most], "FLOP/s", rows),
        f"{path}.ridge": fit.value([ridge * each for each in off], "1", rows, ridge),
        f"{path}.power": fit.value([found.power], "1", rows),
        f"{path}.t0": fit.value([found.start], "s", rows),
    }
    batches = [row["case"]["m"] for row in rows]
    if (twice := fit.crossing(batches, times, 2.0 * times[0])) is not None:
        values[f"{path}.batch_t2x"] = fit.value([twice], "1", rows)
    rates = [row["achieved"]["flops_ps"] for row in rows]
    if (nearly := fit.crossing(batches, rates, 0.9 * most)) is not None:
        values[f"{path}.batch_90pct"] = fit.value([nearly], "1", rows)
    # more rows at a lower rate: the last wave of tiles is nearly empty
    lost = {
        m: 1.0 - rate / max(rates[: i + 1]) for i, (m, rate) in enumerate(zip(batches, rates, strict=True))
    }
    deepest = max(lost, key=lambda m: lost[m])
    if lost[deepest] > _DIP:
        values[f"{path}.dip_batch"] = fit.value([float(deepest)], "1", rows)
    return values
