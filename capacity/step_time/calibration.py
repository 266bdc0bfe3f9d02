"""A calibration file: what was measured on one machine, and the constants that follow from it.

Schema capplan.calibration/1. `capplan calibrate` gives constants of an engine, the probes those of kernels. Only
`derived` is read to predict; every leaf of it is a value with the range that it lies in and how far it is trusted.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import date, datetime
from os import PathLike
from pathlib import Path
from typing import Any, NamedTuple

from capplan.calibration_file import LARGEST, read_document
from capplan.calibration_schema import mismatch
from capplan.capacity.step_time.engine_steps import Engine
from capplan.errors import DataFileError, InputError

METHOD = 1  # grows when what is measured changes: unlike ones can't be compared
OLD = 180  # days
_MOST = 1000  # seconds, or times: no engine adds so much
_MOST_RATE = 1e18  # FLOP/s, byte/s, byte: no device has so much
_RATES = ("FLOP/s", "byte/s")  # what is divided by: at least one
_MOST_TOLD, _LONGEST = 3, 200  # warnings of a file that are passed on, and characters of one

# The constants that a benchmark from outside can tell apart, and their units. What a layer costs is in `step`: one
# model has one number of layers.
CONSTANTS = {"step": "s", "sequence": "s", "slow": "1", "prefill_slow": "1", "request": "s"}


class Constant(NamedTuple):
    """One value of `derived`."""

    value: float
    low: float  # eight of ten times it lies between
    high: float
    count: int  # type: ignore[assignment]  # over tuple.count; points that it was fitted to
    trust: str  # measured; default: the points say little, it is nearly what was shipped
    unit: str = ""


@dataclass(frozen=True, slots=True)
class Calibration:
    """What a calibration file says of an engine, or of the kernels of a GPU."""

    name: str  # of the file
    gpu: str | None  # None: the registry has no such card
    engine: str | None  # None: of kernels, whatever the engine
    engine_version: str | None
    model: str | None
    created: date
    constants: Mapping[str, Constant]  # of the engine
    ttft_off: float | None  # p90 of points left out of the fit, as a share; None: ranges are as shipped
    tpot_off: float | None
    degraded: bool  # no better on points left out than what was shipped; of kernels: the probes warn
    leaves: Mapping[str, Constant] = field(
        default_factory=dict
    )  # of kernels, by their dotted path in `derived`
    device: Mapping[str, Any] = field(default_factory=dict)
    told: tuple[str, ...] = ()  # the probes' own warnings


def read_calibration(path: str | PathLike[str]) -> Calibration:
    """A calibration file, checked.

    Raises DataFileError for a file that can't be read, is of another kind, was changed since it was written, or has no
    constants of an engine; InputError for one of a CPU.
    """
    found = read_document(path)
    try:
        return _calibration(found, Path(path).name)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        if isinstance(error, InputError):
            raise
        told = f"it has no {error}" if isinstance(error, KeyError) else error
        raise DataFileError(f"{str(path)!r} has no constants that can be read: {told}") from error


def _calibration(found: dict[str, Any], name: str) -> Calibration:
    if "unfinished" in found:
        raise ValueError("its run is not finished; capplan probe run --resume finishes it")
    kernels = kernels_of(found, name) if "engine" not in found else None
    device, quality, derived = (_part(found, part) for part in ("device", "quality", "derived"))
    if device["kind"] == "cpu" or quality["verdict"] in ("cpu_only", "unusable"):
        verdict = "measured on a CPU" if device["kind"] == "cpu" else quality["verdict"]
        raise InputError(f"{name!r} is {verdict}: it never stands in for a GPU's figures")
    if kernels is not None:
        return kernels
    engine, derived = _part(found, "engine"), _part(derived, "step_model")
    return Calibration(
        name=name,
        gpu=str(device["sku_guess"]),
        engine=str(engine["name"]),
        engine_version=engine["version"],
        model=str(found["model"]),
        created=datetime.fromisoformat(found["created_utc"]).date(),
        constants={key: _constant(derived[key]) for key in CONSTANTS if key in derived},
        ttft_off=_positive(derived["ttft_error_p90"]["value"]),
        tpot_off=_positive(derived["tpot_error_p90"]["value"]),
        degraded=quality["verdict"] != "ok",
    )


def _part(found: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    """An object inside of another. Raises KeyError where it is missing, TypeError where it is none."""
    part = found[name]
    if not isinstance(part, dict):
        raise TypeError(f"{name} is no object")
    return part


def kernels_of(found: Mapping[str, Any], name: str) -> Calibration:
    """What a file of the probes says, whatever it was measured on. Raises ValueError for one unlike its schema."""
    if (told := mismatch(found)) is not None:
        raise ValueError(told)
    return Calibration(
        name=name,
        gpu=found["device"]["sku_guess"],
        engine=None,
        engine_version=None,
        model=None,
        created=datetime.fromisoformat(found["created_utc"]).date(),
        constants={},
        ttft_off=None,
        tpot_off=None,
        degraded=found["quality"]["verdict"] != "ok",
        leaves=dict(leaves_of(found["derived"])),
        device=found["device"],
        told=tuple(str(text)[:_LONGEST] for text in found["quality"]["warnings"][:_MOST_TOLD]),
    )


def leaves_of(derived: Mapping[str, Any], path: str = "") -> Iterator[tuple[str, Constant]]:
    """Every value of `derived` under its dotted path. Raises ValueError for one that is no number, and no rate."""
    for name, each in derived.items():
        if "value" in each:
            leaf = _constant(each, _MOST_RATE)
            if leaf.unit in _RATES and leaf.low < 1.0:
                raise ValueError(f"derived.{path}{name} is below 1 {leaf.unit}")
            yield path + name, leaf
        else:
            yield from leaves_of(each, f"{path}{name}.")


def _constant(leaf: Mapping[str, Any], most: float = _MOST) -> Constant:
    low, value, high = (_positive(leaf[key], most) for key in ("lo", "value", "hi"))
    return Constant(
        value, low, high, int(_positive(leaf["n"], LARGEST)), str(leaf["trust"]), str(leaf["unit"])
    )


def _positive(number: object, most: float = _MOST) -> float:
    if isinstance(number, bool) or not isinstance(number, int | float) or not 0 <= number <= most:
        raise ValueError(f"{str(number)[:40]!r} is no number from 0 to {most:,}")
    return float(number)


def calibrated(engine: Engine, gpu: str, found: Calibration) -> Engine:
    """An engine with the constants of a calibration. gpu: the registry's id of the one that is planned.

    Raises InputError for a calibration of another GPU or another engine.
    """
    if found.gpu != gpu:
        raise InputError(f"calibration {found.name!r} is of {found.gpu!r}, not of {gpu!r}")
    if found.engine is None:
        return engine
    if found.engine != engine.name:
        raise InputError(f"calibration {found.name!r} is of {found.engine!r}, not of {engine.name!r}")
    return engine._replace(**{name: each.value for name, each in found.constants.items()})  # type: ignore[arg-type]


def warnings_of(found: Calibration, model: str, version: str | None, today: date) -> list[str]:
    """What a user of a calibration should know of it."""
    told = []
    told += [f"{found.name}: {text}" for text in found.told]
    if found.degraded and found.engine is not None:
        told.append(f"{found.name}: on points left out it was no better than the shipped constants")
    if found.model is not None and found.model != model:
        told.append(f"{found.name}: measured with {found.model}, not with {model}")
    if found.engine_version and version and found.engine_version != version:
        told.append(f"{found.name}: measured with {found.engine} {found.engine_version}, not with {version}")
    if (days := (today - found.created).days) > OLD:
        told.append(f"{found.name}: {days:,} days old")
    return told
