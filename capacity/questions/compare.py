"""Which GPU? One model, one load, and what each GPU makes of it, for its time, its money and its power."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

from capplan.capacity import service
from capplan.capacity.answer import Answer, Working
from capplan.capacity.engines.deployment import Deployment
from capplan.capacity.questions import asked, gpu_terms, perf
from capplan.capacity.questions.deployed import Deployed
from capplan.capacity.step_time.calibration import Calibration
from capplan.errors import InputError
from capplan.models.resolve import with_tower
from capplan.models.spec import Model
from capplan.units import counted, seconds, tokens

if TYPE_CHECKING:
    from capplan.hardware.spec import Gpu
    from capplan.report import Report, Table

CONCURRENCY = 64
_BEST = (
    "per USD: from the highest to the lowest hourly price on record (capplan gpus NAME); the best is marked at its "
    "lowest; hours and power are those of all GPUs of a deployment, at this load"
)


class _Column(NamedTuple):
    """A column of which one is the best."""

    head: str
    key: str  # of a row
    shown: Callable[[dict[str, Any]], str]
    least: bool = False  # the smallest is the best


def _range(row: dict[str, Any], low: str, high: str, scale: float) -> str:
    return f"{row[low] / scale:,.3g} - {row[high] / scale:,.3g}"


_COLUMNS = (
    _Column("TTFT", "ttft_s", lambda row: seconds(row["ttft_s"]), least=True),
    _Column("TPOT", "tpot_s", lambda row: seconds(row["tpot_s"]), least=True),
    _Column("tok/s", "output_tokens_per_s", lambda row: perf.short_rate(row["output_tokens_per_s"])),
    _Column(
        "tok/s/GPU",
        "output_tokens_per_s_per_gpu",
        lambda row: perf.short_rate(row["output_tokens_per_s_per_gpu"]),
    ),
    _Column(
        "Mtok/USD",
        "output_tokens_per_usd_high",
        lambda row: _range(row, "output_tokens_per_usd_low", "output_tokens_per_usd_high", 1e6),
    ),
    _Column("tok/s/W", "output_tokens_per_joule", lambda row: f"{row['output_tokens_per_joule']:,.3g}"),
    _Column(
        "all-in tok/s/W",
        "output_tokens_per_joule_all_in",
        lambda row: f"{row['output_tokens_per_joule_all_in']:,.3g}",
    ),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Compare(Answer):
    """GPUs side by side at one load; the best of each column, and the curve of each over loads."""

    question: ClassVar[str] = "compare"

    gpus: tuple[dict[str, Any], ...]  # one row a GPU, in the order asked for
    best: dict[str, str]  # column -> GPU
    curves: tuple[dict[str, Any], ...]  # one row a GPU and concurrency

    @property
    def fits(self) -> bool:
        """False when none of them can hold the model."""
        return any(row["fits"] for row in self.gpus)

    def sweep(self) -> list[dict[str, Any]]:
        return [dict(row) for row in self.gpus]

    def report(self) -> Report:
        from capplan.report import Report, Table

        inputs = self.inputs
        load = counted(inputs["concurrency"], "request")
        what = f"{inputs['model']} under {inputs['engine']}, {load} of {tokens(inputs['isl'])} in and {inputs['osl']:,} out"
        winner = self.best.get("output_tokens_per_s_per_gpu")
        headline = (
            f"{what}: none of them holds it"
            if winner is None
            else f"{what}: {winner} has the most tok/s a GPU"
        )
        tables: list[Table] = []
        heads = ("gpu", "GPUs", *(column.head for column in _COLUMNS), "limit")
        fitting = tuple(
            (row["gpu"], f"{row['gpus']:,}", *(self._cell(column, row) for column in _COLUMNS), row["limit"])
            for row in self.gpus
            if row["fits"]
        )
        if fitting:
            tables.append(Table(fitting, heads, title="* the best of a column" if len(fitting) > 1 else ""))
            tables.append(perf.ranges("gpu", [(row["gpu"], row) for row in self.gpus if row["fits"]]))
        without = tuple((row["gpu"], row["why_not"]) for row in self.gpus if not row["fits"])
        if without:
            tables.append(Table(without, title="Does not fit", words=True))
        return Report(headline, tuple(tables), self.assumptions, self.warnings)

    def _cell(self, column: _Column, row: dict[str, Any]) -> str:
        if row[column.key] is None:
            return "-"
        marked = self.best.get(column.key) == row["gpu"] and sum(each["fits"] for each in self.gpus) > 1
        return column.shown(row) + ("*" if marked else "")


def compare(
    model: str | Model,
    gpus: Sequence[str | Gpu],
    deployment: Deployment | None = None,
    *,
    isl: int = perf.LENGTH,
    osl: int = perf.LENGTH,
    concurrency: int = CONCURRENCY,
    tp: int | None = None,
    calibrations: Sequence[Calibration] = (),
) -> Compare:
    """One model on several GPUs at the same load.

    model, gpus: registry names, a path to a config.json, or a Model and Gpus.
    deployment, isl, osl: as of perf. concurrency: requests under way.
    tp: tensor-parallel ranks; None is, for each GPU, the smallest number that holds all requests.
    calibrations: constants of the engine measured on some of these GPUs.

    Raises UnknownNameError, DataFileError, InputError.
    """
    spec = asked.as_model(model)
    if not isinstance(gpus, Iterable) or isinstance(gpus, str | bytes):
        raise InputError(f"gpus {gpus!r} is not a list of names, such as ['h100-sxm', 'h200-sxm']")
    cards = list({card.id: card for card in map(asked.as_gpu, gpus)}.values())
    if not cards:
        raise InputError("no gpu given; name at least one, such as h200-sxm (capplan gpus)")
    spec, towers = with_tower(spec)
    flags = deployment or Deployment()
    isl, osl = perf.lengths(isl, osl)
    (load,) = perf.loads_of([concurrency])
    for each in calibrations if isinstance(calibrations, Iterable) else (calibrations,):
        if not isinstance(each, Calibration):
            raise InputError(f"calibration {each!r} is not one that read_calibration gave")
    measured: dict[str, Calibration] = {}
    for each in calibrations:
        of = each.gpu or str(each.device.get("name"))
        if of in measured:
            raise InputError(
                f"calibrations {measured[of].name!r} and {each.name!r} are both of {of!r}; give one"
            )
        measured[of] = each
    if unused := sorted(set(measured) - {card.id for card in cards}):
        raise InputError(
            f"calibration {measured[unused[0]].name!r} is of {unused[0]!r}, which is not compared; "
            f"compared: {', '.join(card.id for card in cards)}"
        )
    rows: list[dict[str, Any]] = []
    curves: list[dict[str, Any]] = []
    works: list[Working] = []
    errors: list[InputError] = []
    for card in cards:
        work = Working()
        works.append(work)
        calibration = measured.get(card.id)
        try:
            found = perf.placed(spec, card, flags, isl + osl, tp, work, requests=load)
        except InputError as error:
            errors.append(error)
            rows.append(_row(card, None, str(error), {}, work))
            continue
        found = perf.measured(found, calibration, work)
        work.assume(*found.assumptions)
        if (why_not := perf.refused(found, isl + osl)) is not None:
            rows.append(_row(card, found, why_not, {}, work))
            continue
        perf.given(found, calibration, work)
        _costs(card, work)
        at = perf.row(found, isl, osl, load, calibration, work, label=f"{card.id}, ")
        rows.append(_row(card, found, None, at, work))
        curves += [
            {"gpu": card.id, "gpus": found.gpus} | perf.row(found, isl, osl, count, calibration)
            for count in perf.CONCURRENCY
        ]
    if len(errors) == len(cards):
        raise errors[0]
    whole = _merged(works, cards)
    whole.assume(*asked.assumed_of(spec), *towers, perf.STEADY)
    if curves:
        whole.assume(_BEST, perf.RANGE)
    return Compare(
        inputs={
            "model": spec.id,
            "gpus": [card.id for card in cards],
            "engine": flags.engine,
            "engine_version": flags.version,
            "deployment": {name: getattr(flags, name) for name in Deployment.__slots__},
            "tensor_parallel_size": tp,
            "isl": isl,
            "osl": osl,
            "concurrency": load,
            "tier": "measured" if measured else "engine",
            "calibrations": [found.name for found in calibrations],
        },
        gpus=tuple(rows),
        best=_best(rows),
        curves=tuple(curves),
        **whole.shown(),
    )


_TIMES = (
    *("ttft_s", "ttft_low_s", "ttft_high_s", "tpot_s", "tpot_low_s", "tpot_high_s", "output_tokens_per_s"),
    *("output_tokens_per_s_low", "output_tokens_per_s_high", "total_tokens_per_s"),
    *("output_tokens_per_s_per_gpu", "tokens_per_s_per_user", "requests_per_s", "decode_batch"),
    *("prefill_share", "limit"),
)


def _row(
    card: Gpu, found: Deployed | None, why_not: str | None, at: dict[str, Any], work: Working
) -> dict[str, Any]:
    """What one GPU makes of the load; None for what does not fit or is not on record."""
    price = card.price_range
    output, gpus = at.get("output_tokens_per_s"), found.gpus if found else 0

    def of_power(watts: float | None, name: str) -> float | None:
        if output is None or watts is None:
            return None
        why = f"{card.id}, {name}"
        return work(service.tokens_per_joule, why, tokens_per_second=output, gpus=gpus, power=watts)

    def of_price(hourly: float | None) -> float | None:
        if output is None or hourly is None:
            return None
        why = f"{card.id}, at {hourly:.2f} USD an hour"
        return work(service.tokens_per_dollar, why, tokens_per_second=output, gpus=gpus, price=hourly / 3600)

    low, high = price or (None, None)
    return {
        "gpu": card.id,
        "fits": why_not is None,
        "why_not": why_not,
        "gpus": gpus or None,
        "tensor_parallel_size": found.flags.tensor_parallel_size if found else None,
        **{name: at.get(name) for name in _TIMES},
        "price_low_usd_per_gpu_hour": low,
        "price_high_usd_per_gpu_hour": high,
        "output_tokens_per_usd_low": of_price(high),
        "output_tokens_per_usd_high": of_price(low),
        "board_watts": card.tdp_watts,
        "all_in_watts": card.all_in_power_watts,
        "output_tokens_per_joule": of_power(card.tdp_watts, "board"),
        "output_tokens_per_joule_all_in": of_power(card.all_in_power_watts, "all-in"),
    }


def _costs(card: Gpu, work: Working) -> None:
    """The power and the prices that are divided by, with their sources."""
    for name, watts, key in (
        ("power of the board", card.tdp_watts, "board.tdp"),
        ("power, all-in", card.all_in_power_watts, "board.all_in_power"),
    ):
        if watts is not None:
            work.read(name, watts, "W", gpu_terms.source_of(card, key))
    paid = [each for each in card.prices if each.basis != "ownership-cost-model"]
    for end, name in zip(card.price_range or (), ("lowest price", "highest price"), strict=False):
        price = next(each for each in paid if each.usd_per_gpu_hour == end)
        told = ", ".join(part for part in (price.basis, price.what, price.date or "undated") if part)
        work.read(name, end, "USD/hour", told)


def _best(rows: Sequence[dict[str, Any]]) -> dict[str, str]:
    """The best GPU of each column, among those that fit and are on record."""
    found = {}
    for column in _COLUMNS:
        known = [row for row in rows if row[column.key] is not None]
        if known:
            better = min if column.least else max
            found[column.key] = better(known, key=lambda row: row[column.key])["gpu"]
    return found


def _merged(works: Sequence[Working], cards: Sequence[Gpu]) -> Working:
    """The working of all GPUs: what was assumed of all once, what of one with its name."""
    whole = Working()
    for kind in ("assumptions", "warnings"):
        told = [getattr(work, kind) for work in works]
        for card, texts in zip(cards, told, strict=True):
            for text in texts:
                shared = all(text in others for others in told)
                line = text if shared or text.startswith(card.id) else f"{card.id}: {text}"
                (whole.assume if kind == "assumptions" else whole.warn)(line)
    for card, work in zip(cards, works, strict=True):
        whole.steps += work.steps
        for each in work.given:
            own = "." not in each.name  # constants of the engine are everybody's, but for a calibration's
            named = each._replace(name=f"{card.id}: {each.name}" if own else each.name)
            whole.given += [named] if named not in whole.given else []
    return whole
