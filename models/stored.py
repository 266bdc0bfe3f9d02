"""What each weight of a model is stored as: the rules of a Quantization against the names of the modules.

Weights are named as transformers 5 has them, where experts are two stacked tensors; the lists of a checkpoint speak
of its own modules: one for every expert and projection, under the names of its family's first release.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from typing import NamedTuple

from capplan.models.patterns import Patterns
from capplan.models.quantization import Format, Quantization, Rule, patterns
from capplan.models.spec import Attention, CompressedAttention, LatentAttention, Layer, State, Weight

# what stands before `layers.N` or `lm_head` in one release or another
_PREFIXES = ("model.", "language_model.model.", "model.language_model.", "language_model.", "backbone.", "")
_WIDEST = ("language_model.model.", "model.language_model.", "backbone.")  # the other names are part of these
_LAYERS = re.compile(r"(?:^|\.)((?:layers|h|blocks?)\.N\..*)$")
_MOES = ("mlp", "block_sparse_moe", "feed_forward", "ffn", "moe")
# the modules that one tensor of transformers 5 may be in a checkpoint
_HALVES = {"gate_up_proj": (("gate_proj", "w1"), ("up_proj", "w3"))}
_OTHERS = {
    "gate_proj": ("w1",),
    "up_proj": ("w3",),
    "down_proj": ("w2",),
    "q_proj": ("qkv_proj",),
    "k_proj": ("qkv_proj",),
    "v_proj": ("qkv_proj",),
    "q_a_proj": ("wq_a", "fused_qkv_a_proj"),
    "q_b_proj": ("wq_b",),
    "kv_a_proj_with_mqa": ("fused_qkv_a_proj",),
    "kv_proj": ("wkv",),
    "o_a_proj": ("wo_a",),
    "o_b_proj": ("wo_b",),
}
_LINEAR = ("attention", "index", "mixer", "mlp", "shared", "experts")
# matrices that engines and exporters leave as trained whatever a list says
_NEVER = (
    *("weights_proj", "conv1d", "conv", "shared_expert_gate", "eh_proj"),
    *("latent_down_proj", "latent_up_proj"),  # of Kimi K3, whose list does not name them
)
_MANY = 100_000  # experts of all layers, beyond which a list that tells them apart is not followed
_EXPERT_NUMBER = re.compile(r"experts\W*\d")


class Stored(NamedTuple):
    """So many matrices of a weight that are stored alike."""

    weight: Weight
    rows: int
    columns: int
    matrices: int
    format: Format | None  # None: not quantised


def stored(
    weights: Iterable[Weight], layers: Sequence[Layer], hidden: int, quantization: Quantization | None
) -> Iterator[Stored]:
    """Every weight with its format, once for every format it has in some layers."""
    for weight in weights:
        if quantization is None or not _is_matrix(weight):
            yield _whole(weight)
        else:
            yield from _by_format(_upright(weight, hidden), layers, quantization)


def _upright(weight: Weight, hidden: int) -> Weight:
    """With output features first: gpt-oss and Llama 4 have their stacked experts the other way round."""
    if len(weight.shape) < 3:
        return weight
    count, rows, columns = weight.shape
    up = weight.name.rsplit(".", 1)[-1] in ("gate_up_proj", "up_proj")
    turned = (rows, columns)[up] != hidden == (rows, columns)[not up]
    return weight._replace(shape=(count, columns, rows)) if turned else weight


def _whole(weight: Weight) -> Stored:
    columns = weight.shape[-1] if weight.shape else 1
    return Stored(weight, weight.parameters // weight.copies // columns, columns, weight.copies, None)


def _by_format(weight: Weight, layers: Sequence[Layer], quantization: Quantization) -> Iterator[Stored]:
    rules = [rule for rule in quantization.rules if rule.targets or _is_linear(weight, quantization)]
    if not rules:
        yield _whole(weight)
        return
    # experts lie in one tensor of three dimensions, or are numbered in the name
    stacked = len(weight.shape) == 3
    experts = weight.shape[0] if stacked else weight.experts if ".experts.N." in weight.name else 1
    parts = _parts(weight.name, stacked)
    rows, columns = weight.shape[-2] // len(parts), weight.shape[-1]
    numbers = _layer_numbers(weight, experts if not stacked else 1, layers)
    for templates in parts:
        found = _formats(tuple(templates), tuple(numbers), experts, tuple(rules), quantization)
        for format_, count in found.items():
            yield Stored(weight, rows, columns, count, format_)


def _is_matrix(weight: Weight) -> bool:
    """Whether it can be quantised at all: not a vector, a convolution, a bias of experts or what is never."""
    stacked = weight.bucket == "experts" and weight.experts > 1 and weight.shape[0] == weight.experts
    dimensions = 3 if stacked else 2
    if len(weight.shape) != dimensions or weight.shape[-2] == 1 or weight.name.endswith("bias"):
        return False
    return not any(part in _NEVER for part in weight.name.split("."))


def _is_linear(weight: Weight, quantization: Quantization) -> bool:
    if weight.bucket == "head":
        return quantization.head
    return weight.bucket in _LINEAR and (weight.name.endswith(".weight") or len(weight.shape) == 3)


def _parts(name: str, stacked: bool) -> list[list[str]]:
    """Templates of the modules' names, for each matrix that a tensor is in a checkpoint."""
    name = name.removesuffix(".weight")
    match = _LAYERS.search(name)
    core = match[1].replace(".N.", ".{layer}.", 1) if match else name.split("model.")[-1]
    core = core.replace(".experts.N.", ".experts.{expert}.").replace(".N", ".0").replace(".mtp_block.", ".")
    stem, _, leaf = core.rpartition(".")
    dot = "." if stem else ""
    if stacked:
        halves = _HALVES.get(leaf, ((leaf, *_OTHERS.get(leaf, ())),))
        found = [_spelt([f"{stem}.{{expert}}.{one}" for one in half] + [f"{stem}.{leaf}"]) for half in halves]
    else:
        leaves = (leaf, *_OTHERS.get(leaf, ()), *(x for half in _HALVES.get(leaf, ()) for x in half))
        found = [_spelt([f"{stem}{dot}{one}" for one in leaves])]
    if name.startswith("mtp."):  # a layer after the last to some, apart to others
        found = [[*names, *(n.replace("layers.{layer}.", "mtp.layers.0.") for n in names)] for names in found]
    return found


