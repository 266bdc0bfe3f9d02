"""The attention probes: right kernels pass against fp64, and wrong ones are caught, one test a fault."""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from typing import Any

import pytest

os.environ["TRITON_INTERPRET"] = "1"  # read when triton is first imported

torch = pytest.importorskip("torch")

from capplan.probes import decode_kernels, latent_rows, paged
from capplan.probes.kernels import ready
from capplan.probes.paged import Cache
from capplan.probes.probe import Case, Device, Row, Skipped, Unsupported
from capplan.probes.suite import attn_decode, attn_decode_mla, attn_prefill

CPU = Device("cpu", 0, "a CPU", "x86_64", sm_count=2, l2_bytes=2**20, memory_bytes=2**33)
Patch = pytest.MonkeyPatch


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)  # these are small, and other tests may be running


def decode(kernel: str, kv_dtype: str = "bf16", page: int = 16, kv_heads: int = 2) -> Case:
    shape = {"batch": 1, "length": 300, "page": page, "heads": 8, "kv_heads": kv_heads}
    return {**shape, "kv_dtype": kv_dtype, "kernel": kernel}


def latents(kernel: str, heads: int = 16, dtype: str = "bf16") -> Case:
    return {"heads": heads, "batch": 1, "length": 300, "kv_dtype": dtype, "kernel": kernel}


def prefill(queries: int, keys: int, dtype: str = "bf16", kernel: str = "sdpa") -> Case:
    return {"queries": queries, "keys": keys, "heads": 8, "kv_heads": 2, "dtype": dtype, "kernel": kernel}


@pytest.mark.parametrize("kv_dtype", ["fp32", "bf16", "fp8", "fp8_fnuz", "fp8_e5m2"])
@pytest.mark.parametrize("page", [16, 64])
@pytest.mark.parametrize("kernel", ["triton", "gather"])
def test_decode_agrees_with_fp64(kernel: str, page: int, kv_dtype: str) -> None:
    if kernel == "triton":
        pytest.importorskip("triton")
        if kv_dtype == "fp8_fnuz":
            pytest.skip("triton's interpreter has no fnuz")
    found = attn_decode.check(decode(kernel, kv_dtype, page), CPU)
    assert found.ok, found.why


def test_one_kv_head_and_a_group_that_is_no_power_of_two() -> None:
    pytest.importorskip("triton")
    assert attn_decode.check(decode("triton", kv_heads=1), CPU).ok
    assert attn_decode.check({**decode("triton"), "heads": 6}, CPU).ok


@pytest.mark.parametrize(
    ("heads", "dtype"), [(16, "fp32"), (24, "bf16"), (1, "bf16"), (16, "fp8"), (24, "fp8_ds_mla")]
)
@pytest.mark.parametrize("kernel", ["triton", "gather"])
def test_latents_agree_with_the_keys_of_every_head(kernel: str, heads: int, dtype: str) -> None:
    if kernel == "triton":
        pytest.importorskip("triton")
    found = attn_decode_mla.check(latents(kernel, heads, dtype), CPU)
    assert found.ok, found.why


@pytest.mark.parametrize(("queries", "keys"), [(128, 128), (1, 200), (64, 200)])
@pytest.mark.parametrize(("dtype", "kernel"), [("fp32", "sdpa_math"), ("bf16", "sdpa")])
def test_prefill_agrees_with_fp64(queries: int, keys: int, dtype: str, kernel: str) -> None:
    found = attn_prefill.check(prefill(queries, keys, dtype, kernel), CPU)
    assert found.ok, found.why


def test_a_long_prompt_is_checked_in_a_sample(monkeypatch: Patch) -> None:
    monkeypatch.setattr(attn_prefill, "_EVERY_ROW", 64)
    assert attn_prefill.check(prefill(200, 200), CPU).ok
    right = attn_prefill.attend

    def last_row_missing(kernel: str, q: Any, k: Any, v: Any) -> Any:
        out = right(kernel, q, k, v).clone()
        out[:, :, 150:151] = torch.nan
        return out

    monkeypatch.setattr(attn_prefill, "attend", last_row_missing)
    assert not attn_prefill.check(prefill(200, 200), CPU).ok  # even where the sample may not have the row


