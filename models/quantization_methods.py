"""One function a method of quantization, from its fields to the record of quantization.py."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from capplan.models.fields import live, show
from capplan.models.quantization import Asked, Format, Quantization, Rule

_SIZES = {"float32": 4, "float16": 2, "bfloat16": 2, "float8_e4m3fn": 1, "float8_e8m0fnu": 1, "uint8": 1}
_MXFP4, _MXFP8 = Format("mxfp4", 4, 1, 32, scale_bytes=1), Format("mxfp8", 8, 1, 32, scale_bytes=1)


def _fp8(f: Asked) -> Quantization:
    """FP8 with a scale for a tensor or a block; DeepSeek V4 has its experts in MXFP4."""
    f.one_of("fmt", ("e4m3", "e5m2", "float8_e4m3fn", "float8_e5m2"), "e4m3")
    static = f.one_of("activation_scheme", ("dynamic", "static"), "dynamic") == "static"
    scale = f.one_of("scale_fmt", {"float": 4, "ue8m0": 1}, "float")
    if f.model.get("model_type") in ("deepseek_v3", "deepseek_v32", "deepseek_v3_2"):
        scale = 4  # V3.1 rounds its scales to powers of two, and stores them as fp32 all the same
    rows, columns = f.block() or (0, 0)
    linear = Format("fp8", 8, rows, columns, scale_bytes=scale, matrix_bytes=4 if static else 0)
    if (rows, columns) == (1, 32):
        linear = linear._replace(name="mxfp8", scale_bytes=1)
    rules = [Rule(linear, linear=True)]
    if added := f.names("modules_to_convert"):
        rules.insert(0, Rule(linear, added))
    if _expert_dtype(f) == "fp4":
        rules.insert(0, Rule(_MXFP4, ("experts",)))
    ignored = f.names("modules_to_not_convert", "ignored_layers", "ignore")
    if f.model.get("model_type") in ("deepseek_v41", "deepseek_v41_text"):
        # its code has what its config leaves out: which weights are in another format
        rules.insert(0, Rule(_MXFP8, ("engram.embed",)))
        ignored = (*ignored, "compressor", "indexer.wk")
    return f.quantization(*rules, ignored=ignored, kv=_kv_scheme(f))


def _expert_dtype(f: Asked) -> str:
    within = f.fields.config.get(f.name("expert_dtype"))
    f.ignore("expert_dtype")
    if f.one_of("store_dtype", ("fp8", "mxfp4"), "fp8") == "mxfp4":  # MiMo V2.5's word for it
        return "fp4"
    value = f.model.get("expert_dtype") if within is None else within
    if value not in (None, "fp8", "fp4"):
        raise f.error(f"field 'expert_dtype' is {show(value)}; accepted: fp8, fp4")
    return value or "fp8"


def _fbgemm_fp8(f: Asked) -> Quantization:
    """FP8 with a scale for every row."""
    ignored = f.names("modules_to_not_convert")
    return f.quantization(Rule(Format("fp8", 8, 1, 0, scale_bytes=4), linear=True), ignored=ignored)


def _mxfp8(f: Asked) -> Quantization:
    found = _fp8(f)
    return f.quantization(Rule(_MXFP8, linear=True), ignored=found.ignored, kv=found.kv)


def _mxfp4(f: Asked) -> Quantization:
    """gpt-oss: the experts alone, whatever else is not in the list."""
    ignored = f.names("modules_to_not_convert")
    return f.quantization(Rule(_MXFP4, ("experts",)), ignored=ignored)


def _awq(f: Asked) -> Quantization:
    bits = f.one_of("bits", (4, 8), f.fields.config.get(f.name("w_bit"), 4))
    f.ignore("w_bit", "q_group_size")
    f.one_of("version", ("gemm", "gemv", "gemv_fast", "marlin", "exllama", "ipex", "GEMM", "GEMV"), "gemm")
    group = f.group_size(f.fields.config.get(f.name("q_group_size"), 128))
    zero = bits if f.flag("zero_point", default=True) else 0
    ignored = f.names("modules_to_not_convert")
    stored = Format(f"int{bits}", bits, 1, group, scale_bytes=2, zero_bits=zero)
    return f.quantization(Rule(stored, linear=True), ignored=ignored)


def _gptq(f: Asked) -> Quantization:
    """Zero points are stored even where they are all alike, and so is every column's group."""
    bits = f.one_of("bits", (4, 8), 4)
    layout = f.one_of("checkpoint_format", ("gptq", "gptq_v2"), "gptq")
    f.one_of("format", ("gptq", "gptq_v2"), layout)
    f.one_of("pack_dtype", ("int32",), "int32")
    f.flag("desc_act"), f.flag("sym", default=True)
    stored = Format(f"int{bits}", bits, 1, f.group_size(128), scale_bytes=2, zero_bits=bits, column_bytes=4)
    rules, ignored = [Rule(stored, linear=True)], list(f.names("modules_to_not_convert"))
    for name, given in f.object("dynamic").items():
        entry = "re:" + name.removeprefix("+:").removeprefix("-:")
        f.check((entry,), "dynamic")
        if name.startswith("-:"):
            ignored.append(entry)
        else:
            rules.insert(0, Rule(_overridden(f, stored, name, given), (entry,)))
    _, blocks = f.fields.find(f.name("modules_in_block_to_quantize"))
    if live(blocks):
        names = (
            [n for row in blocks for n in (row if isinstance(row, list) else [row])]
            if isinstance(blocks, list)
            else []
        )
        if not names or not all(type(n) is str for n in names):
            raise f.error(
                f"field '{f.name('modules_in_block_to_quantize')}' is {show(blocks)}; lists of names are accepted"
            )
        f.check(tuple(names), "modules_in_block_to_quantize")
        rules[-1] = Rule(stored, tuple(names))
    return f.quantization(*rules, ignored=tuple(ignored), head=f.flag("lm_head"))


