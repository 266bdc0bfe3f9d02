"""Serving at a number of requests under way: what has to hold for any model, GPU and load, and what is printed."""

import csv
import dataclasses
import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import capplan
from capplan.capacity import service
from capplan.capacity.engines.deployment import Deployment
from capplan.capacity.questions.compare import compare
from capplan.capacity.questions.engine_fit import engine_fit
from capplan.capacity.questions.perf import CONCURRENCY, perf
from capplan.cli.pictures import tradeoff, tradeoff_plot
from capplan.errors import InputError

Run = Callable[..., tuple[int, str, str]]
MODELS = ("llama-3.1-8b", "qwen3-30b-a3b", "gemma-3-12b", "deepseek-v2-lite")
GPUS = ("h100-sxm", "a100-sxm-80", "l40s", "b200-sxm", "mi300x")
few = settings(max_examples=40, deadline=None)
model, gpu = st.sampled_from(MODELS), st.sampled_from(GPUS)
engine = st.sampled_from(["vllm", "sglang", "tensorrt-llm"])
length = st.integers(2, 8000)


# --- what holds for all -------------------------------------------------------------------------------


@few
@given(
    model,
    gpu,
    engine,
    st.integers(1, 4000),
    st.integers(200, 4000),
    st.lists(st.integers(1, 600), min_size=1, max_size=6),
)
def test_more_requests_under_way_give_more_tokens_and_longer_waits(
    m: str, g: str, e: str, isl: int, osl: int, counts: list[int]
) -> None:
    found = perf(m, g, Deployment(engine=e), isl=isl, osl=osl, concurrency=counts)
    assert [row["concurrency"] for row in found.at] == sorted(set(counts))
    for fewer, more in zip(found.at, found.at[1:], strict=False):
        assert more["output_tokens_per_s"] >= fewer["output_tokens_per_s"] * 0.98
        assert more["tpot_s"] >= fewer["tpot_s"] * 0.98
        assert more["ttft_s"] >= fewer["ttft_s"] * 0.98


@few
@given(model, gpu, engine, length, length, st.integers(1, 600))
def test_the_columns_of_a_row_agree(m: str, g: str, e: str, isl: int, osl: int, count: int) -> None:
    found = perf(m, g, Deployment(engine=e), isl=isl, osl=osl, concurrency=[count])
    (row,) = found.at
    assert row["output_tokens_per_s"] == pytest.approx(row["requests_per_s"] * osl)
    assert row["total_tokens_per_s"] == pytest.approx(row["requests_per_s"] * (isl + osl))
    assert row["output_tokens_per_s_per_gpu"] * found.gpus == pytest.approx(row["output_tokens_per_s"])
    assert row["tokens_per_s_per_user"] * row["tpot_s"] == pytest.approx(1)
    for name in ("ttft", "tpot"):
        assert 0 < row[f"{name}_low_s"] < row[f"{name}_s"] < row[f"{name}_high_s"]
    assert row["output_tokens_per_s_low"] < row["output_tokens_per_s"] < row["output_tokens_per_s_high"]
    assert row["decode_batch"] <= (found.most_requests or float("inf")) * 1.001
    assert 0 < row["prefill_share"] < 1


@few
@given(model, gpu, engine, st.integers(1, 2000), st.integers(200, 4000), st.integers(8, 600))
def test_littles_law(m: str, g: str, e: str, isl: int, osl: int, count: int) -> None:
    (row,) = perf(m, g, Deployment(engine=e), isl=isl, osl=osl, concurrency=[count]).at
    # what is under way is what comes in the time that each takes
    taken = row["ttft_s"] + (osl - 1) * row["tpot_s"]
    assert row["requests_per_s"] * taken == pytest.approx(count, rel=0.05)


@few
@given(model, gpu, st.integers(1, 300), st.floats(1.05, 4))
def test_more_bandwidth_is_never_slower(m: str, g: str, count: int, factor: float) -> None:
    card = capplan.gpu(g)
    assert card.memory_bandwidth
    faster = dataclasses.replace(card, memory_bandwidth=card.memory_bandwidth * factor)
    (before,), (after,) = (perf(m, each, concurrency=[count]).at for each in (card, faster))
    assert after["tpot_s"] <= before["tpot_s"]
    assert after["output_tokens_per_s"] >= before["output_tokens_per_s"]


