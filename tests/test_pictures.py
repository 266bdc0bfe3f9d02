"""The pictures say what the answer says, as characters, SVG and PNG."""

import os
import re
from collections.abc import Callable
from pathlib import Path
from xml.etree import ElementTree

import matplotlib.figure
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from capplan.capacity.questions.fit import fit
from capplan.capacity.questions.gpus import gpus
from capplan.capacity.questions.roofline import roofline
from capplan.cli.pictures import memory_bar, picture, roofline_plot
from capplan.cli.plots import save
from capplan.errors import InputError
from capplan.units import gib

Run = Callable[..., tuple[int, str, str]]
MODELS = st.sampled_from(["qwen3-0.6b", "llama-3.1-8b", "llama-3.3-70b", "gpt-3-175b"])
GPUS = st.sampled_from(["t4", "l4", "h200-sxm", "mi300x", "gaudi3"])
few = settings(max_examples=60, deadline=None)

PICTURES = {
    "kv": ("kv", "llama-3.1-8b", "--context", "4k,8k,16k"),
    "kv-two": ("kv", "llama-3.1-8b", "qwen3-8b", "--context", "4k,8k,16k"),
    "fit": ("fit", "llama-3.1-8b", "--gpu", "l4", "--context", "4k,8k,16k"),
    "fit-none": ("fit", "llama-3.3-70b", "--gpu", "l4"),
    "roofline": ("roofline", "llama-3.1-8b", "--gpu", "l4", "--context", "4k,8k,16k"),
    "decode": ("decode", "qwen3-30b-a3b", "--gpu", "h100", "--tp", "2", "--context", "4k,8k"),
    "prefill": ("prefill", "llama-3.1-8b", "--gpu", "l4", "--tp", "1", "--context", "4k,8k,16k"),
    "whiteboard": ("whiteboard", "70b-class", "--gpu", "h200", "--weights", "fp8", "--context", "4k,8k,16k"),
    "perf": ("perf", "llama-3.1-8b", "--gpu", "h100", "--concurrency", "1..64"),
    "compare": ("compare", "llama-3.1-8b", "--gpus", "h100,l40s"),
    "simulate": ("simulate", "llama-3.1-8b", "--gpu", "h100", "--rate", "4", "--requests", "100"),
}
each_picture = pytest.mark.parametrize("args", PICTURES.values(), ids=PICTURES)


# --- characters ---------------------------------------------------------------------------------------


@few
@given(MODELS, GPUS, st.floats(0, 30), st.integers(40, 250))
def test_the_memory_bar_adds_up(model: str, gpu: str, reserve: float, columns: int) -> None:
    found = fit(model, gpu, contexts=[1000], reserve=reserve * 2**30)
    bar, *key = memory_bar(found, columns).splitlines()
    assert len(bar) == min(columns, 100) - 2
    assert re.fullmatch("█*░*▒*!*", bar)
    assert ("!" in bar) <= (found.kv_budget_bytes < 0)
    if found.kv_budget_bytes >= 0:
        assert bar.count("█") == pytest.approx(len(bar) * found.weight_bytes / found.memory_bytes, abs=1)
        assert bar.count("▒") == pytest.approx(len(bar) * found.kv_budget_bytes / found.memory_bytes, abs=1)
    else:
        needed = found.weight_bytes + found.reserve_bytes
        assert bar.count("!") == pytest.approx(len(bar) * (needed - found.memory_bytes) / needed, abs=1)
    assert gib(found.weight_bytes) in key[0]
    assert gib(abs(found.kv_budget_bytes)) in key[-1]
    assert all(len(line) <= columns for line in key)


@few
@given(MODELS, GPUS, st.lists(st.integers(1, 1_000_000), min_size=1, max_size=30), st.integers(60, 250))
def test_the_roofline_places_every_context(model: str, gpu: str, contexts: list[int], columns: int) -> None:
    found = roofline(model, gpu, contexts=contexts)
    head, *plot = roofline_plot(found, columns).splitlines()
    assert f"the ridge is at {found.ridge_flop_per_byte:,.0f}" in head
    names = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"[: len(found.at)]
    for name, row in zip(names, found.at, strict=False):
        line = next(line for line in plot if line.startswith(f"  {name}: "))
        assert f"{row['context']:,}" in line
        assert f"batch {row['batch']:,}" in line
    drawn = [line.partition("┤")[2] for line in plot if "┤" in line]
    assert "A" in "".join(drawn)  # the shortest is never hidden by another
    assert all(len(line) <= columns for line in (head, *plot[: len(drawn) + 2]))


