"""What CUDA would reject is rejected here; what can't be true is invalid; planted curves are found again. No torch."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import pytest

from capplan.errors import UnknownNameError
from capplan.probes import fit
from capplan.probes.cuda_rules import Call, Matrix, cuda_rules, supported
from capplan.probes.judge import impossible, most_flops
from capplan.probes.probe import PROFILES, SUITE, Device, Row, Skipped, names, probe, probes
from capplan.probes.telemetry import stat

ONE = Matrix((), (), "fp32")
M, K, N = 64, 1024, 512


def a(m: int = M, k: int = K, dtype: str = "e4m3fn", stride: tuple[int, int] | None = None) -> Matrix:
    return Matrix((m, k), stride or (k, 1), dtype)


def b(k: int = K, n: int = N, dtype: str = "e4m3fn", stride: tuple[int, int] | None = None) -> Matrix:
    return Matrix((k, n), stride or (1, k), dtype)


def tensor(**changed: Any) -> Call:
    return Call("tensor", a(), b(), ONE, ONE)._replace(**changed)


ROW = Call("row", a(), b(), Matrix((M, 1), (1, 1), "fp32"), Matrix((1, N), (N, 1), "fp32"))
BLOCK = Call("block", a(), b(), Matrix((M, 8), (1, M), "fp32"), Matrix((8, 4), (4, 1), "fp32"))
MX = Call("mxfp8", a(), b(), Matrix((128 * 32,), (1,), "e8m0"), Matrix((512 * 32,), (1,), "e8m0"))
FP4 = Call(
    "nvfp4",
    a(dtype="e2m1"),
    b(dtype="e2m1"),
    Matrix((128 * 64,), (1,), "e4m3fn"),
    Matrix((512 * 64,), (1,), "e4m3fn"),
)


@pytest.mark.parametrize(
    "call",
    [
        tensor(),
        tensor(a=a(m=17)),
        tensor(a=a(dtype="e5m2")),
        tensor(out="fp32", fast_accum=True),
        ROW,
        BLOCK,
        MX,
        FP4,
    ],
    ids=["tensor", "odd M", "e5m2 by e4m3", "fp32 out", "row", "block", "mxfp8", "nvfp4"],
)
def test_what_cuda_takes(call: Call) -> None:
    assert cuda_rules(call) == []


REJECTED: dict[str, tuple[Call, str]] = {
    "K": (tensor(a=a(k=1000), b=b(k=1000)), "K 1,000 is no multiple of 16"),
    "N": (tensor(b=b(n=1000)), "N 1,000 is no multiple of 16"),
    "K of both": (tensor(b=b(k=512)), "a has K 1,024 and b has 512"),
    "row-major b": (tensor(b=b(stride=(N, 1))), "b is not column-major"),
    "column-major a": (tensor(a=a(stride=(1, M))), "a is not row-major"),
    "e5m2": (tensor(a=a(dtype="e5m2"), b=b(dtype="e5m2")), "e5m2 by e5m2"),
    "fnuz": (tensor(a=a(dtype="e4m3fnuz")), "e4m3fnuz"),
    "fp64 scale": (tensor(scale_a=Matrix((), (), "fp64")), "scales must be fp32"),
    "two scales": (tensor(scale_a=Matrix((2,), (1,), "fp32")), "scale_a has 2 entries, not 1"),
    "scales of a row": (
        ROW._replace(scale_b=Matrix((N, 1), (1, 1), "fp32")),
        "scale_b is (512, 1), not (1, 512)",
    ),
    "scales not contiguous": (
        ROW._replace(scale_a=Matrix((M, 1), (999, 1), "fp32")),
        "scale_a is not contiguous",
    ),
    "M of blocks": (
        BLOCK._replace(a=a(m=17), scale_a=Matrix((17, 8), (1, 17), "fp32")),
        "M 17 is no multiple of 4",
    ),
    "scales of blocks, row-major": (
        BLOCK._replace(scale_a=Matrix((M, 8), (8, 1), "fp32")),
        "outer-dimension major",
    ),
    "blocks not in fours": (
        BLOCK._replace(
            a=a(k=1152),
            b=b(k=1152),
            scale_a=Matrix((M, 9), (1, M), "fp32"),
            scale_b=Matrix((9, 4), (4, 1), "fp32"),
        ),
        "scale_b is (9, 4), not (12, 4)",
    ),
    "mx scales in fp32": (MX._replace(scale_a=Matrix((128 * 32,), (1,), "fp32")), "scales must be e8m0"),
    "mx scales not padded": (MX._replace(scale_a=Matrix((64 * 32,), (1,), "e8m0")), "not 4,096"),
    "fp8 where fp4 is": (FP4._replace(a=a()), "nvfp4 multiplies e2m1 by e2m1"),
    "fast fp4": (FP4._replace(fast_accum=True), "fast accumulation is not for FP4"),
    "out": (tensor(out="int8"), "out 'int8'"),
    "bias": (tensor(out="fp32", bias="bf16"), "a bias must be bf16 or fp16, and not with an fp32 output"),
    "recipe": (tensor(recipe="column"), "unknown recipe 'column'"),
    "three dimensions": (tensor(a=Matrix((1, M, K), (M * K, K, 1), "e4m3fn")), "two dimensions"),
}


@pytest.mark.parametrize(("call", "message"), REJECTED.values(), ids=REJECTED)
def test_what_cuda_rejects(call: Call, message: str) -> None:
    told = cuda_rules(call)
    assert any(message in text for text in told), told


def test_fnuz_is_of_gfx942_alone() -> None:
    call = tensor(a=a(dtype="e4m3fnuz"), b=b(dtype="e4m3fnuz"))
    assert cuda_rules(call, fnuz=True) == []
    assert cuda_rules(call) != []
    assert cuda_rules(tensor(), fnuz=True) != []


@pytest.mark.parametrize(
    ("recipe", "capability", "there"),
    [
        ("tensor", (8, 0), False),
        ("tensor", (8, 9), True),
        ("row", (9, 0), True),
        ("block", (9, 0), True),
        ("block", (10, 0), False),
        ("mxfp8", (9, 0), False),
        ("nvfp4", (10, 0), True),
    ],
)
def test_which_device_has_which_product(recipe: str, capability: tuple[int, int], there: bool) -> None:
    assert (supported(recipe, "cuda", capability, "") is None) is there


# --- the impossibility rule -----------------------------------------------------------------------------------

MIB = 2.0**20
# published cells that can't be true: GPU, byte/s, bytes of the case, called cold
IMPOSSIBLE = {
    "L40S decode, 2.0 TB/s out of L2": ("l40s", 2.0e12, 30e6),
    "L40S decode, 4.1 TB/s out of L2": ("l40s", 4.1e12, 101e6),
    "A100 decode, 3.46 TB/s": ("a100-sxm-80", 3.46e12, 4.3e9),
    "H100 D192, 107%": ("h100-sxm", 1.07 * 3.35e12, 2e9),
}


def cell(make: Callable[..., Row], rate: float, size: float) -> Row:
    case = {"batch": 8, "length": 8192, "kv_dtype": "bf16", "kernel": "flash"}
    return make("attn_decode", case, size / rate, bytes=size, rotation=1)


@pytest.mark.parametrize(("gpu", "rate", "size"), IMPOSSIBLE.values(), ids=IMPOSSIBLE)
def test_published_cells_that_can_not_be_true(
    gpu: str, rate: float, size: float, row: Callable[..., Row], device: Callable[..., Device]
) -> None:
    why = impossible(cell(row, rate, size), device(gpu))
    assert why is not None
    assert "more than the" in why


def test_the_best_cell_of_an_h200_is_possible(row: Callable[..., Row], device: Callable[..., Device]) -> None:
    assert impossible(cell(row, 4.484e12, 8e9), device("h200-sxm")) is None


def test_what_fits_in_l2_is_not_cold(row: Callable[..., Row], device: Callable[..., Device]) -> None:
    small = cell(row, 1e12, 100 * MIB)
    assert "less than 5 times the L2" in (impossible(small, device("h200-sxm")) or "")
    assert impossible(small | {"rotation": 4}, device("h200-sxm")) is None
    assert impossible(small | {"cache": "warm"}, device("h200-sxm")) is None


@pytest.mark.parametrize(("rate", "possible"), [(1060e12, True), (1090e12, False)])
def test_no_product_passes_all_matrix_units(
    rate: float, possible: bool, row: Callable[..., Row], device: Callable[..., Device]
) -> None:
    """Hopper's 989 TFLOP/s are at 1830 MHz; at the 1980 it may run at, 1,070."""
    h200 = device("h200-sxm")
    assert most_flops("bf16", h200) == pytest.approx(132 * 4096 * 1980e6)
    case = {"m": 8192, "n": 8192, "k": 8192, "dtype": "bf16", "mode": "burst"}
    flops = 2.0 * 8192**3
    found = row("gemm", case, flops / rate, flops=flops, bytes=4e8, dtype="bf16", rotation=1)
    assert (impossible(found, h200) is None) is possible


