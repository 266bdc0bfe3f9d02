"""A table of step times is the step-time model, to 0.1%."""

from __future__ import annotations

import random

import pytest

from capplan.capacity.engines.deployment import Deployment
from capplan.capacity.questions.asked import as_gpu, as_model
from capplan.capacity.questions.deployed import deployed
from capplan.capacity.simulator.requests import Speculation
from capplan.capacity.simulator.step_table import StepTable
from capplan.capacity.step_time.forward import Step
from capplan.capacity.step_time.passes import pass_time

WITHIN = 1e-3
TOKENS, LONGEST = 8192, 131_072
PLACES = [
    ("llama-3.3-70b", "a100-sxm-80", Deployment(tensor_parallel_size=4)),
    ("llama-3.1-8b", "rtx-pro-6000-server", Deployment()),
    ("qwen3-30b-a3b", "h100-sxm", Deployment(data_parallel_size=2, enable_expert_parallel=True)),
    ("deepseek-v3", "h200-sxm", Deployment(tensor_parallel_size=8)),  # latents
    ("gpt-oss-120b", "h100-sxm", Deployment()),  # windows
    ("gemma-3-27b", "h100-sxm", Deployment(tensor_parallel_size=2)),
    ("qwen3-next-80b-a3b", "h200-sxm", Deployment(tensor_parallel_size=4)),  # states
    ("llama-3.3-70b", "h200-sxm", Deployment(engine="sglang", tensor_parallel_size=2)),
]


@pytest.mark.parametrize(("model", "gpu", "flags"), PLACES, ids=lambda each: str(each)[:20])
def test_table_is_the_model(model: str, gpu: str, flags: Deployment) -> None:
    at = deployed(as_model(model), as_gpu(gpu), flags)
    most = at.flags.max_num_seqs or 256
    table = StepTable(at.plan, at.chip, at.engine, batch=most, tokens=TOKENS, longest=LONGEST)
    r = random.Random(1)

    def time(**step: float) -> float:
        return float(pass_time(at.plan, at.chip, at.engine, Step(**{k: float(v) for k, v in step.items()})))  # type: ignore[arg-type]

    for _ in range(200):
        batch, context = r.randint(1, most), 2 ** r.uniform(0, 17)
        piece = table.decode(batch, batch * context)
        assert batch * context <= piece.end
        found = piece.start + piece.slope * batch * context
        assert found == pytest.approx(time(decode=batch, context=context), rel=WITHIN)

        prompts = r.choice([1, 1, 1, 2, 3, 5, 9])
        chunk, before = r.randint(1, TOKENS // prompts), r.choice([0, 0, r.randint(0, 120_000)])
        tokens, pairs = prompts * chunk, prompts * (chunk * before + chunk * (chunk + 1) / 2)
        alone = {"prompts": prompts, "chunk": chunk, "before": before}
        assert table.prompts(0, 0, prompts, tokens, pairs) == pytest.approx(time(**alone), rel=WITHIN)
        found = table.prompts(batch, batch * context, prompts, tokens, pairs)
        both = time(decode=batch, context=context, **alone)
        assert found == pytest.approx(both, rel=WITHIN)


def test_pieces_meet() -> None:
    """A run of passes may go from one piece to the next: at its end a piece says what the next one says."""
    at = deployed(as_model("gemma-3-27b"), as_gpu("h200-sxm"), Deployment())
    table = StepTable(at.plan, at.chip, at.engine, batch=8, tokens=2048, longest=32_768)
    piece, seen = table.decode(8, 8.0), 0
    while piece.end < 8 * 32_768:
        after = table.decode(8, piece.end)
        assert after.end > piece.end
        assert after.start + after.slope * piece.end == pytest.approx(piece.start + piece.slope * piece.end)
        piece, seen = after, seen + 1
    assert seen > 20


def test_drafting_is_paid_for_and_its_tokens_are_checked() -> None:
    at = deployed(as_model("llama-3.1-8b"), as_gpu("h100-sxm"), Deployment())

    def first(**more: object) -> tuple[float, float]:
        table = StepTable(at.plan, at.chip, at.engine, batch=128, tokens=2048, longest=8192, **more)  # type: ignore[arg-type]
        return tuple(  # type: ignore[return-value]
            piece.start + piece.slope * context
            for batch, context in ((1, 1e3), (128, 128e3))
            for piece in [table.decode(batch, context)]
        )

    plain, free = first(), first(speculation=Speculation(4, 0.8))
    paid = first(speculation=Speculation(4, 0.8), draft_s=0.002)
    # alone, checking five tokens costs little more than one; past the ridge it costs in proportion
    assert plain[0] < free[0] < 1.1 * plain[0]
    assert free[1] > 1.3 * plain[1]
    assert [b - a for a, b in zip(free, paid, strict=True)] == pytest.approx([0.002, 0.002])
