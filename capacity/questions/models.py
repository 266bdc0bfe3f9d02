"""Which models are on record, and what is known of one?"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from capplan.capacity.answer import Answer, Working
from capplan.capacity.cache import Cache, cache
from capplan.capacity.questions import asked, model_terms
from capplan.errors import InputError
from capplan.models.registry import all_models
from capplan.models.spec import BUCKETS, CompressedAttention, LatentAttention, Layer, Model, State
from capplan.units import gib

if TYPE_CHECKING:
    from capplan.report import Report

_BASIS = {
    "read": "read in the source",
    "recalled": "recalled, no config file seen",
    "class-defaults": "defaults of the transformers class",
    "stated": "stated as a round size",
}


# the kinds of layers, a letter each
LETTERS = {
    "F": "attention over the whole context",
    "S": "attention over a sliding window",
    "C": "attention over a chunk",
    "B": "attention over chosen blocks, with index keys",
    "M": "latent attention",
    "D": "latent attention with an indexer",
    "A": "compressed attention, with an indexer",
    "H": "compressed attention",
    "L": "a recurrent state",
    "V": "a short convolution",
    "P": "attention and a recurrent state side by side",
    "X": "cross-attention, alone or after attention of its own",
    "s": "shares the cache of an earlier layer",
    "N": "caches nothing",
}


def _text(value: object) -> str:
    return f"{value:,.12g}" if isinstance(value, int | float) else str(value)


def _at(kept: Cache, context: int) -> float:
    return kept.slope * context + kept.fixed + sum(stream.bytes_at(context) for stream in kept.windows)


def letter(layer: Layer) -> str:
    """The letter of a layer's kind."""
    if not layer:
        return "N"
    states = sum(isinstance(part, State) for part in layer)
    if 0 < states < len(layer):
        return "P"
    if len(layer) > 1 and not states:
        return "X"
    part = layer[0]
    if isinstance(part, State):
        return "V" if not part.recurrent else "L"
    if isinstance(part, CompressedAttention):
        return "A" if part.index_dim else "s" if part.reads_pooled else "H" if part.ratio else "S"
    if part.shared:
        return "s"
    if isinstance(part, LatentAttention):
        return "D" if part.index_dim else "M"
    if part.cross:
        return "X"
    if part.window is not None:
        return "C" if part.chunked else "S"
    return "B" if part.index_dim else "F"


def terms_of(kept: Cache) -> tuple[str, ...]:
    """The cache function, a line a term."""
    lines = []
    for stream in kept.streams:
        size = f"{stream.layers} x {stream.entry_bytes:,.10g}"
        if not stream.every:
            term = size
        else:
            count = "T" if not stream.encoder else "encoder tokens"
            count = f"{count} / {stream.every}" if stream.every > 1 else count
            term = f"{size} x {count}" if stream.most is None else f"{size} x min({count}, {stream.most:,})"
        lines.append(f"+ {term}   {stream.part.replace('_', ' ')}: {stream.entry}")
    return tuple(lines)


