"""Mixtures of experts: arithmetic, recorded facts, both spellings of a file, and what is refused."""

import csv
import json
from pathlib import Path
from typing import Any

import pytest

from capplan.capacity.cache import cache
from capplan.errors import DataFileError
from capplan.models.families import FAMILIES
from capplan.models.hf import from_config, read_config
from capplan.models.registry import model
from capplan.models.spec import Attention, Model, State

MODULES = ("experts", "experts_kinds", "experts_own", "glm", "inkling", "minimax", "step")
MINE = {name for name, function in FAMILIES.items() if function.partition(".")[0] in MODULES}
ROWS = (
    *("llama-4-scout", "llama-4-maverick", "mixtral-8x7b", "mixtral-8x22b", "gpt-oss-20b", "gpt-oss-120b"),
    *("qwen3-30b-a3b", "qwen3-235b-a22b", "qwen3-235b-a22b-nvfp4", "qwen3-coder-480b-a35b"),
    *("glm-4.5", "glm-4.5-air", "glm-4.6", "minimax-m2", "minimax-m2.5", "minimax-m3", "mimo-v2-flash"),
    *("step3", "step-3.5-flash", "step-3.7-flash", "hunyuan-a13b", "hunyuan-large", "hy3-preview"),
    *("ernie-4.5-21b-a3b", "ernie-4.5-300b-a47b", "muse-spark", "inkling", "solar-open-100b"),
)
# The recorded count of this one has its vision and audio towers in it
WITH_TOWERS = {"muse-spark"}


# Families whose experts have the intermediate_size
PLAIN = ("mixtral", "minimax_m2", "granitemoe", "gpt_oss", "llama4_text", "hunyuan", "hunyuan_v1_moe")


def small(model_type: str, **fields: Any) -> Model:
    """A model of four layers and four experts; a field that is None is null in the file, one that is ... is absent."""
    config: dict[str, Any] = {
        "model_type": model_type,
        "hidden_size": 96,
        "num_hidden_layers": 4,
        "num_attention_heads": 6,
        "num_key_value_heads": 3,
        "head_dim": 16,
        "vocab_size": 100,
        "max_position_embeddings": 4096,
        "tie_word_embeddings": False,
        "torch_dtype": "bfloat16",
        "num_experts": 4,
        "num_experts_per_tok": 2,
        "intermediate_size": 20,
        "moe_intermediate_size": 10,
    } | fields
    if model_type in PLAIN:
        del config["moe_intermediate_size"]
    config = {name: value for name, value in config.items() if value is not ...}
    return from_config(config, id="small", name="small")


def by_name(read: Model) -> dict[str, int]:
    found: dict[str, int] = {}
    for weight in read.weights:
        found[weight.name] = found.get(weight.name, 0) + weight.parameters
    return found


def windows(read: Model) -> list[int | None]:
    parts = [layer[0] for layer in read.layers]
    assert all(isinstance(part, Attention) for part in parts)
    return [part.window for part in parts if isinstance(part, Attention)]


# --- arithmetic ------------------------------------------------------------------------------------------------


def test_mixtral() -> None:
    mixtral = model("mixtral-8x7b")
    embedding = 32_000 * 4096
    attention = 4096 * (4096 + 1024 + 1024 + 4096)
    expert, router, norms = 3 * 4096 * 14_336, 8 * 4096, 2 * 4096
    around = 2 * embedding + 4096 + 32 * (attention + router + norms)
    assert mixtral.parameters_total == around + 32 * 8 * expert == 46_702_792_704
    assert mixtral.parameters_active == around + 32 * 2 * expert == 12_879_925_248
    assert mixtral.parameters_active_without_embedding == 12_879_925_248 - embedding
    assert mixtral.parameters(["experts"]) == 32 * 8 * expert
    assert mixtral.parameters(["router"]) == 32 * router
    assert cache(mixtral).slope == 32 * 8 * (128 + 128) * 2


