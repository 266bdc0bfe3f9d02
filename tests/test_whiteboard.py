"""The essay's own figures come out of `capplan whiteboard`, and the same questions answer for any model."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

Run = Callable[..., tuple[int, str, str]]
ROOT = Path(__file__).parent.parent
H200 = ("--gpu", "h200-sxm", "--weights", "fp8", "--kv", "fp16", "--reserve", "4GiB", "--tier", "whiteboard")

# P = 70e9, 80 layers, 8 KV heads of 128; one H200 of 141e9 bytes, 4.8e12 byte/s and 1979e12 FLOP/s; FP8 weights,
# FP16 cache, 4 GiB kept back; K is 1,000
ESSAY = {
    "kv-bytes-per-token": 327680,
    "hbm-gib": 131.3165,
    "weights-gib": 65.1926,
    "after-weights-gib": 66.1239,
    "kv-budget-gib": 62.1239,
    "kv-tokens-from-62-gib": 203161.6,
    "concurrency-8k": 25.3952,
    "concurrency-32k": 6.3488,
    "concurrency-200k": 1.0158,
    "one-200k-request-gib": 61.0352,
    "kv-at-25x8k-gib": 61.0352,
    "ridge-fp8": 412.2917,
    "weight-only-batch-to-ridge": 206.1458,
    "intensity-batch-1-weights-only": 2.0,
    "intensity-b25-8k": 25.8234,
    "ceiling-8k": 53.4058,
    "ceiling-32k": 13.3514,
    "ceiling-200k": 2.1362,
    "prefill-rate-peak": 14135.71,
    "prefill-200k-peak-s": 14.1486,
    "prefill-200k-half-utilisation-s": 28.2971,
    "prompt-500k-kv-gib": 152.5879,
    "prefix-cache-break-even": 2,
    "batch-tier-price": 0.5,
    "tpot-25ms-stream-rate": 40,
}


def cases(run: Run, *args: str) -> dict[str, Any]:
    code, out, _ = run("whiteboard", *args, "--json")
    assert code == 0
    found: dict[str, Any] = json.loads(out)["result"]["cases"]
    return found


def test_the_essays_figures(run: Run) -> None:
    found = cases(run, "70b-class", *H200)
    assert {name: found[name]["exact"] for name in ESSAY} == pytest.approx(ESSAY, rel=1e-4)
    assert set(found) == set(ESSAY)


def test_the_arithmetic_behind_them(run: Run) -> None:
    found = cases(run, "70b-class", *H200)
    gib, per_token = 2**30, 2 * 80 * 8 * 128 * 2
    left = 141e9 - 70e9 - 4 * gib
    assert found["kv-budget-gib"]["exact"] == pytest.approx(left / gib)
    assert found["concurrency-8k"]["exact"] == pytest.approx(62 * gib / per_token / 8000)
    assert found["concurrency-8k"]["unrounded"] == pytest.approx(left / per_token / 8000)
    assert found["ridge-fp8"]["exact"] == pytest.approx(1979e12 / 4.8e12)
    assert found["intensity-b25-8k"]["exact"] == pytest.approx(2 * 70e9 * 25 / (70e9 + 25 * 8000 * per_token))
    # work of attention: queries with keys, then weights with values, over 80 layers of 64 heads
    attention = 4 * 80 * 64 * 128 * 200_000
    assert found["ceiling-200k"]["with_attention"] == pytest.approx(
        (2 * 70e9 + attention) / (200_000 * per_token)
    )
    # half of all pairs of tokens, at the 16-bit rate, on top of the linear layers
    assert found["prefill-200k-peak-s"]["with_attention"] == pytest.approx(
        200_000 * (2 * 70e9 / 1979e12 + attention / 2 / 989.5e12)
    )
    # 500k tokens and the weights, over what is left of each GPU
    needed = (70e9 + 500_000 * per_token) / (141e9 - 4 * gib)
    assert 1 < needed < 2
    assert found["prompt-500k-kv-gib"]["gpus"] == 2


@pytest.mark.parametrize("model", ["llama-3.3-70b", str(ROOT / "examples/llama-3.1-70b/config.json")])
def test_a_real_model_answers_the_same_questions(model: str, run: Run) -> None:
    found = cases(run, model, *H200)
    left = 141e9 - 70_553_706_496 - 4 * 2**30
    assert found["kv-budget-gib"]["exact"] == pytest.approx(left / 2**30)
    assert found["concurrency-8k"]["exact"] == pytest.approx(61 * 2**30 / 327_680 / 8000)
    assert found["prefill-rate-peak"]["exact"] == pytest.approx(1979e12 / (2 * 70_553_706_496))
    moved = {"kv-tokens-from-62-gib", "kv-at-25x8k-gib", "intensity-b25-8k"}
    assert len(set(ESSAY) & set(found)) >= len(ESSAY) - len(moved)


def test_half_the_bytes_at_twice_the_peak_leave_the_batch_to_the_ridge(run: Run) -> None:
    options = ("--gpu", "h200-sxm", "--context", "1k", "--json")
    found = {}
    for weights in ("fp8", "fp16"):
        _, out, _ = run("whiteboard", "70b-class", "--weights", weights, *options)
        found[weights] = json.loads(out)["result"]["cases"]["weight-only-batch-to-ridge"]["exact"]
    assert found["fp16"] == pytest.approx(found["fp8"]) == pytest.approx(1979e12 / 4.8e12 / 2)


def test_a_small_budget_is_not_rounded_away(run: Run) -> None:
    small = ("llama-3.1-8b", "--gpu", "l4", "--reserve", "6.5GiB", "--context", "1k")
    found = cases(run, *small)
    left = 24e9 - 2 * 8_030_261_248 - 6.5 * 2**30  # 0.89 GiB
    assert found["concurrency-1k"]["exact"] == pytest.approx(left / (2 * 32 * 8 * 128 * 2) / 1000)
    assert "7.325 requests of 1,000 tokens" in run("whiteboard", *small)[1]


def test_own_contexts_replace_the_essays(run: Run) -> None:
    found = cases(run, "llama-3.1-8b", "--gpu", "h200-sxm", "--context", "1k,100")
    assert [name for name in found if name.startswith("concurrency")] == ["concurrency-100", "concurrency-1k"]
    _, out, _ = run("whiteboard", "llama-3.1-8b", "--gpu", "h200-sxm", "--context", "100")
    assert "e+" not in out  # thousands of requests are written out


def test_text_and_markdown_have_every_figure(run: Run) -> None:
    found = cases(run, "70b-class", *H200)
    _, text, _ = run("whiteboard", "70b-class", *H200)
    _, markdown, _ = run("whiteboard", "70b-class", *H200, "--markdown")
    for case in found.values():
        for shown in (text, markdown):
            assert case["label"] in shown
            assert case["shown"] in shown
            assert case["says"] in shown
    assert "| :--- | ---: |" in markdown
