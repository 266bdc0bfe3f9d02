"""A language model inside a multimodal config: where it is nested, and what the outer levels say of it."""

from __future__ import annotations

from typing import Any, NamedTuple

from capplan.models.class_defaults import class_defaults
from capplan.models.fields import Fields, feature

LEVELS = ("text_config", "language_config", "llm_config", "thinker_config")
TIE = "tie_word_embeddings"
_TOWERS = ("vision", "audio")


class Outer(NamedTuple):
    """What the class of an outer model_type takes for granted."""

    inner: str  # model_type of the language model where its config has none
    tied: bool | None = False  # default of the outer tie_word_embeddings; None: the inner one decides
    either: bool | None = None  # where the inner one alone ties the head as well: its default
    prefix: str = (
        "model.language_model."  # in the names of the weights; "model.": as the language model alone
    )


_INNER = "model."

# The multimodal classes of transformers whose language model is a family of its own. One that is not here is read
# as well where the nested config says its model_type.
OUTER = {
    "gemma3": Outer("gemma3_text", True),
    "shieldgemma2": Outer("gemma3_text", either=True),
    "gemma3n": Outer("gemma3n_text", True, prefix=_INNER),
    "gemma4": Outer("gemma4_text", True, prefix=_INNER),
    "gemma4_unified": Outer("gemma4_unified_text", True, prefix=_INNER),
    "paligemma": Outer("gemma", True),
    "mllama": Outer("mllama_text_model", prefix=_INNER),
    "llama4": Outer("llama4_text", prefix=_INNER),
    "mistral3": Outer("mistral", True),
    "mistral_large4": Outer("mistral_large4_text"),
    "voxtral": Outer("llama"),
    "voxtral_realtime": Outer("voxtral_realtime_text", True),
    "aya_vision": Outer("cohere2", True),
    "cohere2_vision": Outer("cohere2", True),
    "cohere_compass": Outer("cohere_compass_text"),
    "exaone4_5": Outer("exaone4"),
    "hyperclovax_vision_v2": Outer("hyperclovax", True),
    "apertus1p5": Outer("apertus1p5_text"),
    "granite_speech": Outer("granite", True),
    "granite_speech_plus": Outer("granite", True),
    "granite4_vision": Outer("granite4_vision_text"),
    "granite_docling": Outer("granite_docling_text", True, prefix="model.text_model."),
    "smolvlm": Outer("llama", prefix="model.text_model."),
    "idefics2": Outer("mistral", prefix="model.text_model."),
    "idefics3": Outer("llama", prefix="model.text_model."),
    "llava": Outer("llama", either=False),
    "llava_next": Outer("llama"),
    "llava_next_video": Outer("llama", either=False),
    "llava_onevision": Outer("qwen2", either=False),
    "video_llava": Outer("llama"),
    "vipllava": Outer("llama"),
    "video_llama_3": Outer("qwen2", either=False),
    "perception_lm": Outer("llama"),
    "omniasr": Outer("llama"),
    "glmasr": Outer("llama", True),
    "deepseek_vl": Outer("llama", True),
    "deepseek_vl_hybrid": Outer("llama", True),
    "janus": Outer("llama", True),
    "deepseek_ocr2": Outer("deepseek_ocr2_text"),
    "deepseek_v41": Outer("deepseek_v41_text", prefix=_INNER),
    "unlimited_ocr": Outer("unlimited_ocr_text"),
    "kimi_k25": Outer("deepseek_v3", True),
    "internvl": Outer("qwen2", True),
    "ovis2": Outer("qwen2", True),
    "got_ocr2": Outer("qwen2", True),
    "pp_chart2table": Outer("qwen2", True),
    "fast_vlm": Outer("qwen2"),
    "audioflamingo3": Outer("qwen2"),
    "musicflamingo": Outer("qwen2"),
    "qwen2_audio": Outer("qwen2"),
    "vibevoice_asr": Outer("qwen2"),
    "qwen2_vl": Outer("qwen2_vl_text", either=False),
    "qwen2_5_vl": Outer("qwen2_5_vl_text", either=False),
    "qwen2_5_omni": Outer("qwen2_5_omni_thinker", None, prefix=_INNER),
    "qwen2_5_omni_thinker": Outer("qwen2_5_omni_text"),
    "lighton_ocr": Outer("qwen3", True),
    "qianfan_ocr": Outer("qwen3"),
    "qwen3_asr": Outer("qwen3", True),
    "fun_asr_nano": Outer("qwen3", True),
    "moss_transcribe_diarize": Outer("qwen3", True),
    "qwen3_vl": Outer("qwen3_vl_text"),
    "cosmos3_omni": Outer("qwen3_vl_text"),
    "cosmos3_edge": Outer("cosmos3_edge_text"),
    "qwen3_vl_moe": Outer("qwen3_vl_moe_text"),
    "qwen3_omni_moe": Outer("qwen3_omni_moe_thinker", None, prefix=_INNER),
    "qwen3_omni_moe_thinker": Outer("qwen3_omni_moe_text"),
    "qwen3_5": Outer("qwen3_5_text", prefix=_INNER),
    "qwen3_5_moe": Outer("qwen3_5_moe_text", prefix=_INNER),
    "qwen4_exp": Outer("qwen4_exp_text", prefix=_INNER),
    "minicpm_ocr": Outer("qwen3_5_text", True),
    "minicpmv4_6": Outer("qwen3_5_text"),
    "minicpmv4_7": Outer("qwen3_5_text"),
    "glm4v": Outer("glm4v_text", either=False),
    "glm46v": Outer("glm4v_text"),
    "glmga": Outer("glm4v_text"),
    "glm_ocr": Outer("glm_ocr_text", either=False),
    "glm4v_moe": Outer("glm4v_moe_text", either=False),
    "glm5_next": Outer("glm5_next_text"),
    "ernie4_5_vl_moe": Outer("ernie4_5_vl_moe_text", True),
    "paddleocr_vl": Outer("paddleocr_vl_text", True, either=True),
    "hunyuan_vl": Outer("hunyuan_vl_text", True),
    "hy_v4_vl": Outer("hy_v4_vl_text"),
    "lfm2_vl": Outer("lfm2", True),
    "lfm3_vl": Outer("lfm3", True),
    "aria": Outer("aria_text"),
    "molmo2": Outer("molmo2_text"),
    "muse_glimmer": Outer("muse_glimmer_text"),
    "muse_spark": Outer("muse_spark_text", None),
    "inkling_mm_model": Outer("inkling_text", None),
    "inkling2": Outer("inkling2_text", None),
    "inkling2_loop": Outer("inkling2_loop_text", None),
    "minimax_m3_vl": Outer("minimax_m3_vl_text", either=False),
    "nemotron_h_omni": Outer("nemotron_h"),
    "nemo_speechlm": Outer("nemotron_h"),
    "dots3_note": Outer("dots3_note_text", prefix=_INNER),
    "step3_vl": Outer("step3_text", prefix=_INNER),
    "step3p7": Outer("step3p5"),
}
# Classes that never tie the head of the language model inside, whatever a config says
_NEVER_TIED = {
    "mllama",
    "molmo2",
    "voxtral",
    "qwen2_audio",
    "audioflamingo3",
    "musicflamingo",
    "nemotron_h_omni",
    "muse_spark",
}
_INNER_TIES = {"llama4"}  # classes of a whole language model: it alone says


