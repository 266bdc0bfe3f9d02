"""Recurrent, state-space, linear-attention and convolution layers: published numbers, recorded facts, refusals."""

import csv
import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from capplan.capacity.cache import Cache, cache
from capplan.errors import DataFileError, UnknownNameError
from capplan.models.families import FAMILIES
from capplan.models.hf import from_config, read_config
from capplan.models.registry import model
from capplan.models.spec import Attention, LatentAttention, Model, State

MODULES = ("mamba", "nemotron", "zamba", "linear", "qwen4", "deltas", "convolutions", "recurrent")
OURS = {kind for kind, place in FAMILIES.items() if place.split(".")[0] in MODULES}
ROWS = (
    *("qwen3-next-80b-a3b", "qwen3.5-9b", "qwen3.5-27b", "qwen3.5-35b-a3b", "qwen3.5-122b-a10b"),
    *("qwen3.5-397b-a17b", "qwen3.6-27b-nvfp4", "qwen3.6-35b-a3b-nvfp4", "qwen3.8-27b", "kimi-k3"),
    *("kimi-linear-48b-a3b", "minimax-m1", "nemotron-h-56b", "nemotron-3-nano-30b-a3b", "jamba-1.5-mini"),
    *("nemotron-3-super-120b-a12b", "nemotron-3-ultra-550b-a55b", "granite-4.0-h-small", "jamba-1.5-large"),
    *("granite-4.0-h-tiny", "granite-4.0-h-micro", "falcon-h1-34b", "falcon-h1-7b", "lfm2-1.2b"),
    *("lfm2-8b-a1b", "lfm3-1.7b", "glm-5.3-flash", "ling-3.0-flash"),
)
# where the recorded facts are not what the class has
LFM3_KERNEL = "lfm3-1.7b"  # they assume a kernel of 3; the class's default is 7
WITH_A_TOWER = "glm-5.3-flash"  # their total has the vision tower in it
OWN_BIAS = 1e-5  # they count the routers' correction biases among the active parameters


def part(kept: Cache, name: str) -> float:
    return kept.parts_at(0).get(name, 0)


# --- published numbers ------------------------------------------------------------------------------------------


def test_qwen_397b_holds_192_megabytes() -> None:
    """45 delta nets: 64 value heads of 128 x 128 in fp32, and a convolution over query, key and value."""
    kept = cache(model("qwen3.5-397b-a17b"))
    conv = (2 * 16 * 128 + 64 * 128) * 3 * 2
    state = 64 * 128 * 128 * 4
    assert (conv, state) == (73_728, 4_194_304)
    assert (part(kept, "conv_state"), part(kept, "recurrent_state")) == (45 * conv, 45 * state)
    assert kept.fixed == 45 * (conv + state) == 192_061_440
    assert kept.slope == 15 * 2 * 2 * 256 * 2


def test_nemotron_3_super_holds_170_megabytes_and_grows_slowly() -> None:
    """40 Mamba-2 layers: 128 heads of 64 x 128 in fp32; 8 groups; 8 attention layers with 2 KV heads."""
    kept = cache(model("nemotron-3-super-120b-a12b"))
    one = (128 * 64 + 2 * 8 * 128) * 3 * 2 + 128 * 64 * 128 * 4
    assert kept.fixed == 40 * one == 170_229_760
    assert kept.slope == 8 * 2 * (128 + 128) * 2 == 8_192
    assert kept.fixed / kept.slope == pytest.approx(20.8e3, rel=1e-3)  # as much as so many tokens


@pytest.mark.parametrize(
    ("name", "layers", "conv", "state", "total"),
    [
        ("nemotron-h-56b", 54, (256 * 64 + 2 * 8 * 256) * 3 * 2, 256 * 64 * 256 * 4, 912_605_184),
        ("kimi-k3", 69, 3 * 96 * 128 * 3 * 2, 96 * 128 * 128 * 4, 449_372_160),
        ("kimi-linear-48b-a3b", 20, 3 * 32 * 128 * 3 * 2, 32 * 128 * 128 * 4, 43_417_600),
        ("granite-4.0-h-small", 36, (128 * 64 + 2 * 1 * 128) * 3 * 2, 128 * 64 * 128 * 2, 77_322_240),
        ("jamba-1.5-mini", 28, 8192 * 3 * 2, 8192 * 16 * 2, 8_716_288),
        ("lfm2-1.2b", 10, 2048 * 2 * 2, 0, 81_920),
    ],
)
def test_bytes_of_a_sequence_by_hand(name: str, layers: int, conv: int, state: int, total: int) -> None:
    kept = cache(model(name))
    assert kept.fixed == layers * (conv + state) == total
    assert part(kept, "conv_state") == layers * conv


