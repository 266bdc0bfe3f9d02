"""What are the constants of this engine on this machine? Fitted to a benchmark of the user's own, and tried on the rest."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from os import PathLike
from statistics import mean, median
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

from capplan import __version__
from capplan.calibration_file import SCHEMA, sealed
from capplan.capacity.answer import Answer, Working
from capplan.capacity.engines.deployment import Deployment
from capplan.capacity.questions import asked, perf
from capplan.capacity.questions.benchmark_files import Point, Runs, read_runs
from capplan.capacity.questions.deployed import Deployed
from capplan.capacity.questions.measured import read_table
from capplan.capacity.questions.throughput_rows import NEEDED, Case, case, measured
from capplan.capacity.step_time.calibration import CONSTANTS, METHOD
from capplan.capacity.step_time.chip import Chip
from capplan.capacity.step_time.engine_steps import Engine, engine_steps
from capplan.capacity.step_time.forward import Layout
from capplan.capacity.step_time.serving import closed_loop, open_loop
from capplan.errors import CapplanError, InputError
from capplan.models.resolve import resolve, with_tower
from capplan.models.spec import Model
from capplan.units import counted, seconds

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from capplan.hardware.spec import Gpu
    from capplan.report import Report

    Array = NDArray[Any]

FEWEST = 3  # points at loads or lengths of their own
_FOLDS = 10  # with more points than so many, some are left out together
_ROUNDS = 30
_NOISE = 0.05  # of a measured figure: two runs of one benchmark differ by a few per cent
# How far a constant may lie from the one shipped: one standard deviation, as a share of it, and at least so much (in
# seconds). Kernels are known better than what a server adds, which differs from release to release and host to host.
_PRIOR = {
    "step": (0.7, 300e-6),
    "sequence": (0.7, 5e-6),
    "slow": (0.2, 0.0),
    "prefill_slow": (0.3, 0.0),
    "request": (1.0, 20e-3),
}
_LEAST_SHARE = 0.2  # of a factor, as shipped: no kernels are five times as fast as those that were measured
_FAR = 2.0  # standard deviations, beyond which an error counts by its size and not by its square
# A constant was measured if its range shrank to so many standard deviations of its prior, or if so many of its own lie
# between it and the shipped one
_TELLS, _APART = 0.5, 2.0
_EIGHT_OF_TEN = 1.2816  # standard deviations
_COLUMNS = ("ttft", "tpot", "output")
_NAMES = {"ttft": "TTFT", "tpot": "TPOT", "output": "output tok/s"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Calibrate(Answer):
    """The constants of an engine that fit a benchmark, and the error before and after on points left out of the fit."""

    question: ClassVar[str] = "calibrate"

    points: int
    constants: tuple[dict[str, Any], ...]  # shipped and fitted, with the range; times in seconds
    before: dict[str, dict[str, float]]  # column -> median, mean, p90 of the absolute error, as shares
    after: dict[str, dict[str, float]]  # of each point, by the constants fitted to the others
    better: bool
    left_out: tuple[dict[str, str], ...]  # runs that could not be used, with the reason
    rows: tuple[dict[str, Any], ...]
    written: str | None = None  # the calibration file

    def sweep(self) -> list[dict[str, Any]]:
        return [dict(row) for row in self.rows]

    def report(self) -> Report:
        from capplan.report import Report, Table

        inputs = self.inputs
        what = (
            f"{inputs['engine']} with {inputs['model']} on {inputs['gpu']}, {counted(self.points, 'point')}"
        )
        before, after = (
            ", ".join(f"{_NAMES[name]} {_percent(errors[name]['median'])}" for name in errors)
            for errors in (self.before, self.after)
        )
        headline = f"{what}: off by {before} as shipped; {after} on points left out of the fit"
        tables = [
            Table(
                tuple(
                    (
                        _NAMES[name],
                        *(
                            _percent(errors[name][key])
                            for errors in (self.before, self.after)
                            for key in ("median", "p90")
                        ),
                    )
                    for name in _COLUMNS
                    if name in self.after
                ),
                ("off by", "shipped: median", "p90", "left out of the fit: median", "p90"),
            ),
            Table(
                tuple(
                    (
                        each["name"],
                        _figure(each, "shipped"),
                        _figure(each, "value"),
                        f"{_figure(each, 'low')} - {_figure(each, 'high')}",
                        "measured" if each["trust"] == "measured" else "the points say little",
                    )
                    for each in self.constants
                ),
                ("constant", "shipped", "fitted", "from - to", ""),
            ),
        ]
        if self.left_out:
            reasons = Counter(each["reason"] for each in self.left_out)
            told = tuple((f"{count:,}", reason) for reason, count in reasons.most_common(8))
            tables.append(Table(told, title=f"Not used: {counted(len(self.left_out), 'run')}", words=True))
        return Report(headline, tuple(tables), self.assumptions, self.warnings)


def _percent(share: float) -> str:
    return f"{100 * share:.3g}%"


def _figure(row: dict[str, Any], key: str) -> str:
    return seconds(row[key]) if row["unit"] == "s" else f"{row[key]:.4g}"


_Values = Sequence[float | None]  # ranks, isl, osl, load, most, together, and the three that were measured


class _Group(NamedTuple):
    """Points of one layout that are predicted at once."""

    plan: Layout
    chip: Chip
    engine: Engine  # as shipped, with the budget of its deployment
    open: bool  # requests come at a rate of their own
    ranks: Array
    isl: Array
    osl: Array
    load: Array  # of one rank
    most: Array
    together: Array
    logs: Array  # logarithm of what was measured [points, columns]; nan where it was not
    origins: tuple[str, ...]


def calibrate(
    paths: Sequence[str | PathLike[str]],
    model: str | Model,
    gpu: str | Gpu,
    deployment: Deployment | None = None,
    *,
    tp: int | None = None,
) -> tuple[Calibrate, dict[str, Any]]:
    """The constants of an engine that fit a benchmark, and the calibration file that they make.

    paths: files or folders of benchmarks (benchmark_files), or one CSV with the columns of
    `validate performance`, of which the rows of this model, GPU and engine are used.
    deployment: as of perf; the engine is the one that the files name where it is None.

    Raises UnknownNameError, DataFileError, InputError; the last with fewer than three points that differ.
    """
    spec, card = asked.as_model(model), asked.as_gpu(gpu)
    spec, towers = with_tower(spec)
    work = Working()
    work.assume(*asked.assumed_of(spec), *towers)
    if not paths:
        raise InputError("no file given; name a benchmark")
    if len(paths) == 1 and str(paths[0]).lower().endswith(".csv"):
        flags = deployment or Deployment()
        groups, left_out = _rows_of(paths[0], spec, card, flags.engine)
        tool = "csv"
    else:
        runs = read_runs(paths)
        flags = deployment or Deployment(engine=_engine_of(runs))
        _told_of(runs, spec, flags, work)
        longest = max((round(p.isl + p.osl) for p in runs.points), default=2)
        found = perf.placed(spec, card, flags, longest, tp, work)
        if (why_not := perf.refused(found, longest)) is not None:
            raise InputError(
                f"{spec.id} on {found.gpus} x {card.id} does not fit: {why_not}; --tp is accepted"
            )
        work.assume(*found.assumptions)
        groups, left_out = _points_of(runs.points, found), list(runs.left_out)
        tool = ", ".join(sorted({point.tool for point in runs.points}))
    settings = {key for group in groups for key in _settings(group)}
    if len(settings) < FEWEST:
        reasons = f"; not used: {left_out[0][0]}: {left_out[0][1]}" if left_out else ""
        raise InputError(
            f"{counted(len(settings), 'point')} that {'differs' if len(settings) == 1 else 'differ'} in load or length "
            f"in {_named(paths)}; a calibration needs {FEWEST} or more{reasons}"
        )
    fit = _fit(groups)
    before, after = _errors(groups, _start()), _left_out_errors(groups, fit)
    better = _sum(after) < _sum(before)
    if not better:
        work.warn("on points left out, the fitted constants are no better than the shipped ones: keep those")
    work.assume(
        f"fitted: {', '.join(CONSTANTS)}; every other constant is as shipped (engine_steps.toml)",
        "a fit is held to the shipped constants as far as the points allow: what they don't tell apart stays put",
    )
    constants = _constants(groups, fit)
    for each in constants:
        unit = "second" if each["unit"] == "s" else "-"
        work.read(f"{flags.engine}.{each['name']} as shipped", each["shipped"], unit, "engine_steps.toml")
    answer = Calibrate(
        inputs={
            "files": [str(path) for path in paths],
            "benchmark": tool,
            "model": spec.id,
            "gpu": card.id,
            "engine": flags.engine,
            "engine_version": flags.version,
        },
        points=sum(len(group.origins) for group in groups),
        constants=tuple(constants),
        before=before,
        after=after,
        better=better,
        left_out=tuple({"origin": origin, "reason": reason} for origin, reason in left_out),
        rows=tuple(_rows(groups, fit.at)),
        **work.shown(),
    )
    return answer, _document(answer, card)


def _named(paths: Sequence[str | PathLike[str]]) -> str:
    return repr(str(paths[0])) if len(paths) == 1 else f"{len(paths):,} files"


def _engine_of(runs: Runs) -> str:
    """The engine that a benchmark says it talked to; vLLM where it says nothing."""
    told = {"sglang" for point in runs.points if point.backend.startswith("sglang")}
    return "sglang" if told else "vllm"


def _told_of(runs: Runs, spec: Model, flags: Deployment, work: Working) -> None:
    """Warn where the files speak of another model or engine than is asked for."""
    for name in sorted({point.model for point in runs.points if point.model}):
        try:
            same = resolve(name).model.id == spec.id
        except CapplanError:
            same = True  # a name of the user's own
        if not same:
            work.warn(f"the benchmark is of model {name!r}, and {spec.id} is asked for")
    if flags.engine != "sglang" and _engine_of(runs) == "sglang":
        work.warn(f"the benchmark talked to SGLang, and {flags.engine} is asked for")


# --- points ---------------------------------------------------------------------------------------------------


def _points_of(points: Sequence[Point], found: Deployed) -> list[_Group]:
    """The points of files, of one deployment."""
    groups = []
    for is_open in (False, True):
        kept = [point for point in points if (point.concurrency is None) == is_open]
        if kept:
            rows = [
                (
                    float(found.ranks),
                    point.isl,
                    point.osl,
                    float((point.rate if is_open else point.concurrency) or 0.0),
                    found.most(point.isl + point.osl),
                    point.first if found.engine.mixed or not point.alike else found.engine.together,
                    point.ttft,
                    point.tpot,
                    point.output,
                )
                for point in kept
            ]
            origins = tuple(point.origin for point in kept)
            groups.append(_group(found.plan, found.chip, found.engine, is_open, rows, origins))
    return groups


def _rows_of(
    path: str | PathLike[str], spec: Model, card: Gpu, engine: str
) -> tuple[list[_Group], list[tuple[str, str]]]:
    """The rows of a CSV that are of this model, GPU and engine; the others with the reason."""
    parts: dict[tuple[int, float, bool], tuple[tuple[Case, Engine], list[_Values], list[str]]] = {}
    left_out: list[tuple[str, str]] = []
    for number, row in enumerate(read_table(path, NEEDED), start=2):
        origin = row.get("case_id", "").strip()[:80] or f"line {number}"
        try:
            one = case(row)
            if (one.model, one.chip.name, one.engine) != (spec.id, card.id, engine):
                raise InputError(f"{one.engine} with {one.model} on {one.chip.name}")
            if one.prefill is not None or (one.concurrency is None and one.rate is None):
                raise InputError("neither concurrency nor rate is said, or prefill is apart")
            figures = measured(row)
            ttft, tpot, output = (
                figures["ttft_ms_central"] or figures["ttft_ms_p50"],
                figures["tpot_ms_central"] or figures["tpot_ms_p50"],
                figures["output_tok_s_total"],
            )
            if not (ttft or tpot or output):
                raise InputError("it has no time to first token, no time per output token and no throughput")
        except InputError as error:
            left_out.append((origin, str(error)))
            continue
        steps = engine_steps(engine)._replace(poll=one.poll)
        values = (
            float(one.pool.ranks),
            one.isl,
            one.osl,
            one.concurrency or one.rate,
            one.pool.most,
            steps.together if one.alike and not steps.mixed else 1 / one.requests_per_place,
            ttft and ttft * 1e-3,
            tpot and tpot * 1e-3,
            output,
        )
        key = (id(one.pool.plan), one.poll, one.concurrency is None)
        _, rows, origins = parts.setdefault(key, ((one, steps), [], []))
        rows.append(values)
        origins.append(origin)
    groups = [
        _group(one.pool.plan, one.chip, steps, is_open, rows, tuple(origins))
        for (_, _, is_open), ((one, steps), rows, origins) in parts.items()
    ]
    return groups, left_out


def _group(
    plan: Layout,
    chip: Chip,
    engine: Engine,
    is_open: bool,
    rows: Sequence[_Values],
    origins: tuple[str, ...],
) -> _Group:
    import numpy as np

    table = np.array([[np.nan if cell is None else cell for cell in row] for row in rows], dtype=float)
    ranks, isl, osl, load, most, together = table[:, :6].T
    load = load / ranks if is_open else np.maximum(load / ranks, 1.0)
    return _Group(
        plan, chip, engine, is_open, ranks, isl, osl, load, most, together, np.log(table[:, 6:]), origins
    )


def _settings(group: _Group) -> list[tuple[float, ...]]:
    """What tells the points of a group apart: lengths and load, and the layout."""
    told = zip(group.isl.round(), group.osl.round(), group.load, strict=True)
    return [(id(group.plan), group.open, *each) for each in told]


# --- the fit --------------------------------------------------------------------------------------------------


class _Fit(NamedTuple):
    at: Array  # what each constant is more than the shipped one, in standard deviations of its prior
    spread: Array  # standard deviation of that


def _scale(group: _Group, name: str) -> float:
    """One standard deviation of a constant's prior, in its own unit."""
    share, least = _PRIOR[name]
    shipped = float(getattr(group.engine, name))
    if (
        name == "step"
    ):  # of all that a pass costs whatever its tokens: one model can't tell it from its layers'
        shipped += group.engine.layer * len(group.plan.model.layers)
    return max(share * shipped, least)


