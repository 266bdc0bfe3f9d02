"""Speculation by batch: Leviathan's gain where weights set the time, less and less of it past that."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from capplan.capacity import speculation
from capplan.capacity.questions.speculate import Speculate, speculate
from capplan.cli.serving_pictures import gain_chart
from capplan.errors import InputError

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture(scope="module")
def found() -> Speculate:
    return speculate("llama-3.3-70b", "h200-sxm", draft="llama-3.2-1b", tp=4, acceptances=[0.5, 0.7, 0.9])


def gains(found: Speculate, acceptance: float) -> list[float]:
    return [row["speed_up"] for row in found.at if row["acceptance"] == acceptance]


def test_the_gain_falls_with_the_batch_and_grows_with_the_acceptance(found: Speculate) -> None:
    for rate in (0.5, 0.7, 0.9):
        assert gains(found, rate)[0] > gains(found, rate)[-1]
    for row in zip(*(gains(found, rate) for rate in (0.5, 0.7, 0.9)), strict=True):
        assert list(row) == sorted(row)


def test_one_sequence_gains_what_leviathan_says() -> None:
    """Checking a few tokens of one sequence takes hardly longer than one; the formula takes it for nothing."""
    found = speculate("llama-3.3-70b", "h200-sxm", draft_cost=0.05, tp=4, acceptances=[0.7], batches=[1])
    (row,) = found.at
    plain = speculation.walltime_ratio(0.7, row["speculated"], 0.05)
    assert row["speed_up"] == pytest.approx(plain, rel=0.08)
    assert row["speed_up"] < plain


def test_a_long_draft_loses_past_the_ridge() -> None:
    found = speculate(
        "llama-3.3-70b", "h200-sxm", draft_cost=0.05, tp=4, acceptances=[0.7], speculated=[7], context=500
    )
    gain = gains(found, 0.7)
    assert gain[0] > 1.5
    assert gain[-1] < 1
    (until,) = found.pays_until
    assert until["batch"] is not None
    assert 16 <= until["batch"] < 512


def test_a_draft_that_never_holds_never_pays() -> None:
    found = speculate("llama-3.1-8b", "h100-sxm", acceptances=[0.0, 1.0], batches=[1, 8])
    assert all(row["speed_up"] < 1 for row in found.at if row["acceptance"] == 0)
    assert [row["batch"] for row in found.pays_until] == [None, 8]
    assert all(row["tokens_per_pass"] == row["speculated"] + 1 for row in found.at if row["acceptance"] == 1)


def test_the_time_of_a_token_is_that_of_a_pass_over_the_gain(found: Speculate) -> None:
    for row in found.at:
        rounds = row["speculated"] * row["draft_s"] + row["verify_s"]
        assert row["tpot_s"] == pytest.approx(rounds / row["tokens_per_pass"])


def test_the_chart_has_a_bar_a_batch(found: Speculate) -> None:
    lines = gain_chart(found).splitlines()
    assert len(lines) == 1 + 10
    assert lines[1].endswith(f"{gains(found, 0.7)[0]:.2f}")
    assert all(len(line) <= 80 for line in lines)


def test_the_plot(run: Run, tmp_path: Path) -> None:
    args = ("speculate", "llama-3.1-8b", "--gpu", "h100", "--batch", "1,64", "--plot", "gain.svg")
    assert run(*args)[0] == 0
    assert "times as fast" in (tmp_path / "gain.svg").read_text()


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ({"acceptances": [1.2]}, "acceptance 1.2 is not"),
        ({"acceptances": []}, "no acceptance given"),
        ({"speculated": [0]}, "0 drafted tokens is not"),
        ({"speculated": []}, "no number of drafted tokens given"),
        ({"draft_cost": -1}, "draft cost -1 is not"),
        ({"draft_cost": 0.1, "draft": "llama-3.2-1b"}, "exclude each other"),
        ({"draft": "llama-3.2-1"}, "did you mean 'llama-3.2-1b'"),
    ],
)
def test_what_can_not_be_asked(asked: dict[str, object], message: str) -> None:
    with pytest.raises(InputError) as caught:
        speculate("llama-3.1-8b", "h100-sxm", **asked)  # type: ignore[arg-type]
    assert message in str(caught.value)
