"""Start-up logs are read whatever surrounds their lines, and whatever is done to them."""

import io
import json
import tracemalloc
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO, cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from capplan.capacity.engines import log_lines, logs
from capplan.capacity.engines.log_flags import MOST_TEXT, read
from capplan.capacity.engines.log_flags import settings as flags_of
from capplan.capacity.engines.logs import StartupLog, read_log

STARTUPS = Path(__file__).parent / "startups"
FILES = sorted(path.name for path in STARTUPS.iterdir())
GIB = 2**30


def log(name: str) -> bytes:
    return (STARTUPS / f"{name}.log").read_bytes()


def read_bytes(content: bytes) -> StartupLog:
    return read_log(io.BytesIO(content))


def least(found: StartupLog, name: str) -> float | None:
    measured = found.least(name)
    return None if measured is None else measured.value


def gib(found: StartupLog, name: str) -> float | None:
    value = least(found, name)
    return None if value is None else round(value / GIB, 4)


@pytest.mark.parametrize(
    ("name", "engine", "version", "model", "expected"),
    [
        (
            "vllm-0.6.6",
            "vllm",
            "0.6.6.post1",
            "meta-llama/Llama-3.1-8B-Instruct",
            {"blocks": 27893, "concurrency": 27.24, "context": 16384},
        ),
        (
            "vllm-0.8.5",
            "vllm",
            "0.8.5",
            "Qwen/Qwen3-32B",
            {"tokens": 280704, "concurrency": 34.27, "context": 8192},
        ),
        (
            "vllm-0.11.0-tp4",
            "vllm",
            "0.11.0",
            "meta-llama/Llama-3.3-70B-Instruct",
            {"tokens": 449440, "concurrency": 13.72, "context": 32768, "graphs_s": 24},
        ),
        ("vllm-0.19.0", "vllm", "0.19.0", "meta-llama/Llama-3.1-8B-Instruct", {"tokens": 456368}),
        ("vllm-0.24.0", "vllm", "0.24.0", "meta-llama/Llama-3.1-8B-Instruct", {"tokens": 450480}),
        (
            "vllm-0.33.0",
            "vllm",
            "0.33.0",
            "meta-llama/Llama-3.1-8B-Instruct",
            {"tokens": 450480, "concurrency": 54.99},
        ),
        ("sglang-0.5.9", "sglang", None, "Qwen/Qwen3-8B", {"tokens": 893440, "requests": 4096}),
        ("tensorrt-llm-1.1", "tensorrt-llm", "1.1.0", "Qwen/Qwen3-8B", {"tokens": 404864, "blocks": 12652}),
    ],
)
def test_forms_of_every_engine(
    name: str, engine: str, version: str | None, model: str, expected: dict[str, float]
) -> None:
    found = read_bytes(log(name))
    assert (found.engine, found.version, found.model) == (engine, version, model)
    assert {key: least(found, key) for key in expected} == expected
    assert found.ready
    assert (found.unread, found.cut, found.failures) == (0, 0, ())


def test_memory_is_in_bytes_and_as_fine_as_printed() -> None:
    found = read_bytes(log("vllm-0.6.6"))
    assert {name: gib(found, f"{name}_bytes") for name in ("weights", "non_torch", "activation", "kv")} == {
        "weights": 14.99,  # the later and coarser line
        "non_torch": 0.09,
        "activation": 1.71,
        "kv": 54.48,
    }
    kv = found.least("kv_bytes")
    assert kv is not None
    assert round(kv.half_digit / GIB, 4) == 0.005
    assert kv.line == 8


def test_what_is_measured_after_the_graphs() -> None:
    found = read_bytes(log("vllm-0.19.0"))
    assert [gib(found, f"{name}_bytes") for name in ("memory", "free", "activation", "non_torch")] == [
        *(79.19, 78.72),
        *(1.89, 0.25),
    ]
    newest = read_bytes(log("vllm-0.33.0"))
    assert [gib(newest, f"{name}_bytes") for name in ("consumed", "activation_graphs", "activation")] == [
        15.24,
        2.62,
        None,
    ]


