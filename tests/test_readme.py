"""The README's commands print what it shows; the examples run.

After a change of output: python tests/test_readme.py writes the outputs anew; read the difference.
"""

from __future__ import annotations

import contextlib
import io
import os
import re
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

from capplan.__main__ import main

ROOT = Path(__file__).parent.parent
README = ROOT / "README.md"
BLOCK = re.compile(r"```console\n\$ (capplan[^\n]*)\n(.*?)```", re.DOTALL)


def output_of(command: str, data: Path) -> str:
    """What a command prints; a file of measured rows is looked for among the measured data."""
    args = command.split()[1:]
    if args[0] == "validate":
        args[2] = str(data / args[2])
    stdout, stderr = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(stdout), contextlib.redirect_stderr(stderr):
        code = main(args)
    assert code in (0, 1), stderr.getvalue()
    return stdout.getvalue()


@pytest.mark.parametrize(("command", "shown"), BLOCK.findall(README.read_text("utf-8")))
def test_command_prints_what_is_shown(command: str, shown: str, request: pytest.FixtureRequest) -> None:
    folder = request.getfixturevalue("data") if " validate " in command else ROOT
    assert output_of(command, folder) == shown


def test_there_are_commands() -> None:
    assert len(BLOCK.findall(README.read_text("utf-8"))) >= 4


def test_python_block_prints_what_its_comments_say() -> None:
    (block,) = re.findall(r"```python\n(.*?)```", README.read_text("utf-8"), re.DOTALL)
    stdout = io.StringIO()
    with contextlib.redirect_stdout(stdout):
        exec(compile(block, "README.md", "exec"), {})  # noqa: S102  # our own README
    said = [line.split("# ", 1)[1].strip() for line in block.splitlines() if "# " in line]
    assert stdout.getvalue().splitlines() == said
    assert len(said) >= 2


@pytest.mark.parametrize("example", sorted((ROOT / "examples").glob("*.py")), ids=lambda path: path.name)
def test_example_runs(example: Path, capsys: pytest.CaptureFixture[str]) -> None:
    runpy.run_path(str(example), run_name="__main__")
    assert capsys.readouterr().out


def test_demo_command_runs_on_a_real_file() -> None:
    (recipe,) = re.findall(r"capplan (whiteboard examples/\S+ .*)", (ROOT / "Makefile").read_text("utf-8"))
    run = subprocess.run(
        [sys.executable, "-m", "capplan", *recipe.split()],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    assert "327,680 bytes" in run.stdout
    assert run.stderr == ""


if __name__ == "__main__":
    folder = Path(os.environ.get("CAPPLAN_MEASURED_DATA") or ROOT.parent / "shared" / "data")
    anew = BLOCK.sub(
        lambda m: f"```console\n$ {m[1]}\n{output_of(m[1], folder)}```", README.read_text("utf-8")
    )
    README.write_text(anew, "utf-8", newline="\n")
