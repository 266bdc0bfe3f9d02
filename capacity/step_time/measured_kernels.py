"""The constants of kernels.toml that a calibration of the probes gives, for the GPU they were measured on.

Collectives are those of as many ranks as were measured; of another number of ranks they stay as shipped, and that is said.
Only leaves of `derived` are read. A share is what was reached over what the registry says, so that a pass is predicted
with what the probes saw: no constant of another GPU of the generation is left in it where there is one of this.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, NamedTuple

from capplan.capacity.step_time import collectives
from capplan.capacity.step_time.chip import data
from capplan.capacity.step_time.forward import Layout, Step, operations
from capplan.capacity.step_time.kernel_time import seconds
from capplan.capacity.step_time.operations import Operation, attention_decode, attention_prefill, collective
from capplan.errors import DataFileError, InputError

if TYPE_CHECKING:
    from capplan.capacity.step_time.calibration import Calibration, Constant
    from capplan.capacity.step_time.chip import Chip
    from capplan.hardware.spec import Gpu

_FEWEST = 20  # rows from which the start and the corner of a product are told apart
_ENGINES = ("flash_attn", "flashinfer", "trtllm")  # kernels that engines run have this in their name
_HALVINGS = 30
_MEMORY_NEAR = 0.04  # memory of the planned GPU and of the measured one may differ by so much
_INNER = 8192
_US = 1e-6
# what the probes call a collective -> what kernels.toml does
_COLLECTIVES = {
    "all_reduce": "allreduce",
    "all_gather": "all_gather",
    "reduce_scatter": "reduce_scatter",
    "all_to_all": "alltoall",
}
# bytes at which a measured collective is laid beside the shipped: 128 tokens of 8,192 numbers
_MESSAGE = 2**21
_LONGEST = 16  # digits of a count of ranks or bytes
_FAR = 2**30  # bytes that a line of two figures is drawn to
_SLOWEST = {"gemm": "node.gemm.slowest", "memory": "node.read.slowest"}
_OF_LINKS = ("peer_share", "direct_share")  # of kernels.toml's fabrics: what moves with the rate of a copy


class KernelConstant(NamedTuple):
    """A constant as shipped, and as measured."""

    name: str  # as in kernels.toml; gemm, decode: with the path or the format after a dot
    unit: str  # 1 or us
    shipped: float
    value: float
    low: float
    high: float
    count: int  # type: ignore[assignment]  # over tuple.count; rows that it is from
    source: str  # the leaf of `derived`
    points: tuple[tuple[float, float], ...] = ()  # of a collective: sizes and times [byte, second]

    @property
    def exchanged(self) -> tuple[str, int]:
        """Of a collective: what it is called, and its ranks."""
        kind, ranks, _ = self.name.split(".")
        return kind, int(ranks)

    @property
    def apart(self) -> bool:
        """Whether the shipped constant lies outside of what was measured."""
        return not self.low <= self.shipped <= self.high


def refuse(found: Calibration, gpu: Gpu) -> None:
    """Raises InputError for a calibration of another device than the one that is planned with."""
    name, device = repr(found.name), found.device
    if found.gpu != gpu.id:
        said = (
            repr(found.gpu) if found.gpu else f"{str(device.get('name'))!r}, which the registry does not have"
        )
        raise InputError(f"calibration {name} is of {said}, not of {gpu.id!r}")
    if (device.get("mig") or {}).get("enabled"):
        raise InputError(
            f"calibration {name} is of a part of a {gpu.id!r} (MIG), and a whole one is planned with"
        )
    sms, size = device.get("sm_count"), device.get("mem_total_bytes")
    if sms and gpu.sm_count and sms != gpu.sm_count:
        raise InputError(f"calibration {name} is of {sms} processors; {gpu.id!r} has {gpu.sm_count}")
    seen = gpu.memory_visible_bytes
    if size and seen and abs(size / seen - 1) > _MEMORY_NEAR:
        raise InputError(
            f"calibration {name} is of {size / 2**30:.1f} GiB; {gpu.id!r} shows a process {seen / 2**30:.1f} GiB"
        )


def kernel_constants(found: Calibration, chip: Chip) -> list[KernelConstant]:
    """What a calibration says of the constants of a chip; those that it says nothing of are left out."""
    of, leaves = chip.constants, found.leaves
    told: list[KernelConstant] = []

    def tell(name: str, shipped: float, path: str | None, whole: float, unit: str = "1") -> None:
        """A leaf of a rate as a share of the registry's, or of a time in us."""
        if path is None:
            return
        leaf = leaves[path]
        share, source = _of_the_slowest(found, name, path)
        low, value, high = (share * each / whole for each in (leaf.low, leaf.value, leaf.high))
        if name.startswith("gemm."):
            low, value, high = (_at_full_rate(min(each, 0.999), chip.allowed) for each in (low, value, high))
        if unit == "1":
            low, value, high = (min(each, 1.0) for each in (low, value, high))
        told.append(KernelConstant(name, unit, shipped, value, low, high, leaf.count, source))

    tell("gemm.bf16", of.gemm["bf16"], _rate(leaves, "gemm.bf16.plain"), chip.peaks["bf16"])
    if chip.paths["fp8"] == "fp8":
        recipes = ("tensor", "tensor_fast", "row", "row_fast")
        fp8 = (_rate(leaves, f"gemm.fp8.{recipe}") for recipe in recipes)
        tell("gemm.fp8", of.gemm["fp8"], _best(leaves, filter(None, fp8)), chip.peaks["fp8"])
    if chip.paths["nvfp4"] == "fp4":
        tell("gemm.fp4", of.gemm["fp4"], _rate(leaves, "gemm.fp4.nvfp4"), chip.peaks["nvfp4"])
    weights = _there(leaves, ("knee.bf16.bandwidth", "gemm.bf16.plain.bandwidth"))
    tell("memory", of.memory, weights, chip.bandwidth)
    told += _attention(chip, leaves)
    tell("pass_us", of.pass_us, _there(leaves, ("overhead.graph_node",)), _US, "us")
    start = "gemm.bf16.plain.t0"
    if start in leaves and leaves[start].count >= _FEWEST:
        # the shipped start has a part for each element of K, the measured one none: laid beside it at a usual K
        tell("start_us", of.start_us + 1e-3 * of.inner_ns * _INNER, start, _US, "us")
    if links_apart(found, chip) is None:
        told += _exchanged(chip, leaves)
        told += _copied(chip, leaves)
    return told


