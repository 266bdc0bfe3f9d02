"""Readers of what is on disk: safetensors and their index, GGUF, params.json; and what malformed ones say."""

from __future__ import annotations

import json
import os
import struct
import time
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from capplan.errors import DataFileError
from capplan.models.gguf import TENSOR_TYPES, Header, read_header
from capplan.models.gguf_config import ARCHITECTURES, config_of
from capplan.models.hf import from_config
from capplan.models.reader import read_path
from capplan.models.registry import model
from capplan.models.safetensors import INDEX, Headers, add_tensors, read_files
from capplan.models.spec import LatentAttention

LLAMA: dict[str, Any] = {
    "model_type": "llama",
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 96,
    "max_position_embeddings": 8192,
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
    "head_dim": 16,
    "attention_bias": False,
    "mlp_bias": False,
}
SHAPES = {"q_proj": (64, 64), "k_proj": (32, 64), "v_proj": (32, 64), "o_proj": (64, 64)}
MLP = {"gate_proj": (128, 64), "up_proj": (128, 64), "down_proj": (64, 128)}
NAMED: dict[str, tuple[int, ...]] = {
    "model.embed_tokens.weight": (96, 64),
    "model.norm.weight": (64,),
    "lm_head.weight": (96, 64),
    **{f"model.layers.{i}.self_attn.{n}.weight": s for i in range(2) for n, s in SHAPES.items()},
    **{f"model.layers.{i}.mlp.{n}.weight": s for i in range(2) for n, s in MLP.items()},
    **{
        f"model.layers.{i}.{n}_layernorm.weight": (64,) for i in range(2) for n in ("input", "post_attention")
    },
}
PARAMETERS = 2 * 96 * 64 + 2 * (2 * 64 * 64 + 2 * 32 * 64 + 3 * 64 * 128 + 2 * 64) + 64
SIZE = {"BF16": 2, "F32": 4, "F8_E4M3": 1, "U8": 1}


def header(tensors: dict[str, tuple[str, tuple[int, ...]]], **metadata: str) -> tuple[bytes, int]:
    """The JSON of a header, and the bytes of its tensors."""
    entries: dict[str, Any] = {"__metadata__": metadata} if metadata else {}
    at = 0
    for name, (dtype, shape) in tensors.items():
        size = SIZE[dtype]
        for n in shape:
            size *= n
        entries[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [at, at + size]}
        at += size
    return json.dumps(entries).encode(), at


def save(path: Path, tensors: dict[str, tuple[str, tuple[int, ...]]], **metadata: str) -> None:
    """A safetensors file without data: the tensors are a hole."""
    content, size = header(tensors, **metadata)
    path.write_bytes(len(content).to_bytes(8, "little") + content)
    os.truncate(path, 8 + len(content) + size)


def in_16_bit(names: dict[str, tuple[int, ...]]) -> dict[str, tuple[str, tuple[int, ...]]]:
    return {name: ("BF16", shape) for name, shape in names.items()}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "config.json").write_text(json.dumps(LLAMA))
    return tmp_path


# --- safetensors -------------------------------------------------------------------------------------------------


def test_a_folder_with_safetensors(folder: Path) -> None:
    save(folder / "model.safetensors", in_16_bit(NAMED), format="pt")
    found = model(str(folder))
    assert found.parameters_total == PARAMETERS
    assert found.checkpoint_bytes_read == {"BF16": 2 * PARAMETERS}
    assert not found.assumptions
    for name in ("config.json", "model.safetensors"):
        assert model(str(folder / name)).checkpoint_bytes_read == {"BF16": 2 * PARAMETERS}


def test_shards_and_their_index(folder: Path) -> None:
    names = list(NAMED)
    files = {"model-00001-of-00002.safetensors": names[:5], "model-00002-of-00002.safetensors": names[5:]}
    for file, held in files.items():
        save(folder / file, in_16_bit({name: NAMED[name] for name in held}))
    places = {name: file for file, held in files.items() for name in held}
    index = folder / INDEX
    index.write_text(json.dumps({"metadata": {"total_size": 2 * PARAMETERS}, "weight_map": places}))
    save(folder / "other.safetensors", {"x": ("F32", (7,))})  # not in the index
    for path in (folder, index):
        assert model(str(path)).checkpoint_bytes_read == {"BF16": 2 * PARAMETERS}
    (folder / "model-00002-of-00002.safetensors").unlink()
    with pytest.raises(DataFileError, match=r"names 'model-00002-of-00002.safetensors', which is not in the"):
        model(str(folder))
    (folder / "model-00001-of-00002.safetensors").unlink()
    assert model(str(folder)).checkpoint_bytes_read == {"index": 2 * PARAMETERS}  # the index is all there is


