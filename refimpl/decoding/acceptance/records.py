"""Proposals, numbers of a round and decisions: tensors with one row for each row of the batch."""

from collections.abc import Sequence as Seq
from dataclasses import dataclass, replace

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from refimpl.core.errors import InputError
from refimpl.core.invariants import InvariantViolation
from refimpl.decoding.processors import RowProcessors
from refimpl.decoding.sampling import RowKeys, RowSampling, Sampling, rows_of


@dataclass(frozen=True, slots=True)
class RowNumbers:
    """Keys, positions and limits of a round, for every row.

    Attributes:
        keys: of the random numbers.
        position: positions that the k+1 choices fill.
        limits: drafts that a row can use.
        sampling: shape of the rows' distributions; None for that of the run.
        processors: what changes the rows' logits before; None for nothing.
    """

    keys: RowKeys
    position: Int[Tensor, "batch k1"]
    limits: Int[Tensor, " batch"]
    sampling: Sampling | None = None
    processors: RowProcessors | None = None

    def processed(self, logits: Float[Tensor, "batch q vocab"], drafts: Seq[Tensor]) -> Float[Tensor, "batch q vocab"]:
        """Logits behind the last of the drafts that were proposed so far, or behind all of them."""
        return logits if self.processors is None else self.processors(logits, drafts)

    def cut(self, limits: list[int]) -> "RowNumbers":
        """The numbers of a round in which rows can use fewer drafts than these."""
        fewer = torch.tensor(limits, dtype=torch.long, device=self.limits.device)
        processors = self.processors and self.processors.cut(limits)
        return replace(self, position=self.position[:, : max(limits) + 1], limits=fewer, processors=processors)

    def rows(self, index: list[int]) -> "RowNumbers":
        """The numbers of some rows."""
        sampling = rows_of(self.sampling, index) if isinstance(self.sampling, RowSampling) else self.sampling
        processors = self.processors and self.processors.rows(index)
        return rows_of(self, index, keys=rows_of(self.keys, index), sampling=sampling, processors=processors)


@dataclass(frozen=True, slots=True)
class Proposal:
    """What is proposed at consecutive positions.

    Attributes:
        tokens: ``[batch, k]``
        probabilities: the distributions they were drawn from ``[batch, k, vocab]``; None when the rule needs none, or
            when no token was drawn.
        looked_up: tokens that were not drawn but found, with all mass on them ``[batch, k]``; None for no token.
    """

    tokens: Int[Tensor, "batch k"]
    probabilities: Float[Tensor, "batch k vocab"] | None = None
    looked_up: Bool[Tensor, "batch k"] | None = None

    @classmethod
    def join(cls, steps: Seq["Proposal"]) -> "Proposal":
        """Join proposals for consecutive positions, at least one."""
        mass = [step.probabilities for step in steps if step.probabilities is not None]
        found = [step.looked_up for step in steps if step.looked_up is not None]
        return cls(
            torch.cat([step.tokens for step in steps], dim=1),
            torch.cat(mass, dim=1) if mass else None,
            torch.cat(found, dim=1) if found else None,
        )

    def overruled(self, tokens: Int[Tensor, "batch k"]) -> "Proposal":
        """Replace drawn tokens by those that were looked up; -1 leaves the drawn one."""
        looked_up = tokens >= 0
        return Proposal(torch.where(looked_up, tokens, self.tokens), self.probabilities, looked_up)

    def cut(self, k: int) -> "Proposal":
        """The first k positions; nothing was drawn from anything where there are none."""
        if k == 0:
            return Proposal(self.tokens[:, :0])
        mass = None if self.probabilities is None else self.probabilities[:, :k]
        return Proposal(self.tokens[:, :k], mass, None if self.looked_up is None else self.looked_up[:, :k])

    def distributions(self, vocab_size: int) -> Float[Tensor, "batch k vocab"] | None:
        """What each token was drawn from: q, which is 1 on a token that was looked up. None where nothing is."""
        if self.looked_up is None:
            return self.probabilities
        certain = torch.nn.functional.one_hot(self.tokens, vocab_size).double()
        if self.probabilities is None:
            return certain
        return torch.where(self.looked_up[..., None], certain, self.probabilities)


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

    def require(self, names: Seq[int]) -> None:
        """Raise the error of the first wrong token; `names` are the rows' indices in the results. Waits for the device.

        Raises:
            InputError: the model's logits are not finite.
            InvariantViolation: the token was drawn from another distribution than this.
        """
        wrong = self.wrong.nonzero()
        if len(wrong):
            row, at = wrong[0].tolist()
            if self.mass[row, at].isnan():
                raise InputError(f"the {self.whose}'s logits are not finite in row {names[row]}")
            wanted = f"the {self.whose} to put mass on the token it drew"
            found = f"{float(self.mass[row, at]):g} on token {int(self.tokens[row, at])}"
            raise InvariantViolation("INV-12", row=names[row], expected=wanted, found=found)


@dataclass(frozen=True, slots=True)
class Decision:
    """The target's decision on a proposal.

    Attributes:
        num_accepted: longest accepted prefix within each row's limit ``[batch]``.
        emitted: accepted drafts, then the next token; arbitrary after that ``[batch, k+1]``.
        drawn: what the rule drew from, to be required once the decision is on the host.
        ready: the table, where it was made together with the decision.
    """

    num_accepted: Int[Tensor, " batch"]
    emitted: Int[Tensor, "batch k1"]
    drawn: tuple[DrawnMass, ...] = ()
    ready: Int[Tensor, "batch k3"] | None = None

    def of(self, *drawn: DrawnMass) -> "Decision":
        """The decision with what it was drawn from."""
        return Decision(self.num_accepted, self.emitted, drawn)

    def table(self) -> Int[Tensor, "batch k3"]:
        """Everything the host needs, for a single copy: accepted, tokens without mass, emitted."""
        if self.ready is not None:
            return self.ready
        wrong = sum((d.wrong.sum(dim=1) for d in self.drawn), torch.zeros_like(self.num_accepted))
        return torch.cat([self.num_accepted[:, None], wrong[:, None], self.emitted], dim=1)

    def rows(self, index: Int[Tensor, " n"]) -> "Decision":
        """The decision on some of the rows."""
        return rows_of(self, index, drawn=tuple(rows_of(drawn, index) for drawn in self.drawn))

    def require_mass(self, names: Seq[int]) -> None:
        """Raise unless both models put mass on the tokens they drew, see `DrawnMass.require`. Waits for the device."""
        for drawn in self.drawn:
            drawn.require(names)