def test_the_dtype_of_states_is_what_an_engine_takes() -> None:
    """The model's unless the config says otherwise, fp32 for KDA and Nemotron-H; `state` overrides both."""
    state = 36 * 32 * 128 * 128
    nobody_says = model("qwen3-next-80b-a3b")
    assert part(cache(nobody_says), "recurrent_state") == 2 * state
    assert part(cache(nobody_says, state="fp32"), "recurrent_state") == 4 * state == 75_497_472
    assert part(cache(nobody_says, view="transformers"), "recurrent_state") == 4 * state
    says = read(QWEN, mamba_ssm_dtype="float32"), read(QWEN, mamba_ssm_dtype="bfloat16"), read(QWEN)
    assert [part(cache(m), "recurrent_state") for m in says] == [4 * 2 * 128, 2 * 2 * 128, 2 * 2 * 128]
    assert part(cache(says[0], state="bf16"), "recurrent_state") == 2 * 2 * 128
    nemotron = read(NEMOTRON), read(NEMOTRON, mamba_ssm_cache_dtype="bfloat16")
    assert [part(cache(m), "recurrent_state") for m in nemotron] == [4 * 4 * 8 * 16, 2 * 4 * 8 * 16]
    assert part(cache(read(KIMI)), "recurrent_state") == 4 * 2 * (3 * 8 * 8)
    with pytest.raises(UnknownNameError, match="unknown state precision 'int4'"):
        cache(nobody_says, state="int4")


# --- tensor parallelism -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("tp", "groups"), [(1, 8), (2, 4), (4, 2), (8, 1), (16, 1), (64, 1)])
def test_mamba_divides_by_heads_and_copies_groups(tp: int, groups: int) -> None:
    kept = cache(model("nemotron-3-super-120b-a12b"), tp=tp)
    heads = 128 // tp
    assert part(kept, "recurrent_state") == 40 * heads * 64 * 128 * 4
    assert part(kept, "conv_state") == 40 * (heads * 64 + groups * 2 * 128) * 3 * 2


