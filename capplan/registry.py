"""Finding a row of a registry: one TOML file a row, the file's stem is its id.

Rows of the user's own, in `$CAPPLAN_DATA/<kind>` or the platform's data folder, are found first.
Opening a row reads that one file, so start-up does not grow with the catalogue; aliases, listings and
near misses scan the folder.
"""

from __future__ import annotations

import os
import re
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from capplan.errors import DataFileError, UnknownNameError

MAX_BYTES = 1_000_000  # of one row; the largest shipped one is a few kilobytes
LONGEST_NAME = 200  # no file is called more
_ALIASES = re.compile(r"^aliases\s*=\s*\[([^\]]*)\]", re.MULTILINE)
_STRING = re.compile(r'"([^"\n]*)"')


def user_folder() -> Path:
    """Where the user's own rows live: `$CAPPLAN_DATA`, or the platform's data folder."""
    if given := os.environ.get("CAPPLAN_DATA"):
        return Path(given)
    home = Path(os.path.expanduser("~"))  # Path.home() raises for a user without one
    if sys.platform == "win32":
        return Path(os.environ.get("LOCALAPPDATA") or home / "AppData" / "Local") / "capplan"
    if sys.platform == "darwin":
        return home / "Library" / "Application Support" / "capplan"
    return Path(os.environ.get("XDG_DATA_HOME") or home / ".local" / "share") / "capplan"


class Registry:
    """The rows of one kind ("gpus", "models", ...): the user's folder first, then the shipped one."""

    def __init__(self, kind: str, noun: str, shipped: Path, command: str) -> None:
        self.kind, self.noun, self.shipped, self.command = kind, noun, shipped, command

    def folders(self) -> list[Path]:
        return [user_folder() / self.kind, self.shipped]

    def paths(self) -> dict[str, Path]:
        """Every row's file by id, sorted; a row of the user's hides a shipped one of the same id."""
        files = (p for folder in reversed(self.folders()) for p in _rows(folder))
        return dict(sorted({p.stem: p for p in files}.items()))

    def names(self) -> list[str]:
        return list(self.paths())

    def find(self, name: str) -> Path | None:
        """The file of an id or alias, in any case; None if there is none."""
        wanted = name.strip().lower()
        if len(wanted) > LONGEST_NAME or "\0" in wanted:
            return None
        if wanted and wanted == os.path.basename(wanted):
            for folder in self.folders():
                path = folder / f"{wanted}.toml"
                if os.path.isfile(path):
                    return path
        return next((path for alias, path in self._aliases() if alias.lower() == wanted), None)

    def _aliases(self) -> Iterator[tuple[str, Path]]:
        # a text scan of one line: parsing every row would cost more than the answer
        for path in self.paths().values():
            try:
                with path.open(encoding="utf-8", errors="replace") as file:
                    match = _ALIASES.search(file.read(MAX_BYTES))
            except OSError:
                continue  # a row that can't be read has no aliases; its own name says why
            for alias in _STRING.findall(match.group(1)) if match else ():
                yield alias, path

    def read(self, name: str) -> tuple[Path, dict[str, Any]]:
        """A row's file and its content.

        Raises UnknownNameError with near misses, or DataFileError if the file can't be read.
        """
        path = self.find(name)
        if path is None:
            raise UnknownNameError(self.noun, name, self.known(), self.command)
        return path, read_toml(path)

    def known(self) -> set[str]:
        """Every id and alias."""
        return {*self.names(), *(alias for alias, _ in self._aliases())}


def _rows(folder: Path) -> Iterator[Path]:
    # os.path and not Path: never raises, whatever the user's folder is called
    if os.path.isdir(folder):
        yield from (path for path in folder.glob("*.toml") if os.path.isfile(path))


def read_toml(path: Path) -> dict[str, Any]:
    """A TOML file, or DataFileError with the place of the first mistake."""
    try:
        if path.stat().st_size > MAX_BYTES:
            raise DataFileError(
                f"'{path}' is larger than {MAX_BYTES:,} bytes; a registry row is a small file"
            )
        with path.open("rb") as file:
            return tomllib.load(file)
    except OSError as error:
        raise DataFileError(f"can't read '{path}': {(error.strerror or str(error)).lower()}") from error
    except (ValueError, RecursionError) as error:  # bad TOML, bad UTF-8, a number of 5,000 digits
        raise DataFileError(f"'{path}' is not valid TOML: {error}") from error
