"""How many drafted tokens survive, and which token follows them. Pure functions on ``[batch, k]``.

A rule proposes the draft's tokens and later decides on them. The three rules differ in how a token is chosen from a
distribution; greedy and coupled then accept a draft when the target chose the same token.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence as Seq
from dataclasses import dataclass, replace

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from refimpl.core import kernels
from refimpl.core.config import AcceptanceName, DecodeConfig, SamplingConfig
from refimpl.core.errors import InputError, InvariantViolation
from refimpl.decoding.sampling import Purpose, RandomSource, RowKeys, probabilities, uniform


@dataclass(frozen=True, slots=True)
class Proposal:
    """What the draft proposes at consecutive positions.

    Attributes:
        tokens: ``[batch, k]``
        probabilities: the distributions they were drawn from ``[batch, k, vocab]``; None when the rule needs none.
    """

    tokens: Int[Tensor, "batch k"]
    probabilities: Float[Tensor, "batch k vocab"] | None = None

    @classmethod
    def join(cls, steps: Seq["Proposal"]) -> "Proposal":
        """Put proposals for consecutive positions, at least one, after each other."""
        mass = [step.probabilities for step in steps if step.probabilities is not None]
        return cls(torch.cat([step.tokens for step in steps], dim=1), torch.cat(mass, dim=1) if mass else None)


@dataclass(frozen=True, slots=True)
class DrawnMass:
    """Mass of each row's tokens under the distributions that they were drawn from.

    All that count must be above 0. A draft that breaks this makes p/q another ratio than the one of the draw. It is NaN
    where the model's logits are NaN or infinite, and make no distribution.

    Attributes:
        whose: draft or target.
        mass, tokens: ``[batch, q]``
        num_used: leading tokens of each row that count ``[batch]``.
    """

    whose: str
    mass: Float[Tensor, "batch q"]
    tokens: Int[Tensor, "batch q"]
    num_used: Int[Tensor, " batch"]

    @classmethod
    def of(
        cls,
        whose: str,
        distribution: Float[Tensor, "batch q vocab"],
        tokens: Int[Tensor, "batch q"],
        num_used: Int[Tensor, " batch"],
    ) -> "DrawnMass":
        """Look the tokens up."""
        return cls(whose, distribution.gather(-1, tokens[..., None])[..., 0], tokens, num_used)

    @property
    def wrong(self) -> Bool[Tensor, "batch q"]:
        """Tokens that count and have no mass."""
        used = torch.arange(self.tokens.shape[1], device=self.tokens.device) < self.num_used[:, None]
        return used & ~(self.mass > 0)

    def require(self) -> None:
        """Raise the error of the first wrong token. Waits for the device.

        Raises:
            InputError: the model's logits are not finite.
            InvariantViolation: the token was drawn from another distribution than this.
        """
        wrong = self.wrong.nonzero()
        if len(wrong):
            row, at = wrong[0].tolist()
            if self.mass[row, at].isnan():
                raise InputError(f"the {self.whose}'s logits are not finite in row {row}")
            statement = f"the {self.whose} must put mass on the token it drew"
            found = f"{float(self.mass[row, at]):g} on token {int(self.tokens[row, at])}"
            raise InvariantViolation("INV-12", statement, row=row, expected="mass > 0", found=found)


@dataclass(frozen=True, slots=True)
class Decision:
    """What the target makes of a proposal.

    Attributes:
        num_accepted: longest accepted prefix within each row's limit ``[batch]``.
        emitted: accepted drafts, then the next token; arbitrary after that ``[batch, k+1]``.
        drawn: what the rule drew from, to be required once the decision is on the host.
    """

    num_accepted: Int[Tensor, " batch"]
    emitted: Int[Tensor, "batch k1"]
    drawn: tuple[DrawnMass, ...] = ()

    def table(self) -> Int[Tensor, "batch k3"]:
        """Everything the host needs, for a single copy: accepted, tokens without mass, emitted."""
        wrong = sum((d.wrong.sum(dim=1) for d in self.drawn), torch.zeros_like(self.num_accepted))
        return torch.cat([self.num_accepted[:, None], wrong[:, None], self.emitted], dim=1)

    def rows(self, index: Int[Tensor, " n"]) -> "Decision":
        """The decision on some of the rows."""
        drawn = tuple(DrawnMass(d.whose, d.mass[index], d.tokens[index], d.num_used[index]) for d in self.drawn)
        return Decision(self.num_accepted[index], self.emitted[index], drawn)

    def require_mass(self) -> None:
        """Raise unless both models put mass on the tokens they drew, see `DrawnMass.require`. Waits for the device."""
        for drawn in self.drawn:
            drawn.require()


class AcceptanceRule(ABC):
    """Chooses draft tokens and decides on them.

    Args:
        sampling: shape of both models' distributions.
        source: where random numbers come from.
    """

    def __init__(self, sampling: SamplingConfig, source: RandomSource | None = None):
        self.sampling = sampling
        self.source = source or RandomSource()

    @abstractmethod
    def propose(
        self, logits: Float[Tensor, "batch 1 vocab"], keys: RowKeys, position: Int[Tensor, "batch 1"]
    ) -> Proposal:
        """Choose the draft's token for `position` (``[batch, 1]``) in every row."""

    @abstractmethod
    def decide(
        self,
        proposal: Proposal,
        target_logits: Float[Tensor, "batch k1 vocab"],
        keys: RowKeys,
        position: Int[Tensor, "batch k1"],
        limits: Int[Tensor, " batch"],
    ) -> Decision:
        """Accept a prefix of the proposal and add one token of the target's.

        Args:
            proposal: k tokens a row.
            target_logits: after 0 … k of them.
            keys: of the rows.
            position: positions that the k+1 choices fill.
            limits: drafts that each row may use.
        """


