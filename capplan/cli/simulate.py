"""capplan simulate"""

from __future__ import annotations

import os
from errno import EISDIR, ENOENT
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from capplan.cli import deploying, notes, workloads
from capplan.cli import options as opt
from capplan.cli.render import emit, only_one
from capplan.errors import InputError

if TYPE_CHECKING:
    from capplan.capacity.simulator.requests import Outcome, Speculation


DRAFT_COST = "0.05"  # where it is not given


def _option(name: str, metavar: str, text: str, default: str | None = None) -> typer.models.OptionInfo:
    return typer.Option(name, metavar=metavar, help=text, show_default=default or False)  # type: ignore[no-any-return]


def command(
    gpu: opt.GpuName,
    model: opt.ModelName = None,
    model_config: opt.ModelConfig = None,
    rate: Annotated[
        str | None, _option("--rate", "RATE", "Requests a second, such as 2.5; of a trace, its own.")
    ] = None,
    concurrency: Annotated[
        str | None,
        _option("--concurrency", "REQUESTS", "Instead: so many under way; one comes when one leaves."),
    ] = None,
    requests: Annotated[
        str, typer.Option("--requests", metavar="COUNT", help="How many come; of a trace, its first.")
    ] = "1000",
    isl: workloads.Isl = None,
    osl: workloads.Osl = None,
    sigma: workloads.Sigma = None,
    trace_lengths: workloads.TraceLengths = None,
    trace: workloads.Trace = None,
    burstiness: workloads.Burstiness = None,
    seed: workloads.Seed = None,
    timeout: Annotated[
        str | None,
        _option("--timeout", "TIME", "How long a client waits for its first token, such as 30s."),
    ] = None,
    warm_up: Annotated[
        str, typer.Option("--warm-up", metavar="SHARE", help="First requests that latencies leave out.")
    ] = "0",
    scheduler: Annotated[
        str | None,
        _option("--scheduler", "RULE", "mixed, prefill-first or static; as the engine does when not given."),
    ] = None,
    chunked: Annotated[
        bool,
        typer.Option(
            "--chunked-prefill/--no-chunked-prefill", help="Whether prompts are divided over passes."
        ),
    ] = True,
    long_prefill_token_threshold: Annotated[
        int | None,
        _option(
            "--long-prefill-token-threshold",
            "TOKENS",
            "The most that a pass takes of one prompt, so that others go beside it.",
        ),
    ] = None,
    preemption: Annotated[
        str, typer.Option("--preemption", metavar="HOW", help="recompute or swap, when blocks run out.")
    ] = "recompute",
    prefix_caching: workloads.PrefixCaching = None,
    watermark: Annotated[
        str,
        typer.Option("--watermark", metavar="SHARE", help="Blocks that admitting a request leaves free."),
    ] = "0",
    speculated: Annotated[
        int | None, _option("--speculated", "TOKENS", "Tokens drafted a pass; with --acceptance.")
    ] = None,
    acceptance: Annotated[
        str | None, _option("--acceptance", "SHARE", "Drafted tokens that hold, such as 0.7.")
    ] = None,
    draft_cost: Annotated[
        str | None,
        _option(
            "--draft-cost", "SHARE", "Time of a draft's pass over the target's; 0 for n-grams.", DRAFT_COST
        ),
    ] = None,
    pools: Annotated[
        str | None,
        _option("--pools", "P:D", "Prefill and decode instances, such as 2:1, instead of --instances."),
    ] = None,
    link: Annotated[
        str | None,
        _option("--link", "LINK", "Between pools: gpu, pcie, network, or a bandwidth such as 50GB/s."),
    ] = None,
    instances: Annotated[
        int, typer.Option("--instances", metavar="COUNT", help="Deployments side by side.")
    ] = 1,
    routing: workloads.Routing = "round-robin",
    weights: opt.Weights = "auto",
    kv: opt.KvDtype = "auto",
    tp: deploying.Tp = None,
    dp: deploying.Dp = None,
    ep: deploying.Ep = False,
    engine: deploying.Engine = None,
    engine_version: deploying.EngineVersion = None,
    max_model_len: deploying.MaxModelLen = None,
    max_num_seqs: deploying.MaxNumSeqs = None,
    max_num_batched_tokens: deploying.MaxNumBatchedTokens = None,
    calibration: deploying.CalibrationFile = None,
    trace_out: Annotated[
        str | None,
        _option("--trace-out", "FILE", "Write every request as Chrome trace events (Perfetto)."),
    ] = None,
    json: opt.Json = False,
    csv: Annotated[bool, typer.Option("--csv", help="Print one row a kind of latency as CSV.")] = False,
    explain: opt.Explain = False,
    plot: opt.Plot = None,
) -> None:
    """Latencies of every request of a load, run through an engine's loop.

    capplan simulate llama-3.3-70b --gpu a100-sxm-80 --tp 4 --rate 1 --requests 10000 --isl 1246 --osl 204

    capplan simulate qwen3-32b --gpu h100 --concurrency 64 --isl 4000 --osl 500 --pools 1:1 --plot state.svg
    """
    from capplan.capacity.questions.simulate import simulate as ask
    from capplan.cli.progress import bar

    only_one(json=json, csv=csv, explain=explain)
    if plot is not None:  # before the trace is written
        from capplan.cli.plots import known_place

        known_place(plot)
    if trace_out is not None:
        _known_place(trace_out)
    if speculated is None and acceptance is None and draft_cost is not None:
        raise InputError("--draft-cost is of drafted tokens; give --speculated and --acceptance with it")
    if concurrency is not None and burstiness is not None:
        raise InputError("--burstiness is of drawn arrivals; with --concurrency one comes when one leaves")
    mix = workloads.mix(
        isl=isl,
        osl=osl,
        sigma=sigma,
        trace_lengths=trace_lengths,
        trace=trace,
        burstiness=burstiness,
        requests=_whole("--requests", requests) or 0,
        seed=seed,
    )
    with bar("requests") as progress:
        answer = ask(
            opt.one_model(model, model_config),
            gpu,
            deploying.deployment(
                engine=engine,
                engine_version=engine_version,
                dp=dp,
                ep=ep,
                weights=weights,
                kv=kv,
                max_model_len=max_model_len,
                max_num_seqs=max_num_seqs,
                max_num_batched_tokens=max_num_batched_tokens,
            ),
            rate=_rate(rate),
            concurrency=_whole("--concurrency", concurrency),
            mix=mix,
            cv=1.0 if burstiness is None else burstiness,
            seed=workloads.SEED if seed is None else seed,
            timeout=_seconds("--timeout", timeout),
            warm_up=opt.share("--warm-up", warm_up),
            scheduler=scheduler,
            chunked=chunked,
            long_prefill_token_threshold=long_prefill_token_threshold,
            preemption=preemption,
            prefix_caching=prefix_caching,
            routing=routing,
            watermark=opt.share("--watermark", watermark),
            speculation=_speculation(speculated, acceptance),
            draft_cost=opt.share("--draft-cost", DRAFT_COST if draft_cost is None else draft_cost),
            instances=instances,
            pools=workloads.pools(pools),
            link=_link(link),
            tp=tp,
            calibration=deploying.calibration(calibration),
            progress=progress,
        )
    if trace_out is not None and answer.outcome is not None:
        _write(trace_out, answer.outcome)
    raise typer.Exit(emit(answer, as_json=json, as_csv=csv, explain=explain, plot=plot))


