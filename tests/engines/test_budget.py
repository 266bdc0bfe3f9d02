"""The memory of a rank, against start-up logs that print every term."""

import tomllib
from pathlib import Path
from typing import Any

import pytest

from capplan.capacity.engines.budget import budget
from capplan.capacity.engines.defaults import constant, version_on, with_defaults
from capplan.capacity.engines.deployment import Deployment
from capplan.capacity.engines.device import Device, device_of
from capplan.capacity.questions.engine_fit import engine_fit
from capplan.errors import InputError
from capplan.hardware.registry import gpu
from capplan.models.registry import model

GIB = 2**30
H100 = Device(total_bytes=79.19 * GIB, name="h100-sxm")
RTX3090 = Device(total_bytes=23.68 * GIB, generation="sm80", link="pcie", name="rtx-3090")
CONSTANTS = Path(__file__).parents[2] / "capacity/engines/memory_constants.toml"


def vllm(version: str = "0.19.0", **flags: Any) -> Deployment:
    return Deployment(version=version, **flags)


@pytest.mark.parametrize(
    ("name", "tp", "peak", "kv", "concurrency"),
    [
        ("llama-3.1-8b", 1, 1.89, 58.11, 58.11),
        ("llama-3.1-8b", 4, 1.89, 67.44, 269.75),
        ("qwen2.5-7b", 1, 2.21, 58.53, 133.79),
        ("gemma-2-9b", 1, 3.65, 54.12, 20.60),
    ],
)
def test_h100_logs(name: str, tp: int, peak: float, kv: float, concurrency: float) -> None:
    flags = vllm(gpu_memory_utilization=0.95, max_model_len=8192, tensor_parallel_size=tp)
    rank = budget(model(name), H100, flags)
    assert rank.activation_peak / GIB == pytest.approx(peak, rel=0.02)
    assert rank.kv / GIB == pytest.approx(kv, rel=0.003)
    assert rank.max_concurrency == pytest.approx(concurrency, rel=0.003)
    assert rank.starts


def test_the_sampler_took_more_before_017() -> None:
    flags = vllm("0.15.0", gpu_memory_utilization=0.95, max_model_len=8192)
    assert budget(model("qwen3-14b"), H100, flags).activation_peak / GIB == pytest.approx(5.64, rel=0.01)


def test_flashinfer_does_not_sort() -> None:
    def peak(version: str, **flags: Any) -> float:
        asked = vllm(version, gpu_memory_utilization=0.95, max_model_len=16000, **flags)
        return budget(model("mistral-small-24b"), H100, asked).activation_peak / GIB

    assert peak("0.11.0") == pytest.approx(2.12, rel=0.1)  # as logged by vLLM's image
    assert peak("0.11.0", flashinfer=False) == pytest.approx(peak("0.11.1"))
    assert peak("0.11.1") == pytest.approx(37.7 * 1024 * 131072 / GIB, rel=0.05)
    assert peak("0.19.0", flashinfer=False) == peak("0.19.0")
    rocm = Device(total_bytes=191.98 * GIB, generation="rocm", name="mi300x")
    flags = vllm("0.11.0", max_num_seqs=1024, max_model_len=8192)
    found = budget(model("mistral-small-24b"), rocm, flags)  # a package for CUDA
    assert found.activation_peak == budget(model("mistral-small-24b"), H100, vllm("0.11.1")).activation_peak
    assert not any("FlashInfer" in said for said in found.assumptions)


def test_what_a_sampler_would_take_without_flashinfer_is_said() -> None:
    def said(version: str, **flags: Any) -> str:
        return "; ".join(budget(model("llama-3.1-8b"), H100, vllm(version, **flags)).assumptions)

    assert "without it the sampler of vllm 0.10.1 sorts, in up to 2.874 GiB more" in said("0.10.1")
    assert "FlashInfer" not in said("0.10.1", flashinfer=False)
    assert "FlashInfer" not in said("0.10.1", flashinfer=True)
    assert "FlashInfer" not in said("0.12.0")


