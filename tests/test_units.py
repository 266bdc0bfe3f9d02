"""Reading and writing sizes, counts, rates and durations."""

from __future__ import annotations

import math
import subprocess
import sys

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from capplan import units
from capplan.errors import UnitError

KI, MI, GI, TI = 2**10, 2**20, 2**30, 2**40
UNITS = sorted({*units._KINDS, "USD/token", "second/token", "token/request", "FLOP/token", "1/second"})

ACCEPTED = [
    # counts
    ("8", "token", 8),
    ("8k", "token", 8 * 1000),
    ("8K", "token", 8 * 1000),
    ("8Ki", "token", 8 * KI),
    ("8k tokens", "token", 8 * 1000),
    ("8K tokens", "token", 8 * 1000),
    ("8 k tokens", "token", 8 * 1000),
    ("8Ki tokens", "token", 8 * KI),
    ("8 tokens", "token", 8),
    ("1 token", "token", 1),
    ("8ktok", "token", 8 * 1000),
    ("1.5M", "token", 1.5 * 1000**2),
    ("1Mi", "token", MI),
    ("15T tokens", "token", 15 * 1000**4),
    ("15B tokens", "token", 15 * 1000**3),
    ("203,000", "token", 203 * 1000),
    ("1,203,000.5", "token", 1203 * 1000 + 0.5),
    ("8_000", "token", 8 * 1000),
    ("1e9", "token", 1000**3),
    ("1E9", "token", 1000**3),
    ("1.5e+3", "token", 1500),
    ("1e-3", "token", 1 / 1000),
    (".5", "token", 1 / 2),
    ("007", "token", 7),
    ("20 requests", "request", 20),
    # plain numbers
    ("70B", "1", 70 * 1000**3),
    ("70 B", "1", 70 * 1000**3),
    ("50%", "1", 50 / 100),
    ("50 %", "1", 50 / 100),
    ("0.85", "1", 0.85),
    # sizes
    ("70B", "byte", 70),
    ("70 bytes", "byte", 70),
    ("141GB", "byte", 141 * 1000**3),
    ("62 GiB", "byte", 62 * GI),
    ("62GiB", "byte", 62 * GI),
    ("  62GiB ", "byte", 62 * GI),
    ("62   GiB", "byte", 62 * GI),
    ("1.5TiB", "byte", 1.5 * TI),
    ("80Gi", "byte", 80 * GI),
    ("8kB", "byte", 8 * 1000),
    ("8KB", "byte", 8 * 1000),
    ("8KiB", "byte", 8 * KI),
    ("80Gbit", "byte", 80 * 1000**3 / 8),
    ("1 bit", "byte", 1 / 8),
    ("320 KiB/token", "byte/token", 320 * KI),
    ("320KiB/tok", "byte/token", 320 * KI),
    # rates
    ("4.8TB/s", "byte/second", 4.8 * 1000**4),
    ("4.8 TB / s", "byte/second", 4.8 * 1000**4),
    ("400 Gbit/s", "byte/second", 400 * 1000**3 / 8),
    ("400GBps", "byte/second", 400 * 1000**3),
    ("60 GB/min", "byte/second", 1000**3),
    ("1979 TFLOP/s", "FLOP/second", 1979 * 1000**4),
    ("1979TFLOPS", "FLOP/second", 1979 * 1000**4),
    ("1,979 TFLOPs/s", "FLOP/second", 1979 * 1000**4),
    ("1.979 PFLOP/s", "FLOP/second", 1979 * 1000**4),
    ("1979T", "FLOP/second", 1979 * 1000**4),
    ("140 TFLOPs", "FLOP", 140 * 1000**4),
    ("295 FLOP/byte", "FLOP/byte", 295),
    ("295 FLOP/B", "FLOP/byte", 295),
    ("20 req/s", "request/second", 20),
    ("20/s", "request/second", 20),
    ("20 rps", "request/second", 20),
    ("120 req/min", "request/second", 120 / 60),
    ("40 tok/s", "token/second", 40),
    ("40 tokens per second", "token/second", 40),
    ("1.5M tok/s", "token/second", 1.5 * 1000**2),
    ("14k/s", "token/second", 14 * 1000),
    ("1.2B/s", "1/second", 1.2 * 1000**3),
    # times
    ("500ms", "second", 500 / 1000),
    ("0.1ms", "second", 0.0001),
    ("2 min", "second", 2 * 60),
    ("24h", "second", 24 * 3600),
    ("7d", "second", 7 * 24 * 3600),
    ("90", "second", 90),
    ("5us", "second", 5e-6),
    ("5µs", "second", 5e-6),
    ("5μs", "second", 5e-6),
    ("5 ns", "second", 5e-9),
    ("35 ms/token", "second/token", 35 / 1000),
    # money and power
    ("2.5 USD/h", "USD/second", 2.5 / 3600),
    ("$2.5/h", "USD/second", 2.5 / 3600),
    ("$ 2.5 / hour", "USD/second", 2.5 / 3600),
    ("2.5$/h", "USD/second", 2.5 / 3600),
    ("$2.5k", "USD", 2500),
    ("$0.6/Mtok", "USD/token", 0.6 / 1000**2),
    ("0.6 USD/M tokens", "USD/token", 0.6 / 1000**2),
    ("700W", "W", 700),
    ("1.2kW", "W", 1.2 * 1000),
    # the limits
    ("0", "byte", 0),
    ("0" * 64, "byte", 0),
    ("1e30", "byte", 1e30),
    ("1e-99999999999999999999", "byte", 0),
    ("0e99999999999999999999", "byte", 0),
]


