"""One parser for every size, count, rate and duration, and one formatter.

Values are floats in base units: byte, token, request, FLOP, second, USD, W, and "1" for a plain number; and
quotients of two of them, such as byte/second. `k` and `K` are 1,000 and `Ki` is 1,024; GB is decimal, GiB
binary; `B` is byte where bytes are wanted and billion after any other count. What can be read in two ways is
refused, with both.

>>> parse("62 GiB", "byte") / 2**30, parse("8k", "token"), parse("2.5 USD/h", "USD/second") * 3600
(62.0, 8000.0, 2.5)
>>> parse("80 Gb", "byte")
Traceback (most recent call last):
    ...
capplan.errors.UnitError: '80 Gb' can be read in two ways: write 80GB for bytes or 80Gbit for bits
"""

from __future__ import annotations

import re
from math import isfinite
from typing import NoReturn

from capplan.errors import UnitError, near_misses

LONGEST = 64  # characters of one quantity
LONGEST_LIST = 4096
LARGEST = 10**30  # in base units

_DECIMAL = {"k": 10**3, "K": 10**3, "M": 10**6, "G": 10**9, "T": 10**12, "P": 10**15, "E": 10**18}
_BINARY = {"Ki": 2**10, "Mi": 2**20, "Gi": 2**30, "Ti": 2**40, "Pi": 2**50, "Ei": 2**60}
_COUNT = _DECIMAL | _BINARY | {"B": 10**9}

# spellings, base unit, the factor as a ratio of whole numbers, the prefixes they take
_UNITS: tuple[tuple[str, str, int, int, dict[str, int]], ...] = (
    ("B byte bytes", "byte", 1, 1, _DECIMAL | _BINARY),
    ("bit bits", "byte", 1, 8, _DECIMAL | _BINARY),
    ("Bps", "byte/second", 1, 1, _DECIMAL | _BINARY),
    ("token tokens tok toks", "token", 1, 1, _COUNT),
    ("request requests req reqs", "request", 1, 1, _COUNT),
    ("rps", "request/second", 1, 1, {}),
    ("FLOP FLOPs", "FLOP", 1, 1, _DECIMAL),
    ("FLOPS", "FLOP/second", 1, 1, _DECIMAL),
    ("s sec second seconds", "second", 1, 1, {}),
    ("ms", "second", 1, 10**3, {}),
    ("us µs μs", "second", 1, 10**6, {}),  # the micro sign and the Greek letter
    ("ns", "second", 1, 10**9, {}),
    ("min minute minutes", "second", 60, 1, {}),
    ("h hr hour hours", "second", 3600, 1, {}),
    ("d day days", "second", 86_400, 1, {}),
    ("USD $", "USD", 1, 1, _DECIMAL),
    ("W", "W", 1, 1, _DECIMAL),
    ("%", "1", 1, 100, {}),
)
_KNOWN: dict[str, tuple[str, int, int]] = {
    f"{prefix}{blank}{name}": (base, up * factor, down)
    for spellings, base, up, down, prefixes in _UNITS
    for name in spellings.split()
    for prefix, factor in {"": 1, **prefixes}.items()
    for blank in (("", " ") if prefix and prefixes is _COUNT else ("",))  # 8k tokens
}

# what each base unit measures, and an example
_KINDS = {
    "1": ("a plain number", "1.5M or 50%"),
    "byte": ("a size", "62GiB"),
    "token": ("a count of tokens", "8k"),
    "request": ("a count of requests", "20"),
    "FLOP": ("an amount of compute", "140TFLOP"),
    "second": ("a time", "500ms"),
    "USD": ("a price", "2.5USD"),
    "W": ("a power", "700W"),
    "byte/second": ("a bandwidth", "4.8TB/s"),
    "FLOP/second": ("a compute rate", "1979TFLOP/s"),
    "token/second": ("a token rate", "40tok/s"),
    "request/second": ("a request rate", "20req/s"),
    "USD/second": ("a price of time", "2.5USD/h"),
    "byte/token": ("a size per token", "320KiB/token"),
    "FLOP/byte": ("an intensity", "295FLOP/byte"),
}

