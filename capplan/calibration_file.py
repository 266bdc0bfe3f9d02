"""The calibration file as a file: found whole, of this schema and unchanged, or refused; written whole or not at all.

What its parts mean is said where they are used: probes/ and `capplan calibrate` write it, capacity/ plans with it.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from hashlib import sha256
from math import isfinite
from os import PathLike
from pathlib import Path
from typing import Any

from capplan.errors import DataFileError, InputError
from capplan.whole_file import whole

SCHEMA = "capplan.calibration/1"
LARGEST = 2**24  # bytes of a file


def read_text(path: str | PathLike[str], what: str) -> str:
    """A text file of bounded size. Raises DataFileError with one clause; `what` says which kind is accepted."""
    name = repr(str(path))
    if not str(path).strip():
        raise DataFileError(f"{name} names no file; {what} is accepted")
    try:
        if Path(path).is_dir():
            raise DataFileError(f"{name} is a folder; {what} is accepted")
        with open(path, "rb") as file:
            content = file.read(LARGEST + 1)
    except (OSError, ValueError) as error:
        if isinstance(error, DataFileError):
            raise
        told = (getattr(error, "strerror", None) or str(error)).lower()
        raise DataFileError(f"can't read {name}: {told}") from error
    if len(content) > LARGEST:
        raise DataFileError(f"{name} is larger than {LARGEST:,} bytes; {what} is accepted")
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise DataFileError(f"{name} is not a text in UTF-8; {what} is accepted") from error


def read_document(path: str | PathLike[str]) -> dict[str, Any]:
    """The JSON of a calibration file.

    Raises DataFileError for a file that can't be read, was cut off, is of another kind or schema, or was changed since
    it was written.
    """
    name = repr(str(path))
    text = read_text(path, "a calibration file (capplan calibrate, capplan probe run)")
    try:
        found = json.loads(text, parse_constant=_number, parse_float=_number, object_pairs_hook=_object)
    except (ValueError, RecursionError) as error:
        raise DataFileError(f"{name} is not valid JSON: {_told(error)}") from error
    if not isinstance(found, dict) or not str(found.get("schema", "")).startswith("capplan.calibration/"):
        raise DataFileError(
            f"{name} is no calibration file; one of capplan calibrate or capplan probe run is accepted"
        )
    if found["schema"] != SCHEMA:
        raise DataFileError(f"{name} has schema {str(found['schema'])[:40]!r}; {SCHEMA} is accepted")
    stated = found.get("integrity")
    try:
        same = isinstance(stated, dict) and stated.get("sha256_of_body") == digest(found)
    except RecursionError:
        same = False
    if not same:
        raise DataFileError(f"{name} was changed after it was written; measure again")
    return found


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """An object of JSON. Raises ValueError for one that says something twice, of which readers take one or the other."""
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"{twice[:60]!r} is there twice")
    return found


def _number(text: str) -> float:
    """A number of JSON, which has none that is not finite. Raises ValueError."""
    found = float(text)
    if not isfinite(found):
        raise ValueError(f"{text[:20]} is no number")
    return found


def digest(document: Mapping[str, Any]) -> str:
    """SHA-256 of a calibration without its `integrity`, in one spelling."""
    body = {key: each for key, each in document.items() if key != "integrity"}
    return sha256(json.dumps(body, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def sealed(document: Mapping[str, Any]) -> dict[str, Any]:
    """A calibration with the digest that says that nobody changed it since."""
    body = {key: each for key, each in document.items() if key != "integrity"}
    return body | {"integrity": {"sha256_of_body": digest(body)}}


def write_document(path: str | PathLike[str], document: Mapping[str, Any]) -> None:
    """The file, whole or not at all; another file than a calibration is not written over.

    Raises InputError for a place that can't be written to.
    """
    target, name = Path(path), repr(str(path))
    check_place(path)
    try:
        with whole(target) as unfinished, unfinished.open("w", encoding="utf-8") as file:
            file.write(json.dumps(document, indent=2, allow_nan=False) + "\n")
            file.flush()
            os.fsync(file.fileno())  # the new file is on the disk before it takes the old one's name
    except (OSError, ValueError) as error:
        raise InputError(f"can't write {name}: {_why(error)}") from error


def check_place(path: str | PathLike[str]) -> None:
    """Raises InputError where a calibration can't be written to: told before minutes are spent on measuring one."""
    target, name = Path(path), repr(str(path))
    if not str(path).strip():
        raise InputError(f"{name} names no file; a path to write to is accepted")
    try:
        if target.exists():
            with target.open("rb") as file:
                if b'"capplan.calibration/' not in file.read(200):
                    raise InputError(f"{name} is there and is no calibration; name another file with --out")
        elif not target.parent.is_dir():
            raise InputError(f"can't write {name}: no such file or directory")
    except (OSError, ValueError) as error:
        if isinstance(error, InputError):
            raise
        raise InputError(f"can't write {name}: {_why(error)}") from error


def _why(error: Exception) -> str:
    return str(getattr(error, "strerror", None) or error).lower()


def _told(error: Exception) -> str:
    return "nested too deep" if isinstance(error, RecursionError) else str(error).lower()
