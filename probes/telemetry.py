"""Clocks, power and temperature while probes run: observed in a thread, never set."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from statistics import median, quantiles
from threading import Event, Thread
from typing import Any, Self

from capplan.probes.probe import Device

INTERVAL = 0.1  # s
_POWER_WINDOW = 2.0  # s; what a driver calls power is the mean of the last second
# NVML's bits of what holds the clock down; the first four are faults
FAULTS = {0x8: "hw_slowdown", 0x20: "sw_thermal", 0x40: "hw_thermal", 0x80: "hw_power_brake"}
REASONS = FAULTS | {0x1: "idle", 0x2: "app_clocks", 0x4: "sw_power_cap", 0x10: "sync_boost", 0x100: "display"}


def stat(samples: Sequence[float]) -> dict[str, float] | None:
    """Median, least, 10th and 90th percentile, and the interquartile range over the median; None of nothing."""
    if not samples:
        return None
    ordered = sorted(samples)
    tenths = quantiles(ordered, n=20, method="inclusive") if len(ordered) > 1 else [ordered[0]] * 19
    middle = median(ordered)
    spread = (tenths[14] - tenths[4]) / middle if middle else 0.0
    return {
        "n": len(ordered),
        "median": middle,
        "min": ordered[0],
        "p10": max(ordered[0], tenths[1]),
        "p90": min(ordered[-1], tenths[17]),
        "iqr_rel": max(0.0, spread),
    }


def nvml_handle(nv: Any, index: int) -> Any:
    """NVML's handle of a device of CUDA: by its UUID, as CUDA_VISIBLE_DEVICES counts otherwise than NVML."""
    import torch

    uuid = str(getattr(torch.cuda.get_device_properties(index), "uuid", ""))
    for name in (uuid, f"GPU-{uuid}", f"MIG-{uuid}") if uuid else ():
        with suppress(Exception):
            return nv.nvmlDeviceGetHandleByUUID(name)
    return nv.nvmlDeviceGetHandleByIndex(index)


class Telemetry:
    """Samples a GPU every 100 ms between `with` and its end; of a CPU, and without nvidia-ml-py, there are none."""

    def __init__(self, device: Device) -> None:
        self._device, self._stop = device, Event()
        self._thread: Thread | None = None
        self._samples: dict[str, list[float]] = {"sm_mhz": [], "mem_mhz": [], "power_w": [], "temp_c": []}
        self._reasons = 0
        self._began = time.perf_counter()

    def __enter__(self) -> Self:
        if self._device.kind == "cuda":
            with suppress(Exception):  # nvidia-ml-py is optional
                import pynvml

                pynvml.nvmlInit()
                handle = nvml_handle(pynvml, self._device.index)
                self._thread = Thread(target=self._sample, args=(pynvml, handle), daemon=True)
                self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._stop.set()
        if self._thread is not None:
            self._thread.join()

    def _sample(self, nv: Any, handle: Any) -> None:
        reads: dict[str, Callable[[], Any]] = {
            "sm_mhz": lambda: nv.nvmlDeviceGetClockInfo(handle, nv.NVML_CLOCK_SM),
            "mem_mhz": lambda: nv.nvmlDeviceGetClockInfo(handle, nv.NVML_CLOCK_MEM),
            "power_w": lambda: nv.nvmlDeviceGetPowerUsage(handle) / 1e3,
            "temp_c": lambda: nv.nvmlDeviceGetTemperature(handle, nv.NVML_TEMPERATURE_GPU),
        }
        reasons = getattr(nv, "nvmlDeviceGetCurrentClocksEventReasons", None)
        reasons = reasons or nv.nvmlDeviceGetCurrentClocksThrottleReasons  # its older name
        while not self._stop.wait(INTERVAL):
            for name, read in reads.items():
                with suppress(Exception):  # some are not told under MIG
                    self._samples[name].append(float(read()))
            with suppress(Exception):
                self._reasons |= int(reasons(handle))

    def clock(self) -> float | None:
        """The latest clock of the processors [Hz]."""
        return 1e6 * self._samples["sm_mhz"][-1] if self._samples["sm_mhz"] else None

    def told(self) -> dict[str, Any] | None:
        """What a row says of it; None where nothing was seen."""
        return told_of([self.seen()])

    def seen(self) -> dict[str, Any]:
        """All samples, and how long they were taken [s]."""
        return {
            "samples": self._samples,
            "reasons": self._reasons,
            "seconds": time.perf_counter() - self._began,
        }


def told_of(several: Sequence[dict[str, Any]]) -> dict[str, Any] | None:
    """`telemetry` of the calibration file, of samples that Telemetry.seen() gave, of one row or of a whole run."""
    names = ("sm_mhz", "mem_mhz", "power_w", "temp_c")
    samples = {name: [each for seen in several for each in seen["samples"][name]] for name in names}
    if not any(samples.values()):
        return None
    found: dict[str, Any] = {name: stat(samples[name]) for name in names}
    if sum(seen["seconds"] for seen in several) < _POWER_WINDOW:
        found["power_w"] = None
    reasons = 0
    for seen in several:
        reasons |= seen["reasons"]
    return found | {
        "reasons_seen": [name for bit, name in REASONS.items() if reasons & bit],
        "samples": max(map(len, samples.values())),
        "interval_ms": round(1e3 * INTERVAL),
    }
