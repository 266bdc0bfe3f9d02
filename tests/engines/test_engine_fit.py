"""`capplan fit --engine`: the budget, the log, and what would make it start."""

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from capplan.capacity.engines.deployment import Deployment
from capplan.capacity.questions.engine_fit import MOST_CHANGES, engine_fit
from capplan.errors import InputError

Run = Callable[..., tuple[int, str, str]]
GIB = 2**30


def test_the_log_is_foretold() -> None:
    flags = Deployment(version="0.19.0", gpu_memory_utilization=0.95, max_model_len=8192)
    found = engine_fit("llama-3.1-8b", "h100-sxm", flags)
    assert found.log[0] == "Model loading took 14.99 GiB"
    assert found.log[-1].startswith("Maximum concurrency for 8,192 tokens per request: 58.")
    assert found.fits
    assert not found.changes
    assert found.largest_max_model_len == 131_072


def test_the_lines_add_up() -> None:
    found = engine_fit("qwen3-32b", "h100-sxm", Deployment(version="0.24.0", tensor_parallel_size=2))
    spent = found.weight_bytes + found.activation_peak_bytes + found.non_torch_bytes + found.cuda_graph_bytes
    assert found.kv_bytes == pytest.approx(found.requested_bytes - spent)
    assert found.gpus == 2


def test_changes_that_would_do() -> None:
    found = engine_fit("llama-3.1-8b", "rtx-3090", Deployment(version="0.19.0"))
    assert not found.starts
    assert found.largest_max_model_len is not None
    flags = [change["flags"] for change in found.changes]
    assert f"--max-model-len {found.largest_max_model_len}" in flags
    assert "--weights fp8 --kv fp8" in flags
    assert len(flags) <= MOST_CHANGES
    assert [change["gpus"] for change in found.changes] == sorted(change["gpus"] for change in found.changes)
    shorter = Deployment(version="0.19.0", max_model_len=found.largest_max_model_len)
    assert engine_fit("llama-3.1-8b", "rtx-3090", shorter).starts
    longer = Deployment(version="0.19.0", max_model_len=found.largest_max_model_len + 16)
    assert not engine_fit("llama-3.1-8b", "rtx-3090", longer).starts


def test_more_gpus_as_few_as_it_takes() -> None:
    found = engine_fit("llama-3.3-70b", "h100-sxm", Deployment(version="0.19.0"))
    assert [(change["flags"], change["gpus"]) for change in found.changes][-1] == ("--tp 4", 4)
    assert "--weights fp8 --tp 2" in [change["flags"] for change in found.changes]


