"""A user's folder that is empty, so that rows of whoever runs the tests stay out, and a row to put in it."""

from __future__ import annotations

from pathlib import Path

import pytest

ROW = """\
id = "mine"
aliases = ["my-gpu"]
name = "My accelerator"
vendor = "me"
native_dtypes = ["bf16", "fp8"]

[memory]
label     = { value = 80, unit = "GB", source = "sheet" }
bandwidth = { value = 2, unit = "TB/s", source = "sheet" }

[dense_flops]
fp8 = { value = 1000, sparse = 2000, unit = "TFLOP/s", source = "sheet" }

[board]
sm_count = 100

[[prices]]
usd_per_gpu_hour = 2.5
basis = "contract"
date = "2026-01-31"
source = "sheet"

[[sources]]
id = "sheet"
title = "a sheet"
checked = 2026-11-29
"""


@pytest.fixture(autouse=True)
def user_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "capplan"
    (folder / "gpus").mkdir(parents=True)
    (folder / "nodes").mkdir()
    monkeypatch.setenv("CAPPLAN_DATA", str(folder))
    return folder


@pytest.fixture
def gpus(user_folder: Path) -> Path:
    """The user's folder of gpus."""
    return user_folder / "gpus"


@pytest.fixture
def row_text() -> str:
    """A small row that is right."""
    return ROW
