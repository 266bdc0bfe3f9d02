"""Latent and compressed attention: published numbers, recorded facts, what is cached, and what is refused."""

import csv
import json
from pathlib import Path
from typing import Any

import pytest

from capplan.capacity.cache import cache
from capplan.errors import DataFileError
from capplan.models.hf import from_config, read_config
from capplan.models.registry import model
from capplan.models.spec import CompressedAttention, LatentAttention, Model

FAMILIES = (
    *("deepseek_v2", "deepseek_v3", "deepseek_v32", "deepseek_v4", "glm4_moe_lite", "glm_moe_dsa"),
    *("longcat_flash", "minicpm3", "mistral4", "axk1", "axk2", "youtu", "sarvam_mla", "hy_v4"),
)
ROWS = (
    *(
        "deepseek-v2",
        "deepseek-v2-lite",
        "deepseek-v3",
        "deepseek-r1",
        "deepseek-v3.1-nvfp4",
        "deepseek-v3.2",
    ),
    *("deepseek-v4-flash", "deepseek-v4-pro", "glm-5", "glm-5-fp8", "glm-5.2", "kimi-k2", "kimi-k2.5"),
    *("mistral-large-3-675b", "mistral-small-4-119b"),
)


# --- published numbers -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "slope"),
    [
        ("deepseek-v3", 61 * (512 + 64) * 2),
        ("deepseek-r1", 70_272),
        ("kimi-k2", 70_272),
        ("kimi-k2.5", 70_272),
        ("mistral-large-3-675b", 70_272),
        ("deepseek-v2", 60 * (512 + 64) * 2),
        ("deepseek-v2-lite", 27 * (512 + 64) * 2),
        ("mistral-small-4-119b", 36 * (256 + 64) * 2),
        ("deepseek-v3.2", 61 * (1152 + 132)),
        ("glm-5", 78 * (1152 + 132)),
        ("glm-5.2", 78 * 1152 + 21 * 132),
        ("deepseek-v4-flash", 21 * 1024 / 4 + 20 * 1024 / 128 + 21 * 132 / 4),
        ("deepseek-v4-pro", 30 * 1024 / 4 + 31 * 1024 / 128 + 30 * 132 / 4),
        (
            "mistral-large-4",
            63 * 1152 + 72 * 132,
        ),  # 9 of 72 layers use another's latents, with their own indexers
    ],
)
def test_bytes_that_a_token_adds(name: str, slope: float) -> None:
    for tp in (1, 8, 16):  # a latent has no heads to divide: every rank holds all of it
        assert cache(model(name), tp=tp).slope == slope
    assert cache(model(name), dcp=2).slope == slope / 2


def test_the_same_in_words() -> None:
    assert 61 * 576 * 2 == 70_272
    assert 60 * 576 * 2 == 69_120
    assert 27 * 576 * 2 == 31_104
    assert 36 * 320 * 2 == 23_040
    assert 61 * (1152 + 132) == 78_324
    assert (78 * 1152, 78 * (1152 + 132), 78 * 1152 + 21 * 132) == (89_856, 100_152, 92_628)


def test_fp8_layouts() -> None:
    v32 = model("deepseek-v3.2")
    row = 512 + 4 * 4 + 2 * 64  # a scale for 128 elements; the rotary key in bf16
    assert cache(v32, "fp8_ds_mla").slope == 61 * (row + 132) == 48_068
    assert cache(v32, "fp8").slope == 61 * (576 + 132)
    assert cache(v32, "nvfp4_ds_mla").slope == 61 * (352 + 132)
    glm = cache(model("glm-5"), "fp8_ds_mla", drafts=True).slope
    assert glm == 79 * (656 + 132) == 62_252  # measured on SGLang: 62,258.7