@pytest.mark.parametrize("name", ["fp8", "fp8_fnuz", "fp8_e5m2"])
def test_what_a_cache_holds_is_looked_up_and_equals_the_cast(name: str) -> None:
    dtype = {"fp8": torch.float8_e4m3fn, "fp8_fnuz": torch.float8_e4m3fnuz, "fp8_e5m2": torch.float8_e5m2}[
        name
    ]
    x = torch.randn(20_000, generator=torch.Generator().manual_seed(1)).bfloat16()
    x[:50] *= 1e3  # beyond what the format holds
    for scale in (1.0, 0.01):  # the first has ties: bf16 lies half-way between numbers of FP8
        assert torch.equal(paged.store(x, dtype, scale).double() * scale, paged.held(x, dtype, scale))


def test_a_cache_is_full_of_traps() -> None:
    cache = paged.empty([33, 16, 1], 16, 2, 8, "bf16", CPU, seed=0)
    assert cache.k.isnan().all()
    assert cache.table.tolist()[1][1:] == [paged.NO_PAGE, paged.NO_PAGE]
    used = [page for row in cache.table.tolist() for page in row if page != paged.NO_PAGE]
    assert len(set(used)) == len(used) == 3 + 1 + 1
    assert used != sorted(used)
    assert cache.k.shape[0] == len(used) + paged.SPARE


def test_splits_fill_the_chip_and_are_not_too_short() -> None:
    h200 = Device("cuda", 0, "H200", "sm_90", sm_count=132, l2_bytes=60 * 2**20, memory_bytes=2**37)
    assert decode_kernels.splits_of(16, 8, 131072, h200) == 128  # no more
    assert decode_kernels.splits_of(16, 8, 1024, h200) == 4  # no shorter
    assert decode_kernels.splits_of(16, 128 * 8, 8192, h200) == 3
    assert decode_kernels.splits_of(16, 4096 * 8, 8192, h200) == 1
    assert decode_kernels.splits_of(2, 64 * 2, 32768, h200) == 3  # latents of 128 heads in blocks of 64