@pytest.mark.parametrize(("text", "unit", "value"), ACCEPTED)
def test_accepted(text: str, unit: str, value: float) -> None:
    assert units.parse(text, unit) == value


TWO = "can be read in two ways: write"
TOKENS = "wanted a count of tokens [token], such as 8k"
SIZE = "wanted a size [byte], such as 62GiB"
RATE = "wanted a token rate [token/second], such as 40tok/s"
COMPUTE = "wanted a compute rate [FLOP/second], such as 1979TFLOP/s"
PER_TOKEN = "wanted a size per token [byte/token], such as 320KiB/token"
PLAIN = "wanted a plain number [1], such as 1.5M or 50%"
NUMBER = "does not begin with a number such as 8, 0.5, 8,000, 8_000 or 1e9"

AMBIGUOUS = [
    ("gb", "byte", f"'gb' {TWO} GB for bytes or Gbit for bits"),
    ("80gb", "byte", f"'80gb' {TWO} 80GB for bytes or 80Gbit for bits"),
    ("80 Gb", "byte", f"'80 Gb' {TWO} 80GB for bytes or 80Gbit for bits"),
    ("80mb", "byte", f"'80mb' {TWO} 80MB for bytes or 80Mbit for bits"),
    ("8kb", "byte", f"'8kb' {TWO} 8KB for bytes or 8Kbit for bits"),
    ("8gib", "byte", f"'8gib' {TWO} 8GiB for bytes or 8Gibit for bits"),
    ("8b", "byte", f"'8b' {TWO} 8B for bytes or 8bit for bits"),
    ("400 Gb/s", "byte/second", f"'400 Gb/s' {TWO} 400GB/s for bytes or 400Gbit/s for bits"),
    ("400Gbps", "byte/second", f"'400Gbps' {TWO} 400GB/s for bytes or 400Gbit/s for bits"),
    ("80G", "byte", f"'80G' {TWO} 80GB for 80,000,000,000 or 80GiB for 85,899,345,920"),
    ("8K", "byte", f"'8K' {TWO} 8kB for 8,000 or 8KiB for 8,192"),
    ("2T", "byte/second", f"'2T' {TWO} 2TB/s for 2,000,000,000,000 or 2TiB/s for 2,199,023,255,552"),
    ("2M/s", "byte/second", f"'2M/s' {TWO} 2MB/s for 2,000,000 or 2MiB/s for 2,097,152"),
    ("320k", "byte/token", f"'320k' {TWO} 320kB/token for 320,000 or 320KiB/token for 327,680"),
    ("8 K tokens", "token", f"'8 K tokens' {TWO} 8k tokens for 8,000 or 8Ki tokens for 8,192"),
    ("8 K", "token", f"'8 K' {TWO} 8k for 8,000 or 8Ki for 8,192"),
    ("8 K tok/s", "token/second", f"'8 K tok/s' {TWO} 8k tok/s for 8,000 or 8Ki tok/s for 8,192"),
    ("5m", "second", f"'5m' {TWO} 5min for minutes or 5ms for milliseconds"),
    ("5 M", "second", f"'5 M' {TWO} 5min for minutes or 5ms for milliseconds"),
    ("40 tok/m", "token/second", f"'40 tok/m' {TWO} 40tok/min for minutes or 40tok/ms for milliseconds"),
    ("20TFLOPs", "FLOP/second", f"'20TFLOPs' {TWO} 20TFLOP/s for a rate or 20TFLOP for an amount"),
    ("20 tflops", "FLOP/second", f"'20 tflops' {TWO} 20TFLOP/s for a rate or 20TFLOP for an amount"),
    ("20 Tflops", "FLOP", f"'20 Tflops' {TWO} 20TFLOP/s for a rate or 20TFLOP for an amount"),
    ("1,5", "token", f"'1,5' {TWO} 1.5 or 15"),
    ("1,50 GB", "byte", f"'1,50 GB' {TWO} 1.50 GB or 150 GB"),
    ("$1,5/h", "USD/second", f"'$1,5/h' {TWO} $1.5/h or $15/h"),
    ("0,500", "token", f"'0,500' {TWO} 0.500 or 0500"),
    ("1234,567", "token", f"'1234,567' {TWO} 1234.567 or 1234567"),
]
REFUSED = [
    # another dimension
    ("500ms", "byte", f"'500ms' is a time [second]; {SIZE}"),
    ("320 KiB", "byte/token", f"'320 KiB' is a size [byte]; {PER_TOKEN}"),
    ("8 tokens", "1", f"'8 tokens' is a count of tokens [token]; {PLAIN}"),
    ("50%", "token", f"'50%' is a plain number [1]; {TOKENS}"),
    ("70B", "second", "'70B' is a size [byte]; wanted a time [second], such as 500ms"),
    (
        "70B/s",
        "token/second",
        f"'70B/s' is a bandwidth [byte/second]; {RATE}",
    ),
    (
        "20 TFLOPS",
        "FLOP",
        "'20 TFLOPS' is a compute rate [FLOP/second]; wanted an amount of compute [FLOP], such as 140TFLOP",
    ),
    (
        "20 TFLOPS/s",
        "FLOP/second",
        f"'20 TFLOPS/s' is a quantity [FLOP/second/second]; {COMPUTE}",
    ),
    # unknown units
    ("62 GiBs", "byte", "unknown unit 'GiBs' in '62 GiBs'; did you mean 'GiB'?"),
    ("62 gIB", "byte", "unknown unit 'gIB' in '62 gIB'; did you mean 'GiB'?"),
    ("70b", "token", "unknown unit 'b' in '70b'; did you mean 'B'?"),
    ("8m", "token", "unknown unit 'm' in '8m'; did you mean 'M'?"),
    ("8 tokns", "token", "unknown unit 'tokns' in '8 tokns'; did you mean 'tokens'?"),
    ("5 parsnip", "byte", f"unknown unit 'parsnip' in '5 parsnip'; {SIZE}"),
    ("8k", "second", "unknown unit 'k' in '8k'; wanted a time [second], such as 500ms"),
    ("5 MS", "second", "unknown unit 'MS' in '5 MS'; did you mean 'ms'?"),
    ("0x10", "token", f"unknown unit 'x10' in '0x10'; {TOKENS}"),
    ("1２", "token", f"unknown unit '２' in '1２'; {TOKENS}"),
    ("5€", "USD", "unknown unit '€' in '5€'; wanted a price [USD], such as 2.5USD"),
    ("4.8 TB/sc", "byte/second", "unknown unit 'sc' in '4.8 TB/sc'; did you mean 'sec'?"),
    ("5 tok/", "token/second", f"'5 tok/' lacks a unit beside the slash; {RATE}"),
    ("1 tok/s/s", "token/second", f"unknown unit 's/s' in '1 tok/s/s'; {RATE}"),
    # not a number
    ("", "byte", f"'' is empty; {SIZE}"),
    ("   ", "byte", f"'   ' is empty; {SIZE}"),
    ("GiB", "byte", f"'GiB' does not begin with a number; {SIZE}"),
    ("-5", "token", f"'-5' is negative; {TOKENS}"),
    ("− 5", "token", f"'− 5' is negative; {TOKENS}"),
    ("+5", "token", f"'+5' does not begin with a number; {TOKENS}"),
    ("nan", "token", f"'nan' does not begin with a number; {TOKENS}"),
    ("inf", "token", f"'inf' does not begin with a number; {TOKENS}"),
    ("8_0", "token", f"'8_0' {NUMBER}; {TOKENS}"),
    ("8,000,00", "token", f"'8,000,00' {NUMBER}; {TOKENS}"),
    ("1.2.3", "token", f"'1.2.3' {NUMBER}; {TOKENS}"),
    ("5.", "token", f"'5.' {NUMBER}; {TOKENS}"),
    ("1,000_000", "token", f"'1,000_000' {NUMBER}; {TOKENS}"),
    ("e9", "token", f"'e9' does not begin with a number; {TOKENS}"),
    ("８k", "token", f"'８k' does not begin with a number; {TOKENS}"),
    # out of bounds
    ("1e31", "token", f"'1e31' is more than 1e30; {TOKENS}"),
    ("1e30 GB", "byte", f"'1e30 GB' is more than 1e30; {SIZE}"),
    ("1e999G", "byte", f"'1e999G' is more than 1e30; {SIZE}"),
    ("1e99999999999999999999", "byte", f"'1e99999999999999999999' is more than 1e30; {SIZE}"),
    ("8" * 65, "token", f"'{'8' * 39}…' is 65 characters long; {TOKENS}"),
    # not text for a line
    ("8k\n", "token", rf"'8k\n' has a character that can't be printed; {TOKENS}"),
    ("8\tk", "token", rf"'8\tk' has a character that can't be printed; {TOKENS}"),
    ("8\x00", "token", rf"'8\x00' has a character that can't be printed; {TOKENS}"),
    ("8\u202ek", "token", rf"'8\u202ek' has a character that can't be printed; {TOKENS}"),
    ("8\xa0k", "token", rf"'8\xa0k' has a character that can't be printed; {TOKENS}"),
]  # fmt: skip


