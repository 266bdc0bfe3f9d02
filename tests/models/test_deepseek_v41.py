"""DeepSeek V4.1: its published totals, which layers keep what, and what is refused."""

from typing import Any

import pytest

from capplan.capacity.cache import cache
from capplan.capacity.checkpoint import matrix_bytes
from capplan.errors import DataFileError
from capplan.models.hf import from_config
from capplan.models.registry import model
from capplan.models.spec import CompressedAttention, Model
from capplan.models.stored import stored

TOWER = 485_268_480
BIASES = 40 * 2 * 384 + 3 * 2 * 128  # of the routers, for text and for images: buffers, and not counted

SMALL: dict[str, Any] = {
    "model_type": "deepseek_v41_text",
    "hidden_size": 32,
    "num_hidden_layers": 4,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 32,
    "q_lora_rank": 12,
    "qk_rope_head_dim": 8,
    "o_groups": 2,
    "o_lora_rank": 8,
    "sliding_window": 4,
    "n_routed_experts": 4,
    "n_shared_experts": 1,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 12,
    "hc_mult": 2,
    "index_n_heads": 2,
    "index_head_dim": 8,
    "index_topk": 32,
    "vocab_size": 275,
    "max_position_embeddings": 128,
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
    "compress_ratios": [0, 2, 1, 1],
    "kv_source_layer_ids": [1, 2],
    "index_source_layer_ids": [1, 2, 3],
}


def small(**changed: Any) -> Model:
    fields = {name: value for name, value in (SMALL | changed).items() if value is not None}
    return from_config(fields, id="small", name="small")


def parameters(row: Model, *names: str) -> int:
    weights = (*row.weights, *row.draft_weights)
    return sum(weight.parameters for weight in weights if any(name in weight.name for name in names))


def test_every_published_parameter_is_there() -> None:
    """The figures are sums over the headers of the 48 files, to the unit."""
    row = model("deepseek-ai/DeepSeek-V4.1-Flash")
    drafts = sum(weight.parameters for weight in row.draft_weights)
    assert row.parameters_total + drafts + TOWER + BIASES == 763_205_315_794
    assert parameters(row, "engram.embed") == (384_006_168 + 384_016_682) * 256 == 196_613_849_600
    assert drafts + 3 * 2 * 128 == 14_225_362_530
    assert parameters(row, "compressor") == 18_352_128
    assert parameters(row, "indexer") == 43_516_416
    assert parameters(row, "engram") - parameters(row, "engram.embed") == 314_654_720
    # 16B, as published
    assert row.parameters_active_without_embedding / 1e9 == pytest.approx(16.13, abs=0.01)


def test_the_bytes_of_the_files() -> None:
    """510,286,023,000 in all (safetensors headers); hyper-connections are in fp32 there, and counted in 16 bit here."""
    row = model("deepseek-v4.1-flash")
    found = 2.0 * TOWER
    for piece in stored((*row.weights, *row.draft_weights), row.layers, row.hidden_size, row.quantization):
        whole = piece.rows * piece.columns * 2.0
        size = whole if piece.format is None else matrix_bytes(piece.rows, piece.columns, piece.format)
        found += size * piece.matrices
    assert found == pytest.approx(510_286_023_000, rel=2e-4)


def test_four_layers_pool_for_all() -> None:
    row = model("deepseek-v4.1-flash")
    parts = [layer[0] for layer in row.layers]
    assert all(isinstance(part, CompressedAttention) and part.window == 128 for part in parts)
    owners = [i for i, part in enumerate(parts) if getattr(part, "index_dim", 0)]
    assert owners == [2, 8, 14, 20]
    assert [getattr(part, "reads_pooled", None) for part in parts].count(True) == 34
    held = cache(row)
    assert held.slope == (3 / 2 + 1) * (1024 + 132)
    # of the three that pool two tokens: value and gate of a vector in fp32; keys are made of what was pooled
    assert held.fixed == 3 * 2 * 512 * 4 * 2
    assert held.parts_at(1_000)["kv_window"] == 40 * 128 * 1024
    assert cache(row, drafts=True).parts_at(1_000)["kv_window"] == 43 * 128 * 1024


def test_a_layer_may_pool_without_a_gate() -> None:
    pooled = small()
    names = {weight.name: weight.copies for weight in pooled.weights if "compressor" in weight.name}
    assert names["model.layers.N.self_attn.compressor.kv_proj.weight"] == 2
    # of one token there is nothing to weigh
    assert names["model.layers.N.self_attn.compressor.gate_proj.weight"] == 1


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"compress_ratios": [0, 2, 4, 1]}, "field 'compress_ratios' has 4; accepted: 0, 1, 2"),
        ({"compress_ratios": [0, 2]}, "field 'compress_ratios' has 2 entries; 4"),
        ({"compress_ratios": None}, "field 'compress_ratios' has 0 entries"),
        (
            {"kv_source_layer_ids": [0, 1, 2]},
            "'kv_source_layer_ids' has 0, a layer that has its window alone",
        ),
        ({"kv_source_layer_ids": [2]}, "'kv_source_layer_ids' leaves layer 1 without one at or before it"),
        ({"kv_source_layer_ids": [1, 9]}, "'kv_source_layer_ids' has 9; layers are 0 to 3"),
        ({"index_source_layer_ids": None}, "'index_source_layer_ids' leaves layer 1 without"),
        ({"engram_layer_ids": [1]}, "field 'engram_num_embeddings' is missing"),
        ({"engram_layer_ids": [1], "engram_num_embeddings": [5, 5]}, "a list of 1"),
        ({"o_groups": 3}, "field 'o_groups' is 3"),
        ({"num_experts_per_tok": 5}, "more than the 4 experts"),
    ],
)
def test_what_is_refused(changed: dict[str, Any], message: str) -> None:
    with pytest.raises(DataFileError, match=message.replace("(", r"\(")):
        small(**changed)
