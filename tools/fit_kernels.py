"""Fits capacity/step_time/kernels.toml to measured kernels, and says how far off it is on GPUs that it has not seen.

    python tools/fit_kernels.py [--write] [FILE.csv]

The rows are $CAPPLAN_MEASURED_DATA/kernels_measured.csv unless a file is given. What is minimised is the mean of
|log(predicted / measured)|, cut off at 0.7, over rows that validate does not suspect. For "left out" every constant is
fitted again without one GPU's rows; where its generation has no other GPU with such rows, it gets the constants of
the nearest generation.
"""

from __future__ import annotations

import argparse
import os
import re
import sys
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from capplan.capacity.questions import kernel_rows
from capplan.capacity.questions.kernel_suspects import suspect
from capplan.capacity.questions.measured import read_table
from capplan.capacity.step_time import kernel_time
from capplan.capacity.step_time.chip import DATA, Chip, Constants, Fabric, data
from capplan.capacity.step_time.operations import Operation
from capplan.errors import CapplanError

FILE = (
    Path(os.environ.get("CAPPLAN_MEASURED_DATA") or Path(__file__).parents[2] / "shared/data")
    / "kernels_measured.csv"
)
CUT = 0.7
HIGHEST = 0.97  # share of a peak: beyond it a fit follows noise
SHRINK = 0.01  # of the squared log distance from the generations' mean: for constants that few rows tell
NEAREST = {"sm80": "sm89", "sm89": "sm120", "sm120": "sm89", "sm90": "sm100", "sm100": "sm90"}

Values = dict[str, float]  # by dotted name: sm90.gemm.bf16, shared.inner_ns, nvlink.share


class Stage(NamedTuple):
    """Constants that are fitted together, to the rows of some kinds."""

    kinds: tuple[str, ...]
    generation: tuple[str, ...] = ()
    shared: tuple[str, ...] = ()
    fabrics: tuple[str, ...] = ()
    fabric: tuple[str, ...] = ()


STAGES = (
    Stage(
        ("gemm",),
        ("gemm.bf16", "gemm.fp8", "gemm.fp4", "memory", "start_us"),
        ("gemm_power", "inner_ns", "pass_us", "pass_memory"),
    ),
    Stage(
        ("attention_decode",),
        ("attention_start_us", "decode.bf16", "decode.fp8", "pair_us"),
        (
            "attention_power",
            "attention_compute",
            "split_us",
            "split_tokens",
            "fp8_start",
            "fp8_pair",
            "fp8_read",
        ),
    ),
    Stage(("mla_decode",), (), ("latent_compute", "latent_start")),
    Stage(
        ("attention_prefill",),
        ("prefill",),
        (
            "prefill_start",
            "prefill_power",
            "prefill_tile_us",
            "prefill_path",
            "softmax_power",
            "fp8_gain",
        ),
    ),
    Stage(
        ("grouped_gemm",),
        ("grouped", "grouped_start_us"),
        ("grouped_tile", "grouped_rows", "grouped_tokens", "weight_only", "block_scaled"),
    ),
    Stage(
        ("allreduce", "all_gather", "alltoall", "send_recv"),
        (),
        (),
        ("nvlink", "pcie"),
        (
            "share",
            "peer_share",
            "start_us",
            "rank_us",
            "ramp_us",
            "ramp_bytes",
            "direct_us",
            "direct_rank_us",
            "direct_share",
            "eager_us",
        ),
    ),
)
SHARES = (
    "gemm.bf16",
    "gemm.fp8",
    "gemm.fp4",
    "memory",
    "decode.bf16",
    "decode.fp8",
    "prefill",
    "grouped",
    "attention_compute",
    "latent_compute",
    "weight_only",
    "block_scaled",
    "pass_memory",
    "share",
    "peer_share",
    "direct_share",
)
POWERS = ("gemm_power", "attention_power", "prefill_power", "softmax_power")


class Group(NamedTuple):
    """Rows that differ in numbers alone."""

    op: str
    gpu: str
    generation: str
    link: str
    chip: Chip
    operations: tuple[Operation, ...]  # of arrays
    measured: Any  # seconds
    used: Any  # rows that a fit may see
    cases: tuple[str, ...]


