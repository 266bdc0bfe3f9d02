"""The reader against recorded facts: every parameter by name and every cache byte."""

import csv
import json
from pathlib import Path
from typing import Any

import pytest

from capplan.capacity.cache import cache
from capplan.errors import DataFileError
from capplan.models.hf import read_config
from capplan.models.registry import all_models

CONFIGS = {
    "chatglm3-6b.json": 6_243_584_000,
    "devstral-2-123b-fp8.json": 125_025_988_608,
    "exaone-4.0-32b.json": 32_003_216_384,
    "falcon-40b.json": 41_303_293_952,
    "gemma-2-9b.json": 9_241_705_984,
    "gemma-3-27b.json": 27_009_346_304 - 64 * 5376,  # the file has 64 tokens fewer than the hub's
    "gemma-4-26b-a4b.json": 25_233_141_760,
    "gemma-4-e2b.json": 4_628_569_344,
    "gpt_bigcode-1b.json": 1_124_886_528,
    "llama-2-7b.json": 6_738_415_616,
    "llama-3.1-70b.json": 70_553_706_496,
    "llama-3.2-1b.json": 1_235_814_400,
    "llama-3.2-90b-vision.json": 87_666_865_192,
    "llama-3_3-nemotron-super-49b.json": 49_867_145_216,
    "mistral-7b-v0.1.json": 7_241_732_096,
    "mistral-nemo.json": 12_247_782_400,
    "phi-4.json": 14_659_507_200,
    "qwen2.5-7b.json": 7_615_616_512,
    "qwen3-32b-fp8.json": 32_762_123_264,
    "t5-v1_1-xxl-encoder.json": 11_135_332_352,
}
DENSE = set("FSNXfs")  # codes of layers with attention to everything or a window, to an encoder, or none
# what a checkpoint of Gemma 3n holds for layers that read the cache of others, and no class builds
UNUSED = {"google/gemma-3n-E4B-it": 31_461_120, "google/gemma-3n-E2B-it": 20_974_080}
# eight tokens for images, which the recorded total counts and the recorded table does not
IMAGES = {"meta-llama/Llama-3.2-90B-Vision-Instruct": 8 * 8192}


def dense_facts(data: Path) -> list[dict[str, Any]]:
    facts: list[dict[str, Any]] = json.loads((data / "models_facts.json").read_text())
    return [fact for fact in facts if fact["layer_codes"] and set(fact["layer_codes"]) <= DENSE]


def test_dense_rows_against_the_facts(data: Path) -> None:
    named = {alias.lower(): model for model in all_models() for alias in model.aliases}
    facts = [fact for fact in dense_facts(data) if not fact["moe"]]
    assert [fact["hf_id"] for fact in facts if fact["hf_id"].lower() not in named] == []
    for fact in facts:
        name = fact["hf_id"]
        model = named[name.lower()]
        total = fact["n_params_total"] - UNUSED.get(name, 0)
        assert model.parameters_total == pytest.approx(total, rel=1e-6), name
        tables = fact["n_embedding_params"] + IMAGES.get(name, 0)
        assert model.parameters(["embedding", "position"]) == tables, name
        assert len(model.layers) == fact["n_layers"], name
        kept = cache(model)
        assert kept.slope == fact["kv_bytes_per_token_full_2B"] + sum(
            window["kv_bytes_per_token_2B"]
            for window in fact["windows"]
            if window["window"] >= (fact["max_context"] or 0)
        ), name
        capped = {
            (window["window"], window["kv_bytes_per_token_2B"])
            for window in fact["windows"]
            if window["window"] < (fact["max_context"] or 0)
        }
        assert {(s.most, s.layers * s.entry_bytes) for s in kept.windows} == capped, name
        if crossing := fact["cross_kv_bytes_per_encoder_token_2B"]:
            assert kept.bytes_at(0, 1) == crossing, name
    assert len(facts) >= 70


def test_the_whole_oracle(data: Path) -> None:
    by_name = json.loads((data / "oracle" / "params_by_name.json").read_text())
    with (data / "oracle" / "expected.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    for row in rows:
        stem = row["file"].removesuffix(".json").removesuffix(".v5")
        model = read_config(data / "oracle" / row["file"])
        names: dict[str, int] = {}
        for weight in model.weights:
            names[weight.name] = names.get(weight.name, 0) + weight.parameters
        expected: dict[str, Any] = {
            "by name": by_name[stem],
            "total": int(row["params_total"]),
            "embedding": int(row["params_embedding"]),
            "head": int(row["params_lm_head"]),
        }
        found: dict[str, Any] = {
            "by name": names,
            "total": model.parameters_total,
            "embedding": model.parameters(["embedding"]),
            "head": model.parameters(["head"]),
        }
        kept, encoder = cache(model, view="transformers"), 19 if stem.startswith("tiny") else 512
        for tokens, parts in json.loads(row["cache_parts_at"] or "{}").items():
            expected[tokens] = {part: size for part, size in parts.items() if part != "int_positions"}
            found[tokens] = {part: size for part, size in kept.parts_at(int(tokens), encoder).items() if size}
        assert found == expected, row["file"]
    assert len(rows) >= 292


def test_real_configs(data: Path) -> None:
    for path in sorted((data / "configs").glob("*.json")):
        if "hf_quant" in path.name:
            with pytest.raises(DataFileError, match="field 'model_type' is missing"):
                read_config(path)
            continue
        total = read_config(path).parameters_total
        assert total == CONFIGS.get(path.name, total), path.name
