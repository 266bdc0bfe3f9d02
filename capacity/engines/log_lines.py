"""Lines of a log out of a stream of bytes: whole, of bounded length, without what wrappers and terminals put around."""

from __future__ import annotations

import codecs
import json
import re
from collections.abc import Iterator
from typing import Any, BinaryIO

PIECE = 1 << 18  # bytes read at a time
LONGEST_LINE = 1 << 16  # what is read of a line
MOST = 1 << 30  # bytes that are read of a stream: a start-up is at its beginning

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


class Bounded:
    """The beginning of a stream that may have no end."""

    def __init__(self, stream: BinaryIO) -> None:
        self.stream, self.left = stream, MOST

    def read(self, size: int) -> bytes:
        block = self.stream.read(min(size, self.left))
        self.left -= len(block)
        return block


def pieces(stream: Bounded) -> Iterator[tuple[bytes, int]]:
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


def unwrapped(raw: bytes, piece: bytes, end: int) -> bytes:
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


def texts(raw: bytes) -> list[bytes]:
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


def rank_of(text: bytes) -> str:
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
