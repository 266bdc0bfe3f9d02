"""The command lines that realise a deployment."""

import json
import shlex
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from capplan.capacity.engines.deployment import Deployment
from capplan.capacity.engines.emit import DRAFT_MODEL, emit
from capplan.errors import InputError, UnknownNameError

Run = Callable[..., tuple[int, str, str]]

MODEL = "Qwen/Qwen3-32B"
FULL = Deployment(
    version="0.19.0",
    tensor_parallel_size=4,
    pipeline_parallel_size=2,
    data_parallel_size=2,
    enable_expert_parallel=True,
    gpu_memory_utilization=0.85,
    max_model_len=32768,
    max_num_seqs=128,
    max_num_batched_tokens=4096,
    block_size=32,
    kv_cache_dtype="fp8",
    enforce_eager=True,
    enable_prefix_caching=False,
    quantization="fp8",
    speculative_method="mtp",
    num_speculative_tokens=3,
)


@pytest.mark.parametrize(
    ("engine", "line"),
    [
        ("vllm", f"vllm serve {MODEL}"),
        ("sglang", f"python -m sglang.launch_server --model-path {MODEL}"),
        ("trtllm", f"trtllm-serve {MODEL}"),
        ("tensorrt-llm", f"trtllm-serve {MODEL}"),
    ],
)
def test_defaults_are_left_out(engine: str, line: str) -> None:
    assert emit(Deployment(), MODEL, engine) == line


def test_vllm() -> None:
    assert emit(FULL, MODEL) == (
        f"vllm serve {MODEL} --tensor-parallel-size 4 --pipeline-parallel-size 2 --data-parallel-size 2 "
        "--enable-expert-parallel --gpu-memory-utilization 0.85 --max-model-len 32768 --max-num-seqs 128 "
        "--max-num-batched-tokens 4096 --block-size 32 --kv-cache-dtype fp8 --quantization fp8 --enforce-eager "
        "--no-enable-prefix-caching "
        """--speculative-config '{"method": "mtp", "num_speculative_tokens": 3}'"""
    )


def test_sglang() -> None:
    assert emit(FULL, MODEL, "sglang") == (
        f"python -m sglang.launch_server --model-path {MODEL} --tp-size 4 --pp-size 2 --dp-size 2 "
        "--enable-dp-attention --ep-size 4 --mem-fraction-static 0.85 --context-length 32768 "
        "--max-running-requests 128 --chunked-prefill-size 4096 --page-size 32 --kv-cache-dtype fp8_e4m3 "
        "--quantization fp8 --disable-cuda-graph --disable-radix-cache --speculative-algorithm EAGLE "
        "--speculative-num-steps 3 --speculative-eagle-topk 1 --speculative-num-draft-tokens 4"
    )


def test_tensorrt() -> None:
    assert emit(FULL, MODEL, "trtllm").splitlines() == [
        "# the checkpoint has to be one in fp8; no flag makes it so",
        "cat > trtllm-options.yaml <<'YAML'",
        "kv_cache_config:",
        "  dtype: fp8",
        "  tokens_per_block: 32",
        "  enable_block_reuse: false",
        "  free_gpu_memory_fraction: 0.85",
        "enable_attention_dp: true",
        "cuda_graph_config: null",
        "speculative_config:",
        "  decoding_type: MTP",
        "  num_nextn_predict_layers: 3",
        "YAML",
        (
            f"trtllm-serve {MODEL} --tp_size 4 --pp_size 2 --ep_size 4 --max_seq_len 32768 --max_batch_size 128 "
            "--max_num_tokens 4096 --extra_llm_api_options trtllm-options.yaml"
        ),
    ]
    assert emit(Deployment(gpu_memory_utilization=0.8), MODEL, "trtllm") == (
        f"trtllm-serve {MODEL} --kv_cache_free_gpu_memory_fraction 0.8"
    )


