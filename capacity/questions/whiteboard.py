"""The ten-minute capacity answer: the essay's questions in the essay's order, for any model and GPU."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import floor
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from capplan import units
from capplan.capacity import service
from capplan.capacity.answer import Answer, Working
from capplan.capacity.concurrency import concurrency
from capplan.capacity.kv import kv_bytes_per_request
from capplan.capacity.memory import kv_tokens
from capplan.capacity.questions import asked, gpu_terms, model_terms
from capplan.capacity.questions.fit import Fit, fit
from capplan.capacity.questions.prefill import prefill
from capplan.capacity.questions.roofline import Roofline, roofline
from capplan.models.spec import Model
from capplan.registry import read_toml
from capplan.units import gib, seconds, short, tokens

if TYPE_CHECKING:
    from capplan.hardware.spec import Gpu
    from capplan.report import Report

GIB = 2**30


@dataclass(frozen=True, slots=True, kw_only=True)
class Whiteboard(Answer):
    """Every figure of the ten-minute answer, by name.

    `cases` maps a name to `exact` (the value), its `unit`, what it `says`, and, where the essay rounds on
    the way (62.12 GiB called 62), the `unrounded` value beside it.
    """

    question: ClassVar[str] = "whiteboard"

    cases: dict[str, dict[str, Any]]
    fit: Fit = field(repr=False)
    roofline: Roofline = field(repr=False)
    answered_yes: bool = field(repr=False)

    @property
    def fits(self) -> bool:
        return self.answered_yes

    def result(self) -> dict[str, Any]:
        return {"cases": self.cases}  # the parts have commands of their own

    def sweep(self) -> list[dict[str, Any]]:
        return [{"case": name, **case} for name, case in self.cases.items()]

    def report(self) -> Report:
        from capplan.report import Report, Table

        inputs = self.inputs
        sections: dict[str, list[tuple[str, ...]]] = {}
        for case in self.cases.values():
            sections.setdefault(case["section"], []).append((case["label"], case["shown"], case["says"]))
        count = next(case for name, case in self.cases.items() if name.startswith("concurrency-"))
        return Report(
            f"{inputs['model']} in {inputs['weights']} on one {inputs['gpu']}, KV cache in {inputs['kv']}: "
            f"{units.format(count['unrounded'], '1', 4)} requests of {tokens(count['context'])}",
            tuple(Table(tuple(rows), title=section) for section, rows in sections.items()),
            self.assumptions,
            self.warnings,
        )


def whiteboard(
    model: str | Model,
    gpu: str | Gpu,
    *,
    weights: str = "auto",
    kv: str = "auto",
    contexts: Sequence[int] | int | None = None,
    reserve: float | None = None,
    tier: str = "whiteboard",
) -> Whiteboard:
    """The essay's questions in the essay's order: SLO, cache, budget, concurrency, decode, prefill, prices.

    Parameters as in `fit`; the contexts are the essay's 8K, 32K and 200K when none is given.
    Raises UnknownNameError, DataFileError, InputError.

    >>> cases = whiteboard("70b-class", "h200-sxm", weights="fp8", kv="fp16").cases
    >>> round(cases["kv-budget-gib"]["exact"], 4), round(cases["concurrency-8k"]["exact"], 4)
    (62.1239, 25.3952)
    """
    essay = read_toml(Path(__file__).with_name("whiteboard.toml"))
    spec, device = asked.as_model(model), asked.as_gpu(gpu)
    lengths = essay["contexts"] if contexts is None else contexts
    reserve = essay["reserve_gib"] * GIB if reserve is None else reserve
    half = essay["utilisation"]
    budget = fit(spec, device, weights=weights, kv=kv, contexts=lengths, reserve=reserve, tier=tier)
    decode = roofline(spec, device, weights=weights, kv=kv, contexts=lengths, reserve=reserve, tier=tier)
    prompts = prefill(spec, device, weights=weights, contexts=lengths, utilisation=half, tier=tier)
    work = Working()
    for answer in (budget, decode, prompts):
        work.include(answer)
    cases: dict[str, dict[str, Any]] = {}
    section = "The objective: goodput, the highest rate inside both targets"

    def write(
        name: str, label: str, exact: float, unit: str, shown: str, says: str = "", **more: Any
    ) -> None:
        cases[name] = {
            "exact": exact,
            "unit": unit,
            "label": label,
            "shown": shown,
            "says": says,
            "section": section,
            **more,
        }

    slo = essay["slo"]
    rate = work(service.stream_rate, tpot=slo["tpot_ms"] / 1000)
    write(
        f"tpot-{slo['tpot_ms']}ms-stream-rate",
        f"TPOT p95 under {slo['tpot_ms']} ms",
        rate,
        "token/s",
        f"{rate:,.4g} token/s",
        f"a stream, about reading speed; TTFT p95 under {slo['ttft_ms']} ms",
    )

    section = "What a token costs"
    per_token = budget.kv_bytes_per_token
    write(
        "kv-bytes-per-token",
        "KV cache a token",
        per_token,
        "byte/token",
        f"{per_token:,.0f} bytes",
        f"{per_token / 1024:,.4g} KiB",
    )

    section = "What fits"
    memory, stored, left = budget.memory_bytes, budget.weight_bytes, budget.kv_budget_bytes
    after = memory - stored
    label = f"the label's {device.memory_label_bytes / 1e9:,.0f} GB, in decimal"
    if budget.inputs["tier"] != "whiteboard":
        label = gpu_terms.memory_name("engine", memory, device.memory_visible_bytes)
    write("hbm-gib", "memory", memory / GIB, "GiB", gib(memory), label)
    write("weights-gib", "weights", stored / GIB, "GiB", gib(stored), budget.inputs["weights"])
    write("after-weights-gib", "left after weights", after / GIB, "GiB", gib(after))
    write("kv-budget-gib", "KV cache budget", left / GIB, "GiB", gib(left), f"{gib(reserve)} kept back")
    # the essay calls 62.12 GiB 62 before dividing; of a few GiB that would drop whole requests
    rounded = floor(left / GIB) if left >= 10 * GIB else max(0.0, left / GIB)
    in_gib = f"{rounded:.4g}"
    cost = {int(context): size / int(context) for context, size in budget.kv_bytes_at.items()}
    shortest, longest = min(cost), max(cost)
    room = {
        context: work(kv_tokens, f"{in_gib} GiB", kv_budget=rounded * GIB, kv_bytes_per_token=each)
        for context, each in cost.items()
    }
    exact_room = max(0.0, left) / cost[shortest]
    write(
        f"kv-tokens-from-{in_gib}-gib",
        "tokens of KV cache",
        room[shortest],
        "token",
        f"{exact_room:,.0f}",
        f"{room[shortest]:,.0f} from {in_gib} GiB, as on a whiteboard",
        unrounded=exact_room,
    )
    for key, exact_count in budget.concurrency.items():
        context = int(key)
        count = work(concurrency, f"{in_gib} GiB", kv_tokens=room[context], context=context)
        write(
            f"concurrency-{short(context)}",
            f"requests of {tokens(context)}",
            count,
            "request",
            f"{model_terms.whole(exact_count):,}",
            f"{units.format(exact_count, '1', 4)}; {units.format(count, '1', 4)} from {in_gib} GiB",
            unrounded=exact_count,
            context=context,
        )
    one = budget.kv_bytes_at[str(longest)]
    write(
        f"one-{short(longest)}-request-gib",
        f"one request of {tokens(longest)}",
        one / GIB,
        "GiB",
        gib(one),
        f"{100 * one / left:,.0f}% of the budget" if left > 0 else "there is no budget",
    )
    prompt = essay["long_prompt"]
    of_prompt = model_terms.per_token_at(model_terms.cache_of(spec, budget.inputs["kv"], work), prompt, work)
    prompt_bytes = work(kv_bytes_per_request, context=prompt, kv_bytes_per_token=of_prompt)
    needed = model_terms.gpus_needed(prompt, of_prompt, stored, memory, reserve, work)
    write(
        f"prompt-{short(prompt)}-kv-gib",
        f"one prompt of {tokens(prompt)}",
        prompt_bytes / GIB,
        "GiB",
        gib(prompt_bytes),
        "fits" if prompt_bytes <= left else f"does not fit: {needed or 'no number of'} GPUs would hold it",
        gpus=needed,
    )

    section = "Why decode is bound by bandwidth"
    ridge, single = decode.ridge_flop_per_byte, decode.weight_only_intensity_batch_1
    write(
        f"ridge-{decode.compute_precision}",
        "ridge point",
        ridge,
        "FLOP/byte",
        f"{ridge:,.1f} FLOP/byte",
        f"{decode.peak_flops_per_s / 1e12:,.0f} TFLOP/s over {decode.bandwidth_bytes_per_s / 1e12:,.4g} TB/s",
    )
    write(
        "intensity-batch-1-weights-only",
        "batch 1, weights alone",
        single,
        "FLOP/byte",
        f"{single:,.4g} FLOP/byte",
        f"{100 * single / ridge:.1f}% of the silicon",
    )
    write(
        "weight-only-batch-to-ridge",
        "batch to the ridge, weights alone",
        decode.weight_only_batch_to_ridge,
        "request",
        f"{decode.weight_only_batch_to_ridge:,.1f}",
        "quantization does not move it where half the bytes come with twice the peak",
    )
    first = decode.at[0]
    batch = first["batch"]
    traffic = work(
        kv_bytes_per_request,
        f"{batch} requests",
        context=batch * shortest,
        kv_bytes_per_token=cost[shortest],
    )
    write(
        f"kv-at-{batch}x{short(shortest)}-gib",
        f"cache read at {batch} x {tokens(shortest)}",
        traffic / GIB,
        "GiB",
        gib(traffic),
        f"against {gib(decode.weight_bytes_read)} of weights",
    )
    write(
        f"intensity-b{batch}-{short(shortest)}",
        f"batch {batch} at {tokens(shortest)}",
        first["intensity"],
        "FLOP/byte",
        f"{first['intensity']:,.1f} FLOP/byte",
        f"{first['intensity_with_attention']:,.1f} with the work of attention",
        with_attention=first["intensity_with_attention"],
    )
    for row in decode.at:
        write(
            f"ceiling-{short(row['context'])}",
            f"ceiling at {tokens(row['context'])}",
            row["ceiling"],
            "FLOP/byte",
            f"{row['ceiling']:,.1f} FLOP/byte",
            f"at any batch; {row['ceiling_with_attention']:,.1f} with the work of attention",
            with_attention=row["ceiling_with_attention"],
        )

    section = "How long a prompt takes"
    write(
        "prefill-rate-peak",
        "prefill at peak",
        prompts.rate_at_peak_tokens_per_s,
        "token/s",
        f"{prompts.rate_at_peak_tokens_per_s:,.0f} token/s",
        f"{prompts.flops_per_token / 1e9:,.4g} GFLOP a token",
    )
    last = prompts.at[-1]
    half_name = "half-utilisation" if half == 0.5 else f"utilisation-{half:g}"
    for name, label, plain, corrected in (
        ("peak", "at peak", "linear_peak_s", "peak_s"),
        (half_name, f"at {100 * half:.0f}%", "linear_s", "time_s"),
    ):
        write(
            f"prefill-{short(longest)}-{name}-s",
            f"{tokens(longest)} {label}",
            last[plain],
            "s",
            seconds(last[plain]),
            f"{seconds(last[corrected])} with attention, {last['attention_over_linear']:,.2f} times the work of the linear layers",
            with_attention=last[corrected],
        )

    section = "What it sells for"
    prices = essay["prices"]
    reuse = work(
        service.prefix_cache_break_even, write_price=prices["cache_write"], read_price=prices["cache_read"]
    )
    write(
        "prefix-cache-break-even",
        "a cached prefix pays within",
        model_terms.at_least(reuse),
        "request",
        f"{model_terms.at_least(reuse)} requests",
        f"write at {prices['cache_write']}, read at {prices['cache_read']} of the input price",
        unrounded=reuse,
    )
    write(
        "batch-tier-price",
        "the deferred tier",
        prices["deferred"],
        "of standard rates",
        f"{100 * prices['deferred']:.0f}% of the rate",
        "with a 24-hour window",
    )
    return Whiteboard(
        inputs=budget.inputs,
        cases=cases,
        fit=budget,
        roofline=decode,
        # the essay's own long contexts are there to show what does not fit
        answered_yes=budget.fits if contexts is not None else next(iter(budget.requests.values())) >= 1,
        **work.shown(),
    )
