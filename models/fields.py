"""The fields of a config.json, read by name; what nobody read is judged at the end."""

from __future__ import annotations

from typing import Any, TypeVar

from capplan.errors import DataFileError

T = TypeVar("T")

MAX_SIZE = 10_000_000  # of one dimension; the largest vocabularies are under a million
MAX_LAYERS = 10_000
MAX_UNKNOWN = 20  # unknown fields named one by one

# Part of a field's name -> what it tells of; the first match counts.
FEATURES = {
    "vision": "vision",
    "image": "vision",
    "video": "vision",
    "audio": "audio",
    "speech": "audio",
    "text_config": "a nested language model",
    "language_config": "a nested language model",
    "llm_config": "a nested language model",
    "thinker": "a nested language model",
    "expert": "experts",
    "moe": "experts",
    "router": "experts",
    "n_group": "experts",
    "index": "an attention indexer",
    "topk": "experts",
    "kv_lora": "latent attention",
    "q_lora": "latent attention",
    "qk_nope": "latent attention",
    "qk_rope": "latent attention",
    "latent": "latent attention",
    "lora": "low-rank projections",
    "nextn": "draft layers",
    "mtp": "draft layers",
    "draft": "draft layers",
    "mamba": "state-space layers",
    "ssm": "state-space layers",
    "state_size": "state-space layers",
    "d_state": "state-space layers",
    "time_step": "state-space layers",
    "conv": "convolution layers",
    "linear_": "linear attention",
    "attention_interval": "linear attention",
    "recurrent": "recurrent layers",
    "lru": "recurrent layers",
    "sliding": "sliding windows",
    "window": "sliding windows",
    "swa": "sliding windows",
    "chunk": "chunked attention",
    "compress": "compression",
    "quant": "quantised weights",
    "layer_types": "layers of more than one kind",
    "pattern": "layers of more than one kind",
    "hybrid": "layers of more than one kind",
    "block_type": "layers of more than one kind",
    "block_configs": "layers of more than one kind",
    "global": "layers of more than one kind",
    "attn_layer": "layers of more than one kind",
    "sparse": "sparse layers",
    "kv_share": "layers that share a cache",
    "use_cla": "layers that share a cache",
    "share": "shared parts",
    "cross": "cross-attention",
    "encoder": "an encoder",
    "d_kv": "an encoder",
    "per_layer": "per-layer embeddings",
    "altup": "per-layer embeddings",
    "laurel": "per-layer embeddings",
    "engram": "n-gram tables",
    "ngram": "n-gram tables",
    "hash": "n-gram tables",
    "sinkhorn": "hyper-connections",
    "hc_": "hyper-connections",
    "sink": "attention sinks",
    "qk_": "query and key norms",
    "gate": "gates",
    "bias": "biases",
    "embed": "other embeddings",
    "norm": "other norms",
    "mlp": "another mlp",
    "ffn": "another mlp",
    "intermediate": "another mlp",
    "multi_query": "other attention heads",
    "key_value": "other attention heads",
    "kv_": "other attention heads",
    "head": "other attention heads",
    "layers": "other layers",
}

# Features that every plain decoder has in some measure: they explain nothing about an unknown one
_PLAIN = {"biases", "other embeddings", "other norms", "another mlp", "other attention heads", "other layers"}

# Fields that change no weight and no cache, whatever they hold.
_HARMLESS = {
    *("architectures", "auto_map", "transformers_version", "torchscript", "model_type", "_name_or_path", "name"),
    *("_attn_implementation", "_attn_implementation_autoset", "attn_implementation", "cache_implementation"),
    *("use_cache", "output_attentions", "output_hidden_states", "return_dict", "use_return_dict"),
    *("is_decoder", "pretraining_tp", "tensor_parallel_degree", "gradient_checkpointing", "use_flash_attn"),
    *("partial_rotary_factor", "original_max_position_embeddings", "no_rope_layers", "no_rope_layer_interval"),
    *("use_dynamic_ntk", "use_logn_attn", "position_embedding_type", "rope", "alibi", "original_rope"),
    *("initializer_range", "initializer_factor", "init_std", "init_method", "dropout", "layerdrop"),
    *("hidden_act", "hidden_activation", "activation", "activation_function", "activation_dropout"),
    *("attention_softmax_in_fp32", "scale_attention_softmax_in_fp32", "scale_attn_weights", "slow_but_exact"),
    *("scale_attn_by_inverse_layer_idx", "reorder_and_upcast_attn", "fp32_residual_connection"),
    *("attention_multiplier", "embedding_multiplier", "logits_scaling", "residual_multiplier", "logit_scale"),
    *("attn_logit_softcapping", "final_logit_softcapping", "query_pre_attn_scalar", "clip_qkv"),
    *("id2label", "label2id", "num_labels", "problem_type", "task_specific_params", "finetuning_task"),
    *("pruned_heads", "tokenizer_class", "prefix", "language", "license", "max_length", "min_length"),
    *("do_sample", "temperature", "top_k", "top_p", "typical_p", "num_beams", "num_beam_groups"),
    *("repetition_penalty", "length_penalty", "diversity_penalty", "early_stopping", "bad_words_ids"),
    *("no_repeat_ngram_size", "num_return_sequences", "output_scores"),
    *("suppress_tokens", "begin_suppress_tokens", "bos_token", "eos_token", "pad_token", "chat_template"),
    *("for_llm_compressor", "ignore_index"),
}  # fmt: skip
_HARMLESS_STARTS = ("rope_", "rotary", "summary_", "task_")
_HARMLESS_ENDS = ("_token_id", "_token_ids", "_token_index", "_dropout", "_pdrop", "_eps", "_epsilon")


