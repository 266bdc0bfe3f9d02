"""Several ranks on this machine for one function: they listen on the loopback alone, and stop by themselves.

They are started with the environment that torchrun gives its ranks, but meet in a file: the store of torchrun listens on
every interface of the machine. A function is named "module:name" and gets (rank, ranks, job, device); what it returns is
JSON. Its module is imported by each rank anew. `device` is GPU number `rank`, or the CPU.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from dataclasses import asdict, replace
from importlib import import_module
from pathlib import Path
from typing import Any

from capplan.probes.probe import Device

_FOLDER = "CAPPLAN_RANKS"  # where the job lies, the ranks meet, and leave what they return
_GRACE = 5.0  # s that ranks have to end when they are told to


class RanksError(RuntimeError):
    """Ranks that failed, or did not come to an end in time."""


def run(function: str, ranks: int, job: Any, device: Device, seconds: float) -> list[Any]:
    """What each rank returned. Raises RanksError, after `seconds` at the latest."""
    with tempfile.TemporaryDirectory(prefix="capplan-ranks-") as name:
        folder = Path(name)
        what = {"function": function, "job": job, "device": asdict(device), "seconds": seconds}
        (folder / "job.json").write_text(json.dumps(what, default=dict))
        started = [_start(folder, rank, ranks) for rank in range(ranks)]
        try:
            until = time.monotonic() + seconds
            while any(one.poll() is None for one in started):
                if any(one.poll() for one in started):
                    break  # the others would wait for it
                if time.monotonic() > until:
                    raise RanksError(f"{ranks} ranks did not come to an end in {seconds:.0f} s")
                time.sleep(0.05)
        finally:
            _stop(started)
        if failed := [rank for rank, one in enumerate(started) if one.returncode]:
            raise RanksError(_reason(folder, failed))
        return [json.loads((folder / f"{rank}.json").read_text()) for rank in range(ranks)]


def _start(folder: Path, rank: int, ranks: int) -> subprocess.Popen[bytes]:
    root = str(Path(__file__).resolve().parents[1])
    environment = {
        _FOLDER: str(folder),
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "WORLD_SIZE": str(ranks),
        "OMP_NUM_THREADS": "1",
        "PYTHONPATH": os.pathsep.join(filter(None, (root, os.environ.get("PYTHONPATH")))),
    }
    if sys.platform == "linux":  # to find each other alone: data of NCCL goes over its links all the same
        environment |= {"GLOO_SOCKET_IFNAME": "lo", "NCCL_SOCKET_IFNAME": "lo"}
    with (folder / f"{rank}.err").open("wb") as errors:
        return subprocess.Popen(
            [sys.executable, "-m", "capplan.probes.ranks"],
            env=os.environ | environment,
            stdin=subprocess.DEVNULL,
            stdout=errors,
            stderr=errors,
        )


def _stop(started: list[subprocess.Popen[bytes]]) -> None:
    left = [one for one in started if one.poll() is None]
    for one in left:
        one.terminate()
    until = time.monotonic() + _GRACE
    for one in left:
        with suppress(subprocess.TimeoutExpired):
            one.wait(max(0.1, until - time.monotonic()))
        one.kill()
        one.wait()


def _reason(folder: Path, failed: list[int]) -> str:
    """What the rank said that failed first: the others fail because it is gone."""
    for rank in sorted(failed, key=lambda rank: (folder / f"{rank}.err").stat().st_mtime_ns):
        said = (folder / f"{rank}.err").read_text(errors="replace").splitlines()
        said = [line.removeprefix(f"[rank{rank}]: ") for line in said]
        if errors := [line for line in said if "Error: " in line and not line.startswith(" ")]:
            return f"rank {rank}: {errors[-1][:300]}"
    return f"ranks {failed} ended without a word"


def main() -> int:
    """One rank."""
    from datetime import timedelta

    import torch.distributed as dist

    folder = Path(os.environ[_FOLDER])
    rank, ranks = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    what = json.loads((folder / "job.json").read_text())
    if hasattr(
        signal, "alarm"
    ):  # one that waits for ever is ended by the system, even where nobody is left to stop it
        signal.alarm(int(what["seconds"] + 2 * _GRACE))
    device = Device(**{**what["device"], "capability": tuple(what["device"]["capability"])})
    if device.is_gpu:
        import torch

        device = replace(device, index=rank)
        torch.cuda.set_device(rank)
    dist.init_process_group(
        "nccl" if device.is_gpu else "gloo",
        init_method=f"file://{folder / 'meeting'}",
        rank=rank,
        world_size=ranks,
        timeout=timedelta(seconds=what["seconds"]),
    )
    module, name = what["function"].split(":")
    told = getattr(import_module(module), name)(rank, ranks, what["job"], device)
    (folder / f"{rank}.json").write_text(json.dumps(told))
    dist.barrier()  # nobody leaves while another still needs it
    dist.destroy_process_group()
    return 0


if __name__ == "__main__":
    sys.exit(main())