def _value(group: _Group, name: str, at: float) -> float:
    return float(getattr(group.engine, name)) + at * _scale(group, name)


def _bounds(group: _Group) -> Array:
    """The least that a fit may go to: no time is below nought, no factor far below the shipped one."""
    import numpy as np

    shipped = [float(getattr(group.engine, name)) for name in CONSTANTS]
    kept = [0.0 if unit == "s" else _LEAST_SHARE for unit in CONSTANTS.values()]
    scales = [_scale(group, name) for name in CONSTANTS]
    return np.array([(k - 1) * one / scale for k, one, scale in zip(kept, shipped, scales, strict=True)])


def _with(group: _Group, at: Array) -> Engine:
    changed = {name: _value(group, name, float(each)) for name, each in zip(CONSTANTS, at, strict=True)}
    return group.engine._replace(**changed)  # type: ignore[arg-type]


def _predicted(group: _Group, at: Array) -> Array:
    """Logarithms of TTFT, TPOT and output tok/s [points, columns]."""
    import numpy as np

    engine = _with(group, at)
    if group.open:
        found = open_loop(
            group.plan, group.chip, engine, isl=group.isl, osl=group.osl, rate=group.load, most=group.most
        )
    else:
        found = closed_loop(
            group.plan,
            group.chip,
            engine,
            isl=group.isl,
            osl=group.osl,
            concurrency=group.load,
            most=group.most,
            together=group.together,
        )
    output = found.requests_per_s * group.osl * group.ranks
    logs: Array = np.log(np.stack([found.ttft, found.tpot, output], axis=1))
    return logs


