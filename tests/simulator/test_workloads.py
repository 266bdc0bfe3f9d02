"""Workloads: means and spreads of what is drawn, seeds, and the same requests for whatever is compared."""

from __future__ import annotations

import doctest
from pathlib import Path

import numpy as np
import pytest

from capplan.capacity.simulator import workloads
from capplan.capacity.simulator.traces import Floats, read_trace
from capplan.errors import InputError

MANY = 200_000


def counts(times: Floats, window: float) -> Floats:
    """Requests of each window."""
    found = np.bincount((times / window).astype(int))[:-1]
    return found.astype(float)


def dispersion(times: Floats, window: float) -> float:
    """Variance over mean of the requests of a window; 1 for Poisson."""
    found = counts(times, window)
    return float(found.var() / found.mean())


@pytest.mark.parametrize(
    "times",
    [
        workloads.poisson(MANY, 1),
        workloads.gamma(MANY, 1, cv=0),
        workloads.gamma(MANY, 1, cv=0.5),
        workloads.gamma(MANY, 1, cv=2),
        workloads.markov_modulated(MANY, 1, length=20),
    ],
    ids=["poisson", "clock", "regular", "bursty", "markov"],
)
def test_the_mean_rate_is_one_and_time_goes_on(times: Floats) -> None:
    assert MANY / times[-1] == pytest.approx(1, rel=0.03)
    assert (np.diff(times) >= 0).all()
    assert times[0] >= 0


def test_gaps_spread_as_asked() -> None:
    for cv in (0.5, 1.0, 2.0, 3.0):
        gaps = np.diff(workloads.gamma(MANY, 2, cv=cv))
        assert gaps.std() / gaps.mean() == pytest.approx(cv, rel=0.03)
    gaps = np.diff(workloads.poisson(MANY, 2))
    assert gaps.std() / gaps.mean() == pytest.approx(1, rel=0.02)


def test_bursts_of_a_markov_modulated_process_outlast_those_of_gamma_gaps() -> None:
    assert dispersion(workloads.poisson(MANY, 3), 100) == pytest.approx(1, abs=0.1)
    assert dispersion(workloads.markov_modulated(MANY, 3), 100) > 5
    assert dispersion(workloads.markov_modulated(MANY, 3, burst=1), 100) == pytest.approx(1, abs=0.1)


def test_a_ramp_is_as_steep_as_asked() -> None:
    times = workloads.ramp(MANY, 4, [(0, 0.5), (100_000, 1.5)])
    # straight lines: the first half has 0.5 to 1.0, on average 0.75
    assert np.searchsorted(times, 50_000) == pytest.approx(37_500, rel=0.02)
    assert np.searchsorted(times, 100_000) == pytest.approx(100_000, rel=0.02)
    late = times[times > 100_000]
    assert len(late) / (late[-1] - 100_000) == pytest.approx(1.5, rel=0.02)
    step = workloads.ramp(MANY, 4, [(0, 0), (1000, 0), (1001, 2)])
    assert step[0] > 1000
    assert (np.diff(step) >= 0).all()


def test_doctests() -> None:
    found = doctest.testmod(workloads)
    assert found.attempted >= 4
    assert found.failed == 0


def test_seeds() -> None:
    assert (workloads.poisson(100, 5) == workloads.poisson(100, 5)).all()
    assert (workloads.poisson(100, 5) != workloads.poisson(100, 6)).all()
    longer = workloads.poisson(200, 5)
    assert (longer[:100] == workloads.poisson(100, 5)).all()  # more requests are the same ones first


def test_lengths_do_not_hang_on_the_arrivals() -> None:
    """Common random numbers: another process or rate has the same requests."""
    lengths = workloads.lognormal(1000, 7, isl=800, osl=200)
    workloads.gamma(1000, 7, cv=3)
    again = workloads.lognormal(1000, 7, isl=800, osl=200)
    assert all((a == b).all() for a, b in zip(lengths, again, strict=True))
    other = workloads.lognormal(1000, 7, isl=800, osl=400)
    assert (other[0] == lengths[0]).all()
    assert abs(np.corrcoef(workloads.poisson(1000, 7), lengths[0])[0, 1]) < 0.1


def test_lognormal_lengths() -> None:
    isl, osl = workloads.lognormal(MANY, 8, isl=800, osl=200, isl_sigma=1, osl_sigma=0.5)
    assert isl.mean() == pytest.approx(800, rel=0.02)
    assert osl.mean() == pytest.approx(200, rel=0.02)
    assert np.log(osl).std() == pytest.approx(0.5, rel=0.02)
    isl, osl = workloads.lognormal(MANY, 8, isl=800, osl=200, most=2048, least=2)
    assert (isl + osl).max() <= 2048
    assert min(isl.min(), osl.min()) == 2
    isl, osl = workloads.lognormal(10, 8, isl=800, osl=200, isl_sigma=0, osl_sigma=0)
    assert set(osl.tolist()) <= {199, 200}  # e**log(200) may round to either


def test_empirical_lengths() -> None:
    isl, osl = workloads.empirical(MANY, 9, [(1, 0.0), (101, 0.5), (1001, 1.0)], [(7, 1.0)])
    assert np.median(isl) == pytest.approx(101, abs=2)
    assert isl.mean() == pytest.approx(0.5 * 51 + 0.5 * 551, rel=0.02)
    assert set(osl.tolist()) == {7}


