"""The loop closes: what was planted in a calibration is found, planned with, reported, compared and explained."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from capplan.calibration_file import read_document, sealed, write_document
from capplan.capacity.questions.decode import decode
from capplan.capacity.questions.perf import perf
from capplan.capacity.questions.probe_compare import probe_compare
from capplan.capacity.questions.probe_report import probe_report
from capplan.capacity.questions.probe_validate import probe_validate
from capplan.capacity.step_time.calibration import Calibration, read_calibration
from capplan.capacity.step_time.chip import chip_of
from capplan.capacity.step_time.kernel_time import seconds
from capplan.capacity.step_time.measured_kernels import kernel_constants, with_kernels
from capplan.capacity.step_time.operations import attention_decode, attention_prefill, collective, gemm
from capplan.errors import DataFileError, InputError
from capplan.hardware.registry import gpu
from capplan.probes.fit import line
from capplan.probes.probe import Derived, Value
from capplan.probes.suite import hbm
from capplan.probes.verdict import derived_of

Run = Callable[..., tuple[int, str, str]]
Made = Callable[..., dict[str, Any]]
MADE = Path(__file__).parent / "made.json"


@pytest.fixture
def file(tmp_path: Path, document: Made) -> Callable[..., Path]:
    """Writes the calibration of a device that is made up."""

    def made(name: str = "h200-sxm", **planted: Any) -> Path:
        path = tmp_path / f"{len(list(tmp_path.iterdir()))}.json"
        write_document(path, document(name, **planted))
        return path

    return made


def constants(path: Path, card: str = "h200-sxm") -> dict[str, float]:
    return {each.name: each.value for each in kernel_constants(read_calibration(path), chip_of(gpu(card)))}


# --- planning -------------------------------------------------------------------------------------------------


def test_planted_shares_are_planned_with(file: Callable[..., Path]) -> None:
    found = constants(file(products=0.70, memory=0.85, node=2e-6))
    assert found["gemm.bf16"] == pytest.approx(0.70, rel=0.02)
    assert found["gemm.fp8"] == pytest.approx(0.70, rel=0.02)
    assert found["memory"] == pytest.approx(0.85, rel=0.03)
    assert found["pass_us"] == pytest.approx(2.0, rel=0.02)
    assert found["start_us"] == pytest.approx(4.0, rel=0.1)


@pytest.mark.parametrize(("m", "off"), [(1, 0.06), (64, 0.06), (4096, 0.05)])
def test_a_product_takes_what_it_was_measured_to_take(m: int, off: float, file: Callable[..., Path]) -> None:
    path = file(products=0.6, memory=0.8)
    chip = chip_of(gpu("h200-sxm"))
    measured = with_kernels(chip, kernel_constants(read_calibration(path), chip))
    rows = read_document(path)["results"]
    (row,) = (
        r
        for r in rows
        if r["probe"] == "gemm" and (r["case"]["m"], r["case"]["n"], r["case"]["k"]) == (m, 28672, 8192)
    )
    told = float(seconds(gemm("x", float(m), 28672.0, 8192.0, "bf16"), measured))
    assert told == pytest.approx(row["time_s"]["median"], rel=off)


def test_a_card_whose_units_are_capped_gets_its_share_back(file: Callable[..., Path]) -> None:
    """A share of kernels.toml is of units at their full rate: what an H20 reaches has to come out as it was measured."""
    chip = chip_of(gpu("h20-96gb"))
    assert chip.allowed < 0.5
    path = file("h20-96gb", products=0.9)
    measured = with_kernels(chip, kernel_constants(read_calibration(path), chip))
    flops = 2.0 * 8192 * 28672 * 8192
    time = float(seconds(gemm("x", 8192.0, 28672.0, 8192.0, "bf16"), measured))
    assert flops / time == pytest.approx(0.9 * chip.peaks["bf16"], rel=0.03)


def test_slower_memory_gives_slower_tokens(file: Callable[..., Path]) -> None:
    fast, slow = (
        decode("llama-3.3-70b", "h200", batches=1, tp=2, calibration=read_calibration(file(memory=share)))
        for share in (0.9, 0.6)
    )
    assert slow.at[0]["time_s"] > 1.2 * fast.at[0]["time_s"]
    assert fast.inputs["tier"] == "measured"
    assert any("memory" in text and "are from" in text for text in fast.assumptions)


def test_what_came_from_the_file_is_shown(run: Run) -> None:
    line = ("perf", "llama-3.1-8b", "--gpu", "h200", "--concurrency", "8", "--calibration", str(MADE))
    code, out, _ = run(*line, "--json")
    document = json.loads(out)
    assert code == 0
    assert (document["inputs"]["tier"], document["inputs"]["calibration"]) == ("measured", "made.json")
    own = {row["name"]: row for row in document["result"]["engine_constants"] if row["from"] == "made.json"}
    assert set(own) == {
        f"kernels.{name}" for name in ("gemm.bf16", "gemm.fp8", "memory", "pass_us", "start_us")
    }
    assert own["kernels.pass_us"]["unit"] == "s"
    assert own["kernels.pass_us"]["value"] == pytest.approx(1.5e-6, rel=0.02)
    _, out, _ = run(*line)
    assert "Measured, from made.json" in out
    code, out, _ = run(
        "decode", "llama-3.1-8b", "--gpu", "h200", "--batch", "8", "--calibration", str(MADE), "--explain"
    )
    assert code == 0
    assert "calibration, knee.bf16.bandwidth" in out


@pytest.mark.parametrize(
    ("command", "rest"),
    [
        ("perf", ("--concurrency", "4")),
        ("decode", ("--batch", "4")),
        ("prefill", ("--context", "2000")),
        ("ops", ("--batch", "4")),
        ("compare", ("--concurrency", "4")),
    ],
)
def test_every_command_about_time_takes_it(command: str, rest: tuple[str, ...], run: Run) -> None:
    where = ("--gpus", "h200,h100") if command == "compare" else ("--gpu", "h200")
    code, out, err = run(command, "llama-3.1-8b", *where, *rest, "--calibration", str(MADE), "--json")
    assert (code, err) == (0, "")
    assert json.loads(out)["inputs"]["tier"] == "measured"


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "another gpu": ({"sku_guess": "h100-sxm"}, "is of 'h100-sxm', not of 'h200-sxm'"),
    "no gpu of the registry": ({"sku_guess": None}, "which the registry does not have, not of 'h200-sxm'"),
    "a part of it": ({"mig": {"enabled": True, "profile": None}}, "is of a part of a 'h200-sxm' \\(MIG\\)"),
    "fewer processors": ({"sm_count": 114}, "is of 114 processors; 'h200-sxm' has 132"),
    "less memory": ({"mem_total_bytes": 80 * 2**30}, "is of 80.0 GiB; 'h200-sxm' shows a process 139.8 GiB"),
    "a cpu": ({"kind": "cpu"}, "measured on a CPU"),
}


@pytest.mark.parametrize(("facts", "message"), REFUSED.values(), ids=REFUSED)
def test_a_calibration_of_another_device_is_refused(
    facts: dict[str, Any], message: str, file: Callable[..., Path]
) -> None:
    with pytest.raises(InputError, match=message):
        perf("llama-3.1-8b", "h200", concurrency=[1], calibration=read_calibration(file(**facts)))


def test_one_without_a_constant_of_a_plan_is_refused(file: Callable[..., Path]) -> None:
    path = file(change=lambda made: made.update(derived={"storage": made["derived"]["hbm"]}))
    with pytest.raises(InputError, match="has no constant that a plan needs"):
        perf("llama-3.1-8b", "h200", concurrency=[1], calibration=read_calibration(path))


def with_kernel(made: dict[str, Any], probe: str, kernel: str, rate: float, start: float = 12e-6) -> None:
    leaf = {**made["derived"]["hbm"]["read_bps"], "value": rate, "lo": 0.98 * rate, "hi": 1.02 * rate}
    begun = {**made["derived"]["hbm"]["t0"], "value": start, "lo": start, "hi": start}
    made["derived"].setdefault(probe, {})[kernel] = {"bf16": {"rate": leaf, "t0": begun}}


@pytest.mark.parametrize(
    ("kernel", "share", "taken"),
    [
        ("flash_attn_3", 0.5, True),
        ("flashinfer", 0.8, True),
        ("triton", 0.5, False),
        ("triton", 0.97, True),
    ],
    ids=["an engine's, slow", "an engine's", "our own, slow", "our own, faster than shipped"],
)
def test_a_slow_kernel_of_our_own_says_nothing_of_an_engines(
    kernel: str, share: float, taken: bool, file: Callable[..., Path]
) -> None:
    rate = share * (gpu("h200").memory_bandwidth or 0.0)
    path = file(change=lambda made: with_kernel(made, "attn_decode", kernel, rate))
    assert ("decode.bf16" in constants(path)) is taken
    chip = chip_of(gpu("h200-sxm"))
    measured = with_kernels(chip, kernel_constants(read_calibration(path), chip))
    call = attention_decode(
        "x", 32.0, 32768.0, heads=64.0, kv_heads=8.0, head_dim=128.0, v_head_dim=128.0, kv="bf16"
    )
    time = 12e-6 + call.held / rate  # as it was measured, whatever else kernels.toml has in a decode
    assert (float(seconds(call, measured)) == pytest.approx(time, rel=0.01)) is taken


def test_prefill_takes_what_the_engines_kernel_took(file: Callable[..., Path]) -> None:
    rate = 500e12

    def both(made: dict[str, Any]) -> None:
        with_kernel(made, "attn_prefill", "flash", 0.6 * rate)  # torch's own, which no engine runs there
        with_kernel(made, "attn_prefill", "flash_attn_3", rate)

    chip = chip_of(gpu("h200-sxm"))
    found = kernel_constants(read_calibration(file(change=both)), chip)
    (prefill,) = (each for each in found if each.name == "prefill")
    assert prefill.source == "attn_prefill.flash_attn_3.bf16.rate"
    length = 16384.0
    call = attention_prefill(
        *("x", 1.0, length, length * (length + 1) / 2),
        heads=64.0,
        kv_heads=8.0,
        head_dim=128.0,
        v_head_dim=128.0,
        tokens=length,
        kv="bf16",
    )
    time = float(seconds(call, with_kernels(chip, found)))
    assert time == pytest.approx(12e-6 + call.flops / rate, rel=0.01)


def with_links(
    made: dict[str, Any], ranks: tuple[int, ...], time: Callable[[float], float], copies: float = 396e9
) -> None:
    """Collectives of so many ranks whose times are planted, and copies between GPUs."""
    like = made["derived"]["hbm"]["t0"]

    def leaf(value: float, unit: str) -> dict[str, Any]:
        return {**like, "value": value, "lo": 0.99 * value, "hi": 1.01 * value, "unit": unit}

    sizes = [2**n for n in range(9, 30, 2)]
    for op in ("all_reduce", "all_gather"):
        for n in ranks:
            told = {"alpha": leaf(time(512), "s"), "algbw": leaf(2**29 / time(2**29), "byte/s")}
            told["at"] = {str(size): leaf(time(size), "s") for size in sizes}
            made["derived"].setdefault("collectives", {}).setdefault(op, {})[str(n)] = told
    made["derived"]["fabric"] = {"slowest": leaf(copies, "byte/s")}


def planted(message: float) -> float:
    """Neither a line nor what is shipped: slower in the middle, as ring algorithms are."""
    return 30e-6 + 60e-6 * message / (message + 4e6) + message / 150e9


def test_a_measured_collective_takes_what_it_took(file: Callable[..., Path]) -> None:
    path = file(change=lambda made: with_links(made, (2, 8), planted))
    shipped = chip_of(gpu("h200-sxm"))
    chip = with_kernels(shipped, kernel_constants(read_calibration(path), shipped))
    for size in (2.0**9, 2.0**19, 2.0**21, 2.0**25, 2.0**29):
        made = collective("x", "allreduce", size, 8, variant="nccl")
        assert float(seconds(made, chip)) == pytest.approx(planted(size), rel=1e-6)
        assert float(seconds(made, shipped)) != pytest.approx(planted(size), rel=0.05)
    between = collective("x", "allreduce", 2.0**20, 8, variant="nccl")
    assert float(seconds(between, chip)) == pytest.approx(planted(2.0**20), rel=0.03)
    four = collective("x", "allreduce", 2.0**21, 4, variant="nccl")  # not measured
    assert float(seconds(four, chip)) == float(seconds(four, shipped))


def test_times_of_a_batch_of_messages_are_those_of_each(file: Callable[..., Path]) -> None:
    import numpy

    path = file(change=lambda made: with_links(made, (8,), planted))
    shipped = chip_of(gpu("h200-sxm"))
    chip = with_kernels(shipped, kernel_constants(read_calibration(path), shipped))
    sizes = [1e2, 1e4, 3e6, 5e8, 4e9]
    for variant in ("", "nccl"):
        together = seconds(collective("x", "allreduce", numpy.array(sizes), 8, variant=variant), chip)
        alone = [
            float(seconds(collective("x", "allreduce", size, 8, variant=variant), chip)) for size in sizes
        ]
        assert list(together) == pytest.approx(alone)
        assert alone == sorted(alone)


def test_a_start_and_a_bandwidth_alone_are_planned_with(file: Callable[..., Path]) -> None:
    def change(made: dict[str, Any]) -> None:
        with_links(made, (8,), lambda size: 20e-6 + size / 100e9)
        del made["derived"]["collectives"]["all_reduce"]["8"]["at"]

    shipped = chip_of(gpu("h200-sxm"))
    chip = with_kernels(shipped, kernel_constants(read_calibration(file(change=change)), shipped))
    for size in (2.0**16, 2.0**28, 2.0**33):
        time = float(seconds(collective("x", "allreduce", size, 8, variant="nccl"), chip))
        assert time == pytest.approx(20e-6 + size / 100e9, rel=0.02)


def test_slow_links_slow_what_reads_over_them(file: Callable[..., Path]) -> None:
    """Half of the rate of a copy: half of that of an engine's own all-reduce, and of what stages hand on."""
    found = constants(file(change=lambda made: with_links(made, (8,), planted, 198e9)))
    fabric = chip_of(gpu("h200-sxm")).fabrics["nvlink"]
    assert found["peer_share"] == pytest.approx(fabric.peer_share / 2, rel=0.01)
    assert found["direct_share"] == pytest.approx(fabric.direct_share / 2, rel=0.01)


