"""One layer of a decoder for one new token a sequence, in one CUDA graph: what a batch costs, and where its knee is."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

from capplan.probes import decode_kernels, decoder_layer, fit, paged, step_model
from capplan.probes.attention import rows_against
from capplan.probes.decoder_layer import Layer, Shape
from capplan.probes.numerics import fresh, normal
from capplan.probes.probe import Case, Derived, Device, Measured, Numerics, Row, Value
from capplan.probes.timing import timed

if TYPE_CHECKING:
    from torch import Tensor

NAME = "decoder_step"
TITLE = (
    "one decoder layer in one graph: norm, qkv, rope, cache write, attention, o, gate and up, down; by batch"
)
FORMULA = "t = t0 + ((2 P batch / peak)^p + (bytes of P / bandwidth)^p)^(1/p) + (bytes of K and V) / kv_rate"
WHAT = "whether a step is a sum over its operations or one pool of work, and the batch at which it bends"
ORDER, VERSION = 80, 1

_SHAPES = {"llama3-70b": Shape(8192, 28672, 64, 8, 128), "tiny": Shape(256, 512, 8, 2, 32)}
_BATCHES = {
    "quick": (1, 32, 128, 256),
    "default": (1, 32, 64, 128, 192, 256, 512),
    "full": (1, 4, 16, 32, 64, 96, 128, 160, 192, 224, 256, 320, 384, 512, 768, 1024),
}
_CONTEXTS = {"quick": (1024,), "default": (128, 1024, 8192), "full": (128, 1024, 8192, 32768)}
_PAGE = 64
_BYTES = {"bf16": 2, "fp32": 4}
_BOUND = {"bf16": 2e-2, "fp32": 1e-5}  # of what the layer adds to its input, after eight roundings


def step(x: Tensor, layer: Layer, q: Tensor, cache: paged.Cache, attend: decode_kernels.Call) -> Tensor:
    """The layer; see decoder_layer.step."""
    return decoder_layer.step(x, layer, q, cache, attend)


def cases(profile: str, device: Device) -> list[Case]:
    if device.is_gpu:
        layer, dtype, kernel = "llama3-70b", "bf16", decode_kernels.installed(device)[0]
        batches, contexts = _BATCHES[profile], _CONTEXTS[profile]
    else:
        layer, dtype, kernel, batches, contexts = "tiny", "fp32", "gather", (1, 4, 16), (100,)
    made = [(layer, batch, context, dtype, kernel) for context in contexts for batch in batches]
    found = [dict(zip(("layer", "batch", "context", "dtype", "kernel"), each, strict=True)) for each in made]
    return [case for case in found if _work(case).kv < device.memory_bytes / 4]


def check(case: Case, device: Device) -> Numerics:
    shape, dtype, context = _SHAPES[case["layer"]], case["dtype"], min(case["context"], 300)
    lengths = [context, 1, _PAGE + 1][: case["batch"]]  # with the new token
    before = [length - 1 for length in lengths]
    x, layer, q, cache = _inputs(case, lengths, device)
    k, v = normal((2, sum(before), shape.kv_heads, shape.width), dtype, device, 5)
    paged.write(cache, k, v, *paged.owners(before, device))
    attend = decode_kernels.prepare(case["kernel"], q, cache, shape.width**-0.5, context, device)
    added = step(x, layer, q, cache, attend).double() - x.double()
    return rows_against(added, decoder_layer.added64(x, layer, shape, k, v, lengths), _BOUND[dtype])


def measure(case: Case, device: Device) -> Measured:
    shape, kernel, context = _SHAPES[case["layer"]], case["kernel"], case["context"]
    x, layer, q, cache = _inputs(case, [context] * case["batch"], device)
    for pool in (cache.k, cache.v):
        pool.copy_(fresh(tuple(pool.shape), case["dtype"], device))
    best = decode_kernels.fastest(kernel, q, cache, shape.width**-0.5, context, device)
    attend = decode_kernels.prepare(kernel, q, cache, shape.width**-0.5, context, device, best)
    call = partial(step, x, layer, q, cache, attend)
    work = _work(case)
    size = work.weights + work.kv
    if not device.is_gpu:
        times, mode, cold = timed([call], device, bytes_each=size)
    else:
        import torch

        call()  # what is loaded at the first call is not captured
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            call()
        times, _, cold = timed([graph.replay], device, bytes_each=size, graph=False)
        mode = "graph"
    note = ["what is no product or attention runs as kernels of torch, one an operation"]
    return Measured(
        times, mode, cold, work.flops, size, case["dtype"], kernel, kernel, notes=note, rotation=1
    )


def derive(rows: Sequence[Row]) -> Derived:
    if len(rows) < 4:  # too few to tell a corner from
        return Derived({}, [None] * len(rows))
    dtype = rows[0]["case"]["dtype"]
    works = [_work(row["case"]) for row in rows]
    times = [float(row["time_s"]["median"]) for row in rows]
    pooled, found = step_model.pooled(works, times), step_model.summed(works, times)
    predicted = [found(work) for work in works]
    off = [guess / time for guess, time in zip(predicted, times, strict=True)]
    peak, bandwidth = found.products.peak, found.products.bandwidth
    values: dict[str, Value] = {}
    for name, unit, at in (
        ("peak", "FLOP/s", peak),
        ("bandwidth", "byte/s", bandwidth),
        ("t0", "s", found.products.start),
        ("power", "1", found.products.power),
        ("kv_rate", "byte/s", found.kv_rate),
        ("ridge", "1", peak / bandwidth * _BYTES[dtype] / 2),
    ):
        values[name] = fit.value([at * each for each in off], unit, rows, at)
    values["summed_off"] = fit.value([step_model.off(found, works, times)], "1", rows)
    values["pooled_off"] = fit.value([step_model.off(pooled, works, times)], "1", rows)
    first = min(work.context for work in works)
    least = sorted(
        (r["case"]["batch"], float(r["time_s"]["median"])) for r in rows if r["case"]["context"] == first
    )
    batches, took = [batch for batch, _ in least], [time for _, time in least]
    rates = [batch / time for batch, time in least]
    for name, grown, level in (("batch_t2x", took, 2.0 * took[0]), ("batch_90pct", rates, 0.9 * max(rates))):
        if (reached := fit.crossing(batches, grown, level)) is not None:
            values[name] = fit.value([reached], "1", [row for row in rows if row["case"]["context"] == first])
    return Derived({f"step_model.{dtype}.{name}": each for name, each in values.items()}, predicted)


def _work(case: Case) -> step_model.Work:
    shape, batch, context, each = (
        _SHAPES[case["layer"]],
        case["batch"],
        case["context"],
        _BYTES[case["dtype"]],
    )
    kv = 2.0 * batch * context * shape.kv_heads * shape.width * each
    return step_model.Work(context, 2.0 * shape.parameters * batch, float(shape.parameters * each), kv)


def _inputs(case: Case, lengths: Sequence[int], device: Device) -> tuple[Tensor, Layer, Tensor, paged.Cache]:
    import torch

    shape, dtype = _SHAPES[case["layer"]], case["dtype"]
    make = partial(fresh, dtype=dtype, device=device)
    torch.manual_seed(1)
    x, q = make((len(lengths), shape.hidden)), make((len(lengths), shape.heads, shape.width))
    cache = paged.empty(lengths, _PAGE, shape.kv_heads, shape.width, dtype, device, seed=2)
    return x, decoder_layer.made(shape, make), q, cache
