"""A wrong kernel is caught before it is timed: faults put into the products, the memory and the disk. Needs torch."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from capplan.probes import formats
from capplan.probes.device import find
from capplan.probes.formats import FORMAT_ERROR, LARGEST, Quantised, quantised
from capplan.probes.numerics import against, normal, poisoned, same_bits
from capplan.probes.probe import Skipped, Unsupported
from capplan.probes.suite import fp8_gemm, gemm, hbm, launch, memory, storage, weight_streaming

CPU = find("cpu")
PRODUCT = {"m": 64, "n": 256, "k": 1024, "dtype": "bf16", "shapes": "small", "mode": "burst"}
FP8 = PRODUCT | {"dtype": "fp8", "recipe": "row", "fast_accum": False}
TENSOR = FP8 | {"recipe": "tensor"}
READ = {"op": "read", "mib": 1, "dtype": "fp32"}
COPY = READ | {"op": "copy"}
TRIAD = READ | {"op": "triad"}
STREAM = {"m": 8, "n": 256, "k": 512, "dtype": "fp32", "shapes": "gemv"}
CHAIN = {"how": "eager", "n": 10, "dtype": "fp32"}
DISK = {"mib": 16, "threads": 1, "cache": "warm"}

mm, move, product, bump, filled, read = (
    gemm.gemm,
    hbm.move,
    fp8_gemm.product,
    launch.bump,
    memory.filled,
    storage.read,
)


def last_row_unwritten(a: Any, b: Any, out: Any) -> Any:
    out[:-1] = a[:-1] @ b.t()
    return out


def zeros(a: Any, b: Any, out: Any) -> Any:
    return out.zero_()


def transposed(a: Any, b: Any, out: Any) -> Any:
    return mm(a, b.flip(0), out)


def one_entry_short(a: Any, b: Any, out: Any) -> Any:
    return mm(a[:, :-1].contiguous(), b[:, :-1].contiguous(), out)


def rounded_twice(a: Any, b: Any, out: Any) -> Any:
    return out.copy_((a @ b.t()).to(torch.float8_e5m2).to(out.dtype))


def scales_of_the_wrong_row(a: Quantised, b: Quantised, recipe: str, fast: bool) -> Any:
    return product(a._replace(scale=a.scale.roll(1, 0)), b, recipe, fast)


def scales_swapped(a: Quantised, b: Quantised, recipe: str, fast: bool) -> Any:
    """Each row with the scale of a column, as a transposed scale gives it."""
    return product(a._replace(scale=b.scale[: a.scale.shape[0]].clone()), b, recipe, fast)


def scale_left_out(a: Quantised, b: Quantised, recipe: str, fast: bool) -> Any:
    return product(a._replace(scale=torch.ones_like(a.scale)), b, recipe, fast)


def few_bits_kept(a: Quantised, b: Quantised, recipe: str, fast: bool) -> Any:
    """Partial sums of 64 in fp8's 16-bit neighbour: what an accumulator too narrow does."""
    total = torch.zeros(a.data.shape[0], b.data.shape[0], dtype=torch.float16)
    for at in range(0, a.exact.shape[1], 64):
        total += (a.exact[:, at : at + 64] @ b.exact[:, at : at + 64].t()).half()
    return (total.float() * 1.004).bfloat16()


def copied_one_off(op: str, x: Any, y: Any, out: Any) -> Any:
    out[:-1] = x[1:]
    return out


