"""A Hugging Face config.json -> Model: the one way in, for files and for the registry's rows."""

from __future__ import annotations

import json
import os
import stat
from pathlib import Path
from typing import TYPE_CHECKING, Any

from capplan.errors import DataFileError, near_misses
from capplan.models.families import FAMILIES, family
from capplan.models.fields import Fields, features, show
from capplan.models.nesting import language_model
from capplan.models.spec import Model

if TYPE_CHECKING:
    from capplan.models.quantization import Quantization

MAX_BYTES = 5_000_000  # of a config.json; the largest known one is under 100 kB
DTYPES = {"bfloat16": "bf16", "float16": "fp16", "float32": "fp32"}
NESTED = (
    "text_config",
    "language_config",
    "llm_config",
)  # where a model with towers keeps its language model
SIDE_FILE = "hf_quant_config.json"  # where modelopt says that the weights are quantised
QUANTISED = ("quantization_config", "compression_config")  # where all others say so


def read_config(path: Path) -> Model:
    """The model of a config.json, or of a folder that holds one.

    Raises:
        DataFileError: the file can't be read, is not a config, or has what is not supported.
    """
    path = Path(path)
    if os.path.isdir(path):
        path = path / "config.json"
        if not os.path.lexists(path):
            raise DataFileError(f"folder {show(str(path.parent))} holds no config.json")
    where = repr(str(path))
    config = load_json(path)
    folder = path.absolute().parent
    side = path.with_name(SIDE_FILE if path.name == "config.json" else f"{path.stem}.{SIDE_FILE}")
    quantised = load_json(side) if os.path.lexists(side) else None
    name = folder.name if path.name == "config.json" and folder.name else path.stem
    return from_config(config, id=name, name=name, where=where, side=quantised, source=str(path))


def _printable(name: str) -> str:
    """A name that may be of a folder, safe to print."""
    return "".join(c if c.isprintable() else "?" for c in name)


def from_config(
    config: dict[str, Any],
    *,
    id: str,  # noqa: A002
    name: str,
    where: str = "",
    side: dict[str, Any] | None = None,
    complete: bool = False,
    **header: Any,
) -> Model:
    """The model that a config describes. `where` names its file in messages; `header` goes into the Model.

    side: the content of modelopt's hf_quant_config.json, where that lies beside it.
    complete: what is left out is meant to be the class's default, as in a registry row, and is not told.
    """
    outer = Fields(config, where)
    known = outer.text("model_type") in FAMILIES
    fields, prefix = (outer, "model.") if known else language_model(outer)
    model_type = _family(fields)
    dtype = _dtype(fields)
    quantization = _quantization(config, fields, dtype, side, where)
    decoder = family(model_type)(fields)
    if "layer_types" not in fields.read:
        decoder.layer_types("full_attention")  # may be said where all layers are alike
    fields.refuse_the_rest()
    if len(set(decoder.layout)) == 1:
        fields.absent = [name for name in fields.absent if name != "layer_types"]  # which all layers share
    if quantization:
        from capplan.models.stored import dominant

        dtype = dominant(decoder.weights, decoder.layout, decoder.hidden, quantization).dtype
    return Model(
        id=_printable(id),
        name=_printable(name),
        family=outer.text("model_type") or model_type,
        hidden_size=decoder.hidden,
        layers=tuple(decoder.layout),
        draft_layers=tuple(decoder.draft_mixers),
        weights=tuple(weight.below(prefix) for weight in decoder.weights),
        draft_weights=tuple(decoder.draft_weights),
        dtype=dtype,
        quantization=quantization,
        vocab_size=decoder.vocab,
        max_context=decoder.context,
        assumptions=(*fields.assumptions, *(() if complete else fields.said_of_the_missing())),
        **header,
    )


def load_json(path: Path) -> dict[str, Any]:
    """The fields of a small JSON file."""
    where = repr(str(path))
    return _parse(_read(path, where), where)


