"""The command line that realises a Deployment: only flags that are not the engine's defaults, quoted for a shell.

Flags were read in the sources of vLLM 0.6.6 to 0.33.0, SGLang 0.4.6 to 0.5.23 and TensorRT-LLM 1.0 to 1.2 (checked
2026-11-29). What an engine has no flag for is told in a comment, never left out in silence.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterable, Iterator
from dataclasses import replace

from capplan.capacity.engines.deployment import OWN_DRAFTS, Deployment
from capplan.capacity.engines.vllm_rules import ordered
from capplan.errors import InputError, UnknownNameError

ENGINES = {"vllm": "vllm", "sglang": "sglang", "tensorrt-llm": "tensorrt-llm", "trtllm": "tensorrt-llm"}
DRAFT_MODEL = "DRAFT_MODEL"  # stands for the draft model that a Deployment does not name
OPTIONS_FILE = "trtllm-options.yaml"

_Flag = tuple[str, object]  # the value True is a switch; None and False are left out

# vLLM's flags that not every version has -> the first that does (of 0.6.6, 0.8.0, 0.8.2, 0.8.3, 0.9.2, 0.10.2, 0.11.0)
_SINCE = {
    "--data-parallel-size": "0.8.3",
    "--enable-expert-parallel": "0.8.0",
    "--decode-context-parallel-size": "0.10.2",
    "--kv-cache-memory-bytes": "0.10.2",
}
_CONFIG_SINCE = "0.8.3"  # --speculative-config, in place of a flag for each part
_BF16_CACHE_SINCE = "0.11.0"
_QUANTIZES = ("fp8",)  # what vLLM and SGLang make of a 16-bit checkpoint as they load it
_WITHOUT_MODEL = (*OWN_DRAFTS, "ngram")  # speculation without a draft model
_OWN_METHOD = {"deepseek_v41": "dspark"}  # how engines call a family's own drafts, where that is not MTP


def emit(deployment: Deployment, model: str, engine: str | None = None) -> str:
    """The command line that serves a model as the deployment says.

    model: a hub id or a path, as the engine is to load it.
    engine: vllm, sglang or trtllm; the deployment's own when not given. Flags are translated.

    >>> print(emit(Deployment(tensor_parallel_size=2, max_model_len=8192), "Qwen/Qwen3-32B"))
    vllm serve Qwen/Qwen3-32B --tensor-parallel-size 2 --max-model-len 8192

    Raises UnknownNameError for another engine, InputError for a model's name that is empty, or a flag that the
    version does not have.
    """
    name = ENGINES.get((engine or deployment.engine).strip().lower())
    if name is None:
        raise UnknownNameError("engine", engine or deployment.engine, ENGINES, "vllm, sglang or trtllm")
    if not model.strip() or model.startswith("-"):
        raise InputError(f"model {model!r} is no name that an engine could load")
    for said in (deployment.kv_cache_dtype, deployment.quantization, deployment.speculative_method):
        if said is not None and not re.fullmatch(r"[\w.-]{1,40}", said):
            raise InputError(f"{said[:40]!r} is no value of a flag")
    if name == "vllm":
        lines = _vllm(deployment, model, deployment.version if deployment.engine == "vllm" else None)
    elif name == "sglang":
        lines = _sglang(deployment, model)
    else:
        lines = _tensorrt(deployment, model)
    return "\n".join(lines)


def _line(words: Iterable[str], flags: Iterable[_Flag]) -> str:
    parts = [shlex.quote(word) for word in words]
    for flag, value in flags:
        if value is None or value is False:
            continue
        parts.append(flag)
        if value is not True:
            parts.append(shlex.quote(f"{value:g}" if isinstance(value, float) else str(value)))
    return " ".join(parts)


def _comment(text: str) -> str:
    return "# " + " ".join(text.split())


def _more_than_one(count: int) -> int | None:
    return count if count > 1 else None


def _checkpoint(quantization: str | None) -> Iterator[str]:
    """A word on weights that no engine makes as it loads."""
    if quantization not in (None, "auto", "bf16", "fp16", *_QUANTIZES):
        yield _comment(f"the checkpoint has to be one in {quantization}; no flag makes it so")


# --- vLLM ------------------------------------------------------------------------------------------------------


def _vllm(plan: Deployment, model: str, version: str | None) -> list[str]:
    at = ordered(version) if version else None
    caching = plan.enable_prefix_caching
    flags: list[_Flag] = [
        ("--tensor-parallel-size", _more_than_one(plan.tensor_parallel_size)),
        ("--pipeline-parallel-size", _more_than_one(plan.pipeline_parallel_size)),
        ("--data-parallel-size", _more_than_one(plan.data_parallel_size)),
        ("--enable-expert-parallel", plan.enable_expert_parallel),
        ("--decode-context-parallel-size", _more_than_one(plan.decode_context_parallel_size)),
        ("--gpu-memory-utilization", plan.gpu_memory_utilization),
        ("--max-model-len", plan.max_model_len),
        ("--max-num-seqs", plan.max_num_seqs),
        ("--max-num-batched-tokens", plan.max_num_batched_tokens),
        ("--block-size", plan.block_size),
        ("--kv-cache-dtype", _vllm_cache(plan.kv_cache_dtype, at)),
        ("--kv-cache-memory-bytes", plan.kv_cache_memory_bytes),
        ("--quantization", plan.quantization if plan.quantization in _QUANTIZES else None),
        ("--enforce-eager", plan.enforce_eager),
        ("--enable-prefix-caching", caching is True),
        ("--no-enable-prefix-caching", caching is False),
        ("--engram-config", _engram(plan.tables_on_host)),
        *_vllm_drafts(plan, at),
    ]
    for flag, value in flags:
        since = _SINCE.get(flag)
        if since and value and at and at < ordered(since):
            raise InputError(f"vllm {version} has no {flag}; {since} does")
    notes = [*_checkpoint(plan.quantization), *_named_draft(plan)]
    return [*notes, _line(("vllm", "serve", model), flags)]


def _vllm_cache(dtype: str, at: tuple[int, ...] | None) -> str | None:
    """None is auto: the model's own 16 bit."""
    if dtype in ("auto", "fp16", "float16"):
        return None
    if dtype in ("bf16", "bfloat16"):
        return "bfloat16" if at is None or at >= ordered(_BF16_CACHE_SINCE) else None
    return dtype


