"""`capplan validate kernels`: published kernels against predictions."""

import csv
import json
from collections.abc import Callable
from pathlib import Path

import pytest

from capplan.capacity.questions import kernel_rows
from capplan.capacity.questions.kernel_suspects import GROUPS
from capplan.capacity.questions.validate_kernels import ValidateKernels, validate_kernels
from capplan.errors import DataFileError, InputError

Run = Callable[..., tuple[int, str, str]]
ROWS = Path(__file__).parents[2] / "examples/kernels.csv"


def row(**cells: str) -> dict[str, str]:
    return {
        **dict.fromkeys(("gpu", "op", "time_us", "tflops", "gbps", "notes", "dtype"), ""),
        "gpu": "H200",
        **cells,
    }


def product(**cells: str) -> dict[str, str]:
    return row(op="gemm", m="64", n="8192", k="4096", dtype="fp8", **cells)


def test_rows_are_scored() -> None:
    found = validate_kernels(ROWS)
    assert (found.row_count, found.covered_count) == (15, 14)
    assert [each["name"] for each in found.suspects] == ["faster than memory"]
    assert found.by_op["gemm"]["rows"] == 3
    assert found.by_op["gemm"]["in_range"] == pytest.approx(2 / 3)
    assert found.by_op["d2h"]["in_range"] is None
    assert found.by_op_without_suspects["gemm"]["rows"] == 2
    assert found.by_op_without_suspects["gemm"]["median"] < 0.2 < found.by_op["gemm"]["p90"]
    assert "depends on the storage" in next(iter(found.not_covered))
    assert set(found.by_group) == {"gpu", "dtype", "op_and_generation", "kernel"}
    worst = found.worst[0]
    assert worst["relative_error"] == pytest.approx(worst["predicted"] / worst["measured"] - 1)