# how values are shown: the noun of a count, alone and in a quotient; else from which value on, scale, symbol
_NOUNS = {"1": ("", ""), "token": (" tokens", " tok"), "request": (" requests", " req")}
_Steps = list[tuple[float, float, str]]
_STEPS: dict[str, _Steps] = {
    "byte": [(1.0 * _DECIMAL[p], 1.0 * _DECIMAL[p], f"{p}B") for p in "EPTGMk"] + [(0, 1, "B")],
    "binary byte": [(1.0 * f, 1.0 * f, f"{p}B") for p, f in reversed(_BINARY.items())] + [(0, 1, "B")],
    "W": [(1e6, 1e6, "MW"), (1e3, 1e3, "kW"), (0, 1, "W")],
    "FLOP": [  # the field writes up to 9,999 TFLOP, and no kFLOP
        (1e18, 1e18, "EFLOP"), (1e16, 1e15, "PFLOP"), (1e12, 1e12, "TFLOP"), (1e9, 1e9, "GFLOP"),
        (1e6, 1e6, "MFLOP"), (0, 1, "FLOP"),
    ],
    "second": [
        (172_800, 86_400, "d"), (7200, 3600, "h"), (120, 60, "min"), (1, 1, "s"),
        (1e-3, 1e-3, "ms"), (1e-6, 1e-6, "us"), (1e-12, 1e-9, "ns"), (0, 1, "s"),
    ],
}  # fmt: skip
_PRICES = {"USD/second": (0, 1 / 3600, " USD/h"), "USD/token": (0, 1e-6, " USD/Mtok")}

_LOOSE_NUMBER = re.compile(r"(\$ ?)?([0-9.,_]+(?:[eE][+-]?[0-9]+)?)( ?)(.*)")
_WHOLE = "[0-9]+|[1-9][0-9]{0,2}(?:,[0-9]{3})+|[1-9][0-9]{0,2}(?:_[0-9]{3})+"
_NUMBER = re.compile(rf"({_WHOLE})?(?:\.([0-9]+))?(?:[eE]([+-]?[0-9]+))?")


def parse(text: str, unit: str) -> float:
    """A quantity as a float in base units, exactly rounded; a bare number is in base units.

    `unit` is what is wanted [base unit, such as "byte/second"]. Raises UnitError for anything else.

    >>> parse("141GB", "byte"), parse("400 Gbit/s", "byte/second"), parse("500ms", "second")
    (141000000000.0, 50000000000.0, 0.5)
    >>> parse("70B", "1"), parse("70B", "byte"), parse("$2.5/h", "USD/second") == 2.5 / 3600
    (70000000000.0, 70.0, True)
    """
    up, down = _ratio(text, unit)
    return up / down


def parse_count(text: str, unit: str = "token") -> int:
    """A whole number of tokens, requests, ... [base unit]. Raises UnitError for a fraction, too.

    >>> parse_count("8k"), parse_count("8Ki"), parse_count("203,000 tokens")
    (8000, 8192, 203000)
    """
    up, down = _ratio(text, unit)
    if up % down:
        raise UnitError(f"{_quoted(text)} is not a whole number; wanted {_kind(unit)}")
    return up // down


def parse_list(text: str, unit: str) -> list[float]:
    """The quantities of a comma list [base unit]. Raises UnitError where a comma may be of thousands.

    >>> parse_list("8k,32k, 200k", "token")
    [8000.0, 32000.0, 200000.0]
    """
    quoted = _quoted(text)
    if len(text) > LONGEST_LIST:
        raise UnitError(f"{quoted} is {len(text):,} characters long; a list has {LONGEST_LIST:,} at most")
    for run in re.findall(r"(?<![0-9.])[0-9]+(?:,[0-9]+)+", text):
        items = run.split(",")
        thousands = re.fullmatch(r"[0-9]{1,3}(,[0-9]{3})+", run)
        if thousands or any(len(item) == 3 and item[0] == "0" for item in items[1:]):
            several = _quoted(text.replace(run, ", ".join(str(int(item)) for item in items)))
            joined = f"{_quoted(text.replace(run, ''.join(items)))} for one number"
            one = joined if thousands else "each number without its commas"
            raise UnitError(f"{quoted} can be read in two ways: write {several} for a list or {one}")
    for place, item in enumerate(text.split(","), start=1):
        if not item.strip(" "):
            raise UnitError(f"item {place} of the list {quoted} is empty; wanted {_kind(unit)}")
    return [parse(item, unit) for item in text.split(",")]


