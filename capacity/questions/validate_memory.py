"""How far are the predicted start-up logs off? Published ones, each predicted from its inputs alone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from os import PathLike
from statistics import median, quantiles
from typing import TYPE_CHECKING, Any, ClassVar

from capplan.capacity.answer import Answer
from capplan.capacity.engines.budget import Budget, budget
from capplan.capacity.engines.device import GIB
from capplan.capacity.questions import memory_rows as read
from capplan.capacity.questions.measured import Row, read_table, value
from capplan.errors import CapplanError, UnknownNameError
from capplan.models.spec import Part

if TYPE_CHECKING:
    from capplan.report import Report, Table

GROUPS = ("engine", "version", "gpu", "model", "inputs")
GIVEN = ("m_weights_gib_per_gpu", "m_activation_peak_gib", "m_kv_gib_per_gpu")
_SMALL_GROUP = 3  # rows that a group needs to be suspected
_ASSUMED = (
    "flags that are blank are the engine's defaults of that version",
    "a version that is blank is the one that was current on the row's day",
    "flags without a column are read from the notes: decode context parallel, SGLang's and TensorRT-LLM's share, "
    + "memory free at start, a pinned pool",
    "a block size that no user asks for is the one that the engine made of a hybrid's states, and taken as it is",
    "rows marked LOWCONF are scored apart; rows marked PINNED are not scored",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ValidateMemory(Answer):
    """Published start-up logs against capplan's: weights, cache, tokens, concurrency, and what starts."""

    question: ClassVar[str] = "validate-memory"

    row_count: int
    covered_count: int
    by_column: dict[str, dict[str, Any]]  # column -> rows, median, p90, bias: of rows that are fully stated
    low_confidence: dict[str, dict[str, Any]]  # the same for rows marked LOWCONF
    derived: dict[
        str, dict[str, Any]
    ]  # bytes_per_token where layers are alike, concurrency where they are not
    starts: dict[str, Any]  # failures, those called, false alarms: of stated rows
    low_confidence_starts: dict[str, Any]
    by_group: dict[
        str, dict[str, dict[str, Any]]
    ]  # engine, version, gpu, model, whether all inputs are said -> name -> error of the cache
    suspect: tuple[dict[str, Any], ...]  # groups that are off to one side
    not_covered: dict[str, int]  # reason -> rows
    worst: tuple[dict[str, Any], ...]
    rows: tuple[dict[str, Any], ...]

    @property
    def fits(self) -> bool:
        return self.covered_count > 0  # with nothing covered, nothing is validated

    def sweep(self) -> list[dict[str, Any]]:
        return [
            {
                **{key: row[key] for key in ("case_id", "covered", "reason", "confidence")},
                **{f"predicted_{name}": each for name, each in row["predicted"].items()},
                **{f"measured_{name}": each for name, each in row["measured"].items()},
            }
            for row in self.rows
        ]

    def report(self) -> Report:
        from capplan.report import Report, Table

        kv = self.by_column.get("m_kv_gib_per_gpu")
        headline = f"{self.row_count:,} start-ups: {self.covered_count:,} covered" + (
            f"; cache off by {_percent(kv['median'])} in the median, {_percent(kv['p90'])} at p90"
            if kv
            else ""
        )
        tables = [
            _errors("stated rows", self.by_column | self.derived),
            *([_errors("low-confidence rows", self.low_confidence)] if self.low_confidence else []),
            Table(
                (
                    ("stated rows", *_called(self.starts)),
                    ("low-confidence rows", *_called(self.low_confidence_starts)),
                ),
                ("starts or not", "failures called", "false alarms"),
            ),
        ]
        if inputs := self.by_group["inputs"]:
            rows = tuple(
                (name, f"{found['rows']:,}", _percent(found["median"]), _percent(found["p90"]))
                for name, found in inputs.items()
            )
            tables.append(Table(rows, ("inputs of stated rows", "rows", "cache median", "p90")))
        if self.suspect:
            told = tuple(
                (each["group"], each["name"], f"{each['rows']:,}", f"{100 * each['bias']:+.1f}%")
                for each in self.suspect[:5]
            )
            tables.append(Table(told, ("off to one side", "", "rows", "cache")))
        if self.worst:
            worst = tuple(
                (each["case_id"], each["column"], f"{each['predicted']:.4g}", f"{each['measured']:.4g}")
                for each in self.worst[:5]
            )
            tables.append(Table(worst, ("furthest off", "column", "predicted", "measured")))
        if self.not_covered:
            reasons = sorted(self.not_covered.items(), key=lambda item: -item[1])
            told_why = tuple((f"{count:,}", reason) for reason, count in reasons[:8])
            uncovered = self.row_count - self.covered_count
            tables.append(Table(told_why, title=f"Not covered: {uncovered:,} rows", words=True))
        return Report(headline, tuple(tables), self.assumptions, self.warnings)


