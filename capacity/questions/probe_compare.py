"""Are these devices alike? Constants of two calibrations or more, held against each other: who is slow, in what, and why."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from os import PathLike
from statistics import median
from typing import TYPE_CHECKING, Any, ClassVar

from capplan.calibration_file import sealed
from capplan.capacity.answer import Answer, Working
from capplan.capacity.questions.probe_causes import CURVES, causes
from capplan.capacity.questions.probe_report import figure, read_probes
from capplan.capacity.step_time.calibration import Constant, leaves_of
from capplan.errors import InputError
from capplan.units import counted

if TYPE_CHECKING:
    from capplan.report import Report

_SAME = 0.03  # two runs of one device differ by 3 to 5%
_SLOW = 0.93  # of the median
_SPREADS = 2.0  # pooled relative spreads within which a difference is none
_RATES = ("byte/s", "FLOP/s")  # the more the better; of times, the less
_GATE = ("method_version",)
_DEVICE_GATE = ("kind", "arch")
# what makes rows of one probe incomparable, although the files are not
_ROW_GATE = ("version", "mode", "cache", "kernel", "backend", "shape_set_sha")


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbeCompare(Answer):
    """Constants of several devices side by side, the slow ones, and what explains them."""

    question: ClassVar[str] = "probe-compare"

    members: tuple[dict[str, Any], ...]  # file, label, device, uuid hash, verdict
    same_device: bool  # two of them are one and the same card, by the hash of its UUID
    differences: tuple[dict[str, Any], ...]  # of software and settings: likely causes
    constants: tuple[dict[str, Any], ...]  # values by member, ratio to the first, verdict
    not_comparable: tuple[dict[str, str], ...]  # constants, with the field that stands in the way
    slow: tuple[dict[str, Any], ...]  # members below 93% of the median
    causes: tuple[dict[str, Any], ...]  # one a member that differs from the first
    alike: bool

    @property
    def fits(self) -> bool:
        return self.alike

    def sweep(self) -> list[dict[str, Any]]:
        names = [each["name"] for each in self.members]
        return [
            {
                "constant": row["name"],
                "unit": row["unit"],
                **dict(zip(names, row["values"], strict=True)),
                "verdict": row["verdict"],
            }
            for row in self.constants
        ]

    def report(self) -> Report:
        from capplan.report import Report, Table

        differing = [row for row in self.constants if row["verdict"] != "same"]
        names = [each["name"] for each in self.members]
        headline = f"{counted(len(self.members), 'device')}: "
        headline += "alike" if self.alike else f"{len(differing)} of {len(self.constants)} constants differ"
        if self.slow:
            headline += f"; slow: {', '.join(sorted({each['member'] for each in self.slow}))}"
        tables = []
        if self.causes:
            told = tuple((each["member"], each["cause"], each["because"]) for each in self.causes)
            tables.append(Table(told, ("against the first", "likely cause", "because"), words=True))
        if self.differences:
            cells = tuple((each["field"], *map(str, each["values"])) for each in self.differences)
            tables.append(Table(cells, ("setting", *names), "Unlike settings", words=True))
        cells = tuple(
            (
                row["name"],
                *(figure(value, row["unit"]) for value in row["values"]),
                f"{row['ratio']:.3f}",
                row["verdict"],
            )
            for row in (differing or self.constants)
        )
        tables.append(Table(cells, ("constant", *names, "least of first", "verdict"), "Constants"))
        if self.not_comparable:
            cells = tuple((each["name"], each["field"]) for each in self.not_comparable)
            tables.append(Table(cells, ("not comparable", "unlike in"), words=True))
        return Report(headline, tuple(tables), self.assumptions, self.warnings)


def probe_compare(paths: Sequence[str | PathLike[str]]) -> tuple[ProbeCompare, dict[str, Any]]:
    """The devices of several calibration files beside each other, and the calibration of them as a fleet.

    The fleet's constants are the slowest member's, as a tensor-parallel group runs at its slowest; its memory is the
    smallest. Raises InputError for one file or files that can't be compared, DataFileError for one that can't be read.
    """
    if len(paths) < 2:
        raise InputError("one file given; two calibration files or more are compared")
    found = [read_probes(path) for path in paths]
    _gate(paths, found)
    work = Working()
    names = _names(paths, found)
    leaves = [dict(leaves_of(each["derived"])) for each in found]
    shared = [name for name in leaves[0] if all(name in each for each in leaves[1:])]
    apart = [{"name": name, "field": field} for name in shared if (field := _unlike(name, found)) is not None]
    missing = sorted(set().union(*leaves) - set(shared))
    if missing:
        work.warn(f"not in every file: {', '.join(missing[:6])}{' and others' if len(missing) > 6 else ''}")
    skipped = {each["name"] for each in apart}
    rows = [_compared(name, [each[name] for each in leaves]) for name in shared if name not in skipped]
    hashes = [each["device"].get("uuid_sha256_16") for each in found]
    told = [
        {"member": name, **cause}
        for place, name in enumerate(names[1:], start=1)
        if any(row["verdicts"][place] != "same" for row in rows)
        for cause in causes(found[0], found[place], {row["name"]: row["ratios"][place] for row in rows})
    ]
    for each in found[1:]:
        if each["device"]["fp8_flavour"] != found[0]["device"]["fp8_flavour"]:
            work.warn("FP8 of two kinds (fn, fnuz): they can't be ranks of one tensor-parallel group")
    sizes = [each["device"]["mem_total_bytes"] for each in found]
    if max(sizes) > 1.01 * min(sizes):
        work.warn(
            f"memory of {min(sizes) / 2**30:.1f} to {max(sizes) / 2**30:.1f} GiB: a group has the least of it"
        )
    answer = ProbeCompare(
        inputs={"files": [str(path) for path in paths]},
        members=tuple(
            {
                "name": name,
                "file": str(path),
                "label": each["label"],
                "device": each["device"]["name"],
                "uuid_sha256_16": each["device"].get("uuid_sha256_16"),
                "verdict": each["quality"]["verdict"],
            }
            for name, path, each in zip(names, paths, found, strict=True)
        ),
        same_device=len(set(hashes)) < len(hashes) and None not in hashes,
        differences=tuple(_differences(found)),
        constants=tuple(rows),
        not_comparable=tuple(apart),
        slow=tuple(_slow(names, rows)),
        causes=tuple(told),
        alike=all(row["verdict"] == "same" for row in rows),
        **work.shown(),
    )
    return answer, _fleet(found, names, rows)


def _gate(paths: Sequence[str | PathLike[str]], found: Sequence[Mapping[str, Any]]) -> None:
    """Raises InputError where two files can't be compared at all."""
    first = found[0]
    for path, each in zip(paths[1:], found[1:], strict=True):
        fields = [(name, first[name], each[name]) for name in _GATE]
        fields += [(name, first["device"][name], each["device"][name]) for name in _DEVICE_GATE]
        for name, one, other in fields:
            if one != other:
                raise InputError(
                    f"{str(path)!r} can't be compared with {str(paths[0])!r}: {name} {other!r} is not {one!r}"
                )