def test_a_start_that_depends_on_flashinfer_is_none_until_it_is_said_to_be_there() -> None:
    """vllm issues 27508 (1.71 GiB at 0.95) and 23278 (-2.14 GiB at 0.9): gpt-oss-120b on one H100, pip's wheel."""

    def left(version: str, **flags: Any) -> tuple[bool, Any, bool]:
        found = budget(model("gpt-oss-120b"), H100, vllm(version, **flags))
        return found.starts, found.kv / GIB, any("with it" in said for said in found.assumptions)

    small = {"gpu_memory_utilization": 0.95, "max_num_batched_tokens": 1024}
    assert left("0.11.0", **small) == (False, pytest.approx(1.71, abs=0.2), True)
    assert left("0.11.0", **small, flashinfer=False) == (False, pytest.approx(1.71, abs=0.2), False)
    assert left("0.11.0", **small, flashinfer=True)[::2] == (True, False)
    assert left("0.10.0", flashinfer=False) == (False, pytest.approx(-2.14, abs=0.2), False)
    assert left("0.10.0") == (False, pytest.approx(2.37, abs=0.1), False)  # nor does it with the package
    assert left("0.11.1", **small)[::2] == (False, False)  # it sorts in any case


@pytest.mark.parametrize("engine", ["sglang", "tensorrt-llm"])
def test_flashinfer_is_vllms_question(engine: str) -> None:
    with pytest.raises(
        InputError, match=f"FlashInfer's package is there changes nothing on record under {engine}"
    ):
        engine_fit("llama-3.1-8b", "h100-sxm", Deployment(engine=engine, flashinfer=False))


def test_what_would_start_is_to_add_flashinfer() -> None:
    asked = {"gpu_memory_utilization": 0.95, "max_num_batched_tokens": 1024}
    found = engine_fit("gpt-oss-120b", "h100-sxm", vllm("0.11.0", **asked))
    assert found.changes[0]["flags"] == "--flashinfer"
    assert found.changes[0]["kv_bytes"] / GIB == pytest.approx(6.38, abs=0.01)


@pytest.mark.parametrize("engine", ["vllm", "sglang", "tensorrt-llm"])
def test_heads_are_divided_over_the_ranks_of_attention(engine: str) -> None:
    qwen = model("qwen2.5-7b")  # 28 heads, 4 of keys and values
    with pytest.raises(InputError, match=r"the 28 heads of qwen2\.5-7b can't be split over 8 ranks"):
        budget(qwen, H100, Deployment(engine=engine, tensor_parallel_size=8))
    assert budget(qwen, H100, Deployment(engine=engine, tensor_parallel_size=4)).starts


def test_replicas_of_attention_divide_it_no_further() -> None:
    flags = Deployment(engine="sglang", tensor_parallel_size=8, data_parallel_size=8)
    assert budget(model("qwen2.5-7b"), H100, flags).starts


def test_model_runner_v2_profiles_less() -> None:
    """vllm 0.25.1 to 0.33.0: its profiling run of dense models, from 0.29 of all, leaves out most of the sampler, and up to
    0.28 the CUDA graphs."""

    def of(name: str, version: str, **flags: Any) -> tuple[float, float]:
        found = budget(model(name), H100, vllm(version, **flags))
        return found.activation_peak / GIB, found.graphs / GIB

    for name in ("qwen3.6-27b-nvfp4", "qwen3-30b-a3b"):  # a hybrid, and one of experts
        assert of(name, "0.28.0") == of(name, "0.24.0")
        assert of(name, "0.29.0")[0] < of(name, "0.28.0")[0]
    first, second, later, newest = (
        of("llama-3.1-8b", each) for each in ("0.24.0", "0.28.0", "0.29.0", "0.33.0")
    )
    assert (second[0], second[1]) == (later[0], 0.0)
    assert first[0] == newest[0] > second[0] + 0.9
    assert first[1] == later[1] == newest[1] > 0


