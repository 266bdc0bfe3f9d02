"""capplan goodput"""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated

import typer

from capplan.cli import deploying, workloads
from capplan.cli import options as opt
from capplan.cli.progress import bar
from capplan.cli.render import emit, only_one
from capplan.errors import InputError

_RATES = {"colocated": 10, "chunked": 50, "disaggregated": 45}  # that a search of each tries, about


def command(
    gpu: opt.GpuName,
    model: opt.ModelName = None,
    model_config: opt.ModelConfig = None,
    ttft_p50: Annotated[str | None, workloads.bound("ttft", "p50")] = None,
    ttft_p90: Annotated[str | None, workloads.bound("ttft", "p90")] = None,
    ttft_p95: Annotated[str | None, workloads.bound("ttft", "p95")] = None,
    ttft_p99: Annotated[str | None, workloads.bound("ttft", "p99")] = None,
    ttft_p999: Annotated[str | None, workloads.bound("ttft", "p999")] = None,
    tpot_p50: Annotated[str | None, workloads.bound("tpot", "p50")] = None,
    tpot_p90: Annotated[str | None, workloads.bound("tpot", "p90")] = None,
    tpot_p95: Annotated[str | None, workloads.bound("tpot", "p95")] = None,
    tpot_p99: Annotated[str | None, workloads.bound("tpot", "p99")] = None,
    itl_p99: Annotated[str | None, workloads.bound("itl", "p99")] = None,
    itl_p999: Annotated[str | None, workloads.bound("itl", "p999")] = None,
    e2e_p95: Annotated[str | None, workloads.bound("e2e", "p95")] = None,
    attainment: Annotated[
        str | None,
        typer.Option(
            "--attainment",
            metavar="SHARE",
            help="Of requests that meet --ttft and --tpot both, such as 90%.",
            show_default=False,
        ),
    ] = None,
    ttft: Annotated[
        str | None, typer.Option("--ttft", metavar="TIME", help="Of --attainment.", show_default=False)
    ] = None,
    tpot: Annotated[
        str | None, typer.Option("--tpot", metavar="TIME", help="Of --attainment.", show_default=False)
    ] = None,
    isl: workloads.Isl = None,
    osl: workloads.Osl = None,
    sigma: workloads.Sigma = None,
    trace_lengths: workloads.TraceLengths = None,
    trace: workloads.Trace = None,
    burstiness: workloads.Burstiness = None,
    requests: workloads.Requests = None,
    seed: workloads.Seed = None,
    placement: Annotated[
        list[str] | None,
        typer.Option(
            "--placement",
            metavar="NAME",
            help="colocated, chunked or disaggregated; a list, may be repeated.",
            show_default="all three",
        ),
    ] = None,
    pools: Annotated[
        str | None,
        typer.Option(
            "--pools", metavar="P:D", help="Prefill and decode instances, such as 2:1.", show_default=False
        ),
    ] = None,
    instances: Annotated[
        int | None,
        typer.Option(
            "--instances", metavar="COUNT", help="Of a placement without pools.", show_default=False
        ),
    ] = None,
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
    json: opt.Json = False,
    csv: Annotated[bool, typer.Option("--csv", help="Print one row a placement and rate as CSV.")] = False,
    explain: opt.Explain = False,
    plot: opt.Plot = None,
) -> None:
    """The highest request rate inside an SLO: whole prompts, chunks, or pools.

    capplan goodput llama-3.1-8b --gpu h100 --ttft-p95 500ms --tpot-p95 20ms --requests 400

    capplan goodput llama-3.1-8b --gpu h100 --attainment 90% --ttft 1s --tpot 40ms --requests 400
    """
    from capplan.capacity.questions import goodput as question
    from capplan.capacity.questions.goodput_search import most_requests

    bounds = {
        "ttft-p50": ttft_p50,
        "ttft-p90": ttft_p90,
        "ttft-p95": ttft_p95,
        "ttft-p99": ttft_p99,
        "ttft-p999": ttft_p999,
        "tpot-p50": tpot_p50,
        "tpot-p90": tpot_p90,
        "tpot-p95": tpot_p95,
        "tpot-p99": tpot_p99,
        "itl-p99": itl_p99,
        "itl-p999": itl_p999,
        "e2e-p95": e2e_p95,
    }
    only_one(json=json, csv=csv, explain=explain)  # before the search, which takes a while
    if plot is not None:
        from capplan.cli.plots import known_place

        known_place(plot)
    slo = workloads.slo(bounds, ttft, tpot, attainment)
    mix = workloads.mix(
        isl=isl,
        osl=osl,
        sigma=sigma,
        trace_lengths=trace_lengths,
        trace=trace,
        burstiness=burstiness,
        requests=most_requests(slo) if requests is None else requests,
        seed=seed,
    )
    placements = deploying.names("--placement", placement) if placement else question.CONFIGURATIONS
    sizes = {"--pools": pools, "--instances": instances}
    unused = "--pools" if "disaggregated" not in placements else "--instances"
    if sizes[unused] is not None and (unused == "--pools" or set(placements) == {"disaggregated"}):
        raise InputError(f"{unused} is not of placement {' or '.join(placements)}; it would not be used")
    with bar("rates") as progress:
        answer = question.goodput(
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
            slo=slo,
            mix=mix,
            mix_of=workloads.mix_of(sigma, trace_lengths, trace),
            requests=requests,
            cv=1.0 if burstiness is None else burstiness,
            seed=workloads.SEED if seed is None else seed,
            configurations=placements,
            pools=workloads.pools(pools),
            instances=instances,
            routing=routing,
            tp=tp,
            calibration=deploying.calibration(calibration),
            progress=_counted(progress, sum(_RATES.get(name, 0) for name in placements)),
        )
    raise typer.Exit(emit(answer, as_json=json, as_csv=csv, explain=explain, plot=plot))


def _counted(progress: Callable[[int, int], None] | None, expected: int) -> Callable[[str, int], None] | None:
    """What the search tells, as rates done of those that are expected."""
    if progress is None:
        return None
    done = 0

    def tell(_: str, __: int) -> None:
        nonlocal done
        done += 1
        progress(done, max(expected, done + 1))

    return tell
