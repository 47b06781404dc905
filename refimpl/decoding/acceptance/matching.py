"""Rules that accept a draft when the target chose the same token: greedy, and coupled noise."""

from abc import abstractmethod

from jaxtyping import Float, Int
from torch import Tensor

from refimpl.core import kernels
from refimpl.decoding.acceptance.base import AcceptanceRule
from refimpl.decoding.acceptance.records import Decision, DrawnMass, Proposal, RowNumbers
from refimpl.decoding.sampling import Purpose, RowKeys, Sampling, first_largest, probabilities


class MatchingRule(AcceptanceRule):
    """The target chooses its own token at every position; drafts are accepted as long as they are the same."""

    def shaped(self, sampling: Sampling | None) -> AcceptanceRule:
        """Greedy where all rows are, else coupled."""
        if sampling is None:
            return self
        return (GreedyRule if sampling.greedy else CoupledRule)(sampling, self.source)

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
        self, proposal: Proposal, target_logits: Float[Tensor, "batch k1 vocab"], numbers: RowNumbers
    ) -> Decision:
        """Compare position by position."""
        return match(proposal.tokens, self.choose(target_logits, numbers.keys, numbers.position), numbers.limits)


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
        return first_largest(logits)

    def decide(
        self, proposal: Proposal, target_logits: Float[Tensor, "batch k1 vocab"], numbers: RowNumbers
    ) -> Decision:
        """Compare position by position; every emitted token must have a logit."""
        decision = super().decide(proposal, target_logits, numbers)
        chosen = target_logits.gather(-1, decision.emitted[..., None])[..., 0].double()
        mass = chosen - chosen + 1  # all of it, or NaN where the logit is NaN or infinite
        return decision.of(DrawnMass("target", mass, decision.emitted, decision.num_accepted + 1))


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
        self, proposal: Proposal, target_logits: Float[Tensor, "batch k1 vocab"], numbers: RowNumbers
    ) -> Decision:
        """Compare position by position; every emitted token must have mass."""
        mass = probabilities(target_logits, self.sampling)
        target_tokens = self.source.draw(mass, numbers.keys, numbers.position, Purpose.COUPLED)
        decision = match(proposal.tokens, target_tokens, numbers.limits)
        return decision.of(DrawnMass.of("target", mass, target_tokens, decision.num_accepted + 1))