def groups(path: Path) -> list[Group]:
    """The rows that can be told, by what tells them apart other than numbers."""
    found: dict[tuple[Any, ...], list[tuple[kernel_rows.Case, float, bool, str]]] = defaultdict(list)
    for row in read_table(path, kernel_rows.NEEDED):
        try:
            case = kernel_rows.case(row)
        except CapplanError:
            continue
        time = _time(row, case)
        if time is None or not case.operations:
            continue
        key = (
            row["op"],
            row["gpu"],
            tuple((each.kind, each.dtype, each.variant, each.ranks) for each in case.operations),
        )
        found[key].append((case, time, suspect(row, case) is None, row["case_id"]))
    return [_group(key[0], key[1], rows) for key, rows in found.items()]


def _time(row: Mapping[str, str], case: kernel_rows.Case) -> float | None:
    """What was measured, as a time [second]."""
    if (time := kernel_rows.number(row, "time_us")) is not None:
        return time * 1e-6
    if (rate := kernel_rows.number(row, "tflops")) is not None and case.flops:
        return case.flops / rate / 1e12
    if (rate := kernel_rows.number(row, "gbps")) is not None and case.bytes:
        return case.bytes / rate / 1e9
    return None


def _group(op: str, gpu: str, rows: list[tuple[kernel_rows.Case, float, bool, str]]) -> Group:
    first = rows[0][0]
    together = []
    for place, operation in enumerate(first.operations):
        each = [case.operations[place] for case, *_ in rows]
        figures: dict[str, Any] = {
            name: np.array([getattr(one, name) for one in each])
            for name, value in operation._asdict().items()
            if isinstance(value, int | float) and name not in ("ranks", "count")
        }
        together.append(operation._replace(**figures))
    chip = first.chip
    link = "pcie" if first.operations[-1].ranks > chip.domain else chip.link
    if first.operations[-1].variant == "across":
        link = "rdma"
    return Group(
        op, gpu, chip.generation, link, chip, tuple(together),
        np.array([time for _, time, *_ in rows]), np.array([used for *_, used, _ in rows]),
        tuple(name for *_, name in rows),
    )  # fmt: skip


# --- constants by dotted names ------------------------------------------------------------------------------------


def flat(table: Mapping[str, Any], before: str = "") -> Values:
    found: Values = {}
    for name, value in table.items():
        found |= (
            flat(value, f"{before}{name}.") if isinstance(value, Mapping) else {before + name: float(value)}
        )
    return found


def start_values() -> Values:
    table = data()
    return flat(table["generation"]) | flat({"shared": table["shared"]}) | flat(table["fabric"])


def with_values(chip: Chip, values: Values) -> Chip:
    """The chip with these constants in place of its own."""
    own = {name: values[f"shared.{name}"] for name in Constants._fields if f"shared.{name}" in values}
    for name in Constants._fields:
        if name in own:
            continue
        start = f"{chip.generation}.{name}"
        parts = {key[len(start) + 1 :]: value for key, value in values.items() if key.startswith(start + ".")}
        own[name] = parts or values[start]  # type: ignore[assignment]
    fabrics = {
        fabric: Fabric(*(values[f"{fabric}.{name}"] for name in Fabric._fields)) for fabric in chip.fabrics
    }
    return chip._replace(constants=Constants(**own), fabrics=fabrics)  # type: ignore[arg-type]


def ratios(group: Group, values: Values) -> Any:
    """log(predicted / measured) of a group's rows."""
    chip = with_values(group.chip, values)
    time = sum(kernel_time.seconds(operation, chip) for operation in group.operations)
    return np.log(time / group.measured)


# --- the fit ------------------------------------------------------------------------------------------------------


def fit(rows: list[Group], values: Values, without: str = "") -> Values:
    """Every stage fitted to the rows, but for one GPU's; a stage without rows of that GPU stays as it is."""
    for stage in STAGES:
        every = [
            group
            for group in rows
            if group.op in stage.kinds
            and group.used.any()
            and (not stage.fabrics or group.link in stage.fabrics)
        ]
        mine = [group for group in every if plain(group.gpu) != without]
        if not without or len(mine) < len(every):
            values = _fit_stage(stage, mine, _forget(stage, every, values, without))
    return values


def _forget(stage: Stage, rows: list[Group], values: Values, gpu: str) -> Values:
    """Where a search starts that must not know a GPU: at the nearest generation's constants."""
    mine = {group.generation for group in rows if plain(group.gpu) == gpu}
    return values | {
        f"{generation}.{name}": values[f"{NEAREST[generation]}.{name}"]
        for generation in mine
        for name in stage.generation
    }


def plain(gpu: str) -> str:
    return gpu.split(" (")[0]


