"""All GPUs of a machine, and the sockets of its host: what is slow is found, and planned with."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from capplan.calibration_file import write_document
from capplan.capacity.step_time.calibration import read_calibration
from capplan.capacity.step_time.chip import chip_of
from capplan.capacity.step_time.measured_kernels import KernelConstant, kernel_constants
from capplan.hardware.registry import gpu
from capplan.probes import numa, ranks
from capplan.probes.probe import Device, Row, Skipped
from capplan.probes.suite import node, numa_copy

CPU = Device("cpu", 0, "a CPU", "x86_64", sm_count=2, l2_bytes=2**20, memory_bytes=2**33)


@pytest.fixture(scope="module")
def told() -> list[Any]:
    return ranks.run(node.EVERYONE, 2, None, CPU, 120)


def test_every_rank_works_alone_and_with_the_others(told: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(node, "_TOLD", {2: told})
    cases = node.cases("quick", CPU)
    assert {(case["work"], case["how"]) for case in cases} == {
        (work, how) for work in ("read", "gemm") for how in ("alone", "together")
    }
    for case in cases:
        assert node.check(case, CPU).ok
        measured = node.measure(case, CPU)
        assert len(measured.times) == 20
        assert set(measured.values) == {"time_s.0", "time_s.1", "own_s"}


def rows_of(row: Callable[..., Row], alone: list[float], together: list[float]) -> list[Row]:
    """Rows of a read of 1 GiB by GPUs that take so long [ms]."""
    found: list[Row] = []
    for how, times in (("alone", alone), ("together", together)):
        values = {f"time_s.{i}": 1e-3 * each for i, each in enumerate(times)} | {"own_s": 1e-3 * times[0]}
        case = {"work": "read", "gpus": len(times), "how": how}
        made = row("node", case, 1e-3 * max(times), mode="sustained", bytes=2.0**30, values=values)
        found.append(made | {"id": len(found)})
    return found


def test_the_slow_gpu_of_a_node_is_named(row: Callable[..., Row], device: Callable[..., Device]) -> None:
    rows = rows_of(row, [1.0, 1.0, 1.2, 1.0], [1.1, 1.1, 1.32, 1.1])
    h200 = device("h200-sxm")
    assert node.expect(rows[0], h200) == "GPU 2 is at 83% of the median of the 4"
    assert node.expect(rows_of(row, [1.0, 1.03], [1.0, 1.03])[0], h200) is None
    values = node.derive(rows).values
    assert values["node.read.slowest"].value == pytest.approx(1 / 1.32)
    assert values["node.read.alone"].value == pytest.approx(2**30 / 1.2e-3)


def test_a_wrong_gpu_is_named(told: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    bad = {**told[1]["read"], "numerics": [False, 1.0, 1.0, 1.0, 3, 0.1, "3 entries are not finite", None]}
    monkeypatch.setattr(node, "_TOLD", {2: [told[0], {**told[1], "read": bad}]})
    found = node.check({"work": "read", "gpus": 2, "how": "alone"}, CPU)
    assert (found.ok, found.why) == (False, "GPU 1: 3 entries are not finite")


def test_the_slowest_of_a_node_is_planned_with(document: Callable[..., Any], tmp_path: Path) -> None:
    def change(made: dict[str, Any]) -> None:
        like = made["derived"]["hbm"]["t0"]
        leaf = {**like, "value": 0.8, "lo": 0.79, "hi": 0.81, "unit": "1"}
        made["derived"]["node"] = {
            "read": {"slowest": leaf},
            "gemm": {"slowest": {**leaf, "value": 1.01, "hi": 1.1}},
        }

    chip = chip_of(gpu("h200-sxm"))
    found: list[dict[str, KernelConstant]] = []
    for number, each in enumerate((lambda made: None, change)):
        path = tmp_path / f"{number}.json"
        write_document(path, document(change=each))
        found.append({one.name: one for one in kernel_constants(read_calibration(path), chip)})
    plain, slow = found
    assert slow["memory"].value == pytest.approx(0.8 * plain["memory"].value)
    assert slow["memory"].source == "knee.bf16.bandwidth, node.read.slowest"
    assert slow["gemm.bf16"] == plain["gemm.bf16"]  # none is faster than the one that was probed
    assert slow["pass_us"] == plain["pass_us"]


# --- sockets of the host --------------------------------------------------------------------------------------------


@pytest.fixture
def sockets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[set[int]]:
    """Two nodes; the list of what the thread was bound to."""
    for number, cores in enumerate(("0-1,4\n", "2-3\n", "\n")):
        (tmp_path / f"node{number}").mkdir()
        (tmp_path / f"node{number}/cpulist").write_text(cores)
    bound: list[set[int]] = []
    monkeypatch.setattr(numa, "NODES", tmp_path)
    monkeypatch.setattr("os.sched_getaffinity", lambda pid: {0, 1, 2, 3})
    monkeypatch.setattr("os.sched_setaffinity", lambda pid, cores: bound.append(set(cores)))
    return bound


def test_nodes_are_those_whose_cores_may_be_used(sockets: list[set[int]]) -> None:
    assert numa.nodes() == {0: {0, 1}, 1: {2, 3}}


class OnCpu(Device):
    """A GPU whose tensors lie on the CPU."""

    @property
    def torch(self) -> str:
        return "cpu"

    @property
    def is_gpu(self) -> bool:
        return True


GPU = OnCpu("cuda", 0, "a GPU", "sm_90", 132, 2**20, 2**37)


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What is asked of CUDA."""
    asked: list[str] = []

    def register(at: int, size: int, flags: int) -> int:
        asked.append(f"pin {size}")
        return 0

    def unregister(at: int) -> int:
        asked.append("unpin")
        return 0

    cudart = SimpleNamespace(cudaHostRegister=register, cudaHostUnregister=unregister)
    monkeypatch.setattr(torch.cuda, "cudart", lambda: cudart)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    return asked


