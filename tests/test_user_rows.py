"""Rows of the user's own, in $CAPPLAN_DATA, are found first; a broken one says what is wrong with it."""

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest

Run = Callable[..., tuple[int, str, str]]
ROOT = Path(__file__).parent.parent
GPU = """
id = "mine"
name = "Mine"
vendor = "nvidia"
aliases = ["my own"]
[memory]
label = { value = 100, unit = "GB", source = "me" }
bandwidth = { value = 2, unit = "TB/s", source = "me" }
[dense_flops]
bf16 = { value = 500, unit = "TFLOP/s", source = "me" }
[[sources]]
id = "me"
title = "my desk"
checked = 2026-11-29
"""
MODEL = """
id = "mine"
name = "Mine"
basis = "stated"
source = "my desk"
checked = 2026-11-29
parameters = 1000000000
[dimensions]
layers = 10
hidden_size = 1024
heads = 16
kv_heads = 4
head_dim = 64
dtype = "bf16"
"""


@pytest.fixture
def row(run: Run, tmp_path: Path) -> Callable[..., Path]:
    """Writes a row of the user's and gives its path."""

    def write(kind: str, name: str, text: str) -> Path:
        path = tmp_path / "data" / kind / f"{name}.toml"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        return path

    return write


def refusal(run: Run, *args: str) -> str:
    code, out, err = run(*args)
    assert (code, out, err.count("\n")) == (2, "", 1), err
    assert err.startswith("error: ")
    assert err.strip().isprintable()
    assert "internal error" not in err
    return err


def test_a_gpu_of_the_users_own(run: Run, row: Callable[..., Path]) -> None:
    row("gpus", "mine", GPU)
    for name in ("mine", "MINE", "my own"):
        assert run("gpus", name)[0] == 0
    _, out, _ = run("roofline", "llama-3.1-8b", "--gpu", "mine", "--json")
    assert json.loads(out)["result"]["ridge_flop_per_byte"] == 500e12 / 2e12
    assert "mine" in run("gpus", "--filter", "my own")[1]
    assert "did you mean 'mine'?" in refusal(run, "gpus", "mime")


def test_a_model_of_the_users_own(run: Run, row: Callable[..., Path]) -> None:
    row("models", "mine", MODEL)
    _, out, _ = run("kv", "mine", "--json")
    # keys and values x layers x KV heads x width x bytes
    assert json.loads(out)["result"]["kv_bytes_per_token"] == 2 * 10 * 4 * 64 * 2


def test_a_users_row_hides_a_shipped_one(run: Run, row: Callable[..., Path]) -> None:
    row("gpus", "l4", GPU.replace('id = "mine"', 'id = "l4"', 1))
    _, out, _ = run("gpus", "l4", "--json")
    assert json.loads(out)["result"]["gpu"]["name"] == "Mine"
    _, out, _ = run("gpus", "--json")
    assert [gpu["name"] for gpu in json.loads(out)["result"]["gpus"] if gpu["id"] == "l4"] == ["Mine"]


BROKEN_GPUS = {
    "not-toml": ("id = ", "is not valid TOML"),
    "json": ('{"id": "mine"}', "is not valid TOML"),
    "empty": ("", "key 'id' is missing"),
    "nul": ("\0", "is not valid TOML"),
    "key-twice": (GPU.replace("[memory]", 'id = "x"\n[memory]'), "is not valid TOML"),
    "unknown-key": (GPU.replace("vendor", "vendr"), "did you mean 'vendor'?"),
    "wrong-type": (GPU.replace('"nvidia"', "5"), "key 'vendor' must be a line of text, not 5"),
    "another-id": (GPU.replace('id = "mine"', 'id = "yours"', 1), "must be the name of the file, 'mine'"),
    "no-unit": (GPU.replace(', unit = "GB"', ""), "key 'memory.label.unit' is missing"),
    "other-unit": (GPU.replace('"GB"', '"gigs"'), "'gigs'"),
    "no-source": (GPU.replace(', source = "me"', "", 1), "key 'memory.label.source' is missing"),
    "unknown-source": (GPU.replace('source = "me"', 'source = "you"', 1), "'you'"),
    "negative": (GPU.replace("value = 100", "value = -100"), "a number above 0, not -100"),
    "zero": (GPU.replace("value = 100", "value = 0"), "a number above 0, not 0"),
    "nan": (GPU.replace("value = 100", "value = nan"), "a number above 0, not nan"),
    "infinite": (GPU.replace("value = 100", "value = inf"), "a number above 0, not inf"),
    "huge-int": (GPU.replace("value = 100", "value = " + "9" * 4000), "memory.label"),
    "huger-int": (GPU.replace("value = 100", "value = " + "9" * 5000), "is not valid TOML"),
    "overflow": (GPU.replace("value = 100", "value = 1e308"), "memory.label"),
    "text": (GPU.replace("value = 100", 'value = "100"'), "a number above 0, not '100'"),
    "ansi": (GPU.replace('"Mine"', '"\\u001b[31mMine"'), "key 'name' must be a line of text"),
}


