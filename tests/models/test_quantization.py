"""What a quantization_config says: formats, modules left out, the cache it was made for; and what is refused."""

from __future__ import annotations

import json
import re
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from capplan.errors import DataFileError
from capplan.models.hf import from_config, read_config
from capplan.models.patterns import PatternError, Patterns, Text, compiled
from capplan.models.quantization import Format, Quantization, Rule, read
from capplan.models.spec import Model
from capplan.models.stored import stored

LLAMA: dict[str, Any] = {
    "model_type": "llama",
    "hidden_size": 256,
    "intermediate_size": 512,
    "num_hidden_layers": 12,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 1000,
    "max_position_embeddings": 8192,
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
}
MIXTRAL = LLAMA | {
    "model_type": "mixtral",
    "num_local_experts": 8,
    "num_experts_per_tok": 2,
    "sliding_window": None,
}


def told(given: dict[str, Any], **config: Any) -> Quantization:
    found, _ = read(config | {"quantization_config": given})
    assert found is not None
    return found


def formats(model: Model) -> dict[str, dict[str | None, int]]:
    """Matrices of each projection by the name of their format; None: not quantised."""
    found: dict[str, dict[str | None, int]] = {}
    for part in stored(model.weights, model.layers, model.hidden_size, model.quantization):
        name = part.weight.name.removesuffix(".weight").rsplit(".", 1)[-1]
        kinds = found.setdefault(name, {})
        kind = part.format.name if part.format else None
        kinds[kind] = kinds.get(kind, 0) + part.matrices
    return found


def quantised(given: dict[str, Any], config: dict[str, Any] = LLAMA) -> dict[str, dict[str | None, int]]:
    return formats(from_config(config | {"quantization_config": given}, id="x", name="X"))


# --- formats -----------------------------------------------------------------------------------------------------

INT4 = {"num_bits": 4, "type": "int", "strategy": "group", "group_size": 128, "symmetric": True}
FP8_CHANNEL = {"num_bits": 8, "type": "float", "strategy": "channel", "symmetric": True}


