"""capplan whiteboard"""

from __future__ import annotations

from typing import Annotated

import typer

from capplan.cli import options as opt
from capplan.cli.render import emit, only_one


def command(
    gpu: opt.GpuName,
    model: opt.ModelName = None,
    model_config: opt.ModelConfig = None,
    weights: opt.Weights = "auto",
    kv: opt.KvDtype = "auto",
    context: opt.Context = None,
    reserve: opt.Reserve = None,
    tier: opt.Tier = "whiteboard",
    json: opt.Json = False,
    csv: opt.Csv = False,
    explain: opt.Explain = False,
    markdown: Annotated[bool, typer.Option("--markdown", help="Print Markdown, to paste.")] = False,
    plot: opt.Plot = None,
) -> None:
    """The ten-minute capacity answer: every question of a design review, in order.

    capplan whiteboard 70b-class --gpu h200-sxm --weights fp8 --kv fp16

    capplan whiteboard ./config.json --gpu mi300x --markdown
    """
    from capplan.capacity.questions.whiteboard import whiteboard as ask

    only_one(json=json, csv=csv, explain=explain, markdown=markdown)
    answer = ask(
        opt.one_model(model, model_config),
        gpu,
        weights=weights,
        kv=kv,
        contexts=opt.context_list(context),
        reserve=opt.size("--reserve", reserve),
        tier=tier,
    )
    if markdown:
        if plot is not None:
            from capplan.cli.plots import save

            save(answer, plot)
        from capplan.report import to_markdown

        print(to_markdown(answer.report()))
        raise typer.Exit(0 if answer.fits else 1)
    raise typer.Exit(emit(answer, as_json=json, as_csv=csv, explain=explain, plot=plot))
