"""An SLO: met or broken, by name, and the highest rate at which it is met."""

from __future__ import annotations

from math import inf

import pytest

from capplan.capacity.simulator.loop import simulate
from capplan.capacity.simulator.requests import AffineTimes, Outcome, Service
from capplan.capacity.simulator.slo import Bound, Joint, Slo, highest_rate, verdict
from capplan.capacity.simulator.workloads import Mix, fixed, poisson
from capplan.errors import InputError

# a prompt of 100 takes 20 ms; one sequence decodes in 10 ms a token
SERVICE = Service(AffineTimes((0.01, 1e-4, 0.0), ((inf, 0.01, 0.0, 1e-4),)), blocks=10_000, max_num_seqs=64)
MIX = Mix(poisson(2000, 1), *fixed(2000, 100, 50))


def run(rate: float) -> Outcome:
    return simulate(MIX.at(rate), SERVICE)


def test_names_are_those_of_the_options() -> None:
    assert Bound("ttft", 0.95, 1).name == "ttft-p95"
    assert Bound("tpot", 0.999, 1).name == "tpot-p999"


def test_an_slo_is_met_or_broken_by_name() -> None:
    found = run(5.0)
    wide = verdict(found, Slo((Bound("ttft", 0.95, 1.0), Bound("tpot", 0.99, 0.1), Bound("itl", 0.99, 0.1))))
    assert wide.met
    assert wide.broken == ()
    tight = verdict(found, Slo((Bound("ttft", 0.95, 1.0), Bound("tpot", 0.95, 0.005))))
    assert not tight.met
    assert tight.broken == ("tpot-p95",)
    assert tight.attainment.ttft == 1.0
    assert tight.attainment.tpot == tight.attainment.joint == 0.0
    value = next(each for each in tight.held if each.name == "tpot-p95")
    assert value.low <= value.value <= (value.high or inf)
    assert value.value > 0.005


def test_one_request_has_to_meet_both_bounds_of_a_joint_attainment() -> None:
    found = run(20.0)
    slo = Slo(joint=Joint(0.04, 0.016, 0.5))
    (held,) = verdict(found, slo).held
    assert held.name == "attainment-50"
    assert held.low < held.value < (held.high or 0)
    assert held.value == verdict(found, slo).attainment.joint


def test_past_saturation_no_bound_is_met() -> None:
    found = verdict(run(60.0), Slo((Bound("tpot", 0.95, 10.0),)))
    assert found.saturated
    assert not found.met
    assert found.broken == ("saturation",)


def test_requests_that_all_come_at_once_say_nothing_of_a_rate() -> None:
    """50 of them meet any bound that a batch of 50 meets, at a million a second."""
    few = Mix(poisson(50, 1), *fixed(50, 100, 50))
    slo = Slo((Bound("tpot", 0.95, 1.0),))
    found = verdict(simulate(few.at(1e6), SERVICE), slo)
    assert not found.met
    assert found.broken == ("too few requests",)
    rate, _ = highest_rate(lambda rate: simulate(few.at(rate), SERVICE), slo, 10.0)
    assert 10 < rate < 100


@pytest.mark.parametrize("guess", [0.5, 20.0, 400.0])
def test_the_highest_rate_does_not_depend_on_the_guess(guess: float) -> None:
    slo = Slo((Bound("ttft", 0.95, 0.06), Bound("tpot", 0.95, 0.05)))
    rate, points = highest_rate(run, slo, guess)
    assert rate == pytest.approx(25.4, rel=0.03)
    assert verdict(run(rate), slo).met
    assert not verdict(run(1.03 * rate), slo).met
    assert [point.rate for point in points] == sorted(point.rate for point in points)
    assert len(points) <= 12
    assert {point.verdict.met for point in points} == {True, False}


def test_a_bound_that_an_idle_service_misses_has_no_rate() -> None:
    assert highest_rate(run, Slo((Bound("ttft", 0.95, 0.01),)), 10.0)[0] == 0.0


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: Slo(), "no SLO given"),
        (lambda: Slo((Bound("latency", 0.9, 1),)), "unknown latency 'latency'"),
        (lambda: Slo((Bound("ttft", 1.0, 1),)), "percentile 100 is not"),
        (lambda: Slo((Bound("ttft", 0.9, 0),)), "a bound of 0 s"),
        (lambda: Slo(joint=Joint(1, 1, 1)), "attainment 1 is not"),
        (lambda: highest_rate(run, Slo((Bound("ttft", 0.9, 1),)), 0), "rate 0 is not"),
    ],
)
def test_what_is_no_slo(call: object, message: str) -> None:
    assert callable(call)
    with pytest.raises(InputError) as caught:
        call()
    assert message in str(caught.value)
