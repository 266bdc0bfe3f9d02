"""A model from whatever is on disk: a folder, a config.json, safetensors or their index, a GGUF, a params.json."""

from __future__ import annotations

import os
from pathlib import Path

from capplan.errors import DataFileError
from capplan.models.hf import read_config
from capplan.models.spec import Model

ENDINGS = (".json", ".gguf", ".safetensors")
_CLOSE = 1e-3  # of the parameters: router biases and other buffers are not counted


def read_path(path: Path) -> Model:
    """The model of a file or folder, with the exact bytes of its weights where their headers are there.

    Raises:
        DataFileError: nothing there that can be read right.
    """
    path = Path(path)
    if path.suffix == ".gguf":
        from capplan.models.gguf import read_gguf

        return read_gguf(path)
    if path.name.endswith((".safetensors", ".safetensors.index.json")):
        return _of_file(path)
    if os.path.isdir(path):
        return _of_folder(path)
    if path.name == "params.json":
        from capplan.models.mistral import read_params

        return with_headers(read_params(path), path.parent)
    model = read_config(path)
    return with_headers(model, path.parent) if path.name == "config.json" else model


def _of_folder(folder: Path) -> Model:
    has = {name: os.path.lexists(folder / name) for name in ("config.json", "params.json")}
    if has["config.json"] or not has["params.json"]:
        files = (
            [] if has["config.json"] else sorted(name for name in _names(folder) if name.endswith(".gguf"))
        )
        if files and len({name.rsplit("-of-", 1)[-1] for name in files}) == 1:
            return read_path(folder / files[0])
        if files:
            raise DataFileError(f"folder {str(folder)!r} holds {len(files)} GGUF files; name one of them")
        return with_headers(read_config(folder), folder)
    return read_path(folder / "params.json")


def _names(folder: Path) -> list[str]:
    try:
        return os.listdir(folder)
    except OSError as error:
        raise DataFileError(
            f"can't read folder {str(folder)!r}: {(error.strerror or str(error)).lower()}"
        ) from error


def _of_file(path: Path) -> Model:
    """Safetensors say what the tensors are, not how they are used: their config has to be there."""
    if not os.path.lexists(path):
        raise DataFileError(f"can't read {str(path)!r}: no such file or directory")
    folder = path.parent
    if not any(os.path.lexists(folder / name) for name in ("config.json", "params.json")):
        raise DataFileError(
            f"{str(path)!r} has no config.json beside it, which says what its tensors are for"
        )
    if path.name.endswith(".index.json"):
        from capplan.models.safetensors import index_of

        index_of(path)
        return _of_folder(folder)
    from capplan.models.safetensors import read_files

    model = (
        read_path(folder / "config.json") if os.path.lexists(folder / "config.json") else _of_folder(folder)
    )
    if model.checkpoint_bytes_read is None:
        return with_read(model, read_files([path], len(model.layers)).bytes, {})
    return model


def with_headers(model: Model, folder: Path) -> Model:
    """The model with the bytes that the headers of the folder's safetensors add up to."""
    from capplan.models.safetensors import INDEX, index_of, read_files, shards

    files = shards(folder)
    if files:
        headers = read_files(files, len(model.layers))
        return with_read(model, headers.bytes, headers.weights)
    if os.path.lexists(folder / INDEX):
        total = index_of(folder / INDEX)[1]
        return with_read(model, {"index": total}, {}) if total else model
    return model


def with_read(model: Model, sizes: dict[str, int], elements: dict[str, int]) -> Model:
    """The model with the bytes that were read, and a line where the tensors are not what its config says."""
    said = _disagreement(model, elements)
    return model._replace(
        checkpoint_bytes_read=dict(sorted(sizes.items())),
        assumptions=(*model.assumptions, *([said] if said else [])),
    )


def _disagreement(model: Model, elements: dict[str, int]) -> str | None:
    """How far the parameters in the headers are from those of the config, four-bit values unpacked."""
    if not elements or not model.weights:
        return None
    formats = model.quantization.formats if model.quantization else ()
    bits = min((stored.bits for stored in formats), default=8)
    packed = {"U8": 8 // bits, "I8": 8 // bits, "I32": 32 // bits} if formats else {}
    count = sum(n * packed.get(dtype, 1) for dtype, n in elements.items())
    expected = model.parameters_total
    if abs(count - expected) <= _CLOSE * expected:
        return None
    return (
        f"the safetensors hold {count:,} parameters of the language model, its config.json says {expected:,} "
        f"({count / expected - 1:+.2%}): bytes are those of the safetensors"
    )
