"""Metrics: each under its definition, intervals that hold what they promise, saturation told from load."""

from __future__ import annotations

from math import inf, nan
from pathlib import Path

import numpy as np
import pytest

from capplan.capacity import queueing
from capplan.capacity.simulator import metrics, workloads
from capplan.capacity.simulator.loop import simulate
from capplan.capacity.simulator.metrics import attainment, backlog_growth, half_width, of, summary
from capplan.capacity.simulator.requests import (
    AffineTimes,
    Floats,
    Gaps,
    Outcome,
    Service,
    Timeline,
    Totals,
    Workload,
)
from capplan.capacity.simulator.traces import read_trace
from capplan.capacity.simulator.workloads import Mix, fixed, gamma, poisson
from capplan.errors import InputError

NONE = np.array([], dtype=np.int64)


def outcome(
    rows: list[tuple[float, float, float, float, float, int]], totals: Totals | None = None
) -> Outcome:
    """Of rows: arrival, first scheduled, prefill done, first token, finished, tokens of the answer."""
    arrival, scheduled, prefilled, first, finished, osl = (
        np.array(column) for column in zip(*rows, strict=True)
    )
    count = len(rows)
    none = np.zeros(count, dtype=bool)
    return Outcome(
        Workload(arrival, np.full(count, 10), osl),
        arrival=arrival,
        first_scheduled=scheduled,
        prefill_done=prefilled,
        first_token=first,
        finished=finished,
        preemptions=np.zeros(count, dtype=np.int64),
        refused=none | np.isnan(finished),
        timed_out=none,
        timeline=Timeline(np.array([]), NONE, NONE, NONE),
        gaps=Gaps(np.array([0.01, 0.02, 0.04]), np.array([3, 1])),
        totals=totals or Totals(),
    )


def test_times_of_a_request_by_their_definitions() -> None:
    found = outcome(
        [(0.0, 1.0, 1.5, 1.6, 3.6, 11), (1.0, 1.5, 2.0, 2.25, 2.25, 1)],
        Totals(seconds=4.0, busy=3.0, block_seconds=20.0, blocks=10),
    )
    figures = summary(found, replicas=2)
    assert figures.ttft is not None
    assert figures.wait is not None
    assert figures.prefill is not None
    assert figures.first_step is not None
    assert figures.tpot is not None
    assert figures.e2e is not None
    assert figures.ttft.mean == pytest.approx((1.6 + 1.25) / 2)
    assert figures.wait.mean == pytest.approx((1.0 + 0.5) / 2)
    assert figures.prefill.mean == pytest.approx(0.5)
    assert figures.first_step.mean == pytest.approx((0.1 + 0.25) / 2)
    # a part each, and together the whole
    parts = figures.wait.mean + figures.prefill.mean + figures.first_step.mean
    assert parts == pytest.approx(figures.ttft.mean)
    # ten tokens in 2 s; the answer of one token has none
    assert figures.tpot.count == 1
    assert figures.tpot.mean == pytest.approx(0.2)
    assert figures.e2e.mean == pytest.approx((3.6 + 1.25) / 2)
    assert (figures.request_rate, figures.output_rate, figures.input_rate) == (0.5, 3.0, 5.0)
    assert figures.busy == 3 / 4 / 2
    assert figures.kv == 0.5


def test_tpot_of_a_request_is_not_the_gap_between_tokens() -> None:
    """One stall of 1 s in a hundred gaps of 10 ms: the mean hides it, p99.9 of the gaps is the stall."""
    gaps = Gaps(np.array([0.0099, 0.0101, 0.99, 1.01]), np.array([990, 0, 10]))
    itl = metrics.of_gaps(gaps, (0.5, 0.999))
    assert itl is not None
    assert itl.at(0.5).value == pytest.approx(0.01, rel=0.02)
    assert itl.at(0.999).value == pytest.approx(1.0, rel=0.02)
    tpot = metrics.tpot(outcome([(0.0, 0.0, 0.1, 0.1, 0.1 + 99 * 0.01 + 1, 101)]))
    assert tpot[0] == pytest.approx(0.02, rel=0.01)


def test_joint_attainment_is_less_than_either() -> None:
    found = outcome(
        [
            (0, 0, 1, 1.0, 2.0, 11),  # TPOT 0.1
            (0, 0, 3, 3.0, 3.5, 11),  # TTFT 3, TPOT 0.05
            (0, 0, 3, 3.0, 4.0, 11),
            (0, 0, 1, 1.0, 1.0, 1),  # no TPOT
            (0, nan, nan, nan, nan, 5),  # refused
        ]
    )
    assert attainment(found, 2.0, 0.07) == (1 / 5, 2 / 5, 2 / 5)
    assert attainment(found) == (4 / 5, 4 / 5, 4 / 5)


