"""MiMo V2.5: its published totals, heads of its own in windows, and the build that has its experts in 4 bit."""

import pytest

from capplan.capacity.cache import cache
from capplan.models.registry import model
from capplan.models.spec import Attention
from capplan.models.stored import stored


def test_mimo_pro_has_heads_of_its_own_in_windows() -> None:
    row = model("XiaomiMiMo/MiMo-V2.5-Pro")
    full, local = row.layers[0][0], row.layers[1][0]
    assert isinstance(full, Attention)
    assert isinstance(local, Attention)
    assert (full.kv_heads, local.kv_heads, local.window) == (8, 8, 128)
    assert sum(getattr(layer[0], "window", 0) is None for layer in row.layers) == 10
    assert row.parameters_total / 1e12 == pytest.approx(1.02, abs=0.005)
    assert row.parameters_active / 1e9 == pytest.approx(42, abs=0.5)


def test_mimo_v2_5_is_its_flash_with_a_longer_context() -> None:
    row, flash = model("XiaomiMiMo/MiMo-V2.5"), model("mimo-v2-flash")
    assert row.parameters_total == flash.parameters_total
    assert row.parameters_total / 1e9 == pytest.approx(310 - 0.73 - 0.26, rel=2e-3)  # without its towers
    assert sum(getattr(layer[0], "window", 0) is None for layer in row.layers) == 9
    assert cache(row).slope == cache(flash).slope


def test_the_fp4_build_of_mimo_pro_has_its_experts_in_mxfp4_alone() -> None:
    row = model("XiaomiMiMo/MiMo-V2.5-Pro-FP4-DFlash")
    formats: dict[str, set[str | None]] = {}
    for piece in stored(row.weights, row.layers, row.hidden_size, row.quantization):
        if len(piece.weight.shape) > 1:
            formats.setdefault(piece.weight.bucket, set()).add(piece.format and piece.format.name)
    assert formats["experts"] == {"mxfp4"}
    assert formats["attention"] == {"fp8", None}  # o_proj is in the list of what is left alone
    assert formats["mlp"] == {"fp8"}
