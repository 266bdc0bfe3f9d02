"""Queues in closed form: waits for one server, the load of a decode pool, two pools against each other."""

from __future__ import annotations

from capplan.capacity.formula import formula


@formula
def mg1_wait(rate: float, mean: float, second_moment: float) -> float:
    r"""Mean time that a request waits for one server, first come, first served.

    .. math:: W = \frac{R\, E[D^2]}{2 (1 - R\, E[D])}

    Parameters
    ----------
    rate : float
        Requests that come, as a Poisson process :math:`R` [1/second]
    mean : float
        Mean time of service :math:`E[D]` [second]
    second_moment : float
        Mean of its square :math:`E[D^2]` [second**2]

    Returns
    -------
    float
        Mean wait before service :math:`W` [second]

    Validity: Poisson arrivals, one request at a time, and a load R E[D] below 1.
    Not counted: prompts that share a pass, which wait less; bursts, which make all wait longer.
    Source: Pollaczek 1930, Khinchine 1932; L. Kleinrock, Queueing Systems, volume 1, chapter 5.

    A service of 1 s or of 2 s, each half of the time, at half the load:

    >>> round(mg1_wait(rate=1 / 3, mean=1.5, second_moment=2.5), 4)
    0.8333
    """
    return rate * second_moment / (2 * (1 - rate * mean))


@formula
def md1_wait(rate: float, service: float) -> float:
    r"""Mean time that a request waits for one server whose service always takes as long.

    .. math:: W = \frac{R\, D^2}{2 (1 - R\, D)}

    Parameters
    ----------
    rate : float
        Requests that come, as a Poisson process :math:`R` [1/second]
    service : float
        Time of every service :math:`D` [second]

    Returns
    -------
    float
        Mean wait before service :math:`W` [second]

    Validity: Poisson arrivals, prompts of one length, one at a time, and a load R D below 1.
    Not counted: prompts that share a pass, which wait less; bursts, which make all wait longer.
    Source: mg1_wait with E[D^2] = D^2; DistServe (OSDI 2024), eq. 1.

    >>> round(md1_wait(rate=4, service=0.15), 4)
    0.1125
    """
    return rate * service**2 / (2 * (1 - rate * service))


@formula
def kingman_wait(rate: float, service: float, arrival_cv: float, service_cv: float) -> float:
    r"""Mean wait for one server under bursts, near saturation.

    .. math:: W \approx \frac{R D}{1 - R D} \cdot \frac{c_a^2 + c_s^2}{2} \cdot D

    Parameters
    ----------
    rate : float
        Requests that come :math:`R` [1/second]
    service : float
        Mean time of service :math:`D` [second]
    arrival_cv : float
        Standard deviation of the time between arrivals over its mean :math:`c_a` [-]
    service_cv : float
        The same of the service :math:`c_s` [-]

    Returns
    -------
    float
        Mean wait before service :math:`W` [second]

    Validity: independent gaps between arrivals, a load R D below 1 and not far from it.
    Not counted: what two gaps in a row have to do with each other, as in a trace.
    Source: J. F. C. Kingman, "The single server queue in heavy traffic", 1961.

    Poisson arrivals and a fixed service are M/D/1:

    >>> round(kingman_wait(rate=4, service=0.15, arrival_cv=1, service_cv=0), 4)
    0.1125
    """
    return rate * service / (1 - rate * service) * (arrival_cv**2 + service_cv**2) / 2 * service


@formula
def prefill_ttft(rate: float, prefill: float) -> float:
    r"""Mean time to first token of one prefill instance.

    .. math:: \mathrm{TTFT} = D + \frac{R\, D^2}{2 (1 - R\, D)}

    Parameters
    ----------
    rate : float
        Requests that come, as a Poisson process :math:`R` [1/second]
    prefill : float
        Time of a prompt's pass :math:`D` [second]

    Returns
    -------
    float
        Mean time to first token :math:`\mathrm{TTFT}` [second]

    Validity: prompts of one length, each of which fills the GPU alone; a load R D below 1.
    Not counted: prompts that share a pass, and all that decoding takes.
    Source: DistServe (OSDI 2024), eq. 1.

    >>> [round(prefill_ttft(rate, prefill=0.15), 5) for rate in (1, 2, 4, 6)]
    [0.16324, 0.18214, 0.2625, 0.825]
    """
    return prefill + rate * prefill**2 / (2 * (1 - rate * prefill))


