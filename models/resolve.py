"""A published build's name, or a local one out of a log, as a row of the registry and how its weights are stored.

By stated rules (resolve.toml) and nothing else: words of quantization are taken out, then owner, words of training and
dates; what is left must be one row's name. Two that fit are an error, never a guess.
"""

from __future__ import annotations

import re
import tomllib
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from capplan.errors import InputError, near_misses
from capplan.models import registry
from capplan.models.spec import Model, Weight

_ASIDE = re.compile(r"\(.*?\)|\[.*?\]")
_Row = tuple[str, tuple[str, ...], dict[str, Any]]  # its id, what was assumed, the rule of another name
_DATE = re.compile(r"\d{4}|\d{6}|\d{8}")


@dataclass(frozen=True, slots=True)
class Resolved:
    """The model of a name."""

    model: Model
    quantization: str | None  # a method, as engines/weights.py has them; None: the checkpoint's own
    assumptions: tuple[str, ...] = ()


def resolve(name: str, quantization: str = "") -> Resolved:
    """The registry's model of a published name. `quantization` is what a log says beside it, used where the name
    itself says nothing. Never asks the hub.

    Raises InputError for a name that no row, or more than one, answers to.
    """
    published = _rules()["published"].get(name.strip().lower())
    if published is not None:
        model = registry.model(published)
        return Resolved(model, _of_its_own(model, method(name), name))
    words, quant = _plain(name)
    quant = quant or method(quantization)
    if not words:
        raise InputError(f"model {name[:80]!r} names no model")
    row, assumptions, same = _row(words, quant, name)
    model = registry.model(row)
    if quant is None and method(row) is not None:
        quant = "bf16"  # the row is of a quantized build; the name is not
    model = model._replace(**_changed(model, same)) if same else model
    model, towers = with_tower(model)
    assumptions = (*assumptions, *towers)
    quant = _of_its_own(model, quant, f"{name} {quantization}")
    if quant is not None and model.quantization is None and quant not in ("bf16", "fp16"):
        assumptions = (
            *assumptions,
            f"{quant} weights: every linear layer but the head, since the build's own list is not at hand",
        )
    return Resolved(model, quant, assumptions)


def _of_its_own(model: Model, quant: str | None, said: str) -> str | None:
    """The method, or None where words say no more than FP4 of a checkpoint that has its experts in MXFP4."""
    own = model.quantization
    plain = quant == "nvfp4" and "nvfp4" not in said.lower() and "modelopt" not in said.lower()
    return None if plain and own and any(form.name == "mxfp4" for form in own.formats) else quant


def with_tower(model: Model) -> tuple[Model, tuple[str, ...]]:
    """The model with its vision tower, where its config on record leaves it out; and what that assumes."""
    parameters = _rules()["towers"].get(model.id)
    if parameters is None or model.tower_weights:
        return model, ()
    return model._replace(tower_weights=_tower(parameters)), (
        f"a vision tower of about {parameters / 1e9:.2g}B parameters in 16 bit, which is not in the config on record",
    )


def _tower(parameters: float) -> tuple[Weight, ...]:
    return (Weight("vision_tower.all.weight", (int(parameters),), "mlp"),)


def method(text: str) -> str | None:
    """The method of quantization that words speak of; None for none.

    >>> method("auto_round int4"), method("Qwen3-14B-FP8-dynamic"), method("compressed-tensors")
    ('int4', 'fp8', None)
    """
    spelt = f"-{_hyphens(text)}-"
    known: dict[str, str] = _rules()["quantization"]
    return next((known[word] for word in sorted(known, key=len, reverse=True) if f"-{word}-" in spelt), None)


def _hyphens(text: str) -> str:
    return re.sub(r"[\s_/:]+|(?<!\d)\.|\.(?!\d)", "-", text.strip().lower())


@cache
def _rules() -> dict[str, Any]:
    return tomllib.loads(Path(__file__).with_name("resolve.toml").read_text("utf-8"))


