"""The decoder step: right against fp64, wrong ones caught, and the form of its time told from rows."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")

from capplan.probes import decoder_layer, paged, step_model
from capplan.probes.fit import Roof
from capplan.probes.probe import Device, Row
from capplan.probes.suite import decoder_step

CPU = Device("cpu", 0, "a CPU", "x86_64", sm_count=2, l2_bytes=2**20, memory_bytes=2**33)
CASE = {"layer": "tiny", "batch": 3, "context": 100, "dtype": "fp32", "kernel": "gather"}
Patch = pytest.MonkeyPatch


@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
def test_the_layer_agrees_with_fp64(dtype: str) -> None:
    found = decoder_step.check({**CASE, "dtype": dtype}, CPU)
    assert found.ok, found.why


def caught() -> bool:
    return not decoder_step.check(CASE, CPU).ok


def test_faults_of_turning_are_caught(monkeypatch: Patch) -> None:
    """One position off, and neighbours turned as pairs where halves are meant."""
    right = decoder_layer.rope
    monkeypatch.setattr(decoder_layer, "rope", lambda x, position: right(x, position + (x.shape[1] == 2)))
    assert caught()  # keys one on, queries not: relative positions are all wrong

    def neighbours(x: Any, position: Any) -> Any:
        order = torch.arange(x.shape[-1]).view(-1, 2).t().flatten()
        return right(x[..., order], position)[..., order.argsort()]

    monkeypatch.setattr(decoder_layer, "rope", neighbours)
    assert caught()


def test_faults_of_the_cache_write_are_caught(monkeypatch: Patch) -> None:
    """The new token one slot late, on the page of another sequence, and K where V goes."""
    right = paged.write
    faults = [
        lambda cache, k, v, sequence, position: right(
            cache, k, v, sequence, position - (position > 0).long()
        ),
        lambda cache, k, v, sequence, position: right(cache, v, k, sequence, position),
        lambda cache, k, v, sequence, position: right(cache, k.flip(0), v.flip(0), sequence, position),
    ]
    for fault in faults:

        def of_the_step(*args: Any, fault: Any = fault) -> None:
            (fault if len(args[3]) == CASE["batch"] else right)(*args)  # the past is written as it should be

        monkeypatch.setattr(paged, "write", of_the_step)
        assert caught()


def test_a_norm_or_a_residual_left_out_is_caught(monkeypatch: Patch) -> None:
    right = decoder_layer.step
    with monkeypatch.context() as patch:
        patch.setattr(torch.nn.functional, "rms_norm", lambda x, *_, **__: x)
        assert caught()
    monkeypatch.setattr(decoder_layer, "step", lambda x, *rest: right(x, *rest) - x)
    assert caught()


PEAK, BANDWIDTH, KV_RATE = 750e12, 4.2e12, 3.4e12


def rows_of(form: step_model.Summed | step_model.Pooled) -> list[Row]:
    rows = []
    gpu = Device("cuda", 0, "H200", "sm_90", sm_count=132, l2_bytes=60 * 2**20, memory_bytes=2**37)
    for i, case in enumerate(decoder_step.cases("default", gpu)):
        time = form(decoder_step._work(case))
        rows.append({"id": i, "case": case, "time_s": {"median": time, "p10": time, "p90": time, "n": 20}})
    return rows


def test_what_was_planted_is_found() -> None:
    planted = step_model.Summed(Roof(20e-6, PEAK, BANDWIDTH, 3.0), KV_RATE)
    rows = rows_of(planted)
    values, predicted = decoder_step.derive(rows)
    for name, at in (
        ("peak", PEAK),
        ("bandwidth", BANDWIDTH),
        ("kv_rate", KV_RATE),
        ("ridge", PEAK / BANDWIDTH),
    ):
        assert values[f"step_model.bf16.{name}"].value == pytest.approx(at, rel=0.05)
    assert values["step_model.bf16.summed_off"].value < 0.01
    assert values["step_model.bf16.pooled_off"].value > 0.03
    assert predicted == pytest.approx([row["time_s"]["median"] for row in rows], rel=0.03)
    assert values["step_model.bf16.batch_t2x"].value > 100
    assert 200 < values["step_model.bf16.batch_90pct"].value <= 512


def test_a_pool_of_work_is_told_from_a_sum() -> None:
    values, _ = decoder_step.derive(rows_of(step_model.Pooled(Roof(20e-6, PEAK, BANDWIDTH, 3.0))))
    assert values["step_model.bf16.pooled_off"].value < 0.01 < values["step_model.bf16.summed_off"].value


def test_too_few_rows_say_nothing() -> None:
    planted = step_model.Summed(Roof(20e-6, PEAK, BANDWIDTH, 3.0), KV_RATE)
    assert decoder_step.derive(rows_of(planted)[:3]).values == {}
