"""How many drafts the rules accept that keep the law, as sums of probabilities: no acceptance is decided by a coin.

Contexts are samples of the target, drafts are drawn from the draft. Given them, a prefix of j drafts survives rejection
with the product of min(1, p/q), and block verification with P_j (see `BlockRule`). The sum over j is the expected
number of accepted drafts of a round. Both rules see the same drafts, so their difference is measured with far less
noise than either.
"""

import math
from collections.abc import Callable
from collections.abc import Sequence as Seq
from dataclasses import dataclass

import torch
from torch import Tensor

from refimpl.bench.settings import spread
from refimpl.core import kernels
from refimpl.core.config import SamplingConfig
from refimpl.core.errors import require
from refimpl.core.values import MAX_SPECULATIVE_TOKENS
from refimpl.decoding.sampling import probabilities
from refimpl.generation import generate
from refimpl.models.adapter import CausalLM, Pair

Z_95 = 1.96


@dataclass(frozen=True, slots=True)
class AcceptanceSettings:
    """What is measured.

    Attributes:
        temperatures: of target and draft, above 0.
        drafts: numbers of drafts a round, k.
        contexts: places of each continuation where a round begins, evenly spaced.
        new_tokens: length of the continuations.
        seed: of the continuations and the drafts.
    """

    temperatures: tuple[float, ...] = (0.6, 1.0)
    drafts: tuple[int, ...] = (3, 5, 8)
    contexts: int = 4
    new_tokens: int = 48
    seed: int = 0


@dataclass(frozen=True, slots=True)
class AcceptanceRow:
    """One temperature and number of drafts.

    Attributes:
        rounds: that were looked at.
        rejection, block: expected accepted drafts of a round.
        gain, low, high: block over rejection, less 1, with its 95 % interval; prompts are the independent units.
        token_gain: the same of tokens, the one after the drafts included.
    """

    temperature: float
    num_speculative_tokens: int
    rounds: int
    rejection: float
    block: float
    gain: float
    low: float
    high: float
    token_gain: float


Survival = tuple[list[float], list[float]]  # of each depth: under rejection, under block verification


def measure_acceptance(
    pair: Pair,
    prompts: Seq[list[int]],
    settings: AcceptanceSettings,
    progress: Callable[[str, int, int], None] | None = None,
) -> list[AcceptanceRow]:
    """Compare the rules on one pair.

    Args:
        pair: target and draft.
        prompts: token ids.
        settings: what is measured.
        progress: called with (temperature, finished, all).

    Raises:
        InputError: too many drafts for a round or for the models' context, or nothing can be accepted.
    """
    most = max(settings.drafts)
    require(most <= MAX_SPECULATIVE_TOKENS, f"drafts must be at most {MAX_SPECULATIVE_TOKENS}, not {most}")
    need = max(map(len, prompts)) + settings.new_tokens + most
    context = min(model.max_positions for model in pair.models())
    new = settings.new_tokens
    require(need <= context, f"prompts, {new} new tokens and {most} drafts need a context of {need}, not {context}")
    rows = []
    for temperature in settings.temperatures:
        sampling = SamplingConfig(temperature, seed=settings.seed)
        given = {"max_new_tokens": settings.new_tokens, "sampling": sampling}
        texts = generate(pair, list(prompts), method="autoregressive", **given).sequences  # type: ignore[arg-type]
        found, generator = [], torch.Generator().manual_seed(settings.seed)
        for done, (prompt, text) in enumerate(zip(prompts, texts, strict=True), start=1):
            found.append(_of_prompt(pair, prompt, text.token_ids, settings, sampling, generator))
            if progress:
                progress(f"temperature {temperature}", done, len(prompts))
        rows += [_row(temperature, k, found) for k in settings.drafts]
    return rows


def _of_prompt(
    pair: Pair,
    prompt: list[int],
    generated: list[int],
    settings: AcceptanceSettings,
    sampling: SamplingConfig,
    generator: torch.Generator,
) -> list[Survival]:
    """Rounds that begin at some places of a continuation."""
    places = spread(range(len(generated)), settings.contexts)
    longest = max(settings.drafts)
    return [survival(pair, prompt + generated[:place], longest, sampling, generator) for place in places]


def survival(pair: Pair, context: list[int], k: int, sampling: SamplingConfig, generator: torch.Generator) -> Survival:
    """Draw k drafts after a context; how likely is each prefix of them to survive?"""
    feeds = [_distributions(model, pair.vocab_size, sampling) for model in (pair.require_draft(), pair.target)]
    q, p = (feed(context) for feed in feeds)
    alone, block = [1.0], [1.0]
    for depth in range(k):
        token = int(torch.multinomial(q, 1, generator=generator))
        target, draft = float(p[token]), float(q[token])
        alone.append(alone[-1] * kernels.overlap(target, draft) / draft)
        block.append(kernels.block_mass(block[-1], target, draft))
        if depth + 1 < k:
            q, p = (feed([token]) for feed in feeds)
    return alone[1:], block[1:]


def _distributions(model: CausalLM, vocab_size: int, sampling: SamplingConfig) -> Callable[[list[int]], Tensor]:
    """A row of its own: takes the next tokens, gives the distribution after the last of them, on the host."""
    feed = model.fresh_row()
    return lambda tokens: probabilities(feed(tokens)[:vocab_size], sampling).cpu()


def _row(temperature: float, k: int, found: Seq[list[Survival]]) -> AcceptanceRow:
    """Sums by prompt, and the ratio of their totals with the error of a ratio of clustered sums."""
    sums = [[sum(sum(each[rule][:k]) for each in rounds) for rounds in found] for rule in (0, 1)]
    rounds, (rejection, block) = sum(map(len, found)), map(sum, sums)
    require(rejection > 0, f"no draft can be accepted at temperature {temperature}: there is nothing to compare")
    ratio, count = block / rejection, len(found)
    squares = sum((b - ratio * a) ** 2 for a, b in zip(*sums, strict=True))
    error = math.sqrt(squares * count / max(1, count - 1)) / rejection
    return AcceptanceRow(
        temperature=temperature,
        num_speculative_tokens=k,
        rounds=rounds,
        rejection=rejection / rounds,
        block=block / rounds,
        gain=ratio - 1,
        low=ratio - 1 - Z_95 * error,
        high=ratio - 1 + Z_95 * error,
        token_gain=(rounds + block) / (rounds + rejection) - 1,
    )