@pytest.mark.parametrize(("text", "unit", "message"), AMBIGUOUS + REFUSED)
def test_refused(text: str, unit: str, message: str) -> None:
    with pytest.raises(UnitError) as error:
        units.parse(text, unit)
    assert str(error.value) == message


@pytest.mark.parametrize(("text", "unit", "message"), AMBIGUOUS)
def test_each_reading_offered_is_accepted(text: str, unit: str, message: str) -> None:
    readings = message.partition("write ")[2].split(" or ")
    for reading in readings:
        written = reading.partition(" for ")[0]
        if written[0].isdigit() and not (unit == "FLOP/second" and "/" not in written):
            base = "FLOP/second" if written.endswith("FLOP/s") else unit
            units.parse(written, base)


@pytest.mark.parametrize("unit", ["gpu", "byte/gpu", "byte/second/second", ""])
def test_an_unknown_base_unit_is_the_callers_mistake(unit: str) -> None:
    with pytest.raises(ValueError, match="is not a base unit") as error:
        units.parse("8", unit)
    assert not isinstance(error.value, UnitError)


def test_parse_count() -> None:
    assert units.parse_count("8.5k") == 8500
    assert units.parse_count("1,000,000,000,000,000,000,001") == 10**21 + 1  # past what a float holds
    assert units.parse_count("20 req", "request") == 20
    with pytest.raises(UnitError, match=r"^'8\.5 tokens' is not a whole number; wanted a count of tokens"):
        units.parse_count("8.5 tokens")


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("8k", [8000]),
        ("8k,32k,200k", [8000, 32_000, 200_000]),
        (" 8k , 32Ki", [8000, 32 * KI]),
        ("8_000,16_000", [8000, 16_000]),
        ("4096,8192", [4096, 8192]),
        ("1,2,4,8,16,32,64,128,256", [2**i for i in range(9)]),
        ("128, 256", [128, 256]),
        ("0.5,100", [0.5, 100]),
    ],
)
def test_list(text: str, values: list[float]) -> None:
    assert units.parse_list(text, "token") == values


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("8,000", f"'8,000' {TWO} '8, 0' for a list or '8000' for one number"),
        ("128,256", f"'128,256' {TWO} '128, 256' for a list or '128256' for one number"),
        ("4k,128,256", f"'4k,128,256' {TWO} '4k,128, 256' for a list or '4k,128256' for one number"),
        ("8,000,9", f"'8,000,9' {TWO} '8, 0, 9' for a list or each number without its commas"),
        ("8k,,32k", f"item 2 of the list '8k,,32k' is empty; {TOKENS}"),
        ("8k,", f"item 2 of the list '8k,' is empty; {TOKENS}"),
        ("", f"item 1 of the list '' is empty; {TOKENS}"),
        ("8k,9 parsnip", f"unknown unit 'parsnip' in '9 parsnip'; {TOKENS}"),
        ("8k;" * 2000, f"'{'8k;' * 13}…' is 6,000 characters long; a list has 4,096 at most"),
    ],
)
def test_list_refused(text: str, message: str) -> None:
    with pytest.raises(UnitError) as error:
        units.parse_list(text, "token")
    assert str(error.value) == message