def test_other_tensors_than_the_config_says(folder: Path) -> None:
    save(folder / "model.safetensors", in_16_bit(NAMED | {"model.layers.0.extra.weight": (64, 640)}))
    (said,) = model(str(folder)).assumptions
    assert said.startswith(
        "the safetensors hold 127,296 parameters of the language model, its config.json says"
    )
    assert f"{PARAMETERS:,} (+47.44%)" in said


def test_towers_draft_layers_and_buffers_are_not_the_language_models(folder: Path) -> None:
    more = {
        "vision_tower.blocks.0.weight": (64, 64),
        "model.layers.2.mlp.up_proj.weight": (64, 64),
        "mtp.fc.weight": (64, 64),
        "model.layers.0.mlp.gate.e_score_correction_bias": (4096,),
    }
    save(folder / "model.safetensors", in_16_bit(NAMED | more))
    found = model(str(folder))
    assert not found.assumptions
    assert found.checkpoint_bytes_read == {"BF16": 2 * (PARAMETERS + 4 * 4096)}


def test_packed_values_are_counted_as_what_they_hold(folder: Path) -> None:
    quantised = {"quant_method": "modelopt", "quant_algo": "NVFP4", "exclude_modules": ["lm_head"]}
    (folder / "config.json").write_text(json.dumps(LLAMA | {"quantization_config": quantised}))
    tensors: dict[str, tuple[str, tuple[int, ...]]] = {}
    for name, shape in NAMED.items():
        if "proj" in name:
            tensors[name] = ("U8", (shape[0], shape[1] // 2))
            tensors[name.replace("weight", "weight_scale")] = ("F8_E4M3", (shape[0], shape[1] // 16))
            tensors[name.replace("weight", "weight_scale_2")] = ("F32", ())
            tensors[name.replace("weight", "input_scale")] = ("F32", ())
        else:
            tensors[name] = ("BF16", shape)
    save(folder / "model.safetensors", tensors)
    found = model(str(folder))
    assert not found.assumptions
    matrices = 2 * (2 * 64 * 64 + 2 * 32 * 64 + 3 * 64 * 128)
    others = 2 * 2 * 96 * 64 + 2 * (2 * 2 * 64 + 64)
    assert found.checkpoint_bytes_read == {
        "BF16": others,
        "F32": 2 * 7 * 8,
        "F8_E4M3": matrices // 16,
        "U8": matrices // 2,
    }
    from capplan.capacity.checkpoint import checkpoint_bytes

    assert checkpoint_bytes(found).bytes == sum(found.checkpoint_bytes_read.values())


def test_a_folder_of_100_gigabytes_costs_little(folder: Path) -> None:
    """Sparse files: the headers are real, the tensors are holes; nothing of them is read."""
    tensors = in_16_bit({f"model.layers.{i % 2}.experts.{i}.weight": (4096, 4096) for i in range(60)})
    for shard in range(50):
        named = {f"{name}.{shard}": value for name, value in tensors.items()}
        save(folder / f"model-{shard:05}-of-00050.safetensors", named)
    tracemalloc.start()
    begin = time.process_time()
    found = model(str(folder))
    spent = time.process_time() - begin
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert found.checkpoint_bytes_read == {"BF16": 50 * 60 * 4096 * 4096 * 2}
    assert sum(found.checkpoint_bytes_read.values()) > 100e9
    assert spent < 2
    assert peak < 20e6


GOOD, GOOD_SIZE = header({"a": ("F32", (2, 3)), "b": ("BF16", (4,))})


def broken(**changes: Any) -> bytes:
    entry: dict[str, Any] = {"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 24]}
    return json.dumps({"a": entry | changes}).encode()


@pytest.mark.parametrize(
    ("content", "tail", "message"),
    [
        (b"", -9, "is cut short: a safetensors file begins with 8 bytes of length"),
        (GOOD, -40, "is cut short: its header of"),
        (GOOD, GOOD_SIZE - 1, "holds 31 bytes of tensors; its header says 32"),
        (GOOD, GOOD_SIZE + 1, "holds 33 bytes of tensors; its header says 32"),
        (b"[]", 0, "holds a list of 0; a JSON object is needed"),
        (b"{", 0, "no readable JSON"),
        (b"\xff\xfe", 0, "no readable JSON"),
        (b"[" * 100_000, 0, "no readable JSON"),
        (b'{"a": 1}', 0, "tensor 'a' is 1; an object is needed"),
        (b'{"a": {}, "a": {}}', 0, "'a' is given twice"),
        (broken(dtype="F33"), 24, "tensor 'a' has dtype 'F33'; accepted: F64"),
        (broken(dtype=["F32"]), 24, "tensor 'a' has dtype a list of 1"),
        (broken(shape=[-2, -3]), 24, "tensor 'a' has shape a list of 2"),
        (broken(shape=[2.0, 3]), 24, "tensor 'a' has shape"),
        (broken(shape=None), 24, "tensor 'a' has shape null"),
        (broken(shape=[2**63]), 24, "tensor 'a' has shape"),
        (broken(shape=[2, 4]), 24, "tensor 'a' takes 24 bytes, and its shape in F32 another number"),
        (broken(data_offsets=[24, 0]), 24, "tensor 'a' has data_offsets a list of 2"),
        (broken(data_offsets=[-24, 0]), 24, "tensor 'a' has data_offsets a list of 2"),
        (broken(data_offsets=[0]), 24, "tensor 'a' has data_offsets a list of 1"),
        (broken(data_offsets=[0, 10**30]), 24, "tensor 'a' has data_offsets"),
        (broken(data_offsets=[8, 32]), 32, "tensor 'a' leaves a gap before it (offset 8, expected 0)"),
        (GOOD.replace(b"[24, 32]", b"[16, 24]"), 24, "tensor 'b' overlaps the tensor before it (offset 16"),
    ],
)
def test_a_malformed_header(content: bytes, tail: int, message: str, tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    path.write_bytes(len(content).to_bytes(8, "little") + content)
    os.truncate(path, max(0, 8 + len(content) + tail))
    with pytest.raises(DataFileError) as caught:
        read_files([path])
    assert message in str(caught.value)
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_huge_length_is_not_believed(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    path.write_bytes((10**12).to_bytes(8, "little"))
    os.truncate(path, 10**13)
    with pytest.raises(DataFileError, match=r"a header of 1,000,000,000,000 bytes; up to 100,000,000"):
        read_files([path])


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{}", "field 'weight_map' is null"),
        ('{"weight_map": {}}', "field 'weight_map' is an object of 0"),
        ('{"weight_map": {"a": "../../etc/passwd"}}', "has '../../etc/passwd'; the name of a file beside it"),
        ('{"weight_map": {"a": "/x.safetensors"}}', "has '/x.safetensors'"),
        ('{"weight_map": {"a": 3}}', "has '3'"),
        ("nonsense", "no readable JSON"),
    ],
)
def test_a_malformed_index(content: str, message: str, folder: Path) -> None:
    (folder / INDEX).write_text(content)
    for path in (folder, folder / INDEX):
        with pytest.raises(DataFileError) as caught:
            read_path(path)
        assert message in str(caught.value)


def test_safetensors_without_a_config(tmp_path: Path) -> None:
    save(tmp_path / "model.safetensors", in_16_bit(NAMED))
    with pytest.raises(DataFileError, match=r"has no config.json beside it"):
        model(str(tmp_path / "model.safetensors"))
    with pytest.raises(DataFileError, match=r"holds no config.json"):
        model(str(tmp_path))
    with pytest.raises(DataFileError, match=r"no such file"):
        model(str(tmp_path / "nothing.safetensors"))


def test_consolidated_weights_are_not_counted_twice(folder: Path) -> None:
    save(folder / "model.safetensors", in_16_bit(NAMED))
    save(folder / "consolidated.safetensors", in_16_bit(NAMED))
    assert model(str(folder)).checkpoint_bytes_read == {"BF16": 2 * PARAMETERS}


# --- GGUF --------------------------------------------------------------------------------------------------------


def text(value: str) -> bytes:
    return struct.pack("<Q", len(value.encode())) + value.encode()


def keyed(name: str, value: Any) -> bytes:
    """A key of the metadata; a list of texts or of whole numbers is an array."""
    if isinstance(value, str):
        return text(name) + struct.pack("<I", 8) + text(value)
    if isinstance(value, list):
        kind = 8 if value and isinstance(value[0], str) else 5
        items = b"".join(text(v) if kind == 8 else struct.pack("<i", v) for v in value)
        return text(name) + struct.pack("<IIQ", 9, kind, len(value)) + items
    return text(name) + struct.pack("<II", 4, value)


def gguf(
    keys: dict[str, Any], tensors: dict[str, tuple[str, tuple[int, ...]]], version: int = 3
) -> tuple[bytes, int]:
    """A header, and the bytes of its tensors."""
    numbers = {name: (number, block, size) for number, (name, block, size) in TENSOR_TYPES.items()}
    infos, at = b"", 0
    for name, (kind, shape) in tensors.items():
        number, block, size = numbers[kind]
        infos += text(name) + struct.pack("<I", len(shape)) + b"".join(struct.pack("<Q", n) for n in shape)
        infos += struct.pack("<IQ", number, at)
        elements = 1
        for n in shape:
            elements *= n
        at = -(-(at + elements // block * size) // 32) * 32
    content = b"GGUF" + struct.pack("<IQQ", version, len(tensors), len(keys))
    content += b"".join(keyed(name, value) for name, value in keys.items()) + infos
    return content + b"\0" * (-len(content) % 32), at


def save_gguf(path: Path, keys: dict[str, Any], tensors: dict[str, tuple[str, tuple[int, ...]]]) -> None:
    content, size = gguf(keys, tensors)
    path.write_bytes(content)
    os.truncate(path, len(content) + size)


KEYS: dict[str, Any] = {
    "general.architecture": "llama",
    "general.name": "Small",
    "llama.block_count": 2,
    "llama.embedding_length": 256,
    "llama.feed_forward_length": 512,
    "llama.attention.head_count": 4,
    "llama.attention.head_count_kv": 2,
    "llama.context_length": 4096,
    "tokenizer.ggml.tokens": [f"token{i}" for i in range(300)],
    "tokenizer.ggml.scores": list(range(300)),
}
BLOCK: dict[str, tuple[str, tuple[int, ...]]] = {
    "attn_norm": ("F32", (256,)),
    "ffn_norm": ("F32", (256,)),
    "attn_q": ("Q4_K", (256, 256)),
    "attn_k": ("Q4_K", (256, 128)),
    "attn_v": ("Q6_K", (256, 128)),
    "attn_output": ("Q4_K", (256, 256)),
    "ffn_gate": ("Q4_K", (256, 512)),
    "ffn_up": ("Q4_K", (256, 512)),
    "ffn_down": ("Q6_K", (512, 256)),
}
TENSORS: dict[str, tuple[str, tuple[int, ...]]] = {
    "token_embd.weight": ("Q6_K", (256, 300)),
    "output_norm.weight": ("F32", (256,)),
    **{f"blk.{i}.{name}.weight": value for i in range(2) for name, value in BLOCK.items()},
}


def test_a_gguf_file(tmp_path: Path) -> None:
    path = tmp_path / "small.Q4_K_M.gguf"
    save_gguf(path, KEYS, TENSORS)
    found = model(str(path))
    assert (found.id, found.family, found.vocab_size, found.max_context) == (
        "small.Q4_K_M",
        "llama",
        300,
        4096,
    )
    attention, mlp = 2 * 256 * 256 + 2 * 256 * 128, 3 * 256 * 512
    assert (
        found.parameters_total == 300 * 256 + 2 * (attention + mlp + 512) + 256
    )  # a tied head: no output.weight
    q4 = 2 * (2 * 256 * 256 + 256 * 128 + 2 * 256 * 512)
    q6 = 2 * (256 * 128 + 256 * 512) + 300 * 256
    assert found.checkpoint_bytes_read == {
        "F32": 4 * 5 * 256,
        "Q4_K": q4 // 256 * 144,
        "Q6_K": q6 // 256 * 210,
    }
    assert found.dtype == "int4"
    assert not found.assumptions
    assert found.layers[0][0].kv_heads == 2  # type: ignore[union-attr]
    assert model(str(tmp_path)).id == "small.Q4_K_M"  # the one file of a folder


def test_a_split_gguf(tmp_path: Path) -> None:
    half = dict(list(TENSORS.items())[:9])
    rest = {name: value for name, value in TENSORS.items() if name not in half}
    save_gguf(tmp_path / "m-00001-of-00002.gguf", KEYS, half)
    save_gguf(tmp_path / "m-00002-of-00002.gguf", {"split.no": 1}, rest)
    save_gguf(tmp_path / "whole.gguf", KEYS, TENSORS)
    parts = read_path(tmp_path / "m-00001-of-00002.gguf")
    assert parts.checkpoint_bytes_read == read_path(tmp_path / "whole.gguf").checkpoint_bytes_read
    with pytest.raises(DataFileError, match=r"holds 3 GGUF files; name one of them"):
        read_path(tmp_path)
    (tmp_path / "m-00002-of-00002.gguf").unlink()
    with pytest.raises(DataFileError, match=r"'m-00002-of-00002.gguf' is not beside it"):
        read_path(tmp_path / "m-00001-of-00002.gguf")


def test_a_mixture_in_a_gguf(tmp_path: Path) -> None:
    keys = KEYS | {"llama.expert_count": 4, "llama.expert_used_count": 2}
    experts: dict[str, tuple[str, tuple[int, ...]]] = {}
    for i in range(2):
        experts |= {f"blk.{i}.ffn_gate_inp.weight": ("F32", (256, 4))}
        experts |= {f"blk.{i}.ffn_{n}_exps.weight": ("Q4_K", (256, 512, 4)) for n in ("gate", "up")}
        experts |= {f"blk.{i}.ffn_down_exps.weight": ("Q4_K", (512, 256, 4))}
    dense = {
        name: value
        for name, value in TENSORS.items()
        if not name.endswith(("gate.weight", "up.weight", "down.weight"))
    }
    save_gguf(tmp_path / "moe.gguf", keys, dense | experts)
    found = model(str(tmp_path / "moe.gguf"))
    assert found.family == "mixtral"
    assert not found.assumptions
    assert found.parameters(["experts"]) == 2 * 4 * 3 * 256 * 512


def test_tensors_that_the_metadata_does_not_explain(tmp_path: Path) -> None:
    save_gguf(tmp_path / "odd.gguf", KEYS, TENSORS | {"blk.0.extra.weight": ("F32", (256, 256))})
    (said,) = read_path(tmp_path / "odd.gguf").assumptions
    assert said.startswith("the GGUF holds")


def damaged(change: Callable[[bytearray], None]) -> bytes:
    content = bytearray(gguf(KEYS, TENSORS)[0])
    change(content)
    return bytes(content)


def put(at: int, code: str, value: int) -> Callable[[bytearray], None]:
    return lambda content: struct.pack_into("<" + code, content, at, value)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "is not a GGUF file"),
        (b"GGML" + b"\0" * 40, "is not a GGUF file"),
        (damaged(put(4, "I", 1)), "is of GGUF version 1; 2 and 3 are accepted"),
        (damaged(put(4, "I", 3 << 24)), "is a big-endian GGUF file"),
        (damaged(put(8, "Q", 10**9)), "claims 1,000,000,000 tensors"),
        (damaged(put(16, "Q", 2**64 - 1)), "keys; up to 100,000 are accepted"),
        (damaged(put(24, "Q", 2**40)), "has a text of 1,099,511,627,776 bytes"),
        (damaged(put(24, "Q", 900_000)), "is cut short: 900,000 more bytes"),
        (damaged(put(24 + 8 + 20, "I", 99)), "has key 'general.architecture' of type 99"),
        (gguf(KEYS, TENSORS)[0][:300], "is cut short"),
        (gguf(KEYS, TENSORS)[0], "is cut short: its tensors end at"),
        (gguf({"a": 1, "b": [2]} | KEYS, {"x": ("Q4_K", (100,))})[0], "has tensor 'x' of shape (100,), which Q4_K can't"),
        (gguf(KEYS | {"general.alignment": 0}, {})[0], "has general.alignment 0"),
        (b"GGUF" + struct.pack("<IQQ", 3, 0, 2) + keyed("a", 1) * 2, "has key 'a' twice"),
        (b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + text("a") + struct.pack("<IIQ", 9, 9, 1), "arrays of type 9"),
        (b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + text("a") + struct.pack("<IIQ", 9, 8, 2**50), "more than the file holds"),
    ],
)  # fmt: skip
def test_a_malformed_gguf(content: bytes, message: str, tmp_path: Path) -> None:
    path = tmp_path / "bad.gguf"
    path.write_bytes(content)
    with pytest.raises(DataFileError) as caught:
        read_header(path)
    assert message in str(caught.value)
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"general.architecture": "lama"}, "general.architecture is 'lama'; did you mean 'llama'?; supported: llama"),
        ({"general.architecture": 7}, "general.architecture is 7; supported"),
        ({"llama.attention.head_count": 3}, "which does not divide the 3 attention heads"),
        ({"llama.attention.head_count_kv": [2, 1]}, "key 'llama.attention.head_count_kv' differs from layer to layer"),
    ],
)  # fmt: skip
def test_metadata_that_is_no_model(change: dict[str, Any], message: str, tmp_path: Path) -> None:
    save_gguf(tmp_path / "x.gguf", KEYS | change, TENSORS)
    with pytest.raises(DataFileError) as caught:
        read_path(tmp_path / "x.gguf")
    assert message in str(caught.value)