@pytest.mark.parametrize("tp", [1, 2, 8])
def test_one_group_is_copied_to_every_rank(tp: int) -> None:
    kept = cache(model("granite-4.0-h-small"), tp=tp)
    assert part(kept, "conv_state") == 36 * (8192 // tp + 2 * 128) * 3 * 2


@pytest.mark.parametrize("tp", [2, 4, 8])
@pytest.mark.parametrize(
    "name", ["qwen3.5-397b-a17b", "kimi-k3", "minimax-m1", "jamba-1.5-mini", "lfm2-1.2b"]
)
def test_other_states_divide_evenly(name: str, tp: int) -> None:
    assert cache(model(name), tp=tp).fixed == cache(model(name)).fixed / tp


def test_attention_beside_a_state_has_its_own_rule() -> None:
    whole, ranks = (
        cache(model("nemotron-3-super-120b-a12b")),
        cache(model("nemotron-3-super-120b-a12b"), tp=8),
    )
    assert ranks.slope == whole.slope / 2  # 2 KV heads: a copy of one on each of 8 ranks
    assert cache(model("kimi-k3"), tp=8).slope == cache(model("kimi-k3")).slope == 24 * 576 * 2
    glm = cache(model("glm-5.3-flash"))
    assert glm.slope == 11 * 512 * 2 + 11 * 132 / 16 == 11_264 + 90.75


def test_a_table_of_ngrams_leaves_its_convolution_whole_on_every_rank() -> None:
    plain, tables = read(QWEN4), read(QWEN4, ple_layer_ids=[1], ngram_vocab_size_base=100, eos_token_id=2)
    columns = (4 - 1) * 3  # of four taps, three tokens apart
    for tp in (1, 2):
        more = cache(tables, tp=tp).fixed - cache(plain, tp=tp).fixed
        assert more == 2 * 32 * columns * 2
    attention = 2 * 1 * 8 * 2
    assert cache(plain).slope == attention + 2 * 8 / 4  # a key for four tokens
    assert cache(plain, view="transformers").slope == attention + 2 * 8  # it keeps all


# --- every family, from small dimensions ----------------------------------------------------------------------------

BASE: dict[str, Any] = {
    "vocab_size": 40,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 48,
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
}
ATTENTION = 2 * 32 * 32 + 2 * 32 * 16
MLP = 3 * 32 * 48
ENDS = 2 * 40 * 32 + 32  # embedding, head and last norm
MAMBA_2 = {"mamba_n_heads": 8, "mamba_d_head": 8, "mamba_d_state": 16, "mamba_n_groups": 2}
GDN = {
    "linear_num_key_heads": 1,
    "linear_num_value_heads": 2,
    "linear_key_head_dim": 8,
    "linear_value_head_dim": 8,
}
EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16}
LATENT: dict[str, Any] = {
    "kv_lora_rank": 16,
    "q_lora_rank": None,
    "qk_rope_head_dim": 4,
    "qk_nope_head_dim": 8,
    "v_head_dim": 8,
}
QWEN: dict[str, Any] = {
    **BASE,
    **GDN,
    "model_type": "qwen3_5_text",
    "head_dim": 8,
    "full_attention_interval": 2,
}
QWEN["num_key_value_heads"] = 1
QWEN.update(linear_key_head_dim=8, linear_value_head_dim=16)
QWEN4: dict[str, Any] = {
    **BASE,
    **GDN,
    **EXPERTS,
    "model_type": "qwen4_exp_text",
    "num_key_value_heads": 1,
    "head_dim": 8,
    "full_attention_interval": 2,
    "shared_expert_intermediate_size": 16,
    "hc_count": 2,
    "hc_lowrank": 4,
    "indexer_n_heads": 2,
    "indexer_kv_heads": 1,
    "indexer_head_dim": 8,
    "indexer_budget": 8,
    "indexer_compress_ratio": 4,
}
QWEN4["ple_conv_kernel_size"] = 4
NEMOTRON: dict[str, Any] = {
    **BASE,
    "model_type": "nemotron_h",
    "head_dim": 8,
    "layers_block_type": ["mamba", "attention"],
    "mamba_num_heads": 4,
    "mamba_head_dim": 8,
    "ssm_state_size": 16,
    "n_groups": 2,
}
KIMI: dict[str, Any] = {
    **BASE,
    **LATENT,
    "model_type": "kimi_linear",
    "num_hidden_layers": 3,
    "num_experts": 4,
    "num_experts_per_token": 2,
    "num_shared_experts": 1,
    "moe_intermediate_size": 16,
    "first_k_dense_replace": 1,
    "linear_attn_config": {
        "full_attn_layers": [2],
        "kda_layers": [1, 3],
        "num_heads": 3,
        "head_dim": 8,
        "short_conv_kernel_size": 4,
    },
}
GLM5: dict[str, Any] = {
    **BASE,
    **LATENT,
    "model_type": "glm5_next_text",
    "num_hidden_layers": 4,
    "q_lora_rank": 12,
    "qk_rope_head_dim": 0,
    "n_routed_experts": 4,
    "num_experts_per_tok": 2,
    "n_shared_experts": 1,
    "moe_intermediate_size": 16,
    "linear_num_heads": 3,
    "linear_head_dim": 8,
    "index_n_heads": 2,
    "index_head_dim": 8,
    "index_topk": 8,
    "index_kpool": 4,
    "hc_mult": 2,
}
JAMBA: dict[str, Any] = {
    **BASE,
    "model_type": "jamba",
    "attn_layer_period": 2,
    "attn_layer_offset": 1,
    "expert_layer_period": 2,
    "expert_layer_offset": 1,
    "num_experts": 4,
    "num_experts_per_tok": 2,
    "mamba_d_state": 4,
    "mamba_dt_rank": 3,
}
GRANITE: dict[str, Any] = {
    **BASE,
    **MAMBA_2,
    "model_type": "granitemoehybrid",
    "layer_types": ["mamba", "attention"],
    "num_local_experts": 0,
    "shared_intermediate_size": 48,
}
ZAMBA2: dict[str, Any] = {
    **BASE,
    "model_type": "zamba2",
    "tie_word_embeddings": True,
    "num_hidden_layers": 3,
    "layers_block_type": ["hybrid", "mamba", "hybrid"],
    "num_key_value_heads": 4,
    "adapter_rank": 4,
    "mamba_d_state": 16,
    "mamba_ngroups": 1,
    "n_mamba_heads": 8,
}
LFM2: dict[str, Any] = {
    **BASE,
    "model_type": "lfm2",
    "layer_types": ["conv", "full_attention"],
    "block_multiple_of": 16,
}
MINIMAX: dict[str, Any] = {
    **BASE,
    "model_type": "minimax",
    "head_dim": 8,
    "num_local_experts": 4,
    "num_experts_per_tok": 2,
    "layer_types": ["linear_attention", "full_attention"],
}


ALONE = {
    name: value for name, value in BASE.items() if name not in ("num_attention_heads", "num_key_value_heads")
}


def read(config: dict[str, Any], **changes: Any) -> Model:
    return from_config({**config, **changes}, id="m", name="m", where="m.json")