@pytest.mark.parametrize("command", ["perf", "decode", "prefill", "ops"])
def test_collectives_change_the_plan_of_several_ranks_alone(
    command: str, file: Callable[..., Path], run: Run
) -> None:
    rest = {"perf": ("--concurrency", "8"), "prefill": ("--context", "2000")}.get(command, ("--batch", "8"))
    slow = str(file(change=lambda made: with_links(made, (2,), lambda size: 10 * planted(size))))
    fast = str(file())

    def answer(path: str, tp: str) -> tuple[dict[str, Any], float]:
        line = (command, "llama-3.1-8b", "--gpu", "h200", "--tp", tp, *rest, "--calibration", path, "--json")
        code, out, err = run(*line)
        assert (code, err) == (0, "")
        found = json.loads(out)
        row = found["result"]["at"][0] if "at" in found["result"] else found["result"]
        return found, next(row[key] for key in ("tpot_s", "time_s", "total_s", "ttft_s") if key in row)

    told, time = answer(slow, "2")
    assert any("allreduce.2.2MiB" in text and "are from" in text for text in told["assumptions"])
    assert time > answer(fast, "2")[1]
    assert "has no collectives: those of 2 ranks are as shipped" in str(answer(fast, "2")[0]["warnings"])
    assert answer(slow, "1")[1] == pytest.approx(answer(fast, "1")[1])


