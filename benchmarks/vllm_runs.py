"""Two measured runs of vLLM against the simulator: the model, the GPU, the engine's flags and the requests are all it gets.

    python benchmarks/vllm_runs.py [FOLDER]

FOLDER has NAME.meta.json (flags) and NAME.requests.jsonl (a row a request: tokens, when it was queued, scheduled, had
its first token and its last); $CAPPLAN_MEASURED_DATA/vllm_runs, or ../shared/data/vllm_runs, when not given. The runs
are of casys-kaist/LLMServingSim at 5daddb2, bench/examples (MIT): vLLM 0.19.0 on RTX PRO 6000 Blackwell, 300 ShareGPT
requests that come at 10 a second.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import numpy as np

from capplan.capacity.engines.deployment import Deployment
from capplan.capacity.questions.asked import as_gpu, as_model
from capplan.capacity.questions.deployed import deployed
from capplan.capacity.questions.services import colocated
from capplan.capacity.simulator.loop import simulate
from capplan.capacity.simulator.metrics import tpot, ttft
from capplan.capacity.simulator.requests import Floats, Outcome, Workload

GPU = "rtx-pro-6000-server"
MODELS = {  # of the runs' checkpoints, by their names here
    "meta-llama/Llama-3.1-8B": "llama-3.1-8b",
    "Qwen/Qwen3-30B-A3B-Instruct-2507": "qwen3-30b-a3b",
}
FIGURES = (("TTFT", "mean"), ("TTFT", "p50"), ("TTFT", "p99"), ("TPOT", "mean"), ("TPOT", "p99"))


def main() -> None:
    for meta in sorted(folder().glob("*.meta.json")):
        predicted, found = both(meta)
        print(
            f"{meta.name.removesuffix('.meta.json')}\n  {'':<10} {'measured':>10} {'simulated':>10} {'off':>7}"
        )
        for name, which in FIGURES:
            real, ours = figure(found[name], which), figure(predicted[name], which)
            print(f"  {name} {which:<5} {1e3 * real:>8.1f} ms {1e3 * ours:>7.1f} ms {ours / real - 1:>+7.1%}")


def folder() -> Path:
    if len(sys.argv) > 1:
        return Path(sys.argv[1])
    given = os.environ.get("CAPPLAN_MEASURED_DATA")
    return (Path(given) if given else Path(__file__).parents[2] / "shared" / "data") / "vllm_runs"


def figure(times: Floats, which: str) -> float:
    return float(times.mean() if which == "mean" else np.percentile(times, int(which[1:])))


def both(meta: Path) -> tuple[dict[str, Floats], dict[str, Floats]]:
    """TTFT and TPOT of every request [second]: simulated, and measured."""
    lines = meta.with_name(meta.name.replace(".meta.json", ".requests.jsonl")).read_text().splitlines()
    rows = sorted((json.loads(line) for line in lines if line.strip()), key=lambda row: row["queued_ts"])
    column = {key: np.array([row[key] for row in rows]) for key in rows[0] if key != "request_id"}
    queued, first, last = (column[key] for key in ("queued_ts", "first_token_ts", "last_token_ts"))
    later = column["output_toks"] - 1
    with np.errstate(divide="ignore", invalid="ignore"):
        per_token = (last - first) / later
    workload = Workload(queued - queued[0], column["input_toks"], column["output_toks"])
    outcome = simulated(json.loads(meta.read_text()), workload)
    kept = later > 0
    return (
        {"TTFT": ttft(outcome), "TPOT": tpot(outcome)[kept]},
        {"TTFT": first - queued, "TPOT": per_token[kept]},
    )


def simulated(meta: dict[str, Any], workload: Workload) -> Outcome:
    """The run's engine under the run's requests."""
    flags = meta["engine_kwargs"]
    at = deployed(
        as_model(MODELS[meta["model"]]),
        as_gpu(GPU),
        Deployment(
            version=meta["vllm_version"],
            tensor_parallel_size=flags["tensor_parallel_size"],
            data_parallel_size=flags["data_parallel_size"],
            enable_expert_parallel=flags["enable_expert_parallel"],
            max_num_seqs=flags["max_num_seqs"],
            max_num_batched_tokens=flags["max_num_batched_tokens"],
        ),
    )
    return simulate(workload, colocated(at, int((workload.isl + workload.osl).max())))


if __name__ == "__main__":
    main()