def mamba2_layer(heads: int, width: int, state: int, groups: int) -> int:
    channels = heads * width + 2 * groups * state
    return 32 * (heads * width + channels + heads) + channels * 5 + 3 * heads + heads * width * 33


def test_jamba_by_hand() -> None:
    inner, state, rank = 64, 4, 3
    mixer = 32 * 2 * inner + inner * 5 + inner * (rank + 2 * state) + inner * (rank + 1) + inner * (state + 1)
    mixer += inner * 32 + rank + 2 * state
    experts = 4 * MLP + 4 * 32
    jamba = read(JAMBA)
    assert jamba.parameters_total == ENDS + mixer + ATTENTION + MLP + experts + 4 * 32
    assert jamba.parameters_active == jamba.parameters_total - 2 * MLP
    (mamba,), (attention,) = jamba.layers
    assert attention == Attention(4, 2, 8, 8)
    assert mamba == State("mamba1", inner, inner * state, "model", conv_channels=inner, conv_kernel=4)


def test_granite_trusts_the_list_of_layers() -> None:
    mixed, dense = read(GRANITE), read(GRANITE, layer_types=["attention"] * 2)
    norms = 4 * 32
    assert mixed.parameters_total == ENDS + norms + mamba2_layer(8, 8, 16, 2) + ATTENTION + 2 * MLP
    assert dense.parameters_total == ENDS + norms + 2 * (ATTENTION + MLP)
    assert [type(layer[0]) for layer in mixed.layers] == [State, Attention]
    assert cache(dense).fixed == 0  # whatever mamba's fields say


def test_bamba_and_falcon_h1_by_hand() -> None:
    bamba = read({**BASE, **MAMBA_2, "model_type": "bamba", "attn_layer_indices": [1]})
    norms = 4 * 32
    assert bamba.parameters_total == ENDS + norms + mamba2_layer(8, 8, 16, 2) + ATTENTION + 2 * MLP
    h1 = read({**BASE, **MAMBA_2, "model_type": "falcon_h1", "mamba_d_ssm": 64})
    mixer = mamba2_layer(8, 8, 16, 2) - 64  # no norm before the output
    assert h1.parameters_total == ENDS + norms + 2 * (mixer + ATTENTION + MLP)
    assert h1.layers == ((Attention(4, 2, 8, 8), State("mamba2", 8, 1024, "model", 64, 4, 32, 2)),) * 2


def test_nemotron_h_in_its_three_spellings() -> None:
    listed = read(NEMOTRON)
    pattern = read({**NEMOTRON, "layers_block_type": None}, hybrid_override_pattern="M*")
    new = read(NEMOTRON, layers_block_type=["linear_attention", "full_attention"], num_hidden_layers=None)
    assert listed.layers == pattern.layers == new.layers
    assert listed.weights == pattern.weights == new.weights
    assert listed.parameters_total == ENDS + 2 * 32 + mamba2_layer(4, 8, 16, 2) + ATTENTION
    blocks = {"n_routed_experts": 4, "moe_intermediate_size": 16, "moe_shared_expert_intermediate_size": 24}
    latent = read(NEMOTRON, layers_block_type=["moe", "mlp"], moe_latent_size=8, **blocks)
    experts = 4 * 2 * 8 * 16 + 2 * 32 * 8 + 4 * 32 + 2 * 32 * 24
    assert latent.parameters_total == ENDS + 2 * 32 + experts + 2 * 32 * 48
    assert latent.layers == ((), ())
    assert latent.parameters_active == latent.parameters_total - 2 * 2 * 8 * 16


def test_zamba_shares_a_block_that_every_layer_caches_for_itself() -> None:
    shared = read(ZAMBA2)
    block = 4 * 64 * 64 - 32 * 64 + MLP + 64 + 32  # over the hidden state and the embedding
    adapters = 2 * (4 * 32 + 4 * 2 * 48)
    layers = 3 * (mamba2_layer(8, 8, 16, 1) + 32) + 2 * 32 * 32
    assert shared.parameters_total == ENDS - 40 * 32 + block + adapters + layers
    assert cache(shared).slope == 2 * 4 * 2 * 16 * 2
    two = read(ZAMBA2, num_mem_blocks=2)
    assert two.parameters_total == shared.parameters_total + block