@pytest.mark.parametrize(
    ("line", "there"),
    [
        (b"Using FlashInfer for top-p & top-k sampling.", True),
        (b"FlashInfer is not available. Falling back to the PyTorch-native implementation of top-p", False),
        (b"FlashInfer is available, but it is not enabled. Falling back to the PyTorch-native", None),
    ],
)
def test_whether_flashinfer_is_there(line: bytes, there: bool | None) -> None:
    start = (
        b"INFO 08-20 18:04:08 [core.py:74] Initializing a V1 LLM engine (v0.10.1) with config: model='m'\n"
    )
    found = read_bytes(start + b"WARNING 08-20 18:04:08 [topk_topp_sampler.py:66] " + line + b"\n")
    assert found.flags.get("flashinfer") is there
    assert found.unread == 0


def test_ranks_that_write_at_once() -> None:
    found = read_bytes(log("vllm-0.11.0-tp4"))
    assert sorted(each.rank for each in found.all("weights_bytes")) == ["TP0", "TP1", "TP2", "TP3"]
    kv = found.least("kv_bytes")
    assert kv is not None
    assert (kv.rank, kv.line) == ("TP0", 9)


@pytest.mark.parametrize(
    ("prefix", "rank"),
    [
        ("(Worker_DP1_TP3_EP7 pid=4) INFO ", "DP1 TP3 EP7"),
        ("(VllmWorker rank=2 pid=77) INFO ", "rank 2"),
        ("(VllmWorkerProcess pid=77) INFO ", "pid 77"),
        ("(RayWorkerWrapper pid=77, ip=10.0.0.2) INFO ", "pid 77"),
        ("(EngineCore pid=9) INFO ", ""),
        ("(APIServer pid=5) (DPEngineCoreActor pid=8, ip=10.0.0.2) INFO ", "pid 8"),
        ("INFO 01-01 00:00:00 [x.py:1] ", ""),
        ("2026-01-01T00:00:00.123456789Z stderr F (Worker_TP1 pid=3) INFO ", "TP1"),
        ("vllm-1  | (Worker_PP0_TP1 pid=3) INFO ", "PP0 TP1"),
    ],
)
def test_rank_by_prefix(prefix: str, rank: str) -> None:
    found = read_bytes(f"{prefix}Model loading took 15.5 GiB and 3.1 seconds\n".encode())
    assert [each.rank for each in found.all("weights_bytes")] == [rank]


@pytest.mark.parametrize("name", FILES)
def test_what_surrounds_a_line_does_not_matter(name: str) -> None:
    content = (STARTUPS / name).read_bytes()
    plain = read_bytes(content)
    lines = content.decode().splitlines()
    docker = "\n".join(json.dumps({"log": f"{line}\n", "stream": "stderr"}) for line in lines)
    cloud = "\n".join(json.dumps({"severity": "INFO", "jsonPayload": {"message": line}}) for line in lines)
    for other in (
        content.replace(b"\n", b"\r\n"),
        content.rstrip(b"\n"),
        docker.encode(),
        cloud.encode(),
        content.decode().encode("utf-16"),
        b"\xef\xbb\xbf" + content,
        "\n".join(f"2026-11-29T10:00:00.1Z {line}" for line in lines).encode(),
        "\n".join(f"\x1b[32m{line}\x1b[0m" for line in lines).encode(),
    ):
        found = read_bytes(other)
        assert (found.engine, found.version, found.flags) == (plain.engine, plain.version, plain.flags)
        assert [(each.name, each.value) for each in found.measured] == [
            (each.name, each.value) for each in plain.measured
        ]


def test_flags_of_every_spelling() -> None:
    assert read_bytes(log("vllm-0.11.0-tp4")).flags == {
        "model": "meta-llama/Llama-3.3-70B-Instruct",
        "max_model_len": 32768,
        "tensor_parallel_size": 4,
        "gpu_memory_utilization": 0.92,
        "pipeline_parallel_size": 1,
        "data_parallel_size": 1,
        "enforce_eager": False,
        "enable_prefix_caching": True,
    }
    sglang = read_bytes(log("sglang-0.5.9")).flags
    assert (sglang["tensor_parallel_size"], sglang["gpu_memory_utilization"]) == (2, 0.88)
    assert "max_num_seqs" not in sglang  # None
    assert read_bytes(log("tensorrt-llm-1.1")).flags["max_model_len"] == 32768


