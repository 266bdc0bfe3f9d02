"""Rows of published start-ups: what an engine was asked for, read from its columns and from the flags in its notes."""

from __future__ import annotations

import re
from dataclasses import replace
from datetime import date

from capplan.capacity.engines.defaults import version_after, version_on
from capplan.capacity.engines.deployment import Deployment
from capplan.capacity.engines.device import GIB, Device, device_of
from capplan.capacity.questions.measured import Row, switch, value, whole
from capplan.errors import InputError
from capplan.hardware.resolve import card, label_bytes
from capplan.models import drafters
from capplan.models.resolve import Resolved, resolve

MEASURED = (
    "m_weights_gib_per_gpu",
    "m_kv_gib_per_gpu",
    "m_kv_tokens",
    "m_max_concurrency",
    "m_activation_peak_gib",
    "m_cudagraph_gib",
)
NEEDED = ("engine", "model_id", "gpu", "tp", *MEASURED)

ENGINES = {"vllm": "vllm", "sglang": "sglang", "tensorrt-llm": "tensorrt-llm", "vllm-hpu": "vllm"}
_LABEL_SEEN = {"nvidia": 0.983, "amd": 0.996}  # of the label, what a process sees, for a card that has no row

_ASKED_BLOCKS = (
    16,
    32,
    64,
    128,
    256,
)  # a user asks for; another is what the engine made of a hybrid's states
# flags that have no column and stand in the notes
_NOTED = {
    "dcp": re.compile(r"decode_context_parallel_size=(\d+)|\bDCP\s?=?\s?(\d+)\b"),
    "fraction": re.compile(
        r"mem_fraction_static=(0?\.\d+)|free_gpu_mem(?:ory)?_fraction[= ](0?\.\d+)|gpu_memory_utilization=(0?\.\d+)"
    ),
    "free": re.compile(r"avail before load (?:only )?(\d+(?:\.\d+)?)"),
    "pinned": re.compile(r"PINNED at (\d+(?:\.\d+)?) GiB"),
    "dtype": re.compile(r"\bdtype=float32\b()"),
    "tables": re.compile(r"\bEngram tables (?:offloaded to host|on NVMe)()"),
    "drafter": re.compile(r"\bdrafter ([\w.-]+/[\w.-]+)"),
}


def noted(row: Row, what: str) -> str | None:
    """A flag out of the notes."""
    found = _NOTED[what].search(row.get("notes", ""))
    return next((group for group in found.groups() if group is not None), "") if found else None


def engine(row: Row) -> str:
    name = row["engine"].strip().lower()
    if name not in ENGINES:
        raise InputError(f"engine {name[:40]!r} is not one of {', '.join(dict.fromkeys(ENGINES.values()))}")
    return ENGINES[name]


def device(row: Row, assumed: list[str]) -> Device:
    """The card of a row: the memory that its log reports, or what the registry says of it."""
    name, reported = row["gpu"].strip(), _number(row, "gpu_mem_gib_reported")
    found = card(name)
    free = noted(row, "free")
    free_bytes = float(free) * GIB if free else None
    if found is not None:
        return device_of(found, total_bytes=reported * GIB if reported else None, free_bytes=free_bytes)
    vendor = "amd" if re.search(r"amd|radeon|instinct", name, re.IGNORECASE) else "nvidia"
    label = label_bytes(name)
    total = reported * GIB if reported else label * _LABEL_SEEN[vendor] if label else None
    if total is None:
        raise InputError(f"gpu {name[:60]!r} is no row of the registry, and its memory is not said")
    if reported is None:
        assumed.append(f"{name}: no row; a process sees {100 * _LABEL_SEEN[vendor]:g}% of the label")
    generation = "rocm" if vendor == "amd" else _named_generation(name)
    return Device(
        total_bytes=total,
        generation=generation,
        link="nvlink" if generation == "sm90" else "pcie",
        name=name,
        free_bytes=free_bytes,
    )


def _named_generation(name: str) -> str:
    if re.search(r"blackwell|50\d0\b|pro \d{4}", name, re.IGNORECASE):
        return "sm120"
    return "sm90" if re.search(r"h\d00|h20|gh200|80gb-class|93\.", name, re.IGNORECASE) else "sm80"


def model(row: Row) -> Resolved:
    found = resolve(row["model_id"], row.get("weight_quant", ""))
    if "--language-model-only" in row.get("notes", ""):
        return replace(found, model=found.model._replace(tower_weights=()))
    return found


