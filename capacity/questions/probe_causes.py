"""Why two devices differ: what is unlike in their settings, and which of their constants moved with it.

A cause is told where both agree: a setting that is unlike, and constants that it would move. What moved with no setting
to explain it is told by its pattern: products alone, memory alone, the link alone, or everything.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from statistics import median
from typing import Any, NamedTuple

Document = Mapping[str, Any]

_MOVED = 0.03
_CLOCK_NEAR = 0.03  # a clock's ratio and that of products may differ by so much, and be one thing
_HOT = ("hw_slowdown", "sw_thermal", "hw_thermal", "hw_power_brake")
_GROUPS = {
    "products": ("gemm.", "attn_prefill."),
    "memory": ("hbm.", "knee.", "attn_decode."),
    "link": ("host_link.",),
    "launch": ("overhead.launch", "overhead.graph_node", "overhead.cpu_op"),
    "disk": ("storage.",),
    "fabric": ("fabric.", "collectives."),
}
# constants of a fitted curve: they follow from others, and mix what those say alone
CURVES = ("t0", "power", "ridge", "batch_t2x", "batch_90pct", "dip_batch")
_MIXED = {"products": (*CURVES, "bandwidth"), "memory": (*CURVES, "peak")}


class Pair(NamedTuple):
    """Two devices, and how the second's groups of constants stand to the first's: medians of ratios."""

    one: Document
    other: Document
    moved: dict[str, float]

    def unlike(self, part: str, field: str) -> bool:
        return bool(self.one[part].get(field) != self.other[part].get(field))

    def said(self, part: str, field: str) -> str:
        return f"{_plain(self.one[part].get(field))} and {_plain(self.other[part].get(field))}"

    def has(self, group: str) -> bool:
        """Whether a group moved; one that was not measured did not."""
        return abs(self.moved.get(group, 1.0) - 1) >= _MOVED


def causes(one: Document, other: Document, ratios: Mapping[str, float]) -> list[dict[str, str]]:
    """What likely makes `other` unlike `one`, the likeliest first; at least one.

    ratios: of constants by their dotted path, other to one; above 1 is better.
    """
    pair = Pair(one, other, _groups(ratios))
    found = [
        {"cause": name, "because": why} for name, rule in _RULES.items() if (why := rule(pair)) is not None
    ]
    return found or [_pattern(pair)]


def _groups(ratios: Mapping[str, float]) -> dict[str, float]:
    """The median ratio of each group; decode and weights count to memory, whatever their kernels."""
    found = {}
    for group, starts in _GROUPS.items():
        own = [
            ratio
            for name, ratio in ratios.items()
            if name.startswith(starts) and name.rpartition(".")[2] not in _MIXED.get(group, CURVES)
        ]
        if own:
            found[group] = median(own)
    return found


def _plain(value: object) -> str:
    if isinstance(value, Mapping):
        return f"x{value.get('width')} gen {value.get('gen')}" if "width" in value else str(dict(value))
    return "not told" if value is None else str(value)


def _clock(each: Document) -> float | None:
    """The clock that was seen under load, else the highest that is allowed [MHz]."""
    seen = [
        row["telemetry"]["sm_mhz"]["median"]
        for row in each["results"]
        if row["probe"] in ("gemm", "power") and row.get("telemetry") and row["telemetry"].get("sm_mhz")
    ]
    most: float | None = each["device"].get("max_sm_mhz")
    return median(seen) if seen else most


def _reasons(each: Document) -> set[str]:
    """What held the clock down in any row."""
    return {
        reason for row in each["results"] for reason in (row.get("telemetry") or {}).get("reasons_seen", [])
    }


def _mig(pair: Pair) -> str | None:
    one, other = ((each["device"].get("mig") or {}).get("enabled") for each in (pair.one, pair.other))
    return "one is a part of a card (MIG)" if bool(one) != bool(other) else None


def _sku(pair: Pair) -> str | None:
    if pair.unlike("device", "sku_guess"):
        return f"another card: {pair.said('device', 'sku_guess')}"
    sizes = [each["device"]["mem_total_bytes"] for each in (pair.one, pair.other)]
    if max(sizes) > 1.02 * min(sizes) and _mig(pair) is None:
        return f"memory of {sizes[0] / 2**30:.1f} and {sizes[1] / 2**30:.1f} GiB"
    return None


def _ecc(pair: Pair) -> str | None:
    if pair.unlike("device", "ecc") and pair.has("memory"):
        return f"ECC {pair.said('device', 'ecc')}, and memory moved by {_by(pair, 'memory')}"
    return None


def _heat(pair: Pair) -> str | None:
    new = (_reasons(pair.other) ^ _reasons(pair.one)) & set(_HOT)
    return f"the clock was held down: {', '.join(sorted(new))}" if new and pair.has("products") else None


def _power(pair: Pair) -> str | None:
    if pair.unlike("device", "power_limit_w") and pair.has("products"):
        return f"power limit {pair.said('device', 'power_limit_w')} W, and products moved by {_by(pair, 'products')}"
    return None


def _clocks(pair: Pair) -> str | None:
    one, other = _clock(pair.one), _clock(pair.other)
    if not one or not other or _heat(pair) or _power(pair) or abs(other / one - 1) < _MOVED:
        return None
    # clock-normalised, products are alike: the kernels are as good, the clock is not
    if abs(pair.moved.get("products", 1.0) / (other / one) - 1) < _CLOCK_NEAR:
        return (
            f"clock {one:,.0f} and {other:,.0f} MHz, and products moved with it, by {_by(pair, 'products')}"
        )
    return None


def _memory_clock(pair: Pair) -> str | None:
    if pair.unlike("device", "max_mem_mhz") and pair.has("memory"):
        return f"memory clock {pair.said('device', 'max_mem_mhz')} MHz, and memory moved by {_by(pair, 'memory')}"
    return None


def _link(pair: Pair) -> str | None:
    if pair.unlike("device", "pcie") and pair.has("link"):
        return f"link to the host {pair.said('device', 'pcie')}, and copies moved by {_by(pair, 'link')}"
    return None


def _numa(pair: Pair) -> str | None:
    if pair.unlike("device", "numa_node") and pair.has("link") and not pair.unlike("device", "pcie"):
        return f"NUMA node {pair.said('device', 'numa_node')}, and copies moved by {_by(pair, 'link')}"
    return None


def _driver(pair: Pair) -> str | None:
    fields = [f for f in ("driver", "cuda", "rocm", "torch", "triton", "cudnn") if pair.unlike("stack", f)]
    moved = [group for group in ("products", "launch", "memory") if pair.has(group)]
    if not fields or not moved:
        return None
    told = ", ".join(f"{name} {pair.said('stack', name)}" for name in fields)
    return f"{told}; {' and '.join(moved)} moved by {', '.join(_by(pair, group) for group in moved)}"


def _host(pair: Pair) -> str | None:
    if pair.has("launch") and pair.unlike("stack", "host_cpu"):
        return f"launches moved by {_by(pair, 'launch')}, and the hosts are {pair.said('stack', 'host_cpu')}"
    return None


def _busy(pair: Pair) -> str | None:
    flags = [each["quality"]["contended"] for each in (pair.one, pair.other)]
    return "other work ran beside the probes on one of them" if flags[0] != flags[1] and pair.moved else None


# the surest first: each is told of by a setting and the constants that it moves
_RULES: dict[str, Callable[[Pair], str | None]] = {
    "MIG": _mig,
    "card": _sku,
    "contention": _busy,
    "heat": _heat,
    "power limit": _power,
    "clock": _clocks,
    "ECC": _ecc,
    "memory clock": _memory_clock,
    "link width": _link,
    "NUMA": _numa,
    "driver or library": _driver,
    "host CPU": _host,
}


def _pattern(pair: Pair) -> dict[str, str]:
    """What the constants alone say, where no setting explains them."""
    moved = [group for group in pair.moved if pair.has(group)]
    told = ", ".join(f"{group} {_by(pair, group)}" for group in moved)
    if {"products", "memory"} <= set(moved) and len(moved) >= min(3, len(pair.moved)):
        return {"cause": "contention", "because": f"everything moved: {told}"}
    for group, cause in (
        ("products", "power, heat or library"),
        ("memory", "memory clock, ECC or another card"),
        ("link", "link width or NUMA"),
        ("launch", "host CPU"),
        ("disk", "disk"),
        ("fabric", "links between GPUs"),
    ):
        if group in moved:
            return {"cause": cause, "because": f"no setting is unlike; moved: {told}"}
    return {"cause": "unknown", "because": "single constants moved, and no setting is unlike"}


def _by(pair: Pair, group: str) -> str:
    return f"{100 * (pair.moved[group] - 1):+.0f}%"
