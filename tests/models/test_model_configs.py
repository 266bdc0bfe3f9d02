"""What a config's fields mean, and which are refused; small configs, no recorded data."""

import re
from typing import Any

import pytest

from capplan.errors import DataFileError
from capplan.models.families import FAMILIES
from capplan.models.fields import FEATURES
from capplan.models.hf import from_config
from capplan.models.spec import Attention, Model

LLAMA: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 100,
    "max_position_embeddings": 8192,
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
    "head_dim": 16,
    "attention_bias": False,
    "mlp_bias": False,
    "rope_scaling": {"rope_type": "llama3", "factor": 8.0},
    "rms_norm_eps": 1e-5,
}
QWEN2 = LLAMA | {"model_type": "qwen2"}
MISTRAL = LLAMA | {"model_type": "mistral", "sliding_window": None}


def read(config: dict[str, Any], **fields: Any) -> Model:
    return from_config(config | fields, id="x", name="X")


def without(config: dict[str, Any], *names: str) -> dict[str, Any]:
    return {name: value for name, value in config.items() if name not in names}


def error(config: dict[str, Any], **fields: Any) -> str:
    with pytest.raises(DataFileError) as caught:
        read(config, **fields)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def attentions(model: Model) -> list[Attention]:
    return [part for layer in model.layers for part in layer if isinstance(part, Attention)]


def test_a_small_llama() -> None:
    model = read(LLAMA)
    attention = 2 * 64 * 64 + 2 * 64 * 32
    mlp = 3 * 64 * 128
    assert model.parameters_total == 2 * 100 * 64 + 3 * (attention + mlp + 2 * 64) + 64
    assert model.matrix_parameters == 3 * (attention + mlp)
    assert model.head_parameters == 100 * 64
    assert attentions(model) == [Attention(4, 2, 16, 16)] * 3
    assert (model.dtype, model.max_context, model.assumptions) == ("bf16", 8192, ())


def test_biases_and_tying() -> None:
    plain = read(LLAMA).parameters_total
    assert read(LLAMA, attention_bias=True).parameters_total == plain + 3 * (64 + 32 + 32 + 64)
    assert read(LLAMA, mlp_bias=True).parameters_total == plain + 3 * (128 + 128 + 64)
    assert read(LLAMA, tie_word_embeddings=True).parameters_total == plain - 100 * 64
    assert read(LLAMA, tie_word_embeddings=True).head_parameters == 100 * 64


def test_head_dim_given_and_derived() -> None:
    assert attentions(read(LLAMA, head_dim=24))[0].head_dim == 24
    assert attentions(read(LLAMA, head_dim=None))[0].head_dim == 64 // 4
    assert "hidden size 66 is not a multiple" in error(without(LLAMA, "head_dim"), hidden_size=66)
    assert read(LLAMA, hidden_size=66, head_dim=16).hidden_size == 66


@pytest.mark.parametrize(
    ("family", "field", "taken"),
    [
        ("llama", "num_key_value_heads", "4"),
        ("mistral", "num_key_value_heads", "8"),
        ("qwen3", "head_dim", "128"),
        ("gemma", "head_dim", "256"),
        ("cohere", "tie_word_embeddings", "true"),
        ("llama", "tie_word_embeddings", "false"),
    ],
)
def test_an_absent_field_takes_its_class_default_and_says_so(family: str, field: str, taken: str) -> None:
    config = without(LLAMA, field) | {"model_type": family, "num_attention_heads": 8}
    if family == "mistral":
        config["sliding_window"] = None
    if family == "llama":
        config["num_attention_heads"] = 4
    said = f"field '{field}' is absent and taken to be {taken}, the default of model_type '{family}'"
    assert said in read(config).assumptions


def test_null_kv_heads_means_as_many_as_query_heads() -> None:
    model = read(MISTRAL, num_key_value_heads=None)
    assert attentions(model)[0].kv_heads == 4
    (said,) = model.assumptions
    assert said.startswith("null, and taken as the class of model_type takes it: num_key_value_heads")


@pytest.mark.parametrize(
    ("value", "dtype"),
    [("bfloat16", "bf16"), ("float16", "fp16"), ("float32", "fp32"), ("torch.float16", "fp16")],
)
def test_dtype(value: str, dtype: str) -> None:
    assert read(LLAMA, torch_dtype=value).dtype == dtype
    assert read(without(LLAMA, "torch_dtype"), dtype=value).dtype == dtype


def test_dtype_absent_or_unknown() -> None:
    model = read(without(LLAMA, "torch_dtype"))
    assert (model.dtype, len(model.assumptions)) == ("bf16", 1)
    assert "field 'torch_dtype' is 'int3'; accepted: bfloat16" in error(LLAMA, torch_dtype="int3")