def test_what_model_runner_v2_leaves_for_the_cache() -> None:
    """Qwen2.5 0.5B on an L4 with 256 sequences: 1,733,440 tokens (https://github.com/vllm-project/vllm/pull/57926)."""
    l4 = device_of(gpu("l4"))
    flags = {"gpu_memory_utilization": 0.98, "max_num_seqs": 256, "max_model_len": 2048}
    assert budget(model("qwen2.5-0.5b"), l4, vllm("0.29.0", **flags)).kv_tokens == pytest.approx(
        1733440, rel=0.015
    )
    all_of_it = budget(model("qwen2.5-0.5b"), l4, vllm("0.33.0", **flags))
    assert all_of_it.kv_tokens == pytest.approx(1710928, rel=0.025)


def test_what_is_not_reserved_is_said() -> None:
    def said(version: str, **flags: Any) -> str:
        return "; ".join(budget(model("llama-3.1-8b"), H100, vllm(version, **flags)).assumptions)

    assert "nothing for its sampler and its CUDA graphs: up to 2.5" in said("0.26.0")
    assert "nothing for its sampler: up to 1.71" in said("0.26.0", enforce_eager=True)
    assert "nothing for its sampler: up to 1.71" in said("0.29.0")
    assert "reserves" not in said("0.24.0") + said("0.33.0")


def test_a_small_card_with_few_sequences() -> None:
    flags = vllm("0.12.0", gpu_memory_utilization=0.95, max_model_len=31800, max_num_seqs=64)
    rank = budget(model("llama-3.1-8b"), RTX3090, flags)
    assert rank.kv / GIB == pytest.approx(6.95, rel=0.005)
    assert rank.max_concurrency == pytest.approx(1.79, rel=0.005)


def test_v0_profiles_the_longest_prompt() -> None:
    flags = vllm("0.6.4", gpu_memory_utilization=0.9, max_model_len=29000)
    rank = budget(model("llama-3.1-8b"), RTX3090, flags)
    assert not rank.starts
    assert rank.kv / GIB == pytest.approx(2.89, rel=0.08)


def test_v0_warms_its_sampler_up_too() -> None:
    flags = vllm("0.6.4", max_model_len=8192)
    assert budget(model("llama-3-8b"), H100, flags).activation_peak / GIB == pytest.approx(1.26, rel=0.06)


def test_graphs_are_taken_from_the_cache_from_021() -> None:
    old, new = (budget(model("llama-3.1-8b"), H100, vllm(version)) for version in ("0.20.0", "0.21.0"))
    assert old.graphs == 0 < new.graphs == new.graph_memory
    assert budget(model("llama-3.1-8b"), H100, vllm("0.21.0", enforce_eager=True)).graphs == 0


def test_defaults_by_version_and_card() -> None:
    def filled(version: str, device: Device) -> tuple[float | None, int | None, int | None]:
        flags = with_defaults(model("llama-3.1-8b"), device, vllm(version))
        return flags.gpu_memory_utilization, flags.max_num_batched_tokens, flags.max_num_seqs

    assert filled("0.19.0", H100) == (0.90, 8192, 1024)
    assert filled("0.24.0", H100) == (0.92, 8192, 1024)
    assert filled("0.24.0", RTX3090) == (0.92, 2048, 256)
    assert filled("0.33.0", Device(total_bytes=178 * GIB, generation="sm100")) == (0.92, 16384, 1024)


def test_one_request_that_does_not_fit_says_what_would() -> None:
    flags = vllm("0.12.0", gpu_memory_utilization=0.9, max_model_len=131072)
    rank = budget(model("llama-3.1-8b"), RTX3090, flags)
    assert not rank.starts
    longest = rank.pool.longest
    assert longest
    shorter = vllm("0.12.0", gpu_memory_utilization=0.9, max_model_len=longest)
    assert budget(model("llama-3.1-8b"), RTX3090, shorter).starts