def format(value: float, unit: str, digits: int | None = None, binary: bool = False) -> str:  # noqa: A001
    """A value [unit] as text that `parse` reads.

    Without `digits` nothing is lost: parse(format(x, unit), unit) == x, up to 1e30. With `digits`, that many
    significant ones are shown, and the whole part always in full. Bytes are in kB, MB, GB; with `binary`, in
    KiB, MiB, GiB. A unit that `parse` does not know, such as byte/element, is written as it is.

    >>> format(66.7e9, "byte", 4, binary=True), format(4.8e12, "byte/second", 4), format(0.5, "second")
    ('62.12 GiB', '4.8 TB/s', '500 ms')
    >>> format(203_162, "token"), format(70.56e9, "1", 3), format(1979e12, "FLOP/second", 4)
    ('203,162 tokens', '70.6B', '1,979 TFLOP/s')
    """
    value, unit = float(value) + 0.0, "1" if unit == "-" else unit  # no -0.0
    if not isfinite(value):
        return f"{value} {unit}"
    if value < 0:
        return f"-{format(-value, unit, digits, binary)}"
    rounded = value if digits is None else float(f"{value:.{digits - 1}e}")  # 999.99 GB is 1 TB
    start, scale, symbol = next(step for step in _steps(unit, digits is None, binary) if rounded >= step[0])
    if digits is not None:
        scaled = max(value, start) / scale
        whole_digits = int(f"{scaled:.{digits - 1}e}".partition("e")[2]) + 1
        return _with_symbol(f"{scaled:,.{max(digits, whole_digits)}g}", symbol)
    for precision in (15, 17):
        text = _with_symbol(f"{value / scale:,.{precision}g}", symbol)
        try:
            if parse(text, unit) == value:
                return text
        except ValueError:  # past the largest, or a unit that parse does not know
            break
    return f"{repr(value).removesuffix('.0')} {unit}"


def gib(size: float) -> str:
    """A size [byte] for display, in binary units.

    >>> gib(66.7e9)
    '62.12 GiB'
    """
    return format(size, "byte", 4, binary=True)


def seconds(time: float) -> str:
    """A time [second] for display.

    >>> seconds(28.2971), seconds(0.03541)
    ('28.3 s', '35.41 ms')
    """
    return format(time, "second", 4)


def tokens(count: float) -> str:
    """A count [token] for display, in full.

    >>> tokens(203_161.6)
    '203,162 tokens'
    """
    return format(round(count), "token")


def counted(count: int, noun: str) -> str:
    """A number of things.

    >>> counted(1, "request"), counted(1200, "GPU")
    ('1 request', '1,200 GPUs')
    """
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def short(count: int) -> str:
    """A count as briefly as it can be written exactly, for names and headings.

    >>> short(8000), short(8192), short(1_000_000)
    ('8k', '8192', '1M')
    """
    prefix = next((p for p in "BMk" if count and count % _COUNT[p] == 0), "")
    return f"{count // _COUNT.get(prefix, 1)}{prefix}"


def echo(text: str, value: float, unit: str) -> str | None:
    """What was understood by `text`, where that is worth saying; `value` is what it was parsed to [unit].

    >>> echo("8k", 8000, "token"), echo("80GB", 80e9, "byte"), echo("8000", 8000, "token")
    ('8,000 tokens; write 8Ki for 8,192', '80 GB is 74.51 GiB', None)
    """
    number, _, expression = _split(text, unit)
    prefix = expression[:1]
    if not expression or (prefix in _DECIMAL and expression[1:2] == "i"):
        return None
    if unit in ("1", "token", "request") and prefix in _COUNT:
        binary = value / _COUNT[prefix] * _BINARY.get(f"{prefix.upper()}i", 0)
        other = f"{number}{prefix.upper()}i"
        hint = f"; write {other} for {binary:,.0f}" if prefix in "kKM" and binary % 1 == 0 else ""
        return format(value, unit) + hint
    if "bit" in expression:
        return format(value, unit, 4)
    if unit == "byte" and prefix in _DECIMAL:
        return f"{format(value, unit, 4)} is {format(value, unit, 4, binary=True)}"
    return None


