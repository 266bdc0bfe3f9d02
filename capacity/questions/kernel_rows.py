"""Rows of measured kernels: what each ran, read from its columns and from what its notes say of the kernel."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import cache
from typing import NamedTuple

from capplan.capacity.questions.measured import Row, value
from capplan.capacity.step_time import kernel_time
from capplan.capacity.step_time.chip import Chip, chip_of, data
from capplan.capacity.step_time.operations import (
    ACTIVATION,
    OPERAND,
    Operation,
    attention_decode,
    attention_prefill,
    collective,
    elementwise,
    gemm,
    grouped_gemm,
    mla_decode,
)
from capplan.errors import InputError
from capplan.hardware.registry import gpu as registered
from capplan.hardware.resolve import card

MEASURED = ("time_us", "tflops", "gbps")
NEEDED = ("gpu", "op", *MEASURED)

_DTYPES = {
    "bfloat16": "bf16",
    "float16": "bf16",
    "bf16": "bf16",
    "fp16": "bf16",
    "fp8": "fp8",
    "fp8_block": "fp8_block",
    "int8": "int8",
    "nvfp4": "nvfp4",
    "w4a16_mxfp4": "w4a16_mxfp4",
    "w4a8_mxfp4_mxfp8": "w4a8_mxfp4",
    "object": "bf16",  # a reader's slip at the source: bench tables without a dtype, all bf16
    "": "bf16",
}
_LATENT, _ROPE = 512, 64
_LARGE = (16384.0, 8192.0, 8192.0)  # stands for "the best of a search over shapes"


class Case(NamedTuple):
    """A row: what ran one after another, on what, and the columns that can be told from its time."""

    operations: tuple[Operation, ...]
    chip: Chip
    family: str  # the kernel or library and its framework, as the notes name them
    flops: float | None = None  # what a tflops column counts
    bytes: float | None = None  # what a gbps column counts
    rate: float | None = None  # byte/s, where a row is a rate and nothing else
    assumptions: tuple[str, ...] = ()


@cache
def _chip(name: str, pair: bool) -> Chip:
    found = card(name)
    if found is None:
        raise InputError(f"gpu {name[:40]!r} is no row of the registry" if name else "no gpu is named")
    chip = chip_of(found)
    if pair:  # cards in PCIe slots with a bridge for two
        bridge = chip_of(registered("h100-nvl" if chip.generation == "sm90" else "a100-pcie-80"))
        chip = chip._replace(link_bandwidth=bridge.link_bandwidth, domain=2, multicast=False)
    return chip


def chip(row: Row) -> Chip:
    name = row["gpu"].strip()
    return _chip(name, "pair" in name.lower())


def number(row: Row, name: str) -> float | None:
    """A number above zero; None where the cell is blank."""
    text = row.get(name, "").strip()
    if not text:
        return None
    found = value(text)
    if isinstance(found, bool) or not isinstance(found, int | float) or not 0 < found < 1e18:
        raise InputError(f"{name} {text[:40]!r} is not a number above 0")
    return float(found)


def _need(row: Row, name: str) -> float:
    found = number(row, name)
    if found is None:
        raise InputError(f"{row['op'].strip()} without {name}")
    return found


def _dtype(row: Row, name: str = "dtype") -> str:
    text = row.get(name, "").strip().lower()
    if text not in _DTYPES:
        raise InputError(f"{name} {text[:40]!r} is not one of {', '.join(key for key in _DTYPES if key)}")
    return _DTYPES[text]


def family(row: Row) -> str:
    """The kernel and its framework, or the benchmark, as the notes name them."""
    notes = row.get("notes", "")
    if found := re.search(r"kernel (\S+); ([a-z]+)", notes):
        return f"{found[1]}, {found[2]}"
    if found := re.search(r"two-shot all-reduce \(CUDA-graph\) of ([a-z]+)", notes):
        return f"custom all-reduce, {found[1]}"
    if found := re.search(r"Vidur profile, median(?: over ranks, (\w+))?(?:; (\w*nvlink|\w+_dgx))?", notes):
        return f"vidur {found[1] or found[2] or ''}".strip()
    for sign, name in (
        ("NCCL", "nccl"),
        ("DeepEP", "deepep"),
        ("FlashMLA", "flashmla"),
        ("InferSim", "infersim"),
        ("maximum achievable", "shape search"),
        ("up_proj", "infersim"),
    ):
        if sign in notes:
            return name
    found = re.match(r"[a-z]+", row.get("case_id", "").lower())
    return found[0] if found else "not said"


def case(row: Row) -> Case:
    """What a row ran. Raises InputError for a row that can't be told, with the reason."""
    op = row["op"].strip().lower()
    if op in _UNTOLD:
        raise InputError(f"{op}: {_UNTOLD[op]}")
    if op not in _READERS:
        raise InputError(f"op {op[:40]!r} is not one of {', '.join(_READERS)}")
    return _READERS[op](row, chip(row), family(row))