@pytest.mark.parametrize("architecture", sorted(ARCHITECTURES))
def test_every_architecture_reads_its_own_metadata(architecture: str) -> None:
    values = {key.replace("llama", architecture): value for key, value in KEYS.items()}
    values["general.architecture"] = architecture
    more = {"attention.sliding_window": 128, "attention.key_length": 64, "attention.value_length": 64}
    if architecture in ("deepseek2", "gpt-oss", "qwen2moe", "qwen3moe"):
        more |= {"expert_count": 8, "expert_used_count": 2, "expert_feed_forward_length": 64}
        more |= {"expert_shared_feed_forward_length": 64, "expert_shared_count": 1}
    if architecture == "deepseek2":
        more |= {"attention.kv_lora_rank": 32, "attention.q_lora_rank": 64, "rope.dimension_count": 16}
        more |= {"attention.key_length": 48, "leading_dense_block_count": 1}
    values |= {f"{architecture}.{key}": value for key, value in more.items()}
    found = from_config(config_of(Header(values, dict(TENSORS)), "'x'"), id="x", name="X")
    assert (len(found.layers), found.hidden_size, found.vocab_size) == (2, 256, 300)
    assert not found.parameters(["head"])
    attention = found.layers[0][0]
    if isinstance(attention, LatentAttention):
        assert attention[:5] == (4, 32, 16, 48 - 16, 64)
    else:
        assert attention[:4] == (4, 2, 64, 64)


