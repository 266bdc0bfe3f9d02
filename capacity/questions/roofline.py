"""Which of compute and bandwidth runs out first in decode, and at which batch?"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from capplan.capacity import decode
from capplan.capacity.answer import Answer, Working
from capplan.capacity.concurrency import concurrency
from capplan.capacity.memory import kv_budget, kv_tokens
from capplan.capacity.questions import asked, gpu_terms, model_terms
from capplan.capacity.roofline import attainable_flops, ridge_point
from capplan.models.spec import Model
from capplan.units import tokens

if TYPE_CHECKING:
    from capplan.hardware.spec import Gpu
    from capplan.report import Report


@dataclass(frozen=True, slots=True, kw_only=True)
class Roofline(Answer):
    """Where decode stands under the roofline of one GPU, at each context."""

    question: ClassVar[str] = "roofline"

    peak_flops_per_s: float
    bandwidth_bytes_per_s: float
    ridge_flop_per_byte: float
    compute_precision: str
    weight_only_intensity_batch_1: float  # FLOP/byte
    weight_only_batch_to_ridge: float
    flops_per_token: float  # linear layers
    weight_bytes_read: float
    kv_bytes_per_token: float
    at: tuple[dict[str, Any], ...]  # one entry a context

    def sweep(self) -> list[dict[str, Any]]:
        return [dict(row) for row in self.at]

    def report(self) -> Report:
        from capplan.report import Report, Table

        ridge = self.ridge_flop_per_byte
        best = max(row["ceiling_with_attention"] for row in self.at)
        verdict = "memory-bound" if best < ridge else "compute-bound at a large enough batch"
        headline = (
            f"{self.inputs['model']} on {self.inputs['gpu']}: decode is {verdict}; "
            f"the ridge is at {ridge:,.0f} FLOP/byte"
        )
        rows = tuple(
            (
                tokens(row["context"]),
                f"{row['batch']:,}" if row["fits"] else "(1)",
                f"{row['intensity']:,.1f}",
                f"{row['intensity_with_attention']:,.1f}",
                f"{row['ceiling']:,.1f}",
                f"{row['ceiling_with_attention']:,.1f}",
                f"{100 * row['share_of_peak']:.1f}%",
            )
            for row in self.at
        )
        return Report(
            headline,
            (
                Table(
                    (
                        (
                            "peak",
                            f"{self.peak_flops_per_s / 1e12:,.0f} TFLOP/s",
                            f"dense {self.compute_precision}",
                        ),
                        ("bandwidth", f"{self.bandwidth_bytes_per_s / 1e12:,.4g} TB/s", ""),
                        ("ridge", f"{ridge:,.1f} FLOP/byte", "where both run out together"),
                        (
                            "batch 1",
                            f"{self.weight_only_intensity_batch_1:,.4g} FLOP/byte",
                            f"{100 * self.weight_only_intensity_batch_1 / ridge:.2g}% of the peak",
                        ),
                        (
                            "batch to the ridge",
                            f"{self.weight_only_batch_to_ridge:,.1f}",
                            "if decode read weights alone",
                        ),
                    )
                ),
                Table(
                    rows,
                    (
                        "context",
                        "batch that fits",
                        "FLOP/byte",
                        "with attention",
                        "ceiling",
                        "with attention",
                        "of the peak",
                    ),
                    "Arithmetic intensity of a decode step; the ceiling is what no batch passes",
                ),
            ),
            self.assumptions,
            self.warnings,
        )


def roofline(
    model: str | Model,
    gpu: str | Gpu,
    *,
    weights: str = "auto",
    kv: str = "auto",
    contexts: Sequence[int] | int | None = None,
    reserve: float | None = None,
    tier: str = "engine",
) -> Roofline:
    """Arithmetic intensity of decode against the ridge point, with and without the work of attention.

    Parameters as in `fit`; at each context the batch is the largest that fits in memory.
    Raises UnknownNameError, DataFileError (also when the GPU's rate or bandwidth is not known), InputError.

    >>> answer = roofline("70b-class", "h200-sxm", weights="fp8", kv="fp16", tier="whiteboard")
    >>> round(answer.ridge_flop_per_byte), round(answer.weight_only_batch_to_ridge)
    (412, 206)
    """
    spec, device, level = asked.as_model(model), asked.as_gpu(gpu), asked.known_tier(tier)
    work = Working()
    work.assume(*asked.assumed_of(spec))
    lengths = asked.known_contexts(contexts, spec, work)
    weights, kv = asked.weights_precision(weights, spec), asked.kv_precision(kv, spec)
    compute, peak = gpu_terms.peak(device, weights, work)
    bandwidth = gpu_terms.bandwidth(device, work)
    ridge = work(ridge_point, peak_flops=peak, bandwidth=bandwidth)
    stored = model_terms.weights_in_memory(spec, weights, level, work)
    multiplied, read = model_terms.decode_weights(spec, weights, stored, level, work)
    flops = work(decode.linear_flops_per_token, parameters=multiplied)
    # more than the precision says where experts are read that a token is not routed to
    size = read / multiplied
    single = work(decode.weight_only_intensity, batch=1, bytes_per_parameter=size)
    to_ridge = work(decode.weight_only_batch_to_ridge, ridge=ridge, bytes_per_parameter=size)
    kept = model_terms.cache_of(spec, kv, work)
    if model_terms.selects(spec):
        work.assume("a decode step is taken to read the whole cache; an indexer lets it read less")
    memory, reserve = gpu_terms.memory(device, level, work), asked.known_reserve(reserve, level, work)
    left = work(kv_budget, memory=memory, weight_bytes=stored, reserve=reserve)
    if left <= 0:
        work.warn(f"the weights do not fit on one {device.id}: the batch is taken as 1")

    rows = []
    for context in lengths:
        each = model_terms.per_token_at(kept, context, work)
        room = work(kv_tokens, kv_budget=left, kv_bytes_per_token=each) if left > 0 else 0.0
        fits = model_terms.whole(work(concurrency, kv_tokens=room, context=context))
        if room and not fits:
            work.warn(f"no request of {context:,} tokens fits on one {device.id}: the batch is taken as 1")
        row: dict[str, Any] = {
            "context": context,
            "fits": fits,
            "batch": max(1, fits),
            "kv_bytes_per_token": each,
        }
        row |= model_terms.decode_intensities(spec, context, row["batch"], flops, read, each, work)
        reached = work(
            attainable_flops,
            intensity=row["intensity_with_attention"],
            peak_flops=peak,
            bandwidth=bandwidth,
        )
        row["share_of_peak"] = reached / peak
        row["bound_by"] = "memory" if row["intensity_with_attention"] < ridge else "compute"
        rows.append(row)

    return Roofline(
        inputs={
            "model": spec.id,
            "gpu": device.id,
            "weights": weights,
            "kv": kv,
            "contexts": lengths,
            "reserve_bytes": reserve,
            "tier": level,
        },
        peak_flops_per_s=peak,
        bandwidth_bytes_per_s=bandwidth,
        ridge_flop_per_byte=ridge,
        compute_precision=compute,
        weight_only_intensity_batch_1=single,
        weight_only_batch_to_ridge=to_ridge,
        flops_per_token=flops,
        weight_bytes_read=read,
        kv_bytes_per_token=kept.slope,
        at=tuple(rows),
        **work.shown(),
    )
