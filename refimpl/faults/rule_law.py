"""The law of a rejection rule alone: `propose` and `decide` on fixed distributions, without models and caches.

Thousands of rows decode a few tokens. Target and draft have nothing in common, and each has one distribution for a
position, whatever came before, so the tokens of a row must be independent, each with the target's law. One chi-squared
test for each token and each pair of neighbours sees what a run's few thousand outputs cannot.
"""

from collections.abc import Callable
from typing import Literal, get_args

import scipy.stats
import torch
from jaxtyping import Float, Int
from torch import Tensor

from refimpl.core.config import SamplingConfig
from refimpl.decoding.acceptance import AcceptanceRule, Proposal, RowNumbers
from refimpl.decoding.sampling import RowKeys
from refimpl.oracle.autoregressive import shape_distribution

NUM_ROWS, VOCAB_SIZE, NUM_TOKENS, NUM_DRAFTS = 20_000, 32, 3, 2
LOGIT_SCALE = 3.0  # standard deviation of the logits
LEAST_EXPECTED = 5.0  # smaller cells are pooled
KeyPart = Literal["seed", "sequence", "position"]
KEY_PARTS: tuple[KeyPart, ...] = get_args(KeyPart)


def rule_p_value(rule: AcceptanceRule, vary: KeyPart = "sequence") -> float:
    """P-value of the null that a rule's tokens follow the target's law (Bonferroni over the chi-squared tests).

    Args:
        rule: any that promises the law.
        vary: the part of the key in which the rows differ; numbers that ignore it are the same in all rows.
    """
    tokens = _decode(rule, *_keys(vary))
    assert isinstance(rule.sampling, SamplingConfig)
    laws = [shape_distribution(logits, rule.sampling) for logits in _logits("target")[:NUM_TOKENS]]
    singles = [chi_square_p_value(_counts(tokens[:, i]), law) for i, law in enumerate(laws)]
    pairs = [
        chi_square_p_value(_counts(tokens[:, i], tokens[:, i + 1]), torch.outer(laws[i], laws[i + 1]).flatten())
        for i in range(NUM_TOKENS - 1)
    ]
    return min(1.0, len(singles + pairs) * min(singles + pairs))


def law_p_value(make_rule: Callable[[], AcceptanceRule]) -> float:
    """P-value over all parts of the key, a new rule for each."""
    return min(1.0, len(KEY_PARTS) * min(rule_p_value(make_rule(), part) for part in KEY_PARTS))


def chi_square_p_value(observed: Float[Tensor, " cells"], law: Float[Tensor, " cells"]) -> float:
    """Pearson's chi-squared test of counts against a law, rare cells pooled; an impossible outcome gives 0."""
    if bool((observed[law == 0] > 0).any()):
        return 0.0
    expected = law * observed.sum()
    common = expected >= LEAST_EXPECTED
    rest = torch.stack([observed[~common].sum(), expected[~common].sum()])
    pooled = rest[1:] >= LEAST_EXPECTED
    found = torch.cat([observed[common], rest[:1][pooled]])
    wanted = torch.cat([expected[common], rest[1:][pooled]])
    statistic = float(((found - wanted) ** 2 / wanted).sum())
    return float(scipy.stats.chi2.sf(statistic, len(wanted) - 1))


def _logits(model: Literal["target", "draft"]) -> Float[Tensor, "positions vocab"]:
    generator = torch.Generator().manual_seed(("target", "draft").index(model))
    positions = NUM_TOKENS + NUM_DRAFTS
    return LOGIT_SCALE * torch.randn(positions, VOCAB_SIZE, generator=generator, dtype=torch.float64)


def _keys(vary: KeyPart) -> tuple[RowKeys, Int[Tensor, " rows"]]:
    """Keys of the rows, and the position of each row's first token; no two rows share all three."""
    run, same = torch.arange(NUM_ROWS), torch.full((NUM_ROWS,), 3)
    first = run * (NUM_TOKENS + NUM_DRAFTS + 1) if vary == "position" else same
    return RowKeys(run if vary == "seed" else same, run if vary == "sequence" else same), first


def _decode(rule: AcceptanceRule, keys: RowKeys, first: Int[Tensor, " rows"]) -> Int[Tensor, "rows tokens"]:
    """Round by round until every row has its tokens."""
    tokens = torch.zeros(NUM_ROWS, NUM_TOKENS + NUM_DRAFTS + 1, dtype=torch.long)
    done = torch.zeros(NUM_ROWS, dtype=torch.long)
    while len(live := (done < NUM_TOKENS).nonzero()[:, 0]):
        start = first[live] + done[live] if rule.fresh_numbers else None
        mine = RowKeys(keys.seed[live], keys.sequence[live], start)
        emitted, kept = _one_round(rule, mine, first[live], done[live])
        at = done[live, None] + torch.arange(NUM_DRAFTS + 1)
        tokens[live] = tokens[live].scatter(1, at, emitted)
        done[live] += kept
    return tokens[:, :NUM_TOKENS]


def _one_round(
    rule: AcceptanceRule, keys: RowKeys, first: Int[Tensor, " rows"], done: Int[Tensor, " rows"]
) -> tuple[Int[Tensor, "rows k1"], Int[Tensor, " rows"]]:
    """Emitted tokens, and how many of them count."""
    target, draft = _logits("target"), _logits("draft")
    at = done[:, None] + torch.arange(NUM_DRAFTS + 1)
    position = first[:, None] + at
    steps = [
        rule.propose(draft[at[:, step : step + 1]], keys, position[:, step : step + 1]) for step in range(NUM_DRAFTS)
    ]
    limits = (NUM_TOKENS - 1 - done).clamp(max=NUM_DRAFTS)
    decision = rule.decide(Proposal.join(steps), target[at], RowNumbers(keys, position, limits))
    return decision.emitted, decision.num_accepted + 1


def _counts(*tokens: Int[Tensor, " rows"]) -> Float[Tensor, " cells"]:
    cell = torch.zeros_like(tokens[0])
    for column in tokens:
        cell = cell * VOCAB_SIZE + column
    return cell.bincount(minlength=VOCAB_SIZE ** len(tokens)).double()
