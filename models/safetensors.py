"""The headers of safetensors files: which tensors there are, without touching their data.

A file is 8 bytes of length, a JSON object of that length, and the tensors. What a header claims is checked against
the size of the file before it is believed.
"""

from __future__ import annotations

import json
import os
import re
import stat
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from math import prod
from pathlib import Path
from typing import Any, BinaryIO, TypeGuard

from capplan.errors import DataFileError
from capplan.models.fields import show

MAX_HEADER = 100_000_000  # bytes, as the format allows
MAX_INDEX = 100_000_000
MAX_SHARDS = 5_000
INDEX = "model.safetensors.index.json"

# bits of an element
DTYPES = {
    **dict.fromkeys(("F64", "I64", "U64", "C64"), 64),
    **dict.fromkeys(("F32", "I32", "U32"), 32),
    **dict.fromkeys(("F16", "BF16", "I16", "U16"), 16),
    **dict.fromkeys(("I8", "U8", "BOOL", "F8_E4M3", "F8_E5M2", "F8_E8M0", "F8_E4M3FNUZ", "F8_E5M2FNUZ"), 8),
    **dict.fromkeys(("F6_E2M3", "F6_E3M2"), 6),
    "F4": 4,
}
_TOWER = re.compile(r"(^|[._])(vision|visual|vit|audio|image|mm_projector|multi_modal|speech|patch_merge)")
_DRAFT = re.compile(r"(^|\.)(mtp|nextn|eagle)")
_LAYER = re.compile(r"(?:^|\.)layers\.(\d+)\.")
# what lies beside a quantised matrix, by the end of its name
_BESIDE = re.compile(
    r"(_scales?|_scale_inv|_scale_2|\.scales?|\.SCB|zeros|zero_point|g_idx|weight_shape|absmax|quant_map"
    r"|quant_state[\w.]*|weight_format|correction_bias|tid2eid|inv_freq)$"
)


@dataclass(slots=True)
class Headers:
    """What the headers of a checkpoint's files add up to."""

    files: int = 0
    tensors: int = 0
    bytes: dict[str, int] = field(default_factory=dict)  # by dtype, as the files call it
    elements: dict[str, int] = field(default_factory=dict)
    weights: dict[str, int] = field(default_factory=dict)  # elements of the language model's, scales left out

    def add(self, name: str, dtype: str, shape: list[int], size: int, layers: int) -> None:
        count = prod(shape)
        self.tensors += 1
        self.bytes[dtype] = self.bytes.get(dtype, 0) + size
        self.elements[dtype] = self.elements.get(dtype, 0) + count
        found = _LAYER.search(name)
        drafted = _DRAFT.search(name) or (found and layers and int(found[1]) >= layers)
        if not (drafted or _TOWER.search(name) or _BESIDE.search(name)):
            self.weights[dtype] = self.weights.get(dtype, 0) + count

    @property
    def total(self) -> int:
        return sum(self.bytes.values())


def read_files(paths: Iterable[Path], layers: int = 0) -> Headers:
    """The headers of all files of a checkpoint. `layers`: numbers from there on are draft layers.

    Raises:
        DataFileError: a file can't be read, or its header can't be right.
    """
    headers = Headers()
    for path in paths:
        with opened(path, "a safetensors file") as file:
            size = os.fstat(file.fileno()).st_size
            add_header(headers, file, size, repr(str(path)), layers)
    return headers


def opened(path: Path, what: str) -> BinaryIO:
    """A regular file, opened without waiting for a pipe's writer."""
    where = repr(str(path))
    try:
        descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0))
    except OSError as error:
        raise DataFileError(f"can't read {where}: {(error.strerror or str(error)).lower()}") from error
    except ValueError as error:  # a NUL in the name
        raise DataFileError(f"can't read {where}: {error}") from error
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise DataFileError(f"{where} is not a regular file; {what} is accepted")
    return os.fdopen(descriptor, "rb")


def add_header(headers: Headers, file: BinaryIO, size: int, where: str, layers: int = 0) -> None:
    """Read one header and add it up. `size` is that of the whole file."""
    length = header_length(file.read(8), size, where)
    add_tensors(headers, file.read(length), length, size, where, layers)


def header_length(first: bytes, size: int, where: str) -> int:
    """The length of the JSON that follows the first 8 bytes."""
    if len(first) < 8:
        raise DataFileError(f"{where} is cut short: a safetensors file begins with 8 bytes of length")
    length = int.from_bytes(first, "little")
    if length > MAX_HEADER:
        raise DataFileError(f"{where} has a header of {length:,} bytes; up to {MAX_HEADER:,} are accepted")
    if 8 + length > size:
        raise DataFileError(
            f"{where} is cut short: its header of {length:,} bytes is more than the file holds"
        )
    return length