def test_deepseek_v4_holds_a_window_rings_and_pools() -> None:
    flash, pro = model("deepseek-v4-flash"), model("deepseek-v4-pro")
    in_bf16, in_fp8 = cache(flash), cache(flash, "fp8_ds_mla")
    by_part = {stream.part: 0.0 for stream in in_bf16.streams}
    for stream in in_bf16.streams:
        by_part[stream.part] += stream.slope
    assert by_part["compressed_kv"] == 21 * 1024 / 4 + 20 * 1024 / 128 == 5_536
    assert by_part["index_keys_compressed"] == 21 * 132 / 4 == 693
    assert int(in_fp8.slope) == int(21 * (584 + 132) / 4 + 20 * 584 / 128) == 3_850
    for held, row in ((in_bf16, 1024), (in_fp8, 448 + 128 + 8)):
        assert held.parts_at(100)["kv_window"] == 43 * 100 * row
        assert held.parts_at(100_000)["kv_window"] == 43 * 128 * row
    # value and gate in fp32; where pools overlap, two of everything for twice as many tokens
    sparse, heavy = 2 * 2 * (512 + 128) * 8 * 4, 2 * 512 * 128 * 4
    assert (sparse, heavy) == (81_920, 524_288)
    assert in_bf16.fixed == in_fp8.fixed == 21 * sparse + 20 * heavy == 12_206_080
    assert cache(pro).fixed == 30 * sparse + 31 * heavy == 18_710_528
    assert cache(pro).slope == 7_928 + 990


def test_a_draft_layer_is_cached_when_it_is_asked_for() -> None:
    for name, more in (("deepseek-v3", 1152), ("deepseek-v3.2", 1152 + 132), ("glm-5.2", 1152 + 132)):
        row = model(name)
        assert cache(row, drafts=True).slope == cache(row).slope + more
    flash = model("deepseek-v4-flash")  # its draft layer has a window and nothing else
    assert cache(flash, drafts=True).slope == cache(flash).slope
    assert cache(flash, drafts=True).bytes_at(4000) == cache(flash).bytes_at(4000) + 128 * 1024
    assert model("kimi-k2").draft_layers == ()


def test_weights_of_draft_layers() -> None:
    hidden, experts = 7168, 3 * 7168 * 2048
    attention = (
        hidden * 1536 + 1536 + 1536 * 128 * 192 + hidden * 576 + 512 + 512 * 128 * 256 + 128 * 128 * hidden
    )
    layer = attention + 257 * experts + hidden * 256 + 2 * hidden
    drafts = layer + 2 * hidden * hidden + 3 * hidden
    v3 = model("deepseek-v3")
    assert sum(weight.parameters for weight in v3.draft_weights) == drafts == 11_610_068_224 - 256
    index = 1536 * 64 * 128 + hidden * 128 + 2 * 128 + hidden * 64
    v32 = model("deepseek-v3.2")
    assert sum(weight.parameters for weight in v32.draft_weights) == drafts + index
    # two layers of drafts: the same tensors twice
    twice = read(V3, num_nextn_predict_layers=2)
    once = sum(weight.parameters for weight in read(V3).draft_weights)
    assert sum(weight.parameters for weight in twice.draft_weights) == 2 * once


def test_active_parameters() -> None:
    v3 = model("deepseek-v3")
    idle = 58 * (256 - 8) * 3 * 7168 * 2048  # in 58 of 61 layers a token meets 8 of 256 experts
    assert v3.parameters_active == v3.parameters_total - idle
    assert v3.parameters_active_without_embedding == v3.parameters_active - 129_280 * 7168