def _called(starts: dict[str, Any]) -> tuple[str, str]:
    return (
        f"{starts['called']:,} of {starts['failures']:,}",
        f"{starts['false_alarms']:,} of {starts['started']:,}",
    )


def _errors(title: str, columns: dict[str, dict[str, Any]]) -> Table:
    from capplan.report import Table

    rows = tuple(
        (
            name.removeprefix("m_").replace("_", " "),
            f"{found['rows']:,}",
            *(_percent(found[key]) for key in ("median", "p90")),
            f"{100 * found['bias']:+.3g}%",
        )
        for name, found in columns.items()
    )
    return Table(rows, (title, "rows", "median", "p90", "bias"))


def _percent(share: float | None) -> str:
    return "-" if share is None else f"{100 * share:.3g}%"


def validate_memory(path: str | PathLike[str], *, given: Sequence[str] = ()) -> ValidateMemory:
    """Predicts every published start-up of a CSV from its inputs, and says how far off that is.

    path: a file with the columns of engine_memory_logs.csv: engine, model_id, gpu, tp and the measured ones, m_*;
    further flags are read where they are there, blank ones are the engine's default of that version.
    given: measured columns that are read for the prediction, such as m_weights_gib_per_gpu; rows that have them are
    scored.

    Raises DataFileError for a file that can't be read, InputError for one without those columns.
    """
    for name in given:
        if name not in GIVEN:
            raise UnknownNameError("measured column", name, GIVEN, f"one of {', '.join(GIVEN)}")
    table = read_table(path, read.NEEDED)
    rows = [_scored(row, number, given) for number, row in enumerate(table, start=1)]
    covered = [row for row in rows if row["covered"]]
    scored = [row for row in covered if all(row["measured"][name] is not None for name in given)]
    stated = [row for row in scored if row["confidence"] == "stated"]
    low = [row for row in scored if row["confidence"] == "low"]
    reasons: dict[str, int] = {}
    for row in rows:
        if not row["covered"]:
            reasons[row["reason"]] = reasons.get(row["reason"], 0) + 1
    groups = _groups(stated)
    return ValidateMemory(
        inputs={"path": str(path), "kind": "memory", "given": list(given)},
        row_count=len(rows),
        covered_count=len(covered),
        by_column=column_scores(stated),
        low_confidence=column_scores(low),
        derived=derived_scores(stated),
        starts=start_scores(stated),
        low_confidence_starts=start_scores(low),
        by_group=groups,
        suspect=_suspect(groups),
        not_covered=reasons,
        worst=tuple(_worst(stated)),
        rows=tuple(rows),
        assumptions=_ASSUMED,
    )


# --- one row --------------------------------------------------------------------------------------------------


def _scored(row: Row, number: int, given: Sequence[str]) -> dict[str, Any]:
    """Prediction beside measurement; or why there is no prediction."""
    measured = {name: _number(row[name]) for name in read.MEASURED}
    found: dict[str, Any] = {
        "case_id": row.get("case_id") or f"row {number}",
        "covered": False,
        "reason": None,
        "confidence": read.confidence(row),
        "inputs": {},
        "predicted": {},
        "measured": {**measured, "starts": read.started(row)},
    }
    assumed: list[str] = []
    try:
        predicted, inputs = _predicted(row, {name: measured[name] for name in given}, assumed)
    except CapplanError as error:
        return {**found, "reason": str(error)}
    inputs |= {"inputs": "not all said" if assumed else "all said", "assumptions": assumed}
    return {**found, "covered": True, "inputs": inputs, "predicted": predicted}


def _predicted(
    row: Row, given: dict[str, float | None], assumed: list[str]
) -> tuple[dict[str, Any], dict[str, Any]]:
    engine = read.engine(row)
    resolved = read.model(row)
    assumed += resolved.assumptions
    device = read.device(row, assumed)
    flags = read.deployment(row, resolved.quantization, assumed)

    def known(name: str) -> float | None:
        size = given.get(name)
        return None if size is None else size * GIB

    rank = budget(
        resolved.model,
        device,
        flags,
        weights_bytes=known("m_weights_gib_per_gpu"),
        activation_bytes=known("m_activation_peak_gib"),
        kv_bytes=known("m_kv_gib_per_gpu"),
    )
    assumed += rank.pool.assumptions
    inputs = {
        "engine": engine,
        "version": rank.deployment.version or "not said",
        "gpu": device.name,
        "model": resolved.model.id,
        "tp": flags.tensor_parallel_size,
        "mixed_layers": len({_kind(part) for layer in resolved.model.layers for part in layer}) > 1,
    }
    return _columns(rank), inputs


def _kind(part: Part) -> tuple[Any, ...]:
    """Attention over the whole context, over a window or pooled, or a state."""
    return type(part), getattr(part, "window", None), getattr(part, "ratio", None)


