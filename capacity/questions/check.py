"""Did the engine start as predicted? Its start-up log beside the prediction, line by line."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from os import PathLike
from typing import TYPE_CHECKING, Any, BinaryIO, ClassVar

from capplan.capacity.answer import Answer, Working
from capplan.capacity.engines import log_flags
from capplan.capacity.engines.budget import budget
from capplan.capacity.engines.deployment import Deployment
from capplan.capacity.engines.device import Device, device_of
from capplan.capacity.engines.log_lines import MOST
from capplan.capacity.engines.logs import StartupLog, read_log
from capplan.capacity.engines.vllm_rules import ordered
from capplan.capacity.questions import asked
from capplan.capacity.questions import check_lines as lines
from capplan.capacity.questions.check_lines import Predictions
from capplan.errors import CapplanError, DataFileError, InputError
from capplan.hardware.resolve import card as card_of
from capplan.models.resolve import Resolved, resolve, with_tower
from capplan.units import gib

if TYPE_CHECKING:
    from capplan.hardware.spec import Gpu
    from capplan.report import Report

ENGINES = ("vllm", "sglang", "tensorrt-llm")


@dataclass(frozen=True, slots=True, kw_only=True)
class Check(Answer):
    """What an engine's start-up log says beside what was predicted, each difference explained or not."""

    question: ClassVar[str] = "check"

    engine: str
    engine_version: str | None
    model: str | None  # as the log names it
    gpu: str | None
    lines: tuple[dict[str, Any], ...]  # a quantity each: predicted, logged, verdict
    failures: tuple[dict[str, Any], ...]
    started: bool | None  # None: the log ends before it says
    predicted_to_start: bool | None
    start_verdict: str
    start_why: str
    unexplained: int
    consistent: bool  # it started, and nothing that could be predicted is unexplained
    read: dict[str, Any]  # lines, recognised, unread, ...

    @property
    def fits(self) -> bool:
        return self.consistent

    def sweep(self) -> list[dict[str, Any]]:
        return list(self.lines)

    def report(self) -> Report:
        from capplan.report import Report, Table

        who = " ".join(part for part in (self.engine, self.engine_version) if part)
        what = f"{who}, {self.inputs['model'] or self.model or 'unknown model'}"
        if self.inputs["gpu"]:
            what += f" on {self.inputs['gpu']}"
        if self.failures and not self.started:
            headline = f"{what}: did not start: {lines.FAILURES[self.failures[0]['kind']]}"
        elif self.unexplained:
            headline = f"{what}: {self.unexplained} of {len(self.lines)} lines unexplained"
        elif self.predicted_to_start is None:
            headline = f"{what}: read, not predicted"
        else:
            headline = f"{what}: as predicted"
        rows = [_row(each) for each in self.lines]
        rows.append(
            (
                "starts",
                _yes(self.predicted_to_start),
                _yes(self.started),
                "",
                self.start_verdict,
                self.start_why,
            )
        )
        heads = ("", "predicted", "log", "difference", "", "")
        tables = [Table(tuple(rows), heads, words=True)]
        if self.failures:
            told = tuple((f"line {each['line']:,}", each["text"]) for each in self.failures)
            tables.append(Table(told, title="What stopped it", words=True))
        return Report(headline, tuple(tables), self.assumptions, self.warnings)


def _row(each: Mapping[str, Any]) -> tuple[str, ...]:
    if each["unit"] == "byte":
        predicted, logged = (
            "-" if value is None else gib(value) for value in (each["predicted"], each["logged"])
        )
    else:
        predicted, logged = (
            "-" if value is None else lines.figure(value) for value in (each["predicted"], each["logged"])
        )
    off = each["relative_difference"]
    difference = "" if off is None else f"{100 * off:+.1f}%"
    return (each["name"], predicted, logged, difference, each["verdict"], each["why"])


def _yes(answer: bool | None) -> str:
    return {True: "yes", False: "no", None: "-"}[answer]