@pytest.mark.parametrize("name", ["llama-3.1-8b", "gemma-3-12b"])
def test_twice_the_replicas_serve_twice_the_requests(name: str) -> None:
    one, two = (
        perf(name, "h100", Deployment(data_parallel_size=n), concurrency=[32 * n], tp=1) for n in (1, 2)
    )
    assert two.gpus == 2 * one.gpus
    assert two.at[0]["output_tokens_per_s"] == pytest.approx(2 * one.at[0]["output_tokens_per_s"])
    assert two.at[0]["tpot_s"] == pytest.approx(one.at[0]["tpot_s"])


def test_replicas_without_a_request_do_nothing() -> None:
    one, eight = (perf("llama-3.1-8b", "h100", Deployment(data_parallel_size=n), tp=1) for n in (1, 8))
    assert eight.at[0]["output_tokens_per_s"] == pytest.approx(one.at[0]["output_tokens_per_s"])
    assert eight.at[0]["tpot_s"] == pytest.approx(one.at[0]["tpot_s"])


def test_kernels_that_nobody_measured_have_the_wider_range() -> None:
    near, far = (perf("llama-3.1-8b", name, concurrency=[8]).at[0] for name in ("h100", "gaudi3"))
    assert far["tpot_high_s"] / far["tpot_s"] > near["tpot_high_s"] / near["tpot_s"]


def test_the_formulas_that_are_shown_give_the_figures() -> None:
    found = perf("llama-3.3-70b", "h200", Deployment(quantization="fp8"), tp=1)
    rates = [step.value for step in found.steps if step.formula is service.closed_loop_rate]
    times = [step.value for step in found.steps if step.formula is service.closed_loop_tpot]
    assert len(rates) == len(times) == len(CONCURRENCY)
    assert rates == pytest.approx([row["requests_per_s"] for row in found.at], rel=2e-3)
    assert times == pytest.approx([row["tpot_s"] for row in found.at], rel=1e-9)


# --- what bounds it -----------------------------------------------------------------------------------


def test_what_limits() -> None:
    fp8 = Deployment(quantization="fp8")
    at = {row["concurrency"]: row["limit"] for row in perf("llama-3.3-70b", "h200", fp8, tp=1).at}
    assert at[1] == "decode"
    assert at[512] == "memory"
    few_seqs = dataclasses.replace(fp8, max_num_seqs=16)
    at = {row["concurrency"]: row["limit"] for row in perf("llama-3.3-70b", "h200", few_seqs, tp=1).at}
    assert (at[16], at[32]) == ("decode", "max-num-seqs")
    long = perf("llama-3.1-8b", "h100", isl=20_000, osl=20, concurrency=[16])
    assert long.at[0]["limit"] == "prefill"
    assert long.at[0]["prefill_share"] > 0.5


def test_what_bounds_the_requests_that_run_at_once() -> None:
    assert perf("llama-3.3-70b", "h200", Deployment(quantization="fp8"), tp=1).most_by == "memory"
    found = perf("llama-3.1-8b", "h200", Deployment(max_num_seqs=12), tp=1)
    assert (found.most_requests, found.most_by) == (12, "max-num-seqs")


def test_data_parallel_attention_lies_inside_of_the_ranks() -> None:
    plan = Deployment(engine="sglang", data_parallel_size=4, enable_expert_parallel=True)
    found = perf("deepseek-v2-lite", "h100", plan, concurrency=[64], tp=4)
    assert found.gpus == 4
    assert found.at[0]["decode_batch"] == pytest.approx(16, rel=0.05)
    with pytest.raises(InputError, match="data-parallel"):
        perf("deepseek-v2-lite", "h100", plan, tp=2)


