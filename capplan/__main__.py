"""The command: runs it, and turns what goes wrong into one line and an exit code."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from io import TextIOWrapper

from capplan.errors import CapplanError, ExitCode

LONGEST_ERROR = 1_000  # characters of an error's one line


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code."""
    args = list(sys.argv[1:] if argv is None else argv)
    debug = "--debug" in args  # anywhere on the line
    _usable_streams()
    args = [arg for arg in args if arg != "--debug"]
    try:
        from capplan.cli.app import run

        code = run(args)
        sys.stdout.flush()
        return code
    except BrokenPipeError:
        _drop_output()  # the reader has seen enough
        return ExitCode.ANSWERED
    except KeyboardInterrupt:
        return ExitCode.INTERRUPTED
    except CapplanError as error:
        if debug:
            raise
        return fail(str(error), error.exit_code)
    except Exception as error:
        if debug:
            raise
        if isinstance(error, OSError) and error.filename is None and error.strerror:  # a full disk
            _drop_output()
            return fail(f"can't write the answer: {error.strerror.lower()}", ExitCode.BAD_INPUT)
        return fail(f"internal error: {error!r}; --debug shows where", ExitCode.BAD_INPUT)


def _usable_streams() -> None:
    """Something to write to where a stream is closed, and nothing that it can't encode."""
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            # open for as long as the process
            setattr(sys, name, open(os.devnull, "w"))  # noqa: SIM115
    if isinstance(sys.stdout, TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")


def _drop_output() -> None:
    """Keep the interpreter from flushing again, at exit, what could not be written."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def fail(message: str, code: ExitCode) -> int:
    """One line of bounded length on stderr, whatever the message holds."""
    if len(message) > LONGEST_ERROR:
        message = f"{message[: LONGEST_ERROR // 2]} ... {message[-LONGEST_ERROR // 4 :]}"
    from capplan.report import printable

    sys.stderr.write(f"error: {printable(message)}\n")
    return code


def entry() -> None:
    """The `capplan` script."""
    sys.exit(main())


if __name__ == "__main__":
    entry()
