"""How fast predictions of time are made: a benchmark row, and a sweep of batches, contexts and ranks.

    python benchmarks/step_time.py

CPU time. Targets: a millisecond a row of examples/throughput.csv with its model, its memory and its engine read for the
first time in the process, and a second for 10,000 points of (batch, context, tensor-parallel size).
"""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import numpy as np

from capplan.capacity.engines.deployment import Deployment
from capplan.capacity.questions.deployed import deployed
from capplan.capacity.step_time.forward import Step
from capplan.capacity.step_time.passes import pass_time
from capplan.hardware import registry
from capplan.models.registry import model

ROWS = Path(__file__).parent.parent / "examples/throughput.csv"


def sweep() -> float:
    """Seconds for 10,000 points; the four deployments are made outside of it."""
    ranks = [
        deployed(
            model("llama-3.3-70b"),
            registry.gpu("h200-sxm"),
            Deployment(tensor_parallel_size=tp, quantization="fp8", max_model_len=32_768),
        )
        for tp in (1, 2, 4, 8)
    ]
    batch, context = (axis.ravel() for axis in np.meshgrid(np.arange(1.0, 51), np.linspace(128, 32_768, 50)))
    begun = time.process_time()
    for at in ranks:
        pass_time(at.plan, at.chip, at.engine, Step(decode=batch, context=context))
    return time.process_time() - begun


def rows(path: Path) -> tuple[int, float]:
    """Rows of a file, and CPU seconds for all in a process of its own, less those of starting one."""
    program = (
        "import sys, time; from capplan.capacity.questions.validate_performance import validate_performance; "
        "begun = time.process_time(); found = validate_performance(sys.argv[1]); "
        "print(found.row_count, time.process_time() - begun)"
    )
    run = subprocess.run(
        [sys.executable, "-c", program, str(path)], capture_output=True, text=True, check=True
    )
    count, seconds = run.stdout.split()
    return int(count), float(seconds)


def main() -> None:
    for path in sys.argv[1:] or [str(ROWS)]:
        count, seconds = rows(Path(path))
        print(f"{path}: {count:,} rows, {1e3 * seconds / count:.2f} ms a row")
    print(f"10,000 points of a sweep: {1e3 * sweep():.0f} ms")


if __name__ == "__main__":
    main()
