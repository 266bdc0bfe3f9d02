"""Every row of the folder: read strictly, sourced throughout, and physically plausible."""

from __future__ import annotations

from collections import Counter

import pytest

from capplan.hardware.reading import BASES, DTYPES, UNITS
from capplan.hardware.registry import GPUS, NODES, all_gpus, gpu, node, node_names
from capplan.hardware.spec import Gpu
from capplan.units import parse

GIB = 2**30
SHIPPED = sorted(path.stem for path in GPUS.shipped.glob("*.toml"))
SHIPPED_NODES = sorted(path.stem for path in NODES.shipped.glob("*.toml"))

# the label of a v5p is 95 GB where the chip has 96 GiB, and XLA gives a program 95.74 of them
LABEL_TOO_SMALL = {"tpu-v5p"}
# sparse / dense is 2 but for these
SPARSE_RATIO = {
    ("b300-sxm", "fp4"): 18 / 13.5,  # Blackwell Ultra: dense is 3/4 of the headline
    ("gb300-nvl72", "fp4"): 20 / 15,
    ("rubin-cpx", "fp4"): 30 / 20,  # a third party's reading of an unqualified headline
    ("rtx-pro-6000-server", "fp4"): 4000 / 1871.2,  # the headline assumes a higher clock than was seen
    **{("trainium2", d): 2563 / 667 for d in ("tf32", "bf16", "fp16")},  # 4:1 sparsity
    **{("trainium3", d): 2517 / 671 for d in ("tf32", "bf16", "fp16")},
}


@pytest.fixture(params=SHIPPED)
def row(request: pytest.FixtureRequest) -> Gpu:
    return gpu(request.param)


def test_there_are_66_rows_and_some_nodes() -> None:
    assert len(all_gpus()) == 66
    assert len(node_names()) >= 12


def test_the_id_is_the_file_and_is_lower_case(row: Gpu) -> None:
    assert GPUS.paths()[row.id].name == f"{row.id}.toml"
    assert row.id == row.id.lower()


@pytest.mark.parametrize("registry", [GPUS, NODES], ids=["gpus", "nodes"])
def test_no_alias_is_taken_twice(registry: object) -> None:
    rows = all_gpus() if registry is GPUS else [node(name) for name in node_names()]
    taken = Counter(name for row in rows for name in (row.id, *row.aliases))
    assert [name for name, times in taken.items() if times > 1] == []


def test_every_alias_finds_its_row(row: Gpu) -> None:
    assert all(GPUS.find(alias) == GPUS.paths()[row.id] for alias in row.aliases)


def test_every_number_has_a_source_that_can_be_looked_up(row: Gpu) -> None:
    cited = {value.source for value in row.values.values()}
    cited |= {price.source for price in row.prices}
    cited |= {s for i in row.instances for s in (i.source, i.spec_source) if s}
    assert cited == set(row.sources), "a source is missing, or nothing cites it"
    assert all(s.checked and (s.url or s.title) for s in row.sources.values())
    assert all(value.basis in BASES for value in row.values.values())
    assert all(i.source and i.price_date and i.region for i in row.instances if i.usd_per_hour)


def test_a_number_that_was_read_has_an_address_or_a_tool(row: Gpu) -> None:
    for key, value in row.values.items():
        source = row.sources[value.source]
        assert value.basis != "read" or source.url or source.id == "device-logs", key


def test_a_derived_number_says_how(row: Gpu) -> None:
    for key, value in row.values.items():
        assert value.basis != "derived" or value.note or key == "interconnect.bidirectional", key


def test_memory_shrinks_from_the_label_to_the_process(row: Gpu) -> None:
    label_gib = row.memory_label_bytes / 1e9 * GIB
    reported, visible = row.memory_reported_bytes, row.memory_visible_bytes
    if reported:
        assert row.id in LABEL_TOO_SMALL or reported <= label_gib
        assert reported >= row.memory_label_bytes, (
            "the label, read as decimal, is never more than what is there"
        )
    if visible:
        assert visible <= (reported or label_gib)
        assert visible > 0.97 * (reported or 0.97 * label_gib)


