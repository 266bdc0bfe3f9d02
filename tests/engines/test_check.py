"""`capplan check`: a log beside its prediction, and what is made of a difference."""

import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from capplan.capacity.questions.check import Check, check
from capplan.errors import DataFileError, InputError, UnknownNameError

Run = Callable[..., tuple[int, str, str]]

STARTUPS = Path(__file__).parent / "startups"
FILES = sorted(path.stem for path in STARTUPS.iterdir())
LLAMA = (STARTUPS / "vllm-0.19.0.log").read_text()


def asked(text: str, **given: Any) -> Check:
    given.setdefault("gpu", "h100")
    return check(io.BytesIO(text.encode()), **given)


def verdicts(found: Check) -> dict[str, str]:
    return {line["name"]: line["verdict"] for line in found.lines}


def why(found: Check, name: str) -> str:
    return next(str(line["why"]) for line in found.lines if line["name"] == name)


@pytest.mark.parametrize("name", FILES)
def test_starts_as_predicted(name: str) -> None:
    found = check(STARTUPS / f"{name}.log", gpu="h100")
    assert set(verdicts(found).values()) == {"agrees"}
    assert (found.started, found.predicted_to_start, found.consistent, found.unexplained) == (
        True,
        True,
        True,
        0,
    )
    assert found.warnings == ()


def test_tokens_follow_from_the_memory_to_the_block() -> None:
    found = asked(LLAMA)
    assert why(found, "KV tokens") == "exact, given the KV memory of the log"
    off = asked(LLAMA.replace("456,368 tokens", "356,368 tokens"))
    assert verdicts(off)["KV tokens"] == "unexplained"
    assert "456," in why(off, "KV tokens")
    assert (off.unexplained, off.consistent) == (1, False)


def test_gpu_and_version_out_of_the_log() -> None:
    found = check(STARTUPS / "vllm-0.19.0.log")
    assert (found.inputs["gpu"], found.engine_version) == ("h100-sxm", "0.19.0")
    assert found.consistent


def test_another_card_than_named() -> None:
    found = asked(LLAMA, gpu="a100-40gb")
    assert verdicts(found)["memory"] == "unexplained"
    assert why(found, "memory") == "another card than named, or a part of one"
    assert not found.consistent


def test_what_is_given_wins_over_the_log() -> None:
    found = asked(LLAMA, flags={"gpu_memory_utilization": 0.5, "version": "0.24.0"})
    assert found.engine_version == "0.24.0"
    assert verdicts(found)["KV memory"] == "unexplained"
    with pytest.raises(InputError, match="unknown flag 'gmu'"):
        asked(LLAMA, flags={"gmu": 0.5})


@pytest.mark.parametrize(
    ("flag", "value"),
    [
        *(("tensor_parallel_size", 0), ("tensor_parallel_size", 2000), ("max_model_len", -1)),
        *(("block_size", 1.5), ("gpu_memory_utilization", 90.0), ("gpu_memory_utilization", float("nan"))),
    ],
)
def test_given_flags_out_of_bounds(flag: str, value: float) -> None:
    with pytest.raises(InputError, match=f"{flag} .* is not"):
        asked(LLAMA, flags={flag: value})


def test_a_pool_that_is_pinned() -> None:
    pinned = LLAMA.replace(
        "'max_model_len': 8192,", "'max_model_len': 8192, 'num_gpu_blocks_override': 4096,"
    )
    pinned = pinned.replace("456,368 tokens", "65,536 tokens").replace("55.71x", "8.00x")
    found = asked(pinned)
    assert verdicts(found)["KV tokens"] == verdicts(found)["concurrency"] == "explained"
    assert why(found, "KV tokens") == "the pool is pinned by num_gpu_blocks_override"
    assert found.consistent


def test_a_difference_that_follows_from_another() -> None:
    heavier = LLAMA.replace("14.99 GiB", "29.98 GiB").replace("55.71 GiB", "40.72 GiB")
    heavier = heavier.replace("456,368", "333,584").replace("55.71x", "40.72x")
    found = asked(heavier)
    assert verdicts(found)["weights"] == "unexplained"
    assert verdicts(found)["KV memory"] == "explained"
    assert why(found, "KV memory").startswith("given the weights and activations of the log it is 40.7")
    assert verdicts(found)["KV tokens"] == "agrees"


NO_ROOM = """\
INFO [utils.py:233] non-default args: {'model': 'meta-llama/Llama-3.3-70B-Instruct', 'max_model_len': 8192}
INFO [core.py:106] Initializing a V1 LLM engine (v0.19.0) with config: model='meta-llama/Llama-3.3-70B-Instruct', \
max_seq_len=8192, tensor_parallel_size=1, kv_cache_dtype=auto
"""


