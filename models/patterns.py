"""Names of modules against the patterns of an ignore list: in bounded time, whatever the pattern.

Three forms are found in checkpoints: a plain name, whole or in part ('lm_head', 'mlp.gate'); a glob
('model.layers.61*'); and a regular expression ('re:.*self_attn.*'). Python's `re` can be made to take forever, so
expressions are walked here with the set of places reached so far, as the bits of a number: no step goes back.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from copy import copy
from functools import lru_cache

from capplan.errors import DataFileError

LONGEST = 500  # characters of a pattern
DEEPEST = 20  # groups in groups
MOST_REPEATS = 100  # of {n,m}
MOST_STEPS = 100_000  # to match one name
MOST = 2_000  # globs and expressions in one list; plain names may be many more
_DIGITS = re.compile(r"(?<![A-Za-z_\d])\d+")  # a number of its own, not that of w1


Pieces = tuple[str, ...]


class PatternError(DataFileError):
    """A pattern that is not understood."""


class Patterns:
    """The entries of a list, ready to be matched."""

    def __init__(self, entries: Iterable[str]) -> None:
        self.entries = tuple(dict.fromkeys(entries))
        self.plain: set[str] = set()
        self.globs: dict[str, list[Pieces]] = {}  # by template; each as what stands between its stars
        self.expressions: list[Node] = []
        self.numbered = False  # whether an expression may tell one layer from another
        for entry in self.entries:
            if entry.startswith("re:"):
                self.expressions.append(compiled(entry[3:]))
                self.numbered = self.numbered or bool(_DIGITS.search(entry))
            elif any(c in entry for c in "*?["):
                if "?" in entry or "[" in entry:
                    raise PatternError(f"glob {entry[:60]!r} has more than '*'")
                self.globs.setdefault(_template(entry), []).append(_pieces(entry))
            else:
                self.plain.add(entry)
        if sum(map(len, self.globs.values())) + len(self.expressions) > MOST:
            raise PatternError(f"more than {MOST:,} patterns")
        self._lengths = sorted({name.count(".") + 1 for name in self.plain})
        self._templates = {_template(name) for name in self.plain}
        self._numbers = self._templates != self.plain

    def __bool__(self) -> bool:
        return bool(self.entries)

    def match(self, name: str) -> bool:
        """Whether an entry names this module or one that it is part of."""
        text = f".{name}.weight."
        return (
            self._listed(name)
            or any(_found(pieces, text) for globs in self.globs.values() for pieces in globs)
            or self.expressed(name)
        )

    def _listed(self, name: str) -> bool:
        parts = [*name.split("."), "weight"]
        return any(
            ".".join(parts[i : i + length]) in self.plain
            for length in self._lengths
            for i in range(len(parts) - length + 1)
        )

    def expressed(self, name: str) -> bool:
        """Whether an expression matches from the start of the name, as engines match them."""
        if not self.expressions:
            return False
        text = Text(name)
        return any(node(text, 1) for node in self.expressions)

    def narrowed(self, template: str) -> Patterns | None:
        """Those that can match a name of this template, numbers written as N; None: none can."""
        listed = bool(self.plain) and self._may_list(template)
        text = f".{template}.weight."
        globs = {alike: globs for alike, globs in self.globs.items() if _found(_pieces(alike), text)}
        if not (listed or globs or self.expressions):
            return None
        few = copy(self)
        few.globs = globs
        few.plain = self.plain if listed else set()
        return few

    def _may_list(self, template: str) -> bool:
        parts = [*template.split("."), "weight"]
        return any(
            ".".join(parts[i : i + length]) in self._templates
            for length in self._lengths
            for i in range(len(parts) - length + 1)
        )

    @property
    def of_layers(self) -> bool:
        """Whether layers can differ."""
        return self.numbered or bool(self.globs) or bool(self.plain and self._numbers)


def _template(name: str) -> str:
    return _DIGITS.sub("N", name)


def _pieces(glob: str) -> Pieces:
    return tuple(f".{glob}.".split("*"))


def _found(pieces: Pieces, text: str) -> bool:
    at = 0
    for piece in pieces:
        at = text.find(piece, at)
        if at < 0:
            return False
        at += len(piece)
    return True


# --- expressions ---------------------------------------------------------------------------------------------


class Text:
    """A name, with the places where each character stands as the bits of a number."""

    __slots__ = ("end", "places", "sets", "steps", "text")

    def __init__(self, text: str) -> None:
        self.text = text
        self.end = 1 << len(text)
        self.places: dict[str, int] = {}
        for i, c in enumerate(text):
            self.places[c] = self.places.get(c, 0) | 1 << i
        self.sets: dict[str, int] = {}
        self.steps = 0

    def where(self, key: str, accepts: Callable[[str], bool]) -> int:
        """The places of all characters of a set."""
        if key not in self.sets:
            self.sets[key] = sum(places for c, places in self.places.items() if accepts(c))
        return self.sets[key]

    def step(self) -> None:
        self.steps += 1
        if self.steps > MOST_STEPS:
            raise PatternError(f"a pattern takes more than {MOST_STEPS:,} steps to match {self.text[:60]!r}")


Node = Callable[[Text, int], int]  # places before -> places after
_CLASSES: dict[str, Callable[[str], bool]] = {
    "d": str.isdecimal,
    "w": lambda c: c.isalnum() or c == "_",
    "s": str.isspace,
}
_COUNTS = re.compile(r"\{(\d{1,4})(,?)(\d{0,4})\}")


@lru_cache(maxsize=MOST)
def compiled(pattern: str) -> Node:
    """An expression as a function from places to places. Raises PatternError for what it does not know.

    >>> compiled(r".*mlp\\.(gate|up)_proj")(Text("layers.0.mlp.up_proj"), 1) > 0
    True
    """
    if len(pattern) > LONGEST:
        raise PatternError(f"a pattern of {len(pattern):,} characters; {LONGEST} are accepted")
    node, at = _either(pattern, 0, 0)
    if at < len(pattern):
        raise PatternError(f"pattern {pattern[:60]!r} has ')' without '('")
    return node


def _either(pattern: str, at: int, depth: int) -> tuple[Node, int]:
    if depth > DEEPEST:
        raise PatternError(f"pattern {pattern[:60]!r} is nested too deep")
    choices: list[Node] = []
    while True:
        node, at = _row(pattern, at, depth)
        choices.append(node)
        if pattern[at : at + 1] != "|":
            return (choices[0] if len(choices) == 1 else _any_of(choices)), at
        at += 1


def _any_of(choices: list[Node]) -> Node:
    def node(text: Text, places: int) -> int:
        after = 0
        for choice in choices:
            after |= choice(text, places)
        return after

    return node


def _row(pattern: str, at: int, depth: int) -> tuple[Node, int]:
    nodes: list[Node] = []
    while at < len(pattern) and pattern[at] not in "|)":
        node, at = _atom(pattern, at, depth)
        node, at = _repeated(pattern, at, node)
        nodes.append(node)

    def row(text: Text, places: int) -> int:
        for node in nodes:
            if not places:
                return 0
            places = node(text, places)
        return places

    return row, at


def _atom(pattern: str, at: int, depth: int) -> tuple[Node, int]:
    c = pattern[at]
    if c == "(":
        return _group(pattern, at + 1, depth)
    if c == "[":
        return _set(pattern, at + 1)
    if c == "^":
        return (lambda text, places: places & 1), at + 1
    if c == "$":
        return (lambda text, places: places & text.end), at + 1
    if c == ".":
        return _ANY, at + 1
    if c == "\\":
        key, accepts = _escaped(pattern, at + 1)
        return _one(key, accepts), at + 2
    if c in "*+?{":
        raise PatternError(f"pattern {pattern[:60]!r} repeats nothing at {at}")
    return _literal(c), at + 1


def _literal(c: str) -> Node:
    return lambda text, places: (places & text.places.get(c, 0)) << 1


def _one(key: str, accepts: Callable[[str], bool]) -> Node:
    return lambda text, places: (places & text.where(key, accepts)) << 1


_ANY = _one(".", lambda c: True)


def _escaped(pattern: str, at: int) -> tuple[str, Callable[[str], bool]]:
    c = pattern[at : at + 1]
    if accepts := _CLASSES.get(c):
        return "\\" + c, accepts
    if within := _CLASSES.get(c.lower()):
        return "\\" + c, lambda c: not within(c)
    if not c or c.isalnum():
        raise PatternError(f"pattern {pattern[:60]!r} has '\\{c}'")
    return "=" + c, c.__eq__


def _group(pattern: str, at: int, depth: int) -> tuple[Node, int]:
    ahead = pattern[at : at + 2]
    if ahead in ("?:", "?=", "?!"):
        at += 2
    elif pattern[at : at + 1] == "?":
        raise PatternError(f"pattern {pattern[:60]!r} has '({pattern[at : at + 3]}'")
    node, at = _either(pattern, at, depth + 1)
    if pattern[at : at + 1] != ")":
        raise PatternError(f"pattern {pattern[:60]!r} has '(' without ')'")
    if ahead in ("?=", "?!"):
        return _looked(node, ahead == "?="), at + 1
    return node, at + 1


def _looked(node: Node, wanted: bool) -> Node:
    def look(text: Text, places: int) -> int:
        kept = 0
        for i in range(places.bit_length()):
            if places >> i & 1:
                text.step()
                kept |= (bool(node(text, 1 << i)) == wanted) << i
        return kept

    return look


def _set(pattern: str, at: int) -> tuple[Node, int]:
    start, negative = at, pattern[at : at + 1] == "^"
    at += negative
    accepted: list[Callable[[str], bool]] = []
    first = at
    while pattern[at : at + 1] != "]" or at == first:
        if at >= len(pattern):
            raise PatternError(f"pattern {pattern[:60]!r} has '[' without ']'")
        if pattern[at] == "\\":
            accepted.append(_escaped(pattern, at + 1)[1])
            at += 2
        elif pattern[at + 1 : at + 2] == "-" and pattern[at + 2 : at + 3] not in ("", "]"):
            low, high = pattern[at], pattern[at + 2]
            accepted.append(lambda c, low=low, high=high: low <= c <= high)  # type: ignore[misc]
            at += 3
        else:
            accepted.append(pattern[at].__eq__)
            at += 1
    key = pattern[start - 1 : at + 1]
    return _one(key, lambda c: any(accepts(c) for accepts in accepted) != negative), at + 1


def _repeated(pattern: str, at: int, node: Node) -> tuple[Node, int]:
    least, most = 1, 1
    c = pattern[at : at + 1]
    counts = _COUNTS.match(pattern, at) if c == "{" else None
    if counts:
        least = int(counts[1])
        most = least if not counts[2] else int(counts[3]) if counts[3] else -1
        at = counts.end()
        if max(least, most) > MOST_REPEATS:
            raise PatternError(f"pattern {pattern[:60]!r} repeats more than {MOST_REPEATS} times")
    elif c and c in "*+?":
        least, most = {"*": (0, -1), "+": (1, -1), "?": (0, 1)}[c]
        at += 1
    else:
        return node, at
    if pattern[at : at + 1] in ("?", "+"):  # lazy or possessive: whether there is a match stays the same
        if pattern[at] == "+":
            raise PatternError(f"pattern {pattern[:60]!r} has a possessive repeat")
        at += 1
    if pattern[at : at + 1] in ("*", "+", "?"):
        raise PatternError(f"pattern {pattern[:60]!r} repeats a repeat at {at}")

    def rest(text: Text, places: int) -> int:
        """All places from the first on: what `.*` and `.+` reach."""
        first = (places & -places) << least
        return (2 * text.end - 1) & -first

    if node is _ANY and most < 0:
        return rest, at

    def repeat(text: Text, places: int) -> int:
        for _ in range(least):
            text.step()
            places = node(text, places)
        reached = newest = places
        more = most - least
        while newest and more:
            text.step()
            newest = node(text, newest) & ~reached
            reached |= newest
            more -= 1
        return reached

    return repeat, at
