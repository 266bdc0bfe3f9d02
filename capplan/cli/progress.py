"""A bar with the time left, on stderr, for what takes long; nothing where nobody looks."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

_AFTER = 1.0  # seconds before it is shown
_APART = 0.2  # between two pictures of it
_CELLS = 30


@contextmanager
def bar(what: str) -> Iterator[Callable[[int, int], None] | None]:
    """A function that takes how many of how many are done; None where stderr is no terminal."""
    if not sys.stderr.isatty() or os.environ.get("TERM") == "dumb":
        yield None
        return
    began = time.monotonic()
    last = began + _AFTER - _APART
    shown = False

    def progress(done: int, of: int) -> None:
        nonlocal last, shown
        now = time.monotonic()
        if now < last + _APART or not done:
            return
        last, shown = now, True
        full = round(_CELLS * done / of)
        left = (now - began) * (of - done) / done
        sys.stderr.write(
            f"\r{'█' * full}{'░' * (_CELLS - full)} {done:,} of {of:,} {what}, {left:.0f} s left "
        )
        sys.stderr.flush()

    try:
        yield progress
    finally:
        if shown:
            sys.stderr.write("\r\033[K")