def _off(groups: Sequence[_Group], at: Array) -> Array:
    """Logarithm of predicted over measured [points, columns]; nan where nothing was measured."""
    import numpy as np

    return np.concatenate([_predicted(group, at) - group.logs for group in groups])


def _start() -> Array:
    """The shipped constants."""
    import numpy as np

    return np.zeros(len(CONSTANTS))


def _fit(groups: Sequence[_Group], kept: Array | None = None, near: Array | None = None) -> _Fit:
    """The constants nearest to the shipped ones that explain the points: Gauss-Newton on the logarithms of what was
    measured, with a prior. What is far off has less weight (Huber): a point, as the first run of a cold server is; and
    the prior of a time that all points speak against, as of a server without graphs.

    kept: which points to look at; all of them when None. near: where to start from.
    """
    import numpy as np

    at = _start() if near is None else near
    least = _bounds(groups[0])

    def off(at: Array) -> Array:
        found = _off(groups, at)
        return (found if kept is None else found[kept]).ravel()

    there = np.isfinite(off(at))

    far = np.array([_FAR if unit == "s" else np.inf for unit in CONSTANTS.values()])

    def huber(size: Array, far: Array | float) -> float:
        return float(np.where(size <= far, size**2, 2 * np.minimum(far, size) * size - far**2).sum())

    def weight(size: Array, far: Array | float) -> Array:
        return np.minimum(1.0, far / np.maximum(np.abs(size), 1e-12))

    def loss(at: Array) -> float:
        return huber(np.abs(off(at)[there]) / _NOISE, _FAR) + huber(np.abs(at), far)

    def slopes_at(at: Array) -> Array:
        here = off(at)[there]
        return np.stack([(off(at + 1e-4 * unit)[there] - here) / 1e-4 for unit in np.eye(len(at))], axis=1)

    now = loss(at)
    for _ in range(_ROUNDS):
        here, slopes = off(at)[there], slopes_at(at)
        points, prior = weight(here / _NOISE, _FAR) / _NOISE**2, weight(at, far)
        down = slopes.T @ (points * here) + prior * at
        free = (at > least) | (down < 0)  # the others stand at their bound, and would go past it
        curve = slopes.T @ (points[:, None] * slopes) + np.diag(prior)
        step = np.zeros(len(at))
        step[free] = np.linalg.solve(curve[np.ix_(free, free)], down[free])
        size = 1.0
        while size > 1e-3 and loss(np.maximum(at - size * step, least)) > now:
            size /= 2
        tried = np.maximum(at - size * step, least)
        after = loss(tried)
        if after >= now:
            break
        done, at, now = after > now * (1 - 1e-4), tried, after
        if done:
            break
    here, slopes = off(at)[there], slopes_at(at)
    # the median of a normal error is 0.6745 of its standard deviation
    noise = max(_NOISE, float(np.median(np.abs(here))) / 0.6745)
    curve = slopes.T @ slopes / noise**2 + np.eye(len(at))
    return _Fit(at, np.sqrt(np.diag(np.linalg.inv(curve))))


