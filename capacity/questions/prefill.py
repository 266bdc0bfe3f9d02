"""How long until the first token: by the work over a share of the peak, or operation by operation?"""

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
    from capplan.capacity.engines.deployment import Deployment
    from capplan.capacity.step_time.calibration import Calibration
    from capplan.hardware.spec import Gpu
    from capplan.report import Report

UTILISATION = 0.5  # the essay's realistic share of the peak
LEAST_UTILISATION = 0.0001


@dataclass(frozen=True, slots=True, kw_only=True)
class Prefill(Answer):
    """The work of a prompt and its time: at peak, and at a utilisation or operation by operation."""

    question: ClassVar[str] = "prefill"

    gpus: int
    method: str  # utilisation: work over a share of the peak; operations: what an engine runs, one by one
    peak_flops_per_s: float  # of one GPU
    compute_precision: str
    utilisation: float  # taken, or reached at the longest prompt
    flops_per_token: float  # linear layers
    rate_at_peak_tokens_per_s: float  # linear layers, on all tensor-parallel ranks
    rate_tokens_per_s: float  # linear layers at the utilisation, or the longest prompt by its time
    at: tuple[dict[str, Any], ...]  # one entry a prompt length

    @property
    def fits(self) -> bool:
        """False when no prompt fits beside the weights; of the work alone that is not asked."""
        return any(row.get("fits", True) for row in self.at)

    def sweep(self) -> list[dict[str, Any]]:
        return [dict(row) for row in self.at]

    def report(self) -> Report:
        from capplan.report import Report, Table

        if self.method == "operations":
            from capplan.capacity.questions.prefill_passes import report

            return report(self)
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
    utilisation: float | None = None,
    tier: str = "engine",
    deployment: Deployment | None = None,
    tp: int | None = None,
    calibration: Calibration | None = None,
) -> Prefill:
    """Time of a prompt, alone on its GPUs.

    contexts: prompt lengths [token]. Other parameters as in `fit`.
    At the engine tier a prompt is timed operation by operation, as the engine of `deployment` (vLLM, when not given)
    runs it, on `tp` tensor-parallel ranks (the smallest number that fits, when not given).
    utilisation: share of the dense peak reached, up to 1: the time is that of the work alone, on one GPU; half of it
    when not given at the whiteboard, or for a model that is known by its size alone.

    Raises UnknownNameError, DataFileError, InputError.

    >>> answer = prefill("70b-class", "h200-sxm", weights="fp8", contexts=[200_000], tier="whiteboard")
    >>> round(answer.rate_at_peak_tokens_per_s), round(answer.at[0]["attention_over_linear"], 2)
    (14136, 1.87)
    """
    if utilisation is not None:
        _check(utilisation)
    spec, device, level = asked.as_model(model), asked.as_gpu(gpu), asked.known_tier(tier)
    served = any(each is not None for each in (deployment, tp, calibration))
    if served and (level == "whiteboard" or utilisation is not None):
        what = "--tier whiteboard" if level == "whiteboard" else "--utilisation"
        raise InputError(f"{what} times the work of a prompt on one GPU: an engine's flags do not go with it")
    if level == "engine" and utilisation is None and (served or spec.weights):
        from capplan.capacity.questions.prefill_passes import by_operations

        return by_operations(
            spec,
            device,
            weights=weights,
            contexts=contexts,
            deployment=deployment,
            tp=tp,
            calibration=calibration,
        )
    work = Working()
    work.assume(*asked.assumed_of(spec))
    if utilisation is None:
        utilisation = UTILISATION
        if level == "engine":
            work.assume(f"{spec.id} is known by its size alone: its operations can't be timed one by one")
    prompts = asked.known_contexts(contexts, spec, work)
    weights = asked.weights_precision(weights, spec)
    if level == "engine":
        work.assume(f"{100 * utilisation:.3g}% of the dense peak is reached (--utilisation)")
    stored = model_terms.weights_in_memory(spec, weights, level, work)
    if stored > gpu_terms.memory(device, level, work):
        work.warn(f"the weights do not fit on one {device.id}: the time is that of its compute alone")
    found = work_of_prompts(spec, device, weights, prompts, level, utilisation, work)
    return Prefill(
        inputs={
            "model": spec.id,
            "gpu": device.id,
            "weights": weights,
            "contexts": prompts,
            "utilisation": utilisation,
            "tier": level,
        },
        gpus=1,
        method="utilisation",
        utilisation=utilisation,
        **found,
        **work.shown(),
    )


def _check(utilisation: float) -> None:
    if not LEAST_UTILISATION <= asked.number(utilisation) <= 1:
        percent = (
            f"; write {utilisation:g}% for a percentage" if 2 <= asked.number(utilisation) <= 100 else ""
        )
        raise InputError(
            f"utilisation {utilisation!r} is not a share of the peak, from {LEAST_UTILISATION} to 1{percent}"
        )


def work_of_prompts(
    spec: Model,
    device: Gpu,
    weights: str,
    prompts: Sequence[int],
    level: asked.Tier,
    utilisation: float | None,
    work: Working,
    *,
    gpus: int = 1,
) -> dict[str, Any]:
    """Peak, rates and, for every prompt, its FLOPs and the time that they take: at the peak of so many GPUs, and at a
    utilisation where there is one."""
    compute, peak = gpu_terms.peak(device, weights, work)
    wide, wide_peak = gpu_terms.peak(device, "bf16", work)
    if wide_peak != peak:
        work.assume(f"attention runs in {wide}, whatever the precision of the weights")
    multiplied, once = model_terms.prefill_weights(spec, level, work)
    flops = work(linear_flops_per_token, "a prompt token", parameters=multiplied)
    head = work(linear_flops_per_token, "the head, for the last token", parameters=once) if once else 0.0
    at_peak = work(work_of.prefill_rate, peak_flops=gpus * peak, flops_per_token=flops)
    rates = {"rate_at_peak_tokens_per_s": at_peak}
    shares = [(1.0, "linear_peak_s", "peak_s")]
    if utilisation is not None:
        rates["rate_tokens_per_s"] = work(
            work_of.prefill_rate, peak_flops=gpus * peak, flops_per_token=flops, utilisation=utilisation
        )
        shares.append((utilisation, "linear_s", "time_s"))
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
        for share, plain, corrected in shares:
            row[plain] = work(
                work_of.prefill_time, "linear layers", flops=linear, peak_flops=gpus * peak, utilisation=share
            )
            row[corrected] = row[plain] + work(
                work_of.prefill_time,
                f"attention, in {wide}",
                flops=attention,
                peak_flops=gpus * wide_peak,
                utilisation=share,
            )
        rows.append(row)
    return {
        "peak_flops_per_s": peak,
        "compute_precision": compute,
        "flops_per_token": flops,
        **rates,
        "at": tuple(rows),
    }
