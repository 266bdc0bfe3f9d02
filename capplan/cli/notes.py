"""What is said on stderr beside an answer: held until there is one, so that an error is one line alone."""

from __future__ import annotations

import sys

_held: list[str] = []


def forget() -> None:
    """Nothing is held when a command begins."""
    _held.clear()


def note(text: str) -> None:
    """Say it with the answer."""
    _held.append(text)


def tell() -> None:
    """Say now what was held."""
    for text in _held:
        say(text)
    forget()


def say(text: str) -> None:
    """Say it now: names of files and models in it are anybody's."""
    from capplan.report import printable

    sys.stderr.write(f"note: {printable(text)}\n")