@formula
def inter_op_ttft(rate: float, prefill: float) -> float:
    r"""Mean time to first token of a prefill instance of two pipeline stages.

    .. math:: \mathrm{TTFT} = D + \frac{R\, D^2}{4 (2 - R\, D)}

    Parameters
    ----------
    rate : float
        Requests that come, as a Poisson process :math:`R` [1/second]
    prefill : float
        Time of a prompt's pass through both stages :math:`D` [second]

    Returns
    -------
    float
        Mean time to first token :math:`\mathrm{TTFT}` [second]

    Validity: prompts of one length, stages of one length, R D below 2.
    Not counted: handing over between the stages.
    Source: DistServe (OSDI 2024), eq. 2.

    >>> [round(inter_op_ttft(rate, prefill=0.15), 5) for rate in (1, 2, 4, 6)]
    [0.15304, 0.15662, 0.16607, 0.18068]
    """
    return prefill + rate * prefill**2 / (4 * (2 - rate * prefill))


@formula
def intra_op_ttft(rate: float, prefill: float, speed_up: float) -> float:
    r"""Mean time to first token of a prefill instance of two tensor-parallel ranks.

    .. math:: \mathrm{TTFT} = \frac{D}{K} + \frac{R\, D^2}{2 K (K - R\, D)}

    Parameters
    ----------
    rate : float
        Requests that come, as a Poisson process :math:`R` [1/second]
    prefill : float
        Time of a prompt's pass on one rank :math:`D` [second]
    speed_up : float
        How many times as fast two ranks are, from 1 to 2 :math:`K` [-]

    Returns
    -------
    float
        Mean time to first token :math:`\mathrm{TTFT}` [second]

    Validity: prompts of one length, R D below K.
    Not counted: prompts that share a pass.
    Source: DistServe (OSDI 2024), eq. 3.

    >>> [round(intra_op_ttft(rate, prefill=0.15, speed_up=1.8), 5) for rate in (1, 2, 4, 6)]
    [0.08712, 0.09167, 0.10417, 0.125]
    """
    return prefill / speed_up + rate * prefill**2 / (2 * speed_up * (speed_up - rate * prefill))


@formula
def stalled_tpot(step: float, rate: float, prefill: float) -> float:
    r"""Mean time per output token where every prompt that comes stops the decoding for its whole pass.

    .. math:: \mathrm{TPOT} = \frac{s}{1 - R\, D}

    Parameters
    ----------
    step : float
        Time of a decode pass :math:`s` [second]
    rate : float
        Requests that come :math:`R` [1/second]
    prefill : float
        Time of a prompt's pass :math:`D` [second]

    Returns
    -------
    float
        Mean time per output token :math:`\mathrm{TPOT}` [second]

    Validity: prompts go first and are not divided; R D below 1.
    Not counted: that a longer TPOT leaves more sequences in the batch, which makes its pass longer.
    Source: conservation of work: R D of the time goes to prompts, in which nothing decodes.

    >>> stalled_tpot(step=0.02, rate=2, prefill=0.25)
    0.04
    """
    return step / (1 - rate * prefill)


@formula
def decode_batch(
    rate: float, output_tokens: float, fixed: float, per_sequence: float, per_token: float, context: float
) -> float:
    r"""Sequences that decode together at a rate of requests: the fixed point of batch and time of a pass.

    .. math:: B = \frac{R\, O\, t_0}{1 - R\, O\, (a + b\, c)}

    Parameters
    ----------
    rate : float
        Requests that come to the pool :math:`R` [1/second]
    output_tokens : float
        Passes of an answer, its tokens after the first :math:`O` [-]
    fixed : float
        Time of a pass without sequences :math:`t_0` [second]
    per_sequence : float
        What each sequence adds to it :math:`a` [second]
    per_token : float
        What each token of context adds :math:`b` [second/token]
    context : float
        Mean context of a sequence :math:`c` [token]

    Returns
    -------
    float
        Mean batch :math:`B` [-]

    Validity: a time of a pass that is affine in batch and context, and a denominator above 0.
    Not counted: the spread around the mean, and the room in the cache.
    Source: Little's law, B = R O s, with s = t0 + a B + b c B.

    OPT-13B on one A100, answers of 64 tokens to prompts of 512, with DistServe's coefficients:

    >>> round(decode_batch(10, 63, fixed=0.0219, per_sequence=3.85e-5, per_token=7.27e-7, context=544), 1)
    19.0
    """
    return rate * output_tokens * fixed / (1 - rate * output_tokens * (per_sequence + per_token * context))