def test_memory_is_touched_on_its_node_and_given_back(sockets: list[set[int]], driver: list[str]) -> None:
    with numa.pinned_on({2, 3}, 4096, GPU) as held:
        assert held.numel() == 4096
        assert sockets == [{2, 3}, {0, 1, 2, 3}]  # bound, and free again
    assert driver == ["pin 4096", "unpin"]
    with pytest.raises(ValueError, match="x"), numa.pinned_on({2, 3}, 64, GPU):
        raise ValueError("x")
    assert driver[-1] == "unpin"


def test_copies_of_each_node_are_checked_and_timed(
    sockets: list[set[int]], driver: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(numa_copy, "facts", lambda device: {"numa_node": 1})
    case = {"node": 1, "way": "h2d", "mib": 1}
    assert numa_copy.check(case, GPU).ok
    measured = numa_copy.measure(case, GPU)
    assert (len(measured.times), measured.values) == (20, {"near": 1.0})

    def torn(case: Any, device: Any, samples: int) -> Any:
        return [1.0], False

    monkeypatch.setattr(numa_copy, "_run", torn)
    assert numa_copy.check(case, GPU).why == "the copy is not what was sent"


def test_near_and_far_are_told_apart(row: Callable[..., Row]) -> None:
    size = 2.0**30
    for known in (True, False):
        rows = []
        for number, rate in ((0, 30e9), (1, 55e9)):
            values = {"near": float(number == 1)} if known else {}
            case = {"node": number, "way": "h2d", "mib": 1024}
            rows.append(
                row("numa_copy", case, size / rate, bytes=size, values=values, of="host") | {"id": number}
            )
        found = numa_copy.derive(rows).values
        assert found["host_link.h2d_near_bps"].value == pytest.approx(55e9)
        assert found["host_link.h2d_far_bps"].value == pytest.approx(30e9)
        assert found["host_link.h2d_far_share"].value == pytest.approx(30 / 55, rel=1e-3)


def test_one_socket_has_no_far_side(sockets: list[set[int]], monkeypatch: pytest.MonkeyPatch) -> None:
    assert len(numa_copy.cases("quick", GPU)) == 4
    monkeypatch.setattr("os.sched_getaffinity", lambda pid: {0})
    with pytest.raises(Skipped, match="one NUMA node"):
        numa_copy.cases("quick", GPU)
    with pytest.raises(Skipped, match="no accelerator"):
        numa_copy.cases("quick", CPU)
