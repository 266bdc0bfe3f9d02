"""capplan probe list | run | report | compare | validate"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated

import typer

from capplan.cli import notes
from capplan.cli import options as opt
from capplan.cli.render import emit, is_terminal, only_one, width
from capplan.errors import ExitCode, InputError

if TYPE_CHECKING:
    from capplan.probes.run import Progress

OUT = "calibration.json"

File = Annotated[
    str, typer.Argument(metavar="FILE", help="A calibration file (capplan probe run).", show_default=False)
]


def list_probes(json: opt.Json = False) -> None:
    """The probes, what each measures, and what the planner learns from it.

    capplan probe list
    """
    from capplan.capacity.questions.probe_list import ProbeList
    from capplan.probes.probe import probes

    told = tuple(
        {
            "name": one.NAME,
            "title": one.TITLE,
            "formula": one.FORMULA,
            "what": one.WHAT,
            "version": one.VERSION,
        }
        for one in probes()
    )
    raise typer.Exit(emit(ProbeList(inputs={}, probes=told), as_json=json))


def run(
    out: Annotated[
        str, typer.Option("--out", metavar="FILE", help="The calibration file to write; written whole.")
    ] = OUT,
    profile: Annotated[
        str, typer.Option("--profile", metavar="PROFILE", help="quick, default or full.")
    ] = "default",
    only: Annotated[
        list[str] | None,
        typer.Option("--only", metavar="PROBE", help="A probe, or several with commas; may be repeated."),
    ] = None,
    device: Annotated[
        str, typer.Option("--device", metavar="DEVICE", help="auto (a GPU where there is one), cpu, cuda:N.")
    ] = "auto",
    label: Annotated[
        str | None, typer.Option("--label", metavar="TEXT", help="Kept in the file, such as rack3-node7.")
    ] = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Go on after the last finished probe of a run that was cut off.")
    ] = False,
    json: opt.Json = False,
    csv: Annotated[bool, typer.Option("--csv", help="Print every row as CSV.")] = False,
) -> None:
    """Measure the device at hand: correct first, then timed; writes a calibration file.

    capplan probe run --profile quick

    capplan probe run --out h200.json --label rack3-node7

    capplan probe run --only gemm,hbm --device cpu
    """
    only_one(json=json, csv=csv)
    from capplan.probes.run import kept
    from capplan.probes.run import run as measure

    names = [name.strip() for text in only or () for name in text.split(",") if name.strip()]
    if only and not names:
        raise InputError("--only names no probe (capplan probe list)")
    try:
        with _progress() as told:
            found = measure(
                out, device=device, profile=profile, only=names, label=label, resume=resume, report=told
            )
    except KeyboardInterrupt:
        notes.say(f"interrupted; {kept(out)}")
        raise
    on_cpu = found["device"]["kind"] == "cpu"
    use = (
        "of a CPU, so no plan takes it"
        if on_cpu
        else "fit, perf, decode and others take it with --calibration"
    )
    notes.say(f"wrote {out}; {use}")
    from capplan.capacity.questions.probe_report import probe_report

    answer = probe_report(out)
    code = emit(answer, as_json=json, as_csv=csv)
    raise typer.Exit(ExitCode.DOES_NOT_FIT if answer.failed else code)


def report(
    file: File,
    json: opt.Json = False,
    csv: Annotated[bool, typer.Option("--csv", help="Print every row as CSV.")] = False,
    plot: opt.Plot = None,
) -> None:
    """What a calibration file says: measured beside the datasheet and the formula, and what it changes in a plan.

    capplan probe report h200.json

    capplan probe report h200.json --plot h200.svg
    """
    from capplan.capacity.questions.probe_report import probe_report

    raise typer.Exit(emit(probe_report(file), as_json=json, as_csv=csv, plot=plot))


def compare(
    files: Annotated[
        list[str],
        typer.Argument(
            metavar="FILE...",
            help="Two calibration files or more; the first is held against.",
            show_default=False,
        ),
    ],
    out: Annotated[
        str | None,
        typer.Option("--out", metavar="FILE", help="Write a calibration of the fleet: its slowest member's."),
    ] = None,
    json: opt.Json = False,
    csv: Annotated[bool, typer.Option("--csv", help="Print every constant as CSV.")] = False,
) -> None:
    """Whether devices are alike: which are slow, in what, and why.

    capplan probe compare node1.json node2.json node3.json --out fleet.json
    """
    from capplan.capacity.questions.probe_compare import probe_compare

    answer, fleet = probe_compare(files)
    if out is not None:
        from capplan.calibration_file import write_document

        write_document(out, fleet)
        notes.say(f"wrote {out}")
    raise typer.Exit(emit(answer, as_json=json, as_csv=csv))


def validate(
    file: File,
    json: opt.Json = False,
    csv: Annotated[bool, typer.Option("--csv", help="Print every row as CSV.")] = False,
    explain: opt.Explain = False,
) -> None:
    """Hold the formulas against a calibration file: the ridge, the knee, and the time of every kernel.

    capplan probe validate h200.json
    """
    from capplan.capacity.questions.probe_validate import probe_validate

    raise typer.Exit(emit(probe_validate(file), as_json=json, as_csv=csv, explain=explain))


COMMANDS: dict[str, Callable[..., None]] = {
    "list": list_probes,
    "run": run,
    "report": report,
    "compare": compare,
    "validate": validate,
}
HELP = """Measure the device at hand, and see what that changes.

capplan probe list

capplan probe run --profile quick --only launch
"""


@contextmanager
def _progress() -> Iterator[Callable[[Progress], None]]:
    """A bar with the time left, on a terminal; elsewhere nothing."""
    if not is_terminal(sys.stderr):
        yield lambda progress: None
        return

    def told(progress: Progress) -> None:
        left = "" if progress.left_s is None else f", {progress.left_s:,.0f} s left"
        full = 24 * progress.done // max(1, progress.of)
        bar = "#" * full + "." * (24 - full)
        line = f"[{bar}] {progress.done:,} of {progress.of:,} {progress.probe}{left}"
        sys.stderr.write(f"\r\x1b[K{line[: width() - 1]}")
        sys.stderr.flush()

    try:
        yield told
    finally:
        sys.stderr.write("\r\x1b[K")
