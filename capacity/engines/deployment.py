"""How a model is served: the engine, its version and its own flags, in the engine's own words."""

from __future__ import annotations

from dataclasses import dataclass

OWN_DRAFTS = ("mtp", "dspark")  # speculation with draft layers that the checkpoint has itself


@dataclass(frozen=True, slots=True, kw_only=True)
class Deployment:
    """The flags of an engine; None is the engine's default in that version."""

    engine: str = "vllm"  # vllm | sglang | tensorrt-llm
    version: str | None = None  # None: the newest on record
    tensor_parallel_size: int = 1
    pipeline_parallel_size: int = 1
    data_parallel_size: int = (
        1  # SGLang, TensorRT-LLM: replicas of the attention, inside the tensor-parallel ranks
    )
    enable_expert_parallel: bool = False
    decode_context_parallel_size: int = 1
    gpu_memory_utilization: float | None = (
        None  # SGLang: mem_fraction_static; TensorRT-LLM: free_gpu_memory_fraction
    )
    max_model_len: int | None = None
    max_num_seqs: int | None = None
    max_num_batched_tokens: int | None = None
    block_size: int | None = None
    hybrid_block: int | None = None  # as a hybrid's log tells it; None: what its states make of block_size
    kv_cache_dtype: str = "auto"
    kv_cache_memory_bytes: int | None = None  # pins the pool
    enforce_eager: bool = False
    enable_prefix_caching: bool | None = None
    quantization: str | None = None  # None: the checkpoint's own
    speculative_method: str | None = None  # mtp, dspark, eagle, eagle3, dflash, ngram, draft_model
    draft_model: str | None = None  # a drafter on record (models/drafters)
    num_speculative_tokens: int = 0
    tables_on_host: bool | None = None  # tables of n-grams; None: in host memory under vLLM alone
    flashinfer: bool | None = None  # whether its package is there; None: not said

    @property
    def attention_replicas(self) -> int:
        """Replicas of the attention inside the tensor-parallel ranks."""
        return 1 if self.engine == "vllm" else self.data_parallel_size

    @property
    def drafts_itself(self) -> bool:
        """Whether the checkpoint's own draft layers speculate."""
        return self.num_speculative_tokens > 0 and self.speculative_method in OWN_DRAFTS

    @property
    def gpus(self) -> int:
        replicas = self.data_parallel_size // self.attention_replicas
        return self.tensor_parallel_size * self.pipeline_parallel_size * replicas