def _left_out_errors(groups: Sequence[_Group], whole: _Fit) -> dict[str, dict[str, float]]:
    """The error of every point, by constants that were fitted without it, nor any of the same load and lengths.

    whole: the fit to all points, near which each of these is looked for.
    """
    import numpy as np

    settings = [key for group in groups for key in _settings(group)]
    different = sorted(set(settings))
    folds = min(_FOLDS, len(different))
    fold_of = {key: place % folds for place, key in enumerate(different)}
    fold = np.array([fold_of[key] for key in settings])
    found = np.full((len(settings), len(_COLUMNS)), np.nan)
    for out in range(folds):
        fit = _fit(groups, kept=fold != out, near=whole.at)
        found[fold == out] = _off(groups, fit.at)[fold == out]
    return _statistics(found)


def _errors(groups: Sequence[_Group], at: Array) -> dict[str, dict[str, float]]:
    return _statistics(_off(groups, at))


def _statistics(off: Array) -> dict[str, dict[str, float]]:
    """Median, mean and p90 of the absolute error of each column, as shares of what was measured."""
    import numpy as np

    found = {}
    for name, column in zip(_COLUMNS, np.abs(np.exp(off.T) - 1), strict=True):
        there = sorted(float(each) for each in column[np.isfinite(column)])
        if there:
            found[name] = {
                "points": len(there),
                "median": median(there),
                "mean": mean(there),
                "p90": float(np.quantile(there, 0.9)),
            }
    return found