def test_another_number_of_ranks_or_another_link_is_said(file: Callable[..., Path]) -> None:
    def plan(tp: int, **facts: Any) -> list[str]:
        path = file(change=lambda made: with_links(made, (2, 8), planted), **facts)
        found = decode("llama-3.1-8b", "h200", batches=1, tp=tp, calibration=read_calibration(path))
        return [text for text in found.warnings if "ranks" in text or "NVLink" in text]

    assert plan(8) == []
    (four,) = plan(4)
    assert (
        "has collectives of 2, 8 ranks, and is planned with all_gather of 4, allreduce of 4: as shipped"
        in four
    )
    told, down = plan(8, nvlink={"links": 18, "active": 0})
    assert told.endswith("0 of 18 NVLinks are up")
    assert "none of its NVLinks was up; links and collectives of h200-sxm stay as shipped" in down
    assert plan(8, nvlink={"links": 18, "active": 18}) == []
    path = file(change=lambda made: with_links(made, (8,), planted), nvlink={"links": 18, "active": 0})
    assert not {"peer_share", "allreduce.8.2MiB"} & set(constants(path))


def test_where_a_collective_is_from_is_shown(file: Callable[..., Path], run: Run) -> None:
    path = str(file(change=lambda made: with_links(made, (2,), planted)))
    line = ("--gpu", "h200", "--tp", "2", "--calibration", path)
    code, out, _ = run("decode", "llama-3.1-8b", *line, "--batch", "8", "--explain")
    assert code == 0
    assert "calibration, collectives.all_reduce.2" in out
    code, out, _ = run("perf", "llama-3.1-8b", *line, "--concurrency", "8")
    assert "kernels.allreduce.2.2MiB" in out


