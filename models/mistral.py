"""Mistral's own params.json -> Model, through the config.json that it amounts to."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from capplan.models.fields import Fields, live, show
from capplan.models.hf import from_config, load_json
from capplan.models.spec import Model

_DIMENSIONS = {
    "dim": "hidden_size",
    "n_layers": "num_hidden_layers",
    "hidden_dim": "intermediate_size",
    "n_heads": "num_attention_heads",
    "n_kv_heads": "num_key_value_heads",
    "head_dim": "head_dim",
    "vocab_size": "vocab_size",
    "sliding_window": "sliding_window",
}
_LATENT = ("q_lora_rank", "kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim")
_CONTEXT = ("max_position_embeddings", "max_seq_len", "model_max_length")
# how it is run, and what it was made with
_HARMLESS = (
    *("norm_eps", "rope_theta", "use_biases", "causal", "yarn", "rope_scaling", "llama_4_scaling", "model_type"),
    *("rope_scale", "softmax_scale", "max_batch_size", "use_cache", "tokenizer", "dtype", "torch_dtype"),
)  # fmt: skip
_TOWERS = ("vision_encoder", "multimodal", "audio_encoder", "whisper_model_args")


def read_params(path: Path) -> Model:
    """The model of a params.json, which Mistral ships beside its consolidated weights.

    Raises:
        DataFileError: the file can't be read, or has what is not supported.
    """
    path = Path(path)
    where = repr(str(path))
    given = Fields(load_json(path), where)
    config = _config(given)
    name = path.absolute().parent.name or path.stem
    model = from_config(config, id=name, name=name, where=where, source=str(path), complete=True)
    towers = [name for name in _TOWERS if live(given.config.get(name))]
    said = (f"{', '.join(towers)}: not counted, nor what projects into the language model",) if towers else ()
    return model._replace(assumptions=model.assumptions + said)


def _config(f: Fields) -> dict[str, Any]:
    if f.flag("use_biases"):
        raise f.error("field 'use_biases' is true, which is not supported")
    config: dict[str, Any] = {"torch_dtype": "bfloat16"}
    for name, ours in _DIMENSIONS.items():
        value = f.find(name)[1]
        if value is not None:
            config[ours] = value
        elif name in ("dim", "n_layers", "hidden_dim", "n_heads", "vocab_size"):
            raise f.error(f"field '{name}' is missing; a whole number is needed")
    config["tie_word_embeddings"] = f.flag("tied_embeddings", "tie_word_embeddings")
    config["max_position_embeddings"] = f.maybe(*_CONTEXT, most=10**9)
    config.setdefault("sliding_window", None)
    config |= _attention(f)
    config |= _experts(f, config)
    if quantized := _quantized(f):
        config["quantization_config"] = quantized
    f.ignore(*_TOWERS, *_HARMLESS)
    for name, value in f.config.items():
        if name not in f.read and live(value):
            raise f.error(f"field {show(name)} is not understood in a params.json")
    return config


def _attention(f: Fields) -> dict[str, Any]:
    given = {name: f.find(name)[1] for name in _LATENT}
    if given["kv_lora_rank"] is None:
        return {"model_type": "ministral3" if f.config.get("head_dim") is not None else "mistral"}
    if missing := [name for name in _LATENT if given[name] is None and name != "q_lora_rank"]:
        raise f.error(f"field '{missing[0]}' is missing; 'kv_lora_rank' needs it")
    return {"model_type": "deepseek_v3", **given}


def _experts(f: Fields, config: dict[str, Any]) -> dict[str, Any]:
    """A mixture: Mixtral's, or DeepSeek's with its shared experts and dense layers."""
    _, given = f.find("moe")
    if given is None:
        if config["model_type"] == "deepseek_v3":
            raise f.error("field 'moe' is missing; latent attention without experts is not supported")
        return {}
    if not isinstance(given, dict):
        raise f.error(f"field 'moe' is {show(given)}; an object is accepted")
    moe = Fields({f"moe.{name}": value for name, value in given.items()}, f.where)
    count = moe.count("moe.num_experts")
    chosen = moe.count("moe.num_experts_per_tok", "moe.num_experts_per_token")
    width = moe.maybe("moe.expert_hidden_dim", "moe.hidden_dim") or config["intermediate_size"]
    dense = moe.maybe_zero("moe.first_k_dense_replace", "moe.num_dense_layers")
    shared = moe.maybe_zero("moe.num_shared_experts", "moe.n_shared_experts")
    every = moe.maybe("moe.route_every_n")
    if every not in (None, 1):
        raise moe.error(f"field 'moe.route_every_n' is {every}; 1 is supported")
    moe.ignore("moe.routed_scale", "moe.expert_parallel", "moe.expert_model_parallel", "moe.n_group")
    moe.ignore("moe.num_expert_groups", "moe.num_expert_groups_per_tok", "moe.topk_group", "moe.router_type")
    for name, value in moe.config.items():
        if name not in moe.read and live(value):
            raise moe.error(f"field {show(name)} is not understood in a params.json")
    if config["model_type"] != "deepseek_v3":
        if dense or shared:
            raise moe.error(
                "field 'moe' has dense layers or shared experts, which need latent attention here"
            )
        config["intermediate_size"] = width
        return {"model_type": "mixtral", "num_local_experts": count, "num_experts_per_tok": chosen}
    return {
        "n_routed_experts": count,
        "num_experts_per_tok": chosen,
        "moe_intermediate_size": width,
        "first_k_dense_replace": dense or 0,
        "n_shared_experts": shared or 0,
    }


def _quantized(f: Fields) -> dict[str, Any] | None:
    """Mistral's own words for fp8, or a config in Hugging Face's form."""
    _, given = f.find("quantization", "quantization_config")
    if given is None or given == {}:
        return None
    if not isinstance(given, dict):
        raise f.error(f"field 'quantization' is {show(given)}; an object is accepted")
    weights = given.get("qformat_weight")
    if weights is None:
        return given
    if weights != "fp8_e4m3":
        raise f.error(f"field 'quantization.qformat_weight' is {show(weights)}; accepted: fp8_e4m3")
    scheme = given.get("qscheme_act")
    if scheme not in ("TENSOR", "NO_SCALES", None):
        raise f.error(f"field 'quantization.qscheme_act' is {show(scheme)}; accepted: TENSOR, NO_SCALES")
    if unknown := [name for name in given if name not in ("qformat_weight", "qscheme_act")]:
        raise f.error(f"field {show('quantization.' + unknown[0])} is not understood")
    return {"quant_method": "fp8", "activation_scheme": "static" if scheme == "TENSOR" else "dynamic"}