def test_qwen_next_and_3_5_differ_in_how_projections_are_cut() -> None:
    net = 32 * (32 + 16 * 2) + (16 + 32) * 4 + 32 * 4 + 2 * 2 + 16 + 32 * 32
    net = 32 * (16 + 32 + 32 + 4) + (16 + 32) * 4 + 2 * 2 + 16 + 32 * 32
    attention = 32 * (2 * 32 + 2 * 8) + 32 * 32 + 2 * 8
    dense = ENDS + net + attention + 2 * MLP + 4 * 32
    assert read(QWEN).parameters_total == dense
    fused = read(QWEN, model_type="qwen3_next", num_experts=0)
    assert fused.parameters_total == dense
    assert {"model.layers.N.linear_attn.in_proj_qkvz.weight"} < {weight.name for weight in fused.weights}
    sparse = read({**QWEN, **EXPERTS}, model_type="qwen3_5_moe_text", shared_expert_intermediate_size=24)
    mixture = 4 * 3 * 32 * 16 + 4 * 32 + 3 * 32 * 24 + 32
    assert sparse.parameters_total == dense + 2 * (mixture - MLP)


def test_draft_layers_attend_and_have_an_mlp_like_the_others() -> None:
    draft = read(QWEN, mtp_num_hidden_layers=1)
    attention = 32 * (2 * 32 + 2 * 8) + 32 * 32 + 2 * 8
    assert sum(w.parameters for w in draft.draft_weights) == attention + MLP + 2 * 32 * 32 + 5 * 32
    assert cache(draft, drafts=True).slope == 2 * cache(draft).slope == 2 * 32
    assert cache(draft, drafts=True).fixed == cache(draft).fixed
    nemotron = read(NEMOTRON, num_nextn_predict_layers=1, mtp_hybrid_override_pattern="*-")
    assert sum(w.parameters for w in nemotron.draft_weights) == ATTENTION + 2 * 32 * 48 + 2 * 32 * 32 + 5 * 32
    assert read(NEMOTRON).draft_layers == ()


def test_kimi_numbers_its_layers_from_one() -> None:
    kimi = read(KIMI)
    assert [type(layer[0]) for layer in kimi.layers] == [State, LatentAttention, State]
    wide = 3 * 8
    kda = 4 * 32 * wide + 3 * wide * 4 + 2 * (32 * 8 + 8 * wide) + wide + 3 + 32 * 3 + 8
    latent = 32 * 4 * 12 + 32 * 20 + 16 + 16 * 4 * 16 + 4 * 8 * 32
    mixture = 5 * 3 * 32 * 16 + 4 * 32
    assert kimi.parameters_total == ENDS + 2 * kda + latent + MLP + 2 * mixture + 6 * 32
    k3 = read(
        KIMI,
        routed_expert_hidden_size=8,
        latent_moe_use_norm=True,
        mla_use_output_gate=True,
        linear_attn_config={**KIMI["linear_attn_config"], "use_full_rank_gate": True},
    )
    narrow = 4 * 3 * 8 * 16 + 3 * 32 * 16 + 4 * 32 + 2 * 32 * 8 + 8
    gate = 32 * wide - (32 * 8 + 8 * wide)
    assert k3.parameters_total == kimi.parameters_total + 2 * (narrow - mixture + gate) + 32 * 4 * 8


def test_glm_pools_index_keys() -> None:
    glm = read(GLM5)
    assert [type(layer[0]) for layer in glm.layers] == [State] * 3 + [LatentAttention]
    attention = glm.layers[3][0]
    assert isinstance(attention, LatentAttention)
    assert (attention.rope, attention.index_dim, attention.index_every, attention.top_k) == (0, 8, 4, 8)
    assert cache(glm).slope == 16 * 2 + (8 + 4) / 4
    assert cache(glm, view="transformers").slope == 16 * 2 + 2 * (
        2 * 8 + 1
    )  # key, gate and mark of every token
    nested = {"model_type": "glm5_next", "text_config": GLM5, "tie_word_embeddings": False}
    assert read(nested).parameters_total == glm.parameters_total


def test_minimax_by_a_list_of_flags_or_of_kinds() -> None:
    named, flagged = (
        read(MINIMAX),
        read(MINIMAX, model_type="minimax_m1", layer_types=None, attn_type_list=[0, 1]),
    )
    assert named.layers == flagged.layers
    assert named.parameters_total == flagged.parameters_total
    lightning = 5 * 32 * 32 + 32
    assert named.parameters_total == ENDS + lightning + ATTENTION + 2 * (4 * MLP + 4 * 32) + 4 * 32
    state = 4 * 8 * 8
    assert (
        part(cache(named), "recurrent_state")
        == part(cache(named, view="transformers"), "recurrent_state")
        == 2 * state
    )
    assert part(cache(named, state="fp32"), "recurrent_state") == 4 * state


