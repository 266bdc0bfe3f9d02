"""capplan kv: one model, several side by side, a range of contexts, the layer map."""

from __future__ import annotations

import json
from pathlib import Path
from xml.etree import ElementTree

import pytest

import capplan
from capplan.__main__ import main
from capplan.capacity.questions.kv_side_by_side import kv_side_by_side
from capplan.capacity.questions.models import model_facts


def test_a_token_and_a_request(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["kv", "llama-3.3-70b", "--context", "8k,32k", "--json"]) == 0
    result = json.loads(capsys.readouterr().out)["result"]
    assert result["params_total"] == result["params_active"] == 70_553_706_496
    assert result["kv_bytes_per_token"] == 2 * 80 * 8 * 128 * 2
    assert result["state_bytes_per_sequence"] == 0
    assert result["windows"] == []
    assert result["kv_bytes_at"] == {"8000": 8000 * 327_680, "32000": 32_000 * 327_680}


def test_a_window_caps_a_request() -> None:
    config = {
        "model_type": "mistral",
        "hidden_size": 4096,
        "intermediate_size": 14336,
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "vocab_size": 32000,
        "sliding_window": 4096,
        "max_position_embeddings": 32768,
        "torch_dtype": "bfloat16",
    }
    from capplan.models.hf import from_config

    answer = capplan.kv(from_config(config, id="m", name="m"), contexts=[4_000, 32_000])
    token = 2 * 32 * 8 * 128 * 2
    assert answer.kv_bytes_per_token == 0
    assert answer.kv_bytes_at == {"4000": 4_000 * token, "32000": 4096 * token}
    assert answer.windows == (
        {"kind": "sliding", "window": 4096, "n_layers": 32, "kv_bytes_per_token": token},
    )


def test_side_by_side(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["kv", "llama-3.3-70b", "phi-4", "--context", "8k", "--json"]) == 0
    models = json.loads(capsys.readouterr().out)["result"]["models"]
    assert [each["model"] for each in models] == ["llama-3.3-70b", "phi-4"]
    assert [each["kv_bytes_per_token"] for each in models] == [327_680, 204_800]
    assert "phi-4" in str(kv_side_by_side(["llama-3.3-70b", "phi-4"]))


def test_side_by_side_says_whose_warning_it_is() -> None:
    answer = kv_side_by_side(["llama-3.3-70b", "phi-4"], contexts=[32_000])
    assert answer.warnings == ("phi-4: 32,000 tokens: past the 16,384 that phi-4 was made for",)


def test_a_range_doubles(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["kv", "llama-3.3-70b", "--context", "1k..10k", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["inputs"]["contexts"] == [1000, 2000, 4000, 8000, 10_000]


@pytest.mark.parametrize("text", ["8k..1k", "..8k", "1k..", "8k..8k", "0..8k", "1k..2k..4k", "1k...8k"])
def test_a_bad_range_is_one_line(text: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["kv", "llama-3.3-70b", "--context", text]) == 2
    assert capsys.readouterr().err.count("\n") == 1


def test_the_picture_names_every_model(tmp_path: Path) -> None:
    target = tmp_path / "cache.svg"
    assert main(["kv", "llama-3.3-70b", "phi-4", "--context", "1k..128k", "--plot", str(target)]) == 0
    assert ElementTree.fromstring(target.read_text("utf-8")).tag.endswith("svg")
    assert "llama-3.3-70b" in target.read_text("utf-8")


def test_the_layer_map_has_a_letter_a_layer() -> None:
    facts = model_facts("llama-3.3-70b")
    assert facts.layer_map == "F" * 80
    assert facts.cache == ("+ 80 x 4,096 x T   kv full: 8 KV heads x (128 + 128) in bf16",)
