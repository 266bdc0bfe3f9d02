"""Models by hub id, through the real client against a server on this machine; nothing leaves it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from capplan.errors import DataFileError, MissingPackageError
from capplan.models import registry

pytest.importorskip("huggingface_hub")

LLAMA: dict[str, Any] = {
    "model_type": "llama",
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 96,
    "max_position_embeddings": 8192,
    "tie_word_embeddings": True,
    "torch_dtype": "bfloat16",
    "head_dim": 16,
    "attention_bias": False,
    "mlp_bias": False,
}
PARAMETERS = 96 * 64 + 2 * (2 * 64 * 64 + 2 * 32 * 64 + 3 * 64 * 128 + 2 * 64) + 64


def shard(elements: int, name: str = "model.layers.0.weight", padding: int = 0) -> bytes:
    """A safetensors file of one tensor."""
    entry = {"dtype": "BF16", "shape": [elements], "data_offsets": [0, 2 * elements]}
    content = json.dumps({"__metadata__": {"pad": "x" * padding}, name: entry}).encode()
    return len(content).to_bytes(8, "little") + content + b"\0" * (2 * elements)


class Server(ThreadingHTTPServer):
    """The part of a hub that a client asks for the files of models; it counts the bytes it sent."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.files: dict[str, bytes] = {}  # by org/name/file
        self.status: dict[str, int] = {}  # by org/name: what it answers instead
        self.headers: dict[str, str] = {}  # sent with such an answer
        self.slow = 0.0  # seconds before an answer
        self.ranges = True
        self.sent: dict[str, int] = {}

    def add(self, model: str, name: str, content: bytes | dict[str, Any]) -> None:
        self.files[f"{model}/{name}"] = (
            content if isinstance(content, bytes) else json.dumps(content).encode()
        )

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"


class Handler(BaseHTTPRequestHandler):
    server: Server
    protocol_version = "HTTP/1.1"

    def do_HEAD(self) -> None:
        self._answer(body=False)

    def do_GET(self) -> None:
        self._answer(body=True)

    def _answer(self, *, body: bool) -> None:
        server = self.server
        if server.slow:
            time.sleep(server.slow)
        parts = self.path.split("?")[0].strip("/").split("/")
        model, name = "/".join(parts[:2]), "/".join(parts[4:])  # org/name/resolve/main/file
        if model in server.status:
            self._send(server.status[model], b"", server.headers, body)
        elif not any(key.startswith(model + "/") for key in server.files):
            self._send(404, b"", {"X-Error-Code": "RepoNotFound"}, body)
        elif (content := server.files.get(f"{model}/{name}")) is None:
            self._send(404, b"", {"X-Error-Code": "EntryNotFound"}, body)
        else:
            headers = {"ETag": f'"{abs(hash(content))}"', "X-Repo-Commit": "a" * 40}
            asked = self.headers.get("Range") or self.headers.get("range")
            if asked and server.ranges:
                first, last = (int(n) for n in asked.removeprefix("bytes=").split("-"))
                piece = content[first : last + 1]
                headers["Content-Range"] = f"bytes {first}-{first + len(piece) - 1}/{len(content)}"
                self._send(206, piece, headers, body)
            else:
                self._send(200, content, headers, body)
            if body:
                server.sent[name] = server.sent.get(name, 0) + len(
                    piece if asked and server.ranges else content
                )

    def _send(self, status: int, content: bytes, headers: dict[str, str], body: bool) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        if body:
            try:
                self.wfile.write(content)
            except (BrokenPipeError, ConnectionResetError):  # the client had enough
                self.close_connection = True

    def log_message(self, *args: Any) -> None:
        pass


@pytest.fixture
def hub() -> Iterator[Server]:
    with Server() as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
        thread.start()
        yield server
        server.shutdown()
        thread.join(10)


PROGRAM = """
import json, sys
from capplan.models.registry import model
try:
    m = model(sys.argv[1])
except Exception as error:
    print(json.dumps({"error": str(error), "kind": type(error).__name__}))
else:
    print(json.dumps({
        "id": m.id, "parameters": m.parameters_total, "read": m.checkpoint_bytes_read, "dtype": m.dtype,
        "said": list(m.assumptions), "source": m.source,
    }))
"""


