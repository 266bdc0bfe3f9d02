"""Decode attention over latents (MLA in the absorbed form): from how many heads it is bound by products, not by reading."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from capplan.probes import decode_kernels, fit, paged
from capplan.probes.attention import BOUND, attention64, rows_against
from capplan.probes.numerics import fresh, normal, worst
from capplan.probes.probe import Case, Derived, Device, Measured, Numerics, Row, Value
from capplan.probes.timing import copies, timed

if TYPE_CHECKING:
    from torch import Tensor

NAME = "attn_decode_mla"
TITLE = "decode attention over paged latents of DeepSeek-V3 (512 and 64 turned), absorbed, by heads"
FORMULA = "t = t0 + ((2 tokens heads (576 + 512) / peak)^p + (1152 tokens / bandwidth)^p)^(1/p)"
WHAT = "the bandwidth and the peak of attention over latents, and the heads a rank at which they meet"
ORDER, VERSION = 51, 1

LATENT, ROPE = (
    512,
    64,
)  # of a latent: what keys and values are made of, and what is turned, the same for all heads
NOPE = 128  # of a query before it is absorbed, beside its turned part
WIDTH = LATENT + ROPE
SCALE = (NOPE + ROPE) ** -0.5
PAGE = 64
_KEYS = ("heads", "batch", "length", "dtype", "kernel")
_SHAPES = {  # heads, sequences, tokens of each
    "quick": ((16, 64, 4096), (64, 64, 4096), (128, 64, 4096)),
    "default": tuple(
        (heads, batch, length)
        for heads in (16, 32, 64, 128)
        for batch, length in ((8, 4096), (64, 4096), (8, 32768))
    ),
    "full": tuple(
        (heads, batch, length)
        for heads in (16, 32, 64, 128)
        for batch in (1, 8, 64)
        for length in (1024, 4096, 32768)
    ),
}


def absorb(q: Tensor, up: Tensor) -> Tensor:
    """Queries of a cache of latents [sequence, head, 512 + 64] from those of a model [sequence, head, 128 + 64].

    What is not turned goes through the head's projection of latents to keys, up [head, 128, 512]: q (up c) = (q up) c.
    """
    import torch

    plain, turned = q.split([NOPE, ROPE], dim=2)
    return torch.cat([torch.einsum("bhn,hnc->bhc", plain, up), turned], 2)


def attend(
    kernel: str, q: Tensor, cache: paged.Cache, length: int, device: Device, tiling: int = 0
) -> Tensor:
    """Attention of one token a sequence over its latents [sequence, head, 512], before they become values."""
    return decode_kernels.prepare(kernel, q, cache, SCALE, length, device, tiling)()


def cases(profile: str, device: Device) -> list[Case]:
    own = "triton" in decode_kernels.installed(device)
    if device.is_gpu:
        made = [(*shape, "bf16", "triton") for shape in _SHAPES[profile]] * own
        made.append((128, 64, 4096, "bf16", "gather"))
    else:
        made = [(16, 1, 300, "fp32", "triton"), (24, 1, 300, "bf16", "triton")] * own
        made.append((16, 1, 300, "bf16", "gather"))
    return [dict(zip(_KEYS, case, strict=True)) for case in made]


def check(case: Case, device: Device) -> Numerics:
    """The absorbed form over pages against the form that it stands for: keys of every head, in fp64."""
    import torch

    length, heads, dtype = min(case["length"], 2048), case["heads"], case["dtype"]
    lengths = [length, 1, PAGE, PAGE + 1]
    q = normal((len(lengths), heads, NOPE + ROPE), dtype, device, 1)
    up = (normal((heads, NOPE, LATENT), "fp32", device, 2) * LATENT**-0.5).to(q.dtype)
    tokens = normal((sum(lengths), 1, WIDTH), dtype, device, 3)
    cache = _cache(lengths, dtype, device, 4)
    paged.write(cache, tokens, tokens[..., :LATENT], *paged.owners(lengths, device))
    absorbed = absorb(q, up)
    numbers = decode_kernels.tilings(case["kernel"], absorbed, cache, SCALE, length, device)
    got = [attend(case["kernel"], absorbed, cache, length, device, number) for number in numbers]
    expected = []
    for i, own in enumerate(tokens[:, 0].double().split(lengths)):
        latents, turned = own[:, None, :LATENT], own[:, None, LATENT:].expand(-1, heads, -1)
        keys = torch.cat([torch.einsum("tgc,hnc->thn", latents, up.double()), turned], 2)
        last = torch.tensor([lengths[i] - 1])
        expected.append(attention64(q[i : i + 1], keys, latents.expand(-1, heads, -1), last, SCALE))
    return worst([rows_against(each, torch.cat(expected), BOUND[dtype]) for each in got])


def measure(case: Case, device: Device) -> Measured:
    heads, batch, length, dtype, kernel = (case[key] for key in _KEYS)
    tokens = batch * length
    size = tokens * WIDTH * (4.0 if dtype == "fp32" else 2.0)
    prepared = []
    for seed in range(copies(size, device)):
        cache = _cache([length] * batch, dtype, device, seed)
        cache.k.copy_(fresh(tuple(cache.k.shape), dtype, device))
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
    for kernel, dtype in sorted({(row["case"]["kernel"], row["case"]["dtype"]) for row in rows}):
        own = [row for row in rows if (row["case"]["kernel"], row["case"]["dtype"]) == (kernel, dtype)]
        flops, sizes = ([float(row["work"][key]) for row in own] for key in ("flops", "bytes"))
        times = [float(row["time_s"]["median"]) for row in own]
        found = fit.roof(flops, sizes, times)
        predicted |= {row["id"]: found(f, b) for row, f, b in zip(own, flops, sizes, strict=True)}
        off = [predicted[row["id"]] / time for row, time in zip(own, times, strict=True)]
        if len({row["case"]["heads"] for row in own}) < 3:  # no roofline can be told from so few
            continue
        # a head more adds 2 (576 + 512) FLOPs a token; the bytes of a token stay
        each = sizes[0] / (own[0]["case"]["batch"] * own[0]["case"]["length"])
        meet = each / found.bandwidth * found.peak / (2 * (WIDTH + LATENT))
        for name, unit, at in (
            ("peak", "FLOP/s", found.peak),
            ("bandwidth", "byte/s", found.bandwidth),
            ("t0", "s", found.start),
            ("power", "1", found.power),
            ("crossover_heads", "1", meet),
        ):
            values[f"{NAME}.{kernel}.{dtype}.{name}"] = fit.value([at * one for one in off], unit, own, at)
    return Derived(values, [predicted[row["id"]] for row in rows])


def _cache(lengths: Sequence[int], dtype: str, device: Device, seed: int) -> paged.Cache:
    """Pages of latents, whose first 512 numbers are the values too."""
    cache = paged.empty(lengths, PAGE, 1, WIDTH, dtype, device, seed)
    return cache._replace(v=cache.k[..., :LATENT])