def _overridden(f: Asked, stored: Format, name: str, given: Any) -> Format:
    where = f"field '{f.name('dynamic')}.{name}'"
    if not isinstance(given, dict):
        raise f.error(f"{where} is {show(given)}; an object is accepted")
    bits, group = given.get("bits", stored.bits), given.get("group_size", stored.columns)
    if bits not in (4, 8) or type(group) is not int or group < -1:
        raise f.error(f"{where} has bits {show(bits)} and group_size {show(group)}; 4 or 8 bits are accepted")
    return stored._replace(name=f"int{bits}", bits=bits, zero_bits=bits, columns=max(group, 0))


def _bitsandbytes(f: Asked) -> Quantization:
    four = f.flag("load_in_4bit", "_load_in_4bit")
    eight = f.flag("load_in_8bit", "_load_in_8bit")
    if four == eight:
        raise f.error(
            f"fields '{f.name('load_in_4bit')}' and '{f.name('load_in_8bit')}' are both {show(four)}; "
            "one of them is needed"
        )
    kind = f.one_of("bnb_4bit_quant_type", ("nf4", "fp4"), "fp4")
    double = f.flag("bnb_4bit_use_double_quant")
    stored = Format("int8", 8, 1, 0, scale_bytes=4, matrix_bytes=1)
    if four:
        # a scale for 64 elements; doubled, the scales are bytes with a scale for 256 of them. With every matrix
        # lies the table of the 16 values, and of the 256
        scale, tables = (1 + 4 / 256, 64 + 1024) if double else (4, 64)
        stored = Format(kind, 4, 1, 64, scale_bytes=scale, matrix_bytes=tables)
    return f.quantization(Rule(stored, linear=True), ignored=f.names("llm_int8_skip_modules"))


def _compressed_tensors(f: Asked) -> Quantization:
    """Groups of modules, each with its format."""
    for name in ("sparsity_config", "transform_config", "moe_sparsity_config"):
        value = f.object(name)
        if value and value.get("format") != "dense":
            raise f.error(f"field '{f.name(name)}' ({show(value.get('format'))}) is not understood")
    default = f.text("format")
    rules: list[Rule] = []
    for group, scheme in f.object("config_groups").items():
        where = f.name(f"config_groups.{group}")
        if not isinstance(scheme, dict):
            raise f.error(f"field '{where}' is {show(scheme)}; an object is accepted")
        part = Asked(scheme, where, f.fields.where, f.others, f.model)
        stored = _scheme(part, part.text("format") or default)
        targets = part.names("targets")
        part.ignore("output_activations")
        part.finish()
        f.fields.assumptions += part.fields.assumptions
        if stored is None:
            continue  # activations alone
        named = tuple(target for target in targets if target.rsplit(".", 1)[-1] not in _CLASSES)
        if named:
            rules.insert(0, Rule(stored, named))
        if len(named) < len(targets):
            rules.append(Rule(stored, linear=True))
    if not rules:
        raise f.error(f"field '{f.name('config_groups')}' has no group of weights")
    return f.quantization(*rules, ignored=f.names("ignore"), head=True, kv=_kv_scheme(f))


