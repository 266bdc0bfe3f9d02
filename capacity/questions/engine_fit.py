"""What a serving engine will do with a GPU's memory: its budget line by line, its log, and whether it starts."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar

from capplan.capacity.answer import Answer, Working
from capplan.capacity.engines.budget import Budget, budget
from capplan.capacity.engines.deployment import Deployment
from capplan.capacity.engines.device import GIB, Device, device_of
from capplan.capacity.engines.vllm_memory import kv_bytes_left
from capplan.capacity.engines.vllm_rules import newest, ordered
from capplan.capacity.engines.weights import NARROWED, mixture, narrowed, table_bytes
from capplan.capacity.questions import asked, gpu_terms
from capplan.errors import CapplanError, InputError
from capplan.models.resolve import with_tower
from capplan.models.spec import Model, State
from capplan.units import gib, tokens

if TYPE_CHECKING:
    from capplan.capacity.step_time.calibration import Calibration
    from capplan.hardware.spec import Gpu
    from capplan.report import Report

MOST_CHANGES = 5
_MOST_RANKS = 16
# fitted constants that a budget of vLLM stands on, said with every answer
_FITTED = (
    "activation peak, non-torch memory and the CUDA-graph estimate are fitted to published start-up logs "
    "(capacity/engines/memory_constants.toml); `capplan validate memory` says how far they are off"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineFit(Answer):
    """The memory budget of one rank under a serving engine, what its log will say, and whether it starts."""

    question: ClassVar[str] = "engine-fit"

    gpus: int
    memory_bytes: float
    requested_bytes: float  # what the engine may use of it
    weight_bytes: float
    weight_bytes_by_part: dict[str, float]
    activation_peak_bytes: float
    non_torch_bytes: float
    cuda_graph_bytes: float  # what is taken from the cache for them
    kv_bytes: float  # negative when there is no room
    kv_blocks: int | None
    kv_tokens: int | None  # as the log counts them
    max_concurrency: float | None  # requests of max_model_len
    concurrency: dict[str, float | None]  # context -> requests, not rounded
    log: tuple[str, ...]
    starts: bool
    why_not: str | None
    largest_max_model_len: int | None
    changes: tuple[dict[str, Any], ...]  # that would make it start, the cheapest first

    @property
    def fits(self) -> bool:
        return self.starts

    def sweep(self) -> list[dict[str, Any]]:
        return [{"context": int(context), "concurrency": each} for context, each in self.concurrency.items()]

    def report(self) -> Report:
        from capplan.report import Report, Table

        inputs = self.inputs
        engine = " ".join(part for part in (inputs["engine"], inputs["engine_version"]) if part)
        where = f"{inputs['model']} under {engine} on {self.gpus} x {inputs['gpu']}"
        if self.starts:
            headline = f"{where} starts: {_count(self.kv_tokens)} tokens of KV cache"
            if self.max_concurrency is not None:
                headline += f", {self.max_concurrency:.2f} requests of {tokens(inputs['deployment']['max_model_len'])}"
        else:
            headline = f"{where} does not start: {self.why_not}"
        lines = (
            ("memory", gib(self.memory_bytes), "that a process sees, of one GPU"),
            (
                "may be used",
                gib(self.requested_bytes),
                f"{100 * self.requested_bytes / self.memory_bytes:.3g}%",
            ),
            ("weights", gib(self.weight_bytes), _largest(self.weight_bytes_by_part)),
            ("activation peak", gib(self.activation_peak_bytes), "of the profiling run"),
            ("outside of torch", gib(self.non_torch_bytes), "context, collectives"),
            ("CUDA graphs", gib(self.cuda_graph_bytes), "estimate, taken from the cache"),
            ("KV cache", gib(self.kv_bytes), f"{_count(self.kv_blocks)} blocks" if self.kv_blocks else ""),
        )
        kept = tuple(line for line in lines if line[1] != gib(0.0))
        tables = [Table(kept)]
        if self.log:
            tables.append(Table(tuple((line,) for line in self.log), title="Its log", words=True))
        if self.concurrency:
            rows = tuple(
                (tokens(int(context)), "-" if each is None else f"{each:.2f}")
                for context, each in self.concurrency.items()
            )
            tables.append(Table(rows, ("context", "requests at once")))
        if self.largest_max_model_len is not None:
            longest = ((tokens(self.largest_max_model_len),),)
            tables.append(Table(longest, title="Largest max-model-len that starts"))
        if self.changes:
            told = tuple(
                (each["flags"], gib(each["kv_bytes"]), f"{each['max_concurrency'] or 0:.2f}x")
                for each in self.changes
            )
            tables.append(Table(told, ("would start with", "KV cache", "concurrency")))
        return Report(headline, tuple(tables), self.assumptions, self.warnings)


def _count(number: int | None) -> str:
    return "-" if number is None else f"{number:,}"


def _largest(parts: dict[str, float]) -> str:
    most = sorted(parts.items(), key=lambda item: -item[1])[:3]
    return ", ".join(f"{name} {gib(size)}" for name, size in most)


def engine_fit(
    model: str | Model,
    gpu: str | Gpu,
    deployment: Deployment | None = None,
    *,
    contexts: Sequence[int] | None = None,
    calibration: Calibration | None = None,
) -> EngineFit:
    """The memory of one rank under an engine, and whether the engine starts.

    model, gpu: registry names, a path to a config.json, or a Model and a Gpu.
    deployment: the engine, its version and flags; what is None is the engine's default of that version.
    contexts: further lengths of a request to count.
    calibration: of the probes on this GPU: the memory is what they saw.

    Raises UnknownNameError, DataFileError, InputError.

    >>> from capplan.capacity.engines.deployment import Deployment
    >>> flags = Deployment(version="0.19.0", gpu_memory_utilization=0.95, max_model_len=8192)
    >>> round(engine_fit("llama-3.1-8b", "h100-sxm", flags).kv_bytes / 2**30, 1)
    58.1
    """
    spec, card = asked.as_model(model), asked.as_gpu(gpu)
    spec, towers = with_tower(spec)
    work = Working()
    work.assume(*asked.assumed_of(spec), *towers)
    if calibration is not None:
        card = gpu_terms.with_memory(card, calibration)
        work.assume(f"memory is from {calibration.name}, measured on {calibration.created}")
    device, plan = device_of(card), checked(deployment or Deployment())
    servable(spec, plan)
    gpu_terms.memory(card, "engine", work)
    rank = budget(spec, device, plan)
    flags = rank.deployment
    work.assume(*rank.assumptions)
    if narrowed(spec, flags.quantization):
        work.assume(NARROWED)
    if flags.engine == "vllm":
        work.assume(_FITTED)
        if ordered(flags.version or "0") > ordered(newest()):
            work.assume(
                f"vllm {flags.version} is newer than {newest()}, the newest that was read: its rules are taken"
            )
        work(
            kv_bytes_left,
            f"vllm {flags.version}, one rank",
            total=rank.total,
            utilization=flags.gpu_memory_utilization or 0.0,
            weights=rank.weights,
            activation_peak=rank.activation_peak,
            non_torch=rank.non_torch,
            graphs=rank.graphs,
        )
    if flags.max_model_len and spec.max_context and flags.max_model_len > spec.max_context:
        work.warn(
            f"max_model_len {flags.max_model_len:,} is past the {spec.max_context:,} tokens of {spec.id}: "
            f"{flags.engine} refuses it unless RoPE scaling or an override is given"
        )
    if rank.starts and (rank.max_concurrency or 0) < 1:
        work.warn(
            f"it starts, but the cache holds {rank.kv_tokens or 0:,} tokens: no request of "
            f"{flags.max_model_len or 0:,} fits"
        )
    if flags.engine != "vllm" and any(isinstance(part, State) for layer in spec.layers for part in layer):
        running = f"{flags.max_num_seqs:,} running requests" if flags.max_num_seqs else "no running request"
        work.warn(
            f"recurrent states are counted for {running} (--max-num-seqs); {flags.engine} sets a pool apart"
        )
    if flags.enable_expert_parallel and not mixture(spec):
        work.warn(f"{spec.id} has no experts: expert parallelism changes nothing")
    at = {length: _at(spec, device, flags, length) for length in contexts or ()}
    return EngineFit(
        inputs={
            "model": spec.id,
            "gpu": card.id,
            "engine": flags.engine,
            "engine_version": flags.version,
            "deployment": {name: getattr(flags, name) for name in Deployment.__slots__},
            "contexts": list(contexts or ()),
            **({"calibration": calibration.name} if calibration else {}),
        },
        gpus=flags.gpus,
        memory_bytes=rank.total,
        requested_bytes=rank.requested,
        weight_bytes=rank.weights,
        weight_bytes_by_part=rank.weight_parts,
        activation_peak_bytes=rank.activation_peak,
        non_torch_bytes=rank.non_torch,
        cuda_graph_bytes=rank.graphs,
        kv_bytes=rank.kv,
        kv_blocks=rank.num_blocks if rank.starts else None,
        kv_tokens=rank.kv_tokens if rank.starts else None,
        max_concurrency=rank.max_concurrency if rank.starts else None,
        concurrency={
            str(length): each.max_concurrency if each.starts else 0.0 for length, each in at.items()
        },
        log=_log(rank),
        starts=rank.starts,
        why_not=rank.why_not,
        largest_max_model_len=_longest(spec, device, rank),
        changes=() if rank.starts else tuple(_changes(spec, device, rank))[:MOST_CHANGES],
        **work.shown(),
    )


def checked(plan: Deployment) -> Deployment:
    """The flags as they are. Raises InputError for one that no engine takes."""
    if not isinstance(plan, Deployment):
        raise InputError(f"deployment {plan!r} is not a Deployment")
    for name in ("engine", "kv_cache_dtype"):
        if not isinstance(getattr(plan, name), str):
            raise InputError(f"{name} {getattr(plan, name)!r} is not a name")
    if not isinstance(plan.version, str | None):
        raise InputError(f"version {plan.version!r} is not a name, such as '0.19.0'")
    for name in ("tensor_parallel_size", "pipeline_parallel_size", "data_parallel_size"):
        if not asked.is_whole(getattr(plan, name), 1024):
            raise InputError(f"{name} {getattr(plan, name)!r} is not a whole number from 1 to 1,024")
    for name in ("max_model_len", "max_num_seqs", "max_num_batched_tokens", "block_size"):
        given = getattr(plan, name)
        if given is not None and not asked.is_whole(given, asked.MOST_TOKENS):
            whole = asked.is_whole(given, 1000 * asked.MOST_TOKENS)
            said = f"{given:,}" if whole else f"{given:.6g}" if isinstance(given, int) else repr(given)
            raise InputError(f"{name} {said} is not a whole number from 1 to {asked.MOST_TOKENS:,}")
    share = plan.gpu_memory_utilization
    if share is not None and not 0 < share <= 1:
        raise InputError(f"gpu_memory_utilization {share} is not a share above 0 and up to 1")
    if plan.num_speculative_tokens < 0:
        raise InputError(f"num_speculative_tokens {plan.num_speculative_tokens} is below 0")
    return plan


def servable(model: Model, plan: Deployment) -> None:
    """Refuse what the engine itself refuses before it looks at the memory, and what is not planned yet."""
    if plan.num_speculative_tokens and plan.speculative_method == "mtp" and not model.draft_layers:
        raise InputError(f"{model.id} has no draft (MTP) layers on record to speculate with")
    if plan.tables_on_host is not None and not table_bytes(model):
        raise InputError(f"{model.id} has no tables of n-grams to place (--tables-on-host, --tables-on-gpu)")
    if plan.flashinfer is not None and plan.engine != "vllm":
        raise InputError(
            f"whether FlashInfer's package is there changes nothing on record under {plan.engine}"
        )
    tokens, requests = plan.max_num_batched_tokens, plan.max_num_seqs
    if plan.engine == "vllm" and tokens and requests and tokens < requests:
        raise InputError(
            f"max_num_batched_tokens {tokens:,} is below max_num_seqs {requests:,}, which vllm refuses"
        )
    ranks, replicas = plan.tensor_parallel_size, plan.attention_replicas
    if ranks % replicas or (plan.engine == "tensorrt-llm" and replicas not in (1, ranks)):
        which = "be as many as" if plan.engine == "tensorrt-llm" else "divide"
        raise InputError(
            f"the {replicas} data-parallel replicas of {plan.engine}'s attention have to {which} its {ranks} "
            "tensor-parallel ranks; of whole copies plan one, and start several"
        )


def _at(model: Model, device: Device, flags: Deployment, length: int) -> Budget:
    return budget(model, device, replace(flags, max_model_len=asked.whole_tokens(length)))


def _log(rank: Budget) -> tuple[str, ...]:
    """The lines that the engine's log will have, in the words of its version."""
    flags, kv = rank.deployment, rank.kv / GIB
    if flags.engine == "sglang":
        return (f"max_total_num_tokens={rank.kv_tokens}",) if rank.starts else ()
    if flags.engine == "tensorrt-llm":
        return (f"Allocated {kv:.2f} GiB for max tokens in paged KV cache ({rank.kv_tokens}).",)
    loading = f"Model loading took {rank.weights / GIB:.2f} GiB"
    if not rank.starts and rank.kv <= 0:
        return (
            loading,
            f"Available KV cache memory: {kv:.2f} GiB",
            "No available memory for the cache blocks.",
        )
    lines = [loading, f"Available KV cache memory: {kv:.2f} GiB"]
    length = flags.max_model_len or 0
    if not rank.starts:
        need = rank.pool.needed_bytes
        if need is not None:
            lines.append(
                f"To serve at least one request with the model's max seq len ({length}), {need / GIB:.2f} GiB KV cache "
                f"is needed, which is larger than the available KV cache memory ({kv:.2f} GiB)."
            )
        return tuple(lines)
    lines.append(f"GPU KV cache size: {rank.kv_tokens:,} tokens")
    lines.append(f"Maximum concurrency for {length:,} tokens per request: {rank.max_concurrency:.2f}x")
    return tuple(lines)


