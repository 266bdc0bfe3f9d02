"""Models by hand, of the layers that vLLM sees: the allocator is tested apart from the readers and the registry."""

from collections.abc import Callable

import pytest

from capplan.models.spec import Attention, LatentAttention, Layer, Model, State

Made = Callable[[str], Model]


def heads(
    kv_heads: int, width: int, window: int | None = None, value: int = 0, shared: bool = False
) -> Layer:
    return (Attention(kv_heads, kv_heads, width, value or width, window, shared=shared),)


def mamba2(count: int, width: int, state: int, groups: int, dtype: str = "model") -> Layer:
    inner = count * width
    return (State("mamba2", count, inner * state, dtype, inner, 4, 2 * state, groups),)


def delta(keys: int, values: int, dtype: str = "model") -> Layer:
    """A gated delta net with heads of 128."""
    return (State("gdn", values, values * 128 * 128, dtype, (2 * keys + values) * 128, 4),)


MLA: Layer = (LatentAttention(32, 512, 64),)
KDA: Layer = (State("kda", 32, 32 * 128 * 128, "fp32", 3 * 32 * 128, 4),)
CHUNKED: Layer = (Attention(8, 8, 128, 128, 8192, chunked=True),)
CONV: Layer = (State("conv", 2048, conv_channels=2048, conv_kernel=3),)


def every(count: int, layers: int, each: Layer, others: Layer) -> list[Layer]:
    """`each` once in so many layers, the last of them."""
    return [others if (i + 1) % count else each for i in range(layers)]


def among(at: tuple[int, ...], layers: int, each: Layer, others: Layer) -> list[Layer]:
    return [each if i in at else others for i in range(layers)]


LAYERS: dict[str, list[Layer]] = {
    "llama-3.1-8b": [heads(8, 128)] * 32,
    "deepseek-v3": [MLA] * 61,
    "kimi-vl-a3b": [MLA] * 27,
    "glm-4.5": [heads(8, 128)] * 92,
    "minimax-m2": [heads(8, 128)] * 62,
    "gpt-oss-20b": every(2, 24, heads(8, 64), heads(8, 64, 128)),
    "gemma-2-9b": every(2, 42, heads(8, 256), heads(8, 256, 4096)),
    "gemma-2-27b": every(2, 46, heads(16, 128), heads(16, 128, 4096)),
    "gemma-3-4b": every(6, 34, heads(4, 256), heads(4, 256, 1024)),
    "gemma-3-12b": every(6, 48, heads(8, 256), heads(8, 256, 1024)),
    "gemma-3-27b": every(6, 62, heads(16, 128), heads(16, 128, 1024)),
    "gemma-3n-e4b": every(5, 20, heads(2, 256), heads(2, 256, 512))
    + every(5, 15, heads(2, 256, shared=True), heads(2, 256, 512, shared=True)),
    "gemma-4-26b-a4b": every(6, 30, heads(2, 512), heads(8, 256, 1024)),
    "llama-4-scout": every(4, 48, heads(8, 128), CHUNKED),
    "mimo-v2-flash": among(
        (0, 5, 11, 17, 23, 29, 35, 41, 47), 48, heads(4, 192, value=128), heads(8, 192, 128, 128)
    ),
    "jamba-1.5-mini": among(
        (4, 12, 20, 28), 32, heads(8, 128), (State("mamba1", 8192, 8192 * 16, "model", 8192, 4),)
    ),
    "granite-4.0-h-small": among((5, 15, 25, 35), 40, heads(8, 128), mamba2(128, 64, 128, 1)),
    "granite-4.0-h-tiny": among((5, 15, 25, 35), 40, heads(4, 128), mamba2(48, 64, 128, 1)),
    "nemotron-h-56b": among(
        tuple(range(3, 63, 6)), 64, heads(8, 128), mamba2(256, 64, 256, 8, "fp32")
    ),
    "nemotron-3-super-120b": among(
        tuple(range(3, 51, 6)), 48, heads(2, 128), mamba2(128, 64, 128, 8, "fp32")
    ),
    "qwen3-next-80b-a3b": every(4, 48, heads(2, 256), delta(16, 32)),
    "qwen3.6-35b-a3b": every(4, 40, heads(2, 256), delta(16, 32, "fp32")),
    "kimi-linear-48b-a3b": [*every(4, 26, MLA, KDA), MLA],
    "lfm2.5-vl-1.6b": among((2, 5, 8, 10, 12, 14), 16, heads(8, 64), CONV),
}  # fmt: skip
DRAFTS: dict[str, Layer] = {
    "deepseek-v3": MLA,
    "glm-4.5": heads(8, 128),
    "mimo-v2-flash": heads(8, 192, 128, 128),
    "nemotron-3-super-120b": heads(2, 128),
    "qwen3-next-80b-a3b": heads(2, 256),
}
FAMILIES = {"nemotron-h-56b": "nemotron_h", "nemotron-3-super-120b": "nemotron_h"}


@pytest.fixture(scope="session")
def made() -> Made:
    """A model by the name of a checkpoint; KeyError where none is written here."""

    def _made(name: str) -> Model:
        return Model(
            id=name,
            name=name,
            family=FAMILIES.get(name, "by hand"),
            hidden_size=1,
            layers=tuple(LAYERS[name]),
            draft_layers=(DRAFTS[name],) if name in DRAFTS else (),
            weights=(),
            dtype="bf16",
        )

    return _made