def half_read(op: str, x: Any, y: Any, out: Any) -> Any:
    return move(op, x[:, : x.shape[1] // 2], y, out)


def no_y(op: str, x: Any, y: Any, out: Any) -> Any:
    return out.copy_(x)


def skips(x: Any) -> Any:
    return x.add_(0.9)


FAULTS: dict[str, tuple[ModuleType, str, Callable[..., Any], dict[str, Any]]] = {
    "a row unwritten": (gemm, "gemm", last_row_unwritten, PRODUCT),
    "zeros": (gemm, "gemm", zeros, PRODUCT),
    "rows of the weights in another order": (gemm, "gemm", transposed, PRODUCT),
    "the last entry of K left out": (gemm, "gemm", one_entry_short, PRODUCT),
    "an output rounded to 8 bits": (gemm, "gemm", rounded_twice, PRODUCT),
    "scales of the next row": (fp8_gemm, "product", scales_of_the_wrong_row, FP8),
    "scales transposed": (fp8_gemm, "product", scales_swapped, FP8),
    "no scale": (fp8_gemm, "product", scale_left_out, TENSOR),
    "too narrow an accumulator": (fp8_gemm, "product", few_bits_kept, FP8),
    "a copy one row off": (hbm, "move", copied_one_off, COPY),
    "half of what is read": (hbm, "move", half_read, READ),
    "a triad without its second": (hbm, "move", no_y, TRIAD),
    "a chain with a lazy link": (launch, "bump", skips, CHAIN),
    "weights in another order": (weight_streaming, "stream", transposed, STREAM),
}


@pytest.mark.parametrize(("module", "name", "fault", "case"), FAULTS.values(), ids=FAULTS)
def test_a_wrong_kernel_is_caught(
    module: ModuleType,
    name: str,
    fault: Callable[..., Any],
    case: dict[str, Any],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert module.check(case, CPU).ok
    monkeypatch.setattr(module, name, fault)
    found = module.check(case, CPU)
    assert not found.ok
    assert found.why


# --- quantising ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fault", "recipe"),
    [
        (
            lambda q: q._replace(scale=q.scale * 2, exact=q.exact * 2),
            "tensor",
        ),  # both wrong alike: seen unquantised
        (lambda q: q._replace(data=q.data.float().to(torch.float8_e5m2).float().to(q.data.dtype)), "row"),
    ],
    ids=["a scale twice too large", "a coarser format"],
)
def test_a_wrong_format_is_caught(
    fault: Callable[[Quantised], Quantised], recipe: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = quantised
    monkeypatch.setattr(fp8_gemm, "quantised", lambda *a, **k: fault(real(*a, **k)))
    found = fp8_gemm.check(FP8 | {"recipe": recipe}, CPU)
    assert not found.ok


@pytest.mark.parametrize("kind", list(LARGEST))
@pytest.mark.parametrize("recipe", ["tensor", "row"])
def test_the_error_of_a_format_is_the_constant_it_is_said_to_be(kind: str, recipe: str) -> None:
    a, b = normal((64, 2048), "fp32", CPU, 1), normal((128, 2048), "fp32", CPU, 2)
    got = quantised(a, recipe, kind).exact @ quantised(b, recipe, kind, weight=True).exact.t()
    whole = a.double() @ b.double().t()
    assert float((got - whole).norm() / whole.norm()) == pytest.approx(FORMAT_ERROR[kind], rel=0.03)


@pytest.mark.parametrize("recipe", ["block", "mxfp8", "nvfp4"])
def test_formats_of_blocks_lose_what_their_bits_cost(recipe: str) -> None:
    """Blocks follow outliers: an entry 1000 times the rest costs its block, and not the matrix."""
    a = normal((128, 512), "fp32", CPU, 1)
    error = {"block": 0.027, "mxfp8": 0.030, "nvfp4": 0.095}[
        recipe
    ]  # of one matrix: 1 / sqrt(2) of a product's
    for x in (a, torch.where(torch.arange(512) == 7, 1000 * a, a)):
        off = (quantised(x, recipe).exact - x.double())[:, 128:]
        assert float(off.norm() / x[:, 128:].norm()) == pytest.approx(error, rel=0.12)


def test_what_is_too_large_is_clamped_and_never_nan() -> None:
    x = torch.tensor([[1e30, -1e30, 1.0, 0.5] * 32])
    for recipe in ("tensor", "row", "block", "mxfp8", "nvfp4"):
        found = quantised(x, recipe)
        assert bool(torch.isfinite(found.exact).all()), recipe


def test_without_the_clamp_an_overflow_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """e4m3fnuz has no room above its largest: a scale that is a little too small makes NaN of it."""
    monkeypatch.setattr(torch.Tensor, "clamp", lambda self, *a, **k: self)
    monkeypatch.setitem(formats.LARGEST, "e4m3fnuz", 300.0)
    found = quantised(normal((16, 128), "fp32", CPU, 1), "row", "e4m3fnuz")
    assert not against(found.exact.float(), normal((16, 128), "fp32", CPU, 1).double(), 0.1).ok


def test_a_packed_fp4_stands_for_what_it_says() -> None:
    """Two to a byte, the first in the low half, scales in tiles of 128 by 4 as 32 rows of 16."""
    x = torch.zeros(128, 64)
    x[0, :4] = torch.tensor([6.0, -3.0, 0.5, 1.0])
    found = quantised(x, "nvfp4")
    assert found.data.view(torch.uint8)[0, :2].tolist() == [0x7 | (0xD << 4), 0x1 | (0x2 << 4)]
    assert found.exact[0, :4].tolist() == [6.0, -3.0, 0.5, 1.0]
    rows = torch.arange(128)[:, None] + 128 * torch.arange(4)[None, :]
    flat = formats.tiled(rows.to(torch.uint8))
    # row 33, group 2: row 1 of 32, the second of four rows there
    assert int(flat[1 * 16 + 1 * 4 + 2]) == int(rows[33, 2]) % 256
    assert flat.numel() == 512


@pytest.mark.parametrize("recipe", ["tensor", "row", "block", "mxfp8", "nvfp4"])
@pytest.mark.parametrize("m", [4, 64, 132])
def test_what_the_probe_makes_cuda_takes(recipe: str, m: int) -> None:
    """The shapes, strides and formats of every recipe, where there is no kernel for it here."""
    n, k = 256, 1152
    a = quantised(normal((m, k), "fp32", CPU, 1), recipe)
    b = quantised(normal((n, k), "fp32", CPU, 2), recipe, weight=True)
    case = FP8 | {"m": m, "n": n, "k": k, "recipe": recipe}
    assert fp8_gemm.rejected(case, CPU, a, b) == []


def test_what_cuda_would_reject_fails_on_a_cpu_too(monkeypatch: pytest.MonkeyPatch) -> None:
    case = FP8 | {"k": 1000}
    found = fp8_gemm.check(case, CPU)
    assert (found.ok, found.why) == (False, "K 1,000 is no multiple of 16")


def test_a_recipe_that_the_library_does_not_have_is_no_failure() -> None:
    """torch has no products of blocks on a CPU; what CUDA would reject of them still fails."""
    case = FP8 | {"recipe": "block"}
    with pytest.raises(Unsupported, match="this torch takes no block product"):
        fp8_gemm.check(case, CPU)
    with pytest.raises((RuntimeError, ValueError), match=r"."):
        fp8_gemm.check(case | {"m": 17}, CPU)


# --- memory and disk ----------------------------------------------------------------------------------------------


def test_memory_that_does_not_hold_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    assert memory.check({"fill": 0.001}, CPU).ok
    calls: list[int] = []

    def forgets(number: int, count: int, device: Any) -> Any:
        calls.append(number)
        block = filled(number, count, device)
        if len(calls) == 1:
            block[count // 2] += 1
        return block

    monkeypatch.setattr(memory, "filled", forgets)
    found = memory.check({"fill": 0.001}, CPU)
    assert (found.ok, found.why) == (False, "1 entries are not what was written")


def test_a_byte_that_was_not_written_is_seen(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv(storage.FOLDER, str(tmp_path))
    assert storage.check(DISK, CPU).ok

    def flipped(path: Path, *args: Any, **options: Any) -> Any:
        with path.open("r+b") as file:
            file.seek(12345)
            byte = file.read(1)
            file.seek(12345)
            file.write(bytes([byte[0] ^ 1]))
        return read(path, *args, **options)

    monkeypatch.setattr(storage, "read", flipped)
    found = storage.check(DISK, CPU)
    assert (found.ok, found.why) == (False, "what was read is not what was written")
    assert list(tmp_path.iterdir()) == []


def test_a_disk_that_is_full_is_told(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv(storage.FOLDER, str(tmp_path))
    monkeypatch.setattr(storage, "_ROOM", 1e12)
    with pytest.raises(Skipped, match="set CAPPLAN_PROBE_DIR"):
        storage.cases("quick", CPU)


# --- the reference itself -------------------------------------------------------------------------------------------


def test_what_is_unwritten_or_of_another_shape_is_no_match() -> None:
    expected = normal((4, 4), "fp32", CPU, 1).double()
    assert against(expected.float(), expected, 1e-6).ok
    assert "16 of 16 entries are not finite" in against(poisoned((4, 4), "fp32", CPU), expected, 1.0).why
    assert "shape" in against(expected.float()[:2], expected, 1.0).why
    assert "all zeros" in against(expected * 0, expected * 0, 1.0).why
    assert same_bits(poisoned((4,), "fp32", CPU), poisoned((4,), "fp32", CPU))
    assert not same_bits(expected, expected + 1)
