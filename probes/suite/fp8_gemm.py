"""Products of FP8 and FP4 matrices by recipe of their scales, with fast accumulation and without."""

from __future__ import annotations

from collections.abc import Sequence
from math import hypot, sqrt
from typing import TYPE_CHECKING

from capplan.probes.cuda_rules import RECIPES, Call, cuda_rules, supported
from capplan.probes.formats import FORMAT_ERROR, Quantised, described, quantised
from capplan.probes.numerics import ROOM, ROUNDING, against, fresh, normal, same_bits
from capplan.probes.probe import Case, Derived, Device, Measured, Numerics, Row, Unsupported, Value
from capplan.probes.suite.gemm import LARGE, SHAPES, rates, slow
from capplan.probes.timing import copies, timed

if TYPE_CHECKING:
    from torch import Tensor

NAME = "fp8_gemm"
TITLE = "products of FP8 and FP4 matrices: scales of a tensor, a row or a block; fast accumulation on and off"
FORMULA = "t = t0 + ((F / peak)^p + (B / bandwidth)^p)^(1/p)"
WHAT = "the share of the FP8 and FP4 peaks that products reach, by recipe"
ORDER, VERSION = 71, 1

_ROWS = {"quick": (16, 512, 4096), "default": (1, 16, 64, 256, 1024, 4096)}
_ROWS["full"] = (1, 8, 16, 17, 32, 64, 100, 128, 192, 256, 384, 512, 1024, 2048, 4096, 8192, 16384)
_NEAR = 0.03  # the format's error is a constant: so near it is, and three standard errors of small outputs
_FAST_ERROR = 7.7e-7  # of K: products added up in 14 bits (emulated; Hopper and Ada)
_FAST_IN = ((8, 9), (9, 0))
_EXPECTED = 0.40  # of the peak: 0.8 of what Hopper, Blackwell and Ada typically reach


def product(a: Quantised, b: Quantised, recipe: str, fast: bool) -> Tensor:
    """a [M, K] by b [N, K] transposed, in bf16 [M, N]."""
    import torch

    scale_b = b.scale.t() if recipe in ("row", "block") else b.scale
    return torch._scaled_mm(
        a.data, b.data.t(), a.scale, scale_b, out_dtype=torch.bfloat16, use_fast_accum=fast
    )


def accumulated(inner: int, fast: bool, device: Device) -> float:
    """Relative error of adding up so many products: in 14 bits where fast accumulation is asked for, and there."""
    return _FAST_ERROR * inner if fast and device.capability in _FAST_IN else 0.0


