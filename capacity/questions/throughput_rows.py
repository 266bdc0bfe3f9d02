"""Rows of published benchmarks: what was served and how it was asked for, read from their columns and their notes."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from capplan.capacity.engines.budget import budget
from capplan.capacity.engines.cache_format import auto_format
from capplan.capacity.engines.deployment import Deployment
from capplan.capacity.engines.device import device_of
from capplan.capacity.questions.measured import Row, value, whole
from capplan.capacity.step_time.chip import Chip, chip_of
from capplan.capacity.step_time.forward import Layout, layout, sequence_bytes
from capplan.errors import CapplanError, InputError
from capplan.hardware import registry
from capplan.hardware.resolve import card
from capplan.models.resolve import Resolved, resolve
from capplan.registry import read_toml

MEASURED = (
    "output_tok_s_total",
    "total_tok_s",
    "tok_s_per_gpu",
    "tok_s_per_user",
    "ttft_ms_p50",
    "ttft_ms_p99",
    "tpot_ms_p50",
    "tpot_ms_p99",
    "ttft_ms_central",
    "tpot_ms_central",
)
NEEDED = ("engine", "model", "gpu", "scenario")
SCENARIOS = ("fixed-concurrency", "single-stream", "offline-max-throughput", "server-slo")
ENGINES = ("vllm", "sglang", "tensorrt-llm")

_SPREAD = 0.8  # InferenceX draws lengths evenly from this share of the nominal one up to all of it
_RATIO = re.compile(r"(?:range )?ratio (0?\.\d+)")
_WORKERS = re.compile(r"(prefill|decode) workers (\d+) x \(tp(\d+) dp(\d+) ep(\d+)\)")
_RATE = re.compile(r"open-loop (\d+(?:\.\d+)?) req/s")
_SPECULATED = re.compile(r"WITH speculative decoding")
_ONE_PHASE = re.compile(
    r"\b(?:prefill|decode) only|(?:PREFILL|DECODE|decode) GPUs only|PREFILL only|INPUT tok/s", re.IGNORECASE
)


@dataclass(frozen=True, slots=True)
class Pool:
    """So many replicas that are alike."""

    plan: Layout
    replicas: int
    most: float  # sequences that fit in the cache of one rank of attention

    @property
    def ranks(self) -> int:
        """Data-parallel ranks of attention, each with sequences of its own."""
        return self.replicas * self.plan.dp

    @property
    def gpus(self) -> int:
        return self.ranks * self.plan.tp * self.plan.pp


@dataclass(frozen=True, slots=True)
class Case:
    """One row, understood."""

    engine: str
    model: str
    chip: Chip
    pool: Pool
    prefill: Pool | None  # its own GPUs, where prefill is apart
    isl: float  # mean tokens
    osl: float
    alike: bool  # all requests have the same lengths
    scenario: str
    concurrency: float | None
    rate: float | None  # requests a second, of an open loop
    poll: float = 1.0  # passes between two looks of the engine for new requests
    requests_per_place: float = 10.0  # of a run, which starts with all places at once
    assumptions: list[str] = field(default_factory=list)


def case(row: Row) -> Case:
    """What a row asks. Raises InputError with the reason for a row that lacks what a prediction needs."""
    assumed: list[str] = []
    notes = row.get("notes", "")
    scenario = row["scenario"].strip()
    if scenario not in SCENARIOS:
        raise InputError(f"scenario {scenario[:40]!r} is not one of {', '.join(SCENARIOS)}")
    if _SPECULATED.search(notes):
        raise InputError("speculative decoding, and how much of it is accepted is not said")
    if _ONE_PHASE.search(notes):
        raise InputError("prefill or decode alone, of a deployment whose parallelism is not said")
    engine = row["engine"].strip().lower()
    if engine not in ENGINES:
        raise InputError(f"engine {engine[:40]!r} has no measured constants; one of {', '.join(ENGINES)}")
    isl, osl = _length(row, "isl"), _length(row, "osl")
    ratio = _RATIO.search(notes)
    if ratio:
        share = (1 + float(ratio[1])) / 2
        isl, osl = isl * share, osl * share
        assumed.append(f"lengths are drawn evenly from {ratio[1]} to 1 of the nominal ones, as the row says")
    gpu = _card(row["gpu"].strip())
    if gpu is None:
        raise InputError(f"gpu {row['gpu'][:60]!r} is no row of the registry")
    resolved = _resolved(row["model"].strip(), row.get("weight_dtype", "").strip())
    quantization = _quantization(resolved, row.get("weight_dtype", "").strip())
    kv = _kv(row, engine, quantization, resolved, gpu.id, assumed)
    common = (row["model"].strip(), row.get("weight_dtype", "").strip(), quantization, kv, gpu.id, engine)
    workers = {phase: tuple(map(int, rest)) for phase, *rest in _WORKERS.findall(notes)}
    if workers:
        if set(workers) != {"prefill", "decode"}:
            raise InputError("prefill and decode are apart, and the workers of one are not said")
        pools = {phase: _pool(common, (isl, osl), *sizes) for phase, sizes in workers.items()}
        pool, prefill = pools["decode"], pools["prefill"]
    else:
        tp = whole(row, "tp")
        gpus = whole(row, "n_gpus")
        if tp is None and gpus != 1:
            raise InputError("tp is blank")
        tp, pp, dp, ep = tp or 1, whole(row, "pp") or 1, whole(row, "dp") or 1, whole(row, "ep") or 1
        replicas = max(1, (gpus or tp * pp * dp) // (tp * pp * dp))
        pool, prefill = _pool(common, (isl, osl), replicas, tp, dp, ep, pp), None
    concurrency = _number(row, "concurrency")
    if scenario == "single-stream":
        concurrency = concurrency or 1.0
    if scenario == "fixed-concurrency" and concurrency is None:
        raise InputError("concurrency is blank")
    rate = _RATE.search(notes)
    if scenario == "server-slo" and rate is None and concurrency is None:
        raise InputError("the rate that was asked for is not said")
    return Case(
        engine=engine,
        model=resolved.model.id,
        chip=_chip(gpu.id),
        pool=pool,
        prefill=prefill,
        isl=isl,
        osl=osl,
        alike=ratio is None,
        scenario=scenario,
        concurrency=concurrency,
        rate=float(rate[1]) if rate else None,
        requests_per_place=float((_protocol(notes) or {}).get("requests_per_place", 10)),
        poll=_poll(notes, engine, gpu.id, concurrency or 0.0),
        assumptions=[*assumed, *resolved.assumptions],
    )


_card, _gpu, _resolved = cache(card), cache(registry.gpu), cache(resolve)


@cache
def _chip(gpu: str) -> Chip:
    return chip_of(_gpu(gpu))


def _length(row: Row, name: str) -> float:
    number = _number(row, name)
    if number is None:
        raise InputError(f"{name} is blank")
    return number


def _number(row: Row, name: str) -> float | None:
    text = row.get(name, "").strip()
    if not text:
        return None
    found = value(text)
    if isinstance(found, bool) or not isinstance(found, int | float) or not 0 < found < 1e9:
        raise InputError(f"{name} {text[:40]!r} is not a number above 0")
    return float(found)


def _quantization(resolved: Resolved, said: str) -> str | None:
    """MXFP4 checkpoints are called fp4, nvfp4 and fp8 in tables: there is one build of them."""
    if resolved.model.dtype == "mxfp4":
        return None
    return resolved.quantization


def _protocol(notes: str) -> Mapping[str, Any] | None:
    """What the scripts of a published benchmark set, where the notes name it."""
    return next((found for found in _protocols() if found["word"] in notes), None)


@cache
def _protocols() -> list[Mapping[str, Any]]:
    found: list[Mapping[str, Any]] = read_toml(Path(__file__).with_name("benchmark_protocols.toml"))[
        "protocol"
    ]
    return found


def _set_by(protocol: Mapping[str, Any], engine: str, model: str, weights: str, gpu: str) -> str:
    """The format of the cache that a benchmark's scripts set."""
    for rule in protocol["kv"]:
        if (
            rule["engine"] == engine
            and rule.get("model", "") in model
            and weights in rule.get("weights", [weights])
            and gpu.startswith(tuple(rule.get("gpus", [""])))
        ):
            return str(rule["format"])
    return "auto"