def test_lfm2_rounds_its_mlp() -> None:
    width = 32  # 48 * 2 / 3, which 16 divides
    convolution, attention = 4 * 32 * 32 + 32 * 3, ATTENTION + 2 * 8
    lfm = read(LFM2)
    assert lfm.parameters_total == ENDS + convolution + attention + 2 * 3 * 32 * width + 4 * 32
    as_it_is = read(LFM2, block_auto_adjust_ff_dim=False)
    assert as_it_is.parameters_total == lfm.parameters_total + 2 * (MLP - 3 * 32 * width)
    wider = read(LFM2, block_ffn_dim_multiplier=1.2)  # 38, rounded up to 48
    assert wider.parameters_total == as_it_is.parameters_total
    assert read({**LFM2, "block_ff_dim": 48, "intermediate_size": None}).weights == lfm.weights
    assert (
        read({**LFM2, "tie_word_embeddings": None}, tie_embedding=True).parameters_total
        == lfm.parameters_total - 1280
    )


def test_states_that_are_not_of_attention() -> None:
    rwkv = read({**ALONE, "model_type": "rwkv", "context_length": 64})
    assert cache(rwkv).fixed == 2 * (3 * 32 * 4 + 2 * 32 * 2)
    xlstm = read(
        {**ALONE, "model_type": "xlstm", "hidden_size": 128, "num_heads": 4, "intermediate_size": None}
    )
    elements = 4 * (16 * 32 + 16 + 1)
    assert cache(xlstm).fixed == 2 * elements * 4
    assert cache(xlstm, tp=4).fixed == 2 * elements
    assert cache(xlstm, view="transformers").fixed == 2 * elements * 2
    gemma = read(
        {**BASE, "model_type": "recurrent_gemma", "attention_window_size": 16, "num_hidden_layers": 3}
    )
    assert [type(layer[0]) for layer in gemma.layers] == [State, State, Attention]
    for view in ("engine", "transformers"):
        assert part(cache(gemma, view=view), "conv_state") == 2 * 32 * 3 * 2
    zaya = read({**BASE, **EXPERTS, "model_type": "zaya", "num_experts_per_tok": 1, "head_dim": 8})
    assert cache(zaya).fixed == 2 * ((32 + 16) * 2 + 8) * 2
    mamba = read({**ALONE, "model_type": "mamba", "state_size": 4, "intermediate_size": None})
    assert cache(mamba).fixed == 2 * (64 * 3 + 64 * 4) * 2
    assert cache(mamba).slope == 0


def test_heads_that_are_never_tied() -> None:
    for config in (KIMI, NEMOTRON):
        tied = read(config, tie_word_embeddings=True)
        assert tied.parameters_total == read(config).parameters_total
        assert any("does not tie" in words for words in tied.assumptions)


# --- recorded facts ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ROWS)
def test_rows_against_the_facts(name: str, data: Path) -> None:
    facts = {row["hf_id"].lower(): row for row in json.loads((data / "models_facts.json").read_text())}
    row = model(name)
    fact = next(facts[alias.lower()] for alias in row.aliases if alias.lower() in facts)
    formats = {"float32": "fp32", "bfloat16": "bf16", None: "auto"}
    kept = cache(row, state=formats[fact["recurrent_state_dtype_assumed"]])
    slopes: Counter[str] = Counter()
    for stream in kept.streams:
        slopes[stream.part] += stream.slope  # type: ignore[assignment]
    tower = 460_072_448 if name == WITH_A_TOWER else 0
    assert row.parameters_total + tower == pytest.approx(fact["n_params_total"], rel=1e-6)
    assert row.parameters_active + tower == pytest.approx(
        fact["n_params_active"], rel=OWN_BIAS if not tower else 1e-4
    )
    assert slopes["kv_full"] == fact["kv_bytes_per_token_full_2B"]
    assert slopes["index_keys"] == fact["indexer_bytes_per_token"]
    assert part(kept, "recurrent_state") == fact["recurrent_state_bytes_per_seq"]
    kernel = (7 - 1) / (3 - 1) if name == LFM3_KERNEL else 1
    assert part(kept, "conv_state") == fact["conv_state_bytes_per_seq_2B"] * kernel
    assert (len(row.layers), row.max_context) == (fact["n_layers"], fact["max_context"])
    if fact["mtp_params"]:
        drafts = sum(weight.parameters for weight in row.draft_weights)
        assert drafts == pytest.approx(fact["mtp_params"], rel=1e-6)
        more = cache(row, drafts=True).slope - cache(row).slope
        assert more == fact["mtp_kv_bytes_per_token_2B"]