def _longest(model: Model, device: Device, rank: Budget) -> int | None:
    """The largest max_model_len that starts, up to what the model was made for."""
    if not rank.starts:
        return rank.pool.longest
    most = max(model.max_context or 0, rank.deployment.max_model_len or 0)
    full = _at(model, device, rank.deployment, most)
    return most if full.starts else full.pool.longest


# --- what would make it start ---------------------------------------------------------------------------------


def _changes(model: Model, device: Device, rank: Budget) -> Iterator[dict[str, Any]]:
    """Changes that do, each recomputed: flags before precision before further GPUs, as few of them as it takes."""
    flags = rank.deployment
    done: set[Deployment] = set()  # on more GPUs: they do, so that yet more need not be tried
    for text, changed in _candidates(model, rank):
        fewest = replace(changed, tensor_parallel_size=flags.tensor_parallel_size)
        if fewest in done:
            continue
        try:
            servable(model, changed)
            found = budget(model, device, changed)
        except CapplanError:
            continue  # heads or layers that can't be divided so
        if found.starts:
            yield {
                "flags": text,
                "kv_bytes": found.kv,
                "kv_tokens": found.kv_tokens,
                "max_concurrency": found.max_concurrency,
                "max_model_len": found.deployment.max_model_len,
                "gpus": changed.gpus,
            }
            if changed != fewest:
                done.add(fewest)


