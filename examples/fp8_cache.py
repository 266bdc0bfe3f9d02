"""An FP8 cache on Hopper halves the bytes of attention, and not the time.

python examples/fp8_cache.py

The kernels in common use convert the cache before they multiply: they reach a smaller share of the bandwidth, and start
later. Attention is also only a part of the time between tokens. What an FP8 cache does bring is twice the sequences.
"""

from capplan.capacity.engines.deployment import Deployment
from capplan.capacity.questions.decode import decode

batches = [8, 16, 22]
plain, narrow = (
    decode(
        "llama-3.3-70b",
        "h200-sxm",
        Deployment(quantization="fp8", kv_cache_dtype=kv),
        batches=batches,
        contexts=8_000,
        tp=1,
    )
    for kv in ("bf16", "fp8")
)
print("batch   bytes of cache   attention   between tokens")
for wide, half in zip(plain.at, narrow.at, strict=True):
    size, attention, time = (
        wide[name] / half[name] for name in ("cache_bytes_read", "attention_s", "time_s")
    )
    print(f"{wide['batch']:>5} {size:>14.2f} x {attention:>9.2f} x {time:>14.2f} x")
    assert round(size, 2) == 2.0
    assert attention < 1.8  # not 2
    assert 1.0 < time < 1.4
most = [each.at[0]["most_batch"] for each in (plain, narrow)]
print(f"memory holds {most[1]} sequences of 8,000 tokens, not {most[0]}")
assert most[1] >= 2 * most[0]
