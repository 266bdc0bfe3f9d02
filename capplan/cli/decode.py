"""capplan decode"""

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
    batch: Annotated[
        list[str] | None,
        typer.Option(
            "--batch",
            metavar="COUNT",
            help="Sequences of a pass: a list 1,8,64, or doubling 1..512; may be repeated.",
            show_default="1..512",
        ),
    ] = None,
    context: Annotated[
        list[str] | None,
        typer.Option(
            "--context",
            metavar="TOKENS",
            help="Tokens that each has: 8k, 8Ki, a list 8k,32k, or doubling 1k..1M; may be repeated.",
            show_default="8k",
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
    csv: Annotated[bool, typer.Option("--csv", help="Print one row a context and batch as CSV.")] = False,
    explain: opt.Explain = False,
    plot: opt.Plot = None,
) -> None:
    """Time between tokens by batch: its parts, its limit, the floor below it.

    capplan decode llama-3.3-70b --gpu h200 --weights fp8 --context 8k

    capplan decode qwen3-32b --gpu h100 --batch 1..64 --context 4k,32k --plot step.svg
    """
    from capplan.capacity.questions.decode import decode as ask

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
        batches=opt.batches(batch),
        contexts=opt.context_list(context),
        tp=tp,
        calibration=deploying.calibration(calibration),
    )
    raise typer.Exit(emit(answer, as_json=json, as_csv=csv, explain=explain, plot=plot))