def _fit_stage(stage: Stage, rows: list[Group], values: Values) -> Values:
    seen = {group.generation for group in rows}
    names = [f"shared.{name}" for name in stage.shared]
    names += [f"{fabric}.{name}" for fabric in stage.fabrics for name in stage.fabric]
    names = [name for name in names if values[name] > 0]  # a zero stays
    own = [f"{generation}.{name}" for generation in sorted(seen) for name in stage.generation]
    own = [name for name in own if name in values and _told(name, rows)]
    pools = [[f"{generation}.{name}" for generation in NEAREST] for name in stage.generation]
    pools = [[name for name in pool if name in own] for pool in pools]
    count = sum(int(group.used.sum()) for group in rows)

    def loss(tried: Values) -> float:
        if any(_outside(name, tried[name]) for name in (*names, *own)):
            return float("inf")
        off = [np.minimum(np.abs(ratios(group, tried)[group.used]), CUT) for group in rows]
        spread = sum(
            float(np.var(np.log([tried[name] for name in pool]))) * len(pool) for pool in pools if pool
        )
        return float(np.concatenate(off).sum()) / count + SHRINK * spread / max(1, len(pools))

    found = search(loss, values, [*names, *own])
    for generation in NEAREST:
        for name in stage.generation:
            found[f"{generation}.{name}"] = _filled(generation, name, own, found)
    return found


def _filled(generation: str, name: str, fitted: list[str], values: Values) -> float:
    """A constant that was fitted, or else the nearest generation's; of a dtype, in proportion to what bf16 reaches."""
    near = NEAREST[generation]
    told = (generation, near, NEAREST[near])
    teller = next((each for each in told if f"{each}.{name}" in fitted), generation)
    plain_name = f"{name.split('.')[0]}.bf16"
    if teller != generation and f"{generation}.{plain_name}" in fitted:
        ratio = values[f"{teller}.{name}"] / values[f"{teller}.{plain_name}"]
        return min(HIGHEST, values[f"{generation}.{plain_name}"] * ratio)
    return values[f"{teller}.{name}"]


def _told(name: str, rows: list[Group]) -> bool:
    """Whether a row says anything of a constant that holds for one dtype."""
    generation, kind, *part = name.split(".")
    if not part:
        return True
    for group in rows:
        last = group.operations[-1]
        path = group.chip.paths.get(last.dtype, "bf16")
        if kind == "decode":
            path = "bf16" if last.dtype in ("bf16", "fp16") else "fp8"
        if group.generation == generation and path == part[0]:
            return True
    return False


def _outside(name: str, value: float) -> bool:
    last = name.split(".", 1)[1]
    if last in POWERS:
        return not 1.0 <= value <= 8.0
    if last in SHARES:
        return value > HIGHEST
    return not 1e-4 < value < 1e10


def search(loss: Callable[[Values], float], values: Values, names: Iterable[str]) -> Values:
    """Coordinate search over factors: each constant up or down by a step that shrinks when neither helps."""
    best, steps = dict(values), dict.fromkeys(names, 0.2)
    lowest = loss(best)
    for _ in range(40):
        for name in steps:
            for factor in (1 + steps[name], 1 / (1 + steps[name])):
                tried = best | {name: best[name] * factor}
                if (found := loss(tried)) < lowest - 1e-7:
                    best, lowest = tried, found
                    break
            else:
                steps[name] *= 0.6
        if max(steps.values(), default=0.0) < 2e-3:
            break
    return best


# --- the report ---------------------------------------------------------------------------------------------------


def errors(rows: list[Group], values: Mapping[str, Values]) -> dict[str, Any]:
    """|predicted / measured - 1| by op; of each GPU with its own values."""
    found: dict[str, list[Any]] = defaultdict(list)
    for group in rows:
        off = np.abs(np.exp(ratios(group, values[plain(group.gpu)])) - 1)
        found[group.op].append(np.stack([off, group.used]))
        found[f"{group.op} {group.gpu}"].append(np.stack([off, group.used]))
    return {name: np.concatenate(parts, axis=1) for name, parts in found.items()}


def several(rows: list[Group]) -> set[tuple[str, str]]:
    """Ops and GPUs whose generation has other GPUs with such rows: what "left out" can be asked of."""
    found: dict[tuple[str, str], set[str]] = defaultdict(set)
    for group in rows:
        found[group.op, group.generation].add(plain(group.gpu))
    return {(op, gpu) for (op, _), gpus in found.items() if len(gpus) > 1 for gpu in gpus}


