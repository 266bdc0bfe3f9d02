"""Reading a row of the hardware registry strictly: any mistake is one DataFileError that names file and key.

By hand and not with a validation library, because every command that names a GPU starts here.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import date
from typing import Any, TypeAlias

from capplan.errors import DataFileError, near_misses

# What a key holds: a unit of UNITS (a table with value, unit, source), a kind of READERS, a table, or an
# array of tables. A trailing "!" means that the key is required.
Schema: TypeAlias = Mapping[str, "str | Schema | list[Schema]"]

UNITS: dict[str, dict[str, float]] = {
    "byte": {"MB": 1e6, "GB": 1e9, "TB": 1e12, "MiB": 2.0**20, "GiB": 2.0**30, "TiB": 2.0**40},
    "byte/s": {"GB/s": 1e9, "TB/s": 1e12, "GiB/s": 2.0**30},
    "FLOP/s": {"TFLOP/s": 1e12, "PFLOP/s": 1e15},
    "W": {"W": 1.0, "kW": 1e3},
    "Hz": {"MHz": 1e6, "GHz": 1e9},
    "USD": {"USD": 1.0},
    "fraction": {"fraction": 1.0},
}
FACTORS = {unit: factor for units in UNITS.values() for unit, factor in units.items()}
LARGEST = 10**30
DTYPES = ("fp64", "fp32", "tf32", "bf16", "fp16", "fp8", "fp6", "fp4", "int8", "int4")
BASES = ("read", "recalled", "derived")
PRICE_BASES = (
    "cloud-on-demand",
    "list-price",
    "3-year-rental-model",
    "ownership-cost-model",
    "contract",
    "spot",
)
STATUSES = ("shipping", "announced", "discontinued")


@dataclass(frozen=True, slots=True)
class Value:
    """One number with where it comes from; `value`, `low`, `high` and `sparse` are in base units."""

    value: float
    unit: str  # as written in the row
    source: str  # the id of one of the row's sources
    basis: str = "read"  # read in the source, recalled and not read again, or derived by arithmetic
    low: float | None = None
    high: float | None = None
    sparse: float | None = None  # the vendor's headline with structured sparsity
    note: str = ""

    @property
    def written(self) -> str:
        """The number as the row has it, such as '143771 MiB'."""
        return f"{self.value / FACTORS[self.unit]:.10g} {self.unit}"


def mistake(where: str, problem: str) -> DataFileError:
    return DataFileError(f"'{where}': {problem}")


def pick(text: object, accepted: Iterable[str], subject: str, where: str) -> str:
    """`text` if it is one of the accepted words, else an error that lists them and the nearest."""
    known = list(accepted)
    if isinstance(text, str) and text in known:
        return text
    nearest = near_misses(text, known, 1) if isinstance(text, str) else []
    did_you_mean = f"; did you mean '{nearest[0]}'?" if nearest else ""
    listed = ", ".join(repr(k) for k in known) or "none"
    raise mistake(where, f"{subject} is unknown; accepted: {listed}{did_you_mean}")


def read_row(table: object, schema: Schema, where: str, prefix: str = "") -> dict[str, Any]:
    """A table as a flat dict of dotted keys, checked against a schema; arrays hold dicts of their own."""
    if not isinstance(table, dict):
        raise mistake(where, f"key '{prefix.rstrip('.')}' must be a table, not {_show(table)}")
    kinds = {key.rstrip("!"): kind for key, kind in schema.items()}
    for key in table:
        pick(key, kinds, f"key {_show(prefix + str(key))}", where)
    flat: dict[str, Any] = {}
    for key, kind in kinds.items():
        dotted = prefix + key
        if isinstance(kind, Mapping):
            flat |= read_row(table.get(key, {}), kind, where, dotted + ".")
        elif key not in table:
            if f"{key}!" in schema:
                raise mistake(where, f"key '{dotted}' is missing; it is required")
        elif isinstance(kind, list):
            flat[dotted] = _read_array(table[key], kind[0], where, dotted)
        elif kind in UNITS:
            flat[dotted] = _read_value(table[key], kind, where, dotted)
        else:
            flat[dotted] = READERS[kind](table[key], where, dotted)
    return flat


def _read_array(raw: object, schema: Schema, where: str, key: str) -> list[dict[str, Any]]:
    if not isinstance(raw, list):
        raise mistake(where, f"key '{key}' must be an array of tables, not {_show(raw)}")
    rows = []
    for number, item in enumerate(raw):
        prefix = f"{key}[{number}]."
        rows.append({k.removeprefix(prefix): v for k, v in read_row(item, schema, where, prefix).items()})
    return rows


def _read_value(raw: object, kind: str, where: str, key: str) -> Value:
    """`{ value = 4.8, unit = "TB/s", source = "datasheet" }` in base units."""
    if not isinstance(raw, dict):
        raise mistake(where, f"key '{key}' must be a table with value, unit and source, not {_show(raw)}")
    accepted = [
        "value",
        "low",
        "high",
        *(["sparse"] if kind == "FLOP/s" else []),
        "unit",
        "source",
        "basis",
        "note",
    ]
    for part in raw:
        pick(part, accepted, f"key {_show(f'{key}.{part}')}", where)
    for part in ("value", "unit", "source"):
        if part not in raw:
            raise mistake(where, f"key '{key}.{part}' is missing; it is required")
    unit = pick(raw["unit"], UNITS[kind], f"key '{key}.unit': {_show(raw['unit'])}", where)
    numbers = {
        part: _number(raw[part], where, f"{key}.{part}") * FACTORS[unit]
        for part in ("value", "low", "high", "sparse")
        if part in raw
    }
    value = numbers["value"]
    if not numbers.get("low", value) <= value <= numbers.get("high", value):
        raise mistake(where, f"key '{key}' must have low <= value <= high, not {_show(raw)}")
    if numbers.get("sparse", value) < value:
        raise mistake(where, f"key '{key}.sparse' must not be below the dense value {raw['value']}")
    if kind == "fraction" and value > 1:
        raise mistake(where, f"key '{key}.value' must be a fraction of at most 1, not {_show(raw['value'])}")
    return Value(
        **numbers,
        unit=unit,
        source=_text(raw["source"], where, f"{key}.source"),
        basis=_one_of(BASES)(raw.get("basis", "read"), where, f"{key}.basis"),
        note=_text(raw["note"], where, f"{key}.note") if "note" in raw else "",
    )


def _text(raw: object, where: str, key: str) -> str:
    if not isinstance(raw, str) or not raw.strip() or not raw.isprintable():
        raise mistake(where, f"key '{key}' must be a line of text, not {_show(raw)}")
    return raw


def _texts(raw: object, where: str, key: str) -> tuple[str, ...]:
    if not isinstance(raw, list):
        raise mistake(where, f"key '{key}' must be an array of texts, not {_show(raw)}")
    return tuple(_text(item, where, key) for item in raw)


def _names(raw: object, where: str, key: str) -> tuple[str, ...]:
    names = _texts(raw, where, key)
    for name in names:
        if name != name.lower():
            raise mistake(where, f"key '{key}' must be in lower case, such as '{name.lower()}', not '{name}'")
    return names


def _number(raw: object, where: str, key: str) -> float:
    if isinstance(raw, bool) or not isinstance(raw, int | float) or not 0 < raw < math.inf:
        raise mistake(where, f"key '{key}' must be a number above 0, not {_show(raw)}")
    if raw >= LARGEST:
        raise mistake(where, f"key '{key}' is out of all proportion; a number below 1e30 is accepted")
    return float(raw)


def _count(raw: object, where: str, key: str) -> int:
    if isinstance(raw, bool) or not isinstance(raw, int) or raw < 1:
        raise mistake(where, f"key '{key}' must be a whole number from 1, not {_show(raw)}")
    return raw


def _checked(raw: object, where: str, key: str) -> str:
    if type(raw) is not date:
        raise mistake(where, f"key '{key}' must be a date such as 2026-11-29, not {_show(raw)}")
    return raw.isoformat()


def _date(raw: object, where: str, key: str) -> str:
    try:
        return date.fromisoformat(_text(raw, where, key)).isoformat()
    except ValueError as error:
        raise mistake(
            where, f"key '{key}' must be a date such as \"2026-11-29\", not {_show(raw)}"
        ) from error


def _one_of(words: tuple[str, ...]) -> Callable[[object, str, str], str]:
    return lambda raw, where, key: pick(raw, words, f"key '{key}': {_show(raw)}", where)


def _dtypes(raw: object, where: str, key: str) -> tuple[str, ...]:
    return tuple(pick(item, DTYPES, f"key '{key}': '{item}'", where) for item in _texts(raw, where, key))


READERS: dict[str, Callable[[object, str, str], Any]] = {
    "text": _text,
    "texts": _texts,
    "names": _names,
    "dtypes": _dtypes,
    "number": _number,
    "count": _count,
    "checked": _checked,
    "date": _date,
    "status": _one_of(STATUSES),
    "price basis": _one_of(PRICE_BASES),
}


def check_sources(flat: Mapping[str, Any], where: str) -> None:
    """Every source that a value, price or instance names must be one of the row's [[sources]]."""
    ids = [source["id"] for source in flat.get("sources", [])]
    for source in flat.get("sources", []):
        if "title" not in source and "url" not in source:
            raise mistake(where, f"source '{source['id']}' must have a title or a url")
        if ids.count(source["id"]) > 1:
            raise mistake(where, f"source '{source['id']}' appears twice in [[sources]]; ids are unique")
    for key, found in flat.items():
        if isinstance(found, Value):
            pick(found.source, ids, f"key '{key}.source': '{found.source}'", where)
        elif isinstance(found, list):
            for item in found:
                for part in ("source", "spec_source"):
                    if part in item:
                        pick(item[part], ids, f"key '{key}.{part}': '{item[part]}'", where)


def _show(raw: object) -> str:
    text = repr(raw)
    return text if len(text) <= 60 else text[:57] + "..."
