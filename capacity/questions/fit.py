"""What is left of the memory after the weights, and how many requests fit?"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from capplan import units
from capplan.capacity import concurrency as requests
from capplan.capacity import memory as budget
from capplan.capacity.answer import Answer, Working
from capplan.capacity.cache import Cache
from capplan.capacity.questions import asked, gpu_terms, model_terms
from capplan.errors import InputError
from capplan.models.spec import Model
from capplan.units import counted, gib, tokens

if TYPE_CHECKING:
    from capplan.capacity.step_time.calibration import Calibration
    from capplan.hardware.spec import Gpu
    from capplan.report import Report


@dataclass(frozen=True, slots=True, kw_only=True)
class Fit(Answer):
    """The memory budget of one GPU, and the requests that fit in it."""

    question: ClassVar[str] = "fit"

    memory_bytes: float  # what weights and cache share, at the tier
    memory_label_bytes: float
    memory_reported_bytes: float | None
    memory_visible_bytes: float | None
    weight_bytes: float
    reserve_bytes: float
    kv_budget_bytes: float  # negative when the weights do not fit
    kv_bytes_per_token: float
    kv_bytes_at: dict[str, float]  # context -> cache of one request
    streams: tuple[dict[str, Any], ...]  # what alike layers keep of a request
    kv_tokens: int  # that fit, in requests of the first context
    concurrency: dict[str, float]  # context -> requests, not rounded
    requests: dict[str, int]  # context -> whole requests
    gpus_for_one_request: dict[str, int | None]  # context -> GPUs whose pooled memory holds weights and cache
    answered_yes: bool

    @property
    def fits(self) -> bool:
        return self.answered_yes

    def sweep(self) -> list[dict[str, Any]]:
        return [
            {
                "context": int(context),
                "concurrency": self.concurrency[context],
                "requests": count,
                "gpus_for_one_request": self.gpus_for_one_request[context],
            }
            for context, count in self.requests.items()
        ]

    def report(self) -> Report:
        from capplan.report import Report, Table

        model, gpu = self.inputs["model"], self.inputs["gpu"]
        if self.kv_budget_bytes <= 0:
            need = next(iter(self.gpus_for_one_request.values()))
            headline = (
                f"{model} does not fit on one {gpu}: {gib(self.weight_bytes)} of weights and "
                f"{gib(self.reserve_bytes)} kept back"
                + (f"; the memory of {need} would hold it" if need else "")
            )
        else:
            first, count = next(iter(self.requests.items()))
            headline = (
                f"{model} on one {gpu}: {counted(count, 'request')} of {tokens(int(first))}; "
                f"{self.kv_tokens:,} tokens of KV cache"
            )
            if any(not stream["bytes_per_token"] for stream in self.streams):
                headline += " at that length"  # windows and states make a token's cost depend on it
            if not self.fits:
                longest = max(int(context) for context, found in self.requests.items() if not found)
                headline += f"; none of {tokens(longest)}"
        memory_name = gpu_terms.memory_name(self.inputs["tier"], self.memory_bytes, self.memory_visible_bytes)
        share = 100 / self.memory_bytes
        left = f"{abs(self.kv_budget_bytes) * share:.0f}%, {self.inputs['kv']}"
        per_token = f"{units.format(self.kv_bytes_per_token / 1024, '1', 4)} KiB a token"
        lines = (
            ("memory", gib(self.memory_bytes), memory_name),
            (
                "weights",
                gib(self.weight_bytes),
                f"{self.weight_bytes * share:.0f}%, {self.inputs['weights']}",
            ),
            ("reserve", gib(self.reserve_bytes), f"{self.reserve_bytes * share:.0f}%"),
            (
                "KV cache" if self.kv_budget_bytes >= 0 else "missing",
                gib(abs(self.kv_budget_bytes)),
                f"{left}, {per_token}",
            ),
        )
        rows = tuple(
            (
                tokens(int(context)),
                f"{count:,}",
                gib(self.kv_bytes_at[context]),
                str(self.gpus_for_one_request[context] or "-"),
            )
            for context, count in self.requests.items()
        )
        return Report(
            headline,
            (
                Table(lines),
                Table(rows, ("context", "requests at once", "KV cache of one", "GPUs one needs")),
            ),
            self.assumptions,
            self.warnings,
        )


def _mean(kept: Cache, each: float, length: int) -> str:
    return "" if each == kept.slope else f"the mean over a request of {length:,} tokens"


def fit(
    model: str | Model,
    gpu: str | Gpu,
    *,
    weights: str = "auto",
    kv: str = "auto",
    contexts: Sequence[int] | int | None = None,
    context: int | None = None,
    reserve: float | None = None,
    tier: str = "engine",
    calibration: Calibration | None = None,
) -> Fit:
    """The memory budget of one GPU and the requests that fit in it.

    model, gpu: registry names, a path to a config.json, or a Model and a Gpu.
    weights, kv: precisions; `auto` is the checkpoint's own, and a 16-bit cache.
    contexts: tokens of a request; the answer is yes when one request of each named length fits (of the
    shortest usual one when none is named). `context` is the same for a single length.
    reserve: bytes kept back; 4 GiB when not given.
    tier: `whiteboard` (label in decimal GB, one precision throughout) or `engine` (memory a process sees,
    tensors one by one).
    calibration: of the probes on this GPU: the memory is what they saw.

    Raises UnknownNameError, DataFileError, InputError.

    >>> fit("70b-class", "h200-sxm", weights="fp8", kv="fp16", contexts=[8000], tier="whiteboard").requests
    {'8000': 25}
    """
    spec, device, level = asked.as_model(model), asked.as_gpu(gpu), asked.known_tier(tier)
    if context is not None and contexts is not None:
        raise InputError("both context and contexts are given; one of them is enough")
    wanted = context if contexts is None else contexts
    work = Working()
    work.assume(*asked.assumed_of(spec))
    if calibration is not None:
        if level == "whiteboard":
            raise InputError("--tier whiteboard takes the label's memory: a calibration does not go with it")
        device = gpu_terms.with_memory(device, calibration)
        work.assume(f"memory is from {calibration.name}, measured on {calibration.created}")
    lengths = asked.known_contexts(wanted, spec, work)
    weights, kv = asked.weights_precision(weights, spec), asked.kv_precision(kv, spec)

    memory = gpu_terms.memory(device, level, work)
    weight_bytes = model_terms.weights_in_memory(spec, weights, level, work)
    reserve = asked.known_reserve(reserve, level, work)
    left = work(budget.kv_budget, memory=memory, weight_bytes=weight_bytes, reserve=reserve)
    kept = model_terms.cache_of(spec, kv, work)
    cost = {length: model_terms.per_token_at(kept, length, work) for length in lengths}
    room = {
        length: work(budget.kv_tokens, _mean(kept, each, length), kv_budget=left, kv_bytes_per_token=each)
        if left > 0
        else 0.0
        for length, each in cost.items()
    }
    at_once = {
        str(length): work(requests.concurrency, kv_tokens=room[length], context=length) for length in lengths
    }
    whole = {length: model_terms.whole(count) for length, count in at_once.items()}
    needed = {
        str(length): model_terms.gpus_needed(length, each, weight_bytes, memory, reserve, work)
        for length, each in cost.items()
    }
    if any((count or 0) > 1 for count in needed.values()):
        work.assume(
            "GPUs that one request needs: their memory is pooled, whatever numbers a model can be split over"
        )
    must_fit = list(whole.values()) if wanted is not None else list(whole.values())[:1]
    return Fit(
        inputs={
            "model": spec.id,
            "gpu": device.id,
            "weights": weights,
            "kv": kv,
            "contexts": lengths,
            "reserve_bytes": reserve,
            "tier": "measured" if calibration else level,
            **({"calibration": calibration.name} if calibration else {}),
        },
        memory_bytes=memory,
        memory_label_bytes=device.memory_label_bytes,
        memory_reported_bytes=device.memory_reported_bytes,
        memory_visible_bytes=device.memory_visible_bytes,
        weight_bytes=weight_bytes,
        reserve_bytes=reserve,
        kv_budget_bytes=left,
        kv_bytes_per_token=kept.slope,
        kv_bytes_at={str(length): each * length for length, each in cost.items()},
        streams=model_terms.streams_of(kept),
        kv_tokens=int(room[lengths[0]]),
        concurrency=at_once,
        requests=whole,
        gpus_for_one_request=needed,
        answered_yes=all(count >= 1 for count in must_fit),
        **work.shown(),
    )
