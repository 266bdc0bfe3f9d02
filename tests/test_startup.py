"""What a command loads: the small ones must not pay for what they don't use."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

HEAVY = {"numpy", "pint", "torch", "pydantic", "matplotlib", "asyncio", "rich"}
PROGRAM = """
import json, sys
from capplan.__main__ import main
code = main(sys.argv[1:])
print(json.dumps([code, sorted(m for m in sys.modules)]), file=sys.stderr)
"""


def loaded_by(*args: str) -> set[str]:
    run = subprocess.run([sys.executable, "-c", PROGRAM, *args], capture_output=True, text=True, check=True)
    code, modules = json.loads(run.stderr.splitlines()[-1])
    assert code == 0, run.stderr
    return set(modules)


@pytest.mark.parametrize(
    "args",
    [
        ("kv", "llama-3.3-70b", "--json"),
        ("kv", "examples/llama-3.1-70b/config.json"),
        ("fit", "llama-3.3-70b", "--gpu", "h200", "--weights", "fp8", "--json"),
        ("roofline", "llama-3.1-8b", "--gpu", "l40s", "--json"),
        ("prefill", "llama-3.1-8b", "--gpu", "l40s", "--json"),
        ("decode", "llama-3.1-8b", "--gpu", "l40s", "--json"),
        ("ops", "llama-3.1-8b", "--gpu", "l40s", "--json"),
        ("whiteboard", "70b-class", "--gpu", "h200-sxm", "--weights", "fp8", "--json"),
        ("perf", "llama-3.1-8b", "--gpu", "h100", "--json"),
        ("compare", "llama-3.1-8b", "--gpus", "h100,l40s", "--json"),
        ("speculate", "llama-3.1-8b", "--gpu", "h100", "--json"),
        ("gpus", "--json"),
        ("models", "--json"),
        ("--version",),
    ],
    ids=" ".join,
)
def test_small_commands_load_nothing_heavy(args: tuple[str, ...]) -> None:
    assert not loaded_by(*args) & HEAVY


def test_a_command_loads_no_other_command() -> None:
    commands = {m for m in loaded_by("kv", "llama-3.3-70b", "--json") if m.startswith("capplan.cli.")}
    shared = {"capplan.cli.app", "capplan.cli.notes", "capplan.cli.options", "capplan.cli.render"}
    assert commands == {*shared, "capplan.cli.kv"}


def test_kv_loads_no_gpu() -> None:
    assert not {m for m in loaded_by("kv", "llama-3.3-70b", "--json") if m.startswith("capplan.hardware")}


def test_import_capplan_loads_nothing() -> None:
    code = "import sys; before = set(sys.modules); import capplan; print(*sorted(set(sys.modules) - before))"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert {m for m in run.stdout.split() if m.startswith("capplan")} == {"capplan"}


def test_every_public_name_is_there() -> None:
    import capplan

    for name in capplan.__all__:
        assert getattr(capplan, name) is not None
    with pytest.raises(AttributeError):
        capplan.no_such_name  # noqa: B018