def language_model(fields: Fields) -> tuple[Fields, str]:
    """The fields of the language model of a config, its own or those nested in it, and its weights' prefix."""
    prefix = _INNER
    while (name := _level_below(fields)) is not None:
        outer = OUTER.get(fields.text("model_type") or "")
        fields = _nested(fields, name, outer)
        if prefix == _INNER and outer:
            prefix = outer.prefix
    return fields, prefix


def _level_below(fields: Fields) -> str | None:
    """The field that holds the language model; "": its fields lie beside the towers, as Qwen2-VL has them."""
    found = [name for name in LEVELS if isinstance(fields.config.get(name), dict)]
    if len(found) > 1:
        raise fields.error(
            f"fields '{found[0]}' and '{found[1]}' both hold a language model; one of them is enough"
        )
    known = fields.text("model_type") in OUTER
    if found:
        return found[0] if known or fields.config[found[0]].get("model_type") else None
    return "" if known and fields.config.get("hidden_size") is not None else None


def _nested(fields: Fields, name: str, outer: Outer | None) -> Fields:
    """The fields one level below, with those above that count for them."""
    config = fields.config
    if name:
        inner: dict[str, Any] = dict(config[name])
    else:
        inner = {key: value for key, value in config.items() if key not in ("model_type", TIE)}
        inner = {key: value for key, value in inner.items() if feature(key) not in _TOWERS}
    if outer and not inner.get("model_type"):
        inner["model_type"] = outer.inner
    format_above = config.get("dtype") or config.get("torch_dtype")
    if format_above is not None:
        inner.pop("torch_dtype", None)
        inner["dtype"] = format_above
    if config.get("quantization_config") is not None:
        inner["quantization_config"] = config["quantization_config"]
    defaults = class_defaults()
    for key, value in defaults.get(str(config.get("model_type")), {}).items():
        if key not in inner:  # the outer class has defaults of its own
            inner[key] = fields.assume(key, value)
    below = Fields(inner, ": ".join(filter(None, (fields.where, name))))
    below.assumptions = fields.assumptions
    below.defaults = defaults.get(str(inner.get("model_type")), {})
    below.ignore(*(key for key in inner if feature(key) in _TOWERS))
    tied = _tied(fields, below, outer)
    if tied is not None:
        inner[TIE] = tied
    if towers := [
        key for key, value in config.items() if value and feature(key) in _TOWERS and "config" in key
    ]:
        below.assumptions.append(
            f"{', '.join(towers)}: not counted, nor what projects into the language model"
        )
    return below


def _tied(fields: Fields, below: Fields, outer: Outer | None) -> bool | None:
    """Whether the head is tied: the outer field counts and its default too, as in the class; None: not said."""
    said, inner = (
        level.flag(TIE) if level.config.get(TIE) is not None else None for level in (fields, below)
    )
    if fields.text("model_type") in _NEVER_TIED:
        return False
    if fields.text("model_type") in _INNER_TIES:
        return inner
    if outer is None or outer.tied is None:
        return inner if said is None else said
    tied = outer.tied if said is None else said
    if outer.either is not None and (outer.either if inner is None else inner):
        tied = True
    if said is None and inner != tied:
        fields.assume(TIE, tied)
    return tied