def links_apart(found: Calibration, chip: Chip) -> str | None:
    """Why what a calibration says of links is not of the links that are planned with; None where it may be."""
    nvlink = found.device.get("nvlink") or {}
    if chip.link == "nvlink" and nvlink.get("active") == 0:
        return (
            f"{found.name}: none of its NVLinks was up; links and collectives of {chip.name} stay as shipped"
        )
    return None


def unmeasured(found: Calibration, chip: Chip, plan: Layout) -> list[str]:
    """What a user should know of the collectives of a plan that a calibration does not have."""
    wanted = {
        (operation.kind, operation.ranks)
        for operation in operations(plan, Step(decode=1.0, context=1.0))
        if operation.kind in _COLLECTIVES.values() and operation.ranks > 1
    }
    if not wanted:
        return []
    if (apart := links_apart(found, chip)) is not None:
        return [apart]
    has = {each.exchanged for each in _exchanged(chip, found.leaves)}
    if not has:
        return [
            f"{found.name} has no collectives: those of {_several(n for _, n in wanted)} ranks are as shipped"
        ]
    lacking = sorted(wanted - has)
    if not lacking:
        return []
    told = _several(f"{kind} of {n}" for kind, n in lacking)
    return [
        f"{found.name} has collectives of {_several(n for _, n in has)} ranks, and is planned with {told}: as shipped"
    ]


def _several(items: Iterable[object]) -> str:
    return ", ".join(map(str, sorted(set(items), key=str)))