def test_fp8_has_twice_the_rate_and_an_unknown_chip_its_datasheet(device: Callable[..., Device]) -> None:
    h200 = device("h200-sxm")
    assert most_flops("fp8", h200) == pytest.approx(2 * (most_flops("bf16", h200) or 0))
    assert most_flops("bf16", replace(h200, capability=(99, 0))) == pytest.approx(989.5e12 * 1.09)
    assert most_flops("fp3", h200) is None


# --- fits -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("power", [1.5, 2.0, 3.0])
@pytest.mark.parametrize("start", [4e-6, 12e-6])
def test_a_planted_roofline_is_found_again(power: float, start: float) -> None:
    planted = fit.Roof(start, 760e12, 4.1e12, power)
    shapes = [
        (m, n, k)
        for m in (1, 16, 64, 128, 192, 256, 512, 1024, 4096)
        for n, k in ((8192, 8192), (28672, 8192))
    ]
    flops = [2.0 * m * n * k for m, n, k in shapes]
    sizes = [2.0 * (m * k + n * k + m * n) for m, n, k in shapes]
    noise = Random(1)
    times = [planted(f, s) * noise.uniform(0.995, 1.005) for f, s in zip(flops, sizes, strict=True)]
    found = fit.roof(flops, sizes, times)
    assert found.peak == pytest.approx(planted.peak, rel=0.05)
    assert found.bandwidth == pytest.approx(planted.bandwidth, rel=0.05)
    assert found.power == pytest.approx(power, rel=0.15)
    assert found.peak / found.bandwidth == pytest.approx(planted.peak / planted.bandwidth, rel=0.05)


