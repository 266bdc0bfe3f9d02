"""When does disaggregation start to pay, and when does it never?

python examples/when_disaggregation_pays.py

On the same GPU every prompt makes the passes longer that bring others their tokens. Where TPOT is bound tightly that is
what ends the goodput, and pools of their own win by far. As the bound is loosened, the gain shrinks; past the time that
the passes take anyway, pools only lose: one of them waits for the other, and the cache has to go over.
"""

from capplan.capacity.questions.goodput import goodput
from capplan.capacity.simulator.slo import Bound, Slo

gains = {}
print("TPOT p95   chunked   disaggregated   gain   pools                  what ends the pools")
for milliseconds in (10, 25, 50, 100):
    slo = Slo((Bound("ttft", 0.95, 1.0), Bound("tpot", 0.95, milliseconds / 1000)))
    answer = goodput(
        "llama-3.1-8b",
        "h100-sxm",
        slo=slo,
        isl=4_000,
        osl=200,
        requests=1_500,
        configurations=["chunked", "disaggregated"],
    )
    rows = {row["name"]: row for row in answer.configurations}
    chunked, pools = (rows[name]["requests_per_s_per_gpu"] for name in ("chunked", "disaggregated"))
    gains[milliseconds] = pools / chunked
    print(
        f"{milliseconds:>5} ms {chunked:>9.2f} {pools:>15.2f} {pools / chunked:>6.2f}   "
        f"{rows['disaggregated']['setting']:<20}   {' and '.join(rows['disaggregated']['limited_by'])}"
    )
print("requests a second and GPU; prompts of 4,000 tokens, answers of 200")
assert gains[10] > 2  # a tight bound: it pays
assert gains[10] > gains[25] > gains[100]  # less and less
assert gains[100] < 1.02  # a loose one: never
