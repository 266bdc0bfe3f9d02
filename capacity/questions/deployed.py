"""A model served on a GPU by an engine, ready to be timed: what a rank runs, and how many sequences fit."""

from __future__ import annotations

from dataclasses import dataclass
from math import floor, inf
from typing import TYPE_CHECKING

from capplan.capacity.engines.budget import Budget, budget
from capplan.capacity.engines.cache_format import auto_format
from capplan.capacity.engines.defaults import with_defaults
from capplan.capacity.engines.deployment import Deployment
from capplan.capacity.engines.device import device_of
from capplan.capacity.engines.weights import NARROWED, narrowed
from capplan.capacity.step_time.chip import Chip, chip_of
from capplan.capacity.step_time.engine_steps import Engine, engine_steps
from capplan.capacity.step_time.forward import Layout, layout, sequence_bytes
from capplan.capacity.step_time.measured_kernels import KernelConstant
from capplan.errors import InputError
from capplan.models.spec import Model

if TYPE_CHECKING:
    from capplan.hardware.spec import Gpu

_NAMED = {"fp8_e4m3": "fp8", "fp8_e5m2": "fp8", "bfloat16": "bf16", "float16": "fp16"}


@dataclass(frozen=True, slots=True)
class Deployed:
    """One replica; its data-parallel ranks have sequences of their own."""

    model: Model
    gpu: Gpu
    flags: Deployment  # every default filled in
    plan: Layout  # what a rank runs
    chip: Chip
    engine: Engine
    memory: Budget
    assumptions: tuple[str, ...]
    measured: tuple[KernelConstant, ...] = ()  # of the chip's constants, those from a calibration

    @property
    def ranks(self) -> int:
        """Data-parallel ranks of attention."""
        return self.plan.dp

    @property
    def gpus(self) -> int:
        return self.plan.tp * self.plan.pp * self.plan.dp

    def most(self, tokens: float) -> float:
        """Sequences of so many tokens that one data-parallel rank can have at once: as many as fit, and are allowed."""
        return min(floor(self.held(tokens)), float(self.flags.max_num_seqs or inf))

    def held(self, tokens: float) -> float:
        """Sequences of so many tokens that the memory of one data-parallel rank holds."""
        if self.memory.pool.decoding is not None:  # in whole blocks: recurrent states take several each
            return self.memory.pool.decoding(round(tokens))
        return max(0.0, self.memory.kv) * self.plan.pp / sequence_bytes(self.plan, tokens)

    def bounded_by(self, tokens: float) -> str:
        """Which of the two bounds them: memory or max-num-seqs."""
        return "max-num-seqs" if self.flags.max_num_seqs == self.most(tokens) else "memory"


def deployed(model: Model, gpu: Gpu, asked: Deployment) -> Deployed:
    """What a deployment runs. tensor_parallel_size counts as the engine counts it: but for vLLM's, data-parallel
    attention lies inside of it.

    Raises InputError for flags that the engine or the model does not allow, and for a model known by its size alone.
    """
    device = device_of(gpu)
    flags = with_defaults(model, device, asked)
    kv, assumed = cache_format(model, flags)
    if narrowed(model, flags.quantization):
        assumed.append(NARROWED)
    if any(getattr(part, "cross", False) for layer in model.layers for part in layer):
        assumed.append("attention over an encoder's tokens is not timed")
    tp, dp = flags.tensor_parallel_size, flags.data_parallel_size
    if flags.attention_replicas > 1:
        if tp % dp:
            raise InputError(
                f"the {dp} data-parallel ranks of {flags.engine} do not divide its {tp} tensor-parallel ones"
            )
        tp //= dp
    plan = layout(
        model,
        quantization=flags.quantization,
        kv=kv,
        tp=tp,
        pp=flags.pipeline_parallel_size,
        dp=dp,
        expert_parallel=flags.enable_expert_parallel,
    )
    engine = engine_steps(flags.engine)
    if flags.max_num_batched_tokens:
        engine = engine._replace(budget=float(flags.max_num_batched_tokens))
    if flags.enforce_eager:
        engine = engine._replace(graphs=False)
    chip = chip_of(gpu)
    memory = budget(model, device, asked)
    return Deployed(model, gpu, flags, plan, chip, engine, memory, (*assumed, *chip.assumptions))


def cache_format(model: Model, flags: Deployment) -> tuple[str, list[str]]:
    """The format of the cache, by its name here; and what is taken for granted of `auto`."""
    said = flags.kv_cache_dtype.strip().lower()
    if said != "auto":
        return _NAMED.get(said, said), []
    return auto_format(model, flags.engine, version=flags.version, quantization=flags.quantization)