@pytest.fixture
def ask(tmp_path: Path) -> Any:
    """Asks for a model in a process of its own, since the client reads its settings once."""

    def _ask(name: str, endpoint: str = "http://127.0.0.1:9", **env: str) -> dict[str, Any]:
        settings = {
            **{k: v for k, v in os.environ.items() if not k.startswith(("HF_", "HUGGING", "TRANSFORMERS"))},
            "HF_ENDPOINT": endpoint,
            "HF_HOME": str(tmp_path / "hub"),
            "HF_HUB_ETAG_TIMEOUT": "2",
            "HF_HUB_DOWNLOAD_TIMEOUT": "2",
            "HF_HUB_DISABLE_TELEMETRY": "1",
            "CAPPLAN_DATA": str(tmp_path / "data"),
            "PYTHONPATH": os.pathsep.join(filter(None, (str(Path(__file__).parents[2]), os.environ.get("PYTHONPATH")))),
            **env,
        }  # fmt: skip
        ran = subprocess.run(
            [sys.executable, "-c", PROGRAM, name],
            check=False,
            env=settings,
            capture_output=True,
            text=True,
            timeout=90,
            cwd=tmp_path,
        )
        assert ran.returncode == 0, ran.stderr
        found: dict[str, Any] = json.loads(ran.stdout)
        assert "\n" not in found.get("error", "")
        return found

    return _ask


def test_a_model_of_one_file(hub: Server, ask: Any) -> None:
    hub.add("org/small", "config.json", LLAMA)
    hub.add("org/small", "model.safetensors", shard(PARAMETERS))
    found = ask("org/small", hub.url)
    assert found == {
        "id": "org/small",
        "parameters": PARAMETERS,
        "read": {"BF16": 2 * PARAMETERS},
        "dtype": "bf16",
        "said": [],
        "source": f"{hub.url}/org/small",
    }


def test_shards_a_long_header_and_never_the_weights(hub: Server, ask: Any) -> None:
    hub.add("org/big", "config.json", LLAMA)
    names = [f"model-{i:05}-of-00003.safetensors" for i in (1, 2, 3)]
    hub.add("org/big", names[0], shard(1_000_000, padding=200_000))
    hub.add("org/big", names[1], shard(500_000))
    hub.add("org/big", names[2], shard(4, "vision_tower.weight"))
    places = {"a": names[0], "b": names[1], "c": names[2]}
    hub.add("org/big", "model.safetensors.index.json", {"metadata": {"total_size": 1}, "weight_map": places})
    found = ask("org/big", hub.url)
    assert found["read"] == {"BF16": 2 * 1_500_004}
    assert (
        f"the safetensors hold 1,500,000 parameters of the language model, its config.json says {PARAMETERS:,}"
        in found["said"][0]
    )
    assert hub.sent[names[0]] < 600_000  # of 2.2 MB: the start, and the rest of its header
    assert hub.sent[names[1]] <= 100_000  # of 1 MB


def test_a_server_that_sends_everything_is_cut_off(hub: Server, ask: Any) -> None:
    hub.ranges = False
    hub.add("org/small", "config.json", LLAMA)
    hub.add("org/small", "model.safetensors", shard(PARAMETERS))
    found = ask("org/small", hub.url)
    assert found["read"] is None
    assert f"{hub.url} does not send parts of 'model.safetensors'" in found["said"][-1]
    assert "bytes are worked out from the config" in found["said"][-1]


def test_a_malformed_header_is_said(hub: Server, ask: Any) -> None:
    hub.add("org/small", "config.json", LLAMA)
    hub.add("org/small", "model.safetensors", b"\xff" * 200)
    found = ask("org/small", hub.url)
    assert (found["parameters"], found["read"]) == (PARAMETERS, None)
    assert "'model.safetensors' of hub model 'org/small' has a header of" in found["said"][-1]