def _sum(errors: dict[str, dict[str, float]]) -> float:
    return sum(each["mean"] for each in errors.values())


# --- what is told, and written --------------------------------------------------------------------------------


def _constants(groups: Sequence[_Group], fit: _Fit) -> list[dict[str, Any]]:
    group, told = groups[0], []
    points = sum(len(group.origins) for group in groups)
    for (name, unit), at, spread in zip(CONSTANTS.items(), fit.at, fit.spread, strict=True):
        value, side = _value(group, name, float(at)), _EIGHT_OF_TEN * float(spread) * _scale(group, name)
        told.append(
            {
                "name": name,
                "unit": unit,
                "shipped": float(getattr(group.engine, name)),
                "value": value,
                "low": max(0.0, value - side),
                "high": value + side,
                "points": points,
                "trust": "measured" if spread < _TELLS or abs(at) > _APART * spread else "default",
            }
        )
    return told


def _rows(groups: Sequence[_Group], at: Array) -> list[dict[str, Any]]:
    """Every point: what was measured, and what the shipped and the fitted constants give for it."""
    import numpy as np

    found = []
    for group in groups:
        shipped, fitted = (np.exp(_predicted(group, each)) for each in (_start(), at))
        for place, origin in enumerate(group.origins):
            row: dict[str, Any] = {
                "origin": origin,
                "isl": float(group.isl[place]),
                "osl": float(group.osl[place]),
                "concurrency": None if group.open else float(group.load[place] * group.ranks[place]),
                "rate": float(group.load[place] * group.ranks[place]) if group.open else None,
            }
            for column, name in enumerate(("ttft_s", "tpot_s", "output_tokens_per_s")):
                measured_at = float(np.exp(group.logs[place, column]))
                row[f"measured_{name}"] = measured_at if np.isfinite(measured_at) else None
                row[f"shipped_{name}"] = float(shipped[place, column])
                row[f"fitted_{name}"] = float(fitted[place, column])
            found.append(row)
    return found