def test_a_planted_line_is_found_again() -> None:
    sizes = [1e6, 1e7, 1e8, 1e9]
    found = fit.line(sizes, [12e-6 + size / 4.2e12 for size in sizes])
    assert found.start == pytest.approx(12e-6, rel=1e-6)
    assert found.rate == pytest.approx(4.2e12, rel=1e-6)
    with pytest.raises(ValueError, match="two sizes"):
        fit.line([1e6, 1e6], [1e-6, 2e-6])


def test_a_range_never_leaves_what_was_seen() -> None:
    assert fit.value([1.0, 2.0, 3.0, 100.0], "1", [{"id": 0}]).lo >= 1.0
    told = stat([1e-6, 2e-6, 3e-6])
    assert told is not None
    assert told["p10"] == pytest.approx(1.2e-6)
    assert told["median"] == 2e-6
    assert told["min"] <= told["p10"] <= told["p90"] <= 3e-6
    assert stat([]) is None


def test_where_a_level_is_reached() -> None:
    assert fit.crossing([1, 2, 4], [1.0, 2.0, 4.0], 3.0) == 3.0
    assert fit.crossing([1, 2, 4], [1.0, 2.0, 4.0], 9.0) is None


# --- the suite as it lies in its folder -------------------------------------------------------------------------


@pytest.mark.parametrize("name", names())
def test_every_probe_has_the_one_shape(name: str) -> None:
    one = probe(name)
    assert name == one.NAME
    assert one.TITLE
    assert one.FORMULA
    assert one.WHAT
    assert one.ORDER > 0
    assert one.VERSION >= 1
    assert all(callable(getattr(one, part)) for part in ("cases", "check", "measure", "derive"))


@pytest.mark.parametrize("name", names())
def test_no_probe_is_longer_than_a_screen_or_two(name: str) -> None:
    assert len((SUITE / f"{name}.py").read_text().splitlines()) <= 150


def test_probes_run_from_cool_to_hot() -> None:
    order = [one.ORDER for one in probes()]
    assert order == sorted(order)


def test_a_module_put_into_the_folder_is_a_probe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "new_one.py").touch()
    (tmp_path / "_not_one.py").touch()
    monkeypatch.setattr("capplan.probes.probe.SUITE", tmp_path)
    assert names() == ["new_one"]
    with pytest.raises(UnknownNameError, match="did you mean 'new_one'"):
        probe("new_on")


@pytest.mark.parametrize("card", ["h200-sxm", "l40s", "a100-sxm-80", "b200-sxm", "mi300x", "t4"])
@pytest.mark.parametrize("name", names())
def test_cases_of_cards_that_are_not_here(name: str, card: str, device: Callable[..., Device]) -> None:
    """Shapes are chosen without the card: those of a card without FP8 have none, those of Hopper the recipes it has."""
    pytest.importorskip("torch")  # which some ask how many cards there are
    seen = device(card)
    counts = []
    for profile in PROFILES:
        try:
            cases = probe(name).cases(profile, seen)
        except Skipped:
            cases = []
        assert json.loads(json.dumps(cases)) == cases
        assert len({json.dumps(case, sort_keys=True) for case in cases}) == len(cases)
        counts.append(len(cases))
    assert counts[0] <= counts[1] <= counts[2]
    if name == "fp8_gemm":
        recipes = {case["recipe"] for case in cases}
        assert recipes == {
            "h200-sxm": {"tensor", "row", "block"},
            "l40s": {"tensor", "row"},
            "b200-sxm": {"tensor", "row", "mxfp8", "nvfp4"},
            "mi300x": {"tensor", "row"},
        }.get(card, set())