def _candidates(model: Model, rank: Budget) -> Iterator[tuple[str, Deployment]]:
    flags = rank.deployment
    if flags.gpu_memory_utilization is not None and flags.gpu_memory_utilization < 0.95:
        yield "--gpu-memory-utilization 0.95", replace(flags, gpu_memory_utilization=0.95)
    if flags.flashinfer is False:
        yield "--flashinfer", replace(flags, flashinfer=True)
    blocks, seqs = rank.num_blocks, flags.max_num_seqs or 0
    if fewer := _power_below(min(seqs, blocks + 1) if blocks else seqs):
        yield f"--max-num-seqs {fewer}", replace(flags, max_num_seqs=fewer)
    if rank.graphs and not flags.enforce_eager:
        yield "--enforce-eager", replace(flags, enforce_eager=True)
    if rank.pool.longest:
        yield f"--max-model-len {rank.pool.longest}", replace(flags, max_model_len=rank.pool.longest)
    if flags.kv_cache_dtype == "auto":
        yield "--kv fp8", replace(flags, kv_cache_dtype="fp8")
    builds = ("fp8", "int4") if flags.quantization is None and model.quantization is None else ()
    for build in builds:
        yield f"--weights {build}", replace(flags, quantization=build)
    if builds and flags.kv_cache_dtype == "auto":
        yield "--weights fp8 --kv fp8", replace(flags, quantization="fp8", kv_cache_dtype="fp8")
    ranks = 2 * flags.tensor_parallel_size
    while ranks <= _MOST_RANKS:
        more = replace(flags, tensor_parallel_size=ranks)
        for build in builds[:1]:
            yield f"--weights {build} --tp {ranks}", replace(more, quantization=build)
        yield f"--tp {ranks}", more
        ranks *= 2


def _power_below(count: int) -> int:
    """The largest power of two below a number; 0 for none.

    >>> _power_below(1024), _power_below(939), _power_below(1)
    (512, 512, 0)
    """
    return 1 << (count - 1).bit_length() - 1 if count > 1 else 0
