"""Decode attention over latents (MLA in the absorbed form): from how many heads it is bound by products, not by reading."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from capplan.probes import decode_kernels, fit, latent_rows, paged
from capplan.probes.attention import BOUND, attention64, rows_against
from capplan.probes.numerics import fresh, normal, worst
from capplan.probes.paged import Cache
from capplan.probes.probe import Case, Derived, Device, Measured, Numerics, Row, Value
from capplan.probes.timing import copies, timed

if TYPE_CHECKING:
    from torch import Tensor

NAME = "attn_decode_mla"
TITLE = "decode attention over paged latents of DeepSeek-V3 (512 and 64 turned) of bf16 and FP8, absorbed, by heads"
FORMULA = "t = t0 + ((2 tokens heads (576 + 512) / peak)^p + (bytes of latents / bandwidth)^p)^(1/p)"
WHAT = "the bandwidth and the peak of attention over latents, and the heads a rank at which they meet"
ORDER, VERSION = 51, 2

LATENT, ROPE = latent_rows.LATENT, latent_rows.ROPE  # what keys and values are made of, and what is turned
NOPE = 128  # of a query before it is absorbed, beside its turned part
WIDTH = LATENT + ROPE
SCALE = (NOPE + ROPE) ** -0.5
PAGE = 64
_KEYS = ("heads", "batch", "length", "kv_dtype", "kernel")
_PACKED = "fp8_ds_mla"  # what engines call the rows of latent_rows; "fp8" is FP8 throughout, with one scale
_SHAPES = {  # heads, sequences, tokens of each
    "quick": ((16, 64, 4096), (64, 64, 4096), (128, 64, 4096)),
    "default": tuple((h, *shape) for h in (16, 32, 64, 128) for shape in ((8, 4096), (64, 4096), (8, 32768))),
    "full": tuple((h, b, n) for h in (16, 32, 64, 128) for b in (1, 8, 64) for n in (1024, 4096, 32768)),
}


def absorb(q: Tensor, up: Tensor) -> Tensor:
    """Queries of a cache of latents [sequence, head, 512 + 64] from those of a model [sequence, head, 128 + 64].

    What is not turned goes through the head's projection of latents to keys, up [head, 128, 512]: q (up c) = (q up) c.
    """
    import torch

    plain, turned = q.split([NOPE, ROPE], dim=2)
    return torch.cat([torch.einsum("bhn,hnc->bhc", plain, up), turned], 2)


def attend(kernel: str, q: Tensor, cache: Cache, length: int, device: Device, tiling: int = 0) -> Tensor:
    """Attention of one token a sequence over its latents [sequence, head, 512], before they become values."""
    return decode_kernels.prepare(kernel, q, cache, SCALE, length, device, tiling)()


def cases(profile: str, device: Device) -> list[Case]:
    own = "triton" in decode_kernels.installed(device)
    if device.is_gpu:
        dtypes = ("bf16", "fp8", _PACKED) if device.capability >= (8, 9) else ("bf16",)
        made = [(*shape, dtype, "triton") for dtype in dtypes for shape in _SHAPES[profile]] * own
        made.append((128, 64, 4096, "bf16", "gather"))
    else:
        kept: tuple[str, ...] = ("fp32", _PACKED) if profile == "quick" else ("fp32", "bf16", "fp8", _PACKED)
        made = [(16, 1, 300, dtype, "triton") for dtype in kept] * own
        made += [(24, 1, 300, dtype, "gather") for dtype in ("bf16", "fp8", _PACKED)]
    return [dict(zip(_KEYS, case, strict=True)) for case in made]


def check(case: Case, device: Device) -> Numerics:
    """The absorbed form over pages against the form that it stands for: keys of every head, in fp64."""
    import torch

    length, heads, kv_dtype, dtype = min(case["length"], 2048), case["heads"], case["kv_dtype"], _dtype(case)
    lengths = [length, 1, PAGE, PAGE + 1]
    q = normal((len(lengths), heads, NOPE + ROPE), dtype, device, 1)
    up = (normal((heads, NOPE, LATENT), "fp32", device, 2) * LATENT**-0.5).to(q.dtype)
    tokens = normal((sum(lengths), 1, WIDTH), dtype, device, 3)
    tokens[::7, :, 5] *= (
        8.0  # outliers: one scale can't hold them, and of packed rows their group pays for them
    )
    cache = _cache(lengths, kv_dtype, device, 4)
    rows = _rows(tokens, kv_dtype)
    paged.write(cache, rows, rows[..., :LATENT], *paged.owners(lengths, device))
    held = paged.held(tokens, cache.k.dtype, cache.k_scale) if rows is tokens else latent_rows.held(tokens)
    absorbed = absorb(q, up)
    numbers = decode_kernels.tilings(case["kernel"], absorbed, cache, SCALE, length, device)
    got = [attend(case["kernel"], absorbed, cache, length, device, number) for number in numbers]
    expected = []
    for i, own in enumerate(held[:, 0].split(lengths)):
        latents, turned = own[:, None, :LATENT], own[:, None, LATENT:].expand(-1, heads, -1)
        keys = torch.cat([torch.einsum("tgc,hnc->thn", latents, up.double()), turned], 2)
        last = torch.tensor([lengths[i] - 1])
        expected.append(attention64(q[i : i + 1], keys, latents.expand(-1, heads, -1), last, SCALE))
    return worst([rows_against(each, torch.cat(expected), BOUND[dtype]) for each in got])


def measure(case: Case, device: Device) -> Measured:
    heads, batch, length, kv_dtype, kernel = (case[key] for key in _KEYS)
    dtype, tokens, prepared = _dtype(case), batch * length, []
    size = float(
        tokens * {"fp32": 4 * WIDTH, "bf16": 2 * WIDTH, "fp8": WIDTH}.get(kv_dtype, latent_rows.BYTES)
    )
    for seed in range(copies(size, device)):
        cache = _cache([length] * batch, kv_dtype, device, seed)
        for some in cache.k.split(4096):
            made = fresh((*some.shape[:3], WIDTH), dtype if kv_dtype == _PACKED else kv_dtype, device)
            some.copy_(_rows(made, kv_dtype))
        prepared.append((fresh((batch, heads, WIDTH), dtype, device), cache))
    best = decode_kernels.fastest(kernel, *prepared[0], SCALE, length, device)
    note = decode_kernels.said(kernel, cache, best)
    calls = [decode_kernels.prepare(kernel, *each, SCALE, length, device, best) for each in prepared]
    times, mode, cold = timed(calls, device, bytes_each=size)
    flops = 2.0 * tokens * heads * (WIDTH + LATENT)
    return Measured(times, mode, cold, flops, size, dtype, kernel, kernel, notes=note, rotation=len(calls))


def derive(rows: Sequence[Row]) -> Derived:
    values: dict[str, Value] = {}
    predicted: dict[int, float] = {}
    for kernel, dtype in sorted({(row["case"]["kernel"], row["case"]["kv_dtype"]) for row in rows}):
        own = [row for row in rows if (row["case"]["kernel"], row["case"]["kv_dtype"]) == (kernel, dtype)]
        flops, sizes = ([float(row["work"][key]) for row in own] for key in ("flops", "bytes"))
        times = [float(row["time_s"]["median"]) for row in own]
        found = fit.roof(flops, sizes, times)
        predicted |= {row["id"]: found(f, b) for row, f, b in zip(own, flops, sizes, strict=True)}
        off = [predicted[row["id"]] / time for row, time in zip(own, times, strict=True)]
        if len({row["case"]["heads"] for row in own}) < 3:
            continue  # no roofline can be told from so few
        # a head more adds 2 (576 + 512) FLOPs a token; the bytes of a token stay
        each = sizes[0] / (own[0]["case"]["batch"] * own[0]["case"]["length"])
        meet = each / found.bandwidth * found.peak / (2 * (WIDTH + LATENT))
        path = f"{NAME}.{kernel}.{dtype}"
        values |= fit.of_roof(path, found, off, own)
        values[f"{path}.crossover_heads"] = fit.value([meet * one for one in off], "1", own, meet)
    return Derived(values, [predicted[row["id"]] for row in rows])


def _dtype(case: Case) -> str:
    """Of queries and outputs."""
    return "fp32" if case["kv_dtype"] == "fp32" else "bf16"


def _rows(tokens: Tensor, kv_dtype: str) -> Tensor:
    return latent_rows.packed(tokens) if kv_dtype == _PACKED else tokens


def _cache(lengths: Sequence[int], kv_dtype: str, device: Device, seed: int) -> Cache:
    """Pages of latents, whose first 512 numbers are the values too: with the scale of the keys."""
    width, dtype = (latent_rows.BYTES, "uint8") if kv_dtype == _PACKED else (WIDTH, kv_dtype)
    cache = paged.empty(lengths, PAGE, 1, width, dtype, device, seed)
    return cache._replace(v=cache.k[..., :LATENT], v_scale=cache.k_scale)
