"""How far are predicted latencies and throughputs off? Published benchmarks, each predicted from its inputs alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from os import PathLike
from pathlib import Path
from statistics import median, quantiles
from typing import TYPE_CHECKING, Any, ClassVar

from capplan.capacity.answer import Answer
from capplan.capacity.questions import throughput_rows as read
from capplan.capacity.questions.measured import Row, read_table
from capplan.capacity.questions.throughput_rows import Case
from capplan.capacity.step_time.engine_steps import Engine, engine_steps, fitted_families
from capplan.capacity.step_time.serving import Serving, closed_loop, disaggregated, full_load, open_loop
from capplan.errors import CapplanError
from capplan.registry import read_toml

if TYPE_CHECKING:
    from capplan.report import Report, Table

GROUPS = ("engine", "gpu", "model", "scenario")
# what is scored, and the measured columns it is read from, the first that a row has
SCORED = {
    "tpot": ("tpot_ms_central", "tpot_ms_p50"),
    "ttft": ("ttft_ms_central", "ttft_ms_p50"),
    "throughput": ("output_tok_s_total", "tok_s_per_gpu"),
}
COLD_START = "cold start"
_COLD = 2.0  # times what all requests one after another would take, and a second at least
_MOST_BATCH = 2048.0  # sequences of an offline run, as the benchmarks of TensorRT-LLM allow
_ASSUMED = (
    "fixed concurrency: a new request comes when one leaves; ten requests a place are counted, the first of them "
    + "all at once, as the published scripts do",
    "a blank cache format is the one that the benchmark's published scripts set, else the engine's default",
    "groups of rows that are suspected are predicted like all others, and scored apart",
)


# --- a case ---------------------------------------------------------------------------------------------------


def served(case: Case, engine: Engine | None = None) -> tuple[Serving, float]:
    """What a replica does, and how many data-parallel ranks do so."""
    engine = (engine or engine_steps(case.engine))._replace(poll=case.poll)
    pool, lengths = case.pool, {"isl": case.isl, "osl": case.osl}
    first = 1 / case.requests_per_place
    if case.prefill is not None and case.concurrency is not None:
        found = disaggregated(
            pool.plan,
            case.prefill.plan,
            case.chip,
            engine,
            **lengths,
            concurrency=case.concurrency,
            decode_ranks=pool.ranks,
            prefill_ranks=case.prefill.ranks,
            most=pool.most,
            together=first,
        )
        return found, 1.0
    if case.rate is not None:
        rate = case.rate / pool.ranks
        return open_loop(pool.plan, case.chip, engine, **lengths, rate=rate, most=pool.most), pool.ranks
    if case.concurrency is None:
        batch = min(pool.most, _MOST_BATCH)
        return full_load(pool.plan, case.chip, engine, **lengths, batch=batch), pool.ranks
    together = engine.together if case.alike and not engine.mixed else first
    found = closed_loop(
        pool.plan,
        case.chip,
        engine,
        **lengths,
        concurrency=case.concurrency / pool.ranks,
        most=pool.most,
        together=together,
    )
    return found, pool.ranks


def predicted(case: Case, engine: Engine | None = None) -> dict[str, float | None]:
    """The measured columns, predicted; percentiles beyond the median are a simulator's."""
    found, ranks = served(case, engine)
    gpus = case.pool.gpus + (case.prefill.gpus if case.prefill else 0)
    output = found.requests_per_s * ranks * case.osl
    timed = case.concurrency is not None or case.rate is not None
    ttft, tpot = (found.ttft * 1e3, found.tpot * 1e3) if timed else (None, None)
    return {
        "output_tok_s_total": output,
        "total_tok_s": found.requests_per_s * ranks * (case.isl + case.osl),
        "tok_s_per_gpu": output / gpus,
        "tok_s_per_user": 1 / found.tpot,
        "ttft_ms_p50": ttft,
        "ttft_ms_p99": None,
        "tpot_ms_p50": tpot,
        "tpot_ms_p99": None,
        "ttft_ms_central": ttft,
        "tpot_ms_central": tpot,
    }