@pytest.mark.parametrize(("text", "message"), BROKEN_GPUS.values(), ids=BROKEN_GPUS)
def test_a_broken_gpu(text: str, message: str, run: Run, row: Callable[..., Path]) -> None:
    path = row("gpus", "mine", text)
    for args in (("gpus", "mine"), ("gpus",), ("fit", "llama-3.1-8b", "--gpu", "mine")):
        said = refusal(run, *args)
        assert message in said
        assert path.name in said
    assert run("fit", "llama-3.1-8b", "--gpu", "h200-sxm")[0] == 0  # the others answer


BROKEN_MODELS = {
    "not-toml": ("id = ", "is not valid TOML"),
    "empty": ("", "key 'id' is missing"),
    "unknown-key": (MODEL.replace("parameters", "parametres"), "did you mean 'parameters'?"),
    "wrong-type": (MODEL.replace('"Mine"', "5"), "key 'name' is not a text"),
    "another-id": (MODEL.replace('id = "mine"', 'id = "yours"'), "the file's name says 'mine'"),
    "basis": (MODEL.replace("stated", "guessed"), "'guessed'"),
    "no-date": (MODEL.replace("2026-11-29", '"today"'), "key 'checked' is not a date"),
    "negative": (MODEL.replace("layers = 10", "layers = -10"), "'layers' is -10"),
    "fraction": (MODEL.replace("layers = 10", "layers = 1.5"), "'layers' is 1.5"),
    "huge": (MODEL.replace("1000000000", "9" * 100), "'parameters' is"),
    "does-not-divide": (MODEL.replace("kv_heads = 4", "kv_heads = 5"), "does not divide"),
    "dimension-missing": (MODEL.replace("head_dim = 64\n", ""), "'head_dim' is missing"),
    "dimensions-a-list": (MODEL.replace("[dimensions]", "[[dimensions]]"), "'dimensions' is not a table"),
    "dtype": (MODEL.replace('"bf16"', '"fp3"'), "'dtype' is 'fp3'"),
}


@pytest.mark.parametrize(("text", "message"), BROKEN_MODELS.values(), ids=BROKEN_MODELS)
def test_a_broken_model(text: str, message: str, run: Run, row: Callable[..., Path]) -> None:
    path = row("models", "mine", text)
    for args in (("kv", "mine"), ("models",), ("models", "mine")):
        said = refusal(run, *args)
        assert message in said
        assert path.name in said
    assert run("kv", "llama-3.3-70b")[0] == 0


def test_a_row_that_is_no_file(run: Run, row: Callable[..., Path]) -> None:
    path = row("gpus", "mine", GPU)
    os.mkfifo(path.with_name("pipe.toml"))
    path.with_name("folder.toml").mkdir()
    path.with_name("gone.toml").symlink_to("nowhere")
    assert "mine" in run("gpus")[1]  # and does not wait for the pipe
    for name in ("pipe", "folder", "gone", "no such alias"):
        assert "unknown gpu" in refusal(run, "gpus", name)


def test_a_row_of_a_gigabyte(run: Run, row: Callable[..., Path]) -> None:
    os.truncate(row("gpus", "mine", ""), 1_000_000_000)
    assert "is larger than 1,000,000 bytes" in refusal(run, "gpus", "mine")
    assert "unknown gpu" in refusal(run, "gpus", "no such alias")  # aliases are looked for in all rows


@pytest.mark.parametrize("place", ["/dev/null", "/nowhere/at/all", "x" * 5000])
def test_a_data_folder_that_is_none(place: str, monkeypatch: pytest.MonkeyPatch, run: Run) -> None:
    monkeypatch.setenv("CAPPLAN_DATA", place)
    assert run("kv", "llama-3.3-70b")[0] == 0
    assert run("gpus")[0] == 0
    assert "unknown gpu" in refusal(run, "gpus", "nothing")
