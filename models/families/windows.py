"""Dense decoders whose layers see a sliding window, all or some of them; Gemma's among them.

Defaults are those of the family's class in transformers.
"""

from __future__ import annotations

from collections.abc import Callable

from capplan.models.decoder import Decoder
from capplan.models.families.dense import like_llama
from capplan.models.fields import MAX_LAYERS, Fields, show

WINDOW, PATTERN = "sliding_window", "sliding_window_pattern"


def all_but_every(count: int) -> Callable[[int], bool]:
    """Whether a layer slides, where every so manieth sees everything."""
    return lambda layer: (layer + 1) % count != 0


def pattern_of(f: Fields, default: int) -> Callable[[int], bool]:
    """The same with the count that the config gives."""
    if f.config.get("layer_types") is not None:
        f.ignore(PATTERN)
        return all_but_every(default)
    return all_but_every(f.maybe(PATTERN) or default)


def ministral(f: Fields) -> Decoder:
    d = Decoder(f, kv_heads=8)
    d.window(default=4096)
    return like_llama(d)


def cwm(f: Fields) -> Decoder:
    """Every fourth layer sees everything, the first among them."""
    d = Decoder(f, kv_heads=8, head_dim=128)
    d.window(default=8192, slides=lambda layer: layer % 4 != 0)
    f.ignore("attention_bias")
    return like_llama(d, mlp_bias=f.flag("mlp_bias"))


def granite_swa(f: Fields) -> Decoder:
    """A sink for every head; every fourth layer sees everything, the first among them."""
    bias = f.flag("attention_bias")
    d = Decoder(f, kv_heads=4)
    d.window(default=128, slides=lambda layer: layer % 4 != 0)
    f.ignore("layer_rope_theta")
    d.add(f"{d.layer}self_attn.sinks", (d.heads,), "attention", d.layers)
    return like_llama(d, bias=bias, out_bias=bias, mlp_bias=f.flag("mlp_bias"), tied=True)


def cohere2(f: Fields) -> Decoder:
    """Command R7B and A: attention and mlp side by side under one norm, as in Command R."""
    bias = f.flag("attention_bias")
    d = Decoder(f)
    d.context = f.maybe("model_max_length", most=10**9) or d.context
    d.window(default=4096, slides=pattern_of(f, 4))
    f.ignore(
        "use_qk_norm", "layer_switch", "order_of_interleaved_layers", "rotary_pct", "use_gated_activation"
    )
    f.ignore(
        "use_parallel_block", "use_parallel_embedding", "use_embedding_sharing"
    )  # labels of the hub's files
    return _like_cohere(d, bias)


def _like_cohere(d: Decoder, bias: bool) -> Decoder:
    d.embedding()
    d.attention(bias=bias, out_bias=bias)
    d.gated_mlp()
    d.norm("input_layernorm")
    d.last_norm()
    d.head(tied=True)
    return d


def olmo3(f: Fields) -> Decoder:
    """OLMo 2 with windows on three layers of four."""
    bias = f.flag("attention_bias")
    d = Decoder(f)
    d.window(default=4096, slides=all_but_every(4))
    d.norm("self_attn.q_norm", width=d.q_width)
    d.norm("self_attn.k_norm", width=d.kv_width)
    return _norms_after(d, bias)


def exaone4(f: Fields) -> Decoder:
    """Norms after attention and mlp; the pattern of windows is a number or letters, L local and G global."""
    d = Decoder(f, kv_heads=32)
    pattern, last = f.find(PATTERN)[1], d.layers - 1
    if isinstance(pattern, str) and f.config.get("layer_types") is None:
        if not pattern or set(pattern) - {"L", "G"}:
            raise f.error(f"field '{PATTERN}' is {show(pattern)}; a number, or letters L and G, is accepted")
        d.window(4096, slides=lambda layer: layer != last and pattern[layer % len(pattern)] == "L")
    elif f.config.get(WINDOW, 4096) is None or (PATTERN in f.config and not pattern):
        d.layer_types("full_attention")  # no window: no layer slides
        f.ignore(WINDOW)
    else:
        d.window(4096, slides=pattern_of(f, 4))
    d.norm("self_attn.q_norm", "self_attn.k_norm", width=d.head_dim)
    return _norms_after(d, bias=False)


def _norms_after(d: Decoder, bias: bool) -> Decoder:
    d.embedding()
    d.attention(bias=bias, out_bias=bias)
    d.gated_mlp()
    d.norm("post_attention_layernorm", "post_feedforward_layernorm")
    d.last_norm()
    d.head(tied=False)
    return d


def muse_glimmer(f: Fields) -> Decoder:
    """A gate on the attention's output; of four layers one sees everything, the last among them."""
    bias = f.flag("attention_bias")
    d = Decoder(f, kv_heads=2, head_dim=128)
    last = d.layers - 1
    d.window(default=2048, slides=lambda layer: (last - layer) % 4 != 0)
    f.ignore("layer_rope_theta", "qk_scale_factor", "output_multiplier")
    d.linear("self_attn.gate_proj", d.q_width, d.hidden, "attention")
    d.norm("pre_feedforward_layernorm", "post_feedforward_layernorm")
    return like_llama(d, bias=bias, out_bias=bias)


