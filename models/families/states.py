"""What recurrent and convolution layers share: reading their kinds, their weights, what they keep of a sequence.

transformers names kinds of layers anew on reading: a list may have the old words. Engines keep recurrent states in
the model's dtype unless a config says otherwise.
"""

from __future__ import annotations

from collections import Counter

from capplan.models.decoder import Decoder
from capplan.models.fields import Fields, show
from capplan.models.spec import Layer, State

FULL, LINEAR, INDEXED = "full_attention", "linear_attention", "indexed_attention"
OLD_WORDS = {
    "attention": FULL,
    "mamba": LINEAR,
    "deepseek_sparse_attention": INDEXED,
    "qwen_sparse_attention": INDEXED,
}
FINAL = "model.final_layernorm"
DTYPES = {"float32": "fp32", "bfloat16": "bf16", "float16": "fp16", "auto": "model"}

# Of training and of kernels: no weight and no cache depends on them.
UNREAD = (
    *("time_step_min", "time_step_max", "time_step_floor", "time_step_scale", "time_step_limit", "chunk_size"),
    *("time_step_init_scheme", "rescale_prenorm_residual", "residual_in_fp32", "use_mamba_kernels", "use_mambapy"),
    *("use_associative_scan", "mamba_chunk_size", "num_logits_to_keep", "use_mem_eff_path", "z_loss_coefficient"),
    *("rms_norm", "fused_add_norm", "norm_before_gate", "mamba_norm_before_gate", "d_inner", "ssm_cfg"),
    *("mamba_dt_min", "mamba_dt_max", "mamba_dt_limit", "mamba_dt_init_floor", "calc_logits_for_entire_prompt"),
    *("hidden_mamba_act", "mamba_hidden_act", "mlp_hidden_act", "pad_vocab_size_multiple", "normalization_function"),
    *("output_router_logits", "router_aux_loss_coef", "use_falcon_mambapy", "attn_rotary_emb", "num_query_groups"),
)  # fmt: skip


def kinds(d: Decoder, accepted: tuple[str, ...], default: list[str], *names: str) -> list[str]:
    """The kind of every layer by transformers' present words: as listed, else the class's order."""
    names = names or ("layer_types",)
    name, listed = d.fields.find(*names)
    if listed is None:
        return default
    if type(listed) is not list or len(listed) != d.layers:
        raise d.fields.error(
            f"field '{name}' is {show(listed)}; a list of {d.layers:,} kinds, one a layer, is accepted"
        )
    return [kind_of(d.fields, kind, accepted, name) for kind in listed]


def kind_of(f: Fields, kind: object, accepted: tuple[str, ...], name: str) -> str:
    """A kind by its present word."""
    word = OLD_WORDS.get(kind, kind) if isinstance(kind, str) else ""
    if word not in accepted:
        raise f.error(
            f"field '{name}' has {show(kind)} (layers of more than one kind); "
            f"{' or '.join(map(repr, accepted))} is supported"
        )
    return word


def on(f: Fields, name: str, default: bool = False) -> bool:
    """A switch that null turns off, whatever its default."""
    return f.flag(name) if name in f.config else default


def tensor(d: Decoder, name: str, *shape: int, layers: int, bucket: str = "mixer") -> None:
    """A parameter of so many layers, named in full."""
    if layers:
        d.add(f"{d.layer}{name}", shape, bucket, layers)


def convolution(
    d: Decoder, name: str, channels: int, kernel: int, *, layers: int, bias: bool = False, group: int = 1
) -> None:
    """Along the tokens, each channel by itself or in groups of so many."""
    tensor(d, f"{name}.weight", channels, group, kernel, layers=layers)
    if bias:
        tensor(d, f"{name}.bias", channels, layers=layers)


def recurrent_dtype(f: Fields, *names: str, default: str = "model") -> str:
    """The format that a config asks for its recurrent states."""
    dtype = f.text(*names)
    if dtype is None:
        return default
    if dtype.removeprefix("torch.") not in DTYPES:
        raise f.error(f"field '{f.find(*names)[0]}' is {show(dtype)}; accepted: {', '.join(DTYPES)}")
    return DTYPES[dtype.removeprefix("torch.")]