def test_a_context_further_right_stands_further_right() -> None:
    plot = roofline_plot(roofline("llama-3.3-70b", "h200", weights="fp8", contexts=[8_000, 128_000]))
    drawn = [line.partition("┤")[2] for line in plot.splitlines() if "┤" in line]
    height = {name: next(i for i, line in enumerate(drawn) if name in line) for name in "AB"}
    assert height["A"] < height["B"]  # a shorter context is nearer to the peak
    assert drawn[height["A"]].index("A") > drawn[height["B"]].index("B")


def test_answers_without_a_picture() -> None:
    assert picture(gpus(), 80) == ""


# --- files --------------------------------------------------------------------------------------------


@each_picture
def test_svg(args: tuple[str, ...], run: Run) -> None:
    code, out, _ = run(*args, "--plot", "x.svg")
    assert (code, out) == run(*args)[:2]
    text = Path("x.svg").read_text()
    root = ElementTree.fromstring(text)
    assert root.tag == "{http://www.w3.org/2000/svg}svg"
    written = "\n".join(re.findall("<!-- (.*?) -->", text))  # matplotlib draws letters and notes the words
    assert args[1] in written
    if args[0] in ("roofline", "whiteboard"):
        assert "ridge 4" in written
        for tokens in ("4,000", "8,000", "16,000"):
            assert f"{tokens} tokens" in written
    if args[0] == "decode":
        assert {"at 4,000 tokens", "at 8,000 tokens", "experts", "collectives", "fixed costs"} <= set(
            written.split("\n")
        )
    if args[0] in ("fit", "whiteboard") and "l4" not in args:
        assert "weights 65.19 GiB" in written
        for tokens in ("4k", "8k", "16k"):
            assert re.search(rf"\d of {tokens}$", written, re.MULTILINE)


def test_svg_of_what_does_not_fit_says_how_much_is_missing(run: Run) -> None:
    run(*PICTURES["fit-none"], "--plot", "x.svg")
    found = fit("llama-3.3-70b", "l4")
    assert f"missing {gib(-found.kv_budget_bytes)}" in Path("x.svg").read_text()


@each_picture
def test_png(args: tuple[str, ...], run: Run) -> None:
    run(*args, "--plot", "x.PNG")
    content = Path("x.PNG").read_bytes()
    assert content.startswith(b"\x89PNG\r\n\x1a\n")
    assert content.endswith(b"IEND\xaeB`\x82")
    across, down = (int.from_bytes(content[at : at + 4], "big") for at in (16, 20))
    assert across == 7.5 * 160  # inches x dots an inch
    assert down > (200 if args == PICTURES["fit-none"] else 600)
    assert 10_000 < len(content) < 500_000


@each_picture
def test_the_same_picture_is_the_same_file(args: tuple[str, ...], run: Run) -> None:
    run(*args, "--plot", "one.svg")
    run(*args, "--plot", "two.svg")
    assert Path("one.svg").read_bytes() == Path("two.svg").read_bytes()
    assert sorted(os.listdir()) == ["one.svg", "two.svg"]


def test_a_picture_goes_with_every_form(run: Run) -> None:
    for form in ("--json", "--csv", "--explain", "--markdown"):
        assert run(*PICTURES["whiteboard"], form, "--plot", f"x{form}.svg")[0] == 0
        ElementTree.parse(f"x{form}.svg")


def test_an_old_file_is_replaced(run: Run) -> None:
    Path("x.svg").write_text("old")
    run(*PICTURES["fit"], "--plot", "x.svg")
    ElementTree.parse("x.svg")


def test_the_longest_name_that_the_file_system_takes(run: Run) -> None:
    name = "x" * 251 + ".svg"
    assert run(*PICTURES["fit"], "--plot", name)[0] == 0
    assert os.listdir() == [name]


