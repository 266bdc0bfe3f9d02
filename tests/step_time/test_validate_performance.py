"""`capplan validate performance`: published benchmarks against predictions."""

import csv
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from capplan.capacity.questions import throughput_rows as read
from capplan.capacity.questions.validate_performance import COLD_START, validate_performance
from capplan.capacity.step_time.engine_steps import Engine, engine_steps, fitted_families
from capplan.errors import DataFileError

Run = Callable[..., tuple[int, str, str]]
ROWS = Path(__file__).parents[2] / "examples/throughput.csv"


def rows() -> list[dict[str, str]]:
    with ROWS.open(newline="") as file:
        return list(csv.DictReader(file))


def written(path: Path, changed: list[dict[str, str]]) -> Path:
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, list(changed[0]))
        writer.writeheader()
        writer.writerows(changed)
    return path


def test_rows_are_scored_and_those_without_inputs_say_why() -> None:
    found = validate_performance(ROWS)
    assert (found.row_count, found.covered_count) == (12, 10)
    assert set(found.not_covered) == {
        "isl is blank",
        "speculative decoding, and how much of it is accepted is not said",
    }
    assert found.by_column["tpot"]["median"] < 0.1
    assert {each["id"] for each in found.suspect} == {"token-position sweep", "prefix reuse"}
    assert all(each["evidence"] for each in found.suspect)
    assert found.with_suspects["tpot"]["rows"] == found.by_column["tpot"]["rows"] + 2


def test_what_was_measured_is_never_read(tmp_path: Path) -> None:
    before = validate_performance(ROWS)
    changed = [{**row, **{name: "1" for name in read.MEASURED if row[name]}} for row in rows()]
    after = validate_performance(written(tmp_path / "rows.csv", changed))
    assert [row["predicted"] for row in before.rows] == [row["predicted"] for row in after.rows]
    assert before.by_column["tpot"]["median"] != after.by_column["tpot"]["median"]


def test_throughput_is_not_scored_where_it_follows_from_latencies() -> None:
    found = validate_performance(ROWS)
    timed = [row for row in found.rows if row["measured"].get("tpot_ms_central") and row["covered"]]
    assert found.with_suspects["throughput"]["rows"] == found.covered_count - len(timed)


def test_a_first_token_that_no_queue_explains_is_a_cold_start(tmp_path: Path) -> None:
    late = {**rows()[0], "ttft_ms_central": "60000"}
    found = validate_performance(written(tmp_path / "rows.csv", [late]))
    assert found.rows[0]["suspect"] == COLD_START
    assert "ttft" not in found.by_column
    assert "ttft" in found.with_suspects


@pytest.mark.parametrize(
    ("field", "value", "reason"),
    [
        ("model", "no-such-model-7b", "no row of the registry"),
        ("gpu", "NVIDIA Z9000", "gpu 'NVIDIA Z9000' is no row of the registry"),
        ("engine", "orca", "engine 'orca' has no measured constants"),
        ("scenario", "sometimes", "scenario 'sometimes' is not one of"),
        ("isl", "-3", "isl '-3' is not a number above 0"),
        ("concurrency", "", "concurrency is blank"),
        ("tp", "two", "tp 'two' is not a whole number"),
        ("isl", "50000000", "leave no room"),
    ],
)
def test_a_row_that_can_not_be_told_says_why(field: str, value: str, reason: str, tmp_path: Path) -> None:
    found = validate_performance(written(tmp_path / "rows.csv", [{**rows()[0], field: value}]))
    assert found.covered_count == 0
    assert reason in found.rows[0]["reason"]


def test_a_table_of_something_else_is_refused(tmp_path: Path) -> None:
    other = tmp_path / "rows.csv"
    other.write_text("a,b\n1,2\n")
    with pytest.raises(DataFileError, match="has no column engine, model, gpu, scenario"):
        validate_performance(other)


def test_scripts_of_a_benchmark_say_what_its_rows_do_not() -> None:
    row = next(row for row in rows() if "InferenceX run" in row["notes"])
    case = read.case(row)
    assert case.pool.plan.kv == "fp8"
    assert case.isl == pytest.approx(0.9 * float(row["isl"]))
    assert not case.alike
    plain = read.case({**row, "notes": ""})
    assert (plain.pool.plan.kv, plain.isl, plain.alike) == ("bf16", float(row["isl"]), True)


def test_the_command_prints_every_row(run: Run) -> None:
    code, out, err = run("validate", "performance", str(ROWS), "--json")
    document: dict[str, Any] = json.loads(out)
    assert (code, err) == (0, "")
    assert len(document["result"]["rows"]) == 12
    for row in document["result"]["rows"]:
        assert {"case_id", "covered", "reason", "predicted", "measured"} <= set(row)
    code, out, _ = run("validate", "performance", str(ROWS), "--csv")
    assert code == 0
    assert "predicted_tpot_ms_central" in out.splitlines()[0]


@pytest.mark.parametrize("name", ["vllm", "sglang", "tensorrt-llm"])
def test_an_engine_has_fifteen_constants_at_most(name: str) -> None:
    # no constants; of routers, not of engines
    switches = {"name", "mixed", "poll", "graphs", "imbalance", "routing"}
    assert len(set(Engine._fields) - switches) <= 15
    assert engine_steps(name).slow >= 1  # a pass is no faster than its kernels
    assert any(engine == name for engine, _, _ in fitted_families())


def test_the_shared_rows_are_as_near_as_is_claimed(data: Path) -> None:
    found = validate_performance(data / "throughput_measured.csv")
    assert found.covered_count / found.row_count > 0.85
    assert found.by_column["tpot"]["median"] < 0.07
    assert found.by_column["tpot"]["mean"] < 0.16
    assert found.by_column["ttft"]["median"] < 0.20
    assert found.by_column["throughput"]["median"] < 0.12