def _poll(notes: str, engine: str, gpu: str, concurrency: float) -> float:
    """Passes between two looks for new requests, as a benchmark's scripts set them."""
    protocol = _protocol(notes)
    for rule in protocol["poll"] if protocol else ():
        fits = rule["engine"] == engine and gpu.startswith(tuple(rule["gpus"]))
        if fits and concurrency >= rule["concurrency"] and "PD-disaggregated" not in notes:
            return float(rule["passes"])
    return 1.0


def _kv(
    row: Row, engine: str, quantization: str | None, resolved: Resolved, gpu: str, assumed: list[str]
) -> str:
    """The format of the cache: as said, as the benchmark's scripts set it, or the engine's for such a checkpoint."""
    said = row.get("kv_dtype", "").strip().lower()
    if said and said != "auto":
        return {"fp8_e4m3": "fp8", "bfloat16": "bf16", "float16": "fp16"}.get(said, said)
    weights = quantization or resolved.model.dtype
    protocol = _protocol(row.get("notes", ""))
    if protocol and not said:
        found = _set_by(protocol, engine, resolved.model.id, weights, gpu)
        if found != "auto":
            assumed.append(f"{found} cache, as the scripts of {protocol['word']} set it")
            return found
        return "bf16"
    plain = _resolved(row["model"].strip(), "").model
    if plain.dtype != weights:  # a build of it that the row names by its format alone
        found, told = auto_format(plain, engine, quantization=weights)
    else:
        found, told = auto_format(resolved.model, engine, quantization=quantization)
    assumed += told
    return found


