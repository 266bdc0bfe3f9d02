"""The questions as a library: what has to hold for every model and GPU, and what a wrong value says."""

import copy
import dataclasses
import json
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import capplan
from capplan.capacity.answer import Answer
from capplan.capacity.questions.fit import fit
from capplan.capacity.questions.formulas import formulas
from capplan.capacity.questions.gpus import gpu_facts, gpus
from capplan.capacity.questions.kv import kv
from capplan.capacity.questions.models import model_facts, models
from capplan.capacity.questions.prefill import prefill
from capplan.capacity.questions.roofline import roofline
from capplan.capacity.questions.whiteboard import whiteboard
from capplan.errors import InputError

MODELS = {
    name: capplan.model(name)
    for name in ("70b-class", "llama-3.1-8b", "llama-3.3-70b", "qwen3-0.6b", "falcon-7b", "phi-2", "opt-13b")
}
GPUS = {name: capplan.gpu(name) for name in ("l4", "a100-sxm-80", "h200-sxm", "mi300x", "gaudi3", "t4")}
GIB = 2**30

model = st.sampled_from(sorted(MODELS)).map(MODELS.__getitem__)
gpu = st.sampled_from(sorted(GPUS)).map(GPUS.__getitem__)
tier = st.sampled_from(["whiteboard", "engine"])
weights = st.sampled_from(["auto", "bf16", "fp8", "int4"])
context = st.integers(1, 1_000_000)
size = st.floats(0, 100 * GIB)
few = settings(max_examples=60, deadline=None)


# --- what holds for all -------------------------------------------------------------------------------


@few
@given(model, gpu, tier, weights, context, context)
def test_more_context_never_fits_more_requests(m: Any, g: Any, t: str, w: str, one: int, two: int) -> None:
    short, long = sorted((one, two))
    found = fit(m, g, weights=w, contexts=[short, long], tier=t)
    assert found.requests[str(short)] >= found.requests[str(long)]
    # whole requests, and one of each more does not fit
    for length, count in found.requests.items():
        used = count * int(length) * found.kv_bytes_per_token
        assert count == 0 or used <= found.kv_budget_bytes * (1 + 1e-6)
        assert used + int(length) * found.kv_bytes_per_token > found.kv_budget_bytes * (1 - 1e-6)


@few
@given(model, gpu, tier, weights, context, st.floats(1, 10))
def test_more_memory_never_fits_fewer(m: Any, g: Any, t: str, w: str, length: int, factor: float) -> None:
    more = {
        name: value * factor
        for name in ("memory_label_bytes", "memory_reported_bytes", "memory_visible_bytes")
        if (value := getattr(g, name)) is not None
    }
    bigger = dataclasses.replace(g, **more)
    before = fit(m, g, weights=w, contexts=[length], tier=t)
    after = fit(m, bigger, weights=w, contexts=[length], tier=t)
    assert after.requests[str(length)] >= before.requests[str(length)]


@few
@given(model, gpu, tier, context, size, size)
def test_a_larger_reserve_never_fits_more(
    m: Any, g: Any, t: str, length: int, one: float, two: float
) -> None:
    less, more = (fit(m, g, contexts=[length], reserve=r, tier=t) for r in sorted((one, two)))
    assert less.requests[str(length)] >= more.requests[str(length)]
    assert less.kv_budget_bytes >= more.kv_budget_bytes


@few
@given(model, gpu, tier, weights, context)
def test_an_fp8_cache_never_fits_fewer(m: Any, g: Any, t: str, w: str, length: int) -> None:
    half, full = (fit(m, g, weights=w, kv=kv_, contexts=[length], tier=t) for kv_ in ("fp8", "fp16"))
    assert half.kv_bytes_per_token == full.kv_bytes_per_token / 2
    assert half.requests[str(length)] >= full.requests[str(length)]


@few
@given(model, gpu, tier, context, st.lists(context, min_size=1, max_size=5))
def test_gpus_for_one_request_grow_with_it(m: Any, g: Any, t: str, length: int, more: list[int]) -> None:
    found = fit(m, g, contexts=[length, *more], tier=t)
    needed = list(found.gpus_for_one_request.values())
    if needed[0] is None:  # the reserve alone fills a GPU
        assert found.reserve_bytes >= found.memory_bytes
    else:
        assert needed == sorted(n for n in needed if n is not None)
        assert all((n == 1) == (found.requests[c] >= 1) for c, n in found.gpus_for_one_request.items())


