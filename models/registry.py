"""Finding a model by name: a row of the registry, a file of the user's own, or a hub id."""

from __future__ import annotations

import os
import re
from datetime import date
from pathlib import Path
from typing import Any

from capplan.errors import DataFileError, InputError, MissingPackageError, near_misses
from capplan.models.fields import MAX_LAYERS, Fields
from capplan.models.hf import DTYPES, from_config
from capplan.models.spec import Attention, Model
from capplan.registry import Registry, read_toml

BASES = ("read", "recalled", "class-defaults", "stated")
_SPECS = Path(__file__).parent / "specs"
_ROWS = Registry("models", "model", _SPECS, "capplan models")
_ROWS_OR_PATHS = Registry(
    "models", "model", _SPECS, "capplan models; a path to a config.json is accepted too"
)
_ENDINGS = (".json", ".gguf", ".safetensors")
_HUB_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,95}/[A-Za-z0-9][A-Za-z0-9_.-]{0,95}")
# the keys of a row: their type, and whether they are needed
_KEYS: dict[str, tuple[type, bool]] = {
    "id": (str, True),
    "name": (str, True),
    "basis": (str, True),
    "source": (str, True),
    "checked": (date, False),  # of a row that was read somewhere
    "aliases": (list, False),
    "released": (str, False),
    "notes": (list, False),
    "config": (dict, False),
    "dimensions": (dict, False),
    "parameters": (int, False),
}
_TYPES = {str: "a text", date: "a date", list: "a list of texts", dict: "a table", int: "a whole number"}


def model(name: str) -> Model:
    """The model of a registry id or alias (any case), of a path, or of a hub id.

    A path leads to a config.json or its folder, a GGUF file, safetensors with a config beside them, or Mistral's
    params.json. A registry name wins over a file of the same name; write './name' for the file. What is neither and
    looks like 'org/name' is asked of the hub.

    Raises:
        UnknownNameError: no such name.
        DataFileError: the row or the file can't be read right, or the hub has no such model.
        MissingPackageError: a hub id, and huggingface_hub is not installed.
    """
    if name.startswith(("http://", "https://")):
        parts = name.partition("//")[2].split("/")
        hub_id = "/".join(parts[1:3]) if len(parts) > 2 else "org/name"
        raise InputError(f"{name!r} is an address; write the hub id, such as {hub_id!r}")
    if name.startswith((".", "/")) or name.endswith(_ENDINGS):
        return _read(name)
    path = _ROWS.find(name)
    if path is not None:
        return _from_row(path, read_toml(path))
    if _is_path(name):
        return _read(name)
    if _HUB_ID.fullmatch(name):
        return _of_hub(name)
    rows = _ROWS_OR_PATHS if "/" in name else _ROWS
    return _from_row(*rows.read(name))  # raises: there is none


def _read(name: str) -> Model:
    from capplan.models.reader import read_path

    return read_path(Path(name))


def _of_hub(name: str) -> Model:
    """A model of the hub; where it is not there, the nearest names of the registry are said as well."""
    from capplan.models.hub import read_hub

    try:
        return read_hub(name)
    except (DataFileError, MissingPackageError) as error:
        nearest = near_misses(name, _ROWS.known(), 2)
        if not nearest:
            raise
        did_you_mean = f"; did you mean {' or '.join(map(repr, nearest))}? (capplan models)"
        raise type(error)(f"{error}{did_you_mean}") from error


def names() -> list[str]:
    """The ids of every row, sorted."""
    return _ROWS.names()


def all_models() -> list[Model]:
    return [_from_row(path, read_toml(path)) for path in _ROWS.paths().values()]


def _is_path(name: str) -> bool:
    """Whether a name that no row has can be a path; 'org/name' is one only if it is there."""
    hub_id = name.count("/") == 1
    if os.path.isdir(name):
        return True
    return ("/" in name or os.sep in name) and (not hub_id or os.path.lexists(name))


def _from_row(path: Path, row: dict[str, Any]) -> Model:
    where = repr(str(path))
    _check(row, path, where)
    header = {
        "basis": row["basis"],
        "source": row["source"],
        "checked": row["checked"].isoformat() if "checked" in row else None,
        "released": row.get("released"),
        "aliases": tuple(row.get("aliases", ())),
        "notes": tuple(row.get("notes", ())),
    }
    if "dimensions" in row:
        return _stated(row, where, header)
    # TOML has no null; a row says "null"
    config = {name: None if value == "null" else value for name, value in row["config"].items()}
    return from_config(config, id=row["id"], name=row["name"], where=where, complete=True, **header)


def _check(row: dict[str, Any], path: Path, where: str) -> None:
    def error(message: str) -> DataFileError:
        return DataFileError(f"{where}: {message}")

    for key, value in row.items():
        if key not in _KEYS:
            nearest = near_misses(key, _KEYS, 1)
            raise error(f"unknown key {key!r}" + (f"; did you mean {nearest[0]!r}?" if nearest else ""))
        kind = _KEYS[key][0]
        items = value if isinstance(value, list) else []
        if type(value) is not kind or not all(type(item) is str for item in items):
            raise error(f"key '{key}' is not {_TYPES[kind]}")
        if not all(text.isprintable() for text in (value, *items) if isinstance(text, str)):
            raise error(f"key '{key}' has a character that can't be printed")
    for key, (_, needed) in _KEYS.items():
        if needed and key not in row:
            raise error(f"key '{key}' is missing")
    if row["id"] != path.stem:
        raise error(f"key 'id' is {row['id']!r}; the file's name says {path.stem!r}")
    if row["basis"] not in BASES:
        raise error(f"key 'basis' is {row['basis']!r}; accepted: {', '.join(BASES)}")
    if row["basis"] == "read" and "checked" not in row:
        raise error("key 'checked' is missing")
    stated = row["basis"] == "stated"
    if stated != ("dimensions" in row) or stated != ("parameters" in row) or stated == ("config" in row):
        raise error("a row has [config], or, with basis 'stated', 'parameters' and [dimensions]")


def _stated(row: dict[str, Any], where: str, header: dict[str, Any]) -> Model:
    """A model class known by its round size and the shape of its cache."""
    fields = Fields(row["dimensions"], f"{where}, [dimensions]")
    heads, kv_heads = fields.count("heads"), fields.count("kv_heads")
    head_dim = fields.count("head_dim")
    layer = Attention(heads, kv_heads, head_dim, head_dim)
    layers, hidden = fields.count("layers", most=MAX_LAYERS), fields.count("hidden_size")
    dtype = fields.text("dtype")
    if dtype not in (*DTYPES.values(), "fp8"):
        raise fields.error(f"field 'dtype' is {dtype!r}; accepted: {', '.join(DTYPES.values())}, fp8")
    if unknown := next((name for name in row["dimensions"] if name not in fields.read), None):
        raise fields.error(f"unknown key {unknown!r}")
    if heads % kv_heads:
        raise fields.error(
            f"field 'kv_heads' is {kv_heads}, which does not divide the {heads} attention heads"
        )
    parameters = Fields(row, where).count("parameters", most=10**15)
    return Model(
        id=row["id"],
        name=row["name"],
        family="stated",
        hidden_size=hidden,
        layers=((layer,),) * layers,
        weights=(),
        dtype=dtype,
        parameters_stated=parameters,
        assumptions=("the parameter count is a round figure",),
        **header,
    )
