"""Published names as rows of the registry."""

import pytest

from capplan.capacity.engines.weights import quantized, rank_weights
from capplan.errors import InputError
from capplan.hardware.resolve import card
from capplan.models.resolve import resolve


@pytest.mark.parametrize(
    ("name", "said", "row", "quantization"),
    [
        ("RedHatAI/Qwen3-14B-FP8-dynamic", "", "qwen3-14b", "fp8"),
        ("cpatonn/Qwen3-Coder-30B-A3B-Instruct-GPTQ-4bit", "compressed-tensors", "qwen3-30b-a3b", "int4"),
        ("openai/gpt-oss-20b", "mxfp4", "gpt-oss-20b", "mxfp4"),
        ("meta-llama/Meta-Llama-3.1-8B-Instruct", "", "llama-3.1-8b", None),
        ("redhatai/Llama-3.3-70B-Instruct-quantized.w8a8", "", "llama-3.3-70b", "int8"),
        ("Gemma-4-31B AutoRound INT4 (HF id not stated)", "", "gemma-4-31b", "int4"),
        ("deepseek-ai/DeepSeek-R1-Distill-Qwen-14B", "", "qwen2.5-14b", None),
        ("deepseek-ai/DeepSeek-V3.2-Exp", "fp8", "deepseek-v3.2", "fp8"),
        ("google/gemma-2-9b-it", "bf16", "gemma-2-9b", "bf16"),
        ("Muse-Glimmer-30B (meta-models, HF id not stated)", "bf16", "muse-glimmer-30b", "bf16"),
        ("Inferact/Muse-Glimmer-30B-NVFP4-W4A4", "", "muse-glimmer-30b", "nvfp4"),
        ("Laguna-S-2.1-NVFP4 (HF owner not stated)", "nvfp4", "laguna-s-2.1", "nvfp4"),
        ("poolside/Laguna-XS.2-FP8", "", "laguna-xs.2", "fp8"),
        ("RadixArk/Qwen3.8-Flash-Next-NVFP4", "", "qwen3.8-flash-next", "nvfp4"),
    ],
)
def test_published_names(name: str, said: str, row: str, quantization: str | None) -> None:
    found = resolve(name, said)
    assert (found.model.id, found.quantization) == (row, quantization)


def test_what_was_assumed_is_said() -> None:
    assert "Small 3 with a vision tower" in " ".join(
        resolve("mistralai/Mistral-Small-3.1-24B-Instruct-2503").assumptions
    )
    assert "vision tower" in " ".join(resolve("google/gemma-3-12b-it").assumptions)


@pytest.mark.parametrize("name", ["", "(HF id not stated)", "acme/rocket-70b", "meta-llama/Llama-5-1B"])
def test_never_a_guess(name: str) -> None:
    with pytest.raises(InputError):
        resolve(name)


@pytest.mark.parametrize(
    ("name", "row"),
    [
        ("NVIDIA H100 80GB", "h100-sxm"),
        ("NVIDIA A100 40GB", "a100-sxm-40"),
        ("NVIDIA RTX 3090 24GB", "rtx-3090"),
        ("NVIDIA GB10 (DGX Spark, 128GB unified)", "gb10-dgx-spark"),
        ("AMD Instinct MI300X 192GB", "mi300x"),
        ("NVIDIA RTX PRO 6000 Blackwell 96GB", "rtx-pro-6000-server"),
    ],
)
def test_cards(name: str, row: str) -> None:
    found = card(name)
    assert found is not None
    assert found.id == row


@pytest.mark.parametrize("name", ["NVIDIA RTX 5000 Ada 32GB", "AMD Radeon AI PRO R9700 32GB", "", "2 cards"])
def test_cards_without_a_row(name: str) -> None:
    assert card(name) is None


def test_a_name_that_two_owners_store_otherwise() -> None:
    own, other = (
        resolve(f"{owner}/Meta-Llama-3.1-405B-Instruct-FP8") for owner in ("meta-llama", "neuralmagic")
    )
    assert (own.model.id, own.quantization) == ("llama-3.1-405b-fbgemm-fp8", "fp8")
    assert (other.model.id, other.quantization) == ("llama-3.1-405b", "fp8")
    doubled = 2 * 2 * 16384 * 8 * 128 * 126 / 8  # keys and values, which the first upload stored twice
    rank = rank_weights(quantized(own.model, own.quantization), tp=8).bytes + doubled
    assert rank / 2**30 == pytest.approx(57.752, rel=0.0003)  # vllm issue 6746


@pytest.mark.parametrize(
    ("name", "said", "quantization"),
    [
        ("deepseek-ai/DeepSeek-V4.1-Flash", "fp4", None),
        ("XiaomiMiMo/MiMo-V2.5-Pro-FP4-DFlash", "mxfp4/fp8 mixed", None),
        ("nvidia/DeepSeek-V4.1-Flash-NVFP4", "", "nvfp4"),
        ("Qwen/Qwen3-32B", "fp4", "nvfp4"),
    ],
)
def test_fp4_of_a_checkpoint_in_mxfp4_is_its_own(name: str, said: str, quantization: str | None) -> None:
    assert resolve(name, said).quantization == quantization
