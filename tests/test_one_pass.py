"""The commands about one pass: ops, decode, and prefill operation by operation."""

import json
from collections.abc import Callable
from datetime import date
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from capplan.capacity.engines.deployment import Deployment
from capplan.capacity.questions.decode import Decode, decode
from capplan.capacity.questions.ops import ops
from capplan.capacity.questions.prefill import prefill
from capplan.capacity.questions.prefill_passes import chunks
from capplan.capacity.step_time.calibration import Calibration, Constant
from capplan.capacity.step_time.passes import GROUPS
from capplan.cli.pass_pictures import CHARACTERS, bars
from capplan.errors import CapplanError, InputError
from capplan.units import seconds

Run = Callable[..., tuple[int, str, str]]
MODELS = st.sampled_from(["qwen3-0.6b", "llama-3.1-8b", "qwen3-30b-a3b", "deepseek-v2-lite", "falcon-h1-7b"])
GPUS = st.sampled_from(["l4", "a100-sxm", "h200-sxm", "b200", "mi300x", "gaudi3", "tpu-v6e"])
ENGINES = st.sampled_from(["vllm", "sglang", "tensorrt-llm"])
LIMITS = ("compute", "memory", "latency", "link", "fixed")
few = settings(max_examples=40, deadline=None)
COMMANDS = {
    "ops": ("ops", "llama-3.1-8b", "--gpu", "h100"),
    "decode": ("decode", "llama-3.1-8b", "--gpu", "h100"),
    "prefill": ("prefill", "llama-3.1-8b", "--gpu", "h100"),
}


# --- ops ----------------------------------------------------------------------------------------------


@few
@given(MODELS, GPUS, ENGINES, st.integers(1, 300), st.integers(1, 20_000), st.none() | st.integers(1, 9000))
def test_rows_add_up_to_the_pass(
    model: str, gpu: str, engine: str, batch: int, context: int, prompt: int | None
) -> None:
    found = ops(model, gpu, Deployment(engine=engine), batch=batch, context=context, prompt=prompt)
    for name in ("time_s", "high_s"):
        assert sum(row[name] for row in found.operations) == pytest.approx(getattr(found, name))
    assert sum(row["share"] for row in found.operations) == pytest.approx(1)
    assert found.floor_s <= found.low_s <= found.time_s <= found.high_s
    times = [row["time_s"] for row in found.operations]
    assert times == sorted(times, reverse=True)
    limits = {name: getattr(found, f"{name}_s") for name in LIMITS}
    assert sum(limits.values()) == pytest.approx(found.time_s)
    assert limits[found.bound_by] == max(limits.values())


def test_a_row_has_the_work_of_all_its_times() -> None:
    # Llama 3.1 8B: 32 layers of 4096 x 4096 for the output of attention, 2 FLOP each
    rows = {row["name"]: row for row in ops("llama-3.1-8b", "h100", batch=16, context=1000).operations}
    assert rows["o_proj"]["count"] == 32
    assert rows["o_proj"]["flops"] == 32 * 2 * 16 * 4096 * 4096
    assert rows["attention_decode.full"]["flops"] == 32 * 4 * 16 * 1000 * 4096
    assert "allreduce" not in rows


def test_a_pass_of_a_prompt_after_what_is_cached() -> None:
    """Attention of 1,000 tokens sees all that came before, and on average half of their own."""
    rows = {
        row["name"]: row for row in ops("llama-3.1-8b", "h100", context=8000, prompt=1000, batch=2).operations
    }
    pairs = 1000 * 8000 + 1000 * 1001 / 2
    assert rows["attention_prefill.full"]["flops"] == pytest.approx(32 * 4 * 2 * pairs * 4096)
    assert rows["lm_head"]["flops"] == 2 * 2 * 128_256 * 4096  # the last token of each alone


