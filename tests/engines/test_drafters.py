"""Draft models with a cache of their own, and what a hybrid's block tells of speculation: against published logs."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from capplan.capacity.engines.budget import Budget, budget
from capplan.capacity.engines.deployment import Deployment
from capplan.capacity.engines.device import Device
from capplan.capacity.engines.emit import emit
from capplan.errors import DataFileError, InputError, UnknownNameError
from capplan.models import drafters
from capplan.models.registry import model

Run = Callable[..., tuple[int, str, str]]
GIB = 2**30
EAGLE = """
id = "mine"
name = "EAGLE 3 for Llama 3.1 8B"
method = "eagle3"
tokens = 3
taps = 3
source = "by hand"
checked = 2026-11-30
[config]
model_type = "llama"
hidden_size = 4096
intermediate_size = 14336
num_hidden_layers = 1
num_attention_heads = 32
num_key_value_heads = 8
vocab_size = 32000
tie_word_embeddings = false
torch_dtype = "bfloat16"
"""
GB10 = Device(total_bytes=121.69 * GIB, generation="sm120", link="pcie", name="gb10-dgx-spark")
DFLASH = "z-lab/Qwen3.6-35B-A3B-DFlash"


def start(name: str, version: str, kv_gib: float, **flags: Any) -> Budget:
    asked = Deployment(version=version, **flags)
    return budget(model(name), GB10, asked, kv_bytes=kv_gib * GIB)


def test_a_drafter_has_groups_of_its_own() -> None:
    """20260608T0834: 8 layers of a drafter among 10 of attention and 30 of a recurrence, 15 tokens a draft."""
    found = start(
        "qwen3.6-35b-a3b-nvfp4",
        "0.20.1",
        62.31,
        draft_model=DFLASH,
        max_model_len=262144,
        enable_prefix_caching=True,
    )
    assert (found.num_blocks, found.kv_tokens) == (3496, 582832)
    assert found.max_concurrency == pytest.approx(4.71, abs=0.005)
    assert found.deployment.num_speculative_tokens == 15


def test_a_drafter_is_loaded_as_it_is_stored() -> None:
    plain, drafted = (
        start("qwen3.6-35b-a3b-nvfp4", "0.20.1", 60, draft_model=name, max_num_seqs=8)
        for name in (None, DFLASH)
    )
    layer = 2 * 2048 * (32 + 4) * 128 + 3 * 2048 * 6144  # in 16 bit, whatever its target is in
    assert drafted.weights - plain.weights == pytest.approx(2 * (8 * layer + 5 * 2048 * 2048), rel=0.001)
    assert drafted.activation_peak > plain.activation_peak  # of the states that it reads


def test_a_window_of_a_dflash_drafter_is_cached_whole() -> None:
    """vLLM pull 50169, main of 2026-07-28: a pool of 23.1 GB has 415,517 tokens; 6 windows of the drafter's are whole."""
    flags: dict[str, Any] = {"kv_cache_dtype": "fp8", "quantization": "nvfp4", "max_model_len": 131072}
    flags |= {"max_num_seqs": 16, "max_num_batched_tokens": 16384}
    drafted = start(
        "laguna-s-2.1", "0.26.0", 23.1e9 / GIB, draft_model="poolside/Laguna-S-2.1-DFlash", **flags
    )
    assert (drafted.kv_tokens, drafted.deployment.num_speculative_tokens) == (415_517, 15)
    plain = start("laguna-s-2.1", "0.26.0", 23.1e9 / GIB, **flags)
    assert plain.kv_tokens is not None
    assert plain.kv_tokens > 500_000
    assert plain.weights / GIB == pytest.approx(67.11, rel=0.003)  # vLLM issue 50925


@pytest.mark.parametrize(
    ("name", "parameters"),
    [
        # of its 69 tensors, norms of the six states that it reads and of their sum are not counted
        ("poolside/Laguna-S-2.1-DFlash", 1_114_977_792 - 7 * 3072),
        ("meta-models/Muse-Glimmer-30B-assistant", 2_555_978_496),  # 5.11 GB
    ],
)
def test_a_published_drafter(name: str, parameters: int) -> None:
    assert sum(weight.parameters for weight in drafters.drafter(name).model.weights) == parameters


def test_the_drafter_of_a_target() -> None:
    assert drafters.made_for("laguna-s-2.1", "dflash") == "poolside/Laguna-S-2.1-DFlash"
    assert drafters.made_for("laguna-s-2.1", "eagle3") is None
    assert drafters.made_for("llama-3.1-8b", "dflash") is None


