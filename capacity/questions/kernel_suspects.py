"""Groups of measured kernels that say something else than they seem to: named, with the evidence, scored apart."""

from __future__ import annotations

from capplan.capacity.questions.kernel_rows import Case, number
from capplan.capacity.questions.measured import Row

# what a group is, and why its rows are not believed; figures are of the rows that capplan was fitted to
GROUPS = {
    "faster than memory": "less time than the bytes take at the full bandwidth, up to 4 times: a benchmark that reads "
    "the same buffers again finds them in L2 (96 MiB and more on the cards of this group); a serving step does not",
    "one head at a time": "TensorRT-LLM's decode with more than 32 query heads to a key head: 2 to 31 times what others "
    "take; on a B200 72 times one reading of the cache, as if it were read once for each of the 64 heads",
    "latent attention without a kernel": "TensorRT-LLM's MLA decode on GPUs other than Hopper and Blackwell's "
    "data-centre ones: 1.1 to 8 times what their bandwidth and peak allow other attention",
    "scales packed anew": "SGLang's DeepGEMM on Blackwell: about 10 us more than TensorRT-LLM's DeepGEMM up to 512 rows, "
    "whatever the shape",
    "no peer access": "all-reduce of 4 and 8 L40S from 256 KiB up: 1.5 to 6 GB/s where PCIe has 31.5; two of them reach "
    "20, and 8 RTX PRO 6000 25 of 63",
    "network not said": "Vidur's transfers between nodes: 2.5 to 8 GB/s between A100s, 35 between H100s; which network "
    "is not said",
}
_SHARED_HEADS = 32
_LARGE_MESSAGE = 2**18


def suspect(row: Row, case: Case) -> str | None:
    """The group of GROUPS that a row belongs to; None for a row that is believed."""
    op, kernel, chip = row["op"].strip().lower(), case.family, case.chip
    last = case.operations[-1] if case.operations else None
    if last is None:
        return None
    time = number(row, "time_us")
    if time is not None and last.bytes / chip.bandwidth > time * 1e-6:
        return "faster than memory"
    if op == "attention_decode" and kernel.endswith(", trtllm"):
        return "one head at a time" if last.columns / last.kv_heads > _SHARED_HEADS else None
    if op == "mla_decode" and kernel.endswith(", trtllm") and chip.generation not in ("sm90", "sm100"):
        return "latent attention without a kernel"
    if op == "gemm" and chip.generation == "sm100" and "sglang_deepgemm" in kernel:
        return "scales packed anew"
    if op == "allreduce" and chip.name == "l40s" and last.ranks > 2 and last.message >= _LARGE_MESSAGE:
        return "no peer access"
    if last.variant == "across":  # of Vidur's rows alone
        return "network not said"
    return None
