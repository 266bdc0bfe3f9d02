"""The cache of a model as a function of context: fixed + slope * T + capped terms, from what each layer keeps.

Alike layers make a stream: entries of one size, one for so many tokens, up to so many. Engine rounding (blocks,
groups, pages) is a later stage. `view="transformers"` gives what transformers' own cache objects hold instead of
what a serving engine needs: windows one token shorter between steps, convolution states a column wider, streams
in the model's dtype.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import ceil
from typing import Literal, NamedTuple

from capplan.capacity import precision
from capplan.capacity.formula import formula
from capplan.models.spec import (
    Attention,
    CompressedAttention,
    LatentAttention,
    Layer,
    Model,
    State,
)

View = Literal["engine", "transformers"]

# Formats of recurrent states
STATES = {name: int(size) for name, size in precision.WEIGHTS.items() if size in (1, 2, 4)}


class Stream(NamedTuple):
    """What alike layers keep of a sequence on one rank."""

    part: str  # kv_full, kv_window, cross_kv, index_keys, compressed_kv, conv_state, recurrent_state, ...
    entry_bytes: float  # one entry of one layer
    entry: str  # the same in words
    layers: int = 1
    every: int = 1  # tokens to an entry; 0: one for the whole sequence
    most: int | None = None  # entries kept
    cycle: int = 0  # entries start anew after so many tokens; 0: they never do
    encoder: bool = False  # its tokens are the encoder's
    plain: tuple[int, int, float] | None = None  # KV heads, width and bytes of an element, where that is all

    def entries(self, tokens: int) -> int:
        """Entries a layer holds after so many tokens."""
        if not self.every:
            return 1
        full = (tokens % self.cycle if self.cycle else tokens) // self.every
        return full if self.most is None else min(full, self.most)

    def bytes_at(self, tokens: int) -> float:
        """Bytes of all its layers after so many tokens."""
        return self.layers * self.entry_bytes * self.entries(tokens)

    @property
    def slope(self) -> float:
        """Bytes that every further token adds for ever [byte/token]."""
        grows = self.every and self.most is None and not self.cycle and not self.encoder
        return self.layers * self.entry_bytes / self.every if grows else 0.0


class Cache(NamedTuple):
    """The cache of one sequence on one rank."""

    streams: tuple[Stream, ...]

    @property
    def slope(self) -> float:
        """Bytes that every token of context adds [byte/token]."""
        return sum(stream.slope for stream in self.streams)

    @property
    def fixed(self) -> float:
        """Bytes a sequence holds however long it is [byte]."""
        return sum(stream.bytes_at(0) for stream in self.streams if not stream.every)

    @property
    def windows(self) -> tuple[Stream, ...]:
        """The capped terms: streams that stop growing."""
        return tuple(stream for stream in self.streams if stream.most is not None)

    def bytes_at(self, tokens: int, encoder_tokens: int = 0) -> float:
        """Bytes of a sequence of so many tokens [byte]."""
        return sum(s.bytes_at(encoder_tokens if s.encoder else tokens) for s in self.streams)

    def parts_at(self, tokens: int, encoder_tokens: int = 0) -> dict[str, float]:
        """The same by part."""
        found: dict[str, float] = {}
        for s in self.streams:
            held = s.bytes_at(encoder_tokens if s.encoder else tokens)
            found[s.part] = found.get(s.part, 0) + held
        return found


def cache(
    model: Model,
    kv: str = "bf16",
    *,
    state: str = "auto",
    tp: int = 1,
    dcp: int = 1,
    drafts: bool = False,
    view: View = "engine",
) -> Cache:
    """The cache of one sequence on one rank.

    kv: format of keys and values; index keys and states have their own.
    state: precision of recurrent states; `auto` is what vLLM takes for the model.
    tp: ranks that share the heads of a layer; a latent vector is whole on each.
    dcp: ranks that share the tokens of full attention (decode context parallel).
    drafts: with the draft (MTP) layers, as under speculation.
    """
    layers: tuple[Layer, ...] = model.layers + (model.draft_layers if drafts else ())
    count: dict[Stream, int] = {}
    for layer in layers:
        for part in layer:
            if view == "engine" and isinstance(part, Attention) and _never_left(part, model.max_context):
                part = part._replace(window=None)
            for stream in _streams(part, kv, state, tp, view):
                if stream.entry_bytes:
                    count[stream] = count.get(stream, 0) + 1
    merged = (stream._replace(layers=n) for stream, n in count.items())
    return Cache(tuple(_divided(stream, dcp) for stream in merged))


def _divided(stream: Stream, dcp: int) -> Stream:
    divisible = dcp > 1 and stream.every and stream.most is None and not stream.encoder
    return stream._replace(entry_bytes=stream.entry_bytes / dcp) if divisible else stream


def _never_left(part: Attention, context: int | None) -> bool:
    """Whether a window is as long as the longest context: it caps nothing."""
    return part.window is not None and not part.chunked and context is not None and part.window >= context


def heads_per_rank(heads: int, tp: int) -> int:
    """KV heads that a rank keeps: copies past their number.

    >>> heads_per_rank(8, 4), heads_per_rank(8, 16)
    (2, 1)
    """
    return max(1, ceil(heads / tp))


def _streams(
    part: Attention | LatentAttention | CompressedAttention | State, kv: str, state: str, tp: int, view: View
) -> Iterator[Stream]:
    if isinstance(part, Attention):
        yield from _attention(part, kv, tp, view)
    elif isinstance(part, LatentAttention):
        yield from _latent(part, kv, view)
    elif isinstance(part, CompressedAttention):
        yield from _compressed(part, kv, view)
    else:
        yield from _state(part, state, tp, view)


def _attention(part: Attention, kv: str, tp: int, view: View) -> Iterator[Stream]:
    if part.shared:
        return
    repeated = part.repeated and view == "transformers"
    heads = heads_per_rank(part.heads if repeated else part.kv_heads, tp)
    size = heads * precision.head_bytes(kv, part.head_dim, part.v_head_dim)
    words = f"{heads} KV heads x ({part.head_dim} + {part.v_head_dim}) in {kv}"
    if part.cross:
        yield Stream("cross_kv", size, words, encoder=True)
    elif part.window is None:
        element = precision.head_bytes(kv, 1, 1) / 2
        alike = part.head_dim == part.v_head_dim and size == 2 * heads * part.head_dim * element
        yield Stream("kv_full", size, words, plain=(heads, part.head_dim, element) if alike else None)
    else:
        yield Stream("kv_window", size, words, most=_kept(part.window, view, part.held_spare))
    if part.index_dim:
        every = 1 if view == "transformers" else part.index_every  # it pools anew for every query
        yield Stream("index_keys", 2 * part.index_dim, f"index key of {part.index_dim} in bf16", every=every)


def _latent(part: LatentAttention, kv: str, view: View) -> Iterator[Stream]:
    if not part.shared:
        rope = part.rope if part.roped or view == "engine" else 0
        size = precision.latent_bytes(kv, part.latent, rope)
        words = f"latent of {part.latent} + {rope} in {kv}"
        if part.window is None:
            yield Stream("kv_full", size, words)
        else:
            yield Stream("kv_window", size, words, most=_kept(part.window, view))
    if part.index_dim and part.index_every > 1 and view == "transformers":  # it pools anew for every query
        words = f"index key of {part.index_dim}, its gate and a mark, in bf16"
        yield Stream("index_keys", 2 * (2 * part.index_dim + 1), words)
    elif part.index_dim:
        element = 4 if part.index_fp32 else 2
        yield _index("index_keys", part.index_dim, part.index_every, view, element)


def _kept(window: int, view: View, spare: int = 0) -> int:
    """Tokens held between steps: transformers lets one go before the next token completes the window."""
    return window - 1 + spare if view == "transformers" else window


def _index(name: str, width: int, every: int, view: View, element: int = 2) -> Stream:
    if view == "transformers":
        return Stream(name, element * width, f"index key of {width}, {element} bytes an element", every=every)
    words = f"index key of {width} in fp8 with a scale for 128"
    return Stream(name, precision.index_bytes(width), words, every=every)


def _compressed(part: CompressedAttention, kv: str, view: View) -> Iterator[Stream]:
    row = precision.compressed_bytes(kv, part.width, part.rope)
    words = f"vector of {part.width} in {kv}"
    # there keys and values, equal, are kept apart
    twice = 2 if view == "transformers" and not part.ratio else 1
    yield Stream("kv_window", twice * row, words, most=_kept(part.window, view))
    if not part.ratio or part.reads_pooled:
        return
    yield Stream("compressed_kv", row, f"pooled {words}", every=part.ratio)
    if part.index_dim:
        yield _index("index_keys_compressed", part.index_dim, part.ratio, view)
    if part.ratio == 1:
        return  # nothing waits for the tokens of its pool
    both = 2 if part.overlap else 1
    keys = 0 if part.index_pooled else part.index_dim
    wide = 2 * (part.width + keys)  # value and gate, of the vector and of the index key
    if view == "engine":
        words = f"ring of {both * part.ratio} tokens, value and gate, in fp32"
        yield Stream("compressor_buffer", 4 * both * wide * both * part.ratio, words, every=0)
        return
    words = "value and gate of the tokens of a pool that is not complete, in bf16"
    yield Stream("compressor_buffer", 2 * both * wide, words, cycle=part.ratio)
    if part.overlap:
        words = "half of the last pool: values in bf16, gates in fp32"
        yield Stream("compressor_buffer", 3 * wide * part.ratio, words, every=part.ratio, most=1)


def _state(part: State, state: str, tp: int, view: View) -> Iterator[Stream]:
    held = view == "transformers"
    share = heads_per_rank(part.heads, tp) / part.heads
    groups = (
        heads_per_rank(part.conv_groups, tp) if part.conv_groups else 0
    )  # copied until every rank has one
    channels = part.conv_channels * share + groups * part.conv_group_channels
    columns = part.conv_kernel - 1 + (part.held_spare if held else 0)
    if channels and columns > 0:
        size, dtype = _state_bytes(part.held_conv_dtype if held else "model")
        words = f"convolution of {channels:,.0f} channels x {columns} in {dtype}"
        yield Stream("conv_state", channels * columns * size, words, every=0)
    if part.recurrent:
        auto = part.held_dtype if held else part.recurrent_dtype
        size, dtype = _state_bytes(auto if held or state == "auto" else state)
        elements = part.recurrent * share
        words = f"{part.kind} state of {elements:,.0f} in {dtype}"
        yield Stream("recurrent_state", elements * size, words, every=0)


def _state_bytes(dtype: str) -> tuple[int, str]:
    """Bytes of an element, and the dtype's name: a model's own is two bytes wide in an engine."""
    name = "bf16" if dtype == "model" else precision.canonical(dtype, STATES, "state precision")
    return STATES[name], name


@formula
def stream_bytes_per_token(layers: float, entry_bytes: float, tokens_per_entry: float) -> float:
    r"""Bytes that every token of context adds in a group of alike layers.

    .. math:: m = \frac{L \, e}{q}

    Parameters
    ----------
    layers : float
        Layers of the group :math:`L` [-]
    entry_bytes : float
        One entry of one layer: keys and values, a latent, or an index key :math:`e` [byte]
    tokens_per_entry : float
        Tokens that share an entry, 1 where nothing is pooled :math:`q` [token]

    Returns
    -------
    float
        Cache of one token :math:`m` [byte/token]

    Validity: layers that keep every token, or a pooled vector for a fixed number of them.
    Not counted: block rounding; a pool that is not complete.
    Source: DeepSeek-AI 2024, "DeepSeek-V2", section 2.1 (a latent of 512 + 64 elements a token and layer); index keys
    and pooled vectors after DeepSeek V3.2's and V4's own inference code.

    DeepSeek V3: 61 layers that keep 576 elements of two bytes:

    >>> stream_bytes_per_token(layers=61, entry_bytes=(512 + 64) * 2, tokens_per_entry=1)
    70272.0
    """
    return layers * entry_bytes / tokens_per_entry


@formula
def window_bytes_per_request(layers: float, entry_bytes: float, context: float, window: float) -> float:
    r"""Bytes that a group of sliding-window layers holds of a request.

    .. math:: M_w = L \, e \, \min(T, w)

    Parameters
    ----------
    layers : float
        Layers of the group :math:`L` [-]
    entry_bytes : float
        One token in one layer :math:`e` [byte/token]
    context : float
        Tokens of the request :math:`T` [token/request]
    window : float
        Tokens that stay in sight :math:`w` [token/request]

    Returns
    -------
    float
        Cache of the request :math:`M_w` [byte/request]

    Validity: an engine that frees what has left the window.
    Not counted: tokens in flight, which an engine holds beside the window; block rounding.
    Source: Beltagy et al. 2020, "Longformer", section 3.1; Jiang et al. 2023, "Mistral 7B", section 2.

    Gemma 3 27B: 52 of 62 layers see 1,024 tokens:

    >>> window_bytes_per_request(layers=52, entry_bytes=2 * 16 * 128 * 2, context=8000, window=1024)
    436207616
    """
    return layers * entry_bytes * min(context, window)


@formula
def state_bytes_per_request(layers: float, state_bytes: float) -> float:
    r"""Bytes of recurrent and convolution state that a request holds, however long it is.

    .. math:: M_s = L \, s

    Parameters
    ----------
    layers : float
        Layers of the group :math:`L` [-]
    state_bytes : float
        State of one layer :math:`s` [byte/request]

    Returns
    -------
    float
        State of the request :math:`M_s` [byte/request]

    Validity: one state a sequence; an engine with prefix caching keeps more.
    Not counted: copies for speculation and for cached prefixes.
    Source: Gu and Dao 2023, "Mamba", section 3; Yang et al. 2024, "Gated Delta Networks", section 3; for the rings of
    compressed attention, DeepSeek V4's own inference code.

    Qwen3.5 397B: 45 layers with 64 heads of 128 x 128 in fp32:

    >>> state_bytes_per_request(layers=45, state_bytes=64 * 128 * 128 * 4)
    188743680
    """
    return layers * state_bytes


@formula
def growing_bytes_per_token(kv_bytes: float, index_bytes: float) -> float:
    r"""Bytes that every token of context adds over all groups of layers.

    .. math:: m = m_{kv} + m_i

    Parameters
    ----------
    kv_bytes : float
        Keys, values and latents of one token, over all groups :math:`m_{kv}` [byte/token]
    index_bytes : float
        Index keys of one token :math:`m_i` [byte/token]

    Returns
    -------
    float
        Cache of one token :math:`m` [byte/token]

    Validity: the slope of the cache; what is capped or fixed comes beside it.
    Not counted: block rounding.
    Source: DeepSeek-AI 2025, "DeepSeek-V3.2", section 2 (an indexer beside latent attention).

    DeepSeek V3.2, 61 layers with a latent and an index key each:

    >>> growing_bytes_per_token(kv_bytes=61 * 1152, index_bytes=61 * 132)
    78324
    """
    return kv_bytes + index_bytes


@formula
def cache_bytes_per_request(growing: float, capped: float, fixed: float) -> float:
    r"""Bytes of cache that a request holds: what grows with it, what a window caps, what is always there.

    .. math:: M = M_g + M_w + M_s

    Parameters
    ----------
    growing : float
        Layers that keep every token :math:`M_g` [byte/request]
    capped : float
        Layers that keep a window :math:`M_w` [byte/request]
    fixed : float
        Recurrent and convolution states :math:`M_s` [byte/request]

    Returns
    -------
    float
        Cache of the request :math:`M` [byte/request]

    Validity: the sum over groups of layers at one context.
    Not counted: block rounding, tokens in flight.
    Source: the definition.

    Gemma 3 27B at 8,000 tokens: 10 layers of everything, 52 of a window of 1,024:

    >>> cache_bytes_per_request(growing=8000 * 81_920, capped=436_207_616, fixed=0)
    1091567616
    """
    return growing + capped + fixed
