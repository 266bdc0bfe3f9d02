"""A serving engine's start-up log, read: what it said of itself, of the memory, and of what went wrong.

The log is a stream of bytes of any size. Pieces of it are searched for a few anchors that every line of interest has
one of; only those lines are looked at. What a line can hold, how many are looked at and what is kept are all bounded.
"""

from __future__ import annotations

import codecs
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, BinaryIO

from capplan.capacity.engines import log_flags, logs_sglang, logs_tensorrt, logs_vllm
from capplan.capacity.engines.log_flags import Value
from capplan.capacity.engines.log_forms import Form, form

PIECE = 1 << 18  # bytes read at a time
LONGEST_LINE = 1 << 16  # what is read of a line
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

_ANSI = re.compile(rb"\x1b\[[0-9;?]{0,16}[@-~]")
# (Worker_TP1 pid=7), (VllmWorker rank=1 pid=7), (VllmWorkerProcess pid=7), (EngineCore_DP0 pid=7), Ray's, SGLang's
_PROCESS = re.compile(rb"\((\w{1,40})(?: rank=(\d{1,5}))?(?: pid=(\d{1,10}))[^)]{0,60}\)")
_PARTS = re.compile(rb"(?:DP|PP|TP|EP)\d{1,5}")
_SGLANG = re.compile(rb"\[\d{4}-\d\d-\d\d \d\d:\d\d:\d\d((?: (?:DP|PP|TP|EP|ATTN_\w{1,6})\d{1,5}){1,6})\]")
_MPI = re.compile(rb"\[(?:RANK (\d{1,5})|1,(\d{1,5}))\]")
# how a record begins, and not the rest of one that a terminal has broken
_RECORD = re.compile(
    rb"\s{0,8}(?:\x1b|INFO|DEBUG|WARNING|ERROR|CRITICAL|Traceback|\(\w{1,40} (?:rank|pid)=|\{\"|\[(?:\d|TensorRT|TRT)"
    rb"|\d{4}-\d\d-|[WIE]\d{4} |/\S{1,200}:\d{1,6}: )|\s{0,80}\n"
)
_TEXTS = ("log", "message", "msg", "MESSAGE", "textPayload", "text", "line", "body")


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
    failures: tuple[Failure, ...] = ()
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
                self.line(_unwrapped(raw, piece, end) if known.flags else raw, number, known)
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
        for text in _texts(raw):
            if known.phrase in text:
                self.form(known, text, number, _rank(text))

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
        if self.ready or ((known.phrase, rank) in self.opened and self.measured):
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
    """What a start-up log says; reads the stream to its end.

    Never raises for what the log holds: what can't be read is counted.
    """
    reading = _Reading()
    lines = size = cut = binary = 0
    last = b"\n"
    for piece, longer in _pieces(stream):
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
        failures=tuple(reading.failures.values()),
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
    )


def _pieces(stream: BinaryIO) -> Iterator[tuple[bytes, int]]:
    """Whole lines, many at a time, and how many of them were cut: of a line without end only its head is held."""
    decode = None
    rest, skipping, begun = b"", False, False
    while block := stream.read(PIECE):
        if not begun:
            begun = True
            if block[:2] in (b"\xff\xfe", b"\xfe\xff"):  # PowerShell's > writes UTF-16
                decode = codecs.getincrementaldecoder("utf-16")("replace")
        if decode is not None:
            block = decode.decode(block).encode("utf-8", "replace")
        if skipping:
            line_end = block.find(b"\n")
            if line_end < 0:
                continue
            block, skipping = block[line_end:], False
        end = block.rfind(b"\n") + 1
        if end:
            yield rest + block[:end], 0
            rest = block[end:]
        else:
            rest += block
        if len(rest) > LONGEST_LINE:
            rest, skipping = rest[:LONGEST_LINE], True
            yield b"", 1
    if rest:
        yield rest, 0


def _unwrapped(raw: bytes, piece: bytes, end: int) -> bytes:
    """A line of settings as it was before a terminal broke it: with the lines that follow, up to the next record."""
    lines = [raw.rstrip(b"\r\n")]
    if raw.lstrip()[:1] == b"{" or _ANSI.sub(b"", lines[0]).rstrip()[-1:] in (b"}", b")"):
        return raw  # JSON, or whole
    size, at = len(raw), end + 1
    while at < len(piece) and size < LONGEST_LINE and not _RECORD.match(piece, at):
        end = piece.find(b"\n", at)
        end = len(piece) if end < 0 else end
        lines.append(piece[at : min(end, at + LONGEST_LINE)].rstrip(b"\r"))
        size, at = size + len(lines[-1]) + 1, end + 1
    return raw if len(lines) == 1 else b"".join(lines) + b"\n"


def _texts(raw: bytes) -> list[bytes]:
    """The messages of a line: out of its JSON, where it is that, and without colours.

    One that was cut short has no line end, so that a number at its end is not taken for whole.
    """
    texts = [raw]
    if raw.lstrip()[:1] == b"{":
        message = _message(raw)
        if message is None:  # cut short, or not what it looked like
            texts = (
                raw.replace(b"\\n", b"\n").replace(b'\\"', b'"').replace(b"\\u001b", b"\x1b").splitlines(True)
            )
        else:
            texts = [line + b"\n" for line in message.split(b"\n")]
    return [_ANSI.sub(b"", text) if b"\x1b" in text else text for text in texts]


def _message(raw: bytes) -> bytes | None:
    """The text of a JSON line, of docker, Kubernetes or a cloud's log; None where there is none."""
    try:
        document = json.loads(raw)
    except (ValueError, RecursionError):
        return None
    for inside in (document, *(document.values() if isinstance(document, dict) else ())):
        for name in _TEXTS if isinstance(inside, dict) else ():
            text: Any = inside.get(name)
            if isinstance(text, str):
                return text.encode("utf-8", "replace")
    return None


def _rank(text: bytes) -> str:
    """The rank that a line is of, as far as its prefix says: 'TP1', 'DP0 TP1', 'rank 3', 'pid 77', or ''."""
    head = text[:400]
    if found := _SGLANG.search(head):
        return found[1].decode().strip()
    if processes := list(_PROCESS.finditer(head)):
        found = processes[-1]  # inside of those that pass its lines on
        if parts := _PARTS.findall(found[1]):
            return b" ".join(parts).decode()
        if found[2]:
            return f"rank {int(found[2])}"
        return "" if found[1].startswith((b"EngineCore", b"APIServer")) else f"pid {int(found[3])}"
    if found := _MPI.search(head):
        return f"rank {int(found[1] or found[2])}"
    return ""
