"""p99 TTFT is fine and p99.9 is 30 s: one prompt of 200K goes in whole, and all that come meanwhile wait behind it.

python examples/p999_of_long_prompts.py

Four prompts in 20,000 are of 200,000 tokens. Computed whole, each takes the GPUs for half a minute, in which nobody gets
a token: one request in two hundred meets that, so p99 does not show it and p99.9 is nothing else. Chunks beside the
decoding cure the stall: who decodes goes on. Whoever comes has still to wait, since a prompt that has begun gets what
each pass has left. That ends where a pass takes no more than a part of one prompt (vLLM's
--long-prefill-token-threshold), or where long prompts have an instance of their own.
"""

from dataclasses import replace

import numpy as np

from capplan.capacity.answer import Working
from capplan.capacity.engines.deployment import Deployment
from capplan.capacity.questions.perf import placed
from capplan.capacity.questions.services import colocated
from capplan.capacity.simulator import metrics
from capplan.capacity.simulator.loop import simulate
from capplan.capacity.simulator.workloads import Mix, fixed, poisson
from capplan.hardware.registry import gpu
from capplan.models.registry import model

LONG, EVERY, REQUESTS, RATE = 200_000, 5_000, 20_000, 1.0
found = placed(
    model("llama-3.3-70b"), gpu("h200-sxm"), Deployment(quantization="fp8"), LONG + 100, 4, Working()
)
isl, osl = fixed(REQUESTS, 500, 100)
isl[EVERY // 2 :: EVERY] = LONG
mix = Mix(poisson(REQUESTS, seed=1), isl, osl)
short = Mix(mix.unit_times[isl < LONG], isl[isl < LONG], osl[isl < LONG])

whole = colocated(found, LONG + 100, scheduler="prefill-first", chunked=False)
chunks = colocated(found, LONG + 100)
part = replace(chunks, long_prefill_token_threshold=chunks.max_num_batched_tokens // 2)
told = {}
print("                      TTFT p50       p99     p99.9   longest stall between tokens")
for name, service, requests in (
    ("whole prompts", whole, mix),
    ("chunks", chunks, mix),
    ("chunks, half a pass", part, mix),
    ("chunks, long apart", chunks, short),
):
    outcome = simulate(requests.at(RATE), service)
    ttft = metrics.of(metrics.ttft(outcome), (0.5, 0.99, 0.999))
    stall = metrics.of_gaps(outcome.gaps)
    assert ttft is not None
    assert stall is not None
    values = [ttft.at(share).value for share in (0.5, 0.99, 0.999)]
    told[name] = (*values, stall.most)
    cells = "".join(f"{value:>9.2f} s" for value in values)
    print(f"{name:<19} {cells} {stall.most:>16.2f} s")
assert told["whole prompts"][1] < 0.2  # p99 is fine
assert told["whole prompts"][2] > 25  # p99.9 is not
assert told["whole prompts"][3] > 25  # and whoever decodes stands still
assert told["chunks"][3] < 0.1 * told["whole prompts"][3]  # chunks cure that
assert told["chunks"][2] > 25  # and not the first token of the others
assert told["chunks, half a pass"][2] < 0.1 * told["whole prompts"][2]  # which half a pass for others cures
assert told["chunks, long apart"][2] < 0.3
hit = float(np.mean(isl == LONG))
print(f"{hit:.2%} of the prompts are long; the other {1 - hit:.2%} pay for them")
