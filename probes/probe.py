"""The one shape that every probe has, and how the probes are found.

A probe is a module of suite/, found by its file, with

    NAME     what it is called, as its file
    TITLE    one line for `capplan probe list`
    FORMULA  the formula that its rows are held against
    WHAT     what the planner learns from it
    ORDER    when it runs: cheap and cool first, products last (latency 10, memory 20, copies 30, attention 50, products
             70, whole steps 80, power 90)
    VERSION  grows when what it measures changes; rows of unlike versions are never compared

    cases(profile, device) -> [case]      shapes of a profile, quick | default | full; raises Skipped with the reason
    check(case, device) -> Numerics       correct first: fresh normal data, outputs poisoned with NaN, against fp64
    measure(case, device) -> Measured     then timed, with the same kernel; only called where the check passed
    derive(rows) -> Derived               constants that follow from the rows that passed, and what they predict

The kernel under test is a function of the module, looked up when it is called, so that a test can put a wrong one in its
place: whatever check() passes, measure() times. torch is imported in the function that needs it. All functions run in a
process of the probe's own, so running out of memory spoils one row.

A module may have expect(row, device) -> str | None: what is odd about a row that is correct, such as a rate below what
others see. A slow device is told of, not failed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple, Protocol, cast

from capplan.errors import UnknownNameError

PROFILES = ("quick", "default", "full")
SUITE = Path(__file__).parent / "suite"

Case = dict[str, Any]  # what tells one row of a probe from another: shape, dtype, recipe, page; plain JSON
Row = dict[str, Any]  # one of `results` in the calibration file


class Skipped(Exception):  # noqa: N818  # no error
    """A probe, or a case, that this device or its software can't run: a reason, not a failure."""


class Unsupported(Skipped):
    """What no software would make this device do, such as FP8 without FP8 units."""


@dataclass(frozen=True, slots=True)
class Device:
    """The device under test, in base units; peaks and bandwidth are the datasheet's, empty where no sheet matches."""

    kind: str  # cuda, rocm, cpu
    index: int
    name: str
    arch: str  # sm_90, gfx942, x86_64
    sm_count: int
    l2_bytes: int
    memory_bytes: int
    capability: tuple[int, int] = (0, 0)  # compute capability of CUDA
    gpu: str | None = None  # the registry's id
    peaks: Mapping[str, float] = field(default_factory=dict)  # dense FLOP/s by dtype
    bandwidth: float | None = None  # byte/s of memory
    fp8_flavour: str = "fn"  # fnuz on gfx942
    max_clock: float | None = None  # Hz, of the processors
    host_link: float | None = None  # byte/s, one way

    def rate(self, of: str) -> float | None:
        """The datasheet's byte/s of what bytes pass: memory, or the link to the host; None of anything else."""
        return {"memory": self.bandwidth, "host": self.host_link}.get(of)

    @property
    def torch(self) -> str:
        """The device's name in torch."""
        return "cpu" if self.kind == "cpu" else f"cuda:{self.index}"

    @property
    def is_gpu(self) -> bool:
        return self.kind != "cpu"


class Numerics(NamedTuple):
    """How far an output is from the fp64 reference, and whether that is near enough."""

    ok: bool
    rel_fro: float  # |got - expected| / |expected|, Frobenius
    max_abs: float
    cos_diff: float  # 1 - cosine of the angle between them
    nan: int  # entries that are not finite: unwritten ones are, as outputs are poisoned
    bound: float  # of rel_fro
    why: str = ""  # it is not ok
    bit_stable: bool | None = None  # a second run gave the same bits; None: not tried


class Measured(NamedTuple):
    """Times of one call [second], and the work of it."""

    times: Sequence[float]
    mode: str  # graph | eager | burst | sustained: how they were taken (timing.py)
    cache: str  # cold | warm | uncertain
    flops: float | None = None
    bytes: float | None = None
    dtype: str | None = None  # whose peak the FLOPs are held against
    kernel: str | None = None  # which was run, as far as is known
    backend: str = "torch"
    values: Mapping[str, float] = {}  # figures that are no time: bytes of memory, MHz, W
    notes: Sequence[str] = ()
    rotation: int | None = None  # copies of the buffers that were taken in turn; None: not said
    of: str = "memory"  # what the bytes pass, and are held against: memory, host (the link to it), link, disk


class Value(NamedTuple):
    """A constant that the planner may read."""

    value: float
    unit: str  # s, byte/s, FLOP/s, byte, 1, W, Hz
    lo: float  # eight of ten lie between
    hi: float
    n: int  # rows or samples behind it
    rows: Sequence[int] = ()  # `id` of the rows behind it


class Derived(NamedTuple):
    """What follows from a probe's rows."""

    values: Mapping[str, Value]  # under a dotted path of `derived`, such as gemm.bf16.plain.flops_typ
    predicted: Sequence[float | None] = ()  # by FORMULA with these values [second], one a row


class Probe(Protocol):
    """A module of suite/."""

    NAME: str
    TITLE: str
    FORMULA: str
    WHAT: str
    ORDER: int
    VERSION: int

    def cases(self, profile: str, device: Device) -> list[Case]: ...
    def check(self, case: Case, device: Device) -> Numerics: ...
    def measure(self, case: Case, device: Device) -> Measured: ...
    def derive(self, rows: Sequence[Row]) -> Derived: ...


def names() -> list[str]:
    """Probes of the suite, as their files are called."""
    return sorted(path.stem for path in SUITE.glob("*.py") if not path.stem.startswith("_"))


def probe(name: str) -> Probe:
    """One probe. Raises UnknownNameError."""
    if name not in (known := names()):
        raise UnknownNameError("probe", name, known, "capplan probe list")
    return cast(Probe, import_module(f"capplan.probes.suite.{name}"))


def probes() -> list[Probe]:
    """All probes in the order in which they run: cheap and cool first."""
    return sorted(map(probe, names()), key=lambda one: (one.ORDER, one.NAME))
