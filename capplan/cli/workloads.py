"""The options that say what comes to a service, and what it promises."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from capplan.cli import notes
from capplan.cli import options as opt
from capplan.errors import InputError

if TYPE_CHECKING:
    from capplan.capacity.simulator.slo import Slo
    from capplan.capacity.simulator.workloads import Mix


def _flag(name: str, metavar: str, text: str) -> Any:
    return typer.Option(name, metavar=metavar, help=text, show_default=False)


LENGTH, SEED = 1024, 1  # where they are not given

Sigma = Annotated[
    float | None,
    _flag("--sigma", "SIGMA", "Lengths lognormal around --isl and --osl, so wide; fixed without."),
]
TraceLengths = Annotated[
    str | None,
    _flag("--trace-lengths", "FILE", "Lengths drawn from a trace (CSV or JSONL), not --isl, --osl."),
]
Trace = Annotated[str | None, _flag("--trace", "FILE", "Replay a trace, its times stretched to each rate.")]
Burstiness = Annotated[
    float | None, _flag("--burstiness", "CV", "Of the gaps between arrivals: 1 (Poisson) when not given.")
]
Requests = Annotated[
    int | None, _flag("--requests", "COUNT", "Simulated at each rate; as many as the percentiles need.")
]
PrefixCaching = Annotated[
    bool | None,
    typer.Option(
        "--enable-prefix-caching/--no-enable-prefix-caching",
        help="Whether prompts reuse cached blocks; yes where a trace has their ids.",
        show_default=False,
    ),
]
Routing = Annotated[
    str,
    typer.Option(
        "--routing", metavar="RULE", help="To instances: round-robin, or least-loaded as vLLM balances."
    ),
]
Seed = Annotated[
    int | None,
    typer.Option("--seed", metavar="NUMBER", help="Which requests are drawn.", show_default=str(SEED)),
]
Isl = Annotated[
    str | None,
    typer.Option("--isl", metavar="TOKENS", help="Tokens of a prompt.", show_default=str(LENGTH)),
]
Osl = Annotated[
    str | None,
    typer.Option("--osl", metavar="TOKENS", help="Tokens of an answer.", show_default=str(LENGTH)),
]


def bound(kind: str, share: str) -> Any:
    """The option of a bound: --ttft-p95."""
    return typer.Option(f"--{kind}-{share}", metavar="TIME", help=_HELP[kind], show_default=False)


_HELP = {
    "ttft": "Time to first token, such as 500ms.",
    "tpot": "Time per output token of a request.",
    "itl": "Time between tokens, over all tokens.",
    "e2e": "Time of a whole request.",
}


def slo(given: dict[str, str | None], ttft: str | None, tpot: str | None, attainment: str | None) -> Slo:
    """The bounds that were given: {"ttft-p95": "500ms"}, and a joint attainment. Raises InputError."""
    from capplan.capacity.simulator.slo import Bound, Joint, Slo

    bounds = []
    for name, text in given.items():
        if text is not None:
            kind, _, digits = name.partition("-p")
            bounds.append(Bound(kind, int(digits) / 10 ** len(digits), opt.target(f"--{name}", text)))
    joint = None
    if attainment is not None:
        if ttft is None and tpot is None:
            raise InputError(f"--attainment {attainment!r} of what? name --ttft, --tpot or both")
        times = [
            float("inf") if text is None else opt.target(option, text)
            for option, text in (("--ttft", ttft), ("--tpot", tpot))
        ]
        joint = Joint(times[0], times[1], opt.share("--attainment", attainment))
    elif ttft is not None or tpot is not None:
        raise InputError(
            "--ttft and --tpot need --attainment 90%; a percentile has its own option, such as --ttft-p95"
        )
    return Slo(tuple(bounds), joint)


def pools(text: str | None) -> tuple[int, int] | None:
    """Prefill and decode instances of --pools. Raises InputError."""
    if text is None:
        return None
    prefill, colon, decode = text.partition(":")
    if not (colon and prefill.strip().isdecimal() and decode.strip().isdecimal()):
        raise InputError(f"--pools {text!r} is not two numbers of instances; such as 2:1 is accepted")
    return int(prefill), int(decode)


def mix_of(sigma: float | None, trace_lengths: str | None, trace: str | None) -> str:
    """What the requests are, for the record."""
    if trace is not None:
        return f"replay of {trace}"
    if trace_lengths is not None:
        return f"lengths of {trace_lengths}"
    return "fixed lengths" if sigma is None else f"lognormal lengths, sigma {sigma:g}"


def mix(
    *,
    isl: str | None,
    osl: str | None,
    sigma: float | None,
    trace_lengths: str | None,
    trace: str | None,
    burstiness: float | None,
    requests: int,
    seed: int | None,
) -> Mix:
    """The requests that the options describe; what was skipped of a trace is said with the answer. Raises InputError."""
    from capplan.capacity.simulator import workloads
    from capplan.capacity.simulator.traces import read_trace

    prompt, answer = opt.count("--isl", isl), opt.count("--osl", osl)
    ways = {"--sigma": sigma, "--trace-lengths": trace_lengths, "--trace": trace}
    named = [name for name, value in ways.items() if value is not None]
    if len(named) > 1:
        raise InputError(f"{' and '.join(named)} exclude each other; give one")
    if trace is not None and burstiness is not None:
        raise InputError("--trace has arrivals of its own; --burstiness is of drawn ones")
    given = {"--isl": isl, "--osl": osl} | ({"--seed": seed} if trace is not None else {})
    path = trace if trace is not None else trace_lengths
    if path is not None and (unused := [name for name, value in given.items() if value is not None]):
        raise InputError(f"{named[0]} has requests of its own; {' and '.join(unused)} would not be used")
    prompt, answer = LENGTH if prompt is None else prompt, LENGTH if answer is None else answer
    seed = SEED if seed is None else seed
    if path is not None:
        read = read_trace(path)
        for line in read.told():
            notes.note(line)
        if trace is not None:
            return workloads.replay(read, requests)
        lengths = workloads.joint(requests, seed, read)
    elif sigma is not None:
        lengths = workloads.lognormal(
            requests, seed, isl=prompt, osl=answer, isl_sigma=sigma, osl_sigma=sigma, least=2
        )
    else:
        lengths = workloads.fixed(requests, prompt, answer)
    times = (
        workloads.poisson(requests, seed)
        if burstiness is None
        else workloads.gamma(requests, seed, burstiness)
    )
    return workloads.Mix(times, *lengths)