def seconds(case: Case) -> float:
    """Time of what a row ran [second]."""
    return sum((float(kernel_time.seconds(operation, case.chip)) for operation in case.operations), 0.0)


def predicted(case: Case) -> dict[str, float]:
    """The measured columns as they should be, by their names."""
    if case.rate is not None:
        found = {"gbps": case.rate / 1e9}
        return found | ({"time_us": case.bytes / case.rate * 1e6} if case.bytes else {})
    time = seconds(case)
    found = {"time_us": time * 1e6}
    if case.flops:
        found["tflops"] = case.flops / time / 1e12
    if case.bytes:
        found["gbps"] = case.bytes / time / 1e9
    return found


# --- products -----------------------------------------------------------------------------------------------------


def _gemm(row: Row, chip: Chip, kernel: str) -> Case:
    dtype = _dtype(row)
    assumed: list[str] = []
    shape = number(row, "m"), number(row, "n"), number(row, "k")
    if None in shape and kernel == "shape search":
        shape = _LARGE
        assumed.append("the shape that a search found best is not said: a large product stands for it")
    if None in shape:
        raise InputError("gemm without m, n and k")
    m, n, k = (float(each or 0) for each in shape)
    product = gemm("product", m, n, k, dtype)
    # engines' own linear layers quantise their input first; benchmarks of a bare kernel do not
    own = kernel.endswith((", vllm", ", sglang", ", trtllm"))
    before = (_quantise(m * k, dtype),) if own and dtype in OPERAND else ()
    return Case((*before, product), chip, kernel, product.flops, product.bytes, None, tuple(assumed))


def _quantise(size: float, dtype: str) -> Operation:
    return elementwise("quantise", size * (ACTIVATION + OPERAND[dtype]))


def _grouped(row: Row, chip: Chip, kernel: str) -> Case:
    dtype, notes = _dtype(row), row.get("notes", "")
    m, n, k, experts = (_need(row, name) for name in ("m", "n", "k", "num_experts"))
    if "single grouped GEMM" in notes:  # one product, m rows for each group
        load = m * experts, experts
        made = grouped_gemm(
            "product", m, hidden=k, inner=n, experts=experts, chosen=1, local=experts, dtype=dtype, matrices=1,
            load=load, variant="bare",
        )  # fmt: skip
        return Case((made,), chip, kernel, made.flops, made.bytes)
    chosen = _need(row, "topk")
    local = re.search(r"(\d+) local experts", notes)
    ways = re.search(r"moe_tp=(\d+) moe_ep=(\d+)", notes)
    if local:  # every rank sends m tokens, so that many times `chosen` rows reach each
        here = float(local[1])
        made = grouped_gemm(
            "experts", m, hidden=k, inner=n, experts=experts, chosen=chosen, local=here, dtype=dtype,
            load=(m * chosen, min(here, m * chosen)), variant="bare",
        )  # fmt: skip
        return Case((made,), chip, kernel, made.flops, made.bytes)
    if not ways:
        raise InputError("grouped_gemm whose notes don't say moe_tp and moe_ep")
    tp, ep = float(ways[1]), int(ways[2])
    assumed: list[str] = []
    skew = re.search(r"expert load power_law_([\d.]+)", notes)
    load = _busiest(m, int(experts), chosen, ep, float(skew[1]) if skew else None)
    matrices = 3
    if "nongated" in kernel or (experts, chosen) == (512, 22) or (n, k) == (1856, 2688):
        matrices = 2
        assumed.append("experts of Nemotron-3 (no gate): two matrices")
    made = grouped_gemm(
        "experts", m, hidden=k, inner=n / tp, experts=experts, chosen=chosen, local=experts / ep, dtype=dtype,
        matrices=matrices, load=load,
    )  # fmt: skip
    return Case((made,), chip, kernel, made.flops, made.bytes, None, tuple(assumed))


