"""In a terminal there are colours and pictures; with the streams closed, full or piped away, no noise."""

import os
import pty
import re
import shlex
import struct
import subprocess
import sys
import termios
from contextlib import suppress
from fcntl import ioctl
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
FIT = ("fit", "llama-3.3-70b", "--gpu", "h200", "--weights", "fp8")
ROOFLINE = ("roofline", *FIT[1:])
COMMANDS = (FIT, ROOFLINE, ("gpus",), ("models",), ("gpus", "h200"), ("whiteboard", *FIT[1:]), ("kv", FIT[1]))
ESCAPE = re.compile(r"\x1b\[[0-9;]*m")


def environment(tmp_path: Path, **more: str) -> dict[str, str]:
    kept = {k: v for k, v in os.environ.items() if k not in ("NO_COLOR", "COLUMNS", "LINES", "FORCE_COLOR")}
    return kept | {"PYTHONPATH": str(ROOT), "CAPPLAN_DATA": str(tmp_path), "TERM": "xterm-256color"} | more


def in_terminal(tmp_path: Path, *args: str, columns: int = 80, **more: str) -> str:
    """What the command writes to a terminal so many columns wide; it has to exit with 0 or 1."""
    reader, writer = pty.openpty()
    ioctl(writer, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
    process = subprocess.Popen(
        [sys.executable, "-m", "capplan", *args],
        stdin=writer,
        stdout=writer,
        stderr=writer,
        env=environment(tmp_path, **more),
    )
    os.close(writer)
    written = b""
    with suppress(OSError):  # how Linux says that the other side is closed
        while part := os.read(reader, 65_536):
            written += part
    os.close(reader)
    assert process.wait(60) in (0, 1), written
    return written.decode().replace("\r\n", "\n")


def in_shell(tmp_path: Path, line: str, **more: str) -> subprocess.CompletedProcess[str]:
    """Runs a line of bash in which `capplan` is the command."""
    command = f'capplan() {{ {shlex.quote(sys.executable)} -m capplan "$@"; }}; {line}'
    env = environment(tmp_path, **more)
    return subprocess.run(
        ["bash", "-c", command],
        env=env,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


# --- a terminal ---------------------------------------------------------------------------------------


def test_the_memory_bar_is_drawn(tmp_path: Path) -> None:
    out = in_terminal(tmp_path, *FIT)
    bar = next(line for line in out.splitlines() if line.startswith("█"))
    # 67.67 + 4 + 68.13 = 139.8 GiB over 78 characters
    assert (bar.count("█"), bar.count("░"), len(bar)) == (round(67.67 / 139.8 * 78), 2, 78)
    assert "█ weights 67.67 GiB   ░ reserve 4 GiB   ▒ KV cache 68.13 GiB" in out


def test_the_roofline_is_drawn(tmp_path: Path) -> None:
    out = in_terminal(tmp_path, *ROOFLINE, "--context", "8k,32k")
    assert re.search(r"╱A╱.*\n(.*\n)*.*╱B╱", out)
    assert "A: 8,000 tokens, batch 27" in out


def test_no_picture_goes_with_a_machine_form(tmp_path: Path) -> None:
    for form in ("--json", "--csv", "--explain"):
        assert in_terminal(tmp_path, *FIT, form).isascii()


def test_colours_are_there_and_go(tmp_path: Path) -> None:
    assert ESCAPE.search(in_terminal(tmp_path, *FIT))
    for command in COMMANDS:
        assert "\x1b" not in in_terminal(tmp_path, *command, NO_COLOR="1")
    assert "\x1b" not in in_terminal(tmp_path, *FIT, TERM="dumb")


@pytest.mark.parametrize("columns", [60, 80, 200])
@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_no_line_is_wider_than_the_terminal(command: tuple[str, ...], columns: int, tmp_path: Path) -> None:
    out = ESCAPE.sub("", in_terminal(tmp_path, *command, columns=columns))
    assert max(len(line) for line in out.splitlines()) <= columns


@pytest.mark.parametrize("columns", [40, 60, 80])
@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_no_figure_is_cut(command: tuple[str, ...], columns: int, tmp_path: Path) -> None:
    assert "…" not in in_terminal(tmp_path, *command, columns=columns)


def test_gpus_keep_one_line_each_in_80_columns(tmp_path: Path) -> None:
    out = in_terminal(tmp_path, "gpus", NO_COLOR="1")
    rows = [line for line in out.splitlines() if line.startswith("h200-sxm ")]
    assert [row.split()[:4] for row in rows] == [["h200-sxm", "141", "139.8", "4.8"]]
    assert re.fullmatch(r"\d+\.\d\d-\d+\.\d\d", rows[0].split()[-1])  # the prices, whole


# --- streams ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("line", ["capplan gpus", "capplan gpus --json", "capplan explain --json"])
def test_a_reader_that_has_seen_enough(line: str, tmp_path: Path) -> None:
    done = in_shell(tmp_path, f'{line} | head -n 1 >first; echo "${{PIPESTATUS[0]}}"')
    assert (done.stdout, done.stderr) == ("0\n", "")
    assert (tmp_path / "first").read_text()


def test_a_reader_that_is_gone(tmp_path: Path) -> None:
    done = in_shell(tmp_path, 'capplan models | true; echo "${PIPESTATUS[0]}"')
    assert (done.stdout, done.stderr) == ("0\n", "")


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="a device of Linux")
def test_a_full_disk_is_an_error(tmp_path: Path) -> None:
    for line in ("capplan gpus", "capplan kv llama-3.3-70b --json", "capplan --version"):
        done = in_shell(tmp_path, f"{line} >/dev/full")
        assert (done.returncode, done.stdout) == (2, "")
        assert done.stderr == "error: can't write the answer: no space left on device\n"


def test_closed_streams(tmp_path: Path) -> None:
    for line, code in (
        ("capplan gpus >&-", 0),
        ("capplan kv nothing 2>&-", 2),
        ("capplan gpus <&- >/dev/null", 0),
    ):
        done = in_shell(tmp_path, line)
        assert (done.returncode, done.stdout, done.stderr) == (code, "", "")


def test_a_note_with_stderr_closed(tmp_path: Path) -> None:
    done = in_shell(tmp_path, "capplan kv llama-3.3-70b --context 8k --json 2>&-")
    assert done.returncode == 0
    assert done.stdout.startswith("{")


def test_an_encoding_without_the_characters(tmp_path: Path) -> None:
    os.makedirs(tmp_path / "modèle")
    (tmp_path / "modèle/config.json").write_bytes((ROOT / "examples/llama-3.1-70b/config.json").read_bytes())
    done = in_shell(tmp_path, "capplan kv ./modèle", PYTHONIOENCODING="ascii")
    assert done.returncode == 0
    assert done.stdout.startswith(r"mod\xe8le: 327,680 bytes")
    done = in_shell(tmp_path, "capplan kv ./modèle --json", PYTHONIOENCODING="ascii")
    assert r'"model": "mod\u00e8le"' in done.stdout


def test_pictures_in_a_terminal_without_the_characters(tmp_path: Path) -> None:
    assert "67.67 GiB" in in_terminal(tmp_path, *FIT, PYTHONIOENCODING="ascii")


def test_a_user_without_a_home(tmp_path: Path) -> None:
    done = in_shell(tmp_path, "unset HOME CAPPLAN_DATA XDG_DATA_HOME; capplan kv llama-3.3-70b")
    assert (done.returncode, done.stderr) == (0, "")