def test_report_says_what_slow_collectives_change(file: Callable[..., Path]) -> None:
    found = probe_report(file(change=lambda made: with_links(made, (8,), lambda size: 10 * planted(size))))
    (one,) = (each for each in found.kernels if each["name"] == "allreduce.8.2MiB")
    assert one["apart"]
    changed = {(each["because"], each["pass"]): each["change"] for each in found.changes}
    assert changed["allreduce.8.2MiB", "prefill"] > 0.1
    assert any("on 8 x h200-sxm" in text for text in found.assumptions)


# --- the files ------------------------------------------------------------------------------------------------


def engine_file(path: Path) -> Path:
    """A calibration of an engine, as small as one can be."""
    leaf = {"value": 0.1, "unit": "s", "lo": 0.1, "hi": 0.1, "n": 9, "from": [], "trust": "measured"}
    document = {
        "schema": "capplan.calibration/1",
        "created_utc": "2026-11-29T12:00:00+00:00",
        "device": {"kind": "cuda", "sku_guess": "h200-sxm"},
        "engine": {"name": "vllm", "version": None},
        "model": "llama-3.1-8b",
        "derived": {"step_model": dict.fromkeys(("step", "ttft_error_p90", "tpot_error_p90"), leaf)},
        "quality": {"verdict": "ok"},
    }
    path.write_text(json.dumps(sealed(document)))
    return path


ASKED = {
    "perf": ("--concurrency", "4"),
    "decode": ("--batch", "4"),
    "prefill": ("--context", "2000"),
    "ops": ("--batch", "4"),
    "fit": (),
    "compare": ("--concurrency", "4"),
}


@pytest.mark.parametrize("command", ASKED)
def test_two_calibrations_are_refused_and_none_is_dropped(command: str, tmp_path: Path, run: Run) -> None:
    engine = str(engine_file(tmp_path / "engine.json"))
    where = ("--gpus", "h200,h100") if command == "compare" else ("--gpu", "h200")
    line = (command, "llama-3.1-8b", *where, *ASKED[command])
    for files, message in (
        (
            (engine, str(MADE)),
            "'engine.json' and 'made.json': one is of an engine and was fitted over the kernels",
        ),
        ((str(MADE), engine), "'made.json' and 'engine.json': one is of an engine"),
        ((str(MADE), str(MADE)), "2 files are given; one is accepted"),
    ):
        code, out, err = run(*line, "--calibration", files[0], "--calibration", files[1])
        assert (code, out, err.count("\n")) == (2, "", 1)
        assert (message if command != "compare" else "are both of 'h200-sxm'; give one") in err


@pytest.mark.parametrize("command", [*ASKED, "report", "validate", "probe compare"])
def test_a_blank_name_is_no_folder(command: str, run: Run) -> None:
    where = ("--gpus", "h200,h100") if command == "compare" else ("--gpu", "h200")
    line = (command, "llama-3.1-8b", *where, *ASKED.get(command, ()), "--calibration", "")
    if command not in ASKED:
        line = (
            "probe",
            *command.removeprefix("probe ").split(),
            "",
            *[str(MADE)] * (command == "probe compare"),
        )
    code, out, err = run(*line)
    assert (code, out) == (2, "")
    assert (
        err
        == "error: '' names no file; a calibration file (capplan calibrate, capplan probe run) is accepted\n"
    )


def test_what_a_file_says_twice_is_not_guessed(tmp_path: Path) -> None:
    """Readers of JSON take the last of two: the sum over what was read would hold for a file that others read otherwise."""
    text = MADE.read_text()
    path = tmp_path / "twice.json"
    for old, name in (('"profile": ', "profile"), ('"sm_count": ', "sm_count")):
        path.write_text(text.replace(old, f'{old}"quick", {old}', 1))
        with pytest.raises(DataFileError, match=f"is not valid JSON: '{name}' is there twice"):
            read_document(path)