def test_fp8() -> None:
    for config in (
        {"quant_method": "fp8", "weight_block_size": [128, 128]},
        {"quant_method": "fp8", "weight_block_size": None},
    ):
        model = read(LLAMA, quantization_config=config)
        assert model.dtype == "fp8"
        assert model.quantization is not None
        assert not model.assumptions
    assert read(LLAMA, quantization_config=None).dtype == "bf16"


@pytest.mark.parametrize("method", ["quark", "hqq", "torchao", None, 8, ["fp8"]])
def test_other_quantised_weights(method: Any) -> None:
    message = error(LLAMA, quantization_config={"quant_method": method, "bits": 4})
    assert "field 'quantization_config.quant_method' is " in message
    assert "field 'quantization_config' is " in error(LLAMA, quantization_config="awq")


@pytest.mark.parametrize(
    ("config", "fields"),
    [
        (MISTRAL, {}),
        (MISTRAL, {"sliding_window": 8192}),
        (QWEN2, {"sliding_window": 4096, "use_sliding_window": False, "max_window_layers": 2}),
        (QWEN2, {"sliding_window": 4096}),
        (QWEN2, {"sliding_window": None, "use_sliding_window": True}),
        (QWEN2, {"layer_types": ["full_attention"] * 3, "use_sliding_window": True, "sliding_window": 9}),
        (LLAMA, {"model_type": "phi3", "sliding_window": 262_144}),
        (LLAMA, {"sliding_window": None, "use_sliding_window": False}),
    ],
)
def test_a_window_that_is_off(config: dict[str, Any], fields: dict[str, Any]) -> None:
    assert len(read(config, **fields).layers) == 3


@pytest.mark.parametrize(
    ("config", "fields", "windows"),
    [
        (MISTRAL, {"sliding_window": 40}, [40] * 3),
        (without(MISTRAL, "sliding_window"), {}, [4096] * 3),
        (QWEN2, {"use_sliding_window": True, "sliding_window": 40, "max_window_layers": 1}, [None, 40, 40]),
        (
            without(QWEN2, "sliding_window"),
            {"use_sliding_window": True, "max_window_layers": 2},
            [None, None, 4096],
        ),
        (LLAMA, {"model_type": "phi3", "sliding_window": 2047}, [2047] * 3),
        (LLAMA, {"model_type": "starcoder2", "sliding_window": 40}, [40] * 3),
    ],
)
def test_a_window_in_use(config: dict[str, Any], fields: dict[str, Any], windows: list[int | None]) -> None:
    assert [attention.window for attention in attentions(read(config, **fields))] == windows


@pytest.mark.parametrize(
    ("config", "fields"),
    [
        (QWEN2, {"layer_types": ["full_attention", "sliding_attention", "full_attention"]}),
        (LLAMA, {"layer_types": ["linear_attention"] * 3}),
        (LLAMA, {"layer_types": ["full_attention"] * 2}),
    ],
)
def test_layer_types_that_can_not_be(config: dict[str, Any], fields: dict[str, Any]) -> None:
    assert "field 'layer_types'" in error(config, **fields)


SMELLING = [
    *(
        "num_experts",
        "num_local_experts",
        "n_routed_experts",
        "moe_intermediate_size",
        "router_aux_loss_coef",
    ),
    *("kv_lora_rank", "q_lora_rank", "qk_rope_head_dim", "v_head_dim", "moe_latent_size", "index_topk"),
    *("num_nextn_predict_layers", "mtp_num_hidden_layers", "mamba_d_state", "ssm_state_size", "conv_kernel"),
    *(
        "linear_num_key_heads",
        "full_attention_interval",
        "sliding_window",
        "max_window_layers",
        "swa_head_dim",
    ),
    *("attention_chunk_size", "compress_ratios", "hybrid_override_pattern", "sliding_window_pattern"),
    *(
        "layers_block_type",
        "block_configs",
        "global_head_dim",
        "num_kv_shared_layers",
        "use_cla",
        "share_factor",
    ),
    *("cross_attention_layers", "add_cross_attention", "is_encoder_decoder", "encoder_layers", "d_kv"),
    *("vision_config", "audio_config", "text_config", "num_sink_tokens", "hidden_size_per_layer_input"),
    *(
        "attention_output_gate",
        "use_qk_norm",
        "qkv_bias",
        "use_bias",
        "num_kv_heads",
        "multi_query",
        "lora_rank",
    ),
    *("kv_channels", "quantization", "altup_num_inputs", "num_hash_layers", "ffn_mult"),
    *("embedding_size", "use_post_norm", "time_step_rank", "expert_dtype", "mlp_layer_types"),
]


@pytest.mark.parametrize("field", SMELLING)
def test_a_field_that_changes_the_answer_is_never_passed_over(field: str) -> None:
    assert f"field '{field}' (" in error(LLAMA, **{field: 3})
    nothing: list[Any] = [None, False, 0, [], {}]
    for dead in nothing:
        assert read(LLAMA, **{field: dead}).assumptions == ()


