"""Which accelerators hold Llama 3.3 70B in FP8, and how many requests of 8K does each take at once?

python examples/which_gpu.py
"""

import capplan
from capplan.hardware.registry import all_gpus

rows = []
for gpu in all_gpus():
    answer = capplan.fit("llama-3.3-70b", gpu, weights="fp8", kv="fp8", contexts=[8_000])
    if answer.fits:
        price = gpu.price_range
        rows.append((answer.requests["8000"], gpu.id, f"from {price[0]:.2f} USD/h" if price else "no price"))

for requests, name, price in sorted(rows, reverse=True):
    print(f"{requests:>5} requests  {name:<20} {price}")
