"""Traces: the formats in use, and what is wrong with a file or a row said or counted."""

from __future__ import annotations

import json
import time
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from capplan.capacity.simulator.traces import prefix_share, read_trace
from capplan.errors import DataFileError

GOOD = "arrival_s,input_tokens,output_tokens\n0,100,10\n1.5,200,20\n"


def written(folder: Path, text: str, name: str = "trace.csv") -> Path:
    path = folder / name
    path.write_text(text)
    return path


# input mean, p50, p90, p99; output the same; rate: of the traces' own page
STATISTICS = {
    "azure_llm_2023_code.csv": (6521, (2040, 1460, 5047, 7436), (27, 13, 55, 246), 3.17),
    "azure_llm_2023_conv.csv": (12340, (1246, 1024, 4076, 4123), (204, 115, 423, 601), 5.87),
    "mooncake_conversation.jsonl": (6015, (12781, 7590, 28560, 90760), (347, 356, 609, 1120), 3.20),
    "mooncake_synthetic.jsonl": (1996, (12346, 3953, 35948, 56635), (192, 153, 444, 776), 3.75),
}


@pytest.mark.parametrize("name", STATISTICS)
def test_public_traces(name: str, data: Path) -> None:
    trace = read_trace(data / "traces" / name)
    rows, inputs, outputs, rate = STATISTICS[name]
    assert (len(trace), dict(trace.skipped), trace.out_of_order) == (rows, {}, 0)
    for lengths, (mean, *quantiles) in ((trace.isl, inputs), (trace.osl, outputs)):
        assert lengths.mean() == pytest.approx(mean, abs=0.5)
        assert np.percentile(lengths, [50, 90, 99], method="lower") == pytest.approx(quantiles, abs=1)
    assert trace.rate == pytest.approx(rate, abs=0.006)
    assert trace.arrival[0] == 0
    assert (np.diff(trace.arrival) >= 0).all()


def test_the_columns_of_vidur(tmp_path: Path) -> None:
    trace = read_trace(
        written(tmp_path, "arrived_at,num_prefill_tokens,num_decode_tokens\n0,100,10\n1.5,200,20\n")
    )
    assert (trace.arrival.tolist(), trace.isl.tolist(), trace.osl.tolist()) == (
        [0, 1.5],
        [100, 200],
        [10, 20],
    )