def add_tensors(
    headers: Headers, content: bytes, length: int, size: int, where: str, layers: int = 0
) -> None:
    if len(content) < length:
        raise DataFileError(f"{where} is cut short in its header")
    spans: list[tuple[int, int, str]] = []
    for name, entry in _json(content, where).items():
        if name != "__metadata__":
            dtype, shape, begin, end = _tensor(name, entry, where)
            headers.add(name, dtype, shape, end - begin, layers)
            spans.append((begin, end, name))
    at = 0
    for begin, end, name in sorted(spans):
        if begin != at:
            what = "overlaps the tensor before it" if begin < at else "leaves a gap before it"
            raise DataFileError(f"{where}: tensor {show(name)} {what} (offset {begin:,}, expected {at:,})")
        at = end
    if 8 + length + at != size:
        raise DataFileError(f"{where} holds {size - 8 - length:,} bytes of tensors; its header says {at:,}")
    headers.files += 1


def _tensor(name: str, entry: Any, where: str) -> tuple[str, list[int], int, int]:
    """Type, shape and place of a tensor, after every check that needs no other tensor."""

    def error(what: str) -> DataFileError:
        return DataFileError(f"{where}: tensor {show(name)} {what}")

    if not isinstance(entry, dict):
        raise error(f"is {show(entry)}; an object is needed")
    dtype, shape, offsets = (entry.get(key) for key in ("dtype", "shape", "data_offsets"))
    if type(dtype) is not str or dtype not in DTYPES:
        raise error(f"has dtype {show(dtype)}; accepted: {', '.join(DTYPES)}")
    if not _whole(shape) or len(shape) > 16 or max(shape, default=0) >= 2**63:
        raise error(f"has shape {show(shape)}; a list of sizes is needed")
    if not _whole(offsets) or len(offsets) != 2 or not offsets[0] <= offsets[1] < 2**63:
        raise error(f"has data_offsets {show(offsets)}; begin and end are needed")
    bits = prod(shape) * DTYPES[dtype]
    if bits % 8 or bits // 8 != offsets[1] - offsets[0]:
        raise error(f"takes {offsets[1] - offsets[0]:,} bytes, and its shape in {dtype} another number")
    return dtype, shape, offsets[0], offsets[1]


def _whole(value: Any) -> TypeGuard[list[int]]:
    return isinstance(value, list) and all(type(n) is int and n >= 0 for n in value)


def _json(content: bytes, where: str) -> dict[str, Any]:
    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        found = dict(pairs)
        if len(found) < len(pairs):
            names = [name for name, _ in pairs]
            twice = next(name for name in found if names.count(name) > 1) if len(names) < 10_000 else "a name"
            raise DataFileError(f"{where}: {show(twice)} is given twice")
        return found

    try:
        value = json.loads(content.decode("utf-8"), object_pairs_hook=unique)
    except DataFileError:
        raise
    except (ValueError, RecursionError) as error:  # bad UTF-8, bad JSON, a number of 5,000 digits
        raise DataFileError(f"{where} has no readable JSON in its header") from error
    if not isinstance(value, dict):
        raise DataFileError(f"{where} holds {show(value)}; a JSON object is needed")
    return value


# --- which files -------------------------------------------------------------------------------------------------


def shards(folder: Path) -> list[Path]:
    """The safetensors files that make a checkpoint: those of its index, or all there are."""
    index = folder / INDEX
    if os.path.lexists(index):
        names = index_of(index)[0]
        missing = [name for name in names if not os.path.lexists(folder / name)]
        if missing and len(missing) < len(names):
            raise DataFileError(f"{str(index)!r} names {show(missing[0])}, which is not in the folder")
        return [] if missing else [folder / name for name in names]
    found = sorted(_listed(folder))
    whole = [path for path in found if not path.name.startswith("consolidated")]
    return whole or found  # Mistral ships both forms of the same weights


def _listed(folder: Path) -> Iterator[Path]:
    try:
        with os.scandir(folder) as entries:
            for entry in entries:
                if entry.name.endswith(".safetensors") and not entry.name.startswith((".", "adapter")):
                    yield folder / entry.name
    except OSError as error:
        raise DataFileError(
            f"can't read folder {str(folder)!r}: {(error.strerror or str(error)).lower()}"
        ) from error


def index_of(path: Path) -> tuple[list[str], int | None]:
    """The files that an index names, and the bytes it says they hold."""
    where = repr(str(path))
    with opened(path, "an index") as file:
        size = os.fstat(file.fileno()).st_size
        if size > MAX_INDEX:
            raise DataFileError(f"{where} is larger than {MAX_INDEX:,} bytes")
        content = _json(file.read(), where)
    places, metadata = content.get("weight_map"), content.get("metadata")
    if not isinstance(places, dict) or not places:
        raise DataFileError(f"{where}: field 'weight_map' is {show(places)}; an object of files is needed")
    names = list(dict.fromkeys(map(str, places.values())))
    for name in names:
        if name != os.path.basename(name) or not name.endswith(".safetensors") or "\0" in name:
            raise DataFileError(
                f"{where}: field 'weight_map' has {show(name)}; the name of a file beside it is needed"
            )
    if len(names) > MAX_SHARDS:
        raise DataFileError(f"{where} names {len(names):,} files; up to {MAX_SHARDS:,} are accepted")
    total = metadata.get("total_size") if isinstance(metadata, dict) else None
    good = isinstance(total, int | float) and not isinstance(total, bool) and 0 <= total < 2**63
    return sorted(names), int(total) if good and total else None
