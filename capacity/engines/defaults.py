"""What an engine takes for a flag that is not given, by version; and the constants that were fitted to its logs."""

from __future__ import annotations

import tomllib
from dataclasses import replace
from datetime import date
from functools import cache
from pathlib import Path
from typing import Any

from capplan.capacity.engines.deployment import Deployment
from capplan.capacity.engines.device import GIB, Device
from capplan.capacity.engines.sglang import mem_fraction_static
from capplan.capacity.engines.vllm_rules import ordered
from capplan.capacity.engines.weights import method
from capplan.errors import InputError
from capplan.models.spec import Model

ENGINES = ("vllm", "sglang", "tensorrt-llm")
NEWEST = "0.33.0"
_V1 = {"cuda": "0.8.0", "rocm": "0.10.0"}  # the first version whose default engine is V1
_CHUNKED = (0, 5, 4)  # from here V0 prefills prompts past 32k in chunks (not on ROCm)


@cache
def data() -> dict[str, Any]:
    """memory_constants.toml."""
    return tomllib.loads(Path(__file__).with_name("memory_constants.toml").read_text("utf-8"))


@cache
def constant(name: str) -> float:
    """A fitted constant; those in GiB as bytes."""
    row = next(row for row in data()["constant"] if row["id"] == name)
    return float(row["value"]) * (GIB if row["unit"] == "GiB" else 1)


def version_on(day: date) -> str:
    """The vLLM that was current on a day.

    >>> version_on(date(2025, 10, 31))
    '0.11.0'
    """
    releases: dict[str, date] = data()["releases"]
    found = [version for version, released in releases.items() if released <= day]
    return found[-1] if found else next(iter(releases))


def version_after(day: date) -> str:
    """The first vLLM released later than a day, which a build of main on that day became; else the newest.

    >>> version_after(date(2025, 10, 31))
    '0.11.1'
    """
    releases: dict[str, date] = data()["releases"]
    return next((version for version, released in releases.items() if released > day), [*releases][-1])


def defaults(version: str) -> dict[str, Any]:
    """The defaults of vLLM's flags in a version."""
    found: dict[str, Any] = {}
    for row in data()["vllm"]:
        if ordered(row["since"]) <= ordered(version):
            found |= row
    if not found:
        raise InputError(f"vllm {version!r} is older than 0.5, the first whose defaults are on record")
    return found


def with_defaults(model: Model, device: Device, asked: Deployment) -> Deployment:
    """The deployment with every blank flag filled in by the engine's default of its version."""
    if asked.engine not in ENGINES:
        raise InputError(f"engine {asked.engine!r} is not on record; one of {', '.join(ENGINES)}")
    length = asked.max_model_len or model.max_context
    if length is None:
        raise InputError(f"the context of {model.id} is not known; give max_model_len")
    version = knowing(model, asked.version or NEWEST) if asked.engine == "vllm" else (asked.version or "")
    quant = None if asked.quantization is None else method(asked.quantization)
    filled = replace(asked, version=version, max_model_len=length, quantization=quant)
    if asked.engine == "sglang":
        share = mem_fraction_static(device, asked)
    elif asked.engine == "tensorrt-llm":
        share = float(data()["tensorrt-llm"]["free_gpu_memory_fraction"])
    else:
        found = defaults(version)
        share = found["gpu_memory_utilization"]
        batch = _batch(found, device)
        tokens = asked.max_num_batched_tokens or batch["max_num_batched_tokens"]
        if asked.max_num_batched_tokens is None and at_once(version, device, length):
            tokens = max(tokens, length)
        seqs = min(asked.max_num_seqs or batch["max_num_seqs"], tokens)
        filled = replace(filled, max_num_batched_tokens=tokens, max_num_seqs=seqs)
    if filled.gpu_memory_utilization is None:
        filled = replace(filled, gpu_memory_utilization=share)
    return filled


def knowing(model: Model, version: str) -> str:
    """The version of vLLM, or the first that knows the model's family where that is later."""
    first = data()["known_since"].get(model.family)
    return first if first and ordered(version) < ordered(first) else version


def is_v0(version: str, device: Device) -> bool:
    """Whether a version of vLLM runs its first engine by default."""
    return ordered(version) < ordered(_V1["rocm" if device.generation == "rocm" else "cuda"])


def at_once(version: str, device: Device, length: int) -> bool:
    """Whether a prompt is prefilled in one batch, as V0 does unless it is very long."""
    chunked = length > 32768 and ordered(version) >= _CHUNKED and device.generation != "rocm"
    return is_v0(version, device) and not chunked


def _batch(found: dict[str, Any], device: Device) -> dict[str, int]:
    a100 = device.generation == "sm80"
    shared = device.unified and "largest" in found
    for name in ("largest", "large"):
        size: dict[str, int] | None = found.get(name)
        if size and device.total_bytes >= size["at_least_gib"] * GIB and not a100 and not shared:
            return size
    small: dict[str, int] = found["small"]
    return small


def version_of(flags: Deployment) -> tuple[int, ...]:
    """vLLM's version as numbers that compare."""
    return ordered(flags.version or NEWEST)