def autocorrelated(seed: int, count: int) -> Floats:
    random = np.random.default_rng(seed)
    noise = random.normal(size=count)
    found = np.empty(count)
    found[0] = noise[0]
    for i in range(1, count):
        found[i] = 0.95 * found[i - 1] + np.sqrt(1 - 0.95**2) * noise[i]
    return np.exp(found)


@pytest.mark.parametrize(("share", "true"), [(0.5, 1.0), (0.9, 3.602), (0.95, 5.180)])
def test_intervals_hold_the_percentile_of_requests_that_are_late_together(share: float, true: float) -> None:
    """A lognormal with a memory of 20 requests; the binomial's interval would hold it half of the time."""
    holds = plain = 0
    for seed in range(60):
        values = autocorrelated(seed, 4000)
        found = of(values, (share,))
        assert found is not None
        one = found.percentiles[0]
        assert one.high is not None
        holds += one.low <= true <= one.high
        off = 1.96 * (share * (1 - share) / 4000) ** 0.5
        plain += np.quantile(values, share - off) <= true <= np.quantile(values, share + off)
    assert holds >= 0.85 * 60
    assert plain < 0.7 * 60


def test_an_interval_that_the_run_can_not_bound_is_open() -> None:
    found = of(np.arange(500.0), (0.5, 0.999))
    assert found is not None
    assert found.at(0.5).high is not None
    assert found.at(0.999).high is None
    assert found.at(0.999).value == pytest.approx(np.quantile(np.arange(500.0), 0.999))
    assert (found.mean, found.most, found.count) == (249.5, 499, 500)


def test_half_width_of_independent_requests_is_the_binomials() -> None:
    inside = np.random.default_rng(1).random(20_000) < 0.9
    assert half_width(inside) == pytest.approx(1.96 * (0.9 * 0.1 / 20_000) ** 0.5, rel=0.6)
    assert half_width(np.ones(100, dtype=bool)) > 0


TIMES = AffineTimes((0.01, 1e-4, 0.0), ((inf, 0.01, 0.0, 1e-4),))
SERVICE = Service(TIMES, blocks=10_000, max_num_seqs=64)


@pytest.fixture(scope="module")
def capacity() -> float:
    """Requests a second of 100 tokens in and 50 out, with so many under way that none is missing."""
    mix = Mix(poisson(3000, 1), *fixed(3000, 100, 50))
    return summary(simulate(mix.closed(400), SERVICE)).request_rate


def run(rate: float, count: int, seed: int = 1, cv: float = 1.0) -> Outcome:
    return simulate(Mix(gamma(count, seed, cv), *fixed(count, 100, 50)).at(rate), SERVICE)


def test_saturation_is_told_from_load(capacity: float) -> None:
    for seed in range(3):
        for load in (0.3, 0.7, 0.85):
            assert backlog_growth(run(load * capacity, 3000, seed)) is None
        for load in (1.15, 1.5, 3.0):
            found = backlog_growth(run(load * capacity, 3000, seed))
            assert found is not None
            assert found == pytest.approx((load - 1) * capacity, rel=0.25)


def test_a_service_that_still_fills_is_not_saturated() -> None:
    """1,000 requests that come within the time of one: more are under way with each, and none waits."""
    times = AffineTimes((0.001, 0.0, 0.0), ((inf, 0.01, 0.0, 0.0),))
    mix = Mix(poisson(1000, 1), *fixed(1000, 10, 1000))
    found = simulate(
        mix.at(50.0), Service(times, blocks=10**6, max_num_seqs=2000, max_num_batched_tokens=4000)
    )
    assert backlog_growth(found) is None


def test_long_answers_among_short_ones_are_not_taken_for_saturation() -> None:
    """The few long ones are under way for most of the run, and more of them with every second, and none waits."""
    times = AffineTimes((0.001, 0.0, 0.0), ((inf, 0.01, 0.0, 0.0),))
    service = Service(times, blocks=10**6, max_num_seqs=2000, max_num_batched_tokens=4000)
    for seed in range(10):
        lengths = workloads.lognormal(400, seed, isl=10, osl=1000, isl_sigma=0.0, osl_sigma=1.5)
        mix = Mix(poisson(400, seed), *lengths)
        assert backlog_growth(simulate(mix.at(2.0), service)) is None
        assert backlog_growth(simulate(mix.at(4.0), service)) is None


