"""What runs on a GPU alone, against stand-ins for torch.cuda and NVML: which way is taken, and what is asked for."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from capplan.probes import collective_ops, timing
from capplan.probes import device as devices
from capplan.probes import run as running
from capplan.probes.judge import share_at_clock
from capplan.probes.probe import Device
from capplan.probes.suite import collectives, fp8_gemm, gemm, memory, weight_streaming
from capplan.probes.telemetry import Telemetry, told_of
from capplan.probes.verdict import quality_of


class Clock:
    """Time on a GPU that is made up: each call adds to it."""

    def __init__(self) -> None:
        self.now = 0.0
        self.captured: list[Callable[[], object]] | None = None
        self.replays = 0
        self.modes: list[str] = []

    def call(self, took: float) -> Callable[[], None]:
        def run() -> None:
            if self.captured is not None:
                self.captured.append(run)
            else:
                self.now += took

        return run


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """torch.cuda, as far as timing.py knows it."""
    made = Clock()

    class Event:
        def __init__(self, enable_timing: bool) -> None:
            self.at = 0.0

        def record(self) -> None:
            self.at = made.now

        def elapsed_time(self, other: Event) -> float:
            return 1e3 * (other.at - self.at)

    class Graph:
        calls: list[Callable[[], object]]

        def replay(self) -> None:
            made.replays += 1
            for call in self.calls:
                call()

    @contextmanager
    def capture(graph: Any, capture_error_mode: str = "global") -> Iterator[None]:
        made.modes.append(capture_error_mode)
        made.captured = graph.calls = []
        yield
        made.captured = None

    for name, value in {
        "Event": Event,
        "CUDAGraph": Graph,
        "graph": capture,
        "synchronize": lambda: None,
        "_sleep": lambda cycles: None,
    }.items():
        monkeypatch.setattr(torch.cuda, name, value)
    monkeypatch.setattr(timing, "_COOL", 0.0)
    monkeypatch.setattr(timing, "_SUSTAINED", 0.01)
    monkeypatch.setattr(timing, "_WARM_SECONDS", 0.0)
    return made


def test_short_calls_are_timed_in_a_graph(clock: Clock, device: Callable[..., Device]) -> None:
    calls = [clock.call(10e-6), clock.call(30e-6)]
    found = timing.timed(calls, device("h200-sxm"), bytes_each=1e9)
    assert (found.mode, found.cache, len(found.times)) == ("graph", "cold", timing.SAMPLES)
    assert found.times[0] == pytest.approx(20e-6)  # both buffers, in turn
    assert clock.replays == timing.SAMPLES + 1


def test_long_calls_are_timed_back_to_back(clock: Clock, device: Callable[..., Device]) -> None:
    found = timing.timed([clock.call(1e-3)], device("h200-sxm"), bytes_each=1e6)
    assert (found.mode, found.cache) == ("burst", "warm")
    assert found.times[0] == pytest.approx(1e-3)
    assert clock.replays == 0
    assert (
        timing.timed([clock.call(1e-3)], device("h200-sxm"), bytes_each=1e9, sustained=True).mode
        == "sustained"
    )


def test_a_call_that_may_not_be_captured_is_not(clock: Clock, device: Callable[..., Device]) -> None:
    found = timing.timed([clock.call(10e-6)], device("h200-sxm"), bytes_each=1e9, graph=False)
    assert found.mode == "burst"
    assert clock.replays == 0


def test_a_collective_is_captured_after_it_ran_once(clock: Clock) -> None:
    """Connections are made at the first call; other threads may ask the device while it is captured."""
    run = collective_ops.captured(clock.call(10e-6), 10)
    assert clock.now == pytest.approx(10e-6)
    assert clock.modes == ["thread_local"]
    run()
    assert clock.now == pytest.approx(110e-6)


def test_each_sample_of_a_collective_begins_anew(
    clock: Clock, device: Callable[..., Device], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("torch.distributed.barrier", lambda: None)
    began: list[float] = []
    run = clock.call(30e-6)
    found = collective_ops.times(run, 10, device("h200-sxm"), lambda: began.append(clock.now))
    assert found == pytest.approx([3e-6] * 20)
    assert len(began) == 25


def test_what_nccl_rejects_of_a_collective() -> None:
    made = torch.ones(64)
    assert collective_ops.rejected("all_to_all", made.clone(), made, 8) == []
    assert collective_ops.rejected("all_reduce", made, made, 8) == []
    assert collective_ops.rejected("all_gather", torch.ones(512), made, 8) == []
    for op, out, given, ranks, why in (
        ("all_to_all", torch.ones(60), torch.ones(60), 8, "60 numbers can't be divided among 8 ranks"),
        ("all_to_all", made, made, 8, "out and given are one"),
        ("all_reduce", torch.ones(8, 16).t(), torch.ones(128), 2, "out is not contiguous"),
        ("reduce_scatter", torch.ones(8), torch.ones(60), 8, "60 numbers are not 8 times 8"),
        ("all_gather", torch.ones(512).bfloat16(), made, 8, "out is torch.bfloat16 and given torch.float32"),
    ):
        assert why in collective_ops.rejected(op, out, given, ranks)


def test_buffers_are_five_times_what_the_device_caches(device: Callable[..., Device]) -> None:
    """300 MiB on an H200, whose L2 is 60; nothing is rotated that is larger by itself."""
    h200 = device("h200-sxm")
    assert timing.copies(10 * 2**20, h200) == 30
    assert timing.copies(734e6, h200) == 1
    assert timing.copies(1, h200) <= 512


class Nvml:
    """NVML of a card that is made up; what is not told raises, as under MIG."""

    NVML_CLOCK_SM, NVML_CLOCK_MEM, NVML_TEMPERATURE_GPU = 0, 2, 0
    NVML_MEMORY_ERROR_TYPE_UNCORRECTED, NVML_VOLATILE_ECC = 1, 0

    def __init__(self, busy: int = 0) -> None:
        self.busy = busy
        self.asked: list[str] = []

    def __getattr__(self, name: str) -> Callable[..., Any]:
        answers: dict[str, Any] = {
            "nvmlInit": None,
            "nvmlSystemGetDriverVersion": "580.1",
            "nvmlDeviceGetUUID": "GPU-1234",
            "nvmlDeviceGetMemoryBusWidth": 6144,
            "nvmlDeviceGetMemoryInfo": SimpleNamespace(total=143771 * 2**20),
            "nvmlDeviceGetEccMode": (1, 1),
            "nvmlDeviceGetMigMode": (0, 0),
            "nvmlDeviceGetMaxClockInfo": 1980,
            "nvmlDeviceGetClockInfo": 1755,
            "nvmlDeviceGetPowerUsage": 650_000,
            "nvmlDeviceGetEnforcedPowerLimit": 600_000,
            "nvmlDeviceGetPowerManagementDefaultLimit": 700_000,
            "nvmlDeviceGetCurrPcieLinkGeneration": 5,
            "nvmlDeviceGetCurrPcieLinkWidth": 8,
            "nvmlDeviceGetMaxPcieLinkGeneration": 5,
            "nvmlDeviceGetMaxPcieLinkWidth": 16,
            "nvmlDeviceGetCurrentClocksEventReasons": 0x4 | 0x20,
            "nvmlDeviceGetNvLinkState": 1,
            "nvmlDeviceGetPciInfo": SimpleNamespace(busId=b"00000000:18:00.0"),
            "nvmlDeviceGetTotalEccErrors": 0,
            "nvmlDeviceGetUtilizationRates": SimpleNamespace(gpu=self.busy),
        }
        if name == "nvmlDeviceGetHandleByUUID":
            return self.by_uuid
        if name not in answers:
            raise AttributeError(name)
        return lambda *_: answers[name]

    def by_uuid(self, name: str) -> str:
        self.asked.append(name)
        if not name.startswith("GPU-"):
            raise RuntimeError("no such device")
        return name


@pytest.fixture
def nvml(monkeypatch: pytest.MonkeyPatch) -> Nvml:
    made = Nvml()
    monkeypatch.setitem(sys.modules, "pynvml", made)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda index: SimpleNamespace(uuid="1234"))
    return made


def test_the_handle_is_that_of_the_device_of_cuda(nvml: Nvml, device: Callable[..., Device]) -> None:
    told = devices.facts(device("h200-sxm"))
    assert nvml.asked == ["1234", "GPU-1234"]
    assert told["uuid_sha256_16"] == devices.hashed("GPU-1234")
    assert "1234" not in str(told)
    assert (told["ecc"], told["mig"]["enabled"], told["reported_bytes"]) == (True, False, 143771 * 2**20)
    assert told["pcie"] == {"gen": 5, "width": 8, "gen_max": 5, "width_max": 16}
    assert (told["power_limit_w"], told["power_default_w"]) == (600.0, 700.0)
    assert told["numa_node"] is None  # not told, and no error
    assert told["nvlink"] == {"links": 18, "active": 18}
    assert (told["sku_guess"], told["sku_match"]) == ("h200-sxm", "exact")


def test_clocks_are_seen_and_power_only_of_a_window_that_is_long_enough(
    nvml: Nvml, device: Callable[..., Device], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("capplan.probes.telemetry.INTERVAL", 0.01)
    with Telemetry(device("h200-sxm")) as seen:
        while seen.clock() is None:
            time.sleep(0.01)
    told = seen.told()
    assert told is not None
    assert told["sm_mhz"]["median"] == 1755
    assert told["reasons_seen"] == ["sw_thermal", "sw_power_cap"]
    assert told["power_w"] is None
    assert told["temp_c"] is None


def test_without_nvml_nothing_is_seen(device: Callable[..., Device], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", None)
    with Telemetry(device("h200-sxm")) as seen:
        pass
    assert seen.told() is None
    assert devices.facts(device("h200-sxm"))["ecc"] is None


@pytest.mark.parametrize(("busy", "told"), [(0, False), (60, True)])
def test_a_busy_card_is_waited_for(
    busy: int, told: bool, nvml: Nvml, device: Callable[..., Device], monkeypatch: pytest.MonkeyPatch
) -> None:
    nvml.busy = busy
    waited: list[float] = []
    monkeypatch.setattr("time.sleep", waited.append)
    assert devices.busy(device("h200-sxm")) is told
    assert waited == ([5.0] * 3 if told else [])


@pytest.mark.parametrize(
    ("name", "sms", "memory", "row", "match"),
    [
        ("NVIDIA H200", 132, 139.8 * 2**30, "h200-sxm", "exact"),
        ("NVIDIA H100 80GB HBM3", 132, 79.2 * 2**30, "h100-sxm", "exact"),
        ("NVIDIA L40S", 142, 44.4 * 2**30, "l40s", "exact"),
        ("NVIDIA H200", 60, 139.8 * 2**30, "h200-sxm", "name_only"),
        ("NVIDIA H200 MIG 3g.71gb", 60, 69.5 * 2**30, "h200-sxm", "name_only"),
        ("A card of the future", 500, 1e12, None, "none"),
    ],
)
def test_a_card_is_found_by_its_name_and_tried_by_its_figures(
    name: str, sms: int, memory: float, row: str | None, match: str
) -> None:
    found, how = devices.matched(name, sms, memory)
    assert (found.id if found else None, how) == (row, match)


def test_a_part_of_a_card_has_its_part_of_the_peaks(nvml: Nvml, monkeypatch: pytest.MonkeyPatch) -> None:
    properties = SimpleNamespace(
        name="NVIDIA H200 MIG 3g.71gb",
        major=9,
        minor=0,
        multi_processor_count=66,
        total_memory=int(69.9 * 2**30),
        L2_cache_size=30 * 2**20,
        uuid="1234",
    )
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda index: properties)
    found = devices.find("cuda:0")
    assert (found.kind, found.arch, found.torch, found.gpu) == ("cuda", "sm_90", "cuda:0", "h200-sxm")
    assert found.peaks["bf16"] == pytest.approx(989.5e12 / 2)
    assert found.bandwidth == pytest.approx(2.4e12, rel=1e-3)
    assert found.max_clock == 1980e6


def test_what_the_settings_of_a_card_hide_is_told(row: Callable[..., Any]) -> None:
    facts: dict[str, Any] = {"kind": "cuda", "pcie": {"gen": 1, "width": 16, "gen_max": 5, "width_max": 16}}
    rested = row("host_copy", {"kib": 4}, 1e-3, bytes=4096.0)
    assert quality_of([rested], facts, 0.0)["warnings"] == []  # at rest a link is slow
    used = row("host_copy", {"kib": 4}, 1e-3, bytes=4096.0, values={"pcie_gen": 4.0, "pcie_width": 16.0})
    assert quality_of([rested, used], facts, 0.0)["warnings"] == [
        "the link to the host is x16 gen 4, below its most"
    ]
    facts = {
        "kind": "cuda",
        "mig": {"enabled": True},
        "other_processes": 2,
        "ecc_errors": 3,
        "nvlink": {"links": 18, "active": 12},
        "power_limit_w": 500.0,
        "power_default_w": 700.0,
        "pcie": {"gen": 5, "width": 8, "gen_max": 5, "width_max": 16},
    }
    found = quality_of([rested], facts, 0.0)
    assert found["verdict"] == "degraded"
    assert [text.split(":")[0] for text in found["warnings"]] == [
        "the link to the host is x8 gen 5, below its most",
        "the power limit is 500 W, below 700 W",
        "a part of a card (MIG)",
        "2 other processes use the card",
        "3 memory errors that ECC could not correct",
        "12 of 18 NVLinks are up",
    ]
    assert quality_of([rested], {"kind": "cuda"}, 0.0, steal=3.0)["contended"]
    assert not quality_of([rested], {"kind": "cuda"}, 0.0, steal=1.0)["contended"]


def test_telemetry_of_a_run_is_of_all_its_samples() -> None:
    def seen(clock: float, reasons: int, seconds: float) -> dict[str, Any]:
        samples = {"sm_mhz": [clock] * 3, "mem_mhz": [], "power_w": [600.0], "temp_c": [50.0]}
        return {"samples": samples, "reasons": reasons, "seconds": seconds}

    told = told_of([seen(1980.0, 0x4, 1.5), seen(1500.0, 0x40, 1.5)])
    assert told is not None
    assert (told["sm_mhz"]["min"], told["sm_mhz"]["n"], told["samples"]) == (1500.0, 6, 6)
    assert told["reasons_seen"] == ["hw_thermal", "sw_power_cap"]
    assert told["power_w"]["median"] == 600.0  # three seconds together
    short = told_of([seen(1980.0, 0, 1.5)])
    assert short is not None
    assert short["power_w"] is None
    assert told_of([]) is None


class OnCpu(Device):
    """A GPU whose tensors lie on the CPU."""

    @property
    def torch(self) -> str:
        return "cpu"

    @property
    def is_gpu(self) -> bool:
        return True


def test_what_graphs_and_groups_of_ranks_keep_is_told(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    free = iter([10**9, 10**9 - 2**21, 10**9, 10**9 - 2**29])
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda index: (next(free), 2 * 10**9))
    seen: list[str] = []
    monkeypatch.setattr(collective_ops, "collective", lambda op, out, given: seen.append(op))
    gpu = OnCpu("cuda", 0, "a GPU", "sm_90", 132, 2**20, 2**37)
    assert memory._graph(gpu) == 2**21
    assert collective_ops.library_bytes(gpu) == 2**29
    assert seen == ["all_reduce"]
    assert clock.replays == 1
    case = {"op": "all_reduce", "ranks": 2, "mode": "graph", "dtype": "bf16"}
    told = {"time_s.512": 1e-5, "time_s.524288": 2e-5, "library_bytes": 2.0**29}
    values, _ = collectives.derive([{"id": 0, "case": case, "values": told, "work": {"bytes": 2**19}}])
    assert values["memory.nccl_bytes.2"].value == 2**29


def test_a_typical_rate_is_of_its_shapes_alone() -> None:
    one = [{"m": m, "n": 8, "k": 8, "shapes": "llm70b"} for m in (1, 2)]
    shapes = running._shapes({"gemm": one, "launch": [{"n": 1}]})
    assert set(shapes) == {("gemm", "llm70b")}
    assert shapes == running._shapes({"gemm": one[::-1]})
    assert shapes != running._shapes({"gemm": one[:1]})


def test_prefill_runs_hot_in_fp8_too(device: Callable[..., Device]) -> None:
    for profile in ("quick", "default"):
        cases = fp8_gemm.cases(profile, device("h200-sxm"))
        hot = [case for case in cases if case["mode"] == "sustained"]
        assert {(case["recipe"], case["fast_accum"]) for case in hot} == {
            *(("tensor", fast) for fast in (False, True)),
            *(("row", fast) for fast in (False, True)),
            ("block", False),
        }
        assert {case["m"] for case in hot} == {4096}


def test_large_products_that_are_slow_are_told(
    row: Callable[..., Any], device: Callable[..., Device]
) -> None:
    h200 = device("h200-sxm")
    for probe, dtype, peak, usual in ((gemm, "bf16", 989.5e12, 0.5), (fp8_gemm, "fp8", 1979e12, 0.4)):
        for m, share, told in ((4096, 0.9 * usual, True), (4096, 1.1 * usual, False), (64, 0.1, False)):
            case = {
                "m": m,
                "n": 8192,
                "k": 8192,
                "dtype": dtype,
                "mode": "burst",
                "recipe": "row",
                "fast_accum": True,
            }
            flops = 2.0 * m * 8192 * 8192
            made = row(probe.NAME, case, flops / (share * peak), flops=flops, bytes=1e8, dtype=dtype)
            assert (probe.expect(made, h200) is not None) is told
            assert probe.expect(made | {"case": case | {"recipe": "block"}}, h200) is None or probe is gemm


def test_a_slow_clock_is_told_from_a_poor_kernel(
    row: Callable[..., Any], device: Callable[..., Device]
) -> None:
    """989 TFLOP/s are all units at 1830 MHz: half of that at half the clock is all of them again."""
    h200 = device("h200-sxm")
    for clock in (1830.0, 915.0):
        flops = 132 * 4096 * clock * 1e6
        made = row("gemm", {"dtype": "bf16"}, 1.0, flops=flops, bytes=1e8, dtype="bf16")
        made |= {"telemetry": {"sm_mhz": {"median": clock}}}
        assert share_at_clock(made, h200) == pytest.approx(1.0)
    assert share_at_clock(made | {"telemetry": None}, h200) is None


def test_the_dip_of_a_nearly_empty_wave_is_found(row: Callable[..., Any]) -> None:
    rows = []
    for m, rate in ((64, 250e12), (128, 476e12), (160, 600e12), (192, 560e12), (256, 796e12), (512, 884e12)):
        flops, size = 2.0 * m * 51200 * 7168, 2.0 * 51200 * 7168
        case = {"m": m, "n": 51200, "k": 7168, "dtype": "bf16", "shapes": "gemv"}
        rows.append(
            row("weight_streaming", case, flops / rate, flops=flops, bytes=size, dtype="bf16") | {"id": m}
        )
    assert weight_streaming.derive(rows).values["knee.bf16.dip_batch"].value == 192
