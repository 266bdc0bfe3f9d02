"""Encoders with a decoder: T5, BART, Whisper and theirs. The layers are the decoder's: each caches its own tokens,
and the encoder's once for a request.

Defaults are those of the family's class in transformers, except where a T5 file says that the head is not tied:
transformers 5 overrules that when it builds a model, and keeps the checkpoint's own head when it loads one.
"""

from __future__ import annotations

from typing import NamedTuple

from capplan.models.decoder import Decoder
from capplan.models.fields import MAX_LAYERS, Fields
from capplan.models.spec import Attention

TIE = "tie_word_embeddings"


def _stack(f: Fields, *, heads: int, layers: int, head_dim: int = 0) -> Decoder:
    """A decoder whose layers keep keys and values of both sequences."""
    d = (
        Decoder(f, heads=heads, layers=layers, grouped=False)
        if not head_dim
        else Decoder(f, heads=1, layers=layers, grouped=False)
    )
    d.heads = d.kv_heads = heads
    d.head_dim = head_dim or d.head_dim
    own = Attention(heads, heads, d.head_dim, d.head_dim)
    d.mixers = [(own, own._replace(cross=True))] * layers
    return d


def t5(f: Fields) -> Decoder:
    """T5 and, from version 1.1, a gated mlp: the first layer's relative positions serve all."""
    return _t5(f, gated=False)


def mt5(f: Fields) -> Decoder:
    return _t5(f, gated=True)


def umt5(f: Fields) -> Decoder:
    """Relative positions for every layer."""
    return _t5(f, gated=True, positions_in_every_layer=True)


def longt5(f: Fields) -> Decoder:
    """The encoder looks around each token, and at summaries of blocks in one of two kinds."""
    kind = f.text("encoder_attention_type") or "local"
    names = {"local": "LocalSelfAttention", "transient-global": "TransientGlobalSelfAttention"}
    if kind not in names:
        raise f.error(f"field 'encoder_attention_type' is {kind!r}; accepted: {', '.join(names)}")
    f.ignore("local_radius", "global_block_size")
    d = _t5(f, gated=False, encoder_attention=names[kind])
    if kind == "transient-global":
        name = f"encoder.block.N.layer.N.{names[kind]}"
        d.add(f"{name}.global_relative_attention_bias.weight", (_buckets(f), d.heads), "attention")
        encoder = f.count("num_layers", "num_hidden_layers", most=MAX_LAYERS)
        d.add(f"{name}.global_input_layer_norm.weight", (d.hidden,), "norm", encoder)
    return d


def _buckets(f: Fields) -> int:
    return f.maybe("relative_attention_num_buckets") or 32


def _t5(
    f: Fields,
    *,
    gated: bool,
    positions_in_every_layer: bool = False,
    encoder_attention: str = "SelfAttention",
) -> Decoder:
    encoder = f.count("num_layers", "num_hidden_layers", most=MAX_LAYERS)
    layers = f.maybe("num_decoder_layers", most=MAX_LAYERS) or encoder
    heads = f.count("num_heads", "num_attention_heads")
    d = _stack(f, heads=heads, layers=layers, head_dim=f.count_or(64, "d_kv", "head_dim"))
    f.ignore(
        "relative_attention_max_distance", "dense_act_fn", "is_encoder_decoder", "output_past", "n_positions"
    )
    f.ignore("add_cross_attention", "dropout_rate", "encoder_no_repeat_ngram_size")
    activation = f.text("feed_forward_proj")
    gated = activation.startswith("gated-") if activation else gated
    gated = f.flag("is_gated_act", default=gated)

    d.embedding("shared")
    width, own = f.count("d_ff"), d.q_width
    for stack, count, attentions in (
        ("encoder", encoder, (encoder_attention,)),
        ("decoder", layers, ("SelfAttention", "EncDecAttention")),
    ):
        d.layer = f"{stack}.block.N.layer.N."
        for attention in attentions:
            for part in "qkv":
                d.linear(f"{attention}.{part}", own, d.hidden, "attention", layers=count)
            d.linear(f"{attention}.o", d.hidden, own, "attention", layers=count)
        biased = count if positions_in_every_layer else 1
        name = f"{attentions[0]}.relative_attention_bias"
        d.linear(name, _buckets(f), heads, "attention", layers=biased)
        for up in ("wi_0", "wi_1") if gated else ("wi",):
            d.linear(f"DenseReluDense.{up}", width, d.hidden, "mlp", layers=count)
        d.linear("DenseReluDense.wo", d.hidden, width, "mlp", layers=count)
        d.norm("layer_norm", layers=count, copies=1 + len(attentions))
        d.last_norm(f"{stack}.final_layer_norm")
    if not _t5_tied(f):
        d.add("lm_head.weight", (d.vocab, d.hidden), "head")
    return d


def _t5_tied(f: Fields) -> bool:
    """Not where the file says so, be it in the words of transformers 5, which tell how outputs are scaled."""
    tied = f.flag(TIE) if f.config.get(TIE) is not None else f.assume(TIE, True)
    return f.flag("scale_decoder_outputs", default=True) and tied