def _read(path: Path, where: str) -> bytes:
    try:
        # never waits for a pipe's writer, and the file that is checked is the one that is read
        descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0))
        try:
            status = os.fstat(descriptor)
            if not stat.S_ISREG(status.st_mode):
                raise DataFileError(f"{where} is not a regular file; a config.json or its folder is accepted")
            content = b"" if status.st_size > MAX_BYTES else _read_all(descriptor)
        finally:
            os.close(descriptor)
    except DataFileError:
        raise
    except OSError as error:
        raise DataFileError(f"can't read {where}: {(error.strerror or str(error)).lower()}") from error
    except ValueError as error:  # a NUL in the name
        raise DataFileError(f"can't read {where}: {error}") from error
    if max(status.st_size, len(content)) > MAX_BYTES:
        raise DataFileError(f"{where} is larger than {MAX_BYTES:,} bytes; a config.json is a small file")
    return content


def _read_all(descriptor: int) -> bytes:
    content = b""
    while len(content) <= MAX_BYTES and (part := os.read(descriptor, 1 << 20)):
        content += part
    return content


def _parse(content: bytes, where: str) -> dict[str, Any]:
    def fields_of(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        fields: dict[str, Any] = {}
        for name, value in pairs:
            if name in fields:
                raise DataFileError(f"{where}: field {show(name)} is given twice")
            if isinstance(value, float) and value - value != 0:  # NaN and the infinities
                raise DataFileError(f"{where}: field {show(name)} is {value}; a finite number is accepted")
            fields[name] = value
        return fields

    try:
        config = json.loads(content.decode("utf-8-sig"), object_pairs_hook=fields_of)
    except UnicodeDecodeError as error:
        raise DataFileError(
            f"{where} is not UTF-8 text (byte {error.start:,}); a config.json is accepted"
        ) from error
    except json.JSONDecodeError as error:
        place = f"line {error.lineno}, column {error.colno}"
        raise DataFileError(f"{where} is not valid JSON: {error.msg.lower()} at {place}") from error
    except RecursionError as error:
        raise DataFileError(f"{where} is not a config.json: it is nested too deep") from error
    except DataFileError:
        raise
    except ValueError as error:
        raise DataFileError(f"{where} has a number with too many digits") from error
    if not isinstance(config, dict):
        raise DataFileError(f"{where} holds {show(config)}; a JSON object of fields is accepted")
    return config


def _family(fields: Fields) -> str:
    model_type = fields.text("model_type")
    some = [name for name in FAMILIES if "_" not in name][:12]
    supported = f"supported: {', '.join(some)} and {len(FAMILIES) - len(some)} more"
    if model_type in FAMILIES:
        return model_type
    if not model_type:
        raise fields.error(f"field 'model_type' is missing; {supported}")
    found = features(fields.config)
    has = f": its config has {', '.join(found)}" if found else ""
    nearest = near_misses(model_type, FAMILIES, 1)
    did_you_mean = f"; did you mean {nearest[0]!r}?" if nearest and not found else ""
    raise fields.error(f"model_type {show(model_type)} is not supported{has}{did_you_mean}; {supported}")


def _dtype(fields: Fields) -> str:
    """The format of the checkpoint's matrices."""
    name, value = "torch_dtype", fields.text("torch_dtype", "dtype")
    inner = (part for name, part in fields.config.items() if name in NESTED and type(part) is dict)
    for part in inner if value is None else ():
        value = value or Fields(part, fields.where).text("torch_dtype", "dtype")
    if value is None:
        fields.assumptions.append(f"field '{name}' is absent; weights taken to be bf16")
        value = "bfloat16"
    value = value.removeprefix("torch.")
    if value not in DTYPES:
        raise fields.error(f"field '{name}' is {show(value)}; accepted: {', '.join(DTYPES)}")
    return DTYPES[value]


def _quantization(
    config: dict[str, Any], fields: Fields, dtype: str, side: dict[str, Any] | None, where: str
) -> Quantization | None:
    """What the config or its side file says of quantised weights."""
    fields.ignore(*QUANTISED)
    if side is None and not any(
        part.get(name) is not None
        for part in (config, *(p for p in config.values() if type(p) is dict), fields.config)
        for name in QUANTISED
    ):
        return None
    from capplan.models.quantization import read

    found, assumptions = read(config, where=where, others=dtype, side=side)
    fields.assumptions += assumptions
    if found:
        fields.ignore("expert_dtype")
    return found
