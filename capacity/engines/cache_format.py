"""The format that an engine keeps its cache in where it is not told: kv-cache-dtype `auto`, the rule of every question."""

from __future__ import annotations

from capplan.capacity.engines.pools import OLDEST_ALLOCATOR
from capplan.capacity.engines.vllm_blocks import compressed
from capplan.capacity.engines.vllm_rules import newest, ordered, rules
from capplan.capacity.engines.weights import quantized
from capplan.models.spec import Model

_ASKED = ("fp8", "nvfp4")  # formats of a cache that checkpoints ask for, and engines follow
_VLLM_FOLLOWS = (0, 15, 0)  # before, its auto is 16 bit: 0.12.0's wheel too, and those between were not read
BUILDS = "NVIDIA's FP8 and NVFP4 builds ask for an FP8 cache (kv_cache_quant_algo), and TensorRT-LLM's auto takes it"


def auto_format(
    model: Model, engine: str, *, version: str | None = None, quantization: str | None = None
) -> tuple[str, list[str]]:
    """What `auto` is for a checkpoint, and what is taken for granted: the format that it asks for, else 16 bit.

    quantization: of a build that is known by its method alone, for which NVIDIA's habit is taken under TensorRT-LLM, as
    for a checkpoint of ModelOpt whose cache is not on record; None: the checkpoint on record.

    Source: TensorRT-LLM 1.0 to 1.2, _torch/pyexecutor, validate_and_set_kv_cache_quant: auto keeps what
    hf_quant_config.json says; vLLM 0.15.0 to 0.33.0, utils/torch_utils.py, resolve_kv_cache_dtype_string.
    """
    if compressed(model) and _takes_fp8(engine, version):
        return "fp8", []
    held = quantized(model, quantization)
    stored = held.quantization
    follows = engine != "vllm" or version is None or ordered(version) >= _VLLM_FOLLOWS
    if stored is not None and stored.kv in _ASKED and follows:
        return stored.kv, [f"the checkpoint was made for an {stored.kv} cache, and auto takes it"]
    if engine == "tensorrt-llm" and held.dtype in _ASKED:
        read = stored if stored is model.quantization else None  # in its config.json
        if read is None or read.method == "modelopt":
            return "fp8", [BUILDS]
    return (held.dtype if held.dtype in ("fp16", "fp32") else "bf16"), []


def _takes_fp8(engine: str, version: str | None) -> bool:
    """Whether auto is FP8 for compressed attention; vLLM before 0.30 refuses auto there."""
    if engine != "vllm":
        return engine == "sglang"
    asked = version or newest()
    return ordered(asked) >= ordered(OLDEST_ALLOCATOR) and rules(asked).compressed_auto
