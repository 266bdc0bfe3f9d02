"""Our reader against transformers itself, on tiny made-up models: `make oracle`.

Every case is instantiated on the meta device and compared tensor by tensor; where `cached`, it also runs on the
CPU with random weights, and what its cache really holds is compared with the `transformers` view of ours.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from capplan.capacity.cache import cache
from capplan.models.hf import from_config

torch = pytest.importorskip("torch", reason="the oracle needs torch: make oracle")
transformers = pytest.importorskip("transformers", reason="the oracle needs transformers: make oracle")

CASES: dict[str, dict[str, Any]] = json.loads(Path(__file__).with_name("cases.json").read_text("utf-8"))
CACHED = [name for name, case in CASES.items() if case.get("cached", True)]
PROMPT, STEPS = 23, 3


def config_of(name: str) -> Any:
    return transformers.AutoConfig.for_model(CASES[name]["model_type"], **CASES[name]["config"])


def ours(config: dict[str, Any]) -> Any:
    return from_config(config, id="case", name="case")


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("spelling", ["hub", "transformers"])
def test_every_tensor(name: str, spelling: str) -> None:
    config = config_of(name)
    with torch.device("meta"):
        model = transformers.AutoModelForCausalLM.from_config(config)
    theirs: dict[str, int] = {}
    for parameter, tensor in model.named_parameters():
        key = re.sub(r"(?<=\.)\d+(?=\.)", "N", parameter)
        theirs[key] = theirs.get(key, 0) + tensor.numel()
    written = {"model_type": CASES[name]["model_type"], **CASES[name]["config"]}
    spec = ours(written if spelling == "hub" else json.loads(config.to_json_string(use_diff=False)))
    mine: dict[str, int] = {}
    for weight in spec.weights:
        mine[weight.name] = mine.get(weight.name, 0) + weight.parameters
    assert mine == theirs
    assert spec.parameters_total == sum(theirs.values())


@pytest.mark.parametrize("name", CACHED)
def test_what_the_cache_holds(name: str) -> None:
    config = config_of(name)
    torch.manual_seed(0)
    model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16).eval()
    held = None
    with torch.no_grad():
        ids = torch.randint(3, 90, (1, PROMPT))
        for _ in range(1 + STEPS):
            held = model(input_ids=ids, cache=held, use_cache=True).cache
            ids = torch.randint(3, 90, (1, 1))
    seen: dict[int, int] = {}
    for tensor in tensors(held):
        if tensor.is_floating_point():
            seen[tensor.data_ptr()] = tensor.numel() * tensor.element_size()
    spec = ours({"model_type": CASES[name]["model_type"], **CASES[name]["config"], "dtype": "bfloat16"})
    assert cache(spec, view="transformers").bytes_at(PROMPT + STEPS) == sum(seen.values())


def tensors(value: Any, depth: int = 0) -> Iterator[Any]:
    """Every tensor that a cache object holds, however deep."""
    if isinstance(value, torch.Tensor):
        if value.numel():
            yield value
    elif depth < 8:
        children: list[Any] = []
        if isinstance(value, dict):
            children = list(value.values())
        elif isinstance(value, list | tuple):
            children = list(value)
        elif type(value).__module__.startswith("transformers"):
            children = list(vars(value).values())
        for child in children:
            yield from tensors(child, depth + 1)


def test_the_cases_span_what_is_promised() -> None:
    assert len({case["model_type"] for case in CASES.values()}) >= 25
    assert len({CASES[name]["model_type"] for name in CACHED}) >= 14