def test_no_package_is_no_failure(monkeypatch: Patch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(Skipped, match="triton is not installed"):
        attn_decode.check(decode("triton"), CPU)


# ---------------------------------------------------------------- faults of decode attention


def attending(fault: Callable[..., Any]) -> Callable[[Patch], None]:
    """A kernel that is wrong: fault(right, q, cache) in place of right(q, cache)."""

    def inject(patch: Patch) -> None:
        right = attn_decode.attend

        def wrong(kernel: str, q: Any, cache: Cache, *rest: Any) -> Any:
            return fault(lambda q, cache: right(kernel, q, cache, *rest), q, cache)

        patch.setattr(attn_decode, "attend", wrong)

    return inject


def page_before(right: Any, q: Any, cache: Cache) -> Any:
    table = cache.table.clone()
    table[:, 1:] = torch.where(table[:, 1:] == paged.NO_PAGE, paged.NO_PAGE, table[:, :-1])
    return right(q, cache._replace(table=table))


def neighbours_pages(right: Any, q: Any, cache: Cache) -> Any:
    table = cache.table.clone()
    table[0] = table[-1]  # as long as it is but for one token
    return right(q, cache._replace(table=table))


def newest_token_unseen(right: Any, q: Any, cache: Cache) -> Any:
    return right(q, cache._replace(lengths=(cache.lengths - 1).clamp(min=1)))


def slot_past_the_end(right: Any, q: Any, cache: Cache) -> Any:
    return right(q, cache._replace(lengths=cache.lengths + (cache.lengths == 300).int()))


def heads_in_another_order(right: Any, q: Any, cache: Cache) -> Any:
    heads, kv_heads = q.shape[1], cache.k.shape[2]
    order = torch.arange(heads).view(-1, kv_heads).t().flatten()  # head h reads KV head h % kv_heads
    return right(q[:, order], cache)[:, order.argsort()]


def row_unwritten(right: Any, q: Any, cache: Cache) -> Any:
    out = torch.full_like(q, torch.nan)
    out[:-1] = right(q, cache)[:-1]
    return out


DECODE_FAULTS: dict[str, Callable[..., Any]] = {
    "an off-by-one page": page_before,
    "the pages of another sequence": neighbours_pages,
    "the newest token unseen": newest_token_unseen,
    "a slot past the end read": slot_past_the_end,
    "another KV head": heads_in_another_order,
    "an unwritten row": row_unwritten,
    "zeros instead of data": lambda right, q, cache: torch.zeros_like(q),
    "a wrong softmax scale": lambda right, q, cache: right(q * attn_decode.WIDTH**-0.5, cache),
    "K and V swapped": lambda right, q, cache: right(
        q, Cache(cache.v, cache.k, cache.table, cache.lengths, cache.v_scale, cache.k_scale)
    ),
}


@pytest.mark.parametrize("fault", DECODE_FAULTS)
def test_decode_fault_is_caught(fault: str, monkeypatch: Patch) -> None:
    for page in (16, 64):
        with monkeypatch.context() as patch:
            attending(DECODE_FAULTS[fault])(patch)
            found = attn_decode.check(decode("gather", page=page), CPU)
            assert not found.ok
            assert found.why


def test_addresses_that_wrap_in_a_large_cache_are_caught(monkeypatch: Patch) -> None:
    def wrapping(right: Any, q: Any, cache: Cache) -> Any:
        if q.shape[0] > 1:  # the small cache of the ragged sequences is read as it should be
            return right(q, cache)
        return right(q, cache._replace(table=cache.table.clamp(max=cache.k.shape[0] // 2)))

    attending(wrapping)(monkeypatch)
    assert not attn_decode.check(decode("gather"), CPU).ok


def test_a_stale_page_is_caught(monkeypatch: Patch) -> None:
    right = paged.write

    def stale(cache: Cache, k: Any, v: Any, sequence: Any, position: Any) -> None:
        fill = torch.randn(k.shape, generator=torch.Generator().manual_seed(9)).to(k.dtype)
        right(cache, fill, fill, sequence, position)  # what the last owner left
        written = (sequence != 0) | (position // cache.page != 2)
        right(cache, k[written], v[written], sequence[written], position[written])

    monkeypatch.setattr(paged, "write", stale)
    assert not attn_decode.check(decode("gather"), CPU).ok


def test_swapped_scales_of_fp8_are_caught(monkeypatch: Patch) -> None:
    attending(
        lambda right, q, c: right(q, c._replace(k_scale=c.v_scale, v_scale=c.k_scale)),
    )(monkeypatch)
    assert not attn_decode.check(decode("gather", "fp8"), CPU).ok


def test_another_format_of_fp8_is_caught(monkeypatch: Patch) -> None:
    """The bytes of E5M2 where E4M3 is meant: a cast to the wrong dtype, and bytes read as the wrong one."""
    right = paged.store

    def other(x: Any, dtype: Any, scale: float) -> Any:
        return right(x, torch.float8_e5m2, scale).to(dtype)

    monkeypatch.setattr(paged, "store", other)
    assert not attn_decode.check(decode("gather", "fp8"), CPU).ok
    monkeypatch.setattr(
        paged,
        "store",
        lambda x, dtype, scale: right(x, torch.float8_e5m2, scale).view(torch.uint8).view(dtype),
    )
    assert not attn_decode.check(decode("gather", "fp8"), CPU).ok


@pytest.mark.parametrize("kv_dtype", ["fp8", "fp8_fnuz"])
def test_an_overflow_without_a_clamp_is_caught(kv_dtype: str, monkeypatch: Patch) -> None:
    def unclamped(x: Any, dtype: Any, scale: float) -> Any:
        scaled = x.float() / scale  # what casts of torch until 2.11 made of an overflow, and fnuz's still do
        return scaled.masked_fill(scaled.abs() > torch.finfo(dtype).max, torch.nan).to(dtype)

    monkeypatch.setattr(paged, "store", unclamped)
    found = attn_decode.check(decode("gather", kv_dtype), CPU)
    assert not found.ok
    assert found.nan > 0


# ---------------------------------------------------------------- faults inside the split kernel


def test_faults_of_the_split_kernel_are_caught(monkeypatch: Patch) -> None:
    """A split missed in the merge, splits weighed alike, and a row that the merge leaves unwritten."""
    pytest.importorskip("triton")
    assert attn_decode.check(decode("triton"), CPU).ok
    from capplan.probes.kernels import paged_decode as kernel

    right = kernel.join

    def missed(means: Any, lse: Any, scale: float, out: Any) -> Any:
        assert lse.shape[-1] > 1
        lse[..., -1] = -torch.inf
        return right(means, lse, scale, out)

    def alike(means: Any, lse: Any, scale: float, out: Any) -> Any:
        return right(means, lse.masked_fill(lse.isfinite(), 0.0), scale, out)

    def unwritten(means: Any, lse: Any, scale: float, out: Any) -> Any:
        out[1:] = right(means[1:], lse[1:], scale, out[1:])
        return out

    for fault in (missed, alike, unwritten):
        monkeypatch.setattr(kernel, "join", fault)
        found = attn_decode.check(decode("triton"), CPU)
        assert not found.ok, fault.__name__
        assert (found.nan > 0) == (fault is unwritten)


def test_more_splits_than_are_joined_at_a_time() -> None:
    pytest.importorskip("triton")
    ready(CPU)
    from capplan.probes.kernels import paged_decode as kernel

    made = torch.Generator().manual_seed(0)
    means, lse = torch.randn(2, 3, 40, 64, generator=made), 4 * torch.randn(2, 3, 40, generator=made)
    lse[0, 0, 30:] = -torch.inf  # splits without tokens
    got = kernel.join(means, lse, 0.5, torch.full((2, 3, 64), torch.nan))
    weights = torch.softmax(lse.double() * math.log(2), -1)
    assert torch.allclose(got.double(), 0.5 * (weights[..., None] * means.double()).sum(2), atol=1e-6)


def test_nan_of_unused_slots_leaks_through_a_weight_of_zero(monkeypatch: Patch) -> None:
    """A kernel that masks its scores but loads all of a page is caught by the NaN in the slots that nobody owns."""

    def careless(kernel: str, q: Any, cache: Cache, *rest: Any) -> Any:
        live = torch.arange(cache.table.shape[1] * cache.page)[None, :] < cache.lengths[:, None]
        pages = torch.where(live[:, :: cache.page], cache.table, 0).long()
        k, v = (
            pool[pages].flatten(1, 2).repeat_interleave(4, 2).transpose(1, 2) for pool in (cache.k, cache.v)
        )
        scores = (q[:, :, None] @ k.transpose(2, 3)).float() * attn_decode.WIDTH**-0.5
        weights = scores.masked_fill(~live[:, None, None], -torch.inf).softmax(-1).to(q.dtype)
        return (weights @ v)[:, :, 0]

    monkeypatch.setattr(attn_decode, "attend", careless)
    found = attn_decode.check(decode("gather"), CPU)
    assert not found.ok
    assert found.nan > 0


# ---------------------------------------------------------------- faults of prefill attention


def upper_left(kernel: str, q: Any, k: Any, v: Any) -> Any:
    return torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)


def unmasked(kernel: str, q: Any, k: Any, v: Any) -> Any:
    return torch.nn.functional.scaled_dot_product_attention(q, k, v, enable_gqa=True)


def one_further(kernel: str, q: Any, k: Any, v: Any) -> Any:
    seen = torch.ones(q.shape[2], k.shape[2], dtype=torch.bool).tril(k.shape[2] - q.shape[2] + 1)
    return torch.nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=seen, enable_gqa=True)


def interleaved(kernel: str, q: Any, k: Any, v: Any) -> Any:
    order = torch.arange(q.shape[1]).view(-1, k.shape[1]).t().flatten()
    return right_prefill(kernel, q[:, order], k, v)[:, order.argsort()]


right_prefill = attn_prefill.attend
PREFILL_FAULTS = {
    "a mask in the wrong corner": upper_left,
    "no mask": unmasked,
    "a mask one key too far": one_further,
    "another KV head": interleaved,
}


@pytest.mark.parametrize("fault", PREFILL_FAULTS)
def test_prefill_fault_is_caught(fault: str, monkeypatch: Patch) -> None:
    monkeypatch.setattr(attn_prefill, "attend", PREFILL_FAULTS[fault])
    assert not attn_prefill.check(prefill(64, 200), CPU).ok


# ---------------------------------------------------------------- faults of attention over latents


def test_faults_of_latent_attention_are_caught(monkeypatch: Patch) -> None:
    """The turned part left out, the scale of the absorbed width, the projection transposed, a split missed."""
    right, absorb = attn_decode_mla.attend, attn_decode_mla.absorb

    def turned_part_left_out(kernel: str, q: Any, *rest: Any) -> Any:
        return right(kernel, q.masked_fill(torch.arange(576) >= 512, 0.0), *rest)

    def scale_of_the_width(kernel: str, q: Any, *rest: Any) -> Any:
        return right(kernel, q * (192 / 576) ** 0.5, *rest)

    for fault in (turned_part_left_out, scale_of_the_width):
        with monkeypatch.context() as patch:
            patch.setattr(attn_decode_mla, "attend", fault)
            assert not attn_decode_mla.check(latents("gather"), CPU).ok, fault.__name__
    monkeypatch.setattr(attn_decode_mla, "absorb", lambda q, up: absorb(q, up.flip(0)))  # of other heads
    assert not attn_decode_mla.check(latents("gather"), CPU).ok


PACKED_FAULTS: dict[str, Callable[..., Any]] = {
    "scales of the next group": lambda rows: rows[..., 512:528].view(torch.float32).roll(1, -1),
    "one scale for all": lambda rows: (
        rows[..., 512:528].view(torch.float32).amax(-1, keepdim=True).expand(*rows.shape[:-1], 4)
    ),
    "scales of the token before": lambda rows: rows[..., 512:528].view(torch.float32).roll(1, 0),
    "scales left out": lambda rows: torch.ones_like(rows[..., 512:528].view(torch.float32)),
}


@pytest.mark.parametrize("kernel", ["gather", "triton"])
@pytest.mark.parametrize("fault", [*PACKED_FAULTS, "what is turned in another place", "no clamp"])
def test_faults_of_packed_latents_are_caught(fault: str, kernel: str, monkeypatch: Patch) -> None:
    if kernel == "triton":
        pytest.importorskip("triton")
    right = latent_rows.packed

    def wrong(tokens: Any) -> Any:
        rows = right(tokens)
        if fault in PACKED_FAULTS:
            scales = PACKED_FAULTS[fault](rows).contiguous()
            rows[..., 512:528] = scales.view(torch.uint8)
        elif fault == "no clamp":  # NaN is what torch until 2.11 makes of an overflow: one number a row here
            rows[..., 7] = 127
        else:
            rows[..., 528:] = rows[..., 528:].roll(2, -1)
        return rows

    monkeypatch.setattr(latent_rows, "packed", wrong)
    found = attn_decode_mla.check(latents(kernel, 16, "fp8_ds_mla"), CPU)
    assert not found.ok
    assert (found.nan > 0) == (fault == "no clamp" and kernel == "gather")  # the interpreter's FP8 has no NaN


def test_a_packed_row_is_what_it_says() -> None:
    tokens = torch.randn(5, 1, 576, generator=torch.Generator().manual_seed(1))
    tokens[2, 0, 130] = 1e6  # an outlier costs its own group
    rows = latent_rows.packed(tokens)
    assert (tuple(rows.shape), rows.dtype) == ((5, 1, 656), torch.uint8)
    assert rows[2, 0, 512:528].view(torch.float32).tolist()[1] == pytest.approx(1e6 / 448)
    found, held = latent_rows.unpacked(rows, torch.float64), latent_rows.held(tokens)
    assert torch.allclose(found, held, rtol=1e-6)
    assert torch.equal(found[..., 512:], tokens[..., 512:].bfloat16().double())
    off = (held - tokens.double())[..., :512].unflatten(-1, (4, 128)).norm(dim=-1)
    assert float(off[2, 0, 1]) > 5 * float(off[2, 0, 0])


def test_a_split_missed_in_the_merge_of_latents_is_caught(monkeypatch: Patch) -> None:
    pytest.importorskip("triton")
    assert attn_decode_mla.check(latents("triton"), CPU).ok
    from capplan.probes.kernels import paged_decode as kernel

    right = kernel.join

    def missed(means: Any, lse: Any, scale: float, out: Any) -> Any:
        assert lse.shape[-1] > 1
        lse[..., -1] = -torch.inf
        return right(means, lse, scale, out)

    monkeypatch.setattr(kernel, "join", missed)
    assert not attn_decode_mla.check(latents("triton"), CPU).ok


# ---------------------------------------------------------------- what follows from rows

H200 = Device(
    "cuda",
    0,
    "H200",
    "sm_90",
    sm_count=132,
    l2_bytes=60 * 2**20,
    memory_bytes=150 * 10**9,
    capability=(9, 0),
    peaks={"bf16": 989e12},
    bandwidth=4.8e12,
)


def rows_of(
    probe: Any, time: Callable[[Case], float], work: Callable[[Case], tuple[float, float]]
) -> list[Row]:
    rows = []
    for i, case in enumerate(probe.cases("default", H200)):
        took, (flops, size) = time(case), work(case)
        stat = {"median": took, "p10": took, "p90": took, "n": 20}
        rows.append({
            "id": i, "case": case, "kernel": case["kernel"], "dtype": "bf16", "time_s": stat,
            "work": {"flops": flops, "bytes": size},
            "achieved": {"flops_ps": flops / took, "bytes_ps": size / took},
        })  # fmt: skip
    return rows


def test_the_start_and_the_rate_of_decode_attention_are_found() -> None:
    rates = {"bf16": 4.2e12, "fp8": 2.6e12}
    rows = rows_of(
        attn_decode,
        lambda case: 12e-6 + attn_decode._cache_bytes(case) / rates[case["kv_dtype"]],
        lambda case: (1.0, attn_decode._cache_bytes(case)),
    )
    values, predicted = attn_decode.derive(rows)
    for dtype, rate in rates.items():
        assert values[f"attn_decode.triton.{dtype}.rate"].value == pytest.approx(rate, rel=0.01)
        assert values[f"attn_decode.triton.{dtype}.t0"].value == pytest.approx(12e-6, rel=0.01)
    assert predicted == pytest.approx([row["time_s"]["median"] for row in rows])
    told = {(row["case"]["kv_dtype"], row["case"]["batch"]): attn_decode.expect(row, H200) for row in rows}
    assert told["bf16", 128] is None  # 87% of the bandwidth
    assert told["fp8", 128] == "K and V are read at 53% of the bandwidth; 80% is expected"
    assert told["fp8", 1] is None  # too little to read


def test_the_heads_at_which_products_bound_latents_are_found() -> None:
    peak, bandwidth = 650e12, 4.4e12

    def work(case: Case) -> tuple[float, float]:
        tokens = case["batch"] * case["length"]
        width = {"bf16": 1152.0, "fp8": 576.0, "fp8_ds_mla": 656.0}[case["kv_dtype"]]
        return 2.0 * tokens * case["heads"] * (576 + 512), tokens * width

    def time(case: Case) -> float:
        flops, size = work(case)
        return float(10e-6 + ((flops / peak) ** 3 + (size / bandwidth) ** 3) ** (1 / 3))

    values, _ = attn_decode_mla.derive(rows_of(attn_decode_mla, time, work))
    found = values["attn_decode_mla.triton.bf16.crossover_heads"].value
    assert found == pytest.approx(peak / bandwidth * 1152 / 2 / (576 + 512), rel=0.05)
    found = values["attn_decode_mla.triton.fp8_ds_mla.crossover_heads"].value
    assert found == pytest.approx(peak / bandwidth * 656 / 2 / (576 + 512), rel=0.05)


def test_attention_of_a_prompt_is_told_by_length() -> None:
    def pairs(case: Case) -> float:
        return float(case["queries"] * (case["keys"] - case["queries"]) + case["queries"] ** 2 / 2)

    def work(case: Case) -> tuple[float, float]:
        return float(4 * pairs(case) * case["heads"] * 128), 1.0

    def time(case: Case) -> float:
        return 20e-6 + work(case)[0] / (560e12 if case["kernel"] == "sdpa" else 250e12)

    rows = rows_of(attn_prefill, time, work)
    values, _ = attn_prefill.derive(rows)
    assert values["attn_prefill.sdpa.bf16.rate"].value == pytest.approx(560e12, rel=0.01)
    by_length = [values[f"attn_prefill.sdpa.bf16.at.{length}"].value for length in (512, 4096, 32768)]
    assert by_length == sorted(by_length)
    slow = {attn_prefill.expect(row, H200) for row in rows if row["kernel"] == "sdpa_cudnn"}
    assert "attention reaches 25% of the peak; 30% is expected" in slow
    assert {attn_prefill.expect(row, H200) for row in rows if row["kernel"] == "sdpa"} == {None}


def test_fp8_is_not_asked_of_a_device_that_can_not_read_it() -> None:
    a100 = Device("cuda", 0, "A100", "sm_80", 108, 40 * 2**20, 80 * 10**9, capability=(8, 0))
    with pytest.raises(Unsupported, match=r"compute capability 8.9"):
        attn_decode.check(decode("triton", "fp8"), a100)
