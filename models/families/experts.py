"""Mixtures of experts beside ordinary attention: one function a family, as in dense.py.

Defaults are those of the family's class in transformers. Correction biases of a router are mostly buffers, and
buffers are no parameters; the few that are, are here.
"""

from __future__ import annotations

from capplan.models.decoder import Decoder
from capplan.models.fields import Fields

COUNT = ("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts")
CHOSEN = (
    "num_experts_per_tok",
    "num_experts_per_token",
    "experts_per_token",
    "moe_topk",
    "moe_k",
    "moe_top_k",
)
SHARED = ("n_shared_experts", "num_shared_experts", "moe_num_shared_experts")
DRAFTS = ("num_nextn_predict_layers", "num_mtp_layers")
NORMS = ("input_layernorm", "post_attention_layernorm")
FOUR_NORMS = (*NORMS, "pre_feedforward_layernorm", "post_feedforward_layernorm")


def routed(f: Fields, count: int, chosen: int) -> tuple[int, int]:
    """How many experts there are, and how many of them a token is sent to."""
    count = f.whole_or(count, *COUNT)
    f.ignore(*CHOSEN)
    return count, checked(f, f.count_or(chosen, *CHOSEN), count) if count else 0


def checked(f: Fields, chosen: int, count: int) -> int:
    if chosen > count:
        raise f.error(f"field '{f.find(*CHOSEN)[0]}' is {chosen}, more than the {count} experts")
    return chosen


def around(
    d: Decoder,
    *,
    bias: bool = False,
    out_bias: bool | None = None,
    tied: bool = False,
    norms: tuple[str, ...] = NORMS,
) -> Decoder:
    """All of a model that is not its mlp; `tied` is the class's default."""
    block(d, bias=bias, out_bias=out_bias, norms=norms)
    return ends(d, tied=tied)


def ends(d: Decoder, *, tied: bool = False) -> Decoder:
    """What comes before the layers and after them."""
    d.embedding()
    d.last_norm()
    d.head(tied=tied)
    return d


def block(
    d: Decoder, *, bias: bool = False, out_bias: bool | None = None, norms: tuple[str, ...] = NORMS
) -> None:
    d.attention(bias=bias, out_bias=bias if out_bias is None else out_bias)
    d.norm(*norms)


def head_norms(d: Decoder, query: str = "q_norm", key: str = "k_norm") -> None:
    d.norm(f"self_attn.{query}", f"self_attn.{key}", width=d.head_dim)


def wide_norms(d: Decoder) -> None:
    """Query and key norms over all heads together."""
    d.norm("self_attn.q_norm", width=d.q_width)
    d.norm("self_attn.k_norm", width=d.kv_width)


def dense_layers(d: Decoder, layers: int, default: int, *, bias: bool = False) -> None:
    """Those layers that have a plain mlp; where there are none its width is of no account."""
    d.fields.ignore("intermediate_size")
    if layers:
        d.gated_mlp(d.fields.count_or(default, "intermediate_size"), bias=bias, layers=layers)


def shared_experts(d: Decoder, width: int, layers: int, name: str = "mlp.shared_experts") -> None:
    """Experts that every token passes through, as one mlp."""
    if width:
        d.gated_mlp(width, name=name, bucket="shared", layers=layers)


def after_first(d: Decoder, default: int, *names: str) -> int:
    """Sparse layers, where the first so many are dense."""
    return max(0, d.layers - d.fields.whole_or(default, *names))


def sparse_by_kind(d: Decoder, dense: int, flags: str = "") -> int:
    """Sparse layers by mlp_layer_types, or by a list of flags under its older name, or after so many dense ones."""
    kinds = d.layer_types("dense", "sparse", name="mlp_layer_types")
    older = d.fields.numbers(flags, length=d.layers) if flags else None
    if kinds:
        return kinds.count("sparse")
    return sum(map(bool, older)) if older else max(0, d.layers - dense)


