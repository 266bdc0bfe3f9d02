"""The command line: one envelope, one table of exit codes, answers on stdout and all else on stderr."""

import csv
import io
import json
import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from capplan import __version__
from capplan.__main__ import main
from capplan.cli.app import COMMANDS

Run = Callable[..., tuple[int, str, str]]
ROOT = Path(__file__).parent.parent
LLAMA = ("llama-3.3-70b", "--gpu", "h200-sxm", "--weights", "fp8", "--kv", "fp16")

DEPLOYED = ("model", "gpu", "engine", "engine_version", "deployment", "tier", "calibration")
SERVED = ("isl", "osl", "concurrency", "tier")

# command -> its arguments, the schema it prints, the keys of its inputs
ENVELOPES: dict[str, tuple[tuple[str, ...], str, set[str]]] = {
    "kv": (("kv", "llama-3.3-70b"), "kv", {"model", "kv", "contexts", "tier", "tp"}),
    "fit": (("fit", *LLAMA), "fit", {"model", "gpu", "weights", "kv", "contexts", "reserve_bytes", "tier"}),
    "roofline": (
        ("roofline", *LLAMA),
        "roofline",
        {"model", "gpu", "weights", "kv", "contexts", "reserve_bytes", "tier"},
    ),
    "prefill": (
        ("prefill", *LLAMA[:5]),
        "prefill",
        {*DEPLOYED, "weights", "contexts", "utilisation"},
    ),
    "prefill-by-utilisation": (
        ("prefill", *LLAMA[:5], "--utilisation", "50%"),
        "prefill",
        {"model", "gpu", "weights", "contexts", "utilisation", "tier"},
    ),
    "decode": (("decode", *LLAMA[:5]), "decode", {*DEPLOYED, "batches", "contexts"}),
    "ops": (("ops", *LLAMA[:5]), "ops", {*DEPLOYED, "batch", "context", "prompt"}),
    "whiteboard": (
        ("whiteboard", *LLAMA),
        "whiteboard",
        {"model", "gpu", "weights", "kv", "contexts", "reserve_bytes", "tier"},
    ),
    "perf": (("perf", *LLAMA[:5]), "perf", {*DEPLOYED, *SERVED}),
    "compare": (
        ("compare", "llama-3.3-70b", "--gpus", "h200,b200"),
        "compare",
        {*DEPLOYED, *SERVED, "gpus", "tensor_parallel_size", "calibrations"} - {"gpu", "calibration"},
    ),
    "simulate": (
        ("simulate", *LLAMA[:5], "--rate", "1", "--requests", "20"),
        "simulate",
        {
            *DEPLOYED,
            *("isl", "osl", "cv", "requests", "seed", "rate_per_s", "concurrency", "timeout_s", "scheduler"),
            *(
                "chunked",
                "long_prefill_token_threshold",
                "preemption",
                "watermark",
                "speculated",
                "acceptance",
                "draft_cost",
                "instances",
            ),
            *("pools", "link", "warm_up", "prefix_caching", "routing"),
        },
    ),
    "gpus": (("gpus",), "gpus", {"containing", "dtype", "min_memory_bytes", "sort"}),
    "gpu": (("gpus", "h200-sxm"), "gpu", {"gpu"}),
    "models": (("models",), "models", {"containing"}),
    "model": (("models", "llama-3.3-70b"), "model", {"model"}),
    "explain": (("explain",), "explain", {"name"}),
    "formula": (("explain", "kv_tokens"), "explain", {"name"}),
}


def answer(run: Run, *args: str, code: int = 0) -> dict[str, Any]:
    """What --json prints, parsed strictly."""
    found, out, _ = run(*args, "--json")
    assert found == code
    document = json.loads(out, parse_constant=lambda word: pytest.fail(f"{word} in JSON"))
    assert isinstance(document, dict)
    return document


def numbers(value: Any) -> Iterator[float]:
    if isinstance(value, dict):
        for item in value.values():
            yield from numbers(item)
    elif isinstance(value, list):
        for item in value:
            yield from numbers(item)
    elif isinstance(value, float):
        yield value