def groups(weights: dict[str, Any], form: str | None = "pack-quantized", **more: Any) -> dict[str, Any]:
    group: dict[str, Any] = {"targets": ["Linear"], "weights": weights, "input_activations": None}
    return {"quant_method": "compressed-tensors", "format": form, "config_groups": {"group_0": group}} | more


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"quant_method": "fp8"}, Format("fp8", 8, 0, 0, 4)),
        ({"quant_method": "fp8", "activation_scheme": "static"}, Format("fp8", 8, 0, 0, 4, matrix_bytes=4)),
        ({"quant_method": "fp8", "weight_block_size": [128, 128]}, Format("fp8", 8, 128, 128, 4)),
        (
            {"quant_method": "fp8", "weight_block_size": [128, 128], "scale_fmt": "ue8m0"},
            Format("fp8", 8, 128, 128, 1),
        ),
        ({"quant_method": "mxfp8", "weight_block_size": [1, 32]}, Format("mxfp8", 8, 1, 32, 1)),
        ({"quant_method": "fbgemm_fp8"}, Format("fp8", 8, 1, 0, 4)),
        ({"quant_method": "mxfp4"}, Format("mxfp4", 4, 1, 32, 1)),
        ({"quant_method": "awq"}, Format("int4", 4, 1, 128, 2, zero_bits=4)),
        (
            {"quant_method": "awq", "bits": 8, "group_size": 64, "zero_point": False, "version": "gemm"},
            Format("int8", 8, 1, 64, 2),
        ),
        (
            {"quant_method": "gptq", "bits": 4, "group_size": 32, "desc_act": True, "sym": True},
            Format("int4", 4, 1, 32, 2, zero_bits=4, column_bytes=4),
        ),
        (
            {"quant_method": "gptq", "bits": 8, "group_size": -1},
            Format("int8", 8, 1, 0, 2, zero_bits=8, column_bytes=4),
        ),
        (
            {"quant_method": "bitsandbytes", "load_in_4bit": True, "bnb_4bit_quant_type": "nf4"},
            Format("nf4", 4, 1, 64, 4, matrix_bytes=64),
        ),
        (
            {
                "quant_method": "bitsandbytes",
                "_load_in_4bit": True,
                "bnb_4bit_quant_type": "nf4",
                "bnb_4bit_use_double_quant": True,
            },
            Format("nf4", 4, 1, 64, 1 + 4 / 256, matrix_bytes=64 + 1024),
        ),
        ({"quant_method": "bitsandbytes", "load_in_8bit": True}, Format("int8", 8, 1, 0, 4, matrix_bytes=1)),
        (groups(INT4), Format("int4", 4, 1, 128, 2, matrix_bytes=16)),
        (groups(INT4 | {"symmetric": False}), Format("int4", 4, 1, 128, 2, zero_bits=4, matrix_bytes=16)),
        (
            groups(INT4 | {"actorder": "group"}),
            Format("int4", 4, 1, 128, 2, column_bytes=4, matrix_bytes=16),
        ),
        (groups(INT4 | {"actorder": "weight"}), Format("int4", 4, 1, 128, 2, matrix_bytes=16)),
        (groups(FP8_CHANNEL, "float-quantized"), Format("fp8", 8, 1, 0, 2)),
        (
            groups(
                {"num_bits": 8, "type": "float", "strategy": "block", "block_structure": [128, 128]},
                "float-quantized",
            ),
            Format("fp8", 8, 128, 128, 2),
        ),
        (groups({"num_bits": 8, "type": "int", "strategy": "tensor"}, "int-quantized"), Format("int8", 8, 0, 0, 2)),
        (
            groups({"num_bits": 4, "type": "float", "strategy": "tensor_group", "group_size": 16}, "nvfp4-pack-quantized"),
            Format("nvfp4", 4, 1, 16, 1, matrix_bytes=4),
        ),
        (
            groups(
                {"num_bits": 4, "type": "float", "strategy": "group", "group_size": 32, "scale_dtype": "torch.uint8"},
                "mxfp4-pack-quantized",
            ),
            Format("mxfp4", 4, 1, 32, 1),
        ),
        ({"quant_method": "modelopt", "quant_algo": "FP8"}, Format("fp8", 8, 0, 0, 4, matrix_bytes=4)),
        ({"quant_method": "modelopt", "quant_algo": "NVFP4"}, Format("nvfp4", 4, 1, 16, 1, matrix_bytes=8)),
        (
            {"quantization": {"quant_algo": "W4A16_AWQ", "group_size": 64}},
            Format("int4", 4, 1, 64, 2, column_bytes=2),
        ),
    ],
)  # fmt: skip
def test_a_format(given: dict[str, Any], expected: Format) -> None:
    assert told(given).rules[-1].format == expected


def test_one_byte_scales_are_not_deepseek_v3s() -> None:
    """V3.1 rounds its scales to powers of two and stores four bytes (github.com/deepseek-ai/DeepSeek-V3/issues/961)."""
    given = {"quant_method": "fp8", "weight_block_size": [128, 128], "scale_fmt": "ue8m0"}
    assert told(given, model_type="deepseek_v3").formats[0].scale_bytes == 4
    assert told(given, model_type="deepseek_v4").formats[0].scale_bytes == 1


def test_where_it_is_found() -> None:
    fp8 = {"quant_method": "fp8"}
    places: list[tuple[str, dict[str, Any]]] = [
        ("quantization_config", {"quantization_config": fp8}),
        ("text_config.quantization_config", {"text_config": {"quantization_config": fp8}}),
        ("compression_config", {"compression_config": {k: v for k, v in groups(INT4).items() if k != "quant_method"}}),
    ]  # fmt: skip
    for source, config in places:
        found, _ = read(config)
        assert found is not None
        assert found.source == source
    assert read({}) == (None, [])
    assert read({"quantization_config": None, "compression_config": {}}) == (None, [])
    both = {"quantization_config": fp8, "text_config": {"quantization_config": {"quant_method": "awq"}}}
    assert told(fp8, **both).method == "fp8"


