"""How far is capplan off? Measured rows, each predicted from its inputs alone."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from capplan.capacity.answer import Answer
from capplan.capacity.engines.vllm_allocator import Allocation, allocate
from capplan.capacity.engines.vllm_rules import Settings
from capplan.capacity.questions.measured import Row, Value, read_table, switch, value, whole
from capplan.errors import CapplanError, InputError
from capplan.models.spec import Model

if TYPE_CHECKING:
    from capplan.report import Report, Table

KINDS = ("allocator",)
GIB = 2**30

# Columns that a row is predicted from. `prefix_caching` is what the engine was told; blank: its default.
NEEDED = ("vllm_version", "tp", "kv_dtype", "available_kv_bytes", "max_model_len", "max_num_batched_tokens")
# Whether a row is right: these four, and where a request does not fit the longest that would
SCORED = ("num_blocks", "reported_kv_tokens", "max_concurrency", "fits")
TOLERANCE = 1e-6


def _listed(values: Iterable[object]) -> str:
    return ";".join(str(value) for value in values)


# The measured columns, and where each is in an Allocation that fits, or in any
_STARTED: dict[str, Callable[[Allocation], Value]] = {
    "block_size_effective": lambda a: a.block_size,
    "n_groups": lambda a: len(a.kv_cache_groups),
    "layers_per_group": lambda a: _listed(len(group.specs) for group in a.kv_cache_groups),
    "group_kinds": lambda a: _listed(group.kind for group in a.kv_cache_groups),
    "group_block_sizes": lambda a: _listed(group.block_size for group in a.kv_cache_groups),
    "padding_layers": lambda a: a.padding_layers,
    "page_bytes": lambda a: a.page_bytes,
    "pool_bytes_per_block": lambda a: a.pool_bytes_per_block,
    "num_blocks": lambda a: a.num_blocks,
    "reported_kv_tokens": lambda a: a.reported_kv_tokens,
    "max_concurrency": lambda a: round(a.max_concurrency or 0, 6),
    "mamba_seqs_ok": lambda a: a.mamba_seqs_ok,
}
_ALWAYS: dict[str, Callable[[Allocation], Value]] = {
    "n_kv_layers": lambda a: None if (a.error_class or "").startswith("crash") else len(a.kv_cache_specs),
    "fits": lambda a: a.fits,
    "error_class": lambda a: a.error_class,
    "needed_gib_in_error": lambda a: (
        None if a.fits or a.needed_bytes is None else round(a.needed_bytes / GIB, 2)
    ),
    "est_max_model_len": lambda a: a.est_max_model_len,
}
COLUMNS = (*_STARTED, *_ALWAYS)
_WORDS = ("layers_per_group", "group_kinds", "group_block_sizes", "error_class")


@dataclass(frozen=True, slots=True, kw_only=True)
class ValidateAllocator(Answer):
    """vLLM's allocator against capplan's: blocks, tokens, concurrency and what fits, given the free bytes."""

    question: ClassVar[str] = "validate-allocator"

    row_count: int
    covered_count: int
    exact_share: (
        float | None
    )  # of the covered rows: in num_blocks, reported_kv_tokens, max_concurrency and fits
    by_column: dict[str, dict[str, Any]]  # column -> rows that have it, and the share that is exact
    by_version: dict[str, dict[str, Any]]  # version -> rows, covered, exact_share
    by_model: dict[str, dict[str, Any]]
    not_covered: dict[str, int]  # reason -> rows
    worst: tuple[dict[str, Any], ...]  # the rows furthest off
    rows: tuple[dict[str, Any], ...]

    @property
    def fits(self) -> bool:
        return self.covered_count > 0  # with nothing covered, nothing is validated

    def sweep(self) -> list[dict[str, Any]]:
        return [
            {
                **{key: row[key] for key in ("case_id", "covered", "reason")},
                **{f"predicted_{name}": value for name, value in row["predicted"].items()},
                **{f"measured_{name}": value for name, value in row["measured"].items()},
            }
            for row in self.rows
        ]

    def report(self) -> Report:
        from capplan.report import Report, Table

        uncovered = self.row_count - self.covered_count
        headline = (
            f"{self.row_count:,} rows: {self.covered_count:,} covered, {_percent(self.exact_share)} of them "
            "exact in blocks, tokens, concurrency and fits"
        )
        columns = tuple(
            (name.replace("_", " "), f"{found['rows']:,}", _percent(found["exact_share"]))
            for name, found in self.by_column.items()
            if name in (*SCORED, "est_max_model_len", "pool_bytes_per_block", "block_size_effective")
        )
        off = {
            name: found
            for name, found in self.by_model.items()
            if found["covered"] < found["rows"] or found["exact_share"] != 1
        }
        tables = [
            _by("vllm", self.by_version),
            Table(columns, ("column", "rows", "exact")),
            *([_by("model", dict(list(off.items())[:8]))] if off else []),
        ]
        if self.worst:
            rows = tuple(
                (row["case_id"], row["column"], str(row["predicted"]), str(row["measured"]))
                for row in self.worst[:5]
            )
            tables.append(Table(rows, ("furthest off", "column", "predicted", "measured")))
        if uncovered:
            reasons = sorted(self.not_covered.items(), key=lambda item: -item[1])
            told = tuple((f"{count:,}", reason) for reason, count in reasons[:5])
            tables.append(Table(told, title=f"Not covered: {uncovered:,} rows", words=True))
        return Report(headline, tuple(tables), self.assumptions, self.warnings)


def _by(noun: str, groups: dict[str, dict[str, Any]]) -> Table:
    from capplan.report import Table

    rows = tuple(
        (name, f"{found['rows']:,}", f"{found['covered']:,}", _percent(found["exact_share"]))
        for name, found in groups.items()
    )
    return Table(rows, (noun, "rows", "covered", "exact"))


def _percent(share: float | None) -> str:
    return "-" if share is None else f"{100 * share:.4g}%"


def validate_allocator(path: str | PathLike[str]) -> ValidateAllocator:
    """Predicts every row of a CSV of what vLLM's allocator made of a pool, and says how many came out.

    path: a file with the columns vllm_version, model or hf_id, tp, kv_dtype, available_kv_bytes, max_model_len and
    max_num_batched_tokens; block_size_in, max_num_seqs, prefix_caching, hybrid_manager, spec_tokens and gpu (sm80,
    sm90, ...) are read where they are there. What was measured is compared, never read for a prediction.

    Raises DataFileError for a file that can't be read, InputError for one without those columns.
    """
    table = read_table(path, NEEDED, ("model", "hf_id"))
    models: dict[str, Model | str] = {}
    rows = [_scored(row, number, models) for number, row in enumerate(table, start=1)]
    covered = [row for row in rows if row["covered"]]
    reasons: dict[str, int] = {}
    for row in rows:
        if not row["covered"]:
            reasons[row["reason"]] = reasons.get(row["reason"], 0) + 1
    return ValidateAllocator(
        inputs={"path": str(path), "kind": "allocator"},
        row_count=len(rows),
        covered_count=len(covered),
        exact_share=_share(_exact(row) for row in covered),
        by_column={
            name: {"rows": len(same), "exact_share": _share(same)}
            for name in COLUMNS
            if (same := [_same(row, name) for row in covered if _told(row, name)])
        },
        by_version=_grouped(rows, [row["vllm_version"] for row in table]),
        by_model=_grouped(rows, [_name(row) for row in table]),
        not_covered=reasons,
        worst=tuple(_worst(covered)),
        rows=tuple(rows),
        assumptions=(
            "rows without a gpu column are of sm90 (H100), as those of vLLM's own allocator that capplan was read off",
        ),
    )


# --- one row --------------------------------------------------------------------------------------------------


def _scored(row: Row, number: int, models: dict[str, Model | str]) -> dict[str, Any]:
    """Prediction beside measurement; or why there is no prediction."""
    case = row.get("case_id") or f"row {number}"
    measured = {name: value(row[name], words=name in _WORDS) for name in COLUMNS if name in row}
    found: dict[str, Any] = {"case_id": case, "covered": False, "reason": None, "predicted": {}}
    found["measured"] = measured
    try:
        allocation = allocate(_model(row, models), _settings(row), _needed(row, "available_kv_bytes"))
    except CapplanError as error:
        return {**found, "reason": str(error)}
    predicted: dict[str, Value] = {name: get(allocation) for name, get in _ALWAYS.items()}
    predicted |= {name: get(allocation) if allocation.fits else None for name, get in _STARTED.items()}
    return {**found, "covered": True, "predicted": {name: predicted[name] for name in COLUMNS}}


def _name(row: Row) -> str:
    return row.get("model") or row.get("hf_id") or ""


def _model(row: Row, models: dict[str, Model | str]) -> Model:
    """The row's model, looked up once; a name that is not on record is not asked of the hub."""
    names = [name for name in (row.get("model", "").strip(), row.get("hf_id", "").strip()) if name]
    key = "\n".join(names)
    if key not in models:
        models[key] = _found(names)
    found = models[key]
    if isinstance(found, str):
        raise InputError(found)
    return found


