"""capplan: capacity planning for serving large language models.

>>> import capplan
>>> answer = capplan.fit("llama-3.3-70b", "h200-sxm", weights="fp8", kv="fp16", contexts=[8000])
>>> answer.requests
{'8000': 27}
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

__all__ = [
    "CapplanError",
    "DataFileError",
    "Deployment",
    "ExitCode",
    "InputError",
    "MissingPackageError",
    "UnitError",
    "UnknownNameError",
    "__version__",
    "compare",
    "decode",
    "fit",
    "goodput",
    "gpu",
    "kv",
    "model",
    "ops",
    "perf",
    "prefill",
    "roofline",
    "simulate",
    "speculate",
    "whiteboard",
]

if TYPE_CHECKING:
    from capplan.capacity.engines.deployment import Deployment
    from capplan.capacity.questions.compare import compare
    from capplan.capacity.questions.decode import decode
    from capplan.capacity.questions.fit import fit
    from capplan.capacity.questions.goodput import goodput
    from capplan.capacity.questions.kv import kv
    from capplan.capacity.questions.ops import ops
    from capplan.capacity.questions.perf import perf
    from capplan.capacity.questions.prefill import prefill
    from capplan.capacity.questions.roofline import roofline
    from capplan.capacity.questions.simulate import simulate
    from capplan.capacity.questions.speculate import speculate
    from capplan.capacity.questions.whiteboard import whiteboard
    from capplan.errors import (
        CapplanError,
        DataFileError,
        ExitCode,
        InputError,
        MissingPackageError,
        UnitError,
        UnknownNameError,
    )
    from capplan.hardware.registry import gpu
    from capplan.models.registry import model

_HOMES = {
    "Deployment": "capplan.capacity.engines.deployment",
    "compare": "capplan.capacity.questions.compare",
    "decode": "capplan.capacity.questions.decode",
    "fit": "capplan.capacity.questions.fit",
    "goodput": "capplan.capacity.questions.goodput",
    "gpu": "capplan.hardware.registry",
    "kv": "capplan.capacity.questions.kv",
    "model": "capplan.models.registry",
    "ops": "capplan.capacity.questions.ops",
    "perf": "capplan.capacity.questions.perf",
    "prefill": "capplan.capacity.questions.prefill",
    "roofline": "capplan.capacity.questions.roofline",
    "simulate": "capplan.capacity.questions.simulate",
    "speculate": "capplan.capacity.questions.speculate",
    "whiteboard": "capplan.capacity.questions.whiteboard",
}


def __getattr__(name: str) -> Any:
    # PEP 562: a name is imported when it is first asked for, so that `import capplan` costs nothing
    from importlib import import_module

    if name not in __all__:
        raise AttributeError(f"module 'capplan' has no attribute {name!r}")
    value = getattr(import_module(_HOMES.get(name, "capplan.errors")), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
