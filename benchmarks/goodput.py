"""How long a search of the goodput takes: 12 rates of 10,000 requests with the lengths of a trace, in CPU seconds.

Of a dense model, one with linear attention and one with latent: the loop keeps totals, so that the kind of cache costs
nothing. `capplan goodput` takes several such searches: two or three placements, and five sizes of chunks.

    python benchmarks/goodput.py [TRACE]

TRACE is the Azure 2023 conversation trace in $CAPPLAN_MEASURED_DATA, else ../shared/data beside the repository; lengths
are lognormal with its means where there is none. Target: at most 15 seconds on one core.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

from capplan.capacity.answer import Working
from capplan.capacity.engines.deployment import Deployment
from capplan.capacity.questions.perf import placed
from capplan.capacity.questions.services import colocated
from capplan.capacity.simulator import workloads
from capplan.capacity.simulator.loop import simulate
from capplan.capacity.simulator.slo import Bound, Slo, highest_rate
from capplan.capacity.simulator.traces import read_trace
from capplan.hardware.registry import gpu
from capplan.models.registry import model

REQUESTS, POINTS = 10_000, 12
DEPLOYED = (
    ("llama-3.1-70b", "a100-sxm-80", 4),
    ("kimi-linear-48b-a3b", "h100-sxm", 2),
    ("deepseek-v3", "h200-sxm", 8),
)


def main(args: list[str]) -> None:
    folder = os.environ.get("CAPPLAN_MEASURED_DATA") or Path(__file__).parents[2] / "shared" / "data"
    path = Path(args[0]) if args else Path(folder) / "traces" / "azure_llm_2023_conv.csv"
    if path.is_file():
        lengths = workloads.joint(REQUESTS, 1, read_trace(path))
    else:
        lengths = workloads.lognormal(REQUESTS, 1, isl=1250, osl=200, most=16_000)
    mix = workloads.Mix(workloads.poisson(REQUESTS, 1), *lengths)
    longest = int((mix.isl + mix.osl).max())
    slo = Slo((Bound("ttft", 0.95, 1.0), Bound("tpot", 0.95, 0.05)))
    for name, card, ranks in DEPLOYED:
        found = placed(model(name), gpu(card), Deployment(), longest, ranks, Working())
        for kind, service in (
            ("chunked, 2,048 tokens", colocated(found, longest, budget=2048)),
            ("whole prompts", colocated(found, longest, scheduler="prefill-first", chunked=False)),
        ):
            begun = time.process_time()
            rate, points = highest_rate(
                lambda rate, service=service: simulate(mix.at(rate), service),  # type: ignore[misc]
                slo,
                1.0,
                precision=1e-6,
                most=POINTS,
            )
            seconds = time.process_time() - begun
            print(
                f"{name}, {kind}: {rate:.3f} req/s inside the SLO; {len(points)} rates of {REQUESTS:,} requests in "
                f"{seconds:.1f} CPU s, {len(points) * REQUESTS / seconds:,.0f} requests a CPU second (target: 15 s)"
            )


if __name__ == "__main__":
    main(sys.argv[1:])