@pytest.mark.parametrize(
    ("value", "unit", "digits", "text"),
    [
        (203_161.6, "token", 4, "203,162 tokens"),
        (1, "token", None, "1 token"),
        (1, "request", 3, "1 request"),
        (1_000_000, "token", None, "1,000,000 tokens"),
        (1.5e6, "token", 3, "1.5M tokens"),
        (14_135.71, "token/second", 3, "14,136 tok/s"),
        (8000, "token/request", 3, "8,000 tok/request"),
        (70_553_706_496, "1", 4, "70.55B"),
        (70_553_706_496, "1", None, "70,553,706,496"),
        (0.85, "-", 3, "0.85"),
        (5, "1/second", 3, "5/s"),
        (141e9, "byte", None, "141 GB"),
        (512, "byte", 4, "512 B"),
        (999.99e9, "byte", 4, "1 TB"),
        (4.8e12, "byte/second", 4, "4.8 TB/s"),
        (0, "byte", 4, "0 B"),
        (0.5, "second", 4, "500 ms"),
        (0, "second", 4, "0 s"),
        (90, "second", 4, "90 s"),
        (150, "second", 4, "2.5 min"),
        (5 * 3600, "second", 4, "5 h"),
        (7 * 86_400, "second", 4, "7 d"),
        (0.0354, "second/token", 3, "35.4 ms/token"),
        (1.979e15, "FLOP/second", 4, "1,979 TFLOP/s"),
        (9.999e15, "FLOP/second", 4, "9,999 TFLOP/s"),
        (2.8e16, "FLOP", 4, "28 PFLOP"),
        (140e9, "FLOP/token", 4, "140 GFLOP/token"),
        (295.1, "FLOP/byte", 3, "295 FLOP/byte"),
        (2.5 / 3600, "USD/second", None, "2.5 USD/h"),
        (0.6e-6, "USD/token", None, "0.6 USD/Mtok"),
        (1234.5, "USD", 6, "1,234.5 USD"),
        (700, "W", 4, "700 W"),
        (10_200, "W", 4, "10.2 kW"),
        (-3.2e9, "byte", 4, "-3.2 GB"),
        (-0.0, "byte", 4, "0 B"),
        (math.inf, "token", 4, "inf token"),
        (2, "byte/element", None, "2 byte/element"),
        (2, "byte/element", 4, "2 B/element"),
        (4, "FLOP/token/token", 4, "4 FLOP/token/token"),
    ],
)
def test_format(value: float, unit: str, digits: int | None, text: str) -> None:
    assert units.format(value, unit, digits) == text


