"""Draft models with layers and a cache of their own: one TOML file a drafter, as its config.json has it."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

from capplan.errors import DataFileError
from capplan.models.hf import from_config
from capplan.models.spec import Model, Weight
from capplan.registry import Registry

_KEYS = {"id", "name", "method", "tokens", "taps", "source", "checked", "config"}
_ROWS = Registry(
    "drafters", "drafter", Path(__file__).parent, "models/drafters; a row of your own is found first"
)
# buckets that a drafter has not, but reads from its target
_OF_THE_TARGET = {"dflash": ("embedding", "head"), "eagle3": ("embedding",)}
_KEYS_AND_QUERIES = ("q_proj.weight", "k_proj.weight", "v_proj.weight")


class Drafter(NamedTuple):
    """A draft model and how it speculates."""

    model: Model  # with the weights that are its own
    published: str  # its hub id; its id here, where it has none
    method: str  # as vLLM's speculative config has it
    tokens: int  # that it speculates where nobody says
    taps: int  # layers of the target whose hidden states it reads


def drafter(name: str) -> Drafter:
    """The drafter of an id or alias, in any case. Raises UnknownNameError, DataFileError."""
    path, row = _ROWS.read(name)
    where = repr(str(path))
    if missing := _KEYS - set(row):
        raise DataFileError(f"{where}: key {min(missing)!r} is missing")
    if row["method"] not in _OF_THE_TARGET:
        raise DataFileError(f"{where}: method {row['method']!r} is not one of {', '.join(_OF_THE_TARGET)}")
    model = from_config(row["config"], id=row["id"], name=row["name"], where=where, complete=True)
    own = [weight for weight in model.weights if weight.bucket not in _OF_THE_TARGET[row["method"]]]
    if row["method"] == "eagle3":
        own = [_of_both(weight) for weight in own]
    reads = Weight("fc.weight", (model.hidden_size, row["taps"] * model.hidden_size), "mlp")
    weights = (*own, reads)
    return Drafter(model._replace(weights=weights), _hub_id(row), row["method"], row["tokens"], row["taps"])


def _hub_id(row: dict[str, Any]) -> str:
    return str(next(iter(row.get("aliases", ())), row["id"]))


def _of_both(weight: Weight) -> Weight:
    """EAGLE 3 attends over a token's embedding and the target's state of it, side by side."""
    if not weight.name.endswith(_KEYS_AND_QUERIES):
        return weight
    return weight._replace(shape=(weight.shape[0], 2 * weight.shape[1]))


def known(name: str) -> bool:
    return _ROWS.find(name) is not None


def made_for(target: str, method: str) -> str | None:
    """The one drafter on record that was trained for a target, by its hub id; None for none, or several."""
    rows = [_ROWS.read(name)[1] for name in _ROWS.names()]
    found = [row for row in rows if (row.get("target"), row.get("method")) == (target, method)]
    return _hub_id(found[0]) if len(found) == 1 else None