def _ratio(text: str, unit: str) -> tuple[int, int]:
    """The quantity as a ratio of whole numbers: only the last division rounds."""
    if any(part not in _KINDS or "/" in part for part in unit.split("/", 1)):
        raise ValueError(f"{unit!r} is not a base unit, or a quotient of two")  # the caller's mistake
    number, blank, expression = _split(text, unit)
    up, down = _number(text, number, unit) if number else (0, 1)
    if readings := _two_readings(number, up / down, blank, expression, unit):
        raise UnitError(f"{_quoted(text)} can be read in two ways: write {readings}")
    if not number:
        _refuse(text, "does not begin with a number", unit)
    base, unit_up, unit_down = _factor(text, expression, unit)
    if base != unit:
        kind = _KINDS.get(base, ("a quantity",))[0]
        _refuse(text, f"is {kind} [{base}]", unit)
    return _bounded(text, up * unit_up, down * unit_down, unit)


def _split(text: str, unit: str) -> tuple[str, bool, str]:
    """The number, whether a blank follows it, and the unit expression without needless blanks."""
    if len(text) > LONGEST:
        _refuse(text, f"is {len(text):,} characters long", unit)
    if not text.isprintable():
        _refuse(text, "has a character that can't be printed", unit)
    words = " ".join(text.split())
    if not words:
        _refuse(text, "is empty", unit)
    if words[0] in "-−":
        _refuse(text, "is negative", unit)
    match = _LOOSE_NUMBER.fullmatch(words)
    if match is None:
        return "", False, words
    dollar, number, blank, expression = match.groups()
    expression = re.sub(r" ?/ ?| per ", "/", expression)
    if dollar:  # $2.5k/h
        above, slash, below = expression.partition("/")
        expression = f"{above}USD{slash}{below}"
    return number, bool(blank), expression


def _number(text: str, number: str, unit: str) -> tuple[int, int]:
    match = _NUMBER.fullmatch(number)
    if match is None or not (match[1] or match[2]):
        if re.fullmatch(r"[0-9]+,[0-9]+", number):
            point, joined = (text.strip().replace(number, number.replace(",", to)) for to in (".", ""))
            raise UnitError(f"{_quoted(text)} can be read in two ways: write {point} or {joined}")
        _refuse(text, "does not begin with a number such as 8, 0.5, 8,000, 8_000 or 1e9", unit)
    fraction = match[2] or ""
    digits = int((match[1] or "").replace(",", "").replace("_", "") + fraction)
    exponent = max(-999, min(999, int(match[3] or 0))) - len(fraction)  # 999 is past any float already
    return _bounded(text, digits * 10 ** max(exponent, 0), 10 ** max(-exponent, 0), unit)


def _bounded(text: str, up: int, down: int, unit: str) -> tuple[int, int]:
    if up > LARGEST * down:
        _refuse(text, "is more than 1e30", unit)
    return up, down


def _factor(text: str, expression: str, unit: str) -> tuple[str, int, int]:
    """The base unit of an expression and its factor; a prefix alone is of the unit wanted."""
    above, slash, below = expression.partition("/")
    wanted_above, _, wanted_below = unit.partition("/")
    bare = {"": 1} if wanted_above == "second" else {"": 1, **_COUNT}
    byte = above == "B" and (wanted_above == "byte" or (slash and wanted_above != "1"))  # 70B/s is bytes
    if above in bare and not byte:
        base, up, down = (wanted_above if slash else unit), bare[above], 1
    else:
        base, up, down = _known(text, above, [wanted_above, unit], bare, unit)
    if slash:
        base_below, up_below, down_below = _known(text, below, [wanted_below], {}, unit)
        base, up, down = f"{base}/{base_below}", up * down_below, down * up_below
    return base, up, down