_CLASSES = ("Linear", "LinearBase", "FusedMoE", "RoutedExperts")
_LAYOUTS = {
    "pack-quantized": "packed",
    "int-quantized": "whole",
    "float-quantized": "whole",
    "naive-quantized": "whole",
    "nvfp4-pack-quantized": "nvfp4",
    "mxfp4-pack-quantized": "mxfp4",
    "mxfp8-quantized": "mxfp8",
    "mixed-precision": None,
}


def _scheme(f: Asked, layout: str | None) -> Format | None:
    inputs, given = f.object("input_activations"), f.object("weights")
    if not given:
        return None
    w = Asked(given, f.name("weights"), f.fields.where, f.others, f.model)
    kind = w.one_of("type", ("int", "float"), "int")
    bits = w.one_of("num_bits", (4, 8), 8)
    if layout not in (None, *_LAYOUTS):
        raise f.error(f"field '{f.name('format')}' is {show(layout)}; accepted: {', '.join(_LAYOUTS)}")
    stored_as = _LAYOUTS[layout] if layout else None
    if stored_as is None:
        stored_as = (
            ("packed" if bits == 4 else "whole") if kind == "int" else "nvfp4" if bits == 4 else "whole"
        )
    symmetric = w.flag("symmetric", default=True)
    _, scale_dtype = w.fields.find(w.name("scale_dtype"))
    scale = w.one_of("scale_dtype", _TORCH_SIZES, f.others) if scale_dtype else f.other_bytes
    rows, columns = _shared(w, stored_as)
    order = w.fields.config.get(w.name("actorder"))
    w.ignore("actorder", "dynamic", "zp_dtype", "observer", "observer_kwargs")
    w.finish()
    seen = inputs.get("dynamic") is False and inputs.get("strategy") in ("tensor", "tensor_group", None)
    static = bool(inputs) and seen
    if stored_as == "nvfp4":
        return Format("nvfp4", 4, 1, columns or 16, scale_bytes=1, matrix_bytes=8 if inputs else 4)
    if stored_as in ("mxfp4", "mxfp8"):
        return Format(stored_as, int(stored_as[-1]), 1, columns or 32, scale_bytes=1)
    if stored_as == "packed":
        return Format(
            f"int{bits}", bits, rows, columns, scale, zero_bits=0 if symmetric else bits,
            column_bytes=4 if order in ("group", "dynamic", True) else 0, matrix_bytes=16,
        )  # fmt: skip
    name = "fp8" if kind == "float" else "int8"  # 4-bit values too take a byte each
    return Format(name, 8, rows, columns, scale, 0 if symmetric else 8, matrix_bytes=scale if static else 0)


_TORCH_SIZES = {**_SIZES, **{f"torch.{name}": size for name, size in _SIZES.items()}}


def _shared(w: Asked, stored_as: str) -> tuple[int, int]:
    """Rows and columns that share a scale."""
    grouped = live(w.fields.config.get(w.name("group_size")))
    assumed = "group" if grouped or stored_as in ("nvfp4", "mxfp4", "mxfp8") else "tensor"
    strategy = w.one_of("strategy", ("tensor", "channel", "group", "tensor_group", "block"), assumed)
    width = {"nvfp4": 16, "mxfp4": 32, "mxfp8": 32}.get(stored_as)
    if strategy == "block":
        name = w.name("block_structure")
        _, value = w.fields.find(name)
        if isinstance(value, str):
            value = [int(n) for n in value.split("x") if n.isascii() and n.isdecimal() and len(n) < 8]
        if not isinstance(value, list) or len(value) != 2 or not all(type(n) is int and n > 0 for n in value):
            raise w.error(f"field '{name}' is {show(value)}; two whole numbers are needed")
        w.ignore("group_size")
        return value[0], value[1]
    w.ignore("block_structure")
    if "group" in strategy:
        return 1, w.group_size(width)
    w.ignore("group_size")
    return (0, 0) if strategy == "tensor" else (1, 0)


def _kv_scheme(f: Asked) -> str | None:
    """The cache that the checkpoint has scales for."""
    given = f.object("kv_cache_scheme")
    if not given:
        return None
    bits, kind = given.get("num_bits"), given.get("type")
    if (bits, kind) not in _KV_SCHEMES:
        raise f.error(
            f"field '{f.name('kv_cache_scheme')}' has num_bits {show(bits)} and type {show(kind)}; "
            "accepted: 8 float, 8 int, 4 float"
        )
    return _KV_SCHEMES[bits, kind]


_KV_SCHEMES: dict[tuple[Any, Any], str] = {(8, "float"): "fp8", (8, "int"): "int8", (4, "float"): "nvfp4"}