def deployment(row: Row, quantization: str | None, assumed: list[str]) -> Deployment:
    """The flags of a row; what is blank is the engine's default in that version."""
    speculated = row.get("spec_decode", "").strip()
    pinned, kv = noted(row, "pinned"), row.get("kv_cache_dtype", "").strip().split(" ")[0]
    ranks, drafter = noted(row, "dcp"), _drafter(row, assumed)
    share = _number(row, "gpu_memory_utilization")
    if share is None and (said := noted(row, "fraction")):
        share = float(said)
    name, block = engine(row), whole(row, "block_size")
    if share is not None and share > 1:
        raise InputError(f"gpu_memory_utilization {share:g} is above 1")
    return Deployment(
        engine=name,
        version=_version(row, assumed) if name == "vllm" else _plain_version(row),
        tensor_parallel_size=whole(row, "tp") or 1,
        pipeline_parallel_size=whole(row, "pp") or 1,
        data_parallel_size=whole(row, "dp") or 1,
        enable_expert_parallel=(whole(row, "ep") or 1) > 1,
        decode_context_parallel_size=int(ranks) if ranks else 1,
        gpu_memory_utilization=share,
        max_model_len=whole(row, "max_model_len"),
        max_num_seqs=whole(row, "max_num_seqs"),
        max_num_batched_tokens=whole(row, "max_num_batched_tokens"),
        block_size=block if block in _ASKED_BLOCKS else None,
        hybrid_block=None if block in _ASKED_BLOCKS else block,
        kv_cache_dtype=kv or "auto",
        kv_cache_memory_bytes=round(float(pinned) * GIB) if pinned else None,
        enforce_eager=switch(row, "enforce_eager") or False,
        quantization=quantization,
        tables_on_host=None if noted(row, "tables") is None else True,
        speculative_method=_method(speculated),
        num_speculative_tokens=_speculated(speculated, default=0 if drafter else 1),
        draft_model=drafter,
    )


def _version(row: Row, assumed: list[str]) -> str:
    """The version that a row names; else what was current on its day."""
    said = row.get("engine_version", "").strip()
    found = re.search(r"\b0\.(\d{1,2})\.\d{1,2}", said)
    if found and int(found[1]) >= 5:
        return found[0]
    day = re.match(r"(\d{4})(?:-(\d{2}))?(?:-(\d{2}))?", row.get("date", ""))
    if day is None:
        assumed.append("neither version nor day is said: vllm 0.24.0 is taken")
        return "0.24.0"
    try:
        when = date(int(day[1]), int(day[2] or 7), int(day[3] or 15))
    except ValueError as error:
        raise InputError(f"date {row['date'][:40]!r} is no day") from error
    if re.search(r"\bcurrent main\b", row.get("notes", "")):
        version = version_after(when)
        assumed.append(f"main of {when.isoformat()}: what it became, vllm {version}")
        return version
    version = version_on(when)
    assumed.append(f"version not said: vllm {version} was current on {when.isoformat()}")
    return version


def _plain_version(row: Row) -> str | None:
    """The version of another engine; else one of its time, where defaults have changed since."""
    found = re.search(r"\b\d{1,2}\.\d{1,3}\.\d{1,3}", row.get("engine_version", ""))
    if found:
        return found[0]
    day = row.get("date", "")[:7]
    since = {"sglang": ("2024", "2025-08", "0.4.9"), "tensorrt-llm": ("2024-10", "2025-09", "0.16.0")}
    first, last, version = since[engine(row)]
    return version if first <= day < last else None


def _method(text: str) -> str | None:
    lowered = text.lower()
    return next(
        (name for name in ("mtp", "eagle3", "eagle", "dflash", "dspark", "ngram") if name in lowered), None
    )


def _drafter(row: Row, assumed: list[str]) -> str | None:
    """The drafter that the notes name, where it is on record for vLLM; else the only one that was trained for the model."""
    if engine(row) != "vllm":
        return None
    if name := noted(row, "drafter"):
        return name if drafters.known(name) else None
    speculated = row.get("spec_decode", "").strip().split(" ")[0].lower()
    if speculated != "dflash":  # a later DFlash has drafters of its own
        return None
    found = drafters.made_for(model(row).model.id, "dflash")
    if found:
        assumed.append(f"drafter not named: {found} is the one on record for the model")
    return found


def _speculated(text: str, default: int = 1) -> int:
    if not text or text.lower() in ("none", "no", "off", "false"):
        return 0
    found = re.search(r"(\d+) tokens|k=(\d+)|block (\d+)", text)
    return int(next(group for group in found.groups() if group)) if found else default


def _number(row: Row, name: str) -> float | None:
    """A positive number; None where the cell is blank."""
    text = row.get(name, "").strip()
    if not text:
        return None
    found = value(text)
    if isinstance(found, bool) or not isinstance(found, int | float) or not 0 < found < 1e9:
        raise InputError(f"{name} {text[:40]!r} is not a number above 0")
    return float(found)


def confidence(row: Row) -> str:
    """`pinned`, `low` or `stated`: rows that are scored apart."""
    notes = row.get("notes", "")
    if "PINNED" in notes:
        return "pinned"
    return "low" if "LOWCONF" in notes else "stated"


def started(row: Row) -> bool | None:
    """Whether the engine came up, by the notes' FAIL; None where nothing says so."""
    if re.search(r"\bFAIL\b", row.get("notes", "")):
        return False
    return True if row.get("m_kv_tokens") or row.get("m_kv_gib_per_gpu") else None