# --- recorded facts ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ROWS)
def test_rows_against_the_facts(data: Path, name: str) -> None:
    facts = {row["hf_id"]: row for row in json.loads((data / "models_facts.json").read_text())}
    row = model(name)
    fact = facts[row.aliases[0]]
    held = cache(row).streams
    assert row.parameters_total == pytest.approx(fact["n_params_total"], rel=1e-6)
    assert row.parameters_active == pytest.approx(fact["n_params_active"], rel=1e-6)
    assert row.parameters_active_without_embedding == pytest.approx(
        fact["n_params_active_excl_embedding"], rel=1e-6
    )
    latents = sum(stream.slope for stream in held if stream.part in ("kv_full", "compressed_kv"))
    assert latents == fact["kv_bytes_per_token_full_2B"]
    assert sum(s.slope for s in held if s.part.startswith("index")) == fact["indexer_bytes_per_token"]
    assert cache(row).fixed == fact["state_bytes_per_seq"]
    assert len(row.draft_layers) == fact["mtp_layers"]
    drafts = sum(weight.parameters for weight in row.draft_weights)
    assert drafts == pytest.approx(fact.get("mtp_params") or 0, rel=1e-6)
    assert len(row.layers) == fact["n_layers"]
    assert row.parameters(["embedding"]) == fact["n_embedding_params"]
    assert (row.max_context, row.vocab_size) == (fact["max_context"], fact["vocab_size"])


def test_oracle(data: Path) -> None:
    by_name = json.loads((data / "oracle" / "params_by_name.json").read_text())
    seen = set()
    with (data / "oracle" / "expected.csv").open(newline="") as file:
        rows = [row for row in csv.DictReader(file) if row["model_type"] in FAMILIES]
    for row in rows:
        found = read_config(data / "oracle" / row["file"])
        counted: dict[str, int] = {}
        for weight in found.weights:
            counted[weight.name] = counted.get(weight.name, 0) + weight.parameters
        assert counted == by_name[row["file"].removesuffix(".json").removesuffix(".v5")], row["file"]
        assert found.parameters_total == int(row["params_total"])
        assert found.parameters(["embedding"]) == int(row["params_embedding"])
        assert found.parameters(["head"]) == int(row["params_lm_head"])
        held = cache(found, view="transformers")
        for tokens, parts in json.loads(row["cache_parts_at"]).items():
            nonzero = {part: size for part, size in held.parts_at(int(tokens)).items() if size}
            assert nonzero == parts, (row["file"], tokens)
        seen.add(row["file"].split(".")[0])
    for name in seen:
        hub, v5 = (read_config(data / "oracle" / f"{name}{end}") for end in (".json", ".v5.json"))
        assert (hub.layers, hub.weights) == (v5.layers, v5.weights), name
        assert (hub.draft_layers, hub.draft_weights) == (v5.draft_layers, v5.draft_weights), name
    assert len(seen) >= 10


# --- small configs of our own ---------------------------------------------------------------------------------


def without(config: dict[str, Any], *names: str) -> dict[str, Any]:
    return {name: value for name, value in config.items() if name not in names}


V3: dict[str, Any] = {
    "model_type": "deepseek_v3",
    "hidden_size": 32,
    "intermediate_size": 48,
    "moe_intermediate_size": 8,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "n_routed_experts": 6,
    "num_experts_per_tok": 2,
    "n_shared_experts": 1,
    "first_k_dense_replace": 1,
    "q_lora_rank": 12,
    "kv_lora_rank": 10,
    "qk_rope_head_dim": 4,
    "qk_nope_head_dim": 6,
    "v_head_dim": 5,
    "vocab_size": 100,
    "max_position_embeddings": 4096,
    "num_nextn_predict_layers": 1,
    "n_group": 2,
    "topk_group": 1,
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
}
INDEX = {"index_n_heads": 2, "index_head_dim": 16, "index_topk": 8}
V32 = V3 | INDEX | {"model_type": "deepseek_v32"}
GLM = V32 | {"model_type": "glm_moe_dsa"}
LARGE = GLM | {"model_type": "mistral_large4_text", "num_nextn_predict_layers": 0}
LATENT = ("kv_lora_rank", "qk_nope_head_dim", "v_head_dim")
ROUTED = ("n_routed_experts", "num_experts_per_tok", "n_shared_experts", "moe_intermediate_size", "n_group")
V4 = without(V3 | INDEX, *LATENT, "intermediate_size", "first_k_dense_replace") | {
    "model_type": "deepseek_v4"
}
V4 |= {"head_dim": 16, "o_groups": 2, "o_lora_rank": 6, "hc_mult": 2, "sliding_window": 9}
V4 |= {"compress_ratios": [0, 4, 128, 4, 0]}
DOTS = V32 | {"model_type": "dots3_note_text", "head_dim": 10, "sliding_window_size": 7}
DOTS |= {
    "swa_num_attention_heads": 2,
    "swa_num_key_value_heads": 2,
    "swa_q_lora_rank": 9,
    "swa_v_head_dim": 3,
}
DOTS |= {"swa_kv_lora_rank": 14, "swa_head_dim": 12, "swa_qk_nope_head_dim": 8}
LONGCAT = without(V3, *ROUTED, "num_hidden_layers", "intermediate_size", "first_k_dense_replace")
LONGCAT |= {"model_type": "longcat_flash", "num_layers": 3, "n_routed_experts": 6, "zero_expert_num": 3}
LONGCAT |= {"moe_topk": 2, "ffn_hidden_size": 48, "expert_ffn_hidden_size": 8}
DENSE_ONLY = without(V3, *ROUTED, "topk_group", "first_k_dense_replace", "num_nextn_predict_layers")