def test_metadata_without_a_model(tmp_path: Path) -> None:
    save_gguf(tmp_path / "x.gguf", {k: v for k, v in KEYS.items() if "block_count" not in k}, TENSORS)
    with pytest.raises(DataFileError, match=r"key 'llama.block_count' is missing"):
        read_path(tmp_path / "x.gguf")
    save_gguf(tmp_path / "y.gguf", KEYS, {"output.weight": ("F32", (256, 300))})
    with pytest.raises(DataFileError, match=r"no tensor 'token_embd.weight'"):
        read_path(tmp_path / "y.gguf")


# --- Mistral's params.json ---------------------------------------------------------------------------------------

PARAMS: dict[str, Any] = {
    "dim": 64,
    "n_layers": 2,
    "head_dim": 16,
    "hidden_dim": 128,
    "n_heads": 4,
    "n_kv_heads": 2,
    "norm_eps": 1e-5,
    "rope_theta": 1e6,
    "vocab_size": 96,
    "max_seq_len": 32_768,
}
LATENT = {
    "q_lora_rank": 32,
    "kv_lora_rank": 16,
    "qk_nope_head_dim": 16,
    "qk_rope_head_dim": 8,
    "v_head_dim": 16,
}
MOE = {"num_experts": 8, "num_experts_per_tok": 2}