def test_a_batch_that_memory_does_not_hold(run: Run) -> None:
    code, out, _ = run("ops", "llama-3.1-8b", "--gpu", "l4", "--tp", "1", "--batch", "64", "--json")
    document = json.loads(out)
    assert (code, document["result"]["batch_fits"]) == (1, False)
    assert "memory holds" in document["warnings"][0]


def test_more_tokens_than_a_pass_takes_are_warned_of() -> None:
    (warning,) = ops("llama-3.1-8b", "h100", prompt=10_000).warnings
    assert "10,000 tokens are more than the 8,192 of a pass" in warning


# --- decode -------------------------------------------------------------------------------------------


def parts(row: dict[str, Any]) -> float:
    """The sum of its groups, which is also that of its limits."""
    limits = {name: row[f"{name}_s"] for name in LIMITS}
    whole = float(sum(row[f"{group}_s"] for group in GROUPS))
    assert sum(limits.values()) == pytest.approx(whole)
    assert limits[row["bound_by"]] == max(limits.values())
    return whole


@few
@given(MODELS, GPUS, ENGINES, st.lists(st.integers(1, 2000), min_size=1, max_size=4), st.integers(1, 50_000))
def test_parts_of_a_decode_pass(model: str, gpu: str, engine: str, batches: list[int], context: int) -> None:
    found = decode(model, gpu, Deployment(engine=engine), batches=batches, contexts=context)
    assert [row["batch"] for row in found.at] == sorted(set(batches))
    for row in found.at:
        assert parts(row) == pytest.approx(row["time_s"])
        assert row["floor_s"] <= row["low_s"] <= row["time_s"] <= row["high_s"]
        assert row["tokens_per_s"] == pytest.approx(row["batch"] / row["time_s"])
        assert row["tokens_per_s_per_gpu"] * found.gpus == pytest.approx(row["tokens_per_s"])
        assert row["tokens_per_s_per_user"] == pytest.approx(1 / row["time_s"])
        assert row["fits"] == (row["most_batch"] is None or row["batch"] <= row["most_batch"])
    times = [row["time_s"] for row in found.at]
    assert times == sorted(times)
    same = ops(model, gpu, Deployment(engine=engine), batch=batches[0], context=context)
    (row,) = (row for row in found.at if row["batch"] == batches[0])
    if same.gpus == found.gpus:
        assert row["time_s"] == pytest.approx(same.time_s)


def test_a_decode_pass_reads_all_weights_and_the_cache_of_every_sequence() -> None:
    (row,) = decode("llama-3.1-8b", "h100", batches=10, contexts=1000).at
    # 8.03e9 parameters less the embedding's 128,256 x 4,096, in 16 bit; 131,072 byte of cache a token
    assert row["weight_bytes_read"] == pytest.approx(2 * (8.030e9 - 128_256 * 4096), rel=1e-3)
    assert row["cache_bytes_read"] == 10 * 1000 * 131_072
    read = row["weight_bytes_read"] + row["cache_bytes_read"]
    assert row["floor_s"] == pytest.approx(read / 3.35e12)


def test_twice_the_replicas_are_twice_the_tokens() -> None:
    one, two = (
        decode("llama-3.1-8b", "h100", Deployment(data_parallel_size=dp), batches=8, contexts=2000, tp=1)
        for dp in (1, 2)
    )
    assert two.gpus == 2 * one.gpus
    assert two.at[0]["tokens_per_s"] == pytest.approx(2 * one.at[0]["tokens_per_s"])
    assert two.at[0]["tokens_per_s_per_gpu"] == pytest.approx(one.at[0]["tokens_per_s_per_gpu"])


def test_every_stage_of_a_pipeline_has_a_batch_of_its_own() -> None:
    (row,) = decode(
        "llama-3.1-8b", "h100", Deployment(pipeline_parallel_size=2), batches=8, contexts=2000, tp=1
    ).at
    assert row["tokens_per_s"] == pytest.approx(2 * 8 / row["time_s"])