def read(config: dict[str, Any], **fields: Any) -> Model:
    return from_config(config | fields, id="x", name="X")


def parts(found: Model) -> list[LatentAttention]:
    latents = [part for layer in found.layers for part in layer]
    assert all(isinstance(part, LatentAttention) for part in latents)
    return [part for part in latents if isinstance(part, LatentAttention)]


QUERY = 32 * 12 + 12 + 12 * 4 * (6 + 4)
KEYS = 32 * (10 + 4) + 10
VALUES = 10 * 4 * (6 + 5) + 4 * 5 * 32
OUTSIDE = 2 * 100 * 32 + 32 + 4 * 2 * 32
DENSE, SPARSE = 3 * 32 * 48, 7 * 3 * 32 * 8 + 6 * 32
INDEXER = 12 * 2 * 16 + 32 * 16 + 2 * 16 + 32 * 2


def test_a_small_deepseek_v3() -> None:
    found = read(V3)
    assert found.parameters_total == OUTSIDE + 4 * (QUERY + KEYS + VALUES) + DENSE + 3 * SPARSE
    assert found.parameters_active == found.parameters_total - 3 * 4 * 3 * 32 * 8
    assert parts(found) == [LatentAttention(4, 10, 4, 6, 5)] * 4
    assert found.assumptions == ("absent, and taken as the class of model_type takes it: attention_bias",)
    direct = read(V3, q_lora_rank=None)
    assert direct.parameters_total == found.parameters_total - 4 * QUERY + 4 * 32 * 4 * 10
    biased = read(V3, attention_bias=True)
    assert biased.parameters_total == found.parameters_total + 4 * (12 + 14 + 32)


def test_heads_of_keys_and_their_width_mean_nothing() -> None:
    for fields in ({"num_key_value_heads": 1}, {"head_dim": 192}, {"head_dim": None}, {"qk_head_dim": 10}):
        assert read(V3, **fields).layers == read(V3).layers
    assert read(without(V3, "num_key_value_heads")).assumptions == read(V3).assumptions


def test_dense_layers_come_first() -> None:
    everywhere = read(V3, first_k_dense_replace=0)
    assert everywhere.parameters(["mlp"]) == 0
    assert read(without(V3, "intermediate_size"), first_k_dense_replace=0).weights == everywhere.weights
    assert read(V3, first_k_dense_replace=9).parameters(["experts"]) == 0
    lite = V3 | {"model_type": "glm4_moe_lite"}  # reads mlp_layer_types alone
    assert read(lite, first_k_dense_replace=3).parameters(["mlp"]) == DENSE
    kinds = ["dense", "dense", "sparse", "dense"]
    assert read(lite, mlp_layer_types=kinds).parameters(["mlp"]) == 3 * DENSE
    every = V3 | {"model_type": "axk1", "moe_layer_freq": 2}
    assert read(every).parameters(["mlp"]) == 3 * DENSE  # layer 2 alone is even and not the first
    assert read(every, moe_layer_freq=1).parameters(["norm"]) == read(V3).parameters(["norm"]) + 3 * 32


