"""capplan kv"""

from __future__ import annotations

from typing import Annotated

import typer

from capplan.capacity.answer import Answer
from capplan.cli import options as opt
from capplan.cli.render import emit


def command(
    models: opt.ModelNames = None,
    model_config: opt.ModelConfig = None,
    kv: opt.KvDtype = "auto",
    context: opt.Context = None,
    tier: opt.Tier = "engine",
    tp: Annotated[
        int, typer.Option("--tp", metavar="RANKS", help="Tensor-parallel ranks: what each of them holds.")
    ] = 1,
    json: opt.Json = False,
    csv: opt.Csv = False,
    explain: opt.Explain = False,
    plot: opt.Plot = None,
) -> None:
    """Bytes of KV cache that a token and a request cost; models side by side.

    capplan kv llama-3.3-70b --context 8k,32k

    capplan kv llama-3.3-70b qwen3-32b phi-4 --context 1k..128k --plot cache.svg
    """
    names = [*(models or ()), *([opt.as_path(model_config)] if model_config is not None else ())]
    contexts = opt.context_list(context)
    answer: Answer
    if len(names) > 1:
        from capplan.capacity.questions.kv_side_by_side import kv_side_by_side

        answer = kv_side_by_side(names, kv=kv, contexts=contexts, tier=tier, tp=tp)
    else:
        from capplan.capacity.questions.kv import kv as ask

        answer = ask(
            opt.one_model(names[0] if names else None, None), kv=kv, contexts=contexts, tier=tier, tp=tp
        )
    raise typer.Exit(emit(answer, as_json=json, as_csv=csv, explain=explain, plot=plot))