def sparse_by_step(d: Decoder, dense: list[int]) -> int:
    """Sparse layers, where every so manieth is and some are named dense; `dense` is the class's default."""
    f = d.fields
    step, named = f.maybe("decoder_sparse_step") or 1, f.numbers("mlp_only_layers")
    if f.maybe_zero(*COUNT) == 0:
        return 0
    named = dense if named is None else named
    return sum((i + 1) % step == 0 and i not in named for i in range(d.layers))


def mixtral(f: Fields) -> Decoder:
    d = Decoder(f, kv_heads=8)
    d.window()
    d.experts(*routed(f, 8, 2), f.count_or(14336, "intermediate_size"), layers=d.layers)
    return around(d)


def phimoe(f: Fields) -> Decoder:
    """Phi-3.5 MoE: norms with a bias."""
    bias = f.flag("attention_bias")
    d = Decoder(f, kv_heads=8)
    d.window()
    d.embedding()
    d.attention(bias=bias, out_bias=bias)
    d.experts(*routed(f, 16, 2), f.count_or(6400, "intermediate_size"), layers=d.layers, router="mlp.router")
    d.norm(*NORMS, bias=True)
    d.last_norm(bias=True)
    d.head(tied=False, bias=f.flag("lm_head_bias"))
    return d


def qwen2_moe(f: Fields) -> Decoder:
    """A shared expert with a gate of its own; every second of the first layers slides, where windows are on."""
    d = Decoder(f, kv_heads=16)
    if f.flag("use_sliding_window"):
        first = f.whole_or(28, "max_window_layers")
        d.window(default=4096, slides=lambda layer: layer % 2 == 0 and layer < first)
    else:
        d.layer_types("full_attention")
        f.ignore("sliding_window", "max_window_layers")
    sparse = sparse_by_step(d, dense=[])
    d.experts(*routed(f, 60, 4), f.count_or(1408, "moe_intermediate_size"), layers=sparse)
    shared_experts(d, f.count_or(5632, "shared_expert_intermediate_size"), sparse, "mlp.shared_expert")
    d.linear("mlp.shared_expert_gate", 1, d.hidden, "shared", layers=sparse)
    dense_layers(d, d.layers - sparse, 5632)
    return around(d, bias=f.flag("qkv_bias", default=True), out_bias=False)


def qwen3_moe(f: Fields) -> Decoder:
    d = Decoder(f, kv_heads=4)
    f.ignore("max_window_layers")  # all layers slide where windows are on
    if f.flag("use_sliding_window"):
        d.window(default=4096)
    else:
        f.ignore("sliding_window")
    return _qwen3_moe(d, experts=(128, 8), width=768, dense=6144)


def _qwen3_moe(
    d: Decoder, *, experts: tuple[int, int], width: int, dense: int, tied: bool = False
) -> Decoder:
    f = d.fields
    sparse = sparse_by_step(d, dense=[])
    d.experts(*routed(f, *experts), f.count_or(width, "moe_intermediate_size"), layers=sparse)
    dense_layers(d, d.layers - sparse, dense)
    head_norms(d)
    return around(d, bias=f.flag("attention_bias"), tied=tied)


def qwen3_vl_moe_text(f: Fields) -> Decoder:
    d = Decoder(f, kv_heads=16)
    return _qwen3_moe(d, experts=(60, 4), width=1408, dense=5632, tied=True)


def qwen3_omni_moe_text(f: Fields) -> Decoder:
    d = Decoder(f, kv_heads=4)
    d.window()
    return _qwen3_moe(d, experts=(128, 8), width=768, dense=18944)


def flint(f: Fields) -> Decoder:
    """Sinks; windows in most layers; a shared expert without a gate."""
    d = Decoder(f, kv_heads=4, head_dim=128)
    last = d.layers - 1
    d.window(default=513, slides=lambda layer: layer >= 2 and layer % 4 != 1 and layer != last)
    sparse = sparse_by_step(d, dense=[0, 1])
    d.experts(*routed(f, 256, 6), f.count_or(512, "moe_intermediate_size"), layers=sparse)
    shared_experts(d, f.count_or(1024, "shared_expert_intermediate_size"), sparse, "mlp.shared_expert")
    dense_layers(d, d.layers - sparse, 6144)
    head_norms(d)
    d.sinks()
    return around(d, bias=f.flag("attention_bias"))