def test_absent_fields_take_the_class_defaults_and_say_so() -> None:
    found = read(without(V3, "q_lora_rank", "v_head_dim", "num_nextn_predict_layers"))
    taken = "is absent and taken to be"
    assert [words for words in found.assumptions if taken in words] == [
        f"field 'q_lora_rank' {taken} 1536, the default of model_type 'deepseek_v3'",
        f"field 'v_head_dim' {taken} 128, the default of model_type 'deepseek_v3'",
        f"field 'num_nextn_predict_layers' {taken} 1, the default of model_type 'deepseek_v3'",
    ]
    assert len(found.draft_layers) == 1
    assert read(without(V32, "num_nextn_predict_layers")).draft_layers == ()
    small = read(without(DENSE_ONLY, "v_head_dim"), model_type="minicpm3")
    assert parts(small)[0].v_head_dim == 32 // 4


def test_a_latent_without_rotary_key() -> None:
    assert parts(read(V3, qk_rope_head_dim=0)) == [LatentAttention(4, 10, 0, 6, 5)] * 4
    assert cache(read(V3, qk_rope_head_dim=0)).slope == 4 * 10 * 2


def test_an_indexer_keeps_a_key_for_every_token() -> None:
    found = read(V32)
    assert found.parameters(["index"]) == 4 * (INDEXER - 2 * 16)  # the norms of its keys apart
    assert found.parameters_total == read(V3).parameters_total + 4 * INDEXER
    assert parts(found)[0] == LatentAttention(4, 10, 4, 6, 5, index_dim=16, index_heads=2, top_k=8)
    assert cache(found).slope == 4 * ((10 + 4) * 2 + 16 + 4)
    assert cache(found, view="transformers").slope == 4 * ((10 + 4) * 2 + 16 * 2)


@pytest.mark.parametrize(
    ("fields", "own"),
    [
        ({}, "FFFF"),
        ({"indexer_types": ["full", "shared", "shared", "full"]}, "FSSF"),
        ({"index_topk_pattern": "FSFS"}, "FSFS"),
        ({"index_topk_pattern": ["full", "shared", "full", "full"]}, "FSFF"),
        ({"index_topk_freq": 2}, "FFSF"),  # max(layer - 2 + 1, 0) % 2 == 0
        ({"index_topk_freq": 2, "index_skip_topk_offset": 3}, "FFFS"),
        ({"index_topk_freq": 4, "index_skip_topk_offset": 1, "index_topk_pattern": None}, "FSSS"),
        ({"indexer_types": ["full"] * 4, "index_topk_freq": 4}, "FFFF"),
    ],
)
def test_layers_that_share_an_indexer(fields: dict[str, Any], own: str) -> None:
    found = read(GLM, **fields)
    assert "".join("F" if part.index_dim else "S" for part in parts(found)) == own
    assert all(part.top_k == 8 for part in parts(found))
    assert found.parameters_total == read(GLM).parameters_total - own.count("S") * INDEXER
    assert cache(found).slope == 4 * 28 + own.count("F") * 20


def test_glm_5_2_as_a_period() -> None:
    """The list of the released file is what its period and offset say."""
    listed = parts(model("glm-5.2"))
    period = [max(layer - 3 + 1, 0) % 4 == 0 for layer in range(78)]
    assert [bool(part.index_dim) for part in listed] == period


