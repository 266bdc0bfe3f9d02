"""`capplan validate allocator`: rows that come out, rows that do not, and files that are no table of them."""

import csv
import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from capplan.capacity.questions.measured import LARGEST
from capplan.capacity.questions.validate import COLUMNS, validate_allocator
from capplan.errors import DataFileError

Run = Callable[..., tuple[int, str, str]]
ROWS = Path(__file__).with_name("rows.csv")
HEAD = "vllm_version,model,tp,kv_dtype,available_kv_bytes,max_model_len,max_num_batched_tokens"
ROW = "0.33.0,llama-3.1-8b,1,auto,536870912,4080,8192"


def test_what_is_exact_and_what_is_not() -> None:
    found = validate_allocator(ROWS)
    assert (found.row_count, found.covered_count, found.exact_share) == (6, 4, 0.75)
    assert found.by_version["0.33.0"] == {"rows": 3, "covered": 2, "exact_share": 1.0}
    assert found.by_model["phi-4"]["exact_share"] == 0
    assert found.by_column["est_max_model_len"] == {"rows": 1, "exact_share": 1.0}
    assert found.worst == (
        {
            "case_id": "mistaken",
            "column": "num_blocks",
            "predicted": 10,
            "measured": 11,
            "relative_error": pytest.approx(1 / 11),
        },
    )
    assert {reason.split("'")[0]: count for reason, count in found.not_covered.items()} == {
        "model ": 1,
        "vllm ": 1,
    }


def test_every_row_is_told() -> None:
    rows = {row["case_id"]: row for row in validate_allocator(ROWS).rows}
    assert list(rows) == ["by-the-rule", "too-long", "all-blank", "mistaken", "unknown", "too-old"]
    row = rows["too-long"]
    assert set(row) == {"case_id", "covered", "reason", "predicted", "measured"}
    assert set(row["predicted"]) == set(COLUMNS)
    assert row["predicted"]["est_max_model_len"] == row["measured"]["est_max_model_len"] == 4080
    assert row["predicted"]["num_blocks"] is row["measured"]["num_blocks"] is None
    assert rows["unknown"]["predicted"] == {}
    assert "older than 0.11.2" in rows["too-old"]["reason"]


def test_what_was_measured_is_not_read(tmp_path: Path) -> None:
    with ROWS.open(newline="") as file:
        rows = list(csv.DictReader(file))
    blank = tmp_path / "blank.csv"
    with blank.open("w", newline="") as file:
        writer = csv.DictWriter(
            file, [name for name in rows[0] if name not in COLUMNS], extrasaction="ignore"
        )
        writer.writeheader()
        writer.writerows(rows)
    without, found = validate_allocator(blank), validate_allocator(ROWS)
    assert [row["predicted"] for row in without.rows] == [row["predicted"] for row in found.rows]
    assert without.by_column == {}
    assert all(not row["measured"] for row in without.rows)


@pytest.mark.parametrize(
    ("cell", "said"),
    [
        ("0.33.0,llama-3.1-8b,0,auto,536870912,4080,8192", "tp '0' is not a whole number"),
        ("0.33.0,llama-3.1-8b,1,auto,,4080,8192", "available_kv_bytes is blank"),
        ("0.33.0,llama-3.1-8b,1,auto,5.1e8,4080,8192", "available_kv_bytes '5.1e8'"),
        ("0.33.0,llama-3.1-8b,1,auto,536870912,nan,8192", "max_model_len 'nan'"),
        ("newest,llama-3.1-8b,1,auto,536870912,4080,8192", "vllm version 'newest' can't be read"),
        ("0.33.0,,1,auto,536870912,4080,8192", "no model is named"),
        ("0.33.0,/etc/passwd,1,auto,536870912,4080,8192", "model '/etc/passwd' is no row"),
        ("0.33.0,70b-class,1,int3,536870912,4080,8192", "unknown kv cache dtype 'int3'"),
        ("0.33.0,llama-3.1-8b", "max_model_len is blank"),
    ],
)
def test_a_row_that_can_not_be_predicted_says_why(cell: str, said: str, tmp_path: Path) -> None:
    file = tmp_path / "rows.csv"
    file.write_text(f"{HEAD}\n{cell}\n{ROW}\n", encoding="utf-8")
    found = validate_allocator(file)
    assert (found.row_count, found.covered_count) == (2, 1)
    assert said in found.rows[0]["reason"]


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "is empty"),
        (b"\n\n", "is empty"),
        (b"a,b\n1,2\n", "has no column vllm_version"),
        (f"{HEAD}\n".encode(), "has names of columns and no rows"),
        (HEAD.replace(",model", "").encode() + b"\n1\n", "has no column model or hf_id"),
        (bytes(range(256)) * 9, "is not a text"),
        (b"\xff\xfe" + HEAD.encode("utf-16-le"), "is not a text"),
        (f'{HEAD}\n"0.33.0,llama'.encode(), "is not a CSV file"),
        (f"{HEAD}\n{'x' * 200_000}\n".encode(), "is not a CSV file"),
    ],
)
def test_a_file_that_is_no_table(content: bytes, said: str, tmp_path: Path, run: Run) -> None:
    file = tmp_path / "rows.csv"
    file.write_bytes(content)
    code, out, err = run("validate", "allocator", str(file))
    assert (code, out) == (2, "")
    assert err.count("\n") == 1
    assert said in err


def test_a_huge_file_is_refused_unread(tmp_path: Path) -> None:
    file = tmp_path / "rows.csv"
    with file.open("wb") as sparse:
        sparse.write(f"{HEAD}\n".encode())
        os.truncate(sparse.fileno(), 2**30)
    with pytest.raises(DataFileError, match=f"larger than {LARGEST:,} bytes"):
        validate_allocator(file)


def test_paths_that_are_no_file(tmp_path: Path, run: Run) -> None:
    for path, said in (
        (tmp_path, "is a folder"),
        (tmp_path / "no.csv", "no such file"),
        ("a\0b", "can't read"),
    ):
        code, out, err = run("validate", "allocator", str(path))
        assert (code, out) == (2, "")
        assert said in err


def test_the_command(run: Run) -> None:
    code, out, err = run("validate", "allocator", str(ROWS))
    assert (code, err) == (0, "")
    assert out.startswith("6 rows: 4 covered, 75% of them exact in blocks, tokens, concurrency and fits\n")
    assert len(out.splitlines()) <= 45
    document = json.loads(run("validate", "allocator", str(ROWS), "--json")[1])
    assert document["schema"] == "capplan/validate-allocator/1"
    assert [row["covered"] for row in document["result"]["rows"]] == [True] * 4 + [False] * 2
    lines = run("validate", "allocator", str(ROWS), "--csv")[1].splitlines()
    assert len(lines) == 7
    assert "predicted_num_blocks" in lines[0]


def test_kinds_of_rows(run: Run) -> None:
    code, _, err = run("validate", "alocator", str(ROWS))
    assert code == 2
    assert "did you mean 'allocator'" in err
    assert run("validate")[0] == 2