@pytest.mark.parametrize(
    ("given", "kv"),
    [
        (groups(FP8_CHANNEL, "float-quantized", kv_cache_scheme={"num_bits": 8, "type": "float"}), "fp8"),
        (groups(FP8_CHANNEL, "float-quantized", kv_cache_scheme=None), None),
        ({"quantization": {"quant_algo": "FP8", "kv_cache_quant_algo": "FP8"}}, "fp8"),
        ({"quantization": {"quant_algo": "NVFP4", "kv_cache_quant_algo": "NVFP4"}}, "nvfp4"),
        ({"quantization": {"quant_algo": "NVFP4", "kv_cache_quant_algo": None}}, None),
        ({"quant_method": "modelopt", "quant_algo": "NVFP4", "kv_cache_scheme": {"num_bits": 8, "type": "float"}}, "fp8"),
    ],
)  # fmt: skip
def test_the_cache_it_was_made_for(given: dict[str, Any], kv: str | None) -> None:
    assert told(given).kv == kv


# --- what a format applies to ------------------------------------------------------------------------------------


def test_every_linear_layer_but_head_and_embedding() -> None:
    found = quantised({"quant_method": "fp8", "weight_block_size": [128, 128]})
    assert found["q_proj"] == {"fp8": 12}
    assert found["down_proj"] == {"fp8": 12}
    assert found["lm_head"] == found["embed_tokens"] == {None: 1}
    assert found["input_layernorm"] == {None: 12}


def test_compressed_tensors_have_the_head_unless_it_is_ignored() -> None:
    assert quantised(groups(INT4))["lm_head"] == {"int4": 1}
    assert quantised(groups(INT4, ignore=["lm_head"]))["lm_head"] == {None: 1}
    assert quantised({"quant_method": "gptq", "lm_head": True})["lm_head"] == {"int4": 1}


@pytest.mark.parametrize(
    ("entry", "projection", "left"),
    [
        ("model.layers.0", "q_proj", 1),  # one layer, not 10 and 11
        ("model.layers.1", "q_proj", 1),
        ("layers.3.mlp", "gate_proj", 1),
        ("layers.3.mlp", "q_proj", 0),
        ("down_proj", "down_proj", 12),
        ("model.layers.*.self_attn", "o_proj", 12),
        ("model.layers.1*", "up_proj", 3),  # a glob: 1, 10 and 11
        ("*mlp*", "up_proj", 12),
        ("re:.*self_attn.*", "k_proj", 12),
        ("re:model\\.layers\\.(0|11)\\..*", "v_proj", 2),
        ("re:.*layers\\.[0-3]\\.mlp\\.down_proj$", "down_proj", 4),
        ("re:^(?!.*mlp).*", "q_proj", 12),
        ("re:mlp", "up_proj", 0),  # expressions match from the start
        ("language_model.model.layers.5.mlp.up_proj", "up_proj", 1),
        ("model.layers.2.self_attn.qkv_proj", "k_proj", 1),  # a fused name
        ("model.layers.4.mlp.gate_proj.weight", "gate_proj", 1),
        ("gate", "gate_proj", 0),  # whole names only
        ("proj", "gate_proj", 0),
        ("model.vision_tower", "q_proj", 0),
        ("vision_model.model.layers.0.self_attn.q_proj", "q_proj", 0),
    ],
)
def test_modules_left_out(entry: str, projection: str, left: int) -> None:
    found = quantised(groups(FP8_CHANNEL, "float-quantized", ignore=[entry]))[projection]
    assert found.get(None, 0) == left
    assert found.get("fp8", 0) == 12 - left


@pytest.mark.parametrize("name", ["modules_to_not_convert", "ignored_layers", "ignore"])
def test_the_list_has_many_names(name: str) -> None:
    assert quantised({"quant_method": "fp8", name: ["self_attn"]})["q_proj"] == {None: 12}