CODES = {
    "some-fit": (("decode", "llama-3.1-8b", "--gpu", "l4", "--tp", "1", "--batch", "1,512"), 0),
    "all-of-the-usual": (("decode", "qwen3-0.6b", "--gpu", "h200"), 0),
    "none-asked-fits": (("decode", "llama-3.1-8b", "--gpu", "l4", "--tp", "1", "--batch", "256,512"), 1),
    "more-than-is-allowed": (
        ("decode", "qwen3-0.6b", "--gpu", "h100", "--max-num-seqs", "8", "--batch", "16"),
        1,
    ),
    "weights-do-not-fit": (("decode", "llama-3.3-70b", "--gpu", "l4", "--tp", "1"), 1),
}


@pytest.mark.parametrize(("args", "code"), CODES.values(), ids=CODES)
def test_exit_code(args: tuple[str, ...], code: int, run: Run) -> None:
    found, out, _ = run(*args)
    assert found == code
    bound = "more than max-num-seqs allows" if "--max-num-seqs" in args else "do not fit in memory"
    assert (bound in out.splitlines()[0]) == (code == 1)
    rows = json.loads(run(*args, "--json")[1])["result"]["at"]
    assert any(row["fits"] for row in rows) == (code == 0)
    for row in rows:
        assert (f"({row['batch']:,})" in out) == (not row["fits"])


def test_the_headline_is_the_largest_batch_that_fits() -> None:
    found = decode("llama-3.1-8b", "h100", batches=[1, 32, 100_000], contexts=[1000, 2000])
    row = next(row for row in found.at if (row["batch"], row["context"]) == (32, 1000))
    told = f"{seconds(row['time_s'])} between tokens ({seconds(row['low_s'])} - {seconds(row['high_s'])})"
    assert f"{told} with 32 sequences of 1,000 tokens" in str(found)


# --- prefill ------------------------------------------------------------------------------------------


@few
@given(MODELS, GPUS, ENGINES, st.lists(st.integers(1, 200_000), min_size=1, max_size=3))
def test_parts_of_a_prompt(model: str, gpu: str, engine: str, prompts: list[int]) -> None:
    found = prefill(model, gpu, contexts=prompts, deployment=Deployment(engine=engine))
    assert found.method == "operations"
    for row in found.at:
        assert parts(row) == pytest.approx(row["time_s"])
        assert row["linear_s"] == row["projections_s"] + row["experts_s"] + row["head_s"]
        assert row["low_s"] <= row["time_s"] <= row["high_s"]
        assert row["time_s"] <= row["ttft_s"]
        assert row["utilisation"] == pytest.approx(row["peak_s"] / row["time_s"])
    times = [row["time_s"] for row in found.at]
    assert times == sorted(times)


@few
@given(st.integers(1, 10**7), st.integers(16, 20_000))
def test_chunks_have_every_token_and_every_pair(prompt: int, budget: int) -> None:
    found = chunks(prompt, budget)
    assert sum(times * chunk for times, chunk, _ in found) == pytest.approx(prompt)
    seen = sum(times * (chunk * before + chunk**2 / 2) for times, chunk, before in found)
    assert seen == pytest.approx(prompt**2 / 2)
    assert len(found) <= 101
    assert all(chunk <= budget for _, chunk, _ in found)


def test_a_smaller_budget_takes_more_passes_and_longer() -> None:
    few_, many = (
        prefill(
            "llama-3.1-8b", "h100", contexts=16_384, deployment=Deployment(max_num_batched_tokens=budget)
        ).at[0]
        for budget in (8192, 1024)
    )
    assert (few_["passes"], many["passes"]) == (2, 16)
    assert many["time_s"] > few_["time_s"]


def test_attention_of_a_prompt_grows_as_its_square() -> None:
    short, long = prefill("llama-3.1-8b", "h100", contexts=[16_000, 64_000]).at
    assert 11 < long["attention_s"] / short["attention_s"] < 16
    assert 3.5 < long["linear_s"] / short["linear_s"] < 4.5


