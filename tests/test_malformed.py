"""Whatever is thrown at the command: exit code 2, one line on stderr, nothing on stdout, no file left."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

Run = Callable[..., tuple[int, str, str]]
ROOT = Path(__file__).parent.parent
FIT = ("fit", "llama-3.1-8b", "--gpu", "l4")
PREFILL = ("prefill", "llama-3.1-8b", "--gpu", "l4")
BOARD = ("whiteboard", "llama-3.1-8b", "--gpu", "l4")
LONGEST = 1_200  # characters of the line on stderr

GOOD: dict[str, Any] = {
    "model_type": "llama",
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 100,
    "max_position_embeddings": 8192,
    "torch_dtype": "bfloat16",
}
TEXT = json.dumps(GOOD)


def files() -> set[str]:
    return {os.path.join(folder, name) for folder, _, names in os.walk(".") for name in names}


def refusal(run: Run, *args: str) -> str:
    """The one line that a command was refused with, without its 'error: '."""
    before = files()
    code, out, err = run(*args)
    lines = [line for line in err.splitlines() if not line.startswith("note: ")]
    assert (code, out, len(lines)) == (2, "", 1), err
    assert err.endswith("\n")
    assert lines[0].startswith("error: ")
    assert lines[0].isprintable()
    assert len(lines[0]) < LONGEST
    assert "Traceback" not in err
    assert "internal error" not in err
    assert files() == before
    return lines[0].removeprefix("error: ")


def test_the_good_config_is_read(run: Run) -> None:
    Path("config.json").write_text(TEXT)
    code, out, _ = run("kv", "./config.json", "--json")
    assert code == 0
    # keys and values x layers x KV heads x width x bytes
    assert json.loads(out)["result"]["kv_bytes_per_token"] == 2 * 2 * 2 * (64 // 4) * 2


# --- the bytes of a config.json -----------------------------------------------------------------------

BYTES: dict[str, tuple[bytes, str]] = {
    "empty": (b"", "not valid JSON"),
    "blank": (b" \n\t", "not valid JSON"),
    "truncated": (TEXT[:50].encode(), "not valid JSON"),
    "last-brace-missing": (TEXT[:-1].encode(), "not valid JSON"),
    "trailing-comma": (TEXT.replace("}", ",}").encode(), "not valid JSON"),
    "single-quotes": (TEXT.replace('"', "'").encode(), "not valid JSON"),
    "comment": (b"// llama\n" + TEXT.encode(), "not valid JSON"),
    "two-objects": ((TEXT + TEXT).encode(), "not valid JSON"),
    "yaml": (b"model_type: llama\nhidden_size: 64\n", "not valid JSON"),
    "html-login-page": (b"<!DOCTYPE html><html></html>", "not valid JSON"),
    "git-lfs-pointer": (b"version https://git-lfs.github.com/spec/v1\n", "not valid JSON"),
    "list": (f"[{TEXT}]".encode(), "a JSON object of fields is accepted"),
    "empty-list": (b"[]", "a JSON object of fields is accepted"),
    "number": (b"42", "a JSON object of fields is accepted"),
    "string": (b'"llama"', "a JSON object of fields is accepted"),
    "null": (b"null", "a JSON object of fields is accepted"),
    "true": (b"true", "a JSON object of fields is accepted"),
    "NaN": (b"NaN", "a JSON object of fields is accepted"),
    "empty-object": (b"{}", "field 'model_type' is missing"),
    "latin-1": ('{"name": "é"}'.encode("latin-1"), "not UTF-8"),
    "utf-16": (TEXT.encode("utf-16"), "not UTF-8"),
    "utf-32": (TEXT.encode("utf-32"), "not UTF-8"),
    "png": (b"\x89PNG\r\n\x1a\n\0\0\0", "not UTF-8"),
    "gzip": (b"\x1f\x8b\x08\0\0\0\0\0", "not UTF-8"),
    "nul-bytes": (b"\0" * 100, "not valid JSON"),
    "nul-in-a-name": (TEXT.replace("hidden", "hid\\u0000den").encode(), "'hidden_size' is missing"),
    "ansi-in-a-value": (TEXT.replace("llama", "\\u001b[31mred\\n").encode(), "is not supported"),
    "deep-lists": (b"[" * 200_000, "nested too deep"),
    "deep-objects": (b'{"a":' * 200_000, "nested too deep"),
    "duplicate-key": (TEXT.replace("{", '{"hidden_size": 128,').encode(), "'hidden_size' is given twice"),
    "5000-digits": (TEXT.replace("64", "9" * 5000).encode(), "too many digits"),
    "4000-digits": (TEXT.replace("64", "9" * 4000).encode(), "'hidden_size' is a huge number"),
    "minus-infinity": (TEXT.replace("64", "-Infinity").encode(), "'hidden_size' is -inf"),
    "overflow": (TEXT.replace("64", "1e999").encode(), "'hidden_size' is inf"),
    "megabyte-model-type": (TEXT.replace("llama", "x" * 1_000_000).encode(), "is not supported"),
}


@pytest.mark.parametrize(("content", "message"), BYTES.values(), ids=BYTES)
def test_bytes_of_a_config(content: bytes, message: str, run: Run) -> None:
    Path("config.json").write_bytes(content)
    assert message in refusal(run, "kv", "./config.json")


# --- its fields ---------------------------------------------------------------------------------------

REQUIRED = ("hidden_size", "num_hidden_layers", "num_attention_heads", "vocab_size", "intermediate_size")
COUNTS = (*REQUIRED, "num_key_value_heads", "max_position_embeddings", "head_dim")
WRONG = {
    "negative": -1,
    "zero": 0,
    "fraction": 1.5,
    "float": 64.0,
    "NaN": float("nan"),
    "infinite": float("inf"),
    "huge": 10**30,
    "true": True,
    "text": "64",
    "list": [64],
}


@pytest.mark.parametrize("value", WRONG.values(), ids=WRONG)
@pytest.mark.parametrize("field", COUNTS)
def test_wrong_value_of_a_field(field: str, value: Any, run: Run) -> None:
    Path("config.json").write_text(json.dumps(GOOD | {field: value}))
    assert f"field '{field}' is " in refusal(run, "fit", "./config.json", "--gpu", "l4")


@pytest.mark.parametrize("field", ["model_type", *REQUIRED])
def test_missing_field(field: str, run: Run) -> None:
    Path("config.json").write_text(json.dumps({name: v for name, v in GOOD.items() if name != field}))
    assert f"'{field}' is missing" in refusal(run, "kv", "./config.json")


CHANGES: dict[str, tuple[dict[str, Any], str]] = {
    "kv-heads-do-not-divide": ({"num_key_value_heads": 3}, "does not divide the 4 attention heads"),
    "more-kv-heads-than-heads": ({"num_key_value_heads": 8}, "does not divide the 4 attention heads"),
    "heads-do-not-divide": ({"num_attention_heads": 6}, "not a multiple of the 6"),
    "model-type-unknown": ({"model_type": "lama"}, "did you mean 'llama'?"),
    "model-type-number": ({"model_type": 5}, "'model_type' is 5"),
    "model-type-null": ({"model_type": None}, "'model_type' is missing"),
    "latent-attention": ({"kv_lora_rank": 512}, "latent attention"),
    "experts": ({"num_experts": 8}, "experts"),
    "window": ({"model_type": "mistral", "sliding_window": -1}, "'sliding_window' is -1"),
    "mixed-layers": ({"layer_types": ["full_attention", "chunky"]}, "'layer_types'"),
    "state-space": ({"mamba_d_state": 16}, "state-space"),
    "vision": ({"vision_config": {"hidden_size": 8}}, "vision"),
    "quant-method": ({"quantization_config": {"quant_method": "quark"}}, "'quark'"),
    "quant-method-missing": ({"quantization_config": {"bits": 4}}, "quant_method"),
    "quant-config-a-text": ({"quantization_config": "fp8"}, "an object is accepted"),
    "dtype": ({"torch_dtype": "float8"}, "'torch_dtype' is 'float8'"),
    "dtype-number": ({"torch_dtype": 16}, "'torch_dtype' is 16"),
    "tied-a-text": ({"tie_word_embeddings": "false"}, "true or false is accepted"),
    "two-layer-counts": ({"n_layer": 3}, "disagree"),
}


@pytest.mark.parametrize(("change", "message"), CHANGES.values(), ids=CHANGES)
def test_config_that_is_not_understood(change: dict[str, Any], message: str, run: Run) -> None:
    Path("config.json").write_text(json.dumps(GOOD | change))
    assert message in refusal(run, "kv", "--model-config", "config.json")


# --- where a config.json should be --------------------------------------------------------------------


def fifo() -> None:
    os.mkfifo("x.json")


def huge() -> None:
    Path("x.json").write_bytes(b"[")
    os.truncate("x.json", 1_000_000_000)


PLACES: dict[str, tuple[Callable[[], object], str, str]] = {
    "missing": (lambda: None, "./x.json", "no such file"),
    "missing-absolute": (lambda: None, "/nowhere/x.json", "no such file"),
    "folder-without-one": (lambda: Path("m").mkdir(), "./m", "holds no config.json"),
    "folder-of-the-name": (lambda: Path("x.json").mkdir(), "./x.json", "holds no config.json"),
    "dangling-link": (lambda: os.symlink("gone", "x.json"), "./x.json", "no such file"),
    "link-loop": (lambda: os.symlink("x.json", "x.json"), "./x.json", "levels of symbolic links"),
    "fifo": (fifo, "./x.json", "is not a regular file"),
    "device": (lambda: None, "/dev/zero", "is not a regular file"),
    "gigabyte": (huge, "./x.json", "larger than 5,000,000 bytes"),
    "below-a-file": (lambda: Path("f").write_text("x"), "./f/config.json", "not a directory"),
    "name-too-long": (lambda: None, "./" + "x" * 300, "file name too long"),
    "path-too-long": (lambda: None, "./" + "x/" * 50_000, "file name too long"),
    "nul-in-the-name": (lambda: None, "./a\0b.json", "embedded null byte"),
    "newline-in-the-name": (lambda: None, "./a\nb.json", r"a\\nb.json"),
    "current-folder": (lambda: None, ".", "holds no config.json"),
}


@pytest.mark.parametrize(("make", "path", "message"), PLACES.values(), ids=PLACES)
def test_place_of_a_config(make: Callable[[], object], path: str, message: str, run: Run) -> None:
    make()
    assert message.replace(r"\\", "\\") in refusal(run, "kv", path)
    assert message.replace(r"\\", "\\") in refusal(run, "kv", "--model-config", path)


# --- names, units and options -------------------------------------------------------------------------

NAMES: dict[str, tuple[tuple[str, ...], str]] = {
    "command": (("fti",), "unknown command 'fti'; did you mean 'fit'?"),
    "command-far": (("zzz",), "unknown command 'zzz' (capplan --help)"),
    "command-upper": (("FIT",), "did you mean 'fit'?"),
    "command-empty": (("",), "unknown command ''"),
    "command-ansi": (("\x1b[2J",), r"unknown command '\x1b[2J'"),
    "command-long": (("x" * 100_000,), "unknown command"),
    "model": (("kv", "lama-3.3-70b"), "did you mean 'llama-3.3-70b'"),
    "model-far": (("kv", "zzz"), "unknown model 'zzz' (capplan models)"),
    "model-hub": (("kv", "meta-llama/Llama-3.9-70B"), "did you mean 'meta-llama/Llama-3.3-70B'"),
    "model-empty": (("kv", ""), "unknown model ''"),
    "model-blank": (("kv", "  "), "unknown model '  '"),
    "model-newline": (("kv", "a\nb"), r"unknown model 'a\nb'"),
    "model-ansi": (("kv", "\x1b[31mred\x1b[0m"), r"\x1b[31mred"),
    "model-bell": (("kv", "\a\b\r"), r"\x07\x08\r"),
    "model-right-to-left": (("kv", "\u202egpj"), r"\u202e"),
    "model-nul": (("kv", "a\0b"), r"a\x00b"),
    "model-surrogate": (("kv", "\udcff"), r"\udcff"),
    "model-long": (("kv", "x" * 100_000), "unknown model"),
    "model-path-of-rows": (("kv", "../models/specs/70b-class"), "no such file"),
    "gpu": ((*FIT[:-1], "h20O"), "unknown gpu 'h20O'; did you mean 'h20' or 'h200'?"),
    "gpu-far": ((*FIT[:-1], "abacus"), "unknown gpu 'abacus' (capplan gpus)"),
    "gpu-empty": ((*FIT[:-1], ""), "unknown gpu ''"),
    "gpu-path": ((*FIT[:-1], "../gpus/l4"), "unknown gpu"),
    "gpu-slash": ((*FIT[:-1], "/"), "unknown gpu '/'"),
    "gpu-dots": ((*FIT[:-1], ".."), "unknown gpu '..'"),
    "gpu-long": ((*FIT[:-1], "x" * 100_000), "unknown gpu"),
    "gpu-and-model-swapped": (("fit", "h200", "--gpu", "llama-3.1-8b"), "unknown model 'h200'"),
    "gpus-name": (("gpus", "l40x"), "unknown gpu 'l40x'; did you mean 'l40"),
    "weights": ((*FIT, "--weights", "fp9"), "unknown weights 'fp9'; did you mean 'fp8'"),
    "weights-gguf": ((*FIT, "--weights", "q4_k_m"), "one of fp32, bf16"),
    "weights-empty": ((*FIT, "--weights", ""), "unknown weights ''"),
    "kv": ((*FIT, "--kv", "fp8x"), "unknown kv precision 'fp8x'; did you mean 'fp8'"),
    "kv-empty": ((*FIT, "--kv", ""), "unknown kv precision ''"),
    "tier": ((*FIT, "--tier", "engin"), "unknown tier 'engin'; one of whiteboard, engine, measured"),
    "tier-empty": ((*FIT, "--tier", ""), "unknown tier ''"),
    "tier-measured": ((*FIT, "--tier", "measured"), "needs a calibration file"),
    "dtype": (("gpus", "--dtype", "fp9"), "unknown dtype 'fp9'; did you mean 'fp8'"),
    "dtype-empty": (("gpus", "--dtype", ""), "unknown dtype ''"),
    "sort": (("gpus", "--sort", "bandwith"), "unknown sort key 'bandwith'; did you mean 'bandwidth'?"),
    "sort-empty": (("gpus", "--sort", ""), "unknown sort key ''"),
    "formula": (("explain", "kv_token"), "unknown formula 'kv_token'; did you mean 'kv_tokens'"),
    "formula-empty": (("explain", ""), "unknown formula ''"),
    "schema": (("schema", "fti"), "unknown answer 'fti'; did you mean 'fit'?"),
    "schema-empty": (("schema", ""), "unknown answer ''"),
}


@pytest.mark.parametrize(("args", "message"), NAMES.values(), ids=NAMES)
def test_unknown_name(args: tuple[str, ...], message: str, run: Run) -> None:
    assert message in refusal(run, *args)


SIZES = ("", " ", "-1GiB", "−1GiB", "x", "inf", "nan", "4G", "4Gb", "80gb", "4", "80", "4GiB/s", "4 tokens", "1,5GB",
         "1e999", "4GiBB", "GiB", "0x10", "4;8", "\x1b[0m", "4\n8", "4" * 100_000, "--json", "１GB")  # fmt: skip
LENGTHS = ("", " ", "0", "-5", "1.5", "8,000", "8kk", "8k,", ",8k", "8k,,32k", "8k;32k", "8K i", "8GB", "nan",
           "inf", "1e30", "1e999", "10**3", "8k-32k", "all", "8k\x1b[0m", "8k,\n", "9" * 100_000, "--json",
           "8k," * 5_000, "1k..", "..8k", "8k..1k", "0..8k", "1k..8k..9k", "1k..1e30", "a..b")  # fmt: skip
SHARES = ("", " ", "0", "-0.5", "-50%", "50", "101%", "2", "inf", "nan", "1e-300", "1e-30", "half", "50 percent",
          "50%%", "5GB", "0,5", "1/2", "\n", "0." + "9" * 100_000)  # fmt: skip


def short_id(text: str) -> str:
    return repr(text[:12])


@pytest.mark.parametrize("text", SIZES, ids=short_id)
@pytest.mark.parametrize(
    "command", [(*FIT, "--reserve"), ("gpus", "--min-memory")], ids=["reserve", "min-memory"]
)
def test_size_that_is_none(command: tuple[str, ...], text: str, run: Run) -> None:
    assert refusal(run, *command, text).startswith(f"{command[-1]}: ")


@pytest.mark.parametrize("text", LENGTHS, ids=short_id)
def test_context_that_is_none(text: str, run: Run) -> None:
    assert "context" in refusal(run, *FIT, "--context", text)


@pytest.mark.parametrize("text", SHARES, ids=short_id)
def test_utilisation_that_is_none(text: str, run: Run) -> None:
    assert "utilisation" in refusal(run, *PREFILL, "--utilisation", text)


OPTIONS: dict[str, tuple[tuple[str, ...], str]] = {
    "json-csv": ((*FIT, "--json", "--csv"), "--json and --csv exclude each other"),
    "json-explain": ((*FIT, "--json", "--explain"), "--json and --explain exclude"),
    "csv-explain": ((*FIT, "--csv", "--explain"), "--csv and --explain exclude"),
    "three-forms": ((*FIT, "--csv", "--explain", "--json"), "exclude each other"),
    "markdown-json": ((*BOARD, "--markdown", "--json"), "--json and --markdown exclude"),
    "markdown-bad-plot": ((*BOARD, "--markdown", "--plot", "x.pdf"), "must end in .svg or .png"),
    "two-models": ((*FIT, "qwen3-8b"), "unexpected extra argument(s) (qwen3-8b)"),
    "model-and-config": ((*FIT, "--model-config", "x"), "a model is named twice"),
    "config-empty": (("kv", "--model-config", ""), "--model-config is empty"),
    "no-model": (("kv",), "no model given"),
    "no-gpu": (("fit", "llama-3.1-8b"), "missing option '--gpu'"),
    "nothing-at-all": (("fit",), "missing option '--gpu'"),
    "gpu-without-value": (("fit", "llama-3.1-8b", "--gpu"), "'--gpu' requires an argument"),
    "gpu-takes-the-next": (("fit", "llama-3.1-8b", "--gpu", "--json"), "unknown gpu '--json'"),
    "one-gpu-and-filter": (("gpus", "l4", "--filter", "x"), "does not go with one GPU"),
    "one-gpu-and-sort": (("gpus", "l4", "--sort", "price"), "does not go with one GPU"),
    "one-gpu-and-dtype": (("gpus", "l4", "--dtype", ""), "does not go with one GPU"),
    "one-gpu-and-memory": (("gpus", "l4", "--min-memory", "1GB"), "does not go with one GPU"),
    "one-model-and-filter": (("models", "llama-3.1-8b", "--filter", "x"), "does not go with one model"),
    "option-mistyped": ((*FIT, "--wieghts", "fp8"), "no such option: --wieghts (Possible options: --weights)"),
    "option-american": ((*PREFILL, "--utilization", "50%"), "--utilisation"),
    "option-of-another": (("kv", "llama-3.1-8b", "--gpu", "l4"), "no such option: --gpu"),
    "option-before": (("--gpu", "l4", "fit", "llama-3.1-8b"), "no such option: --gpu"),
    "option-short": ((*FIT, "-w"), "no such option: -w"),
    "option-long": ((*FIT, "--" + "x" * 100_000), "no such option"),
    "option-ansi": ((*FIT, "--\x1b[31m"), r"no such option: --\x1b[31m"),
    "flag-with-value": ((*FIT, "--json=yes"), "does not take a value"),
    "ops-has-no-plot": (("ops", *PREFILL[1:], "--plot", "x.svg"), "no such option: --plot"),
    "one-of-two-models": (("kv", "llama-3.1-8b", "nope"), "unknown model 'nope'"),
    "one-of-two-models-empty": (("kv", "", "llama-3.1-8b"), "unknown model ''"),
    "schema-extra": (("schema", "fit", "kv"), "unexpected extra argument"),
    "after-the-dashes": (("kv", "--", "--json"), "unknown model '--json'"),
    "version-of": (("version",), "unknown command 'version'"),
}  # fmt: skip


@pytest.mark.parametrize(("args", "message"), OPTIONS.values(), ids=OPTIONS)
def test_wrong_option(args: tuple[str, ...], message: str, run: Run) -> None:
    assert message in refusal(run, *args)


# --- through a process of its own ---------------------------------------------------------------------

PROCESSES: dict[str, tuple[tuple[str, ...], str]] = {
    "model": (("kv", "lama-3.1-8b"), "unknown model 'lama-3.1-8b'"),
    "bytes-that-are-no-text": (("kv", os.fsdecode(b"\xff\xfe")), r"unknown model '\udcff\udcfe'"),
    "usage": (("fit",), "missing option '--gpu'"),
    "config": (("kv", "/dev/null"), "is not a regular file"),
    "size": ((*FIT, "--reserve", "4"), "write 4GiB"),
    "plot": ((*FIT, "--plot", "x.gif"), "must end in .svg or .png"),
}


@pytest.mark.parametrize(("args", "message"), PROCESSES.values(), ids=PROCESSES)
def test_in_a_process(args: tuple[str, ...], message: str, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "capplan", *args]
    env = os.environ | {"PYTHONPATH": str(ROOT), "CAPPLAN_DATA": str(tmp_path)}
    done = subprocess.run(
        command, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)
    assert done.stderr.startswith("error: ")
    assert message in done.stderr
    assert not list(tmp_path.iterdir())