def test_sparse_headlines_have_a_known_ratio(row: Gpu) -> None:
    for dtype in row.dense_flops:
        value = row.values[f"dense_flops.{dtype}"]
        if value.sparse:
            expected = SPARSE_RATIO.get((row.id, dtype), 2.0)
            assert value.sparse / value.value == pytest.approx(expected, rel=0.025), dtype


def test_a_narrower_type_is_not_slower(row: Gpu) -> None:
    widths = [d for d in ("tf32", "bf16", "fp8", "fp6", "fp4") if d in row.dense_flops]
    rates = [row.dense_flops[d] for d in widths]
    assert rates == sorted(rates)


def test_native_dtypes_have_a_rate_or_the_row_says_why_not(row: Gpu) -> None:
    assert set(row.native_dtypes) <= set(DTYPES)
    without = set(row.native_dtypes) - set(row.dense_flops) - {"int4"}  # no int4 rate is carried
    known = {
        "gb10-dgx-spark": {"tf32", "int8"},
        "mi308x": {"fp64", "tf32"},
        "gaudi2": {"int8"},
        "rubin-cpx": {"bf16", "fp16", "fp8"},
    }
    assert without == known.get(row.id, set())


def test_links_are_consistent(row: Gpu) -> None:
    assert row.link is not None
    assert row.link.kind
    assert row.link.domain_size
    one_way, both_ways, pair = row.link.unidirectional, row.link.bidirectional, row.link.p2p
    if one_way and both_ways:
        assert both_ways == pytest.approx(2 * one_way)
    if one_way and pair:
        assert pair <= one_way
        assert not row.link.p2p_measured or row.link.p2p_measured < pair
    if row.pcie_per_direction and row.pcie_lanes and row.pcie_generation:
        # GT/s a lane, 128b/130b coded; gen 6 in flits, a little less
        raw = {3: 8e9, 4: 16e9, 5: 32e9, 6: 64e9}[row.pcie_generation] * row.pcie_lanes / 8
        assert 0.94 * raw < row.pcie_per_direction < raw


def test_prices_are_ordered_and_dated(row: Gpu) -> None:
    asked = row.price_range
    if asked:
        low, high = asked
        assert 0.1 < low <= high < 30
    for price in row.prices:
        assert price.date or "undated" in price.what
        assert price.date == "" or "2024-12-01" <= price.date <= "2026-11-29"
    for instance in row.instances:
        if instance.usd_per_hour and instance.gpus and row.price_range:
            assert 0.1 < instance.usd_per_hour / instance.gpus < 30


def test_notes_are_short_clauses(row: Gpu) -> None:
    assert row.notes
    assert all(len(note) < 170 and not note.endswith(".") for note in row.notes)


@pytest.mark.parametrize("name", SHIPPED_NODES)
def test_a_node_holds_a_known_gpu_and_agrees_with_its_row(name: str) -> None:
    found = node(name)
    assert found.id == name
    held = gpu(found.gpu)
    assert held.id == found.gpu, "a node names its gpu by id"
    assert held.link is not None
    assert found.link is not None
    assert found.link.unidirectional == held.link.unidirectional
    assert found.pcie_per_direction == held.pcie_per_direction
    assert found.nic_per_gpu is not None
    cited = {value.source for value in found.values.values()}
    assert cited == set(found.sources)
    for value in found.values.values():
        assert value.basis == "recalled" or found.sources[value.source].url


@pytest.mark.parametrize("kind", ["byte", "byte/s", "FLOP/s", "W", "USD"])
def test_units_mean_what_capplan_units_says(kind: str) -> None:
    for unit, factor in UNITS[kind].items():
        assert factor == parse(f"1 {unit}", kind.replace("/s", "/second")), unit