@pytest.mark.parametrize(
    ("name", "slope"),
    [
        ("gpt-oss-120b", 18 * 8 * (64 + 64) * 2),
        ("llama-4-scout", 12 * 8 * (128 + 128) * 2),
        ("mimo-v2-flash", 9 * 4 * (192 + 128) * 2),
        ("step3", 61 * 1 * (256 + 256) * 2),
        ("step-3.5-flash", 12 * 8 * (128 + 128) * 2),
        ("hunyuan-large", 32 * 8 * (80 + 80) * 2),  # every second of 64 layers owns a cache
        ("hunyuan-a13b", 32 * 8 * (128 + 128) * 2),
        ("minimax-m3", 60 * 4 * (128 + 128) * 2 + 57 * 128 * 2),  # with an index key in 57 layers
        ("inkling", 11 * 8 * (128 + 128) * 2),
        ("muse-spark", 16 * 16 * (64 + 64) * 2),
    ],
)
def test_bytes_that_a_token_adds(name: str, slope: int) -> None:
    assert cache(model(name)).slope == slope


@pytest.mark.parametrize(
    ("name", "window", "held"),
    [
        ("gpt-oss-120b", 128, 18 * 8 * (64 + 64) * 2),
        ("llama-4-scout", 8192, 36 * 8 * (128 + 128) * 2),
        ("mimo-v2-flash", 128, 39 * 8 * (192 + 128) * 2),  # twice the KV heads of the full layers
        ("step-3.5-flash", 512, 33 * 8 * (128 + 128) * 2),
        ("inkling", 512, 55 * 16 * (128 + 128) * 2),
    ],
)
def test_windows(name: str, window: int, held: int) -> None:
    (stream,) = cache(model(name)).windows
    assert (stream.most, stream.layers * stream.entry_bytes) == (window, held)


def test_llama_4_starts_a_chunk_anew() -> None:
    kinds = [layer[0] for layer in model("llama-4-maverick").layers]
    assert [isinstance(kind, Attention) and kind.chunked for kind in kinds] == [True, True, True, False] * 12


def test_a_draft_layer_of_glm_is_a_layer_with_two_norms_and_a_projection_before_it_and_a_norm_after() -> None:
    glm = model("glm-4.5")
    h, heads, kv, width = 5120, 96 * 128, 8 * 128, 1536
    attention = h * (heads + 2 * kv) + heads + 2 * kv + heads * h + 2 * 128
    experts = 160 * 3 * h * width + 160 * h + 3 * h * width
    assert (
        sum(weight.parameters for weight in glm.draft_weights)
        == attention + experts + 2 * h + 2 * h * h + 3 * h
    )
    assert len(glm.draft_layers) == 1
    assert cache(glm, drafts=True).slope - cache(glm).slope == 8 * (128 + 128) * 2


def test_sparse_layers_by_step() -> None:
    def dense(**fields: Any) -> int:
        read = small("qwen3_moe", **fields)
        return by_name(read).get("model.layers.N.mlp.up_proj.weight", 0) // (20 * 96)

    assert dense() == 0
    assert dense(mlp_only_layers=[0, 3]) == 2
    assert dense(decoder_sparse_step=2) == 2  # the second and the fourth are sparse
    assert dense(decoder_sparse_step=2, mlp_only_layers=[1]) == 3
    assert dense(num_experts=0) == 4


@pytest.mark.parametrize(
    ("fields", "sparse"),
    [
        ({}, 3),
        ({"moe_layer_start_index": 0}, 4),
        ({"moe_layer_start_index": 2, "moe_layer_end_index": 2}, 1),
        ({"moe_layer_end_index": -1}, 3),
        ({"moe_layer_end_index": None}, 3),
        ({"moe_layer_interval": 2}, 2),
        ({"moe_layer_interval": 2, "moe_layer_start_index": 2}, 1),
    ],
)
def test_sparse_layers_by_index(fields: dict[str, int | None], sparse: int) -> None:
    read = small("ernie4_5_moe", **fields)
    assert by_name(read)["model.layers.N.mlp.gate.weight"] == sparse * 4 * 96


