"""A language model inside a multimodal config: which fields of the outer levels count for it."""

from typing import Any

import pytest

from capplan.errors import DataFileError
from capplan.models.class_defaults import class_defaults
from capplan.models.families import FAMILIES
from capplan.models.hf import from_config
from capplan.models.nesting import OUTER
from capplan.models.spec import Model

TEXT: dict[str, Any] = {
    "model_type": "llama",
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 100,
    "max_position_embeddings": 512,
}
LLAVA: dict[str, Any] = {
    "model_type": "llava",
    "architectures": ["LlamaForCausalLM"],  # wrong, and not read
    "text_config": TEXT,
    "vision_config": {"model_type": "clip_vision_model", "hidden_size": 32},
    "torch_dtype": "float16",
    "tie_word_embeddings": False,
}
PLAIN = 3 * (2 * 64 * 64 + 2 * 64 * 32 + 3 * 64 * 128 + 2 * 64) + 64 + 100 * 64


def read(config: dict[str, Any], **fields: Any) -> Model:
    return from_config(config | fields, id="x", name="X")


def text(**fields: Any) -> dict[str, Any]:
    return TEXT | fields


def test_the_language_model_alone() -> None:
    model = read(LLAVA)
    assert (model.family, model.hidden_size, model.dtype) == ("llava", 64, "fp16")
    assert model.parameters_total == PLAIN + 100 * 64
    assert {weight.name for weight in model.weights} >= {"model.language_model.norm.weight", "lm_head.weight"}
    assert any("vision_config" in said for said in model.assumptions)


@pytest.mark.parametrize("level", ["text_config", "language_config", "llm_config"])
def test_names_of_the_level(level: str) -> None:
    outer = {name: value for name, value in LLAVA.items() if name != "text_config"}
    assert read(outer | {level: TEXT, "model_type": "unheard_of"}).parameters_total == PLAIN + 100 * 64


def test_two_levels_down() -> None:
    thinker = {"model_type": "qwen2_5_omni_thinker", "text_config": text(model_type="qwen2_5_omni_text")}
    model = read({"model_type": "qwen2_5_omni", "thinker_config": thinker, "torch_dtype": "bfloat16"})
    assert model.parameters_total == PLAIN + 100 * 64 + 3 * (64 + 32 + 32)
    assert model.dtype == "bf16"


def test_beside_the_towers() -> None:
    flat = {**TEXT, "model_type": "qwen2_vl", "vision_config": {"depth": 3}, "torch_dtype": "bfloat16"}
    assert read(flat, tie_word_embeddings=True).parameters_total == PLAIN + 3 * (64 + 32 + 32)


def test_a_missing_inner_model_type_is_that_of_the_class() -> None:
    inner = {name: value for name, value in TEXT.items() if name != "model_type"}
    assert read(LLAVA, text_config=inner).parameters_total == PLAIN + 100 * 64
    with pytest.raises(DataFileError, match="model_type 'unheard_of' is not supported"):
        read(LLAVA, model_type="unheard_of", text_config=inner)


@pytest.mark.parametrize(
    ("outer", "said", "inner", "tied"),
    [
        ("llava_next", None, True, False),  # the outer default counts
        ("llava_next", True, False, True),
        ("llava", None, True, True),  # either ties
        ("llava", False, True, True),
        ("llava", None, None, False),
        ("janus", None, False, True),
        ("janus", False, True, False),
        ("voxtral", True, True, False),  # never
        ("unheard_of", None, True, True),
        ("unheard_of", False, True, False),
    ],
)
def test_which_level_ties_the_head(outer: str, said: bool | None, inner: bool | None, tied: bool) -> None:
    config = {name: value for name, value in LLAVA.items() if name != "tie_word_embeddings"}
    config |= {"model_type": outer, "text_config": TEXT if inner is None else text(tie_word_embeddings=inner)}
    config |= {} if said is None else {"tie_word_embeddings": said}
    assert (read(config).parameters(["head"]) == 0) == tied


def test_a_default_that_the_outer_class_takes_is_said() -> None:
    config = {name: value for name, value in LLAVA.items() if name != "tie_word_embeddings"}
    said = "field 'tie_word_embeddings' is absent and taken to be true, the default of model_type 'janus'"
    assert said in read(config, model_type="janus").assumptions


def test_dimensions_left_to_the_class_are_taken_and_said() -> None:
    inner = {"model_type": "llama", "num_hidden_layers": 2}
    model = read(LLAVA, text_config=inner)
    layer = 4 * 4096 * 4096 + 3 * 4096 * 11008 + 2 * 4096
    assert model.parameters_total == 2 * layer + 4096 + 2 * 32000 * 4096
    assert sum("the default of model_type 'llama'" in said for said in model.assumptions) >= 5


def test_a_plain_file_has_to_say_its_dimensions() -> None:
    with pytest.raises(DataFileError, match="field 'hidden_size' is missing"):
        read({"model_type": "llama", "num_hidden_layers": 2})


def test_the_format_of_either_level() -> None:
    outer = {name: value for name, value in LLAVA.items() if name != "torch_dtype"}
    assert read(outer, text_config=text(dtype="float32")).dtype == "fp32"
    assert read(outer, text_config=text(dtype="float32"), dtype="bfloat16").dtype == "bf16"
    assert read(outer).dtype == "bf16"


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"llm_config": TEXT}, "fields 'text_config' and 'llm_config' both hold a language model"),
        ({"text_config": text(hidden_size=0)}, "text_config: field 'hidden_size' is 0"),
        (
            {"text_config": text(model_type="unheard_of")},
            "text_config: model_type 'unheard_of' is not supported",
        ),
        ({"text_config": text(kv_lora_rank=8)}, "text_config: field 'kv_lora_rank' (latent attention)"),
        ({"text_config": text(tie_word_embeddings="no")}, "text_config: field 'tie_word_embeddings' is 'no'"),
        ({"tie_word_embeddings": 1}, "field 'tie_word_embeddings' is 1"),
        ({"text_config": 3}, "model_type 'llava' is not supported"),
    ],
)
def test_refused(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(DataFileError) as caught:
        read(LLAVA, **fields)
    assert message in str(caught.value)


def test_every_inner_family_that_is_named_is_read_or_has_no_dimensions() -> None:
    """A class in the table whose language model no one reads would be a dead entry."""
    unread = {outer.inner for outer in OUTER.values()} - set(FAMILIES) - set(OUTER)
    assert unread <= {"deepseek_ocr2_text", "unlimited_ocr_text", "hy_v4_vl_text"}, unread
    assert {"llama", "gemma3_text", "voxtral"} <= set(class_defaults())