@cache
def _busiest(
    tokens: float, experts: int, chosen: float, ranks: int, exponent: float | None
) -> tuple[float, float]:
    """Rows that reach the busiest rank, and its experts that get one.

    Even: as round-robin gives them out. Else loads are drawn from a power law between 1 and 0.8 of the tokens, or 0.01
    and 2 where there are fewer rows than experts, and rounded: how the aiconfigurator collector
    (github.com/ai-dynamo/aiconfigurator, collector/helper.py) loads the experts that it measures, which times the
    busiest rank. The mean of 40 draws.
    """
    import numpy as np

    total = tokens * chosen
    if exponent is None:
        return max(1.0, total / ranks), max(1.0, min(float(experts), total) / ranks)
    low, high = (1.0, 0.8 * tokens) if total > experts else (0.01, 2.0)
    power = 1.0 - exponent
    drawn = np.random.default_rng(0).random((40, experts))
    loads = ((high**power - low**power) * drawn + low**power) ** (1.0 / power)
    counts = np.round(loads / loads.sum(axis=1, keepdims=True) * total)
    by_rank = counts.reshape(40, ranks, -1)
    busiest = by_rank.sum(axis=2).argmax(axis=1)
    chosen_rank = by_rank[np.arange(40), busiest]
    return max(1.0, float(chosen_rank.sum(axis=1).mean())), max(
        1.0, float((chosen_rank > 0).sum(axis=1).mean())
    )


# --- attention ----------------------------------------------------------------------------------------------------


def _decode(row: Row, chip: Chip, kernel: str) -> Case:
    batch, tokens, heads, kv_heads, width = (
        _need(row, name) for name in ("batch", "kv_len", "heads", "kv_heads", "head_dim")
    )
    made = attention_decode(
        "decode", batch, tokens, heads=heads, kv_heads=kv_heads, head_dim=width, v_head_dim=width,
        kv=_dtype(row, "kv_dtype"), variant="trtllm" if kernel.endswith(", trtllm") else "",
    )  # fmt: skip
    return Case((made,), chip, kernel, made.flops, number(row, "bytes") or made.bytes)


def _latent(row: Row, chip: Chip, kernel: str) -> Case:
    batch, tokens, heads = (_need(row, name) for name in ("batch", "kv_len", "heads"))
    kv = _dtype(row, "kv_dtype")
    made = mla_decode("decode", batch, tokens, heads=heads, latent=_LATENT, rope=_ROPE, kv=kv)
    return Case((made,), chip, kernel, made.flops, number(row, "bytes") or made.bytes)


def _prefill(row: Row, chip: Chip, kernel: str) -> Case:
    batch, queries, tokens, heads, kv_heads, width = (
        _need(row, name) for name in ("batch", "q_len", "kv_len", "heads", "kv_heads", "head_dim")
    )
    notes = row.get("notes", "")
    assumed: list[str] = []
    causal = queries * (tokens - queries) + queries * queries / 2
    pairs = causal
    if "non-causal" in notes:
        pairs = queries * tokens
        assumed.append("figures match a count without a causal mask: none is taken")
    made = attention_prefill(
        "prefill", batch, queries, pairs, heads=heads, kv_heads=kv_heads, head_dim=width, v_head_dim=width,
        tokens=tokens, kv=_dtype(row, "kv_dtype"), variant="fp8" if _dtype(row) == "fp8" else "",
    )  # fmt: skip
    before: tuple[Operation, ...] = ()
    if kernel.endswith(", trtllm"):  # its operator turns and stores keys and values too, from one fused input
        size = batch * queries * width * (heads + 2 * kv_heads) * ACTIVATION
        before = (elementwise("rotate and store", 2 * size),)
    return Case((*before, made), chip, kernel, made.flops, made.bytes, None, tuple(assumed))