def test_too_few_requests_to_tell() -> None:
    times = AffineTimes((0.001, 0.0, 0.0), ((inf, 0.01, 0.0, 0.0),))  # 10 s a request
    service = Service(times, blocks=10**6, max_num_seqs=2000, max_num_batched_tokens=4000)
    mix = Mix(poisson(100, 1), *fixed(100, 10, 1000))
    assert metrics.too_few(simulate(mix.at(1.0), service)) is None
    assert metrics.too_few(simulate(mix.at(20.0), service)) == pytest.approx(4 * 1.5 * 20 * 10, rel=0.3)
    assert metrics.too_few(simulate(mix.closed(4), service)) is None


def test_bursts_are_not_taken_for_saturation(capacity: float) -> None:
    assert not any(backlog_growth(run(0.6 * capacity, 3000, seed, cv=3.0)) for seed in range(5))


@pytest.mark.parametrize("name", ["azure_llm_2023_code.csv", "mooncake_synthetic.jsonl"])
def test_saturation_under_a_trace_as_it_came(name: str, data: Path) -> None:
    """Clumps, bursts and long prompts among short ones; capacity is that of a closed loop."""
    mix = workloads.replay(read_trace(data / "traces" / name))
    service = Service(TIMES, blocks=100_000, max_num_seqs=64)
    most = summary(simulate(mix.closed(64), service)).request_rate
    for load in (0.5, 0.7, 0.85):
        assert backlog_growth(simulate(mix.at(load * most), service)) is None
    for load in (1.25, 2.0):
        assert backlog_growth(simulate(mix.at(load * most), service)) is not None


def test_a_saturated_service_has_no_ttft(capacity: float) -> None:
    figures = summary(run(1.5 * capacity, 3000))
    assert figures.saturated
    assert (figures.ttft, figures.wait, figures.e2e) == (None, None, None)
    assert figures.tpot is not None  # its batch is full, and that is that
    assert figures.output_rate == pytest.approx(capacity * 50, rel=0.05)


def test_a_closed_loop_is_never_saturated() -> None:
    mix = Mix(poisson(2000, 1), *fixed(2000, 100, 50))
    figures = summary(simulate(mix.closed(200), SERVICE))
    assert not figures.saturated
    assert figures.ttft is not None


def one_at_a_time(mean: float) -> Service:
    """A server: one prompt after another, whose time is all in its tokens."""
    return Service(
        AffineTimes((0.0, mean / 1000, 0.0), ((inf, 1.0, 0.0, 0.0),)),
        blocks=10**6,
        max_num_seqs=1,
        max_num_batched_tokens=1,
        scheduler="prefill-first",
        chunked=False,
    )


@pytest.mark.parametrize("load", [0.4, 0.8])
def test_waits_are_those_of_md1(load: float) -> None:
    count, waits = 200_000, []
    for seed in (1, 2, 3):
        mix = Mix(poisson(count, seed), *fixed(count, 1000, 1))
        found = simulate(mix.at(load / 0.15), one_at_a_time(0.15))
        waits.append((found.first_scheduled - found.arrival).mean())
        assert metrics.ttft(found) - (found.first_scheduled - found.arrival) == pytest.approx(0.15)
    assert np.mean(waits) == pytest.approx(queueing.md1_wait(load / 0.15, 0.15), rel=0.02)


@pytest.mark.parametrize("load", [0.3, 0.6])
def test_waits_are_those_of_mg1(load: float) -> None:
    count, ratios = 200_000, []
    for seed in (1, 2, 3):
        isl, osl = workloads.lognormal(count, seed, isl=1000, osl=1, isl_sigma=0.7, osl_sigma=0)
        service = isl * 1.5e-4  # of the very lengths that were drawn
        rate = load / service.mean()
        found = simulate(Mix(poisson(count, seed), isl, osl).at(rate), one_at_a_time(0.15))
        theory = queueing.mg1_wait(rate, float(service.mean()), float((service**2).mean()))
        ratios.append((found.first_scheduled - found.arrival).mean() / theory)
    assert np.mean(ratios) == pytest.approx(1, abs=0.02)


def test_bursts_wait_about_as_kingman_says() -> None:
    count = 200_000
    mix = Mix(gamma(count, 1, cv=2.0), *fixed(count, 1000, 1))
    found = simulate(mix.at(0.9 / 0.15), one_at_a_time(0.15))
    wait = float((found.first_scheduled - found.arrival).mean())
    assert wait == pytest.approx(queueing.kingman_wait(0.9 / 0.15, 0.15, 2.0, 0.0), rel=0.15)


def test_what_can_not_be_summed_up() -> None:
    found = outcome([(0.0, 1.0, 1.5, 1.6, 3.6, 11)])
    with pytest.raises(InputError, match="warm-up 1 is not"):
        summary(found, warm_up=1)
    with pytest.raises(InputError, match="percentile 100 is not"):
        summary(found, shares=(1.0,))