def voxtral_realtime(f: Fields) -> Decoder:
    """Mistral with a low-rank norm that the delay of the sound steers."""
    d = Decoder(f, kv_heads=8)
    d.window(default=4096)
    d.linear("ada_rms_norm.linear1", 32, d.hidden, "mlp")
    d.linear("ada_rms_norm.linear2", d.hidden, 32, "mlp")
    return like_llama(d, tied=True)


def cohere_compass(f: Fields) -> Decoder:
    """Command A with the types of its layers told, or none that slides."""
    bias = f.flag("attention_bias")
    d = Decoder(f)
    if d.layer_types("full_attention", "sliding_attention"):
        d.window(default=4096)
    f.ignore(WINDOW, PATTERN, "pooling")
    return _like_cohere(d, bias)


def modernbert_decoder(f: Fields) -> Decoder:
    """A window is told by both its sides: half of it lies in the past. The first layer has one norm."""
    bias, mlp_bias, norm_bias = f.flag("attention_bias"), f.flag("mlp_bias"), f.flag("norm_bias")
    d = Decoder(f, grouped=False)
    kinds = d.layer_types("full_attention", "sliding_attention")
    name = "global_attn_every_n_layers"
    every = (f.maybe(name) if not kinds else None) or 3
    slides = [kinds[i] == "sliding_attention" if kinds else i % every != 0 for i in range(d.layers)]
    f.ignore(
        name, WINDOW, "global_rope_theta", "local_rope_theta", "classifier_activation", "embedding_dropout"
    )
    f.ignore(
        "initializer_cutoff_factor", "mlp_dropout", "tie_encoder_decoder", "num_key_value_heads", "head_dim"
    )
    both_sides = f.count_or(128, "local_attention")
    d.windows = [both_sides // 2 if slid else None for slid in slides]
    d.embedding("model.embeddings.tok_embeddings")
    d.last_norm("model.embeddings.norm", bias=norm_bias)
    for part in ("q_proj", "k_proj", "v_proj", "Wo"):
        d.linear(f"attn.{part}", d.hidden, d.hidden, "attention", bias=bias)
    d.mlp("mlp.Wi", "mlp.Wo", f.count("intermediate_size"), gated=True, bias=mlp_bias)
    d.norm("attn_norm", bias=norm_bias, layers=d.layers - 1)
    d.norm("mlp_norm", bias=norm_bias)
    d.last_norm("model.final_norm", bias=norm_bias)
    d.add("lm_head.dense.weight", (d.hidden, d.hidden), "head")
    if f.flag("classifier_bias"):
        d.add("lm_head.dense.bias", (d.hidden,), "head")
    d.last_norm("lm_head.norm", bias=norm_bias)
    d.head("decoder", tied=True, bias=f.flag("decoder_bias", default=True))
    return d


def dory(f: Fields) -> Decoder:
    """Layers in the middle run in loops, each loop with a cache of its own; scales instead of norms.

    transformers writes an mlp as a layer of its own: counts are twice those of the class then.
    """
    bias, mlp_bias = f.flag("attention_bias"), f.flag("mlp_bias")
    kinds = f.config.get("layer_types")
    blocks = 1
    if isinstance(kinds, list) and "mlp" in kinds:
        blocks = 2
        f.config = {**f.config, "layer_types": kinds[::2]}
    first, last = (_loop_free(f, name) // blocks for name in ("n_input_layers", "n_output_layers"))
    all_layers = f.count("num_hidden_layers", most=MAX_LAYERS) // blocks
    d = Decoder(f, kv_heads=4, head_dim=256, layers=all_layers)
    d.window(default=1024, slides=all_but_every(4))
    given = f.maybe_zero("n_recurrent_layers")
    looped = d.layers - first - last if given is None else given // blocks
    if looped < 0 or first + looped + last != d.layers:
        raise f.error(
            "fields 'n_input_layers', 'n_recurrent_layers' and 'n_output_layers' do not add up to the layers"
        )
    loops = f.count_or(2, "n_recurrent_loops")
    if f.text("recurrent_kv_cache_mode") == "last_loop":
        loops = 1
    f.ignore("ngpt_alpha_init")
    own = d.layout
    d.mixers = own + own[first : first + looped] * (loops - 1)
    for name, width in (("self_attn.sqk", d.q_width), ("self_attn.s_gate", d.q_width)):
        d.add(f"{d.layer}{name}", (width,), "attention", d.layers)
    for name in ("mlp.suv_gate", "mlp.suv_up"):
        d.add(f"{d.layer}{name}", (f.count("intermediate_size"),), "mlp", d.layers)
    for name in ("lambda_1", "lambda_2"):
        d.add(f"{d.layer}{name}", (d.hidden,), "norm", d.layers)
    d.embedding()
    d.attention(bias=bias, out_bias=bias)
    d.linear("self_attn.gate_proj", d.q_width, d.hidden, "attention")
    d.gated_mlp(bias=mlp_bias)
    d.head(tied=False)
    d.add("lm_head.logit_scale", (d.vocab,), "head")
    return d


def _loop_free(f: Fields, name: str) -> int:
    count = f.maybe_zero(name)
    return f.assume(name, 8) if count is None else count
