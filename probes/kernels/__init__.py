"""Kernels of our own, in Triton.

A kernel is a function of its module, so these modules import triton as they load: a probe calls ready() first, and
imports the kernel in the function that launches it.
"""

from __future__ import annotations

from typing import Any

from capplan.probes.probe import Device, Skipped


def ready(device: Device) -> None:
    """Makes triton usable on the device: on a CPU through its interpreter. Raises Skipped where there is no triton."""
    import os
    from importlib.util import find_spec

    if find_spec("triton") is None:
        raise Skipped("triton is not installed")
    if device.is_gpu:
        return
    os.environ["TRITON_INTERPRET"] = "1"  # read when triton's own functions are made, as it is first imported
    import triton.language as tl
    from triton.runtime import interpreter

    if not isinstance(tl.max, interpreter.InterpretedFunction):
        raise Skipped("triton was imported without its interpreter; a CPU needs TRITON_INTERPRET=1 before")
    _mend(interpreter)


def _mend(interpreter: Any) -> None:
    """Lets bounds of loops be what a kernel computed: the interpreter makes an integer of an array of one number, which
    NumPy 2.4 refuses."""
    plain = interpreter._patch_lang_tensor
    if getattr(plain, "mended", False):
        return

    def mended(tensor: Any, *rest: Any) -> None:
        plain(tensor, *rest)
        tensor.__index__ = lambda self: int(self.handle.data.item())

    mended.mended = True  # type: ignore[attr-defined]
    interpreter._patch_lang_tensor = mended