def test_past_what_memory_holds_requests_wait_and_nothing_is_gained() -> None:
    found = perf("llama-3.3-70b", "h200", Deployment(quantization="fp8"), concurrency=[200, 400], tp=1)
    assert found.most_requests
    assert found.most_requests < 200
    one, two = found.at
    assert two["output_tokens_per_s"] == pytest.approx(one["output_tokens_per_s"], rel=1e-3)
    assert two["ttft_s"] > 1.8 * one["ttft_s"]


def test_the_smallest_that_fits_is_taken() -> None:
    found = perf("llama-3.3-70b", "h100")
    assert found.gpus == 2
    assert not perf("llama-3.3-70b", "h100", tp=1).starts
    assert any(text.startswith("tensor-parallel size: the smallest") for text in found.assumptions)
    assert not any("the smallest" in text for text in perf("llama-3.3-70b", "h100", tp=4).assumptions)


# --- the command --------------------------------------------------------------------------------------


def answer(run: Run, *args: str) -> dict[str, Any]:
    code, out, _ = run(*args, "--json")
    assert code == 0
    document: dict[str, Any] = json.loads(out)
    return document


def test_forms_agree(run: Run) -> None:
    line = ("perf", "llama-3.1-8b", "--gpu", "h100", "--concurrency", "1..6", "--concurrency", "100,64")
    document = answer(run, *line)
    assert document["inputs"]["concurrency"] == [1, 2, 4, 6, 64, 100]
    assert document["inputs"]["tier"] == "engine"
    rows = list(csv.DictReader(io.StringIO(run(*line, "--csv")[1])))
    at = document["result"]["at"]
    assert rows == [{name: str(value) for name, value in row.items()} for row in at]
    _, text, _ = run(*line)
    assert "llama-3.1-8b under vllm" in text.splitlines()[0]
    for row in at:
        assert any(line.split()[0] == f"{row['concurrency']:,}" for line in text.splitlines() if line.strip())
    _, explained, _ = run(*line, "--explain")
    assert "closed_loop_rate: Requests a second" in explained
    assert "vllm.slow = " in explained
    assert "bandwidth = 3.35 TB/s" in explained


def test_constants_say_where_they_are_from() -> None:
    found = perf("llama-3.1-8b", "h100", concurrency=[1])
    assert {each["from"] for each in found.engine_constants} == {"engine_steps.toml"}
    assert {"step", "slow", "request"} <= {each["name"] for each in found.engine_constants}


@pytest.mark.parametrize("form", [(), ("--json",), ("--csv",), ("--explain",)])
def test_what_does_not_fit_is_an_answer(form: tuple[str, ...], run: Run) -> None:
    code, out, err = run("perf", "llama-3.3-70b", "--gpu", "l4", "--tp", "1", *form)
    assert (code, err) == (1, "")
    if form != ("--csv",):
        assert "memory" in out


def test_a_request_longer_than_the_engine_takes_does_not_fit(run: Run) -> None:
    code, out, _ = run("perf", "llama-3.1-8b", "--gpu", "h100", "--isl", "6000", "--max-model-len", "4096")
    assert code == 1
    assert "a request of 7,024 tokens is longer than max_model_len 4,096" in out
    assert "on 1 x h100-sxm does not fit" in out  # nor on more of them


def test_whole_requests_run_at_once() -> None:
    """0.9 of a request is none, and no more decode than fit."""
    found = perf("llama-3.3-70b", "h200", Deployment(quantization="fp8"), concurrency=[512], tp=1)
    assert found.most_requests == int(found.most_requests or 0)
    assert found.at[0]["decode_batch"] <= found.most_requests * (1 + 1e-9)