def cases(profile: str, device: Device) -> list[Case]:
    if device.is_gpu:
        if why := supported("tensor", device.kind, device.capability, device.arch):
            raise Unsupported(why)
        shapes = [(name, *s) for name in ("llm70b", "dsv3") for s in SHAPES[name]]
        shapes = [s for s in shapes if not (s[1] % 128 or s[2] % 128)]
        shapes, rows = shapes[: {"quick": 1, "default": 3}.get(profile)], _ROWS[profile]
        recipes = tuple(r for r in RECIPES if not supported(r, device.kind, device.capability, device.arch))
    else:
        # some CPUs make 10 MFLOP/s of FP8
        shapes, rows, recipes = [("small", 128, 512)], (1, 17), ("tensor", "row")
    found = []
    for recipe in recipes:
        for name, n, k in shapes:
            for m in rows:
                for fast in (False, True) if recipe in ("tensor", "row") else (False,):
                    m4 = -(-m // 4) * 4 if recipe == "block" else m
                    dtype = "fp4" if recipe == "nvfp4" else "fp8"
                    case = {"m": m4, "n": n, "k": k, "dtype": dtype, "recipe": recipe, "fast_accum": fast}
                    found.append(case | {"shapes": name, "mode": "burst"})
    # prefill runs hot: the largest products once more after two seconds of them
    hot = [
        case
        for case in found
        if device.is_gpu and (case["m"], case["n"]) == (LARGE, max(s[1] for s in shapes))
    ]
    return found + [{**case, "mode": "sustained"} for case in hot]


def expect(row: Row, device: Device) -> str | None:
    """See gemm.slow; what scales of blocks reach is not known as well."""
    return None if row["case"]["recipe"] == "block" else slow(row, device, _EXPECTED)


def _matrices(case: Case, device: Device, a: Tensor, b: Tensor) -> tuple[Quantised, Quantised]:
    recipe, kind = case["recipe"], f"e4m3{device.fp8_flavour}"
    return quantised(a, recipe, kind), quantised(b, recipe, kind, weight=True)


def rejected(case: Case, device: Device, a: Quantised, b: Quantised) -> list[str]:
    """What CUDA would not take of a call, also where the CPU takes it."""
    of = "e2m1" if case["recipe"] == "nvfp4" else None
    left, right = described(a.data, of), described(b.data.t(), of)
    if of:  # two to a byte
        left = left._replace(shape=(case["m"], case["k"]), stride=(case["k"], 1))
        right = right._replace(shape=(case["k"], case["n"]), stride=(1, case["k"]))
    scale_b = described(b.scale.t() if case["recipe"] in ("row", "block") else b.scale)
    call = Call(case["recipe"], left, right, described(a.scale), scale_b, fast_accum=case["fast_accum"])
    return cuda_rules(call, fnuz=device.fp8_flavour == "fnuz")


def check(case: Case, device: Device) -> Numerics:
    m, n, k, recipe = case["m"], case["n"], case["k"], case["recipe"]
    if device.is_gpu and (why := supported(recipe, device.kind, device.capability, device.arch)):
        raise Unsupported(why)
    left, right = normal((m, k), "fp32", device, 1), normal((n, k), "fp32", device, 2)
    a, b = _matrices(case, device, left, right)
    wrong = rejected(case, device, a, b)
    try:
        got = product(a, b, recipe, case["fast_accum"])
    except (RuntimeError, ValueError, NotImplementedError) as error:
        if wrong or recipe in ("tensor", "row") or "CUDA error" in str(error):
            raise
        # newer than the library at hand, such as blocks before cuBLAS 12.9
        raise Unsupported(f"this torch takes no {recipe} product: {error}".splitlines()[0]) from error
    bound = ROOM * hypot(ROUNDING["bf16"], accumulated(k, case["fast_accum"], device))
    found = against(got, a.exact @ b.exact.t(), bound, wrong[0] if wrong else "")
    if found.ok and (kind := f"e4m3{device.fp8_flavour}") and recipe in ("tensor", "row"):
        # three standard errors: the outputs are m times n draws, and as many as there are rows share their inputs
        near = _NEAR + 3.0 / sqrt(2.0 * min(m * n, k))
        whole = left.double() @ right.double().t()
        off = float((got.double() - whole).norm() / whole.norm()) / FORMAT_ERROR[kind] - 1.0
        if abs(off) > near:
            why = f"the format's own error is off by {100 * off:.1f}%: a wrong scale, layout or format"
            return found._replace(ok=False, why=why)
    return found._replace(bit_stable=same_bits(got, product(a, b, recipe, case["fast_accum"])))


def measure(case: Case, device: Device) -> Measured:
    from functools import partial

    m, n, k, recipe = case["m"], case["n"], case["k"], case["recipe"]
    width = 0.5 if recipe == "nvfp4" else 1.0
    size = width * (m * k + n * k) + 2 * m * n
    calls = []
    for _ in range(copies(size, device)):
        a, b = _matrices(case, device, fresh((m, k), "fp32", device), fresh((n, k), "fp32", device))
        calls.append(
            partial(product, a._replace(exact=a.scale), b._replace(exact=b.scale), recipe, case["fast_accum"])
        )
    times, mode, cache = timed(calls, device, bytes_each=size, sustained=case["mode"] == "sustained")
    flops, kernel = 2.0 * m * n * k, "torch._scaled_mm"
    return Measured(times, mode, cache, flops, size, case["dtype"], kernel, rotation=len(calls))


def derive(rows: Sequence[Row]) -> Derived:
    values: dict[str, Value] = {}
    predicted: dict[int, float] = {}
    for key in sorted({(r["case"]["dtype"], r["case"]["recipe"], r["case"]["fast_accum"]) for r in rows}):
        own = [r for r in rows if (r["case"]["dtype"], r["case"]["recipe"], r["case"]["fast_accum"]) == key]
        dtype, recipe, fast = key
        values |= rates(f"gemm.{dtype}.{recipe}{'_fast' if fast else ''}", own, predicted)
    return Derived(values, [predicted.get(row["id"]) for row in rows])
