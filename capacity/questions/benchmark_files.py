"""Benchmarks that a user has, as points: what was sent, at which load, and how long it took.

Recognised by their keys: the JSON that `vllm bench serve` saves (vLLM 0.6 to 0.33; appended runs too), SGLang's
bench_serving JSONL, GuideLLM's JSON (0.2 to 0.6), AIPerf's and genai-perf's profile export. Field names checked
2026-11-30 in vllm/benchmarks/serve.py, sglang/bench_serving.py, guidellm/benchmark/schemas and aiperf's JSON exporter.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import inf, isfinite
from os import PathLike
from pathlib import Path
from typing import Any

from capplan.calibration_file import read_text
from capplan.errors import DataFileError, InputError

ACCEPTED = "the JSON of vllm bench serve, SGLang's bench_serving, GuideLLM, AIPerf or genai-perf, or a .csv of measured rows"
MOST_FILES = 1000  # of a folder
_SAME_RATE = 0.97  # of the rate asked for: where less is served, the bound of concurrency rules
_ALIKE = 0.01  # spread of lengths, against their mean, below which requests are alike
_MS = {"ms": 1e-3, "s": 1.0, "sec": 1.0, "seconds": 1.0, "us": 1e-6, "ns": 1e-9}


@dataclass(frozen=True, slots=True)
class Point:
    """One run of a benchmark: what was asked, and what was measured. Seconds and tokens; None is not said."""

    origin: str  # the file, and which run of it
    tool: str
    isl: float
    osl: float
    concurrency: float | None
    rate: float | None  # requests a second, where they came at a rate of their own
    first: float  # share of the requests that came at once with all others
    alike: bool  # all requests had the same lengths
    ttft: float | None
    tpot: float | None
    output: float | None  # tokens a second
    backend: str = ""  # what the benchmark says it talked to
    model: str = ""


@dataclass(frozen=True, slots=True)
class Runs:
    """The points of all files, and the runs that are no points, each with the reason."""

    points: tuple[Point, ...]
    left_out: tuple[tuple[str, str], ...]  # origin, reason


class _NoPointError(InputError):
    """A run that can't be used."""


def files_of(paths: Sequence[str | PathLike[str]]) -> list[Path]:
    """The files named, and those of folders named, in order. Raises DataFileError for a folder without any."""
    found: list[Path] = []
    for path in map(Path, paths):
        if not os.path.isdir(path):
            found.append(path)
            continue
        inside = sorted(each for each in path.rglob("*.json*") if os.path.isfile(each))
        if not inside:
            raise DataFileError(f"{str(path)!r} has no .json or .jsonl file; {ACCEPTED} is accepted")
        if len(inside) > MOST_FILES:
            raise DataFileError(f"{str(path)!r} has {len(inside):,} files; {MOST_FILES:,} at most are read")
        found += inside
    return found


def read_runs(paths: Sequence[str | PathLike[str]]) -> Runs:
    """Every run of these files. What a folder holds besides benchmarks is left out, with the reason.

    Raises DataFileError for a file named that can't be read or is no benchmark.
    """
    points: list[Point] = []
    left_out: list[tuple[str, str]] = []
    named = {Path(path) for path in paths}
    for path in files_of(paths):
        try:
            runs = list(_runs(path))
        except DataFileError as error:
            if path in named:
                raise
            left_out.append((str(path), str(error)))
            continue
        for origin, run in runs:
            try:
                points.append(_point(origin, run))
            except _NoPointError as error:
                left_out.append((origin, str(error)))
    return Runs(tuple(points), tuple(left_out))