def test_windows_of_the_class_and_of_the_file() -> None:
    assert windows(small("gpt_oss")) == [128, None, 128, None]
    kinds = ["full_attention", "full_attention", "sliding_attention", "full_attention"]
    assert windows(small("gpt_oss", layer_types=kinds, sliding_window=7)) == [None, None, 7, None]
    assert windows(small("mixtral", sliding_window=7)) == [7] * 4
    assert windows(small("mixtral", sliding_window=None)) == [None] * 4
    assert windows(small("qwen3_moe", sliding_window=7, use_sliding_window=False)) == [None] * 4
    assert windows(small("qwen3_moe", sliding_window=7, use_sliding_window=True)) == [7] * 4
    sliding = {"sliding_window": 7, "use_sliding_window": True, "max_window_layers": 3}
    assert windows(small("qwen2_moe", **sliding)) == [7, None, 7, None]
    assert windows(small("afmoe", global_attn_every_n_layers=2)) == [1024, None, 1024, None]
    mimo = small("mimo_v2_flash", num_key_value_heads=1, sliding_window_size=7)
    assert windows(mimo) == [None, 7, 7, 7]
    held = {stream.most for stream in cache(mimo, view="transformers").windows}
    assert held == {7}  # the class counts the token itself apart
    assert windows(small("llama4_text", attention_chunk_size=None)) == [None] * 4
    assert windows(small("llama4_text", no_rope_layers=[0, 1, 0, 0])) == [None, 8192, None, None]


def test_heads_by_the_layer() -> None:
    read = small("laguna", num_attention_heads_per_layer=[6, 12, 12, 6])
    heads = [layer[0].heads for layer in read.layers if isinstance(layer[0], Attention)]
    assert heads == [6, 12, 12, 6]
    assert by_name(read)["model.layers.N.self_attn.q_proj.weight"] == 36 * 16 * 96
    assert by_name(read)["model.layers.N.self_attn.g_proj.weight"] == 36 * 96


def test_layers_that_share_a_cache() -> None:
    fields = {"num_shared_expert": 1}
    apart, shared = small("hunyuan", **fields), small("hunyuan", **fields, use_cla=True, cla_share_factor=2)
    assert cache(shared).slope * 2 == cache(apart).slope
    assert (
        apart.parameters_total - shared.parameters_total == 2 * 2 * 96 * 3 * 16
    )  # keys and values of two layers


def test_a_loop_caches_for_every_pass() -> None:
    loop = {"loop_layer_index_start": 1, "loop_layer_index_end": 3, "loop_num_passes": 3}
    read = small("inkling2_loop_text", intermediate_size=..., **loop)
    assert len(read.layers) == 4 + 2 * 2
    assert any("run 3 times" in text for text in read.assumptions)
    assert [type(part) for part in read.layers[0]] == [Attention, State, State]


def test_the_chosen_experts_may_differ_by_layer() -> None:
    read = small("hunyuan_v1_moe", num_experts_per_tok=[1, 2, 2, 4])
    routed = [weight for weight in read.weights if weight.bucket == "experts"]
    assert sum(weight.active for weight in routed) == (1 + 2 + 2 + 4) * 3 * 20 * 96
    assert sum(weight.parameters for weight in routed) == 4 * 4 * 3 * 20 * 96


def test_what_a_family_takes_for_granted_is_said() -> None:
    read = small("mixtral", num_experts=..., num_experts_per_tok=...)
    assert read.assumptions == (
        "field 'num_experts' is absent and taken to be 8, the default of model_type 'mixtral'",
        "field 'num_experts_per_tok' is absent and taken to be 2, the default of model_type 'mixtral'",
    )


# --- recorded facts --------------------------------------------------------------------------------------------


