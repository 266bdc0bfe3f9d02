"""What --json prints is what `capplan schema NAME` describes.

Inside a major version a schema only grows: keys are added, none is removed, renamed or given another type.
The snapshots hold it to that; after adding a key, write them anew and read the difference:

    CAPPLAN_SNAPSHOTS=write python -m pytest tests/test_schema.py
"""

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from capplan.cli.schema import ANSWERS

Run = Callable[..., tuple[int, str, str]]
SNAPSHOTS = Path(__file__).parent / "snapshots"
ROOT = Path(__file__).parent.parent
MADE = ROOT / "tests/probes/made.json"  # a calibration with planted constants (tests/probes/conftest.py)
CONFIG = str(ROOT / "examples/llama-3.1-70b/config.json")

# an answer's name -> command lines that print it
LINES: dict[str, list[str]] = {
    "kv": ["kv llama-3.3-70b", "kv 70b-class --kv fp8", f"kv {CONFIG} --context 1,2,3 --tier whiteboard"],
    "kv-side-by-side": ["kv llama-3.1-8b qwen3-8b", f"kv phi-2 {CONFIG} --context 1k..8k"],
    "fit": [
        "fit llama-3.3-70b --gpu h200 --weights fp8",
        "fit llama-3.3-70b --gpu l4",
        "fit 70b-class --gpu gaudi3 --tier whiteboard",
        "fit llama-3.1-8b --gpu l4 --reserve 30GiB",
    ],
    "engine-fit": [
        "fit llama-3.1-8b --gpu h100 --engine vllm",
        "fit llama-3.3-70b --gpu h100 --engine-version 0.19.0 --context 8k",
        "fit qwen3-8b --gpu l4 --engine sglang",
    ],
    "roofline": ["roofline llama-3.3-70b --gpu h200 --weights fp8", "roofline phi-2 --gpu t4 --context 1k"],
    "prefill": [
        "prefill llama-3.3-70b --gpu h200",
        "prefill opt-13b --gpu mi300x --utilisation 1",
        "prefill 70b-class --gpu gaudi3",
        "prefill deepseek-v3 --gpu h200 --tp 8 --ep --engine sglang",
    ],
    "decode": [
        "decode llama-3.3-70b --gpu h200 --weights fp8",
        "decode llama-3.3-70b --gpu l4 --tp 1 --batch 1,2",
        "decode qwen3-next-80b-a3b --gpu mi300x --engine sglang --context 1k,64k",
    ],
    "ops": [
        "ops llama-3.3-70b --gpu h200 --weights fp8 --batch 32",
        "ops deepseek-v3 --gpu b200 --tp 8 --ep --prompt 4k --engine trtllm",
    ],
    "whiteboard": [
        "whiteboard 70b-class --gpu h200 --weights fp8 --kv fp16",
        "whiteboard llama-3.3-70b --gpu l4",
        "whiteboard qwen3-8b --gpu h200 --tier engine --context 1k",
    ],
    "perf": [
        "perf llama-3.1-8b --gpu h100",
        "perf llama-3.3-70b --gpu l4 --tp 1",
        "perf qwen3-30b-a3b --gpu mi300x --engine sglang --concurrency 3",
    ],
    "compare": [
        "compare llama-3.3-70b --gpus h100,l4,t4 --weights fp8",
        "compare llama-3.3-70b --gpus l4 --tp 1",
    ],
    "calibrate": [f"calibrate {ROOT / 'examples/serving_benchmark.csv'} --model qwen3-32b --gpu h100"],
    "speculate": [
        "speculate llama-3.1-8b --gpu h100 --draft llama-3.2-1b",
        "speculate llama-3.3-70b --gpu h200 --tp 4 --draft-cost 0 --acceptance 0,1 --speculated 4 --batch 1,512",
    ],
    "goodput": [
        "goodput llama-3.1-8b --gpu h100 --ttft-p95 500ms --tpot-p95 20ms --requests 200",
        "goodput llama-3.1-8b --gpu h100 --attainment 90% --ttft 1s --placement colocated --requests 200",
        "goodput llama-3.3-70b --gpu h200 --tp 4 --ttft-p95 1ms",
        "goodput llama-3.3-70b --gpu l4 --tp 1 --ttft-p95 1s",
    ],
    "simulate": [
        "simulate llama-3.1-8b --gpu h100 --rate 5 --requests 150",
        "simulate llama-3.1-8b --gpu h100 --concurrency 4 --requests 20 --pools 1:1",
        "simulate llama-3.3-70b --gpu l4 --tp 1 --rate 1 --requests 20",
    ],
    "gpus": ["gpus", "gpus --filter nothing-like-it", "gpus --dtype fp8 --sort price --min-memory 80GB"],
    "gpu": ["gpus h200", "gpus t4", "gpus apple-m4-max", "gpus tpu-v7"],
    "models": ["models", "models --filter nothing-like-it"],
    "model": ["models llama-3.3-70b", "models 70b-class", f"models {CONFIG}"],
    "explain": ["explain", "explain kv_tokens"],
    "check": [f"check {ROOT / 'tests/engines/startups/vllm-0.19.0.log'}"],
    "validate-allocator": [f"validate allocator {ROOT / 'tests/engines/rows.csv'}"],
    "validate-memory": [f"validate memory {ROOT / 'examples/engine_memory.csv'}"],
    "validate-kernels": [f"validate kernels {ROOT / 'examples/kernels.csv'}"],
    "validate-performance": [f"validate performance {ROOT / 'examples/throughput.csv'}"],
    "probe-list": ["probe list"],
    "probe-report": [f"probe report {MADE}"],
    "probe-compare": [f"probe compare {MADE} {MADE}"],
    "probe-validate": [f"probe validate {MADE}"],
}
CASES = [(name, line) for name, lines in LINES.items() for line in lines]