def test_the_whiteboard_and_a_utilisation_time_the_work_alone() -> None:
    for found in (
        prefill("llama-3.1-8b", "h100", tier="whiteboard"),
        prefill("llama-3.1-8b", "h100", utilisation=0.25),
        prefill("70b-class", "h100"),
    ):
        assert (found.method, found.gpus) == ("utilisation", 1)
        for row in found.at:
            assert row["time_s"] == pytest.approx(row["peak_s"] / found.utilisation)


# --- what they share ----------------------------------------------------------------------------------

REFUSED = {
    "batch-zero": (("--batch", "0"), "batch 0 is not a whole number of sequences from 1 to 1,000,000"),
    "engine": (("--engine", "vlm"), "unknown engine 'vlm'; did you mean 'vllm'?"),
    "ranks": (("--tp", "3"), "can't be split over 3 ranks"),
    "weights": (("--weights", "fp9"), "'fp9'"),
    "kv": (("--kv", "fp9"), "unknown kv cache dtype 'fp9'; did you mean 'fp8'?"),
    "context-zero": (("--context", "0"), "context 0 is not a whole number of tokens"),
    "stages": (("--pp", "0"), "pipeline_parallel_size 0 is not a whole number"),
    "longest": (("--max-model-len", "4000"), "8,001 tokens are past max_model_len 4,000"),
    "calibration": (("--calibration", "none.json"), "'none.json'"),
}


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize(("args", "message"), REFUSED.values(), ids=REFUSED)
def test_refused(command: str, args: tuple[str, ...], message: str, run: Run) -> None:
    message = message.replace("8,001", "8,000") if command == "decode" else message
    if command == "prefill" and args[0] in ("--batch", "--max-model-len"):
        args, message = ("--utilisation", "50%", "--tp", "2"), "an engine's flags do not go with it"
    code, out, err = run(*COMMANDS[command], *args)
    assert (code, out) == (2, "")
    assert message in err
    assert err.count("\n") == 1


def test_a_range_of_batches_doubles(run: Run) -> None:
    found = json.loads(run(*COMMANDS["decode"], "--batch", "3..20", "--batch", "5", "--json")[1])
    assert found["inputs"]["batches"] == [3, 5, 6, 12, 20]
    assert (
        "no range; write the smaller end first, such as 1..512"
        in run(*COMMANDS["decode"], "--batch", "8..2")[2]
    )


def test_a_model_known_by_its_size_has_no_operations() -> None:
    for ask in (decode, ops):
        with pytest.raises(InputError, match="its operations need its tensors"):
            ask("70b-class", "h200")


@pytest.mark.parametrize("command", COMMANDS)
def test_explain_puts_the_numbers_of_the_longest_operations_in(command: str, run: Run) -> None:
    _, out, _ = run(*COMMANDS[command], "--explain")
    assert "= start + (compute ** power + memory ** power) ** (1 / power)" in out
    assert "(gate_up_proj, 32 times" in out
    assert "kernels.toml, sm90" in out
    assert "engine_steps.toml, vllm" in out
    assert ("decode_floor" in out) == (command != "prefill")


def test_a_calibration_replaces_constants_and_ranges() -> None:
    step = Constant(0.05, 0.04, 0.06, 9, "measured")
    file = Calibration(
        "mine.json",
        "h100-sxm",
        "vllm",
        None,
        "llama-3.1-8b",
        date(2026, 11, 1),
        {"step": step},
        0.3,
        0.1,
        False,
    )
    (plain,) = decode("llama-3.1-8b", "h100", batches=4).at
    (row,) = decode("llama-3.1-8b", "h100", batches=4, calibration=file).at
    assert row["time_s"] > 0.05 > plain["time_s"]
    assert row["high_s"] == pytest.approx(1.1 * row["time_s"])
    found = ops("llama-3.1-8b", "h100", batch=4, calibration=file)
    assert found.high_s == pytest.approx(1.1 * found.time_s)
    assert (found.inputs["tier"], found.inputs["calibration"]) == ("measured", "mine.json")
    (prompt,) = prefill("llama-3.1-8b", "h100", contexts=1000, calibration=file).at
    assert prompt["high_s"] == pytest.approx(1.3 * prompt["time_s"])
    with pytest.raises(CapplanError):
        decode("llama-3.1-8b", "h200", calibration=file)


