"""`capplan validate memory`: published start-ups against predictions."""

import csv
import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from capplan.capacity.questions.memory_rows import MEASURED, deployment
from capplan.capacity.questions.validate_memory import validate_memory
from capplan.errors import DataFileError, UnknownNameError

Run = Callable[..., tuple[int, str, str]]
ROOT = Path(__file__).parents[2]
ROWS = ROOT / "examples/engine_memory.csv"
DATA = Path(os.environ.get("CAPPLAN_MEASURED_DATA") or Path(__file__).parents[3] / "shared/data")
LOGS = DATA / "engine_memory_logs.csv"
needs_logs = pytest.mark.skipif(not LOGS.is_file(), reason="engine_memory_logs.csv is not here")


def test_rows_are_scored() -> None:
    found = validate_memory(ROWS)
    assert (found.row_count, found.covered_count) == (6, 5)
    assert found.by_column["m_kv_gib_per_gpu"]["median"] < 0.01
    assert found.by_column["m_max_concurrency"]["median"] < 0.01
    assert found.starts == {"failures": 1, "called": 1, "started": 3, "false_alarms": 0}
    assert list(found.low_confidence) == ["m_kv_tokens", "m_max_concurrency"]
    assert "no row of the registry" in next(iter(found.not_covered))


def test_rows_that_say_all_are_told_apart() -> None:
    found = validate_memory(ROWS)
    said = {row["case_id"]: row["inputs"]["inputs"] for row in found.rows if row["covered"]}
    assert set(said.values()) == {"all said", "not all said"}
    assert all(
        (said[row["case_id"]] == "all said") == (row["inputs"]["assumptions"] == [])
        for row in found.rows
        if row["covered"]
    )
    assert set(found.by_group["inputs"]) <= set(said.values())


def test_a_given_column_is_scored_where_it_is_logged(tmp_path: Path) -> None:
    with ROWS.open(newline="") as file:
        rows = list(csv.DictReader(file))
    rows[0]["m_weights_gib_per_gpu"] = ""
    other = tmp_path / "rows.csv"
    with other.open("w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    every, given = validate_memory(other), validate_memory(other, given=["m_weights_gib_per_gpu"])
    assert every.by_column["m_kv_gib_per_gpu"]["rows"] == 3
    assert given.by_column["m_kv_gib_per_gpu"]["rows"] == 2
    assert given.by_column["m_weights_gib_per_gpu"]["median"] == 0


def test_mixed_layers_are_told_from_layers_alike() -> None:
    found = validate_memory(ROWS)
    mixed = {row["inputs"]["model"]: row["inputs"]["mixed_layers"] for row in found.rows if row["covered"]}
    assert mixed["llama-3.1-8b"] is False
    assert found.derived["bytes_per_token_of_layers_alike"]["median"] < 0.001


def test_a_row_has_every_column() -> None:
    row = validate_memory(ROWS).rows[0]
    assert set(row["predicted"]) == set(row["measured"]) == {*MEASURED, "starts"}
    assert row["predicted"]["m_weights_gib_per_gpu"] == pytest.approx(14.99, rel=0.001)


def test_nothing_measured_is_read(tmp_path: Path) -> None:
    with ROWS.open(newline="") as file:
        rows = list(csv.DictReader(file))
    for row in rows:
        row.update(dict.fromkeys(MEASURED, "1"))
    other = tmp_path / "rows.csv"
    with other.open("w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    plain, changed = validate_memory(ROWS), validate_memory(other)
    assert [row["predicted"] for row in plain.rows] == [row["predicted"] for row in changed.rows]
    given = validate_memory(other, given=["m_weights_gib_per_gpu"])
    assert given.rows[0]["predicted"]["m_weights_gib_per_gpu"] == 1


def test_command(run: Run) -> None:
    code, out, err = run("validate", "memory", str(ROWS), "--json", "--given", "m_weights_gib_per_gpu")
    assert (code, err) == (0, "")
    assert json.loads(out)["inputs"]["given"] == ["m_weights_gib_per_gpu"]
    assert "start-ups" in run("validate", "memory", str(ROWS))[1]
    assert run("validate", "memory", str(ROWS), "--csv")[1].count("\n") == 7


def test_nothing_covered_is_no_success(run: Run, tmp_path: Path) -> None:
    names, *rows = ROWS.read_text().splitlines()
    unknown = tmp_path / "unknown.csv"
    unknown.write_text("\n".join([names, *(row for row in rows if "acme/rocket" in row)]) + "\n")
    code, out, _ = run("validate", "memory", str(unknown))
    assert (code, "0 covered" in out) == (1, True)
    names, *rows = (ROOT / "tests/engines/rows.csv").read_text().splitlines()
    unknown.write_text("\n".join([names, *(row for row in rows if row.startswith("too-old"))]) + "\n")
    code, out, _ = run("validate", "allocator", str(unknown))
    assert (code, "0 covered" in out) == (1, True)


def test_wrong_use(run: Run, tmp_path: Path) -> None:
    with pytest.raises(UnknownNameError, match="unknown measured column 'm_kv'"):
        validate_memory(ROWS, given=["m_kv"])
    empty = tmp_path / "empty.csv"
    empty.write_text("engine,gpu\n")
    with pytest.raises(DataFileError, match="has no column model_id"):
        validate_memory(empty)
    code, _, err = run("validate", "allocator", str(ROWS), "--given", "m_kv_gib_per_gpu")
    assert code == 2
    assert "--given is for rows of memory" in err


@needs_logs
def test_published_logs() -> None:
    found = validate_memory(LOGS)
    vllm = [row for row in found.rows if row["covered"] or "no row of the registry" not in str(row["reason"])]
    assert all(row["covered"] for row in vllm), "a known model is not covered"
    assert found.by_column["m_weights_gib_per_gpu"]["median"] <= 0.01
    assert found.by_column["m_kv_gib_per_gpu"]["median"] <= 0.025
    assert found.by_column["m_max_concurrency"]["median"] <= 0.02
    assert found.starts["false_alarms"] <= 0.03 * found.starts["started"]


@needs_logs
def test_published_logs_given_their_weights() -> None:
    found = validate_memory(LOGS, given=["m_weights_gib_per_gpu"])
    assert found.by_column["m_kv_gib_per_gpu"]["median"] <= 0.01


def test_what_a_row_leaves_to_its_day_and_its_model() -> None:
    """Laguna on main with a drafter that is not named: the release that main became, and the one drafter on record."""
    row = {"engine": "vllm", "model_id": "Laguna-S-2.1-NVFP4", "gpu": "NVIDIA GB10", "tp": "1"}
    row |= {"date": "2026-07-28", "spec_decode": "dflash", "notes": "pool sizing of current main"}
    assumed: list[str] = []
    flags = deployment(row, "nvfp4", assumed)
    assert (flags.version, flags.draft_model) == ("0.26.0", "poolside/Laguna-S-2.1-DFlash")
    assert [text.split(":")[0] for text in assumed] == ["drafter not named", "main of 2026-07-28"]
    released = deployment({**row, "notes": "", "spec_decode": "dflash2 k=7"}, "nvfp4", [])
    assert (released.version, released.draft_model) == ("0.25.0", None)