@pytest.mark.parametrize(
    ("version", "flags", "words"),
    [
        (
            "0.6.6",
            {"num_speculative_tokens": 2, "speculative_method": "ngram"},
            "--speculative-model '[ngram]'",
        ),
        ("0.8.5", {"num_speculative_tokens": 2, "speculative_method": "ngram"}, "--speculative-config"),
        ("0.8.5", {"kv_cache_dtype": "bf16"}, f"serve {MODEL}"),
        ("0.11.0", {"kv_cache_dtype": "bf16"}, "--kv-cache-dtype bfloat16"),
        ("0.11.0", {"kv_cache_memory_bytes": 2**34}, "--kv-cache-memory-bytes 17179869184"),
        ("0.19.0", {"decode_context_parallel_size": 2}, "--decode-context-parallel-size 2"),
        ("0.19.0", {"enable_prefix_caching": True}, " --enable-prefix-caching"),
    ],
)
def test_vllm_by_version(version: str, flags: dict[str, Any], words: str) -> None:
    deployment = replace(Deployment(version=version), **flags)
    assert words in emit(deployment, MODEL)


@pytest.mark.parametrize(
    ("engine", "flags"),
    [
        ("vllm", {"version": "0.8.5", "kv_cache_memory_bytes": 2**34}),
        ("vllm", {"version": "0.8.2", "data_parallel_size": 2}),
        ("vllm", {"version": "0.6.6", "num_speculative_tokens": 2, "speculative_method": "mtp"}),
        ("trtllm", {"decode_context_parallel_size": 2}),
        ("trtllm", {"num_speculative_tokens": 2, "speculative_method": "tree"}),
        ("sglang", {"num_speculative_tokens": 2, "speculative_method": "tree"}),
        ("trtllm", {"kv_cache_dtype": "fp8\nYAML\nreboot"}),
        ("vllm", {"quantization": "fp8; reboot"}),
    ],
)
def test_what_an_engine_has_not(engine: str, flags: dict[str, Any]) -> None:
    with pytest.raises(InputError):
        emit(Deployment(**flags), MODEL, engine)


def test_what_no_flag_does_is_told() -> None:
    assert emit(Deployment(quantization="int4"), MODEL).startswith("# the checkpoint has to be one in int4")
    assert "--max-total-tokens" in emit(Deployment(kv_cache_memory_bytes=2**34), MODEL, "sglang")
    drafted = Deployment(num_speculative_tokens=3, speculative_method="eagle3")
    for engine in ("vllm", "sglang", "trtllm"):
        told, command = emit(drafted, MODEL, engine), emit(drafted, MODEL, engine).splitlines()[-1]
        assert told.startswith(f"# {DRAFT_MODEL} stands for")
        assert DRAFT_MODEL in told.split("\n", 1)[1]
        assert command


@given(st.text(min_size=1, max_size=40).filter(lambda text: text.strip() and not text.startswith("-")))
def test_a_model_of_any_name_is_one_word(model: str) -> None:
    for engine in ("vllm", "sglang", "trtllm"):
        assert model in shlex.split(emit(Deployment(max_model_len=1), model, engine), comments=False)


@pytest.mark.parametrize("model", ["", "  ", "--trust-remote-code"])
def test_no_model(model: str) -> None:
    with pytest.raises(InputError):
        emit(Deployment(), model)
    with pytest.raises(UnknownNameError):
        emit(Deployment(), MODEL, "ollama")


def test_command(run: Run) -> None:
    line = ["fit", "llama-3.1-8b", "--gpu", "h100", "--max-model-len", "8Ki", "--emit"]
    code, out, _ = run(*line, "vllm")
    assert (code, out) == (0, "vllm serve meta-llama/Llama-3.1-8B-Instruct --max-model-len 8192\n")
    assert "--context-length 8192" in run(*line, "sglang")[1]
    assert "--max_seq_len 8192" in run(*line, "trtllm")[1]
    assert run(*line, "vllm", "--json")[0] == 2
    assert run(*line, "ollama")[0] == 2
    too_long = run("fit", "llama-3.3-70b", "--gpu", "l4", "--max-model-len", "8Ki", "--emit", "vllm")
    assert too_long[0] == 1
    assert too_long[1].startswith("vllm serve meta-llama/")
    assert "does not start" in too_long[2]
    assert json.loads(run(*line[:-1], "--json")[1])["schema"] == "capplan/engine-fit/1"
