"""Drafts of a round where a budget or a lookup decides about them: the engine's own budgets, asked as it asks them."""

from collections.abc import Sequence as Seq
from typing import NamedTuple

from refimpl.drafting.budgets import DraftBudget, make_budget
from simulator.service.acceptance import AcceptanceModel
from simulator.service.confidence import Confidence, make_confidence
from simulator.service.lookups import Lookups, make_lookups
from simulator.service.records import Request
from simulator.service.streams import TILE_POSITIONS, Streams
from simulator.settings.kinds import HEAD
from simulator.settings.scenario import Scenario


class RowProposal(NamedTuple):
    """What a row verifies in a round.

    Attributes:
        drafted: drafts that are verified.
        accepted: leading ones that are right.
    """

    drafted: int
    accepted: int


class RoundProposals(NamedTuple):
    """What all rows verify in a round, and what drafting it took.

    Attributes:
        of: those of each request that has not finished, by its index.
        passes: of the draft; 0 where it has not run.
        other_s: seconds of looking up, or of a head.
    """

    of: dict[int, RowProposal]
    passes: int
    other_s: float

    @property
    def k(self) -> int:
        """Drafts of the widest row."""
        return max([proposal.drafted for proposal in self.of.values()])


class Head(NamedTuple):
    """Seconds of a step of a head, and what each row adds to it."""

    step_s: float
    step_s_per_row: float

    def seconds(self, members: Seq[Request], steps: int) -> float:
        """Seconds of so many steps for these members."""
        return steps * (self.step_s + self.step_s_per_row * len(members))


class Drafting:
    """Makes the proposals of each round.

    Args:
        budget: decides how many drafts are verified.
        confidence: what it is told of them; None where it does not ask.
        lookups: what they find; None where nothing is looked up.
        draws: whether a draft model or a head runs, where lookups find nothing.
        head: what a step of the head takes; None where there is none.
    """

    def __init__(
        self,
        budget: DraftBudget,
        confidence: Confidence | None,
        lookups: Lookups | None,
        draws: bool,
        head: Head | None = None,
    ):
        self.budget, self.confidence, self.lookups, self.draws, self.head = budget, confidence, lookups, draws, head

    def propose(self, members: Seq[Request]) -> RoundProposals:
        """Ask the budget, draft or look up, and ask the budget again."""
        live = [row for row in members if not row.finished]
        wanted = iter(self.budget.before(live))
        limits = [0 if row.finished else min(row.draft_limit, next(wanted)) for row in members]
        found, other_s = self._looked_up(members, limits)
        if self.head:
            limits = [limit if row.has_state else 0 for row, limit in zip(members, limits, strict=True)]
        runs = self.draws and any(limit > n == 0 for limit, n in zip(limits, found, strict=True))
        lengths, passes = self._drawn(members, limits) if runs else (found, 0)
        rows = zip(members, lengths, found, strict=True)
        of = {
            row.sequence: RowProposal(n, self._right(row, n, leading)) for row, n, leading in rows if not row.finished
        }
        if self.head:
            passes, other_s = 0, self.head.seconds(members, passes)
        return RoundProposals(of, passes, other_s)

    def _looked_up(self, members: Seq[Request], limits: list[int]) -> tuple[list[int], float]:
        """Tokens that are found for each member, and seconds of looking."""
        if self.lookups is None:
            return [0] * len(members), 0.0
        asked, look = zip(members, limits, strict=True), self.lookups.found
        found = [min(limit, look(row)) if limit else 0 for row, limit in asked]
        return found, self.lookups.host_s_per_row * sum(limit > 0 for limit in limits)

    def _drawn(self, members: Seq[Request], limits: list[int]) -> tuple[list[int], int]:
        """Drafts of each member to verify, and passes of the draft, as the engine's `ProposalTracker` finds them."""
        if self.confidence is None:
            return limits, max(limits)
        most = max(limits)
        survival = [[] if row.finished else self.confidence.survival(row, most) for row in members]
        limits, passes = self._stopped(limits, survival) if self.budget.stops else (limits, most)
        return self.budget.after(limits, survival), passes

    def _stopped(self, limits: list[int], survival: Seq[Seq[float]]) -> tuple[list[int], int]:
        """Drafts that each member goes on to, and passes: one more may show that nobody goes on to the next draft."""
        for depth in range(max(limits)):
            goes_on = self.budget.go_on([each[depth] if depth < len(each) else 0.0 for each in survival])
            limits = [limit if goes else min(limit, depth) for limit, goes in zip(limits, goes_on, strict=True)]
            if max(limits) <= depth:
                return limits, depth + 1
        return limits, max(limits)

    def _right(self, row: Request, length: int, found: int) -> int:
        """Leading drafts of a row that are right: the first `found` were looked up, the others are the model's."""
        looked_up = min(found, self.lookups.run(row)) if self.lookups and found else 0
        if looked_up < found or length == found:
            return looked_up
        return min(length, found + _run(row, row.generated + found))


def _run(row: Request, position: int) -> int:
    """Right drafts of the model from a position on."""
    number, place = divmod(position, TILE_POSITIONS)
    return row.draw(row.sequence, number)[place]


def note_drafts(live: Seq[Request], proposals: RoundProposals) -> None:
    """Count what the target has decided on at the positions that a round has committed, see `Sequence.note_drafts`.

    Args:
        live: rows of the round.
        proposals: of the round.
    """
    for row in live:
        drafted, accepted = proposals.of[row.sequence]
        committed = min(accepted, row.last_kept)
        row.num_accepted += committed
        row.num_evaluated += committed + (accepted < min(drafted, row.last_kept))
        row.has_state = True


def make_drafting(scenario: Scenario, streams: Streams, acceptance: AcceptanceModel) -> Drafting | None:
    """What a scenario's engine does about drafts; None where each row is offered as many as it can use."""
    settings = scenario.engine.drafting
    if not scenario.engine.varies_drafts:
        return None
    confidence = make_confidence(scenario.confidence, acceptance) if settings.reads_probabilities else None
    k = scenario.engine.num_speculative_tokens
    lookups = make_lookups(scenario.lookup, streams, k) if settings.lookup else None
    head = Head(**scenario.head.resolved(HEAD)) if settings.drafter == "head" else None
    return Drafting(make_budget(settings), confidence, lookups, settings.uses_draft or head is not None, head)