class MatchingRule(AcceptanceRule):
    """The target chooses its own token at every position; drafts are accepted as long as they are the same."""

    @abstractmethod
    def choose(
        self, logits: Float[Tensor, "batch q vocab"], keys: RowKeys, position: Int[Tensor, "batch q"]
    ) -> Int[Tensor, "batch q"]:
        """Choose one token per row and position."""

    def propose(
        self, logits: Float[Tensor, "batch 1 vocab"], keys: RowKeys, position: Int[Tensor, "batch 1"]
    ) -> Proposal:
        """Choose as the target would, from the draft's logits."""
        return Proposal(self.choose(logits, keys, position))

    def decide(
        self,
        proposal: Proposal,
        target_logits: Float[Tensor, "batch k1 vocab"],
        keys: RowKeys,
        position: Int[Tensor, "batch k1"],
        limits: Int[Tensor, " batch"],
    ) -> Decision:
        """Compare position by position."""
        return match(proposal.tokens, self.choose(target_logits, keys, position), limits)


def match(
    draft_tokens: Int[Tensor, "batch k"], target_tokens: Int[Tensor, "batch k1"], limits: Int[Tensor, " batch"]
) -> Decision:
    """Accept drafts as long as they are the target's own tokens."""
    matches = (draft_tokens == target_tokens[:, :-1]).long().unbind(dim=1)
    return Decision(kernels.num_accepted(matches, limits), target_tokens)


class GreedyRule(MatchingRule):
    """The most probable token, ties to the lowest id."""

    def choose(
        self, logits: Float[Tensor, "batch q vocab"], keys: RowKeys, position: Int[Tensor, "batch q"]
    ) -> Int[Tensor, "batch q"]:
        """Take the argmax; the keys are not used."""
        return logits.argmax(dim=-1)

    def decide(
        self,
        proposal: Proposal,
        target_logits: Float[Tensor, "batch k1 vocab"],
        keys: RowKeys,
        position: Int[Tensor, "batch k1"],
        limits: Int[Tensor, " batch"],
    ) -> Decision:
        """Compare position by position; every emitted token must have a logit."""
        decision = super().decide(proposal, target_logits, keys, position, limits)
        chosen = target_logits.gather(-1, decision.emitted[..., None])[..., 0].double()
        mass = chosen - chosen + 1  # all of it, or NaN where the logit is NaN or infinite
        return replace(decision, drawn=(DrawnMass("target", mass, decision.emitted, decision.num_accepted + 1),))


class CoupledRule(MatchingRule):
    """Both models sample with the same noise, so the output is the sample that autoregressive decoding draws.

    Source: Daliri, Musco, Suresh 2024 (drafter-invariant speculative decoding).
    """

    def choose(
        self, logits: Float[Tensor, "batch q vocab"], keys: RowKeys, position: Int[Tensor, "batch q"]
    ) -> Int[Tensor, "batch q"]:
        """Run the exponential race of each position."""
        return self.source.draw(probabilities(logits, self.sampling), keys, position, Purpose.COUPLED)

    def decide(
        self,
        proposal: Proposal,
        target_logits: Float[Tensor, "batch k1 vocab"],
        keys: RowKeys,
        position: Int[Tensor, "batch k1"],
        limits: Int[Tensor, " batch"],
    ) -> Decision:
        """Compare position by position; every emitted token must have mass."""
        mass = probabilities(target_logits, self.sampling)
        target_tokens = self.source.draw(mass, keys, position, Purpose.COUPLED)
        decision = match(proposal.tokens, target_tokens, limits)
        return replace(decision, drawn=(DrawnMass.of("target", mass, target_tokens, decision.num_accepted + 1),))


