"""A prompt as an engine runs it: pass after pass, each operation with its time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from capplan.capacity.answer import Working
from capplan.capacity.engines.deployment import Deployment
from capplan.capacity.engines.weights import method, quantized
from capplan.capacity.questions import asked, pass_parts
from capplan.capacity.questions.deployed import Deployed
from capplan.capacity.questions.perf import measured, placed
from capplan.capacity.questions.prefill import Prefill, work_of_prompts
from capplan.capacity.step_time.calibration import Calibration
from capplan.capacity.step_time.forward import Step
from capplan.capacity.step_time.passes import Pass, one_pass
from capplan.models.resolve import with_tower
from capplan.models.spec import Model
from capplan.units import seconds, tokens

if TYPE_CHECKING:
    from capplan.hardware.spec import Gpu
    from capplan.report import Report

_MOST_PASSES = 100  # timed one by one; of more, so many stand for those around them


def by_operations(
    spec: Model,
    card: Gpu,
    *,
    weights: str,
    contexts: Sequence[int] | int | None,
    deployment: Deployment | None,
    tp: int | None,
    calibration: Calibration | None,
) -> Prefill:
    """Time of a prompt that has the engine to itself; parameters as in `prefill`."""
    spec, towers = with_tower(spec)
    work = Working()
    work.assume(*asked.assumed_of(spec), *towers)
    prompts = asked.known_contexts(contexts, spec, work)
    flags = deployment or Deployment()
    if flags.quantization is None and not asked.automatic(weights):
        flags = replace(flags, quantization=method(weights))
    longest = prompts[0] if contexts is None else max(prompts)  # of the usual ones, the others may not fit
    flags = pass_parts.allowing(flags, longest)
    found = measured(placed(spec, card, flags, longest, tp, work), calibration, work)
    work.assume(*found.assumptions)
    if calibration is None or calibration.ttft_off is None:
        work.assume(pass_parts.RANGE)
    fitting = {prompt: found.most(prompt) >= 1 for prompt in prompts}
    for prompt in prompts:
        if not fitting[prompt]:
            work.warn(f"no request of {tokens(prompt)} fits in memory: the time is that of its passes alone")
    weights = quantized(spec, found.flags.quantization).dtype
    done = work_of_prompts(spec, card, weights, prompts, "engine", None, work, gpus=found.plan.tp)
    passes = {prompt: passes_of(found, prompt) for prompt in prompts}
    off = calibration.ttft_off if calibration else None
    rows = tuple(
        _row(found, row, passes[row["prompt"]], off) | {"fits": fitting[row["prompt"]]}
        for row in done.pop("at")
    )
    last = rows[-1]
    pass_parts.show_working(
        found, passes[last["prompt"]][-1][1], work, f"the last pass of {tokens(last['prompt'])}"
    )
    return Prefill(
        inputs=pass_parts.inputs_of(found, calibration)
        | {
            "weights": weights,
            "contexts": prompts,
            "utilisation": None,
        },
        gpus=found.gpus,
        method="operations",
        utilisation=last["utilisation"],
        rate_tokens_per_s=last["prompt"] / last["time_s"],
        at=rows,
        **done,
        **work.shown(),
    )


def passes_of(found: Deployed, prompt: int) -> list[tuple[float, Pass]]:
    """The passes of a prompt, of so many tokens each as the engine takes at a time; how many are like each."""
    return [
        (
            times,
            one_pass(
                found.plan, found.chip, found.engine, Step(prompts=1.0, chunk=float(chunk), before=before)
            ),
        )
        for times, chunk, before in chunks(prompt, int(found.engine.budget))
    ]


def chunks(prompt: int, budget: int) -> list[tuple[float, int, float]]:
    """How many passes, of how many tokens, after how many on average: the work of a pass is linear in the last.

    >>> chunks(20_000, 8192)
    [(1.0, 8192, 0.0), (1.0, 8192, 8192.0), (1.0, 3616, 16384.0)]
    """
    full, rest = divmod(prompt, budget)
    shown = min(full, _MOST_PASSES)
    each = full / shown if shown else 0.0
    found = [(each, budget, budget * (each * i + (each - 1) / 2)) for i in range(shown)]
    return [*found, (1.0, rest, float(full * budget))] if rest else found


def _row(
    found: Deployed, row: dict[str, Any], parts: list[tuple[float, Pass]], off: float | None
) -> dict[str, Any]:
    time, groups = pass_parts.time_of(parts, found.chip, off), pass_parts.groups_of(parts)
    return {
        **row,
        "linear_s": groups["projections_s"] + groups["experts_s"] + groups["head_s"],
        **time,
        "ttft_s": time["time_s"] + found.engine.request,
        "passes": round(sum(times for times, _ in parts)),
        **groups,
        **pass_parts.limits_of(parts),
        "utilisation": row["peak_s"] / time["time_s"],
    }


def report(answer: Prefill) -> Report:
    """The answer laid out for people."""
    from capplan.report import Report, Table

    last = next((row for row in reversed(answer.at) if row["fits"]), answer.at[-1])
    headline = (
        f"{pass_parts.where(answer.inputs, answer.gpus)}: a prompt of {tokens(last['prompt'])} takes "
        f"{seconds(last['time_s'])} ({seconds(last['low_s'])} - {seconds(last['high_s'])}), "
        f"{100 * last['utilisation']:.0f}% of the peak"
    )
    if not last["fits"]:
        headline += "; it does not fit in memory"
    rows = tuple(
        (
            f"{row['prompt']:,}",
            seconds(row["time_s"]),
            f"{seconds(row['low_s'])} - {seconds(row['high_s'])}",
            f"{row['passes']:,}",
            pass_parts.bound(row),
            f"{100 * row['utilisation']:.0f}%",
            f"{row['prompt'] / row['time_s']:,.0f}",
        )
        for row in answer.at
    )
    groups, shares = pass_parts.group_table(answer.at)
    parts = tuple((f"{row['prompt']:,}", *share) for row, share in zip(answer.at, shares, strict=True))
    heads = ("tokens", "time", "from - to", "passes", "bound by", "of peak", "tok/s")
    return Report(
        headline,
        (
            Table(rows, heads),
            Table(parts, ("tokens", *groups), "Its parts"),
        ),
        answer.assumptions,
        answer.warnings,
    )
