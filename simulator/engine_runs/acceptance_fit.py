"""Fitting acceptance models to an engine trace, and telling how well they fit: the mean, and the raggedness.

A model that has the right mean may still spread too little: rows of a real batch drift apart faster than independent
coin flips say. Two statistics are therefore compared with replications of each fitted model on the same requests:
the standard deviation over requests of the rounds they took, and that of the tokens of a row-round.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pandas as pd
from scipy.optimize import minimize
from scipy.special import betaln

from refimpl.core.errors import require
from simulator.engine_runs.parity import replay_scenario
from simulator.intervals import range_of_runs
from simulator.service.simulation import simulate_once
from simulator.settings.fields import REPLICATIONS, Spec
from simulator.settings.traces import EngineTrace

STATISTICS = ("draft_acceptance_rate", "mean_acceptance_length", "sd_rounds", "sd_kept")
HELD = 0.95  # share of replications between low and high


@dataclass(frozen=True, eq=False)
class Fit:
    """A fitted model beside the trace.

    Attributes:
        spec: the model with its parameters, as a scenario takes it.
        log_likelihood: of all compared drafts, in nats, so that models can be ranked by it; NaN for the bootstrap,
            which has no parameters.
        table: statistic → trace, model, low and high (95 % of single replications lie between them; of fewer than 39,
            the least and the greatest), inside.
    """

    spec: Spec
    log_likelihood: float
    table: pd.DataFrame


def request_counts(trace: EngineTrace) -> tuple[np.ndarray, np.ndarray]:
    """Right and wrong proposals of every request ``[n], [n]``; proposals after the first wrong one do not count.

    A position counts once, however often a layout that rolls back has it drafted again.
    """
    bits = [trace.match_bits(sequence) for sequence in range(trace.header["num_sequences"])]
    right, wrong = (np.array([int((each == value).sum()) for each in bits]) for value in (1, 0))
    require(int((right + wrong).sum()) > 0, f"{trace.path}: holds no drafted token to learn from")
    return right, wrong


def fit_iid(trace: EngineTrace) -> tuple[Spec, float]:
    """Maximum likelihood: right over compared proposals."""
    right, wrong = (int(values.sum()) for values in request_counts(trace))
    p = right / (right + wrong)
    return Spec.of("iid", probability=p), _bernoulli(right, wrong, p)


def _bernoulli(right: float, wrong: float, p: float) -> float:
    return float((right * np.log(p) if right else 0.0) + (wrong * np.log1p(-p) if wrong else 0.0))


def fit_profile(trace: EngineTrace) -> tuple[Spec, float]:
    """Maximum likelihood per place in the round: share of right ones among the proposals compared there.

    Raises:
        InputError: the rollback layout, which has the same positions drafted again at other places.
    """
    again = trace.header["layout"] == "rollback"
    require(not again, f"{trace.path}: a profile cannot be told from a run of layout rollback")
    accepted, drafted = trace.rows["accepted"].to_numpy(), trace.rows["drafted"].to_numpy()
    probabilities, total = [], 0.0
    for place in range(int(drafted.max())):
        right, compared = int((accepted > place).sum()), int(((accepted >= place) & (drafted > place)).sum())
        if compared:
            probabilities.append(right / compared)
            total += _bernoulli(right, compared - right, right / compared)
    return Spec.of("profile", probabilities=probabilities), total


def fit_beta(trace: EngineTrace) -> tuple[Spec, float]:
    """Maximum likelihood of Beta(a, b) over requests, each with its own probability."""
    right, wrong = request_counts(trace)

    def loss(log_ab: np.ndarray) -> float:
        a, b = np.exp(log_ab)
        return -float((betaln(a + right, b + wrong) - betaln(a, b)).sum())

    bounds = [(np.log(1e-2), np.log(1e4))] * 2
    found = minimize(loss, np.log([2.0, 2.0]), method="L-BFGS-B", bounds=bounds)
    a, b = np.exp(found.x)
    return Spec.of("beta", a=float(a), b=float(b)), -float(found.fun)


def fit_markov(trace: EngineTrace) -> tuple[Spec, float]:
    """Maximum likelihood of a stationary two-state chain, over all compared proposals.

    Given the last compared proposal, g positions before, a proposal is right with probability
    p + correlation^g · (last − p); a request's first one, with p.
    """
    right, last, gap = _compared(trace)

    def loss(values: np.ndarray) -> float:
        p, correlation = values
        chance = p + correlation**gap * (last - p)
        return -float(np.log(np.where(right == 1, chance, 1 - chance)).sum())

    start = float(np.clip(fit_iid(trace)[0]["probability"], 1e-6, 1 - 1e-6))
    found = minimize(loss, [start, 0.1], method="L-BFGS-B", bounds=[(1e-6, 1 - 1e-6), (0, 0.999)])
    p, correlation = (float(value) for value in found.x)
    return Spec.of("markov", probability=p, correlation=correlation), -float(found.fun)


def _compared(trace: EngineTrace) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Of each compared proposal ``[n], [n], [n]``: whether right, whether the request's one before was, how far before.

    For a request's first one the last two are 0 and infinite.
    """
    parts = []
    for sequence in range(trace.header["num_sequences"]):
        bits = trace.match_bits(sequence)
        places = np.flatnonzero(bits >= 0)
        gaps = np.diff(places, prepend=-np.inf)
        parts.append(np.stack([bits[places], np.append(0, bits[places])[:-1], gaps]))
    right, last, gap = np.concatenate(parts, axis=1)
    return right, last, gap