@pytest.mark.parametrize(
    ("entries", "left"),
    [
        (["re:.*block_sparse_moe.gate$"], {}),
        (["model.layers.0.block_sparse_moe.experts.3.w1"], {"gate": 1}),
        (["model.layers.7.mlp.experts.3.gate_proj", "model.layers.7.mlp.experts.3.up_proj"], {"gate": 1, "up": 1}),
        (["re:.*experts\\.[0-2]\\.w2"], {"down": 3 * 12}),
        (["model.layers.0.block_sparse_moe.experts"], {"gate": 8, "up": 8, "down": 8}),
        (["experts.5"], {"gate": 12, "up": 12, "down": 12}),
    ],
)  # fmt: skip
def test_experts_by_their_names_in_the_checkpoint(entries: list[str], left: dict[str, int]) -> None:
    model = from_config(
        MIXTRAL | {"quantization_config": groups(INT4, ignore=[*entries, "lm_head"])}, id="x", name="X"
    )
    found = formats(model)
    assert found["gate_up_proj"].get(None, 0) == left.get("gate", 0) + left.get("up", 0)
    assert found["down_proj"].get(None, 0) == left.get("down", 0)
    assert sum(found["gate_up_proj"].values()) == 2 * 8 * 12  # a gate and an up of each expert
    assert found["gate"] == {None: 12}  # routers never are


def test_mxfp4_is_for_experts_alone() -> None:
    found = quantised({"quant_method": "mxfp4"}, MIXTRAL)
    assert found["down_proj"] == {"mxfp4": 96}
    assert found["q_proj"] == {None: 12}
    kept = quantised(
        {"quant_method": "mxfp4", "modules_to_not_convert": ["model.layers.0.mlp.experts"]}, MIXTRAL
    )
    assert kept["down_proj"] == {"mxfp4": 88, None: 8}


def test_fp4_experts_beside_fp8() -> None:
    given = {"quant_method": "fp8", "weight_block_size": [128, 128], "expert_dtype": "fp4"}
    found = quantised(given, MIXTRAL)
    assert found["gate_up_proj"] == {"mxfp4": 192}
    assert found["q_proj"] == {"fp8": 12}
    model = from_config(MIXTRAL | {"quantization_config": given}, id="x", name="X")
    assert model.dtype == "mxfp4"  # what most parameters are in


def test_named_targets_come_before_linear() -> None:
    given = groups(INT4, ignore=["lm_head"])
    given["config_groups"]["group_1"] = {
        "targets": ["re:.*self_attn.*"],
        "weights": FP8_CHANNEL,
        "format": "float-quantized",
    }
    found = quantised(given)
    assert found["q_proj"] == {"fp8": 12}
    assert found["up_proj"] == {"int4": 12}


def test_mixed_precision_lists_its_modules() -> None:
    layers = {
        f"model.layers.{i}.mlp.{p}": {"quant_algo": "NVFP4", "group_size": 16}
        for i in range(12)
        for p in ("up_proj", "down_proj")
    }
    layers |= {f"model.layers.{i}.self_attn.q_proj": {"quant_algo": "FP8"} for i in range(3)}
    given = {
        "quantization": {
            "quant_algo": "MIXED_PRECISION",
            "quantized_layers": layers,
            "kv_cache_quant_algo": "FP8",
        }
    }
    found = quantised(given)
    assert found["up_proj"] == {"nvfp4": 12}
    assert found["q_proj"] == {"fp8": 3, None: 9}
    assert found["gate_proj"] == {None: 12}


def test_gptq_overrides() -> None:
    dynamic = {"-:.*self_attn.*": {}, "+:.*\\.[0-3]\\.mlp.*": {"bits": 8, "group_size": 64}}
    found = quantised({"quant_method": "gptq", "bits": 4, "group_size": 128, "dynamic": dynamic})
    assert found["q_proj"] == {None: 12}
    assert found["up_proj"] == {"int8": 4, "int4": 8}
    named = {"quant_method": "gptq", "modules_in_block_to_quantize": [["self_attn.q_proj"], ["mlp.up_proj"]]}
    assert quantised(named)["up_proj"] == {"int4": 12}
    assert quantised(named)["down_proj"] == {None: 12}


