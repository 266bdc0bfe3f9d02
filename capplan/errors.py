"""What can go wrong, and the exit code that says so.

CapplanError
├── InputError              the user's input is wrong                           exit 2
│   ├── UnitError           a size, count, rate or duration that can't be read
│   ├── UnknownNameError    no such model, GPU or formula
│   └── DataFileError       a config.json or TOML file that can't be read right
└── MissingPackageError     an optional package or device is not there          exit 3

A message is one lower-case clause: the offending value in quotes, what is accepted, the nearest match.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import IntEnum


class ExitCode(IntEnum):
    """The exit codes of every command."""

    ANSWERED = 0  # answered, and it fits
    DOES_NOT_FIT = 1  # answered, and it does not fit or misses the SLO
    BAD_INPUT = 2  # bad usage or bad data
    MISSING = 3  # hardware or a package is missing
    INTERRUPTED = 130  # Ctrl-C


class CapplanError(Exception):
    """Base of everything capplan raises on purpose."""

    exit_code = ExitCode.BAD_INPUT


class InputError(CapplanError, ValueError):
    """The input is wrong: a value, an option, a combination."""


class UnitError(InputError):
    """A quantity that can't be read, or can be read in two ways."""


class UnknownNameError(InputError, LookupError):
    """A name that no registry has."""

    def __init__(self, kind: str, name: str, known: Iterable[str], hint: str = "") -> None:
        self.kind, self.name = kind, name
        nearest = near_misses(name, known)
        did_you_mean = f"; did you mean {' or '.join(repr(n) for n in nearest)}?" if nearest else ""
        super().__init__(f"unknown {kind} {name!r}{did_you_mean}{f' ({hint})' if hint else ''}")


class DataFileError(InputError):
    """A data file (a model's config.json, a TOML row) that can't be read right."""


class MissingPackageError(CapplanError):
    """An optional package or a device that this answer needs is not there."""

    exit_code = ExitCode.MISSING


def near_misses(name: str, known: Iterable[str], count: int = 2) -> list[str]:
    """The known names closest to a mistyped one, best first.

    >>> near_misses("h20O-sxm", ["h200-sxm", "h100-sxm", "l4"])
    ['h200-sxm', 'h100-sxm']
    """
    from difflib import get_close_matches  # only on the way to an error

    lowered = {k.lower(): k for k in known}
    return [lowered[m] for m in get_close_matches(name.lower()[:200], lowered, n=count, cutoff=0.6)]
