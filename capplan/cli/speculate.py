"""capplan speculate"""

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
    draft: Annotated[
        str | None,
        typer.Option(
            "--draft", metavar="MODEL", help="The draft model, on the same ranks.", show_default=False
        ),
    ] = None,
    draft_cost: Annotated[
        str | None,
        typer.Option(
            "--draft-cost",
            metavar="SHARE",
            help="Instead: time of a draft's pass over the target's; 0 for n-grams.",
            show_default="0.05",
        ),
    ] = None,
    acceptance: Annotated[
        list[str] | None,
        typer.Option(
            "--acceptance",
            metavar="SHARE",
            help="Drafted tokens that hold: a list 0.6,0.8; may be repeated.",
            show_default="0.5 to 0.9",
        ),
    ] = None,
    speculated: Annotated[
        list[str] | None,
        typer.Option(
            "--speculated",
            metavar="TOKENS",
            help="Drafted tokens: the best of a list 2,4,8; may be repeated.",
            show_default="1 to 8",
        ),
    ] = None,
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
        str, typer.Option("--context", metavar="TOKENS", help="Tokens that each of them has.")
    ] = "4000",
    weights: opt.Weights = "auto",
    kv: opt.KvDtype = "auto",
    tp: deploying.Tp = None,
    engine: deploying.Engine = None,
    engine_version: deploying.EngineVersion = None,
    json: opt.Json = False,
    csv: Annotated[bool, typer.Option("--csv", help="Print one row a batch and acceptance as CSV.")] = False,
    explain: opt.Explain = False,
    plot: opt.Plot = None,
) -> None:
    """What a draft gains, by batch and acceptance, and where it turns to a loss.

    capplan speculate llama-3.3-70b --gpu h200 --tp 4 --draft llama-3.2-1b

    capplan speculate qwen3-32b --gpu h100 --draft-cost 0 --acceptance 0.4,0.6 --plot gain.svg
    """
    from capplan.capacity.questions import speculate as question

    answer = question.speculate(
        opt.one_model(model, model_config),
        gpu,
        deploying.deployment(engine=engine, engine_version=engine_version, weights=weights, kv=kv),
        draft=draft,
        draft_cost=None if draft_cost is None else opt.share("--draft-cost", draft_cost),
        acceptances=[opt.share("--acceptance", each) for text in acceptance or () for each in text.split(",")]
        or question.ACCEPTANCES,
        speculated=opt.whole("--speculated", speculated, "1..8") or question.SPECULATED,
        batches=opt.batches(batch) or question.BATCHES,
        context=deploying.tokens("--context", context),
        tp=tp,
    )
    raise typer.Exit(emit(answer, as_json=json, as_csv=csv, explain=explain, plot=plot))
