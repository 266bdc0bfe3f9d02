"""A card as a log or a page names it ("NVIDIA RTX PRO 6000 Blackwell 96GB") as a row of the registry."""

from __future__ import annotations

import re

from capplan.hardware import registry
from capplan.hardware.spec import Gpu

_ASIDE = re.compile(r"\(.*?\)")
_SIZE = re.compile(r"^(\d{1,4})\s*gi?b$")
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
_FINER = ("blackwell", "server", "workstation", "ada", "hbm3", "hbm3e", "sxm", "pcie")


def card(name: str) -> Gpu | None:
    """The row of a card; None where there is none.

    >>> card("NVIDIA H100 80GB").id, card("NVIDIA A100 40GB").id, card("AMD Instinct MI300X 192GB").id
    ('h100-sxm', 'a100-sxm-40', 'mi300x')
    """
    words = [
        word for word in re.split(r"[\s_-]+", _ASIDE.sub(" ", name).lower()) if word not in ("", *_NOISE)
    ]
    plain = [word for word in words if not _SIZE.match(word)]
    coarse = [word for word in plain if word not in _FINER]
    sized = [word.replace("gib", "gb") for word in words]
    for tried in (sized, plain, [word for word in sized if word not in _FINER], coarse):
        if tried and (path := registry.GPUS.find("-".join(tried))):
            return registry.gpu(path.stem)
    if plain == coarse or "blackwell" in plain:  # 'ada' and such tell cards apart
        start = "-".join(coarse)
        ids = [row for row in registry.names() if start and row.startswith(f"{start}-")]
        found = [registry.gpu(row) for row in ids]
        size = label_bytes(name)
        alike = [gpu for gpu in found if size is None or abs(gpu.memory_label_bytes / 1e9 - size / 2**30) < 1]
        if alike and len({gpu.memory_visible_bytes for gpu in alike}) == 1:
            return alike[0]
    return None


def label_bytes(name: str) -> float | None:
    """The size that a card's name says, which counts GiB and calls them GB [byte].

    >>> label_bytes("AMD Radeon AI PRO R9700 32GB") / 2**30
    32.0
    """
    sizes = [match for word in _ASIDE.sub(" ", name).lower().split() if (match := _SIZE.match(word))]
    return float(sizes[-1][1]) * 2**30 if sizes else None
