"""How a checkpoint stores its matrices: a quantization_config, or modelopt's side file, as one record.

quantization_methods.py has a function for every method. A method, or a field that may change the bytes, which is
not known is refused by name.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple

from capplan.errors import DataFileError
from capplan.models.fields import Fields, harmless, live, show
from capplan.models.patterns import PatternError, Patterns

SIDE_FILE = "hf_quant_config.json"  # modelopt's
_PLACES = ("", "text_config", "language_config", "llm_config", "thinker_config")
_NAMES = ("quantization_config", "compression_config")


class Format(NamedTuple):
    """How one matrix is stored."""

    name: str  # fp8, int8, int4, mxfp4, nvfp4, mxfp8, nf4, fp4
    bits: int  # of an element
    rows: int = 1  # rows that share a scale; 0: all
    columns: int = 0  # columns that share it; 0: all
    scale_bytes: float = 4
    zero_bits: int = 0  # of a zero point, one beside every scale
    column_bytes: int = 0  # for every input column: its group (g_idx), or a smoothing factor
    matrix_bytes: int = 0  # once a matrix: a scale of scales, a scale of the inputs, its shape

    @property
    def dtype(self) -> str:
        """The precision that a planner calls it."""
        return {"mxfp8": "fp8", "nf4": "int4", "fp4": "int4"}.get(self.name, self.name)


class Rule(NamedTuple):
    """What a format applies to: modules by name, or every linear layer."""

    format: Format
    targets: tuple[str, ...] = ()  # names, globs and expressions, see patterns.py
    linear: bool = False


@dataclass(frozen=True, slots=True)
class Quantization:
    """What a checkpoint says of its storage."""

    method: str
    rules: tuple[Rule, ...]  # named targets before linear layers
    others: str = "bf16"  # of what is not quantised
    ignored: tuple[str, ...] = ()  # modules left alone
    head: bool = False  # the output projection is among the linear layers
    kv: str | None = None  # the cache that the checkpoint was made for
    source: str = _NAMES[0]  # the field or the file

    @property
    def formats(self) -> tuple[Format, ...]:
        return tuple(dict.fromkeys(rule.format for rule in self.rules))


@lru_cache(maxsize=64)
def patterns(entries: tuple[str, ...]) -> Patterns:
    return Patterns(entries)


def read(
    config: Mapping[str, Any], *, where: str = "", others: str = "bf16", side: Mapping[str, Any] | None = None
) -> tuple[Quantization | None, list[str]]:
    """What a config says of its weights, and what had to be assumed. `side` is the content of hf_quant_config.json.

    Raises:
        DataFileError: an unknown method or field, or a value that can't be.
    """
    source, given, model = _find(config, where)
    if given is None:
        if side is None:
            return None, []
        source, given, where = SIDE_FILE, side, where.replace("config.json", SIDE_FILE)
    from capplan.models.quantization_methods import METHODS

    asked = Asked(given, source, where, others, model)
    method = asked.method()
    if method is None or method not in METHODS:
        raise asked.error(
            f"field '{asked.name('quant_method')}' is {show(method)} (quantised weights); "
            f"accepted: {', '.join(METHODS)}"
        )
    found = METHODS[method](asked)
    asked.finish()
    return found, asked.fields.assumptions


def _find(config: Mapping[str, Any], where: str) -> tuple[str, Any, Mapping[str, Any]]:
    """The field's name, its object, and the language model's config; the outermost wins."""
    for place in _PLACES:
        part: Any = config.get(place) if place else config
        if place == "thinker_config" and isinstance(part, dict):
            part = part.get("text_config")
        if not isinstance(part, Mapping):
            continue
        for name in _NAMES:
            value = part.get(name)
            if not live(value):
                continue
            if not isinstance(value, dict):
                prefix = f"{where}: " if where else ""
                raise DataFileError(f"{prefix}field '{name}' is {show(value)}; an object is accepted")
            return (f"{place}.{name}" if place else name), value, part
    return "", None, config


class Asked:
    """The fields of a quantization_config, with their full names in messages."""

    def __init__(
        self, given: Mapping[str, Any], source: str, where: str, others: str, model: Mapping[str, Any]
    ) -> None:
        self.source, self.others, self.model = source, others, model
        if isinstance(given.get("quantization"), dict):  # modelopt nests
            given = (
                {"quant_method": "modelopt"}
                | {k: v for k, v in given.items() if k not in ("quantization", "producer")}
                | given["quantization"]
            )
        self.prefix = "" if source == SIDE_FILE else source + "."
        self.fields = Fields({self.prefix + k: v for k, v in given.items()}, where)

    def name(self, name: str) -> str:
        return self.prefix + name

    def error(self, message: str) -> DataFileError:
        return self.fields.error(message)

    def method(self) -> str | None:
        value = self.text("quant_method")
        if value is None and ("config_groups" in self):
            return "compressed-tensors"
        if value is None and ("quant_algo" in self):
            return "modelopt"
        return value.lower() if value else value

    def __contains__(self, name: str) -> bool:
        return live(self.fields.config.get(self.prefix + name))

    def text(self, *names: str) -> str | None:
        return self.fields.text(*map(self.name, names))

    def flag(self, *names: str, default: bool = False) -> bool:
        return self.fields.flag(*map(self.name, names), default=default)

    def object(self, name: str) -> dict[str, Any]:
        _, value = self.fields.find(self.name(name))
        if value is not None and not isinstance(value, dict):
            raise self.error(f"field '{self.name(name)}' is {show(value)}; an object is accepted")
        return value or {}

    def one_of(self, name: str, accepted: Mapping[Any, Any] | tuple[Any, ...], default: Any) -> Any:
        _, value = self.fields.find(self.name(name))
        value = default if value is None else value
        if isinstance(value, list | dict | bool) or value not in accepted:
            raise self.error(
                f"field '{self.name(name)}' is {show(value)}; accepted: {', '.join(map(str, accepted))}"
            )
        return accepted[value] if isinstance(accepted, Mapping) else value

    def group_size(self, default: int | None) -> int:
        """Columns that share a scale; 0: all of them, which files write as -1."""
        name = self.name("group_size")
        _, value = self.fields.find(name)
        value = default if value is None else value
        if value == -1 and type(value) is int:
            return 0
        if type(value) is not int or not 0 < value <= 1_000_000:
            raise self.error(f"field '{name}' is {show(value)}; a whole number, or -1, is accepted")
        return value

    def names(self, *names: str) -> tuple[str, ...]:
        """A list of modules under any of several names."""
        found: list[str] = []
        for name in names:
            _, value = self.fields.find(self.name(name))
            if isinstance(value, str):
                value = [value]
            if value is None:
                continue
            if not isinstance(value, list) or not all(type(entry) is str and entry for entry in value):
                raise self.error(
                    f"field '{self.name(name)}' is {show(value)}; a list of names of modules is accepted"
                )
            found += value
        self.check(tuple(found), names[0])
        return tuple(dict.fromkeys(found))

    def check(self, entries: tuple[str, ...], name: str) -> None:
        try:
            patterns(entries)
        except PatternError as error:
            raise self.error(f"field '{self.name(name)}': {error}") from error

    def block(self) -> tuple[int, int] | None:
        """weight_block_size: rows and columns of a scale's block."""
        name = self.name("weight_block_size")
        _, value = self.fields.find(name)
        if value is None:
            return None
        good = isinstance(value, list) and len(value) == 2
        if not good or not all(type(n) is int and 0 < n <= 1_000_000 for n in value):
            raise self.error(f"field '{name}' is {show(value)}; null or two whole numbers are accepted")
        return value[0], value[1]

    def ignore(self, *names: str) -> None:
        self.fields.ignore(*map(self.name, names))

    def assume(self, message: str) -> None:
        self.fields.assumptions.append(message)

    @property
    def other_bytes(self) -> int:
        return 4 if self.others == "fp32" else 2

    def quantization(self, *rules: Rule, **kwargs: Any) -> Quantization:
        method = self.method() or ""
        return Quantization(method, rules, others=self.others, source=self.source, **kwargs)

    def finish(self) -> None:
        """Refuse what nobody read and may change the bytes; note the rest."""
        for name, value in self.fields.config.items():
            short = name.removeprefix(self.prefix)
            if name in self.fields.read or short in _HARMLESS or harmless(short) or not live(value):
                continue
            if any(part in short.lower() for part in _SMELLS):
                raise self.error(
                    f"field {show(name)} may change how weights are stored, and is not understood"
                )
            self.assume(f"field {show(name)} is not understood and taken to change nothing")


