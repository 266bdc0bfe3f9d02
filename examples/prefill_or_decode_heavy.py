"""A prefill-heavy and a decode-heavy service want different things of the same GPU.

python examples/prefill_or_decode_heavy.py

Summaries have long prompts and short answers: the GPU takes in tokens at the pace of its compute, few requests are
under way, and the cache stays empty. Reasoning has short prompts and long answers: nearly all passes decode, batches are
large, and the cache fills. Pools for the one would be mostly prefill, for the other mostly decode.
"""

from capplan.capacity.questions.goodput import goodput
from capplan.capacity.queueing import pool_ratio
from capplan.capacity.simulator.slo import Bound, Slo

slo = Slo((Bound("ttft", 0.95, 1.0), Bound("tpot", 0.95, 0.03)))
found = {}
print(
    "               tokens in    out   req/s   tok/s in     out   cache   prefill instances for one of decode"
)
for name, isl, osl in (("prefill-heavy", 8_000, 100), ("decode-heavy", 500, 1_000)):
    asked = {"slo": slo, "isl": isl, "osl": osl, "requests": 3_000}
    answer = goodput("llama-3.1-8b", "h100-sxm", configurations=["chunked"], instances=1, **asked)
    pools = goodput("llama-3.1-8b", "h100-sxm", configurations=["disaggregated"], **asked | {"requests": 500})
    (ratio,) = (step.value for step in pools.steps if step.formula is pool_ratio)
    rate = answer.requests_per_s
    at = next(row for row in answer.curve if row["requests_per_s"] == rate)
    print(
        f"{name:<15} {isl:>8,} {osl:>6,} {rate:>7.2f} {rate * isl:>10,.0f} {rate * osl:>7,.0f} {at['kv']:>7.0%} {ratio:>8.2f}"
    )
    print(f"    {answer.reasons[0]}")
    found[name] = (rate * isl, rate * osl, at["kv"], ratio)
heavy, light = found["prefill-heavy"], found["decode-heavy"]
assert heavy[0] > 2 * light[0]  # the one takes in more
assert light[1] > 10 * heavy[1]  # the other gives out more
assert light[2] > 2 * heavy[2]
assert heavy[3] > 2
assert light[3] < 0.5