@few
@given(model, gpu, tier, weights, st.lists(context, min_size=1, max_size=5), size)
def test_intensity_grows_with_the_batch_up_to_its_ceiling(
    m: Any, g: Any, t: str, w: str, lengths: list[int], reserve: float
) -> None:
    less, more = (
        roofline(m, g, weights=w, contexts=lengths, reserve=r, tier=t) for r in (reserve + 8 * GIB, reserve)
    )
    for one, two in zip(less.at, more.at, strict=True):
        assert one["batch"] <= two["batch"]
        for suffix in ("", "_with_attention"):
            assert one["intensity" + suffix] <= two["intensity" + suffix] <= two["ceiling" + suffix]
        assert two["intensity"] <= two["intensity_with_attention"]
        assert 0 < two["share_of_peak"] <= 1
        assert (two["bound_by"] == "compute") == (two["intensity_with_attention"] >= more.ridge_flop_per_byte)


@few
@given(model, gpu, tier, weights, st.floats(0.01, 1), context, context)
def test_a_longer_prompt_never_takes_less(
    m: Any, g: Any, t: str, w: str, share: float, one: int, two: int
) -> None:
    found = prefill(m, g, weights=w, contexts=[one, two], utilisation=share, tier=t)
    for name in ("linear_peak_s", "peak_s", "linear_s", "time_s", "attention_over_linear"):
        assert found.at[0][name] <= found.at[-1][name]
    for row in found.at:
        assert row["linear_peak_s"] <= row["peak_s"]
        assert row["time_s"] == pytest.approx(row["peak_s"] / share)


# --- what an answer is --------------------------------------------------------------------------------

ANSWERS: dict[str, Callable[[], Answer]] = {
    "kv": lambda: kv("llama-3.1-8b"),
    "fit": lambda: fit("llama-3.1-8b", "l4"),
    "does-not-fit": lambda: fit("llama-3.3-70b", "l4"),
    "roofline": lambda: roofline("llama-3.1-8b", "l4"),
    "prefill": lambda: prefill("llama-3.1-8b", "l4"),
    "whiteboard": lambda: whiteboard("llama-3.1-8b", "l4"),
    "gpus": lambda: gpus(),
    "no-gpus": lambda: gpus(containing="nothing like it"),
    "gpu": lambda: gpu_facts("h200"),
    "models": lambda: models(),
    "model": lambda: model_facts("llama-3.1-8b"),
    "formulas": lambda: formulas(),
}
each_answer = pytest.mark.parametrize("ask", ANSWERS.values(), ids=ANSWERS)


@each_answer
def test_an_answer_is_frozen_and_the_same_each_time(ask: Callable[[], Answer]) -> None:
    answer = ask()
    with pytest.raises(dataclasses.FrozenInstanceError):
        answer.inputs = {}  # type: ignore[misc]
    first = json.dumps(answer.to_dict(), allow_nan=False)
    assert first == json.dumps(answer.to_dict()) == json.dumps(ask().to_dict())


@each_answer
def test_what_is_done_to_the_dict_leaves_the_answer_alone(ask: Callable[[], Answer]) -> None:
    answer = ask()
    before = copy.deepcopy(answer.to_dict())
    document = answer.to_dict()
    document["inputs"]["more"] = 1
    for value in document["result"].values():
        if isinstance(value, dict):
            value["more"] = 1
        elif isinstance(value, list | tuple) and value and isinstance(value[0], dict):
            value[0]["more"] = 1
    assert answer.to_dict() == before


@each_answer
def test_html_is_well_formed(ask: Callable[[], Answer]) -> None:
    html = ask()._repr_html_()
    HTMLParser().feed(html)
    tree = ElementTree.fromstring(f"<div>{html}</div>")
    used = {element.tag for element in tree.iter()}
    assert used <= {"div", "p", "b", "small", "table", "caption", "thead", "tbody", "tr", "th", "td"}


@each_answer
def test_text_is_the_answer_first(ask: Callable[[], Answer]) -> None:
    answer = ask()
    text = str(answer)
    assert text.startswith(answer.report().headline)
    assert not any(line != line.rstrip() for line in text.splitlines())
    assert answer.explain() == ask().explain()