EVIL = "a\x1b[31m\r\u202eb\ud800"


def evil(made: dict[str, Any]) -> None:
    """Words that a terminal obeys, wherever a file has some."""
    made["device"]["name"] = made["label"] = made["capplan_version"] = EVIL
    made["quality"]["warnings"] = [EVIL]
    made["derived"][EVIL] = {EVIL: made["derived"]["hbm"]["t0"] | {"unit": EVIL}}
    made["stack"] |= {"driver": EVIL, "host_cpu": EVIL}
    row = made["results"][0]
    row |= {"probe": EVIL, "reason": EVIL, "status": "warn", "kernel": EVIL, "notes": [EVIL], "formula": EVIL}
    row["case"] = {EVIL: EVIL}


@pytest.mark.parametrize("form", [(), ("--csv",), ("--json",)])
@pytest.mark.parametrize("command", ["report", "validate", "compare", "plan", "explain"])
def test_nothing_of_a_file_is_obeyed_by_a_terminal(
    command: str, form: tuple[str, ...], document: Made, tmp_path: Path, run: Run
) -> None:
    path = tmp_path / "evil\x1b[31m.json"
    path.write_text(json.dumps(sealed(document(change=evil))))
    line = {
        "compare": ("probe", "compare", str(MADE), str(path), *form),
        "plan": (
            "perf",
            "llama-3.1-8b",
            "--gpu",
            "h200",
            "--concurrency",
            "4",
            "--calibration",
            str(path),
            *form,
        ),
        "explain": ("decode", "llama-3.1-8b", "--gpu", "h200", "--calibration", str(path), "--explain"),
    }.get(command, ("probe", command, str(path), *form))
    code, out, err = run(*line)
    assert code in (0, 1), err
    assert [text for text in (out, err) if not text.replace("\n", "").isprintable()] == []
    if command == "report" and not form:
        assert r"a\x1b[31m\r\u202eb\ud800" in out


# --- report and validate --------------------------------------------------------------------------------------


def test_report_says_what_a_difference_changes(file: Callable[..., Path]) -> None:
    found = probe_report(file(products=0.5))
    (fp8,) = (each for each in found.kernels if each["name"] == "gemm.fp8")
    assert fp8["apart"]
    assert fp8["value"] == pytest.approx(0.5, rel=0.02)
    changed = {(each["because"], each["pass"]): each["change"] for each in found.changes}
    assert changed["gemm.fp8", "prefill"] > 0.1
    assert ("gemm.fp8", "decode, batch 1") not in changed  # which is bound by memory
    assert ("all of them", "prefill") in changed


def test_report_is_silent_within_the_spread(file: Callable[..., Path]) -> None:
    shipped = chip_of(gpu("h200-sxm")).constants
    found = probe_report(file(products=shipped.gemm["bf16"], spread=0.2))
    (bf16,) = (each for each in found.kernels if each["name"] == "gemm.bf16")
    assert not bf16["apart"]
    assert not [each for each in found.changes if each["because"] == "gemm.bf16"]


def test_report_shows_rows_beside_the_formula_and_the_datasheet() -> None:
    found = probe_report(MADE)
    row = next(row for row in found.rows if row["probe"] == "gemm" and "m 8192" in row["case"])
    assert row["error"] == pytest.approx(0, abs=0.01)
    (peak,) = (each for each in found.constants if each["name"] == "gemm.bf16.plain.flops_typ")
    assert peak["spec"] == gpu("h200").dense_flops["bf16"]
    assert peak["of_spec"] == pytest.approx(0.75, rel=0.01)


def test_validate_finds_the_ridge_and_the_knee_that_were_planted(file: Callable[..., Path]) -> None:
    found = probe_validate(file(products=0.75, memory=0.88))
    (ridge,) = found.ridges
    assert ridge["spec"] == pytest.approx(989.5 / 4.8, rel=1e-3)
    assert ridge["measured"] == pytest.approx(0.75 / 0.88 * ridge["spec"], rel=0.05)
    assert ridge["holds"]
    (knee,) = found.knees
    assert knee["formula"] == pytest.approx(206.1, abs=0.1)
    assert knee["batch_90pct"] > knee["formula"]  # 206 does not saturate it
    assert {each["probe"] for each in found.kernels} == {"gemm", "fp8_gemm", "weight_streaming"}
    assert all(each["measured_median"] < 0.05 for each in found.kernels)
    assert not probe_validate(file(products=0.4)).ridges[0]["holds"]


def step_rows(row: Callable[..., Any], pooled: bool) -> list[dict[str, Any]]:
    """Rows of a decoder step whose time is that of one pool of work, or a sum over its two parts."""
    peak, bandwidth, parameters = 0.75 * 989.5e12, 0.88 * 4.8e12, 855e6
    found: list[dict[str, Any]] = []
    for batch in (1, 32, 128, 256, 512):
        for context in (128, 8192):
            flops, weights, kv = 2 * parameters * batch, 2 * parameters, 4096.0 * batch * context
            parts = (flops / peak) ** 3 + (weights / bandwidth) ** 3
            time = (
                max(flops / peak, (weights + kv) / bandwidth) if pooled else parts ** (1 / 3) + kv / bandwidth
            )
            case = {
                "layer": "llama3-70b",
                "batch": batch,
                "context": context,
                "dtype": "bf16",
                "kernel": "triton",
            }
            made = row("decoder_step", case, time, flops=flops, bytes=weights + kv, dtype="bf16")
            found.append(made | {"id": 1000 + len(found)})
    return found


