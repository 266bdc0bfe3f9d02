"""capplan calibrate"""

from __future__ import annotations

from typing import Annotated

import typer

from capplan.cli import deploying, notes
from capplan.cli import options as opt
from capplan.cli.render import emit, only_one


def command(
    files: Annotated[
        list[str],
        typer.Argument(
            metavar="FILE...",
            help="Benchmarks: JSON of vllm bench serve, SGLang, GuideLLM, AIPerf or genai-perf, a folder of them, or a CSV.",
            show_default=False,
        ),
    ],
    gpu: opt.GpuName,
    model: Annotated[
        str, typer.Option("--model", metavar="MODEL", help="The model that was served (capplan models).")
    ],
    out: Annotated[
        str, typer.Option("--out", metavar="FILE", help="The calibration file to write.")
    ] = "calibration.json",
    weights: opt.Weights = "auto",
    kv: opt.KvDtype = "auto",
    tp: deploying.Tp = None,
    pp: deploying.Pp = None,
    dp: deploying.Dp = None,
    ep: deploying.Ep = False,
    engine: deploying.Engine = None,
    engine_version: deploying.EngineVersion = None,
    max_model_len: deploying.MaxModelLen = None,
    max_num_seqs: deploying.MaxNumSeqs = None,
    max_num_batched_tokens: deploying.MaxNumBatchedTokens = None,
    json: opt.Json = False,
    csv: Annotated[
        bool, typer.Option("--csv", help="Print every point, measured beside predicted, as CSV.")
    ] = False,
    explain: opt.Explain = False,
) -> None:
    """Fit the engine's constants to a benchmark of your own, for --calibration.

    capplan calibrate serving_benchmark.csv --model qwen3-32b --gpu h100

    capplan calibrate serving_benchmark.csv --model qwen3-32b --gpu h100 --out h100.json --json
    """
    from capplan.calibration_file import write_document
    from capplan.capacity.questions.calibrate import calibrate, noted

    only_one(json=json, csv=csv, explain=explain)
    answer, document = calibrate(
        files,
        model,
        gpu,
        deploying.deployment(
            engine=engine,
            engine_version=engine_version,
            pp=pp,
            dp=dp,
            ep=ep,
            weights=weights,
            kv=kv,
            max_model_len=max_model_len,
            max_num_seqs=max_num_seqs,
            max_num_batched_tokens=max_num_batched_tokens,
        ),
        tp=tp,
    )
    write_document(out, document)
    notes.say(f"wrote {out}; perf, compare and others take it with --calibration")
    raise typer.Exit(emit(noted(answer, out), as_json=json, as_csv=csv, explain=explain))