class _Bart(NamedTuple):
    """What sets BART's relatives apart."""

    positions: int | None = 0  # rows of a position table beyond the context; None: positions are computed
    embedding_norm: bool = False  # after the embeddings
    last_norm: bool = False  # after the layers
    key_bias: bool = True
    context: int = 1024  # the class's default


def bart(f: Fields) -> Decoder:
    return _bart(f, _Bart(positions=2, embedding_norm=True))


def mbart(f: Fields) -> Decoder:
    return _bart(f, _Bart(positions=2, embedding_norm=True, last_norm=True))


def pegasus(f: Fields) -> Decoder:
    return _bart(f, _Bart(last_norm=True))


def blenderbot(f: Fields) -> Decoder:
    return _bart(f, _Bart(last_norm=True, context=128))


def blenderbot_small(f: Fields) -> Decoder:
    return _bart(f, _Bart(embedding_norm=True, context=512))


def m2m_100(f: Fields) -> Decoder:
    return _bart(f, _Bart(positions=None, last_norm=True))


def marian(f: Fields) -> Decoder:
    """The two languages may have vocabularies of their own."""
    shared = f.flag("share_encoder_decoder_embeddings", default=True)
    if shared:
        f.ignore("decoder_vocab_size")
    return _bart(f, _Bart(), shared=shared)


def whisper(f: Fields) -> Decoder:
    """Sound through two convolutions; the encoder has no vocabulary."""
    d = _bart_stacks(f, _Bart(last_norm=True, key_bias=False))
    d.context = f.count_or(448, "max_target_positions")
    mel = f.count_or(80, "num_mel_bins")
    for name, channels in (("conv1", mel), ("conv2", d.hidden)):
        d.add(f"model.encoder.{name}.weight", (d.hidden, channels, 3), "mlp")
        d.add(f"model.encoder.{name}.bias", (d.hidden,), "mlp")
    d.positions("model.encoder.embed_positions", f.count_or(1500, "max_source_positions"))
    d.positions("model.decoder.embed_positions", d.context)
    d.embedding("model.decoder.embed_tokens")
    d.head("proj_out", tied=True)
    f.ignore("num_key_value_heads", "median_filter_width", "use_weighted_layer_sum", "classifier_proj_size")
    f.ignore(*(name for name in f.config if name.startswith(("mask_", "apply_spec"))))
    return d


def _bart(f: Fields, kind: _Bart, shared: bool = True) -> Decoder:
    d = _bart_stacks(f, kind)
    if kind.positions is not None:
        d.context = f.count_or(kind.context, "max_position_embeddings")
        for stack in ("encoder", "decoder"):
            d.positions(f"model.{stack}.embed_positions", d.context + kind.positions)
    for stack in ("encoder", "decoder") if kind.embedding_norm else ():
        d.last_norm(f"model.{stack}.layernorm_embedding", bias=True)
    tied = f.tied(True)
    if not shared:
        rows = f.maybe("decoder_vocab_size") or d.vocab
        d.embedding("model.encoder.embed_tokens")
        d.add("model.decoder.embed_tokens.weight", (rows, d.hidden), "embedding")
        if not tied:
            d.add("lm_head.weight", (rows, d.hidden), "head")
        return d
    d.embedding("model.shared")
    if not tied:
        d.embedding("model.encoder.embed_tokens")
        d.embedding("model.decoder.embed_tokens")
        d.add("lm_head.weight", (d.vocab, d.hidden), "head")
    return d


def _bart_stacks(f: Fields, kind: _Bart) -> Decoder:
    """The layers of both stacks: attention, in the decoder two of them, and an mlp, each with its norm."""
    encoder_layers = f.count("encoder_layers", most=MAX_LAYERS)
    layers = f.count("decoder_layers", most=MAX_LAYERS)
    d = _stack(f, heads=f.count("decoder_attention_heads"), layers=layers)
    f.ignore(
        "encoder_attention_heads",
        "num_hidden_layers",
        "num_attention_heads",
        "is_encoder_decoder",
        "scale_embedding",
    )
    f.ignore(
        "encoder_layerdrop",
        "decoder_layerdrop",
        "add_bias_logits",
        "add_final_layer_norm",
        "normalize_before",
    )
    f.ignore(
        "normalize_embedding", "static_position_embeddings", "extra_pos_embeddings", "add_cross_attention"
    )
    f.ignore("encoder_no_repeat_ngram_size", "force_bos_token_to_be_generated", "gradient_checkpointing")
    for stack, count in (("encoder", encoder_layers), ("decoder", layers)):
        d.layer = f"model.{stack}.layers.N."
        for attention in ("self_attn", "encoder_attn") if stack == "decoder" else ("self_attn",):
            for part in ("k_proj", "v_proj", "q_proj", "out_proj"):
                bias = kind.key_bias or part != "k_proj"
                d.linear(f"{attention}.{part}", d.hidden, d.hidden, "attention", bias=bias, layers=count)
            d.norm(f"{attention}_layer_norm", bias=True, layers=count)
        d.mlp("fc1", "fc2", f.count(f"{stack}_ffn_dim"), layers=count)
        d.norm("final_layer_norm", bias=True, layers=count)
        if kind.last_norm:
            d.last_norm(f"model.{stack}.layer_norm", bias=True)
    return d
