"""Runs the suite on the device at hand and writes the calibration file.

Every probe has a process of its own with a time limit, so that what goes wrong in one spoils its row and not the file.
What is finished is kept beside the file (FILE.part) until all of it is; only then the file is replaced, in one step.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from hashlib import sha256
from importlib.util import find_spec
from pathlib import Path
from queue import Empty, Queue
from threading import Thread
from typing import Any, NamedTuple

from capplan import __version__
from capplan.calibration_file import SCHEMA, check_place, read_document, sealed, write_document
from capplan.errors import CapplanError, InputError, MissingPackageError, UnknownNameError
from capplan.probes import device as devices
from capplan.probes.probe import PROFILES, Case, Row, names, probe, probes
from capplan.probes.telemetry import told_of
from capplan.probes.timing import METHOD
from capplan.probes.verdict import derived_of, quality_of
from capplan.units import counted

LIMITS = {"quick": 60.0, "default": 240.0, "full": 900.0}  # s of one probe
_PLAN_LIMIT = 120.0
_RESTARTS = 8  # of one probe's process, before the rest of its cases is given up
_FIRST = ("hbm", "gemm")  # the first row of each is repeated at the end: drift
# what makes a device the same one; its link's generation and its clock change with what it does
_SAME = ("kind", "name", "arch", "uuid_sha256_16", "sm_count", "mem_total_bytes")
SEED = 20261129


class Progress(NamedTuple):
    """Where a run stands."""

    probe: str
    done: int
    of: int
    left_s: float | None  # None: not known yet


def run(
    out: str | Path,
    *,
    device: str = "auto",
    profile: str = "default",
    only: Sequence[str] = (),
    label: str | None = None,
    resume: bool = False,
    limit_s: float | None = None,
    report: Callable[[Progress], None] = lambda progress: None,
) -> dict[str, Any]:
    """The calibration of a device, which is also written to `out`.

    only: names of probes; all of them when empty. label: a text of the user's, kept in the file. resume: go on after the
    last finished probe of a run that was cut off. limit_s: of one probe, instead of the profile's.

    Raises MissingPackageError without torch or without the GPU that was asked for; UnknownNameError, InputError.
    """
    if profile not in PROFILES:
        raise UnknownNameError("profile", profile, PROFILES, ", ".join(PROFILES))
    for name in only:
        probe(name)  # raises for an unknown one
    if label is not None and not label.isprintable():
        raise InputError(
            f"label {label!r} has characters that can't be printed; one line of text is accepted"
        )
    if find_spec("torch") is None:
        raise MissingPackageError("the probes need torch: pip install 'capplan[probes]'")
    check_place(out)
    chosen = [one.NAME for one in probes() if not only or one.NAME in only]
    before_it = devices.stolen()
    began, created = time.monotonic(), datetime.now(UTC).isoformat(timespec="seconds")
    load = _load()
    plan = _plan(device, profile, chosen)
    asked = {
        "profile": profile,
        "names": chosen,
        "device": {name: plan["facts"].get(name) for name in _SAME},
        "method": METHOD,
        "cases": plan["cases"],
    }
    part = _part(out)
    check_place(part)
    finished: dict[str, list[Row]] = _resumed(part, asked) if resume else {}
    if not part.exists():
        _keep(
            part, asked, finished
        )  # a folder that can't be written to or a full disk is told before measuring
    total = sum(map(len, plan["cases"].values()))
    done = sum(map(len, finished.values()))
    before = done

    def told(name: str) -> None:
        gone = time.monotonic() - began
        report(
            Progress(name, done, total, gone * (total - done) / (done - before) if done > before else None)
        )

    for name in chosen:
        if name in finished:
            continue
        rows = []
        if name in plan["skipped"]:
            rows.append(_no_row(name, {}, *plan["skipped"][name]))
        cases = list(enumerate(plan["cases"].get(name, [])))
        told(name)
        for row in _rows(name, cases, device, limit_s or LIMITS[profile]):
            rows.append(row)
            done += 1
            told(name)
        finished[name] = rows
        _keep(part, asked, finished)
    rows = [row for name in chosen for row in finished[name]]
    seen = [each for row in rows if (each := row.pop("seen", None))]
    shapes = _shapes(plan["cases"])
    for number, row in enumerate(rows):
        row |= {"id": number, "shape_set_sha": shapes.get((row["probe"], row["shape_set"]))}
    derived, lost = derived_of(rows)
    drift = _drift(rows, device, limit_s or LIMITS[profile])
    steal = devices.stolen_since(before_it)
    document = sealed(
        {
            "schema": SCHEMA,
            "method_version": METHOD,
            "capplan_version": __version__,
            "created_utc": created,
            "profile": profile,
            "duration_s": round(time.monotonic() - began, 3),
            "seed": SEED,
            "label": label,
            "device": plan["facts"],
            "stack": plan["stack"] | {"loadavg_start": load, "loadavg_end": _load(), "steal_pct": steal},
            "spec": plan["spec"],
            "telemetry": told_of(seen),
            "results": rows,
            "derived": derived,
            "quality": quality_of(rows, plan["facts"], drift, lost, steal),
        }
    )
    write_document(out, document)
    part.unlink(missing_ok=True)
    return document


def _load() -> float | None:
    return round(os.getloadavg()[0], 2) if hasattr(os, "getloadavg") else None


def _shapes(cases: dict[str, list[Case]]) -> dict[tuple[str, str], str]:
    """A hash of what a probe runs of each named set of shapes: a typical rate is of these, and of no others."""
    sets: dict[tuple[str, str], list[str]] = {}
    for name, own in cases.items():
        for case in own:
            if "shapes" in case:
                sets.setdefault((name, case["shapes"]), []).append(json.dumps(case, sort_keys=True))
    return {each: sha256("\n".join(sorted(some)).encode()).hexdigest()[:16] for each, some in sets.items()}


# --- what is kept of a run that is not finished ------------------------------------------------------------------


def _part(out: str | Path) -> Path:
    return Path(f"{out}.part")


def kept(out: str | Path) -> str:
    """What is left of a run that was cut off, in words."""
    part = _part(out)
    try:
        finished = len(read_document(part)["finished"])
    except (InputError, KeyError):
        finished = 0
    told = f"{str(out)!r} is as it was"
    if not finished:
        return f"{told}, and no probe was finished"
    return f"{told}; {counted(finished, 'finished probe')} kept in {str(part)!r}: --resume goes on after that"


def _keep(part: Path, asked: dict[str, Any], finished: dict[str, list[Row]]) -> None:
    write_document(part, sealed({"schema": SCHEMA, "unfinished": asked, "finished": finished}))


def _resumed(part: Path, asked: dict[str, Any]) -> dict[str, list[Row]]:
    """The finished probes of a run that was cut off. Raises InputError where it was another run."""
    if not part.exists():
        return {}
    found = read_document(part)
    for what, now in asked.items():
        if found.get("unfinished", {}).get(what) != json.loads(json.dumps(now)):
            raise InputError(
                f"can't resume {str(part)!r}: it was begun with other {what}; run without --resume"
            )
    finished: dict[str, list[Row]] = found["finished"]
    return finished


# --- the processes -------------------------------------------------------------------------------------------------


def _plan(device: str, profile: str, chosen: list[str]) -> dict[str, Any]:
    with _worker({"job": "plan", "device": device, "profile": profile, "names": chosen}) as (
        lines,
        process,
        errors,
    ):
        line = _line(lines, time.monotonic() + _PLAN_LIMIT)
        if line is not None and "error" in line:
            kind = MissingPackageError if line["code"] == MissingPackageError.exit_code else InputError
            raise kind(line["error"])
        if line is None or "plan" not in line:
            process.wait()
            raise CapplanError(f"no device can be probed: {errors() or 'the process gave no answer'}")
        found: dict[str, Any] = line["plan"]
        return found


def _rows(name: str, cases: list[tuple[int, Case]], device: str, limit: float) -> Iterator[Row]:
    """A row for each case, in order; a process that dies or takes too long spoils the row that it was at."""
    until, started = time.monotonic() + limit, 0
    while cases:
        job = {"job": "probe", "name": name, "device": device, "seed": SEED, "cases": cases}
        started += 1
        with _worker(job) as (lines, process, errors):
            while cases:
                line = _line(lines, until)
                if line is not None and "row" in line:
                    cases = cases[1:]
                    broken = line["row"].pop("broken")
                    yield line["row"]
                    if broken:
                        break
                elif line is None or "begun" not in line:
                    late = time.monotonic() >= until
                    if late:
                        why = f"not finished after {limit:g} s"
                    else:
                        code = process.wait()
                        ended = f"signal {-code}" if code < 0 else f"exit code {code}"
                        why = f"the process ended with {ended}: {(line or {}).get('error') or errors()}"
                    yield _no_row(name, cases[0][1], "fail", why)
                    cases = cases[1:]
                    break
        if time.monotonic() >= until or started > _RESTARTS:
            for _, case in cases:
                yield _no_row(name, case, "skipped", "the cases before took all the time")
            return


def _no_row(name: str, case: Case, status: str, reason: str) -> Row:
    """The row of a case that gave none."""
    from capplan.probes.worker import laid_out

    return laid_out(probe(name), case, status, reason, None, None) | {"telemetry": None}


@contextmanager
def _worker(job: dict[str, Any]) -> Iterator[tuple[Queue[str | None], Any, Callable[[], str]]]:
    """A process at work: its lines, itself, and the last line of its errors; ended with all of its own at the end."""
    process = subprocess.Popen(
        [sys.executable, "-m", "capplan.probes.worker"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        # threads that wait for work by turning round and round take a third of a small host's time
        env={"OMP_WAIT_POLICY": "PASSIVE"} | os.environ,
    )
    assert process.stdin is not None
    lines: Queue[str | None] = Queue()
    said: list[str] = []

    def read() -> None:
        for line in process.stdout or ():
            lines.put(line)
        lines.put(None)

    def listen() -> None:
        for line in process.stderr or ():
            said[:] = [*said, line.strip()][-20:]

    readers = [Thread(target=read, daemon=True), Thread(target=listen, daemon=True)]
    for reader in readers:
        reader.start()
    with suppress(BrokenPipeError):
        process.stdin.write(json.dumps(job))
        process.stdin.close()
    try:
        yield lines, process, lambda: next((line for line in reversed(said) if line), "it said nothing")[:300]
    finally:
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        for reader in readers:
            reader.join(timeout=5)
        for pipe in (process.stdin, process.stdout, process.stderr):
            if pipe is not None:
                with suppress(BrokenPipeError):
                    pipe.close()


def _line(lines: Queue[str | None], until: float) -> dict[str, Any] | None:
    """The next line of a process; None when it ended or the time is over."""
    try:
        line = lines.get(timeout=max(0.0, until - time.monotonic()))
        found = json.loads(line) if line is not None else None
    except (Empty, ValueError):
        return None
    return found if isinstance(found, dict) else None


def _drift(rows: list[Row], device: str, limit: float) -> float | None:
    """How far the first row of the memory and of the products is off when repeated at the end; the larger of the two."""
    moved = []
    for name in _FIRST:
        first = next((row for row in rows if row["probe"] == name and row["time_s"]), None)
        if first is not None and name in names():
            for again in _rows(name, [(0, first["case"])], device, limit):
                if again["time_s"]:
                    moved.append(abs(again["time_s"]["median"] / first["time_s"]["median"] - 1.0))
    return max(moved, default=None)
