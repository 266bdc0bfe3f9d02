"""What SGLang prints as it starts; read in the wheels of 0.4.6, 0.5.2, 0.5.9 and 0.5.23 (checked 2026-11-29).

Its "GB" is GiB throughout. A draft model's lines look like those of the model and come after them, hence `first`.
"""

from __future__ import annotations

from capplan.capacity.engines.log_forms import form

# fmt: off
FORMS = (
    # srt/entrypoints/engine.py; a dict of what was resolved from 0.5.23
    form("sglang", "0.4.6", b"server_args=", b"server_args=", flags=True, opens=True),
    # srt/model_executor/model_runner.py
    form("sglang", "0.4.6", b"avail mem=", b"Load weight begin", rb"avail mem=<free_gib> GB", first=True),
    form("sglang", "0.4.6", b"avail mem=", b"Load weight end", rb"avail mem=<free_after_weights_gib> GB, mem usage=<weights_gib> GB", first=True),
    form("sglang", "0.4.6", b"avail mem=", b"Memory pool end", rb"avail mem=<free_after_pool_gib> GB", first=True),
    form("sglang", "0.4.6", b"avail mem=", b"graph end", rb"mem usage=<graphs_gib> GB", first=True),
    # srt/mem_cache/memory_pool.py: keys and values apart, or together where they are one (MLA)
    form("sglang", "0.4.6", b"is allocated", b"KV Cache is allocated", rb"#tokens: <pool_tokens#>, (?:K size: <k_gib> GB, V size: <v_gib> GB|KV size: <kv_gib> GB)", first=True),
    form("sglang", "0.5.2", b"is allocated", b"Mamba Cache is allocated", rb"conv_state size: <conv_gib>GB, ssm_state size: <ssm_gib>GB", first=True),
    form("sglang", "0.5.9", b"emory", b"sliding window memory pool.", rb"full_layer_tokens=<full_tokens#>, swa_layer_tokens=<window_tokens#>\s", first=True),
    # srt/mem_cache/swa_memory_pool.py: both pools together
    form("sglang", "0.5.9", b"SWAKVPool ", b"SWAKVPool mem usage", rb"mem usage: <pools_gib> GB, swa size: <window_tokens#>, full size: <full_tokens#>\s", first=True),
    # srt/entrypoints/http_server.py
    form("sglang", "0.4.6", b"fired up", b"fired up and ready", rb"(?P<ready>fired up)"),
    # srt/managers/scheduler.py
    form("sglang", "0.4.6", b"max_", b"max_total_num_tokens=", rb"max_total_num_tokens=<tokens#>, chunked_prefill_size=<max_num_batched_tokens>, max_prefill_tokens=\d{1,12}, max_running_requests=<requests#>, context_len=<context#>(?:,|\s)", first=True),
    form("sglang", "0.4.6", b"emory", b"increase --mem-fraction-static", failure="no_memory_for_cache"),
)
# fmt: on
