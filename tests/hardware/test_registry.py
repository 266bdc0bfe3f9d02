"""Finding a GPU as people type it, rows of the user's own, and what a wrong row says."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from capplan.errors import DataFileError, UnknownNameError
from capplan.hardware.registry import all_gpus, gpu, names, node, node_names

TYPED = {
    "h100": "h100-sxm",
    "H100-SXM5": "h100-sxm",
    "h200": "h200-sxm",
    "NVIDIA H200": "h200-sxm",
    "a100": "a100-sxm-80",
    "A100-40GB": "a100-sxm-40",
    "nvidia a100 80gb pcie": "a100-pcie-80",
    "l4": "l4",
    "L40S": "l40s",
    "MI300X": "mi300x",
    "b200": "b200-sxm",
    "gb200": "gb200-nvl72",
    "b300": "b300-sxm",
    "gb300": "gb300-nvl72",
    "4090": "rtx-4090",
    "RTX5090": "rtx-5090",
    "rtx-pro-6000": "rtx-pro-6000-server",
    "dgx-spark": "gb10-dgx-spark",
    "thor": "jetson-agx-thor-t5000",
    "orin": "jetson-agx-orin-64",
    "trillium": "tpu-v6e",
    "Ironwood": "tpu-v7",
    "trn2": "trainium2",
    "inf2": "inferentia2",
    "m3-ultra": "apple-m3-ultra",
    "p5.48xlarge": "h100-sxm",
    "p5en.48xlarge": "h200-sxm",
    "a2-ultragpu-8g": "a100-sxm-80",
    "Standard_ND96isr_MI300X_v5": "mi300x",
    "  h200-sxm ": "h200-sxm",
}


@pytest.mark.parametrize(("typed", "found"), TYPED.items())
def test_what_people_type(typed: str, found: str) -> None:
    assert gpu(typed).id == found


@pytest.mark.parametrize("name", ["dgx-h100", "HGX-H200", "p5.48xlarge", "p5en", "a3-megagpu-8g"])
def test_nodes_are_found_too(name: str) -> None:
    assert node(name).gpu in names()


@pytest.mark.parametrize(
    ("typed", "nearest"),
    [
        ("h20O", "h200"),
        ("h2o0-sxm", "h200-sxm"),
        ("mi300-x", "mi300x"),
        ("rtx 4090", "rtx-4090"),
        ("l4os", "l40s"),
    ],
)
def test_a_near_miss_is_named(typed: str, nearest: str) -> None:
    with pytest.raises(UnknownNameError) as error:
        gpu(typed)
    message = str(error.value)
    assert message.startswith(f"unknown gpu '{typed}'; did you mean ")
    assert f"'{nearest}'" in message
    assert message.endswith("(capplan gpus)")


def test_no_near_miss_no_guess() -> None:
    with pytest.raises(UnknownNameError, match=r"^unknown node 'zzzz' \(capplan nodes\)$"):
        node("zzzz")


def test_a_row_of_ones_own(gpus: Path, row_text: str) -> None:
    (gpus / "mine.toml").write_text(row_text, "utf-8")
    mine = gpu("MY-GPU")
    assert mine.id == "mine"
    assert mine.memory_label_bytes == 80e9
    assert mine.memory_reported_bytes is None
    assert mine.memory_visible_bytes is None
    assert mine.dense_flops == {"fp8": 1e15}
    assert mine.link is None
    assert mine.price_range == (2.5, 2.5)
    assert "mine" in names()


def test_a_row_of_ones_own_hides_the_shipped_one(gpus: Path, row_text: str) -> None:
    own = row_text.replace('id = "mine"', 'id = "h200-sxm"').replace('"my-gpu"', '"h200"')
    (gpus / "h200-sxm.toml").write_text(own, "utf-8")
    assert gpu("h200-sxm").name == "My accelerator"
    assert gpu("h200").name == "My accelerator"
    assert names().count("h200-sxm") == 1
    assert {row.name for row in all_gpus() if row.id == "h200-sxm"} == {"My accelerator"}


def test_a_node_of_ones_own(user_folder: Path) -> None:
    rack = user_folder / "nodes" / "rack.toml"
    rack.write_text('id = "rack"\nname = "Rack"\ngpu = "l4"\ngpus = 4\n', "utf-8")
    assert node("rack").gpus == 4
    assert "rack" in node_names()
    rack.write_text('id = "rack"\nname = "Rack"\ngpu = "l4"\n', "utf-8")
    with pytest.raises(DataFileError, match="key 'gpus' is missing; it is required"):
        node("rack")


def test_reading_one_gpu_loads_nothing_heavy() -> None:
    code = (
        "import sys; from capplan.hardware.registry import gpu; gpu('h200-sxm');"
        "print(sorted({'numpy', 'pydantic', 'pint', 'torch', 'typer', 'rich', 'asyncio', 'difflib'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