def test_nothing_measured_is_read(tmp_path: Path) -> None:
    with ROWS.open(newline="") as file:
        rows = list(csv.DictReader(file))
    for each in rows:
        each.update({name: "1" for name in kernel_rows.MEASURED if each[name]})
    other = tmp_path / "rows.csv"
    with other.open("w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    plain, changed = validate_kernels(ROWS), validate_kernels(other)
    assert [each["predicted"] for each in plain.rows] == [each["predicted"] for each in changed.rows]
    assert [each["covered"] for each in plain.rows] == [each["covered"] for each in changed.rows]


def test_a_row_has_every_column() -> None:
    for each in validate_kernels(ROWS).rows:
        assert set(each["measured"]) == set(kernel_rows.MEASURED)
        if each["covered"]:
            assert set(each["predicted"]) == set(kernel_rows.MEASURED)
            compared = each["inputs"]["compared"]
            assert each["predicted"][compared] > 0
            assert each["measured"][compared] > 0


def test_an_engines_quantised_product_has_a_pass_before() -> None:
    bare = kernel_rows.case(product(notes="DeepGEMM"))
    engine = kernel_rows.case(product(notes="kernel CutlassFP8ScaledMMLinearKernel; vllm 0.24.0"))
    assert [each.name for each in bare.operations] == ["product"]
    assert [each.name for each in engine.operations] == ["quantise", "product"]
    assert kernel_rows.seconds(engine) > kernel_rows.seconds(bare)


def test_skewed_experts_are_the_busiest_rank() -> None:
    def experts(load: str, ep: int, tokens: int = 1024) -> kernel_rows.Case:
        notes = f"fused MoE; moe_tp=1 moe_ep={ep}; expert load {load}; kernel fused_moe; vllm 0.24.0"
        return kernel_rows.case(
            row(op="grouped_gemm", dtype="bfloat16", m=str(tokens), n="1536", k="4096", num_experts="128", topk="8",
                notes=notes)
        )  # fmt: skip

    even, skewed = experts("balanced", 8).operations[0], experts("power_law_1.2", 8).operations[0]
    assert (even.rows, even.hit) == (1024, 16)
    assert skewed.rows > 1.5 * even.rows
    assert skewed.hit <= 16
    alone = experts("power_law_1.2", 1).operations[0]
    assert alone.rows == pytest.approx(8192, rel=0.01)
    few = experts("power_law_1.2", 1, tokens=32).operations[0]
    assert few.hit < 110 < experts("balanced", 1, tokens=32).operations[0].hit
    assert skewed == experts("power_law_1.2", 8).operations[0], "draws are the same every time"


@pytest.mark.parametrize(
    ("cells", "reason"),
    [
        (row(op="model_load"), "model_load: depends on the storage"),
        (row(op="sort"), "op 'sort' is not one of gemm, grouped_gemm"),
        (row(op="gemm", gpu="H20O"), "gpu 'H20O' is no row of the registry"),
        (row(op="gemm", gpu=""), "no gpu is named"),
        (row(op="gemm", m="4"), "gemm without m, n and k"),
        (row(op="gemm", m="many", n="1", k="1"), "m 'many' is not a number above 0"),
        ({**product(), "dtype": "fp3"}, "dtype 'fp3' is not one of"),
        (row(op="attention_decode", batch="1"), "attention_decode without kv_len"),
        (
            row(op="grouped_gemm", m="1", n="1", k="1", num_experts="8", topk="2"),
            "grouped_gemm whose notes don't say",
        ),
        (row(op="kv_transfer", bytes="1"), "kv_transfer whose notes don't say the line rate"),
    ],
)
def test_a_row_that_cannot_be_told(cells: dict[str, str], reason: str) -> None:
    with pytest.raises(InputError, match=reason):
        kernel_rows.case(cells)


def test_files(tmp_path: Path) -> None:
    path = tmp_path / "rows.csv"
    path.write_text("gpu,op\nH200,gemm\n")
    with pytest.raises(DataFileError, match="has no column time_us, tflops, gbps"):
        validate_kernels(path)
    path.write_text("gpu,op,time_us,tflops,gbps,m,n,k\nH200,gemm,,,,1,2,3\nH200,gemm,-1,,,1,2,3\n")
    found = validate_kernels(path)
    assert found.covered_count == 0
    assert list(found.not_covered) == [
        "no measured column that a prediction can be compared with",
        "time_us '-1' is not a number above 0",
    ]
    assert found.report().headline == "2 kernels: 0 covered"


def test_command(run: Run) -> None:
    code, out, err = run("validate", "kernels", str(ROWS), "--json")
    assert (code, err) == (0, "")
    document = json.loads(out)
    assert document["schema"] == "capplan/validate-kernels/1"
    assert len(document["result"]["rows"]) == 15
    text = run("validate", "kernels", str(ROWS))[1]
    assert "15 kernels: 14 covered; gemm off by" in text
    assert "without suspects" in text
    assert run("validate", "kernels", str(ROWS), "--csv")[1].count("\n") == 16
    code, _, err = run("validate", "kernels", str(ROWS), "--given", "time_us")
    assert code == 2
    assert "--given is for rows of memory" in err


# --- the published rows ---------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def published(data: Path) -> ValidateKernels:
    path = data / "kernels_measured.csv"
    if not path.is_file():
        pytest.skip(f"{path} is not here")
    return validate_kernels(path)


def test_published_kernels(published: ValidateKernels) -> None:
    assert published.covered_count >= 0.98 * published.row_count
    most = {
        "gemm": 0.08,
        "attention_decode": 0.10,
        "attention_prefill": 0.10,
        "grouped_gemm": 0.17,
        "allreduce": 0.17,
        "mla_decode": 0.15,
    }
    for op, error in most.items():
        assert published.by_op[op]["median"] <= error, op
        assert abs(published.by_op_without_suspects[op]["bias"]) <= 0.1, op
        assert published.by_op_without_suspects[op]["in_range"] >= 0.75, op


def test_suspects_are_few_and_all_one_way(published: ValidateKernels) -> None:
    assert {each["name"] for each in published.suspects} == set(GROUPS)
    assert sum(each["rows"] for each in published.suspects) <= 0.06 * published.row_count
    for each in published.suspects:
        assert each["bias"] > 0.5 if each["name"] == "faster than memory" else each["bias"] < -0.2