def _found(names: Sequence[str]) -> Model | str:
    """The model of the first name that is on record, or why there is none."""
    from capplan.models import registry
    from capplan.models.resolve import resolve
    from capplan.registry import Registry

    rows = Registry("models", "model", Path(registry.__file__).parent / "specs", "capplan models")
    if not names:
        return "no model is named"
    known = next((name for name in names if rows.find(name)), None)
    try:
        return registry.model(known) if known is not None else resolve(names[-1]).model
    except CapplanError as error:
        return str(error)


def _settings(row: Row) -> Settings:
    """The flags of a row; what is blank is the engine's default."""
    given: dict[str, Any] = {
        "max_num_batched_tokens": whole(row, "max_num_batched_tokens"),
        "max_num_seqs": whole(row, "max_num_seqs"),
        "tensor_parallel_size": whole(row, "tp"),
        "num_speculative_tokens": whole(row, "spec_tokens", least=0),
        "kv_cache_dtype": row["kv_dtype"].strip() or None,
        "gpu": row.get("gpu", "").strip() or None,
    }
    return Settings(
        version=row["vllm_version"],
        max_model_len=_needed(row, "max_model_len"),
        block_size=whole(row, "block_size_in"),
        enable_prefix_caching=switch(row, "prefix_caching"),
        hybrid_kv_cache_manager=switch(row, "hybrid_manager"),
        **{name: told for name, told in given.items() if told is not None},
    )


