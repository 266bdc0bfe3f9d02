"""Dense language models of multimodal classes that have no class of their own; the towers are not counted.

Defaults are those of the text class in transformers.
"""

from __future__ import annotations

from capplan.models.decoder import Decoder
from capplan.models.families.dense import like_glm, like_llama, like_phi3
from capplan.models.fields import Fields


def qwen2_vl(f: Fields) -> Decoder:
    """Qwen2-VL and 2.5-VL; the windows begin past the last layer unless the file says where."""
    f.defaults = {"max_window_layers": 80, **f.defaults}
    d = Decoder(f, kv_heads=8)
    d.window(default=4096, switch=True)
    return like_llama(d, bias=True)


def qwen2_5_omni(f: Fields) -> Decoder:
    d = Decoder(f, kv_heads=4)
    d.window(default=32768, switch=True)
    f.ignore("init_std")
    return like_llama(d, bias=True, tied=True)


def qwen3_vl(f: Fields) -> Decoder:
    bias = f.flag("attention_bias")
    d = Decoder(f, kv_heads=32, head_dim=128)
    d.norm("self_attn.q_norm", "self_attn.k_norm", width=d.head_dim)
    return like_llama(d, bias=bias, out_bias=bias)


def glm4v(f: Fields) -> Decoder:
    """GLM-4.1V; the head width is not read."""
    d = Decoder(f, kv_heads=2)
    f.ignore("attention_bias", "head_dim")
    d.head_dim = d.hidden // d.heads
    return like_glm(d, bias=True, after=True)


def glm_ocr(f: Fields) -> Decoder:
    d = Decoder(f, kv_heads=8)
    f.ignore("attention_bias")
    return like_glm(d, bias=False, after=True)


def cosmos3_edge(f: Fields) -> Decoder:
    bias = f.flag("attention_bias")
    d = Decoder(f, kv_heads=8, head_dim=128)
    return like_llama(
        d, bias=bias, out_bias=bias, mlp_bias=f.flag("mlp_bias"), ungated=("mlp.fc1", "mlp.fc2")
    )


def granite_docling(f: Fields) -> Decoder:
    bias = f.flag("attention_bias")
    d = Decoder(f, kv_heads=4)
    return like_llama(d, bias=bias, out_bias=bias, mlp_bias=f.flag("mlp_bias"), tied=True)


def emu3(f: Fields) -> Decoder:
    bias = f.flag("attention_bias")
    d = Decoder(f, kv_heads=8)
    return like_llama(d, bias=bias, out_bias=bias, mlp_bias=f.flag("mlp_bias"))


def molmo2(f: Fields) -> Decoder:
    """Tokens for images beyond the vocabulary; norms over each head, or over all together."""
    bias = f.flag("qkv_bias", "attention_bias")
    d = Decoder(f, kv_heads=8, head_dim=128)
    f.ignore("rope_scaling_layers", "norm_after", "tie_word_embeddings")
    kind = f.text("qk_norm_type") or "qwen3"
    if kind not in ("qwen3", "olmo"):
        raise f.error(f"field 'qk_norm_type' is {kind!r}; 'qwen3' and 'olmo' are accepted")
    d.norm("self_attn.q_norm", width=d.head_dim if kind == "qwen3" else d.q_width)
    d.norm("self_attn.k_norm", width=d.head_dim if kind == "qwen3" else d.kv_width)
    more = f.maybe_zero("additional_vocab_size")
    more = f.assume("additional_vocab_size", 128) if more is None else more
    d.add("model.embed_tokens.weight", (d.vocab + more, d.hidden), "embedding")
    d.attention(bias=bias)
    d.gated_mlp()
    d.norm("input_layernorm", "post_attention_layernorm")
    d.last_norm()
    d.add("lm_head.weight", (d.vocab, d.hidden), "head")
    return d


def phi4_multimodal(f: Fields) -> Decoder:
    """Phi-4-mini between towers."""
    for name in ("audio_config", "vision_config", "img_processor", "audio_processor", "embd_layer"):
        if f.find(name)[1]:
            f.assumptions.append(f"{name}: not counted, nor what projects into the language model")
    f.ignore("vision_lora", "speech_lora")
    d = Decoder(f, kv_heads=8)
    d.window()
    return like_phi3(d)
