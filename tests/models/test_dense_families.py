"""Windows, shared caches, pruned blocks, encoders with decoders: small configs, and the oracle's rows of these kinds."""

import csv
import json
from pathlib import Path
from typing import Any

import pytest

from capplan.capacity.cache import cache
from capplan.errors import DataFileError
from capplan.models.families import FAMILIES
from capplan.models.hf import from_config, read_config
from capplan.models.registry import model as model_named
from capplan.models.spec import Attention, Model

MODULES = ("dense", "dense_more", "dense_nested", "gpt", "gpt_more", "windows", "gemma", "encoder_decoder")
SMALL: dict[str, Any] = {
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 6,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 100,
    "max_position_embeddings": 8192,
    "torch_dtype": "bfloat16",
    "tie_word_embeddings": True,
}
GEMMA2 = SMALL | {"model_type": "gemma2", "head_dim": 16, "sliding_window": 10}
GEMMA3 = GEMMA2 | {"model_type": "gemma3_text"}
GEMMA4 = GEMMA2 | {"model_type": "gemma4_text", "global_head_dim": 32, "hidden_size_per_layer_input": 0}
GEMMA3N = GEMMA2 | {"model_type": "gemma3n_text", "num_kv_shared_layers": 0, "num_hidden_layers": 10}
EXAONE4 = SMALL | {"model_type": "exaone4", "sliding_window": 10}
QWEN2 = SMALL | {"model_type": "qwen2", "use_sliding_window": True, "sliding_window": 10}
DORY = SMALL | {
    "model_type": "dory",
    "n_input_layers": 1,
    "n_output_layers": 1,
    "sliding_window": 10,
    "head_dim": 16,
}
MLLAMA = SMALL | {"model_type": "mllama_text_model", "cross_attention_layers": [1, 4]}
T5: dict[str, Any] = {
    "model_type": "t5",
    "d_model": 64,
    "d_kv": 8,
    "d_ff": 128,
    "num_layers": 3,
    "num_decoder_layers": 2,
    "num_heads": 4,
    "vocab_size": 100,
    "torch_dtype": "bfloat16",
    "tie_word_embeddings": True,
}
WHISPER: dict[str, Any] = {
    "model_type": "whisper",
    "d_model": 64,
    "encoder_layers": 3,
    "decoder_layers": 2,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
    "encoder_ffn_dim": 128,
    "decoder_ffn_dim": 128,
    "vocab_size": 100,
    "torch_dtype": "float16",
    "tie_word_embeddings": True,
}
BLOCK = {"attention": {"n_heads_in_group": 2}, "ffn": {"ffn_mult": 3.0}}
NAS = SMALL | {"model_type": "nemotron-nas", "num_hidden_layers": 3, "block_configs": [BLOCK] * 3}
GPT_NEO = SMALL | {"model_type": "gpt_neo", "attention_types": [[["global", "local"], 3]], "num_layers": 6}
GPT_NEO = {k: v for k, v in GPT_NEO.items() if k not in ("num_hidden_layers", "num_key_value_heads")}


def read(config: dict[str, Any], **fields: Any) -> Model:
    return from_config(config | fields, id="x", name="X")


def windows(model: Model) -> list[int | None]:
    return [part.window for layer in model.layers for part in layer if isinstance(part, Attention)]


def elements(model: Model) -> dict[str, int]:
    found: dict[str, int] = {}
    for weight in model.weights:
        found[weight.name] = found.get(weight.name, 0) + weight.parameters
    return found


# --- against recorded facts ---------------------------------------------------------------------------------