def test_latents_of_an_earlier_layer() -> None:
    found = read(LARGE, kv_source_layers=[0, 1, 1, 3], no_rope_layers=[1, 1, 0, 0])
    assert [(part.shared, part.roped) for part in parts(found)] == [
        *((False, True), (False, True)),
        *((True, False), (False, False)),
    ]
    # engines keep the place of the rotary key; transformers does not
    assert cache(found).parts_at(1) == {"kv_full": 3 * 28, "index_keys": 4 * 20}
    assert cache(found, view="transformers").parts_at(1) == {"kv_full": 2 * 28 + 20, "index_keys": 4 * 32}
    keys = {weight.shape: weight.copies for weight in found.weights if "kv_a_proj" in weight.name}
    assert keys == {(14, 32): 2, (10, 32): 1}
    by_period = read(LARGE, no_rope_layer_interval=2)
    assert [part.roped for part in parts(by_period)] == [True, False, True, False]
    assert [part.roped for part in parts(read(LARGE))] == [True, True, True, False]


def test_two_kinds_of_latents() -> None:
    found = parts(read(DOTS))
    whole = LatentAttention(4, 10, 4, 6, 5, index_dim=16, index_heads=2, index_fp32=True, top_k=8)
    assert found == [whole, whole, *[LatentAttention(2, 14, 4, 8, 3, window=7)] * 2]
    held = cache(read(DOTS))
    assert held.parts_at(100) == {"kv_full": 2 * 2800, "index_keys": 2 * 2000, "kv_window": 2 * 7 * 36}
    assert cache(read(DOTS), view="transformers").parts_at(100)["kv_window"] == 2 * 6 * 36
    plain = parts(read(DOTS, use_dsa=False, use_sliding_window=False))
    assert plain == [LatentAttention(4, 10, 4, 6, 5)] * 4
    written = {"layer_types": ["indexed_attention"] * 2 + ["sliding_attention"] * 2, "sliding_window": 7}
    own = {
        "num_attention_heads": 2,
        "q_lora_rank": 9,
        "kv_lora_rank": 14,
        "qk_nope_head_dim": 8,
        "v_head_dim": 3,
    }
    config = without(DOTS, *(name for name in DOTS if name.startswith("swa_")), "sliding_window_size")
    again = read(config, **written, per_layer_config={"2": own, "3": own})
    assert (again.layers, again.weights) == (read(DOTS).layers, read(DOTS).weights)


def test_two_attentions_a_block() -> None:
    found = read(LONGCAT)
    assert len(found.layers) == 6
    assert cache(found).slope == 6 * 28
    router, experts = 3 * 9 * 32, 3 * (6 * 3 * 32 * 8)
    assert found.parameters(["router"]) == router
    idle_rows = 3 * (3 * 2 * 32 * 8)  # the class has rows for experts that compute nothing
    assert found.parameters(["experts"]) == experts + idle_rows
    active = sum(weight.active for weight in found.weights if weight.bucket == "experts")
    assert active == experts * 2 // 9  # each of 9 is met by 2 of 9 tokens; 6 of them compute
    assert read(LONGCAT, zero_expert_num=None).parameters(["experts"]) == experts
    assert read(LONGCAT, num_hidden_layers=6).layers == found.layers


def test_a_small_deepseek_v4() -> None:
    found = read(V4, num_nextn_predict_layers=1)
    window = CompressedAttention(4, 16, 4, 9)
    sparse = CompressedAttention(4, 16, 4, 9, 4, overlap=True, index_dim=16, index_heads=2, top_k=8)
    heavy = CompressedAttention(4, 16, 4, 9, 128)
    assert [layer[0] for layer in found.layers] == [window, sparse, heavy, sparse]
    assert found.draft_layers == ((window,),)
    attention = 32 * 12 + 12 + 12 * 64 + 32 * 16 + 16 + 2 * 6 * 32 + 12 * 32 + 4
    channels = 2 * (8 * 64 + 8 + 3)  # joined before attention and before the experts
    layer = attention + SPARSE + channels + 2 * 32
    pooled = 2 * (2 * 32 * 32 + 16 + 4 * 32) + 2 * 32 * 16 + 16 + 128 * 16
    index = 2 * (2 * 32 * 32 + 16 + 4 * 32 + 12 * 32 + 32 * 2)
    last = 2 * 64 + 2 + 1
    assert found.parameters_total == 2 * 100 * 32 + 32 + 4 * layer + pooled + index + last
    assert sum(w.parameters for w in found.draft_weights) == layer + 2 * 32 * 32 + 3 * 32


