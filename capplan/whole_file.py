"""A file that is there whole, or not at all."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def whole(target: Path) -> Iterator[Path]:
    """A place beside the target to write to, which takes the target's name at the end; after an error it is removed.

    Raises OSError or ValueError for a target that can't be written to.
    """
    unfinished = target.with_name(f".capplan-{os.getpid()}")
    try:
        yield unfinished
        unfinished.replace(target)
    finally:
        unfinished.unlink(missing_ok=True)
