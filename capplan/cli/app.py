"""The tree of commands; a command's file is imported when the command is called."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from importlib import import_module

import typer
from typer import core
from typer.main import get_command

from capplan.cli import notes
from capplan.errors import InputError, UnknownNameError

COMMANDS = (
    *("kv", "fit", "roofline", "prefill", "decode", "ops", "whiteboard"),
    *("perf", "compare", "calibrate", "probe", "speculate", "simulate", "goodput"),
    *("gpus", "models", "explain", "check", "validate", "schema"),
)

AS_VLLM_SPELLS = {  # so that a line of its flags can be pasted; ours are the short ones
    "tensor-parallel-size": "tp",
    "pipeline-parallel-size": "pp",
    "data-parallel-size": "dp",
    "enable-expert-parallel": "ep",
    "kv-cache-dtype": "kv",
    "quantization": "weights",
}


class Commands(core.TyperGroup):
    """Finds a command in the file of its name, so that start-up does not grow with their number."""

    def list_commands(self, ctx: typer.Context) -> list[str]:  # type: ignore[override]
        return list(COMMANDS)

    def get_command(self, ctx: typer.Context, cmd_name: str) -> core.TyperCommand:  # type: ignore[override]
        if cmd_name not in COMMANDS:
            raise UnknownNameError("command", cmd_name, COMMANDS, "capplan --help")
        module = import_module(f"capplan.cli.{cmd_name}")
        several: dict[str, Callable[..., None]] | None = getattr(module, "COMMANDS", None)
        tree = _typer(add_completion=False, **({"cls": Several} if several else {}))
        for name, function in (several or {cmd_name: module.command}).items():
            tree.command(name, no_args_is_help=False)(function)
        if several:
            tree.callback(help=module.HELP, invoke_without_command=True)(_help)
        command = get_command(tree)
        command.name = cmd_name
        return command  # type: ignore[return-value]


def _help(ctx: typer.Context) -> None:
    if ctx.invoked_subcommand is None:
        typer.echo(ctx.get_help())


class Several(core.TyperGroup):
    """A command of several, such as probe run; COMMANDS of its file has them."""

    def list_commands(self, ctx: typer.Context) -> list[str]:  # type: ignore[override]
        return list(self.commands)

    def get_command(self, ctx: typer.Context, cmd_name: str) -> core.TyperCommand:  # type: ignore[override]
        if cmd_name not in self.commands:
            raise UnknownNameError(
                f"{self.name} command", cmd_name, self.commands, f"capplan {self.name} --help"
            )
        return self.commands[cmd_name]  # type: ignore[return-value]


def _typer(**options: object) -> typer.Typer:
    return typer.Typer(
        rich_markup_mode=None,
        pretty_exceptions_enable=False,
        context_settings={
            "help_option_names": ["-h", "--help"],
            "token_normalize_func": lambda name: AS_VLLM_SPELLS.get(name, name),
        },
        **options,  # type: ignore[arg-type]
    )


app = _typer(cls=Commands, add_completion=True)


@app.callback(invoke_without_command=True)
def capplan(
    ctx: typer.Context,
    version: bool = typer.Option(False, "--version", help="Print the version and exit."),
    debug: bool = typer.Option(
        False, "--debug", help="Show the traceback of an error; anywhere on the line."
    ),
) -> None:
    """How many requests fit on a GPU, how fast they will run, and what they cost.

    Exit codes: 0 answered and fits, 1 answered and does not fit, 2 bad input, 3 a package or device is
    missing, 130 interrupted.
    """
    if version:
        from capplan import __version__

        typer.echo(f"capplan {__version__}")
    elif ctx.invoked_subcommand is None:
        typer.echo(ctx.get_help())


def run(args: Sequence[str]) -> int:
    """Run the command line; raises CapplanError, also for bad usage."""
    notes.forget()
    try:
        code = get_command(app)(args=list(args), prog_name="capplan", standalone_mode=False)
    except typer.exceptions.TyperException as error:  # usage: an unknown option, a missing argument
        text = error.format_message().rstrip(".").replace("\n", " ")
        raise InputError(text[:1].lower() + text[1:]) from error
    except typer.Abort as error:
        raise KeyboardInterrupt from error
    except SystemExit as error:  # typer's way with a closed pipe
        if isinstance(error.__context__, BrokenPipeError):
            raise error.__context__ from None
        raise
    return code if isinstance(code, int) else 0
