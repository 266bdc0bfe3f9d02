"""What vLLM is asked for, and the rules of its allocator by version: vllm_versions.toml, read."""

from __future__ import annotations

import re
import tomllib
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from capplan.capacity.engines.deployment import OWN_DRAFTS
from capplan.errors import InputError

GPUS = ("sm80", "sm90", "sm100", "sm120", "rocm")
BLOCK = 16  # tokens of a block where neither the user nor a kernel asks for another


@dataclass(frozen=True, slots=True)
class Rules:
    """What holds in a version; the meaning of each is told at the top of vllm_versions.toml."""

    tokens_line: str
    need: str
    pages: str
    merge_below: float
    mixed: str
    batches: int
    chunked_groups: bool
    value_width: str
    window_shift: dict[str, int]
    draft_chain: bool
    state_caching: bool
    state_all: bool
    state_align: bool
    state_drafts: bool
    widened: list[str]
    checkpoints: dict[str, dict[str, int]]
    bounded_kda: list[str]
    kernel_block: dict[str, dict[str, int]]
    kernel_demands: bool
    hybrid_block: str
    hybrid_latent: int
    refused: str
    nemotron_state: str
    nemotron_unnamed: list[str]
    compressed_auto: bool
    pooled_record: str
    promoted_alike: bool

    def kernel(self, layer: str, gpu: str) -> int:
        """Tokens of an attention kernel's block."""
        return self.kernel_block.get(layer, {}).get(gpu, BLOCK)


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """The flags that decide about the cache, in vLLM's words; None is its default of the version."""

    version: str
    max_model_len: int
    max_num_batched_tokens: int = 8192
    max_num_seqs: int = 1024
    tensor_parallel_size: int = 1
    kv_cache_dtype: str = "auto"
    block_size: int | None = None
    hybrid_block: int | None = None  # told by a log, in place of what the states make of block_size
    enable_prefix_caching: bool | None = None
    hybrid_kv_cache_manager: bool | None = None
    num_speculative_tokens: int = 0
    speculative_method: str = "mtp"  # or dflash, eagle3; or ngram and such, which have no cache of their own
    gpu: str = "sm90"
    flashinfer: bool = True  # its package is there; matters on sm100

    @property
    def drafts(self) -> bool:
        """Whether draft layers are loaded, of the model's own or of a drafter."""
        with_layers = (*OWN_DRAFTS, "dflash", "eagle3")
        return self.num_speculative_tokens > 0 and self.speculative_method in with_layers

    @property
    def kernels(self) -> str:
        """The GPU as vllm_versions.toml names it."""
        return self.gpu if self.flashinfer or self.gpu != "sm100" else "sm100_bare"


def ordered(version: str, engine: str = "vllm") -> tuple[int, ...]:
    """A version of an engine as numbers that sort: '0.19.2rc1' is (0, 19, 2)."""
    found = re.match(r"v?(\d{1,6})\.(\d{1,6})(?:\.(\d{1,6}))?", version.strip())
    if found is None:
        raise InputError(f"{engine} version {version[:40]!r} can't be read; write it as 0.19.0")
    return tuple(int(part or 0) for part in found.groups())


@cache
def newest() -> str:
    """The newest version whose rules were read."""
    changes = tomllib.loads(Path(__file__).with_name("vllm_versions.toml").read_text("utf-8"))["change"]
    return str(changes[-1]["since"])


def rules(version: str) -> Rules:
    """The rules of a version: every change not later than it. Raises InputError for one older than the first.

    >>> rules("0.20.1").tokens_line, rules("0.24.0").tokens_line
    ('group_blocks', 'concurrency')
    """
    changes = tomllib.loads(Path(__file__).with_name("vllm_versions.toml").read_text("utf-8"))["change"]
    asked = ordered(version)
    held = [change for change in changes if ordered(change["since"]) <= asked]
    if not held:
        raise InputError(
            f"vllm {version!r} is older than {changes[0]['since']}, the first whose rules are on record"
        )
    merged: dict[str, Any] = {}
    for change in held:
        for name, value in change.items():
            merged[name] = {**merged.get(name, {}), **value} if isinstance(value, dict) else value
    return Rules(**{name: value for name, value in merged.items() if name not in ("since", "source")})