def fit_all(trace: EngineTrace, replications: int = 40) -> dict[str, Fit]:
    """Fit every model that the trace can tell of, and compare each with it.

    Raises:
        InputError: no replications, a trace without drafted tokens, or one whose drafts were looked up, or cut by their
            probabilities: a model's rounds begin elsewhere, where neither is known.
    """
    REPLICATIONS.check(replications, "replications")
    drafting = replay_scenario(trace).engine.drafting
    known = not (drafting.lookup or drafting.reads_probabilities)
    run = f"drafter {drafting.drafter} and draft_budget {drafting.draft_budget}"
    message = "what was looked up, or what probabilities said, is known where its own rounds began alone"
    require(known, f"{trace.path}:1: no model can be held against a run with {run}: {message}")
    fitted = {
        "iid": fit_iid(trace),
        **({} if trace.header["layout"] == "rollback" else {"profile": fit_profile(trace)}),
        "beta": fit_beta(trace),
        "markov": fit_markov(trace),
        "bootstrap": (Spec.of("bootstrap", path=trace.path), float("nan")),
    }
    return {
        name: Fit(spec, likelihood, compare_spread(trace, spec, replications))
        for name, (spec, likelihood) in fitted.items()
    }


def statistics(rows: pd.DataFrame) -> dict[str, float]:
    """The compared statistics of a table of row-rounds; those at the end of a budget are left out of `sd_kept`."""
    drafted, accepted = rows["drafted"].sum(), rows["accepted"].sum()
    full = rows[rows["drafted"] == rows["drafted"].max()]
    return {
        "draft_acceptance_rate": float(accepted / max(drafted, 1)),
        "mean_acceptance_length": float(1 + accepted / max(len(rows), 1)),
        "sd_rounds": float(rows.groupby("sequence").size().std(ddof=1)),
        "sd_kept": float(full["accepted"].std(ddof=1)),
    }


def compare_spread(trace: EngineTrace, spec: Spec, replications: int) -> pd.DataFrame:
    """Statistics of the trace beside the range of 95 % of single replications of the model on the same requests."""
    observed = statistics(trace.rows)
    drawn = pd.DataFrame(list(_replicate(trace, spec, replications)))
    low, high = (pd.Series(end, drawn.columns) for end in range_of_runs(drawn, HELD))
    table = pd.DataFrame({"trace": pd.Series(observed), "model": drawn.mean(), "low": low, "high": high})
    table["inside"] = (table["trace"] >= table["low"]) & (table["trace"] <= table["high"])
    return table.loc[list(STATISTICS)]


def _replicate(trace: EngineTrace, spec: Spec, replications: int) -> Iterator[dict[str, float]]:
    scenario = replay_scenario(trace, acceptance=spec)
    for index in range(replications):
        yield statistics(simulate_once(scenario, index, keep_rows=True).log.row_frame())
