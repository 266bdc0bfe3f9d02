"""Ranks on this machine: pages arrive whole and where they belong, what goes wrong is seen, and nothing runs on."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from capplan.probes import page_transfer, ranks
from capplan.probes.probe import Device, Row, Skipped
from capplan.probes.suite import collectives, kv_transfer, peer_copy

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


COLLECTIVES = ["right", "left_out", "places_changed", "unwritten"]


@pytest.fixture(scope="module")
def told() -> list[dict[str, list[Any]]]:
    """What two ranks say of everything, right and with each fault, from one start of them."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(Path(__file__).parent))
        return ranks.run("transfer_faults:every_one", 2, [CASE], CPU, 90)


@pytest.fixture(scope="module")
def faults(told: list[dict[str, list[Any]]]) -> dict[str, tuple[Any, Any]]:
    """Of transfers: sender and receiver, by fault."""
    sender, receiver = (one["transfers"] for one in told)
    return dict(zip(NAMES, zip(sender, receiver, strict=True), strict=True))


@pytest.fixture(scope="module")
def exchanged(told: list[dict[str, list[Any]]]) -> dict[str, list[Any]]:
    """Of collectives: the ranks, by fault."""
    return {name: [one["collectives"][i] for one in told] for i, name in enumerate(COLLECTIVES)}


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


# ---------------------------------------------------------------- collectives


@pytest.mark.parametrize("fault", COLLECTIVES)
def test_a_wrong_collective_is_caught(
    fault: str, exchanged: dict[str, list[Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(collectives, "_TOLD", {2: exchanged[fault]})
    for case in collectives.cases("default", CPU):
        found = collectives.check(case, CPU)
        assert found.ok == (fault == "right"), (case, found.why)
        assert (found.nan > 0) == (fault == "unwritten")


def test_collectives_are_timed_by_size(
    exchanged: dict[str, list[Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(collectives, "_TOLD", {2: exchanged["right"]})
    case = collectives.cases("default", CPU)[0]
    measured = collectives.measure(case, CPU)
    assert measured.backend == "gloo-loopback"
    assert measured.bytes == 2**22
    assert set(measured.values) == {"time_s.4096", "time_s.262144", "time_s.4194304"}


def test_the_start_and_the_bandwidth_of_a_collective_are_found() -> None:
    alpha, bandwidth = 16e-6, 200e9
    table = {f"time_s.{size}": alpha + size / bandwidth for size in (512, 2**16, 2**22, 2**29)}
    case = {"op": "all_reduce", "ranks": 8, "mode": "graph", "dtype": "bf16"}
    slow = {name: 20e-6 + took for name, took in table.items()}
    rows = [
        {"id": 3, "case": case, "values": table, "work": {"bytes": 2**29}},
        {"id": 4, "case": case | {"mode": "eager"}, "values": slow, "work": {"bytes": 2**29}},
    ]
    values, predicted = collectives.derive(rows)
    assert values["collectives.all_reduce.8.eager"].value == pytest.approx(20e-6 + alpha, rel=0.01)
    assert values["collectives.all_reduce.8.at.65536"].value == pytest.approx(alpha + 2**16 / bandwidth)
    assert values["collectives.all_reduce.8.alpha"].value == pytest.approx(alpha, rel=0.01)
    assert values["collectives.all_reduce.8.algbw"].value == pytest.approx(bandwidth, rel=0.01)
    assert predicted == pytest.approx([table["time_s.536870912"], slow["time_s.536870912"]])


# ---------------------------------------------------------------- copies between GPUs


def test_one_device_has_no_peers() -> None:
    with pytest.raises(Skipped, match="needs 2 GPUs"):
        peer_copy.cases("default", CPU)


def test_the_slow_link_of_a_machine_is_found() -> None:
    rows: list[Row] = []
    for source, target, size, duplex in [
        *((a, b, size, False) for a in range(4) for b in range(4) if a != b for size in (2**22, 2**28)),
        (0, 1, 2**28, True),
    ]:
        rate = 200e9 if (source, target) == (2, 3) else 390e9
        time_s = {"median": 8e-6 + size / rate, "p10": 8e-6 + size / rate, "p90": 9e-6 + size / rate, "n": 20}
        case = {"source": source, "target": target, "bytes": size, "duplex": duplex}
        work = {"bytes": size * (2 if duplex else 1)}
        rows.append(
            {"id": len(rows), "case": case, "time_s": time_s, "work": work, "values": {"peer_access": 1.0}}
        )
    values, predicted = peer_copy.derive(rows)
    assert values["fabric.slowest"].value == pytest.approx(200e9, rel=0.01)
    assert values["fabric.slow_pairs"].value == 1
    assert values["fabric.pairs.0_1.rate"].value == pytest.approx(390e9, rel=0.01)
    assert values["fabric.duplex.0_1.rate"].value == pytest.approx(780e9, rel=0.02)
    assert predicted[-1] is None
    assert peer_copy.expect(rows[0], CPU) is None
    hidden = {**rows[0], "values": {"peer_access": 0.0}}
    assert "can't reach each other's memory" in str(peer_copy.expect(hidden, CPU))
