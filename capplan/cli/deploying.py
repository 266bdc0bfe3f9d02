"""The options that say how a model is served, which every command shares that times something."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from capplan.cli import options as opt
from capplan.errors import InputError, UnknownNameError

if TYPE_CHECKING:
    from capplan.capacity.engines.deployment import Deployment
    from capplan.capacity.step_time.calibration import Calibration


def _flag(name: str, metavar: str, text: str) -> Any:
    return typer.Option(name, metavar=metavar, help=text, show_default=False)


Engine = Annotated[str | None, _flag("--engine", "ENGINE", "vllm (when not given), sglang or tensorrt-llm.")]
EngineVersion = Annotated[
    str | None, _flag("--engine-version", "VERSION", "Such as 0.19.0; the newest on record when not given.")
]
Tp = Annotated[
    int | None, _flag("--tp", "RANKS", "Tensor-parallel size; the smallest that fits when not given.")
]
Pp = Annotated[int | None, _flag("--pp", "STAGES", "Pipeline-parallel size.")]
Dp = Annotated[int | None, _flag("--dp", "REPLICAS", "Data-parallel size.")]
Ep = Annotated[bool, typer.Option("--ep", help="Whole experts on each rank (expert parallel).")]
MaxModelLen = Annotated[
    str | None,
    _flag("--max-model-len", "TOKENS", "The longest request; prompt and answer when not given."),
]
MaxNumSeqs = Annotated[int | None, _flag("--max-num-seqs", "COUNT", "Requests in a batch.")]
MaxNumBatchedTokens = Annotated[str | None, _flag("--max-num-batched-tokens", "TOKENS", "Tokens in a batch.")]
Isl = Annotated[str, typer.Option("--isl", metavar="TOKENS", help="Tokens of a prompt.")]
Osl = Annotated[str, typer.Option("--osl", metavar="TOKENS", help="Tokens of an answer.")]
CalibrationFile = Annotated[
    list[str] | None,
    typer.Option(
        "--calibration",
        metavar="FILE",
        help="Measured constants: of the engine (capplan calibrate), or of the GPU's kernels (capplan probe run).",
        show_default=False,
    ),
]


def engine_name(name: str) -> str:
    """The engine that an option names. Raises UnknownNameError."""
    from capplan.capacity.engines.emit import ENGINES

    found = ENGINES.get(name.strip().lower())
    if found is None:
        raise UnknownNameError("engine", name, ENGINES, "vllm, sglang or trtllm")
    return found


def deployment(
    *,
    engine: str | None = None,
    engine_version: str | None = None,
    tp: int | None = None,
    pp: int | None = None,
    dp: int | None = None,
    ep: bool = False,
    weights: str = "auto",
    kv: str = "auto",
    max_model_len: str | None = None,
    max_num_seqs: int | None = None,
    max_num_batched_tokens: str | None = None,
) -> Deployment:
    """The flags that were given, in the engine's own words; blank ones are its defaults."""
    from capplan.capacity.engines.deployment import Deployment

    given = {
        "engine": engine_name(engine) if engine else None,
        "version": engine_version,
        "tensor_parallel_size": tp,
        "pipeline_parallel_size": pp,
        "data_parallel_size": dp,
        "enable_expert_parallel": ep or None,
        "max_model_len": opt.count("--max-model-len", max_model_len),
        "max_num_seqs": max_num_seqs,
        "max_num_batched_tokens": opt.count("--max-num-batched-tokens", max_num_batched_tokens),
    }
    named = weights.strip().lower()
    return Deployment(
        quantization=None if named == "auto" else named,
        kv_cache_dtype=kv.strip().lower(),
        **{name: value for name, value in given.items() if value is not None},  # type: ignore[arg-type]
    )


def tokens(option: str, text: str) -> int:
    """Tokens of --isl or --osl."""
    found = opt.count(option, text)
    assert found is not None
    return found


def loads(texts: list[str] | None, most: int | None = None) -> list[int]:
    """Requests under way, of all --concurrency options: numbers, lists, and ranges that double."""
    from capplan import units

    found: list[int] = []
    for text in texts or ():
        with opt.naming("--concurrency"):
            if ".." in text:
                found += opt.doubling(text, "--concurrency", "request", "1..512")
            else:
                found += [units.parse_count(item, "request") for item in text.split(",")]
    if most is not None and len(found) > most:
        raise InputError(
            f"--concurrency {','.join(texts or ())!r} is several; one number of requests is accepted"
        )
    return found


def names(option: str, texts: list[str]) -> list[str]:
    """The names of all options of a kind; one may name several, with commas."""
    found = [name.strip() for text in texts for name in text.split(",")]
    if not all(found):
        raise InputError(
            f"{option} {','.join(texts)!r} has an empty name; a list such as h100-sxm,h200-sxm is accepted"
        )
    return found


def calibration(paths: list[str] | None) -> Calibration | None:
    """The calibration file of --calibration. Raises InputError for several.

    Constants of an engine are what a benchmark leaves to explain after the kernels as shipped: over measured ones they
    would stand for something else.
    """
    found = calibrations(paths)
    if len(found) < 2:
        return found[0] if found else None
    names = " and ".join(repr(each.name) for each in found)
    if {each.engine is None for each in found} == {True, False}:
        raise InputError(
            f"--calibration {names}: one is of an engine and was fitted over the kernels as shipped, the other is of "
            "kernels; give one of them"
        )
    raise InputError(f"--calibration {names}: {len(found)} files are given; one is accepted")


def calibrations(paths: list[str] | None) -> list[Calibration]:
    """All files of --calibration."""
    if not paths:
        return []
    from capplan.capacity.step_time.calibration import read_calibration

    return [read_calibration(path) for path in paths]
