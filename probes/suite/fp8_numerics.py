"""What FP8 products lose: to the format, and to the kernel that adds them up; and whether they do the same each time."""

from __future__ import annotations

from collections.abc import Sequence

from capplan.probes.cuda_rules import supported
from capplan.probes.formats import quantised
from capplan.probes.numerics import normal, same_bits
from capplan.probes.probe import Case, Derived, Device, Measured, Numerics, Row, Unsupported, Value
from capplan.probes.suite import fp8_gemm
from capplan.probes.timing import timed

NAME = "fp8_numerics"
TITLE = "errors of FP8 products against fp64: of the format, of adding up, and from one run to the next"
FORMULA = "error = (1.66e-3^2 + adding up^2)^(1/2); adding up: 7.7e-7 K in 14 bits, 1.1e-4 promoted"
WHAT = "what fast accumulation costs in accuracy, and whether a chip computes the same twice"
ORDER, VERSION = 70, 1

_SHAPE, _OF_A_CPU = (64, 256, 20), (16, 32, 2)  # rows, outputs, runs; some CPUs make 10 MFLOP/s of FP8
_INNER = {"quick": (1024, 4096), "default": (1024, 4096, 16384), "full": (1024, 4096, 8192, 16384)}
_ON_CPU = {"quick": (1024,), "default": (1024, 4096), "full": (1024, 4096, 16384)}
_DRIFT = 1e-3  # of an error: runs that differ in the order of sums alone stay within


def cases(profile: str, device: Device) -> list[Case]:
    recipes: tuple[str, ...] = ("tensor", "row")
    if device.is_gpu:
        recipes = ("tensor", "row", "block")
        recipes = tuple(r for r in recipes if not supported(r, device.kind, device.capability, device.arch))
        if not recipes:
            raise Unsupported(f"{device.name} has no FP8 product")
    m, n, runs = _SHAPE if device.is_gpu else _OF_A_CPU
    return [
        {"m": m, "n": n, "k": k, "dtype": "fp8", "recipe": recipe, "fast_accum": fast, "runs": runs}
        for recipe in recipes
        for fast in ((False, True) if recipe != "block" else (False,))
        for k in (_INNER if device.is_gpu else _ON_CPU)[profile]
    ]


def check(case: Case, device: Device) -> Numerics:
    """As fp8_gemm's, of both errors; then some runs, whose errors may not drift: that is a race, or bad silicon."""
    found = fp8_gemm.check(case, device)
    if not found.ok:
        return found
    told = _errors(case, device)
    if told["drift"] > _DRIFT:
        why = f"the error drifts by {told['drift']:.1%} over {case['runs']} runs: a race, or bad silicon"
        return found._replace(ok=False, why=why, bit_stable=False)
    return found._replace(bit_stable=not told["unlike"])


def _errors(case: Case, device: Device) -> dict[str, float]:
    """Relative Frobenius errors: of the kernel, against what it was given; of the format, against what that was made of."""
    kind, recipe = f"e4m3{device.fp8_flavour}", case["recipe"]
    left, right = (normal((case[rows], case["k"]), "fp32", device, 1 + (rows == "n")) for rows in "mn")
    a, b = quantised(left, recipe, kind), quantised(right, recipe, kind, weight=True)
    given, whole = a.exact @ b.exact.t(), left.double() @ right.double().t()
    runs = [fp8_gemm.product(a, b, recipe, case["fast_accum"]) for _ in range(case["runs"])]
    off = [float((run.double() - given).norm() / given.norm()) for run in runs]
    return {
        "kernel_error": off[0],
        "format_error": float((runs[0].double() - whole).norm() / whole.norm()),
        "unlike": float(sum(not same_bits(runs[0], run) for run in runs[1:])),
        "drift": max(off) / min(off) - 1.0 if min(off) else 0.0,
    }


def measure(case: Case, device: Device) -> Measured:
    told = _errors(case, device)
    m, n, k, kind = case["m"], case["n"], case["k"], f"e4m3{device.fp8_flavour}"
    a = quantised(normal((m, k), "fp32", device, 1), case["recipe"], kind)
    b = quantised(normal((n, k), "fp32", device, 2), case["recipe"], kind, weight=True)
    size, flops = float((m + n) * k + 2 * m * n), 2.0 * m * n * k
    call = [lambda: fp8_gemm.product(a, b, case["recipe"], case["fast_accum"])]
    times, mode, _ = timed(call, device, bytes_each=size)
    note = [f"{told['unlike']:.0f} of {case['runs']} runs gave other bits"] if told["unlike"] else []
    return Measured(
        times, mode, "warm", flops, size, "fp8", "torch._scaled_mm", values=told, notes=note, rotation=1
    )


def expect(row: Row, device: Device) -> str | None:
    """Adding up stays within what the accumulator's bits say, promoted or not; the first runs on a GPU may move the bound."""
    case = row["case"]
    most = 2.5e-3 if not case["fast_accum"] else 2.5e-3 + 1.5 * fp8_gemm.accumulated(case["k"], True, device)
    error = row["values"]["kernel_error"]
    return f"the kernel's error {error:.2e} is above {most:.2e}" if error > most else None


def derive(rows: Sequence[Row]) -> Derived:
    values: dict[str, Value] = {}
    for recipe, fast in sorted({(row["case"]["recipe"], row["case"]["fast_accum"]) for row in rows}):
        own = [row for row in rows if (row["case"]["recipe"], row["case"]["fast_accum"]) == (recipe, fast)]
        path = f"numerics.fp8.{recipe}{'_fast' if fast else ''}"
        told = {f"kernel_error.{row['case']['k']}": (row["values"]["kernel_error"], [row]) for row in own}
        last = max(own, key=lambda row: int(row["case"]["k"]))
        told["format_error"] = (last["values"]["format_error"], [last])
        told["unlike"] = (max(row["values"]["unlike"] for row in own), own)
        for name, (at, of) in told.items():  # the same data each time: no spread
            values[f"{path}.{name}"] = Value(at, "1", at, at, len(of), [row["id"] for row in of])
    return Derived(values)
