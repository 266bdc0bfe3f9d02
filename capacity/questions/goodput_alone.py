"""One request alone: what no number of replicas makes faster, and what would."""

from __future__ import annotations

from dataclasses import replace
from math import inf
from typing import TYPE_CHECKING, Any

from capplan.capacity.answer import Working
from capplan.capacity.engines.deployment import Deployment
from capplan.capacity.questions import services
from capplan.capacity.questions.deployed import Deployed
from capplan.capacity.questions.perf import placed, refused
from capplan.errors import InputError
from capplan.units import seconds, tokens

if TYPE_CHECKING:
    from capplan.capacity.simulator.requests import Service
    from capplan.capacity.simulator.slo import Slo
    from capplan.capacity.simulator.workloads import Mix
    from capplan.hardware.spec import Gpu

_LOOKED_AT = 1000  # requests
_NODE = 8  # GPUs, where it is not on record
_NAMED = 2  # other GPUs, the cheapest that are fast enough


def alone(service: Service, mix: Mix, slo: Slo) -> list[tuple[str, float, float]]:
    """Name, value and bound of each bound, where every request has the service for itself."""
    import numpy as np

    pairs = zip(mix.isl[:_LOOKED_AT].tolist(), mix.osl[:_LOOKED_AT].tolist(), strict=True)
    known: dict[tuple[int, int], tuple[float, float]] = {}
    times = [known.setdefault(pair, services.idle(service, *pair)) for pair in pairs]
    first, later = np.array([t for t, _ in times]), np.array([s for _, s in times])
    whole = first + later * (mix.osl[:_LOOKED_AT] - 1)
    values = {"ttft": first, "tpot": later, "itl": later, "e2e": whole}
    found = [
        (bound.name, float(np.quantile(values[bound.kind], bound.share)), bound.seconds)
        for bound in slo.bounds
    ]
    if slo.joint is not None:
        share = slo.joint.share
        found.append((f"ttft-p{100 * share:g}", float(np.quantile(first, share)), slo.joint.ttft))
        found.append((f"tpot-p{100 * share:g}", float(np.quantile(later, share)), slo.joint.tpot))
    return found


def words(name: str) -> str:
    kind, _, share = name.partition("-")
    return f"{kind.upper()} {share}"


def remedies(found: Deployed, mix: Mix, slo: Slo, longest: int) -> tuple[dict[str, Any], ...]:
    """What would let one request alone meet the SLO: more ranks, narrower weights, shorter prompts, another GPU."""
    told: list[dict[str, Any]] = []

    def tries(what: str, kind: str, flags: Deployment, card: Gpu, ranks: int) -> bool:
        try:
            other = placed(found.model, card, flags, longest, ranks, Working())
            if refused(other, longest) is not None:
                return False
            whole = services.colocated(other, longest, scheduler="prefill-first", chunked=False)
            times = alone(whole, mix, slo)
        except InputError:
            return False
        if any(value > bound for _, value, bound in times):
            return False
        values = ", ".join(f"{words(name)} {seconds(value)}" for name, value, _ in times)
        told.append({"kind": kind, "what": what, "then": values})
        return True

    flags, ranks = found.flags, found.plan.tp
    flags = replace(flags, max_num_batched_tokens=None, max_num_seqs=None)
    node = found.gpu.max_gpus_per_node or _NODE
    for more in (2 * ranks, 4 * ranks, 8 * ranks):
        if more <= node and tries(f"--tp {more}", "tp", flags, found.gpu, more):
            break
    for dtype in ("fp8", "nvfp4"):
        if dtype not in (flags.quantization, found.model.dtype) and tries(
            f"--weights {dtype}", "weights", replace(flags, quantization=dtype), found.gpu, ranks
        ):
            break
    from capplan.hardware.registry import all_gpus

    faster = sorted(
        (
            card
            for card in all_gpus()
            if card.price_range and (card.memory_bandwidth or 0) > (found.gpu.memory_bandwidth or 0)
        ),
        key=lambda card: card.price_range or (inf, inf),
    )
    named = 0
    for card in faster:
        if named < _NAMED and card.id != found.gpu.id:
            named += tries(f"--gpu {card.id}", "gpu", flags, card, ranks)
    shorter = _longest_prompt(found, slo, longest)
    if shorter:
        told.append(
            {"kind": "isl", "what": f"prompts of at most {tokens(shorter)}", "then": "one alone is in time"}
        )
    return tuple(told)


def _longest_prompt(found: Deployed, slo: Slo, longest: int) -> int:
    """Tokens of a prompt that one request alone has in time; 0 where TTFT is not what is missed."""
    if slo.ttft == inf:
        return 0
    service = services.colocated(found, longest, scheduler="prefill-first", chunked=False)
    if services.idle(service, 1, 2)[1] > slo.tpot or services.idle(service, 1, 2)[0] > slo.ttft:
        return 0
    low, high = 1, longest
    while high - low > max(1, low // 100):
        middle = (low + high) // 2
        low, high = (middle, high) if services.idle(service, middle, 2)[0] <= slo.ttft else (low, middle)
    return low if low < longest - 1 else 0