def test_every_feature_is_tried() -> None:
    untried = [part for part in FEATURES if not any(part in field for field in SMELLING)]
    for part in untried:
        assert "is not understood" in error(LLAMA, **{f"{part}{'' if part.endswith('_') else '_'}x": [1]})


def test_a_refusal_names_field_and_feature() -> None:
    message = error(LLAMA, kv_lora_rank=512)
    assert message == "field 'kv_lora_rank' (latent attention) is not understood for model_type 'llama'"


def test_an_unknown_field_is_noted() -> None:
    assert read(LLAMA, foo=1).assumptions == ("field 'foo' is not understood and taken to change nothing",)
    many = read(LLAMA, **{f"foo{i}": 1 for i in range(1000)})
    assert many.assumptions[-1] == "980 more fields are not understood and taken to change nothing"


@pytest.mark.parametrize(
    "field",
    ["rope_theta", "bos_token_id", "attention_dropout", "hidden_act", "id2label", "top_k", "auto_map"],
)
def test_a_harmless_field_is_ignored(field: str) -> None:
    assert read(LLAMA, **{field: {"anything": ["goes"]}}).assumptions == ()


def test_fields_of_two_spellings() -> None:
    config = without(LLAMA, "hidden_size", "num_hidden_layers", "num_attention_heads")
    assert read(config, n_embd=64, n_layer=3, n_head=4).weights == read(LLAMA).weights
    assert read(LLAMA, n_head=4).weights == read(LLAMA).weights
    assert "fields 'num_attention_heads' and 'n_head' disagree: 4 and 8" in error(LLAMA, n_head=8)


def test_model_type() -> None:
    assert "field 'model_type' is missing; supported: llama, mistral" in error(without(LLAMA, "model_type"))
    assert "did you mean 'llama'?" in error(LLAMA, model_type="lama")
    message = error(LLAMA, model_type="deepseek_v99", kv_lora_rank=512, n_routed_experts=256)
    has = "its config has latent attention ('kv_lora_rank'), experts ('n_routed_experts'); supported: llama"
    assert f"model_type 'deepseek_v99' is not supported: {has}" in message
    nested = error({"model_type": "k99", "text_config": {"model_type": "k99_text", "kv_lora_rank": 512}})
    assert "text_config: model_type 'k99_text' is not supported: its config has latent attention" in nested


FALCON = {
    "model_type": "falcon",
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "vocab_size": 100,
    "tie_word_embeddings": True,
    "torch_dtype": "bfloat16",
}


@pytest.mark.parametrize(
    ("fields", "kv_heads", "norms"),
    [
        ({}, 1, 1),
        ({"model_type": "RefinedWebModel"}, 1, 1),
        ({"multi_query": False}, 4, 1),
        ({"multi_query": False, "parallel_attn": False}, 4, 2),
        ({"new_decoder_architecture": True, "num_kv_heads": 2}, 2, 2),
        ({"new_decoder_architecture": True, "n_head_kv": 2, "multi_query": True}, 2, 2),
        ({"new_decoder_architecture": True, "num_kv_heads": 2, "num_ln_in_parallel_attn": 1}, 2, 1),
        ({"model_type": "RefinedWeb", "n_head_kv": 2}, 2, 2),
    ],
)
def test_falcon_layouts(fields: dict[str, Any], kv_heads: int, norms: int) -> None:
    model = read(FALCON, **fields)
    assert attentions(model)[0].kv_heads == kv_heads
    attention = 64 * (64 + 2 * kv_heads * 16) + 64 * 64
    assert model.parameters_total == 100 * 64 + 2 * (attention + 2 * 64 * 256 + norms * 2 * 64) + 2 * 64


def test_opt_with_a_narrower_embedding() -> None:
    config = FALCON | {"model_type": "opt", "ffn_dim": 256, "max_position_embeddings": 30}
    plain, narrow = read(config), read(config, word_embed_proj_dim=16)
    assert plain.parameters(["position"]) == (30 + 2) * 64
    assert narrow.parameters_total == plain.parameters_total - 100 * (64 - 16) + 2 * 64 * 16


@pytest.mark.parametrize("family", sorted(FAMILIES))
def test_every_family_reads_its_own_dimensions_or_says_what_is_missing(family: str) -> None:
    assert re.search(r"field '\w+' is (missing|null)", error({"model_type": family}))


def test_fields_that_are_not_there_are_told_in_one_line() -> None:
    """What the class fills in changes the answer as much as what the file says."""
    config = without(without(LLAMA, "attention_bias"), "head_dim")
    assert read(config).assumptions == (
        "absent, and taken as the class of model_type takes it: attention_bias, head_dim",
    )
    assert read(LLAMA, mlp_bias=None).assumptions == (
        "null, and taken as the class of model_type takes it: mlp_bias",
    )