def params(folder: Path, **changes: Any) -> Path:
    path = folder / "params.json"
    path.write_text(json.dumps({k: v for k, v in (PARAMS | changes).items() if v != "absent"}))
    return path


def test_a_params_json(tmp_path: Path) -> None:
    path = params(tmp_path)
    found = model(str(path))
    assert found.parameters_total == PARAMETERS
    assert (found.max_context, found.dtype, found.vocab_size) == (32_768, "bf16", 96)
    save(tmp_path / "consolidated.safetensors", {"layers.0.attention.wq.weight": ("BF16", (64, 64))})
    assert model(str(tmp_path)).checkpoint_bytes_read == {"BF16": 2 * 64 * 64}
    assert "the safetensors hold 4,096 parameters" in model(str(tmp_path)).assumptions[-1]
    tied = read_path(params(tmp_path, tied_embeddings=True))
    assert PARAMETERS - tied.parameters_total == 96 * 64


def test_a_params_json_with_experts(tmp_path: Path) -> None:
    found = read_path(params(tmp_path, moe=MOE))
    assert found.parameters(["experts"]) == 2 * 8 * 3 * 64 * 128
    assert found.parameters(["router"]) == 2 * 8 * 64
    latent = read_path(
        params(
            tmp_path,
            **LATENT,
            moe=MOE | {"expert_hidden_dim": 32, "first_k_dense_replace": 1, "num_shared_experts": 1},
        )
    )
    assert latent.parameters(["experts"]) == 8 * 3 * 64 * 32
    assert latent.parameters(["mlp"]) == 3 * 64 * 128
    assert latent.parameters(["shared"]) == 3 * 64 * 32


