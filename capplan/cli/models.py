"""capplan models"""

from __future__ import annotations

from typing import Annotated

import typer

from capplan.capacity.answer import Answer
from capplan.cli import options as opt
from capplan.cli.render import emit
from capplan.errors import InputError


def command(
    model: opt.ModelName = None,
    model_config: opt.ModelConfig = None,
    containing: Annotated[
        str, typer.Option("--filter", metavar="TEXT", help="Part of an id, name, family or alias.")
    ] = "",
    json: opt.Json = False,
    csv: opt.Csv = False,
) -> None:
    """The models on record, or everything known of one, with its source.

    capplan models --filter qwen

    capplan models llama-3.3-70b
    """
    from capplan.capacity.questions.models import model_facts, models

    answer: Answer
    if model is None and model_config is None:
        answer = models(containing=containing)
    elif containing:
        raise InputError("--filter does not go with one model")
    else:
        answer = model_facts(opt.one_model(model, model_config))
    raise typer.Exit(emit(answer, as_json=json, as_csv=csv))
