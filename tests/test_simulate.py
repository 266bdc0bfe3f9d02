"""capplan simulate: what it answers, what it writes, what it refuses."""

from __future__ import annotations

import csv
import io
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, TextIO

import numpy as np
import pytest

from capplan.capacity.questions.decode import decode
from capplan.capacity.questions.simulate import simulate
from capplan.capacity.simulator.requests import Speculation
from capplan.capacity.simulator.workloads import Mix, fixed, poisson
from capplan.errors import InputError

Run = Callable[..., tuple[int, str, str]]
BARE = ("simulate", "llama-3.1-8b", "--gpu", "h100", "--requests", "150")
LINE = (*BARE, "--isl", "800", "--osl", "60")


def result(run: Run, *more: str, code: int = 0) -> dict[str, Any]:
    line = BARE if {"--trace", "--trace-lengths"} & {*more} else LINE
    found, out, err = run(*line, *more, "--json")
    assert found == code, err
    return json.loads(out)["result"]  # type: ignore[no-any-return]


def latency(found: dict[str, Any], name: str) -> dict[str, Any]:
    return next(row for row in found["latencies"] if row["latency"] == name)


def test_a_pool_has_the_same_blocks_whatever_part_of_its_last_block_a_request_fills(run: Run) -> None:
    texts = [run(*BARE, "--rate", "3", "--isl", "4", "--osl", osl)[1] for osl in ("9", "12", "21")]
    assert len({text.partition(" blocks of 16 tokens")[0].split()[-1] for text in texts}) == 1


def test_an_answer_in_figures(run: Run) -> None:
    found = result(run, "--rate", "3")
    assert found["requests"] == {"asked": 150, "served": 150, "refused": 0, "timed_out": 0, "preempted": 0}
    assert found["requests_per_s"] == pytest.approx(3, rel=0.2)
    assert found["output_tokens_per_s"] == pytest.approx(60 * found["requests_per_s"])
    ttft = latency(found, "ttft")
    assert 0 < ttft["p50_s"] <= ttft["p90_s"] <= ttft["p99_s"] <= ttft["most_s"]
    parts = [latency(found, name)["mean_s"] for name in ("wait", "prefill", "first_step")]
    assert sum(parts) == pytest.approx(ttft["mean_s"])
    assert latency(found, "itl")["count"] == 150 * 59
    assert all(0 <= share <= 1 for share in found["utilisation"].values())
    assert found["pass_low"] < 1 < found["pass_high"]
    assert found["timeline"][-1]["running"] == found["timeline"][-1]["kv_blocks"] == 0


def test_few_tokens_read_few_experts() -> None:
    """One request at a time: most passes have one token, which chooses 8 experts of 128, whatever its prompt chose."""
    found = simulate("qwen3-30b-a3b", "h100", isl=2000, osl=200, concurrency=1, requests=20)
    alone = decode("qwen3-30b-a3b", "h100", batches=[1], contexts=[2100]).at[0]
    assert found.utilisation["bandwidth"] == pytest.approx(1 / alone["time_over_floor"], rel=0.1)


def test_the_same_seed_is_the_same_run(run: Run) -> None:
    first, again, other = (result(run, "--rate", "3", "--seed", seed) for seed in ("7", "7", "8"))
    assert first == again
    assert first != other


def test_a_service_that_does_not_keep_up_has_no_ttft(run: Run) -> None:
    line = (*LINE, "--rate", "400", "--requests", "3000", "--max-num-seqs", "8")
    code, out, _ = run(*line)
    assert code == 1
    assert "does not keep up with 400 requests a second" in out
    found = result(run, *line[len(LINE) :], code=1)
    assert found["saturated"]
    assert not {"ttft", "wait", "e2e"} & {row["latency"] for row in found["latencies"]}


def test_clients_that_leave_are_counted(run: Run) -> None:
    found = result(run, "--rate", "400", "--requests", "500", "--max-num-seqs", "8", "--timeout", "1s")
    assert found["requests"]["timed_out"] > 50
    assert found["requests"]["served"] + found["requests"]["timed_out"] == 500


