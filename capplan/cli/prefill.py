"""capplan prefill"""

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
    weights: opt.Weights = "auto",
    kv: opt.KvDtype = "auto",
    context: opt.Context = None,
    utilisation: Annotated[
        str | None,
        typer.Option(
            "--utilisation",
            metavar="SHARE",
            help="Time the work alone, at a share of the dense peak: 50% or 0.5; the whiteboard takes 50%.",
            show_default=False,
        ),
    ] = None,
    tier: opt.Tier = "engine",
    tp: deploying.Tp = None,
    pp: deploying.Pp = None,
    dp: deploying.Dp = None,
    ep: deploying.Ep = False,
    engine: deploying.Engine = None,
    engine_version: deploying.EngineVersion = None,
    max_num_batched_tokens: deploying.MaxNumBatchedTokens = None,
    calibration: deploying.CalibrationFile = None,
    json: opt.Json = False,
    csv: opt.Csv = False,
    explain: opt.Explain = False,
    plot: opt.Plot = None,
) -> None:
    """How long a prompt takes by itself: its parts, and what bounds it.

    capplan prefill llama-3.3-70b --gpu h200 --weights fp8 --context 8k,100k

    capplan prefill qwen3-8b --gpu l40s --context 1k..32k --plot prompt.svg

    The essay's arithmetic, at the compute limit on one GPU:

    capplan prefill llama-3.3-70b --gpu h200 --weights fp8 --tier whiteboard
    """
    from capplan.capacity.questions.prefill import prefill as ask

    given = (pp, dp, engine, engine_version, max_num_batched_tokens)
    served = ep or kv.strip().lower() != "auto" or any(each is not None for each in given)
    answer = ask(
        opt.one_model(model, model_config),
        gpu,
        weights=weights,
        contexts=opt.context_list(context),
        utilisation=None if utilisation is None else opt.share("--utilisation", utilisation),
        tier=tier,
        deployment=deploying.deployment(
            engine=engine,
            engine_version=engine_version,
            pp=pp,
            dp=dp,
            ep=ep,
            kv=kv,
            max_num_batched_tokens=max_num_batched_tokens,
        )
        if served
        else None,
        tp=tp,
        calibration=deploying.calibration(calibration),
    )
    raise typer.Exit(emit(answer, as_json=json, as_csv=csv, explain=explain, plot=plot))
