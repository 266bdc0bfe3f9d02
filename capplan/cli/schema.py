"""capplan schema"""

from __future__ import annotations

from importlib import import_module
from typing import Annotated, Any

import typer

from capplan.capacity.answer import Answer
from capplan.cli.render import print_json
from capplan.errors import UnknownNameError

# the answers that `--json` prints: their module in capacity/questions, and class
ANSWERS = {
    "kv": ("kv", "Kv"),
    "kv-side-by-side": ("kv_side_by_side", "KvSideBySide"),
    "fit": ("fit", "Fit"),
    "engine-fit": ("engine_fit", "EngineFit"),
    "roofline": ("roofline", "Roofline"),
    "prefill": ("prefill", "Prefill"),
    "decode": ("decode", "Decode"),
    "ops": ("ops", "Ops"),
    "whiteboard": ("whiteboard", "Whiteboard"),
    "perf": ("perf", "Perf"),
    "compare": ("compare", "Compare"),
    "calibrate": ("calibrate", "Calibrate"),
    "speculate": ("speculate", "Speculate"),
    "simulate": ("simulate", "Simulate"),
    "goodput": ("goodput", "Goodput"),
    "gpus": ("gpus", "Gpus"),
    "gpu": ("gpus", "GpuFacts"),
    "models": ("models", "Models"),
    "model": ("models", "ModelFacts"),
    "explain": ("formulas", "Formulas"),
    "check": ("check", "Check"),
    "validate-allocator": ("validate", "ValidateAllocator"),
    "validate-memory": ("validate_memory", "ValidateMemory"),
    "validate-kernels": ("validate_kernels", "ValidateKernels"),
    "validate-performance": ("validate_performance", "ValidatePerformance"),
    "probe-list": ("probe_list", "ProbeList"),
    "probe-report": ("probe_report", "ProbeReport"),
    "probe-compare": ("probe_compare", "ProbeCompare"),
    "probe-validate": ("probe_validate", "ProbeValidate"),
}
CALIBRATION_FILE = "calibration-file"  # what capplan probe run writes, beside what it prints


def command(
    name: Annotated[
        str | None, typer.Argument(metavar="ANSWER", help="An answer; their names are listed without.")
    ] = None,
) -> None:
    """The JSON Schema of what --json prints, or of the file of probe run.

    capplan schema

    capplan schema fit
    """
    if name is None:
        print("\n".join((*ANSWERS, CALIBRATION_FILE)))
    elif name == CALIBRATION_FILE:
        from capplan import calibration_schema

        print_json(calibration_schema.schema())
    else:
        print_json(schema(name))


def schema(name: str) -> dict[str, Any]:
    """The JSON Schema of an answer, made from its dataclass. Raises UnknownNameError."""
    if name not in ANSWERS:
        raise UnknownNameError("answer", name, (*ANSWERS, CALIBRATION_FILE), "capplan schema")
    from dataclasses import fields
    from typing import get_type_hints

    from pydantic import create_model

    module, class_name = ANSWERS[name]
    answer: type[Answer] = getattr(import_module(f"capplan.capacity.questions.{module}"), class_name)
    hints = get_type_hints(answer)
    shared = {field.name for field in fields(Answer)}
    # a field left out of the repr is left out of the result
    own = {f.name: (_printed(hints[f.name]), ...) for f in fields(answer) if f.name not in shared and f.repr}
    result = create_model(f"{class_name}Result", **own).model_json_schema()  # type: ignore[call-overload]
    result.pop("title", None)
    texts = {"type": "array", "items": {"type": "string"}}
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "$id": f"capplan/{name}/{answer.schema_version}",
        "title": f"capplan {name} --json",
        "description": (answer.__doc__ or "").strip().splitlines()[0],
        "type": "object",
        "properties": {
            "schema": {"const": f"capplan/{answer.question}/{answer.schema_version}"},
            "capplan": {"type": "string"},
            "inputs": {"type": "object"},
            "result": result,
            "assumptions": texts,
            "warnings": texts,
        },
        "required": ["schema", "capplan", "inputs", "result", "assumptions", "warnings"],
    }


def _printed(hint: Any) -> Any:
    """The type of a field as JSON has it: answers inside an answer are objects."""
    from typing import get_args

    inside = any(isinstance(part, type) and issubclass(part, Answer) for part in get_args(hint))
    return tuple[dict[str, Any], ...] if inside else hint
