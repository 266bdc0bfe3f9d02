"""The shipped rows, and finding a model by name."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from capplan.capacity.cache import cache
from capplan.errors import DataFileError, InputError, UnknownNameError
from capplan.models.registry import all_models, model, names
from capplan.models.spec import Attention

SPECS = Path(__file__).parents[2] / "models" / "specs"


def kv_bytes_per_token(name: str) -> int:
    return int(cache(model(name)).slope)


@pytest.mark.parametrize("name", [path.stem for path in sorted(SPECS.glob("*.toml"))])
def test_a_row_is_read_whole(name: str) -> None:
    row = model(name)
    assert row.id == name
    assert row.parameters_total > 0
    assert row.layers
    assert row.source
    assert row.checked or row.basis != "read"
    if row.basis == "stated":
        assert not row.weights
    else:
        assert row.max_context or row.family == "t5"  # its positions are relative
        # a row spells out what its family would otherwise assume
        unsaid = [text for text in row.assumptions if not text.startswith("fp8")]
        assert unsaid == [] or name == "santacoder-1.1b"


def test_no_name_means_two_models() -> None:
    assert len(names()) >= 45
    given = [name.lower() for row in all_models() for name in (row.id, *row.aliases)]
    assert sorted(given) == sorted(set(given))


def test_every_alias_is_found() -> None:
    """Aliases are found by a text scan of one line; a row that breaks the line loses them."""
    for row in all_models():
        for alias in row.aliases:
            assert model(alias.upper()).id == row.id


@pytest.mark.parametrize(
    ("name", "parameters"),
    [
        ("llama-3.1-8b", 8_030_261_248),
        # embedding and head, 80 x (q and o, k and v, mlp, two norms), the last norm
        (
            "llama-3.1-70b",
            2 * 128_256 * 8192 + 80 * (2 * 8192**2 + 2 * 8192 * 1024 + 3 * 8192 * 28_672 + 2 * 8192) + 8192,
        ),
        ("llama-3.1-70b", 70_553_706_496),
        # 59,553,253,376 bytes of bf16 in the checkpoint, with a tower of 1,921,845,760
        ("muse-glimmer-30b", 59_553_253_376 // 2 - 1_921_845_760),
        ("llama-2-70b", 68_976_648_192),
        ("qwen2.5-72b", 72_706_203_648),
        ("gemma-2b", 2_506_172_416),
        ("gemma-7b", 8_537_680_896),
        ("chatglm3-6b", 6_243_584_000),
        ("phi-2", 2_779_683_840),
        ("gpt-j-6b", 6_050_882_784),
        ("gpt-neox-20b", 20_554_567_680),
        ("bloom-176b", 176_247_271_424),
        ("starcoder-15b", 15_517_456_384),
        ("santacoder-1.1b", 1_124_886_528),
        ("70b-class", 70_000_000_000),
    ],
)
def test_parameters(name: str, parameters: int) -> None:
    assert model(name).parameters_total == parameters


@pytest.mark.parametrize(
    ("name", "total", "active"),
    [  # billions, as published to so many digits; active ones only where the convention is that of the row
        ("laguna-s-2.1", 117.6, 8.5),
        ("laguna-xs.2", 33.4, 3.0),
        ("qwen3.8-flash-next", 176.9, None),  # 125B and 51B of n-gram tables
    ],
)
def test_published_parameters(name: str, total: float, active: float | None) -> None:
    row = model(name)
    assert row.parameters_total / 1e9 == pytest.approx(total, abs=0.05)
    assert active is None or row.parameters_active / 1e9 == pytest.approx(active, abs=0.06)


def test_the_tables_of_n_grams() -> None:
    """320,001,536 rows of 160 in the header of a published file; a token reads 16 of them: 125B with 6B active."""
    row = model("qwen3.8-flash-next")
    table = next(weight for weight in row.weights if weight.bucket == "lookup")
    assert table.shape == (320_001_536, 160)
    assert table.active == 16 * 160
    vocabulary = row.parameters(("embedding", "head"))
    assert (row.parameters_active - vocabulary) / 1e9 == pytest.approx(6.0, abs=0.05)
    assert (row.parameters_total - table.parameters) // 10**9 == 125


def test_muse_spark_without_its_vocabulary() -> None:
    """816B with 42B active are published, as the row has it without embedding and head."""
    row = model("muse-spark")
    vocabulary = row.parameters(("embedding", "head"))
    assert (row.parameters_total - vocabulary) // 10**9 == 816
    assert (row.parameters_active - vocabulary) // 10**9 == 42


@pytest.mark.parametrize(
    ("name", "kv_bytes"),
    [  # keys and values x layers x KV heads x head_dim x 2 bytes
        ("70b-class", 2 * 80 * 8 * 128 * 2),
        ("llama-3.1-70b", 327_680),
        ("llama-3.1-8b", 2 * 32 * 8 * 128 * 2),
        ("llama-3.2-1b", 2 * 16 * 8 * 64 * 2),
        ("opt-13b", 819_200),
        ("opt-66b", 2_359_296),
        ("gpt-3-175b", 4_718_592),
        ("falcon-7b", 2 * 32 * 1 * 64 * 2),
        ("falcon-40b", 2 * 60 * 8 * 64 * 2),
        ("mistral-nemo", 2 * 40 * 8 * 128 * 2),
        ("qwen3-32b", 2 * 64 * 8 * 128 * 2),
        ("phi-4", 2 * 40 * 10 * 128 * 2),
        ("command-r-35b", 2 * 40 * 64 * 128 * 2),
        ("gemma-2b", 2 * 18 * 1 * 256 * 2),
        ("chatglm3-6b", 2 * 28 * 2 * 128 * 2),
    ],
)
def test_cache_bytes_per_token(name: str, kv_bytes: int) -> None:
    assert kv_bytes_per_token(name) == kv_bytes


def test_the_essay_model() -> None:
    row = model("70B-class")
    assert (row.parameters_stated, row.weights, row.dtype) == (70_000_000_000, (), "fp16")
    assert (set(row.layers), row.hidden_size) == ({(Attention(64, 8, 128, 128),)}, 8192)


def test_an_fp8_row() -> None:
    row = model("qwen3-32b-fp8")
    assert row.dtype == "fp8"
    assert row.quantization is not None
    assert row.quantization.formats[0][:4] == ("fp8", 8, 128, 128)


@pytest.mark.parametrize(
    "name",
    ["meta-llama/Llama-3.3-70B", "META-LLAMA/LLAMA-3.3-70B", " llama-3.3-70b ", "Llama-3.3-70B-Instruct"],
)
def test_a_name_in_any_case_or_a_hub_id(name: str) -> None:
    assert model(name).id == "llama-3.3-70b"


LLAMA = {
    "model_type": "llama",
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 100,
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working folder that holds the folder mine/ with a config.json."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "org" / "mine").mkdir(parents=True)
    (tmp_path / "mine").symlink_to(tmp_path / "org" / "mine")
    (tmp_path / "org" / "mine" / "config.json").write_text(json.dumps(LLAMA))
    return tmp_path


@pytest.mark.parametrize(
    "name", ["mine", "./mine", "mine/config.json", "org/mine", "./org/mine/", "{}/mine", "mine/"]
)
def test_a_path(name: str, folder: Path) -> None:
    found = model(name.format(folder))
    assert (found.name, found.hidden_size) == ("mine", 64)


def test_a_registry_name_wins_over_a_file(folder: Path) -> None:
    (folder / "phi-4").mkdir()
    (folder / "phi-4" / "config.json").write_text(json.dumps(LLAMA))
    assert model("phi-4").hidden_size == 5120
    assert model("./phi-4").hidden_size == 64


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("llama-3.3-7b", "unknown model 'llama-3.3-7b'; did you mean 'llama-3.3-70b'"),
        ("yours", "(capplan models)"),
        ("", "unknown model ''"),
        ("x\0y", "unknown model"),
    ],
)
def test_an_unknown_name(name: str, message: str, folder: Path) -> None:
    with pytest.raises(UnknownNameError) as caught:
        model(name)
    assert message in str(caught.value)


@pytest.mark.parametrize("name", ["./nothing", "nothing.json", "a/b/c", "./org", "."])
def test_a_path_to_nothing(name: str, folder: Path) -> None:
    with pytest.raises(DataFileError, match=r"no such file|holds no config"):
        model(name)


ROW = """
id = "mine"
aliases = ["my-alias"]
name = "Mine"
basis = "read"
source = "https://example.com"
checked = 2026-11-29