@pytest.mark.parametrize("pooled", [True, False], ids=["pooled", "summed"])
def test_validate_tells_a_pool_from_a_sum(
    pooled: bool, file: Callable[..., Path], row: Callable[..., Any]
) -> None:
    path = file(change=lambda made: made["results"].extend(step_rows(row, pooled)))
    (form,) = probe_validate(path).forms
    assert form["fits"] == ("pooled" if pooled else "summed")
    assert min(form["pooled"], form["summed"]) < 0.05


# --- compare --------------------------------------------------------------------------------------------------


UNSEEN: dict[str, Any] = dict.fromkeys(("sm_mhz", "mem_mhz", "power_w", "temp_c")) | {
    "reasons_seen": [],
    "samples": 9,
    "interval_ms": 20,
}


def hot(made: dict[str, Any]) -> None:
    for row in made["results"]:
        seen = {"n": 9, "median": 1500.0, "min": 1500.0, "p10": 1500.0, "p90": 1500.0, "iqr_rel": 0.0}
        row["telemetry"] = UNSEEN | {"sm_mhz": seen, "reasons_seen": ["hw_thermal"]}


def clocked(mhz: float) -> Callable[[dict[str, Any]], None]:
    def change(made: dict[str, Any]) -> None:
        for row in made["results"]:
            seen = {"n": 9, "median": mhz, "min": mhz, "p10": mhz, "p90": mhz, "iqr_rel": 0.0}
            row["telemetry"] = UNSEEN | {"sm_mhz": seen, "reasons_seen": []}

    return change


def software(**changed: str) -> Callable[[dict[str, Any]], None]:
    return lambda made: made["stack"].update(changed)


NARROW = {"gen": 5, "width": 8, "gen_max": 5, "width_max": 16}
# what is planted in the second device -> the cause that has to be named
CAUSES: dict[str, tuple[dict[str, Any], str]] = {
    "a lower clock allowed": ({"products": 0.675, "max_sm_mhz": 1782}, "clock"),
    "a lower clock seen": ({"products": 0.60, "change": clocked(1584.0)}, "clock"),
    "a narrower link": ({"link": 0.44, "pcie": NARROW}, "link width"),
    "another socket": ({"link": 0.6, "numa_node": 1}, "NUMA"),
    "ECC": ({"memory": 0.8, "ecc": False}, "ECC"),
    "a memory clock": ({"memory": 0.8, "max_mem_mhz": 2619}, "memory clock"),
    "MIG": (
        {
            "products": 0.4,
            "memory": 0.45,
            "mig": {"enabled": True, "profile": "3g.71gb"},
            "mem_total_bytes": 71 * 2**30,
        },
        "MIG",
    ),
    "a driver": ({"products": 0.65, "change": software(driver="570.1")}, "driver or library"),
    "a torch": ({"launch": 9e-6, "node": 3e-6, "change": software(torch="2.11.0")}, "driver or library"),
    "a power limit": ({"products": 0.6, "power_limit_w": 500.0}, "power limit"),
    "heat": ({"products": 0.57, "change": hot}, "heat"),
    "a slow host": ({"launch": 12e-6, "change": software(host_cpu="another CPU")}, "host CPU"),
    "another card": ({"memory": 0.8, "mem_total_bytes": 94 * 2**30}, "card"),
    "other work": (
        {"products": 0.6, "memory": 0.7, "change": lambda made: made["quality"].update(contended=True)},
        "contention",
    ),
    "nothing to be seen, products": ({"products": 0.6}, "power, heat or library"),
    "nothing to be seen, memory": ({"memory": 0.7}, "memory clock, ECC or another card"),
    "nothing to be seen, the link": ({"link": 0.5}, "link width or NUMA"),
    "everything": ({"products": 0.5, "memory": 0.6, "link": 0.6, "launch": 8e-6, "node": 3e-6}, "contention"),
}


@pytest.mark.parametrize(("planted", "cause"), CAUSES.values(), ids=CAUSES)
def test_the_planted_cause_is_named_first(
    planted: dict[str, Any], cause: str, file: Callable[..., Path]
) -> None:
    found, _ = probe_compare([file(change=clocked(1760.0)) if "seen" in cause else file(), file(**planted)])
    if planted.get("change") is not None and cause == "clock":
        found, _ = probe_compare([file(change=clocked(1980.0)), file(**planted)])
    assert not found.alike
    assert found.causes[0]["cause"] == cause
    assert {each["member"] for each in found.causes} == {"#2"}


def test_devices_that_are_alike(file: Callable[..., Path], run: Run) -> None:
    first, second = file(), file(products=0.755, memory=0.875)
    found, _ = probe_compare([first, second])
    assert found.alike
    assert found.causes == ()
    assert found.same_device
    assert run("probe", "compare", str(first), str(second))[0] == 0
    assert run("probe", "compare", str(first), str(file(products=0.5)))[0] == 1


