"""At 8K of context no batch makes the decoding of a 70B model compute-bound.

python examples/no_batch_is_enough.py

Weights are read once for all sequences, so that a larger batch does more work for every byte of them. But every
sequence brings a cache of its own, which is read for it alone: what a batch gains tends to what one sequence has, its
work over its cache, and that ceiling lies below the ridge of the GPU.
"""

from capplan.capacity.engines.deployment import Deployment
from capplan.capacity.questions.decode import decode
from capplan.capacity.questions.roofline import roofline

ridge = roofline("llama-3.3-70b", "h200-sxm", weights="fp8", kv="fp8", contexts=8_000)
ceiling = ridge.at[0]["ceiling_with_attention"]
print(
    f"whiteboard: {ceiling:.0f} FLOP/byte at the most, whatever the batch; the ridge is at {ridge.ridge_flop_per_byte:.0f}"
)
assert ceiling < ridge.ridge_flop_per_byte

# operation by operation; far beyond what fits in memory, to see where it tends to
flags = Deployment(quantization="fp8", kv_cache_dtype="fp8")
batches = [1, 16, 256, 4_096, 65_536]
found = decode("llama-3.3-70b", "h200-sxm", flags, batches=batches, contexts=8_000, tp=1)
print("   batch   between tokens   attention   linear layers   bound by")
for row in found.at:
    attention, linear = (row[part] / row["time_s"] for part in ("attention_s", "projections_s"))
    print(
        f"{row['batch']:>8,} {1e3 * row['time_s']:>13,.1f} ms {attention:>11.0%} {linear:>15.0%}   {row['bound_by']}"
    )
assert {row["bound_by"] for row in found.at} == {"memory"}
print(
    "the linear layers do become compute-bound; by then attention, which reads the cache, takes most of the time"
)