def test_a_side_file_and_a_params_json(hub: Server, ask: Any) -> None:
    hub.add("org/four", "config.json", LLAMA)
    hub.add(
        "org/four",
        "hf_quant_config.json",
        {"quantization": {"quant_algo": "NVFP4", "exclude_modules": ["lm_head"]}},
    )
    assert ask("org/four", hub.url)["dtype"] == "nvfp4"
    hub.add("org/mistral", "params.json", {"dim": 64, "n_layers": 2, "hidden_dim": 128, "n_heads": 4, "n_kv_heads": 2, "vocab_size": 96, "tied_embeddings": True})  # fmt: skip
    hub.add("org/mistral", "consolidated.safetensors", shard(PARAMETERS))
    found = ask("org/mistral", hub.url)
    assert (found["parameters"], found["read"]) == (PARAMETERS, {"BF16": 2 * PARAMETERS})


def test_the_cache_answers_offline(hub: Server, ask: Any) -> None:
    hub.add("org/small", "config.json", LLAMA)
    hub.add("org/small", "model.safetensors", shard(PARAMETERS))
    ask("org/small", hub.url)
    offline = ask("org/small", hub.url, HF_HUB_OFFLINE="1")
    assert (offline["parameters"], offline["read"]) == (PARAMETERS, None)
    alone = ask("org/small")  # nobody answers, and the cache does
    assert alone["parameters"] == PARAMETERS
    assert alone["said"][-1].endswith(": read from the cache")
    absent = ask("org/other", hub.url, HF_HUB_OFFLINE="1")
    assert absent["error"] == "hub model 'org/other' is not in the cache, and HF_HUB_OFFLINE is set"
    assert absent["kind"] == "DataFileError"


@pytest.mark.parametrize(
    ("status", "headers", "message"),
    [
        (401, {}, "has no model 'org/small', or it is private and the token (HF_TOKEN) does not open it"),
        (401, {"X-Error-Code": "GatedRepo"}, "hub model 'org/small' is gated: accept its terms at"),
        (403, {}, "answered 403 for hub model 'org/small'"),
        (404, {"X-Error-Code": "RepoNotFound"}, "has no model 'org/small'"),
        (500, {}, "'org/small'"),
    ],
)
def test_an_answer_that_is_none(
    status: int, headers: dict[str, str], message: str, hub: Server, ask: Any
) -> None:
    hub.add("org/small", "config.json", LLAMA)
    hub.status["org/small"], hub.headers = status, headers
    found = ask("org/small", hub.url)
    assert message in found["error"]
    assert found["kind"] == "DataFileError"


def test_a_model_without_a_config(hub: Server, ask: Any) -> None:
    hub.add("org/bare", "README.md", b"hello")
    assert (
        ask("org/bare", hub.url)["error"]
        == "hub model 'org/bare' has neither a config.json nor a params.json"
    )
    hub.add("org/odd", "config.json", b"<html>")
    assert "is not valid JSON" in ask("org/odd", hub.url)["error"]


def test_nobody_answers(hub: Server, ask: Any) -> None:
    found = ask("org/small")
    assert found["error"].startswith("can't read hub model 'org/small' from http://127.0.0.1:9: ")
    hub.add("org/small", "config.json", LLAMA)
    hub.slow = 20
    begin = time.monotonic()
    assert "did not answer in time for hub model 'org/small'" in ask("org/small", hub.url)["error"]
    assert time.monotonic() - begin < 60


def test_a_mistyped_name_is_told_the_nearest(hub: Server, ask: Any) -> None:
    assert "; did you mean 'meta-llama/Llama-3.3-70B" in ask("meta-llama/Llama-3.3-7B", hub.url)["error"]


def test_a_registry_name_asks_nobody(ask: Any) -> None:
    assert ask("meta-llama/Llama-3.3-70B-Instruct")["id"] == "llama-3.3-70b"


def test_without_the_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(MissingPackageError) as caught:
        registry.model("nobody/nothing")
    assert "pip install 'capplan[hf]'" in str(caught.value)
    assert caught.value.exit_code == 3
    with pytest.raises(MissingPackageError, match=r"did you mean 'meta-llama/Llama-3.3-70B"):
        registry.model("meta-llama/Llama-3.3-7B")


@pytest.mark.parametrize("name", ["a/b/c", "org/na me", "../x", "org/", "/x", "org/../x", "x" * 100 + "/y"])
def test_what_is_no_hub_id(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises((DataFileError, LookupError)):
        registry.model(name)