def _exchanged(chip: Chip, leaves: Mapping[str, Constant]) -> Iterator[KernelConstant]:
    """Collectives by ranks: the times by size, or, without them, a start and a bandwidth."""
    for path, alpha in leaves.items():
        match path.split("."):
            case ["collectives", op, count, "alpha"] if op in _COLLECTIVES and (ranks := _whole(count)):
                start, kind = path.removesuffix(".alpha"), _COLLECTIVES[op]
            case _:
                continue
        at = {
            float(size): leaf
            for name, leaf in leaves.items()
            if name.startswith(f"{start}.at.") and (size := _whole(name.removeprefix(f"{start}.at.")))
        }
        rate = leaves.get(f"{start}.algbw")
        if len(at) < 2 and not (rate and rate.low):
            continue
        lines = []
        for name, other in (("low", "high"), ("value", "value"), ("high", "low")):
            if len(at) > 1:
                lines.append(tuple((size, getattr(at[size], name)) for size in sorted(at)))
            else:
                begun = getattr(alpha, name)
                lines.append(((0.0, begun), (float(_FAR), begun + _FAR / getattr(rate, other))))
        low, value, high = (sum(collectives.between(line, float(_MESSAGE))) / _US for line in lines)
        shipped = seconds(collective(kind, kind, float(_MESSAGE), ranks, variant="nccl"), chip) / _US
        name = f"{kind}.{ranks}.{_MESSAGE // 2**20}MiB"
        yield KernelConstant(name, "us", shipped, value, low, high, alpha.count, start, lines[1])


def _whole(text: str) -> int:
    """A count in the path of a constant; 0 for what is none."""
    return int(text) if text.isdecimal() and len(text) < _LONGEST else 0


def _copied(chip: Chip, leaves: Mapping[str, Constant]) -> Iterator[KernelConstant]:
    """Shares of the link, as its slowest pair carries copies: what reads over it is slower by as much as they are."""
    slowest = leaves.get("fabric.slowest")
    if slowest is None:
        return
    pair = chip.link_bandwidth / (chip.domain - 1) if chip.mesh and chip.domain > 1 else chip.link_bandwidth
    fabric = chip.fabrics[chip.link]
    for name in _OF_LINKS:
        shipped = getattr(fabric, name)
        low, value, high = (
            min(1.0, shipped * each / (data()["copy"]["peer"] * pair))
            for each in (slowest.low, slowest.value, slowest.high)
        )
        yield KernelConstant(name, "1", shipped, value, low, high, slowest.count, "fabric.slowest")


def with_kernels(chip: Chip, constants: Iterable[KernelConstant]) -> Chip:
    """A chip whose kernels are as they were measured."""
    changed: dict[str, object] = {}
    fabric, exchanged = chip.fabrics[chip.link], dict(chip.collectives)
    for each in constants:
        name, _, path = each.name.partition(".")
        if each.points:
            exchanged[each.exchanged] = each.points
        elif name in _OF_LINKS:
            fabric = fabric._replace(**{name: each.value})
        elif path:
            held = changed.get(name) or getattr(chip.constants, name)
            changed[name] = {**held, path: each.value}  # type: ignore[dict-item]
        else:
            changed[name] = each.value
        if name == "start_us":
            changed["inner_ns"] = (
                0.0  # what a product costs per element of K is in the start that was measured
            )
    return chip._replace(
        constants=chip.constants._replace(**changed),  # type: ignore[arg-type]
        fabrics={**chip.fabrics, chip.link: fabric},
        collectives=exchanged,
    )


def _at_full_rate(reached: float, allowed: float) -> float:
    """The share that kernels.toml would have for what a chip reached; see kernel_time._reached."""
    return 1.0 / (1.0 + (1.0 / reached - 1.0) / allowed)