[config]
model_type = "mistral"
hidden_size = 64
intermediate_size = 128
num_hidden_layers = 2
num_attention_heads = 4
num_key_value_heads = 2
sliding_window = "null"
vocab_size = 100
tie_word_embeddings = false
torch_dtype = "float16"
"""
STATED = """
id = "mine"
name = "Mine"
basis = "stated"
source = "an essay"
checked = 2026-11-29
parameters = 70_000_000_000
[dimensions]
layers = 80
heads = 64
kv_heads = 8
head_dim = 128
hidden_size = 8192
dtype = "fp16"
"""


@pytest.fixture
def own_row(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    monkeypatch.setenv("CAPPLAN_DATA", str(tmp_path))
    (tmp_path / "models").mkdir()

    def write(text: str) -> None:
        (tmp_path / "models" / "mine.toml").write_text(text)

    return write


def test_a_row_of_the_users_own(own_row: Callable[[str], None]) -> None:
    own_row(ROW)
    assert "mine" in names()
    assert model("MY-ALIAS").dtype == "fp16"
    own_row(STATED)
    assert model("mine").parameters_total == 70_000_000_000


@pytest.mark.parametrize(
    ("text", "old", "new", "message"),
    [
        (ROW, "aliases", "alias", "unknown key 'alias'; did you mean 'aliases'?"),
        (ROW, 'name = "Mine"', "", "key 'name' is missing"),
        (ROW, "checked = 2026-11-29", 'checked = "today"', "key 'checked' is not a date"),
        (ROW, '["my-alias"]', "[1]", "key 'aliases' is not a list of texts"),
        (ROW, '"Mine"', "7", "key 'name' is not a text"),
        (ROW, '"mine"', '"yours"', "the file's name says 'mine'"),
        (ROW, '"read"', '"guessed"', "accepted: read, recalled"),
        (ROW, '"read"', '"stated"', "a row has [config], or"),
        (ROW, "[config]", "[dimensions]", "a row has [config], or"),
        (ROW, "[config]", "config = 3\n[other]", "key 'config' is not a table"),
        (ROW, '"null"', "-32", "field 'sliding_window' is -32"),
        (ROW, "hidden_size = 64", "hidden_size = nan", "field 'hidden_size' is nan"),
        (ROW, "hidden_size = 64", "hidden_size = 0x1" + "0" * 9999, "field 'hidden_size' is a huge number"),
        (ROW, "[config]", "[config", "is not valid TOML"),
        (STATED, "parameters = 70", "parameters = -70", "field 'parameters' is -70000000000"),
        (STATED, "layers = 80", "layers = 80.0", "field 'layers' is 80.0"),
        (STATED, "kv_heads = 8", "kv_heads = 7", "does not divide the 64"),
        (STATED, "heads = 64", "", "field 'heads' is missing"),
        (STATED, "head_dim", "head_dims", "field 'head_dim' is missing"),
        (STATED, '"fp16"', '"fp17"', "field 'dtype' is 'fp17'"),
        (STATED, "dtype", "window = 3\ndtype", "unknown key 'window'"),
    ],
)
def test_a_wrong_row(own_row: Callable[[str], None], text: str, old: str, new: str, message: str) -> None:
    assert old in text
    own_row(text.replace(old, new, 1))
    with pytest.raises(InputError) as caught:
        model("mine")
    assert message in str(caught.value)
    assert "mine.toml" in str(caught.value)


def test_a_folder_of_any_name_is_safe_to_print(tmp_path: Path) -> None:
    folder = tmp_path / "a\x1b[31mb\nc"
    folder.mkdir()
    (folder / "config.json").write_bytes(
        (SPECS.parents[1] / "examples/llama-3.1-70b/config.json").read_bytes()
    )
    assert model(str(folder)).id == "a?[31mb?c"


@pytest.mark.parametrize(
    ("address", "hub_id"),
    [
        ("https://huggingface.co/meta-llama/Llama-3.3-70B", "meta-llama/Llama-3.3-70B"),
        ("https://huggingface.co/org/name/blob/main/config.json", "org/name"),
        ("http://x", "org/name"),
    ],
)
def test_an_address_is_told_the_hub_id(address: str, hub_id: str) -> None:
    with pytest.raises(InputError, match=f"is an address; write the hub id, such as '{hub_id}'"):
        model(address)