def test_a_fleet_is_as_slow_as_its_slowest(file: Callable[..., Path], tmp_path: Path) -> None:
    found, fleet = probe_compare(
        [file(uuid_sha256_16="a" * 16), file(memory=0.7, uuid_sha256_16="b" * 16), file(products=0.6)]
    )
    assert {each["member"] for each in found.slow} == {"#2", "#3"}
    assert not found.same_device or found.members[0]["uuid_sha256_16"] == found.members[2]["uuid_sha256_16"]
    path = tmp_path / "fleet.json"
    write_document(path, fleet)
    told = constants(path)
    assert told["memory"] == pytest.approx(0.7, rel=0.03)
    assert told["gemm.bf16"] == pytest.approx(0.6, rel=0.02)


def test_a_fleet_is_compared_with_a_device(file: Callable[..., Path], tmp_path: Path) -> None:
    one = file()
    path = tmp_path / "fleet.json"
    write_document(path, probe_compare([one, file()])[1])
    for paths in ([path, one], [one, path], [path, path]):
        found, _ = probe_compare(paths)
        assert (found.alike, found.not_comparable) == (True, ())


def test_files_that_can_not_be_compared(file: Callable[..., Path]) -> None:
    with pytest.raises(InputError, match="arch 'sm_89' is not 'sm_90'"):
        probe_compare([file(), file("l40s")])
    with pytest.raises(InputError, match="method_version 99 is not 1"):
        probe_compare([file(), file(change=lambda made: made.update(method_version=99))])


def test_rows_of_another_kernel_are_never_averaged(file: Callable[..., Path]) -> None:
    def other(made: dict[str, Any]) -> None:
        for row in made["results"]:
            if row["probe"] == "hbm":
                row["kernel"] = "another"

    found, _ = probe_compare([file(), file(memory=0.5, change=other)])
    assert {each["field"] for each in found.not_comparable} == {"kernel"}
    assert not [each for each in found.constants if each["name"].startswith("hbm.")]


def test_rates_of_other_shapes_are_never_averaged(file: Callable[..., Path]) -> None:
    def shaped(sha: str) -> Callable[[dict[str, Any]], None]:
        def change(made: dict[str, Any]) -> None:
            for row in made["results"]:
                if row["probe"] == "gemm":
                    row["shape_set_sha"] = sha

        return change

    found, _ = probe_compare([file(change=shaped("a")), file(change=shaped("b"))])
    assert {each["field"] for each in found.not_comparable} == {"shape_set_sha"}
    assert probe_compare([file(change=shaped("a")), file(change=shaped("a"))])[0].not_comparable == ()


def test_the_made_up_file_is_what_is_made(document: Made) -> None:
    """made.json stands for the maker where no fixture can: a file of an older method would hide a change."""
    made = document(change=lambda made: made.update(label="made up"))
    assert json.loads(json.dumps(made)) == read_document(MADE)


def test_a_leaf_that_is_no_number_is_refused(file: Callable[..., Path], tmp_path: Path) -> None:
    found = read_document(file())
    found["derived"]["hbm"]["read_bps"]["value"] = -1
    path = tmp_path / "bad.json"
    path.write_text(json.dumps(sealed(found)))
    with pytest.raises(
        InputError, match=r"no constants that can be read: derived\.hbm.read_bps.value is below 0"
    ):
        read_calibration(path)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda d: d["derived"]["hbm"]["read_bps"].pop("from"), "derived.hbm.read_bps has no 'from'"),
        (lambda d: d["results"][0].pop("version"), r"results\[0\] has no 'version'"),
        (lambda d: d["results"][0].update(mode=[]), r"results\[0\].mode is not burst or"),
        (lambda d: d["results"][0].update(rel_err="x"), r"results\[0\].rel_err is no number or null"),
        (lambda d: d["spec"].update(peak_flops_dense=[]), "spec.peak_flops_dense is no object"),
        (lambda d: d["quality"].update(warnings=True), "quality.warnings is no array"),
        (lambda d: d["derived"].update(json.loads(400 * '{"a":' + "{}" + 400 * "}")), "too deep"),
        (lambda d: d.update(created_utc="now"), "Invalid isoformat string: 'now'"),
        (lambda d: d["results"][0].update(rel_err=float("nan")), "is not valid JSON: nan is no number"),
        (lambda d: d["results"][0].update(rel_err=float("inf")), "is not valid JSON: infinity is no number"),
        (lambda d: d.update(device=7), ": device is no object"),
        (lambda d: d.pop("quality"), ": it has no 'quality'"),
        (lambda d: d["derived"]["hbm"]["read_bps"].update(lo=0), "derived.hbm.read_bps is below 1 byte/s"),
        (
            lambda d: [
                each.update(value=0, lo=0, hi=0) for each in d["derived"]["gemm"]["bf16"]["plain"].values()
            ],
            "derived.gemm.bf16.plain.flops_typ is below 1 FLOP/s",
        ),
    ],
)
def test_a_file_that_is_unlike_its_schema_is_refused(
    change: Callable[[dict[str, Any]], Any], message: str, tmp_path: Path
) -> None:
    found = read_document(MADE)
    change(found)
    path = tmp_path / "bad.json"
    path.write_text(json.dumps(sealed(found)))
    for read in (probe_report, probe_validate, read_calibration, lambda path: probe_compare([MADE, path])):
        with pytest.raises(DataFileError, match=message):
            read(path)


