"""A GGUF file's metadata as the fields of a config.json."""

from __future__ import annotations

from typing import Any

from capplan.errors import DataFileError, near_misses
from capplan.models.fields import show
from capplan.models.gguf import Header

# the keys of llama.cpp, which stand behind the architecture's name, and the fields they are
_FIELDS = {
    "block_count": "num_hidden_layers",
    "embedding_length": "hidden_size",
    "feed_forward_length": "intermediate_size",
    "attention.head_count": "num_attention_heads",
    "attention.head_count_kv": "num_key_value_heads",
    "attention.key_length": "head_dim",
    "context_length": "max_position_embeddings",
}
_WINDOW = {"attention.sliding_window": "sliding_window"}
_EXPERTS = {
    "expert_count": "num_experts",
    "expert_used_count": "num_experts_per_tok",
    "expert_feed_forward_length": "moe_intermediate_size",
}
_LATENT = {
    "attention.q_lora_rank": "q_lora_rank",
    "attention.kv_lora_rank": "kv_lora_rank",
    "rope.dimension_count": "qk_rope_head_dim",
    "leading_dense_block_count": "first_k_dense_replace",
    "expert_count": "n_routed_experts",
    "expert_used_count": "num_experts_per_tok",
    "expert_feed_forward_length": "moe_intermediate_size",
    "expert_shared_count": "n_shared_experts",
}
# architecture -> model_type and the further keys it has
ARCHITECTURES: dict[str, tuple[str, dict[str, str]]] = {
    "llama": ("llama", {}),
    "mistral3": ("ministral3", _WINDOW),
    "qwen2": ("qwen2", {}),
    "qwen3": ("qwen3", {}),
    "qwen2moe": ("qwen2_moe", {**_EXPERTS, "expert_shared_feed_forward_length": "shared_expert_intermediate_size"}),
    "qwen3moe": ("qwen3_moe", _EXPERTS),
    "gemma": ("gemma", {}),
    "gemma2": ("gemma2", _WINDOW),
    "gemma3": ("gemma3_text", _WINDOW),
    "phi3": ("phi3", _WINDOW),
    "command-r": ("cohere", {}),
    "cohere2": ("cohere2", _WINDOW),
    "granite": ("granite", {}),
    "olmo2": ("olmo2", {}),
    "starcoder2": ("starcoder2", {}),
    "smollm3": ("smollm3", {}),
    "seed_oss": ("seed_oss", {}),
    "glm4": ("glm4", {}),
    "gpt-oss": ("gpt_oss", {**_WINDOW, "expert_count": "num_local_experts", "expert_used_count": "num_experts_per_tok"}),
    "deepseek2": ("deepseek_v2", _LATENT),
}  # fmt: skip
_SWITCHED = ("qwen2", "qwen3", "qwen2_moe", "qwen3_moe", "smollm3")  # families with use_sliding_window


def config_of(header: Header, where: str) -> dict[str, Any]:
    """The config.json that the metadata amounts to. Raises DataFileError for an unknown architecture."""
    architecture = header.values.get("general.architecture")
    if not isinstance(architecture, str) or architecture not in ARCHITECTURES:
        nearest = near_misses(str(architecture), ARCHITECTURES, 1)
        did_you_mean = f"; did you mean {nearest[0]!r}?" if nearest else ""
        raise DataFileError(
            f"{where}: general.architecture is {show(architecture)}{did_you_mean}; "
            f"supported: {', '.join(ARCHITECTURES)}"
        )
    model_type, further = ARCHITECTURES[architecture]
    config: dict[str, Any] = {"model_type": model_type, "torch_dtype": "float16"}
    for key, name in (_FIELDS | further).items():
        value = header.values.get(f"{architecture}.{key}")
        if value is not None:
            config[name] = _alike(value, f"{architecture}.{key}", where)
    if "num_hidden_layers" not in config:
        raise DataFileError(f"{where}: key '{architecture}.block_count' is missing")
    table = header.tensors.get("token_embd.weight")
    if table is None or len(table[1]) != 2:
        raise DataFileError(f"{where} has no tensor 'token_embd.weight' of two dimensions")
    config["vocab_size"] = table[1][1]
    config["tie_word_embeddings"] = "output.weight" not in header.tensors
    _biases(config, header)
    if model_type == "deepseek_v2":
        _latent(config, header, architecture)
    if model_type == "llama" and header.values.get("llama.expert_count"):
        config |= {
            "model_type": "mixtral",
            "num_local_experts": header.values["llama.expert_count"],
            "num_experts_per_tok": header.values.get("llama.expert_used_count"),
            "sliding_window": None,
        }
    if model_type in _SWITCHED:
        config["use_sliding_window"] = False
    return config


def _alike(value: Any, key: str, where: str) -> Any:
    """A value that may be given for every layer; they have to be the same."""
    if not isinstance(value, list):
        return value
    if len(set(value)) != 1:
        raise DataFileError(
            f"{where}: key '{key}' differs from layer to layer; one value for all is supported"
        )
    return value[0]


def _biases(config: dict[str, Any], header: Header) -> None:
    bias = "blk.0.attn_q.bias" in header.tensors
    if config["model_type"] in ("llama", "qwen3", "granite", "glm4", "cohere", "seed_oss"):
        config["attention_bias"] = bias
    if config["model_type"] == "cohere":
        config["use_qk_norm"] = "blk.0.attn_q_norm.weight" in header.tensors


def _latent(config: dict[str, Any], header: Header, architecture: str) -> None:
    """DeepSeek: what llama.cpp calls the key's length is its two parts together."""

    def value(name: str) -> int:
        given = header.values.get(f"{architecture}.attention.{name}_mla")
        return int(given or header.values.get(f"{architecture}.attention.{name}") or 0)

    config.pop("head_dim", None)
    config["num_key_value_heads"] = config.get("num_attention_heads")
    config["qk_nope_head_dim"] = value("key_length") - int(config.get("qk_rope_head_dim") or 0)
    config["v_head_dim"] = value("value_length")
    config["q_lora_rank"] = config.get("q_lora_rank")
    if header.values.get(f"{architecture}.expert_gating_func") == 2:  # sigmoid, with a correction bias
        config["model_type"] = "deepseek_v3"