REFUSED = {
    "gpu": (("perf", "llama-3.1-8b", "--gpu", "h10O-sxm"), "unknown gpu 'h10O-sxm'; did you mean 'h100-sxm'"),
    "model": (("perf", "lama-3.1-8b", "--gpu", "h100"), "unknown model 'lama-3.1-8b'; did you mean"),
    "range": (("--concurrency", "64..1"), "--concurrency '64..1' is no range"),
    "zero": (("--concurrency", "0"), "concurrency 0 is not a whole number of requests from 1 to 1,000,000"),
    "half": (("--concurrency", "1.5"), "--concurrency: '1.5' is not a whole number"),
    "word": (("--concurrency", "many"), "--concurrency: 'many'"),
    "isl": (("--isl", "0"), "isl: 0 is not a whole number of tokens"),
    "osl": (("--osl", "1"), "osl 1: an answer of one token has no time per output token"),
    "tp": (("--tp", "0"), "tensor_parallel_size 0 is not a whole number from 1 to 1,024"),
    "heads": (("--tp", "3"), "32 heads of llama-3.1-8b can't be split over 3 ranks"),
    "engine": (("--engine", "vlm"), "unknown engine 'vlm'; did you mean 'vllm'?"),
    "weights": (("--weights", "fp9"), "'fp9'"),
    "kv": (("--kv", "fp9"), "'fp9'"),
    "batch": (
        ("--max-num-seqs", "64", "--max-num-batched-tokens", "32"),
        "max_num_batched_tokens 32 is below max_num_seqs 64, which vllm refuses",
    ),
    "two-forms": (("--json", "--csv"), "--json and --csv exclude each other"),
}


@pytest.mark.parametrize(("more", "message"), REFUSED.values(), ids=REFUSED)
def test_a_mistake_is_one_line(more: tuple[str, ...], message: str, run: Run) -> None:
    args = more if more[0] == "perf" else ("perf", "llama-3.1-8b", "--gpu", "h100", *more)
    code, out, err = run(*args)
    assert (code, out) == (2, "")
    assert err.count("\n") == 1
    assert message in err


# --- side by side -------------------------------------------------------------------------------------

NAMES = ["h100-sxm", "h200-sxm", "b200-sxm", "mi300x", "l40s"]


def test_each_gpu_is_as_alone() -> None:
    fp8 = Deployment(quantization="fp8")
    found = compare("llama-3.3-70b", NAMES, fp8, concurrency=32)
    assert [row["gpu"] for row in found.gpus] == NAMES
    for row in found.gpus:
        alone = perf("llama-3.3-70b", row["gpu"], fp8, concurrency=[32], tp=row["tensor_parallel_size"])
        for name in ("ttft_s", "tpot_s", "output_tokens_per_s", "output_tokens_per_s_per_gpu", "limit"):
            assert row[name] == alone.at[0][name]
        assert row["gpus"] == alone.gpus
        assert alone.most_requests
        assert alone.most_requests >= 32  # the smallest that holds them all


def test_what_a_dollar_and_a_joule_buy() -> None:
    found = compare("llama-3.1-8b", NAMES)
    for row in found.gpus:
        card = capplan.gpu(row["gpu"])
        assert card.price_range
        assert row["output_tokens_per_usd_high"] == pytest.approx(
            row["output_tokens_per_s_per_gpu"] * 3600 / card.price_range[0]
        )
        assert row["output_tokens_per_usd_low"] <= row["output_tokens_per_usd_high"]
        assert row["output_tokens_per_joule"] == pytest.approx(
            row["output_tokens_per_s_per_gpu"] / row["board_watts"]
        )
        if row["all_in_watts"] is None:
            assert row["output_tokens_per_joule_all_in"] is None
        else:
            assert row["output_tokens_per_joule_all_in"] < row["output_tokens_per_joule"]


def test_a_price_that_is_not_on_record_stays_unknown(run: Run) -> None:
    assert capplan.gpu("gaudi3").price_range is None
    (row,) = compare("llama-3.1-8b", ["gaudi3"]).gpus
    assert row["output_tokens_per_usd_low"] is row["output_tokens_per_usd_high"] is None
    line = next(
        line
        for line in run("compare", "llama-3.1-8b", "--gpus", "gaudi3")[1].splitlines()
        if line.startswith("  gaudi3 ")
    )
    assert "  -  " in line


def test_the_best_of_a_column_is_marked(run: Run) -> None:
    found = compare("llama-3.1-8b", NAMES)
    for key, best in found.best.items():
        known = {row["gpu"]: row[key] for row in found.gpus if row[key] is not None}
        assert known[best] == (min if key in ("ttft_s", "tpot_s") else max)(known.values())
    text = run("compare", "llama-3.1-8b", "--gpus", ",".join(NAMES))[1]
    lines = [line for line in text.splitlines() if line.strip().startswith(tuple(NAMES))]
    rows = {line.split()[0]: line for line in lines[: len(NAMES)]}  # ranges follow
    for name in NAMES:
        assert rows[name].count("*") == list(found.best.values()).count(name)


