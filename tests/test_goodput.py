"""Goodput: the search finds the edge of the SLO, all placements get the same requests, and what can't be met is said."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from capplan.capacity.engines.deployment import Deployment
from capplan.capacity.questions.goodput import CONFIGURATIONS, Goodput, goodput
from capplan.capacity.questions.goodput_search import requests_for
from capplan.capacity.simulator.slo import Bound, Joint, Slo
from capplan.capacity.simulator.traces import read_trace
from capplan.capacity.simulator.workloads import Mix, fixed, lognormal, poisson, replay
from capplan.errors import InputError

Run = Callable[..., tuple[int, str, str]]
SLO = Slo((Bound("ttft", 0.95, 0.5), Bound("tpot", 0.95, 0.025)))
FP8 = Deployment(quantization="fp8")


@pytest.fixture(scope="module")
def found() -> Goodput:
    return goodput("llama-3.3-70b", "h200-sxm", FP8, slo=SLO, isl=4000, osl=500, tp=2, requests=1000)


def test_the_best_is_the_highest_a_gpu(found: Goodput) -> None:
    rates = {row["name"]: row["requests_per_s_per_gpu"] for row in found.configurations}
    assert list(rates) == list(CONFIGURATIONS)
    assert found.best == max(rates, key=lambda name: rates[name])
    assert found.requests_per_s_per_gpu == max(rates.values()) > 0
    assert found.output_tokens_per_s_per_gpu == pytest.approx(500 * found.requests_per_s_per_gpu)
    assert len({row["gpus"] for row in found.configurations}) == 1  # side by side on as many GPUs


def test_the_slo_holds_at_the_goodput_and_breaks_above_it(found: Goodput) -> None:
    for row in found.configurations:
        assert all(bound["met"] and bound["value"] <= bound["bound"] for bound in row["bounds"])
        points = [point for point in found.curve if point["configuration"] == row["name"]]
        above = [p for p in points if p["requests_per_s"] > row["requests_per_s"]]
        assert above[0]["requests_per_s"] <= 1.03 * row["requests_per_s"]
        assert not above[0]["met"]
        assert row["limited_by"]
        assert [p["requests_per_s"] for p in points] == sorted(p["requests_per_s"] for p in points)


def test_attainment_falls_with_the_rate(found: Goodput) -> None:
    shares = [p["attainment"] for p in found.curve if p["configuration"] == found.best]
    assert all(later <= earlier + 0.01 for earlier, later in pairwise(shares))
    assert shares[0] > 0.99
    assert shares[-1] < 0.9


def test_why_the_best_one_is_names_every_other(found: Goodput) -> None:
    told = "\n".join(found.reasons)
    alone = next((text for text in found.reasons if text.startswith("one instance alone")), None)
    assert alone is None or "; ends at T" in alone
    assert found.reasons[0].startswith(f"{found.best}: ")
    for name in CONFIGURATIONS:
        assert name in told
    text = str(found)
    assert "Why" in text
    assert len(text.splitlines()) < 40  # one screen


def test_a_bound_that_one_request_alone_misses_is_refused_at_once() -> None:
    refused = goodput("llama-3.3-70b", "h200-sxm", FP8, slo=SLO, isl=4000, osl=500, tp=1)
    assert (refused.attainable, refused.fits, refused.curve) == (False, False, ())
    assert "more replicas can't help" in (refused.why_not or "")
    assert refused.idle["ttft_p95_s"] > 0.5
    kinds = {each["kind"] for each in refused.remedies}
    assert {"tp", "isl", "gpu"} <= kinds
    # what is said to help does
    (shorter,) = (each["what"] for each in refused.remedies if each["kind"] == "isl")
    isl = int("".join(filter(str.isdigit, shorter)))
    for length, in_time in ((isl, True), (int(1.05 * isl), False)):
        found = goodput("llama-3.3-70b", "h200-sxm", FP8, slo=SLO, isl=length, osl=500, tp=1, requests=100)
        assert (found.idle["ttft_p95_s"] <= 0.5) == in_time


def test_a_bound_of_tpot_that_one_request_alone_misses() -> None:
    slo = Slo((Bound("tpot", 0.95, 0.005),))
    refused = goodput("llama-3.3-70b", "h200-sxm", FP8, slo=slo, isl=1000, osl=100, tp=2)
    assert not refused.attainable
    assert "TPOT p95" in (refused.why_not or "")
    assert "isl" not in {each["kind"] for each in refused.remedies}


def test_a_bound_that_nothing_meets_says_what_was_tried() -> None:
    slo = Slo((Bound("tpot", 0.95, 1e-6),))
    refused = goodput("llama-3.3-70b", "h200-sxm", FP8, slo=slo, isl=1000, osl=100, tp=2)
    assert refused.remedies == ()
    assert "nothing that was tried" in str(refused)


def test_a_deployment_that_does_not_fit() -> None:
    refused = goodput("llama-3.3-70b", "l4", slo=SLO, tp=1)
    assert not refused.attainable
    assert "does not fit" in (refused.why_not or "")


def test_whole_prompts_stop_the_decoding_and_chunks_do_not() -> None:
    """P99.9 of the time between tokens: a prompt of 16K at once is a stall of a second."""
    slo = Slo((Bound("itl", 0.999, 0.2),))
    found = goodput(
        "llama-3.1-8b",
        "h100-sxm",
        slo=slo,
        isl=16_000,
        osl=200,
        configurations=["colocated", "chunked"],
        requests=300,
    )
    rows = {row["name"]: row for row in found.configurations}
    assert found.best == "chunked"
    assert rows["colocated"]["requests_per_s"] < 0.2 * rows["chunked"]["requests_per_s"]


def test_more_instances_take_more() -> None:
    one, four = (
        goodput("llama-3.1-8b", "h100-sxm", slo=SLO, osl=200, instances=count, configurations=["chunked"])
        for count in (1, 4)
    )
    assert four.requests_per_s > 3.5 * one.requests_per_s
    assert four.one_instance_requests_per_s == pytest.approx(one.requests_per_s, rel=0.04)
    assert one.one_instance_requests_per_s is None


def test_the_pools_that_are_asked_for() -> None:
    found = goodput(
        "llama-3.1-8b", "h100-sxm", slo=SLO, requests=300, pools=(2, 1), configurations=["disaggregated"]
    )
    (row,) = found.configurations
    assert (row["gpus"], row["setting"]) == (3, "2 prefill, 1 decode")


def test_a_gpu_without_a_link_on_record_has_no_pools() -> None:
    slo = Slo((Bound("ttft", 0.95, 5.0),))
    asked = {"slo": slo, "isl": 200, "osl": 20, "requests": 100}
    found = goodput("llama-3.2-1b", "apple-m4-max", configurations=["chunked", "disaggregated"], **asked)  # type: ignore[arg-type]
    assert [row["name"] for row in found.configurations] == ["chunked"]
    assert any("nothing is on record of what joins GPUs" in text for text in found.warnings)
    with pytest.raises(InputError, match="nothing is on record"):
        goodput("llama-3.2-1b", "apple-m4-max", configurations=["disaggregated"], **asked)  # type: ignore[arg-type]


def test_pools_of_ranks_that_share_experts_are_warned_of() -> None:
    flags = Deployment(data_parallel_size=2)
    slo = Slo((Bound("ttft", 0.95, 2.0), Bound("tpot", 0.95, 0.1)))
    asked = {"slo": slo, "isl": 500, "osl": 50, "requests": 200, "tp": 1}
    found = goodput("qwen3-30b-a3b", "h200-sxm", flags, pools=(1, 1), **asked)  # type: ignore[arg-type]
    assert any("pools look better than they are" in text for text in found.warnings)


def test_joint_attainment_and_lengths_that_differ() -> None:
    slo = Slo(joint=Joint(0.4, 0.02, 0.9))
    mix = Mix(poisson(500, 1), *lognormal(500, 1, isl=800, osl=200, most=4000))
    found = goodput("llama-3.1-8b", "h100-sxm", slo=slo, mix=mix, configurations=["chunked"])
    (row,) = found.configurations
    (bound,) = row["bounds"]
    assert bound["is_share"]
    assert bound["value"] >= 0.9
    at = next(p for p in found.curve if p["requests_per_s"] == row["requests_per_s"])
    assert at["attainment"] == pytest.approx(bound["value"])


def test_requests_that_would_be_refused_are_left_out_and_told() -> None:
    mix = Mix(poisson(300, 1), *lognormal(300, 1, isl=800, osl=200))
    flags = Deployment(max_model_len=2000)
    found = goodput("llama-3.1-8b", "h100-sxm", flags, slo=SLO, mix=mix, configurations=["chunked"])
    left_out = int((mix.isl + mix.osl > 2000).sum())
    assert f"{left_out} requests of more than 2,000 tokens left out" in found.warnings[0]
    with pytest.raises(InputError, match="every request is longer"):
        goodput("llama-3.1-8b", "h100-sxm", Deployment(max_model_len=10), slo=SLO, mix=mix)


def test_a_tail_needs_more_requests() -> None:
    assert requests_for(SLO) == 4000
    assert requests_for(Slo((Bound("ttft", 0.999, 1),))) == 20_000


def test_a_run_that_is_over_before_the_service_is_full_is_warned_of() -> None:
    asked = {"slo": SLO, "isl": 500, "osl": 1000, "instances": 4, "configurations": ["chunked"]}
    short = goodput("llama-3.1-8b", "h100-sxm", requests=300, **asked)  # type: ignore[arg-type]
    assert "are too few to fill the service" in short.warnings[0]


def test_common_random_numbers(found: Goodput) -> None:
    again = goodput("llama-3.3-70b", "h200-sxm", FP8, slo=SLO, isl=4000, osl=500, tp=2, requests=1000)
    assert again.to_dict() == found.to_dict()


# --- the command ------------------------------------------------------------------------------------------------

LINE = ("goodput", "llama-3.1-8b", "--gpu", "h100", "--ttft-p95", "500ms", "--requests", "200")


def test_exit_codes(run: Run) -> None:
    assert run(*LINE)[0] == 0
    code, out, err = run("goodput", "llama-3.3-70b", "--gpu", "h200", "--tp", "2", "--ttft-p95", "9ms")
    assert (code, err) == (1, "")
    assert "more replicas can't help" in out


def test_csv_has_a_row_a_rate(run: Run) -> None:
    code, out, _ = run(*LINE, "--csv")
    rows = list(csv.DictReader(io.StringIO(out)))
    assert code == 0
    assert {row["configuration"] for row in rows} == set(CONFIGURATIONS)
    assert all(float(row["ttft_p95_s"]) > 0 for row in rows)


def test_json_is_the_answer(run: Run) -> None:
    document = json.loads(run(*LINE, "--json")[1])
    assert document["schema"] == "capplan/goodput/1"
    assert document["inputs"]["slo"] == [{"name": "ttft-p95", "bound": 0.5, "is_share": False}]


def test_explain_has_the_ratio_of_the_pools(run: Run) -> None:
    assert "pool_ratio: " in run(*LINE, "--explain")[1]


def test_the_picture(run: Run, tmp_path: Path) -> None:
    assert run(*LINE, "--plot", "a.svg")[0] == 0
    assert "% of requests inside" in (tmp_path / "a.svg").read_text()


def test_the_least_loaded_instance_takes_more() -> None:
    """Prompts of many lengths: in turn, some wait behind a long one while an instance has nothing to do."""
    lengths = lognormal(1500, 1, isl=2000, osl=100, least=2)
    least, turns = (
        goodput(
            "llama-3.1-8b",
            "h100-sxm",
            slo=Slo((Bound("ttft", 0.95, 0.3),)),
            mix=Mix(poisson(1500, 1), *lengths),
            configurations=("colocated",),
            instances=4,
            requests=1500,
            routing=rule,
        )
        for rule in ("least-loaded", "round-robin")
    )
    assert least.requests_per_s > 1.2 * turns.requests_per_s > 0
    assert any("4 x waiting + running" in text for text in least.assumptions)


def test_traces(run: Run, tmp_path: Path) -> None:
    text = "arrival_s,input_tokens,output_tokens\n" + "".join(f"{i},500,20\n" for i in range(100))
    (tmp_path / "t.csv").write_text(f"{text}5,-1,3\n")
    for option in ("--trace", "--trace-lengths"):
        code, out, err = run(*LINE, option, "t.csv", "--json")
        assert code == 0
        assert "note: t.csv: 1 row skipped, with negative input tokens\n" in err
        assert json.loads(out)["inputs"]["isl"] == 500


@pytest.mark.parametrize(
    ("option", "seed", "said"),
    [
        ("--trace", None, "the same requests of the trace, stretched to each"),
        ("--trace-lengths", 1, "the same requests (seed 1)"),
    ],
)
def test_a_trace_draws_nothing(option: str, seed: int | None, said: str, run: Run, tmp_path: Path) -> None:
    text = "arrival_s,input_tokens,output_tokens\n" + "".join(f"{i},500,20\n" for i in range(100))
    (tmp_path / "t.csv").write_text(text)
    inputs = json.loads(run(*LINE, option, "t.csv", "--json")[1])["inputs"]
    assert (inputs["seed"], inputs["cv"]) == (seed, seed)
    assert said in run(*LINE, option, "t.csv")[1]
    line = ("simulate", "llama-3.1-8b", "--gpu", "h100", "--rate", "1", option, "t.csv", "--json")
    assert json.loads(run(*line)[1])["inputs"]["seed"] == seed


@pytest.mark.parametrize(
    ("args", "message"),
    [
        ((), "no SLO given; name a bound, such as --ttft-p95 500ms"),
        (("--ttft-p95", "-5ms"), "--ttft-p95: '-5ms' is negative"),
        (("--ttft-p95", "0"), "a bound of 0.0 s is not a time above 0"),
        (("--tpot-p95", "20"), "--tpot-p95: '20' has no unit; write 20ms, or 20s for seconds"),
        (("--attainment", "90%"), "--attainment '90%' of what?"),
        (("--ttft", "5ms"), "--ttft and --tpot need --attainment"),
        (("--ttft-p95", "1s", "--routing", "least-load"), "did you mean 'least-loaded'?"),
        (("--ttft-p95", "1s", "--placement", "chunkd"), "did you mean 'chunked'?"),
        (("--ttft-p95", "1s", "--pools", "2"), "--pools '2' is not two numbers"),
        (("--ttft-p95", "1s", "--pools", "0:1"), "pools of 0 is not"),
        (("--ttft-p95", "1s", "--instances", "0"), "instances 0 is not"),
        (("--ttft-p95", "1s", "--requests", "0"), "requests 0 is not"),
        (("--ttft-p95", "1s", "--burstiness", "-1"), "burstiness -1.0 is not"),
        (("--ttft-p95", "1s", "--sigma", "9"), "with sigmas 9.0"),
        (
            ("--ttft-p95", "1s", "--placement", "chunked", "--pools", "1:1"),
            "--pools is not of placement chunked",
        ),
        (
            ("--ttft-p95", "1s", "--placement", "disaggregated", "--instances", "2"),
            "--instances is not of placement disaggregated",
        ),
        (("--ttft-p95", "1s", "--trace", "x.csv"), "can't read the trace 'x.csv': no such file"),
        (("--ttft-p95", "1s", "--trace", "x.csv", "--sigma", "1"), "--sigma and --trace exclude each other"),
    ],
)
def test_what_can_not_be_asked(args: tuple[str, ...], message: str, run: Run) -> None:
    code, out, err = run("goodput", "llama-3.1-8b", "--gpu", "h100", *args)
    assert (code, out) == (2, "")
    assert message in err
    assert err.count("\n") == 1


def test_a_mix_of_one_length_is_isl_and_osl() -> None:
    asked = {"slo": SLO, "configurations": ["chunked"], "seed": 3}
    plain = goodput("llama-3.1-8b", "h100-sxm", isl=900, osl=90, requests=200, **asked)  # type: ignore[arg-type]
    mix = Mix(poisson(200, 3), *fixed(200, 900, 90))
    mixed = goodput("llama-3.1-8b", "h100-sxm", mix=mix, **asked)  # type: ignore[arg-type]
    assert mixed.requests_per_s == pytest.approx(plain.requests_per_s, rel=0.1)


def test_rates_of_a_trace_are_those_of_the_requests_that_are_run(tmp_path: Path) -> None:
    """A run takes the first of them: a trace that begins calm has to come faster, to come at the rate of its row."""
    times = [k * 10.0 for k in range(400)] + [4000.0 + k for k in range(800)]
    trace = tmp_path / "t.csv"
    trace.write_text("arrival_s,isl,osl\n" + "\n".join(f"{t},1000,20" for t in times))
    mix = replay(read_trace(trace))
    slo, flags = Slo((Bound("ttft", 0.9, 0.5),)), Deployment()
    few = goodput(
        "llama-3.1-8b", "h100-sxm", flags, slo=slo, mix=mix, requests=300, configurations=["chunked"]
    )
    even = Mix(np.arange(300.0), np.full(300, 1000), np.full(300, 20))
    same = goodput("llama-3.1-8b", "h100-sxm", flags, slo=slo, mix=even, configurations=["chunked"])
    assert few.requests_per_s == pytest.approx(same.requests_per_s, rel=0.03)