# --- the answer -----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class ValidatePerformance(Answer):
    """Published benchmarks against capplan: time to first token, time per output token, throughput."""

    question: ClassVar[str] = "validate-performance"

    row_count: int
    covered_count: int
    by_column: dict[
        str, dict[str, Any]
    ]  # tpot, ttft, throughput -> rows, median, mean, p90, bias; none suspected
    in_fit: dict[str, dict[str, Any]]  # of those, rows of a model and GPU that constants were fitted to
    left_out: dict[str, dict[str, Any]]  # and all others
    with_suspects: dict[str, dict[str, Any]]
    suspect: tuple[
        dict[str, Any], ...
    ]  # groups that are wrong or incomplete at the source, with the evidence
    by_group: dict[
        str, dict[str, dict[str, dict[str, Any]]]
    ]  # engine, gpu, model, scenario -> name -> column
    not_covered: dict[str, int]  # reason -> rows
    worst: tuple[dict[str, Any], ...]
    rows: tuple[dict[str, Any], ...]

    def sweep(self) -> list[dict[str, Any]]:
        return [
            {
                **{key: row[key] for key in ("case_id", "covered", "reason", "suspect")},
                **{f"predicted_{name}": each for name, each in row["predicted"].items()},
                **{f"measured_{name}": each for name, each in row["measured"].items()},
            }
            for row in self.rows
        ]

    def report(self) -> Report:
        from capplan.report import Report, Table

        errors = ", ".join(
            f"{_LABELS[name]} off by {_percent(found['median'])} in the median"
            for name, found in self.by_column.items()
        )
        headline = f"{self.row_count:,} benchmark rows: {self.covered_count:,} covered" + (
            f"; {errors}" if errors else ""
        )
        tables = [_errors("rows", self.by_column)]
        if self.left_out and self.in_fit:
            tables += [
                _errors("model and GPU in the fit", self.in_fit),
                _errors("neither", self.left_out),
            ]
        if self.suspect:
            tables.append(_errors("suspects included", self.with_suspects))
            told = tuple(
                (
                    each["id"],
                    f"{each['rows']:,}",
                    ", ".join(f"{name} {100 * bias:+.0f}%" for name, bias in each["bias"].items()),
                )
                for each in self.suspect
            )
            tables.append(Table(told, ("suspect group", "rows", "bias")))
            tables.append(
                Table(tuple((each["id"], each["evidence"]) for each in self.suspect), title="Why", words=True)
            )
        for group in ("engine", "gpu"):
            if len(self.by_group[group]) > 1:
                tables.append(_by(group, self.by_group[group]))
        if self.worst:
            rows = tuple(
                (each["case_id"], each["column"], f"{each['predicted']:.4g}", f"{each['measured']:.4g}")
                for each in self.worst[:5]
            )
            tables.append(Table(rows, ("furthest off", "column", "predicted", "measured")))
        if self.not_covered:
            reasons = sorted(self.not_covered.items(), key=lambda item: -item[1])
            why = tuple((f"{count:,}", reason) for reason, count in reasons[:8])
            uncovered = self.row_count - self.covered_count
            tables.append(Table(why, title=f"Not covered: {uncovered:,} rows", words=True))
        return Report(headline, tuple(tables), self.assumptions, self.warnings)


_LABELS = {"tpot": "TPOT", "ttft": "TTFT", "throughput": "throughput"}


def _percent(share: float | None) -> str:
    return "-" if share is None else f"{100 * share:.3g}%"


def _errors(title: str, columns: Mapping[str, Mapping[str, Any]]) -> Table:
    from capplan.report import Table

    rows = tuple(
        (
            _LABELS[name],
            f"{found['rows']:,}",
            *(_percent(found[key]) for key in ("median", "mean", "p90")),
            f"{100 * found['bias']:+.3g}%",
        )
        for name, found in columns.items()
    )
    return Table(rows, (title, "rows", "median", "mean", "p90", "bias"))