def test_precisions_a_planner_knows() -> None:
    for told_of, dtype in (
        ({"quant_method": "fp8"}, "fp8"),
        ({"quant_method": "awq"}, "int4"),
        ({"quant_method": "gptq", "bits": 8}, "int8"),
        ({"quant_method": "bitsandbytes", "load_in_4bit": True}, "int4"),
        ({"quant_method": "modelopt", "quant_algo": "NVFP4"}, "nvfp4"),
        ({"quant_method": "modelopt", "quant_algo": "MXFP8"}, "fp8"),
    ):
        model = from_config(LLAMA | {"quantization_config": told_of}, id="x", name="X")
        assert model.dtype == dtype
        assert model.quantization is not None
        assert model.quantization.others == "bf16"


def test_a_side_file(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(LLAMA))
    side = tmp_path / "hf_quant_config.json"
    side.write_text(
        json.dumps(
            {
                "producer": {"name": "modelopt"},
                "quantization": {"quant_algo": "NVFP4", "exclude_modules": ["lm_head", "model.layers.0.*"]},
            }
        )
    )
    model = read_config(tmp_path)
    assert model.dtype == "nvfp4"
    assert formats(model)["q_proj"] == {"nvfp4": 11, None: 1}
    (tmp_path / "config.json").write_text(
        json.dumps(LLAMA | {"quantization_config": {"quant_method": "fp8"}})
    )
    assert read_config(tmp_path).dtype == "fp8"  # what the config says comes first
    (tmp_path / "config.json").write_text(json.dumps(LLAMA))
    side.write_text("{}")
    with pytest.raises(DataFileError, match=r"hf_quant_config.json': field 'quant_method' is null"):
        read_config(tmp_path)
    side.write_text("[1]")
    with pytest.raises(DataFileError, match=r"hf_quant_config.json' holds a list of 1"):
        read_config(tmp_path)


