"""The JSON Schema of the calibration file that the probes write: capplan.calibration/1, `capplan schema calibration-file`.

Inside this major version it only grows.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from capplan.calibration_file import SCHEMA

_NUMBER: dict[str, Any] = {"type": ["number", "null"]}
_TEXT: dict[str, Any] = {"type": ["string", "null"]}
_TEXTS: dict[str, Any] = {"type": "array", "items": {"type": "string"}}
_TYPES: dict[str, tuple[type, ...]] = {
    "null": (type(None),),
    "boolean": (bool,),
    "integer": (int,),
    "number": (int, float),
    "string": (str,),
    "array": (list,),
    "object": (dict,),
}
_STATUS = ["pass", "warn", "fail", "invalid", "skipped", "unsupported"]


def _object(required: dict[str, Any], **more: Any) -> dict[str, Any]:
    """An object that has at least these keys."""
    return {"type": "object", "properties": required | more, "required": list(required)}


def _or_null(schema: dict[str, Any]) -> dict[str, Any]:
    return {"anyOf": [schema, {"type": "null"}]}


def schema() -> dict[str, Any]:
    """The JSON Schema; times in seconds, sizes in bytes, rates in byte/s and FLOP/s."""
    stat = _object({name: {"type": "number"} for name in ("n", "median", "min", "p10", "p90", "iqr_rel")})
    telemetry = _object(
        {
            **{
                name: _or_null({"$ref": "#/$defs/stat"})
                for name in ("sm_mhz", "mem_mhz", "power_w", "temp_c")
            },
            "reasons_seen": _TEXTS,
            "samples": {"type": "integer"},
            "interval_ms": {"type": "integer"},
        }
    )
    numerics = _object(
        {
            "ref": {"const": "fp64"},
            "ok": {"type": "boolean"},
            **{name: {"type": "number"} for name in ("rel_fro", "max_abs", "cos_diff", "bound")},
            "nan": {"type": "integer"},
            "why": {"type": "string"},
            "bit_stable": {"type": ["boolean", "null"]},
        }
    )
    row = _object(
        {
            "id": {"type": "integer", "minimum": 0},
            "probe": {"type": "string"},
            "version": {"type": "integer"},
            "status": {"enum": _STATUS},
            "reason": _TEXT,
            "mode": {"enum": ["burst", "sustained", "graph", "eager", None]},
            "cache": {"enum": ["cold", "warm", "uncertain", None]},
            "kernel": _TEXT,
            "backend": _TEXT,
            "case": {"type": "object"},
            "shape_set": _TEXT,
            "dtype": _TEXT,
            "rotation": {"type": ["integer", "null"]},
            "of": {"enum": ["memory", "host", "link", "disk"]},
            "time_s": _or_null({"$ref": "#/$defs/stat"}),
            "work": _object({"flops": _NUMBER, "bytes": _NUMBER}),
            "achieved": _object({"flops_ps": _NUMBER, "bytes_ps": _NUMBER}),
            "values": {"type": "object", "additionalProperties": {"type": "number"}},
            "pct_spec": _NUMBER,
            "predicted_s": _NUMBER,
            "rel_err": _NUMBER,
            "formula": _TEXT,
            "numerics": _or_null(numerics),
            "telemetry": _or_null({"$ref": "#/$defs/telemetry"}),
            "contended": {"type": "boolean"},
            "notes": _TEXTS,
        },
        shape_set_sha=_TEXT,
    )
    # a number is exported only where the fp64 check passed
    row["if"] = {"properties": {"status": {"enum": ["fail", "skipped", "unsupported"]}}}
    row["then"] = {"properties": {"time_s": {"type": "null"}}}
    value = _object(
        {
            "value": {"type": "number", "minimum": 0},
            "unit": {"type": "string"},
            "lo": {"type": "number", "minimum": 0},
            "hi": {"type": "number", "minimum": 0},
            "n": {"type": "integer", "minimum": 0},
            "from": _TEXTS,
            "trust": {"enum": ["measured", "interpolated", "spec", "default"]},
        }
    )
    leaf = {"if": {"required": ["value"]}, "then": value, "else": {"$ref": "#/$defs/derived"}}
    device = _object(
        {
            "kind": {"enum": ["cuda", "rocm", "cpu"]},
            "index": {"type": "integer"},
            "name": {"type": "string"},
            "arch": {"type": "string"},
            "uuid_sha256_16": _or_null({"type": "string", "pattern": "^[0-9a-f]{16}$"}),
            "sku_guess": _TEXT,
            "sku_match": {"enum": ["exact", "name_only", "none"]},
            "sm_count": {"type": "integer"},
            "l2_bytes": {"type": "integer"},
            "mem_total_bytes": {"type": "integer"},
            "ecc": {"type": ["boolean", "null"]},
            "mig": {"type": ["object", "null"]},
            **dict.fromkeys(("max_sm_mhz", "max_mem_mhz", "power_limit_w", "power_default_w"), _NUMBER),
            "pcie": {"type": ["object", "null"]},
            "fp8_flavour": {"enum": ["fn", "fnuz", None]},
        },
        gpus={"type": ["integer", "null"]},
        nvlink=_or_null(_object({"links": {"type": "integer"}, "active": {"type": "integer"}})),
    )
    spec = _object(
        {
            "source": {"type": "string"},
            "peak_flops_dense": {"type": "object", "additionalProperties": {"type": "number"}},
            "hbm_bps": _NUMBER,
        },
        pcie_bps=_NUMBER,
        nvlink_uni_bps=_NUMBER,
        capacity_label=_TEXT,
    )
    quality = _object(
        {
            "verdict": {"enum": ["ok", "degraded", "unusable", "cpu_only"]},
            "drift": _NUMBER,
            "contended": {"type": "boolean"},
            "invalid": {"type": "integer"},
            "failed": {"type": "integer"},
            "warnings": _TEXTS,
        }
    )
    body = _object(
        {
            "schema": {"const": SCHEMA},
            "method_version": {"type": "integer"},
            "capplan_version": {"type": "string"},
            "created_utc": {"type": "string"},
            "profile": {"enum": ["quick", "default", "full"]},
            "duration_s": {"type": "number"},
            "seed": {"type": "integer"},
            "label": _TEXT,
            "device": device,
            "stack": {"type": "object"},
            "spec": spec,
            "telemetry": _or_null({"$ref": "#/$defs/telemetry"}),
            "results": {"type": "array", "items": row},
            "derived": {"$ref": "#/$defs/derived"},
            "quality": quality,
            "integrity": _object({"sha256_of_body": {"type": "string", "pattern": "^[0-9a-f]{64}$"}}),
        }
    )
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "$id": SCHEMA,
        "title": "capplan probe run --out FILE",
        "description": "What a device was measured to do, and the constants that follow from it.",
        **body,
        "$defs": {
            "stat": stat,
            "telemetry": telemetry,
            "derived": {"type": "object", "additionalProperties": {"type": "object", **leaf}},
        },
    }


def mismatch(found: Any) -> str | None:
    """Where a calibration is first unlike its schema, and how; None where it is not."""
    try:
        return _mismatch(found, _RULES, "")
    except RecursionError:
        return "nested too deep"


def _mismatch(found: Any, rule: dict[str, Any], where: str) -> str | None:
    """By the keywords that schema() uses."""
    if "$ref" in rule:
        rule = _RULES["$defs"][rule["$ref"].rpartition("/")[2]]
    if "anyOf" in rule:
        first, *others = rule["anyOf"]
        return (
            None
            if any(_mismatch(found, other, where) is None for other in others)
            else _mismatch(found, first, where)
        )
    kinds = rule.get("type", [])
    kinds = [kinds] if isinstance(kinds, str) else kinds
    if kinds and not any(_is(found, kind) for kind in kinds):
        return f"{where or 'it'} is no {' or '.join(kinds)}"
    accepted = rule.get("enum", [rule["const"]] if "const" in rule else None)
    if accepted is not None and found not in accepted:
        return f"{where} is not {' or '.join(map(str, accepted))}"
    if "minimum" in rule and found is not None and found < rule["minimum"]:
        return f"{where} is below {rule['minimum']}"
    if "pattern" in rule and not re.search(rule["pattern"], found):
        return f"{where} is not like {rule['pattern']}"
    if missing := [name for name in rule.get("required", ()) if name not in found]:
        return f"{where or 'it'} has no {missing[0]!r}"
    if "if" in rule:
        then = "else" if _mismatch(found, rule["if"], where) else "then"
        if then in rule and (told := _mismatch(found, rule[then], where)):
            return told
    return next(
        (told for each, of, name in _inside(found, rule, where) if (told := _mismatch(each, of, name))), None
    )


def _is(found: Any, kind: str) -> bool:
    return isinstance(found, _TYPES[kind]) and (kind == "boolean" or not isinstance(found, bool))


def _inside(found: Any, rule: dict[str, Any], where: str) -> Iterator[tuple[Any, dict[str, Any], str]]:
    """What is inside an object or an array, the rule for it, and where it is."""
    if isinstance(found, dict):
        named, others = rule.get("properties", {}), rule.get("additionalProperties", {})
        for name, each in found.items():
            yield each, named.get(name, others), f"{where}.{name[:60]}".lstrip(".")
    elif isinstance(found, list):
        for place, each in enumerate(found):
            yield each, rule.get("items", {}), f"{where}[{place}]"


_RULES = schema()
