"""The command that makes kernels.toml: it leaves what fits alone, and finds a constant again that was bent."""

import importlib.util
import tomllib
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

from capplan.capacity.step_time.chip import DATA, chip_of, data
from capplan.hardware import registry

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def tool() -> ModuleType:
    spec = importlib.util.spec_from_file_location("fit_kernels", ROOT / "tools/fit_kernels.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_constants_go_in_as_they_came_out(tool: ModuleType) -> None:
    chip = chip_of(registry.gpu("h200-sxm"))
    assert tool.with_values(chip, tool.start_values()) == chip


def test_rewriting_changes_the_figures_alone(tool: ModuleType) -> None:
    text = DATA.read_text()
    values = tool.start_values()
    assert tomllib.loads(tool.rewrite(text, values)) == data()
    bent = values | {"sm90.gemm.bf16": 0.5, "nvlink.share": 0.25, "shared.inner_ns": 2.0}
    found = tomllib.loads(tool.rewrite(text, bent))
    assert found["generation"]["sm90"]["gemm"]["bf16"] == 0.5
    assert found["fabric"]["nvlink"]["share"] == 0.25
    assert found["shared"]["inner_ns"] == 2.0
    assert found["generation"]["sm80"] == data()["generation"]["sm80"]
    kept = [line for line in text.splitlines() if line.startswith("#")]
    assert kept == [line for line in tool.rewrite(text, bent).splitlines() if line.startswith("#")]


def test_every_fitted_constant_has_a_stage(tool: ModuleType) -> None:
    staged = {name.split(".")[0] for stage in tool.STAGES for name in (*stage.generation, *stage.shared)}
    remarked = {"scan_compute"}
    assert staged == ({*data()["shared"]} - remarked) | {*data()["generation"]["sm90"]}


def test_a_bent_constant_is_found_again(tool: ModuleType) -> None:
    """Rows made with the shipped constants, fitted from wrong ones."""
    rows = tool.groups(ROOT / "examples/kernels.csv")
    right = tool.start_values()
    one = next(group for group in rows if group.op == "gemm" and group.gpu.startswith("H200"))
    m = np.array([1.0, 64.0, 512.0, 4096.0, 16384.0])
    from capplan.capacity.step_time.operations import gemm

    made = one._replace(
        operations=(gemm("product", m, 8192.0, 8192.0, "bf16"),), used=np.ones(5, bool), measured=np.ones(5)
    )
    made = made._replace(measured=np.exp(tool.ratios(made, right)))
    stage = tool.Stage(("gemm",), ("gemm.bf16", "memory"))
    wrong = right | {"sm90.gemm.bf16": 0.4, "sm90.memory": 0.5}
    found = tool._fit_stage(stage, [made], wrong)
    for name in ("sm90.gemm.bf16", "sm90.memory"):
        assert found[name] == pytest.approx(right[name], rel=0.02)


def test_what_is_left_out_is_not_known(tool: ModuleType) -> None:
    """Without a GPU, its rows may say anything."""
    rows = [group for group in tool.groups(ROOT / "examples/kernels.csv") if group.op == "gemm"]
    gpu = tool.plain(rows[0].gpu)
    bent = [
        group._replace(measured=group.measured * 3) if tool.plain(group.gpu) == gpu else group
        for group in rows
    ]
    start = tool.start_values()
    assert tool.fit(rows, start, without=gpu) == tool.fit(bent, start, without=gpu)
