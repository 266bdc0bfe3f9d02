"""How fast the simulator is: requests a second of CPU time, at light load and near saturation, and its memory.

    python benchmarks/simulator.py [TRACE]

Llama 3.3 70B on four A100 80GB under vLLM; lengths drawn from a trace (Azure 2023 conversation by default, from
$CAPPLAN_MEASURED_DATA or ../shared/data), arrivals Poisson at 1 request/second and at 80% of what the service can
serve. Each figure is the median of five runs in this process, with the least and the most; the table of step times is
made before. The million requests run in a process of their own, whose peak memory is told. Targets: 10,000 requests a
CPU second at light load and 4,000 near saturation, 400 MB for a million, at most 2.2 times as long for twice as many.
"""

from __future__ import annotations

import os
import resource
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from statistics import median

from capplan.capacity.engines.deployment import Deployment
from capplan.capacity.questions.asked import as_gpu, as_model
from capplan.capacity.questions.deployed import deployed
from capplan.capacity.questions.services import colocated
from capplan.capacity.simulator.loop import simulate
from capplan.capacity.simulator.requests import Service
from capplan.capacity.simulator.stepwise import simulate_stepwise
from capplan.capacity.simulator.traces import Trace, read_trace
from capplan.capacity.simulator.workloads import Mix, joint, poisson

ROOT = Path(__file__).parent.parent
DATA = Path(os.environ.get("CAPPLAN_MEASURED_DATA") or ROOT.parent / "shared" / "data")
LIGHT = 1.0  # requests a second
RUNS = 5


def main() -> None:
    path = Path(sys.argv[1]) if len(sys.argv) > 1 else DATA / "traces" / "azure_llm_2023_conv.csv"
    trace = read_trace(path)
    begun = time.process_time()
    service = made(trace)
    print(f"table of step times: {1e3 * (time.process_time() - begun):.0f} ms")
    most = saturation(service, trace)
    print(f"saturation: {most:.2f} requests a second\n")
    print(f"{'case':<26} {'requests':>9} {'requests per CPU second':>34} {'turns/request':>13} {'passes':>9}")
    for name, rate in (("light load", LIGHT), ("80% of saturation", 0.8 * most)):
        times = {}
        for count in (10_000, 20_000):
            work = mix(trace, count).at(rate)
            found = simulate(work, service)
            spans = [timed(lambda work=work: simulate(work, service)) for _ in range(RUNS)]
            times[count] = median(spans)
            speeds = f"{count / median(spans):,.0f} ({count / max(spans):,.0f} - {count / min(spans):,.0f})"
            totals = found.totals
            print(f"{name:<26} {count:>9,} {speeds:>34} {totals.jumps / count:>13.2f} {totals.passes:>9,}")
        print(f"{'  twice the requests take':<26} {times[20_000] / times[10_000]:.2f} times as long")
        work = mix(trace, 500).at(rate)
        for label, slow in (
            ("  pass by pass", lambda work=work: simulate(work, service, jumps=False)),
            ("  each sequence, each pass", lambda work=work: simulate_stepwise(work, service)),
        ):
            print(f"{label:<26} {500:>9,} {500 / timed(slow):>34,.0f}")
    print(f"\nlight load, 1,000,000 requests in a process of its own: {million(path)}")


def made(trace: Trace) -> Service:
    flags = Deployment(tensor_parallel_size=4)
    at = deployed(as_model("llama-3.3-70b"), as_gpu("a100-sxm-80"), flags)
    return replace(colocated(at, int((trace.isl + trace.osl).max())), max_model_len=None)


def mix(trace: Trace, count: int) -> Mix:
    return Mix(poisson(count, 1), *joint(count, 1, trace))


def saturation(service: Service, trace: Trace) -> float:
    """What it serves when all requests are there at once [request/second]."""
    found = simulate(mix(trace, 5000).at(1e6), service)
    return 5000 / found.totals.seconds


def timed(run: Callable[[], object]) -> float:
    begun = time.process_time()
    run()
    return time.process_time() - begun


def million(path: Path) -> str:
    done = subprocess.run(
        [sys.executable, __file__, "--million", str(path)],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout.strip()


def run_million(path: str) -> None:
    trace = read_trace(path)
    service, work = made(trace), mix(trace, 1_000_000).at(LIGHT)
    span = timed(lambda: simulate(work, service))
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(f"{span:.1f} s of CPU, {1e6 / span:,.0f} a second, peak {peak:.0f} MB")


if __name__ == "__main__":
    if sys.argv[1:2] == ["--million"]:
        run_million(sys.argv[2])
    else:
        main()