def test_a_node_with_a_gpu_that_does_nothing_is_refused(file: Callable[..., Path], run: Run) -> None:
    def change(made: dict[str, Any]) -> None:
        nothing = made["derived"]["hbm"]["t0"] | {"value": 0, "lo": 0, "hi": 0, "unit": "1"}
        made["derived"]["node"] = {"read": {"slowest": nothing}}

    path = file(change=change)
    plan = ("decode", "llama-3.1-8b", "--gpu", "h200", "--calibration", str(path))
    for asked in (("probe", "report", str(path)), ("probe", "validate", str(path)), plan):
        code, out, err = run(*asked)
        assert (code, out) == (2, "")
        said = f"calibration {path.name!r} has a node.read.slowest of 0; a share above 0 is accepted"
        assert err == f"error: {said}\n"


@pytest.mark.parametrize(
    "name", ["", ".x", ".all_reduce", ".all_reduce.8", ".all_reduce.two", ".all_reduce." + 5000 * "9"]
)
def test_collectives_in_another_place_are_none(name: str, file: Callable[..., Path]) -> None:
    def change(made: dict[str, Any]) -> None:
        each = made["derived"]["hbm"]["t0"]
        if name.count(".") == 2 and name != ".all_reduce.8":
            each = {"alpha": each, "algbw": each | {"value": 1e9, "lo": 1e9, "hi": 1e9, "unit": "byte/s"}}
        for key in reversed(f"collectives{name}".split(".")):
            each = {key: each}
        made["derived"] |= each

    path = file(change=change)
    assert not any(each["name"].startswith("allreduce") for each in probe_report(path).kernels)
    found = decode("llama-3.1-8b", "h200", batches=1, tp=8, calibration=read_calibration(path))
    assert any("has no collectives: those of 8 ranks are as shipped" in text for text in found.warnings)


def test_a_calibration_of_kernels_has_no_engine() -> None:
    found = read_calibration(MADE)
    assert isinstance(found, Calibration)
    assert (found.engine, found.model, found.constants) == (None, None, {})


def test_four_pictures_of_a_device(tmp_path: Path, run: Run) -> None:
    pytest.importorskip("matplotlib")
    code, _, err = run("probe", "report", str(MADE), "--plot", "h200.svg")
    assert (code, err) == (0, "")
    text = (tmp_path / "h200.svg").read_text()
    for title in (
        "Roofline",
        "Products by rows",
        "Decode attention",
        "Weights by a growing batch",
        "not measured",
    ):
        assert title in text  # matplotlib keeps the words in comments


def test_fit_has_the_memory_that_was_seen(file: Callable[..., Path], run: Run) -> None:
    less = int(0.98 * 139.8 * 2**30)

    def smaller(made: dict[str, Any]) -> None:
        leaf = made["derived"]["memory"]["total_bytes"]
        leaf.update(value=less, lo=less, hi=less)

    path = str(file(change=smaller))
    for flags in ((), ("--engine", "vllm")):
        line = ("fit", "llama-3.3-70b", "--gpu", "h200", "--weights", "fp8", *flags)
        code, out, err = run(*line, "--json", "--calibration", path)
        assert (code, err) == (0, "")
        document = json.loads(out)
        assert document["result"]["memory_bytes"] == less
        assert document["inputs"]["calibration"]
        assert any("memory is from" in text for text in document["assumptions"])
        assert json.loads(run(*line, "--json")[1])["result"]["memory_bytes"] > less
    _, out, _ = run(
        "fit", "llama-3.3-70b", "--gpu", "h200", "--weights", "fp8", "--calibration", path, "--explain"
    )
    assert f"{Path(path).name}, checked 2026-11-29" in out
    code, _, err = run("fit", "llama-3.3-70b", "--gpu", "h100", "--weights", "fp8", "--calibration", path)
    assert code == 2
    assert "is of 'h200-sxm', not of 'h100-sxm'" in err


def test_constants_that_can_not_be_are_left_out(
    monkeypatch: pytest.MonkeyPatch, row: Callable[..., Any]
) -> None:
    endless = Value(1e30, "byte/s", 1e30, 1e30, 1)
    monkeypatch.setattr(hbm, "derive", lambda rows: Derived({"hbm.read_bps": endless}))
    rows = [row("hbm", {"op": "read", "mib": 1, "dtype": "fp32"}, 1e-3, bytes=2.0**20) | {"id": 0}]
    derived, told = derived_of(rows)
    assert derived == {}
    assert told == ["hbm.read_bps: 1e+30 byte/s can't be, and is left out"]
    monkeypatch.setattr(hbm, "derive", lambda rows: 1 / 0)
    assert "no constants follow from its rows: ZeroDivisionError" in derived_of(rows)[1][0]


@pytest.mark.parametrize("far", [0.0, 1e-9, 1e-3])
def test_times_that_do_not_grow_tell_no_rate_above_what_was_seen(far: float) -> None:
    sizes = [2048.0, 8192.0, 2.0**29]
    found = line(sizes, [1e-5, 1e-5, 1e-5 * (1 + far)])
    assert found.rate <= max(sizes) / 1e-5


def test_a_start_much_longer_than_the_rest_is_still_found() -> None:
    found = line([1e3, 1e6], [20e-6 + 1e3 / 450e9, 20e-6 + 1e6 / 450e9])
    assert found.start == pytest.approx(20e-6)
    assert found.rate == pytest.approx(450e9)
