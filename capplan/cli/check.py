"""capplan check"""

from __future__ import annotations

import sys
from typing import Annotated, Any

import typer

from capplan.cli import options as opt
from capplan.cli.render import emit
from capplan.errors import InputError

_GROUP = "What the log does not say; given, it wins over what the log says"


def _said(name: str, metavar: str, text: str) -> Any:
    return typer.Option(name, metavar=metavar, help=text, rich_help_panel=_GROUP)


def command(
    log: Annotated[
        str, typer.Argument(metavar="LOG", help="A start-up log; - is stdin.", show_default=False)
    ],
    model: Annotated[str | None, _said("--model", "MODEL", "The model.")] = None,
    gpu: Annotated[str | None, _said("--gpu", "GPU", "The accelerator (capplan gpus).")] = None,
    engine: Annotated[str | None, _said("--engine", "ENGINE", "vllm, sglang or tensorrt-llm.")] = None,
    engine_version: Annotated[str | None, _said("--engine-version", "VERSION", "Such as 0.19.0.")] = None,
    tp: Annotated[int | None, _said("--tp", "RANKS", "Tensor-parallel size.")] = None,
    pp: Annotated[int | None, _said("--pp", "STAGES", "Pipeline-parallel size.")] = None,
    dp: Annotated[int | None, _said("--dp", "REPLICAS", "Data-parallel size.")] = None,
    ep: Annotated[bool, typer.Option("--ep", help="Whole experts on each rank (expert parallel).")] = False,
    max_model_len: Annotated[str | None, _said("--max-model-len", "TOKENS", "The longest request.")] = None,
    max_num_seqs: Annotated[int | None, _said("--max-num-seqs", "COUNT", "Requests in a batch.")] = None,
    max_num_batched_tokens: Annotated[
        str | None, _said("--max-num-batched-tokens", "TOKENS", "Tokens in a batch.")
    ] = None,
    block_size: Annotated[int | None, _said("--block-size", "TOKENS", "Tokens of a block.")] = None,
    kv: Annotated[str | None, _said("--kv", "DTYPE", "Precision of the cache.")] = None,
    gpu_memory_utilization: Annotated[
        float | None, _said("--gpu-memory-utilization", "SHARE", "Of the memory.")
    ] = None,
    enforce_eager: Annotated[
        bool | None, typer.Option("--enforce-eager", help="It captured no CUDA graphs.", show_default=False)
    ] = None,
    spec_tokens: Annotated[
        int | None,
        _said("--spec-tokens", "COUNT", "Tokens speculated at a time, by the model's draft layers."),
    ] = None,
    json: opt.Json = False,
    csv: Annotated[bool, typer.Option("--csv", help="Print the lines as CSV.")] = False,
) -> None:
    """What an engine's start-up log says beside what was predicted, line by line.

    capplan check vllm-startup.log

    capplan check vllm-startup.log --gpu h100 --max-model-len 8192 --json

    Of a container: docker logs vllm 2>&1 | capplan check -

    Exit codes: 0 read and consistent, 1 the start failed or a difference is unexplained, 2 nothing was recognised.
    """
    from capplan.capacity.questions.check import check

    given = {
        "version": engine_version,
        "tensor_parallel_size": tp,
        "pipeline_parallel_size": pp,
        "data_parallel_size": dp,
        "enable_expert_parallel": ep or None,
        "max_model_len": opt.count("--max-model-len", max_model_len),
        "max_num_seqs": max_num_seqs,
        "max_num_batched_tokens": opt.count("--max-num-batched-tokens", max_num_batched_tokens),
        "block_size": block_size,
        "kv_cache_dtype": kv,
        "gpu_memory_utilization": gpu_memory_utilization,
        "enforce_eager": enforce_eager,
        "num_speculative_tokens": spec_tokens,
        "speculative_method": "mtp" if spec_tokens else None,
    }
    if log == "-" and sys.stdin is None:
        raise InputError("there is no stdin to read the log from")
    answer = check(
        sys.stdin.buffer if log == "-" else log,
        model=model,
        gpu=gpu,
        engine=engine,
        flags={name: value for name, value in given.items() if value is not None},
    )
    raise typer.Exit(emit(answer, as_json=json, as_csv=csv))