def _by(noun: str, groups: Mapping[str, Mapping[str, Mapping[str, Any]]]) -> Table:
    from capplan.report import Table

    rows = tuple(
        (name, *(_percent(found[column]["median"]) if column in found else "-" for column in SCORED))
        for name, found in groups.items()
    )
    return Table(rows, (f"{noun}, median", *_LABELS.values()))


def validate_performance(path: str | PathLike[str]) -> ValidatePerformance:
    """Predicts every published benchmark of a CSV from its inputs, and says how far off that is.

    path: a file with the columns of throughput_measured.csv: engine, model, gpu and scenario (fixed-concurrency,
    single-stream, offline-max-throughput, server-slo), tp, pp, dp, ep, n_gpus, weight_dtype, kv_dtype, isl, osl [token],
    concurrency, notes, and the measured ones. What was measured is compared, never read for a prediction.

    Raises DataFileError for a file that can't be read or that lacks those columns.
    """
    rows = [_scored(row, number) for number, row in enumerate(read_table(path, read.NEEDED), start=1)]
    covered = [row for row in rows if row["covered"]]
    reasons: dict[str, int] = {}
    for row in rows:
        if not row["covered"]:
            reasons[row["reason"]] = reasons.get(row["reason"], 0) + 1
    known = [row for row in covered if row["inputs"]["in_fit"]]
    return ValidatePerformance(
        inputs={"path": str(path), "kind": "performance"},
        row_count=len(rows),
        covered_count=len(covered),
        by_column=_by_column(covered),
        in_fit=_by_column(known),
        left_out=_by_column([row for row in covered if not row["inputs"]["in_fit"]]),
        with_suspects=_by_column(covered, suspects=True),
        suspect=_suspects(covered),
        by_group={
            group: {
                name: found
                for name in sorted({str(row["inputs"][group]) for row in covered})
                if (found := _by_column([row for row in covered if str(row["inputs"][group]) == name]))
            }
            for group in GROUPS
        },
        not_covered=reasons,
        worst=tuple(_worst(covered)),
        rows=tuple(rows),
        assumptions=_ASSUMED,
    )


# --- one row --------------------------------------------------------------------------------------------------


def _scored(row: Row, number: int) -> dict[str, Any]:
    """Prediction beside measurement; or why there is no prediction."""
    measured = read.measured(row)
    found: dict[str, Any] = {
        "case_id": row.get("case_id") or f"row {number}",
        "covered": False,
        "reason": None,
        "suspect": None,
        "doubted": [],
        "inputs": {},
        "predicted": {},
        "measured": measured,
    }
    try:
        case = read.case(row)
        columns = predicted(case)
    except CapplanError as error:
        return {**found, "reason": str(error)}
    suspect, doubted = _suspected(row, case, measured)
    family = (case.engine, case.model, case.chip.name)
    inputs = {
        "engine": case.engine,
        "gpu": case.chip.name,
        "model": case.model,
        "scenario": case.scenario,
        "in_fit": family in fitted_families(),
        "assumptions": case.assumptions,
    }
    return {
        **found,
        "covered": True,
        "suspect": suspect,
        "doubted": doubted,
        "inputs": inputs,
        "predicted": columns,
    }


@cache
def _groups() -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = read_toml(Path(__file__).with_name("suspect_rows.toml"))["suspect"]
    return found


