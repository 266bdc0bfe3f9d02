"""What vLLM prints as it starts, by version; read in the wheels of 0.6.6, 0.8.5, 0.9.2, 0.11.0, 0.15.0, 0.19.0, 0.21.0,
0.24.0, 0.29.0 and 0.33.0 (checked 2026-11-29). `since` is the first of these that prints the form.
"""

from __future__ import annotations

from capplan.capacity.engines.log_forms import form

# fmt: off
FORMS = (
    # entrypoints/openai/api_server.py
    form("vllm", "0.6.6", b"server version", b"vLLM API server version", rb"vLLM API server version (?P<version>[\w.+-]{1,40})", opens=True),
    form("vllm", "0.6.6", b"args: ", b"args: Namespace(", flags=True),
    # entrypoints/openai/cli_args.py; from 0.11 entrypoints/utils.py, from 0.33 entrypoints/common/startup.py
    form("vllm", "0.9.2", b"args: ", b"non-default args: ", flags=True),
    # engine/llm_engine.py (V0: "an LLM engine"), v1/engine/core.py
    form("vllm", "0.6.6", b"LLM engine (v", b"LLM engine (v", rb"LLM engine \(v(?P<version>[^)\s]{1,40})\) with config", flags=True, opens=True),
    # config/scheduler.py
    form("vllm", "0.6.6", b"max_", b"prefill is enabled with", rb"max_num_batched_tokens=(?P<max_num_batched_tokens>\d{1,9})\."),
    # v1/sample/ops/topk_topp_sampler.py
    form("vllm", "0.9.2", b"FlashInfer", b"FlashInfer is not available", rb"FlashInfer is (?P<flashinfer>not available)"),
    form("vllm", "0.9.2", b"FlashInfer", b"Using FlashInfer for top-p", rb"(?P<flashinfer>Using) FlashInfer"),
    # platforms/interface.py: hybrids whose block is raised
    form("vllm", "0.11.0", b"block", b"attention block size to ", rb"block size to (?P<block_size>\d{1,7}) tokens"),
    # worker/model_runner.py: "GB" is GiB
    form("vllm", "0.6.6", b" took ", b"Loading model weights took", rb"weights took <weights_gib> Gi?B"),
    # v1/worker/gpu_model_runner.py; "GiB memory and" from 0.15
    form("vllm", "0.8.5", b" took ", b"Model loading took", rb"Model loading took <weights_gib> Gi?B(?: memory)?(?: and <load_s> sec)?"),
    # worker/worker.py: three lines of one message
    form("vllm", "0.6.6", b"emory", b"total_gpu_memory (", rb"total_gpu_memory \(<memory_gib>GiB\) x gpu_memory_utilization \(<gpu_memory_utilization>\)"),
    form("vllm", "0.6.6", b"emory", b"model weights take ", rb"model weights take <weights_gib>GiB; non_torch_memory takes <non_torch_gib>GiB; PyTorch activation peak memory takes <activation_gib>GiB; the rest of the memory reserved for KV Cache is <kv_gib>GiB"),
    # utils/mem_utils.py, at the debug level
    form("vllm", "0.9.2", b"emory", b"torch peak memory increase: ", rb"torch peak memory increase: <activation_gib>GiB; non-torch forward increase memory: <non_torch_gib>GiB"),
    # v1/worker/gpu_worker.py, at the debug level until 0.24: measured once the graphs are captured
    form("vllm", "0.11.0", b"emory", b"GiB for weight, ", rb"Actual usage is <weights_gib> GiB for weight, <activation_gib> GiB for peak activation, <non_torch_gib> GiB for non-torch memory, and <graphs_gib> GiB for CUDAGraph"),
    # the same at the info level; what is consumed holds weights and non-torch memory, the peak what was estimated for graphs
    form("vllm", "0.29.0", b"emory", b"GiB for consumed memory", rb"Actual usage is <consumed_gib> GiB for consumed memory \(weights \+ non-torch\), <activation_graphs_gib> GiB for peak activation, and <graphs_gib> GiB for CUDAGraph"),
    form("vllm", "0.11.0", b"emory", b"emory on device", rb"emory on device [^(]{0,40}\(<free_gib>/<memory_gib> GiB\)"),
    form("vllm", "0.11.0", b"emory", b"specified by kv_cache_memory_bytes", rb"reserved <pinned_gib> ?GiB"),
    form("vllm", "0.9.2", b"emory", b"Available KV cache memory", rb"Available KV cache memory: <kv_gib> GiB"),
    # worker/gpu_model_runner.py
    form("vllm", "0.6.6", b" took ", b"Graph capturing finished", rb"finished in <graphs_s> secs?, took <graphs_gib> GiB"),
    form("vllm", "0.21.0", b"emory", b"CUDA graph pool memory", rb"memory: <graphs_gib> GiB \(actual\), <graphs_estimate_gib> GiB \(estimated\)"),
    # executor/executor_base.py (V0); the device's name in lower case from 0.8
    form("vllm", "0.6.6", b"block", b"# CPU blocks: ", rb"# \w{1,20} blocks: <blocks#>, # CPU blocks: <cpu_blocks#>"),
    form("vllm", "0.6.6", b"block", b"num_gpu_blocks_override=", rb"num_gpu_blocks_override=<pinned_blocks#>"),
    # v1/core/kv_cache_utils.py; one line with the next from 0.29, and other devices' names at 0.33
    form("vllm", "0.8.5", b"KV cache size", b" KV cache size: ", rb" KV cache size: <tokens#> tokens"),
    form("vllm", "0.6.6", b"oncurrency for", b"Maximum concurrency for ", rb"Maximum concurrency for <context#> tokens per request: <concurrency>x"),
    form("vllm", "0.11.0", b"KV cache size", b"KV cache size by the ", rb"cp_world_size <context_ranks#>"),
    form("vllm", "0.9.2", b"emory", b" padding layers", rb"Add <padding_layers#> padding layers"),
    # what stops a start
    form("vllm", "0.6.6", b"emory", b"No available memory for the cache blocks", failure="no_memory_for_cache"),
    form("vllm", "0.8.5", b"emory", b"To serve at least one request", rb"max seq len \(<context#>\), \(?<needed_gib> GiB KV cache is needed, which is larger than the available KV cache memory \(<kv_gib> GiB\)(?:.{0,80}estimated maximum model length is <est_max_model_len#>)?", failure="one_request_does_not_fit"),
    form("vllm", "0.6.6", b"emory", b"larger than the maximum number of tokens", rb"max seq len \(<context#>\) is larger than the maximum number of tokens that can be stored in KV cache \(<tokens#>\)", failure="one_request_does_not_fit"),
    form("vllm", "0.9.2", b"emory", b"less than desired GPU memory utilization", failure="memory_taken_by_others"),
    form("vllm", "0.24.0", b"block", b"exceeds available Mamba cache", failure="too_few_state_blocks"),
    form("vllm", "0.9.2", b" failed", b"EngineCore failed to start", failure="other"),
    form("vllm", "0.9.2", b" failed", b"Engine core initialization failed", failure="other"),
)
# fmt: on