@pytest.mark.parametrize("width", [100, 132, 147])
@pytest.mark.parametrize("name", ["vllm-0.6.6", "vllm-0.19.0", "sglang-0.5.9"])
def test_settings_that_a_terminal_has_wrapped(name: str, width: int) -> None:
    lines = log(name).decode().splitlines()
    wrapped = [
        line[at : at + width]
        for line in lines
        for at in range(0, max(1, len(line)), width if "=" in line else 10**6)
    ]
    assert read_bytes("\n".join(wrapped).encode()).flags == read_bytes(log(name)).flags


def test_secrets_are_not_kept() -> None:
    for name in FILES:
        assert "not-to-be-kept" not in repr(read_bytes((STARTUPS / name).read_bytes()))


def test_speculation() -> None:
    found = flags_of("vllm", b"{'speculative_config': {'method': 'mtp', 'num_speculative_tokens': 3}}")
    assert found == {"speculative_method": "mtp", "num_speculative_tokens": 3}
    config = b"model='a/b', speculative_config=SpeculativeConfig(method='eagle', model='c/d', num_spec_tokens=2), x=1"
    assert flags_of("vllm", config) == {
        "model": "a/b",
        "speculative_method": "eagle",
        "num_speculative_tokens": 2,
    }
    assert "speculative_method" not in flags_of("vllm", b"speculative_config=None, other={'method': 'x'}")


@pytest.mark.parametrize(
    ("name", "text", "value"),
    [
        ("max_model_len", "8192", 8192),
        ("max_model_len", "-1", None),
        ("max_model_len", "9" * 40, None),
        ("max_model_len", "__import__('os')", None),
        ("gpu_memory_utilization", "0.9", 0.9),
        ("gpu_memory_utilization", "nan", None),
        ("gpu_memory_utilization", "90", None),
        ("enforce_eager", "True", True),
        ("enforce_eager", "maybe", None),
        ("model", "None", None),
        ("model", "x" * (MOST_TEXT + 1), None),
    ],
)
def test_settings_of_another_kind_are_none(name: str, text: str, value: object) -> None:
    assert read(name, text) == value


@pytest.mark.parametrize(
    ("line", "kind"),
    [
        ("ValueError: No available memory for the cache blocks. Try increasing it", "no_memory_for_cache"),
        (
            (
                "ValueError: To serve at least one request with the models's max seq len (131072), (16.00 GiB KV cache is "
                "needed, which is larger than the available KV cache memory (7.61 GiB). Based on the available memory, "
                "the estimated maximum model length is 62336. Try increasing"
            ),
            "one_request_does_not_fit",
        ),
        (
            (
                "ValueError: The model's max seq len (32768) is larger than the maximum number of tokens that can be "
                "stored in KV cache (9120). Try increasing `gpu_memory_utilization`"
            ),
            "one_request_does_not_fit",
        ),
        (
            "ValueError: Free memory on device (10.1/79.19 GiB) on startup is less than desired GPU memory utilization",
            "memory_taken_by_others",
        ),
        (
            (
                "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 1.19 GiB. GPU 0 has a total capacity of "
                "23.52 GiB of which 12.50 MiB is free."
            ),
            "out_of_memory",
        ),
        (
            "RuntimeError: Not enough memory. Please try to increase --mem-fraction-static.",
            "no_memory_for_cache",
        ),
        (
            "ValueError: max_num_seqs (1024) exceeds available Mamba cache blocks (939).",
            "too_few_state_blocks",
        ),
        ("ERROR [core.py:708] EngineCore failed to start.", "other"),
    ],
)
def test_failures(line: str, kind: str) -> None:
    found = read_bytes(f"x\n(EngineCore pid=3) ERROR {line}\n".encode())
    assert [(each.kind, each.line) for each in found.failures] == [(kind, 2)]


def test_what_a_failure_says_of_lengths() -> None:
    found = read_bytes(
        b"To serve at least one request with the model's max seq len (131072), (16.00 GiB KV cache is needed, which is "
        b"larger than the available KV cache memory (7.61 GiB). Based on the available memory, the estimated maximum "
        b"model length is 62336. Try\n"
    )
    assert [least(found, name) for name in ("context", "est_max_model_len")] == [131072, 62336]
    assert [gib(found, name) for name in ("needed_bytes", "kv_bytes")] == [16.0, 7.61]


