"""capplan ops"""

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
    batch: Annotated[int, typer.Option("--batch", metavar="COUNT", help="Sequences of the pass.")] = 1,
    context: Annotated[
        str | None,
        typer.Option(
            "--context",
            metavar="TOKENS",
            help="Tokens that each has in the cache: 8k or 8Ki; 8k, or none with --prompt, when not given.",
            show_default=False,
        ),
    ] = None,
    prompt: Annotated[
        str | None,
        typer.Option(
            "--prompt",
            metavar="TOKENS",
            help="A prefill pass, of so many tokens of each sequence; a decode pass when not given.",
            show_default=False,
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
    csv: Annotated[bool, typer.Option("--csv", help="Print one row an operation as CSV.")] = False,
    explain: opt.Explain = False,
) -> None:
    """The operations of one pass: work, bytes, time and limit of each.

    capplan ops llama-3.3-70b --gpu h200 --weights fp8 --batch 32 --context 8k

    capplan ops qwen3-30b-a3b --gpu h100 --tp 2 --ep --prompt 4k
    """
    from capplan.capacity.questions.ops import ops as ask

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
        batch=batch,
        context=opt.count("--context", context),
        prompt=opt.count("--prompt", prompt),
        tp=tp,
        calibration=deploying.calibration(calibration),
    )
    raise typer.Exit(emit(answer, as_json=json, as_csv=csv, explain=explain))