def _columns(rank: Budget) -> dict[str, Any]:
    """What the log will say, by the names of the columns."""
    vllm = rank.deployment.engine == "vllm"
    return {
        "m_weights_gib_per_gpu": rank.weights / GIB,
        "m_kv_gib_per_gpu": rank.kv / GIB,
        "m_kv_tokens": rank.kv_tokens,
        "m_max_concurrency": rank.max_concurrency,
        "m_activation_peak_gib": rank.activation_peak / GIB if vllm else None,
        "m_cudagraph_gib": rank.graph_memory / GIB if vllm else None,
        "starts": rank.starts,
    }


def _number(text: str) -> float | None:
    found = value(text)
    return float(found) if isinstance(found, int | float) and not isinstance(found, bool) else None


# --- the score ------------------------------------------------------------------------------------------------


def _error(row: dict[str, Any], name: str) -> float | None:
    """Relative error, signed; None where there is nothing to compare."""
    predicted, measured = row["predicted"].get(name), row["measured"].get(name)
    if predicted is None or not measured or measured <= 0:
        return None
    return float(predicted / measured - 1)


def _scores(errors: Sequence[float]) -> dict[str, Any]:
    sizes = sorted(abs(error) for error in errors)
    return {
        "rows": len(sizes),
        "median": median(sizes),
        "mean": sum(sizes) / len(sizes),
        "p90": quantiles(sizes, n=10, method="inclusive")[-1] if len(sizes) > 1 else sizes[0],
        "bias": median(errors),
    }


def column_scores(rows: Sequence[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    found = {}
    for name in read.MEASURED:
        errors = [error for row in rows if (error := _error(row, name)) is not None]
        if errors:
            found[name] = _scores(errors)
    return found


def _groups(rows: Sequence[dict[str, Any]]) -> dict[str, dict[str, dict[str, Any]]]:
    """Error of the cache by engine, version, card and model."""
    found: dict[str, dict[str, dict[str, Any]]] = {}
    for group in GROUPS:
        errors: dict[str, list[float]] = {}
        for row in rows:
            error = _error(row, "m_kv_gib_per_gpu")
            if error is not None:
                errors.setdefault(str(row["inputs"][group]), []).append(error)
        found[group] = {name: _scores(errors[name]) for name in sorted(errors)}
    return found


def _suspect(groups: dict[str, dict[str, dict[str, Any]]]) -> tuple[dict[str, Any], ...]:
    """Groups whose rows are all off to one side by more than 5%: a rule of theirs is missing."""
    found = [
        {"group": group, "name": name, "rows": scores["rows"], "bias": scores["bias"]}
        for group, names in groups.items()
        for name, scores in names.items()
        if scores["rows"] >= _SMALL_GROUP and abs(scores["bias"]) > 0.05
    ]
    return tuple(sorted(found, key=lambda each: -abs(each["bias"])))


def derived_scores(rows: Sequence[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """Bytes a token of models whose layers are alike, and the concurrency of the others, whose blocks are shared."""
    errors: dict[str, list[float]] = {}
    for row in rows:
        concurrency = _error(row, "m_max_concurrency")
        if row["inputs"]["mixed_layers"]:
            if concurrency is not None:
                errors.setdefault("max_concurrency_of_mixed_layers", []).append(concurrency)
        elif None not in (_error(row, "m_kv_gib_per_gpu"), _error(row, "m_kv_tokens")):
            predicted, measured = (
                row[of]["m_kv_gib_per_gpu"] / row[of]["m_kv_tokens"] for of in ("predicted", "measured")
            )
            errors.setdefault("bytes_per_token_of_layers_alike", []).append(predicted / measured - 1)
    return {name: _scores(each) for name, each in sorted(errors.items())}


def start_scores(rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Failures called, and starts called failures."""
    said = [(row["measured"]["starts"], row["predicted"]["starts"]) for row in rows]
    failures = [predicted for measured, predicted in said if measured is False]
    started = [predicted for measured, predicted in said if measured is True]
    return {
        "failures": len(failures),
        "called": failures.count(False),
        "started": len(started),
        "false_alarms": started.count(False),
    }


def _worst(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """The rows furthest off, each by its worst column of weights, cache and concurrency."""
    found = []
    for row in rows:
        columns = ("m_weights_gib_per_gpu", "m_kv_gib_per_gpu", "m_max_concurrency")
        errors = {name: error for name in columns if (error := _error(row, name)) is not None}
        if errors:
            name = max(errors, key=lambda column: abs(errors[column]))
            found.append(
                {
                    "case_id": row["case_id"],
                    "column": name,
                    "predicted": row["predicted"][name],
                    "measured": row["measured"][name],
                    "relative_error": errors[name],
                }
            )
    return sorted(found, key=lambda each: -abs(float(str(each["relative_error"]))))[:10]
