"""What the attention probes do on a GPU alone, with tensors that lie on the CPU: tilings, captures, samples, cases."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import Any

import pytest

os.environ["TRITON_INTERPRET"] = "1"  # read when triton is first imported

torch = pytest.importorskip("torch")
pytest.importorskip("triton")

from capplan.probes import decode_kernels, kernels
from capplan.probes.probe import Case, Device, Skipped
from capplan.probes.suite import attn_decode, attn_decode_mla, attn_prefill, decoder_step
from capplan.probes.timing import Times

PROBES = (attn_prefill, attn_decode, attn_decode_mla, decoder_step)


class StandIn(Device):
    """A GPU whose tensors lie on the CPU."""

    @property
    def torch(self) -> str:
        return "cpu"

    @property
    def is_gpu(self) -> bool:
        return True


GPU = StandIn(
    "cuda", 0, "a GPU", "sm_90", 1, 2**20, 2**37, capability=(9, 0), peaks={"bf16": 1e15}, bandwidth=5e12
)


@pytest.fixture(autouse=True)
def _stand_ins(monkeypatch: pytest.MonkeyPatch) -> None:
    kernels.ready(Device("cpu", 0, "a CPU", "x86_64", 2, 2**20, 2**33))
    monkeypatch.setattr(decode_kernels, "ready", lambda device: None)
    for few in ("TILINGS", "LATENT_TILINGS"):  # the interpreter is slow
        monkeypatch.setattr(decode_kernels, few, getattr(decode_kernels, few)[::4])

    def timed(calls: Sequence[Callable[[], object]], device: Device, **_: Any) -> Times:
        for call in calls:
            call()
        return Times([1e-3], "burst", "cold")

    for probe in PROBES:
        monkeypatch.setattr(probe, "timed", timed)
        if hasattr(probe, "copies"):
            monkeypatch.setattr(probe, "copies", lambda size, device: 2)


@pytest.fixture
def benched(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """The calls that were compared: each is faster than the one before."""
    import triton.testing

    calls: list[object] = []

    def do_bench(call: Callable[[], object], **_: Any) -> float:
        calls.append(call())
        return 1.0 / len(calls)

    monkeypatch.setattr(triton.testing, "do_bench", do_bench)
    return calls


CASES: list[tuple[Any, Case]] = [
    (
        attn_prefill,
        {"queries": 40, "keys": 200, "heads": 8, "kv_heads": 2, "dtype": "bf16", "kernel": "sdpa"},
    ),
    *(
        (
            attn_decode,
            {
                "batch": 2,
                "length": 130,
                "page": 64,
                "heads": 4,
                "kv_heads": 2,
                "kv_dtype": d,
                "kernel": "triton",
            },
        )
        for d in ("bf16", "fp8")
    ),
    *(
        (attn_decode_mla, {"heads": 4, "batch": 2, "length": 100, "kv_dtype": d, "kernel": "triton"})
        for d in ("bf16", "fp8", "fp8_ds_mla")
    ),
]


@pytest.mark.parametrize(("probe", "case"), CASES)
def test_it_is_checked_and_timed(probe: Any, case: Case, benched: list[object]) -> None:
    found = probe.check(case, GPU)
    assert found.ok, found.why
    measured = probe.measure(case, GPU)
    assert measured.kernel == case["kernel"]
    assert measured.rotation == 2
    if case["kernel"] == "triton":  # every tiling was tried, and the last one was the fastest
        latent = probe is attn_decode_mla
        every = decode_kernels.LATENT_TILINGS if latent else decode_kernels.TILINGS
        assert len(benched) == len(every)
        sizes, programs = every[-1]
        assert measured.notes == [f"tiling {sizes}, {programs} programs an SM"]


def test_tilings_without_room_are_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    from triton.runtime.errors import OutOfResources

    right = decode_kernels.triton

    def small(q: Any, cache: Any, scale: float, length: int, device: Device, tiling: int = 0) -> Any:
        def call() -> Any:
            if decode_kernels.TILINGS[tiling][0][0] > room:
                raise OutOfResources(300_000, 232_448, "shared memory")
            return right(q, cache, scale, length, device, tiling)()

        return call

    monkeypatch.setattr(decode_kernels, "triton", small)
    case = CASES[1][1]
    q, cache = attn_decode._full(case, GPU, seed=1)
    room = 64
    fit = decode_kernels.tilings("triton", q, cache, 1.0, case["length"], GPU)
    assert fit == [i for i, (sizes, _) in enumerate(decode_kernels.TILINGS) if sizes[0] <= 64]
    assert 0 < len(fit) < len(decode_kernels.TILINGS)
    assert attn_decode.check(case, GPU).ok
    room = 0
    with pytest.raises(Skipped, match="no tiling of the kernel has room on a GPU"):
        attn_decode.check(case, GPU)


def test_a_step_is_captured_and_replayed(monkeypatch: pytest.MonkeyPatch, benched: list[object]) -> None:
    calls: list[str] = []

    class Graph:
        def replay(self) -> None:
            calls.append("replay")

    right = decoder_step.step

    def step(*args: Any) -> Any:
        calls.append("step")
        return right(*args)

    def capturing(graph: Graph) -> Any:
        calls.append("capture")
        return nullcontext()

    monkeypatch.setattr(decoder_step, "step", step)
    monkeypatch.setattr(torch.cuda, "CUDAGraph", Graph)
    monkeypatch.setattr(torch.cuda, "graph", capturing)
    case = {"layer": "tiny", "batch": 2, "context": 70, "dtype": "bf16", "kernel": "triton"}
    measured = decoder_step.measure(case, GPU)
    assert calls == ["step", "capture", "step", "replay"]  # warm, captured, and replayed to be timed
    assert measured.mode == "graph"


@pytest.mark.parametrize("probe", PROBES)
def test_profiles_grow_and_fit_the_memory(probe: Any) -> None:
    quick, default, full = (probe.cases(profile, GPU) for profile in ("quick", "default", "full"))
    assert 0 < len(quick) < len(default) < len(full)
    for made in (quick, default, full):
        assert len({str(case) for case in made}) == len(made)  # a row is told from the others by its case
    if probe is attn_decode:
        assert max(map(attn_decode._cache_bytes, full)) < GPU.memory_bytes / 4