# --- links --------------------------------------------------------------------------------------------------------


def _collective(row: Row, chip: Chip, kernel: str) -> Case:
    kind, notes = row["op"].strip().lower(), row.get("notes", "")
    ranks = int(number(row, "world_size") or 2)
    message = number(row, "bytes")
    assumed: list[str] = []
    variant = "nccl" if kernel == "nccl" else ""
    if kernel.startswith("vidur"):
        variant = "nccl" if kind == "send_recv" else "eager"
        if between_nodes(row):
            variant = "across"
    if message is None and kind == "alltoall":
        message = _dispatched(row)
        if "bottleneck bandwidth over RDMA" in notes:  # a rate of the network card alone
            return Case((), chip, kernel, None, None, chip.nic_bandwidth * chip.fabrics["rdma"].share)
    if message is None:
        message, variant = 2.0**32, "nccl"
        assumed.append("the size of the message is not said: 4 GiB stands for a plateau")
    made = collective("collective", kind, message, ranks, variant=variant)
    counted = message
    if kind == "allreduce":
        counted = message * 2 * (ranks - 1) / ranks  # bus bandwidth
    return Case((made,), chip, kernel, None, counted, None, tuple(assumed))


def between_nodes(row: Row) -> bool:
    """Whether the notes count more than one node."""
    notes = row.get("notes", "")
    nodes = re.search(r"on (\d+) node", notes)
    return "devices per node 1 " in notes or (nodes is not None and int(nodes[1]) > 1)


def _dispatched(row: Row) -> float:
    """Bytes that a rank sends to experts, or gets back: each of m tokens of width k, `topk` times."""
    found = [number(row, name) for name in ("m", "k", "topk")]
    if None in found:
        raise InputError("alltoall without bytes, and without m, k and topk")
    tokens, width, chosen = (float(each or 0) for each in found)
    return tokens * width * chosen * (1.0 if _dtype(row) == "fp8" else 2.0)


def _copy(row: Row, chip: Chip, kernel: str) -> Case:
    """Between a GPU and its host, or two GPUs of a node."""
    op, notes = row["op"].strip().lower(), row.get("notes", "")
    both = 2.0 if "both directions" in notes else 1.0
    shares = data()["copy"]
    if op == "memcpy":
        return Case((), chip, kernel, None, None, chip.link_bandwidth * shares["peer"] * both)
    share = shares["host_both"] if both == 2.0 else shares["host"]
    return Case((), chip, kernel, None, None, chip.pcie_bandwidth * share * both)


def _transfer(row: Row, chip: Chip, kernel: str) -> Case:
    """A cache sent to another node, on all the links of a node together."""
    line = re.search(r"line rate (\d+) GB/s|about (\d+) GB/s line rate", row.get("notes", ""))
    size = _need(row, "bytes")
    figures = data()["copy"]
    if not line:
        raise InputError("kv_transfer whose notes don't say the line rate")
    rate = float(line[1] or line[2]) * 1e9
    if "block" in row.get("notes", ""):  # a stream of blocks: so many a second, or the line's rate
        blocks = figures["blocks_per_second"] * size
        reached = rate * figures["stream"]
        power = figures["stream_power"]
        return Case((), chip, kernel, None, None, (blocks**-power + reached**-power) ** (-1.0 / power))
    seconds = figures["transfer_us"] * 1e-6 + size / (rate * figures["transfer"])
    return Case((), chip, kernel, None, size, size / seconds)


_Reader = Callable[[Row, Chip, str], Case]
_READERS: dict[str, _Reader] = {
    "gemm": _gemm,
    "grouped_gemm": _grouped,
    "attention_decode": _decode,
    "mla_decode": _latent,
    "attention_prefill": _prefill,
    **dict.fromkeys(kernel_time.COLLECTIVES, _collective),
    "memcpy": _copy,
    "h2d": _copy,
    "d2h": _copy,
    "kv_transfer": _transfer,
}
_UNTOLD = {
    "model_load": "depends on the storage, the loader and the engine's start-up, which no column says",
}
