"""capplan prefill"""

from __future__ import annotations

from typing import Annotated

import typer

from capplan.cli import options as opt
from capplan.cli.render import emit


def command(
    gpu: opt.GpuName,
    model: opt.ModelName = None,
    model_config: opt.ModelConfig = None,
    weights: opt.Weights = "auto",
    context: opt.Context = None,
    utilisation: Annotated[
        str, typer.Option("--utilisation", metavar="SHARE", help="Share of the dense peak: 50% or 0.5.")
    ] = "50%",
    tier: opt.Tier = "engine",
    json: opt.Json = False,
    csv: opt.Csv = False,
    explain: opt.Explain = False,
) -> None:
    """How long a prompt takes at the compute limit, with and without attention.

    capplan prefill llama-3.3-70b --gpu h200 --weights fp8 --context 200k

    capplan prefill qwen3-8b --gpu l40s --context 4k,32k --utilisation 60%
    """
    from capplan.capacity.questions.prefill import prefill as ask

    answer = ask(
        opt.one_model(model, model_config),
        gpu,
        weights=weights,
        contexts=opt.context_list(context),
        utilisation=opt.share("--utilisation", utilisation),
        tier=tier,
    )
    raise typer.Exit(emit(answer, as_json=json, as_csv=csv, explain=explain))