def _engram(on_host: bool | None) -> str | None:
    return None if on_host is None else f'{{"cpu_offload": {str(on_host).lower()}}}'


def _vllm_drafts(plan: Deployment, at: tuple[int, ...] | None) -> list[_Flag]:
    count, method = plan.num_speculative_tokens, plan.speculative_method or "mtp"
    if not count:
        return []
    if at is not None and at < ordered(_CONFIG_SINCE):
        if method == "mtp":
            raise InputError(
                f"vllm before {_CONFIG_SINCE} does not speculate with a model's own draft layers"
            )
        draft = "[ngram]" if method == "ngram" else plan.draft_model or DRAFT_MODEL
        return [("--speculative-model", draft), ("--num-speculative-tokens", count)]
    config: dict[str, object] = {"method": method, "num_speculative_tokens": count}
    if method not in _WITHOUT_MODEL:
        config["model"] = plan.draft_model or DRAFT_MODEL
    return [("--speculative-config", json.dumps(config))]


def _named_draft(plan: Deployment) -> Iterator[str]:
    own = (plan.speculative_method or "mtp").lower() in _WITHOUT_MODEL
    if plan.num_speculative_tokens and not own and plan.draft_model is None:
        yield _comment(f"{DRAFT_MODEL} stands for the draft model")


def as_named(deployment: Deployment, family: str) -> Deployment:
    """The deployment with its own draft layers called as engines call them in that family."""
    own = _OWN_METHOD.get(family)
    if own is None or deployment.speculative_method != "mtp":
        return deployment
    return replace(deployment, speculative_method=own)


def _untold_tables(plan: Deployment, engine: str) -> Iterator[str]:
    """A word on tables of n-grams under an engine that has no flag on record for them."""
    if plan.tables_on_host is not None:
        place = "host" if plan.tables_on_host else "GPU"
        yield _comment(
            f"tables of n-grams are planned in {place} memory; no flag of {engine} on record says so"
        )


# --- SGLang ----------------------------------------------------------------------------------------------------

_SGLANG_METHODS = {
    "mtp": "EAGLE",
    "dspark": "DSPARK",
    "nextn": "EAGLE",
    "eagle": "EAGLE",
    "eagle3": "EAGLE3",
    "ngram": "NGRAM",
    "draft_model": "STANDALONE",
}


def _sglang(plan: Deployment, model: str) -> list[str]:
    experts = plan.tensor_parallel_size if plan.enable_expert_parallel else 1
    dtype = {"fp8": "fp8_e4m3", "auto": None, "fp16": None, "float16": None}.get(
        plan.kv_cache_dtype, plan.kv_cache_dtype
    )
    flags: list[_Flag] = [
        ("--model-path", model),
        ("--tp-size", _more_than_one(plan.tensor_parallel_size)),
        ("--pp-size", _more_than_one(plan.pipeline_parallel_size)),
        ("--dp-size", _more_than_one(plan.data_parallel_size)),
        ("--enable-dp-attention", plan.data_parallel_size > 1),  # ranks of dp lie inside those of tp
        ("--ep-size", _more_than_one(experts)),
        ("--dcp-size", _more_than_one(plan.decode_context_parallel_size)),
        ("--mem-fraction-static", plan.gpu_memory_utilization),
        ("--context-length", plan.max_model_len),
        ("--max-running-requests", plan.max_num_seqs),
        ("--chunked-prefill-size", plan.max_num_batched_tokens),
        ("--page-size", plan.block_size),
        ("--kv-cache-dtype", dtype),
        ("--quantization", plan.quantization if plan.quantization in _QUANTIZES else None),
        ("--disable-cuda-graph", plan.enforce_eager),
        ("--disable-radix-cache", plan.enable_prefix_caching is False),
        *_sglang_drafts(plan),
    ]
    notes = [*_checkpoint(plan.quantization), *_named_draft(plan), *_untold_tables(plan, "sglang")]
    if plan.kv_cache_memory_bytes is not None:
        notes.append(
            _comment("a pool of a stated size has no flag: --max-total-tokens takes its tokens instead")
        )
    return [*notes, _line(("python", "-m", "sglang.launch_server"), flags)]


