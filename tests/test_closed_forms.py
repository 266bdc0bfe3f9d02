"""The closed forms of queues and of speculation against the papers' own numbers, and against each other."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from capplan.capacity import queueing, speculation


@pytest.fixture(scope="session")
def targets(data: Path) -> dict[str, dict[str, Any]]:
    return {row["id"]: row for row in json.loads((data / "paper_targets.json").read_text())["targets"]}


def test_leviathans_table(targets: dict[str, dict[str, Any]]) -> None:
    rows = [row for name, row in targets.items() if name.startswith("specdec-")]
    assert len(rows) == 12
    for row in rows:
        p, value = row["parameters"], row["value"]
        tokens = speculation.expected_tokens(p["alpha"], p["gamma"])
        ratio = speculation.walltime_ratio(p["alpha"], p["gamma"], p["cost_ratio_c"])
        assert tokens == pytest.approx(value["expected_tokens_per_run"], abs=1e-4)
        assert ratio == pytest.approx(value["predicted_walltime_ratio"], abs=1e-3)


def test_distserves_times_to_first_token(targets: dict[str, dict[str, Any]]) -> None:
    row = targets["distserve-md1"]
    p, value = row["parameters"], row["value"]
    for i, rate in enumerate(p["rates"]):
        assert queueing.prefill_ttft(rate, p["D_s"]) == pytest.approx(value["single"][i], abs=1e-4)
        assert queueing.inter_op_ttft(rate, p["D_s"]) == pytest.approx(value["inter_op_2"][i], abs=1e-4)
        assert queueing.intra_op_ttft(rate, p["D_s"], p["K"]) == pytest.approx(
            value["intra_op_2"][i], abs=1e-4
        )


def test_tensor_parallel_prefill_wins_at_low_rates_and_a_pipeline_at_high_ones() -> None:
    low, high = (
        (queueing.intra_op_ttft(rate, 0.15, 1.5), queueing.inter_op_ttft(rate, 0.15)) for rate in (1, 9.5)
    )
    assert low[0] < low[1]
    assert high[0] > high[1]


def test_the_batch_and_the_rate_of_a_pool_are_each_others_inverse() -> None:
    costs = {"fixed": 0.02, "per_sequence": 4e-5, "per_token": 6e-7, "context": 800}
    rate = queueing.decode_rate(0.04, 200, **costs)
    batch = queueing.decode_batch(rate, 200, **costs)
    step = 0.02 + batch * (4e-5 + 6e-7 * 800)
    assert step == pytest.approx(0.04)
    assert batch == pytest.approx(rate * 200 * step)


def test_all_accepted_is_every_token_of_the_draft_and_one_more() -> None:
    assert speculation.expected_tokens(1, 4) == 5
    assert speculation.expected_tokens(1 - 1e-9, 4) == pytest.approx(5)
    assert speculation.expected_tokens(0, 4) == 1


def test_a_small_batch_gains_what_leviathan_says() -> None:
    tokens = speculation.expected_tokens(0.75, 7)
    gain = speculation.batch_speed_up(tokens, step=0.02, speculated=7, draft=0.0004, verify=0.02)
    assert gain == pytest.approx(speculation.walltime_ratio(0.75, 7, 0.02))


def test_a_cache_sent_layer_by_layer_is_hidden_behind_a_longer_pass() -> None:
    assert queueing.exposed_transfer(0.1, prefill=1.0, layers=80) == pytest.approx(0.1 / 80)
    assert queueing.exposed_transfer(2.0, prefill=1.0, layers=80) == pytest.approx(2.0 - 79 / 80)
