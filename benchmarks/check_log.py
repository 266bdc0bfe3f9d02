"""How fast `capplan check` reads a log: MB a second of CPU time, by what the log is full of.

    python benchmarks/check_log.py [MEGABYTES]

A file of 200 MB of each kind is written to a temporary folder, read by the whole command in a process of its own, and
removed. The target is 2 seconds per 100 MB, on whatever the log holds. Peak memory is that of the process.
"""

from __future__ import annotations

import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).parent.parent
STARTUP = (ROOT / "tests/engines/startups/vllm-0.19.0.log").read_bytes()
SERVING = (
    b'INFO:     10.0.0.1:51234 - "POST /v1/chat/completions HTTP/1.1" 200 OK\n'
    b"INFO 11-29 21:16:20 [loggers.py:123] Engine 000: Avg prompt throughput: 123.4 tokens/s, Running: 3 reqs, "
    b"GPU KV cache usage: 1.2%, Prefix cache hit rate: 0.0%\n"
)
KINDS = {
    "a start, then requests": SERVING,
    "requests, no start": SERVING,
    "starts without end": STARTUP.replace(b"startup complete", b"startup"),
    "empty lines": b"\n",
    "anchors": b"emory\n",
    "long settings": b"non-default args: " + b"model='" * 9_000 + b"\n",
    "broken JSON": b'{"log": "Model loading took ' + b"[" * 30_000 + b"\n",
    "one line": b"KV cache size ",
    "random bytes": os.urandom(1 << 20),
}


def main() -> None:
    size = int(float(sys.argv[1] if len(sys.argv) > 1 else 200) * 1e6)
    print(f"{'log of ' + format(size / 1e6, '.0f') + ' MB':<24} {'MB/s':>6} {'wall s':>7} {'peak MB':>8}")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "engine.log")
        for kind, piece in KINDS.items():
            with path.open("wb") as stream:
                if kind.startswith("a start"):
                    stream.write(STARTUP)
                while stream.tell() < size:
                    stream.write(piece * max(1, (1 << 20) // len(piece)))
            before, begun = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
            subprocess.run(
                [sys.executable, "-m", "capplan", "check", str(path), "--gpu", "h100"],
                cwd=ROOT,
                capture_output=True,
                check=False,
            )
            after, wall = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter() - begun
            cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
            peak = after.ru_maxrss / 1024  # of the largest child so far
            print(f"{kind:<24} {path.stat().st_size / 1e6 / cpu:>6.0f} {wall:>7.1f} {peak:>8.0f}")


if __name__ == "__main__":
    main()