def test_lengths_of_a_trace_stay_together(data: Path) -> None:
    trace = read_trace(data / "traces" / "azure_llm_2023_conv.csv")
    isl, osl = workloads.joint(MANY, 10, trace)
    assert isl.mean() == pytest.approx(trace.isl.mean(), rel=0.02)
    assert osl.mean() == pytest.approx(trace.osl.mean(), rel=0.02)
    pairs = set(zip(trace.isl.tolist(), trace.osl.tolist(), strict=True))
    assert set(zip(isl.tolist(), osl.tolist(), strict=True)) <= pairs


def test_replay_keeps_the_clumps_and_takes_a_rate(data: Path) -> None:
    trace = read_trace(data / "traces" / "mooncake_conversation.jsonl")
    mix = workloads.replay(trace)
    assert mix.times(trace.rate) == pytest.approx(trace.arrival)
    assert mix.times(2 * trace.rate)[-1] == pytest.approx(trace.arrival[-1] / 2)
    assert len(np.unique(mix.unit_times)) == 628
    assert mix.blocks == trace.blocks
    assert len(workloads.replay(trace, 100)) == 100


def rate_of(times: Floats) -> float:
    return float((len(times) - 1) / (times[-1] - times[0]))


def test_a_part_of_a_trace_comes_at_the_rate_that_is_asked_for(tmp_path: Path) -> None:
    """Its beginning is ten times as calm as its end, and every third request is long."""
    calm, busy = np.arange(300) * 10.0, 3000.0 + np.arange(1, 701)
    rows = [f"{t},{9000 if k % 3 == 0 else 100},10" for k, t in enumerate([*calm, *busy])]
    (tmp_path / "t.csv").write_text("\n".join(["arrival_s,input_tokens,output_tokens", *rows]))
    mix = workloads.replay(read_trace(tmp_path / "t.csv"))
    few, (short, left_out) = mix.first(300), mix.without(5000)
    assert (len(few), left_out, len(short)) == (300, 334, 666)
    assert few.times(2.0)[0] == short.times(2.0)[0] == 0.0
    for part in (mix, few, short, short.first(200)):
        assert rate_of(part.times(2.0)) == pytest.approx(2.0)


def test_what_is_left_of_drawn_requests_comes_at_the_rate_of_all() -> None:
    isl = np.where(np.arange(MANY) % 4 == 0, 9000, 100)
    mix = workloads.Mix(workloads.poisson(MANY, 1), isl, np.full(MANY, 10))
    short, left_out = mix.without(5000)
    assert left_out == MANY // 4
    assert rate_of(short.times(2.0)) == pytest.approx(2.0, rel=0.01)
    assert (mix.first(100).unit_times == mix.unit_times[:100]).all()  # a draw is not bent to its mean


def test_open_and_closed_workloads_have_the_same_requests() -> None:
    mix = workloads.Mix(workloads.poisson(50, 1), *workloads.lognormal(50, 1, isl=800, osl=200))
    there, closed = mix.at(2.0, timeout=30), mix.closed(8)
    assert (there.isl == closed.isl).all()
    assert (there.arrival == mix.unit_times / 2).all()
    assert (there.timeout, there.concurrency, closed.concurrency) == (30, None, 8)


def test_requests_that_are_too_long_are_left_out_and_counted() -> None:
    mix = workloads.Mix(workloads.poisson(100, 1), *workloads.lognormal(100, 1, isl=800, osl=200))
    short, left_out = mix.without(1000)
    assert left_out == int((mix.isl + mix.osl > 1000).sum()) > 0
    assert len(short) == 100 - left_out
    assert mix.without(10**9) == (mix, 0)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: workloads.poisson(0, 1), "requests 0 is not"),
        (lambda: workloads.poisson(True, 1), "requests True is not"),
        (lambda: workloads.poisson(10, -1), "seed -1 is not"),
        (lambda: workloads.gamma(10, 1, cv=-1), "burstiness -1 is not"),
        (lambda: workloads.gamma(10, 1, cv=float("nan")), "burstiness nan is not"),
        (lambda: workloads.markov_modulated(10, 1, share=1.5), "for 1.5 of the time"),
        (lambda: workloads.ramp(10, 1, []), "a ramp is points"),
        (lambda: workloads.ramp(10, 1, [(0, 1), (0, 2)]), "a ramp is points"),
        (lambda: workloads.ramp(10, 1, [(0, 1), (5, 0)]), "the last is above 0"),
        (lambda: workloads.lognormal(10, 1, isl=0, osl=5), "lengths of 0 and 5"),
        (lambda: workloads.lognormal(10, 1, isl=9, osl=5, most=1), "no request of at most 1 tokens"),
        (lambda: workloads.lognormal(10, 1, isl=1e9, osl=5, isl_sigma=0, most=10), "too rare"),
        (lambda: workloads.empirical(10, 1, [(5, 0.5)], [(5, 1.0)]), "the isl table is no distribution"),
        (lambda: workloads.Mix(workloads.poisson(9, 1), *workloads.fixed(9, 1, 2)).times(0), "rate 0 is not"),
    ],
)
def test_what_can_not_be_drawn_is_said(call: object, message: str) -> None:
    assert callable(call)
    with pytest.raises(InputError) as caught:
        call()
    assert message in str(caught.value)


def test_a_trace_without_times_has_lengths_alone(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("input_tokens,output_tokens\n5,6\n7,8\n")
    with pytest.raises(InputError, match="says nothing of when requests came"):
        workloads.replay(read_trace(tmp_path / "t.csv"))