@pytest.mark.parametrize(("name", "share"), [("conversation", 0.3456), ("synthetic", 0.3293)])
def test_share_of_a_prefix(name: str, share: float, data: Path) -> None:
    trace = read_trace(data / "traces" / f"mooncake_{name}.jsonl")
    assert prefix_share(trace) == pytest.approx(share, abs=5e-5)
    assert trace.block_tokens == 512
    assert trace.blocks is not None
    assert all(len(ids) == -(-n // 512) for ids, n in zip(trace.blocks, trace.isl.tolist(), strict=True))


@pytest.mark.parametrize(
    ("rows", "size"),
    [
        ([(1600, 100), (15, 1), (17, 2)], 16),
        ([(512, 1), (100, 1)], 512),
        ([(300, 3), (299, 3)], 128),
        ([(300, 3), (201, 3)], 100),
        ([(300, 3), (100, 3)], None),
    ],
)
def test_the_size_of_prefix_blocks(rows: list[tuple[int, int]], size: int | None, tmp_path: Path) -> None:
    text = "".join(
        f'{{"isl": {tokens}, "osl": 1, "block_ids": {list(range(count))}}}\n' for tokens, count in rows
    )
    trace = read_trace(written(tmp_path, text))
    assert trace.block_tokens == size
    assert any("do not divide the prompts" in line for line in trace.told()) == (size is None)


def test_the_formats_as_they_are_published(tmp_path: Path) -> None:
    azure = written(
        tmp_path,
        "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:15:46.6805900,374,44\n2023-11-16 18:15:50.9951690,396,109\n",
    )
    burst = written(
        tmp_path,
        "Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type\n5,ChatGPT,472,18,490,Conversation log\n"
        "45,ChatGPT,1087,230,1317,Conversation log\n",
        "burst.csv",
    )
    lines = [{"timestamp": t, "input_length": 600, "output_length": 5, "hash_ids": [1, 2]} for t in (0, 3000)]
    mooncake = written(tmp_path, "\n".join(map(json.dumps, lines)), "m.jsonl")
    assert read_trace(azure).arrival == pytest.approx([0, 4.314579], abs=1e-5)
    assert read_trace(burst).arrival.tolist() == [0, 40]
    assert read_trace(burst).isl.tolist() == [472, 1087]
    assert read_trace(mooncake).arrival.tolist() == [0, 3]
    assert read_trace(mooncake).blocks == ((1, 2), (1, 2))


def test_lengths_alone(tmp_path: Path) -> None:
    trace = read_trace(written(tmp_path, "input_tokens,output_tokens\n5,6\n7,8\n"))
    assert (trace.timed, trace.isl.tolist(), trace.osl.tolist()) == (False, [5, 7], [6, 8])


ROWS = {
    "2,-5,10": "with negative input tokens",
    "2,5,-1": "with negative output tokens",
    "2,0,10": "without input tokens",
    "2,nan,10": "whose input tokens are not a whole number",
    "2,inf,10": "whose input tokens are not a whole number",
    "2,1.5,10": "whose input tokens are not a whole number",
    "2,,10": "whose input tokens are not a whole number",
    "2,abc,10": "whose input tokens are not a whole number",
    "2,1e12,10": "with more than 1,000,000,000 input tokens",
    "nan,5,10": "with a time that is not a finite number",
    "inf,5,10": "with a time that is not a finite number",
    "-1,5,10": "with a negative time",
    "soon,5,10": "without a time that can be read",
    "2,5": "not a row of this file's kind",
}


@pytest.mark.parametrize("row", ROWS)
def test_a_row_that_is_no_request_is_skipped_and_counted(row: str, tmp_path: Path) -> None:
    trace = read_trace(written(tmp_path, f"{GOOD}{row}\n{row}\n"))
    assert len(trace) == 2
    assert dict(trace.skipped) == {ROWS[row]: 2}
    assert trace.told() == [f"{trace.name}: 2 rows skipped, {ROWS[row]}"]


def test_ids_that_come_twice(tmp_path: Path) -> None:
    text = "request_id,arrival_s,input_tokens,output_tokens\na,0,1,2\nb,1,1,2\na,2,1,2\n"
    trace = read_trace(written(tmp_path, text))
    assert (len(trace), dict(trace.skipped)) == (2, {"with the id of a row above": 1})


def test_rows_out_of_order_are_sorted_and_counted(tmp_path: Path) -> None:
    trace = read_trace(written(tmp_path, f"{GOOD}0.5,300,30\n"))
    assert trace.isl.tolist() == [100, 300, 200]
    assert trace.arrival.tolist() == [0, 0.5, 1.5]
    assert "1 row out of order; sorted by time" in trace.told()[0]


def test_broken_json_lines(tmp_path: Path) -> None:
    good = json.dumps({"timestamp_ms": 5, "input_tokens": 3, "output_tokens": 2, "block_ids": [1]})
    for bad, reason in (
        ("{", "not a row of this file's kind"),
        ("[1]", "not a row of this file's kind"),
        (good.replace("[1]", "7"), "whose block ids are not a list of whole numbers"),
        (good.replace("3", "NaN"), "whose input tokens are not a whole number"),
        (good.replace("3", "true"), "whose input tokens are not a whole number"),
    ):
        trace = read_trace(written(tmp_path, f"{good}\n{bad}\n"))
        assert (len(trace), dict(trace.skipped)) == (1, {reason: 1})


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "is empty"),
        ("\n\n", "is empty"),
        ("arrival_s,input_tokens,output_tokens\n", "holds no request: no rows"),
        ("arrival_s,input_tokens,output_tokens\n0,-1,5\n", "holds no request: 1 row with negative input"),
        ("a,b\n1,2\n", "has the columns 'a, b'; input_tokens"),
        ("input_tokens,b\n1,2\n", "has the columns 'input_tokens, b'"),
        ('{"a": 1}\n', "has the columns 'a'"),
        ("\0\0\0", "trace"),
    ],
)
def test_a_file_that_is_no_trace(text: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(DataFileError) as caught:
        read_trace(written(tmp_path, text))
    assert message in str(caught.value)


cells = st.one_of(
    st.integers(-5, 10**12).map(str),
    st.floats().map(str),
    st.text(max_size=8),
    st.sampled_from(["", "1e999", "[1]"]),
)


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    rows=st.lists(st.lists(cells, max_size=5), max_size=8),
    heads=st.sampled_from(
        ["arrival_s,input_tokens,output_tokens", "timestamp,input_length,output_length,id"]
    ),
)
def test_whatever_a_file_holds_it_is_read_or_refused(
    rows: list[list[str]], heads: str, tmp_path: Path
) -> None:
    text = "\n".join([heads, *(",".join(row) for row in rows)])
    path = tmp_path / "any.csv"
    path.write_text(text, encoding="utf-8", errors="replace")
    try:
        trace = read_trace(path)
    except DataFileError:
        return
    assert len(trace) >= 1
    assert trace.isl.min() >= 1
    assert trace.osl.min() >= 1
    assert (np.diff(trace.arrival) >= 0).all()
    assert np.isfinite(trace.arrival).all()


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(content=st.binary(max_size=200), brace=st.booleans())
def test_bytes_that_are_no_trace(content: bytes, brace: bool, tmp_path: Path) -> None:
    path = tmp_path / "any"
    path.write_bytes(b"{" * brace + content)
    with pytest.raises(DataFileError):
        read_trace(path)


def test_no_file(tmp_path: Path) -> None:
    for path in (tmp_path / "none.csv", tmp_path):
        with pytest.raises(DataFileError, match="can't read the trace"):
            read_trace(path)


def test_rows_past_the_limit_are_counted_and_cost_little(tmp_path: Path) -> None:
    path = written(tmp_path, GOOD + "2,300,30\n" * 300_000)
    start = time.process_time()
    trace = read_trace(path, most=1_000)
    assert time.process_time() - start < 3
    assert len(trace) == 1_000
    assert dict(trace.skipped) == {"past the first 1,000": 299_002}
