"""The command: runs it, and turns what goes wrong into one line and an exit code."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

from capplan.errors import CapplanError, ExitCode


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code."""
    args = list(sys.argv[1:] if argv is None else argv)
    debug = "--debug" in args  # anywhere on the line
    args = [arg for arg in args if arg != "--debug"]
    try:
        from capplan.cli.app import run

        code = run(args)
        sys.stdout.flush()
        return code
    except BrokenPipeError:
        # the reader has seen enough; keep the interpreter from flushing into the closed pipe at exit
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
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
        return fail(f"internal error: {error!r}; --debug shows where", ExitCode.BAD_INPUT)


def fail(message: str, code: ExitCode) -> int:
    """One line on stderr, whatever the message holds."""
    line = "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in message)
    sys.stderr.write(f"error: {line}\n")
    return code


def entry() -> None:
    """The `capplan` script."""
    sys.exit(main())


if __name__ == "__main__":
    entry()