def _document(answer: Calibrate, card: Gpu) -> dict[str, Any]:
    """The calibration file: schema capplan.calibration/1, with the parts that a benchmark from outside fills."""

    def value(figure: float, unit: str, low: float, high: float, trust: str = "measured") -> dict[str, Any]:
        return {
            "value": figure,
            "unit": unit,
            "lo": low,
            "hi": high,
            "n": answer.points,
            "from": ["benchmark"],
            "trust": trust,
        }

    model_ = {
        each["name"]: value(each["value"], each["unit"], each["low"], each["high"], each["trust"])
        for each in answer.constants
    }
    for name in _COLUMNS:
        seen = name in answer.after
        errors = answer.after.get(name) or {
            "median": max(each["median"] for each in answer.after.values()),
            "p90": max(e["p90"] for e in answer.after.values()),
        }
        for key in ("median", "p90"):
            model_[f"{name}_error_{key}"] = value(
                errors[key], "1", errors[key], errors[key], "measured" if seen else "default"
            )
    document = {
        "schema": SCHEMA,
        "method_version": METHOD,
        "capplan_version": __version__,
        "created_utc": datetime.now(UTC).isoformat(timespec="seconds"),
        "profile": "benchmark",
        "duration_s": None,
        "seed": None,
        "label": None,
        "model": answer.inputs["model"],
        "engine": {"name": answer.inputs["engine"], "version": answer.inputs["engine_version"]},
        "device": {
            "kind": {"nvidia": "cuda", "amd": "rocm"}.get(card.vendor, card.vendor),
            "name": card.name,
            "arch": f"sm_{card.compute_capability.replace('.', '')}"
            if card.compute_capability
            else card.architecture,
            "uuid_sha256_16": None,
            "sku_guess": card.id,
            "sku_match": "none",
            "sm_count": card.sm_count,
            "mem_total_bytes": card.memory_visible_bytes,
        },
        "spec": {
            "source": f"capplan gpus {card.id}",
            "peak_flops_dense": card.dense_flops,
            "hbm_bps": card.memory_bandwidth,
        },
        "stack": {},
        "telemetry": None,
        "results": [
            {
                "probe": "benchmark",
                "version": 1,
                "status": "pass",
                "reason": None,
                "case": {key: row[key] for key in ("origin", "isl", "osl", "concurrency", "rate")},
                "time_s": {"ttft": row["measured_ttft_s"], "tpot": row["measured_tpot_s"]},
                "achieved": {"output_tokens_ps": row["measured_output_tokens_per_s"]},
                "predicted_s": {"ttft": row["fitted_ttft_s"], "tpot": row["fitted_tpot_s"]},
            }
            for row in answer.rows
        ],
        "derived": {"step_model": model_},
        "quality": {"verdict": "ok" if answer.better else "degraded", "warnings": list(answer.warnings)},
    }
    return sealed(document)


def noted(answer: Calibrate, path: str | PathLike[str]) -> Calibrate:
    """The answer, with where its calibration was written."""
    return replace(answer, written=str(path))