def facts(data: Path) -> dict[str, dict[str, Any]]:
    return {row["hf_id"].lower(): row for row in json.loads((data / "models_facts.json").read_text())}


@pytest.mark.parametrize("name", ROWS)
def test_rows_against_the_facts(data: Path, name: str) -> None:
    read = model(name)
    assert read.assumptions == ()  # a row spells out what its family would otherwise assume
    known = facts(data)
    fact = next(known[alias.lower()] for alias in read.aliases if alias.lower() in known)
    streams = cache(read).streams
    assert sum(s.slope for s in streams if s.part == "kv_full") == fact["kv_bytes_per_token_full_2B"]
    assert sum(s.slope for s in streams if s.part == "index_keys") == fact["indexer_bytes_per_token"]
    expected = [(w["window"], w["n_layers"], w["kv_bytes_per_token_2B"]) for w in fact["windows"]]
    assert [
        (s.most, s.layers, s.layers * s.entry_bytes) for s in streams if s.part == "kv_window"
    ] == expected
    assert len(read.layers) == fact["n_layers"]
    assert len(read.draft_layers) == fact["mtp_layers"]
    assert read.parameters(["embedding"]) == fact["n_embedding_params"]
    assert read.parameters(["head"]) == fact["n_lm_head_params"]
    drafted = sum(weight.parameters for weight in read.draft_weights)
    assert drafted == pytest.approx(fact["mtp_params"] or 0, rel=1e-6)
    if name not in WITH_TOWERS:
        # the facts have router biases that are buffers: up to 16 thousand
        assert read.parameters_total == pytest.approx(fact["n_params_total"], rel=1e-6)
        rounded = 1e6 if fact["n_params_active"] % 1_000_000 == 0 else 16_000
        assert read.parameters_active == pytest.approx(fact["n_params_active"], abs=rounded)
        without = read.parameters_active_without_embedding
        assert without == pytest.approx(fact["n_params_active_excl_embedding"], abs=rounded)


def test_every_mixture_of_the_facts_has_a_row(data: Path) -> None:
    known = facts(data)
    rowed = {alias.lower() for name in ROWS for alias in model(name).aliases}
    types = MINE | {"llama4", "step3_vl", "step3p7", "muse_spark", "inkling"}
    missing = [name for name, fact in known.items() if fact["model_type"] in types and name not in rowed]
    assert missing == []


def test_oracle(data: Path) -> None:
    names = json.loads((data / "oracle" / "params_by_name.json").read_text())
    exact = 0
    with (data / "oracle" / "expected.csv").open(newline="") as file:
        for row in csv.DictReader(file):
            if row["model_type"] not in MINE | {"llama4"}:
                continue
            stem = row["file"].removesuffix(".json").removesuffix(".v5")
            read = read_config(data / "oracle" / row["file"])
            assert by_name(read) == names[stem], row["file"]
            assert read.parameters_total == int(row["params_total"]), row["file"]
            assert read.parameters(["embedding"]) == int(row["params_embedding"]), row["file"]
            assert read.parameters(["head"]) == int(row["params_lm_head"]), row["file"]
            held = cache(read, view="transformers")
            for tokens, parts in json.loads(row["cache_parts_at"]).items():
                found = {part: size for part, size in held.parts_at(int(tokens)).items() if size}
                assert found == parts, (row["file"], tokens)
            exact += 1
    assert exact >= 48


def test_both_spellings_are_one_model(data: Path) -> None:
    pairs = 0
    for path in sorted((data / "oracle").glob("*/*.v5.json")):
        hub = path.with_name(path.name.replace(".v5", ""))
        if json.loads(hub.read_text())["model_type"] not in MINE | {"llama4"}:
            continue
        old, new = read_config(hub), read_config(path)
        assert (sorted(old.weights), old.layers, old.max_context) == (
            sorted(new.weights),
            new.layers,
            new.max_context,
        )
        pairs += 1
    assert pairs >= 24


