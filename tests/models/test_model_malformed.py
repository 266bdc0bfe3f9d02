"""Broken files and broken values: one clear line each, whatever is thrown at the reader."""

import json
import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from capplan.errors import DataFileError, InputError
from capplan.models.families import FAMILIES
from capplan.models.fields import FEATURES
from capplan.models.hf import from_config, read_config
from capplan.models.registry import model

GOOD: dict[str, Any] = {
    "model_type": "llama",
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 100,
    "max_position_embeddings": 8192,
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
}
TEXT = json.dumps(GOOD, indent=1)


def refusal(path: Path) -> str:
    with pytest.raises(InputError) as caught:
        read_config(path)
    assert type(caught.value) is DataFileError
    message = str(caught.value)
    assert "\n" not in message
    assert len(message) < 800 + len(str(path))
    return message


def test_the_good_one_reads(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_text(TEXT)
    assert read_config(path).weights == read_config(path).weights
    path.write_text("\ufeff" + TEXT)  # a byte order mark does no harm
    assert read_config(tmp_path).vocab_size == 100


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "is not valid JSON: expecting value at line 1, column 1"),
        (b"   \n ", "is not valid JSON"),
        (TEXT[:40].encode(), "is not valid JSON"),
        (TEXT[:-1].encode(), "is not valid JSON: expecting ',' delimiter at line 12"),
        (TEXT.replace(",", "", 1).encode(), "is not valid JSON: expecting ',' delimiter at line 3, column 2"),
        (b'{"model_type": "lla', "unterminated string"),
        (b"model_type = 'llama'", "is not valid JSON"),
        (b"\x00\x01\x02\xff\xfe", "is not UTF-8 text (byte 3)"),
        (TEXT.encode("utf-16"), "is not UTF-8 text (byte 0)"),
        (b"\x89PNG\r\n\x1a\n\0\0", "is not UTF-8 text"),
        (b"[1, 2]", "holds a list of 2; a JSON object of fields is accepted"),
        (b"[]", "holds a list of 0"),
        (b'"llama"', "holds 'llama'"),
        (b"42", "holds 42"),
        (b"null", "holds null"),
        (b"{}", "field 'model_type' is missing"),
        (TEXT.replace("64", "NaN").encode(), "field 'hidden_size' is nan; a finite number"),
        (TEXT.replace("64", "Infinity").encode(), "field 'hidden_size' is inf"),
        (TEXT.replace("64", "-Infinity").encode(), "field 'hidden_size' is -inf"),
        (TEXT.replace("64", "1e999").encode(), "field 'hidden_size' is inf"),
        (TEXT.replace("64", "9" * 5000).encode(), "a number with too many digits"),
        (TEXT.replace("64", "9" * 4000).encode(), "field 'hidden_size' is a huge number"),
        (TEXT.replace("64", '64, "hidden_size": 65').encode(), "field 'hidden_size' is given twice"),
        (b"[" * 100_000, "nested too deep"),
        (b'{"a":' * 100_000, "nested too deep"),
        (TEXT.replace("64", "[" * 400 + "]" * 400).encode(), "field 'hidden_size' is a list of 1"),
        (b"[" * 100_000 + b"]" * 100_000, "nested too deep"),
        (TEXT.replace("64", '"\\ud800"').encode(), "field 'hidden_size' is '\\ud800'"),
    ],
)
def test_a_broken_file(content: bytes, message: str, tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_bytes(content)
    said = refusal(path)
    assert message in said
    assert f"'{path}'" in said


WRONG = [-1, 0, 64.0, 0.5, 1e30, 10**9, 10**30, True, False, "64", "", "x" * 10_000, [64], [], {"a": 1}, {}]


@pytest.mark.parametrize("value", WRONG, ids=lambda value: str(value)[:12])
@pytest.mark.parametrize(
    "field",
    [
        *("hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads"),
        *("num_key_value_heads", "vocab_size", "head_dim"),
    ],
)
def test_a_wrong_value(field: str, value: Any, tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_text(json.dumps(GOOD | {field: value}))
    assert f"'{path}': field '{field}' is " in refusal(path)


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("num_hidden_layers", 10_001, "a whole number from 1 to 10,000 is accepted"),
        ("vocab_size", 10_000_001, "is 10000001; a whole number from 1 to 10,000,000"),
        ("num_key_value_heads", 3, "is 3, which does not divide the 4 attention heads"),
        ("num_key_value_heads", 8, "is 8, which does not divide the 4 attention heads"),
        ("num_attention_heads", 6, "the hidden size 64 is not a multiple of the 6"),
        ("max_position_embeddings", -5, "field 'max_position_embeddings' is -5"),
        ("tie_word_embeddings", 1, "field 'tie_word_embeddings' is 1; true or false is accepted"),
        ("tie_word_embeddings", "false", "true or false is accepted"),
        ("attention_bias", "no", "field 'attention_bias' is 'no'"),
        ("mlp_bias", 0, "field 'mlp_bias' is 0"),
        ("torch_dtype", 16, "field 'torch_dtype' is 16; a text is accepted"),
        ("model_type", 7, "field 'model_type' is 7; a text is accepted"),
        ("model_type", "", "field 'model_type' is missing"),
        ("model_type", None, "field 'model_type' is missing"),
        ("model_type", "y" * 100_000, "model_type 'yyyy"),
        ("model_type", ["llama"], "field 'model_type' is a list of 1"),
        ("layer_types", "full_attention", "field 'layer_types' is 'full_attention'"),
        ("layer_types", {"a": 1}, "field 'layer_types' is an object of 1"),
        ("layer_types", [None, 3], "field 'layer_types' has null"),
        ("quantization_config", [1], "field 'quantization_config' is a list of 1"),
        ("quantization_config", {"bits": 4}, "field 'quantization_config.quant_method' is null"),
        ("kv_lora_rank\n\x1b[31m", 5, r"field 'kv_lora_rank\n\x1b[31m' (latent attention)"),
    ],
)
def test_a_wrong_combination(field: str, value: Any, message: str, tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_text(json.dumps(GOOD | {field: value}))
    assert message in refusal(path)


@pytest.mark.parametrize(
    "field",
    [
        "model_type",
        "hidden_size",
        "intermediate_size",
        "num_hidden_layers",
        "num_attention_heads",
        "vocab_size",
    ],
)
@pytest.mark.parametrize("null", [False, True])
def test_a_missing_field(field: str, null: bool, tmp_path: Path) -> None:
    config = {name: value for name, value in GOOD.items() if name != field}
    path = tmp_path / "config.json"
    path.write_text(json.dumps(config | ({field: None} if null else {})))
    assert f"field '{field}' is {'null' if null and field != 'model_type' else 'missing'}" in refusal(path)


def test_a_huge_file_is_refused_by_its_size(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    with path.open("wb") as file:
        file.truncate(10**9)  # sparse: a gigabyte that takes no disk
    assert "larger than 5,000,000 bytes" in refusal(path)


def test_things_that_are_not_files(tmp_path: Path) -> None:
    assert "holds no config.json" in refusal(tmp_path)
    assert "no such file" in refusal(tmp_path / "nothing.json")
    assert "not a directory" in refusal(tmp_path / "a" / ".." / ".." / Path(__file__) / "config.json")
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    assert "too many levels of symbolic links" in refusal(tmp_path / "loop")
    (tmp_path / "dangling").symlink_to(tmp_path / "nowhere")
    assert "no such file" in refusal(tmp_path / "dangling")
    (tmp_path / "d" / "config.json").mkdir(parents=True)
    assert "is not a regular file" in refusal(tmp_path / "d")
    assert "file name too long" in refusal(tmp_path / ("x" * 300))
    assert "null byte" in refusal(tmp_path / "x\0y")
    assert "'a\\nb'" in refusal(Path("a\nb"))


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no named pipes on this platform")
def test_a_pipe_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "config.json")
    assert "is not a regular file" in refusal(tmp_path)
    assert "is not a regular file" in refusal(Path("/dev/zero"))
    with pytest.raises(DataFileError):
        model("/dev/null")


def test_quantisation_said_in_a_side_file(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(TEXT)
    (tmp_path / "hf_quant_config.json").write_text('{"quantization": {"quant_algo": "NVFP4"}}')
    assert read_config(tmp_path).dtype == "nvfp4"
    assert "field 'model_type' is missing" in refusal(tmp_path / "hf_quant_config.json")


def test_many_unknown_fields_cost_little(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_text(json.dumps(GOOD | {f"foo{i}": i for i in range(100_000)}))
    assert len(read_config(path).assumptions) == 22


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=6,
)
NAMES = (
    st.sampled_from([*GOOD, *FEATURES, "quantization_config", "layer_types", "head_dim", "n_embd"])
    | st.text()
)


@settings(max_examples=400, deadline=None)
@given(st.sampled_from([*FAMILIES, "other"]), st.dictionaries(NAMES, JSON, max_size=4))
def test_any_config_gives_a_model_or_one_clear_line(family: str, fields: dict[str, Any]) -> None:
    said, parameters = "", 1
    try:
        parameters = from_config(GOOD | {"model_type": family} | fields, id="x", name="X").parameters_total
    except DataFileError as error:
        said = str(error)
    assert "\n" not in said
    assert parameters > 0
