"""Activations to FP8, and what FP8 products lose: right against fp64, and wrong ones are caught."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import pytest

os.environ["TRITON_INTERPRET"] = "1"  # read when triton is first imported

torch = pytest.importorskip("torch")
pytest.importorskip("triton")

from capplan.probes.device import find
from capplan.probes.formats import Quantised
from capplan.probes.probe import Row, Unsupported
from capplan.probes.suite import fp8_gemm, fp8_numerics, quantise

CPU = find("cpu")
ROW = {"op": "quantise", "recipe": "row", "m": 3, "n": 128, "k": 256, "dtype": "fp8"}
BLOCK = ROW | {"recipe": "block", "m": 4}
BOTH = ROW | {"op": "quantise+gemm"}
Patch = pytest.MonkeyPatch
right = quantise.to_fp8


@pytest.mark.parametrize("case", [ROW, BLOCK, BOTH], ids=["row", "block", "with the product"])
def test_numbers_are_those_of_the_format(case: dict[str, Any]) -> None:
    found = quantise.check(case, CPU)
    assert found.ok, found.why
    if case["op"] == "quantise":
        assert found.rel_fro < 1e-6  # every number the nearest one


def changed(change: Callable[[Quantised], Quantised | None]) -> Callable[..., Quantised]:
    def wrong(*args: Any) -> Quantised:
        found = right(*args)
        return change(found) or found

    return wrong


def row_unwritten(found: Quantised) -> None:
    found.data.view(torch.uint8)[-1] = 255


FAULTS: dict[str, Callable[[Quantised], Quantised | None]] = {
    "scales of the row before": lambda q: q._replace(scale=q.scale.roll(1, 0)),
    "scales of the block before": lambda q: q._replace(scale=q.scale.roll(1, 1)),
    "scales turned over": lambda q: q._replace(scale=1 / q.scale),
    "a row unwritten": row_unwritten,
    "zeros": lambda q: q._replace(data=torch.zeros_like(q.data.float()).to(q.data.dtype)),
    "another format": lambda q: q._replace(
        data=q.data.float().to(torch.float8_e5m2).float().to(q.data.dtype)
    ),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_wrong_conversion_is_caught(fault: str, monkeypatch: Patch) -> None:
    monkeypatch.setattr(quantise, "to_fp8", changed(FAULTS[fault]))
    for case in (BLOCK,) if "block" in fault else (ROW, BLOCK):
        assert not quantise.check(case, CPU).ok


def test_what_it_costs_is_told_apart_from_the_product(row: Callable[..., Row]) -> None:
    rows = []
    for m in (16, 256, 4096):
        alone, whole = {**ROW, "m": m, "k": 8192}, {**BOTH, "m": m, "k": 8192, "n": 28672}
        size, flops = 3.0 * m * 8192, 2.0 * m * 8192 * 28672
        rows.append(row("quantise", alone, 5e-6 + size / 3e12, bytes=size))
        rows.append(row("quantise", whole, 5e-6 + flops / 1e15, flops=flops, bytes=size))
    values, predicted = quantise.derive([each | {"id": i} for i, each in enumerate(rows)])
    assert values["quantise.fp8.row.rate"].value == pytest.approx(3e12, rel=0.01)
    assert values["quantise.fp8.row.t0"].value == pytest.approx(5e-6, rel=0.01)
    assert values["gemm.fp8.row.flops_with_quantise"].value == pytest.approx(1e15, rel=0.01)
    assert [each is None for each in predicted] == [False, True] * 3


def test_a_card_without_fp8_has_neither(device: Callable[..., Any]) -> None:
    for probe in (quantise, fp8_numerics):
        with pytest.raises(Unsupported, match="no FP8 product"):
            probe.cases("quick", device("a100-sxm-80"))
    recipes = {case["recipe"] for case in quantise.cases("default", device("h200-sxm"))}
    assert recipes == {"row", "block"}


# --- numerics -----------------------------------------------------------------------------------------------------

CASE = {"m": 16, "n": 32, "k": 512, "dtype": "fp8", "recipe": "row", "fast_accum": False, "runs": 2}


def test_errors_of_the_format_and_of_adding_up_are_told_apart() -> None:
    assert fp8_numerics.check(CASE, CPU).bit_stable
    told = fp8_numerics._errors(CASE, CPU)
    assert told["kernel_error"] == pytest.approx(1.66e-3, rel=0.1)  # of rounding to bf16 alone
    assert told["format_error"] == pytest.approx(0.0374, rel=0.15)
    assert (told["unlike"], told["drift"]) == (0.0, 0.0)


def test_an_error_that_drifts_is_a_failure_and_other_bits_are_noted(monkeypatch: Patch) -> None:
    product, calls = fp8_gemm.product, []

    def racing(*args: Any) -> Any:
        calls.append(1)
        out = product(*args)
        if len(calls) % 2:
            out[0] *= 1 + size
        return out

    monkeypatch.setattr(fp8_gemm, "product", racing)
    size = 2**-8
    found = fp8_numerics.check(CASE, CPU)
    assert not found.ok
    assert "a race, or bad silicon" in found.why
    row: Row = {"case": CASE, "values": {"kernel_error": 4e-3}}
    assert "error 4.00e-03 is above 2.50e-03" in str(fp8_numerics.expect(row, CPU))
    assert fp8_numerics.expect({**row, "values": {"kernel_error": 1.7e-3}}, CPU) is None


def test_fast_accumulation_may_lose_what_its_bits_say(device: Callable[..., Any]) -> None:
    h200 = device("h200-sxm")
    case = {**CASE, "k": 16384, "fast_accum": True}
    assert fp8_gemm.accumulated(16384, True, h200) == pytest.approx(1.26e-2, rel=0.01)
    assert fp8_numerics.expect({"case": case, "values": {"kernel_error": 1.9e-2}}, h200) is None
    assert fp8_numerics.expect({"case": case, "values": {"kernel_error": 2.5e-2}}, h200)
    assert fp8_numerics.expect({"case": case, "values": {"kernel_error": 1.9e-2}}, CPU)


def test_numerics_are_kept_by_recipe() -> None:
    rows = [
        {
            "id": i,
            "case": {**CASE, "k": k},
            "values": {"kernel_error": k * 1e-7, "format_error": 0.0373, "unlike": i},
        }
        for i, k in enumerate((1024, 16384))
    ]
    values, _ = fp8_numerics.derive(rows)
    assert values["numerics.fp8.row.kernel_error.16384"].value == pytest.approx(1.6384e-3)
    assert values["numerics.fp8.row.unlike"].value == 1
    assert values["numerics.fp8.row.format_error"].rows == [1]