@formula
def decode_rate(
    tpot: float, output_tokens: float, fixed: float, per_sequence: float, per_token: float, context: float
) -> float:
    r"""Requests a second that one decode instance takes at a bound of the time per output token.

    .. math:: R = \frac{T - t_0}{(a + b\, c)\, O\, T}

    Parameters
    ----------
    tpot : float
        Bound of the time per output token :math:`T` [second]
    output_tokens : float
        Passes of an answer, its tokens after the first :math:`O` [-]
    fixed : float
        Time of a pass without sequences :math:`t_0` [second]
    per_sequence : float
        What each sequence adds to it :math:`a` [second]
    per_token : float
        What each token of context adds :math:`b` [second/token]
    context : float
        Mean context of a sequence :math:`c` [token]

    Returns
    -------
    float
        Rate at which a mean pass takes as long as the bound :math:`R` [1/second]

    Validity: a time of a pass that is affine in batch and context; a bound above t0.
    Not counted: the spread around the mean, and the room in the cache.
    Source: decode_batch solved for the rate at which the pass takes T.

    >>> round(decode_rate(0.04, 63, fixed=0.0219, per_sequence=3.85e-5, per_token=7.27e-7, context=544), 1)
    16.6
    """
    return (tpot - fixed) / ((per_sequence + per_token * context) * output_tokens * tpot)


@formula
def pool_ratio(prefill_rate: float, decode_rate: float) -> float:
    r"""Prefill instances for every decode instance, so that neither waits for the other.

    .. math:: \frac{n_p}{n_d} = \frac{R_d}{R_p}

    Parameters
    ----------
    prefill_rate : float
        Requests that one prefill instance takes inside the TTFT bound :math:`R_p` [1/second]
    decode_rate : float
        Requests that one decode instance takes inside the TPOT bound :math:`R_d` [1/second]

    Returns
    -------
    float
        Prefill instances for one decode instance :math:`n_p / n_d` [-]

    Validity: pools that share nothing but the requests.
    Not counted: whole numbers of instances: try those on both sides.
    Source: DistServe (OSDI 2024), its placement algorithm: both pools take the same rate.

    The introduction of DistServe, 5.6 and 10 requests a second: two prefill GPUs to one decode GPU.

    >>> round(pool_ratio(prefill_rate=5.6, decode_rate=10), 2)
    1.79
    """
    return decode_rate / prefill_rate


@formula
def pools_goodput(
    prefills: float,
    prefill_rate: float,
    decodes: float,
    decode_rate: float,
    prefill_gpus: float,
    decode_gpus: float,
) -> float:
    r"""Requests a second for each GPU of a prefill and a decode pool: the slower pool sets the rate.

    .. math:: \frac{\min(n_p R_p, n_d R_d)}{n_p g_p + n_d g_d}

    Parameters
    ----------
    prefills : float
        Prefill instances :math:`n_p` [-]
    prefill_rate : float
        Requests that one of them takes inside the TTFT bound :math:`R_p` [1/second]
    decodes : float
        Decode instances :math:`n_d` [-]
    decode_rate : float
        Requests that one of them takes inside the TPOT bound :math:`R_d` [1/second]
    prefill_gpus : float
        GPUs of a prefill instance :math:`g_p` [-]
    decode_gpus : float
        GPUs of a decode instance :math:`g_d` [-]

    Returns
    -------
    float
        Goodput of a GPU :math:`R / g` [1/second]

    Validity: requests that are spread evenly over the instances of a pool.
    Not counted: the cache's way from one pool to the other.
    Source: DistServe (OSDI 2024), section 1: 2 x 5.6 and 10 requests a second on three GPUs.

    >>> round(pools_goodput(2, 5.6, 1, 10, 1, 1), 1)
    3.3
    """
    return min(prefills * prefill_rate, decodes * decode_rate) / (
        prefills * prefill_gpus + decodes * decode_gpus
    )


@formula
def exposed_transfer(transfer: float, prefill: float, layers: float) -> float:
    r"""Time that a cache's way to another GPU adds, sent layer by layer while the next ones run.

    .. math:: \max\left(\frac{t}{L},\; t - D \left(1 - \frac{1}{L}\right)\right)

    Parameters
    ----------
    transfer : float
        Time of the whole cache on the link :math:`t` [second]
    prefill : float
        Time of the prompt's pass :math:`D` [second]
    layers : float
        Layers :math:`L` [-]

    Returns
    -------
    float
        Time that is not hidden behind the pass :math:`t_e` [second]

    Validity: layers of one size; a link that nothing else uses.
    Not counted: the latency of each message, and other transfers on the link.
    Source: Splitwise (ISCA 2024), layer-wise transfer: the last layer's cache can't be sent before the pass ends.

    >>> exposed_transfer(transfer=0.08, prefill=0.4, layers=80)
    0.001
    """
    return max(transfer / layers, transfer - prefill * (1 - 1 / layers))