def schema(run: Run, name: str) -> dict[str, Any]:
    code, out, err = run("schema", name)
    assert (code, err) == (0, "")
    found: dict[str, Any] = json.loads(out)
    return found


def test_every_answer_is_tried() -> None:
    assert set(LINES) == set(ANSWERS)


@pytest.mark.parametrize(("name", "line"), CASES, ids=[line.replace(CONFIG, "CONFIG") for _, line in CASES])
def test_output_is_as_described(name: str, line: str, run: Run) -> None:
    document = json.loads(run(*line.split(), "--json")[1])
    Draft202012Validator(schema(run, name)).validate(document)


@pytest.mark.parametrize("name", ANSWERS)
def test_schema_is_one_and_describes_every_key(name: str, run: Run) -> None:
    found = schema(run, name)
    Draft202012Validator.check_schema(found)
    result = json.loads(run(*LINES[name][0].split(), "--json")[1])["result"]
    assert set(result) == set(found["properties"]["result"]["properties"])
    assert set(result) == set(found["properties"]["result"]["required"])


@pytest.mark.parametrize("name", ANSWERS)
def test_a_document_of_another_kind_is_not_valid(name: str, run: Run) -> None:
    validator = Draft202012Validator(schema(run, name))
    other = "kv" if name != "kv" else "fit"
    assert not validator.is_valid(json.loads(run(*LINES[other][0].split(), "--json")[1]))
    assert not validator.is_valid({})


@pytest.mark.parametrize("name", ANSWERS)
def test_schema_is_the_one_in_the_snapshot(name: str, run: Run) -> None:
    _, out, _ = run("schema", name)
    path = SNAPSHOTS / f"{name}.schema.json"
    if os.environ.get("CAPPLAN_SNAPSHOTS") == "write":
        path.write_text(out)
    assert out == path.read_text()


def test_no_snapshot_is_left_over() -> None:
    assert {path.name for path in SNAPSHOTS.iterdir()} == {f"{name}.schema.json" for name in ANSWERS}