def test_one_that_does_not_fit_says_why(run: Run) -> None:
    code, out, _ = run(
        "compare", "llama-3.3-70b", "--gpus", "h200,l4", "--weights", "fp8", "--tp", "1", "--json"
    )
    assert code == 0
    fits, misses = json.loads(out)["result"]["gpus"]
    assert (fits["fits"], fits["why_not"]) == (True, None)
    assert (misses["gpu"], misses["fits"]) == ("l4", False)
    assert "memory" in misses["why_not"]
    assert misses["output_tokens_per_s"] is None
    code, out, _ = run("compare", "llama-3.3-70b", "--gpus", "l4,t4", "--tp", "1")
    assert code == 1
    assert "none of them holds it" in out
    assert "Does not fit" in out


def test_explain_shows_what_was_divided_by(run: Run) -> None:
    _, out, _ = run("compare", "llama-3.1-8b", "--gpus", "h100,l40s", "--explain")
    for line in (
        "h100-sxm: power of the board = 700 W: ",
        "l40s: bandwidth = 864 GB/s: ",
        "l40s: lowest price = ",
    ):
        assert line in out
    assert out.count("vllm.slow = ") == 1
    assert "tokens_per_dollar: Output tokens that a dollar buys" in out


def test_a_gpu_named_twice_is_one_row() -> None:
    assert [row["gpu"] for row in compare("llama-3.1-8b", ["h100", "H100-SXM", "l40s"]).gpus] == [
        "h100-sxm",
        "l40s",
    ]


COMPARE_REFUSED = {
    "unknown": (("--gpus", "h100,h20O-sxm"), "unknown gpu 'h20O-sxm'; did you mean 'h20-sxm' or 'h200-sxm'"),
    "empty-name": (("--gpus", "h100,,l4"), "--gpus 'h100,,l4' has an empty name"),
    "several-loads": (("--gpus", "h100", "--concurrency", "1,2"), "one number of requests is accepted"),
    "heads": (("--gpus", "h100,l4", "--tp", "3"), "can't be split over 3 ranks"),
}


@pytest.mark.parametrize(("more", "message"), COMPARE_REFUSED.values(), ids=COMPARE_REFUSED)
def test_a_mistake_of_compare_is_one_line(more: tuple[str, ...], message: str, run: Run) -> None:
    code, out, err = run("compare", "llama-3.1-8b", *more)
    assert (code, out) == (2, "")
    assert err.count("\n") == 1
    assert message in err


def test_no_gpus_are_refused() -> None:
    with pytest.raises(InputError, match="no gpu given"):
        compare("llama-3.1-8b", [])


# --- pictures -----------------------------------------------------------------------------------------


@few
@given(model, st.integers(40, 200))
def test_every_load_is_drawn(name: str, columns: int) -> None:
    found = perf(name, "h100", concurrency=[1, 8, 64])
    head, *plot = tradeoff_plot(tradeoff(found), columns).splitlines()
    drawn = [line.partition("┤")[2] for line in plot if "┤" in line]
    assert "".join(drawn).count("●") == 3
    for label in ("●1", "●8", "●64"):
        assert any(label in line for line in drawn)
    assert all(len(line) <= max(columns, 42) for line in (head, *plot))
    # more requests under way stand further left and higher
    height = {label: next(i for i, line in enumerate(drawn) if label in line) for label in ("●1", "●64")}
    assert height["●64"] < height["●1"]


def test_a_letter_for_each_gpu() -> None:
    found = compare("llama-3.1-8b", ["h100", "l40s"])
    plot = tradeoff_plot(tradeoff(found))
    assert "  A: 1 x h100-sxm\n  B: 1 x l40s\n" in plot
    assert plot.count("B") > 3