def _spelt(cores: list[str]) -> list[str]:
    """With every prefix, and every name that the mixture's block goes by."""
    found = []
    for core in cores:
        pieces = core.split(".")
        block = next((i for i, piece in enumerate(pieces) if piece in _MOES), None)
        blocks = _MOES if block is not None and "experts" in pieces else ("",)
        for spelling in blocks:
            if spelling and block is not None:
                pieces[block] = spelling
            found += [prefix + ".".join(pieces) for prefix in _PREFIXES]
    return found


def _layer_numbers(weight: Weight, experts: int, layers: Sequence[Layer]) -> Sequence[int]:
    """Which layers have this weight; where nothing says so, dense mlps come first and experts last."""
    every, copies = range(len(layers)), max(1, weight.copies // experts)
    if weight.name.startswith("mtp."):  # draft layers are numbered on from the last
        return range(len(layers), len(layers) + copies)
    if ".N" not in weight.name or copies >= len(layers):
        return range(copies)
    kinds = {
        "attention": [i for i in every if any(isinstance(p, _ATTENDING) for p in layers[i])],
        "index": [i for i in every if any(getattr(p, "index_dim", 0) for p in layers[i])],
        "mixer": [i for i in every if any(isinstance(p, State) for p in layers[i])],
    }
    numbers = kinds.get(weight.bucket, [i for i in every if not layers[i]])
    if len(numbers) == copies:
        return numbers
    return every[:copies] if weight.bucket == "mlp" else every[len(layers) - copies :]


_ATTENDING = (Attention, LatentAttention, CompressedAttention)


@lru_cache(maxsize=4096)  # every rank of every deployment of a model asks the same
def _formats(
    templates: tuple[str, ...],
    numbers: tuple[int, ...],
    experts: int,
    rules: tuple[Rule, ...],
    quantization: Quantization,
) -> Counter[Format | None]:
    """How many of the matrices have which format."""
    lists = [patterns(quantization.ignored), *(patterns(rule.targets) for rule in rules)]
    apart = experts > 1 and len(numbers) * experts <= _MANY and any(map(_tells_experts_apart, lists))
    chosen = range(experts) if apart else (0,)
    widest = [t for t in templates if t.startswith(_WIDEST)]
    narrow = [
        [(t, few) for t in (templates if p.expressions else widest) if (few := p.narrowed(_as_template(t)))]
        for p in lists
    ]
    # where no entry tells layers apart, those with as many digits are alike
    alike = not apart and not any(few.of_layers for found in narrow for _, few in found)
    count: Counter[Format | None] = Counter()
    seen: dict[int, Format | None] = {}
    for layer in numbers:
        for expert in chosen:
            digits = len(str(layer))
            if not alike or digits not in seen:
                seen[digits] = _decided(narrow, rules, layer, expert)
            count[seen[digits]] += experts // len(chosen)
    return count


def _decided(
    narrow: list[list[tuple[str, Patterns]]], rules: tuple[Rule, ...], layer: int, expert: int
) -> Format | None:
    ignored, *targets = (
        any(few.match(t.format(layer=layer, expert=expert)) for t, few in found) for found in narrow
    )
    if ignored:
        return None
    named = (rule.format for rule, matched in zip(rules, targets, strict=True) if matched)
    return next(named, None) or next((rule.format for rule in rules if rule.linear), None)


def _as_template(template: str) -> str:
    return template.replace("{layer}", "N").replace("{expert}", "N")


def _tells_experts_apart(entries: Patterns) -> bool:
    return any(_EXPERT_NUMBER.search(entry) for entry in entries.entries)


def dominant(
    weights: Iterable[Weight], layers: Sequence[Layer], hidden: int, quantization: Quantization
) -> Format:
    """The format that most quantised parameters have."""
    formats = quantization.formats
    if len(formats) == 1:
        return formats[0]
    count: Counter[Format] = Counter()
    for part in stored(weights, layers, hidden, quantization):
        if part.format:
            count[part.format] += part.matrices * part.rows * part.columns
    return count.most_common(1)[0][0] if count else formats[0]