def test_a_params_json_in_fp8(tmp_path: Path) -> None:
    quantised = {"qformat_weight": "fp8_e4m3", "qscheme_act": "TENSOR"}
    found = read_path(params(tmp_path, quantization=quantised, vision_encoder={"hidden_size": 1024}))
    assert found.dtype == "fp8"
    assert found.quantization is not None
    assert found.quantization.formats[0].matrix_bytes == 4
    assert "vision_encoder: not counted" in found.assumptions[-1]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"dim": "absent"}, "field 'dim' is missing"),
        ({"dim": -1}, "field 'hidden_size' is -1"),
        ({"moe": [1]}, "field 'moe' is a list of 1; an object is accepted"),
        ({"moe": {}}, "field 'moe.num_experts' is missing"),
        ({"moe": MOE | {"route_every_n": 2}}, "field 'moe.route_every_n' is 2"),
        ({"moe": MOE | {"odd": 2}}, "field 'moe.odd' is not understood"),
        ({"moe": MOE | {"num_shared_experts": 1}}, "field 'moe' has dense layers or shared experts"),
        ({"kv_lora_rank": 16}, "is missing; 'kv_lora_rank' needs it"),
        (LATENT, "field 'moe' is missing; latent attention without experts"),
        ({"use_biases": True}, "field 'use_biases' is true"),
        ({"quantization": {"qformat_weight": "int3"}}, "field 'quantization.qformat_weight' is 'int3'"),
        (
            {"quantization": {"qformat_weight": "fp8_e4m3", "qscheme_act": "ODD"}},
            "field 'quantization.qscheme_act'",
        ),
        ({"quantization": 8}, "field 'quantization' is 8"),
        ({"n_odd_things": 3}, "field 'n_odd_things' is not understood in a params.json"),
    ],
)
def test_a_params_json_that_is_refused(change: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(DataFileError) as caught:
        read_path(params(tmp_path, **change))
    assert message in str(caught.value)
    assert str(tmp_path) in str(caught.value)


# --- anything at all ---------------------------------------------------------------------------------------------


@settings(max_examples=10_000, deadline=None)
@given(st.binary(max_size=60) | st.binary(max_size=40).map(lambda b: GOOD[: len(b)] + b + GOOD[len(b) :]))
def test_any_bytes_are_a_header_or_one_clear_line(content: bytes) -> None:
    said = ""
    try:
        add_tensors(Headers(), content, len(content), 8 + len(content) + GOOD_SIZE, "'x'")
    except DataFileError as error:
        said = str(error)
    assert "\n" not in said
    assert len(said) < 500


@settings(max_examples=1_000, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.integers(0, 1500), st.binary(min_size=1, max_size=12))
def test_any_damage_to_a_gguf_is_one_clear_line(tmp_path: Path, at: int, damage: bytes) -> None:
    content, size = gguf(
        KEYS | {"tokenizer.ggml.tokens": ["a", "b"], "tokenizer.ggml.scores": [1, 2]}, TENSORS
    )
    path = tmp_path / "x.gguf"
    path.write_bytes(content[:at] + damage + content[at + len(damage) :])
    os.truncate(path, len(content) + size)
    said = ""
    try:
        read_path(path)
    except DataFileError as error:
        said = str(error)
    assert "\n" not in said
