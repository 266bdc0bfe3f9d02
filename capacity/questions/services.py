"""A deployment as the simulator takes it: a colocated service, chunked or not, and a prefill and a decode pool."""

from __future__ import annotations

from math import inf, isfinite
from typing import TYPE_CHECKING

from capplan.capacity.answer import Working
from capplan.capacity.questions.deployed import Deployed
from capplan.capacity.simulator.requests import Disaggregated, Link, Service
from capplan.capacity.simulator.step_table import StepTable
from capplan.capacity.step_time.forward import sequence_bytes
from capplan.errors import InputError
from capplan.models.spec import State
from capplan.units import counted

if TYPE_CHECKING:
    from capplan.hardware.spec import Gpu

BLOCK = 16  # tokens, where the engine's own is not told
_MOST_SEQUENCES = 1024  # of an engine that says no bound
_BUDGET = 8192


def colocated(
    found: Deployed,
    longest: int,
    *,
    scheduler: str = "mixed",
    chunked: bool = True,
    budget: int | None = None,
    replicas: int = 1,
) -> Service:
    """The service of a deployment whose requests have at most `longest` tokens.

    budget: tokens of a pass, where the flags' own are not wanted. Raises InputError for pipeline stages.
    """
    flags = found.flags
    if found.plan.pp > 1:
        raise InputError("pipeline stages are not simulated; tensor and data parallelism are")
    tokens = budget or flags.max_num_batched_tokens or _BUDGET
    sequences = min(flags.max_num_seqs or _MOST_SEQUENCES, tokens)
    size = flags.block_size or BLOCK
    whole = size * -(-longest // size)  # what is held is counted in whole blocks of every request
    held = found.held(whole)
    blocks = int(held * whole / size) if isfinite(held) else sequences * whole // size
    return Service(
        times=StepTable(
            found.plan,
            found.chip,
            found.engine,
            batch=sequences,
            tokens=tokens if chunked else max(tokens, longest),
            longest=longest,
        ),
        blocks=max(1, blocks),
        block_size=size,
        max_num_seqs=sequences,
        max_num_batched_tokens=tokens,
        scheduler=scheduler,
        chunked=chunked,
        request_s=found.engine.request,
        replicas=replicas * found.ranks,
        ranks=found.ranks if found.plan.mixtures else 1,  # experts are one set: their passes go together
    )


def caches_prefixes(
    asked: bool | None, known: bool, found: Deployed, scheduler: str, preemption: str, work: Working
) -> bool:
    """Whether prompts take up blocks of their beginning: as asked, else as vLLM does, where these blocks are known.

    Other engines keep prefixes by rules of their own, which are not simulated; that is said.

    Raises InputError where it is asked for, and the prompts' blocks are not known.
    """
    states = any(isinstance(part, State) for layer in found.model.layers for part in layer)
    if asked and not known:
        raise InputError(
            "prefix caching of prompts whose blocks are not known; a trace with block_ids (or hash_ids) is accepted"
        )
    if not known:
        return False
    unused = "the prefix blocks of the requests are not used: every prompt is computed whole"
    if asked is False:
        work.assume(unused)
        return False
    if asked is None and (states or scheduler == "static" or preemption != "recompute"):
        work.warn(unused)
        return False
    if states:
        work.warn(
            "states of recurrent layers are taken to be kept at every block's end, as vLLM does in a mode of its own alone"
        )
    else:
        work.assume("what was answered is not found in a later prompt where the ids of its blocks don't tell")
    if found.flags.engine != "vllm":
        work.assume(
            f"prompts find prefixes by vLLM's rules, not by {found.flags.engine}'s: whole blocks of "
            f"{counted(found.flags.block_size or BLOCK, 'token')}, and what was not used for longest goes first"
        )
    return True


def pools(
    found: Deployed,
    longest: int,
    prefills: int,
    decodes: int,
    *,
    typical: int,
    first_token_at: str = "prefill",
) -> Disaggregated:
    """Prefill and decode instances of one deployment each; the cache goes over layer by layer.

    typical: tokens of a usual prompt, for the bytes of one of its tokens. first_token_at: `decode` where the decode
    instance gives it out, as with vLLM's connectors, which drop the other's.
    """
    from dataclasses import replace

    one = colocated(found, longest, scheduler="prefill-first")
    gpus = found.gpus * (prefills + decodes)
    return Disaggregated(
        prefill=replace(one, replicas=prefills * found.ranks),
        decode=replace(one, replicas=decodes * found.ranks),
        link=link_of(found.gpu, gpus, found.plan.tp),
        bytes_per_token=sequence_bytes(found.plan, typical) * found.plan.tp / typical,
        layers=max(1, found.plan.layers),
        first_token_at=first_token_at,
    )


def link_of(gpu: Gpu, gpus: int, ranks: int) -> Link:
    """What a cache goes over: the links between GPUs of one node, else the network card of each rank.

    Raises InputError where neither is on record.
    """
    own = gpu.link.unidirectional if gpu.link else None
    if own and gpus <= (gpu.max_gpus_per_node or gpus):
        return Link(f"{gpu.link.kind if gpu.link else ''} {own / 1e9:,.0f} GB/s".strip(), own * ranks)
    network = gpu.nic_per_gpu
    if network:
        return Link(f"network {network / 1e9:,.4g} GB/s a GPU", network * ranks, latency=1e-5)
    host = gpu.pcie_per_direction
    if host:
        return Link(f"PCIe {host / 1e9:,.4g} GB/s a GPU", host * ranks, latency=1e-5)
    raise InputError(f"nothing is on record of what joins GPUs of {gpu.id!r}; pools need a link")


def idle(service: Service, isl: float, osl: float) -> tuple[float, float]:
    """TTFT and TPOT of a request that has the service for itself [second].

    The prompt goes in as many passes as the budget of tokens makes of it.
    """
    left, before, time = isl, 0.0, service.request_s
    budget = service.max_num_batched_tokens if service.chunked else inf
    while left > 0:
        chunk = min(left, budget)
        pairs = chunk * before + chunk * (chunk + 1) / 2
        time += service.times.prompts(0, 0.0, 1, int(chunk), pairs)
        left, before = left - chunk, before + chunk
    middle = isl + osl / 2
    start, slope, _ = service.times.decode(1, middle)
    return time, start + slope * middle
