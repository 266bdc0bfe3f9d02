"""capplan compare"""

from __future__ import annotations

from typing import Annotated

import typer

from capplan.cli import deploying
from capplan.cli import options as opt
from capplan.cli.render import emit


def command(
    gpus: Annotated[
        list[str],
        typer.Option(
            "--gpus",
            metavar="GPU,...",
            help="Accelerators (capplan gpus); may be repeated.",
            show_default=False,
        ),
    ],
    model: opt.ModelName = None,
    model_config: opt.ModelConfig = None,
    isl: deploying.Isl = "1024",
    osl: deploying.Osl = "1024",
    concurrency: Annotated[
        str, typer.Option("--concurrency", metavar="REQUESTS", help="Requests under way.")
    ] = "64",
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
    calibration: Annotated[
        list[str] | None,
        typer.Option(
            "--calibration",
            metavar="FILE",
            help="A calibration file (calibrate, probe run) of one of the GPUs; may be repeated.",
            show_default=False,
        ),
    ] = None,
    json: opt.Json = False,
    csv: Annotated[bool, typer.Option("--csv", help="Print one row a GPU as CSV.")] = False,
    explain: opt.Explain = False,
    plot: opt.Plot = None,
) -> None:
    """GPUs side by side at one load: latency, throughput, tokens per dollar.

    capplan compare llama-3.1-8b --gpus h100-sxm,h200-sxm,b200,mi300x,l40s

    capplan compare llama-3.3-70b --gpus h100,h200,l4 --weights fp8 --isl 4Ki --osl 512 --concurrency 32
    """
    from capplan.capacity.questions.compare import compare as ask

    (load,) = deploying.loads([concurrency], most=1)
    answer = ask(
        opt.one_model(model, model_config),
        deploying.names("--gpus", gpus),
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
        concurrency=load,
        tp=tp,
        calibrations=deploying.calibrations(calibration),
    )
    raise typer.Exit(emit(answer, as_json=json, as_csv=csv, explain=explain, plot=plot))