# --- JSON ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("args", "name", "inputs"), ENVELOPES.values(), ids=ENVELOPES)
def test_envelope(args: tuple[str, ...], name: str, inputs: set[str], run: Run) -> None:
    document = answer(run, *args)
    assert list(document) == ["schema", "capplan", "inputs", "result", "assumptions", "warnings"]
    assert document["schema"] == f"capplan/{name}/1"
    assert document["capplan"] == __version__
    assert set(document["inputs"]) == inputs


@pytest.mark.parametrize(("args", "_name", "_inputs"), ENVELOPES.values(), ids=ENVELOPES)
def test_whole_floats_are_printed_as_integers(
    args: tuple[str, ...], _name: str, _inputs: set[str], run: Run
) -> None:
    found = list(numbers(answer(run, *args)))
    assert not [x for x in found if x.is_integer() and abs(x) < 2**53]
    assert all(math.isfinite(x) for x in found)


def test_inputs_say_what_was_understood(run: Run) -> None:
    document = answer(run, "fit", "LLAMA-3.1-8B", "--gpu", "H200", "--kv", "float16", "--context", "2k,1k")
    assert document["inputs"] == {
        "model": "llama-3.1-8b",
        "gpu": "h200-sxm",
        "weights": "bf16",
        "kv": "fp16",
        "contexts": [1000, 2000],
        "reserve_bytes": 4 * 2**30,
        "tier": "engine",
    }


def test_flags_as_vllm_spells_them(run: Run) -> None:
    line = ("fit", "llama-3.1-8b", "--gpu", "h100", "--engine", "vllm")
    ours = answer(run, *line, "--tp", "2", "--kv", "fp8", "--weights", "fp8", "--ep")
    theirs = answer(
        run,
        *line,
        *("--tensor-parallel-size=2", "--kv-cache-dtype", "fp8", "--quantization", "fp8"),
        "--enable-expert-parallel",
    )
    assert theirs == ours


def test_results_are_in_base_units(run: Run) -> None:
    result = answer(run, "fit", *LLAMA, "--tier", "whiteboard")["result"]
    assert result["memory_bytes"] == 141e9
    assert result["kv_bytes_per_token"] == 2 * 80 * 8 * 128 * 2
    result = answer(run, "roofline", *LLAMA)["result"]
    assert result["peak_flops_per_s"] == 1979e12
    assert result["bandwidth_bytes_per_s"] == 4.8e12


# --- CSV, --explain, text -----------------------------------------------------------------------------

PARTS = (
    *("attention_s", "projections_s", "experts_s", "head_s", "elementwise_s", "collectives_s", "fixed_s"),
)
LIMITS = ("bound_by", "compute_s", "memory_s", "latency_s", "link_s")
SWEEPS = {
    ("kv", "llama-3.3-70b"): ["context", "kv_bytes_per_request"],
    ("fit", *LLAMA): ["context", "concurrency", "requests", "gpus_for_one_request"],
    ("prefill", *LLAMA[:5], "--utilisation", "50%"): [
        *("prompt", "linear_flops", "attention_flops", "attention_over_linear"),
        *("linear_peak_s", "peak_s", "linear_s", "time_s"),
    ],
    ("prefill", *LLAMA[:5], "--tp", "1"): [
        *("prompt", "linear_flops", "attention_flops", "attention_over_linear"),
        *("linear_peak_s", "peak_s", "linear_s", "time_s", "low_s", "high_s", "ttft_s", "passes"),
        *PARTS,
        *(*LIMITS, "utilisation", "fits"),
    ],
    ("decode", *LLAMA[:5], "--batch", "8"): [
        *("context", "batch", "fits", "most_batch", "most_by", "time_s", "low_s", "high_s"),
        *PARTS,
        *(*LIMITS, "tokens_per_s", "tokens_per_s_per_gpu", "tokens_per_s_per_user"),
        *("weight_bytes_read", "cache_bytes_read", "floor_s", "time_over_floor"),
    ],
}


