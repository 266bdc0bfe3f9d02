"""Measured runs of vLLM, from the model, the GPU and the engine's flags alone."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

WITHIN = {("TPOT", "mean"): 0.08, ("TTFT", "mean"): 0.20, ("TTFT", "p99"): 0.30}
RUNS = ("rtxpro6000_llama-3.1-8b", "rtxpro6000_qwen3-30b-a3b-instruct-2507")


@pytest.fixture(scope="module")
def benchmark() -> ModuleType:
    path = Path(__file__).parents[2] / "benchmarks" / "vllm_runs.py"
    spec = importlib.util.spec_from_file_location("vllm_runs", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("name", RUNS)
def test_a_measured_run_is_reproduced(name: str, benchmark: ModuleType, data: Path) -> None:
    meta = data / "vllm_runs" / f"{name}.meta.json"
    if not meta.exists():
        pytest.skip(f"no measured run: {meta} is not there")
    simulated, measured = benchmark.both(meta)
    for (kind, which), within in WITHIN.items():
        ours, real = (benchmark.figure(times[kind], which) for times in (simulated, measured))
        assert ours == pytest.approx(real, rel=within), (kind, which)