def test_every_model_of_the_facts_has_a_row(data: Path) -> None:
    named = {alias.lower() for name in ROWS for alias in model(name).aliases}
    facts = json.loads((data / "models_facts.json").read_text())
    hybrid = [
        row["hf_id"] for row in facts if row["state_bytes_per_seq"] and row["model_type"] != "deepseek_v4"
    ]
    assert len(hybrid) >= 28
    assert [name for name in hybrid if name.lower() not in named] == []


@pytest.mark.parametrize(
    ("name", "total"),
    [
        ("jamba-1.5-mini", 51_570_323_328),
        ("lfm2.5-vl-1.6b", 1_170_340_608),
        ("qwen3.5-35b-a3b", 34_660_610_688),
        ("nemotron-3-super-120b-nvfp4", 120_668_707_840 - 40 * 512),
        ("kimi-k3", 2_779_481_795_168 - 92 * 896),  # without the routers' correction biases
    ],
)
def test_real_configs(name: str, total: int, data: Path) -> None:
    assert read_config(data / "configs" / f"{name}.json").parameters_total == total


def oracle_rows(data: Path) -> list[dict[str, str]]:
    with (data / "oracle" / "expected.csv").open(newline="") as file:
        return [row for row in csv.DictReader(file) if row["model_type"] in OURS]


def test_the_oracle_by_name_and_by_part(data: Path) -> None:
    names = json.loads((data / "oracle" / "params_by_name.json").read_text())
    rows = oracle_rows(data)
    assert len(rows) >= 56
    for row in rows:
        spec = read_config(data / "oracle" / row["file"])
        counted: Counter[str] = Counter()
        for weight in spec.weights:
            counted[weight.name] += weight.parameters
        stem = row["file"].removesuffix(".json").removesuffix(".v5")
        assert counted == Counter(names[stem]), row["file"]
        assert spec.parameters_total == int(row["params_total"]), row["file"]
        assert spec.parameters(["embedding"]) == int(row["params_embedding"]), row["file"]
        assert spec.parameters(["head"]) == int(row["params_lm_head"]), row["file"]
        kept = cache(spec, view="transformers")
        for tokens, parts in json.loads(row["cache_parts_at"] or "{}").items():
            parts.pop("int_positions", None)
            held = {name: size for name, size in kept.parts_at(int(tokens)).items() if size}
            assert held == parts, (row["file"], tokens)


def test_both_spellings_are_one_model(data: Path) -> None:
    for row in oracle_rows(data):
        if row["spelling"] != "hub":
            continue
        path = data / "oracle" / row["file"]
        hub, new = read_config(path), read_config(path.with_suffix(".v5.json"))
        assert hub.layers == new.layers, row["file"]
        assert sorted(hub.weights) == sorted(new.weights), row["file"]
        assert (hub.draft_layers, sorted(hub.draft_weights)) == (new.draft_layers, sorted(new.draft_weights))


# --- refusals ------------------------------------------------------------------------------------------------------------

