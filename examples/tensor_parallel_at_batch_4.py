"""Eight GPUs do not decode a 70B model eight times as fast: at batch 4 fixed costs and collectives take over.

python examples/tensor_parallel_at_batch_4.py

Tensor parallelism divides weights and cache over the ranks. It does not divide what every layer costs whatever its
size: the start of each kernel, two all-reduces, what the engine does in between.
"""

from capplan.capacity.engines.deployment import Deployment
from capplan.capacity.questions.ops import ops

OVERHEAD = ("latency", "link", "fixed")  # starts of kernels, collectives, the engine's own
flags = Deployment(engine="tensorrt-llm", quantization="fp8")
share, times = {}, {}
print("ranks   a pass   of the bandwidth   fixed cost and collectives")
for ranks in (1, 2, 4, 8):
    found = ops("llama-3.3-70b", "h200-sxm", flags, batch=4, context=1_000, tp=ranks)
    times[ranks] = found.time_s
    share[ranks] = sum(row["share"] for row in found.operations if row["bound_by"] in OVERHEAD)
    print(
        f"{ranks:>5} {1e3 * found.time_s:>5.1f} ms {found.floor_s / found.time_s:>18.0%} {share[ranks]:>28.0%}"
    )
assert share[1] < 0.5 < share[8]
assert times[1] / times[8] < 5
print(f"eight times the GPUs, {times[1] / times[8]:.1f} times as fast")
