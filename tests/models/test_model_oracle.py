"""The reader against recorded facts: every parameter by name and every cache byte."""

import csv
import json
import os
from pathlib import Path
from typing import Any

import pytest

from capplan.errors import DataFileError
from capplan.models.families import FAMILIES
from capplan.models.hf import read_config
from capplan.models.registry import all_models
from capplan.models.spec import Model

# what these families' windowed variants are refused for
WINDOWED = {"mistral-c", "phi3-a", "qwen2-b", "qwen3-b"}
DENSE_CONFIGS = {
    "chatglm3-6b.json": 6_243_584_000,
    "devstral-2-123b-fp8.json": 125_025_988_608,
    "falcon-40b.json": 41_303_293_952,
    "gpt_bigcode-1b.json": 1_124_886_528,
    "llama-2-7b.json": 6_738_415_616,
    "llama-3.1-70b.json": 70_553_706_496,
    "llama-3.2-1b.json": 1_235_814_400,
    "mistral-nemo.json": 12_247_782_400,
    "phi-4.json": 14_659_507_200,
    "qwen2.5-7b.json": 7_615_616_512,
    "qwen3-32b-fp8.json": 32_762_123_264,
}


@pytest.fixture(scope="module")
def data() -> Path:
    """The folder of recorded facts: $CAPPLAN_MEASURED_DATA, or shared/data beside the repository."""
    given = os.environ.get("CAPPLAN_MEASURED_DATA")
    folder = Path(given) if given else Path(__file__).parents[3] / "shared" / "data"
    if not folder.is_dir():
        pytest.skip(f"no recorded facts: neither $CAPPLAN_MEASURED_DATA nor {folder}")
    return folder


def kv_bytes_per_token(model: Model) -> int:
    return 2 * sum(layer.kv_elements_per_token for layer in model.layers)


def test_rows_against_the_facts(data: Path) -> None:
    facts = {row["hf_id"].lower(): row for row in json.loads((data / "models_facts.json").read_text())}
    seen = 0
    for model in all_models():
        fact = next((facts[name.lower()] for name in model.aliases if name.lower() in facts), None)
        if fact is None:
            continue
        seen += 1
        assert model.parameters_total == pytest.approx(fact["n_params_total"], rel=1e-6), model.id
        assert kv_bytes_per_token(model) == fact["kv_bytes_per_token_full_2B"], model.id
        assert len(model.layers) == fact["n_layers"], model.id
        assert model.parameters(["embedding", "position"]) == fact["n_embedding_params"], model.id
    assert seen >= 45


def test_every_dense_model_of_the_facts_has_a_row(data: Path) -> None:
    named = {alias.lower() for model in all_models() for alias in model.aliases}
    missing = [
        row["hf_id"]
        for row in json.loads((data / "models_facts.json").read_text())
        if set(row["layer_codes"] or "-") == {"F"}
        and not row["moe"]
        and row["model_type"] in (*FAMILIES, "gpt3")
        if row["hf_id"].lower() not in named
    ]
    assert missing == []


def oracle_rows(data: Path) -> list[dict[str, str]]:
    with (data / "oracle" / "expected.csv").open(newline="") as file:
        return list(csv.DictReader(file))


def test_oracle_of_the_supported_families(data: Path) -> None:
    by_name = json.loads((data / "oracle" / "params_by_name.json").read_text())
    exact = 0
    for row in oracle_rows(data):
        stem = row["file"].removesuffix(".json").removesuffix(".v5")
        # a window longer than the context never slides: the tiny mistral-c has a context of 512
        windowed = stem.split("/")[1] in WINDOWED and stem != "tiny/mistral-c"
        if row["model_type"] not in FAMILIES or windowed:
            continue
        model = read_config(data / "oracle" / row["file"])
        expected: dict[str, Any] = {
            "by name": by_name[stem],
            "total": int(row["params_total"]),
            "embedding": int(row["params_embedding"]),
            "head": int(row["params_lm_head"]),
            "cache": json.loads(row["cache_bytes_at"]),
        }
        found: dict[str, int] = {}
        for weight in model.weights:
            found[weight.name] = found.get(weight.name, 0) + weight.parameters
        assert {
            "by name": found,
            "total": model.parameters_total,
            "embedding": model.parameters(["embedding"]),
            "head": model.parameters(["head"]),
            "cache": {tokens: int(tokens) * kv_bytes_per_token(model) for tokens in expected["cache"]},
        } == expected, row["file"]
        exact += 1
    assert exact >= 94


def test_the_rest_of_the_oracle_is_refused(data: Path) -> None:
    for row in oracle_rows(data):
        name = row["file"].split("/")[1].split(".")[0]
        if row["model_type"] not in FAMILIES or (name in WINDOWED and row["file"] != "tiny/mistral-c.json"):
            if row["file"] == "tiny/mistral-c.v5.json":
                continue
            with pytest.raises(DataFileError, match=r"is not supported: its config has|sliding|layer_types"):
                read_config(data / "oracle" / row["file"])


def test_real_configs(data: Path) -> None:
    for path in sorted((data / "configs").glob("*.json")):
        if parameters := DENSE_CONFIGS.get(path.name):
            assert read_config(path).parameters_total == parameters, path.name
            continue
        with pytest.raises(DataFileError) as caught:
            read_config(path)
        message = str(caught.value)
        assert "\n" not in message
        expected = "field 'model_type' is missing" if "hf_quant" in path.name else "its config has"
        assert expected in message or "field 'sliding_window' is 4,096" in message, message


@pytest.mark.parametrize(
    ("config", "features"),
    [
        ("mixtral-8x7b.json", ["'mixtral'", "experts ('num_experts_per_tok')"]),
        ("jamba-1.5-mini.json", ["'jamba'", "state-space layers", "experts"]),
        (
            "gemma-3-27b.json",
            ["'gemma3'", "vision", "a nested language model ('text_config')", "sliding windows"],
        ),
        ("mistral-7b-v0.1.json", ["field 'sliding_window' is 4,096", "sliding windows are not supported"]),
        ("llama-3.2-90b-vision.json", ["'mllama'", "cross-attention"]),
    ],
)
def test_what_a_refusal_says(data: Path, config: str, features: list[str]) -> None:
    with pytest.raises(DataFileError) as caught:
        read_config(data / "configs" / config)
    assert [words for words in features if words not in str(caught.value)] == []
