"""Ways to run decode attention over a paged cache: our own kernel, torch alone, and packages where they are installed.

Each takes q [sequence, head, width] and a Cache, and gives a call without arguments that returns [sequence, head, width].
What is done once a batch and not once a layer (plans, buffers) is done before the call.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from functools import partial
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from capplan.probes import latent_rows, paged
from capplan.probes.kernels import ready
from capplan.probes.paged import Cache
from capplan.probes.probe import Device, Skipped

if TYPE_CHECKING:
    from torch import Tensor


Call = Callable[[], "Tensor"]

# Tilings to try on a GPU: the kernel's own, and the programs an SM that the splits are to make. Two stages of a tile wait
# for the table, so few stages hold one tile. Latents fill the registers, and their means weigh as much as a tenth of what
# is read: few splits.
TILINGS = (
    ((64, 4, 3), 16),
    ((64, 4, 3), 8),
    ((64, 4, 5), 8),
    ((128, 8, 3), 8),
    ((128, 8, 5), 4),
    ((32, 4, 5), 16),
)
LATENT_TILINGS = (
    ((16, 32, 4, 2), 4),
    ((16, 64, 4, 2), 4),
    ((32, 64, 8, 2), 2),
    ((64, 32, 8, 2), 2),
    ((64, 64, 8, 2), 2),
)
_LEAST = 256  # tokens of a split, below which joining costs more than it saves
_MOST = 128  # splits


def splits_of(programs: int, at_once: int, length: int, device: Device) -> int:
    """Into how many splits a sequence is cut, so that every SM has its programs and no split is too short to be worth it.

    at_once: programs that there are without splits: sequences times KV heads, or times blocks of heads.
    """
    wanted = -(-programs * device.sm_count // at_once)
    return max(1, min(wanted, -(-length // _LEAST), _MOST))


def installed(device: Device) -> list[str]:
    """Kernels that this machine can run, our own first."""
    found = ["triton"] * (find_spec("triton") is not None) + ["gather"]
    if device.kind == "cuda":
        packages = {
            "flash_attn_3": "flash_attn_interface",
            "flash_attn_2": "flash_attn",
            "flashinfer": "flashinfer",
        }
        found += [kernel for kernel, package in packages.items() if find_spec(package) is not None]
    return found


def prepare(
    kernel: str, q: Tensor, cache: Cache, scale: float, length: int, device: Device, tiling: int = 0
) -> Call:
    """The call of one kernel. length: of the longest sequence [token]. tiling: the number of one. Raises Skipped."""
    if kernel == "triton":
        return triton(q, cache, scale, length, device, tiling)
    makers = {
        "gather": gather,
        "flash_attn_3": flash_attn_3,
        "flash_attn_2": flash_attn_2,
        "flashinfer": flashinfer,
    }
    return makers[kernel](q, cache, scale)


def tilings(kernel: str, q: Tensor, cache: Cache, scale: float, length: int, device: Device) -> list[int]:
    """Numbers of the tilings that have room on the device, which only the compiler knows. A CPU takes the first."""
    if kernel != "triton" or not device.is_gpu:
        return [0]
    from triton.runtime.errors import OutOfResources

    found = []
    for number in range(len(LATENT_TILINGS if _latent(cache) else TILINGS)):
        with suppress(OutOfResources):
            prepare(kernel, q, cache, scale, length, device, number)()
            found.append(number)
    if not found:
        raise Skipped(f"no tiling of the kernel has room on {device.name}")
    return found


def fastest(kernel: str, q: Tensor, cache: Cache, scale: float, length: int, device: Device) -> int:
    """The number of the fastest tiling."""
    found = tilings(kernel, q, cache, scale, length, device)
    if len(found) == 1:
        return found[0]
    from triton.testing import do_bench

    calls = {number: prepare(kernel, q, cache, scale, length, device, number) for number in found}
    times = {number: float(do_bench(call, warmup=5, rep=25)) for number, call in calls.items()}
    return min(found, key=lambda number: times[number])


def said(kernel: str, cache: Cache, number: int) -> list[str]:
    """What a row notes of the tiling that was taken."""
    if kernel != "triton":
        return []
    sizes, programs = (LATENT_TILINGS if _latent(cache) else TILINGS)[number]
    return [f"tiling {sizes}, {programs} programs an SM"]


def triton(q: Tensor, cache: Cache, scale: float, length: int, device: Device, tiling: int = 0) -> Call:
    """The split-KV kernels of kernels/: of latents where V is a part of K, else with V of its own. Raises Skipped."""
    ready(device)
    import torch

    from capplan.probes.kernels import latent_decode, paged_decode

    kernel: Any = latent_decode if _latent(cache) else paged_decode
    sizes, programs = (LATENT_TILINGS if _latent(cache) else TILINGS)[tiling]
    cut = kernel.Tiling(*sizes)
    blocks = -(-q.shape[1] // cut.rows) if _latent(cache) else cache.k.shape[2]
    splits = splits_of(programs, q.shape[0] * blocks, length, device)
    means = torch.full((*q.shape[:2], splits, cache.v.shape[3]), torch.nan, device=q.device)
    lse = torch.full((*q.shape[:2], splits), torch.nan, device=q.device)
    out = torch.full((*q.shape[:2], cache.v.shape[3]), torch.nan, dtype=q.dtype, device=q.device)

    def call() -> Tensor:
        kernel.attend_splits(q, cache, scale, cut, means, lse)
        return paged_decode.join(means, lse, cache.v_scale, out)

    return call


def _latent(cache: Cache) -> bool:
    return bool(cache.v.data_ptr() == cache.k.data_ptr())


def gather(q: Tensor, cache: Cache, scale: float) -> Call:
    """Pages gathered into one piece, then two products with the heads of a group as rows: torch alone, on any device."""
    return partial(_gather, q, cache, scale)


def _gather(q: Tensor, cache: Cache, scale: float) -> Tensor:
    import torch

    batch, heads, width = q.shape
    position = torch.arange(cache.table.shape[1] * cache.page, device=q.device)
    live = position[None, :] < cache.lengths[:, None]
    pages = torch.where(live[:, :: cache.page], cache.table, 0).long()

    def read(pool: Tensor) -> Tensor:
        """[sequence, KV head, token, width]; NaN of unused slots would outlive a weight of zero."""
        rows = paged.bits(pool)[pages].view(pool.dtype).flatten(1, 2)
        wide = latent_rows.unpacked(rows, q.dtype) if pool.dtype == torch.uint8 else rows.to(q.dtype)
        return wide.masked_fill(~live[..., None, None], 0.0).transpose(1, 2)

    k = read(cache.k)
    v = k[..., : cache.v.shape[3]] if _latent(cache) else read(cache.v)
    grouped = q.view(batch, k.shape[1], -1, width)
    scores = (grouped @ k.transpose(2, 3)).float() * (scale * cache.k_scale)
    weights = scores.masked_fill(~live[:, None, None, :], -torch.inf).softmax(-1).to(q.dtype)
    return (weights @ v * cache.v_scale).view(batch, heads, -1)


def flash_attn_2(q: Tensor, cache: Cache, scale: float) -> Call:
    """flash-attn 2: pages of a multiple of 256 slots, caches of 16 bits."""
    if cache.page % 256 or cache.k.element_size() < 2:
        raise Skipped("flash-attn 2 takes pages of a multiple of 256 slots and caches of 16 bits")
    from flash_attn import flash_attn_with_kvcache  # type: ignore[import-not-found]

    tables = {"cache_seqlens": cache.lengths, "block_table": cache.table}
    asked = q[:, None]
    return lambda: flash_attn_with_kvcache(asked, cache.k, cache.v, softmax_scale=scale, **tables)[:, 0]


def flash_attn_3(q: Tensor, cache: Cache, scale: float) -> Call:
    """flash-attn 3, whose FP8 takes queries of FP8 as well: caches of 16 bits here, so that what is compared is equal."""
    if cache.k.element_size() < 2:
        raise Skipped("flash-attn 3 takes an FP8 cache with FP8 queries only")
    from flash_attn_interface import flash_attn_with_kvcache  # type: ignore[import-not-found]

    tables = {"cache_seqlens": cache.lengths, "page_table": cache.table}
    asked = q[:, None]

    def call() -> Tensor:
        out = flash_attn_with_kvcache(asked, cache.k, cache.v, softmax_scale=scale, **tables)
        return (out[0] if isinstance(out, tuple) else out)[:, 0]

    return call


def flashinfer(q: Tensor, cache: Cache, scale: float) -> Call:
    """FlashInfer's decode over pages, with its plan made before."""
    import torch
    from flashinfer import BatchDecodeWithPagedKVCacheWrapper  # type: ignore[import-not-found]

    heads, (kv_heads, width) = q.shape[1], cache.k.shape[2:]
    counts = (cache.lengths + cache.page - 1) // cache.page
    ends = torch.nn.functional.pad(counts.cumsum(0), (1, 0)).to(torch.int32)
    pages = torch.cat([row[:n] for row, n in zip(cache.table, counts.tolist(), strict=True)])
    last = cache.lengths - (counts - 1) * cache.page
    run = BatchDecodeWithPagedKVCacheWrapper(
        torch.zeros(128 * 2**20, dtype=torch.uint8, device=q.device), "NHD", use_tensor_cores=True
    )
    dtypes = {"q_data_type": q.dtype, "kv_data_type": cache.k.dtype}
    run.plan(ends, pages, last, heads, kv_heads, width, cache.page, sm_scale=scale, **dtypes)
    scales = {} if cache.k.element_size() > 1 else {"k_scale": cache.k_scale, "v_scale": cache.v_scale}
    return lambda: run.run(q, (cache.k, cache.v), **scales)