@pytest.mark.parametrize(
    ("file", "parameters"),
    [
        ("ernie-4.5-21b-a3b.json", 21_825_437_888),
        ("gpt-oss-120b.json", 116_829_156_672),
        ("llama-4-scout-fp8-dynamic.json", 107_769_861_120),
        ("mimo-v2-flash.json", 308_778_780_864 - 47 * 256),  # without the routers' buffers
        ("minimax-m3.json", 426_174_572_928 - 57 * 128),
        ("mixtral-8x7b.json", 46_702_792_704),
        ("qwen3-30b-a3b.json", 30_532_122_624),
        ("qwen3-vl-30b-a3b.json", 30_532_122_624),
    ],
)
def test_real_configs(data: Path, file: str, parameters: int) -> None:
    assert read_config(data / "configs" / file).parameters_total == parameters


# --- what is refused -------------------------------------------------------------------------------------------

SLIDING = ["sliding_attention", "full_attention"] * 2
CHUNKED = ["chunked_attention", "full_attention"] * 2


@pytest.mark.parametrize(
    ("model_type", "fields", "message"),
    [
        ("mixtral", {"num_experts_per_tok": 5}, "field 'num_experts_per_tok' is 5, more than the 4 experts"),
        ("mixtral", {"num_experts_per_tok": 0}, "field 'num_experts_per_tok' is 0"),
        ("mixtral", {"num_experts": "4"}, "field 'num_experts' is '4'"),
        ("mixtral", {"num_experts": -1}, "field 'num_experts' is -1"),
        ("mixtral", {"num_experts": 4.0}, "field 'num_experts' is 4.0"),
        (
            "mixtral",
            {"num_local_experts": 8},
            "fields 'num_experts' and 'num_local_experts' disagree: 4 and 8",
        ),
        ("mixtral", {"intermediate_size": True}, "field 'intermediate_size' is true"),
        ("mixtral", {"kv_lora_rank": 64}, "field 'kv_lora_rank' (latent attention)"),
        ("mixtral", {"n_shared_experts": 1}, "field 'n_shared_experts' (experts)"),
        (
            "mixtral",
            {"num_key_value_heads": 4},
            "field 'num_key_value_heads' is 4, which does not divide the 6",
        ),
        ("granitemoe", {"shared_intermediate_size": 8}, "field 'shared_intermediate_size'"),
        ("granitemoe", {"sliding_window": 8}, "field 'sliding_window' (sliding windows)"),
        ("qwen3_moe", {"mlp_only_layers": "0"}, "field 'mlp_only_layers' is '0'; a list is accepted"),
        ("qwen3_moe", {"mlp_only_layers": [0.5]}, "field 'mlp_only_layers' has 0.5"),
        ("qwen3_moe", {"decoder_sparse_step": 0}, "field 'decoder_sparse_step' is 0"),
        ("qwen3_moe", {"shared_expert_intermediate_size": 8}, "field 'shared_expert_intermediate_size'"),
        ("qwen2_moe", {"qkv_bias": 1}, "field 'qkv_bias' is 1; true or false is accepted"),
        ("qwen2_moe", {"layer_types": SLIDING}, "field 'layer_types' has 'sliding_attention'"),
        ("dots1", {"num_experts": ...}, "field 'num_experts' is missing"),
        ("ernie4_5_moe", {"moe_intermediate_size": [10, 6]}, "field 'moe_intermediate_size' is a list of 2"),
        ("hy_v3", {"mlp_layer_types": ["dense"]}, "field 'mlp_layer_types' is a list of 1"),
        ("hy_v3", {"mlp_layer_types": ["moe"] * 4}, "field 'mlp_layer_types' has 'moe'"),
        ("gpt_oss", {"layer_types": CHUNKED}, "field 'layer_types' has 'chunked_attention'"),
        ("gpt_oss", {"layer_types": SLIDING, "sliding_window": None}, "field 'sliding_window'"),
        (
            "llama4_text",
            {"layer_types": CHUNKED, "attention_chunk_size": None},
            "field 'attention_chunk_size'",
        ),
        ("llama4_text", {"no_rope_layers": [1, 0]}, "field 'no_rope_layers' is a list of 2; a list of 4"),
        ("llama4_text", {"moe_layers": {"0": 1}}, "field 'moe_layers' is an object of 1"),
        (
            "mimo_v2_flash",
            {"num_key_value_heads": 2},
            "field 'num_key_value_heads' is 2: layers with a window have twice as many",
        ),
        (
            "mimo_v2_flash",
            {"swa_num_key_value_heads": 3},
            "field 'swa_num_key_value_heads' is 3; 6 is supported",
        ),
        ("mimo_v2_flash", {"swa_v_head_dim": 64}, "field 'swa_v_head_dim' is 64; 128 is supported"),
        (
            "mimo_v2_flash",
            {"add_full_attention_sink_bias": True},
            "field 'add_full_attention_sink_bias' is true",
        ),
        ("mimo_v2_flash", {"hybrid_layer_pattern": [0, 1]}, "field 'hybrid_layer_pattern' is a list of 2"),
        ("minimax_m2", {"attn_type_list": [1, 1, 0, 1]}, "field 'attn_type_list' has 0 (linear attention)"),
        ("minimax_m3", {"sparse_attention_config": [1]}, "field 'sparse_attention_config' is a list of 1"),
        (
            "minimax_m3",
            {"sparse_attention_config": {"sparse_attention_freq": [1]}},
            "field 'sparse_attention_freq'",
        ),
        ("minimax_m3", {"moe_layer_freq": [1]}, "field 'moe_layer_freq' is a list of 1"),
        ("hunyuan_v1_moe", {"use_cla": True}, "field 'use_cla' is true"),
        ("hunyuan_v1_moe", {"num_experts_per_tok": [1, 2]}, "is a list of 2; a list of 4"),
        ("hunyuan_v1_moe", {"num_experts_per_tok": [1, 2, 9, 1]}, "more than the 4 experts"),
        ("laguna", {"num_attention_heads_per_layer": [6, 6]}, "field 'num_attention_heads_per_layer'"),
        (
            "laguna",
            {"num_attention_heads_per_layer": [6, 6, 0, 6]},
            "field 'num_attention_heads_per_layer' has 0",
        ),
        (
            "laguna",
            {"num_attention_heads_per_layer": [6, 6, 7, 6]},
            "field 'num_attention_heads_per_layer' has 7",
        ),
        ("step3p5", {"moe_layers_enum": "1,two"}, "field 'moe_layers_enum' is '1,two'"),
        ("step3p5", {"layer_types": SLIDING}, "field 'sliding_window' has no window"),
        (
            "step3p5",
            {"num_attention_groups": 2},
            "fields 'num_key_value_heads' and 'num_attention_groups' disagree",
        ),
        ("step3_text", {}, "field 'share_q_dim' is missing"),
        (
            "inkling_text",
            {"swa_num_attention_heads": 6, "swa_num_key_value_heads": 4},
            "'swa_num_key_value_heads'",
        ),
        ("inkling_text", {"layer_types": SLIDING}, "field 'layer_types' has 'sliding_attention'"),
        ("inkling2_loop_text", {"loop_config": {"core_start": 0}}, "field 'loop_layer_index_start'"),
        ("dbrx", {"attn_config": None}, "field 'attn_config' is null; an object is needed"),
        ("dbrx", {"attn_config": {"kv_n_heads": 4}, "ffn_config": {}}, "field 'attn_config.kv_n_heads' is 4"),
        ("dbrx", {"attn_config": {"latent": 4}, "ffn_config": {}}, "attn_config: field 'latent'"),
    ],
)
def test_a_wrong_field_is_named(model_type: str, fields: dict[str, Any], message: str) -> None:
    with pytest.raises(DataFileError) as caught:
        small(model_type, **fields)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)
