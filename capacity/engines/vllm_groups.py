"""How vLLM puts layers in groups that share block tables: kv_cache_groups, with pages of one size."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from math import ceil, lcm
from typing import NamedTuple

from capplan.capacity.engines.vllm_rules import Rules
from capplan.capacity.engines.vllm_specs import LOCAL, KVCacheSpec, promoted


class RefusedError(Exception):
    """vLLM gives up: its words."""


class KVCacheGroup(NamedTuple):
    """Layers that share a block table."""

    specs: tuple[KVCacheSpec, ...]
    uniform: bool = False  # of one type, though not alike: each keeps its own page

    @property
    def kind(self) -> str:
        first = self.specs[0]
        if self.uniform:
            return f"uniform({first.kind})"
        seen = next((spec for spec in self.specs if spec.window is not None), first)
        local = (
            "" if first.kind != "full" or seen.window is None else "(chunk)" if seen.chunked else "(window)"
        )
        return first.kind + local

    @property
    def block_size(self) -> int:
        return self.specs[0].block_size

    @property
    def page_size_bytes(self) -> int:
        """The page of a layer; of all where they differ."""
        sizes = [spec.page_size_bytes for spec in self.specs]
        return sum(sizes) if self.uniform else sizes[0]

    def blocks(self, max_model_len: int, in_flight: int) -> int:
        return max(spec.blocks(max_model_len, in_flight) for spec in set(self.specs))


def kv_cache_groups(specs: Sequence[KVCacheSpec], rules: Rules, *, hybrid: bool) -> list[KVCacheGroup]:
    """The groups; raises RefusedError where vLLM refuses the model."""
    if not hybrid:
        specs = _all_promoted(specs, rules)
    if _alike(specs):
        return [KVCacheGroup(tuple(specs))]
    if _one_type(specs):
        return [KVCacheGroup(tuple(specs), uniform=True)]
    if any(spec.kind == "sliding_mla" for spec in specs):
        if rules.mixed == "none":
            raise RefusedError("other: this version does not know compressed attention")
        return _tuples(specs) if rules.mixed == "tuples" else _packed(specs)
    if any(spec.kind == "ring" for spec in specs):
        return _beside_an_index(specs)
    return _divided(_equal_pages(specs, rules), rules)


def _alike(specs: Sequence[KVCacheSpec]) -> bool:
    """Whether all layers have one spec; full attention may remember one window."""
    if any(spec.kind != "full" for spec in specs):
        return len(set(specs)) == 1
    windows = {(spec.window, spec.chunked) for spec in specs if spec.window is not None}
    return len({spec._replace(window=None, chunked=False) for spec in specs}) == 1 and len(windows) <= 1


def _one_type(specs: Sequence[KVCacheSpec]) -> bool:
    """Whether all layers need the same number of token slots."""
    if len({spec.block_size for spec in specs}) > 1:
        return False
    kinds = {spec.kind for spec in specs}
    if kinds <= {"full", "mla"}:
        return True
    return len(kinds) == 1 and len({(spec.window, spec.states) for spec in specs}) == 1


def _all_promoted(specs: Sequence[KVCacheSpec], rules: Rules) -> Sequence[KVCacheSpec]:
    if _alike(specs) or _one_type(specs):
        return specs
    if rules.mixed == "packed" and any(spec.kind == "sliding_mla" for spec in specs):
        raise RefusedError(
            "crash: TypeError"
        )  # 0.33 builds a spec of DeepSeek V4 with a field it does not have
    full = {spec.block_size for spec in specs if spec.kind in ("full", "mla")}
    if full:
        block = full.pop() if len(full) == 1 else None
        specs = [
            promoted(spec, block, alike=rules.promoted_alike) if spec.kind in LOCAL else spec
            for spec in specs
        ]
    if not (_alike(specs) or _one_type(specs)):
        raise RefusedError(f"other: {rules.refused}")
    return specs


def _equal_pages(specs: Sequence[KVCacheSpec], rules: Rules) -> Sequence[KVCacheSpec]:
    """Pages of one size: blocks of smaller pages hold more tokens; where that does not come out, bytes are padded."""
    largest = max(spec.page_size_bytes for spec in specs)
    if all(spec.page_size_bytes == largest for spec in specs):
        return specs
    if rules.pages == "equal":
        raise RefusedError("crash: NotImplementedError")
    return [_grown(spec, largest, rules) for spec in specs]


def _grown(spec: KVCacheSpec, page: int, rules: Rules) -> KVCacheSpec:
    times, rest = divmod(page, spec.page_size_bytes)
    if not rest and spec.kind != "mamba":
        return spec._replace(block_size=spec.block_size * times, page_size_bytes=page)
    unpadded = {"padded": "mamba", "padded_states": "mla"}.get(rules.pages, spec.kind)
    if spec.kind == unpadded:
        raise RefusedError("crash: NotImplementedError")
    return spec._replace(page_size_bytes=page)


def _divided(specs: Sequence[KVCacheSpec], rules: Rules) -> list[KVCacheGroup]:
    """Groups of one number of layers, each of one kind; the last of a kind may be short and is padded.

    The number is that of the rarest kind, or of the commonest where they are close.
    """
    counts = Counter(specs).values()
    size = max(counts) if max(counts) < min(counts) * rules.merge_below else min(counts)
    return _by_kind(specs, size)


def _by_kind(specs: Sequence[KVCacheSpec], size: int) -> list[KVCacheGroup]:
    """Groups of so many layers at most, each of one kind, whose layers they take in turn."""
    kinds: dict[KVCacheSpec, list[KVCacheSpec]] = {}
    for spec in specs:
        kinds.setdefault(spec, []).append(spec)
    groups = []
    for layers in kinds.values():
        count = ceil(len(layers) / size)
        groups += [KVCacheGroup(tuple(layers[i::count])) for i in range(count)]
    return groups


def _beside_an_index(specs: Sequence[KVCacheSpec]) -> list[KVCacheGroup]:
    """Qwen4-Exp: attention with its pooled keys packed beside it in a block; states and rings in groups of as many
    layers as attend."""
    growing = [spec for spec in specs if spec.kind in ("full", "mla")]
    others = [spec for spec in specs if spec.kind not in ("full", "mla")]
    size = max(1, sum(spec.kind == "full" for spec in growing))
    return [KVCacheGroup(tuple(growing), uniform=True), *_by_kind(others, size)]


# --- what a block costs ---------------------------------------------------------------------------------------


def bytes_per_block(groups: Sequence[KVCacheGroup], rules: Rules) -> int:
    """What one more block costs in the pool: groups lie over each other, so the widest decides."""
    if not in_tuples(groups, rules):
        widest = max(sum(spec.page_size_bytes for spec in group.specs) for group in groups)
        stride = lcm(*(spec.stride for group in groups for spec in group.specs))
        return stride * ceil(widest / stride)
    places: Counter[int] = Counter()  # by page size; a layer of every group may lie in one
    for group in groups:
        places |= Counter(spec.page_size_bytes for spec in group.specs)
    return sum(page * count for page, count in places.items())


def needed_per_block(groups: Sequence[KVCacheGroup], rules: Rules) -> int:
    """What a block of a request counts for when vLLM checks that one fits."""
    if not in_tuples(groups, rules):
        return bytes_per_block(groups, rules)
    pattern = {spec.page_size_bytes for spec in groups[0].specs}
    return sum(pattern) * max(_repeats(group.specs) for group in groups)


def in_tuples(groups: Sequence[KVCacheGroup], rules: Rules) -> bool:
    """Whether groups lie over each other layer by layer, as `_tuples` makes them: the latents first."""
    return rules.mixed == "tuples" and len(groups) > 1 and groups[0].kind == "uniform(mla)"


# --- layers of several page sizes: DeepSeek V4 ----------------------------------------------------------------


def _types(specs: Sequence[KVCacheSpec]) -> list[list[KVCacheSpec]]:
    """Layers of one type together, in the order they first come in."""
    found: list[list[KVCacheSpec]] = []
    for spec in specs:
        home = next((layers for layers in found if _one_type([layers[0], spec])), None)
        if home is None:
            found.append([spec])
        else:
            home.append(spec)
    return found


def _by_page(layers: Sequence[KVCacheSpec]) -> dict[int, list[KVCacheSpec]]:
    pages: dict[int, list[KVCacheSpec]] = {}
    for spec in layers:
        pages.setdefault(spec.page_size_bytes, []).append(spec)
    return pages


def _repeats(layers: Sequence[KVCacheSpec]) -> int:
    """Layers of the commonest page size: how often a pattern of one of each repeats."""
    return max(Counter(spec.page_size_bytes for spec in layers).values())


def _least_padding(counts: Sequence[int], at_least: int) -> int:
    """The group size, not below a bound, that pads the counts least; the larger of two equals.

    >>> _least_padding([43, 21, 20], 21)
    22
    """
    sizes = range(at_least, max(at_least, *counts) + 1)
    return min(sizes, key=lambda size: (sum(-count % size for count in counts), -size))


def _split(layers: Sequence[KVCacheSpec], count: int) -> list[KVCacheGroup]:
    if count == 1:
        return [KVCacheGroup(tuple(layers), uniform=True)]
    patterns = list(zip(*_by_page(layers).values(), strict=True))
    return [
        KVCacheGroup(tuple(spec for pattern in patterns[i::count] for spec in pattern), uniform=True)
        for i in range(count)
    ]


def _tuples(specs: Sequence[KVCacheSpec]) -> list[KVCacheGroup]:
    """0.24: the latents first, whole; windows in groups of as many layers, their pages raised to the latents'."""
    latents, *windows = sorted(_types(specs), key=lambda layers: layers[0].kind != "mla")
    pages = sorted({spec.page_size_bytes for spec in latents})
    raised = [
        [
            spec._replace(page_size_bytes=min(page for page in pages if page >= spec.page_size_bytes))
            for spec in layers
        ]
        for layers in windows
    ]
    size = _least_padding([_repeats(layers) for layers in (latents, *raised)], _repeats(latents))
    groups = [KVCacheGroup(tuple(latents), uniform=True)]
    for layers in raised:
        groups += _split(layers, ceil(_repeats(layers) / size))
    return groups