def test_a_stage_that_caches_nothing_decides_nothing() -> None:
    flags = vllm("0.24.0", pipeline_parallel_size=2)
    assert budget(
        model("gemma-4-e2b"), H100, flags
    ).starts  # the later layers share the caches of earlier ones


def test_what_was_measured_replaces_a_prediction() -> None:
    rank = budget(model("llama-3.1-8b"), H100, vllm(), weights_bytes=20 * GIB, kv_bytes=30 * GIB)
    assert (rank.weights, rank.kv) == (20 * GIB, 30 * GIB)


def test_sglang_takes_a_share_of_what_is_free() -> None:
    device = Device(total_bytes=121.6 * GIB, free_bytes=112.26 * GIB, name="gb10-dgx-spark")
    flags = Deployment(engine="sglang", gpu_memory_utilization=0.4, max_model_len=32768)
    rank = budget(model("qwen2.5-1.5b"), device, flags, weights_bytes=3.25 * GIB)
    assert rank.kv / GIB == pytest.approx(41.6, rel=0.003)
    assert rank.kv_tokens == pytest.approx(1557709, rel=0.003)


def test_sglang_counts_what_shared_memory_lost() -> None:
    device = Device(total_bytes=121.6 * GIB, free_bytes=112.26 * GIB, name="gb10-dgx-spark", unified=True)
    flags = Deployment(engine="sglang", gpu_memory_utilization=0.4, max_model_len=32768)
    rank = budget(model("qwen2.5-1.5b"), device, flags)
    assert rank.weights / GIB == pytest.approx(3.25, rel=0.01)  # 2.88 GiB of tensors
    assert sum(rank.weight_parts.values()) == pytest.approx(rank.weights)
    assert rank.kv / GIB == pytest.approx(41.6, rel=0.003)


def test_tensorrt_kept_buffers_for_a_full_batch() -> None:
    def left(version: str | None, **flags: Any) -> float:
        asked = Deployment(engine="tensorrt-llm", version=version, **flags)
        return budget(model("qwen2.5-0.5b"), Device(total_bytes=15.7 * GIB), asked).kv / GIB

    assert left("1.1.0") - left("0.15.0") == pytest.approx(0.9 * (2.66 + 5.76), rel=0.01)
    assert left("0.12.0") == left(None) == left("1.1.0")
    assert left("1.1.0") - left("0.15.0", max_num_seqs=16) < 0.1


def test_tensorrt_takes_a_share_of_what_is_left() -> None:
    flags = Deployment(engine="tensorrt-llm", tensor_parallel_size=2)
    rank = budget(model("llama-2-7b"), Device(total_bytes=93.1 * GIB), flags)
    assert rank.kv / GIB == pytest.approx(77.02, rel=0.01)
    assert rank.kv_tokens == pytest.approx(315488, rel=0.01)


def test_latents_were_cached_in_full_before_vllm_knew_them() -> None:
    flags = vllm("0.5.1", max_model_len=16000, tensor_parallel_size=8)
    assert not budget(model("deepseek-v2"), H100, flags).starts


def test_what_is_not_on_record_is_refused() -> None:
    with pytest.raises(InputError, match="engine 'tgi' is not on record"):
        budget(model("llama-3.1-8b"), H100, Deployment(engine="tgi"))
    with pytest.raises(InputError, match=r"older than 0\.5"):
        budget(model("llama-3.1-8b"), H100, vllm("0.4.2"))


def test_constants_say_where_they_come_from() -> None:
    data = tomllib.loads(CONSTANTS.read_text("utf-8"))
    assert len(data["constant"]) <= 12
    for row in data["constant"]:
        assert set(row) - {"read_as"} == {
            *("id", "value", "unit", "holds", "column", "rows", "without", "how")
        }, row["id"]
        assert constant(row["id"]) > 0
    days = list(data["releases"].values())
    assert days == sorted(days)
    assert version_on(days[0]) == next(iter(data["releases"]))
