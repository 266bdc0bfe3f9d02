"""The header of a GGUF file -> Model: its metadata as a config, the bytes of its tensors as they are.

Tokens and other long arrays are passed over, never held; every count and length is checked against the size of the
file first.
"""

from __future__ import annotations

import os
import re
import struct
from dataclasses import dataclass, field
from math import prod
from pathlib import Path
from typing import Any, BinaryIO

from capplan.errors import DataFileError
from capplan.models.fields import show
from capplan.models.safetensors import opened
from capplan.models.spec import Model

MAX_ENTRIES = 100_000  # metadata keys, and tensors
MAX_TEXT = 1_000_000  # bytes of a text that is kept
MAX_LIST = 4_096  # entries of an array that is kept
MAX_HEADER = 500_000_000  # bytes before the tensors; vocabularies take up to some tens of millions

# type number -> name, elements in a block, bytes of a block
TENSOR_TYPES = {
    0: ("F32", 1, 4),
    1: ("F16", 1, 2),
    2: ("Q4_0", 32, 18),
    3: ("Q4_1", 32, 20),
    6: ("Q5_0", 32, 22),
    7: ("Q5_1", 32, 24),
    8: ("Q8_0", 32, 34),
    9: ("Q8_1", 32, 40),
    10: ("Q2_K", 256, 84),
    11: ("Q3_K", 256, 110),
    12: ("Q4_K", 256, 144),
    13: ("Q5_K", 256, 176),
    14: ("Q6_K", 256, 210),
    15: ("Q8_K", 256, 292),
    16: ("IQ2_XXS", 256, 66),
    17: ("IQ2_XS", 256, 74),
    18: ("IQ3_XXS", 256, 98),
    19: ("IQ1_S", 256, 50),
    20: ("IQ4_NL", 32, 18),
    21: ("IQ3_S", 256, 110),
    22: ("IQ2_S", 256, 82),
    23: ("IQ4_XS", 256, 136),
    24: ("I8", 1, 1),
    25: ("I16", 1, 2),
    26: ("I32", 1, 4),
    27: ("I64", 1, 8),
    28: ("F64", 1, 8),
    29: ("IQ1_M", 256, 56),
    30: ("BF16", 1, 2),
    34: ("TQ1_0", 256, 54),
    35: ("TQ2_0", 256, 66),
    39: ("MXFP4", 32, 17),
    40: ("NVFP4", 64, 36),
    41: ("Q1_0", 128, 18),
}
# the precision a planner calls a type by its first letters
_PRECISIONS = (
    *(("F32", "fp32"), ("F16", "fp16"), ("BF16", "bf16"), ("MXFP4", "mxfp4"), ("NVFP4", "nvfp4")),
    *(("Q8", "int8"), ("Q6", "int8"), ("Q5", "int8")),
    *(("Q", "int4"), ("IQ", "int4"), ("TQ", "int4")),
)

# value type number -> struct code
_VALUES = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
_TEXT, _LIST = 8, 9
_SPLIT = re.compile(r"^(.*)-(\d{5})-of-(\d{5})\.gguf$")


@dataclass(slots=True)
class Header:
    """What a GGUF file says before its tensors."""

    values: dict[str, Any] = field(default_factory=dict)
    tensors: dict[str, tuple[str, tuple[int, ...]]] = field(default_factory=dict)  # type and shape
    bytes: dict[str, int] = field(default_factory=dict)  # by type


def read_gguf(path: Path) -> Model:
    """The model of a GGUF file, or of all files it was split into.

    Raises:
        DataFileError: the file can't be read right, or is of an architecture that is not known.
    """
    from capplan.models.gguf_config import config_of
    from capplan.models.hf import from_config

    path = Path(path)
    where = repr(str(path))
    headers = [read_header(part) for part in _parts(path, where)]
    first = headers[0]
    for other in headers[1:]:
        if twice := first.tensors.keys() & other.tensors.keys():
            raise DataFileError(f"{where}: tensor {show(min(twice))} is in two of its files")
        first.tensors |= other.tensors
        for name, size in other.bytes.items():
            first.bytes[name] = first.bytes.get(name, 0) + size
    config = config_of(first, where)
    model = from_config(config, id=path.stem, name=path.stem, where=where, source=str(path), complete=True)
    stored = sum(prod(shape) for _, shape in first.tensors.values())
    most = max(first.bytes, key=lambda name: first.bytes[name], default="F16")
    said = [line for line in model.assumptions if "torch_dtype" not in line]
    if abs(stored - model.parameters_total) > 1e-3 * stored:
        said.append(
            f"the GGUF holds {stored:,} parameters, its metadata says {model.parameters_total:,}: "
            "bytes are those of the file"
        )
    return model._replace(
        dtype=next((dtype for start, dtype in _PRECISIONS if most.startswith(start)), "fp16"),
        checkpoint_bytes_read=dict(sorted(first.bytes.items())),
        assumptions=tuple(said),
    )


def _parts(path: Path, where: str) -> list[Path]:
    """All files of a split checkpoint."""
    match = _SPLIT.match(path.name)
    if not match or int(match[3]) < 2:
        return [path]
    count = int(match[3])
    if count > 5_000:
        raise DataFileError(f"{where} is one of {count:,} files; up to 5,000 are accepted")
    parts = [path.with_name(f"{match[1]}-{i:05}-of-{count:05}.gguf") for i in range(1, count + 1)]
    for part in parts:
        if not os.path.lexists(part):
            raise DataFileError(f"{where} is one of {count} files, and {part.name!r} is not beside it")
    return parts