# --- refusals ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"quant_method": "quark"}, "field 'quantization_config.quant_method' is 'quark' (quantised weights); accepted: fp8"),
        ({"bits": 4}, "field 'quantization_config.quant_method' is null"),
        ({"quant_method": 4}, "field 'quantization_config.quant_method' is 4; a text"),
        ({"quant_method": "fp8", "weight_block_size": [128]}, "field 'quantization_config.weight_block_size' is a list of 1"),
        ({"quant_method": "fp8", "weight_block_size": [128, 0]}, "'quantization_config.weight_block_size'"),
        ({"quant_method": "fp8", "activation_scheme": "odd"}, "field 'quantization_config.activation_scheme' is 'odd'; accepted: dynamic, static"),
        ({"quant_method": "fp8", "fmt": "e3m4"}, "field 'quantization_config.fmt' is 'e3m4'"),
        ({"quant_method": "fp8", "scale_fmt": [1]}, "field 'quantization_config.scale_fmt' is a list of 1"),
        ({"quant_method": "fp8", "expert_dtype": "int2"}, "field 'expert_dtype' is 'int2'"),
        ({"quant_method": "fp8", "ignored_layers": {"a": 1}}, "field 'quantization_config.ignored_layers' is an object of 1"),
        ({"quant_method": "fp8", "ignored_layers": [1]}, "field 'quantization_config.ignored_layers' is a list of 1"),
        ({"quant_method": "fp8", "residual_group_size": 8}, "field 'quantization_config.residual_group_size' may change how weights are stored"),
        ({"quant_method": "awq", "bits": 3}, "field 'quantization_config.bits' is 3; accepted: 4, 8"),
        ({"quant_method": "awq", "group_size": 0}, "field 'quantization_config.group_size' is 0"),
        ({"quant_method": "awq", "zero_point": "yes"}, "field 'quantization_config.zero_point' is 'yes'"),
        ({"quant_method": "gptq", "bits": True}, "field 'quantization_config.bits' is true"),
        ({"quant_method": "gptq", "checkpoint_format": "marlin"}, "field 'quantization_config.checkpoint_format' is 'marlin'"),
        ({"quant_method": "gptq", "dynamic": {"+:a": {"bits": 3}}}, "field 'quantization_config.dynamic.+:a' has bits 3"),
        ({"quant_method": "gptq", "dynamic": {"-:(a": {}}}, "field 'quantization_config.dynamic': pattern '(a' has '(' without ')'"),
        ({"quant_method": "bitsandbytes"}, "'quantization_config.load_in_4bit' and 'quantization_config.load_in_8bit' are both false"),
        ({"quant_method": "bitsandbytes", "load_in_4bit": True, "bnb_4bit_quant_type": "nf3"}, "'nf3'; accepted: nf4, fp4"),
        ({"quant_method": "compressed-tensors"}, "field 'quantization_config.config_groups' has no group of weights"),
        (groups(INT4, "marlin-24"), "field 'quantization_config.config_groups.group_0.format' is 'marlin-24'"),
        (groups(INT4 | {"num_bits": 3}), "field 'quantization_config.config_groups.group_0.weights.num_bits' is 3"),
        (groups(INT4 | {"strategy": "odd"}), "'quantization_config.config_groups.group_0.weights.strategy' is 'odd'"),
        (groups(INT4 | {"scale_dtype": "int3"}), "group_0.weights.scale_dtype' is 'int3'"),
        (groups({"num_bits": 8, "type": "float", "strategy": "block"}, "float-quantized"), "group_0.weights.block_structure' is null"),
        (groups(INT4, sparsity_config={"format": "sparse-24-bitmask"}), "field 'quantization_config.sparsity_config' ('sparse-24-bitmask')"),
        (groups(INT4, transform_config={"config_groups": {"a": 1}}), "field 'quantization_config.transform_config'"),
        (groups(INT4, ignore=["re:(a"]), "field 'quantization_config.ignore': pattern '(a' has '(' without ')'"),
        (groups(INT4, ignore=["re:(a)\\1"]), "field 'quantization_config.ignore': pattern '(a)\\\\1' has '\\1'"),
        (groups(INT4, kv_cache_scheme={"num_bits": 3, "type": "int"}), "field 'quantization_config.kv_cache_scheme' has num_bits 3"),
        ({"quant_method": "modelopt", "quant_algo": "FP5"}, "field 'quantization_config.quant_algo' is 'FP5'; accepted: FP8"),
        ({"quant_method": "modelopt"}, "field 'quantization_config.quant_algo' is null"),
        ({"quant_method": "modelopt", "quant_algo": "FP8", "kv_cache_quant_algo": "INT3"}, "field 'quantization_config.kv_cache_quant_algo' is 'INT3'"),
        ({"quant_method": "modelopt", "quant_algo": "MIXED_PRECISION"}, "field 'quantization_config.quantized_layers' is missing"),
        ({"quant_method": "modelopt", "quant_algo": "MIXED_PRECISION", "quantized_layers": {"a": {"quant_algo": "X"}}}, "field 'quantization_config.quantized_layers.a.quant_algo' is 'X'"),
        ({"quant_method": "modelopt", "quant_algo": "NVFP4", "group_size": -2}, "field 'quantization_config.group_size' is -2"),
    ],
)  # fmt: skip
def test_a_refusal_names_the_field(given: dict[str, Any], message: str) -> None:
    with pytest.raises(DataFileError) as caught:
        from_config(LLAMA | {"quantization_config": given}, id="x", name="X", where="'config.json'")
    assert message in str(caught.value)
    assert str(caught.value).startswith("'config.json': ")
    assert "\n" not in str(caught.value)


