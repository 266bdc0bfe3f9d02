"""The bytes of a checkpoint, tensor by tensor: small sums by hand, and published sizes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from capplan.capacity.checkpoint import Checkpoint, checkpoint_bytes, matrix_bytes
from capplan.models.hf import from_config, read_config
from capplan.models.quantization import Format
from capplan.models.registry import all_models, model

LLAMA: dict[str, Any] = {
    "model_type": "llama",
    "hidden_size": 256,
    "intermediate_size": 576,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 1000,
    "max_position_embeddings": 8192,
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
}
# q, k, v, o; gate, up, down: rows x columns
MATRICES = [(256, 256), (128, 256), (128, 256), (256, 256), (576, 256), (576, 256), (256, 576)]
NORMS = 3 * 2 * 256 + 256
TABLES = 2 * 1000 * 256


def of(**given: Any) -> Checkpoint:
    config = LLAMA | ({"quantization_config": given} if given else {})
    return checkpoint_bytes(from_config(config, id="x", name="X"))


def test_sixteen_bit() -> None:
    found = of()
    elements = 3 * sum(r * c for r, c in MATRICES) + NORMS + TABLES
    assert found.bytes == 2 * elements
    assert found.parameters == elements
    assert found.by_dtype() == {"bf16": 2 * elements}
    assert found.by_bucket()["embedding"] == found.by_bucket()["head"] == 2 * 1000 * 256
    assert sum(found.by_bucket().values()) == found.bytes


def test_fp8_blocks() -> None:
    """A block that is not full has a scale too: 576 is four and a half blocks of 128."""
    scales = 2 * 2 + 1 * 2 + 1 * 2 + 2 * 2 + 5 * 2 + 5 * 2 + 2 * 5
    matrices = 3 * (sum(r * c for r, c in MATRICES) + 4 * scales)
    found = of(quant_method="fp8", weight_block_size=[128, 128], activation_scheme="dynamic")
    assert found.by_dtype() == {"fp8": matrices, "bf16": 2 * (NORMS + TABLES)}
    one_byte = of(quant_method="fp8", weight_block_size=[128, 128], scale_fmt="ue8m0")
    assert found.bytes - one_byte.bytes == 3 * 3 * scales


def test_fp8_per_tensor_and_per_channel() -> None:
    elements = 3 * sum(r * c for r, c in MATRICES)
    static = of(quant_method="fp8", activation_scheme="static").by_dtype()["fp8"]
    assert static == elements + 3 * 7 * (4 + 4)  # a scale of the matrix and one of its inputs
    channel = of(quant_method="fbgemm_fp8").by_dtype()["fp8"]
    assert channel == elements + 3 * 4 * sum(r for r, _ in MATRICES)


def test_gptq_keeps_zero_points_and_the_group_of_every_column() -> None:
    groups = sum(r * -(-c // 64) for r, c in MATRICES)
    found = of(quant_method="gptq", bits=4, group_size=64, sym=True, desc_act=False).by_dtype()["int4"]
    elements, columns = sum(r * c for r, c in MATRICES), sum(c for _, c in MATRICES)
    assert found == 3 * (elements / 2 + groups * (2 + 0.5) + 4 * columns)


@pytest.mark.parametrize(
    ("stored_as", "bits"),
    [
        (Format("mxfp4", 4, 1, 32, scale_bytes=1), 4.25),
        (Format("nvfp4", 4, 1, 16, scale_bytes=1), 4.5),
        (Format("int4", 4, 1, 32, scale_bytes=2), 4.5),  # Kimi K2
        (Format("int4", 4, 1, 128, scale_bytes=2, zero_bits=4), 4 + 16 / 128 + 4 / 128),  # AWQ
        (Format("int4", 4, 1, 32, scale_bytes=2, zero_bits=4), 4.625),
        (Format("fp8", 8, 128, 128, scale_bytes=4), 8 + 32 / 16384),
        (Format("fp8", 8, 128, 128, scale_bytes=1), 8 + 8 / 16384),
        (Format("mxfp8", 8, 1, 32, scale_bytes=1), 8.25),
        (Format("nf4", 4, 1, 64, scale_bytes=4), 4.5),
        (Format("nf4", 4, 1, 64, scale_bytes=1 + 4 / 256), 4 + 8 / 64 + 32 / (64 * 256)),  # QLoRA, section 3
    ],
)
def test_bits_of_a_weight(stored_as: Format, bits: float) -> None:
    assert matrix_bytes(4096, 4096, stored_as) * 8 / 4096**2 == pytest.approx(bits, rel=1e-12)


def test_a_model_without_a_list_of_tensors() -> None:
    found = checkpoint_bytes(model("70b-class"))
    assert found.bytes == 70e9 * 2
    assert len(found.parts) == 1


def test_drafts_are_counted_when_asked_for(data: Path) -> None:
    """DeepSeek V3: the draft layer, and its own copies of the embedding and the head."""
    v3 = read_config(data / "configs" / "deepseek-v3.json")
    without, with_drafts = checkpoint_bytes(v3), checkpoint_bytes(v3, drafts=True)
    copies = 2 * 129_280 * 7_168
    assert with_drafts.parameters - without.parameters == pytest.approx(11.6e9 + copies, rel=2e-2)
    # the files take 688,586,727,753 bytes, of which some 90,000 tensors' headers are about 12 million
    assert with_drafts.bytes == pytest.approx(688_586_727_753, rel=2e-5)
    assert without.by_dtype()["bf16"] == pytest.approx(2 * (copies + 58 * 256 * 7_168), rel=1e-3)


# --- real configs ------------------------------------------------------------------------------------------------

# bytes: published, or of models_facts.json where nothing was; with draft layers where that is what they count
SIZES = [
    ("gpt-oss-120b", 65_248_815_744, False, 0),  # stated in github.com/alvarobartt/hf-mem/issues/60
    ("qwen3-32b-fp8", 34_325_566_629, False, 5e-5),  # the facts count norms as one byte
    ("devstral-2-123b-fp8", 128_247_214_080, False, 5e-5),
    ("deepseek-v3", 688_362_768_482, True, 4e-4),  # the facts leave scales of the draft layer out
    ("kimi-k2.5", 594_205_305_856, False, 5e-6),  # the facts leave out the shapes that lie with every matrix
    ("kimi-k3", 1_559_937_995_968, False, 5e-6),
    ("deepseek-v4-flash", 159_237_241_067, True, 2e-4),
    ("glm-5.2", 1_510_466_211_840, True, 1e-6),
    ("qwen3.5-35b-a3b", 71_010_502_912, True, 1e-6),
    ("llama-2-7b", 13_476_831_232, False, 0),
]


@pytest.mark.parametrize(("name", "size", "drafts", "rel"), SIZES)
def test_a_real_config(name: str, size: int, drafts: bool, rel: float, data: Path) -> None:
    found = checkpoint_bytes(read_config(data / "configs" / f"{name}.json"), drafts=drafts)
    assert found.bytes == pytest.approx(size, rel=rel, abs=0)


def test_what_real_lists_leave_out(data: Path) -> None:
    """By the number of parameters that stay in 16 bits."""

    def kept(name: str) -> dict[str, int]:
        found = checkpoint_bytes(read_config(data / "configs" / f"{name}.json"))
        parts: dict[str, int] = {}
        for part in found.parts:
            if part.dtype == "bf16":
                parts[part.bucket] = parts.get(part.bucket, 0) + part.parameters
        return parts

    scout = kept("llama-4-scout-fp8-dynamic")  # attention, routers, head: each of 48 layers is listed
    assert scout["attention"] == 48 * (2 * 5120 * 5120 + 2 * 5120 * 1024)
    assert scout["router"] == 48 * 16 * 5120
    assert scout["head"] == 202_048 * 5120
    assert "experts" not in scout
    assert "shared" not in scout

    v32 = kept("deepseek-v3.2-nvfp4")  # every layer's q_a, q_b, kv_a, kv_b and indexer; o_proj is quantised
    latent = 7168 * 1536 + 1536 * 24_576 + 7168 * 576 + 512 * 32_768
    assert v32["attention"] == 61 * latent
    assert v32["index"] == 61 * (1536 * 8192 + 7168 * 128 + 7168 * 64)
    assert v32["head"] == 129_280 * 7168
    assert {"experts", "mlp", "shared"}.isdisjoint(v32)

    kimi = kept("kimi-k2.5")  # everything but the routed experts
    assert kimi["mlp"] == 3 * 7168 * 18_432
    assert kimi["shared"] == 60 * 3 * 7168 * 2048
    assert "experts" not in kimi

    v32_drafts = checkpoint_bytes(read_config(data / "configs" / "deepseek-v3.2-nvfp4.json"), drafts=True)
    experts = {p.dtype: p.parameters for p in v32_drafts.parts if p.bucket == "experts"}
    assert experts == {"nvfp4": 58 * 256 * 3 * 7168 * 2048, "bf16": 256 * 3 * 7168 * 2048}  # layers.61*


# rows whose facts say something else by more than a thousandth, and why
DIFFERENT = {
    "google/gemma-3n-E2B-it": "the files hold keys and values of layers that share those of others; no class loads them",
    "google/gemma-3n-E4B-it": "the same",
    "nvidia/Qwen3.6-27B-NVFP4": "the facts have the small projections in_proj_a and in_proj_b in four bits",
    "zai-org/GLM-5.3-Flash": "parameters differ: what its class makes of the dimensions",
    "mistralai/Mistral-Large-4-1T-A52B": "parameters differ: what its class makes of the dimensions",
    "meta-models/Muse-Spark-Open-816B-A42B": "parameters differ: what its class makes of the dimensions",
}


def test_rows_against_the_facts(data: Path) -> None:
    facts = {row["hf_id"].lower(): row for row in json.loads((data / "models_facts.json").read_text())}
    seen, different = 0, set()
    for row in all_models():
        fact = next((facts[name.lower()] for name in row.aliases if name.lower() in facts), None)
        if fact is None or row.dtype != _precision(fact["checkpoint_dtype"]):
            continue  # another checkpoint of the same model
        seen += 1
        expected = fact["checkpoint_bytes_published"] or fact["checkpoint_bytes_estimated"]
        sizes = [checkpoint_bytes(row, drafts=drafts).bytes for drafts in (False, True)]
        off = min(abs(size / expected - 1) for size in sizes)
        assert off < 6e-3, (row.id, expected, sizes)
        if off > 1e-3:
            different.add(fact["hf_id"])
    assert different <= set(DIFFERENT)
    assert seen >= 50


def _precision(dtype: str) -> str:
    starts = (("fp8", "fp8"), ("nvfp4", "nvfp4"), ("mxfp4", "mxfp4"), ("int4", "int4"))
    return next((ours for start, ours in starts if dtype.startswith(start)), dtype)


def test_every_real_config_has_a_size(data: Path) -> None:
    seen = 0
    for path in sorted((data / "configs").glob("*.json")):
        if "hf_quant_config" in path.name:
            continue
        try:
            read = read_config(path)
        except ValueError:
            continue  # a family that is not read: its own test says so
        found = checkpoint_bytes(read)
        assert found.parameters == read.parameters_total, path.name
        assert found.bytes >= 0.5 * found.parameters, path.name
        seen += 1
    assert seen >= 30
