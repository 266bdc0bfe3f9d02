"""The wheel, in an empty environment: complete, and nothing beside `capplan` lands in site-packages."""

from __future__ import annotations

import shutil
import subprocess
import sys
import venv
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A wheel built from a copy of the tree: setuptools leaves build/ behind, which would end up in the next."""
    out, tree = tmp_path_factory.mktemp("wheel"), tmp_path_factory.mktemp("tree") / "capplan"
    left = shutil.ignore_patterns(".*", "build", "dist", "*.egg-info", "__pycache__", "tests")
    shutil.copytree(ROOT, tree, symlinks=True, ignore=left)
    subprocess.run(
        [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", str(out), str(tree)],
        check=True,
        capture_output=True,
    )
    return next(out.glob("*.whl"))


def test_the_wheel_holds_the_data_and_nothing_else_at_the_top(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    tops = {name.split("/")[0] for name in names}
    assert {top for top in tops if not top.endswith(".dist-info")} == {"capplan"}
    for folder, least in (("hardware/gpus", 60), ("models/specs", 60)):
        on_disk = {path.name for path in (ROOT / folder).glob("*.toml")}
        shipped = {n.rsplit("/", 1)[1] for n in names if n.startswith(f"capplan/{folder}/")}
        assert shipped == on_disk
        assert len(shipped) >= least
    assert "capplan/capacity/questions/whiteboard.toml" in names
    assert "capplan/py.typed" in names


def test_installed_in_an_empty_environment(wheel: Path, tmp_path: Path) -> None:
    venv.create(tmp_path / "env", with_pip=True)
    python = next(
        path for path in (tmp_path / "env/bin/python", tmp_path / "env/Scripts/python.exe") if path.exists()
    )

    def run(*args: str) -> str:
        return subprocess.run(
            [str(python), *args], check=True, capture_output=True, text=True, cwd=tmp_path
        ).stdout

    run("-m", "pip", "install", "--quiet", "--disable-pip-version-check", str(wheel))
    assert run("-m", "capplan", "--version").startswith("capplan ")
    assert "327,680 bytes" in run("-m", "capplan", "kv", "llama-3.3-70b")
    assert "25" in run(
        "-m", "capplan", "fit", "70b-class", "--gpu", "h200", "--weights", "fp8", "--tier", "whiteboard"
    )
    stray = ["capacity", "hardware", "models", "probes", "tests"]
    found = run(
        "-c", f"import importlib.util as u; print([n for n in {stray!r} if u.find_spec(n) is not None])"
    )
    assert found.strip() == "[]"