def _runs(path: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """The runs of one file, with where they stand in it. Raises DataFileError for what is no benchmark."""
    name = repr(str(path))
    documents = list(_documents(read_text(path, ACCEPTED), name))
    runs: list[dict[str, Any]] = []
    for document in documents:
        several = document.get("benchmarks") if isinstance(document, dict) else document
        runs += several if isinstance(several, list) else [document]
    known = [run for run in runs if isinstance(run, dict) and _tool(run)]
    if not known:
        if any(str(run.get("schema", "")).startswith("capplan.") for run in runs if isinstance(run, dict)):
            raise DataFileError(f"{name} is capplan's own calibration; give it with --calibration")
        raise DataFileError(f"{name} is no benchmark that is known; {ACCEPTED} is accepted")
    for place, run in enumerate(known, start=1):
        yield f"{path.name}{f', run {place}' if len(known) > 1 else ''}", run


def _documents(text: str, name: str) -> Iterator[Any]:
    """The JSON values of a text, one or several after each other, as JSONL and appended results have them."""
    decoder, at = json.JSONDecoder(), 0
    while True:
        while at < len(text) and text[at].isspace():
            at += 1
        if at == len(text):
            return
        try:
            value, at = decoder.raw_decode(text, at)
        except json.JSONDecodeError as error:
            at_end = error.pos >= len(text.rstrip()) - 1 or error.msg.startswith("Unterminated")
            cut = "; it may be cut off" if at_end else ""
            raise DataFileError(
                f"{name} is not valid JSON: {error.msg.lower()} at line {error.lineno}{cut}; {ACCEPTED} is accepted"
            ) from error
        except (ValueError, RecursionError) as error:  # a number of 5,000 digits; brackets without end
            told = "nested too deep" if isinstance(error, RecursionError) else str(error).lower()
            raise DataFileError(f"{name} is not valid JSON: {told}") from error
        yield value


def _tool(run: Mapping[str, Any]) -> str:
    """Which benchmark wrote a run; empty for none that is known."""
    if isinstance(run.get("metrics"), dict) and "time_to_first_token_ms" in run["metrics"]:
        return "guidellm"
    statistics = run.get("records") if isinstance(run.get("records"), dict) else run
    if isinstance(statistics, dict) and isinstance(statistics.get("request_throughput"), dict):
        return "aiperf"
    if "total_input_tokens" in run and ("mean_ttft_ms" in run or "median_ttft_ms" in run):
        own = ("sharegpt_output_len", "random_input_len", "accept_length", "server_info")
        return "sglang" if any(key in run for key in own) else "vllm"
    return ""


def _point(origin: str, run: Mapping[str, Any]) -> Point:
    """A run as a point. Raises _NoPointError with the reason why it is none."""
    tool = _tool(run)
    read = {"vllm": _bench_serve, "sglang": _bench_serve, "guidellm": _guidellm, "aiperf": _aiperf}[tool]
    point = read(origin, tool, run)
    if point.osl < 2:
        raise _NoPointError("answers of one token have no time per output token")
    if point.concurrency is None and point.rate is None:
        raise _NoPointError(
            "all requests were sent at once: neither their concurrency nor their rate is said"
        )
    if point.ttft is None and point.tpot is None and point.output is None:
        raise _NoPointError("it has no time to first token, no time per output token and no throughput")
    return point


def _number(value: object) -> float | None:
    """A number above zero; None for all else."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        number = float(value)
    except OverflowError:
        return None
    return number if isfinite(number) and number > 0 else None


def _needed(value: object, name: str) -> float:
    number = _number(value)
    if number is None:
        raise _NoPointError(f"{name} is {str(value)[:40]!r}, not a number above 0")
    return number


def _scaled(value: object, factor: float) -> float | None:
    number = _number(value)
    return None if number is None else number * factor


def _load(
    concurrency: float | None, rate: float | None, served: float | None
) -> tuple[float | None, float | None]:
    """The concurrency or the rate that ruled, where both were given."""
    if concurrency is not None and rate is not None:
        kept_up = served is None or served >= _SAME_RATE * rate
        return (None, rate) if kept_up else (concurrency, None)
    return concurrency, rate


def _bench_serve(origin: str, tool: str, run: Mapping[str, Any]) -> Point:
    """vLLM's and SGLang's: sums of tokens, and latencies in milliseconds."""
    done = _needed(run.get("completed"), "completed")
    accepted = _number(run.get("accept_length"))
    if accepted is not None and accepted > 1.001:
        raise _NoPointError(f"speculative decoding (accept_length {accepted:.3g}) is not modelled")
    asked_rate = run.get("request_rate")
    rate = None if asked_rate in ("inf", inf, None) else _needed(asked_rate, "request_rate")
    concurrency, rate = _load(
        _number(run.get("max_concurrency")), rate, _number(run.get("request_throughput"))
    )
    ratio = run.get("random_range_ratio")
    lengths = run.get("output_lens")
    alike = ratio in (None, 1, 1.0) if tool == "sglang" else True
    if isinstance(lengths, list) and lengths:
        alike = len({str(each) for each in lengths}) == 1
    return Point(
        origin=origin,
        tool=tool,
        isl=_needed(run.get("total_input_tokens"), "total_input_tokens") / done,
        osl=_needed(run.get("total_output_tokens"), "total_output_tokens") / done,
        concurrency=concurrency,
        rate=rate,
        first=min(1.0, (concurrency or 0.0) / done),
        alike=alike,
        ttft=_scaled(run.get("median_ttft_ms"), 1e-3) or _scaled(run.get("mean_ttft_ms"), 1e-3),
        tpot=_scaled(run.get("median_tpot_ms"), 1e-3) or _scaled(run.get("mean_tpot_ms"), 1e-3),
        output=_number(run.get("output_throughput")),
        backend=str(run.get("backend") or run.get("endpoint_type") or "")[:40],
        model=str(run.get("model_id") or "")[:200],
    )


def _guidellm(origin: str, tool: str, run: Mapping[str, Any]) -> Point:
    """GuideLLM's: statistics of the requests that succeeded. Its inter-token latency is what others call TPOT: its own
    time per output token has the first token in it.
    """
    metrics = run["metrics"]

    def of(name: str, *which: str) -> float | None:
        kept = metrics.get(name)
        kept = kept.get("successful") if isinstance(kept, dict) else None
        found = (_number(kept.get(each)) for each in which) if isinstance(kept, dict) else ()
        return next((each for each in found if each is not None), None)

    config = run.get("config") if isinstance(run.get("config"), dict) else run.get("args")
    strategy = config.get("strategy") if isinstance(config, dict) else None
    strategy = strategy if isinstance(strategy, dict) else {}
    kind = str(strategy.get("type_", ""))
    concurrency = _number(strategy.get("streams")) or _number(strategy.get("max_concurrency"))
    rate = _number(strategy.get("rate")) if kind in ("constant", "poisson", "async") else None
    if kind == "synchronous":
        concurrency = 1.0
    if kind == "throughput":
        raise _NoPointError("a throughput run sends all requests at once; a concurrent one can be used")
    concurrency, rate = _load(concurrency, rate, of("requests_per_second", "mean"))
    osl = _needed(of("output_token_count", "mean"), "output_token_count")
    totals = metrics.get("request_totals")
    done = _number(totals.get("successful")) if isinstance(totals, dict) else None
    return Point(
        origin=origin,
        tool=tool,
        isl=_needed(of("prompt_token_count", "mean"), "prompt_token_count"),
        osl=osl,
        concurrency=concurrency,
        rate=rate,
        first=min(1.0, (concurrency or 0.0) / done) if done else 0.0,
        alike=(of("output_token_count", "std_dev") or 0.0) < _ALIKE * osl,
        ttft=_scaled(of("time_to_first_token_ms", "median", "mean"), 1e-3),
        tpot=_scaled(of("inter_token_latency_ms", "median", "mean"), 1e-3),
        output=of("output_tokens_per_second", "mean"),
    )


def _aiperf(origin: str, tool: str, run: Mapping[str, Any]) -> Point:
    """AIPerf's and genai-perf's: a statistic with its unit for each metric."""
    records = run.get("records")
    statistics: Mapping[str, Any] = records if isinstance(records, dict) else run

    def of(name: str, *which: str, time: bool = False) -> float | None:
        kept = statistics.get(name)
        if not isinstance(kept, dict):
            return None
        value = next((each for key in which if (each := _number(kept.get(key))) is not None), None)
        return _scaled(value, _MS.get(str(kept.get("unit", "ms")).lower(), 1e-3) if time else 1.0)

    concurrency, rate = _load(*_stimulus(run.get("input_config")), of("request_throughput", "avg"))
    osl = _needed(of("output_sequence_length", "avg"), "output_sequence_length")
    done = of("request_count", "avg")
    return Point(
        origin=origin,
        tool=tool,
        isl=_needed(of("input_sequence_length", "avg"), "input_sequence_length"),
        osl=osl,
        concurrency=concurrency,
        rate=rate,
        first=min(1.0, (concurrency or 0.0) / done) if done else 0.0,
        alike=(of("output_sequence_length", "std") or 0.0) < _ALIKE * osl,
        ttft=of("time_to_first_token", "p50", "avg", time=True),
        tpot=of("inter_token_latency", "p50", "avg", time=True),
        output=of("output_token_throughput", "avg"),
    )


def _stimulus(config: object) -> tuple[float | None, float | None]:
    """Concurrency and rate out of an input_config, wherever a version keeps them."""
    if not isinstance(config, dict):
        return None, None
    places: list[Any] = [config, config.get("loadgen"), config.get("stimulus")]
    if isinstance(analyzer := config.get("perf_analyzer"), dict):
        places.append(analyzer.get("stimulus"))
    if isinstance(phases := config.get("phases"), list):
        kept = [each for each in phases if isinstance(each, dict) and not each.get("exclude_from_results")]
        places += kept[-1:]
    known = [place for place in places if isinstance(place, dict)]
    concurrency = next((n for place in known if (n := _number(place.get("concurrency")))), None)
    rate = next((n for place in known if (n := _number(place.get("request_rate")))), None)
    return concurrency, rate