def loop() -> None:
    os.symlink("loop", "loop")


REFUSED: dict[str, tuple[Callable[[], object], str, str]] = {
    "pdf": (lambda: None, "x.pdf", "the name must end in .svg or .png"),
    "jpeg": (lambda: None, "x.jpg", "the name must end in .svg or .png"),
    "no-ending": (lambda: None, "x", "the name must end in .svg or .png"),
    "ending-alone": (lambda: None, ".svg", "the name must end in .svg or .png"),
    "ending-twice": (lambda: None, "x.svg.gz", "the name must end in .svg or .png"),
    "blank-after": (lambda: None, "x.svg ", "the name must end in .svg or .png"),
    "empty": (lambda: None, "", "the name must end in .svg or .png"),
    "a-dash": (lambda: None, "-", "the name must end in .svg or .png"),
    "like-an-option": (lambda: None, "--json", "the name must end in .svg or .png"),
    "no-folder": (lambda: None, "nowhere/x.svg", "there is no folder 'nowhere'"),
    "no-folder-absolute": (lambda: None, "/nowhere/x.svg", "there is no folder '/nowhere'"),
    "below-a-file": (lambda: Path("f").write_text(""), "f/x.svg", "there is no folder 'f'"),
    "below-a-loop": (loop, "loop/x.svg", "there is no folder 'loop'"),
    "a-folder": (lambda: Path("x.svg").mkdir(), "x.svg", "is a directory"),
    "unwritable": (lambda: None, "/proc/x.svg", "no such file or directory"),
    "name-too-long": (lambda: None, "x" * 300 + ".svg", "file name too long"),
    "folder-too-long": (lambda: None, "x" * 5000 + "/x.svg", " ... "),
    "nul": (lambda: None, "\0.svg", "null byte"),
    "nul-in-the-folder": (lambda: None, "\0/x.svg", "there is no folder"),
    "ansi": (lambda: None, "\x1b[31m/x.svg", r"\x1b[31m"),
}


@pytest.mark.parametrize(("make", "path", "message"), REFUSED.values(), ids=REFUSED)
def test_a_place_that_can_not_be_drawn_to(
    make: Callable[[], object], path: str, message: str, run: Run
) -> None:
    make()
    before = os.listdir()
    code, out, err = run(*PICTURES["fit"], "--plot", path)
    lines = [line for line in err.splitlines() if not line.startswith("note: ")]
    assert (code, out, len(lines)) == (2, "", 1)
    assert lines[0].startswith("error: can't draw to ")
    assert message in lines[0]
    assert lines[0].isprintable()
    assert os.listdir() == before


@pytest.mark.parametrize("failure", [OSError(28, "No space left on device"), KeyboardInterrupt()], ids=repr)
def test_a_failure_half_way_leaves_nothing(
    failure: BaseException, monkeypatch: pytest.MonkeyPatch, run: Run
) -> None:
    def half(_: object, path: Path, **__: object) -> None:
        Path(path).write_text("<svg")
        raise failure

    Path("x.svg").write_text("old")
    monkeypatch.setattr(matplotlib.figure.Figure, "savefig", half)
    code, out, err = run(*PICTURES["fit"], "--plot", "x.svg")
    assert (code, out) == (130 if isinstance(failure, KeyboardInterrupt) else 2, "")
    assert os.listdir() == ["x.svg"]
    assert Path("x.svg").read_text() == "old"
    if code == 2:
        assert "error: can't draw to 'x.svg': no space left on device" in err


def test_without_matplotlib(monkeypatch: pytest.MonkeyPatch, run: Run) -> None:
    monkeypatch.setitem(__import__("sys").modules, "matplotlib", None)
    code, out, err = run("fit", "llama-3.1-8b", "--gpu", "l4", "--plot", "x.svg")
    assert (code, out) == (3, "")
    assert err == "error: drawing needs matplotlib: pip install 'capplan[plot]'\n"
    assert os.listdir() == []


def test_an_answer_without_a_picture_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="there is no picture of 'gpus'"):
        save(gpus(), str(tmp_path / "x.svg"))
    assert not list(tmp_path.iterdir())