@few
@given(MODELS, st.lists(st.integers(1, 512), min_size=1, max_size=6), st.integers(60, 200))
def test_bars_are_as_long_as_their_times(model: str, batches: list[int], columns: int) -> None:
    found = decode(model, "h200", batches=batches, contexts=2000)
    assert isinstance(found, Decode)
    head, *lines = bars(found, columns).splitlines()
    assert "at 2,000 tokens" in head
    shown = [row for row in found.at if row["fits"]]
    drawn = [sum(line.count(character) for character in CHARACTERS.values()) for line in lines[: len(shown)]]
    longest = max(row["time_s"] for row in found.at[: len(drawn) + 1])
    for line, row in zip(lines, shown, strict=False):
        assert line.endswith(seconds(row["time_s"]))
        assert len(line) <= columns
    assert drawn == sorted(drawn)
    if len(shown) == len(found.at):
        assert drawn[0] == pytest.approx(drawn[-1] * shown[0]["time_s"] / longest, abs=2)


def test_a_checkpoint_in_fp32_is_served_in_16_bit() -> None:
    loaded = prefill("gpt-j-6b", "h100-sxm", contexts=[1000])
    assert loaded.inputs["weights"] == "bf16"
    assert 0.3 < loaded.utilisation < 0.8
    assert any("fp32 is loaded in 16 bit" in text for text in loaded.assumptions)
    wide = prefill("gpt-j-6b", "h100-sxm", contexts=[1000], weights="fp32")
    assert wide.inputs["weights"] == "fp32"
    assert 0.3 < wide.utilisation < 0.8  # of the peak without tensor cores
    assert wide.at[0]["time_s"] > 5 * loaded.at[0]["time_s"]


def test_a_prompt_takes_the_builds_that_other_passes_take() -> None:
    named = prefill("llama-3.1-8b", "h100-sxm", weights="awq", contexts=[1000])
    assert named.inputs["weights"] == "int4"
    assert named.inputs["deployment"]["quantization"] == "awq"


def test_what_bounds_a_batch_is_told(run: Run) -> None:
    """Memory would hold hundreds; the flag is what stands in the way."""
    flags = ("qwen3-0.6b", "--gpu", "h100", "--max-num-seqs", "8", "--context", "1000")
    out = run("decode", *flags, "--batch", "8,16")[1]
    assert "max-num-seqs allows 8 sequences" in out
    assert "memory holds 8" not in out
    assert (
        "max-num-seqs allows 8 sequences of 1,001 tokens in a pass, not 16"
        in run("ops", *flags, "--batch", "16")[1]
    )


def test_a_prompt_that_does_not_fit_is_an_answer(run: Run) -> None:
    code, out, _ = run("prefill", "llama-3.3-70b", "--gpu", "l4", "--tp", "1", "--context", "1000")
    assert code == 1
    assert "it does not fit in memory" in out.splitlines()[0]
    some = prefill("llama-3.1-8b", "l4", contexts=[1000, 100_000], tp=1)
    assert [row["fits"] for row in some.at] == [True, False]
    assert some.fits
    assert "a prompt of 1,000 tokens takes" in some.report().headline


def test_a_prompt_of_nothing_is_named_as_such(run: Run) -> None:
    code, out, err = run(*COMMANDS["ops"], "--prompt", "0")
    assert (code, out) == (2, "")
    assert "prompt 0 is not a whole number of tokens" in err


def test_the_bounds_of_a_flag_are_printed_like_its_value(run: Run) -> None:
    err = run("perf", "llama-3.1-8b", "--gpu", "h100", "--isl", "1T")[2]
    assert "max_model_len 1,000,000,001,024 is not a whole number from 1 to 1,000,000,000,000" in err