def check(
    log: str | PathLike[str] | BinaryIO | StartupLog,
    *,
    model: str | None = None,
    gpu: str | Gpu | None = None,
    engine: str | None = None,
    flags: Mapping[str, Any] | None = None,
) -> Check:
    """A start-up log of vLLM, SGLang or TensorRT-LLM beside its prediction.

    log: a file's name, an open stream of bytes, or a StartupLog.
    model, gpu, engine, flags: what the log does not say; they win over what it does. `flags` has the names of a
    Deployment, `version` among them.

    Raises DataFileError for a file that can't be read or in which nothing was recognised, and InputError,
    UnknownNameError for a model, GPU or flag that is given and not known.
    """
    found = _read(log)
    name = engine or found.engine
    if name is None:
        raise DataFileError(
            f"no line of a vllm, sglang or tensorrt-llm start-up was recognised in {found.lines:,} lines"
            f"{_unread(found)}"
        )
    if name not in ENGINES:
        raise InputError(f"unknown engine {name!r}; one of {', '.join(ENGINES)}")
    work = Working()
    deployment = _deployment(found, name, dict(flags or {}), work)
    resolved = _model(found, model, work)
    device, card = _device(found, gpu, work)
    predicted = None
    if resolved is not None and device is not None:
        predicted = _predict(found, resolved, device, deployment, work)
    compared = tuple(lines.compared(found, predicted))
    started = lines.started(found)
    verdict, why = lines.start(found, started, predicted)
    unexplained = sum(line.verdict == lines.UNEXPLAINED for line in compared) + (verdict == lines.UNEXPLAINED)
    _doubts(found, work)
    return Check(
        inputs={
            "model": resolved.model.id if resolved else None,
            "gpu": card,
            "engine": name,
            "deployment": {each.name: getattr(deployment, each.name) for each in fields(deployment)},
            "given": {"model": model, "gpu": gpu if isinstance(gpu, str) else None, **dict(flags or {})},
        },
        engine=name,
        engine_version=deployment.version,
        model=found.model,
        gpu=found.gpu,
        lines=tuple(line.to_dict() for line in compared),
        failures=tuple({"kind": each.kind, "text": each.text, "line": each.line} for each in found.failures),
        started=started,
        predicted_to_start=predicted.alone.starts if predicted else None,
        start_verdict=verdict,
        start_why=why,
        unexplained=unexplained,
        consistent=started is not False and not unexplained and predicted is not None and bool(compared),
        read={
            name: getattr(found, name)
            for name in (
                *("lines", "bytes", "recognised", "starts", "unread", "unread_lines", "cut", "binary"),
                "stopped_at",
            )
        },
        **work.shown(),
    )


def _read(log: str | PathLike[str] | BinaryIO | StartupLog) -> StartupLog:
    if isinstance(log, StartupLog):
        return log
    if not isinstance(log, (str, PathLike)):
        return read_log(log)
    try:
        with open(log, "rb") as stream:
            return read_log(stream)
    except (OSError, ValueError) as error:  # ValueError: a null byte in the name
        why = getattr(error, "strerror", None) or str(error)
        raise DataFileError(f"can't read {str(log)!r}: {why.lower()}") from error


# --- what the log is of ----------------------------------------------------------------------------------------


def _deployment(log: StartupLog, engine: str, given: dict[str, Any], work: Working) -> Deployment:
    """The flags of the log, those given before them."""
    known = {each.name for each in fields(Deployment)}
    said: dict[str, Any] = {name: value for name, value in log.flags.items() if name in known}
    said.pop("quantization", None)  # the method of the checkpoint, as a rule: see _model
    if int(log.flags.get("expert_parallel_size") or 1) > 1:
        said["enable_expert_parallel"] = True
    if log.flags.get("disable_radix_cache"):
        said["enable_prefix_caching"] = False
    pinned = log.least("pinned_bytes")
    if pinned is not None and pinned.value > 0:
        said["kv_cache_memory_bytes"] = int(pinned.value)
    for flag, name in (("decode_context_parallel_size", "context_ranks"), ("max_model_len", "context")):
        told = log.least(name)
        if told is not None and 0 < told.value <= log_flags.MOST[flag]:
            said.setdefault(flag, int(told.value))
    if unknown := next((name for name in given if name not in known), None):
        raise InputError(f"unknown flag {unknown!r}; those of a Deployment are accepted")
    for flag, value in given.items():
        most = log_flags.MOST.get(flag)
        if most is not None and value is not None and not (type(value) is int and 0 < value <= most):
            raise InputError(f"{flag} {value!r} is not a whole number from 1 to {most:,}")
    share = given.get("gpu_memory_utilization")
    if share is not None and not 0 < asked.number(share) <= 1:
        raise InputError(f"gpu_memory_utilization {share!r} is not a share above 0 and up to 1")
    version = given.pop("version", None) or log.version
    if engine == "vllm" and version is not None and given.get("version") is None:
        try:
            if ordered(version) < (0, 5, 0):  # a build from source calls itself 0.1.dev
                raise InputError(version)
        except InputError:
            work.assume(f"version {version[:40]!r} is of a build of one's own: the newest on record is taken")
            version = None
    elif version is None:
        work.assume("the log does not say its version: the newest on record is taken (--engine-version)")
    if not said.get("gpu_memory_utilization") and "gpu_memory_utilization" not in given:
        work.assume("the share of memory is the engine's default, as the log does not say it")
    merged = {**said, **{name: value for name, value in given.items() if value is not None}}
    merged.pop("engine", None)
    return Deployment(engine=engine, version=version, **merged)