def time_step_rank(f: Fields, hidden: int, name: str) -> int:
    """Rank of the projection that makes Mamba's time steps."""
    if f.config.get(name, "auto") == "auto":
        f.ignore(name)
        return -(-hidden // 16)
    return f.count(name)


def mamba1(
    d: Decoder,
    name: str,
    inner: int,
    state: int,
    kernel: int,
    rank: int,
    *,
    layers: int,
    bias: bool,
    conv_bias: bool,
) -> State:
    d.linear(f"{name}.in_proj", 2 * inner, d.hidden, "mixer", bias=bias, layers=layers)
    convolution(d, f"{name}.conv1d", inner, kernel, layers=layers, bias=conv_bias)
    d.linear(f"{name}.x_proj", rank + 2 * state, inner, "mixer", layers=layers)
    d.linear(f"{name}.dt_proj", inner, rank, "mixer", bias=True, layers=layers)
    tensor(d, f"{name}.A_log", inner, state, layers=layers)
    tensor(d, f"{name}.D", inner, layers=layers)
    d.linear(f"{name}.out_proj", d.hidden, inner, "mixer", bias=bias, layers=layers)
    return mamba1_state(inner, state, kernel)


def mamba1_state(inner: int, state: int, kernel: int) -> State:
    return State("mamba1", inner, inner * state, "model", conv_channels=inner, conv_kernel=kernel)


def mamba2(
    d: Decoder,
    name: str,
    heads: int,
    head_dim: int,
    state: int,
    groups: int,
    kernel: int,
    *,
    layers: int,
    bias: bool,
    conv_bias: bool,
    out_bias: bool | None = None,
    norm: bool = True,
    dtype: str = "model",
) -> State:
    """Input, groups' keys and queries and time steps in one projection; a convolution over all but the last."""
    inner = heads * head_dim
    channels = inner + 2 * groups * state
    out_bias = bias if out_bias is None else out_bias
    d.linear(f"{name}.in_proj", inner + channels + heads, d.hidden, "mixer", bias=bias, layers=layers)
    convolution(d, f"{name}.conv1d", channels, kernel, layers=layers, bias=conv_bias)
    for part in ("dt_bias", "A_log", "D"):
        tensor(d, f"{name}.{part}", heads, layers=layers)
    if norm:
        d.norm(f"{name}.norm", width=inner, layers=layers)
    d.linear(f"{name}.out_proj", d.hidden, inner, "mixer", bias=out_bias, layers=layers)
    return State("mamba2", heads, inner * state, dtype, inner, kernel, 2 * state, groups)


def lay_out(d: Decoder, listed: list[str], parts: dict[str, Layer]) -> Counter[str]:
    """What every layer caches, by its kind; how many there are of each."""
    d.mixers = [parts[kind] for kind in listed]
    return Counter(listed)


def checked_width(f: Fields, heads: int, name: str, head_dim: int, width_name: str, inner: int) -> None:
    if heads * head_dim != inner:
        raise f.error(
            f"field '{width_name}' is {head_dim}: {heads} heads ('{name}') of it are not the inner width {inner}"
        )


def period(f: Fields, name: str, default: int) -> int:
    """Layers in a round, which nothing depends on where layer_types lists them all."""
    given = f.maybe(name)
    return given or (default if f.config.get("layer_types") is not None else f.assume(name, default))


def periodic(f: Fields, layers: int, what: str, period: int, offset: int) -> list[bool]:
    """Which layers come up once in so many, by attn_layer_period and attn_layer_offset, or as they are named."""
    period = f.count_or(period, f"{what}_layer_period")
    offset = f.whole_or(offset, f"{what}_layer_offset")
    if offset >= period:
        raise f.error(f"field '{what}_layer_offset' is {offset}, not below '{what}_layer_period', {period}")
    return [layer % period == offset for layer in range(layers)]


def own_head(d: Decoder) -> None:
    """An output projection of its own: these classes never tie it to the embedding matrix, whatever the config says."""
    if d.fields.flag("tie_word_embeddings"):
        d.fields.assumptions.append(
            "field 'tie_word_embeddings' is true, and the class does not tie the head"
        )
    d.add("lm_head.weight", (d.vocab, d.hidden), "head")


def no_window(f: Fields) -> None:
    """A window that the class has a field for and does not read."""
    if f.maybe_zero("sliding_window"):
        f.assumptions.append(
            "field 'sliding_window' is not read by the class; attention is over the whole context"
        )
