"""Which probes are there? The suite itself tells; this is only the form of the answer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from capplan.capacity.answer import Answer
from capplan.units import counted

if TYPE_CHECKING:
    from capplan.report import Report


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbeList(Answer):
    """The probes of the suite, in the order in which they run."""

    question: ClassVar[str] = "probe-list"

    probes: tuple[dict[str, Any], ...]  # name, title, formula, what, version

    def sweep(self) -> list[dict[str, Any]]:
        return [dict(row) for row in self.probes]

    def report(self) -> Report:
        from capplan.report import Report, Table

        rows = tuple((each["name"], each["title"]) for each in self.probes)
        learned = tuple((each["name"], each["what"]) for each in self.probes)
        tables = (
            Table(rows, ("probe", "measures"), words=True),
            Table(learned, ("probe", "the planner learns"), words=True),
        )
        return Report(f"{counted(len(rows), 'probe')}, in the order in which they run", tables)