def _known(text: str, name: str, wanted: list[str], bare: dict[str, int], unit: str) -> tuple[str, int, int]:
    if name in _KNOWN:
        return _KNOWN[name]
    if not name:
        _refuse(text, "lacks a unit beside the slash", unit)
    of_this_kind = [*bare, *(known for known, (base, _, _) in _KNOWN.items() if base in wanted)]
    nearest = near_misses(name, of_this_kind, 1) or (near_misses(name, _KNOWN, 1) if len(name) > 2 else [])
    instead = f"did you mean {nearest[0]!r}?" if nearest else f"wanted {_kind(unit)}"
    raise UnitError(f"unknown unit {_quoted(name)} in {_quoted(text)}; {instead}")


def _two_readings(number: str, amount: float, blank: bool, expression: str, unit: str) -> str:
    """What to write instead, if the expression can be read in two ways; else nothing."""
    above, slash, below = expression.partition("/")
    rest = slash + below
    wanted_above, _, wanted_below = unit.partition("/")
    bits = re.fullmatch(r"((?i:[kmgtpe]i?)?)b(ps)?", above)
    if bits and (above != "b" or wanted_above == "byte"):
        prefix, rest = bits[1].capitalize(), "/s" if bits[2] else rest
        return f"{number}{prefix}B{rest} for bytes or {number}{prefix}bit{rest} for bits"
    if not number:
        return ""
    size = above in _DECIMAL and wanted_above == "byte"
    if size and wanted_below and not slash:
        rest = f"/{wanted_below}".replace("/second", "/s")
    kelvin = blank and (above == "K" or above.startswith("K "))  # 8K is plain, 8 K looks like a unit
    if size or (kelvin and wanted_above != "second"):
        noun = ("B" if size else above[1:]) + rest
        prefix, binary_prefix = above[0], f"{above[0].upper()}i"
        decimal, binary = f"{number}{prefix.replace('K', 'k')}{noun}", f"{number}{binary_prefix}{noun}"
        in_decimal, in_binary = amount * _DECIMAL[prefix], amount * _BINARY[binary_prefix]
        return f"{decimal} for {in_decimal:,.15g} or {binary} for {in_binary:,.15g}"
    if above in ("m", "M") and wanted_above == "second":
        return f"{number}min{rest} for minutes or {number}ms{rest} for milliseconds"
    if below in ("m", "M") and wanted_below == "second":
        return f"{number}{above}/min for minutes or {number}{above}/ms for milliseconds"
    # FLOPS are a rate, and FLOPs plain where an amount is wanted
    plain = above.endswith(("FLOPS", "FLOPs") if unit == "FLOP" else "FLOPS")
    if re.fullmatch(r"(?i:[kmgtpe]?flops)", expression) and wanted_above == "FLOP" and not plain:
        prefix = above[:-5].upper()
        return f"{number}{prefix}FLOP/s for a rate or {number}{prefix}FLOP for an amount"
    return ""


def _steps(unit: str, exact: bool, binary: bool) -> _Steps:
    """How a unit is shown: from which value on, in units of what, and its symbol; the largest first."""
    if unit in _PRICES:
        return [_PRICES[unit]]
    above, slash, below = unit.partition("/")
    rest = slash + re.sub(r"\bsecond\b", "s", below)
    if above in _NOUNS:
        noun = _NOUNS[above][bool(slash)] + rest
        prefixes = [] if exact else [("T", 1e12), ("B", 1e9), ("M", 1e6)]
        return [(factor, factor, prefix + noun) for prefix, factor in prefixes] + [(0, 1, noun)]
    steps = _STEPS.get(f"binary {above}" if binary else above) or _STEPS.get(above) or [(0, 1, above)]
    return [(start, scale, f" {symbol}{rest}") for start, scale, symbol in steps]


def _with_symbol(number: str, symbol: str) -> str:
    return number + (symbol[:-1] if number == "1" and symbol in (" tokens", " requests") else symbol)


def _kind(unit: str) -> str:
    kind, example = _KINDS.get(unit, ("a quantity", "1" + unit.removeprefix("1")))
    return f"{kind} [{unit}], such as {example}"


def _quoted(text: str) -> str:
    return repr(text if len(text) <= 40 else text[:39] + "…")


def _refuse(text: str, problem: str, unit: str) -> NoReturn:
    raise UnitError(f"{_quoted(text)} {problem}; wanted {_kind(unit)}")
