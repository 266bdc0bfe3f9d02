"""Finding an accelerator or a node by id or alias, in any case; the user's own rows come first."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

from capplan.hardware.reading import mistake
from capplan.hardware.spec import Gpu, Node, from_toml, node_from_toml
from capplan.registry import Registry, read_toml

_HERE = Path(__file__).parent
GPUS = Registry("gpus", "gpu", _HERE / "gpus", "capplan gpus")
NODES = Registry("nodes", "node", _HERE / "nodes", "capplan nodes")

_Row = TypeVar("_Row", Gpu, Node)


def gpu(name: str) -> Gpu:
    """The accelerator of an id or alias.

    >>> gpu("H200").values["memory.bandwidth"].written
    '4.8 TB/s'
    """
    return _read(*GPUS.read(name), from_toml)


def names() -> list[str]:
    """The ids of every accelerator, sorted."""
    return GPUS.names()


def all_gpus() -> list[Gpu]:
    """Every accelerator, by id; reads every file."""
    return [_read(path, read_toml(path), from_toml) for path in GPUS.paths().values()]


def node(name: str) -> Node:
    """The server or machine type of an id or alias."""
    return _read(*NODES.read(name), node_from_toml)


def node_names() -> list[str]:
    """The ids of every node, sorted."""
    return NODES.names()


def _read(path: Path, data: dict[str, Any], reader: Callable[[Mapping[str, Any], str], _Row]) -> _Row:
    row = reader(data, str(path))
    if row.id != path.stem:  # else the row could be opened under a name that it doesn't say
        raise mistake(str(path), f"key 'id' must be the name of the file, '{path.stem}', not '{row.id}'")
    return row