def test_the_curve_as_svg(run: Run) -> None:
    run("perf", "llama-3.1-8b", "--gpu", "h100", "--concurrency", "1,8,100", "--plot", "x.svg")
    text = Path("x.svg").read_text()
    ElementTree.fromstring(text)
    for words in ("tok/s a user", "output tok/s a GPU", "<!-- 100 -->", "<!-- range -->"):
        assert words in text
    run("compare", "llama-3.1-8b", "--gpus", "h100,l40s", "--plot", "y.svg")
    assert "<!-- 1 x l40s -->" in Path("y.svg").read_text()


def test_there_is_no_curve_of_what_does_not_fit(run: Run) -> None:
    code, out, err = run("perf", "llama-3.3-70b", "--gpu", "l4", "--tp", "1", "--plot", "x.svg")
    assert (code, out) == (2, "")
    assert "there is no picture of what does not fit" in err
    assert not Path("x.svg").exists()


@pytest.mark.parametrize(
    "name",
    ["llama-3.1-8b", "deepseek-v2-lite", "nemotron-3-nano-30b-a3b", "qwen3.5-9b", "granite-4.0-h-tiny"],
)
def test_as_many_run_at_once_as_vllm_has_blocks_for(name: str) -> None:
    """Of recurrent states it keeps two or three for a request, and pads groups of layers to one size."""
    flags = Deployment(version="0.33.0", max_model_len=8192, max_num_seqs=4096)
    found = perf(name, "h200", flags, isl=4096, osl=4096, concurrency=[1], tp=1)
    told = engine_fit(name, "h200", flags).max_concurrency
    assert found.most_by == "memory"
    assert found.most_requests == int(told or 0)


def test_a_window_keeps_what_is_in_sight_once_its_prompt_is_through() -> None:
    """The log's concurrency counts a whole batch of prompt tokens in every window."""
    flags = Deployment(version="0.33.0", max_model_len=8192, max_num_seqs=4096)
    found = perf("gemma-3-27b", "h200", flags, isl=4096, osl=4096, concurrency=[1], tp=1)
    told = engine_fit("gemma-3-27b", "h200", flags).max_concurrency
    assert told
    # 10 of 62 layers keep 8,192 tokens, the others 1,024
    assert found.most_requests == pytest.approx(told * 8192 / (1024 + 10 / 62 * 7168), rel=0.1)


WRONG: dict[str, Any] = {
    "concurrency": ({"concurrency": 8}, "concurrency 8 is not a list of numbers of requests"),
    "ranks": ({"tp": "2"}, "tensor_parallel_size '2' is not a whole number from 1 to 1,024"),
    "ranks-none": ({"tp": 0}, "tensor_parallel_size 0 is not a whole number from 1 to 1,024"),
    "deployment": ({"deployment": {"tp": 2}}, "is not a Deployment"),
    "calibration": (
        {"calibration": "h100.json"},
        "calibration 'h100.json' is not one that read_calibration gave",
    ),
    "length": ({"deployment": Deployment(max_model_len="4k")}, "max_model_len '4k' is not a whole number"),  # type: ignore[arg-type]
    "kv": ({"deployment": Deployment(kv_cache_dtype=8)}, "kv_cache_dtype 8 is not a name"),  # type: ignore[arg-type]
    "version": ({"deployment": Deployment(version=0.19)}, "version 0.19 is not a name"),  # type: ignore[arg-type]
}


@pytest.mark.parametrize(("more", "message"), WRONG.values(), ids=WRONG)
def test_a_wrong_type_is_told_of(more: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        perf("llama-3.1-8b", "h100", **more)
    if "concurrency" not in more and "calibration" not in more:
        with pytest.raises(InputError, match=message):
            compare("llama-3.1-8b", ["h100"], **more)
        with pytest.raises(InputError, match=message):
            capplan.decode("llama-3.1-8b", "h100", **more)


def test_lists_of_compare_are_lists() -> None:
    with pytest.raises(InputError, match="gpus 'h100' is not a list of names"):
        compare("llama-3.1-8b", "h100")
    with pytest.raises(InputError, match=r"calibration 'h100\.json' is not one"):
        compare("llama-3.1-8b", ["h100"], calibrations=["h100.json"])  # type: ignore[list-item]
