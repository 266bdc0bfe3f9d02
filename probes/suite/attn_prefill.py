"""Causal attention over a prompt: the share of the peak that it reaches, by length, and over a prompt in chunks."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from importlib.util import find_spec
from typing import TYPE_CHECKING

from capplan.probes import fit
from capplan.probes.attention import BOUND, attention64, line, rows_against
from capplan.probes.numerics import fresh, normal
from capplan.probes.probe import Case, Derived, Device, Measured, Numerics, Row, Skipped, Value
from capplan.probes.timing import copies, timed

if TYPE_CHECKING:
    from torch import Tensor

NAME = "attn_prefill"
TITLE = "causal attention with grouped query heads over a prompt, by length, whole and in chunks"
FORMULA = "t = t0 + 4 pairs heads width / rate"
WHAT = "the share of the peak that attention reaches in prefill, by length of the prompt"
ORDER, VERSION = 50, 1

HEADS = ((32, 8), (64, 8))  # query and KV heads of Llama-3 8B and 70B
WIDTH = 128
_LENGTHS = {
    "quick": (1024, 8192),
    "default": (512, 1024, 2048, 4096, 8192, 16384, 32768),
    "full": (512, 1024, 2048, 4096, 8192, 16384, 32768, 65536),
}
# torch's flash kernel is the second generation, not what engines run on Hopper: it has a name of its own
_SDPA = {"sdpa": "FLASH_ATTENTION", "sdpa_cudnn": "CUDNN_ATTENTION", "sdpa_math": "MATH"}
_EVERY_ROW = 1024  # queries up to which the reference has all rows; past it a sample


def attend(kernel: str, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Attention [1, head, query, width] of the last queries of a context over all its keys [1, KV head, key, width].

    The mask lies in the lower right corner: the last query sees every key. `is_causal` of torch lays it in the upper left
    one, which is another mask as soon as there are more keys than queries.
    """
    from torch.nn import functional
    from torch.nn.attention import SDPBackend, sdpa_kernel
    from torch.nn.attention.bias import causal_lower_right

    if kernel == "flash_attn_3":
        from flash_attn_interface import flash_attn_func  # type: ignore[import-not-found]

        out = flash_attn_func(*(x.transpose(1, 2) for x in (q, k, v)), causal=True)
        return (out[0] if isinstance(out, tuple) else out).transpose(1, 2)
    square = q.shape[2] == k.shape[2]
    corner = None if square else causal_lower_right(q.shape[2], k.shape[2])
    with sdpa_kernel([getattr(SDPBackend, _SDPA[kernel])]):
        return functional.scaled_dot_product_attention(
            q, k, v, attn_mask=corner, is_causal=square, enable_gqa=q.shape[1] != k.shape[1]
        )


def cases(profile: str, device: Device) -> list[Case]:
    made = [
        (256, 256, 8, 2, "fp32", "sdpa"),
        (300, 300, 8, 2, "bf16", "sdpa"),
        (64, 300, 8, 2, "fp32", "sdpa_math"),
    ]
    if device.is_gpu:
        made = []
        kernels = ["sdpa", "sdpa_cudnn"] + ["flash_attn_3"] * (find_spec("flash_attn_interface") is not None)
        for kernel in kernels:
            shapes = [(length, length) for length in _LENGTHS[profile]]
            if kernel != "sdpa_cudnn":  # which has no mask of the lower right corner, and chunks need one
                shapes.append((2048, 16384))
            for heads in HEADS if profile == "full" else HEADS[1:]:
                made += [(*shape, *heads, "bf16", kernel) for shape in shapes]
    names = ("queries", "keys", "heads", "kv_heads", "dtype", "kernel")
    return [dict(zip(names, case, strict=True)) for case in made]


def check(case: Case, device: Device) -> Numerics:
    import torch

    q, k, v = _inputs(case, device, 1)
    try:
        got = attend(case["kernel"], q, k, v)
    except RuntimeError as error:
        if "No available kernel" in str(error):
            raise Skipped(f"{case['kernel']} of torch does not take this shape on {device.name}") from error
        raise
    rows = torch.arange(q.shape[2])
    if len(rows) > _EVERY_ROW:  # both ends, where a mask goes wrong, 60 between, and what is not finite
        between = torch.randint(len(rows), (60,), generator=torch.Generator().manual_seed(3))
        bad = (~torch.isfinite(got[0])).any(2).any(0).nonzero().flatten().cpu()
        rows = torch.cat([rows[:2], between, rows[-2:], bad[:1]])
    rows = rows.to(q.device)
    last = rows + k.shape[2] - q.shape[2]
    asked, keys, values = (x[0].transpose(0, 1) for x in (q[:, :, rows], k, v))
    expected = attention64(asked, keys, values, last, WIDTH**-0.5)
    return rows_against(got[0, :, rows].transpose(0, 1), expected, BOUND[case["dtype"]])


def measure(case: Case, device: Device) -> Measured:
    queries, keys, heads, kv_heads = (case[key] for key in ("queries", "keys", "heads", "kv_heads"))
    pairs = queries * (keys - queries) + queries * (queries + 1) / 2  # of a query and a key that it sees
    size = (4 if case["dtype"] == "fp32" else 2) * 2 * WIDTH * (queries * heads + keys * kv_heads)
    sets = [_inputs(case, device, seed) for seed in range(copies(size, device))]
    calls = [partial(attend, case["kernel"], *each) for each in sets]
    times, mode, cache = timed(calls, device, bytes_each=size)
    return Measured(
        times,
        mode,
        cache,
        4 * pairs * heads * WIDTH,
        size,
        case["dtype"],
        case["kernel"],
        rotation=len(calls),
    )


def expect(row: Row, device: Device) -> str | None:
    """What a flash kernel does with a long prompt: 30% of the peak."""
    peak, case = device.peaks.get(row["dtype"]), row["case"]
    if not peak or case["queries"] < 4096:
        return None
    share = row["achieved"]["flops_ps"] / peak
    return f"attention reaches {share:.0%} of the peak; 30% is expected" if share < 0.3 else None


def derive(rows: Sequence[Row]) -> Derived:
    values: dict[str, Value] = {}
    predicted: dict[int, float] = {}
    for kernel, dtype in sorted({(row["case"]["kernel"], row["case"]["dtype"]) for row in rows}):
        path = f"attn_prefill.{kernel}.{dtype}"
        own = [row for row in rows if (row["case"]["kernel"], row["case"]["dtype"]) == (kernel, dtype)]
        values |= line(path, own, "flops", "FLOP/s", predicted)
        whole = [row for row in own if row["case"]["queries"] == row["case"]["keys"]]
        for length in sorted({row["case"]["keys"] for row in whole}):
            at = [row for row in whole if row["case"]["keys"] == length]
            values[f"{path}.at.{length}"] = fit.value([r["achieved"]["flops_ps"] for r in at], "FLOP/s", at)
    return Derived(values, [predicted[row["id"]] for row in rows])


def _inputs(case: Case, device: Device, seed: int) -> list[Tensor]:
    """q, k and v [1, head, token, width]; on a GPU made there, as prompts of 64 Ki tokens are too large for the host."""
    shapes = [(1, case["heads"], case["queries"], WIDTH)] + 2 * [(1, case["kv_heads"], case["keys"], WIDTH)]
    if device.is_gpu:
        return [fresh(shape, case["dtype"], device) for shape in shapes]
    return [normal(shape, case["dtype"], device, 3 * seed + i) for i, shape in enumerate(shapes)]
