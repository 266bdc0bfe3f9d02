"""What answers about single passes share: where they run, their parts as figures, and the working behind them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from capplan.capacity.answer import Working
from capplan.capacity.decode import decode_floor
from capplan.capacity.engines.deployment import Deployment
from capplan.capacity.questions import gpu_terms
from capplan.capacity.questions.deployed import Deployed
from capplan.capacity.questions.engine_fit import checked
from capplan.capacity.roofline import operation_time
from capplan.capacity.step_time import passes
from capplan.capacity.step_time.calibration import Calibration
from capplan.capacity.step_time.chip import Chip
from capplan.capacity.step_time.passes import Pass, Timed
from capplan.errors import InputError
from capplan.units import counted, tokens

Passes = Sequence[tuple[float, Pass]]  # so many of each

RANGE = (
    "from - to is where eight of ten measured kernels of a kind lie (kernels.toml), all taken to err the same way; "
    "what an engine adds is taken to spread as the widest of them"
)
_SHOWN = 5  # operations whose numbers --explain puts in: the longest
GROUP_NAMES = {
    "attention": "attention",
    "projections": "linear layers",
    "experts": "experts",
    "head": "head",
    "elementwise": "elementwise",
    "collectives": "collectives",
    "fixed": "fixed costs",
}


def where(inputs: dict[str, Any], gpus: int) -> str:
    """The deployment in words, from what was understood of it."""
    flags = inputs["deployment"]
    names = (("TP", "tensor_parallel_size"), ("PP", "pipeline_parallel_size"), ("DP", "data_parallel_size"))
    split = ", ".join(f"{name} {flags[key]}" for name, key in names if flags[key] > 1)
    on = f"{gpus} x {inputs['gpu']}{f' ({split})' if split else ''}"
    return f"{inputs['model']} on {on} under {inputs['engine']}"


def inputs_of(found: Deployed, calibration: Calibration | None) -> dict[str, Any]:
    """What was understood of a deployment, and how true its times are."""
    flags = found.flags
    return {
        "model": found.model.id,
        "gpu": found.gpu.id,
        "engine": flags.engine,
        "engine_version": flags.version or None,
        "deployment": {name: getattr(flags, name) for name in Deployment.__slots__},
        "tier": "measured" if calibration else "engine",
        "calibration": calibration.name if calibration else None,
    }


def allowing(deployment: Deployment | None, longest: int) -> Deployment:
    """The flags as they are. Raises InputError where the engine would refuse a request of so many tokens."""
    flags = checked(deployment or Deployment())
    if flags.max_model_len is not None and longest > flags.max_model_len:
        raise InputError(
            f"{tokens(longest)} are past max_model_len {flags.max_model_len:,}, which refuses them"
        )
    return flags


def most_of(found: Deployed, length: int) -> float:
    """Sequences of so many tokens that one pass can have: each stage of a pipeline has another batch."""
    return found.most(length) / found.plan.pp


def holds(bounded_by: str, most: float) -> str:
    """How many sequences a pass can have, and what sets that."""
    what = "memory holds" if bounded_by == "memory" else "max-num-seqs allows"
    return f"{what} {counted(int(most), 'sequence')}"


def readers(inputs: dict[str, Any]) -> str:
    """Whose bytes an answer tells."""
    stages = inputs["deployment"]["pipeline_parallel_size"]
    return "one GPU" if stages == 1 else f"one GPU of each of {stages} stages"


def time_of(parts: Passes, chip: Chip, off: float | None = None) -> dict[str, float]:
    """Time and its range [second]. off: the error of a calibration, whose range it is then."""
    time = sum(times * one.seconds for times, one in parts)
    low, high = passes.between(parts, chip)
    if off is not None:
        least = sum(times * passes.floor(one, chip) for times, one in parts)
        low, high = max(least, time / (1 + off)), time * (1 + off)
    return {"time_s": time, "low_s": low, "high_s": high}


def groups_of(parts: Passes) -> dict[str, float]:
    """The time of each group [second]; they add up to the time."""
    return {f"{group}_s": time for group, time in passes.by_group(parts).items()}


def limits_of(parts: Passes) -> dict[str, Any]:
    """The time by what it goes to [second], and the most of them; with `fixed_s` of the groups they add up to it too."""
    limits = passes.by_limit(parts)
    most = max(limits, key=limits.__getitem__)
    return {"bound_by": most, **{f"{name}_s": time for name, time in limits.items()}}


def bound(row: dict[str, Any]) -> str:
    """What bounds a pass, with its share of the time."""
    return f"{row['bound_by']} {100 * row[row['bound_by'] + '_s'] / row['time_s']:.0f}%"


def group_table(rows: Sequence[dict[str, Any]]) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    """Heads and cells: the share of each group that is there at all, row by row."""
    there = [group for group in passes.GROUPS if any(row[f"{group}_s"] for row in rows)]
    cells = [tuple(_percent(row[f"{group}_s"] / row["time_s"]) for group in there) for row in rows]
    return tuple(GROUP_NAMES[group] for group in there), cells


def _percent(share: float) -> str:
    return f"{100 * share:.1f}%"


def show_working(found: Deployed, one: Pass, work: Working, why: str) -> None:
    """The longest operations of a pass with their numbers, the floor, and the constants behind them."""
    gpu_terms.bandwidth(found.gpu, work)
    for dtype in sorted({each.operation.dtype for each in one.timed if each.operation.flops}):
        if dtype in found.gpu.dense_flops:
            source = gpu_terms.source_of(found.gpu, f"dense_flops.{dtype}")
            work.read(f"peak_flops ({dtype})", found.gpu.dense_flops[dtype], "FLOP/second", source)
    _constants(found, one, work)
    for each in sorted(one.timed, key=lambda each: -each.seconds)[:_SHOWN]:
        work(
            operation_time,
            _words(each),
            start=each.start,
            compute=each.compute,
            memory=each.memory,
            power=each.power,
        )
    if not _prompts(one):  # whose floor is the work
        held = passes.held_bytes(one)
        work(
            decode_floor,
            why,
            weight_bytes=held["weights"],
            cache_bytes=held["cache"],
            bandwidth=found.chip.bandwidth,
        )


def _prompts(one: Pass) -> bool:
    return any(cost.name.startswith("prompt") for cost in one.fixed)


def _words(each: Timed) -> str:
    op = each.operation
    moved = f"{op.message / 1e6:,.4g} MB over {op.ranks} ranks" if op.message else f"{op.bytes / 1e6:,.4g} MB"
    work = f"{op.flops / 1e9:,.4g} GFLOP, " if op.flops else ""
    return f"{op.name}, {counted(round(op.count), 'time')} {work}{moved}: {each.bound}"


def _constants(found: Deployed, one: Pass, work: Working) -> None:
    """The shares of peak and the starts that the operations of a pass are timed with, and the engine's own."""
    chip, engine, of = found.chip, found.engine, found.chip.constants
    kinds = {each.operation.kind for each in one.timed}
    shipped = (
        f"kernels.toml, {chip.generation}{'' if chip.measured else ', the nearest to what was measured'}"
    )
    own = {each.name: f"calibration, {each.source}" for each in found.measured}

    def source_of(name: str) -> str:
        return own.get(name, shipped)

    if "gemm" in kinds:
        paths = {chip.paths[each.operation.dtype] for each in one.timed if each.operation.kind == "gemm"}
        for path in sorted(paths):
            work.read(f"products, share of the {path} peak", of.gemm[path], "-", source_of(f"gemm.{path}"))
        work.read("products, share of the bandwidth", of.memory, "-", source_of("memory"))
        work.read("products, start", of.start_us * 1e-6, "second", source_of("start_us"))
    if "grouped_gemm" in kinds:
        work.read("experts, share of a product's rate", of.grouped, "-", shipped)
        work.read("experts, start", of.grouped_start_us * 1e-6, "second", shipped)
    if kinds & {"attention_decode", "mla_decode"}:
        path = "bf16" if found.plan.kv in ("bf16", "fp16", "fp32") or "mla_decode" in kinds else "fp8"
        work.read(
            f"attention over a {found.plan.kv} cache, share of the bandwidth",
            of.decode[path],
            "-",
            source_of(f"decode.{path}"),
        )
        work.read("attention, start", of.attention_start_us * 1e-6, "second", shipped)
    if "attention_prefill" in kinds:
        work.read("attention of a prompt, share of the bf16 peak", of.prefill, "-", source_of("prefill"))
    for kind in ("allreduce", "alltoall") if chip.collectives else ():
        ranks = found.plan.tp * (found.plan.dp if kind == "alltoall" else 1)
        if (points := chip.collectives.get((kind, ranks))) and kind in kinds:
            source = next(each.source for each in found.measured if each.name.startswith(f"{kind}.{ranks}."))
            for size, time in (points[0], points[-1]):
                work.read(
                    f"{kind} of {ranks} ranks, {size:,.0f} byte", time, "second", f"calibration, {source}"
                )
    if found.plan.tp > 1 and ("allreduce", found.plan.tp) not in chip.collectives:
        fabric = chip.fabrics[chip.link]
        work.read(f"collectives, share of {chip.link}", fabric.share, "-", "kernels.toml, fabric")
        work.read("collectives, start", fabric.start_us * 1e-6, "second", "kernels.toml, fabric")
    source = f"engine_steps.toml, {engine.name}"
    for cost in one.fixed:
        if cost.count:
            work.read(f"{engine.name}: {cost.name}, each", cost.seconds / cost.count, "second", source)
    work.read(f"{engine.name}: launch, left of a kernel's start", engine.launch, "-", source)
    slow = engine.prefill_slow if _prompts(one) else engine.slow
    work.read(f"{engine.name}: slow, times a kernel's own time", slow, "-", source)
    if found.plan.tp > 1:
        work.read(f"{engine.name}: links, times a collective's own time", engine.links, "-", source)
