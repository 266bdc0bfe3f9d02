"""The time of an operation: floors, limits, and every GPU of the registry."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from capplan.capacity.step_time import operations as op
from capplan.capacity.step_time.chip import Chip, constants_of, data
from capplan.capacity.step_time.kernel_time import (
    COLLECTIVES,
    bound,
    chip_of,
    multiplied,
    seconds,
    spread,
    terms,
)
from capplan.capacity.step_time.operations import Operation
from capplan.hardware import registry

CHIPS = {
    name: chip_of(registry.gpu(name))
    for name in (
        "a100-sxm-80",
        "a40",
        "l40s",
        "h100-sxm",
        "h200-sxm",
        "h20-sxm",
        "b200-sxm",
        "gb200-nvl72",
        "rtx-pro-6000-server",
        "mi300x",
        "mi355x",
        "gaudi3",
        "tpu-v5e",
        "t4",
        "mi210",
        "rtx-5090",
    )
}
H100, H200, B200, H20 = (CHIPS[name] for name in ("h100-sxm", "h200-sxm", "b200-sxm", "h20-sxm"))
DTYPES = ("bf16", "fp8", "fp8_block", "int8", "int4", "nvfp4", "mxfp4", "w4a16_mxfp4", "w4a8_mxfp4")


def limit(operation: Operation, chip: Chip) -> str:
    return bound(operation.kind, *terms(operation, chip)[:3])


def decode(batch: float = 32, tokens: float = 8192, kv: str = "bf16", heads: float = 64) -> Operation:
    return op.attention_decode(
        "decode", batch, tokens, heads=heads, kv_heads=8, head_dim=128, v_head_dim=128, kv=kv
    )


def prefill(queries: float = 8192, before: float = 0, variant: str = "", kv: str = "bf16") -> Operation:
    pairs = queries * before + queries**2 / 2
    return op.attention_prefill(
        "prefill", 1, queries, pairs, heads=64, kv_heads=8, head_dim=128, v_head_dim=128,
        tokens=before + queries, kv=kv, variant=variant,
    )  # fmt: skip


def experts(tokens: float = 512, dtype: str = "fp8_block", **more: Any) -> Operation:
    shape: dict[str, Any] = {"hidden": 4096, "inner": 1536, "experts": 128, "chosen": 8, "local": 128, **more}
    return op.grouped_gemm("experts", tokens, dtype=dtype, **shape)


OPERATIONS = (
    op.gemm("a product", 64, 8192, 8192, "bf16"),
    op.gemm("a quantised product", 4096, 8192, 8192, "fp8"),
    experts(),
    decode(kv="fp8"),
    op.mla_decode("latent", 32, 8192, heads=128, latent=512, rope=64, kv="bf16"),
    prefill(),
    op.elementwise("a norm", 1e7),
    Operation("a scan", "scan", "bf16", 1, flops=1e9, bytes=1e6),
    *(op.collective(kind, kind, 2**20, ranks) for kind in COLLECTIVES for ranks in (2, 4, 8, 16, 64)),
)


@pytest.mark.parametrize("name", registry.names())
def test_every_gpu_answers(name: str) -> None:
    chip = chip_of(registry.gpu(name))
    for operation in OPERATIONS:
        assert 0 < seconds(operation, chip) < 10
        assert limit(operation, chip) in ("compute", "memory", "latency", "link")
        low, high = spread(operation, chip)
        assert 0 < low < 1 < high


def test_a_gpu_without_measured_kernels_says_so_and_is_less_sure() -> None:
    product = OPERATIONS[0]
    assert not H200.assumptions
    for name, generation in (("mi300x", "sm90"), ("mi355x", "sm100"), ("t4", "sm80"), ("gaudi3", "sm90")):
        chip = CHIPS[name]
        assert chip.generation == generation
        assert any(generation in text for text in chip.assumptions)
        assert spread(product, chip)[1] > spread(product, H200)[1]
        assert spread(product, chip)[0] < spread(product, H200)[0]


def test_a_generation_has_at_most_twelve_constants() -> None:
    def count(table: dict[str, Any]) -> int:
        return sum(count(value) if isinstance(value, dict) else 1 for value in table.values())

    for name, table in data()["generation"].items():
        assert count(table) <= 12
        assert data()["fit"]["rows"][name]["gemm"] > 30
        assert constants_of(name).memory == table["memory"]


# --- floors -------------------------------------------------------------------------------------------------------

sizes = st.floats(1, 65536)
chips = st.sampled_from(list(CHIPS.values()))


@st.composite
def operations(draw: Any) -> Operation:
    kind = draw(st.sampled_from(("gemm", "experts", "decode", "latent", "prefill", "elementwise")))
    a, b, c = draw(sizes), draw(sizes), draw(sizes)
    dtype, kv = draw(st.sampled_from(DTYPES)), draw(st.sampled_from(("bf16", "fp8")))
    heads = draw(st.sampled_from((1, 2, 4, 5, 8, 16))) * 8.0
    if kind == "gemm":
        return op.gemm("a product", a, b, c, dtype)
    if kind == "experts":
        local = draw(st.sampled_from((1.0, 16.0, 128.0)))
        return experts(a, dtype, hidden=b, inner=c, local=local)
    if kind == "decode":
        return decode(a, b, kv, heads)
    if kind == "latent":
        return op.mla_decode("latent", a, b, heads=heads, latent=512, rope=64, kv=kv)
    if kind == "prefill":
        return prefill(a, b, draw(st.sampled_from(("", "fp8"))), kv)
    return op.elementwise("a pass", a * b)


@settings(max_examples=400, deadline=None)
@given(operations(), chips)
def test_time_is_above_the_floor(operation: Operation, chip: Chip) -> None:
    dtype = "fp8" if operation.variant == "fp8" else multiplied(operation, chip)
    narrow = "fp8" if operation.kind == "mla_decode" and operation.dtype == "fp8" else dtype
    bits = "bf16" if operation.kind == "attention_decode" or dtype in ("bf16", "fp16") else narrow
    floor = max(operation.flops / chip.peaks[bits], operation.bytes / chip.bandwidth)
    assert seconds(operation, chip) >= floor


@settings(max_examples=200, deadline=None)
@given(operations(), chips, st.floats(1.01, 10))
def test_more_of_anything_is_never_slower(operation: Operation, chip: Chip, times: float) -> None:
    time = seconds(operation, chip)
    faster = chip._replace(bandwidth=chip.bandwidth * times)
    assert seconds(operation, faster) <= time
    stronger = chip._replace(peaks={name: rate * times for name, rate in chip.peaks.items()})
    assert seconds(operation, stronger) <= time


@settings(max_examples=200, deadline=None)
@given(st.sampled_from(COLLECTIVES), st.sampled_from((2, 3, 4, 8, 16, 72)), st.floats(1, 1e9), chips)
def test_collectives_are_above_the_wire(kind: str, ranks: int, message: float, chip: Chip) -> None:
    made = op.collective(kind, kind, message, ranks)
    time = seconds(made, chip)
    fastest = max(chip.link_bandwidth, chip.pcie_bandwidth, chip.nic_bandwidth)
    assert time >= message * (ranks - 1) / ranks / fastest  # what a rank must at least hear of the others
    assert seconds(op.collective(kind, kind, message * 1.5, ranks), chip) >= time
    links = chip._replace(
        link_bandwidth=chip.link_bandwidth * 2,
        pcie_bandwidth=chip.pcie_bandwidth * 2,
        nic_bandwidth=chip.nic_bandwidth * 2,
    )
    assert seconds(made, links) <= time


def test_one_rank_has_no_communication() -> None:
    assert all(seconds(op.collective(kind, kind, 1e9, 1), H200) == 0 for kind in COLLECTIVES)


def test_arrays_are_numbers_side_by_side() -> None:
    sweep = np.array([1.0, 16.0, 4096.0])
    makers: tuple[Callable[[Any], Operation], ...] = (
        lambda m: op.gemm("a product", m, 8192, 8192, "bf16"),
        lambda m: experts(m),
        lambda m: decode(m, kv="fp8"),
        lambda m: op.mla_decode("latent", m, 8192, heads=128, latent=512, rope=64, kv="bf16"),
        lambda m: prefill(m),
        lambda m: op.elementwise("a pass", m * 1e4),
        lambda m: op.collective("sum", "allreduce", m * 1e4, 8),
        lambda m: op.collective("sum", "allreduce", m * 1e4, 16),
    )
    for made in makers:
        assert seconds(made(sweep), B200) == pytest.approx([seconds(made(float(m)), B200) for m in sweep])


# --- what kernels are known to do -----------------------------------------------------------------------------------


def test_published_times() -> None:
    """Rows of aiconfigurator @095f58a51, InferSim and Vidur, within a quarter."""
    cases: tuple[tuple[Operation, Chip, float], ...] = (
        (op.gemm("vllm 0.24", 2048, 2560, 12288, "bf16"), H100, 155.64),
        (op.gemm("trtllm 1.3.0rc20", 16384, 2560, 12288, "bf16"), H200, 1270.3),
        (op.gemm("DeepGEMM", 8192, 6656, 2560, "fp8_block"), H20, 1037.0),
        (decode(32, 2048, heads=64)._replace(kv_heads=4.0, bytes=32 * 2048 * 4 * 512.0), H100, 57.24),
        (
            op.mla_decode("FlashMLA", 256, 1024, heads=128, latent=512, rope=64, kv="bf16"),
            CHIPS["h20-sxm"],
            633.66,
        ),
        (op.collective("trtllm", "allreduce", 2**28, 8), H100, 1089.6),
        (op.collective("two-shot", "allreduce", 2**20, 8), H200, 14.074),
        (op.collective("vidur", "send_recv", 31850496, 2), H100, 95.0),
    )
    for operation, chip, measured in cases:
        assert seconds(operation, chip) == pytest.approx(measured * 1e-6, rel=0.25), operation.name


def test_an_fp8_cache_gains_little_on_an_h200() -> None:
    gain = {
        chip.name: seconds(decode(64), chip) / seconds(decode(64, kv="fp8"), chip)
        for chip in (H100, H200, B200)
    }
    assert 1.0 < gain["h200-sxm"] < 1.4
    assert gain["h200-sxm"] < gain["h100-sxm"] < gain["b200-sxm"]  # the more memory outruns the processors
    other = decode(64, kv="fp8")._replace(variant="trtllm")
    assert seconds(other, H200) < 0.75 * seconds(decode(64, kv="fp8"), H200)


def test_bounds() -> None:
    assert limit(op.gemm("tiny", 1, 256, 256, "bf16"), H200) == "latency"
    assert limit(op.gemm("a token", 1, 28672, 8192, "bf16"), H200) == "memory"
    assert limit(op.gemm("a prompt", 8192, 28672, 8192, "bf16"), H200) == "compute"
    assert limit(op.collective("sum", "allreduce", 2**30, 8), H200) == "link"
    assert limit(op.collective("sum", "allreduce", 2**10, 8), H200) == "latency"
    many = op.mla_decode("latent", 64, 16384, heads=128, latent=512, rope=64, kv="bf16")
    assert limit(many, H20) == "compute"
    assert limit(many._replace(columns=16.0, flops=many.flops / 8), H200) == "memory"


def test_terms_make_the_time() -> None:
    for operation in OPERATIONS:
        start, compute, memory, power = terms(operation, H200)
        assert start + (compute**power + memory**power) ** (1 / power) == seconds(operation, H200)


def test_units_that_run_below_their_rate_are_better_fed() -> None:
    assert H200.allowed == pytest.approx(1, abs=0.01)
    assert H20.allowed == pytest.approx(0.23, abs=0.01)
    large = op.gemm("large", 8192, 8192, 8192, "bf16")
    share = {chip.name: large.flops / chip.peaks["bf16"] / seconds(large, chip) for chip in (H200, H20)}
    assert share["h20-sxm"] > 0.88
    assert share["h200-sxm"] < 0.8


def test_two_cards_with_a_bridge_go_over_pcie_with_more() -> None:
    card = chip_of(registry.gpu("h100-nvl"))
    two, four = (seconds(op.collective("sum", "allreduce", 2**26, ranks), card) for ranks in (2, 4))
    assert four > 3 * two


def test_between_nodes_the_network_is_slowest() -> None:
    inside, across = (seconds(op.collective("sum", "allreduce", 2**28, ranks), H100) for ranks in (8, 16))
    assert across > 1.3 * inside
    rack = CHIPS["gb200-nvl72"]
    assert seconds(op.collective("sum", "allreduce", 2**28, 16), rack) < 0.5 * across


def test_experts_that_nobody_chose_cost_a_start() -> None:
    assert 0 < seconds(experts(0.0), H200) < 100e-6


def test_attention_runs_in_the_format_of_a_16_bit_cache() -> None:
    """Gaudi 3 multiplies fp16 at 459 TFLOP/s, bf16 at 1,677."""
    gaudi = chip_of(registry.gpu("gaudi3"))
    for of in (prefill(8192.0, 8192.0, "", "fp16"), decode(64.0, 8192.0, "fp16", 64.0)):
        assert seconds(of, gaudi) >= of.flops / gaudi.peaks["fp16"]
    assert (
        seconds(prefill(8192.0, 8192.0, "", "bf16"), gaudi)
        < seconds(prefill(8192.0, 8192.0, "", "fp16"), gaudi) / 2
    )


@pytest.mark.parametrize("dtype", ["bf16", "fp8"])
def test_an_engine_s_experts_take_a_smaller_tile_where_padding_would_outlast_reading(dtype: str) -> None:
    """A token on an M3 Ultra: rounded up to whole tiles, its eight experts' products took 6 and 13 readings."""
    chip = chip_of(registry.gpu("apple-m3-ultra"))
    one = experts(1.0, dtype, hidden=2048, inner=768)
    reading = one.held / chip.bandwidth
    assert reading < seconds(one, chip) - terms(one, chip).start < 2 * reading
    # a kernel by itself, and weights that are widened first, have the tile that they were measured with
    for other in (one._replace(variant="bare"), experts(1.0, "int4", hidden=2048, inner=768)):
        found = terms(other, chip)
        assert found.compute > 4 * found.memory
    many = experts(100_000.0, dtype, hidden=2048, inner=768)
    whole = terms(many._replace(variant="bare"), chip).compute
    assert 0.98 * whole < terms(many, chip).compute <= whole