def olmoe(f: Fields) -> Decoder:
    d = Decoder(f)
    d.experts(*routed(f, 64, 8), f.count_or(2048, "intermediate_size"), layers=d.layers)
    d.norm("self_attn.q_norm", width=d.hidden)
    d.norm("self_attn.k_norm", width=d.hidden // d.heads * d.kv_heads)
    return around(d, bias=f.flag("attention_bias"))


def flex_olmo(f: Fields) -> Decoder:
    """Norms after attention and experts."""
    d = Decoder(f)
    d.experts(*routed(f, 7, 5), f.count_or(11008, "intermediate_size"), layers=d.layers)
    wide_norms(d)
    norms = ("post_attention_layernorm", "post_feedforward_layernorm")
    return around(d, bias=f.flag("attention_bias"), norms=norms)


def granitemoe(f: Fields) -> Decoder:
    return _granite(Decoder(f))


def _granite(d: Decoder) -> Decoder:
    f = d.fields
    width = f.count_or(11008, "intermediate_size")
    d.experts(
        *routed(f, 8, 2),
        width,
        layers=d.layers,
        router="block_sparse_moe.router",
        name="block_sparse_moe.experts",
    )
    return around(d, bias=f.flag("attention_bias"))


def granitemoeshared(f: Fields) -> Decoder:
    return _granite_shared(Decoder(f))


def _granite_shared(d: Decoder) -> Decoder:
    if width := d.fields.maybe_zero("shared_intermediate_size"):
        matrices = "shared_mlp.input_linear", "shared_mlp.output_linear"
        d.mlp(*matrices, width, bias=False, gated=True, bucket="shared")
    return _granite(d)


def granitemoe_swa(f: Fields) -> Decoder:
    """Sinks, and windows in three layers of four."""
    d = Decoder(f)
    f.ignore("layer_rope_theta")
    d.window(default=128, slides=lambda layer: layer % 4 != 0)
    d.sinks()
    return _granite_shared(d)


def ernie4_5_moe(f: Fields) -> Decoder:
    """The router's correction is a parameter here; biases, where there are any, reach the head."""
    bias = f.flag("use_bias")
    d = Decoder(f, kv_heads=4)
    f.ignore(
        "moe_norm_min", "moe_use_aux_free", "moe_capacity", "moe_gate", "moe_gate_act", "moe_aux_loss_lambda"
    )
    d.draft_mixers += [(d.full_attention,)] * (f.maybe_zero(*DRAFTS) or 0)
    first = f.whole_or(1, "moe_layer_start_index")
    last = _last_sparse(d)
    every = f.maybe("moe_layer_interval") or 1
    sparse = sum((i + 1) % every == 0 and first <= i <= last for i in range(d.layers))
    count, chosen = routed(f, 64, 6)
    width = f.count_or(1536, "moe_intermediate_size")
    d.experts(count, chosen, width, layers=sparse)
    if sparse:
        d.add(f"{d.layer}mlp.gate.moe_statics.e_score_correction_bias", (1, count), "router", sparse)
    if shared := f.whole_or(2, "moe_num_shared_experts"):
        d.gated_mlp(shared * width, bias=bias, name="mlp.shared_experts", bucket="shared", layers=sparse)
    dense_layers(d, d.layers - sparse, 12288, bias=bias)
    d.embedding()
    block(d, bias=bias)
    d.last_norm()
    d.head(tied=True, bias=bias)
    return d


def _last_sparse(d: Decoder) -> int:
    name = "moe_layer_end_index"
    if d.fields.config.get(name) == -1:
        d.fields.ignore(name)
        return d.layers - 1
    last = d.fields.maybe_zero(name)
    return d.layers - 1 if last is None else last