def test_lines_of_sglang_with_more_in_them() -> None:
    found = read_bytes(
        b"[2026-08-28 21:32:38] Load weight end. elapsed=787.55 s, type=X, quant=modelopt_fp4, avail mem=29.01 GB, "
        b"mem usage=82.97 GB.\n"
        b"[2026-08-28 21:34:13] Load weight end. elapsed=94.49 s, type=Y, avail mem=30.67 GB, mem usage=-1.86 GB.\n"
        b"[2026-08-28 21:34:15] KV Cache is allocated. dtype: torch.bfloat16, #tokens: 159552, K size: 1.83 GB, "
        b"V size: 1.83 GB\n"
        b"[2026-08-28 21:34:15] SWAKVPool mem usage: 79.94 GB, swa size: 798276, full size: 997846\n"
        b"[2026-08-28 21:34:51] Capture target verify CUDA graph end. elapsed=1.61 s, mem usage=0.11 GB, "
        b"avail mem=26.15 GB.\n"
        b"[2026-08-28 21:35:15] The server is fired up and ready to roll!\n"
    )
    assert {name: gib(found, f"{name}_bytes") for name in ("weights", "k", "graphs", "pools")} == {
        "weights": 82.97,
        "k": 1.83,  # the model's, not its draft's
        "graphs": 0.11,
        "pools": 79.94,
    }
    assert least(found, "window_tokens") == 798276
    assert (found.ready, found.unread) == (True, 0)


def test_gpu_where_it_is_printed() -> None:
    assert read_bytes(log("vllm-0.19.0")).gpu == "NVIDIA H100 80GB HBM3"
    assert read_bytes(b"GPU 0: NVIDIA H200 (UUID: GPU-1)\n").gpu == "NVIDIA H200"
    smi = b"|   0  NVIDIA GeForce RTX 3090        On  |   00000000:01:00.0 Off |\n"
    assert read_bytes(smi).gpu == "NVIDIA GeForce RTX 3090"


def test_the_last_start_counts() -> None:
    first = log("vllm-0.19.0").replace(b"INFO:     Application startup complete.\n", b"")
    found = read_bytes(
        first + b"ValueError: No available memory for the cache blocks.\n" + log("vllm-0.24.0")
    )
    assert (found.starts, found.version, found.failures) == (2, "0.24.0", ())
    assert least(found, "tokens") == 450480
    assert read_bytes(log("vllm-0.19.0") + log("vllm-0.24.0")).starts == 2


def test_lines_that_cannot_be_read_are_told() -> None:
    found = read_bytes(b"a\nModel loading took about 15 G\nGPU KV cache size: many tokens\n\0\n")
    assert (found.recognised, found.unread, found.unread_lines, found.binary) == (0, 2, (2, 3), 1)


@pytest.mark.parametrize("name", ["vllm-0.33.0", "sglang-0.5.9"])
def test_cut_at_every_byte(name: str) -> None:
    content = log(name)
    whole = read_bytes(content)
    values = {(each.name, each.value) for each in whole.measured} | {("graphs_bytes", 0.61 * GIB)}
    for end in range(len(content)):
        found = read_bytes(content[:end])
        assert {(each.name, each.value) for each in found.measured} <= values
        assert found.flags.items() <= whole.flags.items()


@settings(max_examples=100, deadline=None)
@given(st.data())
def test_pieces_of_logs_in_any_order(data: st.DataObject) -> None:
    contents = [(STARTUPS / name).read_bytes() for name in FILES]
    pieces = []
    for _ in range(data.draw(st.integers(1, 6))):
        content = data.draw(st.sampled_from(contents))
        start = data.draw(st.integers(0, len(content)))
        pieces.append(content[start : data.draw(st.integers(start, len(content)))])
        pieces.append(data.draw(st.binary(max_size=20)))
    found = read_bytes(b"".join(pieces))
    assert found.recognised <= len(logs.FORMS) * (found.lines + 1)
    assert found.bytes == len(b"".join(pieces))


@settings(max_examples=50, deadline=None)
@given(st.binary(max_size=10_000))
def test_any_bytes(content: bytes) -> None:
    found = read_bytes(content)
    if content[:2] in (b"\xff\xfe", b"\xfe\xff"):  # taken for UTF-16
        return
    assert found.bytes == len(content)
    assert found.lines == content.count(b"\n") + (not content.endswith(b"\n") and bool(content))


