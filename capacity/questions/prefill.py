"""How long until the first token, when compute is the limit?"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from capplan.capacity import prefill as work_of
from capplan.capacity.answer import Answer, Working
from capplan.capacity.decode import linear_flops_per_token
from capplan.capacity.questions import asked, gpu_terms, model_terms
from capplan.errors import InputError
from capplan.models.spec import Model
from capplan.units import seconds, tokens

if TYPE_CHECKING:
    from capplan.hardware.spec import Gpu
    from capplan.report import Report

UTILISATION = 0.5  # the essay's realistic share of the peak
LEAST_UTILISATION = 0.0001


@dataclass(frozen=True, slots=True, kw_only=True)
class Prefill(Answer):
    """The work of a prompt on one GPU and its time, at peak and at a utilisation."""

    question: ClassVar[str] = "prefill"

    peak_flops_per_s: float
    compute_precision: str
    utilisation: float
    flops_per_token: float  # linear layers
    rate_at_peak_tokens_per_s: float  # linear layers
    rate_tokens_per_s: float  # at the utilisation
    at: tuple[dict[str, Any], ...]  # one entry a prompt length

    def sweep(self) -> list[dict[str, Any]]:
        return [dict(row) for row in self.at]

    def report(self) -> Report:
        from capplan.report import Report, Table

        share = f"{100 * self.utilisation:.3g}%"
        first = self.at[-1]
        rows = tuple(
            (
                tokens(row["prompt"]),
                seconds(row["linear_peak_s"]),
                seconds(row["peak_s"]),
                seconds(row["linear_s"]),
                seconds(row["time_s"]),
                f"{row['attention_over_linear']:.2f}",
            )
            for row in self.at
        )
        return Report(
            f"{self.inputs['model']} on one {self.inputs['gpu']}: a prompt of {tokens(first['prompt'])} takes "
            f"{seconds(first['time_s'])} at {share} of the peak",
            (
                Table(
                    (
                        (
                            "peak",
                            f"{self.peak_flops_per_s / 1e12:,.0f} TFLOP/s",
                            f"dense {self.compute_precision}",
                        ),
                        ("work of a token", f"{self.flops_per_token / 1e9:,.1f} GFLOP", "linear layers"),
                        ("rate at peak", f"{self.rate_at_peak_tokens_per_s:,.0f} token/s", "linear layers"),
                        (f"rate at {share}", f"{self.rate_tokens_per_s:,.0f} token/s", "linear layers"),
                    )
                ),
                Table(
                    rows,
                    (
                        "prompt",
                        "linear, peak",
                        "with attention",
                        f"linear, {share}",
                        "with attention",
                        "attention / linear",
                    ),
                ),
            ),
            self.assumptions,
            self.warnings,
        )


def prefill(
    model: str | Model,
    gpu: str | Gpu,
    *,
    weights: str = "auto",
    contexts: Sequence[int] | int | None = None,
    utilisation: float = UTILISATION,
    tier: str = "engine",
) -> Prefill:
    """Time of a prompt on one GPU when compute is the limit, with and without the work of attention.

    contexts: prompt lengths [token]; utilisation: share of the dense peak reached, up to 1.
    Other parameters as in `fit`. Raises UnknownNameError, DataFileError, InputError.

    >>> answer = prefill("70b-class", "h200-sxm", weights="fp8", contexts=[200_000], tier="whiteboard")
    >>> round(answer.rate_at_peak_tokens_per_s), round(answer.at[0]["attention_over_linear"], 2)
    (14136, 1.87)
    """
    if not LEAST_UTILISATION <= asked.number(utilisation) <= 1:
        percent = (
            f"; write {utilisation:g}% for a percentage" if 2 <= asked.number(utilisation) <= 100 else ""
        )
        raise InputError(
            f"utilisation {utilisation!r} is not a share of the peak, from {LEAST_UTILISATION} to 1{percent}"
        )
    spec, device, level = asked.as_model(model), asked.as_gpu(gpu), asked.known_tier(tier)
    work = Working()
    work.assume(*asked.assumed_of(spec))
    prompts = asked.known_contexts(contexts, spec, work)
    weights = asked.weights_precision(weights, spec)
    compute, peak = gpu_terms.peak(device, weights, work)
    if level == "engine":
        work.assume(
            f"{100 * utilisation:.3g}% of the dense peak is reached (--utilisation): measured kernel "
            "efficiencies come with a later version"
        )

    wide, wide_peak = gpu_terms.peak(device, "bf16", work)
    if wide_peak != peak:
        work.assume(f"attention runs in {wide}, whatever the precision of the weights")
    stored = model_terms.weights_in_memory(spec, weights, level, work)
    if stored > gpu_terms.memory(device, level, work):
        work.warn(f"the weights do not fit on one {device.id}: the time is that of its compute alone")
    multiplied, once = model_terms.prefill_weights(spec, level, work)
    flops = work(linear_flops_per_token, "a prompt token", parameters=multiplied)
    head = work(linear_flops_per_token, "the head, for the last token", parameters=once) if once else 0.0
    at_peak = work(work_of.prefill_rate, peak_flops=peak, flops_per_token=flops)
    at_share = work(work_of.prefill_rate, peak_flops=peak, flops_per_token=flops, utilisation=utilisation)
    attends = model_terms.attention_of(spec, "prefill", work)

    rows = []
    for prompt in prompts:
        linear = work(work_of.prefill_linear_flops, prompt=prompt, flops_per_token=flops, head_flops=head)
        attention = 0.0
        for seen in attends:
            shape = {"layers": seen.layers, "heads": seen.heads, "head_dim": seen.width, "prompt": prompt}
            if prompt <= seen.most:
                attention += work(work_of.prefill_attention_flops, **shape)
            else:
                attention += work(work_of.prefill_window_flops, **shape, window=seen.most)
        row: dict[str, Any] = {
            "prompt": prompt,
            "linear_flops": linear,
            "attention_flops": attention,
            "attention_over_linear": attention / linear,
        }
        for share, plain, corrected in (
            (1.0, "linear_peak_s", "peak_s"),
            (utilisation, "linear_s", "time_s"),
        ):
            row[plain] = work(
                work_of.prefill_time, "linear layers", flops=linear, peak_flops=peak, utilisation=share
            )
            row[corrected] = row[plain] + work(
                work_of.prefill_time,
                f"attention, in {wide}",
                flops=attention,
                peak_flops=wide_peak,
                utilisation=share,
            )
        rows.append(row)

    return Prefill(
        inputs={
            "model": spec.id,
            "gpu": device.id,
            "weights": weights,
            "contexts": prompts,
            "utilisation": utilisation,
            "tier": level,
        },
        peak_flops_per_s=peak,
        compute_precision=compute,
        utilisation=utilisation,
        flops_per_token=flops,
        rate_at_peak_tokens_per_s=at_peak,
        rate_tokens_per_s=at_share,
        at=tuple(rows),
        **work.shown(),
    )