def test_html_escapes_names() -> None:
    evil = MODELS["llama-3.1-8b"]._replace(id="<script>alert('&')</script>")
    html = fit(evil, "l4")._repr_html_()
    assert "<script>" not in html
    assert "&lt;script&gt;" in html
    assert ElementTree.fromstring(f"<div>{html}</div>").findtext("p/b", "").startswith("<script>")


# --- what can be passed -------------------------------------------------------------------------------


def test_names_paths_and_objects_are_all_taken(tmp_path: Path) -> None:
    folder = Path(__file__).parent.parent / "examples" / "llama-3.1-70b"
    for named in (
        folder,
        folder / "config.json",
        str(folder),
        "llama-3.1-70b",
        capplan.model("llama-3.1-70b"),
    ):
        for device in ("h200", capplan.gpu("h200")):
            assert fit(named, device, weights="fp8").weight_bytes == pytest.approx(72.66e9, rel=1e-3)  # type: ignore[arg-type]


def test_contexts_of_every_kind_are_taken() -> None:
    import numpy

    given_ = [
        8000,
        [8000],
        (8000,),
        {8000},
        range(8000, 8001),
        iter([8000]),
        numpy.int64(8000),
        numpy.array([8000]),
    ]
    for contexts in given_:
        assert list(fit("llama-3.1-8b", "l4", contexts=contexts).requests) == ["8000"]  # type: ignore[arg-type]
    assert list(fit("llama-3.1-8b", "l4", context=8000).requests) == ["8000"]


WRONG: dict[str, list[Any]] = {
    "contexts": [0, -1, True, 1.5, float("nan"), [], [0], [8000, -1], [True], [1.5], "8k", ["8k"], b"8", [None], [[1]],
                 10**13, 10**400, object()],
    "reserve": [float("nan"), float("inf"), -1, -0.5, "4GiB", True, [1], 10**400, object()],
    "tier": ["x", "", "measured", None, 1, ["engine"], b"engine"],
    "weights": ["fp9", "", None, 8, ["fp8"], b"fp8"],
    "kv": ["fp9", "", None, 8, ["fp8"], b"fp8"],
    "model": ["no such", "", None, 70, ["llama-3.1-8b"], b"llama", object(), Path("nowhere.json")],
    "gpu": ["no such", "", None, 4, ["l4"], b"l4", object()],
}  # fmt: skip
BOTH = [(name, value) for name, values in WRONG.items() for value in values]


@pytest.mark.parametrize(("name", "value"), BOTH, ids=[f"{n}-{repr(v)[:14]}" for n, v in BOTH])
def test_a_wrong_value_is_an_input_error(name: str, value: Any) -> None:
    arguments = {"model": "llama-3.1-8b", "gpu": "l4", name: value}
    questions: list[Callable[..., Answer]] = [fit, roofline, whiteboard]
    if name not in ("reserve", "kv"):
        questions.append(prefill)
    for question in questions:
        with pytest.raises(InputError) as caught:
            question(**arguments)
        assert "\n" not in str(caught.value)
    if name in ("contexts", "tier", "kv", "model"):
        del arguments["gpu"]
        with pytest.raises(InputError):
            kv(**arguments)


@pytest.mark.parametrize(
    "value", [0, -1, 2, 50, float("nan"), float("inf"), True, "50%", [0.5], 1e-9, 10**400]
)
def test_a_wrong_utilisation(value: Any) -> None:
    with pytest.raises(InputError, match="utilisation"):
        prefill("llama-3.1-8b", "l4", utilisation=value)


def test_two_contexts_that_may_disagree() -> None:
    with pytest.raises(InputError, match="both context and contexts"):
        fit("llama-3.1-8b", "l4", context=8000, contexts=[9000])


@pytest.mark.parametrize(
    "arguments",
    [
        *({"sort": value} for value in ("x", "", 1, ["price"])),
        *({"dtype": value} for value in ("x", "", 1, ["fp8"])),
        *({"min_memory": value} for value in (-1, float("nan"), float("inf"), "80GB", True, None)),
        *({"containing": value} for value in (1, ["h200"])),
    ],
    ids=str,
)
def test_a_wrong_filter(arguments: dict[str, Any]) -> None:
    with pytest.raises(InputError):
        gpus(**arguments)


def test_a_wrong_filter_of_models() -> None:
    for value in (1, ["x"]):
        with pytest.raises(InputError):
            models(containing=value)  # type: ignore[arg-type]
