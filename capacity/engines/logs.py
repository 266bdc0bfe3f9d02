"""A serving engine's start-up log, read: what it said of itself, of the memory, and of what went wrong.

The log is a stream of bytes of any size. Pieces of it are searched for a few anchors that every line of interest has
one of; only those lines are looked at. What a line can hold, how many are looked at and what is kept are all bounded.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import BinaryIO

from capplan.capacity.engines import log_flags, logs_sglang, logs_tensorrt, logs_vllm
from capplan.capacity.engines.log_flags import Value
from capplan.capacity.engines.log_forms import Form, form
from capplan.capacity.engines.log_lines import LONGEST_LINE, Bounded, pieces, rank_of, texts, unwrapped

# A start-up has some hundreds of lines of interest; a log with more of them than this is read no further
MOST_LOOKED = 100_000  # with an anchor
MOST_READ = 2_000  # of one form
MOST_SPENT = 1 << 23  # bytes of lines with a phrase
MOST_TOLD = 20  # line numbers kept of what could not be read
MOST_RANKS = 4_096

_SCALE = {"gib": 2.0**30, "mib": 2.0**20}

# printed by any engine, or around it
# fmt: off
_ANY = (
    # torch.cuda.OutOfMemoryError; ROCm's is worded alike
    form("", "", b"emory", b"out of memory. Tried to allocate", rb"Tried to allocate <wanted_gib> GiB(?:.{0,40}total capacity of <memory_gib> GiB)?", failure="out_of_memory", told=False),
    form("", "", b"emory", b"out of memory", failure="out_of_memory"),
    # the file of a tuned kernel that was looked for; nvidia-smi -L; nvidia-smi
    form("", "", b"device_name=", b"device_name=", rb"device_name=(?P<gpu>[A-Za-z][\w.-]{1,60}?)(?:\.json|,|\]|\s|$)", told=False),
    form("", "", b"NVIDIA ", b"NVIDIA ", rb"(?:GPU \d{1,3}: |\|\s{1,4}\d{1,3}\s{1,4})(?P<gpu>NVIDIA [\w .-]{2,50}?)(?: \(UUID|\s{2,}| On )", told=False),
    # uvicorn, in front of all three
    form("", "", b"startup complete", b"Application startup complete", rb"(?P<ready>startup complete)"),
)
# fmt: on
FORMS: tuple[Form, ...] = (*logs_vllm.FORMS, *logs_sglang.FORMS, *logs_tensorrt.FORMS, *_ANY)
ANCHORS = tuple(dict.fromkeys(form.anchor for form in FORMS))
OPENERS = tuple(dict.fromkeys(form.anchor for form in FORMS if form.opens))


@dataclass(frozen=True, slots=True)
class Measured:
    """A number of the log, in base units, as finely as it was printed."""

    name: str
    value: float
    half_digit: float  # half of the last digit printed
    rank: str  # "": the log names none
    line: int


@dataclass(frozen=True, slots=True)
class Failure:
    """A line that tells why the engine did not start."""

    kind: str
    text: str
    line: int


@dataclass(frozen=True, slots=True, kw_only=True)
class StartupLog:
    """What was read of the last start in a log."""

    engine: str | None = None
    version: str | None = None
    gpu: str | None = None
    flags: dict[str, Value] = field(default_factory=dict)
    measured: tuple[Measured, ...] = ()
    failures: tuple[Failure, ...] = ()  # the kind first that says most
    ready: bool = False
    starts: int = 0
    lines: int = 0
    bytes: int = 0
    recognised: int = 0  # lines
    unread: int = 0  # lines with a known phrase, cut short or worded in a way that is not on record
    unread_lines: tuple[int, ...] = ()  # the numbers of the first of them
    cut: int = 0  # lines longer than what is read of a line
    binary: int = 0  # bytes that no text has
    stopped_at: int | None = (
        None  # line where looking ended, since there was no end to lines that look like a start-up
    )
    longer: bool = False  # than what is read of a stream

    @property
    def model(self) -> str | None:
        found = self.flags.get("model")
        return found if isinstance(found, str) else None

    def all(self, name: str) -> list[Measured]:
        """A measured value, rank by rank."""
        return [each for each in self.measured if each.name == name]

    def most(self, name: str) -> Measured | None:
        """The largest over the ranks."""
        return max(self.all(name), key=lambda each: each.value, default=None)

    def least(self, name: str) -> Measured | None:
        """The smallest over the ranks."""
        return min(self.all(name), key=lambda each: each.value, default=None)


class _Reading:
    """What has been read so far."""

    def __init__(self) -> None:
        self.engines: dict[str, int] = {}
        self.said: dict[str, str] = {}  # version, gpu
        self.flags: dict[str, dict[str, Value]] = {}  # engine -> its settings
        self.measured: dict[tuple[str, str, str], Measured] = {}  # engine, name, rank
        self.failures: dict[str, Failure] = {}  # the first of a kind
        self.opened: set[tuple[bytes, str]] = set()
        self.ready = False
        self.starts = self.recognised = self.unread = self.cut = 0
        self.unread_lines: list[int] = []
        self.forms = {anchor: [f for f in FORMS if f.anchor == anchor] for anchor in ANCHORS}
        self.counts: dict[Form, int] = {}
        self.looked = self.spent = 0  # lines with an anchor; bytes of those with a phrase
        self.stopped: int | None = None

    def piece(self, piece: bytes, number: int) -> None:
        """Read whole lines, the first of which has this number."""
        at = 0
        while self.stopped is None:
            serving = self.ready  # until the engine is started anew, only that is looked for
            for start, end, known in self.hits(piece, at):
                number += piece.count(b"\n", at, start)
                at = start
                self.cut += end - start > LONGEST_LINE
                raw = piece[start : min(end + 1, start + LONGEST_LINE)]
                self.line(unwrapped(raw, piece, end) if known.flags else raw, number, known)
                if self.stopped is not None or (serving and not self.ready):
                    break
            else:
                return

    def hits(self, piece: bytes, begin: int) -> list[tuple[int, int, Form]]:
        """Where lines with a phrase start and end, in the order of the log."""
        found = []
        for anchor in OPENERS if self.ready else ANCHORS:
            forms = self.forms[anchor]
            at = piece.find(anchor, begin) if forms else -1
            while at >= 0 and self.looked <= MOST_LOOKED:
                self.looked += 1
                start = piece.rfind(b"\n", begin, at) + 1 or begin
                end = piece.find(b"\n", at)
                end = len(piece) if end < 0 else end
                found += [(start, end, known) for known in forms if piece.find(known.phrase, start, end) >= 0]
                at = piece.find(anchor, end)
        found.sort(key=lambda hit: hit[0])
        return found

    def line(self, raw: bytes, number: int, known: Form) -> None:
        count = self.counts[known] = self.counts.get(known, 0) + 1
        self.spent += len(raw)
        if self.looked > MOST_LOOKED or self.spent > MOST_SPENT or count > MOST_READ:
            self.stopped = number
            return
        for text in texts(raw):
            if known.phrase in text:
                self.form(known, text, number, rank_of(text))

    def form(self, known: Form, text: bytes, number: int, rank: str) -> None:
        found = known.pattern.search(text)
        if found is None:
            if known.failure and known.told:  # its phrase alone says what happened
                self.failed(known.failure, text, number)
            elif known.told and not known.flags:
                self.unread += 1
                if len(self.unread_lines) < MOST_TOLD:
                    self.unread_lines.append(number)
            if not known.flags:
                return
        self.recognised += 1
        if known.engine:
            self.engines[known.engine] = self.engines.get(known.engine, 0) + 1
        if known.opens:
            self.open(known, rank)
        if known.failure:
            self.failed(known.failure, text, number)
        for name, value in (found.groupdict() if found else {}).items():
            if value is not None:
                self.keep(known, name, value, rank, number)
        if known.flags:
            self.flags.setdefault(known.engine, {}).update(log_flags.settings(known.engine, text))

    def open(self, known: Form, rank: str) -> None:
        """The same opening of the same rank once more: the engine was started anew, and what it said is void."""
        if self.ready or ((known.phrase, rank) in self.opened and (self.measured or self.failures)):
            self.measured.clear()
            self.failures.clear()
            self.opened.clear()
            self.ready = False
            self.starts += 1
        self.opened.add((known.phrase, rank))
        self.starts = max(self.starts, 1)

    def failed(self, kind: str, text: bytes, number: int) -> None:
        words = " ".join(text.decode("utf-8", "replace").split())
        at = max(0, words.find("Error: "))
        self.failures.setdefault(kind, Failure(kind, words[at : at + 300], number))

    def keep(self, known: Form, name: str, text: bytes, rank: str, number: int) -> None:
        if name == "ready":
            self.ready = True
        elif name in ("version", "gpu"):
            self.said[name] = text.decode("ascii", "replace").replace("_", " ").strip()
        elif name == "flashinfer":
            self.flags.setdefault(known.engine, {})[name] = text == b"Using"
        elif name in ("max_num_batched_tokens", "block_size", "gpu_memory_utilization"):
            value = log_flags.read(name, text.decode())
            if value is not None:
                self.flags.setdefault(known.engine, {})[name] = value
        else:
            self.measure(known, name, text.replace(b",", b""), rank, number)

    def measure(self, known: Form, name: str, text: bytes, rank: str, number: int) -> None:
        if not text.lstrip(b"-")[:1].isdigit():
            return
        stem, _, unit = name.rpartition("_")
        scale = _SCALE.get(unit, 1.0)
        name = f"{stem}_bytes" if unit in _SCALE else name
        key = (known.engine, name, rank)
        if (known.first and key in self.measured) or len(self.measured) > 40 * MOST_RANKS:
            return
        decimals = len(text.partition(b".")[2])
        half_digit = 0.5 * 10.0**-decimals * scale if unit in _SCALE or decimals else 0.0
        self.measured[key] = Measured(name, float(text) * scale, half_digit, rank, number)


def read_log(stream: BinaryIO) -> StartupLog:
    """What a start-up log says; reads the stream to its end, or as much as a log of any use has.

    Never raises for what the log holds: what can't be read is counted.
    """
    reading = _Reading()
    lines = size = cut = binary = 0
    last = b"\n"
    bounded = Bounded(stream)
    for piece, longer in pieces(bounded):
        reading.piece(piece, lines + 1)
        lines += piece.count(b"\n")
        size += len(piece)
        cut += longer
        binary += piece.count(b"\0")
        last = piece[-1:] or last
    engine = max(reading.engines, key=lambda name: reading.engines[name], default=None)
    return StartupLog(
        engine=engine,
        version=reading.said.get("version"),
        gpu=reading.said.get("gpu"),
        flags=reading.flags.get(engine or "", {}),
        measured=tuple(each for (of, _, _), each in reading.measured.items() if of in ("", engine)),
        failures=tuple(sorted(reading.failures.values(), key=lambda each: each.kind == "other")),
        ready=reading.ready,
        starts=reading.starts,
        lines=lines + (last != b"\n"),
        bytes=size,
        recognised=reading.recognised,
        unread=reading.unread,
        unread_lines=tuple(reading.unread_lines),
        cut=cut + reading.cut,
        binary=binary,
        stopped_at=reading.stopped,
        longer=not bounded.left,
    )
