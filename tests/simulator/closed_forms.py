"""Closed forms and small exact recursions that the simulation is held against, each with its source.

α is the acceptance probability of a drafted token (independent), k the drafts of a round, B the rows of a batch,
N the tokens to generate. Times are in seconds, rates per second.
"""

from math import exp, lgamma, log

import numpy as np

# --- one row -----------------------------------------------------------------------------------------------------


def accepted_pmf(alpha: float, k: int) -> np.ndarray:
    """Law of the accepted drafts of a round: truncated geometric ``[k + 1]`` (Leviathan et al. 2023, section 3.1)."""
    return np.append(alpha ** np.arange(k) * (1 - alpha), alpha**k)


def rounds_law(alpha: float, k: int, tokens: int) -> np.ndarray:
    """Law of the rounds that a row needs for exactly `tokens` tokens ``[tokens + 1]``, index = rounds.

    Exact renewal recursion on what is left; a row drafts at most one token less than that.
    """
    law = np.zeros((tokens + 1, tokens + 1))
    law[0, 0] = 1
    for left in range(1, tokens + 1):
        for accepted, chance in enumerate(accepted_pmf(alpha, min(k, left - 1))):
            law[left, 1:] += chance * law[left - accepted - 1, :-1]
    return law[tokens]


def mean_rounds(alpha: float, k: int, tokens: int) -> float:
    """Mean of `rounds_law`; tokens / tokens_per_round in the limit of many tokens (renewal theorem)."""
    return float(rounds_law(alpha, k, tokens) @ np.arange(tokens + 1))


# --- a batch -----------------------------------------------------------------------------------------------------


def minimum_tokens(alpha: float, k: int, rows: int) -> float:
    """Mean of the batch minimum of the tokens of a round, Σ_{j=0..k} α^(j·B): what rollback commits per row."""
    return float(sum(alpha ** (j * rows) for j in range(k + 1)))


def longest_rounds(alpha: float, k: int, tokens: int, rows: int) -> float:
    """Mean rounds until the last of B independent rows has its tokens, Σ_r (1 - F(r)^B)."""
    distribution = rounds_law(alpha, k, tokens).cumsum()
    return float((1 - np.minimum(distribution, 1) ** rows).sum())


def static_occupancy(alpha: float, k: int, tokens: int, rows: int) -> float:
    """Share of a static batch's row-rounds that are spent on unfinished rows, E[R] / E[max R]."""
    return mean_rounds(alpha, k, tokens) / longest_rounds(alpha, k, tokens, rows)


def group_probability(window: int, rows: int, lengths: int) -> float:
    """Chance that some length is shared by at least B of W rows whose lengths are uniform on L values.

    Generalised birthday problem: 1 - W! · [x^W] (Σ_{j<B} x^j / (j! L^j))^L, with exact polynomial powers.
    """
    if window < rows:
        return 0.0
    degree = min(rows - 1, window)
    base = np.array([exp(-lgamma(j + 1) - j * log(lengths)) for j in range(degree + 1)])
    power, square, exponent = np.ones(1), base, lengths
    while exponent:
        if exponent & 1:
            power = np.convolve(power, square)[: window + 1]
        square, exponent = np.convolve(square, square)[: window + 1], exponent >> 1
    none = power[window] * exp(lgamma(window + 1)) if len(power) > window else 0.0
    return 1.0 - float(none)


# --- queues ------------------------------------------------------------------------------------------------------


def _load(rate: float, service_s: float, servers: int = 1) -> float:
    load = rate * service_s / servers
    assert 0 <= load < 1, "else the queue has no steady state"
    return load


def pollaczek_khinchine_wait_s(rate: float, service_s: float, service_cv2: float) -> float:
    """Mean wait in an M/G/1 queue, λ·E[S²] / (2·(1 - ρ)) (Pollaczek 1930, Khinchine 1932)."""
    return rate * service_s**2 * (1 + service_cv2) / (2 * (1 - _load(rate, service_s)))


def md1_wait_s(rate: float, service_s: float) -> float:
    """Mean wait in an M/D/1 queue, ρ·S / (2·(1 - ρ))."""
    return pollaczek_khinchine_wait_s(rate, service_s, 0.0)


def mmc_wait_s(rate: float, service_s: float, servers: int) -> float:
    """Mean wait in an M/M/c queue (Erlang 1917)."""
    load = _load(rate, service_s, servers)
    offered = rate * service_s
    terms = [exp(n * log(offered) - lgamma(n + 1)) for n in range(servers + 1)]
    waits = terms[-1] / (1 - load) / (sum(terms[:-1]) + terms[-1] / (1 - load))
    return waits * service_s / (servers * (1 - load))


def bulk_wait_s(rate: float, service_s: float, rows: int) -> float:
    """Mean wait when up to B requests are served at once in a fixed time, and an idle server takes the first comer.

    Embedded chain at the ends of service (Bailey 1954, with a minimum of one), truncated and solved numerically;
    waiting time by Little's law over a cycle of service and idle time.
    """
    load = _load(rate, service_s, rows)
    size = int(rows * 20 / (1 - load)) + 50
    mean = rate * service_s
    arrivals = np.exp(np.arange(size) * log(mean) - mean - np.array([lgamma(n + 1) for n in range(size)]))
    chain = np.zeros((size, size))
    for queue in range(size):
        left = max(queue - rows, 0) if queue else 0
        chain[queue, left:] = arrivals[: size - left]
        chain[queue, -1] += 1 - chain[queue].sum()
    law = np.linalg.solve(np.vstack([(chain.T - np.eye(size))[:-1], np.ones(size)]), np.append(np.zeros(size - 1), 1))
    behind = np.maximum(np.arange(size) - rows, 0)
    waiting_s = service_s * (law @ behind + mean / 2)
    return float(waiting_s / (service_s + law[0] / rate) / rate)


def in_turn_wait_s(rate: float, service_s: float, servers: int) -> float:
    """Mean wait where Poisson arrivals go to c exponential servers in turn, each with a queue: a GI/M/1 queue each.

    Gaps at a server are Erlang of c phases. An arrival finds n there with a chance of (1 - σ) σ^n, where σ < 1 solves
    σ = (λ / (λ + μ (1 - σ)))^c (Kendall 1953); iterated, since the map contracts below the root.
    """
    _load(rate, service_s, servers)
    busy = 0.0
    for _ in range(10_000):
        busy = (rate / (rate + (1 - busy) / service_s)) ** servers
    return busy * service_s / (1 - busy)