def _plain(name: str) -> tuple[tuple[str, ...], str | None]:
    """The words of a name that say which model it is, and the method of quantization among the others."""
    rules = _rules()
    spelt = _hyphens(_ASIDE.sub(" ", name).strip().rsplit("/", 1)[-1])
    quant = method(spelt)
    spelt = f"-{spelt}-"
    for word in sorted(rules["quantization"], key=len, reverse=True):
        spelt = spelt.replace(f"-{word}-", "-")
    dropped = {*rules["words"]["dropped"], *rules["words"]["makers"]}
    words = [word for word in spelt.split("-") if word and word not in dropped]
    kept = [word for i, word in enumerate(words) if i == 0 or not _DATE.fullmatch(word)]
    return tuple(kept), quant


@cache
def _rows(_names: frozenset[str]) -> dict[tuple[str, ...], dict[str, str | None]]:
    """Rows by the words of their ids and aliases, each with the method that the name says."""
    found: dict[tuple[str, ...], dict[str, str | None]] = {}
    rows = registry._ROWS
    for row in rows.names():
        words, quant = _plain(row)
        found.setdefault(words, {})[row] = quant
    for alias, path in rows._aliases():
        words, quant = _plain(alias)
        found.setdefault(words, {}).setdefault(path.stem, quant)
    return found


def _row(words: tuple[str, ...], quant: str | None, name: str) -> _Row:
    """The one row that answers to the words."""
    rows = _rows(frozenset(registry.names()))
    if words in rows:
        return _one(rows[words], quant, name), (), {}
    tuning = set(_rules()["words"]["fine_tunes"])
    fewer = tuple(word for word in words if word not in tuning)
    if fewer in rows and fewer:
        row = _one(rows[fewer], quant, name)
        return row, (f"{name}: taken to have the dimensions of {row}",), {}
    found = _renamed("-".join(words), quant, name) or _renamed("-".join(fewer), quant, name)
    if found:
        return found
    nearest = near_misses("-".join(words), ["-".join(known) for known in rows])
    hint = f"; did you mean {' or '.join(map(repr, nearest))}?" if nearest else ""
    raise InputError(f"model {name[:80]!r} is no row of the registry{hint} (capplan models)")


def _renamed(spelt: str, quant: str | None, name: str) -> _Row | None:
    """The row of a family that goes by another name too; the longest name counts."""
    for same in sorted(_rules()["same"], key=lambda same: -len(same["name"])):
        rest = spelt.removeprefix(same["name"])
        if rest == spelt or (rest and not rest.startswith("-")):
            continue
        if "sizes" in same and rest.strip("-") not in same["sizes"]:
            continue
        try:
            row, before, deeper = _row(_plain(same["row"] + rest)[0], quant, name)
        except InputError:
            continue
        return row, (*before, f"{name}: taken as {row}; {same['why']}"), {**deeper, **same}
    return None


def _one(candidates: dict[str, str | None], quant: str | None, name: str) -> str:
    """The row whose stored precision is the one asked for; else the one that says none."""
    for wanted in (quant, None):
        fitting = [row for row, said in candidates.items() if said == wanted]
        if len(fitting) == 1:
            return fitting[0]
        if len(fitting) > 1:
            break
    if len(candidates) == 1:
        return next(iter(candidates))
    raise InputError(f"model {name[:80]!r} may be {' or '.join(sorted(candidates))}; name one")


def _changed(model: Model, same: dict[str, Any]) -> dict[str, Any]:
    """What a rule says is different from the row."""
    changed: dict[str, Any] = {}
    if "vocabulary" in same:
        changed["vocab_size"] = same["vocabulary"]
        changed["weights"] = tuple(
            weight._replace(shape=(same["vocabulary"], *weight.shape[1:]))
            if weight.bucket in ("embedding", "head")
            else weight
            for weight in model.weights
        )
    if "context" in same:
        changed["max_context"] = same["context"]
    if "tower_parameters" in same and not model.tower_weights:
        changed["tower_weights"] = _tower(same["tower_parameters"])
    return changed
