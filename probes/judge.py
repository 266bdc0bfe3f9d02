"""What can't be true is marked invalid, whatever it would say of a device: the impossibility rule."""

from __future__ import annotations

from capplan.probes.probe import Device, Row

_COLD = 5  # times L2 that a working set must be before it is called cold
# FLOP of a 16-bit matrix product a processor does in a cycle: NVIDIA's white papers of the architectures
_UNITS = {(8, 0): 2048, (8, 6): 1024, (8, 9): 1024, (9, 0): 4096, (10, 0): 8192, (10, 3): 8192, (12, 0): 1024}
_TIMES = {"bf16": 1, "fp16": 1, "fp8": 2, "fp4": 4}  # of the 16-bit rate
_BOOST = (
    1.09  # the highest clock over that of the datasheet's peak, where neither is known: Hopper's 1980 / 1830
)


def most_flops(dtype: str, device: Device) -> float | None:
    """FLOP/s that no kernel can pass: every matrix unit at the highest clock; None where nothing is known."""
    units, times = _UNITS.get(device.capability), _TIMES.get(dtype)
    if units and times and device.max_clock:
        return max(device.sm_count * units * times * device.max_clock, device.peaks.get(dtype, 0.0))
    return device.peaks[dtype] * _BOOST if dtype in device.peaks else None


def share_at_clock(row: Row, device: Device) -> float | None:
    """Of what all matrix units do at the clock that was seen: tells a slow clock from a poor kernel; None where unknown."""
    units, times = _UNITS.get(device.capability), _TIMES.get(str(row["dtype"]))
    clock = ((row["telemetry"] or {}).get("sm_mhz") or {}).get("median")
    if not (units and times and clock and row["achieved"]["flops_ps"]):
        return None
    return float(row["achieved"]["flops_ps"] / (device.sm_count * units * times * clock * 1e6))


def impossible(row: Row, device: Device) -> str | None:
    """Why a row can't be true, or None.

    Memory can't be read faster than its datasheet says, nor products made faster than all matrix units at the highest
    clock; what fits in the caches says nothing of the memory behind them.
    """
    size, flops = row["achieved"]["bytes_ps"], row["achieved"]["flops_ps"]
    rate, of = device.rate(row.get("of", "memory")), row.get("of", "memory")
    if rate and size and size > rate:
        what = "the memory" if of == "memory" else "the link to the host"
        return f"{size / 1e12:.2f} TB/s is more than the {rate / 1e12:.2f} TB/s of {what}"
    dtype = row["case"].get("dtype")
    most = most_flops(str(row.get("dtype") or dtype), device)
    if flops and most and flops > most:
        return f"{flops / 1e12:.0f} TFLOP/s is more than the {most / 1e12:.0f} TFLOP/s of all matrix units"
    turns = row.get("rotation")
    if of == "memory" and device.is_gpu and row["cache"] == "cold" and turns and row["work"]["bytes"]:
        held = row["work"]["bytes"] * turns
        if held < _COLD * device.l2_bytes:
            return f"called cold, but its {held / 2**20:,.0f} MiB are less than 5 times the L2 cache"
    return None