WRONG: list[tuple[dict[str, Any], dict[str, Any], str]] = [
    (JAMBA, {"attn_layer_offset": 2}, "attn_layer_offset"),
    (JAMBA, {"expert_layer_offset": 7}, "expert_layer_offset"),
    (JAMBA, {"num_experts_per_tok": 5}, "num_experts_per_tok"),
    (JAMBA, {"mamba_dt_rank": "many"}, "mamba_dt_rank"),
    (GRANITE, {"layer_types": ["mamba"]}, "layer_types"),
    (GRANITE, {"layer_types": ["mamba", "sliding_attention"]}, "layer_types"),
    (GRANITE, {"layer_types": ["mamba", 3]}, "layer_types"),
    (GRANITE, {"mamba_n_heads": 7}, "mamba_n_heads"),
    (GRANITE, {"mamba_d_head": 9}, "mamba_d_head"),
    ({**BASE, **MAMBA_2, "model_type": "bamba"}, {"attn_layer_indices": [2]}, "attn_layer_indices"),
    ({**BASE, **MAMBA_2, "model_type": "bamba"}, {"attn_layer_indices": "1"}, "attn_layer_indices"),
    (NEMOTRON, {"layers_block_type": None, "hybrid_override_pattern": "MX"}, "hybrid_override_pattern"),
    (NEMOTRON, {"layers_block_type": ["mamba"] * 3}, "num_hidden_layers"),
    (NEMOTRON, {"layers_block_type": "M*"}, "layers_block_type"),
    (NEMOTRON, {"mamba_ssm_cache_dtype": "int4"}, "mamba_ssm_cache_dtype"),
    (NEMOTRON, {"num_key_value_heads": 3}, "num_key_value_heads"),
    (ZAMBA2, {"hybrid_layer_ids": [1]}, "hybrid_layer_ids"),
    (ZAMBA2, {"layers_block_type": None}, "layers_block_type"),
    (ZAMBA2, {"n_mamba_heads": 7}, "mamba_headdim"),
    (QWEN, {"linear_num_key_heads": 3}, "linear_num_key_heads"),
    (QWEN, {"layer_types": ["linear_attention", "conv"]}, "layer_types"),
    (QWEN, {"mamba_ssm_dtype": "fp5"}, "mamba_ssm_dtype"),
    (QWEN, {"kv_lora_rank": 4}, "kv_lora_rank"),
    (QWEN4, {"indexer_head_dim": None}, "indexer_head_dim"),
    (QWEN4, {"indexer_kv_heads": 2}, "indexer_kv_heads"),
    (QWEN4, {"indexer_compress_ratio": 3}, "indexer_compress_ratio"),
    (QWEN4, {"ple_layer_ids": [2]}, "ple_layer_ids"),
    (QWEN4, {"ple_layer_ids": [1], "ple_embed_dim": 30}, "ple_embed_dim"),
    (QWEN4, {"hc_count": 1}, "hc_count"),
    (KIMI, {"linear_attn_config": {"full_attn_layers": [2]}}, "kda_layers"),
    (KIMI, {"linear_attn_config": {"full_attn_layers": [2], "kda_layers": [1, 2]}}, "full_attn_layers"),
    (KIMI, {"linear_attn_config": {"full_attn_layers": [0], "kda_layers": [1, 2]}}, "full_attn_layers"),
    (KIMI, {"linear_attn_config": []}, "linear_attn_config"),
    (KIMI, {"linear_attn_config": {"head_dim": 8, "window_size": 4}}, "window_size"),
    (KIMI, {"mlp_layer_types": ["dense"]}, "mlp_layer_types"),
    (KIMI, {"kv_lora_rank": None}, "kv_lora_rank"),
    (GLM5, {"qk_rope_head_dim": 4}, "qk_rope_head_dim"),
    (GLM5, {"index_kpool": 3}, "index_kpool"),
    (GLM5, {"q_lora_rank": None}, "q_lora_rank"),
    (GLM5, {"indexer_types": ["full", "full", "full", "shared"]}, "indexer"),
    (MINIMAX, {"layer_types": None, "attn_type_list": [0]}, "attn_type_list"),
    (MINIMAX, {"shared_intermediate_size": 8}, "shared_intermediate_size"),
    (LFM2, {"block_ffn_dim_multiplier": 0}, "block_ffn_dim_multiplier"),
    (LFM2, {"block_ff_dim": 64}, "block_ff_dim"),
    ({**LFM2, "model_type": "lfm2_moe"}, {"layer_types": None}, "layer_types"),
    (
        {**LFM2, "model_type": "lfm3"},
        {"layer_types": ["sliding_attention"] * 2, "sliding_window": None},
        "sliding_window",
    ),
    ({**BASE, "model_type": "olmo_hybrid"}, {"layer_types": ["linear_attention"] * 2}, "layer_types"),
    ({**BASE, "model_type": "recurrent_gemma"}, {"block_types": ["mamba"]}, "block_types"),
    ({**BASE, "model_type": "recurrent_gemma"}, {"lru_width": 30}, "lru_width"),
    ({**BASE, "model_type": "zaya"}, {"layer_types": ["hybrid_sliding"] * 2}, "sliding_window"),
    ({**BASE, "model_type": "zaya"}, {"num_experts_per_tok": 2}, "num_experts_per_tok"),
    ({**ALONE, "model_type": "mamba"}, {"state_size": 0}, "state_size"),
    ({**ALONE, "model_type": "mamba2"}, {"num_heads": 4, "head_dim": 8}, "head_dim"),
    ({**ALONE, "model_type": "xlstm"}, {"weight_mode": "triple"}, "weight_mode"),
]


@pytest.mark.parametrize(("config", "change", "name"), WRONG)
def test_a_refusal_names_the_field(config: dict[str, Any], change: dict[str, Any], name: str) -> None:
    with pytest.raises(DataFileError, match=f"{name}.*") as refused:
        read(config, **change)
    assert "m.json" in str(refused.value)


def test_a_feature_that_nobody_knows_is_refused() -> None:
    for config in (JAMBA, GRANITE, NEMOTRON, ZAMBA2, QWEN, QWEN4, KIMI, GLM5, MINIMAX, LFM2):
        with pytest.raises(DataFileError, match=r"field 'cross_attention_layers' .* is not understood"):
            read(config, cross_attention_layers=[1])