@pytest.mark.parametrize("engine", ["sglang", "tensorrt-llm"])
def test_other_engines(engine: str) -> None:
    found = engine_fit("llama-3.1-8b", "h100-sxm", Deployment(engine=engine), contexts=[8000])
    assert found.starts
    assert found.concurrency["8000"]


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"tensor_parallel_size": 0}, "tensor_parallel_size 0 is not"),
        ({"tensor_parallel_size": 3}, "the 32 heads of llama-3.1-8b can't be split over 3 ranks"),
        ({"gpu_memory_utilization": 1.5}, "gpu_memory_utilization 1.5 is not a share"),
        ({"max_num_seqs": -1}, "max_num_seqs -1 is not"),
        ({"num_speculative_tokens": -1}, "num_speculative_tokens -1 is below 0"),
        ({"engine": "tgi"}, "engine 'tgi' is not on record"),
        ({"version": "new"}, "vllm version 'new' can't be read"),
        ({"num_speculative_tokens": 2, "speculative_method": "mtp"}, "has no draft"),
        ({"max_num_batched_tokens": 64, "max_num_seqs": 128}, "is below max_num_seqs 128"),
        ({"engine": "sglang", "data_parallel_size": 2}, "have to divide its 1 tensor-parallel ranks"),
        (
            {"engine": "tensorrt-llm", "data_parallel_size": 2, "tensor_parallel_size": 4},
            "have to be as many as its 4 tensor-parallel ranks",
        ),
        ({"engine": "sglang", "version": "new"}, "sglang version 'new' can't be read"),
        ({"engine": "tensorrt-llm", "version": "new"}, "tensorrt-llm version 'new' can't be read"),
        ({"max_num_seqs": 10**30}, r"max_num_seqs 1e\+30 is not a whole number"),
    ],
)
def test_wrong_flags(wrong: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        engine_fit("llama-3.1-8b", "h100-sxm", Deployment(**wrong))


@pytest.mark.parametrize(("engine", "tp", "dp"), [("sglang", 8, 8), ("sglang", 8, 2), ("tensorrt-llm", 8, 8)])
def test_replicas_of_the_attention_lie_inside_the_ranks(engine: str, tp: int, dp: int) -> None:
    """Experts are divided over all ranks, attention over those of a replica; heads of 128 are no longer a copy each."""
    flags = Deployment(engine=engine, tensor_parallel_size=tp)
    one = engine_fit("deepseek-v3", "b200-sxm", flags)
    several = engine_fit("deepseek-v3", "b200-sxm", replace(flags, data_parallel_size=dp))
    assert one.gpus == several.gpus == tp
    parts, before = several.weight_bytes_by_part, one.weight_bytes_by_part
    assert parts["experts"] == before["experts"]
    projections = before["attention"] - parts["attention"] / tp
    assert parts["attention"] > before["attention"] > projections
    assert several.max_concurrency
    assert one.max_concurrency


@pytest.mark.parametrize("length", [None, 1_000_000])
def test_the_longest_request_needs_its_states_too(length: int | None) -> None:
    """There is no block for the state of each of 1,024 requests, however short they are."""
    flags = Deployment(version="0.24.0", gpu_memory_utilization=0.475, tensor_parallel_size=2)
    asked = replace(flags, max_num_seqs=1024, max_model_len=length)
    refused = engine_fit("qwen3-next-80b-a3b", "b200-sxm", asked)
    assert (refused.starts, refused.largest_max_model_len) == (False, 0)
    assert not any(change["flags"].startswith("--max-model-len") for change in refused.changes)
    fewer = engine_fit("qwen3-next-80b-a3b", "b200-sxm", replace(asked, max_num_seqs=64))
    assert fewer.largest_max_model_len
    assert fewer.largest_max_model_len >= 262144


def test_changes_are_flags_that_the_engine_takes() -> None:
    flags = Deployment(engine="tensorrt-llm", tensor_parallel_size=4)
    found = engine_fit("deepseek-v3", "h100-sxm", flags)
    assert [change["flags"] for change in found.changes] == ["--tp 16"]
    replicas = engine_fit("deepseek-v3", "h100-sxm", replace(flags, data_parallel_size=4))
    assert (replicas.starts, replicas.changes) == (False, ())  # four replicas have four ranks


def test_loud_where_the_engine_would_refuse_or_serve_nothing() -> None:
    past = engine_fit("qwen3-8b", "h100-sxm", Deployment(max_model_len=131_072))
    assert any("past the 40,960 tokens" in warning for warning in past.report().warnings)
    dense = engine_fit("llama-3.1-8b", "h100-sxm", Deployment(enable_expert_parallel=True))
    assert any("has no experts" in warning for warning in dense.report().warnings)
    pool = engine_fit("qwen3-next-80b-a3b", "h200-sxm", Deployment(engine="sglang", tensor_parallel_size=2))
    assert any("recurrent states" in warning for warning in pool.report().warnings)


def test_one_engine_is_planned_and_written(run: Run) -> None:
    code, out, err = run("fit", "llama-3.1-8b", "--gpu", "h100", "--engine", "vllm", "--emit", "sglang")
    assert (code, out) == (2, "")
    assert "are two engines" in err
    assert run("fit", "llama-3.1-8b", "--gpu", "h100", "--engine", "trtllm", "--emit", "trtllm")[0] == 0


def test_command(run: Run) -> None:
    line = "fit llama-3.1-8b --gpu h100 --engine-version 0.19.0 --max-model-len 8Ki --kv fp8"
    code, out, _ = run(*line.split(), "--json")
    document = json.loads(out)
    assert (code, document["schema"]) == (0, "capplan/engine-fit/1")
    assert document["inputs"]["deployment"]["kv_cache_dtype"] == "fp8"
    assert "Maximum concurrency" in run(*line.split())[1]
    assert run("fit", "llama-3.3-70b", "--gpu", "h100", "--engine", "vllm")[0] == 1
    code, _, err = run("fit", "llama-3.1-8b", "--gpu", "h100", "--tp", "2", "--reserve", "4GiB")
    assert code == 2
    assert "do not go with an engine's flags" in err