def test_what_deepseek_v4_holds_between_steps() -> None:
    """In transformers: one token less of the window, twice where there is nothing but the window."""
    held = cache(read(V4), view="transformers")
    row = 16 * 2
    assert held.parts_at(131) == {
        "kv_window": 5 * 8 * row,  # four layers, one of them twice
        "compressed_kv": 2 * 32 * row + row,
        "index_keys_compressed": 2 * 32 * row,
        # tokens of the pools that are not complete, and half of the last pool where pools overlap
        "compressor_buffer": 2 * (3 * 2 * 2 * 32 * 2 + 4 * 32 * (2 + 4)) + 3 * 2 * 16 * 2,
    }
    assert held.parts_at(3)["compressor_buffer"] == 2 * 3 * 2 * 2 * 32 * 2 + 3 * 2 * 16 * 2
    assert held.slope == 2 * (row + row) / 4 + row / 128


@pytest.mark.parametrize(
    "fields",
    [
        {"compress_ratios": [0, 4, 128, 4]},
        {"compress_ratios": None, "layer_types": ["sliding_attention", "compressed_sparse_attention",
          "heavily_compressed_attention", "compressed_sparse_attention"]},
        {"compress_rates": {"compressed_sparse_attention": 4, "heavily_compressed_attention": 128}},
        {"compress_rate_csa": 4, "compress_rate_hca": 128},
        {"qk_rope_head_dim": None, "partial_rotary_factor": 0.25},
    ],
)  # fmt: skip
def test_spellings_of_deepseek_v4(fields: dict[str, Any]) -> None:
    assert read(V4, **fields).layers == read(V4).layers
    assert read(V4, **fields).weights == read(V4).weights


def test_deepseek_v4_pools_of_other_sizes() -> None:
    rates = {"compressed_sparse_attention": 8, "heavily_compressed_attention": 16}
    assert pools(read(V4, compress_rates=rates)) == [0, 8, 16, 8]
    default = read(without(V4, "compress_ratios"))
    assert pools(default) == [128, 128, 128, 4]
    assert any("pools of 128" in words for words in default.assumptions)


def pools(found: Model) -> list[int]:
    return [part.ratio for layer in found.layers for part in layer if isinstance(part, CompressedAttention)]


# --- what is refused ------------------------------------------------------------------------------------------------

LIST = ["full", "shared", "full"]


