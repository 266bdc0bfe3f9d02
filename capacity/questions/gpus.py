"""Which accelerators are on record, and what is known of one?"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from capplan.capacity.answer import Answer, Working
from capplan.capacity.questions.asked import as_gpu, number
from capplan.errors import InputError, UnknownNameError
from capplan.hardware.reading import UNITS
from capplan.hardware.registry import all_gpus
from capplan.hardware.spec import Gpu
from capplan.units import gib

if TYPE_CHECKING:
    from capplan.report import Report

_RATES = ("bf16", "fp8", "fp4")
_SORTS: dict[str, Callable[[Gpu], float | None]] = {
    "memory": lambda gpu: gpu.memory_visible_bytes or gpu.memory_reported_bytes or gpu.memory_label_bytes,
    "bandwidth": lambda gpu: gpu.memory_bandwidth,
    "price": lambda gpu: -gpu.price_range[0] if gpu.price_range else None,  # the cheapest first
    "power": lambda gpu: gpu.tdp_watts,
    **{dtype: lambda gpu, dtype=dtype: gpu.dense_flops.get(dtype) for dtype in _RATES},  # type: ignore[misc]
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpus(Answer):
    """The accelerators on record that pass a filter."""

    question: ClassVar[str] = "gpus"

    gpus: tuple[dict[str, Any], ...]

    def sweep(self) -> list[dict[str, Any]]:
        return [dict(row) for row in self.gpus]

    def report(self) -> Report:
        from capplan.report import Report, Table

        def tera(value: float | None) -> str:
            if value is None:
                return "-"
            return f"{value / 1e12:,.4g}" if value < 1e15 else f"{value / 1e12:,.0f}"

        rows = tuple(
            (
                row["id"],
                f"{row['memory_label_bytes'] / 1e9:,.4g}",
                gib(seen).removesuffix(" GiB") if (seen := row["memory_visible_bytes"]) else "-",
                tera(row["memory_bandwidth_bytes_per_s"]),
                *(tera(row[f"dense_{dtype}_flops_per_s"]) for dtype in _RATES),
                f"{row['tdp_watts']:,.0f}" if row["tdp_watts"] else "-",
                f"{low:.2f}-{high:.2f}"
                if (low := row["price_low_usd_per_hour"]) is not None
                and (high := row["price_high_usd_per_hour"]) is not None
                else "-",
            )
            for row in self.gpus
        )
        heads = (
            "id",
            "label GB",
            "visible GiB",
            "TB/s",
            *_RATES,
            "W",
            "USD/h",
        )
        count = len(self.gpus)
        headline = f"{count} accelerator{'' if count == 1 else 's'}; dense TFLOP/s of bf16, fp8 and fp4"
        return Report(headline, (Table(rows, heads),) if rows else (), self.assumptions, self.warnings)


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuFacts(Answer):
    """Everything on record of one accelerator, each value with its source and the day it was read."""

    question: ClassVar[str] = "gpu"

    gpu: dict[str, Any]
    values: tuple[dict[str, Any], ...]
    prices: tuple[dict[str, Any], ...]
    instances: tuple[dict[str, Any], ...]
    sources: tuple[dict[str, Any], ...]
    notes: tuple[str, ...]

    def sweep(self) -> list[dict[str, Any]]:
        return [dict(value) for value in self.values]

    def report(self) -> Report:
        from capplan.report import Report, Table

        about = self.gpu
        figures = tuple(
            (
                value["key"],
                value["as_written"],
                f"{value['basis']}, {value['source']}" + (f"; {value['note']}" if value["note"] else ""),
            )
            for value in self.values
        )
        prices = tuple(
            (
                f"{price['usd_per_gpu_hour']:.2f} USD/h",
                price["date"] or "undated",
                f"{price['basis']}: {price['what']}".rstrip(": "),
            )
            for price in self.prices
        )
        instances = tuple(
            (
                f"{i['cloud']} {i['name']}",
                f"{i['gpus']} GPUs",
                f"{i['usd_per_hour']:.2f} USD/h, {i['price_date']}"
                if i["usd_per_hour"]
                else "no price on record",
            )
            for i in self.instances
        )
        sources = tuple(
            (source["id"], source["checked"], source["url"] or source["title"]) for source in self.sources
        )
        tables = (
            Table(
                tuple((name.replace("_", " "), str(about[name])) for name in about if about[name]), words=True
            ),
            Table(figures, title="Figures"),
            Table(prices, title="Prices of one GPU"),
            Table(instances, title="Instances"),
            Table(sources, title="Sources, and the day each was checked", words=True),
            Table(tuple((note,) for note in self.notes), title="Notes"),
        )
        return Report(about["name"], tuple(table for table in tables if table.rows))


def base_unit(written: str) -> str:
    """The unit that a figure written in another one is in after reading."""
    return next(base for base, units in UNITS.items() if written in units)


def gpus(
    *,
    containing: str = "",
    dtype: str | None = None,
    min_memory: float = 0,
    sort: str | None = None,
) -> Gpus:
    """The accelerators on record.

    containing: a part of the id, name, vendor, architecture or an alias.
    dtype: only those with a dense matrix rate for it.
    min_memory: only those whose label has at least so many bytes, decimal.
    sort: memory, bandwidth, power, bf16, fp8, fp4 (largest first) or price (cheapest first); by id if None.

    Raises InputError for an unknown sort key or dtype.
    """
    sort, dtype = _lower("sort key", sort), _lower("dtype", dtype)
    if sort is not None and sort not in _SORTS:
        raise UnknownNameError("sort key", sort, _SORTS, f"one of {', '.join(_SORTS)}")
    everything = all_gpus()
    dtypes = sorted({name for gpu in everything for name in gpu.dense_flops})
    if dtype is not None and dtype not in dtypes:
        raise UnknownNameError("dtype", dtype, dtypes, f"one of {', '.join(dtypes)}")
    if not 0 <= number(min_memory) < float("inf"):
        raise InputError(f"least memory {min_memory!r} is not a number of bytes, zero or more")
    wanted = _lower("filter", containing) or ""
    found = [
        gpu
        for gpu in everything
        if wanted in " ".join((gpu.id, gpu.name, gpu.vendor, gpu.architecture, *gpu.aliases)).lower()
        and (dtype is None or dtype in gpu.dense_flops)
        and gpu.memory_label_bytes >= min_memory
    ]
    if sort is not None:
        key = _SORTS[sort]
        ranked = [(value, gpu) for gpu in found if (value := key(gpu)) is not None]
        unknown = [gpu for gpu in found if key(gpu) is None]  # last, whatever the order
        found = [gpu for _, gpu in sorted(ranked, key=lambda pair: -pair[0])] + unknown
    return Gpus(
        inputs={"containing": containing, "dtype": dtype, "min_memory_bytes": min_memory, "sort": sort},
        gpus=tuple(
            {
                "id": gpu.id,
                "name": gpu.name,
                "vendor": gpu.vendor,
                "memory_label_bytes": gpu.memory_label_bytes,
                "memory_reported_bytes": gpu.memory_reported_bytes,
                "memory_visible_bytes": gpu.memory_visible_bytes,
                "memory_bandwidth_bytes_per_s": gpu.memory_bandwidth,
                **{f"dense_{name}_flops_per_s": gpu.dense_flops.get(name) for name in _RATES},
                "tdp_watts": gpu.tdp_watts,
                "price_low_usd_per_hour": gpu.price_range[0] if gpu.price_range else None,
                "price_high_usd_per_hour": gpu.price_range[1] if gpu.price_range else None,
            }
            for gpu in found
        ),
        **Working().shown(),
    )


def _lower(noun: str, text: str | None) -> str | None:
    if text is not None and not isinstance(text, str):
        raise InputError(f"{noun} {text!r} is not a text")
    return None if text is None else text.lower()


def gpu_facts(name: str | Gpu) -> GpuFacts:
    """Everything on record of one accelerator. Raises UnknownNameError, InputError."""
    gpu = as_gpu(name)
    return GpuFacts(
        inputs={"gpu": gpu.id},
        gpu={
            "id": gpu.id,
            "name": gpu.name,
            "aliases": ", ".join(gpu.aliases),
            "vendor": gpu.vendor,
            "architecture": gpu.architecture,
            "form_factor": gpu.form_factor,
            "released": gpu.released,
            "status": gpu.status,
            "compute_capability": gpu.compute_capability,
            "native_dtypes": ", ".join(gpu.native_dtypes),
        },
        values=tuple(
            {
                "key": key,
                "value": value.value,
                "low": value.low,
                "high": value.high,
                "sparse": value.sparse,
                "unit": base_unit(value.unit),
                "as_written": value.written,
                "basis": value.basis,
                "source": value.source,
                "checked": gpu.sources[value.source].checked,
                "note": value.note,
            }
            for key, value in gpu.values.items()
        ),
        prices=tuple(
            {
                "usd_per_gpu_hour": price.usd_per_gpu_hour,
                "basis": price.basis,
                "what": price.what,
                "date": price.date,
                "source": price.source,
            }
            for price in gpu.prices
        ),
        instances=tuple(
            {
                "cloud": instance.cloud,
                "name": instance.name,
                "gpus": instance.gpus,
                "usd_per_hour": instance.usd_per_hour,
                "region": instance.region,
                "price_date": instance.price_date,
            }
            for instance in gpu.instances
        ),
        sources=tuple(
            {"id": source.id, "title": source.title, "url": source.url, "checked": source.checked}
            for source in gpu.sources.values()
        ),
        notes=gpu.notes,
    )
