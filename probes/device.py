"""Which device is at hand, what the registry says of it, and what it runs on. Nothing here changes a setting."""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Callable
from contextlib import suppress
from hashlib import sha256
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from capplan.errors import InputError, MissingPackageError
from capplan.hardware.resolve import card
from capplan.hardware.spec import Gpu
from capplan.probes.probe import Device
from capplan.probes.telemetry import nvml_handle

_SALT = b"capplan probe "  # so that the hash of a UUID is no use to anybody else
_NEAR = 0.04  # a device's memory may differ from the registry's by so much, and be that of the same card
_ENVIRONMENT = (
    "NCCL_",
    "CUDA_VISIBLE_DEVICES",
    "HIP_VISIBLE_DEVICES",
    "PYTORCH_TUNABLEOP",
    "OMP_NUM_THREADS",
)
_IDLE, _WAIT, _PATIENCE = 10, 5.0, 3  # per cent, s, times
_NVLINKS = 18  # of one card, the most that NVML counts
_OPTIONAL = ("flash_attn", "flashinfer-python", "vllm")


def find(asked: str = "auto") -> Device:
    """The device that is asked for: auto, cpu, cuda or cuda:N; auto is the first GPU, or the CPU.

    Raises MissingPackageError without torch, or where a GPU is asked for and none is there; InputError for another name.
    """
    kind, _, number = asked.partition(":")
    if kind not in ("auto", "cpu", "cuda") or (number and not (kind == "cuda" and number.isdecimal())):
        raise InputError(f"unknown device {asked!r}; auto, cpu, cuda and cuda:N are accepted")
    try:
        import torch
    except ImportError as error:
        raise MissingPackageError("the probes need torch: pip install 'capplan[probes]'") from error
    count = torch.cuda.device_count() if kind != "cpu" and torch.cuda.is_available() else 0
    if kind == "cuda" and int(number or 0) >= count:
        raise MissingPackageError(f"no device {asked!r}: torch {torch.__version__} sees {count} GPUs")
    return _gpu(int(number or 0)) if count else _cpu()


def _gpu(index: int) -> Device:
    import torch

    properties = torch.cuda.get_device_properties(index)
    hip = bool(torch.version.hip)
    arch = properties.gcnArchName.partition(":")[0] if hip else f"sm_{properties.major}{properties.minor}"
    row, _ = matched(properties.name, properties.multi_processor_count, properties.total_memory)
    share, part = 1.0, 1.0
    if row is not None and "mig" in properties.name.lower():  # a part of a card has its part of the peaks
        share = properties.multi_processor_count / (row.sm_count or properties.multi_processor_count)
        part = min(1.0, properties.total_memory / (row.memory_visible_bytes or properties.total_memory))
    clock: float | None = None
    with suppress(Exception):  # nvidia-ml-py is optional
        import pynvml

        pynvml.nvmlInit()
        handle = nvml_handle(pynvml, index)
        clock = 1e6 * pynvml.nvmlDeviceGetMaxClockInfo(handle, pynvml.NVML_CLOCK_SM)
    return Device(
        kind="rocm" if hip else "cuda",
        index=index,
        name=properties.name,
        arch=arch,
        sm_count=properties.multi_processor_count,
        l2_bytes=int(getattr(properties, "L2_cache_size", 0) or (row and row.l2_bytes) or 64 * 2**20),
        memory_bytes=properties.total_memory,
        capability=(0, 0) if hip else (properties.major, properties.minor),
        gpu=row.id if row else None,
        peaks={dtype: rate * share for dtype, rate in row.dense_flops.items()} if row else {},
        bandwidth=row.memory_bandwidth * part if row and row.memory_bandwidth else None,
        fp8_flavour="fnuz" if arch == "gfx942" else "fn",
        max_clock=clock,
        host_link=(row.host_link_unidirectional or row.pcie_per_direction) if row else None,
    )


def matched(name: str, sm_count: int, memory_bytes: float) -> tuple[Gpu | None, str]:
    """The registry's row of a device, and whether its processors and memory agree: exact, name_only, none."""
    row = card(name.partition(" MIG")[0])
    if row is None:
        return None, "none"
    visible = row.memory_visible_bytes or row.memory_label_bytes
    same = row.sm_count in (None, sm_count) and abs(memory_bytes / visible - 1) < _NEAR
    return row, "exact" if same else "name_only"