def _packed(specs: Sequence[KVCacheSpec]) -> list[KVCacheGroup]:
    """From 0.30: every type in groups of as many repeats of its pattern, packed side by side in a block."""
    if any(not spec.page_size_bytes for spec in specs):
        raise RefusedError("crash: ZeroDivisionError")  # a block shorter than a compressor's ratio
    types = _types(specs)
    patterns = [layers for layers in types if _balanced(layers)]
    mixed = [_repeats(layers) for layers in patterns if len(_by_page(layers)) > 1]
    size = _least_padding([_repeats(layers) for layers in patterns], max(mixed)) if mixed else None
    # rings, and windows where no pattern holds them together, fill blocks that the others need; they widen none
    loose = ("ring",) if size else ("ring", "sliding_mla")

    def count(layers: Sequence[KVCacheSpec]) -> int:
        return ceil(_repeats(layers) / size) if size and _balanced(layers) else 1

    def fills(layers: Sequence[KVCacheSpec]) -> bool:
        return layers[0].kind in loose

    block = max(_widest(layers, len(layers) if fills(layers) else count(layers)) for layers in types)
    groups = []
    for layers in types:
        fitting = max(block // layers[0].page_size_bytes, 1)
        fewest = ceil(len(layers) / fitting) if fills(layers) else 1
        groups += _split(layers, max(count(layers), fewest))
    return groups


def _balanced(layers: Sequence[KVCacheSpec]) -> bool:
    """Whether there are as many layers of every page size: a pattern repeats."""
    return len({len(same) for same in _by_page(layers).values()}) == 1


def _widest(layers: Sequence[KVCacheSpec], count: int) -> int:
    """Bytes of a block of the widest of so many groups."""
    return sum(ceil(len(same) / count) * page for page, same in _by_page(layers).items())