@dataclass(frozen=True, slots=True, kw_only=True)
class Models(Answer):
    """The models on record that pass a filter."""

    question: ClassVar[str] = "models"

    models: tuple[dict[str, Any], ...]

    def sweep(self) -> list[dict[str, Any]]:
        return [dict(row) for row in self.models]

    def report(self) -> Report:
        from capplan.report import Report, Table

        rows = tuple(
            (
                row["id"],
                row["family"],
                f"{row['params_total'] / 1e9:,.4g}",
                f"{row['params_active'] / 1e9:,.4g}",
                str(row["layers"]),
                f"{row['kv_bytes_per_token'] / 1024:,.4g}",
                *(gib(size) for size in row["kv_bytes_at"].values()),
                gib(row["state_bytes_per_sequence"]) if row["state_bytes_per_sequence"] else "-",
                f"{row['max_context']:,}" if row["max_context"] else "-",
                row["basis"],
            )
            for row in self.models
        )
        heads = (
            "id",
            "family",
            "params, B",
            "active, B",
            "layers",
            "KiB a token",
            "KV at 8k",
            "KV at 128k",
            "state",
            "max context",
            "dimensions",
        )
        count = len(self.models)
        headline = f"{count} model{'' if count == 1 else 's'}; KV cache in 16 bit"
        return Report(headline, (Table(rows, heads),) if rows else (), self.assumptions, self.warnings)


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelFacts(Answer):
    """Everything on record of one model."""

    question: ClassVar[str] = "model"

    model: dict[str, Any]
    layer_map: str  # a letter a layer: see LETTERS
    cache: tuple[str, ...]  # the cache function, term by term
    params_by_bucket: dict[str, int]
    weights: tuple[dict[str, Any], ...]
    notes: tuple[str, ...]

    def sweep(self) -> list[dict[str, Any]]:
        return [dict(weight) for weight in self.weights]

    def report(self) -> Report:
        from capplan.report import Report, Table

        about = self.model
        buckets = tuple((bucket, f"{count:,}") for bucket, count in self.params_by_bucket.items() if count)
        tensors = tuple(
            (
                weight["name"],
                " x ".join(str(n) for n in weight["shape"]),
                f"{weight['copies']} of them" if weight["copies"] > 1 else "",
            )
            for weight in self.weights
        )
        used = tuple((letter, words) for letter, words in LETTERS.items() if letter in self.layer_map)
        strip = tuple((self.layer_map[i : i + 60],) for i in range(0, len(self.layer_map), 60))
        tables = (
            Table(
                tuple((name.replace("_", " "), _text(value)) for name, value in about.items() if value),
                words=True,
            ),
            Table(strip, title="Layers"),
            Table(used, words=True),
            Table(tuple((line,) for line in self.cache), title="Cache of a request of T tokens [byte]"),
            Table(buckets, title="Parameters"),
            Table(tensors, title="Tensors"),
            Table(tuple((note,) for note in self.notes), title="Notes"),
        )
        return Report(
            about["name"], tuple(table for table in tables if table.rows), self.assumptions, self.warnings
        )


def models(*, containing: str = "") -> Models:
    """The models on record whose id, name, family or an alias contains a text."""
    if not isinstance(containing, str):
        raise InputError(f"filter {containing!r} is not a text")
    wanted = containing.lower()
    found = [
        model
        for model in all_models()
        if wanted in " ".join((model.id, model.name, model.family, *model.aliases)).lower()
    ]
    return Models(
        inputs={"containing": containing},
        models=tuple(
            {
                "id": model.id,
                "name": model.name,
                "family": model.family,
                "params_total": model.parameters_total,
                "params_active": model.parameters_active,
                "layers": len(model.layers),
                "kv_bytes_per_token": kept.slope,
                "state_bytes_per_sequence": kept.fixed,
                "kv_bytes_at": {str(length): _at(kept, length) for length in (8_000, 128_000)},
                "max_context": model.max_context,
                "basis": model.basis,
            }
            for model, kept in ((model, cache(model, "bf16")) for model in found)
        ),
    )


def model_facts(model: str | Model) -> ModelFacts:
    """Everything on record of one model. Raises UnknownNameError, DataFileError."""
    spec = asked.as_model(model)
    work = Working()
    work.assume(*asked.assumed_of(spec))
    kept = model_terms.cache_of(spec, "bf16", work)
    return ModelFacts(
        inputs={"model": spec.id},
        model={
            "id": spec.id,
            "name": spec.name,
            "aliases": ", ".join(spec.aliases),
            "family": spec.family,
            "released": spec.released,
            "parameters": spec.parameters_total,
            "active_parameters": spec.parameters_active,
            "active_parameters_without_embedding": spec.parameters_active_without_embedding,
            "dtype": spec.dtype,
            "layers": len(spec.layers),
            "hidden_size": spec.hidden_size,
            "vocab_size": spec.vocab_size,
            "max_context": spec.max_context,
            "kv_bytes_per_token": kept.slope,
            "dimensions": _BASIS.get(spec.basis, spec.basis),
            "source": spec.source,
            "checked": spec.checked,
        },
        layer_map="".join(letter(layer) for layer in spec.layers),
        cache=terms_of(kept),
        params_by_bucket={bucket: spec.parameters((bucket,)) for bucket in BUCKETS},
        weights=tuple(
            {
                "name": weight.name,
                "shape": list(weight.shape),
                "copies": weight.copies,
                "bucket": weight.bucket,
                "parameters": weight.parameters,
            }
            for weight in spec.weights
        ),
        notes=spec.notes,
        **work.shown(),
    )