def test_a_failure_that_was_foreseen() -> None:
    found = asked(NO_ROOM + "ERROR ValueError: No available memory for the cache blocks. Try increasing\n")
    assert (found.started, found.predicted_to_start, found.start_verdict) == (False, False, "agrees")
    assert not found.consistent  # exit 1: it did not start
    assert "did not start" in found.report().headline


def test_the_cause_counts_not_the_line_before_it() -> None:
    told = (
        "ERROR EngineCore failed to start.\nERROR ValueError: No available memory for the cache blocks. x\n"
    )
    found = asked(NO_ROOM + told)
    assert [each["kind"] for each in found.failures] == ["no_memory_for_cache", "other"]
    assert found.start_verdict == "agrees"


def test_a_start_after_one_that_failed() -> None:
    taken = "ValueError: Free memory on device (9.1/79.19 GiB) on startup is less than desired GPU memory utilization\n"
    first = "".join(LLAMA.splitlines(True)[:2])
    found = asked(first + taken + LLAMA)
    assert (found.read["starts"], found.failures, found.started) == (2, (), True)
    assert found.consistent


def test_a_failure_of_another_kind() -> None:
    taken = "ValueError: Free memory on device (9.1/79.19 GiB) on startup is less than desired GPU memory utilization\n"
    found = asked(LLAMA[: LLAMA.index("(EngineCore pid=30) INFO 04-11 12:00:31")] + taken)
    assert (found.started, found.start_verdict) == (False, "explained")
    assert found.start_why == "other processes hold memory that it was told to use"


def test_out_of_memory_once_the_pool_is_taken() -> None:
    head = LLAMA[: LLAMA.index("(EngineCore pid=30) INFO 04-11 12:01:21")]
    found = asked(head + "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.50 GiB. x\n")
    assert (found.started, found.start_verdict) == (False, "explained")
    assert "CUDA graphs" in found.start_why


def test_a_start_that_was_not_foreseen() -> None:
    found = asked(NO_ROOM + "INFO GPU KV cache size: 100,000 tokens\n")
    assert (found.started, found.start_verdict) == (True, "unexplained")
    assert not found.consistent


def test_a_log_that_ends_too_soon() -> None:
    found = asked(NO_ROOM)
    assert (found.started, found.start_why) == (None, "the log ends before it says")
    assert not found.consistent  # nothing to compare


def test_without_a_model_what_was_read_is_told_all_the_same() -> None:
    found = asked(LLAMA.replace("meta-llama/Llama-3.1-8B-Instruct", "/data/no-such-thing"))
    assert set(verdicts(found).values()) == {"not predicted"}
    assert "give it with --model" in found.warnings[0]
    assert not found.consistent
    named = asked(
        LLAMA.replace("meta-llama/Llama-3.1-8B-Instruct", "/data/no-such-thing"), model="llama-3.1-8b"
    )
    assert named.consistent