@pytest.mark.parametrize(("args", "heads"), SWEEPS.items(), ids=[args[0] + args[-1] for args in SWEEPS])
def test_csv_has_a_row_a_context(args: tuple[str, ...], heads: list[str], run: Run) -> None:
    code, out, _ = run(*args, "--csv", "--context", "8k,32k", "--context", "100k")
    rows = list(csv.DictReader(io.StringIO(out)))
    assert code == 0
    assert list(rows[0]) == heads
    assert [row[heads[0]] for row in rows] == ["8000", "32000", "100000"]


def test_csv_has_the_figures_of_the_json(run: Run) -> None:
    args = ("roofline", *LLAMA, "--context", "8k,32k")
    rows = list(csv.DictReader(io.StringIO(run(*args, "--csv")[1])))
    at = answer(run, *args)["result"]["at"]
    assert rows == [{name: str(value) for name, value in row.items()} for row in at]


def test_csv_of_the_registries(run: Run) -> None:
    for command in ("gpus", "models"):
        rows = list(csv.DictReader(io.StringIO(run(command, "--csv")[1])))
        assert [row["id"] for row in rows] == [row["id"] for row in answer(run, command)["result"][command]]
    assert run("gpus", "--filter", "nothing like it", "--csv") == (0, "", "")


def test_explain_shows_formula_numbers_result_and_source(run: Run) -> None:
    _, out, _ = run("fit", *LLAMA, "--tier", "whiteboard", "--explain")
    assert "kv_budget: Memory left for the KV cache" in out
    assert "= memory - weight_bytes - reserve" in out
    # 141 GB - 70.55 GB - 4 GiB
    left = 141e9 - 70_553_706_496 - 4 * 2**30
    assert f"= 141 GB - 70.5537 GB - 4.29497 GB = {left / 1e9:.4f} GB = {left / 2**30:.2f} GiB" in out
    assert "source: the budget identity of PagedAttention engines" in out
    assert "NVIDIA H200 SXM 141GB, vendor page or datasheet, checked 2026-" in out


def test_explain_says_why_an_h200_has_139_gib_and_not_131(run: Run) -> None:
    result = answer(run, "fit", *LLAMA)["result"]
    assert 139.7 <= result["memory_bytes"] / 2**30 <= 139.8
    assert result["memory_label_bytes"] / 2**30 == pytest.approx(131.3, abs=0.05)
    _, out, _ = run("fit", *LLAMA, "--explain")
    assert "139.8 GiB is what a process sees, not the 131.3 GiB of 141 decimal GB" in out
    assert "the label counts GiB and calls them GB" in out


def test_memory_that_nobody_measured_is_not_called_visible(run: Run) -> None:
    for gpu, used in {
        "gaudi3": "the driver's figure is used",
        "apple-m3-ultra": "the label in decimal GB",
    }.items():
        _, out, _ = run("fit", "qwen3-0.6b", "--gpu", gpu)
        assert "visible to a process" not in out.partition("assumed")[0]
        assert used in out.partition("assumed")[2]


def test_schema_lists_and_explain_lists(run: Run) -> None:
    assert {"kv", "fit", "whiteboard", "gpu", "model"} <= set(run("schema")[1].split())
    assert "decode_intensity_ceiling" in run("explain")[1]


# --- exit codes ---------------------------------------------------------------------------------------