def _suspected(row: Row, case: Case, measured: Mapping[str, float | None]) -> tuple[str | None, list[str]]:
    """The group of suspects that a row belongs to, and which of its columns are in doubt."""
    for group in _groups():
        if (
            all(words in row.get("notes", "") for words in group.get("notes", []))
            and group.get("model", "") in row["model"]
            and group.get("version", "") in row.get("engine_version", "")
            and group.get("engine", case.engine) == case.engine
            and case.chip.name.startswith(group.get("gpu", ""))
            and group.get("concurrency", case.concurrency) == case.concurrency
            and group.get("ranks", 1) <= case.pool.plan.tp
        ):
            return group["id"], list(group["columns"])
    ttft = measured["ttft_ms_central"]
    if (
        ttft is not None
        and case.concurrency is not None
        and ttft > max(1e3, _COLD * _one_after_another(case))
    ):
        return COLD_START, ["ttft"]
    return None, []


def _one_after_another(case: Case) -> float:
    """Milliseconds until the last of all prompts at once is through, with decoding between them."""
    found, ranks = served(case)
    each = found.prefill_share / found.requests_per_s
    places = (case.concurrency or 1.0) / ranks
    return float(1e3 * max(found.ttft, places * each))


# --- the score ------------------------------------------------------------------------------------------------


def _compared(row: Mapping[str, Any], name: str) -> tuple[str, float, float] | None:
    """The column that a row is scored by, predicted and measured; None where there is nothing to compare."""
    if name == "throughput" and row["measured"].get("tpot_ms_central") is not None:
        return None  # it follows from the latencies, and would count twice
    for column in SCORED[name]:
        forecast, truth = row["predicted"].get(column), row["measured"].get(column)
        if forecast is not None and truth is not None and truth > 0:
            return column, forecast, truth
    return None


def _by_column(rows: Sequence[Mapping[str, Any]], *, suspects: bool = False) -> dict[str, dict[str, Any]]:
    found = {}
    for name in SCORED:
        errors = [
            forecast / truth - 1
            for row in rows
            if (suspects or name not in row["doubted"]) and (pair := _compared(row, name))
            for _, forecast, truth in [pair]
        ]
        if errors:
            found[name] = _scores(errors)
    return found


def _scores(errors: Sequence[float]) -> dict[str, Any]:
    sizes = sorted(abs(error) for error in errors)
    return {
        "rows": len(sizes),
        "median": median(sizes),
        "mean": sum(sizes) / len(sizes),
        "p90": quantiles(sizes, n=10, method="inclusive")[-1] if len(sizes) > 1 else sizes[0],
        "bias": median(errors),
    }


def _suspects(rows: Sequence[Mapping[str, Any]]) -> tuple[dict[str, Any], ...]:
    """Every group that has rows, with how far its doubted columns are off."""
    evidence = {group["id"]: group["evidence"] for group in _groups()}
    evidence[COLD_START] = (
        f"TTFT is above a second and {_COLD:g} times what all prompts one after another would take: kernels are compiled or "
        "tuned, or graphs captured, while the first requests wait"
    )
    found = []
    for name, why in evidence.items():
        group = [row for row in rows if row["suspect"] == name]
        doubted = {column for row in group for column in row["doubted"]}
        scores = _by_column(group, suspects=True)
        if group:
            bias = {
                column: scores[column]["bias"] for column in SCORED if column in doubted and column in scores
            }
            found.append({"id": name, "rows": len(group), "bias": bias, "evidence": why})
    return tuple(found)


def _worst(rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The rows furthest off by ratio, each by its worst column; none that is suspected."""
    found = []
    for row in rows:
        pairs = [pair for name in SCORED if name not in row["doubted"] and (pair := _compared(row, name))]
        if pairs:
            column, forecast, truth = max(pairs, key=lambda pair: _ratio(pair[1], pair[2]))
            found.append(
                {
                    "case_id": row["case_id"],
                    "column": column,
                    "predicted": forecast,
                    "measured": truth,
                    "relative_error": forecast / truth - 1,
                }
            )
    return sorted(found, key=lambda each: -_ratio(each["predicted"], each["measured"]))[:10]


def _ratio(forecast: float, truth: float) -> float:
    return max(forecast / truth, truth / forecast)
