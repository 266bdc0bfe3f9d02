"""One line of a start-up log as data: the phrase that gives it away, and the pattern that reads it.

A pattern's groups name what was measured, the unit last: `_gib`, `_s`, or none for a count. Every repetition in a
pattern is bounded or over one class of characters, so that reading a line takes time in proportion to its length.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

NUMBER = rb"-?\d{1,12}(?:\.\d{1,20})?"  # 12.34
COUNT = rb"[\d,]{1,20}"  # 203,104


@dataclass(frozen=True, slots=True)
class Form:
    """A form of line that an engine prints since a version."""

    engine: str  # "": any
    since: str
    anchor: bytes  # shared by many forms: what the whole log is searched for
    phrase: bytes  # in every line of this form
    pattern: re.Pattern[bytes]
    flags: bool = False  # the rest of the line is settings, name=value
    failure: str = ""  # what kind of failure the line tells of
    opens: bool = False  # a new start of the engine begins here
    first: bool = False  # the first such line of a rank counts, not the last
    told: bool = True  # a line with the phrase that can't be read is worth telling of


def form(
    engine: str,
    since: str,
    anchor: bytes,
    phrase: bytes,
    pattern: bytes = b"",
    *,
    flags: bool = False,
    failure: str = "",
    opens: bool = False,
    first: bool = False,
    told: bool = True,
) -> Form:
    """A Form; `<name>` in the pattern is a group of a number, `<name#>` of a count with commas."""
    spelt = re.sub(
        rb"<(\w+)#>", lambda found: b"(?P<%s>%s)" % (found[1], COUNT), pattern or re.escape(phrase)
    )
    spelt = re.sub(rb"(?<!\?P)<(\w+)>", lambda found: b"(?P<%s>%s)" % (found[1], NUMBER), spelt)
    return Form(engine, since, anchor, phrase, re.compile(spelt), flags, failure, opens, first, told)