# modelopt's algorithms; the names are those of its export
_NVFP4 = Format("nvfp4", 4, 1, 16, scale_bytes=1, matrix_bytes=8)
_ALGORITHMS = {
    "FP8": Format("fp8", 8, 0, 0, matrix_bytes=4),
    "FP8_PER_CHANNEL_PER_TOKEN": Format("fp8", 8, 1, 0),
    "FP8_PB_WO": Format("fp8", 8, 128, 128),
    "NVFP4": _NVFP4,
    "W4A16_NVFP4": _NVFP4._replace(matrix_bytes=4),
    "W4A8_NVFP4_FP8": _NVFP4,
    "NVFP4_AWQ": _NVFP4._replace(column_bytes=2),
    "W4A16_AWQ": Format("int4", 4, 1, 128, scale_bytes=2, column_bytes=2),
    "W4A8_AWQ": Format("int4", 4, 1, 128, scale_bytes=2, column_bytes=2, matrix_bytes=8),
    "W8A16": Format("int8", 8, 1, 0),
    "W8A8_SQ_PER_CHANNEL": Format("int8", 8, 1, 0, column_bytes=2),
    "MXFP4": _MXFP4,
    "W4A8_MXFP4_FP8": Format("mxfp4", 4, 1, 32, scale_bytes=1, matrix_bytes=4),
    "MXFP8": _MXFP8,
}
_KV_ALGORITHMS = {"FP8": "fp8", "NVFP4": "nvfp4", "INT8": "int8", "NONE": None}


def _modelopt(f: Asked) -> Quantization:
    """ModelOpt's export: one algorithm, or one for every module listed."""
    ignored = f.names("exclude_modules", "ignore")
    kv = f.text("kv_cache_quant_algo")
    if kv is not None and kv.upper() not in _KV_ALGORITHMS:
        raise f.error(
            f"field '{f.name('kv_cache_quant_algo')}' is {show(kv)}; accepted: {', '.join(_KV_ALGORITHMS)}"
        )
    cache = _KV_ALGORITHMS[kv.upper()] if kv else _kv_scheme(f)
    f.flag("has_zero_point"), f.flag("pre_quant_scale")
    layers = f.object("quantized_layers")
    algorithm = f.text("quant_algo")
    if (algorithm or "").upper() != "MIXED_PRECISION":
        f.ignore("config_groups")
        stored = _algorithm(f, algorithm, f.name("quant_algo"), f.fields.config.get(f.name("group_size")))
        f.ignore("group_size")
        if not ignored:
            f.assume(f"{f.source} leaves no module out: every linear layer but the head is {stored.name}")
        return f.quantization(Rule(stored, linear=True), ignored=ignored, kv=cache)
    if not layers:
        raise f.error(f"field '{f.name('quantized_layers')}' is missing; MIXED_PRECISION needs it")
    f.ignore("config_groups", "group_size")
    groups: dict[Format, list[str]] = {}
    for name, given in layers.items():
        where = f.name(f"quantized_layers.{name[:80]}")
        if not isinstance(given, dict):
            raise f.error(f"field '{where}' is {show(given)}; an object is accepted")
        stored = _algorithm(f, given.get("quant_algo"), f"{where}.quant_algo", given.get("group_size"))
        groups.setdefault(stored, []).append(name)
    for names in groups.values():
        f.check(tuple(names), "quantized_layers")
    return f.quantization(*(Rule(k, tuple(v)) for k, v in groups.items()), ignored=ignored, kv=cache)


def _algorithm(f: Asked, value: Any, name: str, group: Any) -> Format:
    if not isinstance(value, str) or value.upper() not in _ALGORITHMS:
        raise f.error(f"field '{name}' is {show(value)}; accepted: {', '.join(_ALGORITHMS)}, MIXED_PRECISION")
    stored = _ALGORITHMS[value.upper()]
    if group is None or not stored.columns:
        return stored
    if type(group) is not int or not 0 < group <= 1_000_000:
        raise f.error(
            f"field '{name.replace('quant_algo', 'group_size')}' is {show(group)}; a whole number is accepted"
        )
    return stored._replace(columns=group)


METHODS: dict[str, Callable[[Asked], Quantization]] = {
    "fp8": _fp8,
    "mxfp8": _mxfp8,
    "fbgemm_fp8": _fbgemm_fp8,
    "mxfp4": _mxfp4,
    "awq": _awq,
    "gptq": _gptq,
    "compressed-tensors": _compressed_tensors,
    "bitsandbytes": _bitsandbytes,
    "modelopt": _modelopt,
    "modelopt_fp4": _modelopt,
    "modelopt_fp8": _modelopt,
}