def test_a_block_tells_how_many_tokens_are_speculated() -> None:
    """A start-up of 0.19.2rc1 with MTP that does not say so: three tokens widen the convolutions to that block."""
    flags: dict[str, Any] = {"kv_cache_dtype": "fp8", "max_model_len": 131072, "quantization": "nvfp4"}
    found = start("nemotron-3-super-120b-a12b", "0.19.2", 36.25, hybrid_block=8432, **flags)
    assert found.deployment.num_speculative_tokens == 3
    assert found.kv_tokens == 1399712
    assert found.max_concurrency == pytest.approx(27.81, abs=0.005)
    assert found.weights / GIB == pytest.approx(75.03, rel=0.01)
    assert any("3 are speculated" in said for said in found.assumptions)


def test_a_block_that_is_the_models_own_tells_nothing() -> None:
    found = start("qwen3.6-35b-a3b-nvfp4", "0.19.2", 47.55, hybrid_block=1056, max_model_len=131072)
    assert (found.deployment.num_speculative_tokens, found.assumptions) == (0, ())
    assert found.max_concurrency == pytest.approx(18.44, abs=0.005)


def test_a_block_that_nothing_makes_is_taken_as_it_is() -> None:
    found = start("qwen3.6-35b-a3b-nvfp4", "0.19.2", 47.55, hybrid_block=2000, max_model_len=131072)
    assert found.num_blocks == 47.55 * GIB // (2000 * 2048 * 10)
    assert "a block of 2,000 tokens is taken as it is" in found.assumptions


def test_a_block_of_a_model_without_states_was_asked_for() -> None:
    told, said = (start("qwen3-8b", "0.19.0", 30, **{name: 48}) for name in ("hybrid_block", "block_size"))
    assert (told.num_blocks, told.deployment.hybrid_block) == (said.num_blocks, None)


def test_a_block_that_can_not_be_worked_out_is_taken_as_it_is() -> None:
    """Mamba with prefix caching: its block goes by a chunk of the kernel, which is not on record."""
    flags: dict[str, Any] = {"enable_prefix_caching": True, "kv_cache_dtype": "fp8"}
    found = start("nemotron-3-super-120b-a12b", "0.19.2", 36.25, hybrid_block=8432, **flags)
    assert any("8,432 tokens is taken as it is" in said for said in found.assumptions)


def test_command(run: Run) -> None:
    line = f"fit qwen3.6-35b-a3b-nvfp4 --gpu gb10 --engine-version 0.22.0 --draft {DFLASH}"
    deployment = json.loads(run(*line.split(), "--json")[1])["inputs"]["deployment"]
    assert (deployment["draft_model"], deployment["num_speculative_tokens"]) == (DFLASH, 15)
    told = json.loads(run(*line.split(), "--spec-tokens", "7", "--json")[1])["inputs"]["deployment"]
    assert (told["speculative_method"], told["num_speculative_tokens"]) == ("dflash", 7)
    code, out, err = run("fit", "qwen3-8b", "--gpu", "h100", "--draft", "z-lab/none")
    assert (code, out) == (2, "")
    assert err.startswith("error: unknown drafter 'z-lab/none'")


def test_eagle_adds_a_layer_like_the_targets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "drafters").mkdir()
    (tmp_path / "drafters/mine.toml").write_text(EAGLE)
    monkeypatch.setenv("CAPPLAN_DATA", str(tmp_path))
    plain, drafted = (
        start("llama-3.1-8b", "0.19.0", 33, draft_model=name, max_model_len=8192) for name in (None, "mine")
    )
    assert (plain.num_blocks, drafted.num_blocks) == (33 * GIB // (32 * 65536), 33 * GIB // (33 * 65536))
    attention = (2 * (32 + 8 + 8) + 32) * 128 * 4096  # over embeddings and states side by side
    own = attention + 3 * 4096 * 14336 + 3 * 4096 * 4096 + 32000 * 4096
    assert drafted.weights - plain.weights == pytest.approx(2 * own, rel=0.001)
    assert drafted.deployment.num_speculative_tokens == 3


def test_the_command_names_the_drafter() -> None:
    plan = Deployment(draft_model=DFLASH, speculative_method="dflash", num_speculative_tokens=15)
    assert f'"model": "{DFLASH}"' in emit(plan, "org/name", "vllm")


def test_what_is_not_known_of_a_drafter(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UnknownNameError, match="unknown drafter 'z-lab/none'"):
        drafters.drafter("z-lab/none")
    with pytest.raises(InputError, match="a draft model under sglang is not planned yet"):
        budget(model("qwen3-8b"), GB10, Deployment(engine="sglang", draft_model=DFLASH))
    with pytest.raises(InputError, match=r"hidden states of 2,048, and those of qwen3-8b have 4,096"):
        budget(model("qwen3-8b"), GB10, Deployment(draft_model=DFLASH))
    (tmp_path / "drafters").mkdir()
    (tmp_path / "drafters/mine.toml").write_text('id = "mine"\nname = "Mine"\n')
    monkeypatch.setenv("CAPPLAN_DATA", str(tmp_path))
    with pytest.raises(DataFileError, match="key 'checked' is missing"):
        drafters.drafter("mine")