def _cpu() -> Device:
    flags = next((line for line in _lines("/proc/cpuinfo") if line.startswith("flags")), "").split()
    isa = next((f for f in ("avx512f", "avx2") if f in flags), "")
    name = next(
        (line.partition(":")[2].strip() for line in _lines("/proc/cpuinfo") if "model name" in line), ""
    )
    cache = next(
        (line.strip() for line in _lines("/sys/devices/system/cpu/cpu0/cache/index3/size")), "32768K"
    )
    return Device(
        kind="cpu",
        index=0,
        name=name or platform.processor() or platform.machine(),
        arch="-".join(part for part in (platform.machine(), isa) if part),
        sm_count=cores(),
        l2_bytes=int(cache.rstrip("K")) * 1024 if cache.rstrip("K").isdecimal() else 32 * 2**20,
        memory_bytes=memory_of_host()[0],
    )


def cores() -> int:
    """Cores that this process may run on."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def memory_of_host() -> tuple[int, int]:
    """Memory of the host and what is free of it, within the bound of the container [byte]."""
    said = {
        line.split(":")[0]: int(line.split()[1]) * 1024 for line in _lines("/proc/meminfo") if ":" in line
    }
    total, free = said.get("MemTotal", 0), said.get("MemAvailable", 0)
    for path in ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"):
        limit = next((line.strip() for line in _lines(path)), "")
        if limit.isdecimal() and int(limit) < total:
            total, free = int(limit), min(free, int(limit))
    return total, free


def facts(device: Device) -> dict[str, Any]:
    """`device` of the calibration file; what can't be read is None."""
    _, match = matched(device.name, device.sm_count, device.memory_bytes) if device.is_gpu else (None, "none")
    found: dict[str, Any] = {
        "kind": device.kind,
        "index": device.index,
        "name": device.name,
        "arch": device.arch,
        "uuid_sha256_16": None,
        "sku_guess": device.gpu,
        "sku_match": match,
        "sm_count": device.sm_count,
        "l2_bytes": device.l2_bytes,
        "mem_bus_bits": None,
        "mem_total_bytes": device.memory_bytes,
        "ecc": None,
        "mig": {"enabled": " MIG" in device.name, "profile": None},
        "vgpu": None,
        "virtualised": None,
        "max_sm_mhz": None,
        "max_mem_mhz": None,
        "power_limit_w": None,
        "power_default_w": None,
        "pcie": None,
        "numa_node": None,
        "gpus": _count(device),
        "nvlink": None,
        "fp8_flavour": device.fp8_flavour if device.is_gpu else None,
    }
    if device.kind == "cuda":
        with suppress(Exception):
            found |= _nvml(device)
    return found


def _count(device: Device) -> int | None:
    """GPUs of this machine that a process may use."""
    if not device.is_gpu:
        return None
    import torch

    return int(torch.cuda.device_count())


def _numa(bus: str | bytes) -> int:
    """The NUMA node of a slot. Raises ValueError where the machine has but one."""
    name = bus.decode() if isinstance(bus, bytes) else bus
    node = int(Path(f"/sys/bus/pci/devices/{name[-12:].lower()}/numa_node").read_text())
    if node < 0:
        raise ValueError("one node")
    return node


def _nvlink(nv: Any, handle: Any) -> dict[str, int]:
    """Links of NVLink that the card has, and those that are up. Raises where it has none."""
    states = []
    for number in range(_NVLINKS):
        try:
            states.append(int(nv.nvmlDeviceGetNvLinkState(handle, number)))
        except Exception:
            if not number:
                raise
            break
    return {"links": len(states), "active": sum(states)}


def _nvml(device: Device) -> dict[str, Any]:
    """What NVML knows of the device; a figure that it does not tell is left out."""
    import pynvml as nv  # nvidia-ml-py

    nv.nvmlInit()
    handle = nvml_handle(nv, device.index)
    asked: dict[str, Callable[[], Any]] = {
        "uuid_sha256_16": lambda: hashed(str(nv.nvmlDeviceGetUUID(handle))),
        "mem_bus_bits": lambda: nv.nvmlDeviceGetMemoryBusWidth(handle),
        "reported_bytes": lambda: nv.nvmlDeviceGetMemoryInfo(handle).total,
        "ecc": lambda: bool(nv.nvmlDeviceGetEccMode(handle)[0]),
        "mig": lambda: {"enabled": bool(nv.nvmlDeviceGetMigMode(handle)[0]), "profile": None},
        "max_sm_mhz": lambda: nv.nvmlDeviceGetMaxClockInfo(handle, nv.NVML_CLOCK_SM),
        "max_mem_mhz": lambda: nv.nvmlDeviceGetMaxClockInfo(handle, nv.NVML_CLOCK_MEM),
        "power_limit_w": lambda: nv.nvmlDeviceGetEnforcedPowerLimit(handle) / 1e3,
        "power_default_w": lambda: nv.nvmlDeviceGetPowerManagementDefaultLimit(handle) / 1e3,
        "pcie": lambda: {
            "gen": nv.nvmlDeviceGetCurrPcieLinkGeneration(handle),
            "width": nv.nvmlDeviceGetCurrPcieLinkWidth(handle),
            "gen_max": nv.nvmlDeviceGetMaxPcieLinkGeneration(handle),
            "width_max": nv.nvmlDeviceGetMaxPcieLinkWidth(handle),
        },
        "numa_node": lambda: _numa(nv.nvmlDeviceGetPciInfo(handle).busId),
        "ecc_errors": lambda: int(
            nv.nvmlDeviceGetTotalEccErrors(
                handle, nv.NVML_MEMORY_ERROR_TYPE_UNCORRECTED, nv.NVML_VOLATILE_ECC
            )
        ),
        "nvlink": lambda: _nvlink(nv, handle),
        "other_processes": lambda: len(
            [p for p in nv.nvmlDeviceGetComputeRunningProcesses(handle) if p.pid != os.getpid()]
        ),
    }
    found = {}
    for name, ask in asked.items():
        with suppress(Exception):
            found[name] = ask()
    return found


