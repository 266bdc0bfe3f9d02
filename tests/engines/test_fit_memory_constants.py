"""tools/fit_memory_constants.py: constants out of rows that were made with others."""

import csv
import importlib.util
import os
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from capplan.capacity.engines import defaults
from capplan.capacity.questions.measured import read_table

ROOT = Path(__file__).parents[2]
LOGS = Path(os.environ.get("CAPPLAN_MEASURED_DATA") or ROOT.parent / "shared/data") / "engine_memory_logs.csv"
needs_logs = pytest.mark.skipif(not LOGS.is_file(), reason="engine_memory_logs.csv is not here")

CASES = {  # case id -> what differs from a start of Llama 3.1 8B on an H100
    "llmdplanner-llama-tp1pp1dp1-8192": {},
    "llmdplanner-llama-tp2pp1dp1-8192": {"tp": "2"},
    "llmdplanner-qwen-tp1pp1dp1-8192": {"model_id": "Qwen/Qwen3-8B"},
    "llmdplanner-doc-llama-tp1": {"engine_version": "0.15.0"},
    "gb10-jh-sglang-one": {"engine": "sglang", "gpu": "gb10", "model_id": "Qwen/Qwen3-8B"},
}


@pytest.fixture(scope="module")
def tool() -> ModuleType:
    spec = importlib.util.spec_from_file_location(
        "fit_memory_constants", ROOT / "tools/fit_memory_constants.py"
    )
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def written(path: Path, tool: ModuleType, values: dict[str, float]) -> Any:
    """Rows whose logs say what capplan would, were the constants these."""
    with (ROOT / "examples/engine_memory.csv").open(newline="") as file:
        blank = dict.fromkeys(next(csv.reader(file)), "")
    like = {"engine": "vllm", "engine_version": "0.19.0", "model_id": "meta-llama/Llama-3.1-8B-Instruct"}
    like |= {"gpu": "NVIDIA H100 80GB", "tp": "1", "max_model_len": "8192", "gpu_memory_utilization": "0.9"}
    rows = [{**blank, **like, "case_id": case, **other} for case, other in CASES.items()]
    with tool.held(values):
        for row, start in zip(rows, tool.starts(rows).values(), strict=True):
            for column in ("m_activation_peak_gib", "m_weights_gib_per_gpu"):
                row[column] = str(tool.predicted(start, column, None))
            non_torch, graphs = (
                tool.predicted(start, what, None) for what in ("non_torch", "graph_estimate")
            )
            row["notes"] = f"non-torch {non_torch:.6f} GiB; CUDA-graph estimate {graphs:.6f} GiB"
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    return tool.starts(read_table(path, tool.read.NEEDED))


def test_constants_come_out_as_they_went_in(tool: ModuleType, tmp_path: Path) -> None:
    true = {"workspace_bytes": 0.3, "sampler_sorting_bytes": 31.0, "non_torch_old": 0.2, "non_torch": 0.35}
    true |= {"collectives": 1.5, "graph_bytes": 0.031, "sglang_unified": 0.7}
    rows = written(tmp_path / "rows.csv", tool, true)
    made = tool.fitted(rows)
    assert {name: made[name] for name in true} == pytest.approx(true, rel=1e-3)
    assert made["mixer_copies"] == 2  # no row has a recurrence: what stands in


def test_left_out_rows_are_not_fitted(tool: ModuleType, tmp_path: Path) -> None:
    """The one start of SGLang is of Qwen3: without that family its constant is what stands in, and its load off."""
    path = tmp_path / "rows.csv"
    rows = written(path, tool, {"sglang_unified": 0.7})
    found = {row["case_id"]: row for row in tool.left_out(path, rows, ())}
    assert set(found) == set(CASES)
    row = found["gb10-jh-sglang-one"]
    off = row["measured"]["m_weights_gib_per_gpu"] - row["predicted"]["m_weights_gib_per_gpu"]
    assert off == pytest.approx(0.7, abs=1e-6)


def test_the_constants_are_put_back(tool: ModuleType) -> None:
    before = defaults.constant("non_torch")
    with tool.held({"non_torch": 9.0}):
        assert defaults.constant("non_torch") == 9 * 2**30
    assert defaults.constant("non_torch") == before


def test_one_family_has_one_vote(tool: ModuleType, tmp_path: Path) -> None:
    rows = written(tmp_path / "rows.csv", tool, {})
    llama, qwen = "llmdplanner-llama-tp1pp1dp1-8192", "llmdplanner-qwen-tp1pp1dp1-8192"
    many = {llama: 1.0, "llmdplanner-llama-tp2pp1dp1-8192": 1.2, "llmdplanner-doc-llama-tp1": 1.4, qwen: 0.5}
    assert tool._middle(many, rows) == 0.5  # of 1.2 and 0.5 the lower


@needs_logs
def test_the_constants_are_what_the_fit_makes(tool: ModuleType) -> None:
    made = tool.fitted(tool.starts(read_table(LOGS, tool.read.NEEDED)))
    assert {row["id"]: row["value"] for row in tool.constants()} == made
