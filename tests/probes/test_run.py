"""A run on a CPU: correct, whole, resumed after a kill, and never taken for a GPU's. Needs torch."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from capplan.calibration_file import read_document
from capplan.calibration_schema import schema
from capplan.errors import DataFileError, InputError, MissingPackageError
from capplan.probes import run as running
from capplan.probes import worker
from capplan.probes.device import find
from capplan.probes.probe import Case, Device, Measured, Numerics, Skipped, Unsupported, names

pytest.importorskip("torch")

Run = Callable[..., tuple[int, str, str]]
SNAPSHOT = Path(__file__).parent / "calibration-file.schema.json"
FAST = ("launch", "storage")


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The file of a short run."""
    path = tmp_path_factory.mktemp("run") / "cpu.json"
    running.run(path, device="cpu", profile="quick", only=FAST, label="here")
    return path


def test_the_file_is_as_its_schema_says(measured: Path) -> None:
    document = read_document(measured)
    Draft202012Validator(schema()).validate(document)
    assert document["label"] == "here"
    assert {row["probe"] for row in document["results"]} == set(FAST)
    assert all(row["status"] == "pass" for row in document["results"])
    assert not measured.with_name("cpu.json.part").exists()


def test_the_schema_is_the_one_in_the_snapshot(run: Run) -> None:
    code, out, err = run("schema", "calibration-file")
    assert (code, err) == (0, "")
    if os.environ.get("CAPPLAN_SNAPSHOTS") == "write":
        SNAPSHOT.write_text(out)
    assert out == SNAPSHOT.read_text()
    Draft202012Validator.check_schema(json.loads(out))


def test_the_schema_lets_no_time_through_without_a_passed_check(measured: Path) -> None:
    document = read_document(measured)
    document["results"][0]["status"] = "fail"
    assert not Draft202012Validator(schema()).is_valid(document)


def test_nothing_that_names_the_machine_is_written(measured: Path) -> None:
    text = measured.read_text()
    assert os.uname().nodename not in text
    assert str(Path.home()) not in text


def test_a_file_of_a_cpu_is_refused_for_a_gpu(measured: Path, run: Run) -> None:
    assert read_document(measured)["quality"]["verdict"] == "cpu_only"
    for line in ("perf llama-3.1-8b", "decode llama-3.1-8b", "prefill llama-3.1-8b", "ops llama-3.1-8b"):
        code, out, err = run(*line.split(), "--gpu", "h100", "--calibration", str(measured))
        assert (code, out) == (2, "")
        assert "measured on a CPU" in err


def test_report_and_validate_take_a_file_of_a_cpu(measured: Path, run: Run) -> None:
    code, out, _ = run("probe", "report", str(measured))
    assert code == 0
    assert "verdict cpu_only" in out
    assert "no plan takes them" in out
    code, out, _ = run("probe", "validate", str(measured), "--json")
    assert (code, json.loads(out)["result"]["informational"]) == (0, True)


# --- kill, resume -----------------------------------------------------------------------------------------------

SLOW = """
import sys
from capplan.probes.run import run
run(sys.argv[1], device="cpu", profile="quick", only=("launch", "storage", "host_copy", "power", "memory"))
"""


