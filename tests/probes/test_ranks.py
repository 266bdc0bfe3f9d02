"""Ranks on this machine: pages arrive whole and where they belong, what goes wrong is seen, and nothing runs on."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from capplan.probes import page_transfer, ranks
from capplan.probes.probe import Device
from capplan.probes.suite import kv_transfer

CPU = Device("cpu", 0, "a CPU", "x86_64", sm_count=2, l2_bytes=2**20, memory_bytes=2**33)
CASE = {"page_bytes": 2**16, "pages": 8, "way": "each"}
NAMES = [
    "right",
    "flipped_bit",
    "wrong_slot",
    "two_swapped",
    "anothers_page",
    "stale_page",
    "zeros",
    "k_and_v_swapped",
    "page_before",
]


@pytest.fixture(scope="module")
def faults() -> dict[str, tuple[Any, Any]]:
    """What sender and receiver say of each fault, from one start of two ranks."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(Path(__file__).parent))
        told = ranks.run("transfer_faults:every_fault", 2, [CASE], CPU, 60)
    return dict(zip(NAMES, zip(*told, strict=True), strict=True))


@pytest.mark.parametrize("fault", NAMES)
def test_a_wrong_transfer_is_caught(
    fault: str, faults: dict[str, tuple[Any, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    sender, receiver = faults[fault]
    every = len(kv_transfer._every(CPU))
    monkeypatch.setattr(kv_transfer, "_TOLD", {kv_transfer.TRANSFER: [[sender] * every, [receiver] * every]})
    found = kv_transfer.check(CASE, CPU)
    assert found.ok == (fault == "right"), found.why
    if fault != "right":
        assert "pages" in found.why
    if fault == "anothers_page":
        assert "1 pages changed that were not to be written" in found.why
    if fault == "flipped_bit":
        assert "1 of 8 pages came wrong, the first of them 3" in found.why


def test_pages_are_handed_over_both_ways(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kv_transfer, "_TOLD", {})
    rows = []
    for i, case in enumerate(kv_transfer.cases("default", CPU)):
        assert kv_transfer.check(case, CPU).ok
        measured = kv_transfer.measure(case, CPU)
        assert len(measured.times) == 20
        assert measured.backend == "gloo-loopback"
        time_s = {"median": measured.times[0], "p10": 0.0, "p90": 1.0, "n": 20}
        rows.append({"id": i, "case": case, "time_s": time_s, "work": {"bytes": measured.bytes}})
    values, predicted = kv_transfer.derive(rows)
    assert {path.split(".")[2] for path in values} == {"each", "gathered"}
    assert len(predicted) == len(rows)


def test_every_bit_of_a_page_counts() -> None:
    page = torch.randint(256, (1, 64), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    flipped = page.repeat(64 * 8, 1)
    for bit in range(64 * 8):
        flipped[bit, bit // 8] ^= 1 << bit % 8
    sums = page_transfer.checksums(torch.cat([page, flipped]))
    assert len(set(sums.tolist())) == 1 + 64 * 8


def test_the_highest_bits_of_two_words_do_not_cancel() -> None:
    page = torch.arange(64, dtype=torch.uint8).repeat(2, 1)
    page[1, [7, 15]] ^= 128
    assert len(set(page_transfer.checksums(page).tolist())) == 2


def test_bytes_that_change_places_are_seen() -> None:
    page = torch.arange(64, dtype=torch.uint8)[None]
    moved = torch.cat([page.roll(n, 1) for n in range(64)])
    assert len(set(page_transfer.checksums(moved).tolist())) == 64


@pytest.mark.parametrize(
    ("function", "seconds", "message"),
    [
        ("one_fails", 60, "rank 1: ValueError: a planted failure"),
        ("one_hangs", 5, "did not come to an end in 5 s"),
    ],
)
def test_ranks_stop_by_themselves(
    function: str, seconds: float, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parent))
    begun = time.monotonic()
    with pytest.raises(ranks.RanksError, match=message):
        ranks.run(f"transfer_faults:{function}", 2, None, CPU, seconds)
    assert time.monotonic() - begun < 45