CODES = {
    "fits": (("fit", *LLAMA), 0),
    "does-not-fit": (("fit", "llama-3.3-70b", "--gpu", "l4"), 1),
    "one-context-does-not-fit": (("fit", "llama-3.1-8b", "--gpu", "l4", "--context", "8k,128k"), 1),
    "only-the-first-usual-context-counts": (("fit", "llama-3.1-8b", "--gpu", "l4"), 0),
    "reserve-takes-it-all": (("fit", "llama-3.1-8b", "--gpu", "l4", "--reserve", "8GiB"), 1),
    "whiteboard-does-not-fit": (("whiteboard", "llama-3.3-70b", "--gpu", "l4"), 1),
    "whiteboard-named-context": (("whiteboard", *LLAMA, "--context", "8k,400k"), 1),
    "whiteboard-markdown": (("whiteboard", "llama-3.3-70b", "--gpu", "l4", "--markdown"), 1),
    "roofline-answers": (("roofline", "llama-3.3-70b", "--gpu", "l4"), 0),
    "kv-answers": (("kv", "llama-3.3-70b"), 0),
    "bad-usage": (("fit",), 2),
    "bad-name": (("kv", "x"), 2),
}


@pytest.mark.parametrize(("args", "code"), CODES.values(), ids=CODES)
def test_exit_code(args: tuple[str, ...], code: int, run: Run) -> None:
    assert run(*args)[0] == code


def test_exit_code_is_the_same_in_every_form(run: Run) -> None:
    for form in ("--json", "--csv", "--explain"):
        assert run("fit", "llama-3.3-70b", "--gpu", "l4", form)[0] == 1