class Repeated(io.RawIOBase):
    """A stream of a size, of one piece over and over, never held whole."""

    def __init__(self, piece: bytes, size: int) -> None:
        self.piece, self.left = piece * max(1, (1 << 18) // len(piece)), size

    def read(self, size: int = -1) -> bytes:
        block = self.piece[: min(self.left, size)]
        self.left -= len(block)
        return block


HOSTILE = {
    "no line end": b"KV cache size ",
    "line ends": b"\n",
    "anchors": b"emory\n",
    "phrases": b"Model loading took " * 50 + b"\n",
    "lines that can be read": b" KV cache size: 1,000 tokens\n",
    "settings": b"non-default args: " + b"model='" * 9_000 + b"\n",
    "brackets": b'{"log": "Model loading took ' + b"[" * 30_000 + b"\n",
    "nested": b"[" * 60_000 + b"Model loading took \n",
    "escapes": b"Model loading took " + b"\x1b[" * 30_000 + b"\n",
    "digits": b"Model loading took " + b"9" * 60_000 + b"\n",
    "commas": b" KV cache size: " + b"," * 60_000 + b" tokens\n",
    "ranks": b"(Worker_" + b"TP1" * 20_000 + b" pid=1) Model loading took 1.5 GiB\n",
    "nulls": b"\0" * 70_000 + b"\n",
}


@pytest.mark.parametrize("kind", HOSTILE)
def test_a_log_of_any_size_is_read_in_bounded_memory_and_work(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    counts = {"lines": 0, "bytes": 0}
    texts = log_lines.texts

    def counted(raw: bytes) -> list[bytes]:
        counts["lines"] += 1
        counts["bytes"] += len(raw)
        return texts(raw)

    monkeypatch.setattr("capplan.capacity.engines.logs.texts", counted)
    size = 20_000_000
    tracemalloc.start()
    found = read_log(cast("BinaryIO", Repeated(HOSTILE[kind], size)))
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert found.bytes <= size
    assert most < 24_000_000
    assert counts["bytes"] <= logs.MOST_SPENT + log_lines.LONGEST_LINE
    assert counts["lines"] <= logs.MOST_READ * len(logs.FORMS)
    assert len(found.measured) < 100


class Endless:
    """Zeros, and no more of them than are asked for."""

    def __init__(self) -> None:
        self.given = 0

    def read(self, size: int) -> bytes:
        self.given += size
        assert self.given <= log_lines.MOST
        return bytes(size)


def test_a_stream_without_end_is_read_to_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_lines, "MOST", 3_000_000)
    endless = Endless()
    found = read_log(cast("BinaryIO", endless))
    assert (endless.given, found.longer) == (3_000_000, True)
    assert not read_log(io.BytesIO(b"INFO\n")).longer


def test_ranks_without_end_are_not_kept_without_end() -> None:
    def lines() -> Iterator[bytes]:
        for rank in range(3_000):
            yield b"(Worker_TP%d pid=1) Model loading took 1.5 GiB\n" % rank

    found = read_bytes(b"".join(lines()))
    assert len(found.all("weights_bytes")) == logs.MOST_READ
    assert found.stopped_at == logs.MOST_READ + 1


def test_every_phrase_has_its_anchor() -> None:
    """A line is looked at for its anchor, which may lie outside of the phrase, but not outside of the pattern."""
    samples = b"\n".join((STARTUPS / name).read_bytes() for name in FILES)
    for known in logs.FORMS:
        seen = [line for line in samples.splitlines() if known.phrase in line]
        assert known.anchor in known.phrase or all(known.anchor in line for line in seen), known.phrase
        assert len(known.anchor) >= 4


def test_serving_lines_are_passed_over_until_a_new_start() -> None:
    serving = (
        b"INFO [loggers.py:1] Engine 000: GPU KV cache usage: 1.2%, memory, blocks, max_model_len\n" * 1000
    )
    found = read_bytes(log("vllm-0.19.0") + serving + log("vllm-0.33.0"))
    assert (found.starts, found.version, found.stopped_at) == (2, "0.33.0", None)
    assert least(found, "tokens") == 450480