@pytest.mark.parametrize(
    ("config", "fields", "field"),
    [
        (without(V3, "kv_lora_rank"), {}, "kv_lora_rank"),
        (without(V3, "qk_rope_head_dim"), {}, "qk_rope_head_dim"),
        (V3, {"kv_lora_rank": None}, "kv_lora_rank"),
        (V3, {"kv_lora_rank": -1}, "kv_lora_rank"),
        (V3, {"qk_nope_head_dim": None}, "qk_nope_head_dim"),
        (V3, {"v_head_dim": "64"}, "v_head_dim"),
        (V3, {"n_routed_experts": 0}, "n_routed_experts"),
        (V3, {"num_experts_per_tok": 7}, "num_experts_per_tok"),
        (V3, {"n_group": 4}, "n_group"),
        (V3, {"first_k_dense_replace": -1}, "first_k_dense_replace"),
        (V3, {"layer_types": ["sliding_attention"] * 4}, "layer_types"),
        (V3, {"attention_bias": 1}, "attention_bias"),
        (V3, {"index_topk": 8}, "index_topk"),
        (V3, {"num_nextn_predict_layers": "one"}, "num_nextn_predict_layers"),
        (without(V3, "num_experts_per_tok") | {"model_type": "deepseek_v2"}, {}, "num_experts_per_tok"),
        (V32, {"q_lora_rank": None}, "q_lora_rank"),
        (V32, {"mlp_layer_types": ["dense"] * 3}, "mlp_layer_types"),
        (V32, {"mlp_layer_types": ["moe"] * 4}, "mlp_layer_types"),
        (V32, {"index_head_dim": None}, "index_head_dim"),
        (V32, {"indexer_types": ["full"] * 4}, "indexer_types"),
        (V32, {"layer_types": ["full_attention"] * 4}, "layer_types"),
        (GLM, {"indexer_types": LIST}, "indexer_types"),
        (GLM, {"indexer_types": [*LIST, "none"]}, "indexer_types"),
        (GLM, {"index_topk_pattern": "FSF"}, "index_topk_pattern"),
        (GLM, {"index_topk_pattern": "FSFX"}, "index_topk_pattern"),
        (GLM, {"index_topk_freq": "2"}, "index_topk_freq"),
        (GLM, {"indexer_types": ["shared", *LIST]}, "indexer_types"),
        (GLM, {"index_topk_pattern": "SFFF"}, "index_topk_pattern"),
        (GLM, {"index_topk_freq": 2, "index_skip_topk_offset": 0}, "index_skip_topk_offset"),
        (LARGE, {"kv_source_layers": [0, 1, 1]}, "kv_source_layers"),
        (LARGE, {"kv_source_layers": [0, 2, 2, 3]}, "kv_source_layers"),
        (LARGE, {"kv_source_layers": [0, 0, 1, 3]}, "kv_source_layers"),
        (LARGE, {"no_rope_layers": [1, 0]}, "no_rope_layers"),
        (V4, {"compress_ratios": [0, 4, 128]}, "compress_ratios"),
        (V4, {"compress_ratios": [0, 4, 128, 4, 0, 0]}, "compress_ratios"),
        (V4, {"compress_ratios": [0, 4, 128, 2]}, "compress_ratios"),
        (V4, {"compress_ratios": [0, 4, 128, True]}, "compress_ratios"),
        (V4, {"layer_types": ["full_attention"] * 4}, "layer_types"),
        (V4, {"compress_rates": {"compressed_sparse_attention": 4}}, "compress_rates"),
        (V4, {"o_groups": 5}, "o_groups"),
        (V4, {"partial_rotary_factor": 1.5}, "partial_rotary_factor"),
        (V4, {"sliding_window": None}, "sliding_window"),
        (DOTS, {"swa_head_dim": 8}, "swa_head_dim"),
        (DOTS, {"per_layer_config": [1]}, "per_layer_config"),
        (DOTS, {"per_layer_config": {"1": {"hidden_size": 8}}}, "per_layer_config.1"),
        (DOTS, {"moe_layer_freq": [1, 0]}, "moe_layer_freq"),
        (LONGCAT, {"num_hidden_layers": 5}, "num_hidden_layers"),
        (LONGCAT, {"qk_head_dim": 11}, "qk_head_dim"),
        (LONGCAT, {"moe_topk": 10}, "moe_topk"),
        (V32 | {"model_type": "axk2"}, {"topk_group": None}, "topk_group"),
    ],
)
def test_a_config_that_can_not_be_right(config: dict[str, Any], fields: dict[str, Any], field: str) -> None:
    with pytest.raises(DataFileError) as caught:
        read(config, **fields)
    assert f"'{field}'" in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "family", ["axk2", "hy_v4", "hy_v4_vl_text", "mistral_large4_text", "dots3_note_text"]
)
def test_draft_layers_that_nobody_has_described(family: str) -> None:
    found = read(V32 | {"model_type": family, "num_nextn_predict_layers": 2})
    assert len(found.draft_layers) == 2
    assert found.draft_weights == ()
    assert any("weights are not known" in words for words in found.assumptions)
