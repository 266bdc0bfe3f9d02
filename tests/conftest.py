"""What the tests share: no test asks the real hub, and the command line as a function."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from capplan.__main__ import main

os.environ["HF_HUB_OFFLINE"] = "1"  # read when the client is imported


@pytest.fixture(scope="session")
def data() -> Path:
    """The folder of measured and recorded facts: $CAPPLAN_MEASURED_DATA, or shared/data beside the repository."""
    given = os.environ.get("CAPPLAN_MEASURED_DATA")
    folder = Path(given) if given else Path(__file__).parents[2] / "shared" / "data"
    if not folder.is_dir():
        pytest.skip(f"no measured data: neither $CAPPLAN_MEASURED_DATA nor {folder}")
    return folder


@pytest.fixture
def run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[..., tuple[int, str, str]]:
    """Runs the command line in an empty folder, without rows of the user's: exit code, stdout, stderr."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("CAPPLAN_DATA", str(tmp_path / "data"))

    def _run(*args: str) -> tuple[int, str, str]:
        capsys.readouterr()  # what came before is not this command's
        code = main(args)
        out, err = capsys.readouterr()
        return code, out, err

    return _run
