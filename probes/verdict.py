"""What follows from the rows of a run: the constants, and how far the file is to be trusted."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from capplan.probes.probe import Row, Value, probe

_STEAL = 2.0  # per cent of the time that may go to others' virtual machines
DRIFT = 0.03  # of the first row, repeated at the end: more is told
_MOST = 1e18  # of a constant: FLOP/s, byte/s, byte; no device has so much
_USED = ("pass", "warn")


def derived_of(rows: Sequence[Row]) -> tuple[dict[str, Any], list[str]]:
    """`derived` of the calibration file, from every probe's own derive(), and what is to be told of it; rows get what
    its formula predicts for them. A probe whose rows give no constants loses those, and not the run."""
    found: dict[str, Any] = {}
    told: list[str] = []
    for name in dict.fromkeys(row["probe"] for row in rows):
        own = [row for row in rows if row["probe"] == name and row["status"] in _USED]
        if not own:
            continue
        try:
            values, predicted = probe(name).derive(own)
        except Exception as error:  # noqa: BLE001  # whatever it is, minutes of measuring are not lost to it
            told.append(f"{name}: no constants follow from its rows: {type(error).__name__}: {error}")
            continue
        for path, each in values.items():
            least = 1.0 if each.unit in ("FLOP/s", "byte/s") else 0.0  # what is divided by
            if least <= each.lo <= each.value <= each.hi <= _MOST:
                put(found, path, each)
            else:  # the rows do not tell it
                told.append(f"{path}: {each.value:.3g} {each.unit} can't be, and is left out")
        for row, time in zip(own, predicted, strict=False):
            if time is not None and row["time_s"]:
                row["predicted_s"], row["rel_err"] = time, time / row["time_s"]["median"] - 1.0
    return found, told


def put(derived: dict[str, Any], path: str, each: Value) -> None:
    """A value under its dotted path, in the form of the file."""
    *parents, last = path.split(".")
    for parent in parents:
        derived = derived.setdefault(parent, {})
    derived[last] = {
        "value": each.value,
        "unit": each.unit,
        "lo": each.lo,
        "hi": each.hi,
        "n": each.n,
        "from": [f"row {number}" for number in each.rows],
        "trust": "measured",
    }


def quality_of(
    rows: Sequence[Row],
    device: dict[str, Any],
    drift: float | None,
    told: Sequence[str] = (),
    steal: float | None = None,
) -> dict[str, Any]:
    """`quality` of the calibration file: ok | degraded | unusable | cpu_only, and what speaks for it.

    steal: per cent of the time that a virtual machine's host gave to others.
    """
    count = {status: sum(row["status"] == status for row in rows) for status in ("fail", "invalid", "warn")}
    contended = any(row["contended"] for row in rows if row["time_s"]) or bool(device.get("busy_at_start"))
    contended = contended or (steal or 0.0) > _STEAL
    warnings = [*told] + [f"{row['probe']}: {row['reason']}" for row in rows if row["status"] in count]
    if drift is not None and drift > DRIFT:
        warnings.append(f"the first rows, repeated at the end, are {100 * drift:.1f}% off")
    if contended:
        warnings.append("other work ran beside the probes, or times of one row differ much")
    warnings += _of_device(rows, device)
    verdict = "degraded" if warnings else "ok"
    if not any(row["status"] in _USED for row in rows) or 2 * count["fail"] > len(rows):
        verdict = "unusable"
    if device["kind"] == "cpu":
        verdict = "cpu_only"
    return {
        "verdict": verdict,
        "drift": drift,
        "contended": contended,
        "invalid": count["invalid"],
        "failed": count["fail"],
        "warnings": list(dict.fromkeys(warnings)),
    }


def _of_device(rows: Sequence[Row], device: dict[str, Any]) -> list[str]:
    """What of a device's settings makes its figures other than those of its kind."""
    told = []
    pcie = device.get("pcie") or {}
    most = (pcie.get("gen_max", 0), pcie.get("width_max", 0))
    # as it was under load: at rest its generation falls
    seen = [
        (int(values["pcie_gen"]), int(values["pcie_width"]))
        for row in rows
        if "pcie_gen" in (values := row["values"]) and "pcie_width" in values
    ]
    gen, width = max(seen) if seen else (most[0], pcie.get("width", most[1]))
    if gen < most[0] or width < most[1]:
        told.append(f"the link to the host is x{width} gen {gen}, below its most")
    if (device.get("power_limit_w") or 1e9) < (device.get("power_default_w") or 0):
        told.append(
            f"the power limit is {device['power_limit_w']:g} W, below {device['power_default_w']:g} W"
        )
    if (device.get("mig") or {}).get("enabled"):
        told.append("a part of a card (MIG): figures are of that part")
    if device.get("other_processes"):
        told.append(f"{device['other_processes']} other processes use the card")
    if device.get("ecc_errors"):
        told.append(f"{device['ecc_errors']:,} memory errors that ECC could not correct")
    nvlink = device.get("nvlink") or {}
    if nvlink and nvlink["active"] < nvlink["links"]:
        told.append(f"{nvlink['active']} of {nvlink['links']} NVLinks are up")
    return told
