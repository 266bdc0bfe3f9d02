"""A request of 200K on one H200: whether it fits, how long it takes, and what it does to the others.

python examples/long_prompt_on_one_gpu.py

The weights of a 70B model in FP8 leave less than 60 GiB for the cache. A request of 200,000 tokens needs 61 GiB of it in
16 bit: the engine does not start. With an FP8 cache one fits, and its first token takes two minutes, most of it attention.
Whoever comes in these two minutes waits for its end.
"""

import numpy as np

from capplan.capacity.answer import Working
from capplan.capacity.engines.deployment import Deployment
from capplan.capacity.questions.perf import placed
from capplan.capacity.questions.prefill import prefill
from capplan.capacity.questions.services import colocated, idle
from capplan.capacity.simulator import metrics
from capplan.capacity.simulator.loop import simulate
from capplan.capacity.simulator.workloads import Mix, fixed, poisson
from capplan.hardware.registry import gpu
from capplan.models.registry import model

ISL, OSL = 199_000, 1_000
fits = {}
for kv in ("auto", "fp8"):
    flags = Deployment(quantization="fp8", kv_cache_dtype=kv)
    found = placed(model("llama-3.3-70b"), gpu("h200-sxm"), flags, ISL + OSL, 1, Working())
    fits[kv] = found.memory.starts
    room = f"room for {found.most(ISL + OSL):.2f} requests of 200,000"
    print(
        f"cache in {kv:>4}: {found.memory.kv / 2**30:.1f} GiB, {room}: {'starts' if fits[kv] else 'does not'}"
    )
assert fits == {"auto": False, "fp8": True}

service = colocated(found, ISL + OSL)
first, later = idle(service, ISL, OSL)
print(f"alone: first token after {first:.0f} s, {1000 * later:.0f} ms between tokens at its end")
assert 90 < first < 150

(row,) = prefill("llama-3.3-70b", "h200-sxm", deployment=flags, contexts=[ISL], tp=1).at
share = row["attention_s"] / row["time_s"]
print(f"of the prefill {share:.0%} is attention")
assert share > 0.5

requests, rate = 400, 0.5
isl, osl = fixed(requests, 500, 100)
isl[requests // 2], osl[requests // 2] = ISL, OSL
others = isl == 500
outcome = simulate(Mix(poisson(requests, seed=1), isl, osl).at(rate), service)
waits = metrics.ttft(outcome)[others]
late = float(np.mean(waits > 1.0))
print(
    f"of the others {late:.0%} wait for more than 1 s, the longest {waits.max():.0f} s; half of them {np.median(waits):.2f} s"
)
assert waits.max() > 0.7 * first
assert np.median(waits) < 0.5
