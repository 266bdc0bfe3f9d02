"""capplan fit"""

from __future__ import annotations

import typer

from capplan.cli import options as opt
from capplan.cli.render import emit


def command(
    gpu: opt.GpuName,
    model: opt.ModelName = None,
    model_config: opt.ModelConfig = None,
    weights: opt.Weights = "auto",
    kv: opt.KvDtype = "auto",
    context: opt.Context = None,
    reserve: opt.Reserve = None,
    tier: opt.Tier = "engine",
    json: opt.Json = False,
    csv: opt.Csv = False,
    explain: opt.Explain = False,
    plot: opt.Plot = None,
) -> None:
    """What is left of a GPU's memory after the weights, and how many requests fit.

    capplan fit llama-3.3-70b --gpu h200 --weights fp8 --context 8k,32k

    capplan fit qwen3-32b --gpu l40s --weights fp8 --kv fp8 --plot budget.svg
    """
    from capplan.capacity.questions.fit import fit as ask

    answer = ask(
        opt.one_model(model, model_config),
        gpu,
        weights=weights,
        kv=kv,
        contexts=opt.context_list(context),
        reserve=opt.size("--reserve", reserve),
        tier=tier,
    )
    raise typer.Exit(emit(answer, as_json=json, as_csv=csv, explain=explain, plot=plot))