def told(title: str, found: Mapping[str, Any]) -> None:
    print(f"\n{title}: median, mean, 90th percentile of |error|; median without suspects")
    for name in sorted(found):
        off, used = found[name]
        kept = off[used > 0]
        plain_median = f"{100 * np.median(kept):6.1f}" if len(kept) else "     -"
        print(
            f"  {name:55} {len(off):4} rows  {100 * np.median(off):6.1f} {100 * off.mean():6.1f} "
            f"{100 * np.quantile(off, 0.9):6.1f}  {plain_median}"
        )


def spreads(rows: list[Group], values: Mapping[str, Values]) -> dict[str, tuple[float, float]]:
    """What eight of ten left-out rows lie in, as multiples of the prediction."""
    found: dict[str, list[Any]] = defaultdict(list)
    for group in rows:
        found[group.op].append(-ratios(group, values[plain(group.gpu)])[group.used])
    every = {op: np.concatenate(parts) for op, parts in found.items()}
    ends = {op: np.exp(np.quantile(off, (0.1, 0.9))) for op, off in every.items() if len(off)}
    return {op: (float(low), float(high)) for op, (low, high) in ends.items()}


def counts(rows: list[Group]) -> Values:
    """Rows that each generation's constants were fitted to, by op, as kernels.toml has them."""
    found: Values = defaultdict(int)
    for group in rows:
        if group.op in ("gemm", "grouped_gemm", "attention_decode", "attention_prefill", "mla_decode"):
            found[f"rows.{group.generation}.{group.op}"] += int(group.used.sum())
    return dict(found)


def medians(name: str, found: Mapping[str, Any]) -> Values:
    return {f"error.{name}.{op}": float(np.median(found[op][0])) for op in sorted(found) if " " not in op}


def rewrite(text: str, values: Values, ranges: Mapping[str, tuple[float, float]] | None = None) -> str:
    """kernels.toml with the values and ranges put in; everything else stays."""
    section, lines = "", []
    for line in text.splitlines():
        if head := re.match(r"\[(?:\w+\.)?(\w+)\]", line):
            section = head[1]
        elif entry := re.match(r"(\w+) = (.*)", line):
            name = f"{section}.{entry[1]}"
            if name in values:
                line = f"{entry[1]} = {_figure(values[name])}{_after(entry[2])}"
            elif section == "spread" and ranges and entry[1] in ranges:
                low, high = ranges[entry[1]]
                line = f"{entry[1]} = [{low:.2f}, {high:.2f}]"
            elif parts := [key for key in values if key.startswith(name + ".")]:
                inside = ", ".join(f"{key.rsplit('.', 1)[1]} = {_figure(values[key])}" for key in parts)
                line = f"{entry[1]} = {{ {inside} }}{_after(entry[2])}"
        lines.append(line)
    return "\n".join(lines) + "\n"


def _figure(value: float) -> str:
    if isinstance(value, int):
        return str(value)
    digits = f"{value:.3g}"
    return digits if "." in digits or "e" in digits else f"{digits}.0"


def _after(text: str) -> str:
    found = re.search(r"\s+#.*$", text)
    return found[0] if found else ""


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("file", nargs="?", type=Path, default=FILE)
    parser.add_argument("--write", action="store_true", help="put the constants into kernels.toml")
    parser.add_argument("--fast", action="store_true", help="no left-out fits")
    given = parser.parse_args()
    rows = groups(given.file)
    gpus = sorted({plain(group.gpu) for group in rows})
    fitted = fit(rows, start_values())
    in_fit = errors(rows, dict.fromkeys(gpus, fitted))
    told("in the fit", in_fit)
    values = fitted | counts(rows) | medians("in_fit", in_fit)
    ranges: dict[str, dict[str, tuple[float, float]]] = {}
    if not given.fast:
        left_out = {gpu: fit(rows, fitted, without=gpu) for gpu in gpus}
        asked = several(rows)
        for name, title, among in (
            ("left_out", "left out, of generations with several GPUs", True),
            ("nearest", "left out, with constants of the nearest generation", False),
        ):
            some = [group for group in rows if ((group.op, plain(group.gpu)) in asked) is among]
            found = errors(some, left_out)
            told(title, found)
            values |= medians(name, found)
            ranges[name] = spreads(some, left_out)
            print("\nspread of these rows, as multiples of the prediction")
            for op, (low, high) in sorted(ranges[name].items()):
                print(f"  {op} = [{low:.2f}, {high:.2f}]")
        told("left out, all", errors(rows, left_out))
    text = rewrite(DATA.read_text(), values, ranges.get("left_out"))
    print("\n" + text)
    if given.write:
        DATA.write_text(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