@pytest.mark.parametrize(
    ("value", "unit", "text"),
    [
        (66.7e9, "byte", "62.12 GiB"),
        (320 * KI, "byte/token", "320 KiB/token"),
        (4.8e12, "byte/second", "4.366 TiB/s"),
        (1000, "byte", "1,000 B"),
        (1023.99, "byte", "1 KiB"),
        (8192, "token", "8,192 tokens"),
    ],
)
def test_format_binary(value: float, unit: str, text: str) -> None:
    assert units.format(value, unit, 4, binary=True) == text


@pytest.mark.parametrize(
    ("text", "unit", "said"),
    [
        ("8k", "token", "8,000 tokens; write 8Ki for 8,192"),
        ("8K", "token", "8,000 tokens; write 8Ki for 8,192"),
        ("8 k tokens", "token", "8,000 tokens; write 8Ki for 8,192"),
        ("1M", "token", "1,000,000 tokens; write 1Mi for 1,048,576"),
        ("8.3k", "token", "8,300 tokens"),  # 8.3Ki is not a whole number
        ("2B", "token", "2,000,000,000 tokens"),
        ("70B", "1", "70,000,000,000"),
        ("80GB", "byte", "80 GB is 74.51 GiB"),
        ("400 Gbit/s", "byte/second", "50 GB/s"),
        ("8000", "token", None),
        ("8 tokens", "token", None),
        ("8Ki", "token", None),
        ("62GiB", "byte", None),
        ("500ms", "second", None),
        ("2.5 USD/h", "USD/second", None),
        ("1979 TFLOP/s", "FLOP/second", None),
    ],
)
def test_echo(text: str, unit: str, said: str | None) -> None:
    assert units.echo(text, units.parse(text, unit), unit) == said


