"""Recurrent units of other kinds, alone or beside attention: RecurrentGemma, RWKV-4, xLSTM.

Defaults are those of the family's class in transformers.
"""

from __future__ import annotations

from capplan.models.decoder import Decoder
from capplan.models.families.states import convolution, lay_out, own_head, recurrent_dtype, tensor
from capplan.models.fields import MAX_LAYERS, Fields, show
from capplan.models.spec import State


def recurrent_gemma(f: Fields) -> Decoder:
    """Linear recurrent units, and attention over a window; kinds of layers repeat in the order of block_types."""
    d = Decoder(f)
    width = f.maybe("lru_width") or d.hidden
    if width % d.heads:
        raise f.error(f"field 'lru_width' is {width}, not a multiple of the {d.heads} attention heads")
    f.ignore("w_init_variance_scale", "final_w_init_variance_scale", "logits_soft_cap", "layers_block_type")
    f.ignore("layer_types", "head_dim", "_block_types", "embeddings_scale_by_sqrt_dim")
    d.head_dim = d.hidden // d.heads
    window = f.count_or(2048, "attention_window_size", "sliding_window")
    listed = _repeated(d)
    kernel = f.count_or(4, "conv1d_width")
    state = State(
        "rglru", d.heads, width, "fp32", width, kernel, held_spare=0
    )  # in fp32 whatever the model is in
    attention = d.full_attention._replace(window=window)
    count = lay_out(d, listed, {"recurrent": (state,), "attention": (attention,)})
    name, linear = "temporal_block", count["recurrent"]
    for part, out, into in (
        ("linear_y", width, d.hidden),
        ("linear_x", width, d.hidden),
        ("linear_out", d.hidden, width),
    ):
        d.linear(f"{name}.{part}", out, into, "mixer", bias=True, layers=linear)
    convolution(d, f"{name}.conv_1d", width, kernel, layers=linear, bias=True)
    tensor(d, f"{name}.rg_lru.recurrent_param", width, layers=linear)
    block = width // d.heads
    for gate in ("input_gate", "recurrent_gate"):
        tensor(d, f"{name}.rg_lru.{gate}_weight", d.heads, block, block, layers=linear)
        tensor(d, f"{name}.rg_lru.{gate}_bias", d.heads, block, layers=linear, bucket="norm")
    bias, full = f.flag("attention_bias"), count["attention"]
    for part, out in (("q_proj", d.q_width), ("k_proj", d.kv_width), ("v_proj", d.kv_width)):
        d.linear(f"{name}.{part}", out, d.hidden, "attention", bias=bias, layers=full)
    d.linear(f"{name}.o_proj", d.hidden, d.q_width, "attention", bias=True, layers=full)
    d.gated_mlp(f.count_or(7680, "intermediate_size") // 2, bias=True, name="mlp_block")
    d.norm("temporal_pre_norm", "channel_pre_norm")
    d.embedding()
    d.last_norm("model.final_norm")
    d.head(tied=True)
    return d


def _repeated(d: Decoder) -> list[str]:
    name = "block_types"
    _, blocks = d.fields.find(name)
    if blocks is None:
        blocks = d.fields.assume(name, ["recurrent", "recurrent", "attention"])
    accepted = ("recurrent", "attention")
    if type(blocks) is not list or not blocks or any(block not in accepted for block in blocks):
        raise d.fields.error(
            f"field '{name}' is {show(blocks)}; a list of {' and '.join(map(repr, accepted))} is accepted"
        )
    return [blocks[layer % len(blocks)] for layer in range(d.layers)]


def rwkv(f: Fields) -> Decoder:
    """RWKV-4: three numbers a channel in fp32, and the last token's hidden state for each of two mixers."""
    d = Decoder(f, "rwkv.blocks.N.", heads=1, grouped=False)
    d.context = f.maybe("context_length", "max_position_embeddings", most=10**9)
    f.ignore("rescale_every")
    wide = f.maybe("attention_hidden_size") or d.hidden
    width = f.maybe("intermediate_size") or 4 * d.hidden
    shift = State("rwkv", recurrent=2 * d.hidden, recurrent_dtype="model", held_dtype="model")
    d.mixers = [(State("rwkv", recurrent=3 * wide), shift)] * d.layers
    for name in ("time_decay", "time_first"):
        tensor(d, f"attention.{name}", wide, layers=d.layers)
    for name in ("attention.time_mix_key", "attention.time_mix_value", "attention.time_mix_receptance"):
        tensor(d, name, 1, 1, d.hidden, layers=d.layers, bucket="norm")
    for name in ("key", "value", "receptance"):
        d.linear(f"attention.{name}", wide, d.hidden, "mixer")
    d.linear("attention.output", d.hidden, wide, "mixer")
    for name in ("feed_forward.time_mix_key", "feed_forward.time_mix_receptance"):
        tensor(d, name, 1, 1, d.hidden, layers=d.layers, bucket="norm")
    d.mlp("feed_forward.key", "feed_forward.value", width, bias=False)
    d.linear("feed_forward.receptance", d.hidden, d.hidden, "mlp")
    d.norm("ln1", "ln2", bias=True)
    d.norm("pre_ln", bias=True, layers=1)
    d.embedding("rwkv.embeddings")
    d.last_norm("rwkv.ln_out", bias=True)
    d.head("head", tied=False)
    return d


# Of kernels and of training, and of variants that the class does not have.
_UNREAD = (
    *("chunkwise_kernel", "sequence_kernel", "step_kernel", "mode", "chunk_size", "return_last_states", "eps"),
    *("autocast_kernel_dtype", "gate_soft_cap", "output_logit_soft_cap", "max_inference_chunksize", "head_dim"),
    *("norm_reduction_force_float32", "add_out_norm", "add_post_blocks_norm", "norm_type", "logits_soft_cap"),
    *("add_embedding_dropout", "add_forward_backend_padding", "force_bos_token_insert"),
    *("igate_bias_init_range", "mlstm_round_up_to_multiple_of"),
)  # fmt: skip


def xlstm(f: Fields) -> Decoder:
    """Matrix memories: key by value for every head, with a vector and a number that norm it."""
    layers = f.count("num_blocks", "num_hidden_layers", most=MAX_LAYERS)
    d = Decoder(f, "backbone.blocks.N.", heads=1, grouped=False, layers=layers)
    f.find("hidden_size", "embedding_dim")  # the same
    f.ignore(*_UNREAD)
    heads, bias = f.count_or(8, "num_heads"), f.flag("use_bias")
    key, value = _scaled(f, d.hidden, "qk_dim_factor", 0.5), _scaled(f, d.hidden, "v_dim_factor", 1.0)
    multiple = f.count_or(64, "ffn_round_up_to_multiple_of")
    width = -(-_scaled(f, d.hidden, "ffn_proj_factor", 2.667) // multiple) * multiple
    for name, size in (("qk_dim_factor", key), ("v_dim_factor", value)):
        if size % heads:
            raise f.error(f"field '{name}' makes a width of {size}, not a multiple of the {heads} heads")
    k, v = (-(-size // 64) * 64 // heads for size in (key, value))
    dtype = recurrent_dtype(f, "inference_state_dtype", default="fp32")
    state = State("mlstm", heads, heads * (k * v + k + 1), dtype, held_dtype="model")
    d.mixers = [(state,)] * d.layers
    name = "mlstm_layer"
    mode = f.text("weight_mode") or "single"
    if mode not in ("single", "fused"):
        raise f.error(f"field 'weight_mode' is {show(mode)}; 'single' or 'fused' is accepted")
    inputs = {"q": key, "k": key, "v": value, "ogate_preact": value}
    gates = {"igate_preact": heads, "fgate_preact": heads}
    if mode == "fused":
        inputs, gates = {"qkv_opreact": 2 * key + 2 * value}, {"ifgate_preact": 2 * heads}
    for part, out in inputs.items():
        d.linear(f"{name}.{part}", out, d.hidden, "mixer", bias=bias)
    for part, out in gates.items():
        d.linear(f"{name}.{part}", out, d.hidden, "mixer", bias=True)
    d.norm(f"{name}.multihead_norm", width=value, bias=bias)
    d.linear(f"{name}.out_proj", d.hidden, value, "mixer", bias=bias)
    d.norm("norm_mlstm", "norm_ffn", bias=bias)
    if mode == "fused":
        d.mlp("ffn.proj_up_gate_z", "ffn.proj_down", width, gated=True, bias=bias)
    else:
        d.linear("ffn.proj_up_gate", width, d.hidden, "mlp", bias=bias)
        d.mlp("ffn.proj_up", "ffn.proj_down", width, bias=bias)
    d.embedding("backbone.embeddings")
    d.last_norm("backbone.out_norm")
    own_head(d)
    return d


def _scaled(f: Fields, size: int, name: str, default: float) -> int:
    _, factor = f.find(name)
    factor = default if factor is None else factor
    if type(factor) not in (int, float) or not 0 < factor <= 1_000:
        raise f.error(f"field '{name}' is {show(factor)}; a number above 0 is accepted")
    return int(size * factor)
