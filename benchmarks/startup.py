"""What `capplan kv llama-3.3-70b --json` costs to start, over `python -c pass`.

    python benchmarks/startup.py

Counts instructions with valgrind's callgrind where it is installed; else the median CPU time of 15 runs each,
in turn. Bytecode is compiled first, as an installed package has it.
"""

from __future__ import annotations

import os
import re
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parent.parent
COMMANDS = {
    "python -c pass": ["-c", "pass"],
    "capplan kv": ["-m", "capplan", "kv", "llama-3.3-70b", "--json"],
    "capplan fit": ["-m", "capplan", "fit", "llama-3.3-70b", "--gpu", "h200", "--weights", "fp8", "--json"],
}
ENVIRONMENT = {**os.environ, "PYTHONHASHSEED": "0"}


def instructions(args: list[str]) -> float:
    with tempfile.TemporaryDirectory() as folder:
        run = subprocess.run(
            ["valgrind", "--tool=callgrind", f"--callgrind-out-file={folder}/out", sys.executable, *args],
            capture_output=True,
            text=True,
            check=True,
            cwd=ROOT,
            env=ENVIRONMENT,
        )
    found = re.search(r"Collected : (\d+)", run.stderr)
    assert found, run.stderr
    return float(found[1])


def cpu_time(args: list[str]) -> float:
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([sys.executable, *args], check=True, cwd=ROOT, env=ENVIRONMENT, stdout=subprocess.DEVNULL)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def main() -> None:
    for args in COMMANDS.values():  # writes the bytecode
        subprocess.run([sys.executable, *args], check=True, cwd=ROOT, stdout=subprocess.DEVNULL)
    if shutil.which("valgrind"):
        unit, cost = "M instructions", {name: instructions(args) / 1e6 for name, args in COMMANDS.items()}
    else:
        runs: dict[str, list[float]] = {name: [] for name in COMMANDS}
        for _ in range(15):
            for name, args in COMMANDS.items():
                runs[name].append(cpu_time(args))
        unit, cost = "ms of CPU", {name: 1e3 * statistics.median(times) for name, times in runs.items()}
    bare = cost["python -c pass"]
    for name, value in cost.items():
        print(f"{name:<16} {value:8.1f} {unit}   {value / bare:5.2f} x")


if __name__ == "__main__":
    main()
