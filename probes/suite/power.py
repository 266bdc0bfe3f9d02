"""What power allows: products for ten seconds on end, with random data and with zeros, and the clock meanwhile."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

from capplan.probes import fit
from capplan.probes.numerics import against, bound, fresh, normal, poisoned
from capplan.probes.probe import Case, Derived, Device, Measured, Numerics, Row, Skipped, Value
from capplan.probes.telemetry import FAULTS, Telemetry
from capplan.probes.timing import between

if TYPE_CHECKING:
    from torch import Tensor

NAME = "power"
TITLE = "products for ten seconds on end: how far power and heat hold the clock down"
FORMULA = "sustained / burst; zeros / random: above 1.05, power is what limits"
WHAT = "the rate that a prefill can hold, and why it is below the peak"
ORDER, VERSION = 90, 1

_SIZE = 8192
_SECONDS = {"quick": 3.0, "default": 10.0, "full": 30.0}
_AT_ONCE = 10  # products of a sample on end: between samples the chip would cool
_BURST, _REST = 20, 0.2  # samples of one product, and the pause before each [s]


def product(a: Tensor, b: Tensor, out: Tensor) -> Tensor:
    """out = a @ b, bf16."""
    import torch

    return torch.mm(a, b, out=out)


def cases(profile: str, device: Device) -> list[Case]:
    if not device.is_gpu:
        raise Skipped("no accelerator; what else runs on the host is in `stack`")
    return [
        {"data": data, "mode": mode, "seconds": _SECONDS[profile], "dtype": "bf16"}
        for data, mode in (("random", "burst"), ("random", "sustained"), ("zeros", "sustained"))
    ]


def check(case: Case, device: Device) -> Numerics:
    a, b = (normal((1024, _SIZE), "bf16", device, 1), normal((_SIZE, 1024), "bf16", device, 2))
    got = product(a, b, poisoned((1024, 1024), "bf16", device))
    return against(got, a.double() @ b.double(), bound("bf16", _SIZE))


def measure(case: Case, device: Device) -> Measured:
    a, b = (fresh((_SIZE, _SIZE), "bf16", device) for _ in range(2))
    if case["data"] == "zeros":  # a diagnostic: nothing toggles, so little power is drawn
        a.zero_()
        b.zero_()
    out = poisoned((_SIZE, _SIZE), "bf16", device)
    times: list[float] = []

    def one() -> object:
        return product(a, b, out)

    between(one)
    with Telemetry(device) as seen:
        until = time.perf_counter() + case["seconds"]
        while time.perf_counter() < until if case["mode"] == "sustained" else len(times) < _BURST:
            if case["mode"] == "burst":
                time.sleep(_REST)
                times.append(between(one))
                continue
            times.append(between(lambda: [one() for _ in range(_AT_ONCE)]) / _AT_ONCE)
    told = seen.told() or {}
    reasons = [name for name in told.get("reasons_seen", []) if name in FAULTS.values()]
    clock = told.get("sm_mhz")
    values = {"clock_hz": 1e6 * clock["median"]} if clock else {}
    half = len(times) // 2 if case["mode"] == "sustained" else 0  # the second half is as hot as it gets
    return Measured(
        times[half:],
        case["mode"],
        "warm",
        2.0 * _SIZE**3,
        None,
        "bf16",
        "torch.mm",
        values=values,
        notes=reasons,
    )


def derive(rows: Sequence[Row]) -> Derived:
    at = {(row["case"]["data"], row["case"]["mode"]): row for row in rows}
    values: dict[str, Value] = {}
    hot = at.get(("random", "sustained"))
    if hot is None:
        return Derived(values)
    for name, other in (("sustained_ratio", ("random", "burst")), ("zeros_ratio", ("zeros", "sustained"))):
        if other in at:
            ratio = at[other]["time_s"]["median"] / hot["time_s"]["median"]
            values[f"power.{name}"] = fit.value(
                [1 / ratio if name == "zeros_ratio" else ratio], "1", [hot, at[other]]
            )
    if "clock_hz" in hot["values"]:
        values["power.clock"] = fit.value([hot["values"]["clock_hz"]], "Hz", [hot])
    return Derived(values)


def expect(row: Row, device: Device) -> str | None:
    """A fault holds the clock down: heat, or the board's own brake. The power cap alone is no fault."""
    return f"the clock was held down by {', '.join(row['notes'])}" if row["notes"] else None
