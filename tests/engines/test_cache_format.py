"""What kv-cache-dtype auto is: one rule for every question."""

from dataclasses import replace

import pytest

from capplan.capacity.engines.cache_format import BUILDS, auto_format
from capplan.capacity.engines.deployment import Deployment
from capplan.capacity.questions.deployed import deployed
from capplan.capacity.questions.engine_fit import engine_fit
from capplan.hardware.registry import gpu
from capplan.models.registry import model
from capplan.models.spec import Model


def asking(kv: str) -> Model:
    """A checkpoint that asks for a format of its cache."""
    found = model("qwen3-32b-fp8")
    assert found.quantization is not None
    return found._replace(quantization=replace(found.quantization, kv=kv))


@pytest.mark.parametrize(
    ("engine", "version", "expected"),
    [
        ("tensorrt-llm", None, "fp8"),
        ("sglang", None, "fp8"),
        ("vllm", None, "fp8"),
        ("vllm", "0.15.0", "fp8"),
        ("vllm", "0.11.0", "bf16"),
    ],
)
def test_auto_is_what_the_checkpoint_asks_for(engine: str, version: str | None, expected: str) -> None:
    assert auto_format(asking("fp8"), engine, version=version)[0] == expected


@pytest.mark.parametrize(
    ("name", "quantization", "expected"),
    [
        ("llama-3.3-70b", "fp8", "fp8"),  # known by its method alone: a build of NVIDIA's
        ("llama-3.3-70b", "nvfp4", "fp8"),
        ("qwen3-235b-a22b-nvfp4", None, "fp8"),  # ModelOpt's
        ("deepseek-r1", None, "bf16"),  # its config is on record, and asks for nothing
        ("qwen3-32b-fp8", None, "bf16"),
        ("llama-3.3-70b", None, "bf16"),
        ("llama-3.3-70b", "awq", "bf16"),
        ("llama-3.3-70b", "fp32", "fp32"),
        ("gpt-oss-120b", None, "bf16"),
    ],
)
def test_tensorrt_llm_where_the_checkpoint_does_not_ask(
    name: str, quantization: str | None, expected: str
) -> None:
    found, told = auto_format(model(name), "tensorrt-llm", quantization=quantization)
    assert (found, told) == (expected, [BUILDS] if expected == "fp8" else [])
    for engine in ("vllm", "sglang"):
        assert auto_format(model(name), engine, quantization=quantization)[0] in ("bf16", expected)
        assert auto_format(model(name), engine, quantization=quantization)[0] != "fp8"


@pytest.mark.parametrize("engine", ["vllm", "sglang", "tensorrt-llm"])
@pytest.mark.parametrize("quantization", [None, "fp8", "nvfp4"])
@pytest.mark.parametrize("kv", ["auto", "bf16", "fp8"])
def test_fit_and_perf_agree(engine: str, quantization: str | None, kv: str) -> None:
    flags = Deployment(engine=engine, quantization=quantization, kv_cache_dtype=kv, max_model_len=8192)
    fitted = engine_fit("llama-3.1-8b", "b200-sxm", flags)
    timed = deployed(model("llama-3.1-8b"), gpu("b200-sxm"), flags)
    assert fitted.kv_tokens == timed.memory.kv_tokens
    assert (BUILDS in fitted.assumptions) == (BUILDS in timed.assumptions)
    each_token = fitted.kv_bytes / (fitted.kv_tokens or 1)
    element = {"fp8": 1, "bf16": 2}[timed.plan.kv]
    assert each_token == pytest.approx(32 * 2 * 8 * 128 * element, rel=1e-3)


@pytest.mark.parametrize("name", ["deepseek-v4-flash", "deepseek-v4.1-flash"])
def test_auto_is_fp8_for_compressed_attention(name: str) -> None:
    """vLLM and SGLang keep no other format of it; vLLM before 0.30 wants it named."""
    assert auto_format(model(name), "sglang") == ("fp8", [])
    assert auto_format(model(name), "vllm") == ("fp8", [])
    assert [auto_format(model(name), "vllm", version=version)[0] for version in ("0.8.5", "0.24.0")] == [
        "bf16"
    ] * 2
    for engine in ("vllm", "sglang"):
        auto, said = (
            deployed(
                model(name),
                gpu("h200-sxm"),
                Deployment(engine=engine, tensor_parallel_size=4, kv_cache_dtype=kv),
            )
            for kv in ("auto", "fp8")
        )
        assert (auto.plan.kv, auto.memory.kv_tokens) == ("fp8", said.memory.kv_tokens)


def test_a_model_that_vllm_refuses_decodes_nothing() -> None:
    flags = Deployment(version="0.24.0", tensor_parallel_size=4)
    refused = deployed(model("deepseek-v4-flash"), gpu("h200-sxm"), flags)
    assert (refused.memory.starts, refused.held(8000), refused.most(8000)) == (False, 0.0, 0.0)


def test_a_build_of_modelopt_has_twice_the_tokens_that_16_bit_would() -> None:
    auto, whole = (
        engine_fit(
            "llama-3.3-70b",
            "h200-sxm",
            Deployment(engine="tensorrt-llm", quantization="fp8", kv_cache_dtype=kv),
        )
        for kv in ("auto", "bf16")
    )
    assert auto.kv_bytes == whole.kv_bytes
    assert auto.kv_tokens == pytest.approx(2 * (whole.kv_tokens or 0), rel=1e-4)