def _names(paths: Sequence[str | PathLike[str]], found: Sequence[Mapping[str, Any]]) -> list[str]:
    """What members are called: by their label where each has one of its own, else by number."""
    labels = [each["label"] for each in found]
    own = all(labels) and len(set(labels)) == len(labels)
    return [str(label) for label in labels] if own else [f"#{place}" for place in range(1, len(paths) + 1)]


def _unlike(name: str, found: Sequence[Mapping[str, Any]]) -> str | None:
    """The field by which the rows behind a constant are unlike; None where they are alike."""
    for field in _ROW_GATE:
        held = []
        for each in found:
            said = set(_leaf(each["derived"], name)["from"])
            rows = [row for row in each["results"] if f"row {row.get('id')}" in said]
            if each["results"]:  # a fleet has none: its members were alike
                held.append({row.get(field) for row in rows})
        if any(other != held[0] for other in held[1:]):
            return field
    return None


def _leaf(derived: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    found: Any = derived
    for part in name.split("."):
        found = found[part]
    return found  # type: ignore[no-any-return]


def _compared(name: str, leaves: Sequence[Constant]) -> dict[str, Any]:
    """A constant of all members: ratios to the first, above one for the better."""
    better = leaves[0].unit in (*_RATES, "byte", "1", "Hz")
    values = [leaf.value for leaf in leaves]
    ratios = [_ratio(value, values[0], better) for value in values]
    spread = max((leaf.high - leaf.low) / 2 / leaf.value if leaf.value else 0.0 for leaf in leaves)
    same = max(_SAME, _SPREADS * spread)
    follows = name.rpartition(".")[2] in CURVES
    verdicts = [
        "same" if follows or abs(ratio - 1) < same else "slow" if ratio < _SLOW else "differs"
        for ratio in ratios
    ]
    worst = min(range(len(ratios)), key=lambda place: ratios[place])
    return {
        "name": name,
        "unit": leaves[0].unit,
        "values": values,
        "ratios": ratios,
        "ratio": ratios[worst],
        "least": min(values),
        "median": median(values),
        "most": max(values),
        "verdicts": verdicts,
        "verdict": "slow" if "slow" in verdicts else "differs" if "differs" in verdicts else "same",
    }


def _ratio(value: float, first: float, better: bool) -> float:
    if not value or not first:
        return 1.0 if value == first else 0.0
    return value / first if better else first / value


def _slow(names: Sequence[str], rows: Sequence[Mapping[str, Any]]) -> Iterator[dict[str, Any]]:
    """Members below 93% of the median, constant by constant."""
    for row in rows:
        if row["verdict"] == "same":
            continue
        middle = median(row["ratios"]) if len(names) > 2 else max(row["ratios"])
        for name, ratio in zip(names, row["ratios"], strict=True):
            if middle and ratio < _SLOW * middle:
                yield {"member": name, "constant": row["name"], "of_median": ratio / middle}


def _differences(found: Sequence[Mapping[str, Any]]) -> Iterator[dict[str, Any]]:
    """Settings and software that are not alike: the first place to look."""
    for part, fields in (
        (
            "device",
            ("sku_guess", "ecc", "mig", "power_limit_w", "max_sm_mhz", "max_mem_mhz", "pcie", "numa_node"),
        ),
        ("stack", ("driver", "cuda", "rocm", "torch", "triton", "cudnn", "nccl", "kernel", "host_cpu")),
    ):
        for field in fields:
            values = [each[part].get(field) for each in found]
            if any(value != values[0] for value in values[1:]):
                yield {"field": field, "values": values}


def _fleet(
    found: Sequence[Mapping[str, Any]], names: Sequence[str], rows: Sequence[Mapping[str, Any]]
) -> dict[str, Any]:
    """A calibration whose every constant is that of the member that is slowest in it."""
    derived: dict[str, Any] = {}
    for row in rows:
        slowest = min(range(len(found)), key=lambda place: row["ratios"][place])
        *parents, last = row["name"].split(".")
        held = derived
        for parent in parents:
            held = held.setdefault(parent, {})
        leaf = _leaf(found[slowest]["derived"], row["name"])
        held[last] = {**leaf, "from": [f"{names[slowest]} {said}" for said in leaf["from"]]}
    smallest = min(found, key=lambda each: each["device"]["mem_total_bytes"])
    worst = max(
        found, key=lambda each: ("ok", "degraded", "unusable", "cpu_only").index(each["quality"]["verdict"])
    )
    oldest = min(found, key=lambda each: each["created_utc"])
    return sealed(
        {
            **found[0],
            "created_utc": oldest["created_utc"],
            "label": f"fleet of {len(found)}",
            "device": {**smallest["device"], "uuid_sha256_16": None},
            "results": [],
            "derived": derived,
            "quality": worst["quality"],
            "fleet": [
                {"name": name, "sha256": each["integrity"]["sha256_of_body"]}
                for name, each in zip(names, found, strict=True)
            ],
        }
    )
