"""Tables of measured rows: a CSV file as rows of text, and what a cell says."""

from __future__ import annotations

import csv
from collections.abc import Mapping, Sequence
from io import StringIO
from math import isfinite
from os import PathLike
from pathlib import Path

from capplan.errors import DataFileError, InputError

LARGEST = 2**24  # bytes of a file: some 60,000 rows

Row = Mapping[str, str]
Value = int | float | bool | str | None


def read_table(
    path: str | PathLike[str], needed: Sequence[str], any_of: Sequence[str] = ()
) -> list[dict[str, str]]:
    """The rows of a CSV file that has the columns needed, and one of some more.

    Raises DataFileError for anything that is no such table, with one clause.
    """
    name = repr(str(path))
    names, rows = _parsed(_text(path, name), name)
    missing = [column for column in needed if column not in names]
    if any_of and not set(any_of) & set(names):
        missing.append(" or ".join(any_of))
    if missing:
        raise DataFileError(
            f"{name} has no column {', '.join(missing)}; needed: {', '.join((*needed, *any_of[:1]))}"
        )
    if not rows:
        raise DataFileError(f"{name} has names of columns and no rows")
    return rows


def _text(path: str | PathLike[str], name: str) -> str:
    where = Path(path)
    if not str(path).strip():
        raise DataFileError(f"{name} names no file; a CSV file is accepted")
    try:
        if where.is_dir():
            raise DataFileError(f"{name} is a folder; a CSV file is accepted")
        with where.open("rb") as file:
            content = file.read(LARGEST + 1)
    except (OSError, ValueError) as error:
        if isinstance(error, DataFileError):
            raise
        raise DataFileError(
            f"can't read {name}: {(getattr(error, 'strerror', None) or str(error)).lower()}"
        ) from error
    if len(content) > LARGEST:
        raise DataFileError(f"{name} is larger than {LARGEST:,} bytes; divide it")
    if b"\0" in content:
        raise DataFileError(f"{name} is not a text; a CSV file is accepted")
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise DataFileError(f"{name} is not a text in UTF-8; a CSV file is accepted") from error


def _parsed(text: str, name: str) -> tuple[list[str], list[dict[str, str]]]:
    """Names of columns, and the rows; a cell that is not there is blank."""
    try:
        reader = csv.DictReader(StringIO(text, newline=""), restkey="", strict=True)
        names = list(reader.fieldnames or ())
        if not names:
            raise DataFileError(f"{name} is empty; a CSV file with a line of column names is accepted")
        return names, [{key: cell or "" for key, cell in row.items() if key} for row in reader]
    except csv.Error as error:
        raise DataFileError(f"{name} is not a CSV file: {error}") from error


_BLANK = ("", "default", "none", "auto")
_SWITCH = {"true": True, "on": True, "1": True, "false": False, "off": False, "disabled": False, "0": False}


def whole(row: Row, name: str, least: int = 1) -> int | None:
    """A whole number; None where the cell is blank."""
    text = row.get(name, "").strip().lower()
    if text in _BLANK:
        return None
    if not (text.isascii() and text.isdecimal()) or len(text) > 18 or int(text) < least:
        raise InputError(f"{name} {text[:40]!r} is not a whole number of {least} or more")
    return int(text)


def switch(row: Row, name: str) -> bool | None:
    """On or off; None where the cell is blank."""
    text = row.get(name, "").strip().lower()
    if text in _BLANK:
        return None
    if text not in _SWITCH:
        raise InputError(f"{name} {text[:40]!r} is neither on nor off")
    return _SWITCH[text]


def value(text: str, *, words: bool = False) -> Value:
    """A cell as a number, a truth or words."""
    text = text.strip()
    if words or not text:
        return text or None
    if text.lower() in ("true", "false"):
        return text.lower() == "true"
    try:
        number = float(text)
    except ValueError:
        return text
    if not isfinite(number):
        return text
    return int(text) if text.lstrip("+-").isdecimal() else number
