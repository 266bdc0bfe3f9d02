"""A card as a log or a page names it ("NVIDIA RTX PRO 6000 Blackwell 96GB") as a row of the registry."""

from __future__ import annotations

import re

from capplan.hardware import registry
from capplan.hardware.spec import Gpu

_ASIDE = re.compile(r"\(.*?\)")
_SIZE = re.compile(r"(\d{1,4})gi?b")
_COUNT = re.compile(r"\d{1,4}x")
_NOISE = (
    "nvidia",
    "amd",
    "intel",
    "instinct",
    "geforce",
    "radeon",
    "tesla",
    "ai",
    "gpu",
    "edition",
    "generation",
)
_FINER = ("blackwell", "server", "workstation", "ada", "hbm3", "hbm3e", "sxm", "pcie", "max", "q", "maxq")
_CLOSE = 0.15  # a label and the row's may differ by so much


def card(name: str) -> Gpu | None:
    """The row of a card; None where there is none.

    >>> card("NVIDIA H100 80GB").id, card("NVIDIA A100 40GB").id, card("AMD Instinct MI300X 192GB").id
    ('h100-sxm', 'a100-sxm-40', 'mi300x')
    """
    words = [word for word in _words(name) if word not in _NOISE and not _COUNT.fullmatch(word)]
    if found := _row(words):
        return found
    plain = [word for word in words if not _SIZE.fullmatch(word)]
    coarse = [word for word in plain if word not in _FINER]
    size = label_bytes(name)
    for tried in (plain, [word for word in words if word not in _FINER], coarse):
        if (found := _row(tried)) and _of_size(found, size):
            return found
    if plain == coarse or "blackwell" in plain:  # 'ada' and such tell cards apart
        start = "-".join(coarse)
        rows = [registry.gpu(row) for row in registry.names() if start and row.startswith(f"{start}-")]
        alike = [gpu for gpu in rows if _of_size(gpu, size)]
        if alike and len({gpu.memory_visible_bytes for gpu in alike}) == 1:
            return alike[0]
    return None


def label_bytes(name: str) -> float | None:
    """The size that a card's name says, which counts GiB and calls them GB [byte].

    >>> label_bytes("AMD Radeon AI PRO R9700 32GB") / 2**30
    32.0
    """
    sizes = [match for word in _words(name) if (match := _SIZE.fullmatch(word))]
    return float(sizes[-1][1]) * 2**30 if sizes else None


def _words(name: str) -> list[str]:
    return [word for word in re.split(r"[\s_-]+", _ASIDE.sub(" ", name).lower()) if word]


def _row(words: list[str]) -> Gpu | None:
    path = registry.GPUS.find("-".join(words)) if words else None
    return registry.gpu(path.stem) if path else None


def _of_size(gpu: Gpu, size: float | None) -> bool:
    """Whether a label is the row's; one far above is of the host's memory beside it (GH200 480GB)."""
    times = 1.0 if size is None else size / 2**30 / (gpu.memory_label_bytes / 1e9)
    return abs(times - 1) < _CLOSE or times > 3