def _rate(text: str | None) -> float | None:
    from capplan import units

    if text is None:
        return None
    with opt.naming("--rate"):
        return units.parse(text, "request/second")


def _whole(option: str, text: str | None) -> int | None:
    from capplan import units

    if text is None:
        return None
    with opt.naming(option):
        return units.parse_count(text, "request")


def _seconds(option: str, text: str | None) -> float:
    from capplan import units

    if text is None:
        return inf
    with opt.naming(option):
        return units.parse(text, "second")


def _speculation(speculated: int | None, acceptance: str | None) -> Speculation | None:
    if speculated is None and acceptance is None:
        return None
    if speculated is None or acceptance is None:
        given, missing = (
            ("--acceptance", "--speculated") if speculated is None else ("--speculated", "--acceptance")
        )
        raise InputError(f"{given} without {missing}; give both, such as --speculated 4 --acceptance 0.7")
    from capplan.capacity.simulator.requests import Speculation

    return Speculation(speculated, opt.share("--acceptance", acceptance))


def _link(text: str | None) -> str | float | None:
    """The name of a link, or its bandwidth."""
    from capplan import units

    if text is None or not any(letter.isdecimal() for letter in text):
        return text
    with opt.naming("--link"):
        return units.parse(text, "byte/second")


def _write(path: str, outcome: Outcome) -> None:
    """The trace, whole or not at all."""
    from capplan.capacity.simulator.chrome_trace import write_trace
    from capplan.whole_file import whole

    target = Path(path).resolve()  # a link stays one
    try:
        if target.exists() and not target.is_file():  # a pipe, or /dev/null
            with target.open("w", encoding="utf-8") as file:
                count = write_trace(outcome, file)
        else:
            with whole(target) as unfinished, unfinished.open("w", encoding="utf-8") as file:
                count = write_trace(outcome, file)
    except (OSError, ValueError) as error:
        raise _unwritable(path, error) from error
    notes.note(f"wrote {count:,} events to {path}; chrome://tracing and ui.perfetto.dev show them")


def _known_place(path: str) -> None:
    """Raise InputError for a trace that can't be written, before it is simulated."""
    try:
        target = Path(path).resolve()
        if target.is_dir():
            raise IsADirectoryError(EISDIR, os.strerror(EISDIR))
        if not target.parent.is_dir():
            raise FileNotFoundError(ENOENT, os.strerror(ENOENT))
    except (OSError, ValueError) as error:
        raise _unwritable(path, error) from error


def _unwritable(path: str, error: Exception) -> InputError:
    told = (getattr(error, "strerror", None) or str(error)).lower()
    return InputError(f"can't write the trace to {path!r}: {told}")