@cache
def _plan(
    model: str, said: str, quantization: str | None, kv: str, gpu: str, engine: str,
    tp: int, pp: int, dp: int, whole_experts: bool,
) -> tuple[Layout, float]:  # fmt: skip
    """The layout of a rank, and the bytes that its engine leaves for the cache."""
    resolved = _resolved(model, said)
    plan = layout(
        resolved.model, quantization=quantization, kv=kv, tp=tp, pp=pp, dp=dp, expert_parallel=whole_experts
    )
    flags = Deployment(
        engine=engine,
        tensor_parallel_size=tp if engine == "vllm" else tp * dp,  # the others' data parallelism lies inside
        pipeline_parallel_size=pp,
        data_parallel_size=dp,
        enable_expert_parallel=whole_experts,
        quantization=quantization,
        max_model_len=4096,
    )
    try:
        left = budget(resolved.model, device_of(_gpu(gpu)), flags).kv
    except CapplanError:
        left = float("inf")
    return plan, left


def _pool(
    common: tuple[str, str, str | None, str, str, str],
    lengths: tuple[float, float],
    replicas: int,
    tp: int,
    dp: int,
    ep: int,
    pp: int = 1,
) -> Pool:
    plan, left = _plan(*common, tp, pp, dp, ep > 1)
    isl, osl = lengths
    # TensorRT-LLM takes the whole of a request before it starts; the others as it grows
    tokens = isl + (osl if common[-1] == "tensorrt-llm" else osl / 2)
    most = left * pp / sequence_bytes(plan, tokens)
    if most < 1:
        raise InputError(
            "the weights leave no room for a request of these lengths: the row can't be as it is said"
        )
    return Pool(plan, replicas, most)


def measured(row: Mapping[str, str]) -> dict[str, float | None]:
    """The measured columns."""
    found = {}
    for name in MEASURED:
        number = value(row.get(name, "") or "")
        found[name] = (
            float(number) if isinstance(number, int | float) and not isinstance(number, bool) else None
        )
    return found
