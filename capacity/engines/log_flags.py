"""Settings out of a line of a log, in whatever way it spells them: `name=value`, `'name': value`, nested or cut short.

Nothing is evaluated: known names are looked for, everything else (keys and tokens among it) is passed over.
"""

from __future__ import annotations

import re

Value = str | int | float | bool

MOST_TEXT = 300  # characters of a value

# what an engine calls a setting -> its name in Deployment, or one of model, served_model_name
_SHARED = {
    "model": "model",
    "served_model_name": "served_model_name",
    "tensor_parallel_size": "tensor_parallel_size",
    "pipeline_parallel_size": "pipeline_parallel_size",
    "kv_cache_dtype": "kv_cache_dtype",
    "quantization": "quantization",
}
NAMES: dict[str, dict[str, str]] = {
    "vllm": {
        **_SHARED,
        "model_tag": "model",
        "max_seq_len": "max_model_len",
        "kv_cache_memory": "kv_cache_memory_bytes",
        "num_spec_tokens": "num_speculative_tokens",
        "speculative_model": "speculative_method",
        **{
            name: name
            for name in (
                *("data_parallel_size", "enable_expert_parallel", "decode_context_parallel_size"),
                *("gpu_memory_utilization", "max_model_len", "max_num_seqs", "max_num_batched_tokens"),
                *("block_size", "kv_cache_memory_bytes", "enforce_eager", "enable_prefix_caching"),
                *("num_speculative_tokens", "num_gpu_blocks_override"),
            )
        },
    },
    "sglang": {
        **_SHARED,
        "model_path": "model",
        "tp_size": "tensor_parallel_size",
        "pp_size": "pipeline_parallel_size",
        "dp_size": "data_parallel_size",
        "ep_size": "expert_parallel_size",
        "mem_fraction_static": "gpu_memory_utilization",
        "context_length": "max_model_len",
        "max_running_requests": "max_num_seqs",
        "chunked_prefill_size": "max_num_batched_tokens",
        "page_size": "block_size",
        "max_total_tokens": "max_total_tokens",
        "disable_cuda_graph": "enforce_eager",
        "disable_radix_cache": "disable_radix_cache",
        "speculative_algorithm": "speculative_method",
        "speculative_num_draft_tokens": "num_speculative_tokens",
    },
    "tensorrt-llm": {
        **_SHARED,
        "moe_expert_parallel_size": "expert_parallel_size",
        "free_gpu_memory_fraction": "gpu_memory_utilization",
        "max_batch_size": "max_num_seqs",
        "max_num_tokens": "max_num_batched_tokens",
        "max_seq_len": "max_model_len",
        "tokens_per_block": "block_size",
        "max_tokens": "max_total_tokens",
    },
}
# the settings that are whole numbers, and the most that one can be
MOST: dict[str, int] = {
    **dict.fromkeys(
        (
            *("tensor_parallel_size", "pipeline_parallel_size", "data_parallel_size"),
            *("decode_context_parallel_size", "expert_parallel_size", "num_speculative_tokens"),
        ),
        1024,
    ),
    **dict.fromkeys(
        (
            *("max_model_len", "max_num_seqs", "max_num_batched_tokens", "block_size"),
            *("num_gpu_blocks_override", "max_total_tokens"),
        ),
        10**12,
    ),
    "kv_cache_memory_bytes": 10**15,
}
_SHARES = frozenset(("gpu_memory_utilization",))
_SWITCHES = frozenset(
    ("enable_expert_parallel", "enforce_eager", "enable_prefix_caching", "disable_radix_cache")
)
# a value that the line is cut in is none
_PAIR = re.compile(
    rb"(?<!\w)(\w{1,64})['\"]?\s?[:=]\s?(?:\[\s?)?('[^'\n]{0,%d}'|\"[^\"\n]{0,%d}\"|[^,=\s{}()\[\]'\"]{1,%d}+(?=[,\s{}()\[\]'\"]))"
    % (MOST_TEXT, MOST_TEXT, MOST_TEXT)
)
_METHOD = re.compile(
    rb"speculative_config['\"]?\s?[:=](?!\s?None).{0,150}?['\"]?method['\"]?\s?[:=]\s?['\"]([\w-]{1,40})['\"]"
)


def settings(engine: str, line: bytes) -> dict[str, Value]:
    """The settings of a line that are known, under the names of Deployment; the first of a name counts."""
    names = NAMES[engine]
    found: dict[str, Value] = {}
    for spelt, text in _PAIR.findall(line):
        name = names.get(spelt.decode("ascii", "replace"))
        if name is None or name in found:
            continue
        value = read(name, text.decode("utf-8", "replace").strip("'\""))
        if value is not None:
            found[name] = value
    if method := _METHOD.search(line):
        found["speculative_method"] = method[1].decode()
    return found


def read(name: str, text: str) -> Value | None:
    """The value of a setting; None where it is none, or not of its kind."""
    text = text.strip()
    if text in ("None", "null", "auto", "") or len(text) > MOST_TEXT:
        return None
    if name in _SWITCHES:
        return {"true": True, "false": False}.get(text.lower())
    if name in MOST:
        return int(text) if re.fullmatch("[0-9]{1,16}", text) and 0 < int(text) <= MOST[name] else None
    if name in _SHARES:
        try:
            share = float(text)
        except ValueError:
            return None
        return share if 0 < share <= 1 else None
    return text