def feature(name: str) -> str | None:
    """What a field's name speaks of, in words.

    >>> feature("kv_lora_rank"), feature("bos_token")
    ('latent attention', None)
    """
    lowered = name.lower()
    return next((words for part, words in FEATURES.items() if part in lowered), None)


def features(config: dict[str, Any]) -> list[str]:
    """The features a config speaks of, each with the field that says so; nested language models included."""
    found: dict[str, str] = {}
    nested = [v for k, v in config.items() if feature(k) == "a nested language model" and isinstance(v, dict)]
    for part in (config, *nested):
        for name, value in part.items():
            words = None if harmless(name) or not live(value) else feature(name)
            if words == "sliding windows" and part.get("use_sliding_window") is False:
                continue
            if words and words not in _PLAIN:
                found.setdefault(words, name)
    return [f"{words} ({show(name)})" for words, name in found.items()]


def harmless(name: str) -> bool:
    return name in _HARMLESS or name.startswith(_HARMLESS_STARTS) or name.endswith(_HARMLESS_ENDS)


def live(value: Any) -> bool:
    """Whether a value switches something on: not null, false, zero or empty."""
    return bool(value)


def show(value: Any) -> str:
    """A value for an error message: one short line, whatever it is."""
    if isinstance(value, dict | list):
        return f"{'an object' if isinstance(value, dict) else 'a list'} of {len(value):,}"
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    if isinstance(value, int) and value.bit_length() > 256:
        return "a huge number"  # Python refuses to print one of over 4,300 digits
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:56]}...{text[0] if isinstance(value, str) else ''}"