# fields that change no byte of a checkpoint: what made it, how it is run
_HARMLESS = {
    *("quant_method", "version", "producer", "meta", "dataset", "tokenizer", "batch_size", "pad_token_id"),
    *("damp_percent", "damp_auto_increment", "static_groups", "true_sequential", "model_name_or_path"),
    *("model_file_base_name", "model_seqlen", "max_input_length", "cache_block_outputs", "use_cuda_fp16"),
    *("use_exllama", "disable_exllama", "exllama_config", "backend", "block_name_to_quantize", "mse"),
    *("module_name_preceding_first_block", "act_group_aware", "do_fuse", "fuse_max_seq_len", "modules_to_fuse"),
    *("dequantize", "run_compressed", "quantization_status", "global_compression_ratio", "activation_scale_ub"),
    *("llm_int8_threshold", "llm_int8_enable_fp32_cpu_offload", "llm_int8_has_fp16_weight"),
    *("bnb_4bit_compute_dtype", "bnb_4bit_quant_storage", "use_optimized_inference", "uri", "v2"),
    *("is_marlin_format", "hyb_act", "hessian", "nsamples", "seqlen", "iters", "lr", "minmax_lr", "amp"),
}  # fmt: skip
# what the name of a field that may change them speaks of
_SMELLS = (
    *("bit", "group", "block", "dtype", "format", "fmt", "scale", "zero", "module", "layer", "ignore", "exclude"),
    *("target", "sym", "strategy", "type", "dynamic", "pack", "rotat", "transform", "spars", "embed", "head"),
    *("expert", "weight", "algo", "lora", "outlier", "codebook", "convert", "quant", "act", "adapter", "skip"),
)  # fmt: skip