def _model(log: StartupLog, given: str | None, work: Working) -> Resolved | None:
    """The model that was given, or that the log names; a name out of a log is never read as a path nor asked of the
    hub.
    """
    stored = str(log.flags.get("quantization") or "")
    if given is not None:
        try:
            found = resolve(given, stored)
        except CapplanError:
            return Resolved(asked.as_model(given), None)
        work.assume(*found.assumptions)
        return found
    names = [
        name for key in ("model", "served_model_name") if isinstance(name := log.flags.get(key), str) and name
    ]
    why = "the log names no model"
    for name in names:
        try:
            found = resolve(name, stored)
        except CapplanError as error:
            why = str(error)
        else:
            work.assume(*found.assumptions)
            return found
    work.warn(f"not predicted: {why}; give it with --model")
    return None


def _device(log: StartupLog, given: str | Gpu | None, work: Working) -> tuple[Device | None, str | None]:
    """The card, with the memory that the log says it has."""
    total, free = log.least("memory_bytes"), log.least("free_bytes")
    seen = total.value if total else None
    at_start = free.value if free and log.engine == "sglang" else None
    if given is not None:
        card = asked.as_gpu(given)
        return device_of(card, free_bytes=at_start), card.id
    if log.gpu is not None:
        found = None if "MIG" in log.gpu.split() else card_of(log.gpu)  # a part of one has its own memory
        if found is not None:
            return device_of(found, free_bytes=at_start), found.id
        work.warn(f"the GPU that the log names is not known: {log.gpu!r} (--gpu)")
    if seen:
        work.assume(
            f"the log names no GPU: one with the {gib(seen)} that it says, and an H100's kernels (--gpu)"
        )
        return Device(total_bytes=seen, free_bytes=at_start), None
    work.warn("not predicted: the log names no GPU that is known; give it with --gpu")
    return None, None


def _predict(
    log: StartupLog, resolved: Resolved, device: Device, deployment: Deployment, work: Working
) -> Predictions | None:
    """The join with the engines' budget."""
    model, towers = with_tower(resolved.model)
    flags = deployment
    if flags.quantization is None and resolved.quantization is not None:
        flags = replace(flags, quantization=resolved.quantization)
    weights, peak, total = (log.most(f"{name}_bytes") for name in ("weights", "activation", "memory"))
    given = {
        "weights_bytes": weights.value if weights else None,
        "activation_bytes": peak.value if peak else None,
    }
    seen = replace(device, total_bytes=total.value) if total else device
    try:
        alone = budget(model, device, flags)
        with_terms = budget(model, seen, flags, **given)
    except CapplanError as error:
        work.warn(f"not predicted: {error}")
        return None
    work.assume(*towers, *alone.assumptions)
    unpinned = replace(flags, kv_cache_memory_bytes=None)
    return Predictions(alone, with_terms, lambda kv: budget(model, seen, unpinned, **given, kv_bytes=kv))


# --- what was not read ------------------------------------------------------------------------------------------------


def _doubts(log: StartupLog, work: Working) -> None:
    """What was not read, or may be another than it seems."""
    if log.unread:
        where = ", ".join(f"{number:,}" for number in log.unread_lines[:5]) + (
            ", ..." if log.unread > 5 else ""
        )
        work.warn(
            f"lines with a known phrase that could not be read, cut short or worded anew: {log.unread:,} (line {where})"
        )
    if log.cut:
        work.warn(f"lines longer than what is read of a line, and cut: {log.cut:,}")
    if log.binary:
        work.warn(f"the log is not all text: {log.binary:,} null bytes")
    if log.stopped_at is not None:
        work.warn(
            f"there was no end to lines that look like a start-up: what follows line {log.stopped_at:,} was not read"
        )
    if log.longer:
        work.warn(f"the log is longer than what is read of one: what follows {gib(MOST)} was not read")
    if log.starts > 1:
        work.assume(f"the engine was started {log.starts} times in this log; the last start is told")
    weights = [each.value for each in log.all("weights_bytes")]
    if weights and max(weights) > 1.01 * min(weights):
        work.assume(
            f"ranks differ: weights of {gib(min(weights))} to {gib(max(weights))}; the largest is compared"
        )


def _unread(log: StartupLog) -> str:
    doubts = [f"{log.unread:,} could not be read"] if log.unread else []
    doubts += [f"{log.binary:,} null bytes"] if log.binary else []
    doubts += [f"{log.cut:,} were cut"] if log.cut else []
    return f" ({', '.join(doubts)})" if doubts else ""
