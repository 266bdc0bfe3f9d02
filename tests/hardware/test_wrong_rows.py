"""A wrong row is refused in one line that says what is wrong, and no row breaks the reader."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from capplan.errors import DataFileError
from capplan.hardware.registry import GPUS, gpu
from capplan.hardware.spec import Gpu, from_toml
from capplan.registry import read_toml

MEMORY = 'label     = { value = 80, unit = "GB", source = "sheet" }'
WRONG = {
    "a misspelt key": ("[memory]", "[memroy]", "key 'memroy' is unknown", "did you mean 'memory'?"),
    "a misspelt key inside": (
        "bandwidth =",
        "bandwith =",
        "key 'memory.bandwith'",
        "did you mean 'bandwidth'?",
    ),
    "a misspelt part": (
        "sparse = 2000",
        "spares = 2000",
        "key 'dense_flops.fp8.spares'",
        "did you mean 'sparse'?",
    ),
    "a sparse bandwidth": (
        "value = 2, ",
        "value = 2, sparse = 4, ",
        "key 'memory.bandwidth.sparse'",
        "accepted: ",
    ),
    "no id": ('id = "mine"', "", "key 'id' is missing", "required"),
    "no name": ('name = "My accelerator"', "", "key 'name' is missing", "required"),
    "no vendor": ('vendor = "me"', "", "key 'vendor' is missing", "required"),
    "no label": (MEMORY, "", "key 'memory.label' is missing", "required"),
    "no unit": ('value = 80, unit = "GB",', "value = 80,", "key 'memory.label.unit' is missing", "required"),
    "no source": (
        ', unit = "GB", source = "sheet"',
        ', unit = "GB"',
        "key 'memory.label.source' is missing",
        "",
    ),
    "a bare number": (
        MEMORY,
        "label = 80",
        "key 'memory.label' must be a table with value, unit and source",
        "80",
    ),
    "a wrong unit": (
        '"TB/s"',
        '"TBs"',
        "key 'memory.bandwidth.unit': 'TBs' is unknown",
        "did you mean 'TB/s'?",
    ),
    "a unit of bits": ('"TB/s"', '"Tb/s"', "key 'memory.bandwidth.unit': 'Tb/s' is unknown", "'TB/s'"),
    "a unit of another kind": ('"TB/s"', '"GB"', "key 'memory.bandwidth.unit': 'GB' is unknown", "'GB/s'"),
    "a source that is not there": (
        'unit = "TB/s", source = "sheet"',
        'unit = "TB/s", source = "shete"',
        "key 'memory.bandwidth.source': 'shete' is unknown",
        "did you mean 'sheet'?",
    ),
    "a price without source": (
        'date = "2026-01-31"\nsource = "sheet"',
        "",
        "key 'prices[0].source' is missing",
        "",
    ),
    "a price from nowhere": (
        '-31"\nsource = "sheet"',
        '-31"\nsource = "x"',
        "key 'prices.source': 'x'",
        "'sheet'",
    ),
    "zero": ("value = 80", "value = 0", "key 'memory.label.value' must be a number above 0", "not 0"),
    "negative": ("value = 80", "value = -80", "key 'memory.label.value' must be a number above 0", "not -80"),
    "not a number": (
        "value = 80",
        "value = nan",
        "key 'memory.label.value' must be a number above 0",
        "not nan",
    ),
    "infinite": ("value = 80", "value = inf", "key 'memory.label.value' must be a number above 0", "not inf"),
    "text for a number": (
        "value = 80",
        'value = "80"',
        "key 'memory.label.value' must be a number",
        "not '80'",
    ),
    "true for a number": (
        "value = 80",
        "value = true",
        "key 'memory.label.value' must be a number",
        "not True",
    ),
    "sparse below dense": (
        "sparse = 2000",
        "sparse = 500",
        "key 'dense_flops.fp8.sparse' must not be below",
        "1000",
    ),
    "low above the value": (
        "value = 80",
        "value = 80, low = 81",
        "key 'memory.label' must have low <= value",
        "",
    ),
    "a fraction for a count": (
        "sm_count = 100",
        "sm_count = 1.5",
        "key 'board.sm_count' must be a whole number",
        "",
    ),
    "an unknown dtype": ('"fp8"]', '"fp9"]', "key 'native_dtypes': 'fp9' is unknown", "'fp8'"),
    "an unknown basis": (
        '"contract"',
        '"contrakt"',
        "key 'prices[0].basis': 'contrakt'",
        "did you mean 'contract'?",
    ),
    "a price of no day": ("2026-01-31", "2026-02-31", "key 'prices[0].date' must be a date", "2026-02-31"),
    "a check that is text": ("2026-11-29", '"2026-11-29"', "key 'sources[0].checked' must be a date", ""),
    "a source of nothing": ('title = "a sheet"', "", "source 'sheet' must have a title or a url", ""),
    "an alias in capitals": ('["my-gpu"]', '["My-GPU"]', "key 'aliases' must be in lower case", "'my-gpu'"),
    "one alias": ('["my-gpu"]', '"my-gpu"', "key 'aliases' must be an array of texts", ""),
    "an empty name": ('"My accelerator"', '" "', "key 'name' must be a line of text", ""),
    "a name of two lines": (
        '"My accelerator"',
        '"My\\naccelerator"',
        "key 'name' must be a line of text",
        "",
    ),
    "another id": ('id = "mine"', 'id = "yours"', "key 'id' must be the name of the file, 'mine'", "'yours'"),
    "one price": ("[[prices]]", "[prices]", "key 'prices' must be an array of tables", ""),
    "not TOML": ("[memory]", "[memory", "is not valid TOML", "line"),
}


@pytest.mark.parametrize(("old", "new", "says", "and_says"), WRONG.values(), ids=WRONG)
def test_a_wrong_row_says_what_is_wrong_in_one_line(
    gpus: Path, row_text: str, old: str, new: str, says: str, and_says: str
) -> None:
    assert old in row_text
    (gpus / "mine.toml").write_text(row_text.replace(old, new, 1), "utf-8")
    with pytest.raises(DataFileError) as error:
        gpu("mine")
    message = str(error.value)
    assert message.startswith(f"'{gpus / 'mine.toml'}'")
    assert "\n" not in message
    assert says in message
    assert and_says in message


def _paths(tree: Any, at: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    pairs = tree.items() if isinstance(tree, dict) else enumerate(tree) if isinstance(tree, list) else ()
    return [at, *(path for key, item in pairs for path in _paths(item, (*at, key)))]


H200 = read_toml(GPUS.shipped / "h200-sxm.toml")
JUNK = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 5) | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=5), inner, max_size=2),
    max_leaves=4,
)


@settings(max_examples=300, derandomize=True, deadline=None)
@given(st.sampled_from([path for path in _paths(H200) if path]), JUNK)
def test_a_row_is_read_or_refused_but_never_breaks(path: tuple[Any, ...], junk: Any) -> None:
    row = copy.deepcopy(H200)
    inner = row
    for step in path[:-1]:
        inner = inner[step]
    inner[path[-1]] = junk
    message = ""
    try:
        assert isinstance(from_toml(row, "mine.toml"), Gpu)
    except DataFileError as error:
        message = str(error)
    assert message == "" or message.startswith("'mine.toml': ")
    assert "\n" not in message
