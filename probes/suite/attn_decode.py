"""Decode attention over a paged cache, one new token a sequence: how near reading K and V comes to the bandwidth."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from capplan.probes import decode_kernels, fit, paged
from capplan.probes.attention import BOUND, attention64, line, rows_against
from capplan.probes.numerics import fresh, normal, worst
from capplan.probes.paged import Cache
from capplan.probes.probe import Case, Derived, Device, Measured, Numerics, Row, Unsupported, Value
from capplan.probes.timing import copies, timed

if TYPE_CHECKING:
    from torch import Tensor

NAME = "attn_decode"
TITLE = "decode attention with grouped query heads over a shuffled paged cache of bf16 and FP8, by kernel"
FORMULA = "t = t0 + (bytes of K and V) / rate"
WHAT = "the bandwidth at which decode attention reads a cache, by kernel and dtype of the cache"
ORDER, VERSION = 50, 1

WIDTH = 128
_KEYS = ("batch", "length", "page", "heads", "kv_heads", "kv_dtype", "kernel")
_SHAPES = {  # sequences, tokens of each, slots of a page, query heads, KV heads
    "quick": ((1, 8192, 64, 64, 8), (32, 8192, 64, 64, 8), (128, 8192, 64, 64, 8)),
    "default": (
        *((batch, 8192, 64, 64, 8) for batch in (1, 8, 32, 128)),
        *((32, length, 64, 64, 8) for length in (1024, 32768)),
        *((32, 8192, page, 64, 8) for page in (16, 256)),
        *((32, 8192, 64, *heads) for heads in ((32, 8), (8, 1))),
        (1, 131072, 64, 64, 8),
    ),
}
_SHAPES["full"] = tuple(
    (batch, length, page, *heads)
    for heads, pages in (((64, 8), (16, 64, 256)), ((32, 8), (64,)), ((8, 1), (64,)))
    for page in pages
    for batch in (1, 8, 32, 128)
    for length in (1024, 8192, 32768, 131072)
)
_LONGEST_CHECKED = 32768  # tokens; what is longer differs in the number of splits alone


def cases(profile: str, device: Device) -> list[Case]:
    kernels = decode_kernels.installed(device)
    fp8 = "fp8_fnuz" if device.fp8_flavour == "fnuz" else "fp8"
    if device.is_gpu:
        made = [(*shape, dtype) for dtype in ("bf16", fp8) for shape in _SHAPES[profile]]
    else:  # pages shorter and longer than a tile
        made = [(1, 300, 16, 8, 2, dtype) for dtype in ("fp32", fp8)] + [(1, 270, 64, 8, 1, "bf16")]
    found = [dict(zip(_KEYS, (*case, kernel), strict=True)) for kernel in kernels for case in made]
    found = [case for case in found if case["kernel"] != "gather" or _gathered(case)]
    return [case for case in found if _cache_bytes(case) < device.memory_bytes / 4]


def check(case: Case, device: Device) -> Numerics:
    """Sequences that end anywhere in a page and a tile; and one of a cache whose addresses may not fit in 32 bits."""
    import torch

    if device.kind == "cuda" and device.capability < (8, 9) and case["kv_dtype"].startswith("fp8"):
        raise Unsupported("numbers of FP8 need compute capability 8.9 to be read")
    length, page, kv_heads = min(case["length"], _LONGEST_CHECKED), case["page"], case["kv_heads"]
    lengths = [length, 1, page, page + 1, length - 1]
    sequence, position = paged.owners(lengths, device)
    make = fresh if device.is_gpu else _normal
    dtype = _dtype(case)
    q = make((len(lengths), case["heads"], WIDTH), dtype, device)
    k, v = make((2, len(sequence), kv_heads, WIDTH), dtype, device)
    v[::7, :, 3] *= 8.0  # outliers that a cache of FP8 can't hold, as in channels of real models
    k[::9, :, 5] *= 4.0
    cache = paged.empty(lengths, page, kv_heads, WIDTH, case["kv_dtype"], device, seed=4)
    paged.write(cache, k, v, sequence, position)
    expected = paged.reference(q, k, v, cache, lengths, WIDTH**-0.5)
    numbers = decode_kernels.tilings(case["kernel"], q, cache, WIDTH**-0.5, length, device)
    got = [attend(case["kernel"], q, cache, length, device, number) for number in numbers]
    found = [rows_against(each, expected, BOUND[dtype]) for each in got]
    q, cache = _full(case, device, seed=5)
    last = attend(case["kernel"], q, cache, case["length"], device, numbers[0])[-1:]
    ends = torch.tensor([case["length"] - 1])
    expected = attention64(q[-1:], *paged.sequence64(cache, case["batch"] - 1), ends, WIDTH**-0.5)
    return worst([*found, rows_against(last, expected, BOUND[dtype])])


def attend(kernel: str, q: Tensor, cache: Cache, length: int, device: Device, tiling: int = 0) -> Tensor:
    """Attention of one token a sequence [sequence, head, width] over its pages."""
    return decode_kernels.prepare(kernel, q, cache, WIDTH**-0.5, length, device, tiling)()


def measure(case: Case, device: Device) -> Measured:
    batch, length, kernel = case["batch"], case["length"], case["kernel"]
    size = _cache_bytes(case)
    flops = 4.0 * batch * case["heads"] * length * WIDTH
    prepared = [_full(case, device, seed) for seed in range(copies(size, device))]
    best = decode_kernels.fastest(kernel, *prepared[0], WIDTH**-0.5, length, device)
    note = decode_kernels.said(kernel, prepared[0][1], best)
    calls = [decode_kernels.prepare(kernel, *each, WIDTH**-0.5, length, device, best) for each in prepared]
    times, mode, cold = timed(calls, device, bytes_each=size)
    dtype = _dtype(case)
    return Measured(times, mode, cold, flops, size, dtype, kernel, kernel, notes=note, rotation=len(calls))


def expect(row: Row, device: Device) -> str | None:
    """What a good kernel does: 80% of the bandwidth with more than 1 GB to read."""
    if not device.bandwidth or row["kernel"] == "gather" or row["work"]["bytes"] < 1e9:
        return None
    share = row["achieved"]["bytes_ps"] / device.bandwidth
    return f"K and V are read at {share:.0%} of the bandwidth; 80% is expected" if share < 0.8 else None


def derive(rows: Sequence[Row]) -> Derived:
    values: dict[str, Value] = {}
    predicted: dict[int, float] = {}
    for kernel, dtype in sorted({(row["case"]["kernel"], row["case"]["kv_dtype"]) for row in rows}):
        path = f"attn_decode.{kernel}.{dtype}"
        own = [row for row in rows if (row["case"]["kernel"], row["case"]["kv_dtype"]) == (kernel, dtype)]
        values |= line(path, own, "bytes", "byte/s", predicted)
        if single := [row for row in own if row["case"]["batch"] == 1]:
            longest = max(single, key=lambda row: float(row["work"]["bytes"]))
            values[f"{path}.one_sequence"] = fit.of_row(longest, longest["work"]["bytes"], "byte/s")
    return Derived(values, [predicted[row["id"]] for row in rows])


def _gathered(case: Case) -> bool:
    """Gathering pages first is what not to do: it is there to be compared with, at one shape."""
    return (case["batch"], case["length"]) in ((32, 8192), (1, 300))


def _dtype(case: Case) -> str:
    return "fp32" if case["kv_dtype"] == "fp32" else "bf16"


def _cache_bytes(case: Case) -> float:
    each = {"fp32": 4.0, "bf16": 2.0}.get(case["kv_dtype"], 1.0)
    return 2.0 * each * int(case["batch"] * case["length"] * case["kv_heads"]) * WIDTH


def _normal(shape: tuple[int, ...], dtype: str, device: Device) -> Tensor:
    return normal(shape, dtype, device, seed=len(shape))


def _full(case: Case, device: Device, seed: int) -> tuple[Tensor, Cache]:
    """Queries and a cache full of tokens, made on the device."""
    lengths = [case["length"]] * case["batch"]
    cache = paged.empty(lengths, case["page"], case["kv_heads"], WIDTH, case["kv_dtype"], device, seed)
    for pool in (cache.k, cache.v):
        for some in pool.split(4096):
            some.copy_(fresh(tuple(some.shape), case["kv_dtype"], device))
    return fresh((case["batch"], case["heads"], WIDTH), _dtype(case), device), cache
