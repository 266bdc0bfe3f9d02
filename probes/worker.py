"""A process that runs one probe, and tells what happens line by line: begun, a row, done.

Started by run.py as `python -m capplan.probes.worker`, with a job as JSON on its standard input. What libraries print
goes to standard error, so that standard output has the lines alone.
"""

from __future__ import annotations

import gc
import json
import os
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from capplan.errors import CapplanError
from capplan.probes import device as devices
from capplan.probes.judge import impossible, share_at_clock
from capplan.probes.probe import Case, Device, Measured, Numerics, Probe, Row, Skipped, Unsupported, probe
from capplan.probes.telemetry import Telemetry, stat

_NOISY = 0.15  # interquartile range over median
_COOL = 0.5  # s between the cases of a GPU
_HOT = 50  # ORDER from which the device is warmed up first: a cold chip scores higher
_WARM_SECONDS, _STEADY = 20.0, 0.01
BROKEN = 70  # exit code: the device can't be used any more, and the next case needs another process

Tell = Callable[..., None]


def plan(job: dict[str, Any]) -> dict[str, Any]:
    """The device, what it runs on, and the cases of each probe, or why it is skipped."""
    found = devices.find(job["device"])
    told: dict[str, Any] = {
        "facts": devices.facts(found) | {"busy_at_start": devices.busy(found)},
        "stack": devices.stack(found),
        "spec": devices.spec(found),
        "cases": {},
        "skipped": {},
    }
    for name in job["names"]:
        try:
            told["cases"][name] = probe(name).cases(job["profile"], found)
        except Skipped as error:
            told["skipped"][name] = [_status(error), str(error)]
    return told


def _status(error: Skipped) -> str:
    return "unsupported" if isinstance(error, Unsupported) else "skipped"


def run_cases(job: dict[str, Any], tell: Tell) -> None:
    """The cases of one probe that a job names by their numbers, one row each."""
    import torch

    found, one = devices.find(job["device"]), probe(job["name"])
    torch.manual_seed(job["seed"])
    if found.is_gpu and one.ORDER >= _HOT:
        warm_up(found)
    for number, case in job["cases"]:
        tell(begun=number)
        with Telemetry(found) as seen:
            row = row_of(one, case, found)
        row |= {"telemetry": seen.told(), "seen": seen.seen()}
        if (share := share_at_clock(row, found)) is not None:
            row["values"]["share_at_clock"] = share
        tell(number=number, row=row)
        gc.collect()
        if found.is_gpu:
            if row["broken"]:
                raise SystemExit(BROKEN)
            torch.cuda.empty_cache()
            time.sleep(_COOL)


def warm_up(device: Device) -> None:
    """Products until the clock of the processors moves by less than 1% in two seconds."""
    import torch

    a = torch.randn(8192, 8192, dtype=torch.bfloat16, device=device.torch)
    begun, last = time.perf_counter(), 0.0
    with Telemetry(device) as seen:
        while time.perf_counter() - begun < _WARM_SECONDS:
            until = time.perf_counter() + 2.0
            while time.perf_counter() < until:
                for _ in range(8):
                    torch.mm(a, a)
                torch.cuda.synchronize()
            clock = seen.clock()
            if clock is None or abs(clock / (last or 1.0) - 1.0) < _STEADY:
                break
            last = clock


def row_of(one: Probe, case: Case, device: Device) -> Row:
    """One row: checked, and timed where the check passed. Whatever goes wrong is said in the row."""
    status, reason, numerics, measured, broken = "pass", None, None, None, False
    try:
        numerics = one.check(case, device)
        if numerics.ok:
            measured = one.measure(case, device)
        else:
            status, reason = "fail", numerics.why
    except Skipped as error:
        status, reason = _status(error), str(error)
    except Exception as error:  # noqa: BLE001  # one row is spoiled, not the file
        status, reason = "fail", f"{type(error).__name__}: {error}".splitlines()[0][:300]
        if "OutOfMemory" in type(error).__name__ or isinstance(error, MemoryError):
            status, reason = "skipped", "out of memory"
        broken = "CUDA error" in reason or "illegal" in reason  # nothing works in this process from here on
    row = laid_out(one, case, status, reason, numerics, measured) | {"broken": broken}
    if status == "pass":
        if why := impossible(row, device):
            row |= {"status": "invalid", "reason": why}
        elif odd := getattr(one, "expect", lambda *_: None)(row, device):
            row |= {"status": "warn", "reason": odd}
        row["pct_spec"] = _percent_of_spec(row, device)
    return row


def _percent_of_spec(row: Row, device: Device) -> float | None:
    """How near a row comes to the datasheet: of the peak or of the bandwidth, whichever is nearer."""
    achieved, peak, rate = row["achieved"], device.peaks.get(row["dtype"] or ""), device.rate(row["of"])
    shares = []
    if peak and achieved["flops_ps"]:
        shares.append(100.0 * achieved["flops_ps"] / peak)
    if rate and achieved["bytes_ps"]:
        shares.append(100.0 * achieved["bytes_ps"] / rate)
    return max(shares, default=None)


def laid_out(
    one: Probe,
    case: Case,
    status: str,
    reason: str | None,
    numerics: Numerics | None,
    measured: Measured | None,
) -> Row:
    """A row of `results`, schema capplan.calibration/1."""
    time_s = stat(measured.times) if measured else None
    middle = time_s["median"] if time_s else None
    flops, size = (measured.flops, measured.bytes) if measured else (None, None)
    busy = _busy() or bool(time_s and time_s["iqr_rel"] > _NOISY)
    return {
        "probe": one.NAME,
        "version": one.VERSION,
        "status": status,
        "reason": reason,
        "mode": measured.mode if measured else None,
        "cache": measured.cache if measured else None,
        "kernel": measured.kernel if measured else None,
        "backend": measured.backend if measured else None,
        "case": case,
        "shape_set": case.get("shapes"),
        "dtype": measured.dtype if measured else case.get("dtype"),
        "rotation": measured.rotation if measured else None,
        "of": measured.of if measured else "memory",
        "time_s": time_s,
        "work": {"flops": flops, "bytes": size},
        "achieved": {
            "flops_ps": flops / middle if flops and middle else None,
            "bytes_ps": size / middle if size and middle else None,
        },
        "values": dict(measured.values) if measured else {},
        "pct_spec": None,
        "predicted_s": None,
        "rel_err": None,
        "formula": one.FORMULA,
        "numerics": {"ref": "fp64", **numerics._asdict()} if numerics else None,
        "contended": busy,
        "notes": list(measured.notes) if measured else [],
    }


def _busy() -> bool:
    """Whether the host does much else: this process is one core of the load."""
    return hasattr(os, "getloadavg") and (os.getloadavg()[0] - 1.0) / devices.cores() > 0.5


def main() -> int:
    """Does the job on standard input; the last line is done, or an error with its exit code."""
    lines = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)

    def tell(**what: Any) -> None:
        lines.write(json.dumps(what, allow_nan=False, default=str) + "\n")

    job = json.load(sys.stdin)
    try:
        if job["job"] == "plan":
            tell(plan=plan(job))
        else:
            run_cases(job, tell)
    except CapplanError as error:
        tell(error=str(error), code=int(error.exit_code))
        return 0
    tell(done=True)
    with suppress(OSError):
        lines.flush()
    return 0


if __name__ == "__main__":
    sys.exit(main())