def _sglang_drafts(plan: Deployment) -> list[_Flag]:
    count, method = plan.num_speculative_tokens, (plan.speculative_method or "mtp").lower()
    if not count:
        return []
    if method not in _SGLANG_METHODS:
        raise InputError(f"speculative method {method!r} has no counterpart in sglang")
    drafted: list[_Flag] = [("--speculative-algorithm", _SGLANG_METHODS[method])]
    if method == "dspark":
        return [*drafted, ("--speculative-dspark-block-size", count)]
    if method not in (*_WITHOUT_MODEL, "nextn"):
        drafted.append(("--speculative-draft-model-path", DRAFT_MODEL))
    if method != "ngram":
        drafted += [("--speculative-num-steps", count), ("--speculative-eagle-topk", 1)]
    return [*drafted, ("--speculative-num-draft-tokens", count + 1)]


# --- TensorRT-LLM ----------------------------------------------------------------------------------------------


def _tensorrt(plan: Deployment, model: str) -> list[str]:
    """Its command, and the file of options for what it has no flags for."""
    if plan.decode_context_parallel_size > 1:
        raise InputError("trtllm-serve has no counterpart to decode context parallel")
    options = list(_options(plan))
    cache = options[:1] == ["kv_cache_config:"]  # replaces what the flag says, so that it has to say it
    experts = plan.tensor_parallel_size if plan.enable_expert_parallel else 1
    flags: list[_Flag] = [
        ("--tp_size", _more_than_one(plan.tensor_parallel_size)),
        ("--pp_size", _more_than_one(plan.pipeline_parallel_size)),
        ("--ep_size", _more_than_one(experts)),
        ("--kv_cache_free_gpu_memory_fraction", None if cache else plan.gpu_memory_utilization),
        ("--max_seq_len", plan.max_model_len),
        ("--max_batch_size", plan.max_num_seqs),
        ("--max_num_tokens", plan.max_num_batched_tokens),
        ("--extra_llm_api_options", OPTIONS_FILE if options else None),
    ]
    notes = []
    if plan.quantization not in (None, "auto", "bf16", "fp16"):
        notes.append(_comment(f"the checkpoint has to be one in {plan.quantization}; no flag makes it so"))
    notes += [*_named_draft(plan), *_untold_tables(plan, "tensorrt-llm")]
    if options:
        notes += [f"cat > {OPTIONS_FILE} <<'YAML'", *options, "YAML"]
    return [*notes, _line(("trtllm-serve", model), flags)]


def _options(plan: Deployment) -> Iterator[str]:
    """The lines of the options file."""
    dtype = {
        "auto": None,
        "bf16": None,
        "bfloat16": None,
        "fp16": None,
        "float16": None,
        "fp8_e4m3": "fp8",
    }.get(plan.kv_cache_dtype, plan.kv_cache_dtype)
    cache: dict[str, object] = {
        "dtype": dtype,
        "tokens_per_block": plan.block_size,
        "max_gpu_total_bytes": plan.kv_cache_memory_bytes,
        "enable_block_reuse": None
        if plan.enable_prefix_caching is None
        else str(plan.enable_prefix_caching).lower(),
    }
    if any(value is not None for value in cache.values()):
        cache["free_gpu_memory_fraction"] = plan.gpu_memory_utilization
        yield "kv_cache_config:"
        yield from (f"  {name}: {value}" for name, value in cache.items() if value is not None)
    if plan.data_parallel_size > 1:
        yield "enable_attention_dp: true"
    if plan.enforce_eager:
        yield "cuda_graph_config: null"
    if plan.num_speculative_tokens:
        yield from _decoding(plan)


def _decoding(plan: Deployment) -> Iterator[str]:
    count, method = plan.num_speculative_tokens, (plan.speculative_method or "mtp").lower()
    kinds = {
        "mtp": "MTP",
        "eagle": "Eagle",
        "eagle3": "Eagle",
        "ngram": "NGram",
        "draft_model": "DraftTarget",
    }
    if method not in kinds:
        raise InputError(f"speculative method {method!r} has no counterpart in trtllm")
    yield "speculative_config:"
    yield f"  decoding_type: {kinds[method]}"
    yield f"  {'num_nextn_predict_layers' if method == 'mtp' else 'max_draft_len'}: {count}"
    if method not in _WITHOUT_MODEL:
        yield f"  speculative_model_dir: {DRAFT_MODEL}"