def test_a_kill_leaves_the_old_file_and_resume_goes_on(measured: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.json"
    out.write_bytes(measured.read_bytes())
    part = tmp_path / "out.json.part"
    process = subprocess.Popen([sys.executable, "-c", SLOW, str(out)], start_new_session=True)
    try:
        deadline = time.monotonic() + 60
        while (
            not (part.exists() and "launch" in read_document(part)["finished"])
            and time.monotonic() < deadline
        ):
            time.sleep(0.02)
    finally:
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
    assert out.read_bytes() == measured.read_bytes()  # the old one, whole
    before = read_document(part)["finished"]
    assert "launch" in before
    seen: list[str] = []
    document = running.run(
        out,
        device="cpu",
        profile="quick",
        only=("launch", "storage", "host_copy", "power", "memory"),
        resume=True,
        report=lambda progress: seen.append(progress.probe),
    )
    assert "launch" not in seen  # not measured again
    kept = [row for row in document["results"] if row["probe"] == "launch"]
    assert [row["time_s"] for row in kept] == [row["time_s"] for row in before["launch"]]
    assert {row["probe"] for row in document["results"]} == {
        "launch",
        "storage",
        "host_copy",
        "power",
        "memory",
    }
    assert read_document(out) == document
    assert not part.exists()


def test_ctrl_c_says_what_is_kept(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "capplan", "probe", "run", "--profile", "quick", "--device", "cpu"]
    part = tmp_path / "x.json.part"
    process = subprocess.Popen(
        [*command, "--only", "launch,storage,host_copy,memory", "--out", "x.json"],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    deadline = time.monotonic() + 60
    while not (part.exists() and read_document(part)["finished"]) and time.monotonic() < deadline:
        time.sleep(0.02)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert (process.returncode, out) == (130, "")
    finished = len(read_document(part)["finished"])
    probes = f"{finished} finished probe{'s' * (finished > 1)}"
    said = f"'x.json' is as it was; {probes} kept in 'x.json.part': --resume goes on after that"
    assert err == f"note: interrupted; {said}\n"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["x.json.part"]


def test_ctrl_c_before_anything_is_finished(monkeypatch: pytest.MonkeyPatch, run: Run) -> None:
    def interrupted(*args: Any) -> Any:
        raise KeyboardInterrupt

    monkeypatch.setattr(running, "_plan", interrupted)
    code, out, err = run("probe", "run", "--only", "launch", "--out", "x.json")
    assert (code, out) == (130, "")
    assert err == "note: interrupted; 'x.json' is as it was, and no probe was finished\n"


def test_another_run_is_not_resumed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out = tmp_path / "out.json"
    plan = {"facts": {"kind": "cpu"}, "cases": {}, "skipped": {"launch": ["skipped", "so"]}}
    monkeypatch.setattr(running, "_plan", lambda *_: plan)
    running._keep(tmp_path / "out.json.part", {"profile": "full"}, {})
    assert (tmp_path / "out.json.part").exists()
    with pytest.raises(InputError, match="begun with other profile"):
        running.run(out, only=("launch",), profile="quick", resume=True)


def test_a_link_at_rest_does_not_make_another_device(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """PCIe and clocks of a GPU fall when it is idle: the run goes on all the same."""
    out = tmp_path / "out.json"
    facts = {"kind": "cuda", "name": "A", "fp8_flavour": "fn", "pcie": {"gen": 5, "width": 16}}
    plan = {"facts": facts, "stack": {}, "spec": {}, "cases": {}, "skipped": {"launch": ["skipped", "so"]}}
    monkeypatch.setattr(running, "_plan", lambda *_: plan)
    kept: list[Any] = []
    monkeypatch.setattr(running, "_keep", lambda part, asked, finished: kept.append((asked, dict(finished))))
    running.run(out, only=("launch",), profile="quick")
    monkeypatch.undo()
    monkeypatch.setattr(
        running, "_plan", lambda *_: plan | {"facts": facts | {"pcie": {"gen": 1, "width": 16}}}
    )
    running._keep(tmp_path / "out.json.part", *kept[0])
    document = running.run(out, only=("launch",), profile="quick", resume=True)
    assert document["device"]["pcie"]["gen"] == 1
    monkeypatch.setattr(running, "_plan", lambda *_: plan | {"facts": facts | {"name": "B"}})
    running._keep(tmp_path / "out.json.part", *kept[0])
    with pytest.raises(InputError, match="begun with other device"):
        running.run(out, only=("launch",), profile="quick", resume=True)


def test_an_unfinished_file_is_no_calibration(tmp_path: Path, run: Run) -> None:
    running._keep(tmp_path / "x.part", {"profile": "full"}, {})
    code, _, err = run("probe", "report", str(tmp_path / "x.part"))
    assert code == 2
    assert "is of a run that is not finished" in err


# --- what goes wrong in a probe spoils its row --------------------------------------------------------------------


def rows_of(
    case: list[dict[str, Any]], source: str, tmp_path: Path, limit: float = 60.0
) -> list[dict[str, Any]]:
    """Rows of a probe whose measure() is replaced in the worker's process."""
    hook = tmp_path / "sitecustomize.py"
    hook.write_text(source)
    old = os.environ.get("PYTHONPATH", "")
    os.environ["PYTHONPATH"] = os.pathsep.join(part for part in (str(tmp_path), old) if part)
    try:
        return list(running._rows("launch", list(enumerate(case)), "cpu", limit))
    finally:
        os.environ["PYTHONPATH"] = old


HOOK = """
import sys
if "capplan.probes.worker" in " ".join(sys.orig_argv):
    from capplan.probes.suite import launch
    real = launch.measure
    def measure(case, device):
        if case["n"] == 10:
            {fault}
        return real(case, device)
    launch.measure = measure
"""
CASES = [{"how": "eager", "n": n, "dtype": "fp32"} for n in (1, 10, 20)]


@pytest.mark.parametrize(
    ("fault", "status", "reason"),
    [
        ("import os; os.kill(os.getpid(), 11)", "fail", "signal 11"),
        ("import os; os._exit(3)", "fail", "exit code 3"),
        ("raise MemoryError", "skipped", "out of memory"),
        (
            "raise RuntimeError('CUDA error: an illegal memory access was encountered')",
            "fail",
            "illegal memory access",
        ),
        ("print('noise')", "pass", None),  # what libraries print is not taken for a row
    ],
    ids=["dies", "exits", "out of memory", "illegal access", "prints"],
)
def test_one_row_is_spoiled(fault: str, status: str, reason: str | None, tmp_path: Path) -> None:
    rows = rows_of(CASES, HOOK.format(fault=fault), tmp_path)
    assert [row["status"] for row in rows] == ["pass", status, "pass"]
    assert (reason or "") in (rows[1]["reason"] or "")


def test_a_probe_that_hangs_is_ended(tmp_path: Path) -> None:
    rows = rows_of(CASES, HOOK.format(fault="import time; time.sleep(60)"), tmp_path, limit=15.0)
    assert [row["status"] for row in rows] == ["pass", "fail", "skipped"]
    assert rows[1]["reason"] == "not finished after 15 s"


class Made:
    """A probe that is made up."""

    NAME = TITLE = FORMULA = WHAT = "launch"
    ORDER = VERSION = 1

    def __init__(self, numerics: Numerics | Exception) -> None:
        self.numerics = numerics
        self.measured = False

    def cases(self, profile: str, device: Device) -> list[Case]:
        return [{}]

    def check(self, case: Case, device: Device) -> Numerics:
        if isinstance(self.numerics, Exception):
            raise self.numerics
        return self.numerics

    def measure(self, case: Case, device: Device) -> Measured:
        self.measured = True
        return Measured([1.0], "eager", "warm")

    def derive(self, rows: object) -> None:
        raise AssertionError


@pytest.mark.parametrize(
    ("numerics", "status"),
    [
        (Numerics(False, 1.0, 1.0, 1.0, 3, 0.1, "3 entries are not finite"), "fail"),
        (Skipped("no such thing"), "skipped"),
        (Unsupported("never"), "unsupported"),
        (ValueError("no"), "fail"),
    ],
    ids=["wrong", "skipped", "unsupported", "raises"],
)
def test_nothing_is_timed_that_is_not_correct(numerics: Numerics | Exception, status: str) -> None:
    one = Made(numerics)
    row = worker.row_of(one, {}, find("cpu"))  # type: ignore[arg-type]
    assert row["status"] == status
    assert row["time_s"] is None
    assert not one.measured


def test_a_file_that_was_edited_cut_off_or_is_of_the_future(measured: Path, tmp_path: Path) -> None:
    text = measured.read_text()
    changed = tmp_path / "changed.json"
    for content, message in (
        (text[: len(text) // 2], "is not valid JSON"),
        (text.replace('"label": "here"', '"label": "there"'), "was changed after it was written"),
        (text.replace("capplan.calibration/1", "capplan.calibration/2"), "capplan.calibration/1 is accepted"),
        ("{}", "is no calibration file"),
    ):
        changed.write_text(content)
        with pytest.raises(DataFileError, match=message):
            read_document(changed)


def test_a_file_of_something_else_is_not_written_over(tmp_path: Path) -> None:
    out = tmp_path / "notes.json"
    out.write_text("mine")
    with pytest.raises(InputError, match="is no calibration"):
        running.run(out, device="cpu", profile="quick", only=("power",))
    assert out.read_text() == "mine"


def test_a_place_that_can_not_be_written_to_is_told_before_measuring(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(running, "_rows", lambda *_: pytest.fail("measured"))
    with pytest.raises(InputError, match="name too long"):
        running.run(tmp_path / ("n" * 252), device="cpu", profile="quick", only=("launch",))
    (tmp_path / "c.json.part").write_text("mine")
    with pytest.raises(InputError, match="is no calibration"):
        running.run(tmp_path / "c.json", device="cpu", profile="quick", only=("launch",))
    assert [each.name for each in tmp_path.iterdir()] == ["c.json.part"]


# --- words --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("line", "code", "message"),
    [
        ("probe run --device cuda", 3, "error: no device 'cuda'"),
        ("probe run --device tpu", 2, "error: unknown device 'tpu'; auto, cpu, cuda and cuda:N are accepted"),
        ("probe run --only gem", 2, "error: unknown probe 'gem'; did you mean 'gemm'? (capplan probe list)"),
        ("probe run --profile fast", 2, "error: unknown profile 'fast'"),
        ("probe runn", 2, "error: unknown probe command 'runn'; did you mean 'run'?"),
        ("probe compare x.json", 2, "error: one file given; two calibration files or more are compared"),
        ("probe report nothing.json", 2, "error: can't read 'nothing.json': no such file or directory"),
        ("probe run --only ,", 2, "error: --only names no probe (capplan probe list)"),
        ("probe run --label a\x1bb", 2, "error: label 'a\\x1bb' has characters that can't be printed"),
        ("probe run --json --csv", 2, "error: --json and --csv exclude each other; give one"),
    ],
)
def test_what_is_said_of_bad_input(line: str, code: int, message: str, run: Run) -> None:
    found, out, err = run(*line.split())
    assert (found, out) == (code, "")
    assert message in err
    assert err.count("\n") == 1


def test_without_torch_one_line_says_so(monkeypatch: pytest.MonkeyPatch, run: Run) -> None:
    monkeypatch.setattr(running, "find_spec", lambda name: None)
    code, out, err = run("probe", "run")
    assert (code, out) == (3, "")
    assert err == "error: the probes need torch: pip install 'capplan[probes]'\n"
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(MissingPackageError, match="need torch"):
        find("auto")


def test_list_names_every_probe(run: Run) -> None:
    code, out, _ = run("probe", "list", "--json")
    assert code == 0
    assert {each["name"] for each in json.loads(out)["result"]["probes"]} == set(names())


def test_the_command_writes_and_reports(tmp_path: Path, run: Run) -> None:
    code, out, err = run(
        "probe", "run", "--only", "launch", "--profile", "quick", "--device", "cpu", "--out", "x.json"
    )
    assert code == 0
    assert "verdict cpu_only" in out
    assert err == "note: wrote x.json; of a CPU, so no plan takes it\n"