def test_interrupted(monkeypatch: pytest.MonkeyPatch, run: Run) -> None:
    def interrupt(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("capplan.capacity.questions.kv.kv", interrupt)
    assert run("kv", "llama-3.3-70b") == (130, "", "")


def test_a_mistake_of_ours_is_one_line(monkeypatch: pytest.MonkeyPatch, run: Run) -> None:
    def mistake(*_: object, **__: object) -> None:
        raise KeyError("x\ny")

    monkeypatch.setattr("capplan.capacity.questions.kv.kv", mistake)
    assert run("kv", "llama-3.3-70b") == (
        2,
        "",
        "error: internal error: KeyError('x\\ny'); --debug shows where\n",
    )


def test_debug_gives_the_traceback_anywhere_on_the_line() -> None:
    for args in (("--debug", "kv", "x"), ("kv", "--debug", "x"), ("kv", "x", "--debug")):
        with pytest.raises(LookupError, match="unknown model 'x'"):
            main(args)


# --- stdout and stderr --------------------------------------------------------------------------------


def test_what_was_understood_goes_to_stderr(run: Run) -> None:
    _, out, err = run("fit", *LLAMA, "--context", "8k,16Ki", "--reserve", "4GB")
    assert err == (
        "note: --context 8k: 8,000 tokens; write 8Ki for 8,192\n"
        "note: --reserve 4GB: 4 GB is 3.725 GiB\n"
    )  # fmt: skip
    assert "note:" not in out
    assert "8Ki" not in out


def test_json_is_alone_on_stdout(run: Run) -> None:
    _, out, err = run("fit", *LLAMA, "--context", "8k", "--json")
    assert out.startswith("{")
    assert out.endswith("}\n")
    assert err.startswith("note: ")


@pytest.mark.parametrize("args", [entry[0] for entry in ENVELOPES.values()], ids=ENVELOPES)
def test_no_escape_codes_where_nobody_looks(args: tuple[str, ...], run: Run) -> None:
    code, out, err = run(*args)
    assert (code, err) == (0, "")
    assert "\x1b" not in out
    assert out.isascii()


# --- help ---------------------------------------------------------------------------------------------


def test_alone_it_prints_help(run: Run) -> None:
    code, out, err = run()
    assert (code, err) == (0, "")
    for command in COMMANDS:
        assert f"  {command} " in out
    assert run("--help")[1] == run("-h")[1] == out


@pytest.mark.parametrize("command", COMMANDS)
def test_help_has_a_summary_and_two_examples(command: str, run: Run) -> None:
    code, out, _ = run(command, "--help")
    paragraphs = [p.strip() for p in out.split("\n\n")]
    assert code == 0
    assert paragraphs[0].startswith(f"Usage: capplan {command}")
    assert "\n" not in paragraphs[1]
    assert paragraphs[1].endswith(".")
    assert all(example.startswith(f"capplan {command}") for example in paragraphs[2:4])
    assert run(command, "-h")[1] == out


@pytest.mark.parametrize("command", COMMANDS)
def test_examples_of_the_help_run(command: str, run: Run) -> None:
    if command == "probe":
        pytest.importorskip("torch", reason="what probes need is an extra")
    rows = ("vllm_allocator.csv", "engine_memory.csv", "serving_benchmark.csv")
    for name in ("llama-3.1-70b/config.json", "vllm-startup.log", *rows):
        (Path.cwd() / Path(name).name).write_bytes((ROOT / "examples" / name).read_bytes())
    paragraphs = [" ".join(p.split()) for p in run(command, "--help")[1].split("\n\n")]
    for example in paragraphs[2:4]:
        assert run(*example.split()[1:])[0] in (0, 1), example


def test_version(run: Run) -> None:
    assert run("--version") == (0, f"capplan {__version__}\n", "")


# --- naming a model -----------------------------------------------------------------------------------


def test_names_are_read_in_any_case_and_aliases_too(run: Run) -> None:
    plain = run("fit", "llama-3.3-70b", "--gpu", "h200-sxm")
    assert run("fit", "Llama-3.3-70B", "--gpu", "H200-SXM") == plain
    assert run("fit", "meta-llama/Llama-3.3-70B-Instruct", "--gpu", "nvidia h200") == plain
    assert run("fit", "llama-3.3-70b", "--gpu", "h200", "--weights", "BF16", "--kv", "AUTO") == plain
    assert run("gpus", "--dtype", "FP8", "--sort", "Bandwidth") == run(
        "gpus", "--dtype", "fp8", "--sort", "bandwidth"
    )


def test_a_registry_name_wins_over_a_file(run: Run) -> None:
    config = json.loads((ROOT / "examples/llama-3.1-70b/config.json").read_text())
    Path("llama-3.3-70b").write_text(json.dumps(config | {"num_hidden_layers": 40}))
    for args, layers in {
        ("llama-3.3-70b",): 80,
        ("./llama-3.3-70b",): 40,
        ("--model-config", "llama-3.3-70b"): 40,
    }.items():
        assert answer(run, "kv", *args)["result"]["kv_bytes_per_token"] == 2 * layers * 8 * 128 * 2


def test_a_config_by_file_or_by_folder(run: Run) -> None:
    folder = str(ROOT / "examples" / "llama-3.1-70b")
    found = answer(run, "kv", folder)
    assert found["inputs"]["model"] == "llama-3.1-70b"
    assert found["result"]["params_total"] == 70_553_706_496
    assert answer(run, "kv", folder + "/config.json") == found
    assert answer(run, "kv", "--model-config", folder) == found


def test_contexts_are_sorted_and_named_once(run: Run) -> None:
    asked = ("--context", "32k,8k", "--context", "8000", "--context", "64k")
    assert answer(run, "kv", "llama-3.3-70b", *asked)["inputs"]["contexts"] == [8000, 32000, 64000]


def test_a_range_of_contexts_doubles(run: Run) -> None:
    asked = ("--context", "1k..6k")
    assert answer(run, "kv", "llama-3.3-70b", *asked)["inputs"]["contexts"] == [1000, 2000, 4000, 6000]


def test_models_side_by_side_are_each_as_alone(run: Run) -> None:
    names = ["llama-3.3-70b", "qwen3-8b"]
    together = answer(run, "kv", *names, "--context", "8k")["result"]["models"]
    assert [each["model"] for each in together] == names
    for each in together:
        alone = answer(run, "kv", each["model"], "--context", "8k")["result"]
        assert {name: each[name] for name in alone} == alone


def test_a_context_past_the_models_own_is_warned_of(run: Run) -> None:
    document = answer(run, "kv", "llama-3.3-70b", "--context", "200k")
    (warning,) = document["warnings"]
    assert "200,000 tokens" in warning
    assert "past the 131,072 that llama-3.3-70b was made for" in warning