class RejectionRule(AcceptanceRule):
    """Accept with probability min(1, p/q), else draw from the residual max(p − q, 0).

    Source: Leviathan, Kalman, Matias 2023; Chen et al. 2023. Preserves the target's law, not its very tokens. The
    tokens still do not depend on batch, order or schedule, because every row's rounds begin where its own acceptance
    put them; only the rollback layout moves those boundaries with the batch, and then only the law is kept.
    """

    def propose(
        self, logits: Float[Tensor, "batch 1 vocab"], keys: RowKeys, position: Int[Tensor, "batch 1"]
    ) -> Proposal:
        """Draw from the draft's processed distribution and keep it for the ratio."""
        mass = probabilities(logits, self.sampling)
        return Proposal(self.source.draw(mass, keys, position, Purpose.DRAFT), mass)

    def decide(
        self,
        proposal: Proposal,
        target_logits: Float[Tensor, "batch k1 vocab"],
        keys: RowKeys,
        position: Int[Tensor, "batch k1"],
        limits: Int[Tensor, " batch"],
    ) -> Decision:
        """Accept a prefix; a row whose limit cut the run short draws from p itself, as after a full acceptance."""
        target = probabilities(target_logits, self.sampling)
        drawn: tuple[DrawnMass, ...] = ()
        if proposal.probabilities is None:  # no drafts in this round
            accepted, weights = torch.zeros_like(limits), target[:, 0]
        else:
            draft = DrawnMass.of("draft", proposal.probabilities, proposal.tokens, limits)
            accepted, drawn = self._num_accepted(draft, target, keys, position), (draft,)
            weights = next_weights(target, proposal.probabilities, accepted, limits)
        at = accepted[:, None]
        next_token = self.source.draw(weights[:, None], keys, position.gather(1, at), Purpose.NEXT)
        emitted = torch.cat([proposal.tokens, next_token], dim=1).scatter(1, at, next_token)
        return Decision(accepted, emitted, (*drawn, DrawnMass.of("target", target, emitted, accepted + 1)))

    def _num_accepted(
        self,
        draft: DrawnMass,
        target: Float[Tensor, "batch k1 vocab"],
        keys: RowKeys,
        position: Int[Tensor, "batch k1"],
    ) -> Int[Tensor, " batch"]:
        """Test the drafts position by position."""
        p = target[:, :-1].gather(-1, draft.tokens[..., None])[..., 0]
        passed = self.source.accepts(p, draft.mass, keys, position[:, :-1])
        return kernels.num_accepted(passed.long().unbind(dim=1), draft.num_used)


def next_weights(
    target: Float[Tensor, "batch k1 vocab"],
    draft: Float[Tensor, "batch k vocab"],
    accepted: Int[Tensor, " batch"],
    limits: Int[Tensor, " batch"],
) -> Float[Tensor, "batch vocab"]:
    """p after the accepted prefix; its residual, not normalised, where a draft was rejected there.

    The residual of equal distributions is empty. Exact arithmetic rejects nothing then; should rounding do it, the
    token is drawn from p, from which the residual's law differs by no more than that rounding.
    """
    rows = torch.arange(len(accepted), device=accepted.device)
    p = target[rows, accepted]
    q = draft[rows, accepted.clamp(max=draft.shape[1] - 1)]
    residual = kernels.residual(p, q)
    rejected = (accepted < limits)[:, None] & (residual > 0).any(dim=-1, keepdim=True)
    return torch.where(rejected, residual, p)


class ForcedRule(GreedyRule):
    """Accepts as many drafts as a given distribution says, whatever the target thinks of them. For timing only.

    Args:
        lengths: probability of 0, 1, … accepted drafts; a row's own limit caps the number drawn.
    """

    def __init__(self, sampling: SamplingConfig, lengths: tuple[float, ...], source: RandomSource | None = None):
        super().__init__(sampling, source)
        self.cumulative = torch.tensor(lengths, dtype=torch.float64).cumsum(dim=0)[:-1]

    def decide(
        self,
        proposal: Proposal,
        target_logits: Float[Tensor, "batch k1 vocab"],
        keys: RowKeys,
        position: Int[Tensor, "batch k1"],
        limits: Int[Tensor, " batch"],
    ) -> Decision:
        """Draw a number per row, keyed like every random number, and let the target add its token after it."""
        self.cumulative = self.cumulative.to(position.device)  # once: a recorded decision copies nothing from the host
        drawn = uniform(keys, position[:, :1], Purpose.FORCED) >= self.cumulative
        accepted = kernels.minimum(drawn.sum(dim=1), limits)
        next_token = target_logits.argmax(dim=-1).gather(1, accepted[:, None])
        padded = torch.cat([proposal.tokens, next_token], dim=1)
        return Decision(accepted, padded.scatter(1, accepted[:, None], next_token))


RULES: dict[AcceptanceName, type[AcceptanceRule]] = {
    "greedy": GreedyRule,
    "coupled": CoupledRule,
    "rejection": RejectionRule,
}


def make_rule(config: DecodeConfig, source: RandomSource | None = None) -> AcceptanceRule:
    """The rule that a config asks for."""
    if config.resolved_acceptance == "forced":
        return ForcedRule(config.sampling, config.forced_lengths, source)
    return RULES[config.resolved_acceptance](config.sampling, source)