def read_header(path: Path) -> Header:
    """The metadata and tensors of one file."""
    with opened(path, "a GGUF file") as file:
        return _Reader(file, os.fstat(file.fileno()).st_size, repr(str(path))).header()


class _Reader:
    """Reads forward, never past the end of the file."""

    def __init__(self, file: BinaryIO, size: int, where: str) -> None:
        self.file, self.size, self.where = file, size, where
        self.at = 0

    def error(self, what: str) -> DataFileError:
        return DataFileError(f"{self.where} {what}")

    def take(self, count: int) -> bytes:
        self._check(count)
        content = self.file.read(count)
        if len(content) < count:
            raise self.error("is cut short in its header")
        self.at += count
        return content

    def skip(self, count: int) -> None:
        self._check(count)
        self.file.seek(count, os.SEEK_CUR)
        self.at += count

    def _check(self, count: int) -> None:
        if count > self.size - self.at:
            raise self.error(f"is cut short: {count:,} more bytes of its header are not there")
        if self.at + count > MAX_HEADER:
            raise self.error(f"has a header of more than {MAX_HEADER:,} bytes")

    def number(self, code: str) -> Any:
        return struct.unpack("<" + code, self.take(struct.calcsize("<" + code)))[0]

    def text(self) -> str:
        length = self.number("Q")
        if length > MAX_TEXT:
            raise self.error(f"has a text of {length:,} bytes; up to {MAX_TEXT:,} are accepted")
        return self.take(length).decode("utf-8", "replace")

    def header(self) -> Header:
        if self.size < 24 or self.take(4) != b"GGUF":
            raise self.error("is not a GGUF file")
        version = self.number("I")
        if version not in (2, 3):
            big = int.from_bytes(version.to_bytes(4, "little"), "big") in (2, 3)
            raise self.error(
                "is a big-endian GGUF file; little-endian ones are accepted" if big
                else f"is of GGUF version {version:,}; 2 and 3 are accepted"
            )  # fmt: skip
        tensors, keys = self.number("Q"), self.number("Q")
        if max(tensors, keys) > MAX_ENTRIES:
            raise self.error(
                f"claims {tensors:,} tensors and {keys:,} keys; up to {MAX_ENTRIES:,} are accepted"
            )
        header = Header()
        for _ in range(keys):
            self._key(header)
        spans = [self._tensor(header) for _ in range(tensors)]
        self._place(spans, header)
        return header

    def _key(self, header: Header) -> None:
        name = self.text()
        if name in header.values:
            raise self.error(f"has key {show(name)} twice")
        kind = self.number("I")
        wanted = not name.startswith("tokenizer.")
        if kind == _TEXT and not wanted:
            self.skip(self.number("Q"))
            value = None
        else:
            value = self._list(name, wanted) if kind == _LIST else self._value(name, kind)
        header.values[name] = value

    def _value(self, name: str, kind: int) -> Any:
        if kind == _TEXT:
            return self.text()
        if kind not in _VALUES:
            raise self.error(f"has key {show(name)} of type {kind}, which GGUF does not have")
        return self.number(_VALUES[kind])

    def _list(self, name: str, wanted: bool) -> list[Any] | int:
        """A short array of numbers; of any other its length."""
        kind, count = self.number("I"), self.number("Q")
        if count > self.size:
            raise self.error(f"has key {show(name)} with {count:,} entries, more than the file holds")
        if kind == _TEXT:
            for _ in range(count):
                self.skip(self.number("Q"))
            return int(count)
        if kind not in _VALUES:
            raise self.error(f"has key {show(name)} of arrays of type {kind}, which is not understood")
        if wanted and count <= MAX_LIST:
            return [self.number(_VALUES[kind]) for _ in range(count)]
        self.skip(count * struct.calcsize("<" + _VALUES[kind]))
        return int(count)

    def _tensor(self, header: Header) -> tuple[int, int, str]:
        name = self.text()
        if name in header.tensors:
            raise self.error(f"has tensor {show(name)} twice")
        dimensions = self.number("I")
        if not 0 < dimensions <= 8:
            raise self.error(f"has tensor {show(name)} of {dimensions:,} dimensions; 1 to 8 are accepted")
        shape = tuple(self.number("Q") for _ in range(dimensions))
        kind, offset = self.number("I"), self.number("Q")
        if kind not in TENSOR_TYPES:
            raise self.error(f"has tensor {show(name)} of type {kind}, which is not known")
        type_name, block, size = TENSOR_TYPES[kind]
        elements = prod(shape)
        if elements >= 2**63 or shape[0] % block:
            raise self.error(f"has tensor {show(name)} of shape {shape}, which {type_name} can't hold")
        taken = elements // block * size
        header.tensors[name] = type_name, shape
        header.bytes[type_name] = header.bytes.get(type_name, 0) + taken
        return offset, taken, name

    def _place(self, spans: list[tuple[int, int, str]], header: Header) -> None:
        """Check that the tensors lie one after another inside the file."""
        alignment = header.values.get("general.alignment", 32)
        if type(alignment) is not int or not 0 < alignment <= 2**20:
            raise self.error(f"has general.alignment {show(alignment)}; a small whole number is accepted")
        start = -(-self.at // alignment) * alignment
        at = 0
        for offset, taken, name in sorted(spans):
            if offset < at:
                raise self.error(f"has tensor {show(name)} at offset {offset:,}, inside the tensor before it")
            at = offset + taken
        if spans and start + at > self.size:
            raise self.error(f"is cut short: its tensors end at {start + at:,} of {self.size:,} bytes")
