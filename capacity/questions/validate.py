"""How far is capplan off? Measured rows, each predicted from its inputs alone."""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from io import StringIO
from math import isfinite
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from capplan.capacity.answer import Answer
from capplan.capacity.engines.vllm_allocator import Allocation, allocate
from capplan.capacity.engines.vllm_rules import Settings
from capplan.errors import CapplanError, DataFileError, InputError, UnknownNameError
from capplan.models.spec import Model

if TYPE_CHECKING:
    from capplan.report import Report, Table

KINDS = ("allocator",)
LARGEST = 2**24  # bytes of a file: some 60,000 rows
GIB = 2**30

# Columns that a row is predicted from. `prefix_caching` is what the engine was told; blank: its default.
NEEDED = ("vllm_version", "tp", "kv_dtype", "available_kv_bytes", "max_model_len", "max_num_batched_tokens")
# Whether a row is right: these four, and where a request does not fit the longest that would
SCORED = ("num_blocks", "reported_kv_tokens", "max_concurrency", "fits")
TOLERANCE = 1e-6

Value = int | float | bool | str | None
_Row = Mapping[str, str]


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
    "n_kv_layers": lambda a: len(a.kv_cache_specs),
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
    table = _table(path)
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


# --- the file -------------------------------------------------------------------------------------------------


def _table(path: str | PathLike[str]) -> list[dict[str, str]]:
    """The rows of the file; raises with one clause for anything that is no table of them."""
    where = Path(path)
    try:
        if where.is_file() and where.stat().st_size > LARGEST:
            raise DataFileError(
                f"{str(path)!r} has {where.stat().st_size:,} bytes; {LARGEST:,} at most are read"
            )
        with where.open("rb") as file:
            content = file.read(LARGEST + 1)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or "not a path"
        raise DataFileError(f"{str(path)!r} can't be read: {str(reason).lower()}") from None
    if len(content) > LARGEST:
        raise DataFileError(f"{str(path)!r} has more than {LARGEST:,} bytes; that many at most are read")
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError:
        text = "\0"
    if "\0" in text:
        raise DataFileError(f"{str(path)!r} is not a text in UTF-8; a CSV file is accepted")
    try:
        reader = csv.DictReader(StringIO(text, newline=""), restkey="", strict=True)
        names = list(reader.fieldnames or ())
        rows = [{name: value or "" for name, value in row.items() if name} for row in reader]
    except csv.Error as error:
        raise DataFileError(f"{str(path)!r} is not a CSV file: {error}") from None
    if not names:
        raise DataFileError(f"{str(path)!r} is empty; a CSV file with a line of column names is accepted")
    missing = [name for name in NEEDED if name not in names]
    if not {"model", "hf_id"} & set(names):
        missing.append("model")
    if missing:
        raise InputError(
            f"{str(path)!r} has no column {', '.join(map(repr, missing))}; needed: {', '.join(NEEDED)}"
        )
    if not rows:
        raise DataFileError(f"{str(path)!r} has column names and no rows")
    return rows


# --- one row --------------------------------------------------------------------------------------------------


def _scored(row: _Row, number: int, models: dict[str, Model | str]) -> dict[str, Any]:
    """Prediction beside measurement; or why there is no prediction."""
    case = row.get("case_id") or f"row {number}"
    measured = {name: _value(row[name], name) for name in COLUMNS if name in row}
    found: dict[str, Any] = {"case_id": case, "covered": False, "reason": None, "predicted": {}}
    found["measured"] = measured
    try:
        settings = _settings(row)
        free = _whole(row, "available_kv_bytes")
        allocation = allocate(_model(row, models), settings, free or 0)
    except CapplanError as error:
        return {**found, "reason": str(error)}
    predicted: dict[str, Value] = {name: get(allocation) for name, get in _ALWAYS.items()}
    predicted |= {name: get(allocation) if allocation.fits else None for name, get in _STARTED.items()}
    return {**found, "covered": True, "predicted": {name: predicted[name] for name in COLUMNS}}


def _name(row: _Row) -> str:
    return row.get("model") or row.get("hf_id") or ""


def _model(row: _Row, models: dict[str, Model | str]) -> Model:
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
    """The model of the first name that is known, or why there is none."""
    from capplan.models import registry
    from capplan.registry import Registry

    rows = Registry("models", "model", Path(registry.__file__).parent / "specs", "capplan models")
    known = [name for name in names if rows.find(name) or name.startswith(("./", "../", "/"))]
    if not known:
        return (
            str(UnknownNameError("model", names[0], rows.known(), rows.command))
            if names
            else "no model is named"
        )
    try:
        return registry.model(known[0])
    except CapplanError as error:
        return str(error)


def _settings(row: _Row) -> Settings:
    """The flags of a row; what is blank is the engine's default."""
    optional = {
        "max_num_batched_tokens": _whole(row, "max_num_batched_tokens"),
        "max_num_seqs": _whole(row, "max_num_seqs"),
        "tensor_parallel_size": _whole(row, "tp"),
        "num_speculative_tokens": _whole(row, "spec_tokens", least=0),
        "kv_cache_dtype": row["kv_dtype"].strip() or None,
        "gpu": row.get("gpu", "").strip() or None,
    }
    given: dict[str, Any] = {name: value for name, value in optional.items() if value is not None}
    length = _whole(row, "max_model_len")
    if length is None:
        raise InputError("max_model_len is blank")
    return Settings(
        version=row["vllm_version"].strip(),
        max_model_len=length,
        block_size=_whole(row, "block_size_in"),
        enable_prefix_caching=_switch(row, "prefix_caching"),
        hybrid_kv_cache_manager=_switch(row, "hybrid_manager"),
        **given,
    )


_BLANK = ("", "default", "none", "auto")
_SWITCH = {"true": True, "on": True, "1": True, "false": False, "off": False, "disabled": False, "0": False}


def _whole(row: _Row, name: str, least: int = 1) -> int | None:
    """A whole number of a row; None where it is blank."""
    text = row.get(name, "").strip().lower()
    if text in _BLANK:
        return None
    if not (text.isascii() and text.isdecimal()) or len(text) > 18 or int(text) < least:
        raise InputError(f"{name} {text[:40]!r} is not a whole number of {least} or more")
    return int(text)


def _switch(row: _Row, name: str) -> bool | None:
    text = row.get(name, "").strip().lower()
    if text in _BLANK:
        return None
    if text not in _SWITCH:
        raise InputError(f"{name} {text[:40]!r} is neither on nor off")
    return _SWITCH[text]


def _value(text: str, name: str) -> Value:
    """A measured cell as a number, a truth or words."""
    text = text.strip()
    if name in _WORDS or not text:
        return text or None
    if text.lower() in ("true", "false"):
        return text.lower() == "true"
    try:
        number = float(text)
        return int(text) if text.lstrip("-").isdecimal() else number if isfinite(number) else text
    except ValueError:
        return text


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
