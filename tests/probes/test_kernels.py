"""Our Triton kernels build for GPUs, where there is none: machine code, no spilled registers, loads ahead of products."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("triton")
pytest.importorskip("torch")

# Compiles one kernel for one architecture; a process of its own, as triton compiles or interprets, but not both
SCRIPT = """
import json, sys
import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from capplan.probes.kernels import latent_decode, paged_decode, quantise

told = []
for name, arch, cache, constants, warps, stages in json.load(sys.stdin):
    kernel = {"paged": paged_decode._attend_split, "latent": latent_decode._attend_split, "join": paged_decode._join,
              "quantise": quantise._quantise}[name]
    if name in ("paged", "latent"):
        plain = "fp8" in cache and not (name == "latent" and constants["GROUP"])
        width = torch.float8_e4m3fn if plain else torch.bfloat16
        constants["DOT"] = paged_decode.products(torch.bfloat16, width)
    pointers = {"q": "*bf16", "k_pages": cache, "v_pages": cache, "pages": cache, "scales": "*fp32",
                "turned_pages": "*bf16", "table": "*i32", "lengths": "*i32",
                "means": "*fp32", "lse": "*fp32", "out": "*bf16", "scale_log2": "fp32", "scale": "fp32", "x": "*bf16"}
    pointers["out"] = cache if name == "quantise" else "*bf16"
    names = kernel.arg_names
    signature = {n: "constexpr" if n in constants else pointers.get(n, "i32") for n in names}
    aligned = [n for n in names if pointers.get(n, "").startswith("*") or n.endswith(("_head", "_slot", "_page", "stride"))]
    source = ASTSource(
        fn=kernel, signature=signature, constexprs={(names.index(n),): v for n, v in constants.items()},
        attrs={(names.index(n),): [["tt.divisibility", 16]] for n in aligned},
    )
    built = triton.compile(source, target=GPUTarget("cuda", arch, 32), options={"num_warps": warps, "num_stages": stages})
    ptx = built.asm["ptx"]
    told.append({"shared": built.metadata.shared, "async": ptx.count("cp.async.c"), "code": len(built.asm["cubin"]),
                 "to_bf16": ptx.count("cvt.rn.bf16"),
                 "products": ptx.count("mma.sync") + ptx.count("wgmma.mma") + ptx.count("tcgen05.mma")})
print(json.dumps(told))
"""
PAGED = {"GROUP": 8, "ROWS": 16, "TOKENS": 64, "PAGE": 16, "WIDTH": 128}
LATENT = {"ROWS": 16, "TOKENS": 32, "PAGE": 64, "LATENT": 512, "ROPE": 64, "GROUP": 0}
BUILDS: list[tuple[str, int, str, dict[str, int], int, int]] = [
    ("paged", 80, "*bf16", PAGED, 4, 3),
    ("paged", 90, "*bf16", PAGED, 4, 3),
    ("paged", 90, "*fp8e4nv", {**PAGED, "PAGE": 64}, 4, 3),
    ("latent", 90, "*bf16", LATENT, 4, 2),
    ("latent", 90, "*bf16", {**LATENT, "ROWS": 64}, 8, 2),
    ("latent", 90, "*fp8e4nv", LATENT, 4, 2),
    ("latent", 90, "*fp8e4nv", {**LATENT, "GROUP": 128}, 4, 2),
    ("latent", 90, "*fp8e4nv", {**LATENT, "GROUP": 128, "ROWS": 64}, 8, 2),
    ("paged", 90, "*bf16", {**PAGED, "splits": 1}, 4, 3),  # triton makes a constant of an argument that is 1
    ("quantise", 90, "*fp8e4nv", {"LARGEST": 448, "GROUP": 128, "WIDTH": 128, "ROUND": 0}, 1, 3),
    ("quantise", 90, "*fp8e4nv", {"LARGEST": 448, "GROUP": 28672, "WIDTH": 32768, "ROUND": 0}, 16, 3),
    ("join", 90, "*bf16", {"MOST": 128, "STEP": 16, "WIDTH": 512}, 4, 3),
]


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    env = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"}
    env["TRITON_CACHE_DIR"] = str(tmp_path_factory.mktemp("triton"))
    root = Path(__file__).parents[2]
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT], input=json.dumps(BUILDS), capture_output=True, text=True, env=env, cwd=root,
        timeout=300, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    told: list[dict[str, Any]] = json.loads(done.stdout)
    return told


@pytest.mark.parametrize("number", range(len(BUILDS)))
def test_it_builds_with_matrix_units_and_loads_ahead(number: int, built: list[dict[str, Any]]) -> None:
    one = built[number]
    assert one["code"] > 0
    if BUILDS[number][0] in ("paged", "latent"):
        assert one["products"] > 0  # on matrix units
        assert one["async"] > 0  # the next tile is under way while this one is multiplied
    assert one["shared"] <= (227 if BUILDS[number][1] == 90 else 163) * 1024


def test_fp8_is_not_widened_to_bf16(built: list[dict[str, Any]]) -> None:
    """Which takes three instructions a number, one of them slow: the cache would be read at the rate of the conversion."""
    # of packed rows each number meets its scale in fp32 before, and goes to bf16 in one instruction for two
    fp8 = [
        one
        for build, one in zip(BUILDS, built, strict=True)
        if "fp8" in build[2] and (build[0] == "paged" or (build[0] == "latent" and not build[3]["GROUP"]))
    ]
    assert len(fp8) == 2
    assert [one["to_bf16"] for one in fp8] == [0, 0]