def _of_the_slowest(found: Calibration, name: str, path: str) -> tuple[float, str]:
    """What is left of a rate on the slowest GPU of a node, with all of them at work, and where that is from: a group runs
    at its slowest member. Raises DataFileError where that is nothing."""
    slowest = _SLOWEST.get(name.partition(".")[0], "")
    leaf = found.leaves.get(slowest)
    if leaf is None or leaf.value >= 1.0:
        return 1.0, path
    if leaf.value <= 0.0:
        raise DataFileError(f"calibration {found.name!r} has a {slowest} of 0; a share above 0 is accepted")
    return leaf.value, f"{path}, {slowest}"


def _rate(leaves: Mapping[str, Constant], path: str) -> str | None:
    """Of products that run for seconds, as prefill does; else the typical one."""
    return _there(leaves, (f"{path}.flops_sustained", f"{path}.flops_typ"))


def _there(leaves: Mapping[str, Constant], paths: Iterable[str]) -> str | None:
    """The first that was measured."""
    return next((path for path in paths if path in leaves), None)


def _best(leaves: Mapping[str, Constant], paths: Iterable[str]) -> str | None:
    return max((path for path in paths if path in leaves), key=lambda path: leaves[path].value, default=None)


def _attention(chip: Chip, leaves: Mapping[str, Constant]) -> Iterator[KernelConstant]:
    """Shares of attention: those with which capplan predicts, of one large call, the time that was measured.

    A rate alone is no share: kernels.toml has what pairs of heads, splits and exponentials cost beside it.
    """
    width = {"heads": 64.0, "kv_heads": 8.0, "head_dim": 128.0, "v_head_dim": 128.0}
    for cache in ("bf16", "fp8"):
        call = attention_decode("decode", 32.0, 32768.0, **width, kv=cache)  # type: ignore[arg-type]
        yield from _matched(
            f"decode.{cache}", chip, leaves, f"attn_decode.{{}}.{cache}", call, float(call.held)
        )
    length = 16384.0
    pairs = length * (length + 1) / 2
    call = attention_prefill("prefill", 1.0, length, pairs, **width, tokens=length, kv="bf16")  # type: ignore[arg-type]
    yield from _matched("prefill", chip, leaves, "attn_prefill.{}.bf16", call, float(call.flops))


def _matched(
    name: str, chip: Chip, leaves: Mapping[str, Constant], path: str, call: Operation, work: float
) -> Iterator[KernelConstant]:
    """The constant by the fastest kernel that engines run; by another only where that is faster than what was shipped:
    a slower one says how good that kernel is, not what the engine's would do."""
    start, end = path.split("{}")
    kernels = [
        each[len(start) : -len(f"{end}.rate")]
        for each in leaves
        if each.startswith(start) and each.endswith(f"{end}.rate")
    ]

    def time(kernel: str, rate: float) -> float:
        begun = leaves.get(f"{path.format(kernel)}.t0")
        return (begun.value if begun else 0.0) + work / rate

    took = {kernel: time(kernel, leaves[f"{path.format(kernel)}.rate"].value) for kernel in kernels}
    theirs = {kernel: each for kernel, each in took.items() if any(part in kernel for part in _ENGINES)}
    faster = {kernel: each for kernel, each in took.items() if each < float(seconds(call, chip))}
    if not (theirs or faster):
        return
    best = min(theirs or faster, key=took.__getitem__)
    leaf = leaves[f"{path.format(best)}.rate"]
    low, value, high = (
        _share(name, chip, call, time(best, rate)) for rate in (leaf.low, leaf.value, leaf.high)
    )
    first, _, of = name.partition(".")
    shipped = getattr(chip.constants, first)
    shipped = shipped[of] if of else shipped
    yield KernelConstant(name, "1", shipped, value, low, high, leaf.count, f"{path.format(best)}.rate")


def _share(name: str, chip: Chip, call: Operation, measured: float) -> float:
    """The share with which a call is predicted to take what it was measured to take; 1 where no share makes it so fast."""
    low, high = 0.01, 1.0
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        one = KernelConstant(name, "1", 0.0, middle, 0.0, 0.0, 1, "")
        slower = float(seconds(call, with_kernels(chip, [one]))) > measured
        low, high = (middle, high) if slower else (low, middle)
    return high
