"""capplan perf"""

from __future__ import annotations

from typing import Annotated

import typer

from capplan.cli import deploying
from capplan.cli import options as opt
from capplan.cli.render import emit


def command(
    gpu: opt.GpuName,
    model: opt.ModelName = None,
    model_config: opt.ModelConfig = None,
    isl: deploying.Isl = "1024",
    osl: deploying.Osl = "1024",
    concurrency: Annotated[
        list[str] | None,
        typer.Option(
            "--concurrency",
            metavar="REQUESTS",
            help="Requests under way: a list 1,8,64, or doubling 1..512; may be repeated.",
            show_default="1..512",
        ),
    ] = None,
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
    calibration: deploying.CalibrationFile = None,
    json: opt.Json = False,
    csv: Annotated[bool, typer.Option("--csv", help="Print one row a concurrency as CSV.")] = False,
    explain: opt.Explain = False,
    plot: opt.Plot = None,
) -> None:
    """TTFT, TPOT and throughput of a deployment, by the requests under way.

    capplan perf llama-3.3-70b --gpu h200 --weights fp8 --isl 1Ki --osl 1Ki --concurrency 1..256

    capplan perf qwen3-32b --gpu b200 --tp 2 --engine sglang --plot curve.svg
    """
    from capplan.capacity.questions.perf import CONCURRENCY
    from capplan.capacity.questions.perf import perf as ask

    answer = ask(
        opt.one_model(model, model_config),
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
        isl=deploying.tokens("--isl", isl),
        osl=deploying.tokens("--osl", osl),
        concurrency=deploying.loads(concurrency) or CONCURRENCY,
        tp=tp,
        calibration=deploying.calibration(calibration),
    )
    raise typer.Exit(emit(answer, as_json=json, as_csv=csv, explain=explain, plot=plot))