def test_latencies_without_those_who_left_say_so(run: Run) -> None:
    more = ("--rate", "400", "--requests", "500", "--max-num-seqs", "8", "--timeout", "1s")
    _, out, _ = run(*LINE, *more)
    served = result(run, *more)["requests"]["served"]
    assert f"serves {served} of 500 requests" in out.splitlines()[0]
    assert f"{500 - served} clients left without a token" in out


def test_a_run_that_is_over_before_the_service_is_full_says_so(run: Run) -> None:
    few, many = (run(*LINE, "--rate", "30", "--requests", count)[1] for count in ("5", "1000"))
    assert "comes before the service is full" in few
    assert "comes before the service is full" not in many


def test_what_is_too_long_is_refused_and_counted() -> None:
    isl = np.array([100, 100_000, 100])
    mix = Mix(np.array([1.0, 2.0, 3.0]), isl, np.array([10, 10, 10]))
    from capplan.capacity.engines.deployment import Deployment

    found = simulate("llama-3.1-8b", "h100", Deployment(max_model_len=8000), mix=mix, rate=1.0)
    assert found.requests["refused"] == 1
    assert found.requests["served"] == 2
    assert any("1 request refused" in text for text in found.warnings)


def test_no_chunks_stall_decoding() -> None:
    """One prompt of 60,000 tokens: whole, everybody waits for it; in chunks, nobody for long."""
    isl = np.full(200, 500)
    isl[100] = 60_000
    mix = Mix(poisson(200, 1), isl, np.full(200, 100))
    whole, chunked = (
        simulate("llama-3.1-8b", "h100", mix=mix, rate=20.0, chunked=chunked).latencies
        for chunked in (False, True)
    )
    stall, chunk = (
        next(row["most_s"] for row in rows if row["latency"] == "itl") for rows in (whole, chunked)
    )
    assert stall > 3  # seconds: the whole prefill
    assert chunk < stall / 4


def test_pools_keep_prompts_from_decoding() -> None:
    mix = Mix(poisson(400, 1), *fixed(400, 4000, 200))
    both, apart = (
        simulate("llama-3.1-8b", "h100", mix=mix, rate=6.0, **kind)
        for kind in ({"instances": 2}, {"pools": (1, 1)})
    )
    assert both.gpus == apart.gpus == 2
    p99 = [next(row["p99_s"] for row in each.latencies if row["latency"] == "itl") for each in (both, apart)]
    assert p99[1] < p99[0] / 2
    assert any("nvlink" in text for text in apart.assumptions)


def test_a_slower_link_costs_what_it_is_slower(run: Run) -> None:
    """2,000 tokens of Llama 3.1 8B are 262 MB: 0.26 s of a link of 1 GB/s, next to nothing of NVLink."""
    line = ("--concurrency", "1", "--requests", "10", "--isl", "2000", "--osl", "100", "--pools", "1:1")
    near, far = (latency(result(run, *line, "--link", link), "tpot")["mean_s"] for link in ("gpu", "1GB/s"))
    # layer by layer: a part is behind the prefill
    assert 99 * (far - near) == pytest.approx(0.262, rel=0.4)
    assert far > near + 0.001


def test_speculation_helps_a_few_and_not_the_many() -> None:
    """The gain falls under one once a pass has more tokens than the ridge."""

    def tpot(concurrency: int, speculation: Speculation | None) -> float:
        found = simulate(
            "llama-3.1-8b",
            "h100",
            concurrency=concurrency,
            requests=3 * concurrency,
            isl=200,
            osl=200,
            speculation=speculation,
            draft_cost=0.1,
        )
        return float(next(row["mean_s"] for row in found.latencies if row["latency"] == "tpot"))

    drafted = Speculation(4, 0.6)
    assert tpot(1, drafted) < 0.8 * tpot(1, None)
    assert tpot(768, drafted) > tpot(768, None)


