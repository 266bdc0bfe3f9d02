"""How far are predicted latencies and throughputs off? Published benchmarks, each predicted from its inputs alone."""

from __future__ import annotations

from capplan.capacity.questions.throughput_rows import Case
from capplan.capacity.step_time.engine_steps import Engine, engine_steps
from capplan.capacity.step_time.serving import Serving, closed_loop, disaggregated, full_load, open_loop

_FIRST = 0.1  # of a benchmark's requests that come at once with all others: ten to a place is what the scripts send
_MOST_BATCH = 2048.0  # sequences of an offline run, as the benchmarks of TensorRT-LLM allow


def served(case: Case, engine: Engine | None = None) -> tuple[Serving, float]:
    """What a replica does, and how many ranks of attention do so."""
    engine = engine or engine_steps(case.engine)
    pool, isl, osl = case.pool, case.isl, case.osl
    lengths = {"isl": isl, "osl": osl}
    engine = engine._replace(poll=case.poll)
    together = engine.together if case.alike and not engine.mixed else _FIRST
    if case.prefill is not None and case.concurrency is not None:
        found = disaggregated(
            pool.plan,
            case.prefill.plan,
            case.chip,
            engine,
            **lengths,
            concurrency=case.concurrency,
            decode_ranks=pool.ranks,
            prefill_ranks=case.prefill.ranks,
            most=pool.most,
            together=_FIRST,
        )
        return found, 1.0
    if case.rate is not None:
        return open_loop(
            pool.plan, case.chip, engine, **lengths, rate=case.rate / pool.ranks, most=pool.most
        ), pool.ranks
    if case.concurrency is None:
        batch = min(pool.most, _MOST_BATCH)
        return full_load(pool.plan, case.chip, engine, **lengths, batch=batch), pool.ranks
    concurrency = case.concurrency / pool.ranks
    if case.scenario == "single-stream":
        together = 0.0
    found = closed_loop(
        pool.plan, case.chip, engine, **lengths, concurrency=concurrency, most=pool.most, together=together
    )
    return found, pool.ranks


def predicted(case: Case, engine: Engine | None = None) -> dict[str, float | None]:
    """The measured columns, predicted; percentiles beyond the median are a simulator's."""
    found, ranks = served(case, engine)
    gpus = case.pool.gpus + (case.prefill.gpus if case.prefill else 0)
    output = found.requests_per_s * ranks * case.osl
    ttft, tpot = found.ttft * 1e3, found.tpot * 1e3
    timed = case.concurrency is not None or case.rate is not None
    return {
        "output_tok_s_total": output,
        "total_tok_s": found.requests_per_s * ranks * (case.isl + case.osl),
        "tok_s_per_gpu": output / gpus,
        "tok_s_per_user": 1e3 / tpot,
        "ttft_ms_p50": ttft if timed else None,
        "ttft_ms_p99": None,
        "tpot_ms_p50": tpot if timed else None,
        "tpot_ms_p99": None,
        "ttft_ms_central": ttft if timed else None,
        "tpot_ms_central": tpot if timed else None,
    }
