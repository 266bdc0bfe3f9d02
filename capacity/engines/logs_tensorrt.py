"""What TensorRT-LLM prints as it starts.

Forms of the C++ runtime (batch_manager/kvCacheManager.cpp) and of the PyTorch backend (_torch/pyexecutor/_util.py), as
in public logs of 0.9 to 1.2 and in the sources (checked 2026-11-29). A small pool comes first, to profile with; the
last one is what the server has.
"""

from __future__ import annotations

from capplan.capacity.engines.log_forms import form

# fmt: off
FORMS = (
    # tensorrt_llm/__init__.py
    form("tensorrt-llm", "0.8", b"LLM version: ", b"TensorRT-LLM version: ", rb"TensorRT-LLM version: (?P<version>[\w.+-]{1,40}?)(?:Input|\s|$)"),
    # llmapi: "LLM Args:" and the arguments
    form("tensorrt-llm", "1.0", b"max_", b"KvCacheConfig(", flags=True),
    form("tensorrt-llm", "0.8", b"Loaded engine size", b"Loaded engine size", rb"Loaded engine size: <weights_mib> MiB"),
    form("tensorrt-llm", "0.9", b"emory", b"execution context memory", rb"Allocated <context_mib> MiB for execution context memory"),
    # the C++ runtime's own measure before the pool
    form("tensorrt-llm", "0.9", b"emory", b"paged kv cache: total", rb"total: <memory_gib> GiB, available: <free_gib> GiB"),
    # the PyTorch backend's profiling run
    form("tensorrt-llm", "1.0", b"emory", b"(inside torch) in memory usage profiling", rb"after loading model weights \(inside torch\) in memory usage profiling: <weights_gib> GiB", told=False),
    form("tensorrt-llm", "1.0", b"emory", b"available KV cache memory when", rb"non-torch\): <peak_gib> GiB, available KV cache memory when calculating max tokens: <available_gib> GiB, fraction is set <gpu_memory_utilization>, kv size is <bytes_per_token>\."),
    form("tensorrt-llm", "1.0", b"emory", b"device total memory ", rb"device total memory <memory_gib> GiB"),
    form("tensorrt-llm", "0.9", b"block", b"KV cache primary pool", rb"primary pool: <blocks#>\s"),
    form("tensorrt-llm", "1.0", b"block", b"primary blocks=", rb"primary blocks=<blocks#>,"),
    form("tensorrt-llm", "0.9", b"block", b"tokens per block: ", rb"tokens per block: (?P<block_size>\d{1,7})\."),
    form("tensorrt-llm", "0.8", b"in paged KV", b"for max tokens in paged KV cache", rb"Allocated <kv_gib> GiB for max tokens in paged KV cache \(<tokens#>\)"),
    form("tensorrt-llm", "0.17", b"max_", b"max_num_requests=", rb"max_seq_len=<context#>, max_num_requests=<requests#>, max_num_tokens=(?P<max_num_batched_tokens>\d{1,9})(?:,|\s)"),
)
# fmt: on