def test_no_trace_is_written_where_the_picture_can_not_be(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    code, out, err = run(*LINE, "--rate", "3", "--trace-out", str(path), "--plot", "picture.pdf")
    assert (code, out, len(err.splitlines())) == (2, "", 1)
    assert not path.exists()


def test_the_rate_of_a_trace_is_that_of_the_requests_taken(run: Run, tmp_path: Path) -> None:
    """The first 150 come one a second, the others twenty times as fast."""
    path = tmp_path / "trace.csv"
    times = [*range(150), *(150 + 0.05 * k for k in range(500))]
    path.write_text("arrival_s,input_tokens,output_tokens\n" + "".join(f"{t},50,5\n" for t in times))
    own, twice = (result(run, "--trace", str(path), *more) for more in ((), ("--rate", "2")))
    assert own["seconds"] == pytest.approx(149, rel=0.01)
    assert own["requests_per_s"] == pytest.approx(1, rel=0.01)
    assert twice["requests_per_s"] == pytest.approx(2, rel=0.01)


def test_a_trace_of_one_time_is_refused_in_one_line(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "trace.csv"
    path.write_text("arrival_s,input_tokens,output_tokens\n1,100,10\n1,50,10\n1,50,-1\n")
    code, out, err = run(*BARE, "--trace", str(path))
    assert (code, out, len(err.splitlines())) == (2, "", 1)
    assert "has all 2 requests at one time" in err


@pytest.mark.parametrize("requests", ["1", "2"])
def test_a_rate_that_changes_nothing_is_refused_in_one_line(requests: str, run: Run, tmp_path: Path) -> None:
    """The trace has a rate, but those that are run of it come at one time."""
    path = tmp_path / "trace.csv"
    path.write_text("arrival_s,input_tokens,output_tokens\n1,100,10\n1,50,10\n3,50,10\n")
    line = ("--trace", str(path), "--requests", requests)
    for command in ((*SHORT, *line, "--rate", "5"), ("goodput", *SHORT[1:], *line, "--ttft-p95", "1s")):
        code, out, err = run(*command)
        assert (code, out, err.count("\n")) == (2, "", 1)
        assert f"error: {requests} request" in err
        assert "would not be used" in err
    for more in ((), ("--concurrency", "2")):  # as they came, or one when another leaves
        assert run(*SHORT, *line, *more)[0] == 0


def test_trace_out_is_a_chrome_trace(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    code, _, err = run(*LINE, "--rate", "3", "--trace-out", str(path))
    assert code == 0
    assert "note: wrote" in err
    events = json.loads(path.read_text())["traceEvents"]
    spans = [event for event in events if event["ph"] == "X"]
    assert {event["name"] for event in spans} == {"wait", "prefill", "decode"}
    assert len({event["args"]["request"] for event in spans}) == 150
    mean = sum(event["dur"] for event in spans) / 150 / 1e6
    assert mean == pytest.approx(latency(result(run, "--rate", "3"), "e2e")["mean_s"])
    rows: dict[int, float] = {}
    for event in sorted(spans, key=lambda event: (event["ts"], -event["dur"])):
        assert event["ts"] >= rows.get(event["tid"], 0.0) - 1e-3  # no two on one row at once
        rows[event["tid"]] = event["ts"] + event["dur"]
    assert {event["name"] for event in events if event["ph"] == "C"} == {"requests", "KV blocks"}


def test_csv_has_a_row_a_latency(run: Run) -> None:
    _, out, _ = run(*LINE, "--rate", "3", "--csv")
    rows = list(csv.DictReader(io.StringIO(out)))
    assert [row["latency"] for row in rows][:2] == ["ttft", "wait"]
    assert float(rows[0]["p99_s"]) > float(rows[0]["p50_s"])


def test_a_trace_runs_at_its_own_rate(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "trace.csv"
    path.write_text(
        "arrival_s,input_tokens,output_tokens\n" + "".join(f"{k / 2},500,20\n" for k in range(50))
    )
    found = result(run, "--trace", str(path))
    assert found["requests"]["asked"] == 50
    assert found["seconds"] == pytest.approx(24.5, rel=0.02)
    faster = result(run, "--trace", str(path), "--rate", "20")
    assert faster["seconds"] == pytest.approx(2.45, rel=0.1)


@pytest.fixture
def talks(tmp_path: Path) -> Path:
    """Ten talks of eight turns each, a turn 512 tokens longer than the one before it."""
    path = tmp_path / "talks.jsonl"
    rows = [
        {
            "timestamp": 100 * (10 * turn + talk),
            "input_length": 512 * (turn + 1),
            "output_length": 20,
            "hash_ids": [100 * talk + k for k in range(turn + 1)],
        }
        for turn in range(8)
        for talk in range(10)
    ]
    path.write_text("\n".join(map(json.dumps, rows)))
    return path


def test_turns_of_a_talk_find_the_ones_before(run: Run, talks: Path) -> None:
    """Each prompt but the first of its talk finds all but its last 512 tokens: 28 of 36 blocks."""
    line = ("--trace", str(talks))
    found, plain = (result(run, *line, *more) for more in ((), ("--no-enable-prefix-caching",)))
    assert found["prefix_hit_rate"] == pytest.approx(28 / 36)
    assert found["prefix_cache"] == [
        {"prompt_tokens": 10 * 36 * 512, "found_tokens": 10 * 28 * 512, "hit_rate": found["prefix_hit_rate"]}
    ]
    assert plain["prefix_hit_rate"] is None
    assert plain["prefix_cache"] == []
    ttft, computed = (latency(each, "ttft")["mean_s"] for each in (found, plain))
    assert ttft < 0.7 * computed
    code, out, _ = run(*BARE, *line)
    assert code == 0
    assert "prefix hits" in out
    assert "77.8%" in out
    assert "every prompt is computed whole" in run(*BARE, *line, "--no-enable-prefix-caching")[1]


def test_prefixes_of_another_engine_are_found_by_vllm_s_rules_and_that_is_said(run: Run, talks: Path) -> None:
    said = "assumed: prompts find prefixes by vLLM's rules, not by"
    line = (*BARE, "--trace", str(talks), "--engine")
    assert f"{said} sglang's: whole blocks of 16 tokens" in run(*line, "sglang")[1]
    assert f"{said} tensorrt-llm's" in run(*line, "tensorrt-llm")[1]
    for more in (("vllm",), ("sglang", "--no-enable-prefix-caching")):
        assert said not in run(*line, *more)[1]


def test_every_instance_has_its_own_prefix_cache(run: Run, talks: Path) -> None:
    """In turn, a talk of ten comes to one of two instances always, and to one of three by chance."""
    two, three = (result(run, "--trace", str(talks), "--instances", n)["prefix_cache"] for n in ("2", "3"))
    assert [each["hit_rate"] for each in two] == pytest.approx([28 / 36] * 2)
    assert len(three) == 3
    assert all(0.1 < each["hit_rate"] < 0.7 for each in three)
    (pools,) = result(run, "--trace", str(talks), "--pools", "1:1")["prefix_cache"]
    assert pools["hit_rate"] == pytest.approx(28 / 36)


def test_requests_go_where_the_fewest_are(run: Run, tmp_path: Path) -> None:
    """Every other answer is long: in turn, one of two instances gets all of them, and its queue grows."""
    path = tmp_path / "trace.csv"
    rows = "".join(f"{k * 0.2},200,{1500 if k % 2 else 10}\n" for k in range(200))
    path.write_text("arrival_s,input_tokens,output_tokens\n" + rows)
    line = ("--trace", str(path), "--instances", "2", "--max-num-seqs", "24")
    least = result(run, *line, "--routing", "least-loaded")
    turns = result(run, *line, code=1)
    assert turns["saturated"]
    assert not least["saturated"]
    assert "4 x waiting + running" in run(*BARE, *line, "--routing", "least-loaded")[1]


def test_rules_without_a_prefix_cache_say_so(run: Run, talks: Path) -> None:
    line = (*BARE, "--trace", str(talks))
    assert "every prompt is computed whole" in run(*line, "--preemption", "swap")[1]
    code, out, err = run(*line, "--preemption", "swap", "--enable-prefix-caching")
    assert (code, out, len(err.splitlines())) == (2, "", 1)
    assert "preemption 'swap' has no prefix caching" in err


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ((), "a rate or a concurrency is accepted"),
        (("--rate", "1", "--concurrency", "2"), "a rate or a concurrency is accepted"),
        (("--rate", "0"), "rate 0.0 is not a number of requests a second above 0"),
        (("--rate", "often"), "--rate: 'often'"),
        (("--concurrency", "0"), "concurrency 0 is not a whole number of requests"),
        (
            ("--rate", "1", "--scheduler", "fair"),
            "unknown scheduler 'fair'; one of mixed, prefill-first, static",
        ),
        (("--rate", "1", "--preemption", "drop"), "unknown preemption 'drop'; one of recompute, swap"),
        (("--rate", "1", "--scheduler", "Mixed"), "did you mean 'mixed'?"),
        (
            ("--rate", "1", "--long-prefill-token-threshold", "9", "--no-chunked-prefill"),
            "long_prefill_token_threshold 9 is of prompts that are divided",
        ),
        (
            ("--rate", "1", "--long-prefill-token-threshold", "9", "--scheduler", "static"),
            "long_prefill_token_threshold 9 is of prompts that are divided",
        ),
        (("--concurrency", "2", "--burstiness", "2"), "--burstiness is of drawn arrivals"),
        (("--rate", "1", "--enable-prefix-caching"), "prompts whose blocks are not known"),
        (("--rate", "1", "--routing", "least"), "unknown routing 'least'; one of round-robin, least-loaded"),
        (
            ("--concurrency", "4", "--instances", "2", "--routing", "least-loaded"),
            "with a concurrency each comes where one left",
        ),
        (("--rate", "1", "--watermark", "1"), "watermark 1.0 is not a share"),
        (("--rate", "1", "--warm-up", "1"), "warm-up 1.0 is not a share"),
        (("--rate", "1", "--timeout", "0s"), "timeout 0.0 is not a time of more than 0 s"),
        (("--rate", "1", "--acceptance", "0.5"), "--acceptance without --speculated; give both"),
        (("--rate", "1", "--speculated", "4", "--acceptance", "1.5"), "acceptance 1.5 is not a share"),
        (("--rate", "1", "--speculated", "40", "--acceptance", "0.5"), "40 drafted tokens; from 1 to fewer"),
        (("--rate", "1", "--pools", "two"), "--pools 'two' is not two numbers of instances"),
        (("--rate", "1", "--pools", "1:0"), "pools (1, 0) are not two numbers of instances"),
        (("--rate", "1", "--pools", "1:1", "--instances", "2"), "2 instances and pools exclude each other"),
        (("--rate", "1", "--link", "pcie"), "link 'pcie' is of the cache between pools"),
        (("--rate", "1", "--pools", "1:1", "--link", "nic"), "unknown link 'nic'"),
        (("--rate", "1", "--pools", "1:1", "--link", "5GB"), "--link"),
        (("--rate", "1", "--instances", "0"), "instances 0 is not a whole number from 1 to 10,000"),
        (("--rate", "1", "--instances", "1000000000"), "instances 1000000000 is not a whole number"),
        (("--rate", "1", "--pools", "1:1000000000"), "are not two numbers of instances"),
        (("--rate", "1e-300"), "comes in 1e+15 s or later"),
        (("--rate", "1", "--scheduler", ""), "unknown scheduler ''"),
        (("--rate", "1", "--trace-lengths", ""), "can't read the trace ''"),
        (("--rate", "1", "--requests", "0"), "requests 0 is not a whole number"),
        (("--rate", "1", "--trace-lengths", "none.csv"), "none.csv"),
        (("--rate", "1", "--trace-out", "no/folder/t.json"), "can't write the trace to 'no/folder/t.json'"),
        (("--rate", "1", "--json", "--csv"), "--json and --csv exclude each other"),
        (("--rate", "1", "--draft-cost", "0.1"), "--draft-cost is of drafted tokens"),
        (
            ("--rate", "1", "--scheduler", "static", "--preemption", "swap"),
            "preemption 'swap' would not be used",
        ),
        (("--rate", "1", "--scheduler", "static", "--watermark", "0.1"), "watermark 0.1 would not be used"),
        (("--rate", "1", "--routing", "least-loaded"), "one instance would not use it"),
        (("--rate", "1", "--pools", "1:1", "--routing", "least-loaded"), "pools would not use it"),
        (("--rate", "1", "--trace-out", "."), "can't write the trace to '.': is a directory"),
    ],
    ids=lambda each: " ".join(each) if isinstance(each, tuple) else "",
)
def test_a_mistake_is_one_clear_line(more: tuple[str, ...], said: str, run: Run) -> None:
    code, out, err = run(*(BARE if "--trace-lengths" in more else LINE), *more)
    assert (code, out) == (2, "")
    assert said in err
    assert len(err.strip().splitlines()) == 1


def a_trace(folder: Path, *rows: str) -> str:
    """A hundred requests of 100 tokens, one a second, and the rows."""
    path = folder / "trace.csv"
    lines = ["arrival_s,input_tokens,output_tokens", *(f"{t},90,10" for t in range(100)), *rows]
    path.write_text("\n".join(lines) + "\n")
    return str(path)


SHORT = ("simulate", "llama-3.1-8b", "--gpu", "h100-sxm")


@pytest.mark.parametrize(
    ("more", "unused"),
    [
        (("--trace", "--isl", "50"), "--isl"),
        (("--trace", "--isl", "50", "--osl", "1024"), "--isl and --osl"),  # the default, where it is given
        (("--trace", "--seed", "1"), "--seed"),
        (("--rate", "1", "--trace-lengths", "--osl", "5"), "--osl"),
    ],
)
def test_lengths_beside_a_trace_are_refused(
    more: tuple[str, ...], unused: str, run: Run, tmp_path: Path
) -> None:
    path = a_trace(tmp_path)
    line = [part for each in more for part in ((each, path) if each.startswith("--trace") else (each,))]
    for command in (SHORT, ("goodput", *SHORT[1:], "--ttft-p95", "1s")):
        given = line if command is SHORT else [part for part in line if part not in ("--rate", "1")]
        if command is not SHORT and "--seed" in given:
            given = [*given, "1"]
        code, out, err = run(*command, *given)
        assert (code, out, err.count("\n")) == (2, "", 1)
        assert f"has requests of its own; {unused} would not be used" in err


def test_lengths_of_a_trace_are_drawn_by_the_seed(run: Run, tmp_path: Path) -> None:
    path = a_trace(tmp_path, "100,500,100")
    one, other = (
        json.loads(run(*SHORT, "--rate", "1", "--trace-lengths", path, "--seed", seed, "--json")[1])
        for seed in "12"
    )
    assert one["result"] != other["result"]


def test_a_row_longer_than_the_model_takes_is_refused_and_counted(run: Run, tmp_path: Path) -> None:
    """One row does not keep the others from being served."""
    path = a_trace(tmp_path, "100,200000,10")
    code, out, _ = run(*SHORT, "--trace", path, "--json")
    found = json.loads(out)
    assert code == 0
    assert found["result"]["requests"] == {
        "asked": 101,
        "served": 100,
        "refused": 1,
        "timed_out": 0,
        "preempted": 0,
    }
    assert any("1 request refused" in text for text in found["warnings"])
    code, out, err = run(*SHORT, "--rate", "1", "--isl", "200000", "--requests", "5")
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert "every request is longer than the 131,072 tokens" in err


def test_an_error_after_a_skipped_row_is_one_line(run: Run, tmp_path: Path) -> None:
    path = a_trace(tmp_path, "5,-1,3")
    code, out, err = run(*SHORT, "--trace", path, "--preemption", "swop")
    assert (code, out, err.count("\n")) == (2, "", 1)
    code, _, err = run(*SHORT, "--trace", path)  # and the note is not lost where there is an answer
    assert code == 0
    assert "1 row skipped, with negative input tokens" in err


def test_a_trace_that_can_not_be_written_leaves_the_old_one(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from capplan.capacity.simulator import chrome_trace

    def full(_: object, file: TextIO) -> int:
        file.write("half")
        raise OSError(28, "No space left on device")

    path = tmp_path / "trace.json"
    path.write_text("old")
    monkeypatch.setattr(chrome_trace, "write_trace", full)
    code, out, err = run(*LINE, "--rate", "3", "--trace-out", str(path))
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert "no space left on device" in err
    assert path.read_text() == "old"
    assert [each.name for each in tmp_path.iterdir()] == ["trace.json"]


def test_notes_are_escaped(run: Run, tmp_path: Path) -> None:
    """A name of a file is anybody's: a terminal would obey what is in it."""
    path = tmp_path / "a\x1b[2Jb.json"
    trace = a_trace(tmp_path, "5,-1,3")
    read = Path(trace).rename(tmp_path / "c\x07d.csv")
    code, _, err = run(*SHORT, "--trace", str(read), "--trace-out", str(path))
    assert (code, path.exists(), err.count("\n")) == (0, True, 2)
    assert "\\x1b[2Jb.json; chrome://tracing" in err
    assert "c\\x07d.csv: 1 row skipped" in err
    assert not {"\x1b", "\x07"} & {*err}


def test_a_trace_goes_where_no_file_is(run: Run) -> None:
    assert run(*LINE, "--rate", "3", "--trace-out", os.devnull)[0] == 0
    assert not Path(os.devnull).is_file()


def test_what_does_not_fit_says_so(run: Run) -> None:
    code, out, _ = run(
        "simulate", "llama-3.3-70b", "--gpu", "l4", "--tp", "1", "--rate", "1", "--requests", "20"
    )
    assert code == 1
    assert "does not fit" in out.splitlines()[0]


def test_a_library_call_needs_a_load() -> None:
    with pytest.raises(InputError, match="give one of the two"):
        simulate("llama-3.1-8b", "h100")


def test_the_picture_of_a_terminal() -> None:
    from capplan.cli.pictures import picture

    found = simulate("llama-3.1-8b", "h100", rate=3.0, requests=150, isl=800, osl=60)
    drawn = picture(found, 80)
    assert {line.split()[0] for line in drawn.splitlines() if line.strip()} >= {"running", "waiting", "KV"}
    assert all(len(line) <= 100 for line in drawn.splitlines())


def test_progress_is_for_a_terminal_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """With the time that is left, after a second; wiped off at the end."""
    from capplan.cli import progress

    with progress.bar("requests") as none:
        assert none is None
    told = io.StringIO()
    monkeypatch.setattr(told, "isatty", lambda: True, raising=False)
    monkeypatch.setattr("sys.stderr", told)
    monkeypatch.setenv("TERM", "xterm")
    now = iter([100.0, 100.5, 102.0, 102.1, 104.0])
    monkeypatch.setattr("time.monotonic", lambda: next(now))
    with progress.bar("requests") as tell:
        assert tell is not None
        tell(5, 100)  # too early
        assert told.getvalue() == ""
        tell(25, 100)  # two seconds for a quarter
        assert "25 of 100 requests, 6 s left" in told.getvalue()
        tell(26, 100)  # too soon after
        assert "26" not in told.getvalue()
        tell(80, 100)
        assert "80 of 100 requests, 1 s left" in told.getvalue()
    assert told.getvalue().endswith("\r\033[K")