class Fields:
    """Typed reading of a config; remembers which fields were read and what was assumed."""

    def __init__(self, config: dict[str, Any], where: str = "") -> None:
        self.config = config
        self.where = where  # the file, for messages
        self.read: set[str] = set()
        self.assumptions: list[str] = []
        self.absent: list[str] = []  # fields that were looked for and are not there
        self.null: list[str] = []
        self.defaults: dict[str, int] = {}  # of the class, where configs of a family leave dimensions to it
        self.inner: list[Fields] = []  # of the language models inside, judged with this one

    def error(self, message: str) -> DataFileError:
        return DataFileError(f"{self.where}: {message}" if self.where else message)

    def find(self, *names: str) -> tuple[str, Any]:
        """The value under any of several names, with the name; (first name, None) if absent or null."""
        self.read.update(names)
        given = [(name, self.config[name]) for name in names if self.config.get(name) is not None]
        if not given:
            nulls = [name for name in names if name in self.config]
            missing = self.null if nulls else self.absent
            missing += [name for name in (nulls or names)[:1] if name not in missing]
            return names[0], self._class_default(*names)
        first, value = given[0]
        for name, other in given[1:]:
            nested = isinstance(value, dict | list)  # refused later; comparing could recurse deep
            if type(other) is not type(value) or (not nested and other != value):
                raise self.error(
                    f"fields '{first}' and '{name}' disagree: {show(value)} and {show(other)}; "
                    "one of them is enough"
                )
        return first, value

    def _class_default(self, *names: str) -> int | None:
        name = next((name for name in names if name in self.defaults), None)
        if name is None or any(other in self.config for other in names):  # null is no default
            return None
        return self.assume(name, self.defaults[name])

    def maybe(self, *names: str, most: int = MAX_SIZE) -> int | None:
        """A positive whole number, or None where the field is absent or null."""
        name, value = self.find(*names)
        if value is None:
            return None
        if type(value) is not int or not 0 < value <= most:
            raise self.error(
                f"field '{name}' is {show(value)}; a whole number from 1 to {most:,} is accepted"
            )
        return value

    def maybe_zero(self, *names: str, most: int = MAX_SIZE) -> int | None:
        """A whole number, zero allowed, or None where the field is absent or null."""
        if self.find(*names)[1] == 0 and type(self.find(*names)[1]) is int:
            return 0
        return self.maybe(*names, most=most)

    def count(self, *names: str, most: int = MAX_SIZE) -> int:
        """A positive whole number that has to be there."""
        value = self.maybe(*names, most=most)
        if value is None:
            name = next((n for n in names if n in self.config), None)
            what = f"field '{name}' is null" if name else f"field '{names[0]}' is missing"
            raise self.error(f"{what}; a whole number from 1 to {most:,} is needed")
        return value

    def count_or(self, default: int, *names: str) -> int:
        """A positive whole number, or the class's default if the field is absent: an assumption."""
        value = self.maybe(*names)
        return self.assume(names[0], default) if value is None else value

    def whole_or(self, default: int, *names: str) -> int:
        """A whole number, zero allowed, or the class's default if the field is absent: an assumption."""
        value = self.maybe_zero(*names)
        return self.assume(names[0], default) if value is None else value

    def numbers(
        self, *names: str, length: int | None = None, least: int = 0, most: int = MAX_SIZE
    ) -> list[int] | None:
        """A list of whole numbers, one a layer where a length is given; None where absent or null."""
        name, values = self.find(*names)
        if values is None:
            return None
        if type(values) is not list or len(values) > MAX_LAYERS or length not in (None, len(values)):
            of = "" if length is None else f" of {length:,}, one a layer,"
            raise self.error(f"field '{name}' is {show(values)}; a list{of} is accepted")
        for value in values:
            if type(value) is not int or not least <= value <= most:
                raise self.error(
                    f"field '{name}' has {show(value)}; whole numbers from {least} to {most:,} are accepted"
                )
        return values

    def flag(self, *names: str, default: bool = False) -> bool:
        name, value = self.find(*names)
        if value is None:  # null is false in Python
            return default and not any(name in self.config for name in names)
        if type(value) is not bool:
            raise self.error(f"field '{name}' is {show(value)}; true or false is accepted")
        return value

    def tied(self, default: bool) -> bool:
        """Whether the output projection is the embedding matrix."""
        name = "tie_word_embeddings"
        if self.config.get(name) is None:
            self.read.add(name)
            return self.assume(name, default)
        return self.flag(name)

    def text(self, *names: str) -> str | None:
        name, value = self.find(*names)
        if value is not None and type(value) is not str:
            raise self.error(f"field '{name}' is {show(value)}; a text is accepted")
        return value

    def part(self, *names: str) -> Fields:
        """The fields of an object in this config; what it assumes is assumed here."""
        name, config = self.find(*names)
        if type(config) is not dict:
            raise self.error(f"field '{name}' is {show(config)}; an object is needed")
        inner = Fields(config, f"{self.where}: {name}" if self.where else name)
        inner.assumptions = self.assumptions
        self.inner.append(inner)
        return inner

    def assume(self, name: str, default: T) -> T:
        model_type = show(self.config.get("model_type"))
        words = f"field '{name}' is absent and taken to be {show(default)}, the default of model_type {model_type}"
        if words not in self.assumptions:
            self.assumptions.append(words)
        return default

    def said_of_the_missing(self) -> list[str]:
        """One line for the fields that are not there and that no line of their own speaks of, one for null ones."""
        spoken = " ".join(self.assumptions)
        lines = []
        for words, found in (("absent", self.absent), ("null", self.null)):
            names = [name for name in found if f"'{name}'" not in spoken]
            if names:
                shown = ", ".join(names[:MAX_UNKNOWN])
                more = f" and {len(names) - MAX_UNKNOWN} more" if len(names) > MAX_UNKNOWN else ""
                lines.append(f"{words}, and taken as the class of model_type takes it: {shown}{more}")
        return lines

    def ignore(self, *names: str) -> None:
        """Fields that change nothing in this family."""
        self.read.update(names)

    def refuse_the_rest(self) -> None:
        """Judge the fields nobody read: refuse what may change the answer, note what is not known."""
        for inner in self.inner:
            inner.refuse_the_rest()
        unknown = []
        for name, value in self.config.items():
            if name in self.read or harmless(name) or not live(value):
                continue
            if words := feature(name):
                model_type = show(self.config.get("model_type"))
                raise self.error(
                    f"field {show(name)} ({words}) is not understood for model_type {model_type}"
                )
            unknown.append(name)
        taken = "not understood and taken to change nothing"
        self.assumptions += [f"field {show(name)} is {taken}" for name in unknown[:MAX_UNKNOWN]]
        if more := len(unknown[MAX_UNKNOWN:]):
            self.assumptions.append(f"{more:,} more fields are {taken}")
