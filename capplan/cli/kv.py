"""capplan kv"""

from __future__ import annotations

import typer

from capplan.cli import options as opt
from capplan.cli.render import emit


def command(
    model: opt.ModelName = None,
    model_config: opt.ModelConfig = None,
    kv: opt.KvDtype = "auto",
    context: opt.Context = None,
    tier: opt.Tier = "engine",
    json: opt.Json = False,
    csv: opt.Csv = False,
    explain: opt.Explain = False,
) -> None:
    """How many bytes of KV cache a token, and a request, costs.

    capplan kv llama-3.3-70b --context 8k,32k

    capplan kv ./config.json --kv fp8 --json
    """
    from capplan.capacity.questions.kv import kv as ask

    answer = ask(opt.one_model(model, model_config), kv=kv, contexts=opt.context_list(context), tier=tier)
    raise typer.Exit(emit(answer, as_json=json, as_csv=csv, explain=explain))
