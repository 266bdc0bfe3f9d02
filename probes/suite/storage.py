"""Reading a file that no cache holds: how fast weights come from the disk."""

from __future__ import annotations

import mmap
import os
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from hashlib import blake2b
from pathlib import Path

from capplan.probes import fit
from capplan.probes.probe import Case, Derived, Device, Measured, Numerics, Row, Skipped

NAME = "storage"
TITLE = "a file of incompressible data read past the page cache, and from it"
FORMULA = "cold start = bytes / min(disk, link to the device) + fixed"
WHAT = "how long a replica takes to load its weights"
ORDER, VERSION = 32, 1

_MIB = 2**20
_SIZES = {"quick": 64, "default": 1024, "full": 8192}  # MiB
_OF_CPU = {"quick": 64, "default": 256, "full": 1024}
_THREADS = {"quick": (1, 4), "default": (1, 4, 16), "full": (1, 4, 16)}
_BLOCK = 4 * _MIB
_READS = 3
_ROOM = 2.0  # times the file that must be free
_CACHED = 0.5  # of the rate of the page cache: a cold read as fast as that was none
FOLDER = "CAPPLAN_PROBE_DIR"  # where the file is made: the disk that weights lie on


def folder() -> Path:
    """Where the file is made: $CAPPLAN_PROBE_DIR, or the system's folder for such."""
    return Path(os.environ.get(FOLDER) or tempfile.gettempdir())


def cases(profile: str, device: Device) -> list[Case]:
    size = (_SIZES if device.is_gpu else _OF_CPU)[profile]
    where = os.statvfs(folder())
    if where.f_bavail * where.f_frsize < _ROOM * size * _MIB:
        raise Skipped(f"less than {_ROOM * size:,.0f} MiB free; set {FOLDER} to a folder of another disk")
    return [{"mib": size, "threads": n, "cache": c} for c in ("cold", "warm") for n in _THREADS[profile]]


def written(path: Path, mib: int) -> str:
    """A file of random bytes, on the disk; the digest of what it holds."""
    found, block = blake2b(), os.urandom(_MIB)
    with path.open("wb") as file:
        for number in range(mib):
            # each MiB unlike the others, so that no disk stores it once
            turned = number.to_bytes(8, "little") + block[8 + number % 4096 :] + block[8 : 8 + number % 4096]
            file.write(turned)
            found.update(turned)
        file.flush()
        os.fsync(file.fileno())
    return found.hexdigest()


def read(path: Path, threads: int, cold: bool, digest: bool = False) -> tuple[float, str, str]:
    """Read the whole file: seconds, how (direct, buffered), and the digest where it is asked for, of one thread."""
    size = path.stat().st_size
    how, flags = ("direct", os.O_RDONLY | getattr(os, "O_DIRECT", 0)) if cold else ("buffered", os.O_RDONLY)
    try:
        handle = os.open(path, flags)
    except OSError:  # a filesystem of memory
        how, handle = "buffered", os.open(path, os.O_RDONLY)
    found = blake2b()

    def part(number: int) -> None:
        with mmap.mmap(-1, _BLOCK) as buffer:  # aligned, as direct reads must be
            for at in range(number * _BLOCK, size, threads * _BLOCK):
                got = os.preadv(handle, [buffer], at)
                if digest:
                    found.update(buffer[:got])

    try:
        if cold and hasattr(os, "posix_fadvise"):
            os.posix_fadvise(handle, 0, 0, os.POSIX_FADV_DONTNEED)
        before = time.perf_counter()
        if threads == 1:
            part(0)
        else:
            with ThreadPoolExecutor(threads) as pool:
                list(pool.map(part, range(threads)))
        return time.perf_counter() - before, how, found.hexdigest()
    finally:
        os.close(handle)


def check(case: Case, device: Device) -> Numerics:
    with tempfile.TemporaryDirectory(dir=folder()) as made:
        path = Path(made) / "weights"
        expected = written(path, 16)
        wrong = read(path, 1, case["cache"] == "cold", digest=True)[2] != expected
    return Numerics(
        not wrong, float(wrong), 0.0, 0.0, 0, 0.0, "what was read is not what was written" if wrong else ""
    )


def measure(case: Case, device: Device) -> Measured:
    cold = case["cache"] == "cold"
    with tempfile.TemporaryDirectory(dir=folder()) as made:
        path = Path(made) / "weights"
        written(path, case["mib"])
        if not cold:
            read(path, 1, cold=False)
        tries = [read(path, case["threads"], cold) for _ in range(_READS)]
        again = min(read(path, case["threads"], cold=False)[0] for _ in range(2))
    times, how = [each[0] for each in tries], tries[0][1]
    state = "warm" if not cold else "cold" if how == "direct" else "uncertain"
    notes = []
    if cold and min(times) < again / _CACHED and how != "direct":
        state, notes = "uncertain", ["as fast as the page cache: the read was not cold"]
    size = float(case["mib"] * _MIB)
    return Measured(times, "eager", state, bytes=size, kernel=how, backend="os", notes=notes, of="disk")


def derive(rows: Sequence[Row]) -> Derived:
    values = {}
    for state, name in (("cold", "read_bps"), ("warm", "page_cache_bps")):
        own = [row for row in rows if row["cache"] == state]
        if own:
            best = max(own, key=lambda row: row["achieved"]["bytes_ps"])
            values[f"storage.{name}"] = fit.of_row(best, best["work"]["bytes"], "byte/s")
    return Derived(values)