def busy(device: Device) -> bool:
    """Whether a GPU does something although nobody asked it to; it is given three times five seconds to end."""
    if device.kind != "cuda":
        return False
    with suppress(Exception):
        import pynvml as nv

        nv.nvmlInit()
        handle = nvml_handle(nv, device.index)
        for _ in range(_PATIENCE):
            if nv.nvmlDeviceGetUtilizationRates(handle).gpu <= _IDLE:
                return False
            time.sleep(_WAIT)
        return True
    return False  # not told, as under MIG


def link_now(device: Device) -> dict[str, float]:
    """Generation and width of the link to the host, as they are right now: at rest a card lets them fall."""
    found: dict[str, float] = {}
    if device.kind == "cuda":
        with suppress(Exception):  # nvidia-ml-py is optional
            import pynvml as nv

            nv.nvmlInit()
            handle = nvml_handle(nv, device.index)
            found["pcie_gen"] = float(nv.nvmlDeviceGetCurrPcieLinkGeneration(handle))
            found["pcie_width"] = float(nv.nvmlDeviceGetCurrPcieLinkWidth(handle))
    return found


def stolen() -> tuple[float, float]:
    """Time that a virtual machine waited for its host, and all time, of all cores since it began [tick]."""
    first = next(iter(_lines("/proc/stat")), "").split()
    counts = [float(each) for each in first[1:9]]
    return (counts[7], sum(counts)) if len(counts) == 8 else (0.0, 0.0)


def stolen_since(before: tuple[float, float]) -> float | None:
    """The share of time since then that went to others [per cent]; None where it is not told."""
    now = stolen()
    passed = now[1] - before[1]
    return round(100.0 * (now[0] - before[0]) / passed, 2) if passed > 0 else None


def hashed(uuid: str) -> str:
    """A name for one and the same card that does not tell its UUID."""
    return sha256(_SALT + uuid.encode()).hexdigest()[:16]


def stack(device: Device) -> dict[str, Any]:
    """`stack` of the calibration file: what ran the kernels."""
    import torch

    driver = None
    with suppress(Exception):
        import pynvml

        pynvml.nvmlInit()
        driver = str(pynvml.nvmlSystemGetDriverVersion())
    return {
        "os": platform.system(),
        "kernel": platform.release(),
        "driver": driver,
        "cuda": torch.version.cuda,
        "rocm": torch.version.hip,
        "cudnn": str(torch.backends.cudnn.version()) if device.is_gpu else None,
        "nccl": ".".join(map(str, torch.cuda.nccl.version())) if device.kind == "cuda" else None,
        "python": platform.python_version(),
        "torch": str(torch.__version__),
        "triton": _version("triton"),
        "numpy": _version("numpy"),
        "optional": {name: _version(name) for name in _OPTIONAL},
        "env": {name: os.environ[name] for name in sorted(os.environ) if name.startswith(_ENVIRONMENT)},
        "host_cpu": _cpu().name,
        "cores": cores(),
        "numa_balancing": next(iter(_lines("/proc/sys/kernel/numa_balancing")), None),
    }


def spec(device: Device) -> dict[str, Any]:
    """`spec` of the calibration file: the datasheet that rows are held against."""
    row = card(device.name.partition(" MIG")[0]) if device.gpu else None
    return {
        "source": f"capplan gpus {device.gpu}" if device.gpu else "none",
        "peak_flops_dense": dict(device.peaks),
        "hbm_bps": device.bandwidth,
        "pcie_bps": device.host_link,
        "nvlink_uni_bps": row.link.unidirectional if row and row.link and "nvlink" in row.link.kind else None,
        "capacity_label": f"{row.memory_label_bytes / 1e9:g} GB" if row else None,
    }


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _lines(path: str) -> list[str]:
    try:
        return Path(path).read_text().splitlines()
    except OSError:
        return []