def _needed(row: Row, name: str) -> int:
    number = whole(row, name)
    if number is None:
        raise InputError(f"{name} is blank")
    return number


# --- the score ------------------------------------------------------------------------------------------------


def _same(row: Mapping[str, Any], name: str) -> bool:
    predicted, measured = row["predicted"][name], row["measured"].get(name)
    if isinstance(predicted, float) and isinstance(measured, (int, float)):
        return abs(predicted - measured) <= TOLERANCE * max(1.0, abs(measured))
    return bool(predicted == measured)


def _told(row: Mapping[str, Any], name: str) -> bool:
    """Whether there is anything to compare: a row that does not start has no blocks."""
    return name in row["measured"] and (row["measured"][name], row["predicted"][name]) != (None, None)


def _exact(row: Mapping[str, Any]) -> bool:
    return all(_same(row, name) for name in SCORED if name in row["measured"])


def _share(same: Iterable[bool]) -> float | None:
    known = list(same)
    return sum(known) / len(known) if known else None


def _grouped(rows: Sequence[dict[str, Any]], names: Sequence[str]) -> dict[str, dict[str, Any]]:
    groups: dict[str, list[dict[str, Any]]] = {}
    for name, row in zip(names, rows, strict=True):
        groups.setdefault(name, []).append(row)
    return {
        name: {
            "rows": len(groups[name]),
            "covered": sum(row["covered"] for row in groups[name]),
            "exact_share": _share(_exact(row) for row in groups[name] if row["covered"]),
        }
        for name in sorted(groups)
    }


def _worst(covered: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """The rows that are off, furthest first, each by its worst column."""
    found = []
    for row in covered:
        columns = [name for name in SCORED if name in row["measured"] and not _same(row, name)]
        if columns:
            name = max(columns, key=lambda column: _distance(row, column))
            found.append(
                {
                    "case_id": row["case_id"],
                    "column": name,
                    "predicted": row["predicted"][name],
                    "measured": row["measured"][name],
                    "relative_error": min(_distance(row, name), 1e9),
                }
            )
    return sorted(found, key=lambda each: -float(str(each["relative_error"])))[:10]


def _distance(row: Mapping[str, Any], name: str) -> float:
    """Relative error; a row that starts where it should not is as far off as can be."""
    predicted, measured = row["predicted"][name], row["measured"][name]
    if not isinstance(predicted, (int, float)) or not isinstance(measured, (int, float)) or not measured:
        return 1e9
    return 1e9 if isinstance(measured, bool) else abs(predicted / measured - 1)
