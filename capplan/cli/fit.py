"""capplan fit"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from capplan.cli import deploying, notes
from capplan.cli import options as opt
from capplan.cli.render import emit, only_one
from capplan.errors import ExitCode, InputError, UnknownNameError

if TYPE_CHECKING:
    from capplan.capacity.engines.deployment import Deployment

_GROUP = "With an engine: what it will do with the memory"


def _flag(name: str, metavar: str, text: str) -> Any:
    return typer.Option(name, metavar=metavar, help=text, rich_help_panel=_GROUP)


def command(
    gpu: opt.GpuName,
    model: opt.ModelName = None,
    model_config: opt.ModelConfig = None,
    weights: opt.Weights = "auto",
    kv: opt.KvDtype = "auto",
    context: opt.Context = None,
    reserve: opt.Reserve = None,
    tier: opt.Tier = "engine",
    engine: Annotated[str | None, _flag("--engine", "ENGINE", "vllm, sglang or tensorrt-llm.")] = None,
    engine_version: Annotated[
        str | None,
        _flag("--engine-version", "VERSION", "Such as 0.19.0; the newest on record when not given."),
    ] = None,
    tp: Annotated[int | None, _flag("--tp", "RANKS", "Tensor-parallel size.")] = None,
    pp: Annotated[int | None, _flag("--pp", "STAGES", "Pipeline-parallel size.")] = None,
    dp: Annotated[int | None, _flag("--dp", "REPLICAS", "Data-parallel size.")] = None,
    ep: Annotated[bool, typer.Option("--ep", help="Whole experts on each rank (expert parallel).")] = False,
    max_model_len: Annotated[
        str | None, _flag("--max-model-len", "TOKENS", "The longest request; the model's own when not given.")
    ] = None,
    max_num_seqs: Annotated[int | None, _flag("--max-num-seqs", "COUNT", "Requests in a batch.")] = None,
    max_num_batched_tokens: Annotated[
        str | None, _flag("--max-num-batched-tokens", "TOKENS", "Tokens in a batch.")
    ] = None,
    block_size: Annotated[int | None, _flag("--block-size", "TOKENS", "Tokens of a block.")] = None,
    gpu_memory_utilization: Annotated[
        float | None,
        _flag(
            "--gpu-memory-utilization",
            "SHARE",
            "Of the memory (SGLang: mem-fraction-static; TensorRT-LLM: of what is free after load).",
        ),
    ] = None,
    enforce_eager: Annotated[
        bool | None, typer.Option("--enforce-eager", help="Capture no CUDA graphs.", show_default=False)
    ] = None,
    flashinfer: Annotated[
        bool | None,
        typer.Option(
            "--flashinfer/--no-flashinfer",
            help="FlashInfer's package is there: vllm 0.9 to 0.11.0 sample by it, and their wheels do not bring it.",
            show_default=False,
            rich_help_panel=_GROUP,
        ),
    ] = None,
    tables_on_host: Annotated[
        bool | None,
        typer.Option(
            "--tables-on-host/--tables-on-gpu",
            help="Where tables of n-grams lie (DeepSeek V4.1, Qwen4): in host memory under vLLM, unless it is told.",
            show_default=False,
            rich_help_panel=_GROUP,
        ),
    ] = None,
    spec_tokens: Annotated[
        int | None,
        _flag("--spec-tokens", "COUNT", "Tokens speculated at a time, by the model's draft layers."),
    ] = None,
    draft: Annotated[
        str | None,
        _flag("--draft", "DRAFTER", "A draft model on record, such as z-lab/Qwen3.6-35B-A3B-DFlash."),
    ] = None,
    command_for: Annotated[
        str | None,
        _flag("--emit", "ENGINE", "Print the command line that serves it so: vllm, sglang or trtllm."),
    ] = None,
    calibration: Annotated[
        list[str] | None,
        typer.Option(
            "--calibration",
            metavar="FILE",
            help="A file of capplan probe run: the memory that it saw.",
            show_default=False,
        ),
    ] = None,
    json: opt.Json = False,
    csv: opt.Csv = False,
    explain: opt.Explain = False,
    plot: opt.Plot = None,
) -> None:
    """What is left of a GPU's memory after the weights, and how many requests fit.

    capplan fit llama-3.3-70b --gpu h200 --weights fp8 --context 8k,32k

    capplan fit qwen3-32b --gpu l40s --weights fp8 --kv fp8 --plot budget.svg

    With an engine or one of its flags: its budget line by line, what its log will say, whether it starts.

    capplan fit llama-3.1-8b --gpu h100 --engine vllm --engine-version 0.19.0 --max-model-len 8Ki

    capplan fit qwen3-32b --gpu h100 --tp 2 --max-model-len 32Ki --emit sglang
    """
    lengths = {
        "max_model_len": opt.count("--max-model-len", max_model_len),
        "max_num_batched_tokens": opt.count("--max-num-batched-tokens", max_num_batched_tokens),
    }
    given = {
        "engine": _engine(engine) if engine else None,
        "version": engine_version,
        "tensor_parallel_size": tp,
        "pipeline_parallel_size": pp,
        "data_parallel_size": dp,
        "enable_expert_parallel": ep or None,
        "max_num_seqs": max_num_seqs,
        "block_size": block_size,
        "gpu_memory_utilization": gpu_memory_utilization,
        "enforce_eager": enforce_eager,
        "flashinfer": flashinfer,
        "tables_on_host": tables_on_host,
        "num_speculative_tokens": spec_tokens,
        "draft_model": draft,
        **lengths,
    }
    flags = {name: value for name, value in given.items() if value is not None}
    asked = opt.one_model(model, model_config)
    if command_for is not None:
        only_one(json=json, csv=csv, explain=explain, emit=True)
        if flags.setdefault("engine", _engine(command_for)) != _engine(command_for):
            raise InputError(f"--emit {command_for} and --engine {engine} are two engines; plan and emit one")
    if flags:
        from capplan.capacity.questions.engine_fit import engine_fit

        if reserve is not None or tier != "engine" or plot is not None:
            raise InputError(
                "--reserve, --tier and --plot do not go with an engine's flags: it has a budget of its own"
            )
        deployment = _deployment(flags, weights, kv)
        found = engine_fit(
            asked,
            gpu,
            deployment,
            contexts=opt.context_list(context),
            calibration=deploying.calibration(calibration),
        )
        if command_for is not None:
            _print_command(deployment, asked, command_for)
            notes.say(found.report().headline)
            raise typer.Exit(ExitCode.ANSWERED if found.fits else ExitCode.DOES_NOT_FIT)
        raise typer.Exit(emit(found, as_json=json, as_csv=csv, explain=explain))
    from capplan.capacity.questions.fit import fit as ask

    answer = ask(
        asked,
        gpu,
        weights=weights,
        kv=kv,
        contexts=opt.context_list(context),
        reserve=opt.size("--reserve", reserve),
        tier=tier,
        calibration=deploying.calibration(calibration),
    )
    raise typer.Exit(emit(answer, as_json=json, as_csv=csv, explain=explain, plot=plot))


def _deployment(flags: dict[str, Any], weights: str, kv: str) -> Deployment:
    from capplan.capacity.engines.deployment import Deployment

    if "draft_model" in flags:
        from capplan.models.drafters import drafter

        found = drafter(flags["draft_model"])
        own = {"draft_model": found.published, "speculative_method": found.method}
        flags = {"num_speculative_tokens": found.tokens, **flags, **own}
    elif "num_speculative_tokens" in flags:
        flags = {**flags, "speculative_method": "mtp"}
    named = weights.strip().lower()
    return Deployment(quantization=None if named == "auto" else named, kv_cache_dtype=kv, **flags)


def _engine(name: str) -> str:
    """The engine that --engine or --emit names."""
    from capplan.capacity.engines.emit import ENGINES

    found = ENGINES.get(name.strip().lower())
    if found is None:
        raise UnknownNameError("engine", name, ENGINES, "vllm, sglang or trtllm")
    return found


def _print_command(deployment: Deployment, asked: str, engine: str) -> None:
    """The command, with the hub id of a registry row where it is on record: engines don't know capplan's names."""
    from capplan.capacity.engines import emit as commands
    from capplan.models.registry import model

    named, row = asked, model(asked)
    if "/" not in asked:
        named = next((alias for alias in row.aliases if alias.count("/") == 1), asked)
        if named == asked:
            notes.say(f"{asked} is capplan's name; write the hub id or the path that you load")
    notes.tell()
    print(commands.emit(commands.as_named(deployment, row.family), named, engine))