def test_oracle(data: Path) -> None:
    by_name = json.loads((data / "oracle" / "params_by_name.json").read_text())
    with (data / "oracle" / "expected.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    exact = 0
    for row in rows:
        inner = {"gemma3": "gemma3_text", "gemma4": "gemma4_text"}.get(row["model_type"], row["model_type"])
        if FAMILIES.get(inner, "").split(".")[0] not in MODULES:
            continue
        model = read_config(data / "oracle" / row["file"])
        expected = {
            "by name": by_name[row["file"].removesuffix(".json").removesuffix(".v5")],
            "total": int(row["params_total"]),
            "embedding": int(row["params_embedding"]),
            "head": int(row["params_lm_head"]),
        }
        found: dict[str, Any] = {
            "by name": elements(model),
            "total": model.parameters_total,
            "embedding": model.parameters(["embedding"]),
            "head": model.parameters(["head"]),
        }
        kept = cache(model, view="transformers")
        for tokens, parts in json.loads(row["cache_parts_at"]).items():
            expected[tokens] = parts
            found[tokens] = {part: size for part, size in kept.parts_at(int(tokens)).items() if size}
        assert found == expected, row["file"]
        exact += 1
    assert exact >= 140


def test_both_spellings_are_one_model(data: Path) -> None:
    pairs = 0
    for path in sorted((data / "oracle").glob("*/*.v5.json")):
        hub = path.with_name(path.name.replace(".v5", ""))
        if json.loads(hub.read_text())["model_type"] not in (
            "gemma3",
            "gemma4",
            "gemma4_text",
            "cohere2",
            "exaone4",
        ):
            continue
        a, b = read_config(hub), read_config(path)
        assert (a.layers, elements(a), a.dtype) == (b.layers, elements(b), b.dtype), path.name
        pairs += 1
    assert pairs >= 12


@pytest.mark.parametrize(
    ("name", "parameters", "slope", "capped"),
    [
        ("gemma-2-9b", 9_241_705_984, 21 * 2 * 8 * 256 * 2, {(4096, 172_032)}),
        ("gemma-3-27b", 27_009_346_304, 10 * 2 * 16 * 128 * 2, {(1024, 425_984)}),
        ("gemma-3n-e4b", 6_835_235_568, 4 * 2 * 2 * 256 * 2, {(512, 32_768)}),
        ("gemma-4-e2b", 4_628_569_344, 3 * 2 * 512 * 2, {(512, 12_288)}),
        ("gemma-4-31b", 30_697_345_280, 10 * 2 * 4 * 512 * 2, {(1024, 819_200)}),
        ("exaone-4.0-32b", 32_003_216_384, 16 * 2 * 8 * 128 * 2, {(4096, 196_608)}),
        ("command-a", 111_057_580_032, 16 * 2 * 8 * 128 * 2, {(4096, 196_608)}),
        ("mistral-7b-v0.1", 7_241_732_096, 0, {(4096, 131_072)}),
        ("llama-3.2-90b-vision", 87_666_865_192, 80 * 2 * 8 * 128 * 2, set()),
        ("nemotron-super-49b", 49_867_145_216, 49 * 2 * 8 * 128 * 2, set()),
        ("t5-v1.1-xxl", 11_135_332_352, 24 * 2 * 64 * 64 * 2, set()),
    ],
)
def test_models_of_the_registry(name: str, parameters: int, slope: int, capped: set[tuple[int, int]]) -> None:
    model = model_named(name)
    kept = cache(model)
    assert (model.parameters_total, kept.slope) == (parameters, slope)
    assert {(stream.most, stream.layers * stream.entry_bytes) for stream in kept.windows} == capped


# --- small facts --------------------------------------------------------------------------------------------


def test_layers_slide_as_the_class_orders_them() -> None:
    assert windows(read(GEMMA2)) == [10, None] * 3
    assert windows(read(GEMMA3)) == [10] * 5 + [None]
    assert windows(read(GEMMA3, sliding_window_pattern=3)) == [10, 10, None] * 2
    assert windows(read(GEMMA3, use_bidirectional_attention=True)) == [6] * 5 + [None]
    cwm = SMALL | {"model_type": "cwm", "head_dim": 16, "sliding_window": 10}
    assert windows(read(cwm)) == [None, 10, 10, 10, None, 10]


def test_layer_types_win_over_a_pattern() -> None:
    kinds = ["full_attention", "sliding_attention"] * 3
    for config in (GEMMA3, EXAONE4):
        assert windows(read(config, layer_types=kinds, sliding_window_pattern=4)) == [None, 10] * 3


def test_a_pattern_of_letters() -> None:
    assert windows(read(EXAONE4, sliding_window_pattern="LLG")) == [10, 10, None] * 2
    assert windows(read(EXAONE4, sliding_window_pattern="L"))[-1] is None  # the last layer is global
    assert windows(read(EXAONE4, sliding_window=None)) == [None] * 6


def test_qwen_slides_where_switched_on() -> None:
    assert windows(read(QWEN2, max_window_layers=4)) == [None] * 4 + [10] * 2
    assert windows(read(QWEN2, use_sliding_window=False, max_window_layers=0)) == [None] * 6
    assert windows(read(QWEN2)) == [None] * 6  # the class begins at layer 28
    assert any("'max_window_layers' is absent" in said for said in read(QWEN2).assumptions)


def test_smollm3_slides_where_it_does_not_rotate() -> None:
    smol = SMALL | {"model_type": "smollm3", "use_sliding_window": True, "sliding_window": 10}
    assert windows(read(smol)) == [None, None, None, 10, None, None]
    assert windows(read(smol, no_rope_layers=[0, 1, 1, 1, 1, 0])) == [10, None, None, None, None, 10]


def test_gemma4_global_layers_have_heads_of_their_own() -> None:
    model = read(GEMMA4)
    local, whole = model.layers[0][0], model.layers[5][0]
    assert isinstance(local, Attention)
    assert isinstance(whole, Attention)
    assert (local.head_dim, local.window, whole.head_dim, whole.window) == (16, 10, 32, None)
    assert elements(model)["model.layers.N.self_attn.v_proj.weight"] == 64 * 2 * (5 * 16 + 32)
    tied = read(GEMMA4, attention_k_eq_v=True, num_global_key_value_heads=1)
    assert elements(tied)["model.layers.N.self_attn.v_proj.weight"] == 64 * 2 * 5 * 16
    assert cache(tied).slope == 2 * 32 * 2  # the value is stored though it has no matrix


def test_gemma4_overrides_by_layer_are_the_other_spelling() -> None:
    told = {k: v for k, v in GEMMA4.items() if k != "global_head_dim"}
    other = read(told, per_layer_config={"05": {"head_dim": 32}})
    assert (other.layers, elements(other)) == (read(GEMMA4).layers, elements(read(GEMMA4)))


def test_shared_caches_are_kept_once() -> None:
    kinds = ["sliding_attention", "full_attention"] * 3
    model = read(GEMMA4, layer_types=kinds, num_kv_shared_layers=4, use_double_wide_mlp=True)
    own = 2 * 2 * 16 * 2  # of a token in the one layer that slides and has a cache
    assert [(s.most, s.layers * s.entry_bytes) for s in cache(model).windows] == [(10, own)]
    assert cache(model).slope == 2 * 2 * 32 * 2
    assert elements(model)["model.layers.N.mlp.up_proj.weight"] == 64 * 128 * (2 + 2 * 4)
    assert elements(model)["model.layers.N.self_attn.k_proj.weight"] == 64 * 2 * (16 + 32)


def test_an_embedding_for_every_layer() -> None:
    model = read(GEMMA4, hidden_size_per_layer_input=8, vocab_size_per_layer_input=50)
    assert model.parameters(["lookup"]) == 50 * 6 * 8
    assert model.parameters(["embedding"]) == 100 * 64
    assert model.parameters_total - read(GEMMA4).parameters_total == 50 * 48 + 48 * 64 + 8 + 6 * (
        2 * 64 * 8 + 64
    )


def test_loops_keep_a_cache_each() -> None:
    assert cache(read(DORY, layer_types=["full_attention"] * 6)).slope == (6 + 4) * 2 * 2 * 16 * 2
    once = read(DORY, layer_types=["full_attention"] * 6, recurrent_kv_cache_mode="last_loop")
    assert cache(once).slope == 6 * 2 * 2 * 16 * 2


def test_cross_attention_is_kept_once_for_a_request() -> None:
    kept = cache(read(MLLAMA))
    assert (kept.slope, kept.bytes_at(0, 7)) == (4 * 2 * 2 * 16 * 2, 2 * 7 * 2 * 2 * 16 * 2)
    assert read(MLLAMA).parameters(["embedding"]) == (100 + 8) * 64


def test_t5_by_hand() -> None:
    model = read(T5)
    attention = 4 * 64 * 4 * 8
    encoder = 3 * (attention + 2 * 64 * 128 + 2 * 64)
    decoder = 2 * (2 * attention + 2 * 64 * 128 + 3 * 64)
    assert model.parameters_total == 100 * 64 + encoder + decoder + 2 * (32 * 4 + 64)
    assert read(T5, tie_word_embeddings=False).parameters_total - model.parameters_total == 100 * 64
    assert read(T5, scale_decoder_outputs=False).parameters(["head"]) == 100 * 64
    gated = read(T5, feed_forward_proj="gated-gelu")
    assert gated.parameters_total - model.parameters_total == 5 * 64 * 128
    kept = cache(model)
    assert (kept.slope, kept.bytes_at(0, 19)) == (2 * 2 * 4 * 8 * 2, 19 * 2 * 2 * 4 * 8 * 2)
    assert len(model.layers) == 2


def test_whisper_keys_have_no_bias() -> None:
    model = read(WHISPER)
    assert elements(model)["model.decoder.layers.N.self_attn.v_proj.bias"] == 2 * 64
    assert "model.decoder.layers.N.self_attn.k_proj.bias" not in elements(model)
    assert elements(model)["model.encoder.conv1.weight"] == 64 * 80 * 3
    assert (model.max_context, model.dtype) == (448, "fp16")


def test_blocks_pruned_one_by_one() -> None:
    no_attention = BLOCK | {"attention": {"no_op": True}}
    no_mlp = BLOCK | {"ffn": {"no_op": True}}
    model = read(NAS, block_configs=[BLOCK, no_attention, no_mlp])
    assert [len(layer) for layer in model.layers] == [1, 0, 1]
    assert cache(model).slope == 2 * 2 * 2 * 16 * 2
    assert elements(model)["model.layers.N.self_attn.k_proj.weight"] == 2 * 2 * 16 * 64
    assert (
        elements(model)["model.layers.N.mlp.up_proj.weight"] == 2 * 64 * 256
    )  # 2 * 3 * 64 / 3 = 128, up to 256


def test_null_is_false_where_a_class_default_is_true() -> None:
    glm = SMALL | {"model_type": "glm", "head_dim": 16}
    bias = 6 * (64 + 32 + 32)
    assert read(glm).parameters_total - read(glm, attention_bias=None).parameters_total == bias


# --- what is refused ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("config", "fields", "message"),
    [
        (GEMMA2, {"sliding_window": None}, "field 'sliding_window' is null"),
        (GEMMA2, {"sliding_window": 0}, "field 'sliding_window' is 0"),
        (GEMMA2, {"layer_types": ["full_attention"]}, "field 'layer_types' is a list of 1"),
        (GEMMA2, {"layer_types": ["linear_attention"] * 6}, "field 'layer_types' has 'linear_attention'"),
        (GEMMA2, {"layer_types": ["full_attention", 3] * 3}, "field 'layer_types' has 3"),
        (GEMMA2, {"num_experts": 8}, "field 'num_experts' (experts) is not understood"),
        (GEMMA2, {"kv_lora_rank": 8}, "field 'kv_lora_rank' (latent attention) is not understood"),
        (GEMMA3, {"sliding_window_pattern": 0}, "field 'sliding_window_pattern' is 0"),
        (GEMMA3, {"sliding_window_pattern": "LLG"}, "field 'sliding_window_pattern' is 'LLG'"),
        (GEMMA3, {"use_bidirectional_attention": "all"}, "field 'use_bidirectional_attention' is 'all'"),
        (EXAONE4, {"sliding_window_pattern": "LLX"}, "field 'sliding_window_pattern' is 'LLX'"),
        (
            EXAONE4,
            {"sliding_window": None, "layer_types": ["sliding_attention"] * 6},
            "field 'layer_types' has",
        ),
        (
            QWEN2,
            {"use_sliding_window": False, "layer_types": ["sliding_attention"] * 6},
            "'use_sliding_window' is off",
        ),
        (QWEN2, {"max_window_layers": -1}, "field 'max_window_layers' is -1"),
        (GEMMA4, {"num_kv_shared_layers": 7}, "field 'num_kv_shared_layers' is 7"),
        (GEMMA4, {"num_kv_shared_layers": 1}, "field 'num_kv_shared_layers' is 1"),  # the one global layer
        (
            GEMMA4,
            {"num_global_key_value_heads": 3, "attention_k_eq_v": True},
            "'num_global_key_value_heads' is 3",
        ),
        (GEMMA4, {"per_layer_config": {"9": {}}}, "field 'per_layer_config' is an object of 1"),
        (
            GEMMA4,
            {"per_layer_config": {"1": {"hidden_size": 3}}},
            "per_layer_config of layer 1: field 'hidden_size'",
        ),
        (GEMMA4, {"enable_moe_block": True}, "field 'num_experts' is missing"),
        (GEMMA3N, {"intermediate_size": [1, 2]}, "field 'intermediate_size' is a list of 2"),
        (GEMMA3N, {"num_kv_shared_layers": 10}, "field 'num_kv_shared_layers' is 10"),
        (DORY, {"n_recurrent_layers": 2}, "'n_recurrent_layers'"),
        (MLLAMA, {"cross_attention_layers": [1, "2"]}, "field 'cross_attention_layers' has '2'"),
        (T5, {"d_kv": 0}, "field 'd_kv' is 0"),
        (T5, {"is_gated_act": "yes"}, "field 'is_gated_act' is 'yes'"),
        (
            T5 | {"model_type": "longt5"},
            {"encoder_attention_type": "global"},
            "field 'encoder_attention_type'",
        ),
        (WHISPER, {"decoder_layers": None}, "field 'decoder_layers' is null"),
        (WHISPER, {"decoder_attention_heads": 5}, "is not a multiple of the 5 attention heads"),
        (NAS, {"block_configs": [BLOCK]}, "field 'block_configs' is a list of 1"),
        (NAS, {"block_configs": [BLOCK, BLOCK, {}]}, "has no 'attention' in block 2"),
        (
            NAS,
            {"block_configs": [BLOCK | {"attention": {"n_heads_in_group": 3}}] * 3},
            "'n_heads_in_group' is 3",
        ),
        (NAS, {"block_configs": [BLOCK | {"ffn": {"ffn_mult": -1}}] * 3}, "field 'ffn_mult' is -1"),
        (
            NAS,
            {"block_configs": [BLOCK | {"ffn": {"replace_with_linear": True}}] * 3},
            "'replace_with_linear'",
        ),
        (GPT_NEO, {"attention_types": [[["global"], 2]]}, "field 'attention_types' is a list of 1"),
        (SMALL | {"model_type": "internlm3"}, {"qkv_bias": True}, "fields 'qkv_bias' and 'bias' disagree"),
        (SMALL | {"model_type": "diffllama"}, {"num_key_value_heads": 1}, "field 'num_key_value_heads' is 1"),
        (SMALL | {"model_type": "molmo2_text"}, {"qk_norm_type": "none"}, "field 'qk_norm_type' is 'none'"),
        (SMALL | {"model_type": "mpt", "d_model": 64}, {"attn_config": 3}, "field 'attn_config'"),
    ],
)
def test_refused(config: dict[str, Any], fields: dict[str, Any], message: str) -> None:
    with pytest.raises(DataFileError) as caught:
        read(config, **fields)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)