def test_what_changes_nothing_is_noted_or_passed_over() -> None:
    given = {"quant_method": "gptq", "damp_percent": 0.1, "meta": {"quantizer": ["a"]}, "author": "me"}
    _, assumptions = read({"quantization_config": given})
    assert assumptions == ["field 'quantization_config.author' is not understood and taken to change nothing"]


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 200) | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=6,
)
KEYS = (
    *(
        "bits",
        "group_size",
        "quant_algo",
        "ignore",
        "config_groups",
        "weights",
        "targets",
        "dynamic",
        "strategy",
    ),
    *(
        "weight_block_size",
        "kv_cache_scheme",
        "quantized_layers",
        "modules_to_not_convert",
        "format",
        "num_bits",
    ),
)
METHODS = ("fp8", "awq", "gptq", "bitsandbytes", "compressed-tensors", "modelopt", "mxfp4", "odd")


@settings(max_examples=400, deadline=None)
@given(st.sampled_from(METHODS), st.dictionaries(st.sampled_from(KEYS), JSON, max_size=5))
def test_any_config_is_read_or_refused_in_one_line(method: str, fields: dict[str, Any]) -> None:
    said, rules = "", 1
    try:
        found, _ = read({"quantization_config": {"quant_method": method} | fields})
        rules = len(found.rules) if found else 0
    except DataFileError as error:
        said = str(error)
    assert rules
    assert "\n" not in said


# --- patterns ----------------------------------------------------------------------------------------------------

PIECES = st.sampled_from(
    [*"ab.", ".*", ".+?", "a*", "(a|b)", "(?:ab)+", "[ab]", "[^a.]", "\\.", "\\d+", "b?", "(?!a)", "(?=b)", "a{1,2}", "(a*)*", "$", "^", "\\w", "[a-c]{2}"]
)  # fmt: skip


@settings(max_examples=1000, deadline=None)
@given(st.lists(PIECES, max_size=6).map("".join), st.text("ab.1c", max_size=9))
def test_expressions_match_as_pythons_do(pattern: str, text: str) -> None:
    assert bool(compiled(pattern)(Text(text), 1)) == (re.match(pattern, text) is not None)


@pytest.mark.parametrize(
    "pattern",
    ["(a*)*b", "(a|a)*b", "(.*)*(.*)*(.*)*x", "(a+)+$", ".*.*.*.*.*.*.*.*.*.*x", "((a*)*)*b", "(.*a){20}"],
)
def test_no_expression_takes_long(pattern: str) -> None:
    """Python's own engine needs 2^100 steps for the first of these."""
    begin = time.process_time()
    assert not compiled(pattern)(Text("a" * 15 + "c" * 85), 1) or pattern in ("(a+)+$",)
    assert time.process_time() - begin < 1


@pytest.mark.parametrize(
    ("pattern", "message"),
    [
        ("(", "without ')'"),
        (")", "')' without '('"),
        ("[a", "without ']'"),
        ("*a", "repeats nothing"),
        ("a**", "repeats a repeat"),
        ("a{1,900}", "repeats more than 100 times"),
        ("(?P<n>a)", "has '(?P<'"),
        ("(?<=a)b", "has '(?<='"),
        ("\\b", "has '\\b'"),
        ("a*+", "possessive"),
        ("a" * 501, "501 characters"),
        ("(" * 30 + "a" + ")" * 30, "nested too deep"),
        ("(?:(?:(?:a?){100}){100}){100}", "takes more than 100,000 steps"),
    ],
)
def test_a_pattern_that_is_refused(pattern: str, message: str) -> None:
    with pytest.raises(PatternError) as caught:
        compiled(pattern)(Text("a" * 200), 1)
    assert message in str(caught.value)


def test_many_patterns_cost_little() -> None:
    entries = [f"model.layers.{i}.mlp.experts.{j}.down_proj" for i in range(60) for j in range(200)]
    begin = time.process_time()
    found = Patterns(entries)
    assert found.match("model.layers.59.mlp.experts.199.down_proj")
    assert not found.match("model.layers.60.mlp.experts.199.down_proj")
    assert time.process_time() - begin < 1
    with pytest.raises(PatternError, match="more than 2,000"):
        Patterns(f"re:.*{i}.*" for i in range(2_001))
    assert Rule(Format("fp8", 8)).targets == ()