@pytest.mark.parametrize("path", ["./config.json", "/etc/passwd", "../x.gguf", "someone/no-such-model"])
def test_a_name_out_of_a_log_is_never_a_path_nor_asked_of_the_hub(
    path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def never(*_: object) -> None:
        raise AssertionError("a model was looked for outside of the registry")

    monkeypatch.setattr("capplan.models.registry._read", never)
    monkeypatch.setattr("capplan.models.registry._of_hub", never)
    found = asked(LLAMA.replace("meta-llama/Llama-3.1-8B-Instruct", path))
    assert found.warnings


def test_without_a_gpu_the_memory_of_the_log_is_taken() -> None:
    unnamed = LLAMA.replace("device_name=NVIDIA_H100_80GB_HBM3", "")
    found = check(io.BytesIO(unnamed.encode()))
    assert (found.inputs["gpu"], found.consistent) == (None, True)
    assert any("names no GPU" in text for text in found.assumptions)


@pytest.mark.parametrize("name", ["NVIDIA_H100_80GB_HBM3_MIG_3g.40gb", "NVIDIA_Nonesuch_9000"])
def test_a_gpu_that_is_not_known(name: str) -> None:
    found = check(io.BytesIO(LLAMA.replace("NVIDIA_H100_80GB_HBM3", name).encode()))
    assert found.inputs["gpu"] is None
    assert "is not known" in found.warnings[0]
    assert check(io.BytesIO(LLAMA.replace("NVIDIA_H100_80GB_HBM3", "AMD_Instinct_MI300X").encode())).inputs[
        "gpu"
    ]


def test_a_build_of_ones_own() -> None:
    found = asked(LLAMA.replace("v0.19.0", "v0.1.dev9+gabcdef"), flags={})
    assert any("a build of one's own" in text for text in found.assumptions)


def test_an_estimate_of_graphs_that_nothing_is_taken_for() -> None:
    told = "CUDA graph pool memory: 0.61 GiB (actual), 6.10 GiB (estimated), difference: x\nINFO:     App"
    for name, verdict in (("vllm-0.19.0", "explained"), ("vllm-0.24.0", "unexplained")):
        text = (STARTUPS / f"{name}.log").read_text().replace("INFO:     App", told)
        assert verdicts(asked(text))["graph estimate"] == verdict


def test_pools_beside_that_of_the_cache() -> None:
    text = (STARTUPS / "sglang-0.5.9.log").read_text()
    at = text.index("[2026-02-20 10:00:32 TP0]")
    states = "[2026-02-20 10:00:32 TP0] Mamba Cache is allocated. max_mamba_cache_size: 48, conv_state size: 0.09GB, "
    found = asked(
        text[:at] + states + "ssm_state size: 16.46GB \n" + text[at:].replace("30.67 GB", "20.67 GB")
    )
    assert verdicts(found)["KV memory"] == "explained"
    assert verdicts(found)["KV tokens"] == "agrees"


def test_context_parallel_ranks_out_of_the_log() -> None:
    said = "INFO Multiplying the GPU KV cache size by the dcp_world_size 2.\n"
    found = asked(LLAMA.replace("INFO:     App", f"{said}INFO:     App"))
    assert found.inputs["deployment"]["decode_context_parallel_size"] == 1  # the log's flags say so
    found = asked(
        LLAMA.replace("decode_context_parallel_size=1, ", "").replace("INFO:     App", f"{said}INFO:     App")
    )
    assert found.inputs["deployment"]["decode_context_parallel_size"] == 2


def test_ranks_that_differ_are_told() -> None:
    text = (STARTUPS / "vllm-0.11.0-tp4.log").read_text()
    at = text.index("Model loading took 32.8894")
    found = asked(text[:at] + text[at:].replace("32.8894", "34.5", 1))
    assert any(note.startswith("ranks differ") for note in found.assumptions)


def test_what_could_not_be_read_is_told() -> None:
    found = asked(LLAMA + "Model loading took ages\n")
    assert found.read["unread"] == 1
    assert f"(line {LLAMA.count(chr(10)) + 1})" in found.warnings[0]


@pytest.mark.parametrize("content", [b"", b"\n" * 100, b"\0\xff" * 5000, b"hello\nworld\n", b"{" * 1000])
def test_nothing_recognised(content: bytes) -> None:
    with pytest.raises(DataFileError, match="no line of a vllm, sglang or tensorrt-llm start-up"):
        check(io.BytesIO(content), gpu="h100")


def test_what_cannot_be_opened() -> None:
    for name in ("no-such.log", "/", "a\0b"):
        with pytest.raises(DataFileError, match="can't read"):
            check(name)
    with pytest.raises(UnknownNameError):
        asked(LLAMA, gpu="h20O")
    with pytest.raises(InputError, match="unknown engine 'ollama'"):
        asked(LLAMA, engine="ollama")


# --- the command ------------------------------------------------------------------------------------------------


def test_command(run: Run) -> None:
    code, out, err = run("check", str(STARTUPS / "vllm-0.19.0.log"))
    assert (code, err) == (0, "")
    assert out.startswith("vllm 0.19.0, llama-3.1-8b on h100-sxm: as predicted")


def test_command_says_what_failed(run: Run, tmp_path: Path) -> None:
    log = tmp_path / "failed.log"
    log.write_text(NO_ROOM + "ValueError: No available memory for the cache blocks.\n")
    code, out, _ = run("check", str(log), "--gpu", "h100", "--json")
    document = json.loads(out)
    assert (code, document["schema"]) == (1, "capplan/check/1")
    assert [each["kind"] for each in document["result"]["failures"]] == ["no_memory_for_cache"]
    assert "What stopped it" in run("check", str(log), "--gpu", "h100")[1]


def test_command_reads_stdin(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    class Stdin:
        buffer = io.BytesIO(LLAMA.encode())

    monkeypatch.setattr("sys.stdin", Stdin)
    code, out, _ = run("check", "-", "--csv", "--max-model-len", "8192", "--tp", "1")
    assert code == 0
    assert out.splitlines()[0] == "name,unit,predicted,logged,relative_difference,line,verdict,why"


@pytest.mark.parametrize("args", [(), ("no-such.log",), ("-", "--gpu")])
def test_command_of_bad_usage(args: tuple[str, ...], run: Run) -> None:
    code, out, err = run("check", *args)
    assert (code, out) == (2, "")
    assert err.startswith("error: ")


def test_what_is_longer_than_is_read_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    assert not any("longer than what is read" in warning for warning in asked(LLAMA).warnings)
    monkeypatch.setattr("capplan.capacity.engines.log_lines.MOST", len(LLAMA))
    told = asked(LLAMA + "INFO more\n")
    assert any("longer than what is read of one" in warning for warning in told.warnings)