@pytest.mark.parametrize(("text", "unit", "value"), ACCEPTED)
def test_echo_of_anything_accepted(text: str, unit: str, value: float) -> None:
    units.echo(text, value, unit)


def test_spellings_have_one_meaning_each() -> None:
    spelled = [name for spellings, *_ in units._UNITS for name in spellings.split()]
    assert len(set(spelled)) == len(spelled)
    prefixed = [
        prefix + name for names, _, _, _, ps in units._UNITS for name in names.split() for prefix in ps
    ]
    assert len(set(prefixed)) == len(prefixed)
    assert not set(prefixed) & set(spelled)


def test_nothing_heavy_is_imported() -> None:
    code = "import sys, capplan.units; print(*sys.modules)"
    loaded = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    ).stdout.split()
    assert not {"pint", "numpy", "decimal", "fractions", "difflib", "dataclasses"} & set(loaded)


in_base_units = st.floats(min_value=0, max_value=1e30)
usual = st.floats(min_value=1e-9, max_value=1e21)
any_unit = st.sampled_from(UNITS)
PIECES = [
    *"0123456789-+.,_/$%kKGBbms²８µ🤖 \n\0",
    "000", "1e", "E9", "1e999", "nan", "inf", "Ki", "ms", "ps", "Gb", "GiB",
    "tok", "tokens", "FLOPs", "TFLOPS", "USD", "W", "h", "per",
]  # fmt: skip
near_valid = st.lists(st.sampled_from(PIECES), max_size=12).map("".join)


@given(in_base_units, any_unit, st.booleans())
@example(5e-324, "second", False)
@example(2.2250738585072014e-308, "USD/second", False)
@example(1e30, "byte", True)
def test_exact_text_is_read_back_exactly(value: float, unit: str, binary: bool) -> None:
    assert units.parse(units.format(value, unit, binary=binary), unit) == value


@given(usual, any_unit, st.integers(1, 9), st.booleans())
@example(950e6, "1/second", 1, False)
def test_display_is_off_by_half_a_digit_at_most(value: float, unit: str, digits: int, binary: bool) -> None:
    shown = units.parse(units.format(value, unit, digits, binary), unit)
    assert shown == pytest.approx(value, rel=0.5 * 10 ** (1 - digits) * (1 + 1e-9), abs=0)


@given(usual, st.floats(0, 0.1), any_unit, st.integers(1, 9), st.booleans())
def test_display_keeps_the_order(value: float, more: float, unit: str, digits: int, binary: bool) -> None:
    low, high = (
        units.parse(units.format(v, unit, digits, binary), unit) for v in (value, value * (1 + more))
    )
    assert low <= high * (1 + 1e-12)


def refusal(text: str, unit: str) -> str:
    """Why a text is refused, if it is."""
    try:
        value = units.parse(text, unit)
    except UnitError as error:
        return str(error)
    assert 0 <= value <= 1e30
    units.echo(text, value, unit)
    return ""


@given(st.text() | near_valid, any_unit)
def test_any_text_is_read_or_refused_in_one_line(text: str, unit: str) -> None:
    message = refusal(text, unit)
    assert message.isprintable()
    assert len(message) < 300


@given(st.text() | near_valid, any_unit)
def test_any_list_is_read_or_refused(text: str, unit: str) -> None:
    try:
        values = units.parse_list(text, unit)
    except UnitError:
        return
    assert len(values) == text.count(",") + 1


@given(st.integers(0, 10**30))
def test_a_count_is_exact(count: int) -> None:
    assert (
        units.parse_count(str(count))
        == units.parse_count(f"{count:,}")
        == units.parse_count(f"{count:_}")
        == count
    )
