"""Activations to FP8 before a product: what that costs by itself, and what is left of the product's rate with it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING

from capplan.probes import fit
from capplan.probes.attention import line
from capplan.probes.cuda_rules import BLOCK, supported
from capplan.probes.formats import LARGEST, Quantised, fp8, quantised
from capplan.probes.kernels import ready
from capplan.probes.numerics import ROOM, ROUNDING, against, fresh, normal
from capplan.probes.probe import Case, Derived, Device, Measured, Numerics, Row, Unsupported, Value
from capplan.probes.suite import fp8_gemm
from capplan.probes.timing import copies, timed

if TYPE_CHECKING:
    from torch import Tensor

NAME = "quantise"
TITLE = (
    "activations to FP8 with scales of a row or a block made as they come, alone and with the product after"
)
FORMULA = "t = t0 + bytes / rate"
WHAT = "what scaling at run time costs a layer beside its products: published FP8 rates often include it"
ORDER, VERSION = 72, 1

_OUTPUTS, _INNER = 28672, 8192  # of Llama-3 70B's gate and up
_ROWS = {
    "quick": (16, 4096),
    "default": (1, 16, 64, 256, 1024, 4096),
    "full": (1, 16, 64, 128, 256, 1024, 4096, 16384),
}
_NEAR = (
    2e-3  # of the format's own numbers: a quotient that is rounded otherwise goes to the neighbour of a few
)
_LARGE = 4096  # rows from which a product counts to the typical rate


def to_fp8(x: Tensor, out: Tensor, scales: Tensor, recipe: str, kind: str) -> Quantised:
    """x [row, K] in 16 bits, to `out` and `scales`."""
    from capplan.probes.kernels.quantise import quantise

    quantise(x, out, scales, BLOCK if recipe == "block" else x.shape[1], LARGEST[kind])
    return Quantised(out, scales, scales)


def cases(profile: str, device: Device) -> list[Case]:
    recipes: tuple[str, ...] = ("row", "block")
    rows, n, k, ops = _ROWS[profile], _OUTPUTS, _INNER, ("quantise", "quantise+gemm")
    if device.is_gpu:
        recipes = tuple(r for r in recipes if not supported(r, device.kind, device.capability, device.arch))
        if not recipes:
            raise Unsupported(f"{device.name} has no FP8 product with scales made as they come")
    else:
        rows, n, k = (3, 17), 128, 512
    found = []
    for recipe in recipes:
        for op in ops if device.is_gpu or recipe == "row" else ops[:1]:  # a CPU has no product of blocks
            for m in rows:
                m4 = -(-m // 4) * 4 if recipe == "block" else m
                found.append({"op": op, "recipe": recipe, "m": m4, "n": n, "k": k, "dtype": "fp8"})
    return found


def _buffers(case: Case, device: Device) -> tuple[Tensor, Tensor]:
    """Where numbers and scales go: poisoned, and the scales of blocks row by row, as the product takes them."""
    import torch

    m, k, kind = case["m"], case["k"], fp8(f"e4m3{device.fp8_flavour}")
    out = torch.full(
        (m, k), 255 if device.fp8_flavour == "fn" else 128, dtype=torch.uint8, device=device.torch
    ).view(kind)
    groups = k // BLOCK if case["recipe"] == "block" else 1
    scales = torch.full((m * groups,), torch.nan, device=device.torch)
    return out, scales.view(groups, m).t() if groups > 1 else scales.view(m, 1)


def _call(case: Case, x: Tensor, weight: Quantised, device: Device) -> Callable[[], Tensor | Quantised]:
    kind, fast = f"e4m3{device.fp8_flavour}", case["recipe"] == "row"
    narrow = partial(to_fp8, x, *_buffers(case, device), case["recipe"], kind)
    if case["op"] == "quantise":
        return narrow
    return lambda: fp8_gemm.product(narrow(), weight, case["recipe"], fast)


def check(case: Case, device: Device) -> Numerics:
    """The numbers that the format has for them; and the product of those, which no wrong scale or layout survives."""
    ready(device)
    m, n, k, recipe = (case[key] for key in ("m", "n", "k", "recipe"))
    kind = f"e4m3{device.fp8_flavour}"
    x = normal((m, k), "bf16", device, 1)
    x[::5, 3] *= 30.0  # outliers: their row, or their block, pays for them
    weight = quantised(normal((n, k), "fp32", device, 2), recipe, kind, weight=True)
    right = quantised(x.float(), recipe, kind)
    got = to_fp8(x, *_buffers(case, device), recipe, kind)
    spread = got.scale.double().repeat_interleave(k // got.scale.shape[1], 1)
    found = against(got.data.double() * spread, right.exact, _NEAR)
    if not found.ok or case["op"] == "quantise":
        return found
    wrong = fp8_gemm.rejected(case | {"fast_accum": recipe == "row"}, device, got, weight)
    product = _call(case, x, weight, device)()
    bound = ROOM * ROUNDING["bf16"] + _NEAR + fp8_gemm.accumulated(k, recipe == "row", device)
    return against(product, right.exact @ weight.exact.t(), bound, wrong[0] if wrong else "")


def measure(case: Case, device: Device) -> Measured:
    m, n, k, recipe = (case[key] for key in ("m", "n", "k", "recipe"))
    kind, whole = f"e4m3{device.fp8_flavour}", case["op"] != "quantise"
    size = 3.0 * m * k + (1.0 * m * k + n * k + 2.0 * m * n if whole else 0.0)
    calls = []
    for _ in range(copies(size, device)):
        outputs = n if whole else BLOCK
        weight = quantised(fresh((outputs, k), "fp32", device), recipe, kind, weight=True)
        weight = weight._replace(exact=weight.scale)  # which need not be kept
        calls.append(_call(case, fresh((m, k), "bf16", device), weight, device))
    times, mode, cache = timed(calls, device, bytes_each=size)
    flops = 2.0 * m * n * k if whole else None
    return Measured(times, mode, cache, flops, size, case["dtype"], "triton", "triton", rotation=len(calls))


def derive(rows: Sequence[Row]) -> Derived:
    values: dict[str, Value] = {}
    predicted: dict[int, float] = {}
    for recipe in sorted({row["case"]["recipe"] for row in rows}):
        own = [row for row in rows if row["case"]["recipe"] == recipe]
        if alone := [row for row in own if row["case"]["op"] == "quantise"]:
            values |= line(f"{NAME}.fp8.{recipe}", alone, "bytes", "byte/s", predicted)
        both = [row for row in own if row["case"]["op"] != "quantise"]
        most = max((row["case"]["m"] for row in both), default=0)
        if large := [row for row in both if row["case"]["m"] >= min(_LARGE, most)]:
            rates = [row["achieved"]["flops_ps"] for row in large]
            values[f"gemm.fp8.{recipe}.flops_with_quantise"] = fit.value(rates, "FLOP/s", large)
    return Derived(values, [predicted.get(row["id"]) for row in rows])
