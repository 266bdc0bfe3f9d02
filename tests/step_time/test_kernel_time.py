"""The time of an operation: floors, limits, and every GPU of the registry."""

import numpy as np
import pytest

from capplan.capacity.step_time import operations as op
from capplan.capacity.step_time.kernel_time import bound, chip_of, seconds
from capplan.hardware import registry

H200 = chip_of(registry.gpu("h200-sxm"))
OPERATIONS = (
    op.gemm("a product", 64, 8192, 8192, "bf16"),
    op.gemm("a quantised product", 4096, 8192, 8192, "fp8"),
    op.grouped_gemm(
        "experts", 512, hidden=4096, inner=1536, experts=128, chosen=8, local=128, dtype="fp8_block"
    ),
    op.attention_decode("decode", 32, 8192, heads=64, kv_heads=8, head_dim=128, v_head_dim=128, kv="fp8"),
    op.mla_decode("latent", 32, 8192, heads=128, latent=512, rope=64, kv="bf16"),
    op.attention_prefill(
        "prefill",
        1,
        8192,
        8192**2 / 2,
        heads=64,
        kv_heads=8,
        head_dim=128,
        v_head_dim=128,
        tokens=8192,
        kv="bf16",
    ),
    op.elementwise("a norm", 1e7),
    op.collective("sum", "allreduce", 2**20, 8),
)


@pytest.mark.parametrize("name", registry.names())
def test_every_gpu_answers(name: str) -> None:
    gpu = registry.gpu(name)
    chip = chip_of(gpu)
    for operation in OPERATIONS:
        assert 0 < seconds(operation, chip) < 10
        assert bound(operation, chip) in ("compute", "memory", "latency", "link")


def test_arrays_are_numbers_side_by_side() -> None:
    rows = np.array([1.0, 16.0, 4096.0])
    together = seconds(op.gemm("a product", rows, 8192, 8192, "bf16"), H200)
    apart = [seconds(op.gemm("a product", float(m), 8192, 8192, "bf16"), H200) for m in rows]
    assert together == pytest.approx(apart)
