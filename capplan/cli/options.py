"""The options that commands share, and how their text becomes numbers."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Annotated

import typer

from capplan.cli import notes
from capplan.errors import InputError, UnitError

FEWEST_BARE_BYTES = 2**20  # below it a size without a unit is taken for a slip


def _starting_with(text: str, names: Iterable[str]) -> list[str]:
    return [name for name in names if name.startswith(text.lower())]


def _complete_model(incomplete: str) -> list[str]:
    from capplan.models.registry import names

    return _starting_with(incomplete, names())


def _complete_gpu(incomplete: str) -> list[str]:
    from capplan.hardware.registry import names

    return _starting_with(incomplete, names())


ModelName = Annotated[
    str | None,
    typer.Argument(
        metavar="MODEL",
        help="A model's name (capplan models), or the path of a config.json or its folder.",
        autocompletion=_complete_model,
        show_default=False,
    ),
]
ModelNames = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="MODEL...",
        help="Names (capplan models), or paths of config.json files or their folders.",
        autocompletion=_complete_model,
        show_default=False,
    ),
]
ModelConfig = Annotated[
    str | None,
    typer.Option("--model-config", metavar="PATH", help="A config.json or its folder, instead of MODEL."),
]
GpuName = Annotated[
    str,
    typer.Option("--gpu", metavar="GPU", help="An accelerator (capplan gpus).", autocompletion=_complete_gpu),
]
Weights = Annotated[
    str,
    typer.Option(
        "--weights",
        metavar="DTYPE",
        help="Precision of the weights: bf16, fp8, nvfp4, int4, ...; auto is the checkpoint's.",
    ),
]
KvDtype = Annotated[
    str,
    typer.Option(
        "--kv",
        metavar="DTYPE",
        help="Precision of the KV cache: fp16, bf16, fp8, ...; auto is what the checkpoint names, else 16 bit.",
    ),
]
Context = Annotated[
    list[str] | None,
    typer.Option(
        "--context",
        metavar="TOKENS",
        help="Tokens of a request: 8k, 8Ki, a list 8k,32k, or doubling 1k..1M; may be repeated.",
    ),
]
Reserve = Annotated[
    str | None,
    typer.Option("--reserve", metavar="SIZE", help="Memory kept back from weights and cache, such as 4GiB."),
]
Tier = Annotated[
    str,
    typer.Option("--tier", metavar="TIER", help="whiteboard (the essay's arithmetic) or engine."),
]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object, in base units.")]
Csv = Annotated[bool, typer.Option("--csv", help="Print the sweep as CSV, one row a context.")]
Explain = Annotated[
    bool, typer.Option("--explain", help="Print every formula used, with the numbers put in and the source.")
]
Plot = Annotated[
    str | None, typer.Option("--plot", metavar="FILE", help="Draw to FILE, .svg or .png (extra: plot).")
]


def one_model(name: str | None, config: str | None) -> str:
    """The model that was named, by MODEL or by --model-config."""
    if config is not None:
        path = as_path(config)
        if name is not None:
            raise InputError(f"a model is named twice: {name!r} and --model-config {config!r}; give one")
        return path
    if name is None:
        raise InputError("no model given; name one (capplan models) or a config.json with --model-config")
    return name


def as_path(config: str) -> str:
    """The value of --model-config: a bare file name is a path here, never a registry name."""
    if not config.strip():
        raise InputError("--model-config is empty; the path of a config.json, or of its folder, is accepted")
    return config if "/" in config or "\\" in config else f"./{config}"


def doubling(text: str, option: str = "--context", unit: str = "token", like: str = "1k..1M") -> list[int]:
    """The numbers of a range: `1k..1M` is 1k, 2k, 4k, ... and 1M."""
    from capplan import units

    first, _, last = text.partition("..")
    low, high = units.parse_count(first, unit), units.parse_count(last, unit)
    if not 0 < low < high:
        raise InputError(f"{option} {text!r} is no range; write the smaller end first, such as {like}")
    lengths = [low * 2**i for i in range((high // low).bit_length())]
    return [length for length in lengths if length < high] + [high]


def context_list(texts: list[str] | None) -> list[int] | None:
    """The contexts of all --context options; says on stderr what was understood where that may surprise."""
    if not texts:
        return None
    from capplan import units

    lengths = []
    for text in texts:
        with naming("--context"):
            if ".." in text:
                lengths += doubling(text)
                continue
            units.parse_list(text, "token")  # refuses what can be read in two ways
            found = [units.parse_count(item, "token") for item in text.split(",")]
        for item, length in zip(text.split(","), found, strict=True):
            note("--context", item, length, "token")
        lengths += found
    return lengths


def batches(texts: list[str] | None) -> list[int] | None:
    """The sequences of all --batch options: numbers, lists, and ranges that double."""
    from capplan import units

    found: list[int] = []
    for text in texts or ():
        with naming("--batch"):
            if ".." in text:
                found += doubling(text, "--batch", "request", "1..512")
            else:
                found += [units.parse_count(item, "request") for item in text.split(",")]
    return found or None


def whole(option: str, texts: list[str] | None, like: str) -> list[int]:
    """The plain whole numbers of all options of a kind: numbers, lists, and ranges that double."""
    from capplan import units

    found: list[int] = []
    for text in texts or ():
        with naming(option):
            if ".." in text:
                found += doubling(text, option, "1", like)
            else:
                found += [units.parse_count(item, "1") for item in text.split(",")]
    return found


def count(option: str, text: str | None) -> int | None:
    """Tokens of an option such as --max-model-len."""
    from capplan import units

    if text is None:
        return None
    with naming(option):
        value = units.parse_count(text, "token")
    note(option, text, value, "token")
    return value


def size(option: str, text: str | None) -> float | None:
    """Bytes of an option such as --reserve."""
    from capplan import units

    if text is None:
        return None
    with naming(option):
        value = units.parse(text, "byte")
    if 0 < value < FEWEST_BARE_BYTES and text.strip()[-1].isdecimal():  # 80, where 80GB is meant
        raise UnitError(
            f"{option}: {text!r} has no unit; write {text.strip()}GiB, or {text.strip()}B for bytes"
        )
    note(option, text, value, "byte")
    return value


def target(option: str, text: str) -> float:
    """Seconds of a bound such as --tpot-p95; 20, where 20ms is meant, would be a bound that nothing misses."""
    from capplan import units

    with naming(option):
        value = units.parse(text, "second")
    if value and text.strip()[-1].isdecimal():
        raise UnitError(
            f"{option}: {text!r} has no unit; write {text.strip()}ms, or {text.strip()}s for seconds"
        )
    return value


def share(option: str, text: str) -> float:
    """The plain number of an option such as --utilisation."""
    from capplan import units

    with naming(option):
        return units.parse(text, "1")


@contextmanager
def naming(option: str) -> Iterator[None]:
    """Say which option it was whose value can't be read."""
    try:
        yield
    except UnitError as error:
        raise UnitError(f"{option}: {error}") from error


def note(option: str, text: str, value: float, unit: str) -> None:
    """Say what was understood, where it is worth saying."""
    from capplan import units

    if understood := units.echo(text, value, unit):
        notes.note(f"{option} {text.strip()}: {understood}")
